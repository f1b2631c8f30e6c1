"""The cluster that a benchmark part measures, its resource usage, and calls without the SDK."""

import asyncio
import contextlib
import http.client
import os
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpc import aio

import rockoon
from bench.capacity.point import ProcessUse, Use
from bench.loops import SETTLED_SECONDS_MAX, until
from bench.usage import (
    cpu_of,
    disk_busy_seconds,
    machine_cpu_seconds,
    resident_bytes,
    written_bytes,
)
from rockoon.local import LocalCluster
from rockoon_proto.v1.broker_pb2 import DescribeBrokerReply, DescribeBrokerRequest
from rockoon_proto.v1.broker_pb2_grpc import BrokerStub
from rockoon_proto.v1.nameserver_pb2 import GetRouteRequest, RouteUpdate
from rockoon_proto.v1.nameserver_pb2_grpc import NameServerStub
from rockoon_proto.v1.offset_pb2_grpc import OffsetServiceStub

OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)
LOAD = "load"

Settings = Mapping[str, Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class Reading:
    """Values of the usage counters at one moment."""

    at: float
    processes: dict[str, ProcessUse]
    machine_cpu_seconds: float
    disk_busy_seconds: float


class Meter:
    """Measures usage between `start` and `stop`.

    Args:
        local: a started cluster; a process that is restarted in between counts from its start.
        folder: a directory on the measured disk.
    """

    def __init__(self, local: LocalCluster, folder: Path) -> None:
        self._local = local
        self._folder = folder
        self._before = self._read()

    def start(self) -> None:
        self._before = self._read()

    def stop(self) -> Use:
        """Return the resource usage since `start`."""
        before, now = self._before, self._read()
        seconds = now.at - before.at
        processes = {}
        for name, after in now.processes.items():
            first = before.processes.get(name)
            if first is None or first.cpu_seconds > after.cpu_seconds:
                first = ProcessUse(0.0, 0, 0)
            processes[name] = ProcessUse(
                cpu_seconds=after.cpu_seconds - first.cpu_seconds,
                resident_bytes=after.resident_bytes,
                written_bytes=after.written_bytes - first.written_bytes,
            )
        return Use(
            seconds=seconds,
            processes=processes,
            machine_cores=(now.machine_cpu_seconds - before.machine_cpu_seconds) / seconds,
            cores=os.cpu_count() or 1,
            disk_share=min((now.disk_busy_seconds - before.disk_busy_seconds) / seconds, 1.0),
        )

    def _read(self) -> Reading:
        processes = {LOAD: use_of("self")}
        for node in self._local.nodes:
            if node.pid is not None:
                processes[node.name] = use_of(node.pid)
        return Reading(
            at=time.perf_counter(),
            processes=processes,
            machine_cpu_seconds=machine_cpu_seconds(),
            disk_busy_seconds=disk_busy_seconds(self._folder),
        )


def use_of(process: int | str) -> ProcessUse:
    """Return the usage of a process since its start, by its pid or "self"."""
    return ProcessUse(
        cpu_seconds=cpu_of(os.getpid() if process == "self" else int(process)),
        resident_bytes=resident_bytes(process),
        written_bytes=written_bytes(process),
    )


@dataclass(frozen=True, slots=True)
class Bench:
    """A started cluster of one broker, one nameserver and one offset service, with a resource
    meter."""

    local: LocalCluster
    folder: Path
    meter: Meter
    # gRPC stubs for asyncio; Any, because the generated types are those of blocking stubs.
    nameserver: Any
    offset: Any
    broker: Any

    @property
    def broker_name(self) -> str:
        return self.local.brokers[0]

    @property
    def nameserver_name(self) -> str:
        return next(node.name for node in self.local.nodes if node.name.startswith("nameserver"))

    def connect(self) -> Any:
        return rockoon.connect(self.local.nameservers)

    def resident_bytes(self) -> dict[str, int]:
        use = self.meter.stop()
        return {name: process.resident_bytes for name, process in use.processes.items()}

    def etcd_bytes(self) -> int:
        """Return the size of etcd's database, without free pages."""
        connection = http.client.HTTPConnection(self.local.node("etcd").address, timeout=10)
        with contextlib.closing(connection):
            connection.request("GET", "/metrics")
            lines = connection.getresponse().read().decode().splitlines()
        wanted = "etcd_mvcc_db_total_size_in_use_in_bytes "
        return int(float(next(line for line in lines if line.startswith(wanted)).split()[1]))

    async def routes(self) -> RouteUpdate:
        """Return the snapshot of all routes, as a starting broker receives it."""
        request = GetRouteRequest(include_groups=True)
        update: RouteUpdate = await self.nameserver.GetRoute(request, timeout=120)
        return update

    async def described(self) -> DescribeBrokerReply:
        request = DescribeBrokerRequest()
        reply: DescribeBrokerReply = await self.broker.DescribeBroker(request, timeout=60)
        return reply

    async def wait_routes_reach(self, revision: int) -> None:
        """Wait until the broker has applied the routes up to a revision."""

        async def reached() -> bool:
            return (await self.described()).route_revision >= revision

        await until(reached)

    async def restart_seconds(self, name: str) -> float:
        """Kill a service and restart it; return the seconds from the kill until the service is
        ready."""
        began = asyncio.get_running_loop().time()
        await asyncio.to_thread(self.local.kill, name)
        await asyncio.to_thread(self.local.start, name)
        return asyncio.get_running_loop().time() - began


@contextlib.asynccontextmanager
async def bench_cluster(folder: Path, settings: Settings | None = None) -> AsyncIterator[Bench]:
    """Start a cluster with default settings, including `flush = sync`, and the given settings."""
    async with (
        LocalCluster(
            folder,
            nameservers=1,
            brokers=1,
            settings=settings,
            ready_seconds_max=SETTLED_SECONDS_MAX,
        ) as local,
        contextlib.AsyncExitStack() as stack,
    ):

        async def channel(name: str) -> aio.Channel:
            made = aio.insecure_channel(local.node(name).address, options=OPTIONS)
            return await stack.enter_async_context(made)

        nameserver = next(node.name for node in local.nodes if node.name.startswith("nameserver"))
        yield Bench(
            local=local,
            folder=folder,
            meter=Meter(local, folder),
            nameserver=NameServerStub(await channel(nameserver)),
            offset=OffsetServiceStub(await channel("offset")),
            broker=BrokerStub(await channel(local.brokers[0])),
        )
