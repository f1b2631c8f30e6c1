"""A server answers so many calls at once, and says so to the others."""

import asyncio

import grpc
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from rockoon_proto.errors import Busy, NameserverUnavailable
from rockoon_proto.failed_call import from_rpc_error
from rockoon_runtime.wire import GrpcServer


async def test_a_call_too_many_is_refused_as_busy_until_another_ends() -> None:
    server = GrpcServer(
        "sample", "test", "127.0.0.1:0", lambda _: None, (), calls_max=2, drain_seconds_max=0
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
        async with asyncio.timeout(20):
            while True:
                try:
                    await stub.Check(asked)
                except grpc.RpcError:
                    continue
                break
