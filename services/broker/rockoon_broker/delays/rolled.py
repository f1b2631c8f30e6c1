"""Maps records that were stored again while waiting to the names of their messages.

A producer identifies its message by the first record in which it waited; this id stays valid.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

_PAIR = np.dtype([("first", "<i8"), ("now", "<i8")])


class RolledMessages:
    """Physical offsets of records: the first of a message, and the one in which it waits now."""

    def __init__(self) -> None:
        self._nows: dict[int, int] = {}
        self._firsts: dict[int, int] = {}

    def now(self, first: int) -> int:
        """Return the record in which the message with the given first record waits now."""
        return self._nows.get(first, first)

    def first(self, now: int) -> int:
        """Return the first record of the message that waits in the given record."""
        return self._firsts.get(now, now)

    def positions(self) -> NDArray[np.int64]:
        """Return the records in which all these messages wait now."""
        return np.fromiter(self._firsts, np.int64, len(self._firsts))

    def follow(self, source: int, now: int) -> None:
        """Record that the message that waited at `source` now waits at `now`."""
        if source not in self._firsts and now in self._firsts:
            # A start may apply it again for a message that was stored several times.
            return
        first = self._firsts.pop(source, source)
        self._nows[first] = now
        self._firsts[now] = first

    def remove(self, positions: Iterable[int]) -> None:
        """Remove messages that no longer wait."""
        for position in positions:
            first = self._firsts.pop(position, None)
            if first is not None:
                del self._nows[first]

    def to_bytes(self) -> bytes:
        """Encode for the snapshot: pairs (first, now), int64 each, little-endian."""
        count = len(self._nows)
        pairs = np.empty(count, _PAIR)
        pairs["first"] = np.fromiter(self._nows.keys(), np.int64, count)
        pairs["now"] = np.fromiter(self._nows.values(), np.int64, count)
        return pairs.tobytes()

    def load(self, raw: bytes) -> None:
        """Replace the content by that of `to_bytes`."""
        pairs = np.frombuffer(raw, _PAIR)
        firsts, nows = pairs["first"].tolist(), pairs["now"].tolist()
        self._nows = dict(zip(firsts, nows, strict=True))
        self._firsts = dict(zip(nows, firsts, strict=True))
