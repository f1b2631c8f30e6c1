"""Gaps in the index: stretches of the log whose keys a lost file held, and making that file again.

Where one file ends and where the next begins says that there may be a gap, the log between says
whether there is one: messages without keys leave no trace in the index.
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
class Gap:
    """What lies between two files, or between the log's beginning and the first file."""

    begin: int
    """Physical offset of its first record."""
    end: int
    """Physical offset of its last record, which is the first of the file behind the gap."""
    begin_taken: int
    """How many of the first record's keys are in the file before the gap: its first ones."""
    end_taken: int
    """How many of the last record's keys are in the file behind it: its last ones."""
    before: StoredFile | None
    """None: the log's beginning."""
    behind: StoredFile

    @property
    def begin_ms(self) -> int:
        """No message of the gap was stored before, if no time run begins in it; epoch ms."""
        return 0 if self.before is None else self.before.header.end_timestamp_ms

    @property
    def end_ms(self) -> int:
        """No message of the gap was stored later, likewise."""
        return self.behind.header.begin_timestamp_ms

    def missing(self, chunk: LogChunk) -> KeyEntries:
        """The keys of a piece of the log that belong into the gap.

        Args:
            chunk: of whole records; the first piece begins at `begin`.
        """
        entries = index_entries(chunk.frames, chunk.records, chunk.start)
        offsets = entries.offsets
        low = int(np.searchsorted(offsets, self.begin))
        low += min(self.begin_taken, int((offsets == self.begin).sum()))
        high = int(np.searchsorted(offsets, self.end, side="right"))
        high -= min(self.end_taken, int((offsets == self.end).sum()))
        high = max(low, high)
        return KeyEntries(
            entries.hashes[low:high], offsets[low:high], entries.timestamps_ms[low:high]
        )


def gaps_between(
    files: Sequence[StoredFile], log_min_offset: int, directory: IndexDirectory
) -> list[Gap]:
    """Where keys may be missing, in the log's order; what retention took is no gap.

    Args:
        files: all that are served, with keys each.
        log_min_offset: where the log begins, physical.
        directory: theirs.

    Raises:
        OSError: the disk.
    """
    found: list[Gap] = []
    ordered = sorted(files, key=lambda file: (file.header.begin_offset, file.header.end_offset))
    reached: StoredFile | None = None
    for number, file in enumerate(ordered):
        header = file.header
        reach = -1 if reached is None else reached.header.end_offset
        if header.begin_offset > max(reach, log_min_offset):
            until = sorted(ordered[:number], key=lambda each: each.header.end_offset, reverse=True)
            found.append(
                Gap(
                    begin=max(reach, log_min_offset),
                    end=header.begin_offset,
                    begin_taken=keys_of_last_record(until, directory)
                    if reach >= log_min_offset
                    else 0,
                    end_taken=keys_of_first_record(ordered[number:], directory),
                    before=reached,
                    behind=file,
                )
            )
        if header.end_offset > reach:
            reached = file
    return found


def keys_of_last_record(newest_first: Sequence[StoredFile], directory: IndexDirectory) -> int:
    """How many of the last keys are of one record, which may have more. Raises OSError."""
    taken = 0
    for file in newest_first:
        for unit in range(file.keys, 0, -1):
            if offset_of_unit(file, unit, directory) != newest_first[0].header.end_offset:
                return taken
            taken += 1
    return taken


def keys_of_first_record(oldest_first: Sequence[StoredFile], directory: IndexDirectory) -> int:
    """How many of the first keys are of one record, which may have more. Raises OSError."""
    taken = 0
    for file in oldest_first:
        for unit in range(1, file.keys + 1):
            if offset_of_unit(file, unit, directory) != oldest_first[0].header.begin_offset:
                return taken
            taken += 1
    return taken


def offset_of_unit(file: StoredFile, unit: int, directory: IndexDirectory) -> int:
    """The physical offset that a unit bears. Raises OSError."""
    fd = directory.disk.open_reading(file.path)
    try:
        at = unit_position(directory.shape.slots, unit)
        raw = read_whole(directory.disk, fd, UNIT_BYTES, at)
    finally:
        directory.disk.close(fd)
    return int(np.frombuffer(raw, UNIT)["offset"][0])


class GapFiller:
    """Makes the files of a gap again, from pieces of the log one after another.

    What a crash leaves of it is a file with fewer keys, or none: the next start finds the rest of
    the gap.

    Attributes:
        position: every record of the gap below this physical offset has been taken.
    """

    def __init__(self, gap: Gap, directory: IndexDirectory) -> None:
        self.gap = gap
        self.position = gap.begin
        self._directory = directory
        self._active: ActiveFile | None = None
        self._last_name = "" if gap.before is None else gap.before.path.name
        self._last: IndexHeader | None = None if gap.before is None else gap.before.header

    @property
    def is_done(self) -> bool:
        return self.position > self.gap.end

    def take(self, chunk: LogChunk) -> None:
        """Add the keys of the log's piece at `position`; the last one makes all durable.

        Raises:
            FileExistsError: no name is free between those of the files around the gap.
            OSError: the disk.
        """
        entries = self.gap.missing(chunk)
        while len(entries):
            if self._active is None:
                self._active = self._next_file(int(entries.timestamps_ms[0]))
            entries = entries.behind(self._active.add(entries))
            if self._active.remaining == 0 or len(entries):
                self._seal()
        # Where the log cannot be read any further there is nothing to be had.
        progress = chunk.next_offset > self.position
        self.position = chunk.next_offset if progress else self.gap.end + 1
        if self.is_done and self._active is not None:
            self._seal()

    def abandon(self) -> None:
        """Let go of the file that is not finished; if it cannot be deleted the next start does."""
        active, self._active = self._active, None
        if active is not None:
            active.close()
            with suppress(OSError):
                self._directory.remove(active.path)

    def _next_file(self, first_ms: int) -> ActiveFile:
        if self._last is None:
            # These will be all that the log has: none of an older name is of use, of any shape.
            self._directory.remove_unserved(self.gap.behind.path.name)
        path = self._directory.create_between(self._last_name, self.gap.behind.path.name, first_ms)
        self._last_name = path.name
        return ActiveFile.behind(path, self._directory, self._last)

    def _seal(self) -> None:
        assert self._active is not None
        self._active.checkpoint()
        self._last = self._active.header
        self._active.close()
        self._active = None
