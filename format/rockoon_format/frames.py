"""Reads the fields of many records together.

Records differ in length, so a column of a field is a gather: the buffer is viewed as overlapping
items one byte apart, and indexed with the field's positions. The bytes are not trusted: positions
outside the buffer, which damaged lengths cause, are clipped to it, and the computed size of such a
record then exceeds its size field.
"""

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from rockoon_format import kernel
from rockoon_format.hashes import java_hash_codes, tags_code
from rockoon_format.properties import PROPERTY_TAGS, find_value
from rockoon_format.record import (
    AT_BODY_LENGTH_V4,
    AT_BORN_HOST,
    HOST_V6_EXTRA_BYTES,
    MAGIC_V2,
    SYS_FLAG_BORN_HOST_V6,
    SYS_FLAG_STORE_HOST_V6,
)

PREFIX = np.dtype(
    [
        ("size", ">i4"),
        ("magic", ">i4"),
        ("body_crc", ">i4"),
        ("queue_id", ">i4"),
        ("flag", ">i4"),
        ("queue_offset", ">i8"),
        ("physical_offset", ">i8"),
        ("sys_flag", ">i4"),
        ("born_timestamp", ">i8"),
    ]
)
assert PREFIX.itemsize == AT_BORN_HOST

# A row of the kernel's result: the start of a record, and the other fields of `Parts`.
_ROW = np.dtype([("fields", np.int64, 10), ("prefix", PREFIX)])

_TAGS_PREFIX = b"TAGS\x01"
_TAGS_INSIDE = b"\x02TAGS\x01"
# Distance after `TAGS 0x01` in which the closing 0x02 is searched for all records together.
_TAGS_WINDOW_BYTES = 32
# A copy of a body of at most this size is faster than a view.
_COPIED_BYTES_MAX = 4096

IntArray = NDArray[np.int64]


# Not frozen: one is created for each single message, and a frozen one would cost three times more.
@dataclass(slots=True)
class Parts:
    """Positions of the parts of each record, relative to the buffer, int64[n]."""

    starts: IntArray
    prefix: NDArray[np.void]
    hosts_extra_bytes: IntArray
    """12 for each IPv6 host."""
    born_extra_bytes: IntArray
    body_starts: IntArray
    body_lengths: IntArray
    """As stored, may be negative."""
    topic_starts: IntArray
    topic_lengths: IntArray
    """As stored, may be negative."""
    properties_starts: IntArray
    properties_lengths: IntArray
    """As stored, may be negative."""
    computed_sizes: IntArray
    """Sum of the parts; a record is whole only if it equals the size field."""


def sliding(buffer: bytes | NDArray[np.uint8], dtype: DTypeLike) -> NDArray[Any]:
    """View a buffer as items that start at every byte, for gathers and scatters by position."""
    item = np.dtype(dtype)
    return np.ndarray((len(buffer) - item.itemsize + 1,), item, buffer=buffer, strides=(1,))


