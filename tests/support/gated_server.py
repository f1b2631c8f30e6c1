"""A small server behind a gate: methods of each kind, one of them only for services, and a
clock."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
from grpc import aio

from rockoon_core.channels import Dialer
from rockoon_core.signature import AccessKey, Credentials, verifier_of
from rockoon_proto.v1.access_pb2 import AccessKeyInfo, AccessPermission
from rockoon_proto.v1.broker_pb2 import PullRequest
from rockoon_runtime.access.gate import Gate
from rockoon_runtime.access.rules import ANY_KEY, KEYS_FOR_SERVICES, Rule
from rockoon_runtime.wire import GrpcServer
from support.drains import AT_ONCE
from support.waiting import DEADLINE_SECONDS

CLUSTER_KEY = AccessKey("rockoon", "a cluster secret for tests")
SHOP = AccessKey("shop", "the secret of shop, for tests")
ONE, WAIT, MANY = "/test.Gated/One", "/test.Gated/Wait", "/test.Gated/Many"
OWN = "/test.Gated/Own"

# Methods that need `read` on the topic of the request.
READING = Rule(lambda request: (("read", f"topic:{request.topic}"),))
RULES = {ONE: READING, WAIT: READING, MANY: ANY_KEY, OWN: KEYS_FOR_SERVICES}


class TestClock:
    """A clock in epoch milliseconds that a test sets."""

    __test__ = False

    def __init__(self) -> None:
        self.now_ms = 1_800_000_000_000

    def __call__(self) -> int:
        return self.now_ms


def known(key: AccessKey, *permissions: tuple[str, Any], **more: Any) -> AccessKeyInfo:
    """Return a key in the form in which nameservers send it."""
    return AccessKeyInfo(
        key_id=key.id,
        verifier=verifier_of(key.secret),
        permissions=[
            AccessPermission(resource=resource, actions=actions)
            for resource, actions in permissions
        ],
        **more,
    )


class Gated:
    """The server and its clients.

    Attributes:
        gate: checks each call.
        clock: clock of the gate.
        cluster_secrets: accepted secrets.
        waiting: number of running calls of WAIT.
    """

    def __init__(self, *, window_seconds: float = 300.0, optional: bool = False) -> None:
        self.clock = TestClock()
        self.cluster_secrets = [CLUSTER_KEY.secret]
        self.gate = Gate(
            RULES,
            lambda: tuple(self.cluster_secrets),
            window_seconds,
            self.clock,
            optional=optional,
        )
        self.waiting = 0
        self.address = ""

    async def one(self, request: PullRequest, _: object) -> bytes:
        return request.topic.encode()

    async def wait(self, _request: PullRequest, _: object) -> AsyncIterator[bytes]:
        self.waiting += 1
        try:
            yield b"begun"
            await asyncio.Event().wait()
        finally:
            self.waiting -= 1

    async def many(self, requests: Any, _: object) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request.topic.encode()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["Gated"]:
        """Listen on an address for which clients must sign streams of requests."""
        parse: Any = PullRequest.FromString
        handlers: dict[str, Any] = {
            "One": grpc.unary_unary_rpc_method_handler(self.one, parse),
            "Own": grpc.unary_unary_rpc_method_handler(self.one, parse),
            "Wait": grpc.unary_stream_rpc_method_handler(self.wait, parse),
            "Many": grpc.stream_stream_rpc_method_handler(self.many, parse),
        }

        def register(server: aio.Server) -> None:
            server.add_generic_rpc_handlers(
                [grpc.method_handlers_generic_handler("test.Gated", handlers)]
            )

        server = GrpcServer(
            "test",
            "rockoon",
            "127.0.0.1:0",
            register,
            [],
            drain=AT_ONCE,
            gate=self.gate,
        )
        async with server:
            self.address = server.address
            self.gate.authentication.audiences = {server.address}
            yield self

    def channel(self, key: AccessKey, *, clock: TestClock | None = None) -> aio.Channel:
        """Return a channel that signs its calls, by the server's clock unless `clock` is set."""
        signing = Credentials(key, clock or self.clock)
        return Dialer(access=signing).channel(self.address)


def call(channel: aio.Channel, method: str = ONE, topic: str = "orders") -> Any:
    """Call one of the methods with one request."""
    kind = channel.unary_stream if method == WAIT else channel.unary_unary
    made: Any = kind(method, request_serializer=PullRequest.SerializeToString)
    return made(PullRequest(topic=topic), timeout=DEADLINE_SECONDS)
