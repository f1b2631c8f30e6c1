"""Traffic counters by topic: a few additions per batch, none per message. Pure."""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import add
from typing import NamedTuple

import numpy as np

# Topics times groups. Clients choose group names freely, so the number must be bounded.
SERIES_MAX = 10_000
OTHERS = "(others)"

WINDOW_SECONDS = 10.0

# Bounds of message sizes, bytes: BrokerMetricsManager of RocketMQ 5.
SIZE_BOUNDS = (1 << 10, 4 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20)
SIZE_BUCKETS = len(SIZE_BOUNDS) + 1
_LENGTH_BYTES = 4
# Number of batches, of all series, whose sizes wait to be counted together. Counting them
# together costs as much as two or three alone.
SIZES_WAITING_MAX = 64

# RocketMQ's values of the label message_type.
NORMAL = "normal"
DELAY = "delay"
TRANSACTION = "transaction"


class Series(NamedTuple):
    """Key of a counter."""

    topic: str
    what: str
    """Kind of message for received ones, consumer group for sent ones."""


@dataclass(slots=True)
class Count:
    messages: int = 0
    bytes: int = 0
    by_size: list[int] = field(default_factory=lambda: [0] * SIZE_BUCKETS)
    """Number of messages per size bucket: those of `SIZE_BOUNDS`, and larger ones."""


@dataclass(slots=True)
class Flow:
    """Traffic in one direction since the process started.

    Inbound: messages of clients in the log, by topic and kind of message. Outbound: messages
    sent to readers, by topic and consumer group.
    """

    _counts: dict[Series, Count] = field(default_factory=dict)
    # Packed record sizes with the counters to which they are to be added.
    _waiting: list[tuple[Count, bytes]] = field(default_factory=list)

    def add(
        self,
        topic: str,
        what: str,
        messages: int,
        size_bytes: int,
        lengths: bytes = b"",
    ) -> None:
        """Count a batch.

        Args:
            lengths: record sizes, packed little-endian u32, if they are to be counted by
                size.
        """
        # Equal to a Series as a key, and created in a fifth of the time.
        count = self._counts.get((topic, what))  # type: ignore[call-overload]
        if count is None:
            full = len(self._counts) >= SERIES_MAX
            series = Series(OTHERS, OTHERS) if full else Series(topic, what)
            count = self._counts.setdefault(series, Count())
        count.messages += messages
        count.bytes += size_bytes
        if lengths and size_bytes <= SIZE_BOUNDS[0]:
            count.by_size[0] += messages
        elif len(lengths) == _LENGTH_BYTES:
            # For one message, counting is cheaper than waiting.
            count.by_size[bisect_left(SIZE_BOUNDS, size_bytes)] += 1
        elif lengths:
            self._waiting.append((count, lengths))
            if len(self._waiting) >= SIZES_WAITING_MAX:
                self._count_waiting()

    def drop_topics(self, *topics: str) -> None:
        """Remove the counters of deleted topics; a new topic of the name starts at 0."""
        gone = frozenset(topics)
        for series in [series for series in self._counts if series.topic in gone]:
            del self._counts[series]

    def __iter__(self) -> Iterator[tuple[Series, Count]]:
        self._count_waiting()
        return iter(self._counts.items())

    def _count_waiting(self) -> None:
        if not self._waiting:
            return
        counts, lengths = zip(*self._waiting, strict=True)
        self._waiting.clear()
        sizes = np.frombuffer(b"".join(lengths), "<u4")
        buckets = np.searchsorted(SIZE_BOUNDS, sizes, side="left")
        rows = np.repeat(np.arange(len(lengths)), [len(each) // 4 for each in lengths])
        found = np.bincount(rows * SIZE_BUCKETS + buckets, minlength=len(lengths) * SIZE_BUCKETS)
        for count, own in zip(counts, found.reshape(-1, SIZE_BUCKETS).tolist(), strict=True):
            count.by_size[:] = map(add, count.by_size, own)


@dataclass(slots=True)
class SyncWaits:
    """Waits of batches for their commit (with one copy: for their sync), since the process started.

    Attributes:
        batches: number of batches.
        seconds: total wait of all batches.
    """

    batches: int = 0
    seconds: float = 0.0
    _window_start: float = 0.0
    _longest: float = 0.0
    _longest_before: float = 0.0

    def record(self, batches: int, waited_seconds: float, now_seconds: float) -> None:
        """Count batches that each waited `waited_seconds`, until `now_seconds`, monotonic."""
        self.batches += batches
        self.seconds += batches * waited_seconds
        self._turn(now_seconds)
        self._longest = max(self._longest, waited_seconds)

    def longest_seconds(self, now_seconds: float) -> float:
        """Return the longest wait of the last 10 to 20 seconds, so that periodic reads miss
        none."""
        self._turn(now_seconds)
        return max(self._longest, self._longest_before)

    def _turn(self, now_seconds: float) -> None:
        age_seconds = now_seconds - self._window_start
        if age_seconds >= WINDOW_SECONDS:
            self._longest_before = self._longest if age_seconds < 2 * WINDOW_SECONDS else 0.0
            self._longest, self._window_start = 0.0, now_seconds
