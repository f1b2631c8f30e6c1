"""How many messages one span names, where a batch or a pull has more traced ones."""

from collections.abc import Sequence

import numpy as np
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from rockoon.tracing.spans import SpanStarter, context_in, contexts_in
from rockoon_broker.pull import PullQuery, PullResult
from rockoon_broker.rpc.pull_tracing import PullTracing
from rockoon_broker.store.reading.reader import GetResult, GetStatus
from rockoon_format.properties import SEARCHED_BYTES_MAX, TRACEPARENT_MARK, find_traceparents

NAMED_MAX = 128
TRACEPARENTS = [f"00-{number:032x}-{number:016x}-01" for number in range(1, 301)]
RECORDS = b"".join(
    b"body " + TRACEPARENT_MARK + each.encode() + b"\x02TAGS\x01new" for each in TRACEPARENTS
)
LENGTHS = np.full(len(TRACEPARENTS), len(RECORDS) // len(TRACEPARENTS), np.uint32)


def tracing_to(exporter: InMemorySpanExporter) -> TracerProvider:
    # OpenTelemetry's own bound is as large by default, and drops the first ones.
    provider = TracerProvider(span_limits=SpanLimits(max_links=10_000))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider


def named_by(spans: Sequence[ReadableSpan]) -> list[int]:
    (span,) = spans
    assert span.parent is not None
    return [span.parent.span_id, *(link.context.span_id for link in span.links)]


def test_a_readers_span_names_the_first_messages_and_no_more_than_it_may() -> None:
    exporter = InMemorySpanExporter()
    tracing = SpanStarter(tracer_provider=tracing_to(exporter))
    contexts = [context for each in TRACEPARENTS if (context := context_in(each)) is not None]
    assert len(contexts) == len(TRACEPARENTS)
    tracing.start("receive", "receive", SpanKind.CLIENT, {}, contexts).end()
    assert named_by(exporter.get_finished_spans()) == list(range(1, NAMED_MAX + 1))
    assert contexts_in(RECORDS) == contexts[:NAMED_MAX]


def test_a_brokers_span_names_the_first_messages_of_a_pull_and_no_more_than_it_may() -> None:
    exporter = InMemorySpanExporter()
    tracer = tracing_to(exporter).get_tracer("broker")
    query = PullQuery("orders", 0, 7, 0, 0, 0)
    found = GetResult(GetStatus.FOUND, 307, 0, 307, RECORDS, LENGTHS)
    PullTracing(tracer).record_pull(query, PullResult(GetStatus.FOUND, 307, found), 1)
    assert named_by(exporter.get_finished_spans()) == list(range(1, NAMED_MAX + 1))


def test_a_reader_that_catches_up_has_only_the_beginning_searched() -> None:
    late = bytes(SEARCHED_BYTES_MAX) + RECORDS
    assert find_traceparents(late, NAMED_MAX) == []
    assert find_traceparents(RECORDS, 2) == TRACEPARENTS[:2]
