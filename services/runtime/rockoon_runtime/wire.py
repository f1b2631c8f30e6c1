"""A gRPC server as every Rockoon service runs it: bounds, health, reflection, errors, drain.

Servicers raise `RockoonError`; the guard here turns it into the status and the trailing
metadata of the error table, so no servicer mentions a status code. An exception that is in no
table is a bug: it is logged with its traceback, and the caller is told INTERNAL.
"""

import asyncio
import inspect
import logging
import math
import resource
import time
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import grpc
from google.protobuf.message import DecodeError
from grpc import aio
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from rockoon_core.errors import (
    ERROR_METADATA_KEY,
    Internal,
    InvalidArgument,
    RockoonError,
    WrongCluster,
)
from rockoon_core.http2.headers import Metadata
from rockoon_core.protocol import CLUSTER_METADATA_KEY
from rockoon_runtime.access.gate import Gate
from rockoon_runtime.access.gated import gated
from rockoon_runtime.calls import SUCCESS, Call, CallTimes, method_name
from rockoon_runtime.connections import ConnectionBound
from rockoon_runtime.drain import QUIET_SECONDS, Drain, DrainSettings
from rockoon_runtime.health import LIVENESS, Health
from rockoon_runtime.http2_call import ServerCall
from rockoon_runtime.http2_server import (
    MESSAGE_BYTES_MAX,
    CallDetails,
    Http2Server,
    host_and_port,
)
from rockoon_runtime.tls import ServerTls

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

__all__ = ["CLUSTER_METADATA_KEY", "LIVENESS", "GrpcServer", "ListenError"]

log = logging.getLogger(__name__)

TRACEPARENT_METADATA_KEY = "traceparent"

# An open connection is an open file. At most so many, and half of what the process may open: the
# store's files have the rest. Further ones are closed at once; without a bound, connections that
# nobody uses would end a broker.
CONNECTIONS_MAX = 20_000
# How long a connection may take until it speaks HTTP/2, behind its TLS handshake.
HANDSHAKE_SECONDS_MAX = 15.0
# How long one may be open without a call; clients make another when they need it.
IDLE_SECONDS_MAX = 600.0

# Every watch, stream and waiting pull is a call in progress. More are refused at once; without a
# bound, callers that come faster than they are answered would take all memory.
CALLS_MAX = 20_000

# Certificates are looked at with every new connection, and so often when there is none.
CERTIFICATE_LOOK_SECONDS = 3600.0

# Probes, and those who watch.
HEALTH_CALLS_MAX = 100
HEALTH_CONNECTIONS_MAX = 100

# The message goes out twice, as text with three bytes for each that is not ASCII.
ERROR_BYTES_MAX = 1000
ERROR_DETAIL_BYTES_MAX = 500

# Open to all: probes have no access keys.
HEALTH = "/grpc.health."

Handler = Callable[[Any, Any], Any]


