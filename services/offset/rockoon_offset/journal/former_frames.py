"""Format of the files of a single-copy journal. Pure.

    file    = header frame*
    header  = magic 8s | generation u64 | first sequence u64 | CRC-32 u32        28 bytes
    frame   = magic u32 | payload bytes u32 | sequence u64 | records u32 | CRC-32 u32 | payload
                                                                                 24 bytes + payload
    payload = (bytes u32 | record)*

All numbers are little-endian. A checksum covers the header before it, and the payload. Each frame
has its own sync: the writer starts the next frame after the sync of the former frame has returned.
A frame without records is a mark: all bytes before it were synced. The newest frame of a journal is
followed by a mark, which is written after the sync and before callers are notified. The next frame
overwrites the mark. The mark is synced only when the journal is closed, so a power cut may lose it.

So an invalid frame before a valid one is damage to acknowledged data. An invalid frame after a mark
is an unfinished write. If neither a mark precedes nor a valid frame follows an invalid frame, it is
either an unfinished write, or the newest frame: damaged, with a mark that a power cut lost.

`sequence` counts records over all files; a gap means that records are missing.
"""

import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

FILE_HEADER = struct.Struct("<8sQQ")
FRAME_HEADER = struct.Struct("<IIQI")
U32 = struct.Struct("<I")
JOURNAL_MAGIC = b"RKOJRNL1"
SNAPSHOT_MAGIC = b"RKOSNAP1"
# Magic of a replicated journal, see replication/frames.py.
COPIED_MAGIC = b"RKOJRNL2"
FRAME_MAGIC = 0x464F4B52
FRAME_MAGIC_BYTES = U32.pack(FRAME_MAGIC)
FILE_HEADER_BYTES = FILE_HEADER.size + U32.size
FRAME_HEADER_BYTES = FRAME_HEADER.size + U32.size

assert FILE_HEADER_BYTES == 28
assert FRAME_HEADER_BYTES == 24


class Frame(NamedTuple):
    """A frame of a journal file, with its byte range in the file."""

    start: int
    end: int
    sequence: int
    records: list[bytes]


class FileHeader(NamedTuple):
    """Header of a journal or snapshot file."""

    generation: int
    # Sequence of the first record of the journal; for a snapshot, of the first record after it.
    first_sequence: int


class FrameDamage(NamedTuple):
    """The first position of a file at which no valid frame begins."""

    position: int
    reason: str
    # A valid frame follows, so it is no unfinished write.
    followed: bool


def file_header(magic: bytes, header: FileHeader) -> bytes:
    head = FILE_HEADER.pack(magic, *header)
    return head + U32.pack(zlib.crc32(head))


def read_file_header(data: bytes, magic: bytes) -> FileHeader | None:
    """Return the header of a file; None if it is damaged or belongs to another kind of file."""
    if len(data) < FILE_HEADER_BYTES:
        return None
    found, generation, first_sequence = FILE_HEADER.unpack_from(data)
    (checksum,) = U32.unpack_from(data, FILE_HEADER.size)
    if found != magic or checksum != zlib.crc32(data[: FILE_HEADER.size]):
        return None
    return FileHeader(generation, first_sequence)


def frame(sequence: int, records: Iterable[bytes]) -> bytes:
    """Encode a frame of records; `sequence` is that of its first record."""
    parts: list[bytes] = []
    for record in records:
        parts += (U32.pack(len(record)), record)
    payload = b"".join(parts)
    head = FRAME_HEADER.pack(FRAME_MAGIC, len(payload), sequence, len(parts) // 2)
    return head + U32.pack(zlib.crc32(payload, zlib.crc32(head))) + payload


def mark(sequence: int) -> bytes:
    """Encode a mark (a frame without records); `sequence` is that of the next record."""
    return frame(sequence, ())


def read_frame(data: bytes, start: int) -> Frame | None:
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
    records = []
    position = begin
    for _ in range(count):
        (record_bytes,) = U32.unpack_from(data, position)
        position += U32.size
        records.append(data[position : position + record_bytes])
        position += record_bytes
    return Frame(start, end, sequence, records)


def read_frames(data: bytes, expected_sequence: int) -> Iterator[Frame | FrameDamage]:
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
