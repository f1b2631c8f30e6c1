"""Search for a key in index files, newest file first.

A file stores only the hash of a key, and times in seconds. So results are candidates: the caller
must read the messages and compare key and time.
"""

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from rockoon_broker.index.directory import IndexShape, StoredFile, read_whole
from rockoon_core.disk import Disk
from rockoon_format.index_file import (
    HEADER_BYTES,
    SLOT_BYTES,
    UNIT_BYTES,
    FoundUnit,
    IndexFileError,
    IndexHeader,
    unit_position,
    walk_chain,
)

CANDIDATES_MAX = 4096
# Maximum number of units per search, so that a key with millions of messages blocks no other query.
UNITS_WALKED_MAX = 100_000

_SLOT = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class KeySearch:
    """A search: a key and a range of store times."""

    key_hash: int
    """Hash of the key: `hashes.index_key_hash` of `topic#key`."""
    begin_ms: int
    """First store time of the range, epoch milliseconds; the range is inclusive."""
    end_ms: int
    offset_min: int = 0
    """Physical offset from which messages are returned."""


@dataclass(slots=True)
class KeyCandidates:
    """Result of a search: physical offsets of possible matches, and which files were not
    searched."""

    offsets: list[int] = field(default_factory=list)
    units_walked: int = 0
    gave_up: str = ""
    """Why the search ended early, as a sentence; empty if it was complete."""
    unserved: str = ""
    """Why an index file, or a part of one, was not searched, as a sentence; empty if all were."""

    def walk(
        self,
        wanted: KeySearch,
        file: StoredFile,
        newest: int,
        read_unit: Callable[[int], bytes],
        slots: int,
    ) -> None:
        """Add the matches in one hash chain of a file; if the chain is damaged, only those before
        the damage."""
        try:
            self._walk(
                wanted,
                walk_chain(file.header, newest, read_unit, key_hash=wanted.key_hash, slots=slots),
            )
        except IndexFileError as damage:
            self.unserved = self.unserved or (
                f"index file {file.path.name} is damaged ({damage}) and may lack messages: stop "
                "the broker and delete the file; the next start indexes its keys again"
            )

    def _walk(self, wanted: KeySearch, chain: Iterable[FoundUnit]) -> None:
        for unit in chain:
            # The chain goes backwards in the log.
            if unit.physical_offset < wanted.offset_min:
                return
            self.units_walked += 1
            if len(self.offsets) >= CANDIDATES_MAX or self.units_walked > UNITS_WALKED_MAX:
                self.gave_up = (
                    f"the key is too frequent: {self.units_walked - 1} entries were checked "
                    "and older ones remain; narrow the time"
                )
                return
            # Stored in seconds: the message may be up to 999 ms newer.
            if unit.stored_ms + 999 < wanted.begin_ms:
                return
            if unit.key_hash == wanted.key_hash and unit.stored_ms <= wanted.end_ms:
                self.offsets.append(unit.physical_offset)


def may_hold(header: IndexHeader, wanted: KeySearch) -> bool:
    """Return whether a file may have messages in the time range of a search."""
    return (
        header.next_unit > 1
        and wanted.offset_min <= header.end_offset
        and wanted.begin_ms <= header.end_timestamp_ms
        and wanted.end_ms >= header.begin_timestamp_ms
    )


def search_files(
    candidates: KeyCandidates,
    wanted: KeySearch,
    files: Iterable[StoredFile],
    shape: IndexShape,
    disk: Disk,
) -> None:
    """Search index files, newest first, and add the matches.

    Ignores files that have been deleted: their messages are no longer in the log.

    Raises:
        OSError: the disk.
    """
    newest_first = sorted(files, key=lambda file: file.header.end_offset, reverse=True)
    for file in newest_first:
        if candidates.gave_up:
            return
        if not may_hold(file.header, wanted):
            continue
        try:
            fd = disk.open_reading(file.path)
        except FileNotFoundError:
            continue
        try:
            at = HEADER_BYTES + wanted.key_hash % shape.slots * SLOT_BYTES
            (newest,) = _SLOT.unpack(read_whole(disk, fd, SLOT_BYTES, at))
            candidates.walk(wanted, file, newest, unit_reader(fd, shape, disk), shape.slots)
        finally:
            disk.close(fd)


def unit_reader(fd: int, shape: IndexShape, disk: Disk) -> Callable[[int], bytes]:
    """Return a function that reads a unit of an open index file by its number."""

    def read(unit: int) -> bytes:
        return read_whole(disk, fd, UNIT_BYTES, unit_position(shape.slots, unit))

    return read
