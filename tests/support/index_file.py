"""An index file in a buffer, as RocketMQ reads and writes it: keys one by one, or many together."""

import struct
from collections.abc import Iterator
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from rockoon_format.index_file import (
    HEADER_BYTES,
    SLOT_BYTES,
    SLOTS_DEFAULT,
    UNIT_BYTES,
    UNITS_DEFAULT,
    IndexFileError,
    IndexHeader,
    decode_header,
    encode_header,
    first_place,
    header_behind,
    header_with,
    index_file_bytes,
    link_keys,
    unit_position,
    walk_chain,
)

_SLOT = struct.Struct(">i")
_UNIT = struct.Struct(">iqii")


class IndexFile:
    """An index file in a buffer: bytes for lookups, or a bytearray or writable map for additions.

    Args:
        buffer: the file's whole content. It must stay open as long as the object is used.
        slots, units: the file's shape, which the file does not contain.

    Raises:
        IndexFileError: the buffer's size does not fit the shape, or its header is not valid.
    """

    def __init__(
        self,
        buffer: bytes | bytearray | memoryview,
        *,
        slots: int = SLOTS_DEFAULT,
        units: int = UNITS_DEFAULT,
    ) -> None:
        self.view = memoryview(buffer)
        """The content of the buffer."""
        if len(self.view) != index_file_bytes(slots, units):
            raise IndexFileError(
                f"an index file of {len(self.view)} bytes, not {index_file_bytes(slots, units)}"
            )
        self._slots = slots
        self._units = units
        self.header = decode_header(self.view)
        if self.header.next_unit > units:
            raise IndexFileError(f"unit {self.header.next_unit} is next, the file has {units}")

    def close(self) -> None:
        """Release the buffer, so that a map can be closed."""
        self.view.release()

    @property
    def is_full(self) -> bool:
        return self.header.next_unit >= self._units

    @property
    def remaining(self) -> int:
        """Number of keys that still fit."""
        return self._units - self.header.next_unit

    def follow(self, previous: IndexHeader) -> None:
        """Start a new file after a full one, before its first key; see `header_behind`."""
        if self.header != IndexHeader():
            raise IndexFileError("the file already has keys")
        self.header = header_behind(previous)
        self.view[:HEADER_BYTES] = encode_header(self.header)

    def put(self, key_hash: int, physical_offset: int, store_timestamp_ms: int) -> bool:
        """Add one key; return False if the file is full. See `put_all` for many."""
        if self.is_full:
            return False
        header = self.header
        unit = header.next_unit
        slot_at = HEADER_BYTES + key_hash % self._slots * SLOT_BYTES
        (previous,) = _SLOT.unpack_from(self.view, slot_at)
        if not 0 < previous <= unit:
            previous = 0
        seconds = first_place(header, store_timestamp_ms)[1]
        _UNIT.pack_into(
            self.view, self._unit_at(unit), key_hash, physical_offset, seconds, previous
        )
        _SLOT.pack_into(self.view, slot_at, unit)
        self._advance(
            1,
            0 if previous else 1,
            first=(physical_offset, store_timestamp_ms),
            last=(physical_offset, store_timestamp_ms),
        )
        return True

    def put_all(
        self,
        key_hashes: NDArray[np.int64],
        physical_offsets: NDArray[np.int64],
        store_timestamps_ms: NDArray[np.int64],
    ) -> int:
        """Add keys in order; the result equals that of adding them one by one.

        Args:
            key_hashes: `hashes.index_key_hash` of each key, int64[n].
            physical_offsets, store_timestamps_ms: of each key's record, int64[n].

        Returns:
            Number of added keys; the remaining keys belong in the next file.
        """
        count = min(len(key_hashes), self.remaining)
        if count == 0:
            return 0
        slots = np.frombuffer(self.view, ">i4", self._slots, HEADER_BYTES)
        offsets, times_ms = physical_offsets[:count], store_timestamps_ms[:count]
        place = first_place(self.header, int(times_ms[0]))
        linked = link_keys(slots, *place, key_hashes[:count], offsets, times_ms)
        start = self._unit_at(self.header.next_unit)
        self.view[start : start + linked.units.nbytes] = linked.units.tobytes()
        slots[linked.slot_numbers] = linked.slot_values
        self.header = header_with(self.header, offsets, times_ms, linked.slots_used)
        self.view[:HEADER_BYTES] = encode_header(self.header)
        return count

    def _advance(
        self,
        count: int,
        slots_used: int,
        *,
        first: tuple[int, int],
        last: tuple[int, int],
    ) -> None:
        """Count new keys; `first` and `last` are offset and time of the first and last key."""
        header = self.header
        is_first = header.next_unit <= 1
        self.header = IndexHeader(
            begin_timestamp_ms=first[1] if is_first else header.begin_timestamp_ms,
            end_timestamp_ms=last[1],
            begin_offset=first[0] if is_first else header.begin_offset,
            end_offset=last[0],
            slots_used=header.slots_used + slots_used,
            next_unit=header.next_unit + count,
        )
        self.view[:HEADER_BYTES] = encode_header(self.header)

    def _unit_at(self, unit: int) -> int:
        return unit_position(self._slots, unit)

    def may_hold(self, begin_ms: int, end_ms: int) -> bool:
        """Return whether a message of the file may have been stored within the given times."""
        header = self.header
        return begin_ms <= header.end_timestamp_ms and end_ms >= header.begin_timestamp_ms

    def find(self, key_hash: int, begin_ms: int, end_ms: int, count_max: int) -> list[int]:
        """Return CommitLog offsets of records whose key has this hash, newest first.

        Args:
            key_hash: `hashes.index_key_hash` of `topic#key`.
            begin_ms, end_ms: store times, inclusive; the file has a resolution of a second.
            count_max: maximum number of results.

        Raises:
            IndexFileError: the chain is damaged.
        """
        (newest,) = _SLOT.unpack_from(self.view, HEADER_BYTES + key_hash % self._slots * SLOT_BYTES)
        return list(islice(self._matches(newest, key_hash, begin_ms, end_ms), count_max))

    def _matches(self, newest: int, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        chain = walk_chain(
            self.header, newest, self._read_unit, key_hash=key_hash, slots=self._slots
        )
        for unit in chain:
            if unit.key_hash == key_hash and begin_ms <= unit.stored_ms <= end_ms:
                yield unit.physical_offset
            if unit.stored_ms < begin_ms:
                return

    def _read_unit(self, unit: int) -> memoryview:
        start = self._unit_at(unit)
        return self.view[start : start + UNIT_BYTES]
