"""Metrics for the threads of exporters: collected on the service's loop, one export at a time.

Exporters have their own threads; the service's counters belong to its loop. An export never reads a
counter: it runs `Measure` once on the loop and waits for the result.
"""

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError

from rockoon_runtime.telemetry.metrics import Measure, Measurement, Metric, by_metric

log = logging.getLogger(__name__)

MEASURE_SECONDS_MAX = 10.0
# An exporter that requests the metrics one by one gets all of them from one snapshot.
RECENT_SECONDS = 1.0

Collected = Mapping[Metric, Sequence[Measurement]]


class Snapshots:
    """Collects snapshots of a service's metrics. Create it on the service's loop.

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
        """A new snapshot. Must not be called on the loop's thread.

        Returns:
            Values by metric; empty if the service is ending or does not answer.
        """
        with self._one_at_a_time:
            return self._collect_now()

    def recent(self) -> Collected:
        """The last snapshot if it is less than a second old, otherwise a new one."""
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
