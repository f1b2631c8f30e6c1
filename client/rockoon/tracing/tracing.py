"""Traces with OpenTelemetry; requires `pip install 'rockoon[otel]'`.

    tracing = Tracing(ratio=0.001)
    async with rockoon.connect(nameservers, tracing=tracing) as cluster: ...

    send orders ──▶ append orders ──▶ append (broker)        links: one batch, many messages
         │
         ├──▶ pull (broker), receive orders    links: one pull, many messages
         └──▶ process orders ──▶ spans of the handler
                  └──▶ commit ──▶ Commit (offset service)    links: one commit, many messages

    send orders ──▶ Append (broker)       the half message of a transaction
         ├──▶ commit orders ──▶ EndTransaction (broker)
         └──▶ receive, process, ...       the message, after a commit

A message's context is in its property `traceparent` (W3C Trace Context), as in OpenTelemetry's
instrumentation of RocketMQ's clients; the property of its 5.x clients is read too. A message that
is sent within a sampled span is traced. Outside spans, one send in `1 / ratio` starts a trace. An
untraced message lacks this property and costs neither brokers nor consumers anything.

The application's TracerProvider exports the spans; this module configures none.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from opentelemetry.trace import Span, SpanContext, SpanKind, TracerProvider

from rockoon.callbacks import is_async
from rockoon.message import Batch, Message
from rockoon.tracing.producer import ProducerSpans
from rockoon.tracing.spans import (
    RATIO,
    TRACES_PER_SECOND_MAX,
    Attributes,
    SpanStarter,
    call_metadata,
    calls_within,
    context_in,
    contexts_in,
    in_span,
    queue_attributes,
    traceparent_of,
)
from rockoon_core.message_queue import MessageQueue
from rockoon_core.valid_text import valid_text
from rockoon_format.properties import PROPERTY_TRACE_CONTEXT, TRACEPARENT

# Handled and not yet committed, per group; the oldest above this are committed without a link.
HANDLED_MAX = 1_024


class CommitSpans:
    """Spans of handled messages that no commit covers yet."""

    def __init__(self, spans: SpanStarter) -> None:
        self._spans = spans
        # By group: queue, last offset, and span context of each handler call.
        self._handled: dict[str, deque[tuple[MessageQueue, int, SpanContext]]] = {}

    def record_handled(
        self, group: str, queue: MessageQueue, last_offset: int, context: SpanContext
    ) -> None:
        """Record the span of a handler call that has returned, for the commit that covers it."""
        handled = self._handled.get(group)
        if handled is None:
            handled = self._handled[group] = deque(maxlen=HANDLED_MAX)
        handled.append((queue, last_offset, context))

    @contextmanager
    def commit(self, group: str, offsets: Iterable[tuple[MessageQueue, int]]) -> Iterator[None]:
        """Return a context manager around a commit, with a span if it covers traced messages.

        Args:
            offsets: queues with their next offsets.
        """
        contexts = self._pop_covered(group, dict(offsets))
        if not contexts:
            yield
            return
        attributes: Attributes = {
            "messaging.consumer.group.name": group,
            "messaging.batch.message_count": len(contexts),
        }
        span = self._spans.start("settle", "commit", SpanKind.CLIENT, attributes, contexts)
        with calls_within(span):
            yield

    def _pop_covered(
        self, group: str, offsets: Mapping[MessageQueue, int]
    ) -> Sequence[SpanContext]:
        handled = self._handled.get(group)
        if not handled:
            return ()
        covered: list[SpanContext] = []
        # Handlers in threads may append in parallel.
        for _ in range(len(handled)):
            each = handled.popleft()
            if each[1] < offsets.get(each[0], 0):
                covered.append(each[2])
            else:
                handled.append(each)
        return covered


Handler = Callable[[Any], Any]


def traced_handler(
    spans: SpanStarter, commits: CommitSpans, group: str, handler: Handler
) -> Handler:
    """Return a handler, async or plain like the given one, that runs it in a span.

    An exception is recorded on the span and raised; a result other than None is recorded too.
    """

    def start_span(argument: Any) -> Span | None:
        messages: Sequence[Message] = argument if isinstance(argument, list) else (argument,)
        contexts: list[SpanContext] = []
        for message in messages:
            context = context_in(message.traceparent)
            if context is not None:
                contexts.append(context)
        if not contexts:
            return None
        first = messages[0]
        attributes: dict[str, str | int] = {
            "messaging.destination.name": first.topic,
            **queue_attributes(first.queue, group),
            "rockoon.queue_offset": first.queue_offset,
            "rockoon.attempt": first.attempt,
        }
        if len(messages) == 1:
            attributes["messaging.message.id"] = first.message_id
        else:
            attributes["messaging.batch.message_count"] = len(messages)
        return spans.start("process", "process", SpanKind.CONSUMER, attributes, contexts)

    def record_result(span: Span, argument: Any, result: object) -> None:
        last = argument[-1] if isinstance(argument, list) else argument
        if result is not None:
            span.set_attribute("rockoon.result", valid_text(result))
        commits.record_handled(group, last.queue, last.queue_offset, span.get_span_context())

    async def handle(argument: Any) -> Any:
        span = start_span(argument)
        if span is None:
            return await handler(argument)
        with in_span(span):
            result = await handler(argument)
            record_result(span, argument, result)
            return result

    def handle_in_thread(argument: Any) -> Any:
        span = start_span(argument)
        if span is None:
            return handler(argument)
        with in_span(span):
            result = handler(argument)
            record_result(span, argument, result)
            return result

    return handle if is_async(handler) else handle_in_thread


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
        """Return a span around storing a half message, if it is traced.

        A context in the properties is kept: outside a sampled span it is the parent.
        """
        own = properties or {}
        span = self._start(topic, own.get(TRACEPARENT) or own.get(PROPERTY_TRACE_CONTEXT))
        return nullcontext() if span is None else self._storing(span, own)

    @contextmanager
    def _storing(self, span: Span, properties: Mapping[str, str]) -> "Iterator[TracedHalf]":
        context = {TRACEPARENT: traceparent_of(span.get_span_context())}
        with calls_within(span):
            yield TracedHalf(span, {**context, **properties}, self._contexts)

    def on_end(
        self, message_id: str, topic: str, resolution: str
    ) -> AbstractContextManager[object]:
        """Return a span around the end of a transaction. Its parent is the half message's span, or
        a present sampled span if the half message was stored by another process."""
        context = self._contexts.pop(message_id, None)
        if context is None and not self._spans.is_within_sampled():
            return nullcontext()
        contexts = () if context is None else (context,)
        attributes = {"messaging.destination.name": topic}
        span = self._spans.start("settle", resolution, SpanKind.CLIENT, attributes, contexts)
        return calls_within(span)

    def _start(self, topic: str, own: str | None) -> Span | None:
        """Start a span for a message; None if it is not traced.

        Args:
            topic: the destination.
            own: context in the message's properties; None if there is none.
        """
        within = self._spans.is_within_sampled()
        context = None if within else context_in(own)
        if not within and context is None and (own is not None or not self._spans.chooses()):
            return None
        span = self._spans.start(
            "send",
            "send",
            SpanKind.PRODUCER,
            {"messaging.destination.name": topic},
            () if context is None else (context,),
            is_root=not within,
        )
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


class Tracing:
    """Tracing of a connection. One object may serve several connections.

    Args:
        ratio: share of messages sent outside spans that start a trace, 0 to 1. They are selected
            when a batch is encoded; untraced messages cost nothing.
        tracer_provider: creates the spans; None uses the application's global one.
        present_spans: trace messages sent within a sampled span. False saves a fast sender the
            check of the present context for every message.
        traces_per_second_max: maximum rate of traces that `ratio` starts; those of one second may
            start together.
        clock: returns monotonic seconds.

    Raises:
        InvalidArgument: the ratio or the bound is out of range.
    """

    def __init__(
        self,
        ratio: float = RATIO,
        tracer_provider: "TracerProvider | None" = None,
        *,
        present_spans: bool = True,
        traces_per_second_max: float = TRACES_PER_SECOND_MAX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spans = SpanStarter(
            ratio,
            tracer_provider,
            present_spans=present_spans,
            traces_per_second_max=traces_per_second_max,
            clock=clock,
        )
        self._commits = CommitSpans(self._spans)

    # Implementation of `rockoon.hooks.Hooks`

    def for_producer(self) -> ProducerSpans:
        return ProducerSpans(self._spans)

    def for_transactions(self) -> TransactionSpans:
        return TransactionSpans(self._spans)

    def around_handler(self, group: str, handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return traced_handler(self._spans, self._commits, group, handler)

    def on_pulled(self, batch: Batch, frames: bytes, group: str, asked_ns: int) -> None:
        """Record a span for a pull, if its first 64 KiB have a traced message.

        Args:
            frames: the records of the batch.
            group: consumer group of the reader; empty without a group.
            asked_ns: time of the pull request, epoch nanoseconds.
        """
        contexts = contexts_in(frames)
        if contexts:
            attributes = {
                "messaging.destination.name": batch.queue.topic,
                "messaging.batch.message_count": len(batch),
                **queue_attributes(batch.queue, group),
            }
            kind = SpanKind.CLIENT
            self._spans.start(
                "receive", "receive", kind, attributes, contexts, start_ns=asked_ns
            ).end()

    def on_commit(
        self, group: str, offsets: Iterable[tuple[MessageQueue, int]]
    ) -> AbstractContextManager[None]:
        return self._commits.commit(group, offsets)

    def call_metadata(self) -> tuple[tuple[str, str], ...]:
        return call_metadata()
