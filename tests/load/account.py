"""Results of the users of one process since the last report.

Written by the thread of the SDK, read by the reporting one; the lock guards everything.
"""

import threading
from collections import Counter, defaultdict
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from load import ledger
from load.histogram import Histogram
from load.ledger import Kind

Numbers = NDArray[np.int64]


@dataclass
class Deltas:
    """New results."""

    ledger: bytes = b""
    latencies: dict[str, Histogram] = field(default_factory=dict)
    """By operation."""
    bytes: Counter[str] = field(default_factory=Counter)
    """Of bodies, by operation."""
    failures: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By operation and error."""


class Account:
    """See the module."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent: dict[str, dict[int, int]] = defaultdict(dict)
        self._acknowledged: dict[str, dict[int, list[list[int]]]] = defaultdict(dict)
        self._closed: list[tuple[int, int, int]] = []
        self._given: dict[str, list[tuple[NDArray[np.uint64], Numbers]]] = defaultdict(list)
        self._latencies: dict[str, list[Numbers]] = defaultdict(list)
        self._bytes = Counter[str]()
        self._failures = Counter[tuple[str, str]]()

    def sent(self, topic: str, stream: int, end: int) -> None:
        """See `Checker.sent`."""
        with self._lock:
            self._sent[topic][stream] = end

    def acknowledged(self, topic: str, stream: int, first: int, end: int) -> None:
        """See `Checker.acknowledged`."""
        with self._lock:
            runs = self._acknowledged[topic].setdefault(stream, [])
            if runs and runs[-1][1] == first:
                runs[-1][1] = end
            else:
                runs.append([first, end])

    def closed(self, stream: int) -> None:
        """See `Checker.closed`."""
        with self._lock:
            self._closed.append((stream, 0, 0))

    def given(self, group: str, streams: NDArray[np.uint64], sequences: Numbers) -> None:
        """See `Checker.given`."""
        with self._lock:
            self._given[group].append((streams, sequences))

    def took(self, operation: str, latencies_us: Numbers, body_bytes: int = 0) -> None:
        """Record successful operations, one for each latency.

        Args:
            operation: its name in statistics.
            latencies_us: microseconds.
            body_bytes: total size of the bodies.
        """
        with self._lock:
            self._latencies[operation].append(latencies_us)
            self._bytes[operation] += body_bytes

    def failed(self, operation: str, error: BaseException, count: int = 1) -> None:
        """Record a number of failed operations."""
        with self._lock:
            self._failures[operation, f"{type(error).__name__}: {error}"] += count

    def take(self) -> Deltas:
        """Return the new results, and reset them."""
        with self._lock:
            sent, self._sent = self._sent, defaultdict(dict)
            acknowledged, self._acknowledged = self._acknowledged, defaultdict(dict)
            closed, self._closed = self._closed, []
            given, self._given = self._given, defaultdict(list)
            latencies, self._latencies = self._latencies, defaultdict(list)
            found = Deltas(bytes=self._bytes, failures=self._failures)
            self._bytes, self._failures = Counter(), Counter()
        frames = [
            ledger.encode(Kind.SENT, topic, [(stream, 0, end) for stream, end in ends.items()])
            for topic, ends in sent.items()
        ]
        frames += [
            ledger.encode(
                Kind.ACKNOWLEDGED,
                topic,
                [(stream, first, end) for stream, runs in streams.items() for first, end in runs],
            )
            for topic, streams in acknowledged.items()
        ]
        frames += [
            ledger.encode(
                Kind.GIVEN,
                group,
                ledger.runs_of(
                    np.concatenate([streams for streams, _ in parts]),
                    np.concatenate([sequences for _, sequences in parts]),
                ),
            )
            for group, parts in given.items()
        ]
        if closed:
            # After the other reports of these streams.
            frames.append(ledger.encode(Kind.CLOSED, "", closed))
        found.ledger = b"".join(frames)
        for operation, parts in latencies.items():
            found.latencies[operation] = histogram = Histogram()
            histogram.add(np.concatenate(parts))
        return found
