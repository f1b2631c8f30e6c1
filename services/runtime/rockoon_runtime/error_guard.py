"""Guard of a service's methods: the cluster's name, the error table, call times, traces.

Servicers raise `RockoonError`; the guard turns it into the status and the trailing metadata of the
error table, so no servicer names a status code. An exception that is in no table is a bug: it is
logged with its traceback, and the caller gets INTERNAL.
"""

import functools
import inspect
import logging
import time
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from rockoon_core.errors import (
    ERROR_METADATA_KEY,
    Internal,
    InvalidArgument,
    RockoonError,
    WrongCluster,
)
from rockoon_core.protocol import CLUSTER_METADATA_KEY
from rockoon_rpc.server_call import ServerCall, no_objection
from rockoon_runtime.access.gate import Gate, gated
from rockoon_runtime.telemetry.metrics import Measurement, Times, histogram

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

log = logging.getLogger(__name__)

SUCCESS = "success"

# The bounds of RocketMQ 5's RemotingMetricsManager, and two below its 1 ms, because most calls here
# are faster.
BOUNDS_MS = (0.3, 0.6, 1, 3, 5, 7, 10, 100, 1_000, 2_000, 3_000)

RPC_LATENCY = histogram(
    "rocketmq_rpc_latency",
    "How long calls took, milliseconds",
    "protocol_type",
    "request_code",
    "response_code",
    "is_long_polling",
    bounds=BOUNDS_MS,
    unit="milliseconds",
)


class Call(NamedTuple):
    """Method and result of a call; calls with equal keys share a counter."""

    method: str
    """RocketMQ's spelling of request names: lower case, words joined by underscores."""
    answer: str
    """"success", or the error's name in lower case."""
    may_wait: bool
    """True if the caller allows the service to wait for data (long polling)."""


class CallTimes:
    """Durations of all calls since the process started. Used only by the event loop's thread.

    The server records every call with one request and one response; a stream has no duration. A
    handler of a request stream records each of its requests.
    """

    def __init__(self) -> None:
        # Bounded by the number of methods times errors.
        self._times: dict[Call, Times] = {}

    def record(self, call: Call, seconds: float) -> None:
        times = self._times.get(call)
        if times is None:
            times = self._times[call] = Times(BOUNDS_MS)
        times.add(seconds)

    def record_request(self, method: str, request: object, answer: str, seconds: float) -> None:
        """Record a call. A call whose request has `wait_ms` may wait, and has a separate count."""
        may_wait = getattr(request, "wait_ms", 0)
        self.record(Call(method, answer, may_wait > 0), seconds)

    def measurements(self) -> Iterator[Measurement]:
        for call, times in self._times.items():
            waiting = str(call.may_wait).lower()
            labels = ("grpc", call.method, call.answer, waiting)
            yield RPC_LATENCY.spread(times.counts, times.total_ms, *labels)


@functools.lru_cache(maxsize=256)
def method_name(path: str) -> str:
    """ "/rockoon.v1.OffsetService/ReadAll" is converted to read_all."""
    name = path.rpartition("/")[2]
    return "".join(f"_{each.lower()}" if each.isupper() else each for each in name).lstrip("_")


TRACEPARENT_METADATA_KEY = "traceparent"
# The message is sent twice, as text with three bytes for each non-ASCII byte.
ERROR_BYTES_MAX = 1000
ERROR_DETAIL_BYTES_MAX = 500
# Health checks need no access key.
HEALTH = "/grpc.health."

Handler = Callable[[Any, Any], Any]


async def abort(context: Any, error: RockoonError) -> None:
    """End a call with an error of the table.

    Long texts are cut, because clients accept 8 KiB of metadata. Longer metadata would turn the
    refusal of a name with 20,000 letters into RESOURCE_EXHAUSTED, which clients retry.
    """
    wire = error.to_wire()
    wire.message = clipped(wire.message, ERROR_BYTES_MAX)
    # A copy, because an iteration over a map that changes may skip entries.
    for name, value in list(wire.details.items()):
        wire.details[name] = clipped(value, ERROR_DETAIL_BYTES_MAX)
    metadata = ((ERROR_METADATA_KEY, wire.SerializeToString()),)
    await context.abort(grpc.StatusCode[error.status], wire.message, metadata)


