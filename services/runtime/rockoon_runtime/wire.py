"""A gRPC server as every Rockoon service runs it: options, health, reflection, errors, drain.

Servicers raise `RockoonError`; the interceptor here turns it into the status and the trailing
metadata of the error table, so no servicer mentions a status code. An exception that is in no
table is a bug: it is logged with its traceback, and the caller is told INTERNAL.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any

import grpc
from grpc import aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from rockoon_proto.errors import ERROR_METADATA_KEY, Internal, RockoonError, WrongCluster

log = logging.getLogger(__name__)

CLUSTER_METADATA_KEY = "rockoon-cluster"

# Large frames and few of them: a batch is up to a few MiB and should not be cut in 16 KiB pieces.
SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.http2.max_frame_size", 1 << 20),
    ("grpc.http2.lookahead_bytes", 4 << 20),
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
)

# Every watch, stream and waiting pull is a call in progress. More are refused at once; without a
# bound, callers that come faster than they are answered would take all memory.
CALLS_MAX = 20_000

Handler = Callable[[Any, Any], Any]


class ListenError(RuntimeError):
    """The address cannot be listened on; the text says which."""


async def abort(context: Any, error: RockoonError) -> None:
    """End a call with an error of the table."""
    metadata = ((ERROR_METADATA_KEY, error.to_wire().SerializeToString()),)
    await context.abort(grpc.StatusCode[error.status], str(error), metadata)


class ErrorTableInterceptor(aio.ServerInterceptor):
    """Turns exceptions into the error table's answers and refuses callers of another cluster."""

    def __init__(self, service: str, cluster: str) -> None:
        self._service = service
        self._cluster = cluster

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None or handler_call_details.method.startswith("/grpc."):
            return handler
        wanted = next(
            (
                value
                for key, value in handler_call_details.invocation_metadata
                if key == CLUSTER_METADATA_KEY
            ),
            self._cluster,
        )
        refusal = (
            None
            if wanted == self._cluster
            else WrongCluster(cluster=self._cluster, wanted=str(wanted))
        )
        serializers = {
            "request_deserializer": handler.request_deserializer,
            "response_serializer": handler.response_serializer,
        }
        if handler.unary_unary:
            unary = self._guard(handler.unary_unary, refusal)
            return grpc.unary_unary_rpc_method_handler(unary, **serializers)
        if handler.unary_stream:
            stream = self._guard_stream(handler.unary_stream, refusal)
            return grpc.unary_stream_rpc_method_handler(stream, **serializers)
        if handler.stream_stream:
            stream = self._guard_stream(handler.stream_stream, refusal)
            return grpc.stream_stream_rpc_method_handler(stream, **serializers)
        unary = self._guard(handler.stream_unary, refusal)
        return grpc.stream_unary_rpc_method_handler(unary, **serializers)

    def _guard(self, behaviour: Handler, refusal: RockoonError | None) -> Handler:
        async def guarded(request: Any, context: Any) -> Any:
            try:
                if refusal is not None:
                    raise refusal
                return await behaviour(request, context)
            except RockoonError as error:
                await abort(context, error)
            except aio.AbortError:
                raise
            except Exception as failure:
                log.exception("a call failed in a way that no one foresaw")
                await abort(context, Internal(service=self._service, reason=repr(failure)))

        return guarded

    def _guard_stream(self, behaviour: Handler, refusal: RockoonError | None) -> Handler:
        async def guarded(request: Any, context: Any) -> AsyncIterator[Any]:
            try:
                if refusal is not None:
                    raise refusal
                async for reply in behaviour(request, context):
                    yield reply
            except RockoonError as error:
                await abort(context, error)
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
        drain_seconds_max: how long calls in flight may take when the server stops.
        calls_max: calls in progress at once, streams included; further ones are refused.

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
        drain_seconds_max: float = 5.0,
        calls_max: int = CALLS_MAX,
    ) -> None:
        self._listen = listen
        self._service_names = tuple(service_names)
        self._drain_seconds_max = drain_seconds_max
        self._health = health.aio.HealthServicer()
        interceptor = ErrorTableInterceptor(service, cluster)
        self._server = aio.server(
            interceptors=[interceptor], options=SERVER_OPTIONS, maximum_concurrent_rpcs=calls_max
        )
        register(self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection(
            (*self._service_names, reflection.SERVICE_NAME, health.SERVICE_NAME), self._server
        )
        self.port = 0

    @property
    def address(self) -> str:
        """Where it listens, with the real port."""
        return f"{self._listen.rpartition(':')[0]}:{self.port}"

    async def set_serving(self, serving: bool) -> None:
        """Say through grpc.health.v1 whether calls are welcome (readiness)."""
        status = (
            health_pb2.HealthCheckResponse.SERVING
            if serving
            else health_pb2.HealthCheckResponse.NOT_SERVING
        )
        for name in ("", *self._service_names):
            await self._health.set(name, status)

    async def __aenter__(self) -> "GrpcServer":
        try:
            self.port = self._server.add_insecure_port(self._listen)
        except RuntimeError as failure:
            raise ListenError(f"cannot listen on {self._listen}: is the port in use?") from failure
        await self._server.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._health.enter_graceful_shutdown()
        await self._server.stop(self._drain_seconds_max)
