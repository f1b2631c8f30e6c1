"""Spans by OpenTelemetry's messaging conventions: sampling, start and end."""

import contextlib
import math
import random
import re
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode

from rockoon.errors import InvalidArgument, RockoonError
from rockoon_core.message_queue import MessageQueue
from rockoon_core.valid_text import exception_text, valid_text
from rockoon_format.properties import TRACEPARENT, find_traceparents

RATIO = 0.001
# Bound for a fast sender, for which one in a thousand would be too many.
TRACES_PER_SECOND_MAX = 20.0
LINKS_MAX = 128

_FORM = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")

Attributes = Mapping[str, str | int]

# The span of this package around the running call, passed to the called service. Not the present
# span: a consumer that is started within a span would pass that span with every pull.
_calling: ContextVar[Span | None] = ContextVar("rockoon_calling", default=None)


def traceparent_of(context: SpanContext) -> str:
    """Return a context in the format of W3C's header `traceparent`."""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def context_in(traceparent: str | None) -> SpanContext | None:
    """Return the context in a message's `traceparent`; None for none or one that is not sampled."""
    match = _FORM.match(traceparent or "")
    if match is None:
        return None
    flags = trace.TraceFlags(int(match[3], 16))
    context = SpanContext(int(match[1], 16), int(match[2], 16), is_remote=True, trace_flags=flags)
    return context if context.is_valid and flags.sampled else None


def contexts_in(records: bytes) -> list[SpanContext]:
    """Return the contexts at the start of stored records, at most `LINKS_MAX`. A body that looks
    like a context only adds a link."""
    found = map(context_in, find_traceparents(records, LINKS_MAX))
    return [context for context in found if context is not None]


class SpanStarter:
    """Starts spans, and selects messages outside spans that start a trace. `ratio`,
    `tracer_provider`, `present_spans`, `traces_per_second_max`, `clock`: as in `Tracing`. Raises
    InvalidArgument: the ratio or the bound is out of range."""

    def __init__(
        self,
        ratio: float = RATIO,
        tracer_provider: "trace.TracerProvider | None" = None,
        *,
        present_spans: bool = True,
        traces_per_second_max: float = TRACES_PER_SECOND_MAX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not 0 <= ratio <= 1:
            raise InvalidArgument(reason=f"ratio must be between 0 and 1, not {ratio}")
        if not traces_per_second_max > 0:
            raise InvalidArgument(
                reason=f"traces_per_second_max must be above 0, not {traces_per_second_max}"
            )
        self.present_spans = present_spans
        self._clock = clock
        self._traces_per_second_max = traces_per_second_max
        # Number of traces that could start at the time `_allowed_at`.
        self._allowed = traces_per_second_max
        self._allowed_at = clock()
        self._tracer = trace.get_tracer("rockoon", tracer_provider=tracer_provider)
        self._ratio = ratio
        self._random = random.Random()

    def is_within_sampled(self) -> bool:
        """Return whether messages sent now are traced because the present span is sampled."""
        if not self.present_spans:
            return False
        return trace.get_current_span().get_span_context().trace_flags.sampled

    def next_gap(self) -> int | None:
        """Return how many messages to skip before the next one that starts a trace; None: all."""
        if not self._ratio:
            return None
        if self._ratio == 1:
            return 0
        # Geometric distribution: drawn once per traced message, not once per message.
        return int(math.log(1 - self._random.random()) / math.log1p(-self._ratio))

    def may_start_trace(self) -> bool:
        """Return whether one more trace may start now, and count it."""
        now, most = self._clock(), self._traces_per_second_max
        self._allowed = min(max(most, 1), self._allowed + (now - self._allowed_at) * most)
        self._allowed_at = now
        if self._allowed < 1:
            return False
        self._allowed -= 1
        return True

    def chooses(self) -> bool:
        """Return whether a single send outside sampled spans starts a trace."""
        return self._random.random() < self._ratio and self.may_start_trace()

    def start(
        self,
        operation: str,
        name: str,
        kind: SpanKind,
        attributes: Attributes,
        contexts: Sequence[SpanContext] = (),
        *,
        is_root: bool = False,
        start_ns: int | None = None,
    ) -> Span:
        """Start a span of the messaging conventions.

        Args:
            operation: "send", "receive", "process" or "settle".
            name: name of the span, before the destination.
            contexts: contexts of messages; the first is the parent, the others become links. Empty:
                the present span is the parent.
            is_root: the span has no parent.
            start_ns: start time, epoch nanoseconds; None for now.
        """
        parent = Context() if is_root else None
        if contexts:
            parent = trace.set_span_in_context(trace.NonRecordingSpan(contexts[0]))
        destination = attributes.get("messaging.destination.name", "")
        return self._tracer.start_span(
            f"{name} {destination}".rstrip(),
            parent,
            kind,
            {
                "messaging.system": "rocketmq",
                "messaging.operation.type": operation,
                "messaging.operation.name": name,
                **attributes,
            },
            [Link(context) for context in contexts[1:LINKS_MAX]],
            start_ns,
        )


def call_metadata() -> tuple[tuple[str, str], ...]:
    """Return the call metadata with the `traceparent` of the span around the call, or none."""
    span = _calling.get()
    if span is None or not span.get_span_context().trace_flags.sampled:
        return ()
    return ((TRACEPARENT, traceparent_of(span.get_span_context())),)


@contextlib.contextmanager
def calls_within(span: Span) -> Iterator[None]:
    """Context manager: make a span the current one, pass it on with calls, and end it on exit."""
    token = _calling.set(span)
    try:
        with in_span(span):
            yield
    finally:
        _calling.reset(token)


@contextlib.contextmanager
def in_span(span: Span) -> Iterator[None]:
    """Context manager: make a span the current one, and end it on exit.

    An `Exception` is recorded as by OpenTelemetry's own `use_span`, but with valid text: an
    exporter discards all spans of an export if one has a lone surrogate.
    """
    with trace.use_span(
        span, end_on_exit=True, record_exception=False, set_status_on_exception=False
    ):
        try:
            yield
        except Exception as failure:
            stack = "".join(traceback.format_exception(failure))
            kind = type(failure)
            module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
            attributes = {
                "exception.type": f"{module}{kind.__qualname__}",
                "exception.message": valid_text(failure),
                "exception.stacktrace": valid_text(stack),
                "exception.escaped": "False",
            }
            span.add_event("exception", attributes)
            span.set_status(Status(StatusCode.ERROR, exception_text(failure)))
            raise


def queue_attributes(queue: MessageQueue, group: str = "") -> dict[str, str | int]:
    attributes: dict[str, str | int] = {
        "messaging.destination.partition.id": str(queue.queue_id),
        "rockoon.broker": queue.broker,
    }
    if group:
        attributes["messaging.consumer.group.name"] = group
    return attributes


def end(span: Span, failure: BaseException | None = None) -> None:
    """End a span; a failure sets its status and `error.type`."""
    if failure is not None:
        kind = failure.name if isinstance(failure, RockoonError) else type(failure).__name__
        span.set_attribute("error.type", kind)
        span.set_status(Status(StatusCode.ERROR, valid_text(failure)))
    span.end()
