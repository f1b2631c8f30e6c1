"""Metrics and traces for an OpenTelemetry collector, by OTLP over gRPC.

The SDK is imported only if an endpoint is set: a service without one does not need it.
"""

import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rockoon_runtime.settings import SettingsError
from rockoon_runtime.telemetry.metrics import Measurement, Metric, MetricKind, Snapshots

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Observation
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import HistogramDataPoint, MetricExporter, MetricsData
    from opentelemetry.sdk.metrics.export import Metric as ExportedMetric
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider

# Time limit of one export, retries included: an unreachable collector must not delay the end of a
# service.
EXPORT_SECONDS_MAX = 3.0
# Maximum of series of one metric; the lag has one for each group and topic.
SERIES_MAX = 100_000
SPANS_WAITING_MAX = 8_192


def require_sdk() -> None:
    """Raises SettingsError if the SDK or its exporter is not installed."""
    try:
        import opentelemetry.exporter.otlp.proto.grpc
        import opentelemetry.sdk  # noqa: F401 - asked for, used below
    except ImportError as failure:
        raise SettingsError(
            "otlp_endpoint needs OpenTelemetry's SDK: pip install 'rockoon-runtime[telemetry]'"
        ) from failure


def resource_of(labels: Mapping[str, str]) -> "Resource":
    """Return the OpenTelemetry resource of this process, made from the labels of metrics."""
    from opentelemetry.sdk.resources import Resource

    return Resource.create(
        {
            "service.namespace": labels["cluster"],
            "service.name": f"rockoon-{labels['node_type']}",
            "service.instance.id": labels["node_id"],
            "host.name": socket.gethostname(),
        }
    )


def meter_provider(endpoint: str, interval_seconds: float, snapshots: Snapshots) -> "MeterProvider":
    """Return a provider that sends metrics to a collector periodically, by its own thread."""
    from opentelemetry.sdk.metrics import MeterProvider, ObservableCounter, ObservableGauge
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    reader = PeriodicExportingMetricReader(
        metric_exporter(endpoint, snapshots),
        export_interval_millis=interval_seconds * 1000,
        cardinality_limits={ObservableCounter: SERIES_MAX, ObservableGauge: SERIES_MAX},
    )
    provider = MeterProvider([reader], resource_of(snapshots.labels), shutdown_on_exit=False)
    meter = provider.get_meter("rockoon")
    for metric in snapshots.table:
        if metric.kind is MetricKind.HISTOGRAM:
            continue
        make = (
            meter.create_observable_counter
            if metric.kind is MetricKind.COUNTER
            else meter.create_observable_gauge
        )
        make(metric.name, [observer(metric, snapshots)], metric.unit, metric.doc)
    return provider


def metric_exporter(endpoint: str, snapshots: Snapshots) -> "MetricExporter":
    """Return an exporter that adds histograms. OpenTelemetry's API has no observable histogram, and
    recording each value in the SDK would cost time for every message."""
    from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter

    began_ns = time.time_ns()

    class Exporter(OTLPMetricExporter):
        def export(
            self, metrics_data: "MetricsData", timeout_millis: float = 10_000, **more: Any
        ) -> Any:
            first, *others = metrics_data.resource_metrics
            scope, *other_scopes = first.scope_metrics
            metrics = [*scope.metrics, *exported_histograms(snapshots, began_ns)]
            scopes = [replace(scope, metrics=metrics), *other_scopes]
            every = [replace(first, scope_metrics=scopes), *others]
            data = replace(metrics_data, resource_metrics=every)
            return super().export(data, timeout_millis, **more)

    return Exporter(endpoint=endpoint, timeout=EXPORT_SECONDS_MAX)


def exported_histograms(snapshots: Snapshots, began_ns: int) -> "Iterable[ExportedMetric]":
    """Yield the histograms of the snapshot from which the other metrics came.

    Args:
        began_ns: when counting began, epoch nanoseconds.
    """
    from opentelemetry.sdk.metrics.export import AggregationTemporality, Histogram
    from opentelemetry.sdk.metrics.export import Metric as ExportedMetric

    now_ns = time.time_ns()
    for metric, measurements in snapshots.recent().items():
        if metric.kind is MetricKind.HISTOGRAM and measurements:
            points = [data_point(each, snapshots.labels, began_ns, now_ns) for each in measurements]
            spread = Histogram(points, AggregationTemporality.CUMULATIVE)
            yield ExportedMetric(metric.name, metric.doc, metric.unit, spread)


def data_point(
    measurement: Measurement, labels: Mapping[str, str], began_ns: int, now_ns: int
) -> "HistogramDataPoint":
    from opentelemetry.sdk.metrics.export import HistogramDataPoint

    # Minimum and maximum are unknown. OTLP allows their absence, the SDK's type does not.
    unknown: Any = None
    return HistogramDataPoint(
        attributes=labelled(measurement, labels),
        start_time_unix_nano=began_ns,
        time_unix_nano=now_ns,
        count=sum(measurement.counts),
        sum=measurement.value,
        bucket_counts=measurement.counts,
        explicit_bounds=measurement.metric.bounds,
        min=unknown,
        max=unknown,
    )


def labelled(measurement: Measurement, labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels of the process, followed by those of a value."""
    return {**labels, **dict(zip(measurement.metric.labels, measurement.labels, strict=True))}


def observer(
    metric: Metric, snapshots: Snapshots
) -> "Callable[[CallbackOptions], Iterable[Observation]]":
    from opentelemetry.metrics import Observation

    def observe(_: "CallbackOptions") -> "Iterable[Observation]":
        return [
            Observation(measurement.value, labelled(measurement, snapshots.labels))
            for measurement in snapshots.recent().get(metric, ())
        ]

    return observe


def tracer_provider(endpoint: str, labels: Mapping[str, str]) -> "TracerProvider":
    """Return a provider that sends spans in batches, from its own thread.

    A service starts no trace: it continues the sampled traces of its callers.
    """
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased

    provider = TracerProvider(
        sampler=ParentBased(ALWAYS_OFF), resource=resource_of(labels), shutdown_on_exit=False
    )
    exporter = OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_SECONDS_MAX)
    provider.add_span_processor(
        BatchSpanProcessor(exporter, max_queue_size=SPANS_WAITING_MAX, schedule_delay_millis=1_000)
    )
    return provider
