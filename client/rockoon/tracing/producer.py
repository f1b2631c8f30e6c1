"""A producer whose messages can be traced: a span per traced message, and one per batch of them.

Messages sent within a sampled span are traced, and of the others a few are chosen when their batch
goes out. A `Producer` without tracing calls nothing for any of it; this one looks, for every
message, whether there is a present span.
"""

from collections.abc import Callable, Mapping
from contextvars import Context as Variables
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Unpack

from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.trace import Span, SpanKind, get_current_span, use_span

from rockoon.errors import RockoonError
from rockoon.producer.accumulator import ProducerBatch
from rockoon.producer.body_chunks import Bodies
from rockoon.producer.options import SendManyOptions
from rockoon.producer.outgoing import SEQUENCED_BYTES_MAX, Body
from rockoon.producer.producer import Producer
from rockoon.producer.queue_selectors import KeyHash, crc32_key_hash
from rockoon.producer.receipt import Receipt, SendResults
from rockoon.producer.settings import ProducerSettings
from rockoon.tracing.tracing import (
    Tracing,
    end,
    place_attributes,
    traceparent_of,
)
from rockoon_core.clock import Clock, wall_clock_ms
from rockoon_format.properties import PROPERTIES_BYTES_MAX, TRACEPARENT
from rockoon_format.traceparents import TRACEPARENT_BYTES, TRACEPARENT_MARK
from rockoon_proto.v1.broker_pb2 import AppendRequest

if TYPE_CHECKING:
    from rockoon.net.connection import Connection

# As `Producer.send` has them.
SEND_OPTIONS = (
    "keys",
    "tags",
    "properties",
    "queue",
    "ordering_key",
    "delay_level",
    "delay_seconds",
    "deliver_at",
)

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


class TracedProducer(Producer):
    """A `Producer` with `Tracing`. Made by `cluster.producer()` of a connection that traces."""

    def __init__(
        self,
        cluster: "Connection",
        settings: ProducerSettings | None = None,
        *,
        key_hash: KeyHash = crc32_key_hash,
        clock: Clock = wall_clock_ms,
    ) -> None:
        super().__init__(cluster, settings, key_hash=key_hash, clock=clock)
        assert cluster.tracing is not None
        self._tracing = tracing = cluster.tracing
        self._traces = TracedBatches(tracing)
        self._sender.traces = self._traces
        # Outside spans this call is all that a message costs.
        self._look = present_context() if tracing.present_spans else None
        self._present_span = self._look

    def _is_within_sampled(self) -> bool:
        if not self._tracing.present_spans:
            return False
        return get_current_span().get_span_context().trace_flags.sampled

    def _send_within_span(self, topic: str, body: Body, *options: Any) -> Receipt:
        # Off, so that `send` does its work; nothing waits in between.
        self._present_span = None
        try:
            named: dict[str, Any] = dict(zip(SEND_OPTIONS, options, strict=True))
            if self._is_within_sampled():
                return self._send_traced(topic, body, named)
            return self.send(topic, body, **named)
        finally:
            self._present_span = self._look

    def _send_traced(self, topic: str, body: Body, options: dict[str, Any]) -> Receipt:
        properties: Mapping[str, str] = options.pop("properties") or {}
        if TRACEPARENT in properties or self._traces.is_full:
            return self.send(topic, body, properties=properties, **options)
        many = _many.get()
        span = many or self._start(topic)
        with_context = {**properties, TRACEPARENT: traceparent_of(span.get_span_context())}
        try:
            receipt = self.send(topic, body, properties=with_context, **options)
        except RockoonError as failure:
            if many is None:
                end(span, failure)
            raise
        self._traces.follow(receipt, span, is_own=many is None)
        return receipt

    async def send_many(
        self, topic: str, bodies: Bodies, **options: Unpack[SendManyOptions]
    ) -> SendResults:
        """As `Producer.send_many`; one span is about all of the messages."""
        if not self._is_within_sampled():
            return await super().send_many(topic, bodies, **options)
        span = self._start(topic)
        token = _many.set(span)
        try:
            with use_span(span, end_on_exit=True):
                results = await super().send_many(topic, bodies, **options)
                span.set_attribute("messaging.batch.message_count", len(results))
                return results
        finally:
            _many.reset(token)

    def _is_plain(self, bodies: list[Body]) -> bool:
        return _many.get() is None and super()._is_plain(bodies)

    def _start(self, topic: str) -> Span:
        attributes = {"messaging.destination.name": topic}
        return self._tracing.start("send", "send", SpanKind.PRODUCER, attributes)


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


