"""Records that were copied a moment ago, as they were checked then.

Who applies them next neither reads nor checks them again. Pure.
"""

from collections import deque

from rockoon_broker.store.log.reading import LogChunk

KEPT_BYTES_MAX = 16 << 20


class CopiedChunks:
    """The newest ones, in the log's order. What is not kept is in the log."""

    def __init__(self) -> None:
        self._chunks: deque[LogChunk] = deque()
        self._bytes = 0

    def add(self, chunk: LogChunk) -> None:
        """Take what was written behind the one before."""
        self._chunks.append(chunk)
        self._bytes += len(chunk.frames)
        while self._bytes > KEPT_BYTES_MAX:
            self._forget_first()

    def take(self, position: int, end: int) -> LogChunk | None:
        """What begins at a physical offset and lies below `end`; what lies before is forgotten."""
        while self._chunks and self._chunks[0].start < position:
            self._forget_first()
        if not self._chunks or self._chunks[0].start != position:
            return None
        first = self._chunks[0]
        return self._forget_first() if first.next_offset <= end else None

    def next_start(self, position: int) -> int | None:
        """Where the first one behind a physical offset begins."""
        return next((each.start for each in self._chunks if each.start > position), None)

    def _forget_first(self) -> LogChunk:
        first = self._chunks.popleft()
        self._bytes -= len(first.frames)
        return first
