"""Traces with OpenTelemetry; requires `pip install 'rockoon[otel]'`.

    tracing = Tracing(ratio=0.001)
    async with rockoon.connect(nameservers, tracing=tracing) as cluster: ...

    send orders ──▶ append orders ──▶ append (broker)        links: one batch, many messages
         │
         ├──▶ pull (broker), receive orders    links: one pull, many messages
         └──▶ process orders ──▶ spans of the handler
                  └──▶ commit ──▶ Commit (offset service)    links: one commit, many messages

A message's context is in its property `traceparent` (W3C Trace Context), as in OpenTelemetry's
instrumentation of RocketMQ's clients; the property of its 5.x clients is read too. A message that
is sent within a sampled span is traced. Outside spans, one send in `1 / ratio` starts a trace. An
untraced message lacks this property and costs neither brokers nor consumers anything.

The application's TracerProvider exports the spans; this module configures none.
"""

import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

from opentelemetry.trace import SpanKind, TracerProvider

from rockoon.message import Batch
from rockoon.tracing.consumer import CommitSpans, traced_handler
from rockoon.tracing.producer import ProducerSpans
from rockoon.tracing.spans import (
    RATIO,
    TRACES_PER_SECOND_MAX,
    SpanStarter,
    call_metadata,
    contexts_in,
    queue_attributes,
)
from rockoon.tracing.transactions import TransactionSpans
from rockoon_core.message_queue import MessageQueue


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
            batch: the messages.
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