def locate(buffer: bytes | NDArray[np.uint8], starts: IntArray) -> Parts:
    """Find the parts of the records at `starts`, each at least 91 bytes before the buffer's end."""
    if isinstance(buffer, bytes):
        found = kernel.native.locate(buffer, starts.tobytes())
        if found is not None:
            prefixes, columns = found
            rows = np.frombuffer(columns, np.int64).reshape(9, len(starts))
            return _parts(starts, np.frombuffer(prefixes, PREFIX), rows)
    # Plain void items are copied as a whole, structured items field by field.
    prefix = sliding(buffer, f"V{PREFIX.itemsize}")[starts].view(PREFIX)
    sys_flags = prefix["sys_flag"]
    zeros = np.zeros(len(starts), np.int64)
    born_extra = hosts_extra = zeros
    if (sys_flags & (SYS_FLAG_BORN_HOST_V6 | SYS_FLAG_STORE_HOST_V6)).any():
        born_extra = np.where(sys_flags & SYS_FLAG_BORN_HOST_V6, HOST_V6_EXTRA_BYTES, zeros)
        store_extra = np.where(sys_flags & SYS_FLAG_STORE_HOST_V6, HOST_V6_EXTRA_BYTES, zeros)
        hosts_extra = born_extra + store_extra
    last_short = len(buffer) - 2

    at = starts + AT_BODY_LENGTH_V4 + hosts_extra
    body_lengths = sliding(buffer, ">i4")[np.minimum(at, len(buffer) - 4)].astype(np.int64)
    body_starts = at + 4

    at = body_starts + np.maximum(body_lengths, 0)
    clipped = np.minimum(at, last_short)
    topic_lengths = sliding(buffer, ">i1")[clipped].astype(np.int64)
    topic_starts = at + 1
    is_v2 = prefix["magic"] == MAGIC_V2
    if is_v2.any():
        topic_lengths = np.where(is_v2, sliding(buffer, ">i2")[clipped], topic_lengths)
        topic_starts += is_v2

    at = topic_starts + np.maximum(topic_lengths, 0)
    shorts = sliding(buffer, ">i2")
    properties_lengths = shorts[np.minimum(at, last_short)].astype(np.int64)
    properties_starts = at + 2
    return Parts(
        starts=starts,
        prefix=prefix,
        hosts_extra_bytes=hosts_extra,
        born_extra_bytes=born_extra,
        body_starts=body_starts,
        body_lengths=body_lengths,
        topic_starts=topic_starts,
        topic_lengths=topic_lengths,
        properties_starts=properties_starts,
        properties_lengths=properties_lengths,
        computed_sizes=properties_starts + np.maximum(properties_lengths, 0) - starts,
    )


def locate_whole(
    buffer: bytes, sizes: IntArray, bounds: tuple[int, int], *, compared: bool
) -> tuple[Parts, bytes] | None:
    """Return the parts of back-to-back records, and with `compared` a state byte for each
    (`DAMAGED`, `WHOLE`, see `checksums.compare`). None: use the general path, for example because a
    record is not whole or has another size.

    Args:
        buffer: contains the records between the bounds.
        sizes: size of each record, int64[n].
        bounds: start and end position of the records.
        compared: compare the records with their checksums.
    """
    found = kernel.native.decode(buffer, sizes.tobytes(), *bounds, compared)
    if found is None:
        return None
    rows = np.frombuffer(found[0], _ROW)
    fields = rows["fields"].T
    return _parts(fields[0], rows["prefix"], fields[1:]), found[1]


def _parts(starts: IntArray, prefixes: NDArray[np.void], rows: NDArray[np.int64]) -> Parts:
    """Return the `Parts` in the kernel's result."""
    # Not `*rows`: NumPy ends the iteration with an error whose text costs more than the rows.
    return Parts(
        starts,
        prefixes,
        rows[0],
        rows[1],
        rows[2],
        rows[3],
        rows[4],
        rows[5],
        rows[6],
        rows[7],
        rows[8],
    )


def slices(buffer: bytes, starts: IntArray, lengths: IntArray) -> list[bytes]:
    """Cut ranges out of a buffer as bytes; every range must be inside it."""
    if len(starts) == 0:
        return []
    length = int(lengths[0])
    if len(starts) == 1:
        start = int(starts[0])
        return [buffer[start : start + length]]
    pieces: list[bytes]
    if isinstance(buffer, bytes):
        places = (each.astype(np.int64, copy=False).tobytes() for each in (starts, lengths))
        found = kernel.native.slices(buffer, *places)
        if found is not None:
            pieces = found
            return pieces
    if length > 0 and (lengths == length).all():
        # Items of one width are converted to bytes without a slice object each. Type V, because
        # items of type S lose trailing zero bytes.
        pieces = sliding(buffer, f"V{length}")[starts].tolist()
        return pieces
    return list(map(buffer.__getitem__, map(slice, starts.tolist(), (starts + lengths).tolist())))


def crcs(buffer: bytes | NDArray[np.uint8], starts: IntArray, lengths: IntArray) -> IntArray:
    """Return the CRC-32 of each range, not masked."""
    if len(starts) == 0:
        return np.zeros(0, np.int64)
    if isinstance(buffer, bytes):
        found = kernel.native.crcs(buffer, starts.tobytes(), lengths.tobytes())
        if found is not None:
            return np.frombuffer(found, np.int64)
    pieces: Iterable[bytes | memoryview]
    length = int(lengths[0])
    if 0 < length <= _COPIED_BYTES_MAX and (lengths == length).all():
        pieces = sliding(buffer, f"V{length}")[starts].tolist()
    else:
        # Large requests arrive as a bytearray.
        is_large = int(lengths.max()) > _COPIED_BYTES_MAX
        whole = memoryview(buffer) if is_large else bytes(buffer)  # type: ignore[arg-type]
        pieces = map(whole.__getitem__, map(slice, starts.tolist(), (starts + lengths).tolist()))
    return np.fromiter(map(zlib.crc32, pieces), np.int64, len(starts))


