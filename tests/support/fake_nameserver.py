"""A nameserver without etcd: routes in memory, changed by the test, told as the real one tells them.

It knows no leases: a node stays until it says goodbye. Its contract is checked against the real one
in tests/broker/test_routes.py.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Any

from grpc import aio

from rockoon_proto.errors import NodeNameTaken, RockoonError
from rockoon_proto.v1 import nameserver_pb2 as pb
from rockoon_proto.v1.nameserver_pb2_grpc import (
    NameServerServicer,
    add_NameServerServicer_to_server,
)
from rockoon_runtime.wire import GrpcServer

RENEW_SECONDS = 0.2


class FakeNameserver(NameServerServicer):
    """An async context manager; `stop` and `start` take it away and bring it back, same address.

    Attributes:
        revision: grows with every change; a test may set it back to play a lost etcd.
        topics, nodes: by name.
        refuse_register: raised by RegisterNode when set.
        renewals: how often each node has registered.
    """

    def __init__(self, cluster: str = "rockoon") -> None:
        self.cluster = cluster
        self.revision = 1
        self.topics: dict[str, pb.Topic] = {}
        self.nodes: dict[str, pb.Node] = {}
        self.refuse_register: RockoonError | None = None
        self.renewals: dict[str, int] = {}
        self.watches = 0
        self.port = 0
        # (revision, update) of every change, oldest first.
        self._log: list[pb.RouteUpdate] = []
        self._changed = asyncio.Event()
        self._server: GrpcServer | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        def register(server: aio.Server) -> None:
            add_NameServerServicer_to_server(self, server)

        self._server = GrpcServer(
            "nameserver",
            self.cluster,
            self.address,
            register,
            ["rockoon.v1.NameServer"],
            drain_seconds_max=0,
        )
        await self._server.__aenter__()
        self.port = self._server.port

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.__aexit__(None, None, None)
            self._server = None

    async def __aenter__(self) -> "FakeNameserver":
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    # What a test does.

    def create_topic(self, name: str, queues: Mapping[str, int], permissions: int = 6) -> int:
        """Create a topic with some queues on each broker; returns its revision."""
        self.revision += 1
        topic = pb.Topic(
            config=pb.TopicConfig(name=name, permissions=permissions),
            incarnation=self.revision,
            modified_revision=self.revision,
            blocks=[
                pb.QueueBlock(
                    broker=broker, first_queue_id=0, queues=count, birth_revision=self.revision
                )
                for broker, count in sorted(queues.items())
            ],
        )
        self.topics[name] = topic
        return self._tell(pb.RouteUpdate(topics=[topic]))

    def update_topic(self, name: str, permissions: int) -> int:
        self.revision += 1
        self.topics[name].config.permissions = permissions
        self.topics[name].modified_revision = self.revision
        return self._tell(pb.RouteUpdate(topics=[self.topics[name]]))

    def delete_topic(self, name: str) -> int:
        self.revision += 1
        del self.topics[name]
        return self._tell(pb.RouteUpdate(removed_topics=[name]))

    def forget_history(self) -> None:
        """As after a compaction: whoever comes back is sent a snapshot."""
        self._log.clear()

    def _tell(self, update: pb.RouteUpdate) -> int:
        update.revision = self.revision
        update.etcd_reachable = True
        update.cluster = self.cluster
        self._log.append(update)
        self._changed.set()
        self._changed = asyncio.Event()
        return self.revision

    async def wait_node(self, name: str) -> pb.Node:
        """Wait until a node has registered."""
        async with asyncio.timeout(20):
            while name not in self.nodes:
                await self._changed.wait()
        return self.nodes[name]

    # What callers ask.

    async def RegisterNode(
        self, request: pb.RegisterNodeRequest, context: Any
    ) -> pb.RegisterNodeReply:
        if self.refuse_register is not None:
            raise self.refuse_register
        node = request.node
        known = self.nodes.get(node.name)
        if known is not None and known.store_id != node.store_id:
            raise NodeNameTaken(name=node.name, address=known.address)
        self.renewals[node.name] = self.renewals.get(node.name, 0) + 1
        if known != node:
            self.revision += 1
            self.nodes[node.name] = node
            self._tell(pb.RouteUpdate(nodes=[node]))
        return pb.RegisterNodeReply(
            lease_id=7,
            ttl_seconds=10 * RENEW_SECONDS,
            renew_seconds=RENEW_SECONDS,
            revision=self.revision,
        )

    async def UnregisterNode(
        self, request: pb.UnregisterNodeRequest, context: Any
    ) -> pb.UnregisterNodeReply:
        node = self.nodes.get(request.name)
        if node is not None and node.store_id == request.store_id:
            self.revision += 1
            del self.nodes[request.name]
            self._tell(pb.RouteUpdate(removed_nodes=[node]))
        return pb.UnregisterNodeReply(revision=self.revision)

    async def GetRoute(self, request: pb.GetRouteRequest, context: Any) -> pb.RouteUpdate:
        return self._snapshot()

    async def WatchRoutes(
        self, request: pb.WatchRoutesRequest, context: Any
    ) -> AsyncIterator[pb.RouteUpdate]:
        self.watches += 1
        place = request.after_revision
        oldest = self._log[0].revision if self._log else self.revision + 1
        if place == 0 or place > self.revision or place + 1 < oldest:
            snapshot = self._snapshot()
            place = snapshot.revision
            yield snapshot
        while True:
            changed = self._changed
            for update in [each for each in self._log if each.revision > place]:
                place = update.revision
                yield update
            await changed.wait()

    def _snapshot(self) -> pb.RouteUpdate:
        return pb.RouteUpdate(
            revision=self.revision,
            snapshot=True,
            nodes=self.nodes.values(),
            topics=self.topics.values(),
            etcd_reachable=True,
            cluster=self.cluster,
        )
