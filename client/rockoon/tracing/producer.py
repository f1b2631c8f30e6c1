"""Spans of a producer: one per traced message, and one per batch of traced messages.

Messages sent within a sampled span are traced. Some messages sent outside spans are selected when
their batch is encoded. An untraced message costs one check for a present context. A forwarded
message that has a sampled context is traced too; a context in the properties is never replaced.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import Context as Variables
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field

from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.trace import Span, SpanContext, SpanKind

from rockoon.errors import RockoonError
from rockoon.producer.accumulator import ProducerBatch
from rockoon.producer.outgoing import SEQUENCED_BYTES_MAX
from rockoon.producer.receipt import Receipt
from rockoon.tracing.spans import (
    SpanStarter,
    context_in,
    end,
    in_span,
    queue_attributes,
    traceparent_of,
)
from rockoon_format.properties import (
    PROPERTIES_BYTES_MAX,
    PROPERTY_TRACE_CONTEXT,
    PROPERTY_UNIQ_KEY,
    TRACEPARENT,
    TRACEPARENT_BYTES,
    TRACEPARENT_MARK,
    find_value,
)
from rockoon_proto.v1.broker_pb2 import AppendRequest

# Size of name, separator, context, separator.
SECTION_BYTES = len(TRACEPARENT_MARK) + TRACEPARENT_BYTES + 1

# Maximum number of unacknowledged traced messages; further ones are not traced.
OPEN_MAX = 10_000

# Span of the running `send_many`, which all its messages share.
_many: ContextVar[Span | None] = ContextVar("rockoon_send_many", default=None)


def present_context() -> Callable[[], object]:
    """Return a function that returns the present context, which is empty (false) if there is none.

    OpenTelemetry's `get_current` is two functions around a context variable. Reading the variable
    directly costs a seventh of that. OpenTelemetry does not export the variable: it is searched.
    """
    mark = Context({"rockoon": "mark"})
    token = attach(mark)
    try:
        found = [variable for variable, value in copy_context().items() if value is mark]
    finally:
        detach(token)
    try:
        # The variable must be empty in a new context.
        if len(found) == 1 and not Variables().run(found[0].get):
            return found[0].get
    except LookupError:
        pass
    return get_current


@dataclass(frozen=True, slots=True)
class _TracedMessage:
    """A traced message that is not acknowledged yet."""

    span: Span
    is_own: bool
    """Whether the span belongs to this message only and ends with it."""
    receipt: Receipt | None = None
    index: int = 0
    """Index in its batch, for a message without a receipt here."""


@dataclass(slots=True)
class _Out:
    """A batch with traced messages that was sent to a broker."""

    sent: list[_TracedMessage] = field(default_factory=list)
    append: Span | None = None


class ProducerSpans:
    """Implements `rockoon.hooks.ProducerHooks`: spans of messages and of their batches."""

    def __init__(self, spans: SpanStarter) -> None:
        self._spans = spans
        self.may_want = present_context() if spans.present_spans else None
        # Messages whose batch has not been sent. A message can still move to another batch, so its
        # batch is looked up when a batch is sent.
        self._open: list[_TracedMessage] = []
        self._out: dict[ProducerBatch, _Out] = {}
        # Number of messages to skip before the next one that starts a trace.
        self._gap = spans.next_gap()

    def on_send(self, receipt: Receipt) -> None:
        """Trace a message that was sent within a sampled span, or that has a sampled context."""
        batch, index = receipt.batch, receipt.index
        if len(self._open) >= OPEN_MAX:
            return
        tail = batch.extras.get(index, (b"", b""))[1]
        own = None if self._spans.is_within_sampled() else _own_context(tail)
        if own is None and not self._spans.is_within_sampled():
            return
        is_marked = TRACEPARENT_MARK in tail
        if not is_marked and not _has_room(batch, index):
            return
        many = _many.get()
        span = many or self._start(batch.batch_queue.topic, own, tail)
        if not is_marked:
            _mark(batch, index, span.get_span_context())
            # Both counters, since completing the batch subtracts its bytes from the accumulator's.
            batch.bytes += SECTION_BYTES
            batch.batch_queue.accumulator.unawaited_bytes += SECTION_BYTES
        if many is not None and self._open:
            last = self._open[-1]
            is_same_batch = last.receipt is not None and last.receipt.batch is batch
            if last.span is span and is_same_batch:
                return
        self._open.append(_TracedMessage(span, many is None, receipt))

    def on_refused(self, topic: str, failure: RockoonError) -> None:
        """Record a failed span; for `send_many`, its exception is recorded instead."""
        if self._spans.is_within_sampled() and _many.get() is None:
            end(self._start(topic), failure)

    def on_send_many(self, topic: str) -> AbstractContextManager[Callable[[int], None]] | None:
        """Return one span for all messages, if the present span is sampled."""
        return self._sending_many(topic) if self._spans.is_within_sampled() else None

    @contextmanager
    def _sending_many(self, topic: str) -> Iterator[Callable[[int], None]]:
        span = self._start(topic)
        token = _many.set(span)
        try:
            with in_span(span):
                yield lambda count: span.set_attribute("messaging.batch.message_count", count)
        finally:
            _many.reset(token)

    def _start(self, topic: str, parent: SpanContext | None = None, tail: bytes = b"") -> Span:
        """Start the span of a message; the present span is its parent if there is no other one."""
        attributes = {"messaging.destination.name": topic}
        if (message_id := find_value(tail, PROPERTY_UNIQ_KEY)) is not None:
            attributes["messaging.message.id"] = message_id
        contexts = () if parent is None else (parent,)
        return self._spans.start("send", "send", SpanKind.PRODUCER, attributes, contexts)

    def on_encode(self, batch: ProducerBatch) -> None:
        """Start traces with some messages of a batch."""
        while self._gap is not None and self._gap < len(batch.bodies):
            if self._spans.may_start_trace():
                self._start_trace(batch, self._gap)
            gap = self._spans.next_gap()
            self._gap = None if gap is None else self._gap + 1 + gap
        if self._gap is not None:
            self._gap -= len(batch.bodies)

    def _start_trace(self, batch: ProducerBatch, index: int) -> None:
        if TRACEPARENT_MARK in batch.extras.get(index, (b"", b""))[1]:
            return
        if not _has_room(batch, index):
            return
        attributes = {"messaging.destination.name": batch.batch_queue.topic}
        # The span in which the message was sent, if any, is unknown and not sampled.
        span = self._spans.start(
            "send",
            "send",
            SpanKind.PRODUCER,
            attributes,
            is_root=True,
            start_ns=batch.born_timestamp_ms * 1_000_000,
        )
        context = span.get_span_context()
        if context.trace_flags.sampled:
            _mark(batch, index, context)
            self._out.setdefault(batch, _Out()).sent.append(_TracedMessage(span, True, index=index))

    def on_batch_sent(self, batch: ProducerBatch, request: AppendRequest) -> None:
        """Set the trace context of a batch's request."""
        out = self._gather(batch)
        if out is None:
            return
        assert batch.queue is not None
        # Messages of one `send_many` share a span.
        own = [sent.span.get_span_context() for sent in out.sent]
        contexts = list({context.span_id: context for context in own}.values())
        if len(contexts) == 1:
            # A span for the batch would repeat this one, at the same cost.
            if batch.last_error is not None:
                again = {"error.type": batch.last_error.name, **queue_attributes(batch.queue)}
                out.sent[0].span.add_event("sent again", again)
            request.traceparent = traceparent_of(contexts[0])
            return
        if out.append is not None:
            end(out.append, batch.last_error)
        attributes = {
            "messaging.destination.name": batch.queue.topic,
            "messaging.batch.message_count": len(batch.bodies),
            **queue_attributes(batch.queue),
        }
        out.append = self._spans.start("send", "append", SpanKind.CLIENT, attributes, contexts)
        request.traceparent = traceparent_of(out.append.get_span_context())

    def on_completed(self, batch: ProducerBatch) -> None:
        out = self._gather(batch)
        if out is None:
            return
        del self._out[batch]
        failure = batch.outcome if isinstance(batch.outcome, RockoonError) else None
        if out.append is not None:
            end(out.append, failure)
        for sent in out.sent:
            if not sent.is_own:
                continue
            if failure is None and batch.queue is not None:
                # Not `batch.result`, which computes the position of every message of the batch.
                index = sent.index if sent.receipt is None else sent.receipt.index
                digits = len(batch.ids) // batch.count
                attributes = queue_attributes(batch.queue)
                # The ids of forwarded messages are placeholders of one byte.
                if digits > 1:
                    message_id = batch.ids[index * digits : (index + 1) * digits].decode()
                    attributes["messaging.message.id"] = message_id
                sent.span.set_attributes(attributes)
            end(sent.span, failure)

    def _gather(self, batch: ProducerBatch) -> _Out | None:
        """Return the traced messages of a batch; None if there are none."""
        if self._open:
            mine = [sent for sent in self._open if _batch_of(sent) is batch]
            if mine:
                self._open = [sent for sent in self._open if _batch_of(sent) is not batch]
                self._out.setdefault(batch, _Out()).sent += mine
        return self._out.get(batch)


def _batch_of(sent: _TracedMessage) -> ProducerBatch | None:
    return None if sent.receipt is None else sent.receipt.batch


def _own_context(tail: bytes) -> SpanContext | None:
    """Return the sampled context in a message's properties."""
    own = find_value(tail, TRACEPARENT) or find_value(tail, PROPERTY_TRACE_CONTEXT)
    return context_in(own)


def _has_room(batch: ProducerBatch, index: int) -> bool:
    """Return whether a trace context fits into the message's properties."""
    head, tail = batch.extras.get(index, (b"", b""))
    size = len(head) + len(tail) + SECTION_BYTES + SEQUENCED_BYTES_MAX
    return size <= PROPERTIES_BYTES_MAX


def _mark(batch: ProducerBatch, index: int, context: SpanContext) -> None:
    """Write a trace context into a message's properties."""
    head, tail = batch.extras.get(index, (b"", b""))
    section = TRACEPARENT_MARK + traceparent_of(context).encode() + b"\x02"
    batch.extras[index] = (head, tail + section)
