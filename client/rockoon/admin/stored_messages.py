"""Stored messages, searched by key or id, or read by queue and offset.

    found = await cluster.admin.messages.query("orders", "order-4711")
    for message in found.messages:
        print(message.queue, message.body)

Each broker searches its own log. The result names the brokers that did not answer or could not
search all of it: without them, an empty list does not prove that no message exists.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rockoon.admin import reads
from rockoon.admin.reads import live_brokers, missing_brokers
from rockoon.bounds import check_epoch_ms, refuses_invalid_text
from rockoon.errors import (
    InvalidArgument,
    MessageNotFound,
    QueueNotFound,
    RockoonError,
    TopicNotFound,
    TopicNotReadable,
)
from rockoon.message import Batch, Message
from rockoon_core.message_queue import MessageQueue
from rockoon_format.columns import decode_columns
from rockoon_format.message_id import decode_offset_id
from rockoon_proto.v1 import broker_pb2 as broker_pb
from rockoon_proto.v1.offset_pb2 import Progress

if TYPE_CHECKING:
    from rockoon.net.connection import Connection

MESSAGES_DEFAULT = 32
MESSAGES_MAX = 1024
CALLS_MAX = 16


@dataclass(frozen=True, slots=True)
class FoundMessages:
    """Messages that the brokers found."""

    messages: Sequence[Message]
    """Found messages, sorted by store time, newest first."""
    unsearched: Mapping[str, str]
    """Broker → why it may have more matching messages, as a sentence; for example an incomplete
    index."""
    errors: Mapping[str, RockoonError]
    """Broker → the error, if it did not answer."""
    indexed_until_ms: Mapping[str, int]
    """Broker → store time up to which its index is complete, epoch milliseconds."""

    @property
    def whole(self) -> bool:
        """True if all brokers were searched completely, so that no message is missing."""
        return not (self.unsearched or self.errors)


@dataclass(frozen=True, slots=True)
class GroupAtMessage:
    """A group with progress on the queue of a message."""

    progress: Progress
    consumed: bool
    """The group's committed offset is past the message."""
    began_behind: bool
    """The group last started past the message, so it may never have read it."""

    @property
    def group(self) -> str:
        return str(self.progress.group)


