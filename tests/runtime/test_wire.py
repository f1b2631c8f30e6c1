"""State that a server reports: number of concurrent calls, its life, its readiness."""

import asyncio
import contextlib
import resource
import socket
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from rockoon_core.errors import Busy, InvalidArgument, NameserverUnavailable, NotReady
from rockoon_core.failed_call import from_rpc_error
from rockoon_proto.v1.errors_pb2 import Error
from rockoon_runtime.error_guard import ERROR_BYTES_MAX, ERROR_DETAIL_BYTES_MAX, abort
from rockoon_runtime.wire import LIVENESS, GrpcServer, connections_bound
from support.drains import AT_ONCE
from support.eventually import eventually
from support.waiting import DEADLINE_SECONDS

OWN = (("grpc.use_local_subchannel_pool", 1),)


async def test_a_call_too_many_is_refused_as_busy_until_another_ends() -> None:
    server = GrpcServer(
        "sample",
        "test",
        "127.0.0.1:0",
        lambda _: None,
        (),
        calls_max=2,
        calls_per_address_max=2,
        drain=AT_ONCE,
    )
    asked = health_pb2.HealthCheckRequest()
    async with server, aio.insecure_channel(server.address) as channel:
        await server.set_serving(True)
        stub = health_pb2_grpc.HealthStub(channel)
        watches = [stub.Watch(asked) for _ in range(2)]
        for watch in watches:
            await watch.read()
        with pytest.raises(grpc.RpcError) as refusal:
            await stub.Check(asked)
        error = from_rpc_error(refusal.value, NameserverUnavailable, address="here")
        assert isinstance(error, Busy)
        assert error.retriable

        watches[0].cancel()
        async with asyncio.timeout(DEADLINE_SECONDS):
            while True:
                try:
                    await stub.Check(asked)
                except grpc.RpcError:
                    continue
                break


async def test_a_service_that_is_not_ready_is_alive_all_the_same() -> None:
    server = GrpcServer("sample", "test", "127.0.0.1:0", lambda _: None, (), drain=AT_ONCE)
    async with server, aio.insecure_channel(server.address) as channel:
        await server.set_serving(False)
        stub = health_pb2_grpc.HealthStub(channel)
        ready = await stub.Check(health_pb2.HealthCheckRequest())
        alive = await stub.Check(health_pb2.HealthCheckRequest(service=LIVENESS))
    assert ready.status == health_pb2.HealthCheckResponse.NOT_SERVING
    assert alive.status == health_pb2.HealthCheckResponse.SERVING


def is_open(connection: socket.socket) -> bool:
    """Return whether the other side has not closed it; sends nothing itself."""
    try:
        received = b"?"
        while received:
            received = connection.recv(4096)
    except BlockingIOError:
        return True
    except ConnectionError:
        return False
    return False


async def test_connections_that_say_nothing_are_bounded_and_closed() -> None:
    server = GrpcServer(
        "sample",
        "test",
        "127.0.0.1:0",
        lambda _: None,
        (),
        connections_max=20,
        handshake_seconds_max=1.0,
        drain=AT_ONCE,
    )
    with contextlib.ExitStack() as stack:
        async with server, aio.insecure_channel(server.address) as channel:
            await server.set_serving(True)
            stub = health_pb2_grpc.HealthStub(channel)
            await stub.Check(health_pb2.HealthCheckRequest())
            silent = [
                stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
                for _ in range(100)
            ]
            for connection in silent:
                connection.setblocking(False)
            await eventually(lambda: sum(map(is_open, silent)) < 20)
            # Existing connections are served; new ones are, when the silent ones are gone.
            await stub.Check(health_pb2.HealthCheckRequest())
            await eventually(lambda: not any(map(is_open, silent)))
            async with aio.insecure_channel(server.address, options=OWN) as other:
                await health_pb2_grpc.HealthStub(other).Check(
                    health_pb2.HealthCheckRequest(), wait_for_ready=True, timeout=DEADLINE_SECONDS
                )


def test_half_of_the_open_files_are_for_others_than_connections() -> None:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert connections_bound(1 << 30) == files // 2


async def test_what_may_not_be_answered_is_not_done_and_methods_may_take_bytes_as_they_are() -> (
    None
):
    done: list[bytes] = []
    objections: list[NotReady] = []
    contexts: list[Any] = []

    def check_may_answer() -> None:
        if objections:
            raise objections[0]

    def do(request: bytes) -> bytes:
        done.append(request)
        if b"meanwhile" in request:
            objections.append(NotReady(service="the sample", reason="its lease is over"))
        if b"wrong" in request:
            raise InvalidArgument(reason="nobody is told so")
        return request

    async def unary(request: bytes, _: Any) -> bytes:
        return do(request)

    async def stream(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        contexts.append(context)
        async for request in requests:
            yield do(request)

    def register(server: aio.Server) -> None:
        # Without a deserialiser, as a proxy's methods are.
        methods = {
            "Unary": grpc.unary_unary_rpc_method_handler(unary),
            "Stream": grpc.stream_stream_rpc_method_handler(stream),
        }
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("Raw", methods)])

    server = GrpcServer(
        "sample",
        "test",
        "127.0.0.1:0",
        register,
        ("Raw",),
        drain=AT_ONCE,
        check_may_answer=check_may_answer,
    )
    async with server, aio.insecure_channel(server.address) as channel:
        await server.set_serving(True)
        call = channel.unary_unary("/Raw/Unary")
        assert await call(b"one") == b"one"
        open_stream = channel.stream_stream("/Raw/Stream")()
        await open_stream.write(b"two")
        assert await open_stream.read() == b"two"
        objections.append(NotReady(service="the sample", reason="its lease is over"))
        with pytest.raises(grpc.RpcError, match="its lease is over"):
            await call(b"not done")
        await open_stream.write(b"not done")
        with pytest.raises(grpc.RpcError, match="its lease is over"):
            await open_stream.read()
        # A caller that bypasses the guard asks for itself.
        with pytest.raises(NotReady):
            contexts[0].check_may_answer()
        assert done == [b"one", b"two"]
        for request in (b"lost meanwhile", b"lost meanwhile, and wrong"):
            objections.clear()
            with pytest.raises(grpc.RpcError, match="its lease is over"):
                await call(request)
            objections.clear()
            last = channel.stream_stream("/Raw/Stream")()
            await last.write(request)
            with pytest.raises(grpc.RpcError, match="its lease is over"):
                await last.read()


