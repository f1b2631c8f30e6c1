"""The entries of one ConsumeQueue that wait, while others before and behind them are completed.

An entry is *completed* when what its message waited for has happened: it was delivered, cancelled,
committed, rolled back. That happens in any order, so a single offset cannot say how far one is.

Invariants:
1. Entries below `next_offset` were taken in. Of these the pending ones are kept, and every other
   one is completed.
2. Offsets and positions ascend strictly, as they do in the ConsumeQueue and in the log.
3. Entries that were completed go when they are the most, so memory is bounded by the pending ones:
   33 bytes for each, less than four times that while it is being tidied or grown.
"""

import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rockoon_format.consume_queue import FILLER_SIZE, EntryArray

NO_DEADLINE = 2**63 - 1
# Below this, arrays that are mostly completed entries are not worth a copy.
_TIDY_COUNT_MIN = 256

_HEAD = struct.Struct("<qq")
_COLUMNS = 3
PENDING_BYTES = 8 * _COLUMNS

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Pending:
    """Entries that wait, in the order of the log. Copies; int64[n] each."""

    offsets: IntArray
    """Queue offsets."""
    positions: IntArray
    """Physical offsets of their records, which is how they are named."""
    codes: IntArray
    """Tags codes of the ConsumeQueue; for delayed messages the deliver time in epoch ms."""
    deadlines_ms: IntArray
    """A second time that the owner noted, not kept over a restart; NO_DEADLINE if it did not."""

    def __len__(self) -> int:
        return len(self.positions)


