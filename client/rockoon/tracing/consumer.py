"""Spans of a consumer: one per handler call with a traced message, and one per commit.

A commit covers many handled messages and links to their spans.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from opentelemetry.trace import Span, SpanContext, SpanKind

from rockoon.callbacks import is_async
from rockoon.message import Message
from rockoon.tracing.spans import (
    Attributes,
    SpanStarter,
    calls_within,
    context_in,
    in_span,
    queue_attributes,
)
from rockoon_core.message_queue import MessageQueue
from rockoon_core.valid_text import valid_text

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


Handler = Callable[[Any], Any]


def traced_handler(
    spans: SpanStarter, commits: CommitSpans, group: str, handler: Handler
) -> Handler:
    """Return a handler, async or plain like the given one, that runs it in a span.

    An exception is recorded on the span and raised; a result other than None is recorded too.
    """

    def start_span(argument: Any) -> Span | None:
        messages: Sequence[Message] = argument if isinstance(argument, list) else (argument,)
        contexts: list[SpanContext] = []
        for message in messages:
            context = context_in(message.traceparent)
            if context is not None:
                contexts.append(context)
        if not contexts:
            return None
        first = messages[0]
        attributes: dict[str, str | int] = {
            "messaging.destination.name": first.topic,
            **queue_attributes(first.queue, group),
            "rockoon.queue_offset": first.queue_offset,
            "rockoon.attempt": first.attempt,
        }
        if len(messages) == 1:
            attributes["messaging.message.id"] = first.message_id
        else:
            attributes["messaging.batch.message_count"] = len(messages)
        return spans.start("process", "process", SpanKind.CONSUMER, attributes, contexts)

    def record_result(span: Span, argument: Any, result: object) -> None:
        last = argument[-1] if isinstance(argument, list) else argument
        if result is not None:
            span.set_attribute("rockoon.result", valid_text(result))
        commits.record_handled(group, last.queue, last.queue_offset, span.get_span_context())

    async def handle(argument: Any) -> Any:
        span = start_span(argument)
        if span is None:
            return await handler(argument)
        with in_span(span):
            result = await handler(argument)
            record_result(span, argument, result)
            return result

    def handle_in_thread(argument: Any) -> Any:
        span = start_span(argument)
        if span is None:
            return handler(argument)
        with in_span(span):
            result = handler(argument)
            record_result(span, argument, result)
            return result

    return handle if is_async(handler) else handle_in_thread
