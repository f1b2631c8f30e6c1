"""Spans of commits: a commit covers many handled messages and links to their spans."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from opentelemetry.trace import SpanContext, SpanKind

from rockoon.tracing.spans import Attributes, SpanStarter, calls_within
from rockoon_core.message_queue import MessageQueue

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
            group: the consumer group.
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
