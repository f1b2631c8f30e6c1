"""Offset services in this process, with one copy of their journal or several."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import rockoon
from rockoon.admin.logs import LogDescription
from rockoon_offset.server import serve
from rockoon_offset.settings import OffsetSettings
from rockoon_runtime.process import Stop
from support.broker import running_broker
from support.etcd import EtcdServer
from support.eventually import answered
from support.nameserver import Nameserver, running_nameserver
from support.waiting import DEADLINE_SECONDS

LOG, TOPIC = "offset", "orders"


class OffsetServices:
    """Offset services in this process."""

    def __init__(
        self, root: Path, nameserver: Nameserver, cluster: str, tasks: asyncio.TaskGroup
    ) -> None:
        self._root = root
        self._nameserver = nameserver
        self._cluster = cluster
        self._tasks = tasks
        self._running: dict[str, tuple[Stop, asyncio.Task[None]]] = {}

    def settings(self, name: str, copies: int, log: str = LOG, **more: Any) -> OffsetSettings:
        return OffsetSettings(
            **more,
            cluster=self._cluster,
            name=log,
            listen="127.0.0.1:0",
            nameservers=(self._nameserver.address,),
            store_path=self._root / name,
            copies=copies,
            replica=name if copies > 1 else "",
            heartbeat_seconds=0.1,
            journal_bytes_max=4096,
        )

    def start(self, name: str, copies: int, log: str = LOG, **more: Any) -> None:
        stop, settings = Stop(), self.settings(name, copies, log, **more)
        self._running[name] = stop, self._tasks.create_task(serve(settings, stop), name=name)

    async def stop(self, name: str) -> None:
        stop, task = self._running.pop(name)
        stop.request("away")
        await task

    def stop_all(self) -> None:
        for stop, _ in self._running.values():
            stop.request("the test is over")


@asynccontextmanager
async def world(
    root: Path, etcd: EtcdServer, cluster: str, **of_nameserver: Any
) -> AsyncIterator[tuple[OffsetServices, rockoon.Cluster]]:
    async with AsyncExitStack() as stack:
        nameserver = await stack.enter_async_context(
            running_nameserver(cluster=cluster, etcd=(etcd.endpoint,), **of_nameserver)
        )
        await stack.enter_async_context(
            running_broker(root / "broker", [nameserver.address], cluster=cluster)
        )
        client = await stack.enter_async_context(
            rockoon.connect(nameserver.address, cluster=cluster)
        )
        await client.admin.create_topic(TOPIC, queues_per_broker=1)
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        services = OffsetServices(root, nameserver, cluster, tasks)
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                yield services, client
        finally:
            services.stop_all()


async def until(
    client: rockoon.Cluster, holds: Callable[[LogDescription], object]
) -> LogDescription:
    """Return the description of the log once a condition is true; a new log is not known at
    first."""

    async def found() -> LogDescription | None:
        return next((log for log in await client.admin.logs.list() if log.name == LOG), None)

    described = await answered(found, lambda log: log is not None and holds(log))
    assert described is not None
    return described


def counting(count: int) -> Callable[[LogDescription], bool]:
    return lambda log: log.confirmed and log.leader is not None and len(log.in_sync) == count
