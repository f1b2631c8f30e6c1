"""The gRPC server of every Rockoon service: bounds, health, reflection, errors, drain."""
# ruff: noqa: ARG002 - gRPC passes a request and a context to each method of a servicer

import asyncio
import logging
import resource
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

import grpc
from grpc import aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from rockoon_core.protocol import CLUSTER_METADATA_KEY
from rockoon_core.signature import ACCESS_METADATA_KEY
from rockoon_rpc.addresses import Addresses
from rockoon_rpc.limits import Limits
from rockoon_rpc.server import Server, host_and_port
from rockoon_rpc.server_call import no_objection
from rockoon_runtime.access.gate import Gate
from rockoon_runtime.allocator import return_freed_memory
from rockoon_runtime.error_guard import TRACEPARENT_METADATA_KEY, CallTimes, ErrorTableGuard
from rockoon_runtime.settings import setting
from rockoon_runtime.tls import ServerTls

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

log = logging.getLogger(__name__)

# After leaving the routes, a service accepts calls until none has arrived for this time.
QUIET_SECONDS = 0.1


# Without slots: a class can inherit from one class with slots only, and services inherit several.
@dataclass(frozen=True, kw_only=True)
class DrainSettings:
    """The shutdown settings of a service; a base class of its settings."""

    drain_seconds_max: float = setting(
        5.0,
        "maximum time of an orderly shutdown, from the signal on; calls that run longer are cut "
        "off, seconds",
        minimum=0,
        maximum=3600,
    )