def tags_codes(buffer: bytes, parts: Parts) -> IntArray:
    """Return each record's tagsCode: the hash of its TAGS, as decoded by `properties.decode`.

    Our producers put TAGS first; these tags are hashed for all records together. Records with TAGS
    in another position, or twice, are parsed one by one.
    """
    starts, lengths = parts.properties_starts, np.maximum(parts.properties_lengths, 0)
    count = len(starts)
    codes = np.zeros(count, np.int64)
    if count == 0:
        return codes
    found = kernel.native.tags_codes(buffer, starts.tobytes(), lengths.tobytes())
    if found is not None:
        return np.frombuffer(found, np.int64)
    heads = sliding(buffer, f"V{len(_TAGS_PREFIX)}")[
        np.minimum(starts, len(buffer) - len(_TAGS_PREFIX))
    ]
    # A head that was clipped at the buffer's end belongs to properties too short for a tag.
    is_first = (heads.view(f"S{len(_TAGS_PREFIX)}") == _TAGS_PREFIX) & (lengths > len(_TAGS_PREFIX))
    first = np.flatnonzero(is_first)
    exact = _hold_tags_inside(buffer, starts, lengths)
    exact |= heads.view(np.uint8)[:: len(_TAGS_PREFIX)] == _TAGS_INSIDE[0]
    if len(first):
        all_first = len(first) == count
        value_starts = (starts if all_first else starts[first]) + len(_TAGS_PREFIX)
        room = (lengths if all_first else lengths[first]) - len(_TAGS_PREFIX)
        last = len(buffer) - _TAGS_WINDOW_BYTES
        window = sliding(buffer, f"V{_TAGS_WINDOW_BYTES}")[np.minimum(value_starts, last)]
        is_end = window.view(np.uint8).reshape(len(first), _TAGS_WINDOW_BYTES) == 2
        ends = is_end.argmax(1)
        closed = is_end[np.arange(len(first)), ends] & (ends < room)
        value_lengths = np.where(closed, ends, room)
        unsure = ((~closed) & (room > _TAGS_WINDOW_BYTES)) | (value_starts > last)
        exact[first[unsure]] = True
        # These lengths may lead out of the buffer; the records are hashed again below.
        value_lengths[unsure] = 0
        data = np.frombuffer(buffer, np.uint8)
        codes[first] = java_hash_codes(data, value_starts, value_lengths)
    for index in np.flatnonzero(exact).tolist():
        start = int(starts[index])
        codes[index] = tags_code(
            find_value(buffer[start : start + int(lengths[index])], PROPERTY_TAGS) or ""
        )
    return codes


def _hold_tags_inside(buffer: bytes, starts: IntArray, lengths: IntArray) -> NDArray[np.bool_]:
    """Return which records may have TAGS after another property; has no false negatives.

    Only properties are searched, because bodies are long and may contain anything. The properties
    are joined without their first bytes: otherwise the 0x02 at the end of one and the TAGS at the
    start of the next would match. The caller handles a first byte 0x02.
    """
    count = len(starts)
    width = int(lengths.max()) - 1
    if width < len(_TAGS_INSIDE):
        return np.zeros(count, np.bool_)
    if width * count <= 2 * int(lengths.sum()):
        at = np.minimum(starts + 1, len(buffer) - width)
        together = sliding(buffer, f"V{width}")[at].tobytes()
    else:
        together = b"".join(slices(buffer, starts + 1, np.maximum(lengths - 1, 0)))
    if together.find(_TAGS_INSIDE) < 0:
        return np.zeros(count, np.bool_)
    pieces = slices(buffer, starts, lengths)
    return np.fromiter((_TAGS_INSIDE in piece for piece in pieces), np.bool_, count)
