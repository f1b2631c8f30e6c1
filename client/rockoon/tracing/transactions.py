"""A transactional producer whose messages can be traced.

send orders ──▶ Append (broker)       the half message
     ├──▶ commit orders ──▶ EndTransaction (broker)
     └──▶ receive, process, ...       of the message, when it was committed
"""

from typing import TYPE_CHECKING, Any

from opentelemetry.trace import Span, SpanContext, SpanKind, get_current_span

from rockoon.producer.outgoing import Body
from rockoon.tracing.tracing import calls_within, place_attributes, traceparent_of
from rockoon.transactions.producer import TransactionalProducer
from rockoon.transactions.transaction import Resolution, Transaction
from rockoon_format.properties import TRACEPARENT
from rockoon_proto.v1.broker_pb2 import EndTransactionReply

if TYPE_CHECKING:
    from rockoon.net.connection import Connection


# Of what nobody ends here, only the check: further ends of the oldest have no span.
BEGUN_MAX = 10_000


class TracedTransactionalProducer(TransactionalProducer):
    """A `TransactionalProducer` with `Tracing`: of a connection that traces."""

    def __init__(self, cluster: "Connection", group: str, **settings: Any) -> None:
        super().__init__(cluster, group, **settings)
        assert cluster.tracing is not None
        self._tracing = cluster.tracing
        # Of transactions that were begun and not ended here, by message id, oldest first.
        self._begun: dict[str, SpanContext] = {}

    async def begin(self, topic: str, body: Body, **options: Any) -> Transaction:
        """As `TransactionalProducer.begin`; a span is about storing the half message."""
        properties = options.get("properties") or {}
        span = None if TRACEPARENT in properties else self._start(topic)
        if span is None:
            return await super().begin(topic, body, **options)
        context = span.get_span_context()
        with calls_within(span):
            options["properties"] = {**properties, TRACEPARENT: traceparent_of(context)}
            transaction = await super().begin(topic, body, **options)
            span.set_attributes(
                {
                    "messaging.message.id": transaction.message_id,
                    **place_attributes(transaction.queue),
                }
            )
        self._begun[transaction.message_id] = context
        if len(self._begun) > BEGUN_MAX:
            del self._begun[next(iter(self._begun))]
        return transaction

    def _start(self, topic: str) -> Span | None:
        """A span for a message; None when it is not traced."""
        within = (
            self._tracing.present_spans
            and get_current_span().get_span_context().trace_flags.sampled
        )
        if not within and not self._tracing.chooses():
            return None
        attributes = {"messaging.destination.name": topic}
        span = self._tracing.start(
            "send", "send", SpanKind.PRODUCER, attributes, is_root=not within
        )
        return span if span.get_span_context().trace_flags.sampled else None

    async def _end(self, transaction: Transaction, resolution: Resolution) -> EndTransactionReply:
        context = self._begun.pop(transaction.message_id, None)
        if context is None:
            return await super()._end(transaction, resolution)
        attributes = {"messaging.destination.name": transaction.queue.topic}
        name = resolution.name.lower()
        span = self._tracing.start("settle", name, SpanKind.CLIENT, attributes, [context])
        with calls_within(span):
            return await super()._end(transaction, resolution)
