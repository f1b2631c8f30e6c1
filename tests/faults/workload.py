"""Messages with known history: sent, acknowledged at a known time, stored.

`load.checker` checks the stored messages; in addition each acknowledged message must be stored at
the position of its acknowledgement.
"""

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import numpy as np

import rockoon
from load import payload
from load.checker import Allowed, Checker
from rockoon.admin.reads import to_queue
from rockoon.consumer.pull import PullLimits, PullOutOfRange, pull
from rockoon.errors import RockoonError
from rockoon.message import Message
from rockoon.producer.producer import Producer
from rockoon.subscription import Subscription
from rockoon_core.message_queue import MessageQueue
from rockoon_proto.v1.offset_pb2 import CommitEntry, CommitRequest, QueueRef, ResolveRequest

Answer = TypeVar("Answer")

RUN = 77
TAGS = ("even", "odd")
READ_SECONDS_MAX = 60.0
TURN_SECONDS = 0.004


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """An acknowledged message."""

    time_ns: int
    """At the time of the acknowledgement or later; monotonic."""
    stream: int
    sequence: int
    queue: MessageQueue
    offset: int


@dataclass
class Books:
    """Records of all senders of one topic."""

    topic: str
    acknowledged: list[Acknowledged] = field(default_factory=list)
    sent: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """Stream → number of messages."""
    began_ns: dict[tuple[int, int], int] = field(default_factory=dict)
    """Stream and number → time at which the producer got the message; monotonic."""

    def until(self, time_ns: int) -> "Books":
        """Return a copy without later acknowledgements."""
        kept = [each for each in self.acknowledged if each.time_ns < time_ns]
        return Books(self.topic, kept, self.sent, self.began_ns)

    def judge(self, stored: "Stored", allowed: Allowed | None = None) -> list[str]:
        """Return contradictions; empty if there are none.

        Args:
            stored: content of the topic's queues.
            allowed: number of allowed copies; None: none at all.
        """
        checker = Checker()
        for stream, end in self.sent.items():
            checker.sent(self.topic, stream, end)
            checker.closed(stream)
        places = {}
        for each in self.acknowledged:
            checker.acknowledged(self.topic, each.stream, each.sequence, each.sequence + 1)
        for queue, messages in stored.messages.items():
            headers, wrong = payload.decode([message.body for message in messages], RUN)
            checker.foreign(wrong, str(queue))
            checker.stored(str(queue), headers["stream"], headers["sequence"].astype(np.int64))
            if not wrong:
                for message, header in zip(messages, headers, strict=True):
                    place = (queue, message.queue_offset)
                    places[place] = (int(header["stream"]), int(header["sequence"]))
        faults = list(checker.verdict(allowed).faults)
        moved = [
            each
            for each in self.acknowledged
            if places.get((each.queue, each.offset), (each.stream, each.sequence))
            != (each.stream, each.sequence)
        ]
        if moved:
            faults.append(
                f"{len(moved)} messages are not where they were acknowledged: {moved[0].queue} "
                f"{moved[0].offset}"
            )
        return faults + stored.troubles


