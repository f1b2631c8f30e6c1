"""Sequence number of an idempotent producer's record: the property `__SEQ`.

It is the last property of every record of an idempotent producer, before the checksum if there is
one, and has a fixed length:

    +-------+------+------------------+--------------+------+------+
    | __SEQ | 0x01 | producer id      | first        | index| 0x02 |
    +-------+------+------------------+--------------+------+------+
        5      1     16 hex digits      12             4       1      = 39 bytes

`first` is the sequence number of the batch's first message, `index` the record's position in the
batch; their sum is the record's sequence number. So each record identifies its message and the
start of its batch, even if a crash kept only a part of the batch. RocketMQ treats it as a user's
property.

A section shorter than 39 bytes cannot end with this property: its length field of two bytes would
be among these letters, and any two of the letters are a larger number. So only the end of a record
is checked.
"""

import binascii
import contextlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rockoon_format import kernel
from rockoon_format.checksums import end_with_checksum
from rockoon_format.frames import IntArray, sliding
from rockoon_format.properties import (
    NAME_VALUE_SEPARATOR,
    PROPERTY_SEPARATOR,
    PROPERTY_SEQUENCE,
)
from rockoon_format.record import PROPERTY_CRC_BYTES, RECORD_BYTES_MIN

SEQUENCE_MAX = (1 << 48) - 1
BATCH_MESSAGES_MAX = 1 << 16
PRODUCER_ID_MAX = (1 << 64) - 1

_HEAD = PROPERTY_SEQUENCE.encode() + NAME_VALUE_SEPARATOR
_DIGITS = 32
SECTION_BYTES = len(_HEAD) + _DIGITS + len(PROPERTY_SEPARATOR)
assert SECTION_BYTES == 39

_BINARY = np.dtype([("producer_id", ">u8"), ("first", "V6"), ("index", ">u2")])
assert _BINARY.itemsize * 2 == _DIGITS
_SECTION = np.dtype(
    [("head", f"V{len(_HEAD)}"), ("digits", f"V{_DIGITS}"), ("end", f"V{len(PROPERTY_SEPARATOR)}")]
)
assert _SECTION.itemsize == SECTION_BYTES

# The bytes before the property: another property's closing 0x02, or the length of a section that
# contains only this property, or this property and a checksum.
_BEFORE_BYTES = 2
_ALONE = tuple(
    np.frombuffer((SECTION_BYTES + more).to_bytes(_BEFORE_BYTES), np.uint8)
    for more in (0, PROPERTY_CRC_BYTES)
)
assert RECORD_BYTES_MIN > SECTION_BYTES + PROPERTY_CRC_BYTES + _BEFORE_BYTES

_NO_DIGIT = 0xFF
_DIGIT_VALUES = np.full(256, _NO_DIGIT, np.uint8)
_DIGIT_VALUES[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)


@dataclass(frozen=True, slots=True)
class FoundSequences:
    """The m records of idempotent producers among the given records."""

    indices: IntArray
    """Numbers of the records, ascending, int64[m]."""
    producer_ids: NDArray[np.uint64]
    first_sequences: IntArray
    """Sequence number of the first message of each record's batch, int64[m]."""
    batch_indices: IntArray
    """Each record's position in its batch, int64[m]."""

    def of(self, chosen: NDArray[np.bool_]) -> "FoundSequences":
        """Return the sequences of the records that a mask selects, bool[m]."""
        if chosen.all():
            return self
        return FoundSequences(
            self.indices[chosen],
            self.producer_ids[chosen],
            self.first_sequences[chosen],
            self.batch_indices[chosen],
        )


def encode_sequences(producer_id: int, first_sequence: int, count: int) -> NDArray[np.void]:
    """Return the property for each record of a batch, `count` items of 39 bytes.

    Args:
        producer_id: 1 to 2^64 - 1.
        first_sequence: sequence number of the batch's first message; 0 to 2^48 - 1.
        count: messages in the batch, at most 65536.

    Raises:
        ValueError: a number is out of its bounds.
    """
    _check_numbers(producer_id, first_sequence, count)
    binary = np.empty(count, _BINARY)
    binary["producer_id"] = producer_id
    binary["first"] = np.void(first_sequence.to_bytes(6))
    binary["index"] = np.arange(count)
    sections = np.empty(count, _SECTION)
    sections["head"] = np.void(_HEAD)
    sections["digits"] = np.frombuffer(binary.tobytes().hex().encode(), f"V{_DIGITS}")
    sections["end"] = np.void(PROPERTY_SEPARATOR)
    return sections.view(f"V{SECTION_BYTES}")


def sequence_front(producer_id: int, first_sequence: int, count: int) -> bytes:
    """Return the common front of the properties of `encode_sequences`: without index and end."""
    _check_numbers(producer_id, first_sequence, count)
    return _HEAD + b"%016x%012x" % (producer_id, first_sequence)


def _check_numbers(producer_id: int, first_sequence: int, count: int) -> None:
    if not 0 < producer_id <= PRODUCER_ID_MAX:
        raise ValueError(f"producer id {producer_id} is not within 1 to 2^64 - 1")
    if not 0 <= first_sequence <= SEQUENCE_MAX - count:
        raise ValueError(f"sequence {first_sequence} is not within 0 to 2^48 - 1")
    if not 0 < count <= BATCH_MESSAGES_MAX:
        raise ValueError(f"a batch of {count} messages, not 1 to {BATCH_MESSAGES_MAX}")


