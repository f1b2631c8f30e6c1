"""A nameserver in this process, on a free port, for tests that need routes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from rockoon.local.directory import choose_port
from rockoon_core.errors import NameserverUnavailable
from rockoon_core.failed_call import from_rpc_error
from rockoon_core.protocol import LEVEL
from rockoon_nameserver.server import serve
from rockoon_nameserver.settings import NameserverSettings
from rockoon_proto.v1.nameserver_pb2 import BROKER, Node, RouteUpdate, WatchRoutesRequest
from rockoon_proto.v1.nameserver_pb2_grpc import NameServerStub
from rockoon_runtime.process import Stop
from support.waiting import DEADLINE_SECONDS


class Nameserver:
    """A running nameserver and its calls.

    Attributes:
        address: "host:port".
        channel: open channel to it.
        stub: the generated stub.
        stop: `stop.request(...)` stops the nameserver.
    """

    def __init__(self, address: str, channel: aio.Channel, stop: Stop) -> None:
        self.address = address
        self.channel = channel
        self.stub: Any = NameServerStub(channel)
        self.stop = stop

    async def call(self, method: str, request: Any) -> Any:
        """Make a unary call; an error of the table is raised as its class."""
        try:
            return await getattr(self.stub, method)(request, timeout=DEADLINE_SECONDS)
        except grpc.RpcError as failure:
            raise from_rpc_error(failure, NameserverUnavailable, address=self.address) from failure

    async def wait_serving(self) -> None:
        health = health_pb2_grpc.HealthStub(self.channel)
        request = health_pb2.HealthCheckRequest(service="rockoon.v1.NameServer")
        async with asyncio.timeout(DEADLINE_SECONDS):
            call = health.Watch(request, wait_for_ready=True)
            async for reply in call:
                if reply.status == health_pb2.HealthCheckResponse.SERVING:
                    call.cancel()
                    return


@asynccontextmanager
async def running_nameserver(
    *, wait_serving: bool = True, **settings: Any
) -> AsyncIterator[Nameserver]:
    """Run a nameserver; `settings` are those of NameserverSettings, at least `etcd`.

    Nodes that a test registers are not renewed: by default their leases are longer than the test.
    """
    address = f"127.0.0.1:{choose_port()}"
    chosen = NameserverSettings(**{"listen": address, "node_lease_seconds": 600, **settings})
    stop = Stop()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(serve(chosen, stop), name="nameserver")
        async with aio.insecure_channel(address, options=FAST_RECONNECT) as channel:
            nameserver = Nameserver(address, channel, stop)
            try:
                if wait_serving:
                    await nameserver.wait_serving()
                yield nameserver
            finally:
                stop.request("the test is over")


FAST_RECONNECT = (
    ("grpc.initial_reconnect_backoff_ms", 20),
    ("grpc.max_reconnect_backoff_ms", 200),
)


def broker_node(name: str = "broker-a", **fields: Any) -> Node:
    own = {"kind": BROKER, "address": f"{name}:10911", "store_id": f"store of {name}"}
    return Node(name=name, **{**own, "level": LEVEL, **fields})


class RouteView:
    """Routes of a client: it applies updates by the rule in nameserver.proto."""

    def __init__(self) -> None:
        self.revision = 0
        self.reachable = False
        self.snapshots = 0
        self.nodes: dict[tuple[int, str], Any] = {}
        self.topics: dict[str, Any] = {}
        self.groups: dict[str, Any] = {}
        self.subscriptions: dict[tuple[str, str], Any] = {}

    def apply(self, update: RouteUpdate) -> None:
        if update.snapshot:
            self.snapshots += 1
            for held in (self.nodes, self.topics, self.groups, self.subscriptions):
                held.clear()
        self.nodes |= {(node.kind, node.name): node for node in update.nodes}
        self.topics |= {topic.config.name: topic for topic in update.topics}
        self.groups |= {group.config.name: group for group in update.groups}
        self.subscriptions |= {(each.topic, each.group): each for each in update.subscriptions}
        for node in update.removed_nodes:
            self.nodes.pop((node.kind, node.name), None)
        for topic in update.removed_topics:
            self.topics.pop(topic, None)
        for group in update.removed_groups:
            self.groups.pop(group, None)
        for each in update.removed_subscriptions:
            self.subscriptions.pop((each.topic, each.group), None)
        self.revision, self.reachable = update.revision, update.etcd_reachable

    def contents(self) -> tuple[Any, ...]:
        return self.nodes, self.topics, self.groups, self.subscriptions


class Watching:
    """A watch stream and the view after its updates so far; an async context manager."""

    def __init__(self, nameserver: Nameserver, view: RouteView | None = None, **request: Any):
        self.view = view or RouteView()
        self.updates: list[RouteUpdate] = []
        self._nameserver = nameserver
        self._request = WatchRoutesRequest(
            **{"include_groups": True, "after_revision": self.view.revision, **request}
        )

    async def until(self, condition: Callable[[RouteView], object]) -> RouteView:
        """Apply updates until a condition is true."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not condition(self.view):
                await self.next()
        return self.view

    async def next(self) -> RouteUpdate:
        async with asyncio.timeout(DEADLINE_SECONDS):
            update: Any = await self._call.read()
        if update is aio.EOF:
            raise EOFError("the nameserver ended the stream")
        assert isinstance(update, RouteUpdate)
        self.updates.append(update)
        self.view.apply(update)
        return update

    async def __aenter__(self) -> "Watching":
        self._call = self._nameserver.stub.WatchRoutes(self._request)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._call.cancel()
