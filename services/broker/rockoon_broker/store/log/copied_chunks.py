"""Cache of the newest log chunks that were copied from a leader, with their checked records.

The index and the code that applies records use the chunks without reading or checking them again.
Pure.
"""

from collections import OrderedDict

from rockoon_broker.store.log.reading import LogChunk

# What arrives during one gathering period of the index at the write rate of a disk.
KEPT_BYTES_MAX = 32 << 20
# Overhead of a chunk besides its records, with a dozen columns.
CHUNK_BYTES = 2048


class CopiedChunks:
    """Cache of the newest chunks in log order. Older chunks can be read from the log."""

    def __init__(self) -> None:
        # By start offset, in order of arrival.
        self._chunks: OrderedDict[int, LogChunk] = OrderedDict()
        self._bytes = 0

    def add(self, chunk: LogChunk) -> None:
        """Add the chunk that follows the last one."""
        self._chunks[chunk.start] = chunk
        self._bytes += len(chunk.frames) + CHUNK_BYTES
        while self._bytes > KEPT_BYTES_MAX:
            self._evict_oldest()

    def at(self, position: int, end: int) -> LogChunk | None:
        """Return the cached chunk that begins at a physical offset, if all of it is below `end`."""
        found = self._chunks.get(position)
        return found if found is not None and found.next_offset <= end else None

    def next_start(self, position: int) -> int | None:
        """Return the start of the first chunk after a physical offset."""
        return next((start for start in self._chunks if start > position), None)

    def discard_below(self, position: int) -> None:
        """Discard the chunks that begin below a physical offset, because all readers have used
        them."""
        while self._chunks and next(iter(self._chunks)) < position:
            self._evict_oldest()

    def _evict_oldest(self) -> None:
        _, first = self._chunks.popitem(last=False)
        self._bytes -= len(first.frames) + CHUNK_BYTES
