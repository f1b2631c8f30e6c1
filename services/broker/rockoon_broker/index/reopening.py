"""Reopening of the index after a start: verifies its last file, and determines where to continue.

The units that the last file's header counts are read, and their hash chains are built again. The
links must be equal to those in the file, and the resulting slots are written back. So a torn or
damaged file is detected; it is deleted, and its keys are indexed again. Of full files only the
header and both ends are checked: they were synced before the next file was created. If these are
invalid, or the size is wrong, the file is deleted too (gaps.py). Unless the last stop was clean,
the last file is read even if it is full: a failed sync may have ended the process, and then its
header and slots may exist only in the page cache. They are rewritten.
"""

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np

from rockoon_broker.index.active_file import ActiveFile
from rockoon_broker.index.directory import (
    UNFINISHED_SUFFIX,
    IndexDirectory,
    StoredFile,
    read_whole,
)
from rockoon_broker.index.gaps import keys_of_last_record, offset_of_unit
from rockoon_format.index_entries import KeyEntries, Slots
from rockoon_format.index_file import UNIT, UNIT_BYTES, IndexHeader, unit_position

# Units per step, so that a step does not use the CPU for long.
UNITS_PER_STEP = 4096


@dataclass(frozen=True, slots=True)
class Resumption:
    """State from which indexing continues."""

    active: ActiveFile | None
    """Open file to which keys are added; None if there is no file, or the last one is full."""
    last: IndexHeader | None
    """Header of the last file that contains keys."""
    keys_indexed: int
    """Number of keys that are already indexed, of the record at `last.end_offset`."""


class Reopening:
    """Verifies and opens an index directory in steps; sets `result` at the end.

    Args:
        log_end: end of the log when the store was opened. A file beyond it has messages that
            a crash has lost.
        was_clean: whether the last stop was clean.
    """

    def __init__(self, directory: IndexDirectory, log_end: int, *, was_clean: bool = True) -> None:
        self._was_clean = was_clean
        self.result: Resumption | None = None
        self.removed: list[str] = []
        self._directory = directory
        self._log_end = log_end
        self._steps = self._work()

    def step(self) -> bool:
        """Run one step; return False after the last one. Raises OSError: the disk; start again with
        another object."""
        return next(self._steps, None) is not None

    def _work(self) -> Generator[bool, None, None]:
        directory = self._directory
        directory.move_away()
        if directory.path.is_dir():
            for path in directory.path.glob(f"*{UNFINISHED_SUFFIX}"):
                if path.is_file():
                    directory.disk.unlink(path)
        self.removed += directory.remove_resized()
        files = []
        for file in directory.files():
            if self._is_impossible(file):
                self._remove(file)
            else:
                files.append(file)
            yield True
        active = None
        suspect = not self._was_clean
        while files and (suspect or files[-1].keys < directory.shape.units - 1):
            active = yield from self._verified(files[-1])
            if active is not None:
                break
            self._remove(files.pop())
            suspect = False
        if active is not None:
            active = self._completed(active, suspect=suspect)
        self.result = Resumption(
            active=active,
            last=files[-1].header if files else None,
            keys_indexed=keys_of_last_record(files[::-1], directory),
        )

    def _is_impossible(self, file: StoredFile) -> bool:
        header = file.header
        return (
            file.keys == 0
            or header.next_unit > self._directory.shape.units
            or header.end_offset >= self._log_end
            or not 0 <= header.begin_offset <= header.end_offset
            or offset_of_unit(file, 1, self._directory) != header.begin_offset
            or offset_of_unit(file, file.keys, self._directory) != header.end_offset
        )

    def _remove(self, file: StoredFile) -> None:
        self._directory.remove(file.path)
        # After a crash a file may be empty, which needs no report.
        if file.header != IndexHeader():
            self.removed.append(file.path.name)

    def _verified(self, file: StoredFile) -> Generator[bool, None, ActiveFile | None]:
        """Open a file and build its hash chains again; return None if its units are invalid."""
        shape, disk = self._directory.shape, self._directory.disk
        slots = Slots(shape.slots)
        header = IndexHeader()
        fd = disk.open(file.path)
        try:
            while header.next_unit < file.header.next_unit:
                count = min(UNITS_PER_STEP, file.header.next_unit - header.next_unit)
                at = unit_position(shape.slots, header.next_unit)
                units = np.frombuffer(read_whole(disk, fd, count * UNIT_BYTES, at), UNIT)
                hashes, offsets = units["hash"].astype(np.int64), units["offset"].astype(np.int64)
                # Offsets are used instead of times, which units have only in seconds.
                linked = slots.put(header, KeyEntries(np.maximum(hashes, 0), offsets, offsets))
                if (
                    (hashes < 0).any()
                    or (np.diff(offsets, prepend=header.end_offset) < 0).any()
                    or (units["seconds"] < 0).any()
                    or (linked.units["previous"] != units["previous"]).any()
                ):
                    return None
                header = linked.header
                yield True
            found = (header.begin_offset, header.end_offset, header.slots_used)
            wanted = file.header
            if found != (wanted.begin_offset, wanted.end_offset, wanted.slots_used):
                return None
            # Units that were written but are not counted in the header.
            end = unit_position(shape.slots, header.next_unit)
            disk.write_zeros(fd, end, shape.file_bytes)
        finally:
            disk.close(fd)
        # The computed slots are those of the file, except for differences found next.
        slots.note_written()
        active = ActiveFile(file.path, shape, disk, file.header, slots)
        for _ in active.compare_slots():
            yield True
        return active

    def _completed(self, active: ActiveFile, *, suspect: bool) -> ActiveFile | None:
        """Write slots that differ; if the file is suspect, write header and slots again, so that
        they are durable. Return None if the file is full.

        The broker also writes slots when it stops. If the disk is full at that time, the index is
        already closed and its slots are missing on disk. RocketMQ does not compute them again.
        """
        try:
            if suspect:
                active.mark_unwritten()
            active.complete()
        except OSError:
            # A full disk refuses slots of a file that a former version has created: the file can
            # still be searched by the slots in memory.
            if suspect or active.sync_failed:
                active.close()
                if active.sync_failed:
                    self._directory.remove(active.path)
                raise
        if active.remaining:
            return active
        active.close()
        return None
