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

import contextlib
import math
import random
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar

from rockoon.errors import InvalidArgument, RockoonError
from rockoon.message import Batch
from rockoon_core.message_queue import MessageQueue
from rockoon_format.properties import TRACEPARENT
from rockoon_format.traceparents import find_traceparents

try:
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode
except ImportError as failure:
    raise ImportError("tracing needs OpenTelemetry: pip install 'rockoon[otel]'") from failure

RATIO = 0.001
# One in a thousand of what a program sends as fast as it can is more than anybody looks at.
TRACES_PER_SECOND_MAX = 20.0
LINKS_MAX = 128
# Handled and not committed yet, for each group: the oldest are committed without a link.
HANDLED_MAX = 1_024

_FORM = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")

Attributes = Mapping[str, str | int]

# The span that this package has begun around a call, for the service that answers it. Not the
# present span: a consumer that is started within one would tell it with every pull.
_calling: ContextVar[Span | None] = ContextVar("rockoon_calling", default=None)


def traceparent_of(context: SpanContext) -> str:
    """A context as W3C's header `traceparent` has it."""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def context_in(traceparent: str | None) -> SpanContext | None:
    """The context in a message's `traceparent`; None for none, or one that is not sampled."""
    match = _FORM.match(traceparent or "")
    if match is None:
        return None
    flags = trace.TraceFlags(int(match[3], 16))
    context = SpanContext(int(match[1], 16), int(match[2], 16), is_remote=True, trace_flags=flags)
    return context if context.is_valid and flags.sampled else None


def contexts_in(records: bytes) -> list[SpanContext]:
    """The contexts in the beginning of stored records, at most `LINKS_MAX`. A body that looks like
    one only makes a link."""
    found = map(context_in, find_traceparents(records, LINKS_MAX))
    return [context for context in found if context is not None]


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
        tracer_provider: "trace.TracerProvider | None" = None,
        *,
        present_spans: bool = True,
        traces_per_second_max: float = TRACES_PER_SECOND_MAX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not 0 <= ratio <= 1:
            raise InvalidArgument(reason=f"a ratio is between 0 and 1, not {ratio}")
        if not traces_per_second_max > 0:
            raise InvalidArgument(reason=f"{traces_per_second_max} traces a second are not above 0")
        self._clock = clock
        self._traces_per_second_max = traces_per_second_max
        # How many may begin now, and when that was so.
        self._allowed = traces_per_second_max
        self._allowed_at = clock()
        self.tracer = trace.get_tracer("rockoon", tracer_provider=tracer_provider)
        self.present_spans = present_spans
        self._ratio = ratio
        self._random = random.Random()
        # By group.
        self._handled: dict[str, deque[tuple[MessageQueue, int, SpanContext]]] = {}

    def next_gap(self) -> int | None:
        """How many messages are passed over until the next one that begins a trace; None: all."""
        if not self._ratio:
            return None
        if self._ratio == 1:
            return 0
        # Of a geometric distribution: drawn once per traced message, not once per message.
        return int(math.log(1 - self._random.random()) / math.log1p(-self._ratio))

    def may_begin(self) -> bool:
        """Whether one more trace may begin now; it counts as begun."""
        now, most = self._clock(), self._traces_per_second_max
        self._allowed = min(max(most, 1), self._allowed + (now - self._allowed_at) * most)
        self._allowed_at = now
        if self._allowed < 1:
            return False
        self._allowed -= 1
        return True

    def chooses(self) -> bool:
        """Whether something that is sent by itself, outside sampled spans, begins a trace."""
        return self._random.random() < self._ratio and self.may_begin()

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
            name: what the span is called before the destination's name.
            kind: the span's.
            attributes: further ones.
            contexts: of messages; the first is the parent, the others become links. None: the
                present span is the parent.
            is_root: there is no parent at all.
            start_ns: epoch nanoseconds; now by default.
        """
        parent = Context() if is_root else None
        if contexts:
            parent = trace.set_span_in_context(trace.NonRecordingSpan(contexts[0]))
        destination = attributes.get("messaging.destination.name", "")
        return self.tracer.start_span(
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

    def call_metadata(self) -> tuple[tuple[str, str], ...]:
        """What a call's metadata says of the span around it: W3C's `traceparent`, or nothing."""
        span = _calling.get()
        if span is None or not span.get_span_context().trace_flags.sampled:
            return ()
        return ((TRACEPARENT, traceparent_of(span.get_span_context())),)

    # Pulls

    def now_ns(self) -> int:
        return time.time_ns()

    def received(self, batch: Batch, frames: bytes, group: str, asked_ns: int) -> None:
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
                **place_attributes(batch.queue, group),
            }
            kind = SpanKind.CLIENT
            self.start("receive", "receive", kind, attributes, contexts, start_ns=asked_ns).end()

    # Commits

    def note_handled(
        self, group: str, queue: MessageQueue, last_offset: int, context: SpanContext
    ) -> None:
        """A handler has returned; the span that this was waits for its commit."""
        handled = self._handled.get(group)
        if handled is None:
            handled = self._handled[group] = deque(maxlen=HANDLED_MAX)
        handled.append((queue, last_offset, context))

    @contextlib.contextmanager
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
        span = self.start("settle", "commit", SpanKind.CLIENT, attributes, contexts)
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


@contextlib.contextmanager
def calls_within(span: Span) -> Iterator[None]:
    """Be within a span whose calls continue it at the service that answers them, and end it."""
    token = _calling.set(span)
    try:
        with trace.use_span(span, end_on_exit=True):
            yield
    finally:
        _calling.reset(token)


def place_attributes(queue: MessageQueue, group: str = "") -> dict[str, str | int]:
    attributes: dict[str, str | int] = {
        "messaging.destination.partition.id": str(queue.queue_id),
        "rockoon.broker": queue.broker,
    }
    if group:
        attributes["messaging.consumer.group.name"] = group
    return attributes


def end(span: Span, failure: BaseException | None = None) -> None:
    """End a span; with a failure its status says so."""
    if failure is not None:
        kind = failure.name if isinstance(failure, RockoonError) else type(failure).__name__
        span.set_attribute("error.type", kind)
        span.set_status(Status(StatusCode.ERROR, str(failure)))
    span.end()
