"""SendBack: stores messages that consumers failed on in topics of their group.

`retries.py` decides what to store. This module reads the originals, requests missing queues from
nameservers, and appends retries as delayed messages and dead letters as ordinary ones. A call with
many messages is processed in portions, so that memory stays bounded.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rockoon_broker.append import AppendResult
from rockoon_broker.broker import Broker
from rockoon_broker.retries.retries import FailureReport, RetryRules, ReturnedMessage, returned
from rockoon_broker.store.errors import UnknownOffset
from rockoon_broker.store.log.batch import AppendBatch
from rockoon_broker.topics.topic_file import TOPICS_ASIDE
from rockoon_core.errors import (
    BodyTooLarge,
    Busy,
    DelayTooLong,
    GroupNotFound,
    InvalidArgument,
    InvalidDelay,
    MalformedBatch,
    MessageNotFound,
    NotReady,
    PropertiesTooLarge,
    RockoonError,
)
from rockoon_format.record import Record, RecordError, decode_record, encode_record
from rockoon_proto.v1 import broker_pb2 as pb
from rockoon_proto.v1.nameserver_pb2 import (
    GROUP_DEAD_LETTERS,
    GROUP_RETRY,
    GroupTopic,
    ProvideGroupTopicRequest,
)

MESSAGES_MAX = 1024
PORTION_BYTES = 4 << 20
WAITING_BYTES_MAX = 64 << 20
GROUP_SECONDS_MAX = 2.0
NAMESERVER_SECONDS_MAX = 3.0
_OF_ONE_MESSAGE = (BodyTooLarge, DelayTooLong, InvalidDelay, MalformedBatch, PropertiesTooLarge)


@dataclass(slots=True)
class _Item:
    """One message of a call."""

    index: int
    returned: ReturnedMessage
    frame: bytes


class SendBacks:
    """Handles failed messages.

    Attributes:
        messages_returned, messages_dead: messages stored in retry topics and dead-letter topics
            since the start.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._turn = itertools.count()
        # Size of records not in the log yet; requests contain only small references to them.
        self._waiting_bytes = 0
        self.messages_returned = 0
        self.messages_dead = 0

    async def send_back(self, request: pb.SendBackRequest) -> pb.SendBackReply:
        """Store failed messages; each message is accepted or refused individually.

        If cancelled, messages that were already stored stay stored.

        Raises:
            GroupNotFound: the group does not exist.
            NotReady: the broker has not received groups yet.
            InvalidArgument: there are no messages, or too many.
        """
        if not 1 <= len(request.messages) <= MESSAGES_MAX:
            count = len(request.messages)
            raise InvalidArgument(reason=f"{count} messages, not 1 to {MESSAGES_MAX}")
        if request.attempts_max < 0:
            raise InvalidArgument(reason=f"attempts_max is {request.attempts_max}")
        rules = await self._rules(request.group, request.route_revision)
        results: list[pb.SentBack] = [pb.SentBack() for _ in request.messages]
        settings = self._broker.settings
        for portion in portions(
            self._made(request, rules, results),
            messages_max=settings.batch_messages_max,
            bytes_max=min(PORTION_BYTES, settings.batch_bytes_max),
        ):
            # Two topics, so two batches; each message gets the result of its batch.
            for dead in (False, True):
                chosen = [item for item in portion if item.returned.dead is dead]
                await self._store(chosen, request.group, results)
        return pb.SendBackReply(results=results)

    async def _rules(self, group: str, route_revision: int) -> RetryRules:
        routes = self._broker.topics.routes
        if not routes.loaded.is_set():
            raise NotReady(service="the broker", reason="no nameserver has sent it groups yet")
        rules = self._broker.topics.group_rules.of(group)
        if rules is None and await routes.wait_revision(route_revision, GROUP_SECONDS_MAX):
            rules = self._broker.topics.group_rules.of(group)
        if rules is None:
            raise GroupNotFound(group=group)
        return rules

    def _made(
        self, request: pb.SendBackRequest, rules: RetryRules, results: list[pb.SentBack]
    ) -> Iterator[_Item]:
        """Yield the records to store; errors are written to `results`."""
        # One retry queue for the whole call, so that it is one batch.
        turn = next(self._turn)
        attempts_max = request.attempts_max if request.HasField("attempts_max") else None
        delay_ms_max = self._broker.settings.delay_seconds_max * 1000
        for index, failed in enumerate(request.messages):
            # A longer delay than allowed becomes the maximum.
            delay_ms = min(failed.delay_ms, delay_ms_max)
            failure = FailureReport(
                failed.delay_level, delay_ms, attempts_max, failed.failure, failed.deliveries
            )
            try:
                original = self._original(failed)
                made = returned(original, request.group, rules, failure, turn)
            except RockoonError as refusal:
                results[index].error.CopyFrom(refusal.to_wire())
                continue
            yield _Item(index, made, encode_record(made.record, room=True))

    def _original(self, failed: pb.FailedMessage) -> Record:
        """Return the record as the consumer read it.

        Raises:
            MessageNotFound: this broker does not have it.
            InvalidArgument: the attached record is invalid, or no group can have read it.
        """
        position = f"offset {failed.queue_offset} of queue {failed.queue_id} of {failed.topic!r}"
        if failed.topic in TOPICS_ASIDE:
            # Messages waiting there are not readable yet, or never will be.
            raise InvalidArgument(reason=f"no group reads {failed.topic}")
        try:
            frame = failed.record or self._broker.store.read_at(failed.physical_offset)
            record = decode_record(frame)
        except UnknownOffset as failure:
            raise MessageNotFound(position=position) from failure
        except RecordError as failure:
            raise InvalidArgument(reason=f"{position}: {failure}") from failure
        body_bytes_max = self._broker.settings.body_bytes_max
        if failed.record and len(record.body) > body_bytes_max:
            raise BodyTooLarge(index=0, limit=body_bytes_max)
        if record.physical_offset < 0:
            raise InvalidArgument(reason=f"{position}: its offset is {record.physical_offset}")
        wanted = (failed.topic.encode(), failed.queue_id, failed.queue_offset)
        # The store may have been replaced since: another message must not be sent back instead.
        if (record.topic, record.queue_id, record.queue_offset) != wanted:
            raise MessageNotFound(position=position)
        return record

    async def _store(self, items: Sequence[_Item], group: str, results: list[pb.SentBack]) -> None:
        if not items:
            return
        try:
            placed = await self._place(items, group)
            # Wait until it is durable: after this answer the consumer counts the message as done.
            refusal = await placed.durable if placed.durable is not None else None
            if refusal is not None:
                raise refusal
        except _OF_ONE_MESSAGE as failure:
            if len(items) > 1:
                # One bad message spoils the batch; store each one alone.
                for item in items:
                    await self._store([item], group, results)
                return
            results[items[0].index].error.CopyFrom(failure.to_wire())
            return
        except RockoonError as failure:
            for item in items:
                results[item.index].error.CopyFrom(failure.to_wire())
            return
        if items[0].returned.dead:
            self.messages_dead += len(items)
        else:
            self.messages_returned += len(items)
        for item in items:
            made = item.returned
            results[item.index].CopyFrom(
                pb.SentBack(
                    topic=made.topic,
                    dead=made.dead,
                    attempts=made.record.reconsume_times,
                    origin_message_id=made.origin_message_id,
                )
            )

    async def _place(self, items: Sequence[_Item], group: str) -> AppendResult:
        first = items[0].returned
        topic, queue_id = first.topic, first.record.queue_id
        await self._provide(
            topic, queue_id, group, GROUP_DEAD_LETTERS if first.dead else GROUP_RETRY
        )
        batch = AppendBatch.of_records(topic, queue_id, [item.frame for item in items])
        size = batch.frames_bytes
        if self._waiting_bytes and self._waiting_bytes + size > WAITING_BYTES_MAX:
            raise Busy(reason=f"{self._waiting_bytes} bytes sent back wait for room in the log")
        self._waiting_bytes += size
        try:
            return await self._broker.append(batch, 0, pb.ORDINARY if first.dead else pb.DELAYED)
        finally:
            self._waiting_bytes -= size

    async def _provide(self, topic: str, queue_id: int, group: str, kind: GroupTopic) -> None:
        """Make sure that this broker has the queue.

        Raises:
            RockoonError: a nameserver refuses, or none answers.
            NotReady: the queue is created, but this broker has not received it yet.
        """
        broker = self._broker
        # Usual case: a failed message needs no call to a nameserver.
        if broker.topics.knows(topic, queue_id):
            return
        request = ProvideGroupTopicRequest(group=group, topic=kind, broker=broker.settings.name)
        nameservers = broker.nameservers
        reply = await nameservers.call(
            lambda stub: stub.ProvideGroupTopic(
                request, timeout=NAMESERVER_SECONDS_MAX, metadata=nameservers.metadata
            )
        )
        await broker.topics.catch_up([(topic, queue_id)], reply.revision)
        if not broker.topics.knows(topic, queue_id):
            raise NotReady(service="the broker", reason=f"its queue of {topic} is being created")


def portions(items: Iterable[_Item], *, messages_max: int, bytes_max: int) -> Iterator[list[_Item]]:
    """Split records into parts of bounded size; a larger record is a part of its own."""
    part: list[_Item] = []
    size = 0
    for item in items:
        if len(part) == messages_max or (part and size + len(item.frame) > bytes_max):
            yield part
            part, size = [], 0
        part.append(item)
        size += len(item.frame)
    if part:
        yield part
