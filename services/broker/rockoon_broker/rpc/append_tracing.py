"""Spans of batches whose sender traces them, from their place in the log to their sync.

Loaded only by a broker that exports traces: it needs OpenTelemetry.
"""

from asyncio import Future
from collections.abc import Awaitable, Callable

from opentelemetry.trace import SpanKind, Tracer, use_span

from rockoon_broker.append import AppendResult
from rockoon_broker.rpc.large_requests import Request
from rockoon_core.errors import RockoonError
from rockoon_runtime.telemetry.call_tracing import context_of, end

Append = Callable[[Request], Awaitable[AppendResult]]


class AppendTracing:
    """Creates a span for each traced batch.

    Args:
        tracer: continues sampled traces and starts no new ones.
        append: appends a batch, or raises RockoonError.
    """

    def __init__(self, tracer: Tracer, append: Append) -> None:
        self._tracer = tracer
        self._append = append

    async def append(self, request: Request) -> AppendResult:
        """As the `append` argument. The span ends when the batch is durable or has failed."""
        if not request.traceparent:
            return await self._append(request)
        span = self._tracer.start_span(
            f"append {request.topic}",
            context_of(request.traceparent),
            SpanKind.SERVER,
            {
                "messaging.system": "rocketmq",
                "messaging.operation.name": "append",
                "messaging.destination.name": request.topic,
                "messaging.destination.partition.id": str(request.queue_id),
                "messaging.batch.message_count": len(request.record_lengths) // 4,
            },
        )
        try:
            # Log lines about a refused batch contain the ids of the span.
            with use_span(span, record_exception=False, set_status_on_exception=False):
                result = await self._append(request)
        except BaseException as failure:
            end(span, failure)
            raise
        span.add_event("in the log")
        span.set_attribute("rockoon.queue_offset", result.first.first_queue_offset)
        span.set_attribute("rockoon.physical_offset", result.first.first_physical_offset)
        if result.durable is None:
            span.end()
        else:

            def completed(durable: "Future[RockoonError | None]") -> None:
                end(span, None if durable.cancelled() else durable.result())

            result.durable.add_done_callback(completed)
        return result
