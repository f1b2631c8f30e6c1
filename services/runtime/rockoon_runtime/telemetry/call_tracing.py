"""Spans of calls whose callers trace them: their metadata has a `traceparent` (W3C Trace Context).

Imported only by a service that exports traces: it needs OpenTelemetry.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from opentelemetry.context import Context
from opentelemetry.propagators.textmap import default_getter
from opentelemetry.trace import (
    Link,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    get_current_span,
    use_span,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from rockoon_core.errors import RockoonError
from rockoon_core.valid_text import valid_text

_propagator = TraceContextTextMapPropagator()


def context_of(traceparent: str) -> Context:
    """Return the context in a `traceparent`; an empty one if it is not valid."""
    return _propagator.extract({"traceparent": traceparent}, getter=default_getter)


def traced_call(
    tracer: Tracer,
    path: str,
    traceparent: str,
    behaviour: Callable[[Any, Any], Awaitable[Any]],
) -> Callable[[Any, Any], Awaitable[Any]]:
    """Return a method within a span of its call, if the caller's trace is sampled.

    The span records an exception and raises it.
    """
    service, _, method = path.lstrip("/").partition("/")

    async def behave(request: Any, context: Any) -> Any:
        span = tracer.start_span(
            f"{service}/{method}",
            context_of(traceparent),
            SpanKind.SERVER,
            {"rpc.system": "grpc", "rpc.service": service, "rpc.method": method},
        )
        try:
            with use_span(span, record_exception=False, set_status_on_exception=False):
                reply = await behaviour(request, context)
        except BaseException as failure:
            end(span, failure)
            raise
        span.end()
        return reply

    return behave


def linked_contexts(traceparents: Sequence[str]) -> Sequence[SpanContext]:
    """Return the sampled contexts of messages."""
    found = (get_current_span(context_of(each)).get_span_context() for each in traceparents)
    return [context for context in found if context.is_valid and context.trace_flags.sampled]


def links_to(contexts: Sequence[SpanContext]) -> Sequence[Link]:
    return [Link(context) for context in contexts]


def end(span: Span, failure: BaseException | None) -> None:
    """End a span; a failure is recorded in its status."""
    if failure is not None:
        kind = failure.name if isinstance(failure, RockoonError) else type(failure).__name__
        span.set_attribute("error.type", kind)
        span.set_status(Status(StatusCode.ERROR, valid_text(failure)))
    span.end()
