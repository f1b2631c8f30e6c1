"""Spans of pulls that give traced messages out, from the pull's arrival to its answer.

Loaded only by a broker that exports traces: it needs OpenTelemetry.
"""

from opentelemetry.trace import NonRecordingSpan, SpanKind, Tracer, set_span_in_context

from rockoon_broker.pull import Pulled, PullQuery
from rockoon_format.traceparents import find_traceparents
from rockoon_runtime.telemetry.call_tracing import linked_contexts, links_to

LINKS_MAX = 128


class PullTracing:
    """Tells of pulls.

    Args:
        tracer: continues traces that are sampled, and begins none.
    """

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def pulled(self, query: PullQuery, pulled: Pulled, came_ns: int) -> None:
        """A pull is about to be answered: a span, when it has a traced message in its beginning.

        Its parent is the span of the first such message, the others' become links: a pull's own
        trace would be one that nobody looks at.

        Args:
            query: what was asked for.
            pulled: what there is.
            came_ns: when it was asked for, epoch nanoseconds.
        """
        contexts = linked_contexts(find_traceparents(pulled.found.frames, LINKS_MAX))
        if not contexts:
            return
        attributes: dict[str, str | int] = {
            "messaging.system": "rocketmq",
            "messaging.operation.name": "pull",
            "messaging.destination.name": query.topic,
            "messaging.destination.partition.id": str(query.queue_id),
            "messaging.batch.message_count": pulled.found.count,
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
            came_ns,
        ).end()
