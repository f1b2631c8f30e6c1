"""Pieces of the log that the index takes at once: known keys, and records that are read."""

from rockoon_broker.store.log.file_reads import ColdRead
from rockoon_broker.store.log.found_keys import KeyRun
from rockoon_broker.store.log.reading import LogChunk
from rockoon_broker.store.store import Store

# Where keys were found already nothing is read: so many times as much of the log.
FOUND_KEYS_TIMES = 4
# If there are stretches between whose keys were found: each holds the event loop up.
READS_MAX = 4


def next_pieces(store: Store, position: int, bytes_max: int) -> list[LogChunk | KeyRun]:
    """What the log has at a position, one piece behind the other: of what was checked a moment ago
    its keys, or as it was copied; the rest is read.

    Args:
        store: open.
        position: below `visible_end`.
        bytes_max: how much to read.

    Raises:
        OSError: the disk. StoreFailed, StoreClosed. ColdRead: see `file_reads`.
    """
    pieces: list[LogChunk | KeyRun] = []
    found_keys, end, reads = store.found_keys, store.visible_end, 0
    stop, found_stop = position + bytes_max, position + bytes_max * FOUND_KEYS_TIMES
    while position < end and reads < READS_MAX:
        found = found_keys.take(position, end, found_stop - position)
        if found is not None:
            pieces.append(found)
        elif position < stop:
            wanted = found_keys.stop_before(position, stop) - position
            try:
                chunk = store.next_chunk(position, wanted)
            except ColdRead:
                if pieces:
                    # What was taken is not given a second time.
                    break
                raise
            reads += not chunk.checked
            pieces.append(chunk)
        else:
            break
        position = pieces[-1].next_offset
    return pieces
