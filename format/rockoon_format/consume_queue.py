"""ConsumeQueue entries: 20 bytes each, entry N at byte 20 N of the queue's files.

    0                  8          12                 20
    +------------------+----------+------------------+
    | physical offset  | size     | tags code        |
    | i64              | i32      | i64              |
    +------------------+----------+------------------+

Unwritten entries are zeros. If the first file of a queue does not start with its first message, it
starts with fillers (offset 0, size 0x7FFFFFFF, code 0). An entry is valid if its offset is not
negative and its size is positive, so fillers are valid. Source: ConsumeQueue.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

ENTRY = np.dtype([("offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
ENTRY_BYTES = 20
assert ENTRY.itemsize == ENTRY_BYTES

QUEUE_FILE_BYTES_DEFAULT = 300_000 * ENTRY_BYTES
FILLER_SIZE = 0x7FFFFFFF
EXT_ADDRESS_MAX = -(2**31) - 1
"""Codes up to this value are not hashes: with enableConsumeQueueExt, RocketMQ stores the position
of a unit in `consumequeue_ext` there. The hash can be computed from the record."""

EntryArray = NDArray[np.void]
"""Structured arrays of `ENTRY`."""


def encode_entries(offsets: ArrayLike, sizes: ArrayLike, tags_codes: ArrayLike) -> EntryArray:
    """Return a structured array of entries; `.tobytes()` is the file's content.

    Args:
        offsets: physical offsets of the records in the CommitLog, int64[n].
        sizes: record sizes in bytes, int[n].
        tags_codes: tags codes, int64[n].
    """
    offsets = np.asarray(offsets, np.int64)
    entries = np.empty(len(offsets), ENTRY)
    entries["offset"] = offsets
    entries["size"] = sizes
    entries["tags_code"] = tags_codes
    return entries


def decode_entries(buffer: bytes | bytearray | memoryview) -> EntryArray:
    """View a buffer's entries without copying; an incomplete last entry is ignored."""
    return np.frombuffer(buffer, ENTRY, count=len(memoryview(buffer)) // ENTRY_BYTES)


def filler_entries(count: int) -> bytes:
    """Return the bytes of `count` fillers."""
    filler = np.zeros((), ENTRY)
    filler["size"] = FILLER_SIZE
    return filler.tobytes() * count


def count_fillers(entries: EntryArray) -> int:
    """Return the number of fillers before the first entry of a message."""
    is_filler = (entries["size"] == FILLER_SIZE) & (entries["offset"] == 0)
    return _leading_true(is_filler)


def count_valid(buffer: bytes | bytearray | memoryview) -> int:
    """Return the number of leading valid entries of `buffer` (ConsumeQueue#recover)."""
    entries = decode_entries(buffer)
    return _leading_true((entries["size"] > 0) & (entries["offset"] >= 0))


def _leading_true(flags: NDArray[Any]) -> int:
    if flags.all():
        return len(flags)
    return int(flags.argmin())
