"""Permission to open a follower's stream: only nodes of the cluster, under the log's name."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from grpc import aio

from rockoon.local.authority import Authority
from rockoon_core.channels import Dialer, Tls
from rockoon_core.errors import BrokerUnavailable, RockoonError
from rockoon_core.failed_call import from_rpc_error
from rockoon_core.signature import AccessKey, Credentials
from rockoon_proto.v1.access_pb2 import ACCESS_ADMIN, ACCESS_READ, ACCESS_WRITE
from rockoon_proto.v1.replica_pb2_grpc import ReplicationStub
from rockoon_replica.messages import Hello
from rockoon_replica.service import RULES, ReplicationService, add_to_server
from rockoon_replica.wire import hello_to_wire
from rockoon_runtime.access.gate import Gate
from rockoon_runtime.tls import NodeIdentities, ServerTls
from rockoon_runtime.wire import GrpcServer
from support.drains import AT_ONCE
from support.gated_server import CLUSTER_KEY, SHOP, TestClock, known

LOG = "broker-a"


async def answer(channel: aio.Channel) -> str:
    """Return the error that a follower of an unknown log gets; only permitted callers get it."""
    call: Any = ReplicationStub(channel).Replicate()
    # Refused before the write: the read returns the reason.
    with suppress(aio.AioRpcError, asyncio.InvalidStateError):
        await call.write(hello_to_wire(LOG, Hello(1, "b", (), 0, 0)))
    try:
        await call.read()
    except aio.AioRpcError as failure:
        reason: RockoonError = from_rpc_error(failure, BrokerUnavailable, broker="it")
        return reason.name
    return "nothing"


@pytest.mark.parametrize(
    ("name", "answered"), [("broker-a", "NOT_READY"), ("shop", "WRONG_IDENTITY")]
)
async def test_with_certificates_a_follower_bears_the_name_of_the_log(
    tmp_path: Path, name: str, answered: str
) -> None:
    authority = Authority(tmp_path)
    issued = authority.issue("broker-a-0")
    tls = ServerTls(issued.certificate, issued.key, authority.ca)
    service = ReplicationService(NodeIdentities("{name}"))

    def register(server: aio.Server) -> None:
        add_to_server(service, server)

    server = GrpcServer("test", "rockoon", "127.0.0.1:0", register, [], drain=AT_ONCE, tls=tls)
    own = authority.issue(name)
    async with server:
        dialer = Dialer(Tls(ca=authority.ca, certificate=own.certificate, key=own.key))
        async with dialer.channel(server.address) as channel:
            assert await answer(channel) == answered


@pytest.mark.parametrize(("key", "answered"), [(CLUSTER_KEY, "NOT_READY"), (SHOP, "NOT_PERMITTED")])
async def test_with_access_keys_a_follower_has_the_secret_of_the_cluster(
    key: AccessKey, answered: str
) -> None:
    clock = TestClock()
    gate = Gate(RULES, lambda: (CLUSTER_KEY.secret,), 300.0, clock)
    service = ReplicationService()

    def register(server: aio.Server) -> None:
        add_to_server(service, server)

    server = GrpcServer("test", "rockoon", "127.0.0.1:0", register, [], drain=AT_ONCE, gate=gate)
    async with server:
        gate.authentication.audiences = {server.address}
        # A caller with all permissions that is no service.
        gate.update([known(SHOP, ("cluster", [ACCESS_READ, ACCESS_WRITE, ACCESS_ADMIN]))])
        dialer = Dialer(access=Credentials(key, clock))
        async with dialer.channel(server.address) as channel:
            assert await answer(channel) == answered
