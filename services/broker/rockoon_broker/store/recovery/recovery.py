"""Recovery: brings a store directory back to a known state after any kind of stop.

Steps, in this order:

1. Every file of the log must have a valid name and size; otherwise the start is refused and nothing
   is changed. Misfits among the ConsumeQueues are moved to `lost` and count as missing.
2. Find the boundary: a physical offset below which log and ConsumeQueues are known to be complete.
A
   matching recovery point provides it (checkpoint_files.py). If another broker used the store
   since, or there is no point, it is the start of the first file that the queues do not prove
   (proof.py). If the point reveals damage, it is the log's beginning: everything must be read.
3. ConsumeQueues keep only entries below the boundary.
4. Scan the log from the boundary to the first bytes that are not a whole record. That is its end:
   later files are removed, and the bytes after it are zeroed, durably, before any append.
   RocketMQ keeps these bytes; then newer, shorter records can end exactly where an old one
   begins, and the next recovery accepts the old one as the newest. Removed bytes are first copied
   to `lost`. If a record after the end is known to have been durable, the end is damage: the
   start is refused and the log is not changed.
5. Each scanned record is dispatched by the queue offset that it states.
6. Bytes after the boundary are not assumed to be on the disk: a failed sync may have ended the last
   process, and then the page cache holds data that was never written. Where the system allows, the
   pages are dropped before they are read; kept bytes are rewritten and synced before
   any reader sees them (`Disk.rewrite`).

So the work is proportional to the data after the boundary, and it can be repeated: after a crash
in the middle, the next start runs it again. RocketMQ's rules (CommitLog#recoverNormally,
#recoverAbnormally) trust the newest entry of any queue, or timestamps; a queue that lags behind
the others is then never repaired.

A power failure may persist unsynced pages in any order, so whole records may follow a torn one;
they were never acknowledged. Bytes below a known durable offset cannot be torn: if they are not a
record, they are damaged.
"""

import logging
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from rockoon_broker.store.errors import StoreDamaged, StoreLayoutError
from rockoon_broker.store.log.directory import contiguous, list_files
from rockoon_broker.store.log.epochs import Mark, Renewal, mark_of, renewals_among
from rockoon_broker.store.log.scan import LogScan, ScannedChunk
from rockoon_broker.store.queues.consume_queue import QueueKey
from rockoon_broker.store.queues.consume_queues import ConsumeQueues
from rockoon_broker.store.queues.dispatch import (
    Numbers,
    count_runs,
    dispatch_runs,
    empty_contradicted_queues,
    entry_runs,
    first_break,
    parted,
)
from rockoon_broker.store.queues.dropped_topics import DroppedTopics, PointState
from rockoon_broker.store.queues.queue_files import Misfit, find_misfits, move_misfits
from rockoon_broker.store.queues.queue_numbers import (
    read_first_mark,
    restore_next_offsets,
    skip_lost_offsets,
)
from rockoon_broker.store.recovery.checkpoint_files import (
    CHECKPOINT_FILE,
    Abort,
    AbortFile,
    free_markers,
    new_lineage,
    point_fits,
    read_checkpoint,
    read_recovery_point,
)
from rockoon_broker.store.recovery.cut import FILE as TRUNCATION_FILE
from rockoon_broker.store.recovery.cut import LOST_DIRECTORY, LogCut, TruncationFile, lost_bytes
from rockoon_broker.store.recovery.proof import LogFiles, ends_are_true, proven_end
from rockoon_broker.store.settings import StoreSettings
from rockoon_core.disk import Disk
from rockoon_format.batch import ScanEnd, scan
from rockoon_format.checkpoint import SAFETY_MARGIN_MS
from rockoon_format.file_names import offset_to_file_name
from rockoon_format.log_marks import LOG_TOPIC
from rockoon_format.record import HEAD_BYTES, record_heads
from rockoon_format.recovery_point import RECOVERY_POINT_FILE, RecoveryPoint

_WINDOW_BYTES = 4 << 20
# Maximum number of breaks to count past; the count is only for a message to the operator.
_BREAKS_MAX = 16


