"""Snapshot of completed entries: one file, replaced as a whole.

    magic 8 | lineage 16 | covered end 8 | number of sections 4
    for each section:   name length 2 | name | content length 8 | content
    CRC-32 of all before 4                                             all little-endian

It only saves a start from reading the log up to the covered end; its content can be derived
from the log again. So a damaged one, or one of another history of the store, is discarded.
"""

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

_MAGIC = b"ROCKSTL1"
_HEAD = struct.Struct("<8s16sqI")
_NAME = struct.Struct("<H")
_CONTENT = struct.Struct("<Q")
_CRC = struct.Struct("<I")
assert _HEAD.size == 36


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A state, and the end of the log from which it was derived."""

    lineage: bytes
    """Lineage of the store (see store/recovery/checkpoint_files.py), 16 bytes."""
    covered_end: int
    """Physical offset up to which completions are included."""
    sections: Mapping[str, bytes]


def encode_snapshot(snapshot: Snapshot) -> bytes:
    pieces = [_HEAD.pack(_MAGIC, snapshot.lineage, snapshot.covered_end, len(snapshot.sections))]
    for name, content in snapshot.sections.items():
        raw = name.encode()
        pieces += [_NAME.pack(len(raw)), raw, _CONTENT.pack(len(content)), content]
    body = b"".join(pieces)
    return body + _CRC.pack(zlib.crc32(body))


def decode_snapshot(raw: bytes) -> Snapshot:
    """Decode the file's content.

    Raises:
        ValueError: it is truncated, damaged or malformed; the message has the reason.
    """
    if len(raw) < _HEAD.size + _CRC.size or not raw.startswith(_MAGIC):
        raise ValueError("it is not a snapshot")
    end = len(raw) - _CRC.size
    if _CRC.unpack_from(raw, end)[0] != zlib.crc32(raw[:end]):
        raise ValueError("its checksum is wrong")
    _, lineage, covered_end, count = _HEAD.unpack_from(raw)
    sections: dict[str, bytes] = {}
    at = _HEAD.size
    try:
        for _ in range(count):
            (name_bytes,) = _NAME.unpack_from(raw, at)
            at += _NAME.size
            name = raw[at : at + name_bytes].decode()
            at += name_bytes
            (content_bytes,) = _CONTENT.unpack_from(raw, at)
            at += _CONTENT.size
            sections[name] = raw[at : at + content_bytes]
            at += content_bytes
    except (struct.error, UnicodeDecodeError) as error:
        raise ValueError(f"a section is malformed: {error}") from error
    if at != end:
        raise ValueError("its sections do not fill the file")
    return Snapshot(lineage, covered_end, sections)
