"""What a server says of itself: how many calls it answers at once, whether it lives, is ready."""

import asyncio

import grpc
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from rockoon_proto.errors import Busy, NameserverUnavailable
from rockoon_proto.failed_call import from_rpc_error
from rockoon_runtime.wire import LIVENESS, GrpcServer
from support.drains import AT_ONCE
from support.waiting import DEADLINE_SECONDS


async def test_a_call_too_many_is_refused_as_busy_until_another_ends() -> None:
    server = GrpcServer(
        "sample", "test", "127.0.0.1:0", lambda _: None, (), calls_max=2, drain=AT_ONCE
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
