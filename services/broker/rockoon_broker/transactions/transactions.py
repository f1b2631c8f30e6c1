"""Transactions on an open store: accepts half messages, asks about them, abandons old ones.

All state can be derived from the log. So however the process ends, no message is committed twice or
lost. Ends of half messages: ends.py.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rockoon_broker.append import AppendResult, Appends
from rockoon_broker.clock import Clock
from rockoon_broker.pending.pending_index import PendingIndex
from rockoon_broker.pending.pending_records import PAUSE_SECONDS, DueWork
from rockoon_broker.store.log.batch import AppendBatch
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
from rockoon_broker.transactions.half_queue import HalfMessageNotFound, HalfQueue
from rockoon_core.errors import Busy, PropertiesTooLarge, RockoonError
from rockoon_format.names import group_resource
from rockoon_format.record import Record, RecordError, encode_record
from rockoon_runtime.access.callers import current_caller

log = logging.getLogger(__name__)

# Minimum time between turns.
TURN_SECONDS = 0.1
# Limits of one turn, so that many half messages do not block other tasks.
CHECKS_PER_TURN_MAX = 256
GIVE_UPS_PER_TURN_MAX = 64
READ_AHEAD_PER_TURN_MAX = 64

_CHECKS_NOTE = "transactions/checks"
_CHECKS_ROW = np.dtype([("position", "<i8"), ("checks", "<i4")])


@dataclass(frozen=True, slots=True)
class ListedTransaction:
    """A half message in the list for operators."""

    half: WaitingHalf
    facts: HalfFacts
    store_timestamp_ms: int


class Transactions:
    """The transactions of one broker. Used only by the event loop's thread.

    Construct it before the pending index is loaded; call `resume` once after that.

    Args:
        pending_index: index of ended messages; this class adds the queue of half messages.
        clock: wall clock for ages, monotonic clock for waits.
        rules: when to ask producers, and when to abandon a half message.
        pending_max: maximum number of waiting half messages; more are refused; may be replaced.
        check_queue: raises if a message may not be sent to its queue now.

    Attributes:
        asking: the producers' streams.
        ends: commits and rolls back half messages.
        work: background task that asks producers, abandons half messages and writes op records.
            It must be woken when half messages were stored or deleted.
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
        self.pending_max = pending_max
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
        return len(self._book)

    def use_rules(self, rules: CheckRules) -> None:
        """Use other rules for the following checks."""
        self._book.use_rules(rules)

    # Starting.

    def follow(self) -> None:
        """Update the state after a follower has applied more of the log. Raises OSError: the
        disk."""
        self._halves.apply_ops()
        self._halves.read_ahead(READ_AHEAD_PER_TURN_MAX)

    def resume(self) -> None:
        """Continue with the half messages that an earlier process left open.

        Reads each of them; may run on another thread while no other code uses the store.

        Raises:
            OSError: the disk.
        """
        self._halves.resume()
        # The store clock, because a wall clock a day ahead would exceed all age limits.
        now, now_ms = self._clock.monotonic_seconds(), self._appends.store_clock.now_ms()
        pending = self._halves.pending()
        places = zip(pending.positions.tolist(), pending.offsets.tolist(), strict=True)
        for position, offset in places:
            try:
                stored_ms, facts = self._halves.pop_facts(position)
            except HalfMessageNotFound as failure:
                log.error("discarding the half message at offset %d: %s", position, failure)  # noqa: TRY400
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
            log.info("%d half messages are waiting for their transactions' end", len(self._book))

    # Half messages.

    async def append(self, batch: AppendBatch, check: Callable[[], None]) -> AppendResult:
        """Append half messages of one queue; see `Appends.append`.

        Raises:
            RockoonError: they are refused, or the store refuses appends; nothing was appended.
            NotPermitted: the caller may not send in the producer group that they name; its
                producers would be asked about messages that they have not sent.
        """
        halves = halves_of(batch)
        caller = current_caller()
        if caller is not None:
            for group in {facts.group for _, facts in halves}:
                caller.require("write", group_resource(group))
        encoded = [self._encoded(half, index) for index, (half, _) in enumerate(halves)]

        def check_all() -> None:
            check()
            if len(self._book) + len(halves) > self.pending_max:
                raise Busy(reason=f"{len(self._book)} half messages are already waiting")

        stored = AppendBatch.of_records(HALF_TOPIC, HALF_QUEUE_ID, encoded)
        placed = await self._appends.append(stored, check_all)
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
        """Return the seconds until the next check or op record is due; None if none is planned."""
        due_at = [at for at in (self._book.next_due_at, self.ends.ops.due_at) if at is not None]
        return max(min(due_at) - self._clock.monotonic_seconds(), 0.0) if due_at else None

    async def _step(self) -> bool:
        now = self._clock.monotonic_seconds()
        self._halves.records.add_entries()
        self._count_lost()
        for half in self._book.over_max_age(now, GIVE_UPS_PER_TURN_MAX):
            await self.ends.abandon(half)
        over: list[WaitingHalf] = []
        for half in self._book.pop_due(now, CHECKS_PER_TURN_MAX):
            if self._book.must_abandon(half, now):
                # If the log refuses, it is due again; otherwise it has ended by then.
                self._book.postpone(half, now + PAUSE_SECONDS)
                over.append(half)
            else:
                self.asking.ask(half, now)
        for half in over:
            await self.ends.abandon(half)
        await self.ends.write_ops(now)
        # If a limit has cut this turn, more is due now; `_pause_seconds` accounts for it.
        return False

    # Ending.

    async def close(self) -> None:
        """Append the remaining op records for RocketMQ, if the log accepts them."""
        try:
            await self.ends.write_ops(self._clock.monotonic_seconds(), closing=True)
        except RockoonError as failure:
            log.info("%d ends are not reported to RocketMQ: %s", len(self.ends.ops), failure)

    # For tools.

    def listed(self, count_max: int) -> list[ListedTransaction]:
        """Return the oldest waiting half messages for operators."""
        found: list[ListedTransaction] = []
        for half in self._book:
            if len(found) == count_max:
                break
            try:
                record, facts = self._halves.read(half.position)
            except HalfMessageNotFound:
                continue
            found.append(ListedTransaction(half, facts, record.store_timestamp_ms))
        return found

    # Inside.

    def _count_lost(self) -> None:
        for position in self._halves.records.complete_deleted():
            if self._book.remove(position) is None:
                continue
            self.ends.counts.lost += 1
            log.error(
                "the half message at offset %d was deleted before its transaction ended: the "
                "disk is too full",
                position,
            )

    # Additional data in the snapshot.

    def _write_checks(self) -> bytes:
        # Until this broker has asked, keep the counts left by the previous leader.
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
