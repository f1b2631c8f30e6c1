"""Messages that were stored once more while they waited: where each is now, and how it is called.

A producer knows its message by the record in which it waited first; that stays its name.
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
        """Where the message waits that a producer knows by `first`."""
        return self._nows.get(first, first)

    def first(self, now: int) -> int:
        """How the message is called that waits at `now`."""
        return self._firsts.get(now, now)

    def positions(self) -> NDArray[np.int64]:
        """Where all of them wait."""
        return np.fromiter(self._firsts, np.int64, len(self._firsts))

    def follow(self, source: int, now: int) -> None:
        """The message that waited at `source` waits at `now`."""
        if source not in self._firsts and now in self._firsts:
            # Read again at a start, of a message that was stored once more several times.
            return
        first = self._firsts.pop(source, source)
        self._nows[first] = now
        self._firsts[now] = first

    def forget(self, positions: Iterable[int]) -> None:
        """What waited there waits no more."""
        for position in positions:
            first = self._firsts.pop(position, None)
            if first is not None:
                del self._nows[first]

    def to_bytes(self) -> bytes:
        """For the snapshot: an array of pairs (first, now), int64 each, little-endian."""
        count = len(self._nows)
        pairs = np.empty(count, _PAIR)
        pairs["first"] = np.fromiter(self._nows.keys(), np.int64, count)
        pairs["now"] = np.fromiter(self._nows.values(), np.int64, count)
        return pairs.tobytes()

    def take_over(self, raw: bytes) -> None:
        """Be what `to_bytes` wrote."""
        pairs = np.frombuffer(raw, _PAIR)
        firsts, nows = pairs["first"].tolist(), pairs["now"].tolist()
        self._nows = dict(zip(firsts, nows, strict=True))
        self._firsts = dict(zip(nows, firsts, strict=True))
