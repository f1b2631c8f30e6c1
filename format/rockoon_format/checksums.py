"""The property that a whole record can be checked by: `__CRC32#`, RocketMQ's enabledAppendPropCRC.

A record's own CRC covers its body. This one covers all else too, every field and property in front
of it. It is the last property of a record, always of the same length:

    +----------+------+------------+------+
    | __CRC32# | 0x01 | ten digits | 0x02 |
    +----------+------+------------+------+
         8        1         10        1      = 20 bytes

The digits are the CRC-32 & 0x7FFFFFFF of all bytes before the property, in decimal, the least
significant first. Who sends leaves room for it, with ten `-` for digits; the broker writes them
when it has written its own fields. So ten `-` are no checksum: a broker that knows of none has
stored the record.

No section shorter than 20 bytes can end like this: its length, two bytes, would stand among these
letters, and any two of them make a larger number. So the end of a record is all that is looked at.
A property that is this one but for a letter or two is a damaged one.
Source: CommitLog#CRC32_RESERVED_LEN, MessageDecoder#createCrc32, MessageExtEncoder#encode.
"""

import zlib
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
"""Records with longer properties have no room for a checksum."""

DAMAGED, WHOLE = 1, 2
"""What `locate_whole` and the compiled kernel say of a record: it is not what was stored; it has a
checksum of all of it, right or wrong."""

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
    """What n records are checked by: the checksum of the whole, or without it that of the body."""

    starts: IntArray
    """Where the bytes that are covered begin in the buffer, int64[n]."""
    lengths: IntArray
    """How many they are, int64[n]."""
    expected: IntArray
    """Their CRC-32 & 0x7FFFFFFF as the record says it, int64[n]; less than 0 for one that cannot
    be."""
    whole: NDArray[np.bool_]
    """Which records have a checksum, right or wrong, bool[n]."""

    def wrong(self, found: IntArray) -> NDArray[np.bool_]:
        """Which records are damaged, given the masked CRCs of the bytes, int64[n].

        An empty body's CRC is not looked at, as in CommitLog#checkMessageAndReturnSize.
        """
        wrong: NDArray[np.bool_] = found != self.expected
        wrong &= self.whole | (self.lengths > 0)
        return wrong


def checks_of(
    buffer: bytes | NDArray[np.uint8], parts: Parts, sizes: IntArray, *, checksums: bool = True
) -> Checks:
    """Find out what each record is checked by.

    Args:
        buffer: the records, each of whose parts add up to its size.
        parts: where they are.
        sizes: of each in bytes, int64[n].
        checksums: without, bodies alone are checked, as RocketMQ does it unless told otherwise.
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
    if kernel.native is None:
        return zlib.crc32(data)
    found: int = kernel.native.crc32(data)
    return found


def damaged_records(buffer: bytes, parts: Parts, sizes: IntArray) -> NDArray[np.bool_]:
    """Which records are not what was stored, bool[n]; the arguments are those of `checks_of`."""
    found = compared(buffer, parts.starts, sizes)
    return compare(buffer, parts, sizes)[0] if found is None else found


def is_damaged(buffer: bytes, parts: Parts, sizes: IntArray) -> bool:
    """As `damaged_records` of one record, without an operation on an array of one."""
    found = _compared(buffer, parts.starts, sizes, checksums=True)
    return bool(damaged_records(buffer, parts, sizes)[0] if found is None else found[0] & DAMAGED)


def compare(
    buffer: bytes, parts: Parts, sizes: IntArray, *, checksums: bool = True
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which records are damaged, and which have a checksum, right or wrong, bool[n] both.

    The arguments are those of `checks_of`.
    """
    if (states := _states(buffer, parts.starts, sizes, checksums=checksums)) is not None:
        return states & DAMAGED != 0, states & WHOLE != 0
    checks = checks_of(buffer, parts, sizes, checksums=checksums)
    return checks.wrong(crcs(buffer, checks.starts, checks.lengths) & CRC_MASK), checks.whole


def compared(buffer: bytes, starts: IntArray, sizes: IntArray) -> NDArray[np.bool_] | None:
    """What `damaged_records` gives of records at `starts`, without looking for their parts before;
    None where the compiled kernel leaves it open, or there is none."""
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
    if kernel.native is None:
        return None
    found: bytearray | None
    found = kernel.native.compare(buffer, starts.tobytes(), sizes.tobytes(), checksums)
    return found


def room_of(
    buffer: bytes | NDArray[np.uint8], ends: IntArray, properties_lengths: IntArray
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which records end with the property, its digits written or not, and which with what resembles
    it so much that it counts as damaged; bool[n] both.

    Args:
        buffer: whole records.
        ends: position behind each, int64[n].
        properties_lengths: bytes of each one's properties, int64[n].
    """
    if kernel.native is not None and isinstance(buffer, bytes):
        found = kernel.native.rooms(buffer, ends.tobytes(), properties_lengths.tobytes())
        if found is not None:
            states = np.frombuffer(found, np.uint8)
            return states == 1, states == 2
    _, is_room, mangled = _tails(buffer, ends, properties_lengths)
    return is_room, mangled


def end_with_checksum(frames: bytes, ends: IntArray) -> NDArray[np.bool_]:
    """Which records end with the letters of the property, whatever stands before, bool[n]."""
    letters = sliding(frames, f"V{PROPERTY_CRC_BYTES}")[ends - PROPERTY_CRC_BYTES]
    fixed = letters.view(np.uint8).reshape(len(ends), PROPERTY_CRC_BYTES)[:, _IS_FIXED]
    alike: NDArray[np.bool_] = (fixed == _FIXED_LETTERS).all(1)
    return alike


def _tails(
    buffer: bytes | NDArray[np.uint8], ends: IntArray, properties_lengths: IntArray
) -> tuple[NDArray[np.uint8], NDArray[np.bool_], NDArray[np.bool_]]:
    """The last 20 bytes of each record, uint8[n, 20]; which are the property, which resemble it."""
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
    """The ten digits of each checksum, uint8[n, 10]."""
    left = checksums.astype(np.uint32)
    digits = np.empty((len(left), PROPERTY_CRC_DIGITS), np.uint8)
    for place in range(PROPERTY_CRC_DIGITS):
        left, digits[:, place] = np.divmod(left, 10)
    return digits + np.uint8(ord("0"))
