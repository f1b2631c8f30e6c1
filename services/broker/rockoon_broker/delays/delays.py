"""A broker's delayed messages: taken, delivered when due, cancelled, kept from retention.

Invariants:
1. A message is delivered, or cancelled, by one record in the log that names the record in which it
   waited. From the append of it to the note of it in the completed queue there is no pause, and a
   start reads what later records name: whenever the process ends, nothing is delivered twice and
   nothing is forgotten.
2. What cannot be delivered now (the store takes nothing) stays pending and is tried again. What can
   never be (its topic or queue is gone, its record is damaged) is closed by a record and reported:
   it would otherwise come again after every start.
3. A record that retention will delete before its message is due is stored once more at half of the
   time it has, so only a disk too full for its contents loses messages, and then it is said.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rockoon_broker.append import AppendResult, Appends
from rockoon_broker.clock import Clock
from rockoon_broker.delays.batches import parts_aside, parts_bounded, records_of
from rockoon_broker.delays.delay_offsets import TimerCheckpoint
from rockoon_broker.delays.expiring import expiring
from rockoon_broker.delays.rewriting import (
    CANCELLED,
    TIMED_QUEUE,
    UNDELIVERABLE,
    Aside,
    DelayRules,
    Undeliverable,
    closing,
    delivered,
    destination,
    level_of,
    set_aside,
    stored_once_more,
    unique_id_of,
)
from rockoon_broker.delays.rolled import RolledMessages
from rockoon_broker.delays.timetable import Timetable, due_times
from rockoon_broker.idempotence.ledger import Run
from rockoon_broker.pending.pending_index import PendingIndex
from rockoon_broker.pending.pending_queue import Pending
from rockoon_broker.store.errors import StoreClosed, StoreError, StoreFailed, UnknownOffset
from rockoon_broker.store.log.batch import Batch
from rockoon_broker.store.log.reading import LogChunk
from rockoon_broker.store.queues.consume_queue import QueueKey
from rockoon_broker.store.store import Store
from rockoon_core.errors import (
    BodyTooLarge,
    Busy,
    DelayedSettled,
    InvalidArgument,
    InvalidTopicName,
    MalformedBatch,
    MessageNotFound,
    PropertiesTooLarge,
    QueueNotFound,
    RockoonError,
    StoreNotWritable,
    TopicNotFound,
)
from rockoon_format.delay_levels import DELIVER_TIME_MS_MIN, timer_deliver_ms
from rockoon_format.message_id import OffsetMessageId, decode_offset_id, encode_offset_id
from rockoon_format.names import SCHEDULE_TOPIC, TIMER_TOPIC
from rockoon_format.record import Record, decode_record, encode_host, encode_record, fits
from rockoon_runtime.waking import Turns

log = logging.getLogger(__name__)

# From one turn to the next at least: what comes due close together is delivered together.
TURN_SECONDS = 0.05
# While messages wait: nothing tells that the wall clock was set or that the machine has slept, so
# what is due is worked out again.
CLOCK_LOOK_SECONDS = 1.0
# After a failure; RocketMQ waits ten seconds (ScheduleMessageService).
PAUSE_SECONDS = 1.0
# Work of one turn: what everybody else waits for at most.
DELIVERED_PER_TURN_MAX = 64
READ_BYTES_PER_TURN_MAX = 4 << 20
LISTED_BYTES_MAX = 16 << 20
# Found at once: looking through a million that wait takes as long as storing some hundred.
EXPIRING_MAX = 4096
ROLL_SECONDS = 10.0

TIMED_KEY = (TIMER_TOPIC, TIMED_QUEUE)
_ROLLED_NOTE = "delays/rolled"


@dataclass(slots=True)
class DelayCounts:
    """Since the process started."""

    delivered: int = 0
    cancelled: int = 0
    undeliverable: int = 0
    lost: int = 0
    rolled: int = 0
    lag_ms: int = 0
    """How late the last ones were delivered."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A delayed message that waits."""

    message_id: str
    topic: str
    queue_id: int
    unique_id: str
    deliver_at_ms: int
    level: int
    """0 when it has a time of its own."""
    store_timestamp_ms: int


