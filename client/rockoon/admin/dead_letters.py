"""Dead letters: what consumer groups gave up on, to be looked at and replayed.

    cluster.admin.dead_letters.replay("billing")

They lie in %DLQ%GROUP, one queue on each broker, as long as other messages do. Replaying sends a
message again: to its original topic, where every group gets it, or to the one group again. What was
replayed is remembered as the progress of a group of its own, so a second run leaves it out. It is
noted after the message is stored: a replay that is killed in between sends some twice.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rockoon.admin import reads
from rockoon.admin.queue_ends import ask_queue_ends
from rockoon.admin.replay_marks import MarksFull, ReplayMarks
from rockoon.errors import (
    BrokerUnavailable,
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
from rockoon.text_checks import check_group_text, refuses_invalid_text
from rockoon_core.message_queue import MessageQueue
from rockoon_format.names import DLQ_TOPIC_PREFIX, dlq_topic, is_dlq_topic
from rockoon_format.properties import RESERVED_NAMES, TRANSIENT_PREFIX
from rockoon_proto.v1.broker_pb2 import (
    FailedMessage,
    QueueRange,
    ReadReply,
    ReadRequest,
    SendBackReply,
    SendBackRequest,
)
from rockoon_proto.v1.nameserver_pb2 import SubscribeRequest

if TYPE_CHECKING:
    from rockoon.net.connection import Connection

REPLAY_GROUP = "CID_ROCKOON_DLQ_REPLAY"
"""Its progress says what was replayed of every group's dead letters."""
PROPERTY_REPLAYED_FROM = "ROCKOON_REPLAYED_FROM"
"""On a message that was replayed: the offset id of its dead letter."""

MESSAGES_PER_READ = 256
# What is sent before it is noted, and so may be sent again by the next run.
LETTERS_PER_MARK = 100
BYTES_PER_MARK = 4 << 20


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that a group gave up on."""

    message: Message
    """`topic`, `failure`, `origin_message_id` and `reconsume_times` say where it came from, why
    and how often it failed; its store time is when it was given up."""
    replayed: bool

    @property
    def dead_letter_id(self) -> str:
        """Offset id of the dead letter itself."""
        return self.message.offset_message_id

    def is_called(self, name: str) -> bool:
        """Whether an id is one of this message's: the dead letter's, the first one's, UNIQ_KEY."""
        message = self.message
        return name in (self.dead_letter_id, message.origin_message_id, message.message_id)


@dataclass(frozen=True, slots=True)
class DeadLetterTopic:
    """A group's dead letters in figures."""

    group: str
    messages: int
    """That are kept now."""
    replayed: int
    """Of these."""
    last_ms: int | None
    """When the last was given up, epoch milliseconds; None when there is none."""
    unknown: Sequence[MessageQueue]
    """Queues whose broker does not answer; they are not in the figures."""


@dataclass(slots=True)
class ReplayReport:
    """What a replay did."""

    replayed: int = 0
    """With `dry_run`: what would have been."""
    left_out: int = 0
    """Chosen, but replayed before."""
    not_found: list[str] = field(default_factory=list)
    """Ids that are no dead letter's."""


