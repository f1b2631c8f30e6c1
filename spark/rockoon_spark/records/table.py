"""Table: fields of whole records as Arrow columns, found by the compiled kernel in one pass.

The kernel follows records in their places, as `rockoon_format.scan.sizes_in_place` does, and writes
each field where Arrow has it: nothing is copied afterwards.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from rockoon_format import kernel
from rockoon_format.frames import IntArray

_TIME = pa.timestamp("us", tz="UTC")
# In the order of the kernel's (`table.rs`): int64 first, of which some are places, then int32.
_WORDS = ("physical_offset", "queue_offset", "born_time", "store_time", "prepared_offset")
_WORDS_ALL = 10
_NUMBERS = ("queue", "size", "flag", "sys_flag", "reconsume_times")
_TYPES = {"born_time": _TIME, "store_time": _TIME}
_WORD_BYTES, _NUMBER_BYTES = 8, 4


@dataclass(frozen=True, slots=True)
class Table:
    """Columns of n records."""

    columns: Mapping[str, pa.Array]
    """By the names of `columns.COLUMNS`, those of fields of one length."""
    topics: list[bytes]
    topic_numbers: pa.Array
    """Which of `topics` each record names."""
    starts: IntArray
    """Of the records, positions in the bytes."""
    sizes: IntArray
    body_starts: IntArray
    body_lengths: IntArray
    properties_starts: IntArray
    properties_lengths: IntArray
    """Without a checksum."""


def table_of(content: bytes, base: int, end: int) -> tuple[Table | None, int, bool]:
    """Follow the whole records in their places that some bytes begin with; with the compiled kernel
    only.

    Args:
        content: bytes of a CommitLog file, from a record's start on.
        base: physical offset of the first of them.
        end: how many bytes the file has from there on, these and others.

    Returns:
        The records, None without any; where they end; whether what is there has more bytes than
        these.
    """
    assert kernel.native is not None
    found = kernel.native.table(content, base, end)
    if found is None:
        return None, 0, False
    packed, topics, count, stop, more = found
    if not count:
        return None, 0, more
    buffer = pa.py_buffer(packed)
    words = np.frombuffer(packed, np.int64, _WORDS_ALL * count).reshape(_WORDS_ALL, count)
    sizes = words[0]
    columns = {
        name: _array(_TYPES.get(name, pa.int64()), count, buffer, at * count * _WORD_BYTES)
        for at, name in enumerate(_WORDS, 1)
    }
    first = _WORDS_ALL * count * _WORD_BYTES
    numbers = [
        _array(pa.int32(), count, buffer, first + at * count * _NUMBER_BYTES)
        for at in range(len(_NUMBERS) + 1)
    ]
    columns |= dict(zip(_NUMBERS, numbers, strict=False))
    starts = words[1] - base
    places = words[1 + len(_WORDS) :]
    return Table(columns, topics, numbers[-1], starts, sizes, *places), stop, more


def _array(kind: pa.DataType, count: int, buffer: pa.Buffer, at: int) -> pa.Array:
    return pa.Array.from_buffers(kind, count, [None, buffer.slice(at)])
