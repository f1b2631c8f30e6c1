"""Ends of half messages: commit, rollback, abandonment, and replies to repeated calls.

Invariants:
1. A half message ends by exactly one record in the log that names it
   (pending_records.py). So two calls that end the same one cannot both append.
2. The broker acknowledges an end when its record is as durable as `flush` requires; the same holds
   for each repeated call.

Only the outcomes of the newest transactions are kept, for repeated calls. Of older transactions it
is known that they ended, but not how. Snapshot, each number little-endian; the last three locate
the committed message, else -1:

    half's position 8 | resolution 1 | queue offset 8 | position 8 | store time 8

Rockoon does not need op records: a commit is final once the committed record is in the log. A crash
may lose entries of the queue of op records. A RocketMQ broker that uses the store next then checks
those half messages once more.
Source: TransactionalMessageServiceImpl.TransactionalOpBatchService.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from rockoon_broker.append import AppendResult, Appends
from rockoon_broker.clock import Clock
from rockoon_broker.pending.pending_index import PendingIndex
from rockoon_broker.pending.pending_records import CompletedMeanwhile
from rockoon_broker.store.log.batch import AppendBatch
from rockoon_broker.store.log.reading import LogChunk
from rockoon_broker.store.store import Store
from rockoon_broker.transactions.check_book import CheckBook, WaitingHalf
from rockoon_broker.transactions.half_messages import (
    GIVEN_UP_TOPIC,
    HALF_QUEUE_ID,
    OP_BODY_BYTES_MAX,
    OP_SEPARATOR,
    OP_TOPIC,
    abandoned_record,
    committed_record,
    op_record,
    rollback_record,
)
from rockoon_broker.transactions.half_queue import HalfMessageNotFound, HalfQueue
from rockoon_core.errors import (
    Busy,
    NotReady,
    RockoonError,
    TopicNotFound,
    TransactionEnded,
    TransactionNotFound,
)
from rockoon_format.columns import decode_columns
from rockoon_format.record import (
    SYS_FLAG_TRANSACTION,
    TRANSACTION_COMMIT,
    Record,
    encode_host,
    encode_record,
)
from rockoon_format.scan import Scan

REMEMBERED_MAX = 65_536
# After a restart only calls that were open before it are repeated.
SNAPSHOT_MAX = 4096
_TOPICS_OF_ENDS = (OP_TOPIC.encode(), GIVEN_UP_TOPIC.encode())
_ROW = np.dtype(
    [
        ("half", "<i8"),
        ("ending", "<u1"),
        ("queue_offset", "<i8"),
        ("position", "<i8"),
        ("store_timestamp_ms", "<i8"),
    ]
)
assert _ROW.itemsize == 33


class TransactionEnding(IntEnum):
    """How a half message has ended."""

    COMMITTED = 1
    ROLLED_BACK = 2
    GIVEN_UP = 3


@dataclass(frozen=True, slots=True)
class TransactionOutcome:
    ending: TransactionEnding
    queue_offset: int = -1
    """Queue offset of the committed message; -1 without one."""
    position: int = -1
    """Physical offset of the record that ended the half message; -1 if unknown."""
    store_timestamp_ms: int = -1


def outcome_of(record: Record) -> TransactionOutcome | None:
    """Return the outcome that a stored record gives to the half message it names as its source.

    None if the record was made from another kind of record.
    """
    ending: TransactionEnding | None = None
    if record.sys_flag & SYS_FLAG_TRANSACTION == TRANSACTION_COMMIT:
        ending = TransactionEnding.COMMITTED
    elif record.topic == OP_TOPIC.encode():
        ending = TransactionEnding.ROLLED_BACK
    elif record.topic == GIVEN_UP_TOPIC.encode():
        ending = TransactionEnding.GIVEN_UP
    if ending is None:
        return None
    offset = record.queue_offset if ending is TransactionEnding.COMMITTED else -1
    return TransactionOutcome(ending, offset, record.physical_offset, record.store_timestamp_ms)


def may_be_ends(records: Scan) -> NDArray[np.bool_]:
    """Return which records of a part of the log may end a half message, bool[n]."""
    topics = [topic in _TOPICS_OF_ENDS for topic in records.topics]
    ends: NDArray[np.bool_] = np.array(topics, np.bool_)[records.topic_numbers]
    ends |= records.sys_flags & SYS_FLAG_TRANSACTION == TRANSACTION_COMMIT
    return ends


class Outcomes:
    """The newest outcomes, by the physical offset of the half message. Pure."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, TransactionOutcome] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def find(self, half_position: int) -> TransactionOutcome | None:
        return self._known.get(half_position)

    def add(self, half_position: int, outcome: TransactionOutcome) -> None:
        """Add an outcome; the oldest one may be discarded."""
        self._known[half_position] = outcome
        if len(self._known) > REMEMBERED_MAX:
            self._known.popitem(last=False)

    def to_bytes(self) -> bytes:
        """Encode the newest outcomes for the snapshot."""
        known = [
            (
                half,
                outcome.ending,
                outcome.queue_offset,
                outcome.position,
                outcome.store_timestamp_ms,
            )
            for half, outcome in self._known.items()
        ]
        return np.array(known[-SNAPSHOT_MAX:], _ROW).tobytes()

    @classmethod
    def from_bytes(cls, raw: bytes) -> "Outcomes":
        """Decode the result of `to_bytes`. Raises ValueError: the bytes are malformed."""
        outcomes = cls()
        for half, ending, queue_offset, position, stored_ms in np.frombuffer(raw, _ROW).tolist():
            outcomes.add(
                half,
                TransactionOutcome(TransactionEnding(ending), queue_offset, position, stored_ms),
            )
        return outcomes


