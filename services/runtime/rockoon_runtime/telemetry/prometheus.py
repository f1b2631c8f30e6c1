"""Metrics for Prometheus: a small HTTP server that answers GET /metrics."""

import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from types import TracebackType
from typing import TYPE_CHECKING

from rockoon_runtime.settings import SettingsError
from rockoon_runtime.telemetry.metrics import Measurement, Metric, MetricKind, Snapshots
from rockoon_runtime.wire import ListenError

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer

    from prometheus_client.registry import CollectorRegistry


# Each scraper keeps one connection. A silent connection occupies a thread until the time limit.
CONNECTIONS_MAX = 20
SILENT_SECONDS_MAX = 10.0


class PrometheusPage:
    """Serves the metrics page while entered. Exit it on another thread than the service's loop,
    because scrapes in progress wait for the loop.

    Args:
        listen: "host:port"; port 0 selects a free one.
        snapshots: source of the values.

    Raises:
        SettingsError: prometheus_client is not installed, or the address is not valid.
        ListenError: on entering, if the page cannot listen on the address.
    """

    def __init__(self, listen: str, snapshots: Snapshots) -> None:
        host, _, port = listen.rpartition(":")
        if not host or not port.isdecimal():
            raise SettingsError(f"metrics_listen: {listen!r} is not host:port")
        self._host, self._port = host.strip("[]"), int(port)
        self._registry = registry_of(snapshots)

    @property
    def address(self) -> str:
        """The address that the page listens on, with the real port."""
        return f"{self._host}:{self._port}"

    def __enter__(self) -> "PrometheusPage":
        from prometheus_client import start_http_server

        try:
            self._server, self._thread = start_http_server(
                self._port, addr=self._host, registry=self._registry
            )
        except OSError as failure:
            raise ListenError(
                f"cannot listen on {self.address} for metrics: {failure}"
            ) from failure
        self._port = self._server.server_port
        bound_connections(self._server)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def bound_connections(server: "WSGIServer") -> None:
    """Close silent connections, and more connections than scrapers need."""
    slots = threading.Semaphore(CONNECTIONS_MAX)
    start: Callable[..., None] = server.process_request
    serve: Callable[..., None] = server.process_request_thread  # type: ignore[attr-defined]

    def start_or_release(request: object, address: object) -> None:
        try:
            start(request, address)
        except Exception:
            # No thread was started that would release the slot.
            slots.release()
            raise

    def serve_and_release(request: object, address: object) -> None:
        try:
            serve(request, address)
        finally:
            slots.release()

    class Handler(server.RequestHandlerClass):  # type: ignore[misc,name-defined]
        timeout = SILENT_SECONDS_MAX

    server.RequestHandlerClass = Handler
    server.process_request = start_or_release  # type: ignore[assignment,method-assign]
    server.process_request_thread = serve_and_release  # type: ignore[attr-defined]
    server.verify_request = lambda *_: slots.acquire(blocking=False)  # type: ignore[method-assign]


def registry_of(snapshots: Snapshots) -> "CollectorRegistry":
    """Return a registry with the service's metrics and those of its process."""
    try:
        from prometheus_client import CollectorRegistry, ProcessCollector
        from prometheus_client.core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
        )
        from prometheus_client.metrics_core import Metric as Family
        from prometheus_client.registry import Collector
    except ImportError as failure:
        raise SettingsError(
            "metrics_listen needs prometheus_client: pip install prometheus_client"
        ) from failure

    class Page(Collector):
        def collect(self) -> Iterator[Family]:
            names, values = tuple(snapshots.labels), tuple(snapshots.labels.values())
            kinds = {MetricKind.COUNTER: CounterMetricFamily, MetricKind.GAUGE: GaugeMetricFamily}
            for metric, measurements in snapshots.collect().items():
                for name in names_on_page(metric):
                    labels = (*names, *metric.labels)
                    if metric.kind is MetricKind.HISTOGRAM:
                        spread = HistogramMetricFamily(name, metric.doc, labels=labels)
                        for each in measurements:
                            buckets = buckets_on_page(each)
                            spread.add_metric((*values, *each.labels), buckets, each.value)
                        yield spread
                        continue
                    family = kinds[metric.kind](name, metric.doc, labels=labels)
                    for each in measurements:
                        family.add_metric((*values, *each.labels), each.value)
                    yield family

        def describe(self) -> list[Family]:
            # Otherwise `register` collects a snapshot on the loop's own thread.
            return []

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Page())
    ProcessCollector(registry=registry)
    return registry


def buckets_on_page(measurement: Measurement) -> list[tuple[str, float]]:
    """Return the buckets of a histogram, cumulative as on the page."""
    bounds = [*(str(float(bound)) for bound in measurement.metric.bounds), "+Inf"]
    return list(zip(bounds, map(float, accumulate(measurement.counts)), strict=True))


def names_on_page(metric: Metric) -> Sequence[str]:
    """Return the names of a metric on the page. Some names in RocketMQ's documents have no unit,
    but its page shows them with one. Dashboards exist for both, so the page has both."""
    if metric.unit and not metric.name.endswith(metric.unit):
        return (metric.name, f"{metric.name}_{metric.unit}")
    return (metric.name,)