def connections_bound(connections_max: int) -> int:
    """How many connections may be open: so many, and half of the files the process may open."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(min(connections_max, files // 2), 1)


class ListenError(RuntimeError):
    """The address cannot be listened on; the text says which."""


def no_objection() -> None:
    """Everything may be answered."""


class Unreadable(NamedTuple):
    """What came in the place of a request. An exception of the deserialiser would be answered with
    INTERNAL, which is in no row of the error table."""

    reason: str


def readable(parse: Callable[[bytes], Any] | None) -> Callable[[bytes], Any] | None:
    """A deserialiser that says by its result that the bytes are no request; None stays None: such a
    method takes the bytes as they are."""
    if parse is None:
        return None

    def attempt(raw: bytes) -> Any:
        try:
            return parse(raw)
        except DecodeError as failure:
            return Unreadable(str(failure))

    return attempt


def refuse_unreadable(request: Any) -> None:
    """Raises InvalidArgument for bytes that are no request."""
    if isinstance(request, Unreadable):
        raise InvalidArgument(reason=f"it cannot be read: {request.reason}")


def readable_ones(behaviour: Handler, may_answer: Callable[[], None]) -> Handler:
    """A method that takes a stream of requests, which ends with the first that is none, or that
    comes when nothing may be answered: what it asks for is not done then either."""

    async def each(requests: Any) -> AsyncIterator[Any]:
        async for request in requests:
            refuse_unreadable(request)
            may_answer()
            yield request

    def called(requests: Any, context: Any) -> Any:
        return behaviour(each(requests), context)

    return called


async def abort(context: Any, error: RockoonError) -> None:
    """End a call with an error of the table.

    What it quotes is cut: callers take 8 KiB of metadata, and would be told RESOURCE_EXHAUSTED,
    which may be tried again, where a name of 20,000 letters is refused for good.
    """
    wire = error.to_wire()
    wire.message = clipped(wire.message, ERROR_BYTES_MAX)
    # A map that changes while it is gone through may leave some out.
    for name, value in list(wire.details.items()):
        wire.details[name] = clipped(value, ERROR_DETAIL_BYTES_MAX)
    metadata = ((ERROR_METADATA_KEY, wire.SerializeToString()),)
    await context.abort(grpc.StatusCode[error.status], wire.message, metadata)


def clipped(text: str, bytes_max: int) -> str:
    """A text, or its beginning where it is long."""
    raw = text.encode(errors="replace")
    return text if len(raw) <= bytes_max else raw[:bytes_max].decode(errors="ignore") + "..."


class ErrorTableGuard:
    """Turns exceptions into the error table's answers and refuses callers of another cluster,
    and those whom the gate does not let pass, if there is one.

    Handlers are guarded once, when their method is first called: a call costs no closures.
    """

    def __init__(
        self,
        service: str,
        cluster: str,
        calls: CallTimes,
        note_call: Callable[[], None],
        gate: Gate | None = None,
        may_answer: Callable[[], None] = no_objection,
    ) -> None:
        self._service = service
        self._cluster = cluster
        self._may_answer = may_answer
        self._calls = calls
        self._note_call = note_call
        self._gate = gate
        self._unguarded = "/grpc." if gate is None else HEALTH
        # By path; all are known to the server, so there are no more than it has methods.
        self._handlers: dict[str, Any] = {}
        # Set before the first call, by a service that exports traces.
        self.tracer: Tracer | None = None

    def guarded(self, method: str, metadata: Metadata, handler: Any) -> Any:
        """See `rockoon_runtime.http2_server.Guard`."""
        found = self._handlers.get(method)
        if found is None:
            is_open = method.startswith(self._unguarded)
            found = handler if is_open else self._guarded(method, handler)
            self._handlers[method] = found
        if found is handler:
            return handler
        self._note_call()
        if self.tracer is not None and handler.unary_unary:
            traced = self._traced(method, metadata, handler.unary_unary)
            if traced is not handler.unary_unary:
                found = self._guarded(method, handler, traced)
        if self._gate is None:
            return found
        details: Any = CallDetails(method, metadata)
        return gated(self._gate, found, details, abort)

    def _guarded(self, method: str, handler: Any, unary: Handler | None = None) -> Any:
        parse = handler.request_deserializer
        if self._gate is None or handler.request_streaming:
            # The gate parses single requests itself, when it knows whose they are.
            parse = readable(parse)
        serializers = {
            "request_deserializer": parse,
            "response_serializer": handler.response_serializer,
        }
        if handler.unary_unary:
            unary = self._guard(unary or handler.unary_unary, method_name(method))
            return grpc.unary_unary_rpc_method_handler(unary, **serializers)
        if handler.unary_stream:
            is_written = inspect.iscoroutinefunction(handler.unary_stream)
            guard = self._guard if is_written else self._guard_stream
            stream = guard(handler.unary_stream)
            return grpc.unary_stream_rpc_method_handler(stream, **serializers)
        if handler.stream_stream:
            stream = self._guard_stream(readable_ones(handler.stream_stream, self._may_answer))
            return grpc.stream_stream_rpc_method_handler(stream, **serializers)
        unary = self._guard(readable_ones(handler.stream_unary, self._may_answer))
        return grpc.stream_unary_rpc_method_handler(unary, **serializers)

    def _traced(self, method: str, metadata: Metadata, behaviour: Handler) -> Handler:
        """A method within a span, when its caller is."""
        assert self.tracer is not None
        for key, value in metadata:
            if key == TRACEPARENT_METADATA_KEY:
                from rockoon_runtime.telemetry.call_tracing import traced_call

                return traced_call(self.tracer, method, str(value), behaviour)
        return behaviour

    def _check_call(self, request: Any, context: Any) -> None:
        """Raise what a call is refused with before it is looked at."""
        for key, value in context.invocation_metadata():
            if key == CLUSTER_METADATA_KEY:
                if value != self._cluster:
                    raise WrongCluster(cluster=self._cluster, wanted=str(value))
                break
        refuse_unreadable(request)
        self._may_answer()
        if isinstance(context, ServerCall):
            context.may_answer = self._may_answer

    def _guard(self, behaviour: Handler, timed_as: str = "") -> Handler:
        def note(request: Any, answer: str, began_seconds: float) -> None:
            if timed_as:
                may_wait = getattr(request, "wait_ms", 0) > 0
                self._calls.note(Call(timed_as, answer, may_wait), time.monotonic() - began_seconds)

        async def guarded(request: Any, context: Any) -> Any:
            began_seconds = time.monotonic()
            try:
                # Before, so that what is refused is not done either; and again with the answer.
                self._check_call(request, context)
                reply = await behaviour(request, context)
                self._may_answer()
            except RockoonError as error:
                told = self._overruled(error)
                note(request, told.name.lower(), began_seconds)
                await abort(context, told)
            except aio.AbortError:
                raise
            except Exception as failure:
                log.exception("a call failed in a way that no one foresaw")
                internal = Internal(service=self._service, reason=repr(failure))
                note(request, internal.name.lower(), began_seconds)
                await abort(context, internal)
            else:
                note(request, SUCCESS, began_seconds)
                return reply

        return guarded

    def _overruled(self, error: RockoonError) -> RockoonError:
        """What a caller is told who would be told of an error: that may not be answered either."""
        try:
            self._may_answer()
        except RockoonError as objection:
            return objection
        return error

    def _guard_stream(self, behaviour: Handler) -> Handler:
        async def guarded(request: Any, context: Any) -> AsyncIterator[Any]:
            try:
                self._check_call(request, context)
                async for reply in behaviour(request, context):
                    self._may_answer()
                    yield reply
            except RockoonError as error:
                await abort(context, self._overruled(error))
            except aio.AbortError:
                raise
            except Exception as failure:
                log.exception("a stream failed in a way that no one foresaw")
                await abort(context, Internal(service=self._service, reason=repr(failure)))

        return guarded


class GrpcServer:
    """A listening gRPC server; leaving the context drains it.

    Args:
        service: name for logs and errors, for example "broker".
        cluster: callers that name another cluster are refused.
        listen: "host:port"; port 0 takes a free one.
        register: adds the servicers; called once before listening.
        service_names: full proto service names, for health and reflection.
        drain: how long the end may take; by default as long as it is by the settings' defaults.
        calls_max: calls in progress at once, streams included; further ones are refused.
        connections_max: open connections; further ones are closed at once.
        connections: how many of them one address may have; None for any number.
        handshake_seconds_max: how long one may take until it speaks HTTP/2.
        tls: what callers are shown; None means plain connections.
        accepts_plain: with `tls`, connections without TLS are accepted at `listen` too.
        health_listen: with TLS, "host:port" at which health is told plainly; empty for none.
        calls: is told how long each call took.
        gate: whom it does not let pass is refused; None lets everybody pass.
        may_answer: asked before each answer, those of streams included; raises what the caller is
            told in its place. Health is told without it.
        message_bytes_max: longer requests are refused.
        reuse_port: other processes listen on the same port, and share its callers.

    Raises:
        ListenError: on entering, when the address cannot be had.
    """

    def __init__(
        self,
        service: str,
        cluster: str,
        listen: str,
        register: Callable[[aio.Server], None],
        service_names: Sequence[str],
        *,
        drain: DrainSettings | None = None,
        calls_max: int = CALLS_MAX,
        connections_max: int = CONNECTIONS_MAX,
        connections: ConnectionBound | None = None,
        handshake_seconds_max: float = HANDSHAKE_SECONDS_MAX,
        tls: ServerTls | None = None,
        accepts_plain: bool = False,
        health_listen: str = "",
        calls: CallTimes | None = None,
        gate: Gate | None = None,
        may_answer: Callable[[], None] = no_objection,
        message_bytes_max: int = MESSAGE_BYTES_MAX,
        reuse_port: bool = False,
    ) -> None:
        self._listen = listen
        self._tls = tls
        self._accepts_plain = accepts_plain
        self._health_listen = health_listen
        self._next_look: asyncio.TimerHandle | None = None
        self._service_names = tuple(service_names)
        self._drain_settings = drain or DrainSettings()
        # Made when the end begins.
        self._drain: Drain | None = None
        self._last_call = -math.inf
        self._health = Health(self._service_names)
        self._guard_of_calls = ErrorTableGuard(
            service, cluster, calls or CallTimes(), self.note_call, gate, may_answer
        )
        self._server = Http2Server(
            self._guard_of_calls.guarded,
            calls_max=calls_max,
            connections_max=connections_bound(connections_max),
            connections=connections,
            handshake_seconds_max=handshake_seconds_max,
            idle_seconds_max=IDLE_SECONDS_MAX,
            message_bytes_max=message_bytes_max,
            reuse_port=reuse_port,
        )
        # Generated code says that it takes gRPC's own server; it calls what ours has as well.
        registered = cast("aio.Server", self._server)
        register(registered)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, registered)
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(
            reflection.aio.ReflectionServicer(
                (*self._service_names, reflection.SERVICE_NAME, health.SERVICE_NAME)
            ),
            registered,
        )
        self.port = 0
        # Tells health to those who know no TLS, and nothing else.
        self._plain: Http2Server | None = None
        self.health_port = 0
        if tls is not None and health_listen:
            self._plain = Http2Server(
                calls_max=HEALTH_CALLS_MAX,
                connections_max=connections_bound(HEALTH_CONNECTIONS_MAX),
                handshake_seconds_max=handshake_seconds_max,
                idle_seconds_max=IDLE_SECONDS_MAX,
            )
            health_pb2_grpc.add_HealthServicer_to_server(
                self._health, cast("aio.Server", self._plain)
            )

    @property
    def address(self) -> str:
        """Where it listens, with the real port."""
        return f"{self._listen.rpartition(':')[0]}:{self.port}"

    def trace(self, tracer: "Tracer | None") -> None:
        """Have spans of calls whose callers trace them; before entering, and None for none."""
        self._guard_of_calls.tracer = tracer

    async def set_serving(self, serving: bool) -> None:
        """Say through grpc.health.v1 whether calls are welcome (readiness)."""
        self._health.set_serving(serving=serving)

    def note_call(self) -> None:
        """Something is asked of the service; a stream's messages are noted by who reads them."""
        self._last_call = time.monotonic()

    def begin_drain(self) -> Drain:
        """The end begins: not ready any more, from now on; calls are answered as before."""
        self._health.set_serving(serving=False)
        if self._drain is None:
            self._drain = Drain(self._drain_settings, time.monotonic)
        return self._drain

    async def wait_quiet(self, seconds: float = QUIET_SECONDS) -> None:
        """Wait until nobody has called for so long, but for half of the drain's time at most."""
        await self.begin_drain().wait_quiet(lambda: self._last_call, seconds)

    async def __aenter__(self) -> "GrpcServer":
        await self._listen_at_all()
        self._look_at_certificate()
        return self

    async def _listen_at_all(self) -> None:
        listen = self._listen
        try:
            context = None if self._tls is None else self._tls.context()
            self.port = await self._server.listen(
                *host_and_port(listen), context, accepts_plain=self._accepts_plain
            )
            if self._plain is not None:
                listen = self._health_listen
                self.health_port = await self._plain.listen(*host_and_port(listen))
        except OSError as failure:
            await self._server.stop(None)
            reason = f"cannot listen on {listen}: {failure.strerror or failure}"
            raise ListenError(f"{reason}; is the port in use?") from failure

    def _look_at_certificate(self) -> None:
        if self._tls is not None:
            self._tls.look()
            self._next_look = asyncio.get_running_loop().call_later(
                CERTIFICATE_LOOK_SECONDS, self._look_at_certificate
            )

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._next_look is not None:
            self._next_look.cancel()
        drain = self.begin_drain()
        # A watch of its health would never end by itself.
        self._health.close()
        await self._server.stop(drain.seconds_left)
        if self._plain is not None:
            await self._plain.stop(None)
