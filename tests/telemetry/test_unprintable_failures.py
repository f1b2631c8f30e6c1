"""A handler raises an exception without valid text within a span: the span can be exported."""

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from rockoon.tracing.spans import end, in_span


class Textless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (ValueError("cut in \ud83d"), r"ValueError: cut in \ud83d"),
        (Textless(), "Textless: (no text: Textless.__str__ raised RuntimeError)"),
    ],
    ids=["lone surrogate", "text raises"],
)
def test_the_span_names_the_exception_that_the_handler_raised(
    failure: Exception, status: str
) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("rockoon")
    with pytest.raises(type(failure)) as caught, in_span(tracer.start_span("process")):
        raise failure
    assert caught.value is failure
    end(tracer.start_span("send"), failure)
    process, send = exporter.get_finished_spans()
    assert process.status.description == status
    assert process.events[0].name == "exception"
    assert send.status.description == status.partition(": ")[2]
    assert encode_spans([process, send]).SerializeToString()