class Delays:
    """The delayed messages of one broker. Used by the event loop's thread alone.

    Make it before the pending index is loaded, and call `resume` once after that.

    Args:
        store: open.
        appends: the way into it.
        pending index: what is completed; the queues of delayed messages are added here.
        clock: monotonic; it guards the due times, which go by the time that is stored.
        rules: what is allowed.
        pending_max: messages that may wait at once; further ones are refused.
        reserved_ms: age at which retention deletes a CommitLog file.
        knows: whether this broker has a queue; raises a RockoonError when it cannot be told yet.
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
        self._pending_index = pending_index
        self._clock = clock
        self._rules = rules
        self._pending_max = pending_max
        self._reserved_ms = reserved_ms
        self._knows = knows
        self._store_host = encode_host(*store.settings.store_host)
        delays_ms: dict[QueueKey, int] = {
            (SCHEDULE_TOPIC, level): delay_ms for level, delay_ms in enumerate(rules.levels_ms)
        }
        # Messages of a level wait there too, once they were stored once more.
        delays_ms[TIMED_KEY] = max(rules.delay_seconds_max * 1000, *rules.levels_ms)
        for topic, queue_id in store.queues():
            # There were more levels once; what waits there is not forgotten.
            if topic == SCHEDULE_TOPIC:
                delays_ms.setdefault((topic, queue_id), delays_ms[TIMED_KEY])
        self._delays_ms = delays_ms
        for key in delays_ms:
            pending_index.add_queue(*key)
        self._rolled = RolledMessages()
        pending_index.add_note(_ROLLED_NOTE, self._rolled.to_bytes, self._rolled.take_over)
        pending_index.add_named(self._note_rolled)
        self._tables: dict[QueueKey, Timetable] = {}
        # Records that are to be stored once more, and when their messages are due.
        self._expiring: deque[tuple[int, int]] = deque()
        self._log_min = -1
        self._roll_due = 0.0
        self._is_trying_again = False
        # Why what is due waits.
        self.failure: Exception | None = None
        self.counts = DelayCounts()
        # Rung when there is news for the next turn: new messages, or a shorter log.
        self.turns = Turns(TURN_SECONDS)

    def __len__(self) -> int:
        """How many messages wait."""
        return sum(len(self._pending_index.queue(*key)) for key in self._delays_ms)

    @property
    def queues(self) -> Collection[QueueKey]:
        """Where messages wait; `turns` is to be rung when one of them gets more."""
        return self._delays_ms.keys()

    def resume(self, timer: TimerCheckpoint) -> None:
        """Go on with what an earlier process left.

        Args:
            timer: what RocketMQ's timer has delivered of it.
        """
        now_ms, monotonic_ms = self._now()
        for key, delay_ms in self._delays_ms.items():
            table = Timetable(self._pending_index.queue(*key), delay_ms)
            self._tables[key] = table
            if key == TIMED_KEY:
                self._read_times(timer)
            table.resume(now_ms, monotonic_ms)
        rolled = self._rolled.positions()
        self._rolled.forget(rolled[~self._which_wait(rolled)].tolist())
        if len(self):
            log.info("%d delayed messages wait for their time", len(self))

    # Taking.

    async def place(self, batch: Batch, check: Callable[[], None]) -> AppendResult:
        """Set messages of one queue aside until they are due; see `Appends.place`.

        Stored in parts, one for each run of messages with the same delay level.

        Raises:
            InvalidDelay, DelayTooLong: of a message; nothing was appended.
            Busy: too many messages wait; nothing was appended.
            RockoonError: the batch is refused, or the store takes none. Of the batch's parts the
                first may have been appended, when the store failed in between.
        """
        records = records_of(batch)
        if len(self) + len(records) > self._pending_max:
            raise Busy(reason=f"{len(self)} delayed messages wait for their time")
        aside: list[Aside] = []
        now_ms, _ = self._now()
        for index, record in enumerate(records):
            aside.append(set_aside(record, now_ms, self._rules, index))
            if index % DELIVERED_PER_TURN_MAX == DELIVERED_PER_TURN_MAX - 1:
                # Decoding and encoding thousands of records is work of many milliseconds: let
                # others run.
                await asyncio.sleep(0)
        parts = list(parts_aside(aside))
        # All parts first: a batch is stored in several appends, and one refused later would leave
        # half.
        self._check_fit(parts)
        runs: list[Run] = []
        placed: AppendResult | None = None
        for key, part in parts:
            placed = await self._append(key, part, check)
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
        return AppendResult(tuple(runs), placed.durable)

    def _check_fit(self, parts: Sequence[tuple[QueueKey, list[bytes]]]) -> None:
        """Refuse what the log would, before any part of the batch is in it."""
        file_bytes = self._store.settings.commit_log_file_bytes
        for _, part in parts:
            if not fits(sum(map(len, part)), file_bytes):
                raise MalformedBatch(index=0, reason=f"it does not fit into {file_bytes} bytes")

    # Delivering.

    async def run(self) -> None:
        """Deliver what is due, until cancelled or the store has ended."""
        while True:
            self.turns.begin()
            is_more, pause_seconds = False, None
            try:
                is_more = await self.step()
                pause_seconds = self._pause_seconds()
                self._is_trying_again = False
                self.failure = None
            except (StoreFailed, StoreClosed):
                return
            except (RockoonError, StoreError, OSError) as failure:
                if not self._is_trying_again:
                    log.warning("delayed messages wait, it is tried again: %s", failure)
                self._is_trying_again = True
                self.failure = failure
                await asyncio.sleep(PAUSE_SECONDS)
                # Nobody tells again of what was not taken in.
                pause_seconds = 0.0
            await (asyncio.sleep(0) if is_more else self.turns.wait_next(pause_seconds))

    def _pause_seconds(self) -> float | None:
        """How long nothing is to be done if nothing arrives; None when nothing waits."""
        if not len(self):
            return None
        now_ms, monotonic_ms = self._now()
        due_ms = min(table.next_due_ms(now_ms, monotonic_ms) for table in self._tables.values())
        pause_ms = min(due_ms, self._roll_due - monotonic_ms, CLOCK_LOOK_SECONDS * 1000)
        return max(pause_ms, 0.0) / 1000

    async def step(self) -> bool:
        """One turn: take in, deliver what is due, look after what retention threatens.

        Returns:
            Whether more is due already.

        Raises:
            RockoonError, StoreError, OSError: not now; what was not done is still pending.
        """
        now_ms, monotonic_ms = self._now()
        self._take_in(now_ms, monotonic_ms)
        self._count_lost()
        if monotonic_ms >= self._roll_due:
            self._roll_due = monotonic_ms + ROLL_SECONDS * 1000
            if await self._roll(now_ms, monotonic_ms):
                self._roll_due = 0
        left = DELIVERED_PER_TURN_MAX
        for table in self._tables.values():
            due = table.due(now_ms, monotonic_ms, left)
            if len(due):
                self.counts.lag_ms = max(0, now_ms - int(due.codes[0]))
                left -= await self._deliver(due)
            if left <= 0:
                return True
        return False

    async def _deliver(self, due: Pending) -> int:
        """Deliver entries, or the first of them; returns how many were looked at."""
        groups: dict[QueueKey, list[tuple[int, bytes]]] = {}
        read = size = 0
        for source in due.positions.tolist():
            read += 1
            try:
                record = self._record(source)
                key = destination(record)
                self._check_destination(key, source)
            except (UnknownOffset, Undeliverable) as failure:
                await self._give_up(source, str(failure))
                continue
            frame = encode_record(delivered(record), room=True)
            groups.setdefault(key, []).append((source, frame))
            size += len(frame)
            if size >= READ_BYTES_PER_TURN_MAX:
                break
        for key, group in groups.items():
            for part in parts_bounded(group):
                await self._deliver_part(key, part)
        return read

    async def _deliver_part(self, key: QueueKey, part: Sequence[tuple[int, bytes]]) -> None:
        sources = [source for source, _ in part]

        def check() -> None:
            # While there was no room in the log a topic may have been deleted, or one cancelled.
            if not self._knows(*key):
                raise TopicNotFound(topic=key[0])
            if not self._are_pending(sources):
                raise Busy(reason="a delayed message was cancelled meanwhile")

        try:
            await self._append(key, [frame for _, frame in part], check)
        except (MalformedBatch, BodyTooLarge, PropertiesTooLarge, InvalidTopicName) as refusal:
            if len(part) == 1:
                await self._give_up(sources[0], str(refusal))
                return
            for one in part:
                await self._deliver_part(key, [one])
            return
        except (TopicNotFound, QueueNotFound, Busy):
            # The next turn finds out which of them are to be delivered where.
            return
        self.counts.delivered += self._complete(sources)

    def _check_destination(self, key: QueueKey, source: int) -> None:
        if not self._knows(*key):
            raise Undeliverable(f"queue {key[1]} of topic {key[0]} is gone")
        if self._store.is_dropped(key[0], source):
            raise Undeliverable(f"topic {key[0]} was deleted, the one of that name is another")

    async def _give_up(self, source: int, reason: str) -> None:
        await self._close(source, UNDELIVERABLE, "")
        self.counts.undeliverable += 1
        log.error(
            "the delayed message %s is not delivered: %s",
            encode_offset_id(self._store_host, source),
            reason,
        )

    # Cancelling.

    async def cancel(
        self, message_id: str, check: Callable[[str], None] = lambda _topic: None
    ) -> None:
        """Take a message back; on return that is as durable as the store promises.

        Cancelling this call is safe; the message may have been taken back all the same.

        Args:
            message_id: offsetMsgId of the record in which it waits, or waited first.
            check: told the topic that the message is for, "" when its record does not say, before
                anything is done or told of it; what it raises is the answer.

        Raises:
            InvalidArgument: it is no such id.
            MessageNotFound: no delayed message was stored there, or it is too long ago.
            DelayedSettled: it was delivered or cancelled before.
            RockoonError: the store takes nothing now.
        """
        try:
            where = decode_offset_id(message_id)
        except ValueError as failure:
            raise InvalidArgument(reason=str(failure)) from failure
        self._take_in(*self._now())
        source = self._rolled.now(where.physical_offset)
        if not self._are_pending([source]):
            self._raise_completed(where, message_id, check)
        record = self._record(source)
        if where.store_host not in self._hosts_of(where.physical_offset, record):
            raise MessageNotFound(position=message_id)
        check(topic_of(record))
        placed = await self._close(source, CANCELLED, unique_id_of(record), message_id)
        self.counts.cancelled += 1
        if placed.durable is not None and (refusal := await placed.durable) is not None:
            raise refusal

    def _hosts_of(self, first: int, record: Record) -> set[bytes]:
        """The addresses under which a message that waits in `record` may be known.

        Other brokers have records at the same offsets, and are asked for the same ids.
        """
        hosts = {record.store_host}
        if first != record.physical_offset:
            # The record that its producer was told of may be older than this broker's address.
            with contextlib.suppress(UnknownOffset):
                hosts.add(self._record(first).store_host)
        return hosts

    def _raise_completed(
        self, where: OffsetMessageId, message_id: str, check: Callable[[str], None]
    ) -> None:
        try:
            record = self._record(where.physical_offset)
        except UnknownOffset as failure:
            raise MessageNotFound(position=message_id) from failure
        key = record.topic.decode(errors="replace"), record.queue_id
        if key not in self._delays_ms or record.store_host != where.store_host:
            raise MessageNotFound(position=message_id)
        check(topic_of(record))
        raise DelayedSettled(message_id=message_id)

    async def _close(
        self, source: int, why: str, unique_id: str, message_id: str | None = None
    ) -> AppendResult:
        """Append the record that says that a message will never be delivered."""

        def check() -> None:
            if not self._are_pending([source]):
                raise DelayedSettled(message_id=message_id or str(source))

        host = self._store.settings.store_host
        aside = closing(source, why, unique_id, self._clock.now_ms(), host)
        key = aside.topic, aside.queue_id
        placed = await self._append(key, [encode_record(aside.record, room=True)], check)
        self._complete([source])
        return placed

    # Retention.

    async def _roll(self, now_ms: int, monotonic_ms: int) -> bool:
        """Store once more some of what retention would delete; whether to go on at once."""
        if not self._expiring:
            self._expiring += expiring(
                self._store.log_files(),
                [self._pending_index.queue(*key) for key in self._delays_ms],
                reserved_ms=self._reserved_ms,
                now_ms=now_ms,
                monotonic_ms=monotonic_ms,
                count_max=EXPIRING_MAX,
            )
        count = min(len(self._expiring), DELIVERED_PER_TURN_MAX)
        for _ in range(count):
            source, due_ms = self._expiring.popleft()
            if self._are_pending([source]):
                await self._roll_one(source, due_ms)
        return count > 0

    async def _roll_one(self, source: int, due_ms: int) -> None:
        try:
            record = self._record(source)
        except UnknownOffset as failure:
            await self._give_up(source, str(failure))
            return

        def check() -> None:
            if not self._are_pending([source]):
                raise Busy(reason="a delayed message was cancelled meanwhile")

        aside = stored_once_more(record, due_ms)
        key = aside.topic, aside.queue_id
        placed = await self._append(key, [encode_record(aside.record, room=True)], check)
        self._rolled.follow(source, placed.first.first_physical_offset)
        self._complete([source])
        self.counts.rolled += 1

    def _count_lost(self) -> None:
        """Note what a disk too full for its contents has deleted before its time."""
        log_min = self._store.log_min_offset
        if log_min == self._log_min:
            return
        self._log_min = log_min
        gone = 0
        for key in self._delays_ms:
            lost = self._pending_index.queue(*key).take_gone(log_min)
            self._rolled.forget(lost.positions.tolist())
            gone += len(lost)
        if gone:
            self.counts.lost += gone
            log.error(
                "%d delayed messages were deleted before their time with the log up to offset %d: "
                "the disk is too small for what is kept",
                gone,
                log_min,
            )

    # Telling.

    def low_waters(self) -> dict[QueueKey, int]:
        """Queue offsets below which everything is completed."""
        return {key: self._pending_index.queue(*key).low_water for key in self._delays_ms}

    def pending_by_level(self) -> dict[int, int]:
        """How many messages wait, by level from 1; 0 for those with a time of their own."""
        return {
            level: len(self._pending_index.queue(*key))
            for level, key in ((_level(key), key) for key in self._delays_ms)
        }

    def next_due(self, count_max: int) -> list[Waiting]:
        """The messages that are due next, in that order; fewer if they are large."""
        now_ms, monotonic_ms = self._now()
        self._take_in(now_ms, monotonic_ms)
        found: list[tuple[int, int]] = []
        for key in self._delays_ms:
            pending = self._pending_index.queue(*key).pending()
            due_at_ms = due_times(pending, now_ms, monotonic_ms)
            first = np.argsort(due_at_ms, kind="stable")[:count_max]
            found += zip(due_at_ms[first].tolist(), pending.positions[first].tolist(), strict=True)
        waiting: list[Waiting] = []
        size = 0
        for due_ms, source in sorted(found)[:count_max]:
            if size >= LISTED_BYTES_MAX:
                break
            try:
                record = self._record(source)
                size += len(record.body)
                topic, queue_id = destination(record)
            except (UnknownOffset, Undeliverable):
                continue
            name = encode_offset_id(record.store_host, self._rolled.first(source))
            waiting.append(
                Waiting(
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
        # What a wrong reading calls due cannot be taken back.
        wall_ms = self._appends.store_clock.now_ms()
        return wall_ms, int(self._clock.monotonic_seconds() * 1000)

    def _take_in(self, now_ms: int, monotonic_ms: int) -> None:
        for key, table in self._tables.items():
            while (found := self._pending_index.new_entries(key)) is not None:
                table.take_in(*found, now_ms, monotonic_ms)

    def _record(self, position: int) -> Record:
        return decode_record(self._store.read_at(position), check_crc=False)

    def _are_pending(self, positions: Sequence[int]) -> bool:
        """Whether all of some positions are of messages that wait."""
        return bool(self._which_wait(positions).all())

    def _which_wait(self, positions: ArrayLike) -> NDArray[np.bool_]:
        """Which of some positions are of messages that wait, bool[n]."""
        wanted = np.asarray(positions, np.int64)
        waits = np.zeros(len(wanted), np.bool_)
        for key in self._delays_ms:
            waits |= self._pending_index.queue(*key).are_pending(wanted)
        return waits

    def _complete(self, positions: Sequence[int]) -> int:
        self._rolled.forget(positions)
        return sum(self._pending_index.queue(*key).complete(positions) for key in self._delays_ms)

    async def _append(
        self,
        key: QueueKey,
        frames: Sequence[bytes],
        check: Callable[[], None],
    ) -> AppendResult:
        if not self._store.writable:
            raise StoreNotWritable(reason=self._store.not_writable_reason or "it is closed")
        return await self._appends.place(Batch.of_records(*key, frames), check)

    def _read_times(self, timer: TimerCheckpoint) -> None:
        """Learn the times of entries that RocketMQ wrote, which hold hashes of tags, and complete
        those that it delivered."""
        queue = self._pending_index.queue(*TIMED_KEY)
        pending = queue.pending()
        codes = pending.codes
        for index in np.flatnonzero(codes < DELIVER_TIME_MS_MIN).tolist():
            # A damaged record is met again when it is to be delivered.
            with contextlib.suppress(UnknownOffset):
                properties = self._record(int(pending.positions[index])).properties
                codes[index] = timer_deliver_ms(properties) or codes[index]
        queue.revise(codes, pending.deadlines_ms)
        done = (pending.offsets < timer.known_below) & (codes <= timer.delivered_until_ms)
        queue.complete(pending.positions[done])

    def _note_rolled(
        self, chunk: LogChunk, indices: NDArray[np.int64], sources: NDArray[np.int64]
    ) -> None:
        records = chunk.records
        if TIMER_TOPIC.encode() not in records.topics:
            return
        number = records.topics.index(TIMER_TOPIC.encode())
        for index, source in zip(indices.tolist(), sources.tolist(), strict=True):
            if records.topic_numbers[index] == number and records.queue_ids[index] == TIMED_QUEUE:
                self._rolled.follow(source, int(records.physical_offsets[index]))


def _level(key: QueueKey) -> int:
    return key[1] + 1 if key[0] == SCHEDULE_TOPIC else 0


def topic_of(record: Record) -> str:
    """The topic that a message waits for; "" when its record does not say."""
    try:
        return destination(record)[0]
    except Undeliverable:
        return ""