WAIT_SECONDS_MAX = 3.0


class OpBook:
    """Collects queue offsets of ended half messages until they fill an op record, or have waited
    long enough.

    Pure; contains at most about one record of 4096 bytes, since the owner writes each full one.
    """

    def __init__(self) -> None:
        self._offsets: list[int] = []
        self._since = 0.0

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def due_at(self) -> float | None:
        """Time at which an op record is due even if it is not full; None without entries."""
        return self._since + WAIT_SECONDS_MAX if self._offsets else None

    def add(self, half_offset: int, now: float) -> None:
        """Add an ended half message; `now` is monotonic seconds."""
        if not self._offsets:
            self._since = now
        self._offsets.append(half_offset)

    def due(self, now: float, *, closing: bool = False) -> list[int]:
        """Return the queue offsets for one op record that is due; empty if none is due.

        They stay until `written` is called.
        """
        body_bytes = 0
        for count, offset in enumerate(self._offsets):
            body_bytes += len(str(offset)) + len(OP_SEPARATOR)
            if body_bytes > OP_BODY_BYTES_MAX:
                return self._offsets[:count]
        waited = self._offsets and now - self._since >= WAIT_SECONDS_MAX
        return list(self._offsets) if waited or closing else []

    def written(self, count: int, now: float) -> None:
        """Remove the first `count` queue offsets, because their op record was written."""
        del self._offsets[:count]
        self._since = now


log = logging.getLogger(__name__)

ENDS_BYTES_MAX = 64 << 20
# Instead of a half message's queue offset.
NOT_KNOWN = -1

_OUTCOMES_NOTE = "transactions/outcomes"

_SAID = {
    TransactionEnding.COMMITTED: "it was committed",
    TransactionEnding.ROLLED_BACK: "it was rolled back",
    TransactionEnding.GIVEN_UP: "it was abandoned because it was not ended in time",
}

CheckQueue = Callable[[str, int], None]
"""Type of a check that raises RockoonError if a client's message may not be sent to a queue."""


@dataclass(slots=True)
class TransactionCounts:
    """Numbers of ended half messages since the process started."""

    committed: int = 0
    rolled_back: int = 0
    given_up: int = 0
    lost: int = 0


