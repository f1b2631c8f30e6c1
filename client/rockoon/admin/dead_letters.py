"""Dead letters of consumer groups: listing and replay.

    cluster.admin.dead_letters.replay("billing")

Dead letters are stored in %DLQ%GROUP, one queue on each broker, with the usual retention. A replay
sends them again, either to their original topics, where every group reads them, or only to the
group. The replayed dead letters are recorded as progress of the group `REPLAY_GROUP`, so that the
next run skips them. They are recorded after they are sent: after a killed run, the next run may
send some messages twice.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rockoon.admin import reads
from rockoon.admin.reads import ask_queue_ends
from rockoon.bounds import check_group_text, refuses_invalid_text
from rockoon.errors import (
    Fenced,
    InvalidArgument,
    MessageNotFound,
    RockoonError,
    TopicNotFound,
    from_wire,
)
from rockoon.message import Batch, Message
from rockoon.net.routes import TopicRoute
from rockoon.offsets.offset_lookup import OffsetLookup
from rockoon.offsets.offset_store import RemoteOffsetStore
from rockoon.offsets.start import ConsumeFrom, Start
from rockoon.producer.producer import Producer
from rockoon_core.message_queue import MessageQueue
from rockoon_format.names import DLQ_TOPIC_PREFIX, dlq_topic, is_dlq_topic
from rockoon_format.properties import RESERVED_NAMES, TRANSIENT_PREFIX
from rockoon_proto.v1 import broker_pb2 as broker_pb
from rockoon_proto.v1.nameserver_pb2 import SubscribeRequest

if TYPE_CHECKING:
    from rockoon.net.connection import Connection

TEXT_BYTES_MAX = 4096
"""Maximum size of metadata in the offset service."""


class MarksFull(ValueError):
    """The ranges exceed the maximum size of metadata: too many scattered messages are marked."""


class ReplayMarks:
    """The set of marked offsets.

    All offsets below `low` are marked, and ranges of offsets above it (dead letters replayed by
    their ids). The marks are stored as progress of a group, with the ranges as metadata:

        offset 7, metadata "9,12-40"        0 to 6, 9, and 12 to 40 are marked

    Args:
        low: every offset below it is marked.
        ranges: further marked offsets, as (first, last), in any order.
    """

    def __init__(self, low: int, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self.low = low
        self._ranges: list[tuple[int, int]] = []
        for first, last in sorted(ranges):
            self._add(first, last)
        self._complete()

    @classmethod
    def parse(cls, low: int, *texts: str) -> "ReplayMarks":
        """Parse the result of `text`; the marks of several texts are merged.

        Raises:
            ValueError: a text does not have this form.
        """
        ranges = []
        for part in filter(None, ",".join(texts).split(",")):
            first, dash, last = part.partition("-")
            if not first.isdecimal() or (dash and not last.isdecimal()):
                raise ValueError(f"{part!r} is not a range of offsets")
            ranges.append((int(first), int(last or first)))
        return cls(low, ranges)

    def text(self) -> str:
        """Return the ranges above `low` as text.

        Raises:
            MarksFull: the text exceeds `TEXT_BYTES_MAX`.
        """
        ranges_text = ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in self._ranges)
        if len(ranges_text) > TEXT_BYTES_MAX:
            raise MarksFull(
                f"{len(self._ranges)} scattered messages do not fit: replay the others too"
            )
        return ranges_text

    def __contains__(self, offset: int) -> bool:
        return offset < self.low or any(a <= offset <= b for a, b in self._ranges)

    def add(self, offset: int) -> None:
        if offset not in self:
            self._ranges.append((offset, offset))
            ranges, self._ranges = sorted(self._ranges), []
            for first, last in ranges:
                self._add(first, last)
            self._complete()

    def count(self, first: int, stop: int) -> int:
        """Return how many offsets in [first, stop) are marked."""
        below = max(0, min(self.low, stop) - first)
        return below + sum(
            max(0, min(b + 1, stop) - max(a, first, self.low)) for a, b in self._ranges
        )

    def _add(self, first: int, last: int) -> None:
        """Append a range that does not start before the last one; merge the two if they touch."""
        if self._ranges and first <= self._ranges[-1][1] + 1:
            before, end = self._ranges[-1]
            self._ranges[-1] = (before, max(end, last))
        else:
            self._ranges.append((first, last))

    def _complete(self) -> None:
        while self._ranges and self._ranges[0][0] <= self.low:
            self.low = max(self.low, self._ranges.pop(0)[1] + 1)


REPLAY_GROUP = "CID_ROCKOON_DLQ_REPLAY"
"""The group whose progress records the replayed dead letters of all groups."""
PROPERTY_REPLAYED_FROM = "ROCKOON_REPLAYED_FROM"
"""Property of a replayed message: the offset id of its dead letter."""

MESSAGES_PER_READ = 256
# Dead letters that are sent before they are recorded: the most that a killed run sends twice.
LETTERS_PER_MARK = 100
BYTES_PER_MARK = 4 << 20


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that a group failed to consume too often."""

    message: Message
    """`topic`, `origin_message_id`, `failure` and `reconsume_times` describe the original message;
    the store time is the time at which it became a dead letter."""
    replayed: bool

    @property
    def dead_letter_id(self) -> str:
        """Offset id of the dead letter itself."""
        return self.message.offset_message_id

    def is_called(self, name: str) -> bool:
        """Whether `name` is one of the message's ids: dead letter, first copy, or UNIQ_KEY."""
        message = self.message
        return name in (self.dead_letter_id, message.origin_message_id, message.message_id)


