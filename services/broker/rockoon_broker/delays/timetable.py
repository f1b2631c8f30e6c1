"""Timetable of delayed messages: which entries are due. Pure: both clocks' times are given.

An entry is due when the wall clock says so, or when as much time has passed, by a clock that never
jumps, as lay ahead when the broker took it in. So a wall clock that is set forward brings early
only what it says is due, and one that is set back keeps nothing longer than its delay. The time
that an entry bears stays what it is: a machine that starts with its clock behind, and sets it right
a moment later, must not find everything due.

Only what is due within the next seconds is kept in order; the rest is looked through again when
those seconds are over. That costs about two milliseconds per million entries every ten seconds, and
no memory for each entry beyond the queue's.
"""

import numpy as np
from numpy.typing import NDArray

from rockoon_broker.pending.pending_queue import Pending, PendingQueue
from rockoon_format.consume_queue import EntryArray
from rockoon_format.delay_levels import DELIVER_TIME_MS_MIN

NEAR_MS = 10_000
FOUND_MAX = 4096
"""Due entries that are looked up at once and handed out in smaller portions."""
NEVER_MS = 2**63 - 1
_NONE = np.zeros(0, np.int64)


class Timetable:
    """The due times of one queue; its only writer besides whoever completes entries.

    Args:
        queue: what waits; its codes are deliver times in epoch milliseconds.
        delay_ms_max: no entry waits longer than this by the clock that never jumps, whatever time
            it bears: the other one may have been set back since that time was worked out.
    """

    def __init__(self, queue: PendingQueue, delay_ms_max: int) -> None:
        self._queue = queue
        self._delay_ms_max = delay_ms_max
        self._near = queue.pending(0)
        # Due when they were looked up, and not handed out yet.
        self._found = self._near
        # Entries due until then are in `_near`, by either clock.
        self._near_until_ms = -1
        self._near_until_monotonic_ms = -1

    def resume(self, now_ms: int, monotonic_ms: int) -> None:
        """Begin with what the queue holds already, after a start."""
        pending = self._queue.pending()
        codes, deadlines_ms = self._times(pending.codes, now_ms, monotonic_ms)
        self._queue.revise(codes, deadlines_ms)
        self._near_until_ms = self._near_until_monotonic_ms = -1

    def take_in(
        self, first_offset: int, entries: EntryArray, now_ms: int, monotonic_ms: int
    ) -> None:
        """Take new entries into the queue; see `PendingQueue.take_in`."""
        codes, deadlines_ms = self._times(
            entries["tags_code"].astype(np.int64), now_ms, monotonic_ms
        )
        before = self._queue.next_offset
        self._queue.take_in(first_offset, entries, codes=codes, deadlines_ms=deadlines_ms)
        soon = (codes <= self._near_until_ms) | (deadlines_ms <= self._near_until_monotonic_ms)
        soon &= np.arange(first_offset, first_offset + len(entries)) >= before
        if soon.any():
            positions = entries["offset"].astype(np.int64)[soon]
            self._near = _in_order(
                np.concatenate((self._near.positions, positions)),
                np.concatenate((self._near.codes, codes[soon])),
                np.concatenate((self._near.deadlines_ms, deadlines_ms[soon])),
            )

    def due(self, now_ms: int, monotonic_ms: int, count_max: int) -> Pending:
        """Entries that are due and not completed, the most overdue first.

        Those that were returned and are not completed then come again after the others.

        Args:
            now_ms: epoch milliseconds.
            monotonic_ms: milliseconds of a clock that never jumps.
            count_max: how many, at most.

        Returns:
            Their queue offsets are not given (0).
        """
        if len(self._queue) == 0:
            return _part(self._near, _NONE)
        while True:
            if len(self._found) == 0:
                self._find(now_ms, monotonic_ms)
            indices = np.arange(len(self._found))
            taken = _part(self._found, indices[:count_max])
            self._found = _part(self._found, indices[count_max:])
            waiting = self._queue.are_pending(taken.positions)
            if waiting.any() or len(taken) == 0:
                return _part(taken, np.flatnonzero(waiting))

    def next_due_ms(self, now_ms: int, monotonic_ms: int) -> int:
        """In how many milliseconds, if no clock is set, `due` may find something.

        Never too late; too early where entries were completed, or time comes to look further ahead.
        """
        if len(self._queue) == 0:
            return NEVER_MS
        if len(self._found):
            return 0
        near = self._near
        due_ms = min(
            int(near.codes.min(initial=self._near_until_ms)) - now_ms,
            int(near.deadlines_ms.min(initial=self._near_until_monotonic_ms)) - monotonic_ms,
        )
        return max(due_ms, 0)

    def _find(self, now_ms: int, monotonic_ms: int) -> None:
        """Look for what is due; some of it, if it is much."""
        if now_ms >= self._near_until_ms or monotonic_ms >= self._near_until_monotonic_ms:
            self._look_ahead(now_ms, monotonic_ms)
        while True:
            near = self._near
            due = (near.codes <= now_ms) | (near.deadlines_ms <= monotonic_ms)
            first = np.flatnonzero(due)[:FOUND_MAX]
            if len(first) == 0:
                return
            waiting = self._queue.are_pending(near.positions[first])
            if not waiting.all():
                # What was completed goes when it is met, or it would be met again and again.
                kept = np.delete(np.arange(len(near)), first[~waiting])
                self._near = _part(near, kept)
            if waiting.any():
                self._found = _part(near, first[waiting])
                return

    def _times(
        self, codes: NDArray[np.int64], now_ms: int, monotonic_ms: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Due times by the wall clock, and by the other one, not beyond the longest delay."""
        # What bears no time, but the hash of its tags, is due at once.
        due_ms = np.where(codes < DELIVER_TIME_MS_MIN, now_ms, codes)
        return due_ms, np.minimum(due_ms - now_ms, self._delay_ms_max) + monotonic_ms

    def _look_ahead(self, now_ms: int, monotonic_ms: int) -> None:
        self._near_until_ms = now_ms + NEAR_MS
        self._near_until_monotonic_ms = monotonic_ms + NEAR_MS
        near = self._queue.pending_until(self._near_until_ms, self._near_until_monotonic_ms)
        self._near = _in_order(near.positions, near.codes, near.deadlines_ms)


def due_times(entries: Pending, now_ms: int, monotonic_ms: int) -> NDArray[np.int64]:
    """When entries of a timetable will be due if no clock is set, in epoch milliseconds."""
    return np.minimum(entries.codes, entries.deadlines_ms - monotonic_ms + now_ms)


def _part(entries: Pending, indices: NDArray[np.int64]) -> Pending:
    return Pending(
        entries.offsets[indices],
        entries.positions[indices],
        entries.codes[indices],
        entries.deadlines_ms[indices],
    )


def _in_order(
    positions: NDArray[np.int64], codes: NDArray[np.int64], deadlines_ms: NDArray[np.int64]
) -> Pending:
    """By time; what is due together in the order in which it was stored."""
    order = np.argsort(codes, kind="stable")
    nowhere = np.zeros(len(order), np.int64)
    return Pending(nowhere, positions[order], codes[order], deadlines_ms[order])