class Sender:
    """Sends streams of numbered messages, each with its own key.

    Args:
        cluster: a connection.
        books: receives the records of this sender.
        number: number of the sender in this run.
        chance: chooses sizes and pace.
        lanes: concurrent streams.
        body_bytes: sizes to choose from.
    """

    def __init__(
        self,
        cluster: rockoon.Cluster,
        books: Books,
        number: int,
        chance: random.Random,
        lanes: int = 4,
        body_bytes: Sequence[int] = (payload.HEADER_BYTES, 300, 5000),
    ) -> None:
        self._cluster = cluster
        self._books = books
        self._number = number
        self._chance = chance
        self._lanes = lanes
        self._body_bytes = body_bytes
        self._ended = False

    def end(self) -> None:
        """Send no further message; wait for those in flight."""
        self._ended = True

    async def run(self, producer: Producer, messages_max: int | None = None) -> None:
        """Send until `end`, or this number of messages in each stream.

        A failed message is not acknowledged, and nothing is recorded about it.
        """
        async with asyncio.TaskGroup() as tasks:
            for lane in range(self._lanes):
                tasks.create_task(self._send(producer, lane, messages_max), name=f"lane {lane}")

    async def _send(self, producer: Producer, lane: int, messages_max: int | None) -> None:
        stream = payload.stream_of(self._number, lane)
        sent = 0
        while not self._ended and (messages_max is None or sent < messages_max):
            count = self._chance.choice((1, 1, 3, 12))
            body_bytes = self._chance.choice(self._body_bytes)
            due = np.zeros(count, np.int64)
            bodies = payload.encode(RUN, stream, sent, due, body_bytes)
            receipts = []
            for number, body in enumerate(bodies, sent):
                self._books.began_ns[stream, number] = time.monotonic_ns()
                receipts.append(
                    producer.send(
                        self._books.topic,
                        body,
                        ordering_key=f"{self._number}-{lane}",
                        keys=f"k{stream}-{number}",
                        tags=TAGS[number % 2],
                        properties={"number": str(number)},
                    )
                )
            first, sent = sent, sent + count
            self._books.sent[stream] = sent
            for number, receipt in enumerate(receipts, first):
                await self._take(receipt, stream, number)
            await asyncio.sleep(TURN_SECONDS)

    async def _take(self, receipt: rockoon.Receipt, stream: int, number: int) -> None:
        try:
            result = await receipt
        except RockoonError:
            # It may be stored or not: there was no acknowledgement.
            return
        else:
            self._books.acknowledged.append(
                Acknowledged(time.monotonic_ns(), stream, number, result.queue, result.queue_offset)
            )


@dataclass
class Stored:
    """Content of the queues of a topic."""

    messages: dict[MessageQueue, list[Message]]
    damaged: dict[MessageQueue, list[int]]
    """Offsets that a reader could not read because of reported damage."""
    troubles: list[str]


async def read_topic(
    cluster: rockoon.Cluster, topic: str, expression: str = "*", seconds_max: float | None = None
) -> Stored:
    """Read all queues completely, as a reader that skips damage does."""
    stored = Stored({}, {}, [])
    limit = READ_SECONDS_MAX if seconds_max is None else seconds_max
    for queue in (await cluster.route(topic)).queues:
        stored.messages[queue], stored.damaged[queue] = [], []
        try:
            async with asyncio.timeout(limit):
                await _read_queue(cluster, queue, Subscription.parse(topic, expression), stored)
        except TimeoutError:
            stored.troubles.append(f"{queue} cannot be read to its end")
    return stored


async def _read_queue(
    cluster: rockoon.Cluster, queue: MessageQueue, wanted: Subscription, stored: Stored
) -> None:
    limits = PullLimits(wait_ms=0)
    offset = 0
    while True:
        try:
            pulled = await pull(cluster, queue, offset, wanted, limits)
        except rockoon.errors.StoreCorrupt:
            stored.damaged[queue].append(offset)
            offset += 1
            continue
        except RockoonError as error:
            if not error.retriable:
                stored.troubles.append(f"{queue} at {offset}: {type(error).__name__}: {error}")
                return
            await asyncio.sleep(4 * TURN_SECONDS)
            continue
        if isinstance(pulled, PullOutOfRange):
            if pulled.below_min and offset < pulled.min_offset:
                stored.troubles.append(f"{queue} begins at {pulled.min_offset}")
                offset = pulled.min_offset
                continue
            return
        if pulled.batch is not None:
            stored.messages[queue] += list(pulled.batch)
        if pulled.next_offset >= pulled.max_offset:
            return
        # No message and no progress: the end of this queue is not readable yet.
        if pulled.next_offset == offset:
            await asyncio.sleep(4 * TURN_SECONDS)
        offset = pulled.next_offset


@dataclass(frozen=True, slots=True)
class Committed:
    """Acknowledged progress of a group."""

    time_ns: int
    group: str
    queue: MessageQueue
    offset: int


