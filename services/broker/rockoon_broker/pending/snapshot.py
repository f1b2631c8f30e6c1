"""The snapshot of what is completed: one file, replaced as a whole.

    magic 8 | lineage 16 | covered end 8 | number of sections 4
    for each section:   name length 2 | name | content length 8 | content
    CRC-32 of all before 4                                             all little-endian

It only spares a start the reading of the log up to the covered end: whatever it says can be worked
out from the log again. Hence one that is damaged, or of another history of the store, is dropped.
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
LINEAGE_BYTES = 16
assert _HEAD.size == 36


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A state, and which part of the log it comes from."""

    lineage: bytes
    """Of the store (see store/recovery/checkpoint_files.py), 16 bytes."""
    covered_end: int
    """Physical offset: everything that records before it complete is in it."""
    sections: Mapping[str, bytes]


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """The file's bytes."""
    pieces = [_HEAD.pack(_MAGIC, snapshot.lineage, snapshot.covered_end, len(snapshot.sections))]
    for name, content in snapshot.sections.items():
        raw = name.encode()
        pieces += [_NAME.pack(len(raw)), raw, _CONTENT.pack(len(content)), content]
    body = b"".join(pieces)
    return body + _CRC.pack(zlib.crc32(body))


def decode_snapshot(raw: bytes) -> Snapshot:
    """Read the file's bytes.

    Raises:
        ValueError: they are cut short, damaged or of another form; the message says which.
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
        raise ValueError(f"a section cannot be read: {error}") from error
    if at != end:
        raise ValueError("its sections do not fill it")
    return Snapshot(lineage, covered_end, sections)
