"""Repair of damaged ConsumeQueue entries from the records in the log."""

import logging
from collections.abc import Sequence

from rockoon_broker.store.errors import StoreDamaged
from rockoon_broker.store.log.commit_log import CommitLog
from rockoon_broker.store.log.scan import LogScan
from rockoon_broker.store.queues.consume_queue import ConsumeQueue
from rockoon_broker.store.queues.consume_queues import ConsumeQueues
from rockoon_broker.store.queues.dispatch import entry_runs
from rockoon_broker.store.queues.dropped_topics import DroppedTopics
from rockoon_core.disk import Disk
from rockoon_format.batch import ScanEnd
from rockoon_format.consume_queue import FILLER_SIZE
from rockoon_format.delay_levels import DELAY_LEVELS_MS
from rockoon_format.frames import PREFIX, sliding
from rockoon_format.record import MAGIC_V1, MAGIC_V2

log = logging.getLogger(__name__)

# This blocks the owner's thread. Larger repairs are left to the next start.
SCAN_BYTES_MAX = 64 << 20
ENTRIES_MAX = 4096
# How many entries back to search for an intact one, from which the log is read.
_LOOK_BACK_MAX = 1024


class QueueRepair:
    """Repairs of an open log's queues; owned by the queues' thread.

    Args:
        dropped: marks of deleted topics, whose records are skipped.
        delay_levels_ms: delays of levels 1, 2, ... for the deliver times of delayed records.
    """

    def __init__(
        self,
        commit_log: CommitLog,
        queues: ConsumeQueues,
        dropped: DroppedTopics,
        disk: Disk,
        delay_levels_ms: Sequence[int] = DELAY_LEVELS_MS,
    ) -> None:
        self._delay_levels_ms = delay_levels_ms
        self._log = commit_log
        self._queues = queues
        self._dropped = dropped
        self._disk = disk

    def repair(self, queue: ConsumeQueue, offset: int) -> None:
        """Rewrite the entry at a queue offset, and following entries whose records are nearby.

        Raises:
            StoreDamaged: its record is damaged too, or was not found nearby.
            OSError: the disk.
        """
        self._check_cut(queue, offset)
        begin = at = self._after_last_good(queue, offset)
        while True:
            walk = LogScan(
                self._log.directory,
                self._log.file_bytes,
                [file.start for file in self._log.files],
                self._disk,
                delay_levels_ms=self._delay_levels_ms,
            )
            if self._rewrite_found(queue, offset, walk, at, begin + SCAN_BYTES_MAX):
                path, position = self._queues.place_of(queue, offset)
                log.warning(
                    "%s was damaged at byte %d, at message %d: rewritten from the log",
                    path,
                    position,
                    offset,
                )
                return
            at = self._after_damaged(walk, queue, offset)
            if not begin < at < begin + SCAN_BYTES_MAX:
                raise self._damage(queue, offset, walk)

    def _rewrite_found(
        self, queue: ConsumeQueue, offset: int, walk: LogScan, begin: int, end: int
    ) -> bool:
        """Rewrite entries of records between two log offsets; return whether `offset` is among
        them."""
        wanted_end = min(offset + ENTRIES_MAX, queue.max_offset)
        repaired = False
        for chunk in walk.chunks(begin):
            reached = offset
            for run in entry_runs(chunk, self._dropped.marks):
                if run.key != queue.key:
                    continue
                first = max(run.first_offset, offset)
                end = min(run.first_offset + len(run.entries), queue.max_offset)
                if first < end:
                    part = run.entries[first - run.first_offset : end - run.first_offset]
                    self._queues.rewrite(queue, first, part)
                    repaired |= first == offset
                    reached = end
            if reached >= wanted_end or walk.end >= end:
                break
        return repaired

    def _after_damaged(self, walk: LogScan, queue: ConsumeQueue, offset: int) -> int:
        """Return where to continue after another queue's damaged record; 0: cannot continue."""
        data = self._log.read(walk.end, PREFIX.itemsize)
        if walk.stopped_by is not ScanEnd.BAD_CRC or len(data) < PREFIX.itemsize:
            return 0
        head = sliding(data, PREFIX)[0]
        is_wanted = (int(head["queue_id"]), int(head["queue_offset"])) == (queue.queue_id, offset)
        # Its lengths add up to this size.
        return 0 if is_wanted else walk.end + int(head["size"])

    def _check_cut(self, queue: ConsumeQueue, offset: int) -> None:
        """Raise StoreDamaged if a CommitLog file was truncated before the record's end.

        Neighbouring entries would not reveal it: all lost records may be between them.
        """
        entries = self._queues.read(queue, offset, 1)
        if len(entries) == 0:
            return
        position, size = int(entries["offset"][0]), int(entries["size"][0])
        if self._log.min_offset <= position < self._log.end:
            end = self._log.cut_end(position)
            if end is not None and position + size > end:
                raise self._lost(queue, offset, position)

    def _lost(self, queue: ConsumeQueue, offset: int, position: int) -> StoreDamaged:
        which = f"message {offset} of queue {queue.queue_id} of {queue.topic}"
        reason = f"the record is damaged, so {which} is lost; readers can continue after it"
        file = self._log.file_at(position)
        return StoreDamaged(file.path, position - file.start, reason)

    def _damage(self, queue: ConsumeQueue, offset: int, walk: LogScan) -> StoreDamaged:
        ordinary = (ScanEnd.LIMIT, ScanEnd.END, ScanEnd.BLANK)
        if walk.end < self._log.end and walk.stopped_by not in ordinary:
            return self._lost(queue, offset, walk.end)
        which = f"message {offset} of queue {queue.queue_id} of {queue.topic}"
        path, position = self._queues.place_of(queue, offset)
        return StoreDamaged(
            path,
            position,
            f"cannot repair the entry of {which}: its record is not near its neighbours'. Stop the "
            f"broker and delete {path.parent}: the next start rebuilds it from the log",
        )

    def _after_last_good(self, queue: ConsumeQueue, offset: int) -> int:
        """Return the physical offset after the record of the last intact entry before `offset`."""
        lowest = self._queues.min_offset(queue, self._log.min_offset)
        for before in range(offset - 1, max(lowest, offset - _LOOK_BACK_MAX) - 1, -1):
            entries = self._queues.read(queue, before, 1)
            if len(entries) == 0 or entries["size"][0] == FILLER_SIZE:
                continue
            position, size = int(entries["offset"][0]), int(entries["size"][0])
            data = self._log.read(position, PREFIX.itemsize)
            if len(data) < PREFIX.itemsize:
                continue
            head = sliding(data, PREFIX)[0]
            found = (int(head["size"]), int(head["queue_id"]), int(head["queue_offset"]))
            if head["magic"] in (MAGIC_V1, MAGIC_V2) and found == (size, queue.queue_id, before):
                return position + size
        return self._log.min_offset
