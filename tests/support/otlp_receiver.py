"""A collector in this process that keeps all received data: OTLP over gRPC."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import (
    MetricsServiceServicer,
    add_MetricsServiceServicer_to_server,
)
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as traces
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)


@dataclass(frozen=True)
class SeenSpan:
    """An exported span; ids in hex."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    links: tuple[str, ...]
    """Ids of the linked spans."""
    attributes: dict[str, Any]
    failed: bool


class OtlpReceiver:
    """Received data so far."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spans: list[SeenSpan] = []
        self._metrics: dict[str, list[tuple[dict[str, Any], float]]] = {}
        self._histograms: dict[str, list[tuple[dict[str, Any], tuple[int, ...]]]] = {}
        self.endpoint = ""

    @property
    def spans(self) -> list[SeenSpan]:
        with self._lock:
            return list(self._spans)

    @property
    def metrics(self) -> dict[str, list[tuple[dict[str, Any], float]]]:
        """Return the last exported values: metric to labels and value."""
        with self._lock:
            return dict(self._metrics)

    @property
    def histograms(self) -> dict[str, list[tuple[dict[str, Any], tuple[int, ...]]]]:
        """Return the last exported histograms: metric to labels and buckets."""
        with self._lock:
            return dict(self._histograms)

    def named(self, name: str) -> list[SeenSpan]:
        return [span for span in self.spans if span.name == name]


class _Traces(TraceServiceServicer):
    def __init__(self, receiver: OtlpReceiver) -> None:
        self._receiver = receiver

    def Export(self, request: Any, _context: Any) -> Any:
        seen = [
            SeenSpan(
                service=plain(each.resource.attributes).get("service.name", ""),
                name=span.name,
                trace_id=span.trace_id.hex(),
                span_id=span.span_id.hex(),
                parent_id=span.parent_span_id.hex(),
                links=tuple(link.span_id.hex() for link in span.links),
                attributes=plain(span.attributes),
                failed=span.status.code == 2,
            )
            for each in request.resource_spans
            for scope in each.scope_spans
            for span in scope.spans
        ]
        with self._receiver._lock:
            self._receiver._spans += seen
        return traces.ExportTraceServiceResponse()


class _Metrics(MetricsServiceServicer):
    def __init__(self, receiver: OtlpReceiver) -> None:
        self._receiver = receiver

    def Export(self, request: Any, _context: Any) -> Any:
        with self._receiver._lock:
            for each in request.resource_metrics:
                for scope in each.scope_metrics:
                    for metric in scope.metrics:
                        if metric.HasField("histogram"):
                            self._receiver._histograms[metric.name] = [
                                (plain(point.attributes), tuple(point.bucket_counts))
                                for point in metric.histogram.data_points
                            ]
                            continue
                        points = (
                            metric.sum if metric.HasField("sum") else metric.gauge
                        ).data_points
                        self._receiver._metrics[metric.name] = [
                            (plain(point.attributes), point.as_double or point.as_int)
                            for point in points
                        ]
        return metrics.ExportMetricsServiceResponse()


def plain(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


@contextmanager
def otlp_receiver() -> Iterator[OtlpReceiver]:
    """Listen on a free port until the block ends."""
    receiver = OtlpReceiver()
    server = grpc.server(ThreadPoolExecutor(max_workers=2))
    add_TraceServiceServicer_to_server(_Traces(receiver), server)  # type: ignore[no-untyped-call]
    add_MetricsServiceServicer_to_server(_Metrics(receiver), server)  # type: ignore[no-untyped-call]
    receiver.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield receiver
    finally:
        server.stop(None).wait()
