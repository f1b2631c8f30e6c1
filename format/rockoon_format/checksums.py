"""Checksum of a whole record: the property `__CRC32#`, RocketMQ's enabledAppendPropCRC.

A record's CRC field covers its body. The property covers every byte in front of it, other fields
and properties included. It is the last property of a record and has a fixed length:

    +----------+------+------------+------+
    | __CRC32# | 0x01 | ten digits | 0x02 |
    +----------+------+------------+------+
         8        1         10        1      = 20 bytes

The digits are the CRC-32 & 0x7FFFFFFF of all bytes before the property, in decimal, the least
significant first. The producer reserves the space, with ten `-` as digits. The broker writes the
digits after its own fields. Ten `-` therefore mean that a broker without checksums stored the
record.

A section shorter than 20 bytes cannot end with this property: its length field of two bytes would
be among these letters, and any two of the letters are a larger number. So only the end of a record
is checked. A property that differs from it in one or two letters is a damaged checksum.
Source: CommitLog#CRC32_RESERVED_LEN, MessageDecoder#createCrc32, MessageExtEncoder#encode.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rockoon_format import kernel
from rockoon_format.frames import IntArray, Parts, crcs, sliding
from rockoon_format.properties import PROPERTIES_BYTES_MAX, PROPERTY_SEPARATOR
from rockoon_format.record import (
    CRC_MASK,
    PROPERTY_CRC_ALIKE_MIN,
    PROPERTY_CRC_BYTES,
    PROPERTY_CRC_DIGITS,
    PROPERTY_CRC_HEAD,
    PROPERTY_CRC_ROOM,
)

AT_DIGITS = len(PROPERTY_CRC_HEAD)
PROPERTIES_CHECKED_BYTES_MAX = PROPERTIES_BYTES_MAX - PROPERTY_CRC_BYTES - len(PROPERTY_SEPARATOR)
"""Records with longer properties have no space for a checksum."""

DAMAGED, WHOLE = 1, 2
"""State bits of a record from `locate_whole` and the kernel: the record is damaged; the record has
a checksum, right or wrong."""

_END = PROPERTY_CRC_BYTES - 1
_DIGITS_END = AT_DIGITS + PROPERTY_CRC_DIGITS
_ROOM_LETTERS = np.frombuffer(PROPERTY_CRC_ROOM, np.uint8)
_IS_FIXED = np.ones(PROPERTY_CRC_BYTES, np.bool_)
_IS_FIXED[AT_DIGITS:_DIGITS_END] = False
_FIXED_LETTERS = _ROOM_LETTERS[_IS_FIXED]
_SEPARATOR = PROPERTY_SEPARATOR[0]
_POWERS = 10 ** np.arange(PROPERTY_CRC_DIGITS, dtype=np.int64)
assert _ROOM_LETTERS[_END] == _SEPARATOR
assert _DIGITS_END == _END


@dataclass(frozen=True, slots=True)
class Checks:
    """The checks of n records: the checksum of the whole record, or else the CRC of its body."""

    starts: IntArray
    """Position of the first covered byte in the buffer, int64[n]."""
    lengths: IntArray
    """Number of covered bytes, int64[n]."""
    expected: IntArray
    """CRC-32 & 0x7FFFFFFF in the record, int64[n]; negative if its digits are not a number."""
    whole: NDArray[np.bool_]
    """Records with a checksum, right or wrong, bool[n]."""

    def wrong(self, found: IntArray) -> NDArray[np.bool_]:
        """Damaged records, given the masked CRCs of the covered bytes, int64[n].

        The CRC of an empty body is ignored, as in CommitLog#checkMessageAndReturnSize.
        """
        wrong: NDArray[np.bool_] = found != self.expected
        wrong &= self.whole | (self.lengths > 0)
        return wrong


def checks_of(
    buffer: bytes | NDArray[np.uint8], parts: Parts, sizes: IntArray, *, checksums: bool = True
) -> Checks:
    """Find the check of each record.

    Args:
        buffer: the records; the parts of each add up to its size.
        parts: positions of the parts.
        sizes: size of each record in bytes, int64[n].
        checksums: False: only bodies are checked, which is RocketMQ's default.
    """
    body_lengths = np.maximum(parts.body_lengths, 0)
    body_crcs = parts.prefix["body_crc"].astype(np.int64)
    none = np.zeros(len(sizes), np.bool_)
    if not checksums or not len(sizes):
        return Checks(parts.body_starts, body_lengths, body_crcs, none)
    letters, is_room, mangled = _tails(buffer, parts.starts + sizes, parts.properties_lengths)
    digits = letters[:, AT_DIGITS:_DIGITS_END]
    whole = is_room & (digits != _ROOM_LETTERS[AT_DIGITS:_DIGITS_END]).any(1)
    expected = body_crcs
    starts, lengths = parts.body_starts, body_lengths
    if whole.any():
        values = digits.astype(np.int64) - ord("0")
        numbers = values @ _POWERS
        numbers[((values < 0) | (values > 9)).any(1)] = -1
        starts = np.where(whole, parts.starts, starts)
        lengths = np.where(whole, sizes - PROPERTY_CRC_BYTES, lengths)
        expected = np.where(whole, numbers, body_crcs)
    if mangled.any():
        expected = np.where(mangled, -1, expected)
    return Checks(starts, lengths, expected, whole | mangled)


def crc32(data: bytes) -> int:
    """CRC-32 of bytes, as `zlib.crc32`; ten times as fast in the compiled kernel."""
    found: int = kernel.native.crc32(data)
    return found


def damaged_records(buffer: bytes, parts: Parts, sizes: IntArray) -> NDArray[np.bool_]:
    """Damaged records, bool[n]; the arguments are those of `checks_of`."""
    found = compared(buffer, parts.starts, sizes)
    return compare(buffer, parts, sizes)[0] if found is None else found


def is_damaged(buffer: bytes, parts: Parts, sizes: IntArray) -> bool:
    """`damaged_records` of one record, without array operations."""
    found = _compared(buffer, parts.starts, sizes, checksums=True)
    return bool(damaged_records(buffer, parts, sizes)[0] if found is None else found[0] & DAMAGED)


def compare(
    buffer: bytes, parts: Parts, sizes: IntArray, *, checksums: bool = True
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Damaged records, and records with a checksum, right or wrong; bool[n] both.

    The arguments are those of `checks_of`.
    """
    if (states := _states(buffer, parts.starts, sizes, checksums=checksums)) is not None:
        return states & DAMAGED != 0, states & WHOLE != 0
    checks = checks_of(buffer, parts, sizes, checksums=checksums)
    return checks.wrong(crcs(buffer, checks.starts, checks.lengths) & CRC_MASK), checks.whole


