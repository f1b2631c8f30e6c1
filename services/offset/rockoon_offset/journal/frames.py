"""Format of the files of a journal. Pure.

    file    = header synced frame*
    header  = magic 8s | generation u64 | position u64 | CRC-32 u32                  28 bytes
    synced  = position u64 | CRC-32 u32                                              12 bytes
    frame   = magic u32 | kind u32 | payload bytes u32 | position u64 | committed u64 |
              CRC-32 u32 | payload                                         32 bytes + payload

    EPOCH     payload is JSON, see `EpochPayload`
    STATE     (bytes u32 | record)*, a part of the state before the file's first frame
    STATE_END no payload: end of the state
    RECORDS   (bytes u32 | record)*, one change

All numbers are little-endian. A checksum covers the header before it, and the payload.

A position counts the bytes of frames since the first frame of the log, over all files. The position
in a file's header is the position of its first frame. Frames are the same in all replicas. The file
header and `synced` belong to one replica: all bytes below `synced` were once synced to this disk,
so an unreadable frame below it is damage, and not an unfinished write.

`committed` is the committed position that the leader knew when it wrote the frame. It stays valid
even if the frame itself is cut later, so a start can use it immediately.
"""

import json
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

MAGIC = b"RKOJRNL2"
FILE_HEADER = struct.Struct("<8sQQ")
SYNCED = struct.Struct("<Q")
FRAME_HEADER = struct.Struct("<IIIQQ")
U32 = struct.Struct("<I")
FRAME_MAGIC = 0x474F4B52
FRAME_MAGIC_BYTES = U32.pack(FRAME_MAGIC)
SYNCED_AT = FILE_HEADER.size + U32.size
FILE_HEADER_BYTES = SYNCED_AT + SYNCED.size + U32.size
FRAME_HEADER_BYTES = FRAME_HEADER.size + U32.size

assert FILE_HEADER_BYTES == 40
assert FRAME_HEADER_BYTES == 32

# A larger change is split into frames: a frame is sent to other replicas in one message.
PART_BYTES_MAX = 16 << 20
# Bounds on one STATE frame.
STATE_RECORDS_MAX = 1000
STATE_BYTES_MAX = 1 << 20
# An EPOCH frame names the newest epochs, at most this many.
EPOCHS_MAX = 64


class FrameKind(IntEnum):
    """Kind of a frame, by its content."""

    # Never written: a STATE frame that is damaged.
    DAMAGED_STATE = 0
    EPOCH = 1
    STATE = 2
    STATE_END = 3
    RECORDS = 4


KINDS = frozenset(FrameKind) - {FrameKind.DAMAGED_STATE}


class LogFrame(NamedTuple):
    """A decoded frame, and its position in the log."""

    kind: FrameKind
    position: int
    end: int
    committed: int
    payload: bytes


class EpochPayload(NamedTuple):
    """Payload of an EPOCH frame.

    Attributes:
        is_first: the frame is the first of its file, and the state follows.
        is_empty: the frame is the first of the log, and there is no state.
        leader: the replica that wrote the frame.
        known: (epoch, first position), up to the epoch of the frame.
    """

    is_first: bool
    is_empty: bool
    leader: str
    known: tuple[tuple[int, int], ...]


class LogFileHeader(NamedTuple):
    """Header of a file of the journal; `synced` applies to the whole log."""

    generation: int
    position: int
    synced: int


def encode_header(header: LogFileHeader) -> bytes:
    head = FILE_HEADER.pack(MAGIC, header.generation, header.position)
    return head + U32.pack(zlib.crc32(head)) + encode_synced(header.synced)


def encode_synced(position: int) -> bytes:
    """Encode the position up to which the log is synced, for the file header at SYNCED_AT."""
    head = SYNCED.pack(position)
    return head + U32.pack(zlib.crc32(head))


def decode_header(data: bytes) -> LogFileHeader | None:
    """Return a file's header; None if never completely written. Raises ValueError if damaged."""
    if len(data) < SYNCED_AT or not any(data[FILE_HEADER.size : SYNCED_AT]):
        return None
    if U32.unpack_from(data, FILE_HEADER.size)[0] != zlib.crc32(data[: FILE_HEADER.size]):
        raise ValueError("its header is not valid")
    magic, generation, position = FILE_HEADER.unpack_from(data)
    if magic != MAGIC:
        raise ValueError(
            f"it is no journal of this format ({MAGIC.decode()}): it begins with {magic!r}. If a "
            "newer version of the offset service wrote it, start that version"
        )
    return LogFileHeader(generation, position, decode_synced(data[SYNCED_AT:FILE_HEADER_BYTES]))


def decode_synced(data: bytes) -> int:
    """Decode the position up to which the log is synced; 0 if the bytes are damaged."""
    if len(data) < SYNCED.size:
        return 0
    (position,) = SYNCED.unpack_from(data)
    return position if encode_synced(position) == data else 0


def encode(kind: FrameKind, position: int, committed: int, payload: bytes = b"") -> bytes:
    head = FRAME_HEADER.pack(FRAME_MAGIC, kind, len(payload), position, committed)
    return head + U32.pack(zlib.crc32(payload, zlib.crc32(head))) + payload