@refuses_invalid_text
class StoredMessages:
    """Searches for stored messages: `cluster.admin.messages`."""

    def __init__(self, cluster: "Connection") -> None:
        self._cluster = cluster

    async def query(
        self,
        topic: str,
        key: str,
        *,
        unique: bool = False,
        begin_ms: int = 0,
        end_ms: int = 0,
        max_messages: int = MESSAGES_DEFAULT,
    ) -> FoundMessages:
        """Find messages of a topic by key.

        Args:
            key: one of the message's `keys`, without spaces.
            unique: `key` is a message id instead (UNIQ_KEY, `SendResult.message_id`).
            begin_ms: only messages stored at or after this time, epoch milliseconds.
            end_ms: only messages stored at or before this time, epoch milliseconds; 0 for no limit.
            max_messages: 1 to 1024; the newest are returned.

        Returns:
            The messages of all brokers that answered; hash collisions are filtered out.

        Raises:
            TopicNotFound, TopicNotReadable: the topic does not exist or cannot be read.
            InvalidArgument: the key, a time or the number is invalid.
        """
        if not 1 <= max_messages <= MESSAGES_MAX:
            raise InvalidArgument(reason=f"max_messages {max_messages} is not in 1..{MESSAGES_MAX}")
        check_epoch_ms("begin_ms", begin_ms)
        check_epoch_ms("end_ms", end_ms)
        route = await self._cluster.route(topic)
        request = broker_pb.QueryMessagesRequest(
            topic=topic,
            key=key,
            kind=broker_pb.UNIQUE_ID if unique else broker_pb.KEY,
            begin_ms=begin_ms,
            end_ms=end_ms,
            max_messages=max_messages,
            route_revision=route.modified_revision,
        )
        brokers = sorted({queue.broker for queue in route.queues})
        answers = await self._ask(brokers, lambda broker: self._query_at(broker, request))
        return merged(answers, max_messages)

    async def _query_at(
        self, broker: str, request: broker_pb.QueryMessagesRequest
    ) -> FoundMessages:
        try:
            reply = await self._cluster.call_broker(broker, "QueryMessages", request)
        except (InvalidArgument, TopicNotFound, TopicNotReadable):
            raise
        except RockoonError as error:
            return FoundMessages((), {}, {broker: error}, {})
        unsearched = {broker: reply.not_searched_because} if not reply.whole_range_searched else {}
        messages = messages_of(broker, reply.frames, reply.record_lengths)
        return FoundMessages(messages, unsearched, {}, {broker: reply.indexed_until_ms})

    async def get(self, message_id: str, *, topic: str = "") -> FoundMessages:
        """Find a message by its id.

        An offset id names a position in one broker's log. All brokers are asked for it, because a
        broker's address may have changed. A unique id is searched in the indexes of all topics; it
        finds two messages if the message was stored twice.

        Args:
            message_id: an offset id or a unique id.
            topic: topic to search for a unique id; empty for all topics.

        Returns:
            The messages, and the brokers that could not be searched.

        Raises:
            MessageNotFound: every broker answered, and none has the message.
            InvalidArgument: the id is empty or has spaces.
            TopicNotFound, TopicNotReadable: the topic does not exist or cannot be read.
        """
        by_offset_id = await self._by_offset_id(message_id)
        if by_offset_id.messages:
            return FoundMessages(by_offset_id.messages, {}, {}, {})
        found = merged([by_offset_id, await self._by_unique_id(message_id, topic)], MESSAGES_MAX)
        if not found.messages and found.whole:
            raise MessageNotFound(position=message_id)
        return found

    async def at(self, queue: MessageQueue, offset: int, *, max_messages: int = 1) -> FoundMessages:
        """Read messages of a queue, also those that filters of consumers exclude.

        Args:
            queue: a queue of a readable topic.
            offset: queue offset of the first message.
            max_messages: 1 to 1024.

        Returns:
            The messages in the order of their offsets; fewer than `max_messages` at the end of the
            queue.

        Raises:
            MessageNotFound: no message is stored at `offset`.
            TopicNotFound, TopicNotReadable, QueueNotFound: the topic or the queue.
            BrokerUnavailable: the broker does not answer.
            InvalidArgument, InvalidOffset: the number or the offset is invalid.
        """
        if not 1 <= max_messages <= MESSAGES_MAX:
            raise InvalidArgument(reason=f"max_messages {max_messages} is not in 1..{MESSAGES_MAX}")
        route = await self._cluster.route(queue.topic)
        if queue not in route.queues:
            raise QueueNotFound(topic=queue.topic, queue=queue.queue_id, broker=queue.broker)
        found = await self._read_range(queue, offset, max_messages)
        while len(found) < max_messages:
            # A reply ends at 16 MiB, or at the end of the queue.
            begin = found[-1].queue_offset + 1
            try:
                found += await self._read_range(queue, begin, max_messages - len(found))
            except MessageNotFound:
                break
        return FoundMessages(found, {}, {}, {})

    async def _read_range(
        self, queue: MessageQueue, offset: int, max_messages: int
    ) -> list[Message]:
        wanted = broker_pb.QueueRange(
            topic=queue.topic, queue_id=queue.queue_id, offset=offset, messages=max_messages
        )
        reply = await self._cluster.call_broker(
            queue.broker, "Read", broker_pb.ReadRequest(range=wanted)
        )
        return messages_of(queue.broker, reply.frames, reply.record_lengths)

    async def _by_offset_id(self, message_id: str) -> FoundMessages:
        try:
            decode_offset_id(message_id)
        except ValueError:
            return FoundMessages((), {}, {}, {})
        brokers = live_brokers(self._cluster)
        answers = await self._ask(brokers, lambda broker: self._read_at(broker, message_id))
        if not any(answer.messages for answer in answers):
            answers.append(FoundMessages((), {}, {**await missing_brokers(self._cluster)}, {}))
        return merged(answers, MESSAGES_MAX)

    async def _read_at(self, broker: str, message_id: str) -> FoundMessages:
        try:
            reply = await self._cluster.call_broker(
                broker, "Read", broker_pb.ReadRequest(message_id=message_id)
            )
        except MessageNotFound:
            return FoundMessages((), {}, {}, {})
        except RockoonError as error:
            return FoundMessages((), {}, {broker: error}, {})
        return FoundMessages(messages_of(broker, reply.frames, reply.record_lengths), {}, {}, {})

    async def _by_unique_id(self, message_id: str, topic: str) -> FoundMessages:
        if topic:
            return await self.query(topic, message_id, unique=True, max_messages=MESSAGES_MAX)
        routes = await reads.list_topics(self._cluster, include_system=True)

        async def query_topic(name: str) -> FoundMessages:
            try:
                return await self.query(name, message_id, unique=True, max_messages=MESSAGES_MAX)
            except (TopicNotFound, TopicNotReadable):
                # The topic was just deleted, or is not readable.
                return FoundMessages((), {}, {}, {})

        return merged(await self._ask([route.name for route in routes], query_topic), MESSAGES_MAX)

    async def _ask(
        self, names: Iterable[str], ask: "Callable[[str], Coroutine[object, object, FoundMessages]]"
    ) -> list[FoundMessages]:
        """Call `ask` for each name, at most `CALLS_MAX` at a time."""
        room = asyncio.Semaphore(CALLS_MAX)

        async def one(name: str) -> FoundMessages:
            async with room:
                return await ask(name)

        try:
            async with asyncio.TaskGroup() as tasks:
                asked = [tasks.create_task(one(name), name=f"ask {name}") for name in names]
        except BaseExceptionGroup as failures:
            # All calls are alike: one failure says as much as all.
            raise failures.exceptions[0] from None
        return [task.result() for task in asked]

    async def readers(self, messages: Sequence[Message]) -> list[list[GroupAtMessage]]:
        """Return the groups with progress on each message's queue, sorted by name.

        Args:
            messages: messages of a search result.

        Raises:
            OffsetServiceUnavailable: the offset service does not answer.
        """
        progress: dict[MessageQueue, list[Progress]] = {}
        for topic in sorted({message.queue.topic for message in messages}):
            for each in await reads.progress(self._cluster, topic=topic):
                queue = MessageQueue(topic, each.queue.broker, each.queue.queue_id)
                progress.setdefault(queue, []).append(each)
        return [
            [
                GroupAtMessage(
                    progress=each,
                    consumed=each.offset > message.queue_offset,
                    began_behind=each.start_offset > message.queue_offset,
                )
                for each in progress.get(message.queue, ())
            ]
            for message in messages
        ]


