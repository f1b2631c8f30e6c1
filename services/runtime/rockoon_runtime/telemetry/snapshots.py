"""Metrics as exporters' threads get them: asked of the service's loop, one at a time.

Exporters have threads of their own, the service's counters belong to its loop. So an export never
looks at a counter: it has the loop run `Measure` once and waits for what that returns.
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
# An exporter that asks metric by metric gets all of them from one snapshot.
RECENT_SECONDS = 1.0

Collected = Mapping[Metric, Sequence[Measurement]]


class Snapshots:
    """Takes snapshots of a service's metrics. Make it on the service's loop.

    Args:
        table: every metric there is.
        measure: asks the service; run on the loop.
        labels: of the process, shown with every value.
    """

    def __init__(
        self, table: Iterable[Metric], measure: Measure, labels: Mapping[str, str]
    ) -> None:
        self.table = tuple(table)
        self.labels = dict(labels)
        self._measure = measure
        self._loop = asyncio.get_running_loop()
        # Two exporters at once must not have the loop do the work twice at once. Guards the rest.
        self._one_at_a_time = threading.Lock()
        self._last: Collected = {}
        self._last_seconds = -math.inf

    def take(self) -> Collected:
        """What there is now. Called on any thread but the loop's.

        Returns:
            Values by metric; no metric at all when the service is about to end, or does not answer.
        """
        with self._one_at_a_time:
            return self._take()

    def recent(self) -> Collected:
        """As `take`, or what was taken less than a second ago."""
        with self._one_at_a_time:
            fresh = time.monotonic() - self._last_seconds < RECENT_SECONDS
            return self._last if fresh else self._take()

    def _take(self) -> Collected:
        self._last = self._ask(self._collect)
        self._last_seconds = time.monotonic()
        return self._last

    async def _collect(self) -> Collected:
        async with asyncio.timeout(MEASURE_SECONDS_MAX):
            return by_metric(self.table, await self._measure())

    def _ask(self, collect: Callable[[], Coroutine[None, None, Collected]]) -> Collected:
        if self._loop.is_closed():
            return {}
        try:
            answer = asyncio.run_coroutine_threadsafe(collect(), self._loop)
            return answer.result(MEASURE_SECONDS_MAX + 1)
        except (CancelledError, TimeoutError):
            log.warning("metrics could not be taken in %.0f s", MEASURE_SECONDS_MAX)
        except Exception:
            log.exception("metrics could not be taken")
        return {}
