"""Traces with OpenTelemetry; needs `pip install 'rockoon[otel]'`.

    tracing = Tracing(ratio=0.001)
    async with rockoon.connect(nameservers, tracing=tracing) as cluster: ...

    send orders ──▶ append orders ──▶ append (broker)        links: one batch, many messages
         │
         ├──▶ pull (broker), receive orders    links: one pull, many messages
         └──▶ process orders ──▶ whatever the handler does
                  └──▶ commit ──▶ Commit (offset service)    links: one commit, many messages

A message's context is in its property `traceparent` (W3C Trace Context), where OpenTelemetry's
instrumentation of RocketMQ's clients puts it; that of its 5.x clients is read as well. Whoever has
a present span decides: its messages are traced when it is sampled. Otherwise one send in
`1 / ratio` begins a trace. A message that is not traced has no such property, and neither its
reader nor any broker does anything about it.

Spans go wherever the application's TracerProvider sends them; this module makes none.
"""

import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

from opentelemetry.trace import SpanKind, TracerProvider

from rockoon.message import Batch
from rockoon.tracing.commits import CommitSpans
from rockoon.tracing.handler import traced_handler
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
    """How a connection traces. One may serve several connections.

    Args:
        ratio: of messages sent without a present span, how many begin a trace, 0 to 1. They are
            chosen when a batch goes out, so that the others cost nothing.
        tracer_provider: where spans are made; by default the application's global one.
        present_spans: whether messages sent within a sampled span are traced. Off, a program that
            sends as fast as it can does without a look at the context for every message.
        traces_per_second_max: of traces that `ratio` begins; those of a second may come at once.
        clock: monotonic seconds.

    Raises:
        InvalidArgument: the ratio is none, or the bound is not above 0.
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

    # As `rockoon.hooks.Hooks` has them

    def for_producer(self) -> ProducerSpans:
        return ProducerSpans(self._spans)

    def for_transactions(self) -> TransactionSpans:
        return TransactionSpans(self._spans)

    def around_handler(self, group: str, handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return traced_handler(self._spans, self._commits, group, handler)

    def on_pulled(self, batch: Batch, frames: bytes, group: str, asked_ns: int) -> None:
        """A pull was answered: one span, when there is a traced message in its first 64 KiB.

        Args:
            batch: the messages.
            frames: what it was made of.
            group: whose reader pulled; empty outside groups.
            asked_ns: when the pull began, epoch nanoseconds.
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
