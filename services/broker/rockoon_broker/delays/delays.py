"""A broker's delayed messages: accepted, delivered when due, or cancelled.

Invariants:
1. A message is delivered or cancelled by one record in the log that names the record in which it
   waited (pending_records.py). So a crash at any time delivers no message twice and loses
   none.
2. A message that cannot be delivered now (the store refuses appends) stays pending and is retried.
   One that can never be delivered (its topic or queue is deleted, its record is damaged) is closed
   by a record and logged; otherwise it would be retried after every start.
3. A record that retention would delete before its message is due is stored again after half of the
   retention time. So messages are lost only if the disk is too full for them, and this is logged.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from rockoon_broker.append import AppendResult, Appends
from rockoon_broker.clock import Clock
from rockoon_broker.delays.delay_offsets import TimerCheckpoint
from rockoon_broker.delays.delayed_queues import DelayedQueues
from rockoon_broker.delays.delivery import DelayedDelivery, parts_by_queue, records_of
from rockoon_broker.delays.rewriting import (
    AddressedRecord,
    DelayRules,
    Undeliverable,
    destination,
    level_of,
    unique_id_of,
    waiting_record,
)
from rockoon_broker.idempotence.ledger import Run
from rockoon_broker.pending.pending_index import PendingIndex
from rockoon_broker.pending.pending_records import CompletedMeanwhile
from rockoon_broker.store.errors import UnknownOffset
from rockoon_broker.store.log.batch import AppendBatch
from rockoon_broker.store.queues.consume_queue import QueueKey
from rockoon_broker.store.store import Store
from rockoon_core.errors import (
    Busy,
    DelayedSettled,
    InvalidArgument,
    MalformedBatch,
    MessageNotFound,
)
from rockoon_format.message_id import OffsetMessageId, decode_offset_id, encode_offset_id
from rockoon_format.record import Record, encode_host, fits

log = logging.getLogger(__name__)

# While a batch is rewritten, other tasks run after this many records.
REWRITTEN_AT_ONCE_MAX = 64
LISTED_BYTES_MAX = 16 << 20


@dataclass(frozen=True, slots=True)
class WaitingMessage:
    message_id: str
    topic: str
    queue_id: int
    unique_id: str
    deliver_at_ms: int
    level: int
    """0 if the message has its own deliver time."""
    store_timestamp_ms: int


class Delays:
    """The delayed messages of one broker. Used only by the event loop's thread.

    Construct it before the pending index is loaded; call `resume` once after that.

    Args:
        pending_index: completed messages; the queues of delayed messages are added here.
        clock: monotonic; it limits the effect of a wrong wall clock on due times.
        rules: levels and maximum delay.
        pending_max: maximum number of waiting messages; more are refused.
        reserved_ms: age at which retention deletes a CommitLog file.
        knows: returns whether this broker has a queue; raises a RockoonError if that is unknown
        yet.

    Attributes:
        delivery: delivers due messages.
        pending_max: may be replaced.
    """

    def __init__(
        self,
        store: Store,
        appends: Appends,
        pending_index: PendingIndex,
        clock: Clock,
        *,
        rules: DelayRules,
        pending_max: int,
        reserved_ms: int,
        knows: Callable[[str, int], bool],
    ) -> None:
        self._store = store
        self._appends = appends
        self._clock = clock
        self._rules = rules
        self.pending_max = pending_max
        self._store_host = encode_host(*store.settings.store_host)
        self._queues = DelayedQueues(store, appends, pending_index, self._now, rules)
        self._records = self._queues.records
        self.delivery = DelayedDelivery(
            store, self._queues, self._now, reserved_ms=reserved_ms, knows=knows
        )

    def __len__(self) -> int:
        return len(self._records)

    @property
    def queues(self) -> Collection[QueueKey]:
        """Queues of waiting messages; `delivery.work` must be rung when one of them gets more."""
        return self._records.keys

    def use_rules(self, rules: DelayRules) -> None:
        """Use another maximum delay for the following messages; the levels must be the same."""
        self._rules = rules

    def follow(self) -> None:
        """Update after more of the log was applied, while this replica follows."""
        self._queues.discard_completed()

    def find_levels(self) -> None:
        """Add queues of former delay levels; see `DelayedQueues.find_levels`."""
        self._queues.find_levels()

    def resume(self, timer: TimerCheckpoint) -> None:
        """Continue the work of an earlier process.

        Args:
            timer: progress of RocketMQ's timer.
        """
        self._queues.resume(timer)
        if len(self):
            log.info("%d delayed messages are waiting", len(self))

    # Accepting.

    async def append(self, batch: AppendBatch, check: Callable[[], None]) -> AppendResult:
        """Store messages of one queue until they are due; see `Appends.append`.

        They are stored in parts, one per run of messages with the same delay level.

        Raises:
            InvalidDelay, DelayTooLong: for a message; nothing was appended.
            Busy: too many messages wait; nothing was appended.
            RockoonError: the batch is refused, or the store refuses appends. If the store failed in
                between, the first parts may have been appended.
        """
        records = records_of(batch)
        if len(self) + len(records) > self.pending_max:
            raise Busy(reason=f"{len(self)} delayed messages are already waiting")
        waiting: list[AddressedRecord] = []
        now_ms, _ = self._now()
        for index, record in enumerate(records):
            waiting.append(waiting_record(record, now_ms, self._rules, index))
            if index % REWRITTEN_AT_ONCE_MAX == REWRITTEN_AT_ONCE_MAX - 1:
                # Decoding and encoding thousands of records needs many milliseconds; let other
                # tasks run.
                await asyncio.sleep(0)
        parts = list(parts_by_queue(waiting))
        # Check all parts first: parts are appended one by one, and a late refusal would leave half
        # of the batch.
        self._check_fit(parts)
        runs: list[Run] = []
        placed: AppendResult | None = None
        for key, part in parts:
            placed = await self._appends.append(AppendBatch.of_records(*key, part), check)
            first = placed.first
            position = first.first_physical_offset
            for number, frame in enumerate(part):
                runs.append(
                    Run(
                        first_sequence=len(runs),
                        messages=1,
                        first_queue_offset=first.first_queue_offset + number,
                        first_physical_offset=position,
                        store_timestamp_ms=first.store_timestamp_ms,
                        store_host=self._store_host,
                    )
                )
                position += len(frame)
        assert placed is not None
        # Of the last part, because one sync covers all parts before it.
        return AppendResult(tuple(runs), placed.durable)

    def _check_fit(self, parts: Sequence[tuple[QueueKey, list[bytes]]]) -> None:
        """Refuse a batch that the log would refuse, before any part is appended."""
        file_bytes = self._store.settings.commit_log_file_bytes
        for _, part in parts:
            if not fits(sum(map(len, part)), file_bytes):
                raise MalformedBatch(index=0, reason=f"it does not fit into {file_bytes} bytes")

    # Cancelling.

    async def cancel(
        self, message_id: str, check: Callable[[str], None] = lambda _topic: None
    ) -> None:
        """Cancel a message; on return that is as durable as the store promises.

        If the call itself is cancelled, the message may be cancelled or not.

        Args:
            message_id: offsetMsgId of the record in which it waits, or in which it waited first.
            check: called with the topic of the message, "" if its record does not name one, before
                anything is done; its exception is the answer.

        Raises:
            InvalidArgument: the id is malformed.
            MessageNotFound: no delayed message was stored there, or it was deleted.
            DelayedSettled: it was already delivered or cancelled.
            RockoonError: the store refuses appends.
        """
        try:
            where = decode_offset_id(message_id)
        except ValueError as failure:
            raise InvalidArgument(reason=str(failure)) from failure
        self._records.add_entries()
        source = self._queues.rolled.now(where.physical_offset)
        if not self._records.all_wait([source]):
            self._raise_completed(where, message_id, check)
        record = self._records.read(source)
        if where.store_host not in self._hosts_of(where.physical_offset, record):
            raise MessageNotFound(position=message_id)
        check(topic_of(record))
        try:
            placed = await self.delivery.cancel(record)
        except CompletedMeanwhile as failure:
            raise DelayedSettled(message_id=message_id) from failure
        if placed.durable is not None and (refusal := await placed.durable) is not None:
            raise refusal

    def _hosts_of(self, first: int, record: Record) -> set[bytes]:
        """Return the broker addresses that an id of a message waiting in `record` may contain.

        Other brokers have records at the same offsets, and receive the same ids.
        """
        hosts = {record.store_host}
        if first != record.physical_offset:
            # The producer's record may be older than this broker's present address.
            with contextlib.suppress(UnknownOffset):
                hosts.add(self._records.read(first).store_host)
        return hosts

    def _raise_completed(
        self, where: OffsetMessageId, message_id: str, check: Callable[[str], None]
    ) -> None:
        try:
            record = self._records.read(where.physical_offset)
        except UnknownOffset as failure:
            raise MessageNotFound(position=message_id) from failure
        key = record.topic.decode(errors="replace"), record.queue_id
        if key not in self._records.keys or record.store_host != where.store_host:
            raise MessageNotFound(position=message_id)
        check(topic_of(record))
        raise DelayedSettled(message_id=message_id)

    # Queries.

    def low_waters(self) -> dict[QueueKey, int]:
        """Queue offsets below which all messages are completed."""
        return self._queues.low_waters()

    def pending_by_level(self) -> dict[int, int]:
        """Number of waiting messages by level from 1; 0: those with their own deliver time."""
        return self._queues.pending_by_level()

    def next_due(self, count_max: int) -> list[WaitingMessage]:
        """Return the messages that are due next, in order; fewer if they are large."""
        self._records.add_entries()
        waiting: list[WaitingMessage] = []
        size = 0
        for due_ms, source in self._queues.first_due(count_max):
            if size >= LISTED_BYTES_MAX:
                break
            try:
                record = self._records.read(source)
                size += len(record.body)
                topic, queue_id = destination(record)
            except (UnknownOffset, Undeliverable):
                continue
            name = encode_offset_id(record.store_host, self._queues.rolled.first(source))
            waiting.append(
                WaitingMessage(
                    message_id=name,
                    topic=topic,
                    queue_id=queue_id,
                    unique_id=unique_id_of(record),
                    deliver_at_ms=due_ms,
                    level=level_of(record),
                    store_timestamp_ms=record.store_timestamp_ms,
                )
            )
        return waiting

    # Inside.

    def _now(self) -> tuple[int, int]:
        # Not the wall clock: a delivery because of a wrong reading could not be undone.
        wall_ms = self._appends.store_clock.now_ms()
        return wall_ms, int(self._clock.monotonic_seconds() * 1000)


def topic_of(record: Record) -> str:
    """Return the topic that a message waits for; "" if its record does not name one."""
    try:
        return destination(record)[0]
    except Undeliverable:
        return ""