class Committer:
    """Commits increasing progress of groups on all queues of a topic.

    Args:
        books: books of the topic: progress follows the acknowledgements.
        groups: names of the groups.
    """

    def __init__(
        self,
        cluster: rockoon.Cluster,
        books: Books,
        groups: Sequence[str],
        queues: Sequence[MessageQueue],
    ) -> None:
        self._cluster = cluster
        self._books = books
        self._groups = groups
        self._queues = queues
        self._ended = False
        self.acknowledged: list[Committed] = []
        self._at: dict[tuple[str, MessageQueue], int] = defaultdict(int)

    def end(self) -> None:
        self._ended = True

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for group in self._groups:
                tasks.create_task(self._commit(group), name=group)

    async def _commit(self, group: str) -> None:
        epochs: dict[MessageQueue, int] = {}
        refs = {
            queue: QueueRef(topic=queue.topic, broker=queue.broker, queue_id=queue.queue_id)
            for queue in self._queues
        }
        while not self._ended:
            await asyncio.sleep(TURN_SECONDS)
            try:
                service = await self._cluster.wait_offset_service(READ_SECONDS_MAX)
                if not epochs:
                    request = ResolveRequest(
                        group=group, member_id="only", queues=list(refs.values())
                    )
                    reply = await self._cluster.call(
                        service.Resolve,
                        request,
                        unavailable=rockoon.errors.OffsetServiceUnavailable,
                    )
                    for queue, start in zip(refs, reply.starts, strict=True):
                        if not start.HasField("error"):
                            epochs[queue] = start.epoch
                            self._at[group, queue] = max(start.offset, self._at[group, queue])
                    continue
                wanted = {queue: self._at[group, queue] + 1 for queue in epochs}
                entries = [
                    CommitEntry(queue=refs[queue], offset=offset, epoch=epochs[queue])
                    for queue, offset in wanted.items()
                ]
                answer = await self._cluster.call(
                    service.Commit,
                    CommitRequest(group=group, member_id="only", entries=entries),
                    unavailable=rockoon.errors.OffsetServiceUnavailable,
                )
                self._note(group, wanted, answer.results, epochs)
            except RockoonError:
                # Stored or not: there was no acknowledgement.
                continue

    def _note(self, group, wanted, results, epochs) -> None:  # type: ignore[no-untyped-def]
        now = time.monotonic_ns()
        for (queue, offset), result in zip(wanted.items(), results, strict=True):
            if not result.HasField("error"):
                self._at[group, queue] = offset
                self.acknowledged.append(Committed(now, group, queue, offset))
                continue
            error = rockoon.errors.from_wire(result.error)
            if isinstance(error, rockoon.errors.CommitBehind):
                # The reply to the previous commit was lost, the commit was not.
                self._at[group, queue] = offset
            elif isinstance(error, rockoon.errors.Fenced):
                epochs.clear()

    async def judge(self, until_ns: int | None = None) -> list[str]:
        """Return progress that was acknowledged before a time and is not stored now."""
        wanted: dict[tuple[str, MessageQueue], int] = {}
        for each in self.acknowledged:
            if until_ns is None or each.time_ns < until_ns:
                wanted[each.group, each.queue] = each.offset
        faults = []
        for group in self._groups:
            async with asyncio.timeout(READ_SECONDS_MAX):
                stored = {
                    to_queue(each.queue): each.offset
                    for each in await when_there(partial(self._progress, group))
                }
            for queue in self._queues:
                promised = wanted.get((group, queue), 0)
                found = stored.get(queue, 0)
                if found < promised:
                    faults.append(f"progress of {group} on {queue} is {found}, was {promised}")
        return faults

    async def _progress(self, group: str):  # type: ignore[no-untyped-def]
        return await self._cluster.admin.progress(group)


async def when_there(ask: Callable[[], Awaitable[Answer]]) -> Answer:
    """Repeat a call until the service replies."""
    while True:
        try:
            return await ask()
        except RockoonError as error:
            if not error.retriable:
                raise
        await asyncio.sleep(4 * TURN_SECONDS)
