"""Spans of commits: one commit covers many handled messages, and links to all of them."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from opentelemetry.trace import SpanContext, SpanKind

from rockoon.tracing.spans import Attributes, SpanStarter, calls_within
from rockoon_core.message_queue import MessageQueue

# Handled and not committed yet, for each group: the oldest are committed without a link.
HANDLED_MAX = 1_024


class CommitSpans:
    """The traced messages that handlers have returned from and no commit covers yet."""

    def __init__(self, spans: SpanStarter) -> None:
        self._spans = spans
        # By group.
        self._handled: dict[str, deque[tuple[MessageQueue, int, SpanContext]]] = {}

    def note_handled(
        self, group: str, queue: MessageQueue, last_offset: int, context: SpanContext
    ) -> None:
        """A handler has returned; the span that this was waits for its commit."""
        handled = self._handled.get(group)
        if handled is None:
            handled = self._handled[group] = deque(maxlen=HANDLED_MAX)
        handled.append((queue, last_offset, context))

    @contextmanager
    def commit(self, group: str, offsets: Iterable[tuple[MessageQueue, int]]) -> Iterator[None]:
        """Be within a commit: a span, when it covers handled messages that are traced.

        Args:
            group: whose.
            offsets: where each queue goes on.
        """
        contexts = self._take_handled(group, dict(offsets))
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

    def _take_handled(
        self, group: str, offsets: Mapping[MessageQueue, int]
    ) -> Sequence[SpanContext]:
        handled = self._handled.get(group)
        if not handled:
            return ()
        covered: list[SpanContext] = []
        # Handlers in threads append meanwhile.
        for _ in range(len(handled)):
            each = handled.popleft()
            if each[1] < offsets.get(each[0], 0):
                covered.append(each[2])
            else:
                handled.append(each)
        return covered