class Drain:
    """The time limit of an orderly shutdown; starts when the object is created.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, settings: DrainSettings, clock: Callable[[], float]) -> None:
        self._began = clock()
        self._clock = clock
        self._settings = settings

    @property
    def seconds_left(self) -> float:
        """Time until running calls are cut off."""
        return max(self._began + self._settings.drain_seconds_max - self._clock(), 0.0)

    async def wait_quiet(self, last_call: Callable[[], float], quiet_seconds: float) -> None:
        """Wait until no call came for `quiet_seconds`, at most half of the drain time."""
        # The other half is reserved for running calls.
        latest = self._began + self._settings.drain_seconds_max / 2
        while True:
            pause = min(last_call() + quiet_seconds, latest) - self._clock()
            if pause <= 0:
                return
            await asyncio.sleep(pause)


SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN

# Service name for liveness: a process that recovers its store or drains is not ready, but must not
# be restarted.
LIVENESS = "liveness"


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # grpcio brings no types
    """grpc.health.v1 of a process: readiness and liveness.

    The servicer of grpcio is not used: it keeps a watch open for ever, so that a client that
    watches a service delays its shutdown, and it reports a draining process as a process that does
    not work. Source: https://github.com/grpc/grpc/blob/master/doc/health-checking.md

    Args:
        names: the services whose readiness it reports, in addition to "", which means all.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = ("", *names)
        # Written by `set_serving` alone.
        self._statuses = dict.fromkeys(self._names, NOT_SERVING) | {LIVENESS: SERVING}
        self._closed = False
        # Set, and replaced by a new event, when a status or `_closed` changes.
        self._changed = asyncio.Event()

    def set_serving(self, *, serving: bool) -> None:
        """Set whether the service accepts calls (readiness)."""
        self._statuses.update(dict.fromkeys(self._names, SERVING if serving else NOT_SERVING))
        self._announce_change()

    def close(self) -> None:
        """End every watch after it has received the last status."""
        self._closed = True
        self._announce_change()

    def _announce_change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def Check(
        self, request: health_pb2.HealthCheckRequest, context: Any
    ) -> health_pb2.HealthCheckResponse:
        status = self._statuses.get(request.service)
        if status is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no service {request.service!r} here")
        return health_pb2.HealthCheckResponse(status=status)

    async def Watch(
        self, request: health_pb2.HealthCheckRequest, context: Any
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        sent = None
        while True:
            changed = self._changed
            status = self._statuses.get(request.service, SERVICE_UNKNOWN)
            if status != sent:
                sent = status
                yield health_pb2.HealthCheckResponse(status=status)
                continue
            if self._closed:
                return
            await changed.wait()


# An open connection is an open file. The bound is this number, or half of the process's open files;
# the store needs the other half. Further connections are closed immediately: without a
# bound, unused connections could exhaust a broker's files.
CONNECTIONS_MAX = 20_000
# From the end of the TLS handshake to the HTTP/2 preface.
HANDSHAKE_SECONDS_MAX = 15.0
# Connections without a call are closed after this time; clients open another when they need it.
IDLE_SECONDS_MAX = 600.0

# Every watch, stream and waiting pull is a call in progress. Further calls are refused immediately:
# without a bound, callers that are faster than the responses could exhaust the memory.
CALLS_MAX = 20_000

# Certificates are checked at each new connection, and at this interval.
CERTIFICATE_CHECK_SECONDS = 3600.0

# Bounds of the health listener, for probes and watches.
HEALTH_CALLS_MAX = 100
HEALTH_CONNECTIONS_MAX = 100

# Headers that the guard and the gate read; the server drops other headers.
KEPT = (CLUSTER_METADATA_KEY, ACCESS_METADATA_KEY, TRACEPARENT_METADATA_KEY)


def connections_bound(connections_max: int) -> int:
    """Return the maximum of connections: the given one, or half of the files that the process may
    open, if that is less."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(min(connections_max, files // 2), 1)


def half_of(calls_max: int) -> int:
    """Return half of the maximum of calls in progress, rounded up: the maximum for one address, if
    no setting has one."""
    return -(-calls_max // 2)


class ListenError(RuntimeError):
    """The server cannot listen on an address; the text names it."""


class GrpcServer:
    """A listening gRPC server; leaving the context drains it.

    Args:
        service: name for logs and errors, for example "broker".
        cluster: callers that name another cluster are refused.
        listen: "host:port"; port 0 selects a free one.
        register: adds the servicers; called once before listening.
        service_names: full proto service names, for health and reflection.
        drain: how long the shutdown may last; None means the settings' defaults.
        calls_max: calls in progress, streams included; further ones are refused.
        calls_per_address_max: calls of one address in progress; None for half of `calls_max`.
        connections_max: open connections; further ones are closed immediately.
        addresses: bounds per client address, shared by several servers; None means no bounds.
        limits: limits of each connection; None means the defaults.
        handshake_seconds_max: time limit for a connection to start HTTP/2.
        tls: certificate for callers; None means plain connections.
        accepts_plain: with `tls`, connections without TLS are accepted at `listen` too.
        health_listen: with TLS, "host:port" of a health listener without TLS; empty for none.
        calls: records the duration of each call.
        gate: refuses calls; None permits every call.
        check_may_answer: called before each response, also of streams; raises the error that the
            caller receives instead. Health checks do not call it.
        internal: paths of methods that only the cluster's own services call; their connections do
            not wait behind those of clients.
        kept: names of further headers that servicers read; None keeps all headers.
        reuse_port: other processes listen on the same port and share its callers.

    Raises:
        ListenError: on entering, if the server cannot listen on the address.
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
        calls_per_address_max: int | None = None,
        connections_max: int = CONNECTIONS_MAX,
        addresses: Addresses | None = None,
        limits: Limits | None = None,
        handshake_seconds_max: float = HANDSHAKE_SECONDS_MAX,
        tls: ServerTls | None = None,
        accepts_plain: bool = False,
        health_listen: str = "",
        calls: CallTimes | None = None,
        gate: Gate | None = None,
        check_may_answer: Callable[[], None] = no_objection,
        internal: Collection[str] = (),
        kept: Sequence[str] | None = None,
        reuse_port: bool = False,
    ) -> None:
        self._listen = listen
        self._tls = tls
        self._accepts_plain = accepts_plain
        self._health_listen = health_listen
        self._next_check: asyncio.TimerHandle | None = None
        self._service_names = tuple(service_names)
        self._drain_settings = drain or DrainSettings()
        # Set when the shutdown begins.
        self._drain: Drain | None = None
        self._health = Health(self._service_names)
        self._guard_of_calls = ErrorTableGuard(
            service, cluster, calls or CallTimes(), gate, check_may_answer, internal
        )
        self._calls_max = calls_max
        self._server = Server(
            self._guard_of_calls.guarded,
            calls_max=calls_max,
            calls_per_address_max=calls_per_address_max or half_of(calls_max),
            connections_max=connections_bound(connections_max),
            addresses=addresses,
            handshake_seconds_max=handshake_seconds_max,
            idle_seconds_max=IDLE_SECONDS_MAX,
            limits=limits,
            kept=None if kept is None else (*KEPT, *kept),
            reuse_port=reuse_port,
            on_many_ended=return_freed_memory,
        )
        # Generated code is typed for gRPC's own server; this server has the methods that it calls.
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
        self._plain = self._health_server(handshake_seconds_max) if tls and health_listen else None
        self.health_port = 0

    def _health_server(self, handshake_seconds_max: float) -> Server:
        """Return a server without TLS that reports health, and has no other method."""
        server = Server(
            calls_max=HEALTH_CALLS_MAX,
            connections_max=connections_bound(HEALTH_CONNECTIONS_MAX),
            handshake_seconds_max=handshake_seconds_max,
            idle_seconds_max=IDLE_SECONDS_MAX,
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, cast("aio.Server", server))
        return server

    def use_limits(
        self, limits: Limits, calls_per_address_max: int | None, connections_max: int
    ) -> None:
        """Use other limits; see the arguments of the class. Open connections keep theirs."""
        calls = calls_per_address_max or half_of(self._calls_max)
        self._server.use_limits(limits, calls, connections_bound(connections_max))

    @property
    def address(self) -> str:
        """The address that the server listens on, with the real port."""
        return f"{self._listen.rpartition(':')[0]}:{self.port}"

    def trace(self, tracer: "Tracer | None") -> None:
        """Create spans for calls that have a trace; call before entering. None: no spans."""
        self._guard_of_calls.tracer = tracer

    async def set_serving(self, serving: bool) -> None:
        """Report through grpc.health.v1 whether the service accepts calls (readiness)."""
        self._health.set_serving(serving=serving)

    def record_call(self) -> None:
        """Record the time of a message of a stream; the guard records calls."""
        self._guard_of_calls.last_call = time.monotonic()

    def start_drain(self) -> Drain:
        """Start the shutdown: readiness becomes false, calls are still answered."""
        self._health.set_serving(serving=False)
        if self._drain is None:
            self._drain = Drain(self._drain_settings, time.monotonic)
        return self._drain

    async def wait_quiet(self, seconds: float = QUIET_SECONDS) -> None:
        """Wait until no call has arrived for `seconds`, at most half of the drain time."""
        await self.start_drain().wait_quiet(lambda: self._guard_of_calls.last_call, seconds)

    async def __aenter__(self) -> "GrpcServer":
        await self._listen_on_all()
        self._check_certificate()
        return self

    async def _listen_on_all(self) -> None:
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

    def _check_certificate(self) -> None:
        if self._tls is not None:
            self._tls.check()
            self._next_check = asyncio.get_running_loop().call_later(
                CERTIFICATE_CHECK_SECONDS, self._check_certificate
            )

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._next_check is not None:
            self._next_check.cancel()
        drain = self.start_drain()
        # A watch of this server's health does not end before it is closed.
        self._health.close()
        await self._server.stop(drain.seconds_left)
        if self._plain is not None:
            await self._plain.stop(None)
