"""Queue entries that are visible but in no file yet. Pure.

Writing one entry costs as much as appending its message. So a queue's entries are written together:
at the next recovery point, which counts them, or when there are enough. A crash loses them
like all data after the last point, and the next start rebuilds them from the log.
"""

from collections.abc import Iterator

QueueKey = tuple[str, int]


class UnsavedEntries:
    """Unsaved entries by queue; they follow the entries in its files."""

    def __init__(self) -> None:
        # The queue with the oldest unsaved entries comes first.
        self._parts: dict[QueueKey, list[bytes]] = {}

    def __len__(self) -> int:
        """Number of queues with unsaved entries."""
        return len(self._parts)

    def __iter__(self) -> Iterator[QueueKey]:
        return iter(self._parts)

    def add(self, key: QueueKey, data: bytes) -> None:
        """Append entries to those of a queue."""
        parts = self._parts.get(key)
        if parts is None:
            self._parts[key] = [data]
        else:
            parts.append(data)

    def of(self, key: QueueKey) -> bytes:
        """Return all unsaved entries of a queue."""
        parts = self._parts.get(key)
        if parts is None:
            return b""
        if len(parts) > 1:
            # Join once, because a search reads entry by entry.
            parts[:] = [b"".join(parts)]
        return parts[0]

    def remove(self, key: QueueKey) -> None:
        """Remove a queue's entries, which are in a file or deleted with their queue."""
        self._parts.pop(key, None)

    def clear(self) -> None:
        """Remove the entries of all queues."""
        self._parts.clear()
