"""Half messages over an open store: taken, asked about, given up when nobody ends them.

What is kept beside the log is worked out of it again, so after any end of the process nothing is
committed twice and nothing is forgotten. How a half message ends is in ends.py.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rockoon_broker.append import AppendResult, Appends
from rockoon_broker.clock import Clock
from rockoon_broker.pending.due_work import PAUSE_SECONDS, DueWork
from rockoon_broker.pending.pending_index import PendingIndex
from rockoon_broker.store.log.batch import Batch
from rockoon_broker.store.store import Store
from rockoon_broker.transactions.asking import Asking
from rockoon_broker.transactions.check_book import CheckBook, CheckRules, WaitingHalf
from rockoon_broker.transactions.ends import CheckQueue, Ends
from rockoon_broker.transactions.half_messages import (
    HALF_QUEUE_ID,
    HALF_TOPIC,
    HalfFacts,
    halves_of,
)
from rockoon_broker.transactions.half_queue import HalfMessageGone, HalfQueue
from rockoon_core.errors import Busy, PropertiesTooLarge, RockoonError
from rockoon_format.record import Record, RecordError, encode_record
from rockoon_format.resources import group_resource
from rockoon_runtime.access.callers import current_caller

log = logging.getLogger(__name__)

# From one turn to the next at least.
TURN_SECONDS = 0.1
# Work of one turn, so that a pile of half messages keeps nobody else waiting.
CHECKS_PER_TURN_MAX = 256
GIVE_UPS_PER_TURN_MAX = 64
READ_AHEAD_PER_TURN_MAX = 64

_CHECKS_NOTE = "transactions/checks"
_CHECKS_ROW = np.dtype([("position", "<i8"), ("checks", "<i4")])


@dataclass(frozen=True, slots=True)
class Listed:
    """A half message as a tool shows it."""

    half: WaitingHalf
    facts: HalfFacts
    store_timestamp_ms: int


class Transactions:
    """The transactions of one broker. Used by the event loop's thread alone.

    Make it before the pending index is loaded, and call `take_over` once after that.

    Args:
        store: open.
        appends: the way into it.
        pending_index: what is completed; the half messages' queue is added here.
        clock: ages by the wall clock, waiting by the monotonic one.
        rules: when to ask and when to give up.
        pending_max: half messages that may wait at once; further ones are refused.
        check_queue: whether a message may go to its queue now.

    Attributes:
        asking: the producers' streams.
        ends: what ends half messages.
        work: asks, gives up, tells RocketMQ's readers. To be rung when half messages were stored or
            deleted.
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
        self._clock = clock
        self._pending_max = pending_max
        self.work = DueWork("transactions", TURN_SECONDS, self._step, self._pause_seconds)
        self._halves = HalfQueue(store, appends, pending_index)
        self._book = CheckBook(rules, self.work.ring)
        self.asking = Asking(self._book, self._halves, clock)
        self.ends = Ends(
            store,
            appends,
            self._halves,
            self._book,
            clock,
            check_queue=check_queue,
            news=self.work.ring,
        )
        self._checks_kept: dict[int, int] = {}
        pending_index.add_note(_CHECKS_NOTE, self._write_checks, self._read_checks)
        self.ends.keep_outcomes(pending_index)

    def __len__(self) -> int:
        """How many half messages wait."""
        return len(self._book)

    # Starting.

    def follow(self) -> None:
        """What waits was worked out of the log a little further. OSError: the disk."""
        self._halves.apply_ops()
        self._halves.read_ahead(READ_AHEAD_PER_TURN_MAX)

    def take_over(self) -> None:
        """Let the half messages that another process left wait for their end.

        Reads each of them; may be called in another thread while nobody else uses the store.

        Raises:
            OSError: the disk.
        """
        self._halves.take_over()
        # Ages by stored times: with a clock a day ahead, all transactions would exceed their limit.
        now, now_ms = self._clock.monotonic_seconds(), self._appends.store_clock.now_ms()
        pending = self._halves.pending()
        places = zip(pending.positions.tolist(), pending.offsets.tolist(), strict=True)
        for position, offset in places:
            try:
                stored_ms, facts = self._halves.told(position)
            except HalfMessageGone as failure:
                log.error("the half message at offset %d cannot be read: %s", position, failure)  # noqa: TRY400
                self._halves.records.complete([position])
                self.ends.counts.lost += 1
                continue
            self._wait_for(
                position,
                offset,
                facts,
                age_seconds=(now_ms - stored_ms) / 1000,
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

    # What is due.

    def _pause_seconds(self) -> float | None:
        """How long nothing is to be done if nothing happens; None when nothing is due ever."""
        due_at = [at for at in (self._book.next_due_at, self.ends.ops.due_at) if at is not None]
        return max(min(due_at) - self._clock.monotonic_seconds(), 0.0) if due_at else None

    async def _step(self) -> bool:
        now = self._clock.monotonic_seconds()
        self._halves.records.take_in()
        self._count_lost()
        for half in self._book.over_age(now, GIVE_UPS_PER_TURN_MAX):
            await self.ends.give_up(half)
        over: list[WaitingHalf] = []
        for half in self._book.take_due(now, CHECKS_PER_TURN_MAX):
            if self._book.is_over(half, now):
                # Should the log refuse, it is due again; else it is gone before that.
                self._book.put_off(half, now + PAUSE_SECONDS)
                over.append(half)
            else:
                self.asking.ask(half, now)
        for half in over:
            await self.ends.give_up(half)
        await self.ends.write_ops(now)
        # What was left for its number is due now, and so says `_pause_seconds`.
        return False

    # Ending.

    async def close(self) -> None:
        """Tell RocketMQ's readers what they have not been told, if the log takes it."""
        try:
            await self.ends.write_ops(self._clock.monotonic_seconds(), closing=True)
        except RockoonError as failure:
            log.info("%d ends are not told to RocketMQ's readers: %s", len(self.ends.ops), failure)

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
        for position in self._halves.records.take_gone():
            if self._book.remove(position) is None:
                continue
            self.ends.counts.lost += 1
            log.error(
                "the half message at offset %d was deleted before its transaction's end: the disk "
                "is too full",
                position,
            )

    # What the snapshot keeps beside the queue.

    def _write_checks(self) -> bytes:
        # Before this broker asks anybody, what the last one that did has left here.
        kept = np.fromiter(self._checks_kept, np.int64, len(self._checks_kept))
        waits = kept[self._halves.records.which_wait(kept)].tolist()
        checked = [(position, self._checks_kept[position]) for position in waits]
        checked += [(half.position, half.checks) for half in self._book if half.checks]
        return np.array(checked, _CHECKS_ROW).tobytes()

    def _read_checks(self, raw: bytes) -> None:
        rows = np.frombuffer(raw, _CHECKS_ROW)
        self._checks_kept = dict(
            zip(rows["position"].tolist(), rows["checks"].tolist(), strict=True)
        )