@refuses_invalid_text
class DeadLetters:
    """The dead letters of a cluster's groups; `cluster.admin.dead_letters`.

    Args:
        cluster: an open connection.
    """

    def __init__(self, cluster: "Connection") -> None:
        self._cluster = cluster
        self._offsets = OffsetLookup(cluster)

    # Looking

    async def overview(self, group: str = "") -> list[DeadLetterTopic]:
        """Every group that ever had dead letters, sorted by name.

        Args:
            group: only this one; nothing is returned if it never had any.
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

    async def letters(
        self, group: str, *, since_ms: int = 0, queue: MessageQueue | None = None, offset: int = 0
    ) -> AsyncIterator[DeadLetter]:
        """Each dead letter of a group, queue by queue, the oldest first.

        Args:
            group: the group.
            since_ms: given up at this time or later, epoch milliseconds.
            queue: only of this queue of its dead-letter topic.
            offset: from this queue offset on.

        Raises:
            TopicNotFound: it never had any.
            QueueNotFound, RockoonError: a broker refuses, or does not answer.
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
        """One dead letter by any of its ids.

        Raises:
            TopicNotFound: the group never had any.
            MessageNotFound: none has the id.
        """
        async for letter in self.letters(group):
            if letter.is_called(message_id):
                return letter
        raise MessageNotFound(position=message_id)

    async def _route(self, group: str) -> TopicRoute:
        # Not from the cache: a group's first dead letter may just have made the topic.
        name = dlq_topic(check_group_text(group))
        route = await reads.get_topic(self._cluster, name)
        if route is None:
            raise TopicNotFound(f"group {group!r} has no dead letters", topic=name)
        return await self._cluster.route(name, route.modified_revision)

    async def _messages(
        self, queue: MessageQueue, offset: int, stop: int
    ) -> AsyncIterator[Message]:
        while offset < stop:
            wanted = QueueRange(
                topic=queue.topic,
                queue_id=queue.queue_id,
                offset=offset,
                messages=min(MESSAGES_PER_READ, stop - offset),
            )
            try:
                reply: ReadReply = await self._cluster.call(
                    self._cluster.broker(queue.broker).Read,
                    ReadRequest(range=wanted),
                    unavailable=BrokerUnavailable,
                    broker=queue.broker,
                )
            except MessageNotFound:
                # Retention was faster, or the queue is gone.
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

    # Replaying

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
        """Send dead letters again; their attempts count from the beginning.

        Cancelling it is safe: what was sent and not noted yet, some hundred messages, is sent again
        by the next run. A run that begins takes the queues over from one that is still at work.

        Args:
            group: whose dead letters.
            ids: only those with one of these ids (see `DeadLetter.is_called`).
            since_ms: only those given up at this time or later, epoch milliseconds.
            to: the topic to send to, instead of each message's original one.
            only_group: back to this group alone, through its retry topic.
            again: also those that were replayed before.
            dry_run: send and note nothing.
            on_letter: called for each one before it is sent.

        Raises:
            TopicNotFound: the group never had any, or a topic to send to is gone.
            Fenced: another run has taken over.
            InvalidArgument: both `to` and `only_group`; a group alone that takes no retries; or too
                many single messages were picked.
            RockoonError: a message could not be sent; those before are noted.
        """
        if only_group:
            await self._check_takes_retries(group, to)
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
            # `chosen` looks at these from here on: a former run may have noted more meanwhile.
            marks = await self._take_over(route, store, marks)
            async with Producer(self._cluster) as producer:
                way = _Way(group, to, producer if not only_group else None)
                for queue in route.queues:
                    async for portion in _portions(chosen(queue)):
                        await self._replay(portion, way, marks[queue], store)
            await store.release(list(route.queues))
        report.not_found = sorted(sought)
        return report

    async def _check_takes_retries(self, group: str, to: str) -> None:
        if to:
            raise InvalidArgument(reason="a replay goes to a topic, or to the group alone")
        for each in reads.group_summaries(await reads.ask_groups(self._cluster)):
            config = each.group.config
            has_none = config.HasField("retry_queues") and config.retry_queues == 0
            if config.name == group and has_none:
                reason = f"group {group!r} has no retry queues: it can get nothing alone"
                raise InvalidArgument(reason=reason)

    async def _take_over(
        self,
        route: TopicRoute,
        store: RemoteOffsetStore,
        before: dict[MessageQueue, ReplayMarks],
    ) -> dict[MessageQueue, ReplayMarks]:
        """Become the one who notes what is replayed; returns the marks as they then are."""
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
            # Where the start moved, behind what expired, the service forgot the ranges.
            texts = (before[queue].text(), now[queue].text())
            marks[queue] = ReplayMarks.parse(start.offset, *texts)
        return marks

    async def _replay(
        self,
        letters: Sequence[DeadLetter],
        way: "_Way",
        marks: ReplayMarks,
        store: RemoteOffsetStore,
    ) -> None:
        """Send some letters of one queue, and note those that were taken."""
        messages = [letter.message for letter in letters]
        if way.producer is None:
            outcomes = await self._send_back(way.group, messages)
        else:
            outcomes = await self._send(way.producer, messages, way.to)
        for letter, failure in zip(letters, outcomes, strict=True):
            if failure is None:
                marks.add(letter.message.queue_offset)
        queue = letters[0].message.queue
        try:
            await store.commit(queue, marks.low, metadata=marks.text())
        except MarksFull as full:
            raise InvalidArgument(reason=str(full)) from full
        except Fenced as fenced:
            raise Fenced(f"another replay has taken {queue} over: {fenced}") from fenced
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
        request = SendBackRequest(
            group=group,
            # Once at least, also for a group whose messages fail for good the first time.
            attempts_max=1,
            messages=[
                FailedMessage(
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
            reply: SendBackReply = await self._cluster.call(
                self._cluster.broker(queue.broker).SendBack,
                request,
                unavailable=BrokerUnavailable,
                broker=queue.broker,
            )
        except RockoonError as failure:
            return [failure] * len(messages)
        return [
            from_wire(result.error) if result.HasField("error") else None
            for result in reply.results
        ]


@dataclass(frozen=True, slots=True)
class _Way:
    """Where a replay goes."""

    group: str
    to: str
    """A topic; empty for each message's own."""
    producer: Producer | None
    """None: to the group alone."""


async def _portions(letters: AsyncIterator[DeadLetter]) -> AsyncIterator[list[DeadLetter]]:
    """Cut letters into parts that are sent at once and noted together."""
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
    """The sender's own properties, without those that the system makes."""
    return {
        name: value
        for name, value in message.properties.items()
        if name not in RESERVED_NAMES and not name.startswith(TRANSIENT_PREFIX)
    }
