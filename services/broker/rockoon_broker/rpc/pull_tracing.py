"""Spans of pulls that return traced messages, from the request to the reply.

Only a broker that exports traces imports this module, which needs OpenTelemetry.
"""

from opentelemetry.trace import NonRecordingSpan, SpanKind, Tracer, set_span_in_context

from rockoon_broker.pull import PullQuery, PullResult
from rockoon_format.properties import find_traceparents
from rockoon_runtime.telemetry.call_tracing import linked_contexts, links_to

LINKS_MAX = 128


class PullTracing:
    """Creates spans of pulls.

    Args:
        tracer: continues sampled traces and starts no new ones.
    """

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def record_pull(self, query: PullQuery, result: PullResult, received_ns: int) -> None:
        """Create a span for a pull whose first `LINKS_MAX` messages include a traced one.

        The parent is the span of the first traced message, and links refer to the spans of the
        next ones. A separate trace of the pull would have no connection to the messages.

        Args:
            query: the request.
            result: the result, before the reply is sent.
            received_ns: time of the request, epoch nanoseconds.
        """
        contexts = linked_contexts(find_traceparents(result.found.frames, LINKS_MAX))
        if not contexts:
            return
        attributes: dict[str, str | int] = {
            "messaging.system": "rocketmq",
            "messaging.operation.name": "pull",
            "messaging.destination.name": query.topic,
            "messaging.destination.partition.id": str(query.queue_id),
            "messaging.batch.message_count": result.found.count,
            "rockoon.queue_offset": query.offset,
        }
        if query.group:
            attributes["messaging.consumer.group.name"] = query.group
        self._tracer.start_span(
            f"pull {query.topic}",
            set_span_in_context(NonRecordingSpan(contexts[0])),
            SpanKind.SERVER,
            attributes,
            links_to(contexts[1:]),
            received_ns,
        ).end()
