"""The bytes of a journal that has copies. Pure.

    file    = header synced frame*
    header  = magic 8s | generation u64 | position u64 | CRC-32 u32                  28 bytes
    synced  = position u64 | CRC-32 u32                                              12 bytes
    frame   = magic u32 | kind u32 | payload bytes u32 | position u64 | committed u64 |
              CRC-32 u32 | payload                                         32 bytes + payload

    EPOCH     payload is JSON, see `Epochs`
    STATE     (bytes u32 | record)*, a part of what all before the file's first frame has made
    STATE_END nothing: the state is whole
    RECORDS   (bytes u32 | record)*, one caller's change

All numbers are little-endian. A checksum covers its header without itself, and the payload.

A position counts the bytes of frames since the log's first one, over all files; the file's says
where its first frame lies. Frames are the same in all copies. A file's header and `synced` are its
own: below that position everything was on this disk once, so what cannot be read there is damage,
and not a write that never finished.

`committed` is what the leader knew to be committed when it wrote the frame. That stays true
whatever becomes of the frame, so a start knows it at once.
"""

import json
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

from rockoon_offset.journal.frames import COPIED_MAGIC as MAGIC

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

# A larger change is several frames: each goes to other copies in one message.
PART_BYTES_MAX = 16 << 20
# How many epochs a record names: the newest.
EPOCHS_MAX = 64


class Kind(IntEnum):
    """What a frame holds."""

    EPOCH = 1
    STATE = 2
    STATE_END = 3
    RECORDS = 4


KINDS = frozenset(Kind)


class LogFrame(NamedTuple):
    """A frame and where it lies in the log."""

    kind: Kind
    position: int
    end: int
    committed: int
    payload: bytes


class Epochs(NamedTuple):
    """The payload of an EPOCH frame.

    Attributes:
        is_first: it is the first frame of its file: the state follows.
        is_empty: there is no state: it is the first frame of the log.
        leader: the replica that wrote it.
        known: (epoch, first position), up to the one that the frame is of.
    """

    is_first: bool
    is_empty: bool
    leader: str
    known: tuple[tuple[int, int], ...]


class LogFileHeader(NamedTuple):
    """What a file says of itself; `synced` is about the whole log."""

    generation: int
    position: int
    synced: int


def encode_header(header: LogFileHeader) -> bytes:
    head = FILE_HEADER.pack(MAGIC, header.generation, header.position)
    return head + U32.pack(zlib.crc32(head)) + encode_synced(header.synced)


def encode_synced(position: int) -> bytes:
    """What is written at SYNCED_AT."""
    head = SYNCED.pack(position)
    return head + U32.pack(zlib.crc32(head))


def decode_header(data: bytes) -> LogFileHeader | None:
    """The header at the beginning of a file; None where its writing has never finished.

    Raises:
        ValueError: it is damaged, or another kind of file.
    """
    if not any(data[FILE_HEADER.size : SYNCED_AT]):
        return None
    if len(data) < SYNCED_AT or U32.unpack_from(data, FILE_HEADER.size)[0] != zlib.crc32(
        data[: FILE_HEADER.size]
    ):
        raise ValueError("its header is not valid")
    magic, generation, position = FILE_HEADER.unpack_from(data)
    if magic != MAGIC:
        raise ValueError("it is no journal")
    return LogFileHeader(generation, position, decode_synced(data[SYNCED_AT:FILE_HEADER_BYTES]))


def decode_synced(data: bytes) -> int:
    """What `encode_synced` was given; 0 where it is not whole: nothing is known then."""
    if len(data) < SYNCED.size:
        return 0
    (position,) = SYNCED.unpack_from(data)
    return position if encode_synced(position) == data else 0


def encode(kind: Kind, position: int, committed: int, payload: bytes = b"") -> bytes:
    head = FRAME_HEADER.pack(FRAME_MAGIC, kind, len(payload), position, committed)
    return head + U32.pack(zlib.crc32(payload, zlib.crc32(head))) + payload


def pack(records: Iterable[bytes]) -> bytes:
    """The payload of records."""
    return b"".join(part for record in records for part in (U32.pack(len(record)), record))


def parts(records: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """A change's records, divided where they are too many for one frame."""
    begin = size = 0
    for at, record in enumerate(records):
        size += len(record) + U32.size
        if size > PART_BYTES_MAX and at > begin:
            yield records[begin:at]
            begin, size = at, len(record) + U32.size
    yield records[begin:]


def unpack(payload: bytes) -> Iterator[bytes]:
    """The records of a payload."""
    at = 0
    while at < len(payload):
        (size,) = U32.unpack_from(payload, at)
        at += U32.size
        yield payload[at : at + size]
        at += size


def encode_epochs(epochs: Epochs) -> bytes:
    told = {
        "first": epochs.is_first,
        "empty": epochs.is_empty,
        "leader": epochs.leader,
        "epochs": epochs.known[-EPOCHS_MAX:],
    }
    return json.dumps(told, separators=(",", ":")).encode()


def decode_epochs(payload: bytes) -> Epochs:
    """Raises ValueError."""
    try:
        told = json.loads(payload)
        known = tuple((int(epoch), int(first)) for epoch, first in told["epochs"])
        if not known:
            raise ValueError("it names no epoch")
        return Epochs(told["first"], told["empty"], told["leader"], known)
    except (KeyError, TypeError) as failure:
        raise ValueError(f"no record of an epoch: {failure!r}") from failure


def frame_bytes(data: bytes, at: int, position: int) -> int:
    """How long the frame at a place is, by its header; 0 where no frame of this position begins."""
    if len(data) - at < FRAME_HEADER_BYTES:
        return 0
    magic, _, payload_bytes, found, _ = FRAME_HEADER.unpack_from(data, at)
    is_frame = magic == FRAME_MAGIC and found == position
    return FRAME_HEADER_BYTES + payload_bytes if is_frame else 0


def decode(data: bytes, at: int, position: int) -> LogFrame | None:
    """The frame at a place, None where there is no whole and valid one of this position."""
    size = frame_bytes(data, at, position)
    if size == 0 or at + size > len(data):
        return None
    _, kind, _, _, committed = FRAME_HEADER.unpack_from(data, at)
    begin = at + FRAME_HEADER_BYTES
    payload = data[begin : at + size]
    crc = zlib.crc32(payload, zlib.crc32(data[at : at + FRAME_HEADER.size]))
    if U32.unpack_from(data, at + FRAME_HEADER.size)[0] != crc or kind not in KINDS:
        return None
    return LogFrame(Kind(kind), position, position + size, committed, payload)


def whole_frames(data: bytes, position: int) -> list[LogFrame]:
    """The frames of which data consists.

    Raises:
        ValueError: it is not whole frames that begin at this position.
    """
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
    """How many bytes of data are whole frames, by their headers."""
    at = 0
    while (size := frame_bytes(data, at, position + at)) and at + size <= len(data):
        at += size
    return at


def has_whole_frame(data: bytes) -> bool:
    """Whether a whole and valid frame begins anywhere in data, of whatever position."""
    at = data.find(FRAME_MAGIC_BYTES)
    while at >= 0:
        if len(data) - at >= FRAME_HEADER_BYTES:
            position = FRAME_HEADER.unpack_from(data, at)[3]
            if decode(data, at, position) is not None:
                return True
        at = data.find(FRAME_MAGIC_BYTES, at + 1)
    return False


def joined(
    known: Sequence[tuple[int, int]], told: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Epochs that are known, and those of a record behind them."""
    older = [each for each in known if each[0] < told[0][0]]
    return [*older, *told]
