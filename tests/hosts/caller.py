"""A client on its own host that makes one call of each kind at a steady pace, without end.

python -m hosts.caller NAMESERVERS TOPIC LOG NAME [read]

A call writes a line at its start, `kind began_ns message`, and one at its end, `kind began_ns
ended_ns ok what`. The message is STREAM:NUMBER of a sent message, else `-`. The clock is the
machine's monotonic one, the same for all hosts. No call waits for another one: a call that hangs
delays no other. The timeouts of the calls limit the number of concurrent ones.
"""

import asyncio
import itertools
import os
import random
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial

from hosts.records import NO_MESSAGE

import rockoon
from rockoon import errors
from rockoon.consumer.pull import PullLimits, PullOutOfRange, pull
from rockoon.errors import RockoonError
from rockoon.net.route_watch import ROUTE_SECONDS_MAX
from rockoon.producer.producer import Producer
from rockoon.subscription import Subscription
from rockoon_core.message_queue import MessageQueue
from rockoon_proto.v1.nameserver_pb2 import GetRouteRequest, GroupConfig
from rockoon_proto.v1.offset_pb2 import CommitEntry, CommitRequest, QueueRef, ResolveRequest

SEND_SECONDS = 0.05
ORDERED_SECONDS = 0.05
READ_SECONDS = 0.1
COMMIT_SECONDS = 0.2
ROUTE_SECONDS = 0.2
CHANGE_SECONDS = 0.25
GROUP = "committer"
# Streams of the idempotent producer, each with a key.
KEYS = 4
# Most reads are near the end, some anywhere.
NEAR_END = 30
ANYWHERE = 0.1


class Caller:
    """Calls of one client."""

    def __init__(self, cluster: rockoon.Cluster, topic: str, log: int, name: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self._log = log
        self._name = name
        self._numbers = itertools.count()
        self._streams = [itertools.count() for _ in range(KEYS)]
        self._turns = itertools.count()
        self._chance = random.Random(name)
        self._ends: dict[MessageQueue, int] = {}
        self._epoch = 0
        self._queue = QueueRef()
        # Right after the last acknowledged message of that queue.
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

    def next_plain(self) -> str:
        return f"plain:{next(self._numbers)}"

    def next_ordered(self) -> str:
        stream = next(self._turns) % KEYS
        return f"{stream}:{next(self._streams[stream])}"

    async def send(self, producer: Producer, message: str) -> str:
        result = await producer.send(self._topic, message.encode())
        if (result.queue.broker, result.queue.queue_id) == (
            self._queue.broker,
            self._queue.queue_id,
        ):
            self._reached = max(self._reached, result.queue_offset + 1)
        return f"{result.queue} {result.queue_offset}"

    async def send_ordered(self, producer: Producer, message: str) -> str:
        key, _, _ = message.partition(":")
        result = await producer.send(self._topic, message.encode(), ordering_key=key)
        return f"{result.queue} {result.queue_offset}"

    async def read(self) -> str:
        """Read messages of a queue; return queue, offset, the queue's end, and the messages."""
        route = await self._cluster.route(self._topic)
        queue = self._chance.choice(route.queues)
        end = self._ends.get(queue, 0)
        if self._chance.random() < ANYWHERE:
            first = self._chance.randrange(end + 1)
        else:
            first = max(0, end - self._chance.randrange(NEAR_END))
        limits = PullLimits(messages_max=2 * NEAR_END, wait_ms=0)
        wanted = Subscription.parse(self._topic, "*")
        answer = await pull(self._cluster, queue, first, wanted, limits)
        found: list[str] = []
        if not isinstance(answer, PullOutOfRange):
            self._ends[queue] = max(end, answer.max_offset)
            found = [NO_MESSAGE] * (answer.next_offset - first)
            for place, message in zip(answer.offsets, answer.batch or (), strict=True):
                found[place - first] = message.body.decode()
        return f"{queue} {first} {answer.max_offset} {','.join(found)}"

    async def commit(self) -> str:
        entry = CommitEntry(queue=self._queue, offset=self._reached, epoch=self._epoch)
        answer = await self._cluster.call(
            self._cluster.offset_service().Commit,
            CommitRequest(group=GROUP, member_id=self._name, entries=[entry]),
            unavailable=errors.OffsetServiceUnavailable,
        )
        (result,) = answer.results
        refusal = errors.from_wire(result.error) if result.HasField("error") else None
        # One of the hanging calls has overtaken another: the stored offset is higher.
        if refusal is not None and not isinstance(refusal, errors.CommitBehind):
            raise refusal
        return str(entry.offset)

    async def change(self) -> str:
        """Make an administrator's call: a nameserver must write it to etcd."""
        attributes = {"number": str(time.monotonic_ns())}
        group = await self._cluster.admin.update_group(
            GroupConfig(name=GROUP, attributes=attributes)
        )
        return group.config.attributes["number"]

    async def look_up(self) -> str:
        request = GetRouteRequest(topics=[self._topic])
        # As `Cluster.route`, without its cache.
        update = await self._cluster.call_nameserver(
            "GetRoute", request, timeout_seconds=ROUTE_SECONDS_MAX
        )
        return f"revision {update.revision}"

    async def repeat(
        self,
        kind: str,
        call: Callable[[str], Awaitable[str]],
        seconds: float,
        ended: asyncio.Event,
        message: Callable[[], str] = lambda: NO_MESSAGE,
    ) -> None:
        """Call at a steady pace; each call gets the next message."""
        loop = asyncio.get_running_loop()
        next_at = loop.time()
        async with asyncio.TaskGroup() as calls:
            while not ended.is_set():
                calls.create_task(self._timed(kind, call, message()))
                next_at += seconds
                await asyncio.sleep(next_at - loop.time())

    async def _timed(self, kind: str, call: Callable[[str], Awaitable[str]], what: str) -> None:
        began_ns = time.monotonic_ns()
        os.write(self._log, f"{kind} {began_ns} {what}\n".encode())
        try:
            ok, said = 1, await call(what)
        except RockoonError as error:
            assert error.retriable, error
            ok, said = 0, type(error).__name__
        line = f"{kind} {began_ns} {time.monotonic_ns()} {ok} {said}\n"
        os.write(self._log, line.encode())


async def main(nameservers: str, topic: str, log: str, name: str, only: str = "") -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(rockoon.connect(nameservers))
        caller = Caller(cluster, topic, descriptor, name)
        if only == "read":
            await caller.repeat("read", lambda _: caller.read(), READ_SECONDS, ended)
            return
        plain = await stack.enter_async_context(cluster.producer())
        numbered = await stack.enter_async_context(cluster.producer(idempotent=True))
        await caller.resolve()
        repeat = caller.repeat
        async with asyncio.TaskGroup() as tasks:
            for each in (
                repeat("send", partial(caller.send, plain), SEND_SECONDS, ended, caller.next_plain),
                repeat(
                    "ordered",
                    partial(caller.send_ordered, numbered),
                    ORDERED_SECONDS,
                    ended,
                    caller.next_ordered,
                ),
                repeat("read", lambda _: caller.read(), READ_SECONDS, ended),
                repeat("commit", lambda _: caller.commit(), COMMIT_SECONDS, ended),
                repeat("route", lambda _: caller.look_up(), ROUTE_SECONDS, ended),
                repeat("change", lambda _: caller.change(), CHANGE_SECONDS, ended),
            ):
                tasks.create_task(each)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
