"""Appender: a batch is checked, numbered, stamped with its place and time, and written."""

from dataclasses import dataclass

import numpy as np

from rockoon_broker.store.log.batch import Batch
from rockoon_broker.store.log.commit_log import CommitLog
from rockoon_broker.store.log.time_runs import TimeRuns
from rockoon_broker.store.queues.consume_queue import ConsumeQueues
from rockoon_broker.store.queues.dispatch_queue import DispatchQueue, Undispatched
from rockoon_broker.store.recovery.recovery_points import RecoveryPoints
from rockoon_broker.store.settings import NO_LIMITS, StoreSettings
from rockoon_format.batch import (
    SYS_FLAGS_ALLOWED,
    check_batch,
    patch_batch,
    queue_entries,
    with_checksums,
)
from rockoon_format.record import TRANSACTION_COMMIT, encode_host

_FLAGS_MADE_HERE = SYS_FLAGS_ALLOWED | TRANSACTION_COMMIT


@dataclass(frozen=True, slots=True)
class Appended:
    """Where a batch went."""

    first_queue_offset: int
    first_physical_offset: int
    end_offset: int
    """Physical offset behind the batch: durable once `confirm` was called with this or more."""
    count: int
    store_timestamp_ms: int


class Appender:
    """Puts batches at the end of an open log; owned by the thread that owns the store.

    Args:
        settings: the store's.
        log, queues: open.
        runs: told of each batch; says when store times have to go back.
        points: without its cap they may not.
        undispatched: gets the entries of each batch.
    """

    def __init__(
        self,
        settings: StoreSettings,
        log: CommitLog,
        queues: ConsumeQueues,
        runs: TimeRuns,
        points: RecoveryPoints,
        undispatched: DispatchQueue,
    ) -> None:
        self._settings = settings
        self._store_host = encode_host(*settings.store_host)
        self._record_limits = settings.record_limits
        self._log = log
        self._queues = queues
        self._runs = runs
        self._points = points
        self._undispatched = undispatched

    def append(self, batch: Batch, now_ms: int) -> Appended:
        """See `Store.append`; whether the store takes anything is the caller's to know."""
        settings = self._settings
        frames = batch.frames
        layout = check_batch(
            frames,
            batch.sizes,
            topic=batch.topic.encode(),
            queue_id=batch.queue_id,
            **(NO_LIMITS if batch.internal else self._record_limits),
            sys_flags_allowed=_FLAGS_MADE_HERE if batch.internal else SYS_FLAGS_ALLOWED,
            sources_allowed=batch.internal,
            delay_levels_ms=settings.delay_levels_ms,
        )
        if settings.record_checksums:
            frames, layout = with_checksums(frames, layout)
        queue = self._queues.find_or_create(*batch.queue)
        begins_run = self._runs.is_behind(now_ms) and self._points.is_capped(now_ms)
        offset = self._log.place(layout.total_bytes, in_next_file=begins_run)
        stored_ms = now_ms if begins_run else max(now_ms, self._runs.newest_ms)
        buffer = np.frombuffer(bytearray(frames), np.uint8)
        first = queue.next_offset
        patch_batch(
            buffer,
            layout,
            first_queue_offset=first,
            first_physical_offset=offset,
            store_timestamp_ms=stored_ms,
            store_host=self._store_host,
        )
        self._log.write(offset, buffer)
        # Not before the write: a refused one uses up no numbers. Nothing below may refuse.
        queue.next_offset = first + layout.count
        self._runs.note(offset, stored_ms)
        if begins_run:
            self._points.lift_cap(offset)
        end = self._log.end
        entries = queue_entries(layout, offset, stored_ms)
        self._undispatched.add(Undispatched(queue, first, entries, end, stored_ms))
        return Appended(first, offset, end, layout.count, stored_ms)
