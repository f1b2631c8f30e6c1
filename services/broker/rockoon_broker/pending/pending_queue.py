"""Pending entries of one ConsumeQueue, which are completed in any order.

An entry is *completed* when its message was delivered, cancelled, committed or rolled back.
Because the order is arbitrary, a single offset cannot describe the progress.

Invariants:
1. Entries below `next_offset` were added. Those that are pending are kept; the rest is completed.
2. Offsets and positions ascend strictly, as in the ConsumeQueue and in the log.
3. Completed entries are removed when they are the majority, so memory is bounded by the pending
   ones: 33 bytes each, less than four times that during compaction or growth.

A record that commits a half message contains the physical offset of this message (RocketMQ's
PREPAREDTRANSACTIONOFFSET, with the commit bit of the system flags). A record that delivers or
cancels a delayed message stores `~offset` in this field. It is negative, so that offset 0 can be
expressed, and so that the record is not mistaken for a committed transaction. All other records
have 0. So the log alone determines which records are completed, after any crash. Producers may not
set the field: `check_batch` refuses it.
"""

import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rockoon_format.consume_queue import FILLER_SIZE, EntryArray
from rockoon_format.frames import sliding
from rockoon_format.record import (
    AT_PREPARED_OFFSET_V4,
    HOST_V6_EXTRA_BYTES,
    SYS_FLAG_BORN_HOST_V6,
    SYS_FLAG_STORE_HOST_V6,
    SYS_FLAG_TRANSACTION,
    TRANSACTION_COMMIT,
)
from rockoon_format.scan import Scan

NO_DEADLINE = 2**63 - 1
# Smaller arrays are not compacted.
_TIDY_COUNT_MIN = 256

_HEAD = struct.Struct("<qq")
_COLUMNS = 3
PENDING_BYTES = 8 * _COLUMNS

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Pending:
    """Pending entries in log order. Copies; int64[n] each."""

    offsets: IntArray
    """Queue offsets."""
    positions: IntArray
    """Physical offsets of their records, which identify them."""
    codes: IntArray
    """Tag codes of the ConsumeQueue; for delayed messages the deliver time in epoch ms."""
    deadlines_ms: IntArray
    """A second due time set by the owner, lost at a restart; NO_DEADLINE if not set."""

    def __len__(self) -> int:
        return len(self.positions)


