"""Finds pending messages that retention would delete before they are due. Pure."""

import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from rockoon_broker.delays.timetable import due_times
from rockoon_broker.pending.pending_queue import PendingQueue
from rockoon_broker.store.retention.retention import LogFileAge


def expiring(
    files: Sequence[LogFileAge],
    queues: Iterable[PendingQueue],
    *,
    reserved_ms: int,
    now_ms: int,
    monotonic_ms: int,
    count_max: int,
) -> list[tuple[int, int]]:
    """Find some of the records that retention deletes before their messages are due.

    Only files older than half of the retention time are considered.

    Args:
        files: CommitLog files, oldest first.
        queues: queues of waiting messages.
        reserved_ms: age at which a file is deleted.
        now_ms, monotonic_ms: wall clock and monotonic clock.
        count_max: maximum number of results.

    Returns:
        (physical offset of the record, epoch milliseconds at which its message is due).
        (physical offset of the record, epoch milliseconds at which its message is due).
    """
    old = list(
        itertools.takewhile(lambda file: now_ms - file.newest_ms >= reserved_ms // 2, files[:-1])
    )
    if not old:
        return []
    starts = np.array([file.start for file in old])
    deleted_ms = np.array([max(file.newest_ms + reserved_ms, now_ms) for file in old])
    end = files[len(old)].start
    found: list[tuple[int, int]] = []
    for queue in queues:
        waiting = queue.pending_before(end)
        holder = np.maximum(np.searchsorted(starts, waiting.positions, side="right") - 1, 0)
        due_ms = due_times(waiting, now_ms, monotonic_ms)
        chosen = np.flatnonzero(due_ms >= deleted_ms[holder])[: count_max - len(found)]
        found += zip(waiting.positions[chosen].tolist(), due_ms[chosen].tolist(), strict=True)
    return found
