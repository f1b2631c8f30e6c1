"""Metrics: names, kinds, and values at one time.

A service declares its metrics as a table of `Metric`s. For each export, `Measure` returns all
values together. Metrics cost nothing without an export: values come from counters that the service
keeps anyway, a few additions per batch.
"""

import asyncio
import enum
import logging
import math
import threading
import time
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from itertools import pairwise


class MetricKind(enum.Enum):
    """How values of a metric behave."""

    COUNTER = "counter"
    """Only increases while the process lives."""
    GAUGE = "gauge"
    """Increases and decreases."""
    HISTOGRAM = "histogram"
    """Number of values in each range, since the process started."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric's name, meaning and labels.

    Attributes:
        name: as in Prometheus; a counter's name ends with `_total`.
        kind: counter, gauge or histogram.
        doc: one sentence with the unit.
        labels: names of its own labels, in the order in which `at` receives their values.
        unit: unit in OTLP; only for RocketMQ's metrics, whose names have no unit.
        bounds: bounds of a histogram, in its unit and ascending: the largest value of each bucket
            except the last.
    """

    name: str
    kind: MetricKind
    doc: str
    labels: tuple[str, ...] = ()
    unit: str = ""
    bounds: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if (self.kind is MetricKind.COUNTER) != self.name.endswith("_total"):
            raise ValueError(f"{self.name}: exactly counters end with _total")
        if (self.kind is MetricKind.HISTOGRAM) != bool(self.bounds):
            raise ValueError(f"{self.name}: exactly histograms have bounds")
        if any(low >= high for low, high in pairwise(self.bounds)):
            raise ValueError(f"{self.name}: bounds {self.bounds} do not ascend")

    def at(self, value: float, *labels: object) -> "Measurement":
        """Return a measurement with a value of this metric.

        Args:
            value: in the metric's unit; True and False are 1 and 0.
            labels: one value for each label.
        """
        if self.bounds:
            raise ValueError(f"{self.name} is a histogram, which has more than one number")
        # OTLP has only numbers.
        number = int(value) if isinstance(value, bool) else value
        return Measurement(self, number, self._values(labels))

    def spread(self, counts: Sequence[int], total: float, *labels: object) -> "Measurement":
        """Return a measurement with the buckets of this histogram.

        Args:
            counts: by bucket, one more than there are bounds.
            total: sum of the values, in the metric's unit.
            labels: one value for each label.
        """
        if len(counts) != len(self.bounds) + 1:
            raise ValueError(f"{self.name} has {len(self.bounds) + 1} buckets, not {len(counts)}")
        return Measurement(self, total, self._values(labels), tuple(counts))

    def _values(self, labels: Sequence[object]) -> tuple[str, ...]:
        if len(labels) != len(self.labels):
            raise ValueError(f"{self.name} has the labels {self.labels}, not {len(labels)}")
        return tuple(map(str, labels))


@dataclass(frozen=True, slots=True)
class Measurement:
    """One value of a metric; for a histogram the sum of its values."""

    metric: Metric
    value: float
    labels: tuple[str, ...]
    counts: tuple[int, ...] = ()
    """Buckets of a histogram, not cumulative."""


class Times:
    """A histogram of durations, filled one by one.

    Args:
        bounds: see `Metric`, in milliseconds.
    """

    __slots__ = ("_bounds", "counts", "total_ms")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total_ms = 0.0

    def add(self, seconds: float) -> None:
        milliseconds = seconds * 1000
        self.counts[bisect_left(self._bounds, milliseconds)] += 1
        self.total_ms += milliseconds


Measure = Callable[[], Awaitable[Iterable[Measurement]]]
"""Called on the service's loop, once per export. May wait, for example for other services."""


def counter(name: str, doc: str, *labels: str) -> Metric:
    return Metric(name, MetricKind.COUNTER, doc, labels)


def gauge(name: str, doc: str, *labels: str, unit: str = "") -> Metric:
    return Metric(name, MetricKind.GAUGE, doc, labels, unit)


def histogram(
    name: str, doc: str, *labels: str, bounds: tuple[float, ...], unit: str = ""
) -> Metric:
    return Metric(name, MetricKind.HISTOGRAM, doc, labels, unit, bounds)


def by_metric(
    table: Iterable[Metric], measured: Iterable[Measurement]
) -> Mapping[Metric, list[Measurement]]:
    """Values in the order of a table; a metric without any has an empty list."""
    found: dict[Metric, list[Measurement]] = {metric: [] for metric in table}
    for measurement in measured:
        found[measurement.metric].append(measurement)
    return found


log = logging.getLogger(__name__)

MEASURE_SECONDS_MAX = 10.0
# An exporter that requests the metrics one by one gets all of them from one snapshot.
RECENT_SECONDS = 1.0

Collected = Mapping[Metric, Sequence[Measurement]]


class Snapshots:
    """Collects snapshots of a service's metrics. Create it on the service's loop.

    Exporters have their own threads; the service's counters belong to its loop. An export never
    reads a counter: it runs `Measure` once on the loop and waits for the result.

    Args:
        table: all metrics.
        measure: returns their values; runs on the loop.
        labels: labels of the process, added to every value.
    """

    def __init__(
        self, table: Iterable[Metric], measure: Measure, labels: Mapping[str, str]
    ) -> None:
        self.table = tuple(table)
        self.labels = dict(labels)
        self._measure = measure
        self._loop = asyncio.get_running_loop()
        # Two exporters must not collect at the same time. Guards the fields below.
        self._one_at_a_time = threading.Lock()
        self._last: Collected = {}
        self._last_seconds = -math.inf

    def collect(self) -> Collected:
        """Return a new snapshot. Must not be called on the loop's thread.

        Returns:
            Values by metric; empty if the service is ending or does not answer.
        """
        with self._one_at_a_time:
            return self._collect_now()

    def recent(self) -> Collected:
        """Return the last snapshot if it is less than a second old, otherwise a new one."""
        with self._one_at_a_time:
            fresh = time.monotonic() - self._last_seconds < RECENT_SECONDS
            return self._last if fresh else self._collect_now()

    def _collect_now(self) -> Collected:
        self._last = self._run_on_loop(self._measured)
        self._last_seconds = time.monotonic()
        return self._last

    async def _measured(self) -> Collected:
        async with asyncio.timeout(MEASURE_SECONDS_MAX):
            return by_metric(self.table, await self._measure())

    def _run_on_loop(self, collect: Callable[[], Coroutine[None, None, Collected]]) -> Collected:
        if self._loop.is_closed():
            return {}
        try:
            answer = asyncio.run_coroutine_threadsafe(collect(), self._loop)
            return answer.result(MEASURE_SECONDS_MAX + 1)
        except (CancelledError, TimeoutError):
            log.warning("metrics not collected in %.0f s; the export is empty", MEASURE_SECONDS_MAX)
        except Exception:
            log.exception("could not collect metrics; this export is empty")
        return {}
