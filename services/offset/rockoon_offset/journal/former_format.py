"""Conversion of a journal of the former format, which an offset service with one copy wrote.

    <generation>.journal    records since the snapshot of that generation
    <generation>.snapshot   state at the start of that journal; generation 1 has none

    file    = header frame*
    header  = magic 8s | generation u64 | first sequence u64 | CRC-32 u32        28 bytes
    frame   = magic u32 | payload bytes u32 | sequence u64 | records u32 | CRC-32 u32 | payload
                                                                                 24 bytes + payload
    payload = (bytes u32 | record)*

All numbers are little-endian. A checksum covers the header before it, and the payload. Each frame
has its own sync: the writer starts the next frame after the sync of the former frame has returned.
A frame without records is a mark: all bytes before it were synced. The newest frame of a journal is
followed by a mark, and the next frame overwrites the mark. A power cut may lose the mark.

So an invalid frame before a valid one is damage to acknowledged data. An invalid frame after a mark
is an unfinished write. If neither a mark precedes nor a valid frame follows an invalid frame, it is
either an unfinished write, or the newest frame: damaged, with a mark that a power cut lost.

`sequence` counts records over all files; a gap means that records are missing. The last record of a
snapshot is SNAPSHOT_END.
"""

import logging
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rockoon_core.disk import Disk
from rockoon_core.errors import StoreCorrupt
from rockoon_offset.journal import frames
from rockoon_offset.journal.frames import EpochPayload, FrameKind, LogFileHeader
from rockoon_offset.journal.journal_files import (
    RESERVE_FILE,
    generations,
    is_shortage,
    journal_path,
)
from rockoon_offset.progress.ledger import Ledger
from rockoon_offset.progress.records import decode, encode, level_of

log = logging.getLogger(__name__)

FILE_HEADER = struct.Struct("<8sQQ")
FRAME_HEADER = struct.Struct("<IIQI")
U32 = struct.Struct("<I")
JOURNAL_MAGIC = b"RKOJRNL1"
SNAPSHOT_MAGIC = b"RKOSNAP1"
FRAME_MAGIC = 0x464F4B52
FRAME_MAGIC_BYTES = U32.pack(FRAME_MAGIC)
FILE_HEADER_BYTES = FILE_HEADER.size + U32.size
FRAME_HEADER_BYTES = FRAME_HEADER.size + U32.size
SNAPSHOT_END = b'["end"]'

assert FILE_HEADER_BYTES == 28
assert FRAME_HEADER_BYTES == 24


def convert_journal(directory: Path, replica: str, disk: Disk, synced: int = 0) -> None:
    """Convert the journal in a directory if it has the former format.

    The state of the former journal becomes epoch 0 of the new one, from position 0 on. The new file
    appears completely or not at all. The former files are deleted after that, by this start or,
    after a crash, by the next one.

    Args:
        replica: id of the replica that the new file names as its writer.
        synced: position up to which a journal of the present format was synced here. If the
            converted journal would end before it, the former journal is refused.

    Raises:
        StoreCorrupt: the former journal cannot be read, or is older than the store; its files
            stay.
        OSError: the disk failed.
    """
    for leftover in directory.glob("*.new"):
        disk.unlink(leftover)
    journals, snapshots = generations(directory, "journal"), generations(directory, "snapshot")
    magics = {each: _magic_of(journal_path(directory, each)) for each in journals}
    if not snapshots and JOURNAL_MAGIC not in magics.values():
        return
    converted = [each for each in journals if magics[each] == frames.MAGIC]
    # The newest former file may be empty: the first write of its header did not finish.
    former = [each for each in journals if not converted or each < converted[0]]
    if not converted:
        _write_converted(directory, replica, disk, max([*journals, *snapshots]) + 1, synced)
    paths = [snapshot_path(directory, each) for each in snapshots]
    paths += [journal_path(directory, each) for each in former]
    log.info(
        "the journal in %s has the present format; deleting the files of the former format: %s",
        *(directory, ", ".join(path.name for path in paths)),
    )
    for path in paths:
        disk.unlink(path)
    disk.sync_directory(directory)


