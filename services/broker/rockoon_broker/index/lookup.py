"""Finding a key's messages in index files: where they may be, newest first.

What is found are candidates: a hash is all that a file knows of a key, and its times are cut to
the second. Whoever asks reads the messages and compares.
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
# Units of a chain that one search looks at, so that a key of millions keeps nobody waiting.
UNITS_WALKED_MAX = 100_000

_SLOT = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class Wanted:
    """A key and a time."""

    key_hash: int
    """`hashes.index_key_hash` of `topic#key`."""
    begin_ms: int
    """Store times, epoch milliseconds, inclusive."""
    end_ms: int
    offset_min: int = 0
    """Messages that start below this physical offset are not wanted."""


@dataclass(slots=True)
class Candidates:
    """Physical offsets that may be wanted, as far as the search got."""

    offsets: list[int] = field(default_factory=list)
    units_walked: int = 0
    gave_up: str = ""
    """Why the search ended early, in a sentence; empty if it did not."""
    unserved: str = ""
    """Why a file was left out, or a part of it, in a sentence; empty if none was."""

    def walk(
        self,
        wanted: Wanted,
        file: StoredFile,
        newest: int,
        read_unit: Callable[[int], bytes],
        slots: int,
    ) -> None:
        """Add what one chain of a file holds; of a damaged one what can be had, and say so."""
        try:
            self._walk(
                wanted,
                walk_chain(file.header, newest, read_unit, key_hash=wanted.key_hash, slots=slots),
            )
        except IndexFileError as damage:
            self.unserved = self.unserved or (
                f"index file {file.path.name} is damaged ({damage}) and may lack messages: delete "
                "it while the broker is stopped, and it is made again from the log"
            )

    def _walk(self, wanted: Wanted, chain: Iterable[FoundUnit]) -> None:
        for unit in chain:
            # The chain goes back in the log.
            if unit.physical_offset < wanted.offset_min:
                return
            self.units_walked += 1
            if len(self.offsets) >= CANDIDATES_MAX or self.units_walked > UNITS_WALKED_MAX:
                self.gave_up = (
                    f"the key is too frequent: {self.units_walked - 1} entries were looked at "
                    "and older ones follow; narrow the time"
                )
                return
            # Cut to the second: the message may be 999 ms younger than this says.
            if unit.stored_ms + 999 < wanted.begin_ms:
                return
            if unit.key_hash == wanted.key_hash and unit.stored_ms <= wanted.end_ms:
                self.offsets.append(unit.physical_offset)


def may_hold(header: IndexHeader, wanted: Wanted) -> bool:
    """Whether a file can have a message of the time and place wanted."""
    return (
        header.next_unit > 1
        and wanted.offset_min <= header.end_offset
        and wanted.begin_ms <= header.end_timestamp_ms
        and wanted.end_ms >= header.begin_timestamp_ms
    )


def search_files(
    candidates: Candidates,
    wanted: Wanted,
    files: Iterable[StoredFile],
    shape: IndexShape,
    disk: Disk,
) -> None:
    """Add what some files hold, the newest file first.

    A file that has gone meanwhile held nothing that the log still has.

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
    """Reads an open file's units by their numbers."""

    def read(unit: int) -> bytes:
        return read_whole(disk, fd, UNIT_BYTES, unit_position(shape.slots, unit))

    return read