def compared(buffer: bytes, starts: IntArray, sizes: IntArray) -> NDArray[np.bool_] | None:
    """Find damaged records in the kernel, as `damaged_records` does; bool[n]. None: the kernel
    cannot decide, and the caller must use `damaged_records`."""
    states = _states(buffer, starts, sizes, checksums=True)
    return None if states is None else states & DAMAGED != 0


def _states(
    buffer: bytes, starts: IntArray, sizes: IntArray, *, checksums: bool
) -> NDArray[np.uint8] | None:
    found = _compared(buffer, starts, sizes, checksums=checksums)
    return None if found is None else np.frombuffer(found, np.uint8)


def _compared(
    buffer: bytes, starts: IntArray, sizes: IntArray, *, checksums: bool
) -> bytearray | None:
    found: bytearray | None
    found = kernel.native.compare(buffer, starts.tobytes(), sizes.tobytes(), checksums)
    return found


def room_of(
    buffer: bytes | NDArray[np.uint8], ends: IntArray, properties_lengths: IntArray
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return two masks, bool[n]: records that end with the checksum property, filled or reserved,
    and records that end with a damaged checksum property.

    Args:
        buffer: whole records.
        ends: position after each record, int64[n].
        properties_lengths: length of each record's properties, int64[n].
    """
    if isinstance(buffer, bytes):
        found = kernel.native.rooms(buffer, ends.tobytes(), properties_lengths.tobytes())
        if found is not None:
            states = np.frombuffer(found, np.uint8)
            return states == 1, states == 2
    _, is_room, mangled = _tails(buffer, ends, properties_lengths)
    return is_room, mangled


def end_with_checksum(frames: bytes, ends: IntArray) -> NDArray[np.bool_]:
    """Records that end with the letters of the property; earlier bytes are not checked. bool[n]."""
    letters = sliding(frames, f"V{PROPERTY_CRC_BYTES}")[ends - PROPERTY_CRC_BYTES]
    fixed = letters.view(np.uint8).reshape(len(ends), PROPERTY_CRC_BYTES)[:, _IS_FIXED]
    alike: NDArray[np.bool_] = (fixed == _FIXED_LETTERS).all(1)
    return alike


def _tails(
    buffer: bytes | NDArray[np.uint8], ends: IntArray, properties_lengths: IntArray
) -> tuple[NDArray[np.uint8], NDArray[np.bool_], NDArray[np.bool_]]:
    """Return the last 20 bytes of each record, uint8[n, 20], whether they are the checksum
    property, and whether they resemble it; bool[n] both."""
    tails = sliding(buffer, f"V{PROPERTY_CRC_BYTES}")[ends - PROPERTY_CRC_BYTES]
    letters = tails.view(np.uint8).reshape(len(ends), PROPERTY_CRC_BYTES)
    alike = (letters[:, _IS_FIXED] == _FIXED_LETTERS).sum(1)
    close = (alike >= PROPERTY_CRC_ALIKE_MIN) & (properties_lengths >= PROPERTY_CRC_BYTES)
    before = sliding(buffer, np.uint8)[ends - PROPERTY_CRC_BYTES - 1]
    # `x__CRC32#` is another property.
    begins = (properties_lengths == PROPERTY_CRC_BYTES) | (before == _SEPARATOR)
    is_room = close & begins & (alike == len(_FIXED_LETTERS))
    return letters, is_room, close & ~is_room


def digits_of(checksums: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the ten digits of each checksum, uint8[n, 10]."""
    left = checksums.astype(np.uint32)
    digits = np.empty((len(left), PROPERTY_CRC_DIGITS), np.uint8)
    for place in range(PROPERTY_CRC_DIGITS):
        left, digits[:, place] = np.divmod(left, 10)
    return digits + np.uint8(ord("0"))
