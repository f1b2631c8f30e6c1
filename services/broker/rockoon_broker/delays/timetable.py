"""Timetable of delayed messages: which entries are due. Pure: both clocks' times are arguments.

An entry is due when the wall clock reaches its deliver time, or when its delay at arrival has
passed by a monotonic clock. If the wall clock is set forward, only entries due by that clock are
early; if it is set back, no entry waits longer than its delay. Deliver times in entries are not
changed: a machine may start with a clock that is behind and correct it a moment later, and then not
everything may be due.

Only entries due within the next seconds are kept sorted. After these seconds all
entries are scanned again, which costs about two milliseconds per million entries every ten seconds
and no memory beyond the queue's.
"""

import numpy as np
from numpy.typing import NDArray

from rockoon_broker.pending.pending_queue import Pending, PendingQueue
from rockoon_format.consume_queue import EntryArray
from rockoon_format.delay_levels import DELIVER_TIME_MS_MIN

NEAR_MS = 10_000
FOUND_MAX = 4096
"""Due entries are collected in portions of this size and returned in smaller ones."""
NEVER_MS = 2**63 - 1
_NONE = np.zeros(0, np.int64)


class Timetable:
    """Due times of one queue; only it, and the code that completes entries, changes the queue.

    Args:
        queue: waiting entries; their codes are deliver times in epoch milliseconds.
        delay_ms_max: maximum wait by the monotonic clock, whatever the deliver time: the wall
            clock may have been set back since that was computed.
    """

    def __init__(self, queue: PendingQueue, delay_ms_max: int) -> None:
        self._queue = queue
        self._delay_ms_max = delay_ms_max
        self._near = queue.pending(0)
        # Entries that were due at the last search and are not returned yet.
        self._found = self._near
        # `_near` holds all entries due until these times, by either clock.
        self._near_until_ms = -1
        self._near_until_monotonic_ms = -1

    def resume(self, now_ms: int, monotonic_ms: int) -> None:
        """Set the due times of entries that the queue already has at a start."""
        pending = self._queue.pending()
        codes, deadlines_ms = self._times(pending.codes, now_ms, monotonic_ms)
        self._queue.revise(codes, deadlines_ms)
        self._near_until_ms = self._near_until_monotonic_ms = -1

    def add_entries(
        self, first_offset: int, entries: EntryArray, now_ms: int, monotonic_ms: int
    ) -> None:
        """Add new entries to the queue; see `PendingQueue.add_entries`."""
        codes, deadlines_ms = self._times(
            entries["tags_code"].astype(np.int64), now_ms, monotonic_ms
        )
        before = self._queue.next_offset
        self._queue.add_entries(first_offset, entries, codes=codes, deadlines_ms=deadlines_ms)
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
        """Return entries that are due and not completed, the most overdue first.

        Returned entries that are still not completed come again, after all others.

        Args:
            now_ms: epoch milliseconds.
            monotonic_ms: monotonic clock, milliseconds.

        Returns:
            The entries, with queue offsets set to 0.
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
        """Return the milliseconds until `due` may return entries; wrong once the wall clock is set.

        Never too many; too few if entries were completed, or when entries must be scanned again.
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
        """Collect due entries, up to FOUND_MAX."""
        if now_ms >= self._near_until_ms or monotonic_ms >= self._near_until_monotonic_ms:
            self._find_near(now_ms, monotonic_ms)
        while True:
            near = self._near
            due = (near.codes <= now_ms) | (near.deadlines_ms <= monotonic_ms)
            first = np.flatnonzero(due)[:FOUND_MAX]
            if len(first) == 0:
                return
            waiting = self._queue.are_pending(near.positions[first])
            if not waiting.all():
                # Remove completed entries, so that they are not found again and again.
                kept = np.delete(np.arange(len(near)), first[~waiting])
                self._near = _part(near, kept)
            if waiting.any():
                self._found = _part(near, first[waiting])
                return

    def _times(
        self, codes: NDArray[np.int64], now_ms: int, monotonic_ms: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Compute due times by the wall clock and by the monotonic one, limited by the maximum
        delay."""
        # An entry with a tag hash instead of a time is due now.
        due_ms = np.where(codes < DELIVER_TIME_MS_MIN, now_ms, codes)
        return due_ms, np.minimum(due_ms - now_ms, self._delay_ms_max) + monotonic_ms

    def _find_near(self, now_ms: int, monotonic_ms: int) -> None:
        self._near_until_ms = now_ms + NEAR_MS
        self._near_until_monotonic_ms = monotonic_ms + NEAR_MS
        near = self._queue.pending_until(self._near_until_ms, self._near_until_monotonic_ms)
        self._near = _in_order(near.positions, near.codes, near.deadlines_ms)


def due_times(entries: Pending, now_ms: int, monotonic_ms: int) -> NDArray[np.int64]:
    """Return the time at which each entry becomes due by the first of both clocks, in epoch
    milliseconds. The result is wrong once the wall clock is set."""
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
    """Sort by time; entries with equal times keep their stored order."""
    order = np.argsort(codes, kind="stable")
    nowhere = np.zeros(len(order), np.int64)
    return Pending(nowhere, positions[order], codes[order], deadlines_ms[order])
