"""Gaps in the index: ranges of the log whose keys were in a lost index file, and their repair.

The ends of adjacent files show a possible gap; only the log shows whether keys are
missing, because messages without keys leave no trace in the index.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from rockoon_broker.index.active_file import ActiveFile
from rockoon_broker.index.directory import IndexDirectory, StoredFile, read_whole
from rockoon_broker.store.log.reading import LogChunk
from rockoon_format.index_entries import KeyEntries, index_entries
from rockoon_format.index_file import UNIT, UNIT_BYTES, IndexHeader, unit_position


@dataclass(frozen=True, slots=True)
class IndexGap:
    """A range of the log that is not indexed, between two index files or before the first one."""

    begin: int
    """Physical offset of the first record in the gap."""
    end: int
    """Physical offset of the last record in the gap, which is the first record of the file after
    it."""
    begin_indexed: int
    """Number of keys of the gap's first record that the file before the gap contains."""
    end_indexed: int
    """Number of keys of the gap's last record that the file after the gap contains."""
    before: StoredFile | None
    """Index file before the gap; None if the gap begins at the log's beginning."""
    behind: StoredFile

    @property
    def begin_ms(self) -> int:
        """Lower bound of store times in the gap, epoch milliseconds; valid if no time run begins in
        it."""
        return 0 if self.before is None else self.before.header.end_timestamp_ms

    @property
    def end_ms(self) -> int:
        """Upper bound of store times in the gap, epoch milliseconds; valid if no time run begins in
        it."""
        return self.behind.header.begin_timestamp_ms

    def missing(self, chunk: LogChunk) -> KeyEntries:
        """Return the keys that are missing in the gap, among the keys of a part of the log.

        Args:
            chunk: whole records; the first chunk begins at `begin`.
        """
        entries = index_entries(chunk.frames, chunk.records, chunk.start)
        offsets = entries.offsets
        low = int(np.searchsorted(offsets, self.begin))
        low += min(self.begin_indexed, int((offsets == self.begin).sum()))
        high = int(np.searchsorted(offsets, self.end, side="right"))
        high -= min(self.end_indexed, int((offsets == self.end).sum()))
        high = max(low, high)
        return KeyEntries(
            entries.hashes[low:high], offsets[low:high], entries.timestamps_ms[low:high]
        )


def gaps_between(
    files: Sequence[StoredFile], log_min_offset: int, directory: IndexDirectory
) -> list[IndexGap]:
    """Return the ranges in which keys may be missing, in log order, without deleted ranges.

    Args:
        files: all served files, each with keys.
        log_min_offset: beginning of the log, physical offset.

    Raises:
        OSError: the disk.
    """
    found: list[IndexGap] = []
    ordered = sorted(files, key=lambda file: (file.header.begin_offset, file.header.end_offset))
    reached: StoredFile | None = None
    for number, file in enumerate(ordered):
        header = file.header
        reach = -1 if reached is None else reached.header.end_offset
        if header.begin_offset > max(reach, log_min_offset):
            until = sorted(ordered[:number], key=lambda each: each.header.end_offset, reverse=True)
            found.append(
                IndexGap(
                    begin=max(reach, log_min_offset),
                    end=header.begin_offset,
                    begin_indexed=keys_of_last_record(until, directory)
                    if reach >= log_min_offset
                    else 0,
                    end_indexed=keys_of_first_record(ordered[number:], directory),
                    before=reached,
                    behind=file,
                )
            )
        if header.end_offset > reach:
            reached = file
    return found


def keys_of_last_record(newest_first: Sequence[StoredFile], directory: IndexDirectory) -> int:
    """Return the number of keys at the end of the index that belong to the last record. Raises
    OSError."""
    taken = 0
    for file in newest_first:
        for unit in range(file.keys, 0, -1):
            if offset_of_unit(file, unit, directory) != newest_first[0].header.end_offset:
                return taken
            taken += 1
    return taken


def keys_of_first_record(oldest_first: Sequence[StoredFile], directory: IndexDirectory) -> int:
    """Return the number of keys at the beginning of the index that belong to the first record.
    Raises OSError."""
    taken = 0
    for file in oldest_first:
        for unit in range(1, file.keys + 1):
            if offset_of_unit(file, unit, directory) != oldest_first[0].header.begin_offset:
                return taken
            taken += 1
    return taken


def offset_of_unit(file: StoredFile, unit: int, directory: IndexDirectory) -> int:
    """Return the physical offset that a unit of an index file contains. Raises OSError."""
    fd = directory.disk.open_reading(file.path)
    try:
        at = unit_position(directory.shape.slots, unit)
        raw = read_whole(directory.disk, fd, UNIT_BYTES, at)
    finally:
        directory.disk.close(fd)
    return int(np.frombuffer(raw, UNIT)["offset"][0])


class GapFiller:
    """Creates index files for the missing keys of a gap, from consecutive parts of the log.

    After a crash, the file has fewer keys or does not exist; the next start finds the rest of the
    gap.

    Attributes:
        position: physical offset up to which the gap is filled.
    """

    def __init__(self, gap: IndexGap, directory: IndexDirectory) -> None:
        self.gap = gap
        self.position = gap.begin
        self._directory = directory
        self._active: ActiveFile | None = None
        self._last_name = "" if gap.before is None else gap.before.path.name
        self._last: IndexHeader | None = None if gap.before is None else gap.before.header

    @property
    def is_done(self) -> bool:
        return self.position > self.gap.end

    def add(self, chunk: LogChunk) -> None:
        """Add the keys of a part of the log at `position`; the last part makes all durable.

        Raises:
            FileExistsError: no file name between those around the gap is free.
            OSError: the disk.
        """
        entries = self.gap.missing(chunk)
        while len(entries):
            if self._active is None:
                self._active = self._next_file(int(entries.timestamps_ms[0]))
            entries = entries.without_first(self._active.add(entries))
            if self._active.remaining == 0 or len(entries):
                self._seal()
        # If the log cannot be read any further, give up the rest.
        progress = chunk.next_offset > self.position
        self.position = chunk.next_offset if progress else self.gap.end + 1
        if self.is_done and self._active is not None:
            self._seal()

    def abandon(self) -> None:
        """Close and delete the unfinished file; if that fails, the next start deletes it."""
        active, self._active = self._active, None
        if active is not None:
            active.close()
            with suppress(OSError):
                self._directory.remove(active.path)

    def _next_file(self, first_ms: int) -> ActiveFile:
        if self._last is None:
            # The new files will cover the whole log, so older files of any shape are useless.
            self._directory.remove_unserved(self.gap.behind.path.name)
        path = self._directory.create_between(self._last_name, self.gap.behind.path.name, first_ms)
        self._last_name = path.name
        return ActiveFile.after(path, self._directory, self._last)

    def _seal(self) -> None:
        assert self._active is not None
        self._active.complete()
        self._last = self._active.header
        self._active.close()
        self._active = None