def _magic_of(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(len(JOURNAL_MAGIC))


def _write_converted(
    directory: Path, replica: str, disk: Disk, generation: int, synced: int
) -> None:
    for newest in generations(directory, "journal")[-1:]:
        # After a failed sync, the page cache may have frames that never reached the disk.
        fd = disk.open(journal_path(directory, newest))
        disk.drop_clean(fd)
        disk.close(fd)
    records = read_records(directory)
    path, content = journal_path(directory, generation), _first_file(generation, replica, records)
    end = len(content) - frames.FILE_HEADER_BYTES if records else 0
    if end < synced:
        raise StoreCorrupt(
            path=directory,
            reason="it has the former format, but this store has a newer journal, synced up to "
            f"{synced}; restore the whole directory of the store from one backup",
        )
    if not records:
        return
    try:
        disk.replace_file(path, content)
    except OSError as failure:
        if not is_shortage(failure):
            raise
        disk.unlink(directory / RESERVE_FILE)
        disk.replace_file(path, content)
    log.info("converted the journal in %s to the present format: %s", directory, path.name)


def _first_file(generation: int, replica: str, records: list[bytes]) -> bytes:
    ledger, level = Ledger(), 0
    for record in map(decode, records):
        level = level or level_of(record)
        ledger.apply(record)
    content = bytearray(frames.encode_header(LogFileHeader(generation, 0, 0)))
    first = frames.encode_epochs(EpochPayload(True, False, replica, ((0, 0),)))

    def add(kind: FrameKind, payload: bytes) -> None:
        content.extend(frames.encode(kind, len(content) - frames.FILE_HEADER_BYTES, 0, payload))

    add(FrameKind.EPOCH, first)
    # At the feature level of the former records: the former version may have to read the state.
    state = (encode(record, level) for record in ledger.snapshot())
    for payload in frames.state_payloads(state):
        add(FrameKind.STATE, payload)
    add(FrameKind.STATE_END, b"")
    return bytes(content)


# Reading. It never changes the directory.


class FormerFrame(NamedTuple):
    """A frame of a file, with the position after it."""

    end: int
    sequence: int
    records: list[bytes]


class FrameDamage(NamedTuple):
    """The first position of a file at which no valid frame begins."""

    position: int
    reason: str
    # True if a valid frame follows: the damage is no unfinished write.
    followed: bool


def snapshot_path(directory: Path, generation: int) -> Path:
    return directory / f"{generation:012}.snapshot"


def read_records(directory: Path) -> list[bytes]:
    """Return the records of the newest valid snapshot, and of the journals from its generation on.
    Raises StoreCorrupt: acknowledged records cannot be read; the text has file and position."""
    journals, snapshots = generations(directory, "journal"), generations(directory, "snapshot")
    records: list[bytes] = []
    sequence, generation, damaged = 0, 1, None
    # The former generation was kept until the next snapshot was complete. So a damaged snapshot
    # only costs time: more journals are read.
    for candidate in reversed(snapshots):
        try:
            records, sequence = read_snapshot(directory, candidate)
        except StoreCorrupt as failure:
            damaged = failure
            log.error("%s; reading the former generation instead", failure)  # noqa: TRY400
            continue
        generation = candidate
        break
    else:
        # Without a snapshot, only the first journal starts with an empty state.
        if damaged is not None and 1 not in journals:
            raise damaged
    # A snapshot, even a damaged one, proves that the journal of its generation existed.
    last = max([*journals, *snapshots])
    for number in range(generation, last + 1):
        more = read_journal(directory, number, sequence, newest=number == last)
        records += more
        sequence += len(more)
    for number, record in enumerate(records):
        try:
            decode(record)
        except (ValueError, TypeError, KeyError) as failure:
            reason = f"record {number} is invalid: {failure!r}"
            raise StoreCorrupt(path=directory, reason=reason) from failure
    return records


def read_snapshot(directory: Path, generation: int) -> tuple[list[bytes], int]:
    """Return a snapshot's records and its journal's first sequence. Raises StoreCorrupt."""
    path = snapshot_path(directory, generation)
    data = path.read_bytes()
    header = _read_file_header(data, SNAPSHOT_MAGIC)
    if header is None or header[0] != generation:
        raise StoreCorrupt(path=path, reason="its header is not valid")
    records: list[bytes] = []
    for item in read_frames(data, 0):
        if isinstance(item, FrameDamage):
            raise StoreCorrupt(path=path, reason=f"{item.reason} at byte {item.position}")
        records += item.records
    if not records or records.pop() != SNAPSHOT_END:
        raise StoreCorrupt(path=path, reason="its end is missing")
    return records, header[1]


def read_journal(directory: Path, generation: int, sequence: int, *, newest: bool) -> list[bytes]:
    """Return the records of one journal.

    Args:
        sequence: expected sequence of its first record.
        newest: no later journal exists, so that the file may end with an unfinished write.

    Raises:
        StoreCorrupt: acknowledged records cannot be read.
    """
    path = journal_path(directory, generation)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        # A snapshot gets its name only after its journal exists.
        raise StoreCorrupt(path=path, reason="the file is missing") from None
    header = _read_file_header(data, JOURNAL_MAGIC)
    if header is None:
        # The first write of the newest journal did not finish: it has no records.
        if newest and len(data) <= FILE_HEADER_BYTES:
            return []
        raise StoreCorrupt(path=path, reason="its header is not valid")
    if header != (generation, sequence):
        raise StoreCorrupt(
            path=path,
            reason=f"it begins at record {header[1]} of generation {header[0]}, expected "
            f"{sequence} of {generation}",
        )
    records: list[bytes] = []
    is_marked = True
    for item in read_frames(data, sequence):
        if isinstance(item, FrameDamage):
            if item.followed or not newest:
                raise StoreCorrupt(path=path, reason=f"{item.reason} at byte {item.position}")
            log.warning(
                "%s has an unfinished write at byte %d; %s",
                *(path, item.position),
                "its changes were not acknowledged"
                if is_marked
                else "or the newest progress, damaged after a power cut: then the commits of the "
                "last write are lost, and groups get those messages again",
            )
            break
        records += item.records
        is_marked = not item.records
    return records


def _read_file_header(data: bytes, magic: bytes) -> tuple[int, int] | None:
    """Return generation and first sequence; None if the header is damaged or of another kind."""
    if len(data) < FILE_HEADER_BYTES:
        return None
    found, generation, first_sequence = FILE_HEADER.unpack_from(data)
    (checksum,) = U32.unpack_from(data, FILE_HEADER.size)
    if found != magic or checksum != zlib.crc32(data[: FILE_HEADER.size]):
        return None
    return generation, first_sequence


def read_frame(data: bytes, start: int) -> FormerFrame | None:
    """Return the frame at `start`; None if it is invalid."""
    if len(data) - start < FRAME_HEADER_BYTES:
        return None
    magic, payload_bytes, sequence, count = FRAME_HEADER.unpack_from(data, start)
    begin = start + FRAME_HEADER_BYTES
    end = begin + payload_bytes
    if magic != FRAME_MAGIC or end > len(data):
        return None
    (checksum,) = U32.unpack_from(data, start + FRAME_HEADER.size)
    view = memoryview(data)
    head = zlib.crc32(view[start : start + FRAME_HEADER.size])
    if checksum != zlib.crc32(view[begin:end], head):
        return None
    records = list(frames.unpack(data[begin:end]))
    return FormerFrame(end, sequence, records) if len(records) == count else None


def read_frames(data: bytes, expected_sequence: int) -> Iterator[FormerFrame | FrameDamage]:
    """Yield the frames of a file after its header; the last item may be a FrameDamage."""
    position = FILE_HEADER_BYTES
    while position < len(data):
        found = read_frame(data, position)
        if found is None:
            followed = has_valid_frame_after(data, position)
            yield FrameDamage(position, "a frame fails its checksum", followed)
            return
        if found.sequence != expected_sequence:
            reason = f"records {expected_sequence} to {found.sequence - 1} are missing"
            yield FrameDamage(position, reason, followed=True)
            return
        yield found
        position, expected_sequence = found.end, found.sequence + len(found.records)


def has_valid_frame_after(data: bytes, position: int) -> bool:
    """True if a valid frame starts anywhere after `position`."""
    found = data.find(FRAME_MAGIC_BYTES, position + 1)
    while found >= 0:
        if read_frame(data, found) is not None:
            return True
        found = data.find(FRAME_MAGIC_BYTES, found + 1)
    return False
