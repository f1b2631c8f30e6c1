"""Entries that readers see and that no file has yet. Pure.

A write costs as much as placing the message, so what comes for a queue is written together: at the
next recovery point, which is the first to count it, or when there is enough. A crash loses them
like anything behind the last point, and the next start makes them again from the log.
"""

from collections.abc import Iterator

QueueKey = tuple[str, int]


class UnsavedEntries:
    """By queue, what follows the entries in its files."""

    def __init__(self) -> None:
        # The queue whose entries have waited longest comes first.
        self._parts: dict[QueueKey, list[bytes]] = {}

    def __len__(self) -> int:
        """Of how many queues there are some."""
        return len(self._parts)

    def __iter__(self) -> Iterator[QueueKey]:
        return iter(self._parts)

    def add(self, key: QueueKey, data: bytes) -> None:
        """Keep entries behind those of a queue."""
        parts = self._parts.get(key)
        if parts is None:
            self._parts[key] = [data]
        else:
            parts.append(data)

    def of(self, key: QueueKey) -> bytes:
        """All that is kept of a queue."""
        parts = self._parts.get(key)
        if parts is None:
            return b""
        if len(parts) > 1:
            # A search reads entry by entry.
            parts[:] = [b"".join(parts)]
        return parts[0]

    def forget(self, key: QueueKey) -> None:
        """They are in a file now, or gone with their queue."""
        self._parts.pop(key, None)

    def clear(self) -> None:
        """Forget those of all queues."""
        self._parts.clear()