@dataclass(frozen=True, slots=True)
class DeadLetterTopic:
    """Number and age of a group's dead letters."""

    group: str
    messages: int
    """Number of stored dead letters."""
    replayed: int
    """Number of stored dead letters that were replayed."""
    last_ms: int | None
    """Store time of the newest dead letter, epoch milliseconds; None if there is none."""
    unknown: Sequence[MessageQueue]
    """Queues whose brokers do not answer; the numbers do not include their dead letters."""


@dataclass(slots=True)
class ReplayReport:
    """Result of a replay."""

    replayed: int = 0
    """Number of replayed dead letters; with `dry_run`, of those that would be replayed."""
    left_out: int = 0
    """Number of selected dead letters that were skipped because they were replayed before."""
    not_found: list[str] = field(default_factory=list)
    """Requested ids that no dead letter has."""


@refuses_invalid_text
class DeadLetters:
    """Dead letters of all groups: `cluster.admin.dead_letters`."""

    def __init__(self, cluster: "Connection") -> None:
        self._cluster = cluster
        self._offsets = OffsetLookup(cluster)

    # Listing

    async def overview(self, group: str = "") -> list[DeadLetterTopic]:
        """Return every group that has a dead-letter topic, sorted by name.

        Args:
            group: only this group; the result is empty if it never had dead letters.
        """
        if group:
            route = await reads.get_topic(self._cluster, dlq_topic(group))
            return [] if route is None else [await self._figures(route)]
        routes = await reads.list_topics(self._cluster, include_system=True)
        return [await self._figures(route) for route in routes if is_dlq_topic(route.name)]

    async def _figures(self, route: TopicRoute) -> DeadLetterTopic:
        marks = await self._marks(route)
        queues = await ask_queue_ends(self._cluster, route, with_residency=False)
        messages = replayed = 0
        last_ms: int | None = None
        unknown = []
        for ends in queues:
            state = ends.state
            if state is None:
                unknown.append(ends.queue)
                continue
            messages += state.max_offset - state.min_offset
            replayed += marks[ends.queue].count(state.min_offset, state.max_offset)
            if state.HasField("last_store_timestamp_ms"):
                last_ms = max(last_ms or 0, state.last_store_timestamp_ms)
        group = route.name.removeprefix(DLQ_TOPIC_PREFIX)
        return DeadLetterTopic(group, messages, replayed, last_ms, unknown)

    async def unreplayed(self, broker: str) -> dict[str, int]:
        """Return the groups with dead letters on a broker that were not replayed, with their
        number.

        Raises:
            RockoonError: the broker does not answer.
        """
        found = {}
        for route in await reads.list_topics(self._cluster, include_system=True):
            if not is_dlq_topic(route.name):
                continue
            queues = [queue for queue in route.queues if queue.broker == broker]
            marks = await self._marks(route) if queues else {}
            left = 0
            for queue, (first, end) in (await self._offsets.ends(queues)).items() if queues else ():
                left += end - first - marks[queue].count(first, end)
            if left:
                found[route.name.removeprefix(DLQ_TOPIC_PREFIX)] = left
        return found

    async def letters(
        self, group: str, *, since_ms: int = 0, queue: MessageQueue | None = None, offset: int = 0
    ) -> AsyncIterator[DeadLetter]:
        """Yield the dead letters of a group, queue by queue, oldest first.

        Args:
            since_ms: only those that became dead letters at or after this time, epoch
                milliseconds.
            queue: only this queue of the dead-letter topic.
            offset: only from this queue offset on.

        Raises:
            TopicNotFound: the group never had dead letters.
            QueueNotFound, RockoonError: a broker refuses the call or does not answer.
        """
        route = await self._route(group)
        marks = await self._marks(route)
        queues = list(route.queues) if queue is None else [queue]
        ends = await self._offsets.ends(queues)
        firsts = {each: max(ends[each][0], offset) for each in queues}
        if since_ms:
            starts = await self._offsets.choose(queues, ConsumeFrom.timestamp(since_ms))
            firsts = {each: max(firsts[each], starts[each].offset) for each in queues}
        for each in queues:
            async for message in self._messages(each, firsts[each], ends[each][1]):
                yield DeadLetter(message, message.queue_offset in marks[each])

    async def find(self, group: str, message_id: str) -> DeadLetter:
        """Return the dead letter with an id.

        Args:
            message_id: any id of the message; see `DeadLetter.is_called`.

        Raises:
            TopicNotFound: the group never had dead letters.
            MessageNotFound: no dead letter has this id.
        """
        async for letter in self.letters(group):
            if letter.is_called(message_id):
                return letter
        raise MessageNotFound(position=message_id)

    async def _route(self, group: str) -> TopicRoute:
        # Not from cached routes: a group's first dead letter may have just created the topic.
        name = dlq_topic(check_group_text(group))
        route = await reads.get_topic(self._cluster, name)
        if route is None:
            raise TopicNotFound(f"group {group!r} has no dead letters", topic=name)
        return await self._cluster.route(name, route.modified_revision)

    async def _messages(
        self, queue: MessageQueue, offset: int, stop: int
    ) -> AsyncIterator[Message]:
        while offset < stop:
            wanted = broker_pb.QueueRange(
                topic=queue.topic,
                queue_id=queue.queue_id,
                offset=offset,
                messages=min(MESSAGES_PER_READ, stop - offset),
            )
            try:
                reply: broker_pb.ReadReply = await self._cluster.call_broker(
                    queue.broker, "Read", broker_pb.ReadRequest(range=wanted)
                )
            except MessageNotFound:
                # Retention has deleted the message, or the queue was deleted.
                oldest = (await self._offsets.ends([queue]))[queue][0]
                if oldest <= offset:
                    return
                offset = oldest
                continue
            for message in Batch(queue, reply.frames, reply.record_lengths):
                yield message
                offset = message.queue_offset + 1

    async def _marks(self, route: TopicRoute) -> dict[MessageQueue, ReplayMarks]:
        marks = {queue: ReplayMarks(0) for queue in route.queues}
        for each in await reads.progress(self._cluster, REPLAY_GROUP, route.name):
            queue = MessageQueue(each.queue.topic, each.queue.broker, each.queue.queue_id)
            if route.create_revisions.get(queue) == each.incarnation:
                marks[queue] = ReplayMarks.parse(each.offset, each.metadata)
        return marks

    # Replay

    async def replay(
        self,
        group: str,
        *,
        ids: Collection[str] = (),
        since_ms: int = 0,
        to: str = "",
        only_group: bool = False,
        again: bool = False,
        dry_run: bool = False,
        on_letter: Callable[[DeadLetter], None] = lambda _: None,
    ) -> ReplayReport:
        """Send dead letters again, with attempts counted from 1.

        If the call is cancelled, the next run sends up to `LETTERS_PER_MARK` messages again that
        were sent but not recorded. A new run takes over from one that is still running.

        Args:
            ids: only dead letters with one of these ids (see `DeadLetter.is_called`).
            since_ms: only those stored at or after this time, epoch milliseconds.
            to: topic to send to; empty for each message's original topic.
            only_group: send to this group only, through its retry topic.
            again: include dead letters that were replayed before.
            dry_run: neither send nor record.
            on_letter: called for each dead letter before it is sent.

        Raises:
            TopicNotFound: the group never had dead letters, or the target topic does not exist.
            Fenced: another run has taken over.
            InvalidArgument: `to` and `only_group` are both set, the group has no retry queues, or
                too many scattered messages were selected by id.
            RockoonError: a message could not be sent; the messages before it are recorded.
        """
        if only_group:
            await self._check_retry_queues(group, to)
        route = await self._route(group)
        marks = await self._marks(route)
        sought = set(ids)
        report = ReplayReport()

        async def chosen(queue: MessageQueue) -> AsyncIterator[DeadLetter]:
            async for letter in self.letters(group, since_ms=since_ms, queue=queue):
                called = {each for each in ids if letter.is_called(each)}
                if ids and not called:
                    continue
                sought.difference_update(called)
                if letter.message.queue_offset in marks[queue] and not again:
                    report.left_out += 1
                    continue
                on_letter(letter)
                report.replayed += 1
                yield letter

        if dry_run:
            for queue in route.queues:
                async for _ in chosen(queue):
                    pass
        else:
            store = RemoteOffsetStore(self._cluster, REPLAY_GROUP, self._cluster.client_id)
            # `chosen` reads the new marks: a former run may have recorded more until now.
            marks = await self._claim_queues(route, store, marks)
            async with Producer(self._cluster) as producer:
                target = _ReplayTarget(group, to, producer if not only_group else None)
                for queue in route.queues:
                    async for portion in _split(chosen(queue)):
                        await self._replay(portion, target, marks[queue], store)
            await store.release(list(route.queues))
        report.not_found = sorted(sought)
        return report

    async def _check_retry_queues(self, group: str, to: str) -> None:
        if to:
            raise InvalidArgument(reason="set either `to` or `only_group`, not both")
        for each in reads.group_summaries(await reads.ask_groups(self._cluster)):
            config = each.group.config
            has_none = config.HasField("retry_queues") and config.retry_queues == 0
            if config.name == group and has_none:
                reason = f"group {group!r} has no retry queues, so a replay needs a topic"
                raise InvalidArgument(reason=reason)

    async def _claim_queues(
        self,
        route: TopicRoute,
        store: RemoteOffsetStore,
        before: dict[MessageQueue, ReplayMarks],
    ) -> dict[MessageQueue, ReplayMarks]:
        """Take over the queues of the replay group; return the marks of replayed dead letters."""
        request = SubscribeRequest(group=REPLAY_GROUP, topic=route.name, create_group=True)
        reply = await self._cluster.call_nameserver("Subscribe", request)
        found = await store.resolve(list(route.queues), ConsumeFrom.FIRST, reply.revision)
        for start in found.values():
            if isinstance(start, RockoonError):
                raise start
        now = await self._marks(route)
        marks = {}
        for queue, start in found.items():
            assert isinstance(start, Start)
            # If the start moved past expired messages, the offset service dropped the ranges.
            texts = (before[queue].text(), now[queue].text())
            marks[queue] = ReplayMarks.parse(start.offset, *texts)
        return marks

    async def _replay(
        self,
        letters: Sequence[DeadLetter],
        target: "_ReplayTarget",
        marks: ReplayMarks,
        store: RemoteOffsetStore,
    ) -> None:
        """Send dead letters of one queue, and record those that were acknowledged."""
        messages = [letter.message for letter in letters]
        if target.producer is None:
            outcomes = await self._send_back(target.group, messages)
        else:
            outcomes = await self._send(target.producer, messages, target.to)
        for letter, failure in zip(letters, outcomes, strict=True):
            if failure is None:
                marks.add(letter.message.queue_offset)
        queue = letters[0].message.queue
        try:
            await store.commit(queue, marks.low, metadata=marks.text())
        except MarksFull as full:
            raise InvalidArgument(reason=str(full)) from full
        except Fenced as fenced:
            raise Fenced(f"another replay has taken over {queue}: {fenced}") from fenced
        for failure in outcomes:
            if failure is not None:
                raise failure

    async def _send(
        self, producer: Producer, messages: Sequence[Message], to: str
    ) -> list[RockoonError | None]:
        async def send(message: Message) -> RockoonError | None:
            try:
                await producer.send(
                    to or message.topic,
                    message.body,
                    keys=message.keys or None,
                    tags=message.tags,
                    properties={
                        **own_properties(message),
                        PROPERTY_REPLAYED_FROM: message.offset_message_id,
                    },
                )
            except RockoonError as failure:
                return failure
            return None

        async with asyncio.TaskGroup() as tasks:
            sent = [tasks.create_task(send(each), name="replay") for each in messages]
        return [task.result() for task in sent]

    async def _send_back(
        self, group: str, messages: Sequence[Message]
    ) -> list[RockoonError | None]:
        queue = messages[0].queue
        request = broker_pb.SendBackRequest(
            group=group,
            # At least one attempt, also if the group's messages become dead letters at once.
            attempts_max=1,
            messages=[
                broker_pb.FailedMessage(
                    topic=queue.topic,
                    queue_id=queue.queue_id,
                    queue_offset=message.queue_offset,
                    physical_offset=message.physical_offset,
                    delay_ms=1,
                    failure=f"replayed from {message.offset_message_id}",
                )
                for message in messages
            ],
        )
        try:
            reply: broker_pb.SendBackReply = await self._cluster.call_broker(
                queue.broker, "SendBack", request
            )
        except RockoonError as failure:
            return [failure] * len(messages)
        return [
            from_wire(result.error) if result.HasField("error") else None
            for result in reply.results
        ]


@dataclass(frozen=True, slots=True)
class _ReplayTarget:
    """Destination of replayed messages."""

    group: str
    to: str
    """Topic to which messages are sent; empty: the original topic of each message."""
    producer: Producer | None
    """Producer for the topic; None: messages are sent only to the group, through its retry
    topic."""


async def _split(letters: AsyncIterator[DeadLetter]) -> AsyncIterator[list[DeadLetter]]:
    """Split dead letters into portions; the letters of a portion are sent and recorded together."""
    part: list[DeadLetter] = []
    size = 0
    async for letter in letters:
        part.append(letter)
        size += letter.message.stored_bytes
        if len(part) >= LETTERS_PER_MARK or size >= BYTES_PER_MARK:
            yield part
            part, size = [], 0
    if part:
        yield part


def own_properties(message: Message) -> dict[str, str]:
    """Return the sender's own properties, without those that the system sets."""
    return {
        name: value
        for name, value in message.properties.items()
        if name not in RESERVED_NAMES and not name.startswith(TRANSIENT_PREFIX)
    }