def pack(records: Iterable[bytes]) -> bytes:
    """Encode records as the payload of a frame."""
    return b"".join(part for record in records for part in (U32.pack(len(record)), record))


def parts(records: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Split the records of a change so that each part fits one frame."""
    begin = size = 0
    for at, record in enumerate(records):
        size += len(record) + U32.size
        if size > PART_BYTES_MAX and at > begin:
            yield records[begin:at]
            begin, size = at, len(record) + U32.size
    yield records[begin:]


def unpack(payload: bytes) -> Iterator[bytes]:
    """Yield the records in the payload of a frame."""
    at = 0
    while at < len(payload):
        (size,) = U32.unpack_from(payload, at)
        at += U32.size
        yield payload[at : at + size]
        at += size


def encode_epochs(epochs: EpochPayload) -> bytes:
    fields = {
        "first": epochs.is_first,
        "empty": epochs.is_empty,
        "leader": epochs.leader,
        "epochs": epochs.known[-EPOCHS_MAX:],
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def decode_epochs(payload: bytes) -> EpochPayload:
    """Decode the payload of an EPOCH frame. Raises ValueError."""
    try:
        fields = json.loads(payload)
        known = tuple((int(epoch), int(first)) for epoch, first in fields["epochs"])
        if not known:
            raise ValueError("the EPOCH frame names no epoch")
        return EpochPayload(fields["first"], fields["empty"], fields["leader"], known)
    except (KeyError, TypeError) as failure:
        raise ValueError(f"invalid payload of an EPOCH frame: {failure!r}") from failure


def frame_bytes(data: bytes, at: int, position: int) -> int:
    """Return the length of the frame at `data[at]`; 0 without a frame of this position."""
    if len(data) - at < FRAME_HEADER_BYTES:
        return 0
    magic, _, payload_bytes, found, _ = FRAME_HEADER.unpack_from(data, at)
    is_frame = magic == FRAME_MAGIC and found == position
    return FRAME_HEADER_BYTES + payload_bytes if is_frame else 0


def decode(data: bytes, at: int, position: int) -> LogFrame | None:
    """Return the frame at `data[at]`; None without a complete and valid frame of this position."""
    size = frame_bytes(data, at, position)
    if size == 0 or at + size > len(data):
        return None
    _, kind, _, _, committed = FRAME_HEADER.unpack_from(data, at)
    begin = at + FRAME_HEADER_BYTES
    payload = data[begin : at + size]
    crc = zlib.crc32(payload, zlib.crc32(data[at : at + FRAME_HEADER.size]))
    if U32.unpack_from(data, at + FRAME_HEADER.size)[0] != crc or kind not in KINDS:
        return None
    return LogFrame(FrameKind(kind), position, position + size, committed, payload)


def whole_frames(data: bytes, position: int) -> list[LogFrame]:
    """Return the frames in `data`. Raises ValueError if one is incomplete or misplaced."""
    found: list[LogFrame] = []
    at = 0
    while at < len(data):
        frame = decode(data, at, position + at)
        if frame is None:
            raise ValueError(f"no valid frame at {position + at}")
        found.append(frame)
        at = frame.end - position
    return found


def whole_bytes(data: bytes, position: int) -> int:
    """Return the length of the complete frames at the start of `data`, from their headers."""
    at = 0
    while (size := frame_bytes(data, at, position + at)) and at + size <= len(data):
        at += size
    return at


def decode_damaged(data: bytes, at: int, position: int) -> LogFrame | None:
    """Return the damaged STATE frame at `data[at]`; None if no valid frame follows it.

    Records are not lost with it: files before this one have the state.
    """
    size = frame_bytes(data, at, position)
    if not size or decode(data, at + size, position + size) is None:
        return None
    if FRAME_HEADER.unpack_from(data, at)[1] != FrameKind.STATE:
        return None
    return LogFrame(FrameKind.DAMAGED_STATE, position, position + size, 0, b"")


def valid_frames(data: bytes) -> Iterator[LogFrame]:
    """Yield the complete and valid frames of any position in `data`."""
    at = data.find(FRAME_MAGIC_BYTES)
    while at >= 0:
        if len(data) - at >= FRAME_HEADER_BYTES:
            frame = decode(data, at, FRAME_HEADER.unpack_from(data, at)[3])
            if frame is not None:
                yield frame
        at = data.find(FRAME_MAGIC_BYTES, at + 1)


def state_payloads(
    records: Iterable[bytes], records_max: int = STATE_RECORDS_MAX
) -> Iterator[bytes]:
    """Yield the payloads of a state's STATE frames, each within a frame's maximum size."""
    part: list[bytes] = []
    size = 0
    for record in records:
        part.append(record)
        size += len(record)
        # The window of one queue may have half a megabyte.
        if len(part) == records_max or size >= STATE_BYTES_MAX:
            yield pack(part)
            part, size = [], 0
    if part:
        yield pack(part)


def joined(
    known: Sequence[tuple[int, int]], newer: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Return the known epochs, replaced from the first epoch of `newer` on."""
    older = [each for each in known if each[0] < newer[0][0]]
    return [*older, *newer]
