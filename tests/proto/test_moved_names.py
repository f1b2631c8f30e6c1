"""A pod comes back under its name at another address: channels look the name up again at once."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from grpc import StatusCode, aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health

from rockoon.net.channels import CHANNEL_OPTIONS as OF_CLIENTS
from rockoon_core.channels import Dialer, Options
from rockoon_nameserver.etcd import CHANNEL_OPTIONS as TO_ETCD
from rockoon_node.nameservers import CHANNEL_OPTIONS as BETWEEN_SERVICES
from support.dns_server import DnsServer

# gRPC by itself would look again half a minute after the first time.
SECONDS_MAX = 15.0


@asynccontextmanager
async def served(address: str) -> AsyncIterator[int]:
    """A server at an address; gives its port."""
    server = aio.server()
    health_pb2_grpc.add_HealthServicer_to_server(health.HealthServicer(), server)
    port = server.add_insecure_port(address)
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


@pytest.mark.parametrize(
    "options", [OF_CLIENTS, BETWEEN_SERVICES, TO_ETCD], ids=["client", "node", "etcd"]
)
async def test_a_channel_finds_a_server_that_came_back_at_another_address(
    options: Options,
) -> None:
    async with DnsServer() as names, AsyncExitStack() as stack:
        async with served("127.0.0.2:0") as port:
            names.addresses["pod.test"] = "127.0.0.2"
            channel = Dialer(options).channel(names.target("pod.test", port))
            stack.push_async_callback(channel.close)
            check = health_pb2_grpc.HealthStub(channel).Check
            await check(health_pb2.HealthCheckRequest(), wait_for_ready=True, timeout=SECONDS_MAX)
        names.addresses["pod.test"] = "127.0.0.3"
        await stack.enter_async_context(served(f"127.0.0.3:{port}"))
        request = health_pb2.HealthCheckRequest()
        try:
            await check(request, wait_for_ready=True, timeout=SECONDS_MAX)
        except aio.AioRpcError as failure:
            # It went out on the connection to the first, whose end was not noticed yet.
            assert failure.code() is StatusCode.UNAVAILABLE
            await check(request, wait_for_ready=True, timeout=SECONDS_MAX)
