"""Reading the fields of many records at once.

Records differ in length, so a column of a field is a gather: the buffer is viewed as overlapping
items one byte apart, and indexed with the field's positions. Nothing here trusts the bytes:
positions that damaged lengths would put outside the buffer are clipped into it, and such a
record's computed size then exceeds its own.
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

# As the compiled kernel writes them: where a record starts, and the other fields of `Parts`.
_ROW = np.dtype([("fields", np.int64, 10), ("prefix", PREFIX)])

_TAGS_PREFIX = b"TAGS\x01"
_TAGS_INSIDE = b"\x02TAGS\x01"
# How far behind `TAGS 0x01` the closing 0x02 is looked for in all records at once.
_TAGS_WINDOW_BYTES = 32
# Below this a copy of a body is cheaper than a view of it.
_COPIED_BYTES_MAX = 4096

IntArray = NDArray[np.int64]


# Not frozen: it is made for each message that comes alone, and would be three times as dear.
@dataclass(slots=True)
class Parts:
    """Where the parts of each record lie; positions are relative to the buffer, int64[n]."""

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
    """What the parts add up to; a record is whole only if this equals its size."""


def sliding(buffer: bytes | NDArray[np.uint8], dtype: DTypeLike) -> NDArray[Any]:
    """View a buffer as items that start at every byte, for gathers and scatters by position."""
    item = np.dtype(dtype)
    return np.ndarray((len(buffer) - item.itemsize + 1,), item, buffer=buffer, strides=(1,))


def locate(buffer: bytes | NDArray[np.uint8], starts: IntArray) -> Parts:
    """Find the parts of the records at `starts`, each at least 91 bytes before the buffer's end."""
    if kernel.native is not None and isinstance(buffer, bytes):
        found = kernel.native.locate(buffer, starts.tobytes())
        if found is not None:
            prefixes, columns = found
            rows = np.frombuffer(columns, np.int64).reshape(9, len(starts))
            return _parts(starts, np.frombuffer(prefixes, PREFIX), rows)
    # Plain void items are copied whole; structured ones would go field by field.
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
    """The parts of records back to back, and a byte for each of what `checksums.compare` says, if
    that is asked (`DAMAGED`, `WHOLE`). None where there is no compiled kernel, or a record that is
    not whole or of another size.

    Args:
        buffer: has the records between the bounds.
        sizes: bytes of each, int64[n].
        bounds: positions.
        compared: whether it is asked.
    """
    if kernel.native is None:
        return None
    found = kernel.native.decode(buffer, sizes.tobytes(), *bounds, compared)
    if found is None:
        return None
    rows = np.frombuffer(found[0], _ROW)
    fields = rows["fields"].T
    return _parts(fields[0], rows["prefix"], fields[1:]), found[1]


def _parts(starts: IntArray, prefixes: NDArray[np.void], rows: NDArray[np.int64]) -> Parts:
    """What the compiled kernel has found."""
    # Not `*rows`: NumPy ends that with an error, whose text costs more than the rows.
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
    """Cut pieces out of a buffer as bytes; every piece must lie inside it."""
    if len(starts) == 0:
        return []
    length = int(lengths[0])
    if len(starts) == 1:
        start = int(starts[0])
        return [buffer[start : start + length]]
    pieces: list[bytes]
    if kernel.native is not None and isinstance(buffer, bytes):
        places = (each.astype(np.int64, copy=False).tobytes() for each in (starts, lengths))
        found = kernel.native.slices(buffer, *places)
        if found is not None:
            pieces = found
            return pieces
    if length > 0 and (lengths == length).all():
        # Items of one width leave NumPy as bytes without a slice object each. As V: items of type
        # S would lose the zero bytes that they end with.
        pieces = sliding(buffer, f"V{length}")[starts].tolist()
        return pieces
    return list(map(buffer.__getitem__, map(slice, starts.tolist(), (starts + lengths).tolist())))


def crcs(buffer: bytes | NDArray[np.uint8], starts: IntArray, lengths: IntArray) -> IntArray:
    """Return the CRC-32 of each piece, not masked."""
    if len(starts) == 0:
        return np.zeros(0, np.int64)
    if kernel.native is not None and isinstance(buffer, bytes):
        found = kernel.native.crcs(buffer, starts.tobytes(), lengths.tobytes())
        if found is not None:
            return np.frombuffer(found, np.int64)
    pieces: Iterable[bytes | memoryview]
    length = int(lengths[0])
    if 0 < length <= _COPIED_BYTES_MAX and (lengths == length).all():
        pieces = sliding(buffer, f"V{length}")[starts].tolist()
    else:
        # A bytearray, too: large requests come as one.
        is_large = int(lengths.max()) > _COPIED_BYTES_MAX
        whole = memoryview(buffer) if is_large else bytes(buffer)  # type: ignore[arg-type]
        pieces = map(whole.__getitem__, map(slice, starts.tolist(), (starts + lengths).tolist()))
    return np.fromiter(map(zlib.crc32, pieces), np.int64, len(starts))


def tags_codes(buffer: bytes, parts: Parts) -> IntArray:
    """Return each record's tagsCode: the hash of the TAGS that `properties.decode` would give.

    Our writers put TAGS first, which is hashed for all records at once. Where the property stands
    elsewhere, or twice, the records are parsed one by one.
    """
    starts, lengths = parts.properties_starts, np.maximum(parts.properties_lengths, 0)
    count = len(starts)
    codes = np.zeros(count, np.int64)
    if count == 0:
        return codes
    if kernel.native is not None:
        found = kernel.native.tags_codes(buffer, starts.tobytes(), lengths.tobytes())
        if found is not None:
            return np.frombuffer(found, np.int64)
    heads = sliding(buffer, f"V{len(_TAGS_PREFIX)}")[
        np.minimum(starts, len(buffer) - len(_TAGS_PREFIX))
    ]
    # A head clipped at the buffer's end belongs to properties too short to hold a tag.
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
        # Lengths that may lead out of the buffer; these are hashed again below.
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
    """Tell which records may hold TAGS behind another property; never wrongly says no.

    Only properties are searched, since bodies are long and may hold anything. They are copied
    next to each other without their first bytes: otherwise the 0x02 that ends one and the TAGS
    that begins the next would look like a find. A first byte 0x02 is left to the caller.
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