class PendingQueue:
    """The pending entries of one queue. Pure; used by the store's owner.

    Args:
        next_offset: queue offset of the first entry that was not added yet.
    """

    def __init__(self, next_offset: int = 0) -> None:
        self.next_offset = next_offset
        self._count = 0
        self._completed_count = 0
        self._offsets = np.zeros(0, np.int64)
        self._positions = np.zeros(0, np.int64)
        self._codes = np.zeros(0, np.int64)
        self._deadlines_ms = np.zeros(0, np.int64)
        self._completed = np.zeros(0, np.bool_)

    def __len__(self) -> int:
        """Number of pending entries."""
        return self._count - self._completed_count

    @property
    def low_water(self) -> int:
        """Queue offset below which all entries are completed."""
        if len(self) == 0:
            return self.next_offset
        # `argmin` stops at the first pending one.
        return int(self._offsets[int(self._completed[: self._count].argmin())])

    @property
    def oldest_position(self) -> int | None:
        """Physical offset of the first pending entry; None if there is none."""
        if len(self) == 0:
            return None
        return int(self._positions[int(self._completed[: self._count].argmin())])

    def add_entries(
        self,
        first_offset: int,
        entries: EntryArray,
        *,
        codes: IntArray | None = None,
        deadlines_ms: IntArray | None = None,
    ) -> None:
        """Add entries; fillers and known entries are ignored.

        Args:
            first_offset: queue offset of the first. Skipped offsets count as completed: retention
                has deleted those entries.
            entries: structured ConsumeQueue entries, n.
            codes: codes to keep instead of the entries' own, int64[n].
            deadlines_ms: see `Pending.deadlines_ms`, int64[n].
        """
        offsets = np.arange(first_offset, first_offset + len(entries))
        positions = entries["offset"].astype(np.int64)
        sizes = entries["size"]
        wanted = (offsets >= self.next_offset) & (sizes != FILLER_SIZE) & (sizes > 0)
        if codes is None:
            codes = entries["tags_code"].astype(np.int64)
        if deadlines_ms is None:
            deadlines_ms = np.full(len(entries), NO_DEADLINE, np.int64)
        self._add(offsets[wanted], positions[wanted], codes[wanted], deadlines_ms[wanted])
        self.next_offset = max(self.next_offset, first_offset + len(entries))

    def complete(self, positions: ArrayLike) -> int:
        """Complete entries; positions without a pending entry are ignored.

        Args:
            positions: physical offsets, in any order.

        Returns:
            How many entries were pending before.
        """
        wanted = np.asarray(positions, np.int64)
        if self._count == 0 or len(wanted) == 0:
            return 0
        indices, found = self._find(wanted)
        # Count a repeated position once; otherwise `len` would be too small.
        hit = np.unique(indices[found])
        self._completed[hit] = True
        self._completed_count += len(hit)
        self._maybe_tidy()
        return len(hit)

    def complete_below(self, offset: int) -> int:
        """Complete all entries below a queue offset, including entries that were not added yet."""
        self.next_offset = max(self.next_offset, offset)
        end = int(np.searchsorted(self._offsets[: self._count], offset))
        count = int(np.count_nonzero(~self._completed[:end]))
        self._completed[:end] = True
        self._completed_count += count
        self._maybe_tidy()
        return count

    def skip_to(self, offset: int) -> None:
        """Skip entries below a queue offset, which are deleted."""
        self.next_offset = max(self.next_offset, offset)

    def complete_deleted(self, log_min: int) -> Pending:
        """Complete pending entries whose records are no longer in the log.

        Args:
            log_min: physical offset of the oldest byte kept.

        Returns:
            The lost entries.
        """
        if self._count == 0 or self._positions[0] >= log_min:
            return self._select(np.zeros(0, np.int64))
        end = int(np.searchsorted(self._positions[: self._count], log_min))
        gone = self._select(np.flatnonzero(~self._completed[:end]))
        self.complete(gone.positions)
        return gone

    def are_pending(self, positions: ArrayLike) -> NDArray[np.bool_]:
        """Return for physical offsets whether each is that of a pending entry, bool[n]."""
        wanted = np.asarray(positions, np.int64)
        if self._count == 0:
            return np.zeros(len(wanted), np.bool_)
        return self._find(wanted)[1]

    def pending(self, count_max: int | None = None) -> Pending:
        """Return the pending entries, or the oldest `count_max` of them."""
        return self._select(np.flatnonzero(~self._completed[: self._count])[:count_max])

    def pending_from(self, offset: int) -> Pending:
        """Return the pending entries from a queue offset on."""
        first = int(np.searchsorted(self._offsets[: self._count], offset))
        return self._select(first + np.flatnonzero(~self._completed[first : self._count]))

    def pending_before(self, position: int) -> Pending:
        """Return the pending entries whose records begin before a physical offset."""
        end = int(np.searchsorted(self._positions[: self._count], position))
        return self._select(np.flatnonzero(~self._completed[:end]))

    def pending_until(self, code: int, deadline_ms: int) -> Pending:
        """Return pending entries whose code or deadline is at most the given one, in log order.

        Scans every entry: about two milliseconds per million.
        """
        count = self._count
        near = (self._codes[:count] <= code) | (self._deadlines_ms[:count] <= deadline_ms)
        return self._select(np.flatnonzero(near & ~self._completed[:count]))

    def revise(self, codes: IntArray, deadlines_ms: IntArray) -> None:
        """Replace codes and deadlines of the pending entries, int64[len(self)], in order."""
        waiting = np.flatnonzero(~self._completed[: self._count])
        self._codes[waiting] = codes
        self._deadlines_ms[waiting] = deadlines_ms

    def to_bytes(self) -> bytes:
        """Encode for `from_bytes`: 16 bytes, and 24 per pending entry.

        next offset 8 | count n 8 | n queue offsets | n positions | n codes, all little-endian
        """
        waits = ~self._completed[: self._count]
        columns = (self._offsets, self._positions, self._codes)
        pieces = [column[: self._count][waits].astype("<i8").tobytes() for column in columns]
        return b"".join((_HEAD.pack(self.next_offset, len(self)), *pieces))

    @classmethod
    def from_bytes(cls, raw: bytes) -> "PendingQueue":
        """Decode the result of `to_bytes`; deadlines are not included. Raises ValueError: the bytes
        are malformed."""
        if len(raw) < _HEAD.size:
            raise ValueError(f"{len(raw)} bytes are too few for a pending queue")
        next_offset, count = _HEAD.unpack_from(raw)
        if count < 0 or len(raw) != _HEAD.size + count * PENDING_BYTES:
            raise ValueError(f"{len(raw)} bytes for {count} pending entries")
        columns = np.frombuffer(raw, "<i8", offset=_HEAD.size).astype(np.int64)
        offsets, positions, codes = columns.reshape(_COLUMNS, count)
        if (np.diff(offsets) <= 0).any() or (np.diff(positions) <= 0).any():
            raise ValueError("pending entries are out of order")
        if count and not 0 <= offsets[0] <= offsets[-1] < next_offset:
            raise ValueError(f"pending entries are outside 0 to {next_offset}")
        queue = cls(next_offset)
        none = np.full(count, NO_DEADLINE, np.int64)
        queue._add(offsets, positions, codes, none)
        return queue

    def _find(self, positions: IntArray) -> tuple[IntArray, NDArray[np.bool_]]:
        """Return the index of each position and whether a pending entry is there; `_count` > 0."""
        indices = np.searchsorted(self._positions[: self._count], positions)
        indices = np.minimum(indices, self._count - 1)
        return indices, (self._positions[indices] == positions) & ~self._completed[indices]

    def _select(self, indices: IntArray) -> Pending:
        return Pending(
            self._offsets[indices],
            self._positions[indices],
            self._codes[indices],
            self._deadlines_ms[indices],
        )

    def _add(
        self, offsets: IntArray, positions: IntArray, codes: IntArray, deadlines_ms: IntArray
    ) -> None:
        start, end = self._count, self._count + len(offsets)
        if end > len(self._offsets):
            # Doubling bounds the number of copies per entry.
            self._resize(max(2 * len(self._offsets), end, _TIDY_COUNT_MIN))
        self._offsets[start:end] = offsets
        self._positions[start:end] = positions
        self._codes[start:end] = codes
        self._deadlines_ms[start:end] = deadlines_ms
        self._completed[start:end] = False
        self._count = end

    def _maybe_tidy(self) -> None:
        if self._completed_count < _TIDY_COUNT_MIN or 2 * self._completed_count < self._count:
            return
        kept = self.pending()
        self._count = self._completed_count = 0
        self._resize(max(len(kept), _TIDY_COUNT_MIN))
        self._add(kept.offsets, kept.positions, kept.codes, kept.deadlines_ms)

    def _resize(self, count: int) -> None:
        for name in ("_offsets", "_positions", "_codes", "_deadlines_ms", "_completed"):
            before = getattr(self, name)
            after = np.zeros(count, before.dtype)
            after[: self._count] = before[: self._count]
            setattr(self, name, after)


def named_source(source: int) -> int:
    """Return the field's value in a record made from the one at a physical offset."""
    return ~source


def sources_of(frames: bytes, records: Scan) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return which records of a part of the log were made from others.

    Args:
        frames: the records back to back.
        records: their columns; offsets are positions in `frames`.

    Returns:
        Their indices, and the physical offsets of their sources; int64[m] both.
    """
    if records.count == 0:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    flags = records.sys_flags
    extra = ((flags & SYS_FLAG_BORN_HOST_V6 != 0) * HOST_V6_EXTRA_BYTES) + (
        (flags & SYS_FLAG_STORE_HOST_V6 != 0) * HOST_V6_EXTRA_BYTES
    )
    at = records.offsets + AT_PREPARED_OFFSET_V4 + extra
    prepared: NDArray[np.int64] = sliding(frames, ">i8")[at].astype(np.int64)
    commits = flags & SYS_FLAG_TRANSACTION == TRANSACTION_COMMIT
    indices = np.flatnonzero((prepared < 0) | commits)
    named = prepared[indices]
    return indices, np.where(named < 0, ~named, named)