def first_without_sequence(
    frames: bytes, lengths: ArrayLike, producer_id: int, first_sequence: int
) -> int | None:
    """Return the first record without its expected sequence number, None if all have theirs.

    Args:
        frames: records back to back, each whole (`rockoon_format.batch.check_batch`).
        lengths: size of each in bytes, n integers.
        producer_id, first_sequence: the arguments of `encode_sequences` for these records.

    Raises:
        ValueError: see `encode_sequences`.
    """
    sizes = np.asarray(lengths, np.int64)
    expected = encode_sequences(producer_id, first_sequence, len(sizes))
    ends, checked = _without_checksums(frames, np.cumsum(sizes))
    found = sliding(frames, f"V{SECTION_BYTES}")[ends - SECTION_BYTES]
    right = _is_whole_property(frames, ends, checked)
    if found.tobytes() != expected.tobytes():
        pairs = (each.view(np.uint8).reshape(len(sizes), -1) for each in (found, expected))
        right &= np.equal(*pairs).all(1)
    return None if right.all() else int((~right).argmax())


def find_sequences(frames: bytes, starts: ArrayLike, lengths: ArrayLike) -> FoundSequences:
    """Find the records with a sequence number; for other records only the end is read.

    Args:
        frames: whole records.
        starts: position of each record in `frames`, n integers.
        lengths: size of each in bytes, n integers.
    """
    ends = np.asarray(starts, np.int64) + np.asarray(lengths, np.int64)
    if not len(ends):
        return _found(np.zeros(0, np.int64), np.zeros((0, _DIGITS // 2), np.uint8))
    candidates, ends, checked = _candidates(frames, ends)
    if not len(candidates):
        return _found(candidates, np.zeros((0, _DIGITS // 2), np.uint8))
    sections = sliding(frames, f"V{SECTION_BYTES}")[ends - SECTION_BYTES]
    letters = sections.view(np.uint8).reshape(len(candidates), SECTION_BYTES)
    binary, whole = _from_hex(letters[:, len(_HEAD) : len(_HEAD) + _DIGITS])
    whole &= letters[:, -1] == PROPERTY_SEPARATOR[0]
    whole &= _is_whole_property(frames, ends, checked)
    return _found(candidates[whole], binary[whole])


def _candidates(frames: bytes, ends: IntArray) -> tuple[IntArray, IntArray, NDArray[np.bool_]]:
    """Records that have the property's name at its position: their numbers, their ends without
    checksums, and which have a checksum."""
    found = kernel.native.sequence_ends(frames, ends.tobytes())
    if found is not None:
        numbers, fronts = (np.frombuffer(each, np.int64) for each in found[:2])
        return numbers, fronts, np.frombuffer(found[2], np.bool_)
    ends, checked = _without_checksums(frames, ends)
    heads = sliding(frames, f"S{len(_HEAD)}")[ends - SECTION_BYTES]
    candidates = np.flatnonzero(heads == _HEAD)
    return candidates, ends[candidates], checked[candidates]


def _from_hex(digits: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Return the decoded rows of digits, and which rows are valid lower-case digits; other rows are
    undefined."""
    text = digits.tobytes()
    # If all rows are valid, one conversion needs a tenth of the time.
    if text.lower() == text:
        with contextlib.suppress(binascii.Error):
            binary = np.frombuffer(binascii.unhexlify(text), np.uint8)
            return binary.reshape(-1, _DIGITS // 2), np.ones(len(digits), np.bool_)
    values = _DIGIT_VALUES[digits]
    return values[:, 0::2] << np.uint8(4) | values[:, 1::2], (values != _NO_DIGIT).all(1)


def _without_checksums(frames: bytes, ends: IntArray) -> tuple[IntArray, NDArray[np.bool_]]:
    """Ends of the properties without checksums, and which records have a checksum."""
    checked = end_with_checksum(frames, ends)
    return ends - PROPERTY_CRC_BYTES * checked, checked


def _is_whole_property(
    frames: bytes, ends: IntArray, checked: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """True if the property's name starts at a property boundary: `x__SEQ` is another property."""
    before = sliding(frames, f"V{_BEFORE_BYTES}")[ends - SECTION_BYTES - _BEFORE_BYTES]
    letters = before.view(np.uint8).reshape(len(ends), _BEFORE_BYTES)
    alone = (letters == np.where(checked[:, None], _ALONE[1], _ALONE[0])).all(1)
    whole: NDArray[np.bool_] = alone | (letters[:, -1] == PROPERTY_SEPARATOR[0])
    return whole


def _found(indices: IntArray, binary: NDArray[np.uint8]) -> FoundSequences:
    fields = np.frombuffer(binary.tobytes(), _BINARY)
    padded = np.zeros((len(fields), 8), np.uint8)
    padded[:, 2:] = binary[:, 8:14]
    return FoundSequences(
        indices=indices,
        producer_ids=fields["producer_id"].astype(np.uint64),
        first_sequences=padded.view(">i8")[:, 0].astype(np.int64),
        batch_indices=fields["index"].astype(np.int64),
    )
