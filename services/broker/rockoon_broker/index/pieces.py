"""Pieces of the log to index: cached keys, or records read from the log."""

from rockoon_broker.store.log.file_reads import ColdRead
from rockoon_broker.store.log.found_keys import KeyRun
from rockoon_broker.store.log.reading import LogChunk
from rockoon_broker.store.store import Store

# Cached keys need no read, so they may cover this many times as much of the log.
FOUND_KEYS_TIMES = 4
# Reads per call, if ranges without cached keys are in between: each blocks the event loop.
READS_MAX = 4


def next_pieces(store: Store, position: int, bytes_max: int) -> list[LogChunk | KeyRun]:
    """Return adjacent pieces of the log from a position on: cached keys, copied chunks, or records
    that are read.

    Args:
        store: open.
        position: below `visible_end`.
        bytes_max: maximum range to read.

    Raises:
        OSError: the disk. StoreFailed, StoreClosed. ColdRead: see `file_reads`.
    """
    pieces: list[LogChunk | KeyRun] = []
    found_keys, end, reads = store.found_keys, store.visible_end, 0
    stop, found_stop = position + bytes_max, position + bytes_max * FOUND_KEYS_TIMES
    while position < end and reads < READS_MAX:
        found = found_keys.pop_run(position, end, found_stop - position)
        if found is not None:
            pieces.append(found)
        elif position < stop:
            wanted = found_keys.stop_before(position, stop) - position
            try:
                chunk = store.next_chunk(position, wanted)
            except ColdRead:
                if pieces:
                    # Cached keys that were removed from the cache must be returned now.
                    break
                raise
            reads += not chunk.checked
            pieces.append(chunk)
        else:
            break
        position = pieces[-1].next_offset
    return pieces
