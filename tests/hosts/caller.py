"""A client on a host of its own that does one thing of each kind at a steady pace, for ever.

python -m hosts.caller NAMESERVERS TOPIC LOG NAME

A call leaves a line when it begins, `kind began_ns`, and one when it ends, `kind began_ns ended_ns
ok what`. The clock is the machine's monotonic one, the same for all hosts. Nothing waits for
anything else: a call that hangs delays no other one. Calls in progress are bounded by how long each
may take.
"""

import asyncio
import itertools
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable

import rockoon
from rockoon import errors
from rockoon.errors import RockoonError
from rockoon.net.connection import ROUTE_SECONDS_MAX
from rockoon.producer.producer import Producer
from rockoon_proto.v1.nameserver_pb2 import GetRouteRequest, GroupConfig
from rockoon_proto.v1.offset_pb2 import CommitEntry, CommitRequest, QueueRef, ResolveRequest

SEND_SECONDS = 0.05
COMMIT_SECONDS = 0.2
ROUTE_SECONDS = 0.2
CHANGE_SECONDS = 0.25
GROUP = "committer"


class Caller:
    """What one client does."""

    def __init__(self, cluster: rockoon.Cluster, topic: str, log: int, name: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self._log = log
        self._name = name
        self._numbers = itertools.count()
        self._epoch = 0
        self._queue = QueueRef()
        # Just behind the last acknowledged message of that queue.
        self._reached = 0

    async def resolve(self) -> None:
        """Become the reader whose progress `commit` stores."""
        await self._cluster.admin.create_group(GROUP)
        queue = (await self._cluster.route(self._topic)).queues[0]
        self._queue = QueueRef(topic=queue.topic, broker=queue.broker, queue_id=queue.queue_id)
        service = await self._cluster.wait_offset_service(60)
        reply = await self._cluster.call(
            service.Resolve,
            ResolveRequest(group=GROUP, member_id=self._name, queues=[self._queue]),
            unavailable=errors.OffsetServiceUnavailable,
        )
        self._epoch = reply.starts[0].epoch

    async def send(self, producer: Producer) -> str:
        result = await producer.send(self._topic, b"%d" % next(self._numbers))
        if (result.queue.broker, result.queue.queue_id) == (
            self._queue.broker,
            self._queue.queue_id,
        ):
            self._reached = max(self._reached, result.queue_offset + 1)
        return f"{result.queue} {result.queue_offset}"

    async def commit(self) -> str:
        entry = CommitEntry(queue=self._queue, offset=self._reached, epoch=self._epoch)
        answer = await self._cluster.call(
            self._cluster.offset_service().Commit,
            CommitRequest(group=GROUP, member_id=self._name, entries=[entry]),
            unavailable=errors.OffsetServiceUnavailable,
        )
        (result,) = answer.results
        refusal = errors.from_wire(result.error) if result.HasField("error") else None
        # One of the calls that hung has overtaken another: what is stored is further on.
        if refusal is not None and not isinstance(refusal, errors.CommitBehind):
            raise refusal
        return str(entry.offset)

    async def change(self) -> str:
        """What an administrator does: a nameserver has to write it into etcd."""
        attributes = {"number": str(next(self._numbers))}
        group = await self._cluster.admin.update_group(
            GroupConfig(name=GROUP, attributes=attributes)
        )
        return group.config.attributes["number"]

    async def look_up(self) -> str:
        request = GetRouteRequest(topics=[self._topic])
        # As `Cluster.route` does, without its cache.
        update = await self._cluster.call_nameserver(
            "GetRoute", request, timeout_seconds=ROUTE_SECONDS_MAX
        )
        return f"revision {update.revision}"

    async def repeat(
        self, kind: str, call: Callable[[], Awaitable[str]], seconds: float, ended: asyncio.Event
    ) -> None:
        loop = asyncio.get_running_loop()
        next_at = loop.time()
        async with asyncio.TaskGroup() as calls:
            while not ended.is_set():
                calls.create_task(self._timed(kind, call))
                next_at += seconds
                await asyncio.sleep(next_at - loop.time())

    async def _timed(self, kind: str, call: Callable[[], Awaitable[str]]) -> None:
        began_ns = time.monotonic_ns()
        os.write(self._log, f"{kind} {began_ns}\n".encode())
        try:
            ok, said = 1, await call()
        except RockoonError as error:
            assert error.retriable, error
            ok, said = 0, type(error).__name__
        line = f"{kind} {began_ns} {time.monotonic_ns()} {ok} {said}\n"
        os.write(self._log, line.encode())


async def main(nameservers: str, topic: str, log: str, name: str) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    async with rockoon.connect(nameservers) as cluster, cluster.producer() as producer:
        caller = Caller(cluster, topic, descriptor, name)
        await caller.send(producer)
        await caller.resolve()
        async with asyncio.TaskGroup() as tasks:
            for kind, call, seconds in (
                ("send", lambda: caller.send(producer), SEND_SECONDS),
                ("commit", caller.commit, COMMIT_SECONDS),
                ("route", caller.look_up, ROUTE_SECONDS),
                ("change", caller.change, CHANGE_SECONDS),
            ):
                tasks.create_task(caller.repeat(kind, call, seconds, ended), name=kind)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
