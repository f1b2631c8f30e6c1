"""The bytes of journal and snapshot files. Pure.

    file    = header frame*
    header  = magic 8s | generation u64 | first sequence u64 | CRC-32 u32        28 bytes
    frame   = magic u32 | payload bytes u32 | sequence u64 | records u32 | CRC-32 u32 | payload
                                                                                 24 bytes + payload
    payload = (bytes u32 | record)*

All numbers are little-endian. A checksum covers its header without itself, and the payload. A
frame is what one sync made durable: the writer begins the next frame only when the sync of the one
before has returned. A frame without records is a mark: all in front of it was synced. A journal
has one behind its newest frame, written after the sync and before anybody is told, and the next
frame takes its place. It is not synced itself before the journal ends, so a power cut may take it.

So a bad frame with a valid one behind it is damage to what was promised. A bad frame behind a mark
is a write that never finished. A bad frame with nothing valid around it is that too, or the newest
frame, damaged after a power cut took its mark: the two cannot be told apart.

`sequence` counts records over all files; a hole in it means that a part is missing.
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
# Of a journal that has copies, see replication/frames.py.
COPIED_MAGIC = b"RKOJRNL2"
FRAME_MAGIC = 0x464F4B52
FRAME_MAGIC_BYTES = U32.pack(FRAME_MAGIC)
FILE_HEADER_BYTES = FILE_HEADER.size + U32.size
FRAME_HEADER_BYTES = FRAME_HEADER.size + U32.size

assert FILE_HEADER_BYTES == 28
assert FRAME_HEADER_BYTES == 24


class Frame(NamedTuple):
    """Where a frame lies in its file, and what it holds."""

    start: int
    end: int
    sequence: int
    records: list[bytes]


class FileHeader(NamedTuple):
    """What a file says of itself."""

    generation: int
    # Of the first record behind it; for a snapshot, of the first record that it does not include.
    first_sequence: int


class Damage(NamedTuple):
    """The first place in a file that is not what was written."""

    position: int
    reason: str
    # True when something valid lies behind it: then it is no unfinished write.
    followed: bool


def file_header(magic: bytes, header: FileHeader) -> bytes:
    head = FILE_HEADER.pack(magic, *header)
    return head + U32.pack(zlib.crc32(head))


def read_file_header(data: bytes, magic: bytes) -> FileHeader | None:
    """The header at the start of a file, or None when it is damaged or another kind's."""
    if len(data) < FILE_HEADER_BYTES:
        return None
    found, generation, first_sequence = FILE_HEADER.unpack_from(data)
    (checksum,) = U32.unpack_from(data, FILE_HEADER.size)
    if found != magic or checksum != zlib.crc32(data[: FILE_HEADER.size]):
        return None
    return FileHeader(generation, first_sequence)


def frame(sequence: int, records: Iterable[bytes]) -> bytes:
    """One frame of records; `sequence` is that of the first."""
    parts: list[bytes] = []
    for record in records:
        parts += (U32.pack(len(record)), record)
    payload = b"".join(parts)
    head = FRAME_HEADER.pack(FRAME_MAGIC, len(payload), sequence, len(parts) // 2)
    return head + U32.pack(zlib.crc32(payload, zlib.crc32(head))) + payload


def mark(sequence: int) -> bytes:
    """Says that all in front of it was synced; `sequence` is that of the next record."""
    return frame(sequence, ())


def read_frame(data: bytes, start: int) -> Frame | None:
    """The frame at `start`, or None when there is no valid one."""
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


def read_frames(data: bytes, expected_sequence: int) -> Iterator[Frame | Damage]:
    """The frames of a file from behind its header; the last item may be a Damage."""
    position = FILE_HEADER_BYTES
    while position < len(data):
        found = read_frame(data, position)
        if found is None:
            followed = valid_frame_behind(data, position)
            yield Damage(position, "a frame fails its checksum", followed)
            return
        if found.sequence != expected_sequence:
            reason = f"records {expected_sequence} to {found.sequence - 1} are missing"
            yield Damage(position, reason, followed=True)
            return
        yield found
        position, expected_sequence = found.end, found.sequence + len(found.records)


def valid_frame_behind(data: bytes, position: int) -> bool:
    """Whether a valid frame begins anywhere behind `position`."""
    found = data.find(FRAME_MAGIC_BYTES, position + 1)
    while found >= 0:
        if read_frame(data, found) is not None:
            return True
        found = data.find(FRAME_MAGIC_BYTES, found + 1)
    return False