async def test_every_detail_of_an_error_is_cut_however_many_there_are() -> None:
    # With a few, an omission depended on the seed of the process's hash.
    long = {f"detail_{number}": "x" * 2000 for number in range(60)}
    told: list[tuple[tuple[str, bytes], ...]] = []

    class Call:
        async def abort(self, _: object, __: str, metadata: tuple[tuple[str, bytes], ...]) -> None:
            told.append(metadata)

    await abort(Call(), InvalidArgument(reason="y" * 2000, **long))
    ((_, raw),) = told[0]
    error = Error.FromString(raw)
    assert len(error.message) <= ERROR_BYTES_MAX + 3
    assert {*error.details} >= {*long}
    assert max(map(len, error.details.values())) <= ERROR_DETAIL_BYTES_MAX + 3


async def test_no_error_names_a_place_in_memory() -> None:
    async def fails(_request: bytes, _context: Any) -> bytes:
        raise ValueError(f"no answer by {object()}")

    async def stream(_request: bytes, _context: Any) -> AsyncIterator[bytes]:
        yield b""
        raise ValueError(object())

    def register(server: aio.Server) -> None:
        methods = {
            "Fails": grpc.unary_unary_rpc_method_handler(fails),
            "Stream": grpc.unary_stream_rpc_method_handler(stream),
        }
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("Raw", methods)])

    server = GrpcServer("sample", "test", "127.0.0.1:0", register, ("Raw",), drain=AT_ONCE)
    async with server, aio.insecure_channel(server.address) as channel:
        with pytest.raises(aio.AioRpcError) as failure:
            await channel.unary_unary("/Raw/Fails")(b"")
        with pytest.raises(aio.AioRpcError) as stream_failure:
            async for _ in channel.unary_stream("/Raw/Stream")(b""):
                pass
    for each in (failure.value, stream_failure.value):
        assert each.code() is grpc.StatusCode.INTERNAL
        assert "ValueError: " in str(each.details())
        assert "<object object>" in str(each.details())
        assert "0x" not in f"{each.details()} {each.trailing_metadata()}"


async def test_a_connection_that_calls_what_services_call_has_the_line_of_the_cluster() -> None:
    connections: list[Any] = []

    async def unary(request: bytes, context: Any) -> bytes:
        connections.append((context.connection.is_internal, context.connection.is_trusted))
        return request

    def register(server: aio.Server) -> None:
        methods = {
            "Replicate": grpc.unary_unary_rpc_method_handler(unary),
            "Send": grpc.unary_unary_rpc_method_handler(unary),
        }
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("Raw", methods)])

    server = GrpcServer(
        "sample",
        "test",
        "127.0.0.1:0",
        register,
        ("Raw",),
        internal=["/Raw/Replicate"],
        drain=AT_ONCE,
    )
    async with server, aio.insecure_channel(server.address) as channel:
        await channel.unary_unary("/Raw/Send")(b"")
        wrong = (("rockoon-cluster", "another"),)
        with pytest.raises(aio.AioRpcError, match="another"):
            await channel.unary_unary("/Raw/Replicate")(b"", metadata=wrong)
        await channel.unary_unary("/Raw/Send")(b"")
        await channel.unary_unary("/Raw/Replicate")(b"")
    # Without access keys nothing proves that the caller is a service.
    assert connections == [(False, False), (False, False), (True, False)]


async def test_only_headers_that_are_read_are_kept() -> None:
    seen: list[Any] = []

    async def unary(request: bytes, context: Any) -> bytes:
        seen.append(dict(context.invocation_metadata()))
        return request

    def register(server: aio.Server) -> None:
        methods = {"Send": grpc.unary_unary_rpc_method_handler(unary)}
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("Raw", methods)])

    server = GrpcServer(
        "sample", "test", "127.0.0.1:0", register, ("Raw",), kept=["x-mq-client-id"], drain=AT_ONCE
    )
    sent = (("rockoon-cluster", "test"), ("x-mq-client-id", "one"), ("x-other", "y" * 1000))
    async with server, aio.insecure_channel(server.address) as channel:
        await channel.unary_unary("/Raw/Send")(b"", metadata=sent)
    assert seen == [{"rockoon-cluster": "test", "x-mq-client-id": "one"}]
