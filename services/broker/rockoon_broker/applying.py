"""Records of the log are applied, in their order, to what a broker keeps of them beside it.

A start, a follower while another replica leads, and its take-over do the same thing here, up to
another position: a snapshot says what was known up to where, and what lies behind it is applied.
"""

from collections.abc import Sequence
from typing import Protocol

from rockoon_broker.store.log.reading import LogChunk
from rockoon_broker.store.store import Store

PIECE_BYTES_MAX = 8 << 20


class Derived(Protocol):
    """Something that is worked out of the log's records, and up to where it is."""

    def lacks_from(self) -> int:
        """Physical offset of the first record that it needs and has not seen; from the store's
        visible end on it lacks none. OSError for the disk."""
        ...

    def apply(self, chunk: LogChunk) -> None:
        """Take what the log has at `lacks_from`, or behind what retention took of it."""
        ...


def apply_piece(
    store: Store, parts: Sequence[Derived], bytes_max: int = PIECE_BYTES_MAX
) -> int | None:
    """Read the next piece of what readers see, once for all that lack it.

    Args:
        store: open.
        parts: what is derived of it.
        bytes_max: how much to read; one record always is.

    Returns:
        How many records were read; None when nothing lacks any.

    Raises:
        OSError, StoreSyncFailed, StoreClosed: the log cannot be read.
    """
    end = store.visible_end
    lacking = [(part.lacks_from(), part) for part in parts]
    begins = sorted({begin for begin, _ in lacking if begin < end})
    if not begins:
        return None
    if len(begins) > 1:
        # To where the next one joins: nothing is applied twice.
        bytes_max = min(bytes_max, begins[1] - begins[0])
        chunk = store.read_log(begins[0], bytes_max)
    else:
        chunk = store.next_chunk(begins[0], bytes_max)
    for begin, part in lacking:
        if begin == begins[0]:
            part.apply(chunk)
    return chunk.records.count


def apply_rest(store: Store, parts: Sequence[Derived]) -> int:
    """Apply all that readers see; returns how many records were read. Raises as `apply_piece`."""
    records = 0
    while (read := apply_piece(store, parts)) is not None:
        records += read
    return records