def clipped(text: str, bytes_max: int) -> str:
    """Return a text, or its beginning if it is long."""
    raw = text.encode(errors="replace")
    return text if len(raw) <= bytes_max else raw[:bytes_max].decode(errors="ignore") + "..."


def invalid(failure: DecodeError) -> InvalidArgument:
    return InvalidArgument(reason=f"it cannot be read: {failure}")


class ErrorTableGuard:
    """Guards methods; see the module. It refuses callers of another cluster, and calls that the
    gate refuses.

    A method is guarded once, when it is first called. A guard is one more coroutine per call; with
    a gate there are two.

    Args:
        service: name for errors, for example "broker".
        cluster: callers that name another cluster are refused.
        calls: the times of calls with one request and one answer are added to it.
        gate: refuses calls; None lets every call pass.
        check_may_answer: called before a call begins and before each response; raises the refusal.
        internal: paths of the methods that only the cluster's own services call. A connection with
            such a call does not wait behind connections of clients.

    Attributes:
        last_call: time of the last call, monotonic seconds.
        tracer: set before the first call if the service exports traces.
    """

    def __init__(
        self,
        service: str,
        cluster: str,
        calls: CallTimes,
        gate: Gate | None = None,
        check_may_answer: Callable[[], None] = no_objection,
        internal: Collection[str] = (),
    ) -> None:
        self._service = service
        self._cluster = cluster
        self._calls = calls
        self._gate = gate
        self._check_may_answer = check_may_answer
        self._internal = frozenset(internal)
        self._unguarded = "/grpc." if gate is None else HEALTH
        self.last_call = float("-inf")
        self.tracer: Tracer | None = None

    def guarded(self, path: str, handler: Any) -> Any:
        """Return the handler of a method with the checks of this guard around it; see
        `rockoon_rpc.server.Guard`. Health checks, and gRPC's own methods without a gate, stay
        unguarded."""
        if path.startswith(self._unguarded):
            return handler
        parse = handler.request_deserializer
        serializer = {"response_serializer": handler.response_serializer}
        if handler.request_streaming:
            behaviour = handler.stream_unary or self._sending(handler.stream_stream)
            guard = self._guarded(path, behaviour)
            requests = self._checked(parse)
            if self._gate is not None:
                guard = gated(self._gate, path, guard, None, abort, is_stream=True)
            make = (
                grpc.stream_stream_rpc_method_handler
                if handler.response_streaming
                else grpc.stream_unary_rpc_method_handler
            )
            return make(guard, request_deserializer=requests, **serializer)
        # Requests are bytes here: signatures cover bytes, and a request that cannot be parsed is an
        # error of the table.
        if handler.unary_unary:
            make = grpc.unary_unary_rpc_method_handler
            guard = self._timed(path, handler.unary_unary, parse if self._gate is None else None)
        else:
            make = grpc.unary_stream_rpc_method_handler
            behaviour = handler.unary_stream
            if not inspect.iscoroutinefunction(behaviour):
                behaviour = self._sending(behaviour)
            guard = self._guarded(path, behaviour, parse if self._gate is None else None)
        if self._gate is not None:
            guard = gated(self._gate, path, guard, parse, abort, is_stream=False)
        return make(guard, **serializer)

    def _checked(self, parse: Callable[[bytes], Any] | None) -> Callable[[bytes], Any] | None:
        """Return a deserialiser of a stream's requests. The stream ends before the first request
        that cannot be parsed, or that arrives when `check_may_answer` raises."""
        check_may_answer = self._check_may_answer

        def checked(raw: bytes) -> Any:
            check_may_answer()
            try:
                return raw if parse is None else parse(raw)
            except DecodeError as failure:
                raise invalid(failure) from failure

        return checked

    def _sending(self, behaviour: Handler) -> Handler:
        """Return a coroutine function that sends the responses of a method with a stream of
        responses."""

        check_may_answer = (
            None if self._check_may_answer is no_objection else self._check_may_answer
        )

        async def send(request: Any, context: ServerCall) -> None:
            await context.send_all(behaviour(request, context), check_may_answer)

        return send

    def _check_call(self, path: str, context: Any) -> None:
        """Raises the refusal of a call."""
        for key, value in context.invocation_metadata():
            if key == CLUSTER_METADATA_KEY:
                if value != self._cluster:
                    raise WrongCluster(cluster=self._cluster, wanted=str(value))
                break
        self._check_may_answer()
        if path in self._internal:
            # Without access keys any caller can call an internal method.
            context.connection.mark_internal(is_trusted=self._gate is not None)

    def _guarded(
        self, path: str, behaviour: Handler, parse: Callable[[bytes], Any] | None = None
    ) -> Handler:
        """Return a method with a stream of requests or responses, with checks of its call before
        and after it. It answers errors of the table, and INTERNAL for a bug."""

        async def guarded(request: Any, context: Any) -> Any:
            self.last_call = time.monotonic()
            try:
                self._check_call(path, context)
                context.check_may_answer = self._check_may_answer
                if parse is not None:
                    try:
                        request = parse(request)
                    except DecodeError as failure:
                        raise invalid(failure) from failure
                reply = await behaviour(request, context)
                self._check_may_answer()
            except RockoonError as error:
                await abort(context, self._overruled(error))
            except aio.AbortError:
                raise
            except Exception as failure:
                log.exception("%s failed by a bug; the caller gets INTERNAL", path)
                await abort(context, Internal(service=self._service, reason=failure))
            else:
                return reply

        return guarded

    def _timed(
        self, path: str, behaviour: Handler, parse: Callable[[bytes], Any] | None
    ) -> Handler:
        """Like `_guarded`, for a method with one request and one response; also records the
        duration of each call. It creates no object per call."""
        name = method_name(path)
        check_call, check_may_answer, calls = self._check_call, self._check_may_answer, self._calls
        times = partial(calls.record_request, name)

        async def guarded(request: Any, context: Any) -> Any:
            began = self.last_call = time.monotonic()
            try:
                # Before the call, so that a refused call is not executed; again before the reply.
                check_call(path, context)
                if parse is not None:
                    try:
                        request = parse(request)
                    except DecodeError as failure:
                        raise invalid(failure) from failure
                if self.tracer is None:
                    reply = await behaviour(request, context)
                else:
                    reply = await self._traced(path, behaviour, context)(request, context)
                check_may_answer()
            except RockoonError as error:
                overruled = self._overruled(error)
                times(request, overruled.name.lower(), time.monotonic() - began)
                await abort(context, overruled)
            except aio.AbortError:
                raise
            except Exception as failure:
                log.exception("%s failed by a bug; the caller gets INTERNAL", path)
                internal = Internal(service=self._service, reason=failure)
                times(request, internal.name.lower(), time.monotonic() - began)
                await abort(context, internal)
            else:
                times(request, SUCCESS, time.monotonic() - began)
                return reply

        return guarded

    def _traced(self, path: str, behaviour: Handler, context: Any) -> Handler:
        """Return a method that runs in a span below the span of its caller, if the caller has
        one."""
        assert self.tracer is not None
        for key, value in context.invocation_metadata():
            if key == TRACEPARENT_METADATA_KEY:
                from rockoon_runtime.telemetry.call_tracing import traced_call

                return traced_call(self.tracer, path, str(value), behaviour)
        return behaviour

    def _overruled(self, error: RockoonError) -> RockoonError:
        """Return the error to send: the given one, or the refusal of `check_may_answer`, which also
        refuses errors as responses."""
        try:
            self._check_may_answer()
        except RockoonError as refusal:
            return refusal
        return error
