"""Spans of transactions.

send orders ──▶ Append (broker)       the half message
     ├──▶ commit orders ──▶ EndTransaction (broker)
     └──▶ receive, process, ...       the message, after a commit
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

from opentelemetry.trace import Span, SpanContext, SpanKind

from rockoon.tracing.spans import SpanStarter, calls_within, queue_attributes, traceparent_of
from rockoon_core.message_queue import MessageQueue
from rockoon_format.properties import TRACEPARENT

# Open transactions with a span; above this, the end of the oldest gets no span.
CONTEXTS_MAX = 10_000


class TransactionSpans:
    """Implements `rockoon.hooks.TransactionHooks`: spans for half messages and their ends."""

    def __init__(self, spans: SpanStarter) -> None:
        self._spans = spans
        # Span contexts of open transactions, by message id, oldest first.
        self._contexts: dict[str, SpanContext] = {}

    def on_begin(
        self, topic: str, properties: Mapping[str, str] | None
    ) -> "AbstractContextManager[TracedHalf | None]":
        """Return a span around storing a half message, unless it has a trace context already."""
        span = None if TRACEPARENT in (properties or {}) else self._start(topic)
        return nullcontext() if span is None else self._storing(span, properties or {})

    @contextmanager
    def _storing(self, span: Span, properties: Mapping[str, str]) -> "Iterator[TracedHalf]":
        context = {TRACEPARENT: traceparent_of(span.get_span_context())}
        with calls_within(span):
            yield TracedHalf(span, {**properties, **context}, self._contexts)

    def on_end(
        self, message_id: str, topic: str, resolution: str
    ) -> AbstractContextManager[object]:
        """Return a span around the end of a transaction; its parent is the half message's span."""
        context = self._contexts.pop(message_id, None)
        if context is None:
            return nullcontext()
        attributes = {"messaging.destination.name": topic}
        span = self._spans.start("settle", resolution, SpanKind.CLIENT, attributes, [context])
        return calls_within(span)

    def _start(self, topic: str) -> Span | None:
        """Start a span for a message; None if it is not traced."""
        within = self._spans.is_within_sampled()
        if not within and not self._spans.chooses():
            return None
        attributes = {"messaging.destination.name": topic}
        span = self._spans.start("send", "send", SpanKind.PRODUCER, attributes, is_root=not within)
        return span if span.get_span_context().trace_flags.sampled else None


@dataclass(frozen=True, slots=True)
class TracedHalf:
    """Hook of a half message with a span."""

    span: Span
    properties: Mapping[str, str]
    contexts: dict[str, SpanContext]
    """`TransactionSpans._contexts`, in which the end finds the span."""

    def on_stored(self, message_id: str, queue: MessageQueue) -> None:
        self.span.set_attributes({"messaging.message.id": message_id, **queue_attributes(queue)})
        self.contexts[message_id] = self.span.get_span_context()
        if len(self.contexts) > CONTEXTS_MAX:
            del self.contexts[next(iter(self.contexts))]
