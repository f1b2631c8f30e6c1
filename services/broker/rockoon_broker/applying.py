"""Applies records of the log, in log order, to the state that a broker derives from them.

Three cases use this module: a start, a follower, and a follower that becomes leader. In each case a
snapshot has the state up to some position, and the records after it are applied.
"""

from collections.abc import Sequence
from typing import Protocol

from rockoon_broker.store.log.reading import LogChunk
from rockoon_broker.store.store import Store

PIECE_BYTES_MAX = 8 << 20


class Derived(Protocol):
    """State that is derived from the records of the log, up to some position."""

    def lacks_from(self) -> int:
        """Return the physical offset of the first record that must be applied next; the store's
        visible end, or a higher offset, if none is missing. Raises OSError."""

    def apply(self, chunk: LogChunk) -> None:
        """Apply the records from `lacks_from` on. If retention has deleted the first of them, the
        chunk begins with the oldest record of the log."""


def apply_piece(
    store: Store, parts: Sequence[Derived], bytes_max: int = PIECE_BYTES_MAX
) -> int | None:
    """Read the next visible records, and apply them to all states that lack them.

    Args:
        bytes_max: limit of the bytes to read; at least one record is read.

    Returns:
        Number of records that were read; None if no state lacks a record.

    Raises:
        OSError, StoreSyncFailed, StoreClosed: the log cannot be read.
    """
    end = store.visible_end
    lacking = [(part.lacks_from(), part) for part in parts]
    begins = sorted({begin for begin, _ in lacking if begin < end})
    if not begins:
        return None
    if len(begins) > 1:
        # Only to the position of the next state: no record is applied to a state twice.
        bytes_max = min(bytes_max, begins[1] - begins[0])
        chunk = store.read_log(begins[0], bytes_max)
    else:
        chunk = store.next_chunk(begins[0], bytes_max)
    for begin, part in lacking:
        if begin == begins[0]:
            part.apply(chunk)
    return chunk.records.count


def apply_rest(store: Store, parts: Sequence[Derived]) -> int:
    """Apply all visible records; return the number of records that were read. Raises the errors of
    `apply_piece`."""
    records = 0
    while (read := apply_piece(store, parts)) is not None:
        records += read
    return records