class TracedBatches:
    """Which traced message is in which batch. Told by the sender what becomes of batches."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing
        # In no batch that has been sent. A message can still move from one to another, so which
        # it is in is looked at when a batch goes out.
        self._open: list[_Sent] = []
        self._out: dict[ProducerBatch, _Out] = {}
        # Messages to pass over before the next one that begins a trace.
        self._gap = tracing.next_gap()

    @property
    def is_full(self) -> bool:
        return len(self._open) >= OPEN_MAX

    def follow(self, receipt: Receipt, span: Span, *, is_own: bool) -> None:
        """Trace a message from now on."""
        if not is_own and self._open:
            last = self._open[-1]
            is_same_batch = last.receipt is not None and last.receipt.batch is receipt.batch
            if last.span is span and is_same_batch:
                return
        self._open.append(_Sent(span, is_own, receipt))

    def choose(self, batch: ProducerBatch) -> None:
        """A batch is about to be made records: begin traces with some of its messages."""
        while self._gap is not None and self._gap < len(batch.bodies):
            if self._tracing.may_begin():
                self._begin(batch, self._gap)
            gap = self._tracing.next_gap()
            self._gap = None if gap is None else self._gap + 1 + gap
        if self._gap is not None:
            self._gap -= len(batch.bodies)

    def _begin(self, batch: ProducerBatch, index: int) -> None:
        head, tail = batch.extras.get(index, (b"", b""))
        room = len(head) + len(tail) + SECTION_BYTES + SEQUENCED_BYTES_MAX <= PROPERTIES_BYTES_MAX
        if TRACEPARENT_MARK in tail or not room:
            return
        topic = batch.batch_queue.topic
        attributes = {"messaging.destination.name": topic}
        # Nothing is known of the span in which it was sent, if that was one that is not sampled.
        span = self._tracing.start(
            "send",
            "send",
            SpanKind.PRODUCER,
            attributes,
            is_root=True,
            start_ns=batch.born_timestamp_ms * 1_000_000,
        )
        context = span.get_span_context()
        if not context.trace_flags.sampled:
            return
        section = TRACEPARENT_MARK + traceparent_of(context).encode() + b"\x02"
        batch.extras[index] = (head, tail + section)
        self._out.setdefault(batch, _Out()).sent.append(_Sent(span, True, index=index))

    def sending(self, batch: ProducerBatch, request: AppendRequest) -> None:
        """A batch goes to a broker, maybe again: name its span in the request."""
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
                again = {"error.type": batch.last_error.name, **place_attributes(batch.queue)}
                out.sent[0].span.add_event("sent again", again)
            request.traceparent = traceparent_of(contexts[0])
            return
        if out.append is not None:
            end(out.append, batch.last_error)
        attributes = {
            "messaging.destination.name": batch.queue.topic,
            "messaging.batch.message_count": len(batch.bodies),
            **place_attributes(batch.queue),
        }
        out.append = self._tracing.start("send", "append", SpanKind.CLIENT, attributes, contexts)
        request.traceparent = traceparent_of(out.append.get_span_context())

    def completed(self, batch: ProducerBatch) -> None:
        """A batch is acknowledged or given up: its spans end."""
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
                where = place_attributes(batch.queue)
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
