"""Half messages over an open store: taken, ended, asked about, given up.

Invariants:
1. A half message ends by one record in the log that names it, and by nothing else. What is kept
   beside the log is worked out of it again, so after any end of the process nothing is committed
   twice and nothing is forgotten.
2. From the append of that record to the note that the half message has ended there is no pause in
   between: two calls that end the same one cannot both append.
3. The end is answered when its record is as durable as `flush` says, and so is each repeat of it.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rockoon_broker.append import AppendResult, Appends
from rockoon_broker.clock import Clock
from rockoon_broker.pending.pending_index import PendingIndex
from rockoon_broker.store.errors import StoreError
from rockoon_broker.store.log.batch import Batch
from rockoon_broker.store.log.reading import LogChunk
from rockoon_broker.store.store import Store
from rockoon_broker.transactions.asking import Asking
from rockoon_broker.transactions.check_book import CheckBook, CheckRules, WaitingHalf
from rockoon_broker.transactions.half_messages import (
    GIVEN_UP_TOPIC,
    HALF_QUEUE_ID,
    HALF_TOPIC,
    OP_TOPIC,
    HalfFacts,
    committed_record,
    given_up_record,
    halves_of,
    op_record,
    rollback_record,
)
from rockoon_broker.transactions.half_queue import HalfMessageGone, HalfQueue
from rockoon_broker.transactions.op_book import OpBook
from rockoon_broker.transactions.outcomes import Ending, Outcome, Outcomes, outcome_of
from rockoon_core.errors import (
    Busy,
    NotReady,
    PropertiesTooLarge,
    RockoonError,
    TopicNotFound,
    TransactionEnded,
    TransactionNotFound,
)
from rockoon_format.columns import decode_columns
from rockoon_format.record import (
    Record,
    RecordError,
    encode_host,
    encode_record,
)
from rockoon_format.resources import group_resource
from rockoon_runtime.access.callers import current_caller
from rockoon_runtime.waking import Turns

log = logging.getLogger(__name__)

# From one turn to the next at least.
TURN_SECONDS = 0.1
# Work of one turn, so that a pile of half messages keeps nobody else waiting.
CHECKS_PER_TURN_MAX = 256
GIVE_UPS_PER_TURN_MAX = 64
ENDS_BYTES_MAX = 64 << 20
# When all producers of a group have their hands full, or the log takes nothing.
PAUSE_SECONDS = 1.0

_CHECKS_NOTE = "transactions/checks"
_OUTCOMES_NOTE = "transactions/outcomes"
_CHECKS_ROW = np.dtype([("position", "<i8"), ("checks", "<i4")])

_SAID = {
    Ending.COMMITTED: "it was committed",
    Ending.ROLLED_BACK: "it was rolled back",
    Ending.GIVEN_UP: "nobody ended it in time, so it was given up",
}

CheckQueue = Callable[[str, int], None]
"""Raises RockoonError when a message of a client may not be put into a queue."""


@dataclass(slots=True)
class TransactionCounts:
    """Since the process started."""

    committed: int = 0
    rolled_back: int = 0
    given_up: int = 0
    lost: int = 0


@dataclass(frozen=True, slots=True)
class Listed:
    """A half message as a tool shows it."""

    half: WaitingHalf
    facts: HalfFacts
    store_timestamp_ms: int


class _EndedMeanwhile(Exception):
    """While one call waited for room in the log, another ended the half message."""


class Transactions:
    """The transactions of one broker. Used by the event loop's thread alone.

    Make it before the pending index is loaded, and call `take_over` once after that.

    Args:
        store: open.
        appends: the way into it.
        pending index: what is completed; the half messages' queue is added here.
        clock: ages by the wall clock, waiting by the monotonic one.
        rules: when to ask and when to give up.
        pending_max: half messages that may wait at once; further ones are refused.
        check_queue: whether a message may go to its queue now.

    Attributes:
        asking: the producers' streams.
        counts: what has become of half messages.
    """

    def __init__(
        self,
        store: Store,
        appends: Appends,
        pending_index: PendingIndex,
        clock: Clock,
        *,
        rules: CheckRules,
        pending_max: int,
        check_queue: CheckQueue,
    ) -> None:
        self._store = store
        self._appends = appends
        self._halves = HalfQueue(store, pending_index)
        self._clock = clock
        self._pending_max = pending_max
        self._check_queue = check_queue
        self._host = encode_host(*store.settings.store_host)
        # Rung when there is news for the next turn: half messages, ends, producers, a shorter log.
        self.turns = Turns(TURN_SECONDS)
        self._book = CheckBook(rules, self.turns.ring)
        self._outcomes = Outcomes()
        self._ops = OpBook()
        self.asking = Asking(self._book, self._halves, clock)
        self._checks_kept: dict[int, int] = {}
        # Ends that no sync covers yet, by their half messages' positions.
        self._undurable: dict[int, asyncio.Future[RockoonError | None]] = {}
        # Of records that wait for room in the log: the request of an end is small, they are not.
        self._ends_bytes = 0
        self.counts = TransactionCounts()
        pending_index.add_note(_CHECKS_NOTE, self._write_checks, self._read_checks)
        pending_index.add_note(_OUTCOMES_NOTE, self._write_outcomes, self._read_outcomes)
        pending_index.add_named(self._note_ended)

    def __len__(self) -> int:
        """How many half messages wait."""
        return len(self._book)

    # Starting.

    def take_over(self, *, rebuilt: bool = False) -> None:
        """Let the half messages that an earlier process left wait for their end.

        Reads each of them; may be called in another thread while nobody else uses the store.

        Args:
            rebuilt: the pending index found no snapshot that it could use.

        Raises:
            OSError: the disk.
        """
        self._halves.apply_rocketmq(rebuilt=rebuilt)
        now, now_ms = self._clock.monotonic_seconds(), self._clock.now_ms()
        pending = self._halves.pending()
        places = zip(pending.positions.tolist(), pending.offsets.tolist(), strict=True)
        for position, offset in places:
            try:
                record, facts = self._halves.read(position)
            except HalfMessageGone as failure:
                log.error("the half message at offset %d cannot be read: %s", position, failure)  # noqa: TRY400
                self._halves.complete(position)
                self.counts.lost += 1
                continue
            self._wait_for(
                position,
                offset,
                facts,
                age_seconds=(now_ms - record.store_timestamp_ms) / 1000,
                checks=self._checks_kept.get(position, facts.checks),
                now=now,
            )
        self._checks_kept = {}
        if len(self._book):
            log.info("%d half messages wait for their transactions' end", len(self._book))

    # Half messages.

    async def place(self, batch: Batch, check: Callable[[], None]) -> AppendResult:
        """Put half messages of one queue into the log; see `Appends.place`.

        Raises:
            RockoonError: they are refused, or the store takes none; nothing was appended.
            NotPermitted: they name a producer group in which the caller may not send; its
                producers would be asked about what they have not sent.
        """
        halves = halves_of(batch)
        caller = current_caller()
        if caller is not None:
            for group in {facts.group for _, facts in halves}:
                caller.require("write", group_resource(group))
        encoded = [self._encoded(half, index) for index, (half, _) in enumerate(halves)]

        def check_all() -> None:
            check()
            if len(self._book) + len(halves) > self._pending_max:
                raise Busy(reason=f"{len(self._book)} half messages wait for their end")

        stored = Batch.of_records(HALF_TOPIC, HALF_QUEUE_ID, encoded)
        placed = await self._appends.place(stored, check_all)
        now = self._clock.monotonic_seconds()
        position = placed.first.first_physical_offset
        for index, (_, facts) in enumerate(halves):
            offset = placed.first.first_queue_offset + index
            self._wait_for(position, offset, facts, age_seconds=0, checks=0, now=now)
            position += len(encoded[index])
        return placed

    def _encoded(self, record: Record, index: int) -> bytes:
        try:
            return encode_record(record, room=True)
        except RecordError as failure:
            limit = self._store.settings.properties_bytes_max
            raise PropertiesTooLarge(index=index, limit=limit) from failure

    def _wait_for(
        self,
        position: int,
        offset: int,
        facts: HalfFacts,
        *,
        age_seconds: float,
        checks: int,
        now: float,
    ) -> None:
        self._book.add(
            position,
            offset,
            facts.group,
            age_seconds=age_seconds,
            immunity_seconds=facts.immunity_seconds,
            checks=checks,
            now=now,
        )

    # Ends.

    async def end(self, position: int, queue_offset: int, group: str, ending: Ending) -> Outcome:
        """End a half message, or find that it has ended so; returns when that is durable.

        Cancelling it is safe: the half message has ended, or it has not.

        Args:
            position, queue_offset: physical offset and queue offset of the half message.
            group: the producer group it was sent for.
            ending: COMMITTED or ROLLED_BACK.

        Raises:
            TransactionNotFound: no half message of that group is or was there.
            TransactionEnded: it has ended another way.
            RockoonError: the topic does not take the message, or the store does not take the
                record. The half message waits on.
        """
        while True:
            half = self._book.find(position)
            if half is None:
                return await self._repeated(position, queue_offset, group, ending)
            if (half.queue_offset, half.group) != (queue_offset, group):
                raise _not_found(position, group)
            if not self._halves.is_visible(position):
                # Its ConsumeQueue cannot be written now. "Not there" would be final.
                reason = "the half message cannot be read yet"
                raise NotReady(service="the broker", reason=reason)
            try:
                placed = await self._place_end(half, ending)
            except _EndedMeanwhile:
                continue
            outcome = self._ended(half, ending, placed)
            if ending is Ending.COMMITTED:
                self.counts.committed += 1
                self._note_op(half)
            else:
                self.counts.rolled_back += 1
            await self._durable(position)
            return outcome

    def note_unknown(self, position: int, queue_offset: int, group: str) -> None:
        """A producer was asked and does not know: it is asked again at the next check.

        Raises:
            TransactionNotFound: no half message of that group waits there.
        """
        half = self._book.find(position)
        if half is None or (half.queue_offset, half.group) != (queue_offset, group):
            raise _not_found(position, group)

    async def _place_end(self, half: WaitingHalf, ending: Ending) -> AppendResult:
        try:
            record, facts = self._halves.read(half.position)
        except HalfMessageGone as failure:
            raise _not_found(half.position, half.group) from failure
        if ending is Ending.COMMITTED:
            made = committed_record(record, facts)
        elif ending is Ending.ROLLED_BACK:
            made = rollback_record(
                half.queue_offset, half.position, self._host, self._clock.now_ms()
            )
        else:
            made = given_up_record(record)

        def check() -> None:
            if self._book.find(half.position) is not half:
                raise _EndedMeanwhile
            # Before the append: behind it nothing may fail.
            self._halves.take_in()
            if ending is Ending.COMMITTED:
                self._check_queue(facts.topic, facts.queue_id)
                if self._store.is_dropped(facts.topic, half.position):
                    reason = f"topic {facts.topic!r} was deleted, the one of that name is another"
                    raise TopicNotFound(reason, topic=facts.topic)

        topic, queue_id, frame = made.topic.decode(), made.queue_id, encode_record(made, room=True)
        if self._ends_bytes and self._ends_bytes + len(frame) > ENDS_BYTES_MAX:
            raise Busy(reason=f"{self._ends_bytes} bytes of ends wait for room in the log")
        self._ends_bytes += len(frame)
        try:
            return await self._appends.place(Batch.of_records(topic, queue_id, [frame]), check)
        finally:
            # Also when the call is cancelled while it waits.
            self._ends_bytes -= len(frame)

    def _ended(self, half: WaitingHalf, ending: Ending, placed: AppendResult) -> Outcome:
        """Note an end that was appended just now."""
        position = half.position
        self._book.remove(position)
        self._halves.complete(position)
        made = placed.first
        outcome = Outcome(
            ending,
            made.first_queue_offset if ending is Ending.COMMITTED else -1,
            made.first_physical_offset,
            made.store_timestamp_ms,
        )
        # Before the end is durable: a repeat finds the outcome, and waits for the same sync.
        self._outcomes.note(position, outcome)
        durable = placed.durable
        if durable is not None and not durable.done():
            self._undurable[position] = durable
            durable.add_done_callback(lambda _: self._undurable.pop(position, None))
        return outcome

    async def _repeated(
        self, position: int, queue_offset: int, group: str, ending: Ending
    ) -> Outcome:
        """Answer for a half message that does not wait."""
        try:
            record, facts = self._halves.read(position)
        except HalfMessageGone as failure:
            raise _not_found(position, group) from failure
        if (record.queue_offset, facts.group) != (queue_offset, group):
            raise _not_found(position, group)
        outcome = self._outcomes.find(position)
        if outcome is None:
            raise TransactionEnded(outcome="so long ago that nobody remembers how")
        if outcome.ending is not ending:
            raise TransactionEnded(outcome=_SAID[outcome.ending])
        await self._durable(position)
        return outcome

    async def _durable(self, position: int) -> None:
        durable = self._undurable.get(position)
        if durable is not None:
            # Others may wait for the same: one caller's end is not theirs.
            refusal = await asyncio.shield(durable)
            if refusal is not None:
                raise refusal

    # What is due.

    async def run(self) -> None:
        """Ask, give up, tell RocketMQ's readers, for as long as the broker runs."""
        while True:
            self.turns.begin()
            pause_seconds: float | None = 0.0
            try:
                await self._turn()
                pause_seconds = self._pause_seconds()
            except RockoonError as failure:
                # The store is full, or has failed; then the broker ends with the reason.
                log.info("transactions wait for the log: %s", failure)
                await asyncio.sleep(PAUSE_SECONDS)
            except (OSError, StoreError) as failure:
                log.warning("transactions wait for the disk: %s", failure)
                await asyncio.sleep(PAUSE_SECONDS)
            await self.turns.wait_next(pause_seconds)

    def _pause_seconds(self) -> float | None:
        """How long nothing is to be done if nothing happens; None when nothing is due ever."""
        due_at = [at for at in (self._book.next_due_at, self._ops.due_at) if at is not None]
        return max(min(due_at) - self._clock.monotonic_seconds(), 0.0) if due_at else None

    async def _turn(self) -> None:
        now = self._clock.monotonic_seconds()
        self._halves.take_in()
        self._count_lost()
        for half in self._book.over_age(now, GIVE_UPS_PER_TURN_MAX):
            await self._give_up(half)
        over: list[WaitingHalf] = []
        for half in self._book.take_due(now, CHECKS_PER_TURN_MAX):
            if self._book.is_over(half, now):
                # Should the log refuse, it is due again; else it is gone before that.
                self._book.put_off(half, now + PAUSE_SECONDS)
                over.append(half)
            else:
                self.asking.ask(half, now)
        for half in over:
            await self._give_up(half)
        await self._write_ops(now)

    async def _give_up(self, half: WaitingHalf) -> None:
        if not self._halves.is_visible(half.position):
            # Not durable, or not in its ConsumeQueue yet: to look for it now is to miss it.
            return
        try:
            placed = await self._place_end(half, Ending.GIVEN_UP)
        except _EndedMeanwhile:
            return
        except TransactionNotFound:
            if self._book.remove(half.position) is not None:
                self._halves.complete(half.position)
                self.counts.lost += 1
                log.error("the half message at offset %d is damaged", half.position)  # noqa: TRY400
            return
        self._ended(half, Ending.GIVEN_UP, placed)
        self._note_op(half)
        self.counts.given_up += 1
        log.warning(
            "nobody of producer group %s has said what becomes of the half message at offset %d, "
            "asked %d times: it is moved to %s",
            half.group,
            half.position,
            half.checks,
            GIVEN_UP_TOPIC,
        )

    def _note_op(self, half: WaitingHalf) -> None:
        self._ops.note(half.queue_offset, self._clock.monotonic_seconds())
        self.turns.ring()

    async def _write_ops(self, now: float, *, closing: bool = False) -> None:
        while offsets := self._ops.due(now, closing=closing):
            record = op_record(offsets, self._host, self._clock.now_ms())
            ops = Batch.of_records(OP_TOPIC, HALF_QUEUE_ID, [encode_record(record, room=True)])
            await self._appends.place(ops, _nothing)
            self._ops.written(len(offsets), now)

    # Ending.

    async def close(self) -> None:
        """Tell RocketMQ's readers what they have not been told, if the log takes it."""
        try:
            await self._write_ops(self._clock.monotonic_seconds(), closing=True)
        except RockoonError as failure:
            log.info("%d ends are not told to RocketMQ's readers: %s", len(self._ops), failure)

    # For tools.

    def listed(self, count_max: int) -> list[Listed]:
        """The oldest half messages that wait."""
        found: list[Listed] = []
        for half in self._book:
            if len(found) == count_max:
                break
            try:
                record, facts = self._halves.read(half.position)
            except HalfMessageGone:
                continue
            found.append(Listed(half, facts, record.store_timestamp_ms))
        return found

    # Inside.

    def _count_lost(self) -> None:
        for position in self._halves.take_gone():
            if self._book.remove(position) is None:
                continue
            self.counts.lost += 1
            log.error(
                "the half message at offset %d was deleted before its transaction's end: the disk "
                "is too full",
                position,
            )

    # What the snapshot keeps beside the queue.

    def _write_checks(self) -> bytes:
        checked = [(half.position, half.checks) for half in self._book if half.checks]
        return np.array(checked, _CHECKS_ROW).tobytes()

    def _read_checks(self, raw: bytes) -> None:
        rows = np.frombuffer(raw, _CHECKS_ROW)
        self._checks_kept = dict(
            zip(rows["position"].tolist(), rows["checks"].tolist(), strict=True)
        )

    def _write_outcomes(self) -> bytes:
        return self._outcomes.to_bytes()

    def _read_outcomes(self, raw: bytes) -> None:
        self._outcomes = Outcomes.from_bytes(raw)

    def _note_ended(
        self, chunk: LogChunk, indices: NDArray[np.int64], sources: NDArray[np.int64]
    ) -> None:
        """A start reads how half messages have ended since the snapshot."""
        columns = decode_columns(chunk.frames, chunk.lengths)
        for index, source in zip(indices.tolist(), sources.tolist(), strict=True):
            outcome = outcome_of(columns.record(index))
            if outcome is not None:
                self._outcomes.note(source, outcome)


def _not_found(position: int, group: str) -> TransactionNotFound:
    return TransactionNotFound(group=group, position=f"offset {position}")


def _nothing() -> None:
    """The broker's own topics are always writable."""