def messages_of(broker: str, frames: bytes, lengths: bytes) -> list[Message]:
    """Return the messages of a reply, which may be of different queues."""
    columns = decode_columns(frames, np.frombuffer(lengths, "<u4"))
    found: list[Message] = []
    start = 0
    for index, length in enumerate(columns.lengths.tolist()):
        topic = columns.topics[index].decode(errors="replace")
        queue = MessageQueue(topic, broker, int(columns.queue_ids[index]))
        found.append(Message(Batch(queue, frames[start : start + length], [length]), 0))
        start += length
    return found


def merged(answers: Sequence[FoundMessages], messages_max: int) -> FoundMessages:
    """Merge results; keep the newest `messages_max` messages."""
    messages = sorted(
        (message for answer in answers for message in answer.messages),
        key=lambda each: (each.store_timestamp_ms, each.queue.broker, each.physical_offset),
        reverse=True,
    )
    unsearched = {
        broker: reason for answer in answers for broker, reason in answer.unsearched.items()
    }
    for message in messages[messages_max:]:
        reason = f"there are more than {messages_max} messages"
        unsearched.setdefault(message.queue.broker, reason)
    return FoundMessages(
        messages=messages[:messages_max],
        unsearched=unsearched,
        errors={broker: error for answer in answers for broker, error in answer.errors.items()},
        indexed_until_ms={
            broker: until for answer in answers for broker, until in answer.indexed_until_ms.items()
        },
    )
