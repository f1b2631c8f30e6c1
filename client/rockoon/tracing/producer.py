"""Spans of a producer: one per traced message, and one per batch of them.

Messages sent within a sampled span are traced, and of the others a few are chosen when their batch
goes out. What a message that is not traced costs is one look whether there is a present context.
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
from rockoon.tracing.spans import SpanStarter, end, in_span, queue_attributes, traceparent_of
from rockoon_format.properties import PROPERTIES_BYTES_MAX
from rockoon_format.traceparents import TRACEPARENT_BYTES, TRACEPARENT_MARK
from rockoon_proto.v1.broker_pb2 import AppendRequest

# Name, separator, context, separator.
SECTION_BYTES = len(TRACEPARENT_MARK) + TRACEPARENT_BYTES + 1

# Traced messages that no broker has acknowledged; further ones are sent untraced.
OPEN_MAX = 10_000

# The span of a `send_many` that runs: its messages share it.
_many: ContextVar[Span | None] = ContextVar("rockoon_send_many", default=None)


def present_context() -> Callable[[], object]:
    """What tells, for every message, whether there is a present context: empty, and so false, when
    there is none.

    OpenTelemetry's `get_current` is two functions around a context variable. Asking the variable
    itself takes a seventh of that; which one it is, it does not tell, so it is looked for.
    """
    mark = Context({"rockoon": "mark"})
    token = attach(mark)
    try:
        found = [variable for variable, value in copy_context().items() if value is mark]
    finally:
        detach(token)
    try:
        # As in a task that never had one.
        if len(found) == 1 and not Variables().run(found[0].get):
            return found[0].get
    except LookupError:
        pass
    return get_current


@dataclass(frozen=True, slots=True)
class _Sent:
    """A traced message that is not acknowledged."""

    span: Span
    is_own: bool
    """Whether the span is about this message alone, and ends with it."""
    receipt: Receipt | None = None
    index: int = 0
    """In its batch; of a message without a receipt here."""


@dataclass(slots=True)
class _Out:
    """A batch with traced messages that is with a broker, or was."""

    sent: list[_Sent] = field(default_factory=list)
    append: Span | None = None


class ProducerSpans:
    """`rockoon.hooks.ProducerHooks`: which traced message is in which batch, and their spans."""

    def __init__(self, spans: SpanStarter) -> None:
        self._spans = spans
        self.may_want = present_context() if spans.present_spans else None
        # In no batch that has been sent. A message can still move from one to another, so which
        # it is in is looked at when a batch goes out.
        self._open: list[_Sent] = []
        self._out: dict[ProducerBatch, _Out] = {}
        # Messages to pass over before the next one that begins a trace.
        self._gap = spans.next_gap()

    def on_send(self, receipt: Receipt) -> None:
        """Trace a message that was sent within a sampled span."""
        batch, index = receipt.batch, receipt.index
        if not self._spans.is_within_sampled() or len(self._open) >= OPEN_MAX:
            return
        if not _has_room(batch, index):
            return
        many = _many.get()
        span = many or self._start(batch.batch_queue.topic)
        _mark(batch, index, span.get_span_context())
        # Both, since completing the batch takes its bytes from the accumulator's.
        batch.bytes += SECTION_BYTES
        batch.batch_queue.accumulator.unclaimed_bytes += SECTION_BYTES
        if many is not None and self._open:
            last = self._open[-1]
            is_same_batch = last.receipt is not None and last.receipt.batch is batch
            if last.span is span and is_same_batch:
                return
        self._open.append(_Sent(span, many is None, receipt))

    def on_refused(self, topic: str, failure: RockoonError) -> None:
        """A span that has failed says so; that of a `send_many` is told by what it raises."""
        if self._spans.is_within_sampled() and _many.get() is None:
            end(self._start(topic), failure)

    def on_send_many(self, topic: str) -> AbstractContextManager[Callable[[int], None]] | None:
        """One span about all of the messages, where the present one is sampled."""
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

    def _start(self, topic: str) -> Span:
        attributes = {"messaging.destination.name": topic}
        return self._spans.start("send", "send", SpanKind.PRODUCER, attributes)

    def on_encode(self, batch: ProducerBatch) -> None:
        """Begin traces with some messages of a batch."""
        while self._gap is not None and self._gap < len(batch.bodies):
            if self._spans.may_begin():
                self._begin(batch, self._gap)
            gap = self._spans.next_gap()
            self._gap = None if gap is None else self._gap + 1 + gap
        if self._gap is not None:
            self._gap -= len(batch.bodies)

    def _begin(self, batch: ProducerBatch, index: int) -> None:
        if not _has_room(batch, index):
            return
        attributes = {"messaging.destination.name": batch.batch_queue.topic}
        # Nothing is known of the span in which it was sent, if that was one that is not sampled.
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
            self._out.setdefault(batch, _Out()).sent.append(_Sent(span, True, index=index))

    def on_batch_sent(self, batch: ProducerBatch, request: AppendRequest) -> None:
        """Name a batch's span in its request."""
        out = self._gather(batch)
        if out is None:
            return
        assert batch.queue is not None
        # Those of one `send_many` share theirs.
        own = [sent.span.get_span_context() for sent in out.sent]
        contexts = list({context.span_id: context for context in own}.values())
        if len(contexts) == 1:
            # A span of the batch would say what this one says, and cost as much again.
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
        """A batch's spans end."""
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
                # Not `batch.result`: it works out where every message of the batch went.
                index = sent.index if sent.receipt is None else sent.receipt.index
                digits = len(batch.ids) // batch.count
                message_id = batch.ids[index * digits : (index + 1) * digits].decode()
                where = queue_attributes(batch.queue)
                sent.span.set_attributes({"messaging.message.id": message_id, **where})
            end(sent.span, failure)

    def _gather(self, batch: ProducerBatch) -> _Out | None:
        """What is traced of a batch; None when nothing is."""
        if self._open:
            mine = [sent for sent in self._open if _batch_of(sent) is batch]
            if mine:
                self._open = [sent for sent in self._open if _batch_of(sent) is not batch]
                self._out.setdefault(batch, _Out()).sent += mine
        return self._out.get(batch)


def _batch_of(sent: _Sent) -> ProducerBatch | None:
    return None if sent.receipt is None else sent.receipt.batch


def _has_room(batch: ProducerBatch, index: int) -> bool:
    """Whether a message can bear a context: not if it has one, or its properties would not fit."""
    head, tail = batch.extras.get(index, (b"", b""))
    size = len(head) + len(tail) + SECTION_BYTES + SEQUENCED_BYTES_MAX
    return TRACEPARENT_MARK not in tail and size <= PROPERTIES_BYTES_MAX


def _mark(batch: ProducerBatch, index: int, context: SpanContext) -> None:
    """Write a context into a message's properties."""
    head, tail = batch.extras.get(index, (b"", b""))
    section = TRACEPARENT_MARK + traceparent_of(context).encode() + b"\x02"
    batch.extras[index] = (head, tail + section)