class PendingQueue:
    """What is completed of one queue. Pure; owned by whoever owns the store.

    Args:
        next_offset: queue offset of the first entry that is not taken in yet.
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
        """How many entries wait."""
        return self._count - self._completed_count

    @property
    def low_water(self) -> int:
        """Queue offset below which everything is completed."""
        if len(self) == 0:
            return self.next_offset
        # Ends at the first that waits, however many follow.
        return int(self._offsets[int(self._completed[: self._count].argmin())])

    @property
    def oldest_position(self) -> int | None:
        """Physical offset of the first that waits; None while none does."""
        if len(self) == 0:
            return None
        return int(self._positions[int(self._completed[: self._count].argmin())])

    def take_in(
        self,
        first_offset: int,
        entries: EntryArray,
        *,
        codes: IntArray | None = None,
        deadlines_ms: IntArray | None = None,
    ) -> None:
        """Take note of entries; fillers and those taken in before are passed over.

        Args:
            first_offset: queue offset of the first. A gap before it counts as completed: retention
                has deleted those entries.
            entries: structured ConsumeQueue entries, n.
            codes: what to keep as the codes instead of the entries' own, int64[n].
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
        """Complete entries; positions that name none of the pending ones are passed over.

        Args:
            positions: physical offsets, in any order.

        Returns:
            How many were pending before.
        """
        wanted = np.asarray(positions, np.int64)
        if self._count == 0 or len(wanted) == 0:
            return 0
        indices, found = self._find(wanted)
        # One that is named twice counts once, or `len` would say that fewer wait than do.
        hit = np.unique(indices[found])
        self._completed[hit] = True
        self._completed_count += len(hit)
        self._maybe_tidy()
        return len(hit)

    def complete_below(self, offset: int) -> int:
        """Complete every entry below a queue offset, those not taken in yet as well."""
        self.next_offset = max(self.next_offset, offset)
        end = int(np.searchsorted(self._offsets[: self._count], offset))
        count = int(np.count_nonzero(~self._completed[:end]))
        self._completed[:end] = True
        self._completed_count += count
        self._maybe_tidy()
        return count

    def skip_to(self, offset: int) -> None:
        """Take in nothing below a queue offset: those entries are gone."""
        self.next_offset = max(self.next_offset, offset)

    def take_gone(self, log_min: int) -> Pending:
        """Complete the pending entries whose records the log does not hold any more.

        Args:
            log_min: physical offset of the oldest byte kept.

        Returns:
            The entries that this lost.
        """
        if self._count == 0 or self._positions[0] >= log_min:
            return self._select(np.zeros(0, np.int64))
        end = int(np.searchsorted(self._positions[: self._count], log_min))
        gone = self._select(np.flatnonzero(~self._completed[:end]))
        self.complete(gone.positions)
        return gone

    def are_pending(self, positions: ArrayLike) -> NDArray[np.bool_]:
        """Which of some physical offsets name an entry that waits, bool[n]."""
        wanted = np.asarray(positions, np.int64)
        if self._count == 0:
            return np.zeros(len(wanted), np.bool_)
        return self._find(wanted)[1]

    def pending(self, count_max: int | None = None) -> Pending:
        """The entries that wait, or the oldest of them."""
        return self._select(np.flatnonzero(~self._completed[: self._count])[:count_max])

    def pending_from(self, offset: int) -> Pending:
        """The entries that wait from a queue offset on."""
        first = int(np.searchsorted(self._offsets[: self._count], offset))
        return self._select(first + np.flatnonzero(~self._completed[first : self._count]))

    def pending_before(self, position: int) -> Pending:
        """The entries that wait and whose records begin before a physical offset."""
        end = int(np.searchsorted(self._positions[: self._count], position))
        return self._select(np.flatnonzero(~self._completed[:end]))

    def pending_until(self, code: int, deadline_ms: int) -> Pending:
        """The entries that wait with a code or a deadline not above these, in the log's order.

        Looks at every entry that is kept: a million take about two milliseconds.
        """
        count = self._count
        near = (self._codes[:count] <= code) | (self._deadlines_ms[:count] <= deadline_ms)
        return self._select(np.flatnonzero(near & ~self._completed[:count]))

    def revise(self, codes: IntArray, deadlines_ms: IntArray) -> None:
        """Give the pending entries other codes and deadlines, int64[len(self)] in their order."""
        waiting = np.flatnonzero(~self._completed[: self._count])
        self._codes[waiting] = codes
        self._deadlines_ms[waiting] = deadlines_ms

    def to_bytes(self) -> bytes:
        """What `from_bytes` makes the same queue of: 16 bytes and 24 for each pending entry.

        next offset 8 | count n 8 | n queue offsets | n positions | n codes, all little-endian
        """
        waits = ~self._completed[: self._count]
        columns = (self._offsets, self._positions, self._codes)
        pieces = [column[: self._count][waits].astype("<i8").tobytes() for column in columns]
        return b"".join((_HEAD.pack(self.next_offset, len(self)), *pieces))

    @classmethod
    def from_bytes(cls, raw: bytes) -> "PendingQueue":
        """The queue of `to_bytes`, without its deadlines.

        Raises:
            ValueError: the bytes are none.
        """
        if len(raw) < _HEAD.size:
            raise ValueError(f"{len(raw)} bytes are no pending queue")
        next_offset, count = _HEAD.unpack_from(raw)
        if count < 0 or len(raw) != _HEAD.size + count * PENDING_BYTES:
            raise ValueError(f"{len(raw)} bytes for {count} pending entries")
        columns = np.frombuffer(raw, "<i8", offset=_HEAD.size).astype(np.int64)
        offsets, positions, codes = columns.reshape(_COLUMNS, count)
        if (np.diff(offsets) <= 0).any() or (np.diff(positions) <= 0).any():
            raise ValueError("pending entries are out of order")
        if count and not 0 <= offsets[0] <= offsets[-1] < next_offset:
            raise ValueError(f"pending entries lie outside 0 to {next_offset}")
        queue = cls(next_offset)
        none = np.full(count, NO_DEADLINE, np.int64)
        queue._add(offsets, positions, codes, none)
        return queue

    def _find(self, positions: IntArray) -> tuple[IntArray, NDArray[np.bool_]]:
        """Where each would be, and whether a pending entry is there. There is an entry at least."""
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
            # Doubling, so that taking in n entries copies each of them a few times at most.
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
