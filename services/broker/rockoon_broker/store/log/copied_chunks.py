"""Records that were copied a moment ago, as they were checked then.

Who applies them next, or indexes them, neither reads nor checks them again. Pure.
"""

from collections import OrderedDict

from rockoon_broker.store.log.reading import LogChunk

# As much as comes while the index gathers, at a rate that a disk takes.
KEPT_BYTES_MAX = 32 << 20
# What a chunk takes besides its records, with a dozen columns.
CHUNK_BYTES = 2048


class CopiedChunks:
    """The newest ones, in the log's order. What is not kept is in the log."""

    def __init__(self) -> None:
        # By where they start, in the order in which they came.
        self._chunks: OrderedDict[int, LogChunk] = OrderedDict()
        self._bytes = 0

    def add(self, chunk: LogChunk) -> None:
        """Take what was written behind the one before."""
        self._chunks[chunk.start] = chunk
        self._bytes += len(chunk.frames) + CHUNK_BYTES
        while self._bytes > KEPT_BYTES_MAX:
            self._forget_first()

    def at(self, position: int, end: int) -> LogChunk | None:
        """What begins at a physical offset, if all of it lies below `end`."""
        found = self._chunks.get(position)
        return found if found is not None and found.next_offset <= end else None

    def next_start(self, position: int) -> int | None:
        """Where the first one behind a physical offset begins."""
        return next((start for start in self._chunks if start > position), None)

    def forget_below(self, position: int) -> None:
        """Forget what begins below a physical offset: all who wanted it have had it."""
        while self._chunks and next(iter(self._chunks)) < position:
            self._forget_first()

    def _forget_first(self) -> None:
        _, first = self._chunks.popitem(last=False)
        self._bytes -= len(first.frames) + CHUNK_BYTES
