"""Handler spans: one for each call of a consumer's handler with a traced message."""

from collections.abc import Callable, Sequence
from typing import Any

from opentelemetry.trace import Span, SpanContext, SpanKind

from rockoon.callbacks import is_async
from rockoon.message import Message
from rockoon.tracing.commits import CommitSpans
from rockoon.tracing.spans import SpanStarter, context_in, in_span, queue_attributes
from rockoon_core.valid_text import valid_text

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