@dataclass(frozen=True, slots=True)
class KnownDurable:
    """The range of a log that was certainly on disk when the last broker process stopped."""

    end: int = 0
    """Everything below this physical offset is durable."""
    before_ms: int = 0
    """Every record with an earlier store time is durable."""


@dataclass(frozen=True, slots=True)
class LogDamage:
    """Damaged range of a log: bytes that were durable and are no longer a record."""

    position: int
    """Physical offset of the first byte that belongs to no record."""
    next_record: int
    """Physical offset of the first whole record after the damage."""


def find_damage(
    log: LogFiles, boundary: int, durable: KnownDurable, disk: Disk
) -> LogDamage | None:
    """Scan the log from `boundary` to the first bytes that are no record; return them if they are
    damage. Changes nothing.

    Args:
        boundary: physical offset at which a record starts.
        durable: a break is damage only if a durable record follows it.
    """
    if boundary >= durable.end and not durable.before_ms:
        return None
    before = (0, 0)
    walk = LogScan(log.directory, log.file_bytes, log.starts, disk, checksums=log.checksums)
    for chunk in walk.chunks(boundary):
        before = (chunk.base // log.file_bytes, int(chunk.records.store_timestamps_ms[-1]))
    next_start = next_record(log, walk.end, disk)
    if next_start is None:
        return None
    record = log.record(next_start)
    stored_ms = 0 if record is None else int(record.store_timestamps_ms[0])
    # A record older than its predecessor in the same file is a remain that another broker did
    # not erase after the end. A whole file is never a remain, and a later file may begin
    # with an earlier time.
    newest_ms = before[1] if before[0] == next_start // log.file_bytes else 0
    if next_start < durable.end or newest_ms <= stored_ms < durable.before_ms:
        return LogDamage(walk.end, next_start)
    # Its time may be wrong; then a later file with a right, earlier time proves it durable.
    for start in log.starts:
        first = log.record(start) if start > next_start else None
        if first is not None and int(first.store_timestamps_ms[0]) < durable.before_ms:
            return LogDamage(walk.end, next_start)
    return None


def count_records(log: LogFiles, walked: LogScan, disk: Disk) -> int:
    """Return the minimum number of whole records after the end of a scan, including records after
    damaged bytes."""
    count = 0
    # A record without its checksum is an incomplete write, even if its body is intact.
    torn = walked.stopped_by is ScanEnd.NO_CHECKSUM
    found = next_record(log, walked.end + torn, disk)
    for _ in range(_BREAKS_MAX):
        if found is None:
            break
        walk = LogScan(log.directory, log.file_bytes, log.starts, disk, checksums=log.checksums)
        for chunk in walk.chunks(found):
            count += chunk.records.count
        found = next_record(log, max(walk.end, found + 1), disk)
    return count


def next_record(log: LogFiles, position: int, disk: Disk) -> int | None:
    """Return the physical offset of the first whole record at or after `position`; None if none.

    A record counts only with matching size, body CRC and physical offset: a body may contain the
    bytes of a record, but their physical offset does not match.
    """
    for start in log.starts:
        if start + log.file_bytes <= position:
            continue
        for offset in _candidates(log, start, max(position - start, 0), disk):
            if log.record(offset) is not None:
                return offset
    return None


def _candidates(log: LogFiles, start: int, position: int, disk: Disk) -> Iterator[int]:
    """Yield physical offsets in one file at which a record header states that offset, ascending."""
    fd = disk.open_reading(log.path_of(start))
    try:
        # List all ranges before the first read, which would fill holes in the page cache.
        for first, last in list(disk.data_ranges(fd, position, log.file_bytes)):
            for at in range(first, last, _WINDOW_BYTES):
                head_start = max(at - HEAD_BYTES, position)
                count = min(_WINDOW_BYTES, last - at) + at - head_start
                window = disk.pread(fd, count, head_start)
                yield from record_heads(window, start + head_start)
    finally:
        disk.close(fd)


log = logging.getLogger(__name__)

LOG_DIRECTORY = "commitlog"
QUEUES_DIRECTORY = "consumequeue"
_OUTSIDE = "the recovery point is outside the CommitLog"
_TOPIC = LOG_TOPIC.encode()


class OwnRecords:
    """Records of the log's own topic (epoch marks and topic marks) found so far, in log order.

    Attributes:
        offsets: physical offsets of all these records.
        renewals: the records after which topics restart in new queues.
    """

    def __init__(self, directory: Path, file_bytes: int, disk: Disk) -> None:
        self._directory = directory
        self._file_bytes = file_bytes
        self._disk = disk
        self.offsets: list[int] = []
        self.renewals: list[Renewal] = []

    def add(self, chunk: ScannedChunk) -> list[Renewal]:
        """Add the records of the log's own topic in a chunk; return the renewals among them.

        Raises:
            StoreDamaged: a record cannot be decoded.
            OSError: the disk.
        """
        offsets = chunk.offsets_of(_TOPIC)
        if not offsets:
            return []
        self.offsets += offsets
        records = chunk.records
        positions = [offset - chunk.base for offset in offsets]
        sizes = records.sizes[np.searchsorted(records.offsets, positions)].tolist()
        found_at = [
            (position, self._mark_at(offset, size))
            for position, offset, size in zip(positions, offsets, sizes, strict=True)
        ]
        marks = [(position, mark) for position, mark in found_at if mark is not None]
        found = renewals_among(marks, records, chunk.base)
        self.renewals += found
        return found

    def _mark_at(self, offset: int, size: int) -> Mark | None:
        position = offset % self._file_bytes
        path = self._directory / offset_to_file_name(offset - position)
        fd = self._disk.open_reading(path)
        try:
            return mark_of(self._disk.pread(fd, size, position))
        except ValueError as error:
            raise StoreDamaged(path, position, f"a record of {LOG_TOPIC}: {error}") from error
        finally:
            self._disk.close(fd)


@dataclass(frozen=True)
class Recovery:
    starts: tuple[int, ...]
    """Start offsets of the remaining CommitLog files."""
    log_end: int
    """Physical offset after the last record."""
    dispatched_end: int
    """Physical offset up to which the queues list the log. It is `log_end`, unless a quorum decides
    which records are committed, or a topic restarts after it."""
    dispatched_ms: int
    """Store time of the newest record before `dispatched_end`; 0 if none is known."""
    store_timestamp_ms: int
    """Store time of the newest record; 0 if none is known."""
    lineage: bytes
    """Lineage (random id) with which this process writes recovery points."""
    was_clean: bool
    """Whether the previous run stopped cleanly."""
    boundary: int
    """Physical offset at which the scan began."""
    reason: str
    """Reason why the scan began at `boundary`."""
    records_scanned: int
    bytes_scanned: int
    bytes_cleared: int
    """Number of bytes after the log's end that were overwritten with zeros."""
    lost_files: tuple[Path, ...] = ()
    """Files in the directory `lost` with the bytes that this start removed from the log."""
    own_records: tuple[int, ...] = ()
    """Physical offsets of the scanned records of the log's own topic."""
    renewals: tuple[Renewal, ...] = ()
    """Renewals (records after which topics restart in new queues) found by the scan; the caller
    must apply them."""
    records_in_lost: int = 0
    """Number of whole records in `lost_files`; they may have been durable, but no file proves
    it."""
    lost_bytes: int = 0
    """Disk usage of the directory `lost` in bytes, with files of earlier starts."""


class Recoverer:
    """Recovers one store directory, once.

    Args:
        settings: store settings; the caller has locked the directory.
        queues: empty; loaded and repaired here.
        dropped: marks of deleted topics; adjusted to the log here.
        abort: written here before anything is changed.
        on_loss: called with the reason before records are cut that may have been durable;
            nothing else reports it later.
        by_quorum: records after the boundary may be uncommitted. They are kept and their
            offsets counted, but they are not listed (RocketMQ 6609).
    """

    def __init__(
        self,
        settings: StoreSettings,
        disk: Disk,
        queues: ConsumeQueues,
        dropped: DroppedTopics,
        abort: AbortFile,
        on_loss: Callable[[str], object],
        *,
        by_quorum: bool = False,
    ) -> None:
        self._by_quorum = by_quorum
        self._on_loss = on_loss
        self._root = settings.root
        self._log = settings.root / LOG_DIRECTORY
        self._file_bytes = settings.commit_log_file_bytes
        self._disk = disk
        self._queues = queues
        self._dropped = dropped
        self._abort = abort
        self._delay_levels_ms = settings.delay_levels_ms
        self._record_checksums = settings.record_checksums
        # Both are set once `abort` is read.
        self._are_checksums_ours = False
        self._checksums_from: int | None = None
        self._own = OwnRecords(self._log, self._file_bytes, disk)
        self._cut = LogCut(self._root, self._log, self._file_bytes, disk)

    def run(self) -> Recovery:
        """Recover the store directory; return the state of the recovered store.

        Raises:
            StoreLayoutError: files that do not fit the configuration; nothing was changed.
            StoreDamaged: durable records cannot be reached; the log was not changed.
            UnstorableTopic: the log has a record whose topic cannot have a queue.
        """
        starts, misfits = self._settle_layout()
        abort = self._abort.read()
        point = read_recovery_point(self._root)
        # After a failed sync, the page cache may hold pages of the last run that were never
        # written. Decisions must be based on the disk. A clean stop has synced everything.
        if abort is not None:
            self._drop_clean(starts, 0 if point is None else point.log_end)
        starts = self._truncate(starts, point)
        reason = self._why_not(point, abort, starts)
        durable = self._known_durable(point, abort, reason)
        # A RocketMQ broker that derives a message from another one may copy its checksum, and
        # checks only bodies.
        self._are_checksums_ours = not reason or (abort is not None and abort.lineage != b"")
        self._checksums_from = None if abort is None else abort.checksums_from
        log = self._log_files(starts)
        proven = starts[0] if starts else 0
        if reason and starts:
            # A point outside of the log means that files are missing or foreign: then ConsumeQueues
            # prove nothing, and everything is read.
            if reason != _OUTSIDE:
                proven = self._proven(log)
            self._refuse_damage(log, proven, durable)
        # A new lineage if the point is not trusted, so that the point can never match again, even
        # after a crash of this start.
        lineage = new_lineage() if reason or point is None else point.lineage
        self._abort.create(lineage, self._checksums_from)
        if not starts:
            self._report_loss(0, 0, durable)
            self._delete_queues()
            self._store_checksum_start(lineage, 0)
            return self._result(None, [], 0, 0, lineage, abort, "no CommitLog files", 0)
        if reason or point is None:
            boundary = self._load_proven(log, proven, durable)
        else:
            boundary = point.log_end
            reason = self._load_point(log, point, durable)
            if reason:
                boundary, lineage = starts[0], new_lineage()
                self._abort.create(lineage, self._checksums_from)
                self._load(boundary)
        told = self._restore_next_offsets(log)
        known_ms = 0 if reason or point is None else point.store_timestamp_ms
        walk, newest_ms, listed = self._walk(starts, boundary, known_ms, ours=not reason)
        if self._by_quorum:
            # Other copies may count the blank; without it the logs would differ.
            walk.end = max(walk.end, walk.closed_end)
        if reason:
            skip_lost_offsets(misfits, told, self._queues, starts[0], walk.end)
        # Before the cut, which removes them.
        records_behind = count_records(log, walk, self._disk)
        self._report_loss(walk.end, records_behind, durable)
        unwritten = None if abort is None else max(boundary, durable.end)
        # After the scan has written the queues: a crash in between leaves the log unchanged.
        starts, cleared = self._cut.cut(starts, walk.end, boundary, unwritten)
        self._dropped.fit_to_log(starts[0] if starts else 0, walk.end)
        self._store_checksum_start(lineage, walk.end)
        why = reason or ("clean stop" if abort is None else "recovery point")
        return replace(
            self._result(walk, starts, boundary, newest_ms, lineage, abort, why, cleared, listed),
            lost_files=tuple(self._cut.lost_files),
            records_in_lost=records_behind,
        )

    def _report_loss(self, end: int, records_behind: int, durable: KnownDurable) -> None:
        if end < durable.end:
            self._on_loss(f"the log ends at {end}, but was durable up to {durable.end}")
        elif records_behind:
            self._on_loss(f"{records_behind} whole records follow the log's end at {end}")

    def _settle_layout(self) -> tuple[list[int], list[Misfit]]:
        """Check the names and sizes of all files. Return the start offsets of the log's files, and
        the invalid queue files that were moved to `lost`.

        Raises:
            StoreLayoutError: files that do not fit the configuration; nothing was changed.
        """
        starts = list_files(self._log, self._file_bytes, self._disk, unfinished_last=True)
        whole = contiguous(starts, self._file_bytes)
        if whole < len(starts):
            missing = starts[0] + whole * self._file_bytes
            raise StoreLayoutError(f"{self._log}: the file for offset {missing} is missing")
        lost = self._root / LOST_DIRECTORY
        misfits = find_misfits(self._root / QUEUES_DIRECTORY, self._queues.file_bytes, self._disk)
        # Only after the checks: a layout error must leave everything unchanged.
        free_markers(self._root, lost, self._disk)
        move_misfits(misfits, lost, self._disk)
        return starts, misfits

    def _truncate(self, starts: list[int], point: RecoveryPoint | None) -> list[int]:
        """Truncate the log if the last process has decided it (cut.py); return the remaining
        files."""
        truncation = TruncationFile(self._root, self._disk)
        end = truncation.read()
        if end is None:
            return starts
        if self._abort.read() is None:
            # A half cut log must not look cleanly stopped to any broker.
            self._abort.create(new_lineage() if point is None else point.lineage)
        if point is not None and end < point.log_end:
            raise StoreDamaged(
                self._root / TRUNCATION_FILE,
                0,
                f"it cuts the log at {end}, below the committed offset {point.log_end}",
            )
        if starts and not self._is_empty(starts[0]):
            starts, _ = self._cut.cut(starts, end, end, None)
        else:
            starts = self._cut.move_beginning(starts, end)
        truncation.remove()
        return starts

    def _is_empty(self, start: int) -> bool:
        """Return whether the beginning of a CommitLog file contains no data."""
        fd = self._disk.open_reading(self._log / offset_to_file_name(start))
        try:
            return self._disk.pread(fd, 8, 0) == bytes(8)
        finally:
            self._disk.close(fd)

    def _log_files(self, starts: list[int]) -> LogFiles:
        return LogFiles(
            self._log,
            self._file_bytes,
            starts,
            self._disk,
            self._delay_levels_ms,
            checksums=self._are_checksums_ours,
        )

    def _load_proven(self, log: LogFiles, proven: int, durable: KnownDurable) -> int:
        """Load queues without a recovery point; return the boundary: `proven`, or the log's
        beginning."""
        self._load(proven)
        if proven == log.starts[0] or ends_are_true(log, self._queues):
            return proven
        self._refuse_damage(log, log.starts[0], durable)
        self._load(log.starts[0])
        return log.starts[0]

    def _load_point(self, log: LogFiles, point: RecoveryPoint, durable: KnownDurable) -> str:
        """Load queues up to a recovery point; return why the whole log must be scanned instead, or
        "". Raises StoreDamaged: see `run`."""
        self._load(point.log_end)
        missing = self._what_is_missing(point)
        if missing:
            self._refuse_damage(log, log.starts[0], durable)
        return missing

    def _drop_clean(self, starts: list[int], durable_end: int) -> None:
        """Drop cached pages that may not be on the disk, so that reads come from the disk."""
        for start in starts:
            if start + self._file_bytes > durable_end:
                fd = self._disk.open_reading(self._log / offset_to_file_name(start))
                try:
                    self._disk.drop_clean(fd)
                finally:
                    self._disk.close(fd)

    def _store_checksum_start(self, lineage: bytes, log_end: int) -> None:
        """Store the offset from which a record without a checksum is incomplete, for the next
        start.

        The first start of a series of unclean stops determines it.
        """
        since = None
        if self._record_checksums:
            before = self._checksums_from
            since = log_end if before is None else min(before, log_end)
        if since != self._checksums_from:
            self._abort.create(lineage, since)

    def _load(self, boundary: int) -> None:
        self._queues.load(boundary)
        self._drop_marked()

    def _restore_next_offsets(self, log: LogFiles) -> set[QueueKey]:
        """Advance queues to the offsets in the log's first record or a generation; must run before
        dispatch. Returns these queues."""
        start = log.starts[0]
        mark = read_first_mark(self._disk, log.path_of(start), self._file_bytes)
        told = {*self._dropped.generation_queues}
        if mark is not None:
            told |= restore_next_offsets(mark, start, self._queues, self._dropped.marks)
        return told

    def _proven(self, log: LogFiles) -> int:
        """Determine the boundary if there is no recovery point.

        Only if there is no sign of damage; with one, everything must be read.
        """
        checkpoint = read_checkpoint(self._root)
        queues = self._root / QUEUES_DIRECTORY
        return proven_end(log, queues, self._queues.file_bytes, checkpoint, self._disk)

    def _known_durable(
        self, point: RecoveryPoint | None, abort: Abort | None, reason: str
    ) -> KnownDurable:
        """Return the range of the log that is known to be durable, by the recovery point or by
        another file."""
        if point is not None and reason in ("", _OUTSIDE):
            return KnownDurable(end=point.log_end)
        checkpoint = read_checkpoint(self._root)
        if abort is None or abort.lineage:
            return KnownDurable(end=checkpoint.confirm_offset)
        # A RocketMQ broker crashed: its confirm offset may be ahead of the disk, its time not.
        return KnownDurable(before_ms=checkpoint.log_timestamp_ms - SAFETY_MARGIN_MS)

    def _refuse_damage(self, log: LogFiles, boundary: int, durable: KnownDurable) -> None:
        damage = find_damage(log, boundary, durable, self._disk)
        if damage is None:
            return
        position = damage.position % self._file_bytes
        raise StoreDamaged(
            log.path_of(damage.position - position),
            position,
            "the record there is damaged, but a durable record follows at offset "
            f"{damage.next_record}; nothing was changed. Restore the store from a copy, or abandon "
            f"all messages from there on: delete {CHECKPOINT_FILE} and {RECOVERY_POINT_FILE}; the "
            f"next start moves them to {self._root / LOST_DIRECTORY}",
        )

    def _walk(
        self, starts: list[int], boundary: int, newest_ms: int, *, ours: bool
    ) -> tuple[LogScan, int, tuple[int, int] | None]:
        """Scan the log from the boundary to its end and dispatch its records.

        Args:
            newest_ms: store time of the record before the boundary.
            ours: whether this store wrote everything after the boundary. Records of another
                broker are checked by that broker's rules.

        Returns the scan, the store time of the last kept record, and the listed end with its
        store time. The latter is None if all records are listed: no quorum decides what is
        committed, and no topic restarts. A restart is applied later, in log order.
        """
        walk = LogScan(
            self._log,
            self._file_bytes,
            starts,
            self._disk,
            checksums=self._are_checksums_ours,
            checksums_from=self._checksums_from,
            delay_levels_ms=self._delay_levels_ms,
        )
        listed = (boundary, newest_ms) if self._by_quorum else None
        for chunk in walk.chunks(boundary):
            for part, renewal in parted(chunk, self._own.add(chunk)):
                end = self._apply_part(part, newest_ms, starts, ours=ours, count=listed is not None)
                times_ms = part.records.store_timestamps_ms
                if end is not None:
                    walk.end, walk.closed_end = end, 0
                    times_ms = times_ms[part.records.offsets + part.base < end]
                newest_ms = int(times_ms[-1]) if len(times_ms) else newest_ms
                if end is not None:
                    return walk, newest_ms, listed
                if renewal is not None:
                    listed = listed or (renewal.first, newest_ms)
                    for topic in renewal.topics:
                        self._queues.restart_numbering(topic)
        return walk, newest_ms, listed

    def _apply_part(
        self, part: ScannedChunk, newest_ms: int, starts: list[int], *, ours: bool, count: bool
    ) -> int | None:
        """Dispatch the records of a chunk to their queues, or only count them; return the physical
        offset of the first record that does not continue its queue, or None."""
        end, marks = None, self._dropped.marks
        runs = list(entry_runs(part, marks))
        if ours:
            numbers = Numbers(self._queues, begins_anywhere=self._by_quorum and starts[0] > 0)
            end = first_break(part, runs, numbers, newest_ms, self._file_bytes)
        else:
            empty_contradicted_queues(part, self._queues, marks, starts[0])
        (count_runs if count else dispatch_runs)(runs, self._queues, end)
        return end

    def _why_not(self, point: RecoveryPoint | None, abort: Abort | None, starts: list[int]) -> str:
        """Return why the recovery point cannot be used; "" if no reason is known."""
        if point is None:
            return "no recovery point"
        if not point_fits(point, abort, read_checkpoint(self._root)):
            return "another broker used the store after the recovery point"
        if starts and not starts[0] <= point.log_end <= starts[-1] + self._file_bytes:
            return _OUTSIDE
        return ""

    def _what_is_missing(self, point: RecoveryPoint) -> str:
        """Return which durable data of the recovery point is missing; "" if none."""
        state = PointState(point.log_end, point.queue_count, point.entry_count)
        dropped = self._dropped.dropped_since(state)
        queues, entries = (point.queue_count - dropped.queues, point.entry_count - dropped.entries)
        found = (self._queues.stored_count, self._queues.entry_count)
        # More is wrong too: files of a backup or of another broker may have been added.
        if found != (queues, entries):
            return (
                f"{queues} queues with {entries} entries were durable, but "
                f"{found[0]} with {found[1]} exist"
            )
        if not dropped.queues and 0 <= point.first_count < self._queues.first_count:
            return "the durable beginning of a ConsumeQueue is missing"
        offset, size = self._queues.last_record()
        if size and not self._is_record(offset, size):
            return f"the durable record at {offset} is damaged"
        return ""

    def _is_record(self, offset: int, size: int) -> bool:
        start = offset - offset % self._file_bytes
        path = self._log / offset_to_file_name(start)
        if not path.exists():
            # Retention deleted the newest listed record; there is nothing to compare.
            return True
        fd = self._disk.open_reading(path)
        try:
            data = self._disk.pread(fd, size, offset - start)
        finally:
            self._disk.close(fd)
        return scan(data, 0, len(data)).position == size

    def _delete_queues(self) -> None:
        """Delete all queues of a store without a log, whose offsets restart at 0, as in
        RocketMQ."""
        queues = self._root / QUEUES_DIRECTORY
        if queues.is_dir():
            shutil.rmtree(queues)
            self._disk.sync_directory(self._root)
        self._dropped.fit_to_log(0, 0)

    def _drop_marked(self) -> None:
        """Finish topic deletions that a crash interrupted."""
        for topic, mark in self._dropped.marks.items():
            firsts = [self._queues.first_record(queue) for queue in self._queues.of_topic(topic)]
            if any(first < mark for first in firsts):
                self._queues.detach(topic)

    def _result(
        self,
        walk: LogScan | None,
        starts: list[int],
        boundary: int,
        newest_ms: int,
        lineage: bytes,
        abort: Abort | None,
        reason: str,
        cleared: int,
        listed: tuple[int, int] | None = None,
    ) -> Recovery:
        end = 0 if walk is None else walk.end
        dispatched_end, dispatched_ms = listed or (end, newest_ms)
        return Recovery(
            starts=tuple(starts),
            log_end=end,
            dispatched_end=dispatched_end,
            dispatched_ms=dispatched_ms,
            store_timestamp_ms=newest_ms,
            lineage=lineage,
            was_clean=abort is None,
            boundary=boundary,
            reason=reason,
            records_scanned=0 if walk is None else walk.records_scanned,
            bytes_scanned=0 if walk is None else walk.bytes_scanned,
            bytes_cleared=cleared,
            own_records=tuple(offset for offset in self._own.offsets if offset < end),
            renewals=tuple(each for each in self._own.renewals if each.end <= end),
            lost_bytes=lost_bytes(self._root),
        )