class Ends:
    """Ends the half messages of one broker. Used only by the event loop's thread.

    Args:
        clock: for times of the broker's records; its monotonic time for delays of op records.
        check_queue: raises if a message may not be sent to its queue now.
        news: callback, run when an op record must be written soon.

    Attributes:
        counts: counts of ended half messages.
        ops: ends to be reported to RocketMQ in op records.
    """

    def __init__(
        self,
        store: Store,
        appends: Appends,
        halves: HalfQueue,
        book: CheckBook,
        clock: Clock,
        *,
        check_queue: CheckQueue,
        news: Callable[[], None],
    ) -> None:
        self._store = store
        self._appends = appends
        self._halves = halves
        self._book = book
        self._clock = clock
        self._check_queue = check_queue
        self._news = news
        self._host = encode_host(*store.settings.store_host)
        self._outcomes = Outcomes()
        # Ends without a sync yet, by the positions of their half messages.
        self._undurable: dict[int, asyncio.Future[RockoonError | None]] = {}
        # Size of records that wait for room in the log; requests of ends are small, records are
        # not.
        self._ends_bytes = 0
        self.ops = OpBook()
        self.counts = TransactionCounts()

    def keep_outcomes(self, pending_index: PendingIndex) -> None:
        """Keep outcomes of ended transactions in the snapshot of the index; call before it is
        loaded."""
        pending_index.add_note(_OUTCOMES_NOTE, self._write_outcomes, self._read_outcomes)
        pending_index.add_named(self._apply_ends)

    async def end(
        self, position: int, queue_offset: int, group: str, ending: TransactionEnding
    ) -> TransactionOutcome:
        """End a half message, or find that it has ended in this way; returns when that is durable.

        If cancelled, the half message may have ended or not.

        Args:
            position, queue_offset: physical offset and queue offset of the half message; NOT_KNOWN
                matches any queue offset.
            group: producer group of the sender.
            ending: COMMITTED or ROLLED_BACK.

        Raises:
            TransactionNotFound: there is no half message of that group, waiting or ended.
            TransactionEnded: it has ended in another way.
            RockoonError: the topic refuses the message, or the store refuses the
                record. The half message keeps waiting.
        """
        while True:
            half = self._book.find(position)
            if half is None:
                return await self._repeated(position, queue_offset, group, ending)
            if half.group != group or queue_offset not in (half.queue_offset, NOT_KNOWN):
                raise _not_found(position, group)
            if not self._halves.is_visible(position):
                # Its queue entry cannot be written now. "Not found" would be a final answer.
                reason = "the half message cannot be read yet"
                raise NotReady(service="the broker", reason=reason)
            try:
                placed = await self._append_end(half, ending)
            except CompletedMeanwhile as failure:
                if self._book.find(position) is half:
                    # The queue lacks its entry, which only a start rebuilds. Neither "ended" nor
                    # "not found" would be right, and a retry would loop forever.
                    raise NotReady(service="the broker", reason="its queue lacks it") from failure
                continue
            outcome = self._ended(half, ending, placed)
            if ending is TransactionEnding.COMMITTED:
                self.counts.committed += 1
                self._queue_op(half)
            else:
                self.counts.rolled_back += 1
            await self._durable(position)
            return outcome

    def check_waiting(self, position: int, queue_offset: int, group: str) -> None:
        """Handle a producer's answer "unknown": the half message is checked again later. Raises
        TransactionNotFound: the group has no waiting half message there."""
        half = self._book.find(position)
        if half is None or half.group != group:
            raise _not_found(position, group)
        if queue_offset not in (half.queue_offset, NOT_KNOWN):
            raise _not_found(position, group)

    async def _append_end(self, half: WaitingHalf, ending: TransactionEnding) -> AppendResult:
        try:
            record, facts = self._halves.read(half.position)
        except HalfMessageNotFound as failure:
            raise _not_found(half.position, half.group) from failure
        if ending is TransactionEnding.COMMITTED:
            made = committed_record(record, facts)
        elif ending is TransactionEnding.ROLLED_BACK:
            made = rollback_record(
                half.queue_offset, half.position, self._host, self._clock.now_ms()
            )
        else:
            made = abandoned_record(record)

        def check() -> None:
            if ending is TransactionEnding.COMMITTED:
                self._check_queue(facts.topic, facts.queue_id)
                if self._store.is_dropped(facts.topic, half.position):
                    reason = f"topic {facts.topic!r} was deleted; the present one was created later"
                    raise TopicNotFound(reason, topic=facts.topic)

        topic, queue_id, frame = made.topic.decode(), made.queue_id, encode_record(made, room=True)
        if self._ends_bytes and self._ends_bytes + len(frame) > ENDS_BYTES_MAX:
            raise Busy(reason=f"{self._ends_bytes} bytes of ends wait for room in the log")
        self._ends_bytes += len(frame)
        try:
            batch = AppendBatch.of_records(topic, queue_id, [frame])
            return await self._halves.records.complete_by(batch, [half.position], check)
        finally:
            # Also if the call is cancelled while it waits.
            self._ends_bytes -= len(frame)

    def _ended(
        self, half: WaitingHalf, ending: TransactionEnding, placed: AppendResult
    ) -> TransactionOutcome:
        """Update the state after the record of an end was appended."""
        position = half.position
        self._book.remove(position)
        made = placed.first
        outcome = TransactionOutcome(
            ending,
            made.first_queue_offset if ending is TransactionEnding.COMMITTED else -1,
            made.first_physical_offset,
            made.store_timestamp_ms,
        )
        # Before the end is durable: a repeated call finds the outcome and waits for the same sync.
        self._outcomes.add(position, outcome)
        durable = placed.durable
        if durable is not None and not durable.done():
            self._undurable[position] = durable
            durable.add_done_callback(lambda _: self._undurable.pop(position, None))
        return outcome

    async def _repeated(
        self, position: int, queue_offset: int, group: str, ending: TransactionEnding
    ) -> TransactionOutcome:
        """Reply to a call about a half message that has already ended."""
        try:
            record, facts = self._halves.read(position)
        except HalfMessageNotFound as failure:
            raise _not_found(position, group) from failure
        if facts.group != group or queue_offset not in (record.queue_offset, NOT_KNOWN):
            raise _not_found(position, group)
        outcome = self._outcomes.find(position)
        if outcome is None:
            raise TransactionEnded(outcome="too long ago to know how")
        if outcome.ending is not ending:
            raise TransactionEnded(outcome=_SAID[outcome.ending])
        await self._durable(position)
        return outcome

    async def _durable(self, position: int) -> None:
        durable = self._undurable.get(position)
        if durable is not None:
            # Shielded, because other callers may wait for the same future.
            refusal = await asyncio.shield(durable)
            if refusal is not None:
                raise refusal

    async def abandon(self, half: WaitingHalf) -> None:
        """Abandon a half message that was not ended in time: move it to a topic for operators.
        Raises RockoonError: the log refuses it now; the half message keeps waiting."""
        if not self._halves.is_visible(half.position):
            # Not durable or not listed yet; a search now would not find it.
            return
        try:
            placed = await self._append_end(half, TransactionEnding.GIVEN_UP)
        except CompletedMeanwhile:
            return
        except TransactionNotFound:
            if self._book.remove(half.position) is not None:
                self._halves.records.complete([half.position])
                self.counts.lost += 1
                log.error("the half message at offset %d is damaged", half.position)  # noqa: TRY400
            return
        self._ended(half, TransactionEnding.GIVEN_UP, placed)
        self._queue_op(half)
        self.counts.given_up += 1
        log.warning(
            "no producer of group %s has ended the half message at offset %d after %d checks: "
            "moving it to %s",
            half.group,
            half.position,
            half.checks,
            GIVEN_UP_TOPIC,
        )

    def _queue_op(self, half: WaitingHalf) -> None:
        self.ops.add(half.queue_offset, self._clock.monotonic_seconds())
        self._news()

    async def write_ops(self, now: float, *, closing: bool = False) -> None:
        """Append the op records that are due, for RocketMQ; with `closing` also later ones. Raises
        RockoonError: the log refuses them now."""
        while offsets := self.ops.due(now, closing=closing):
            record = op_record(offsets, self._host, self._clock.now_ms())
            ops = AppendBatch.of_records(
                OP_TOPIC, HALF_QUEUE_ID, [encode_record(record, room=True)]
            )
            await self._appends.append(ops, _nothing)
            self.ops.written(len(offsets), now)

    def _write_outcomes(self) -> bytes:
        return self._outcomes.to_bytes()

    def _read_outcomes(self, raw: bytes) -> None:
        self._outcomes = Outcomes.from_bytes(raw)

    def _apply_ends(
        self, chunk: LogChunk, indices: NDArray[np.int64], sources: NDArray[np.int64]
    ) -> None:
        """Record the outcomes of half messages that have ended by records in the applied part of
        the log."""
        ends = may_be_ends(chunk.records)[indices]
        indices, sources = indices[ends], sources[ends]
        if not len(indices):
            return
        columns = decode_columns(chunk.frames, chunk.lengths)
        for index, source in zip(indices.tolist(), sources.tolist(), strict=True):
            outcome = outcome_of(columns.record(index))
            if outcome is not None:
                self._outcomes.add(source, outcome)


def _not_found(position: int, group: str) -> TransactionNotFound:
    return TransactionNotFound(group=group, position=f"offset {position}")


def _nothing() -> None:
    """Always passes: the check for the broker's own topics, which are always writable."""
