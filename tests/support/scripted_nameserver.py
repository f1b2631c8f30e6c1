"""A nameserver whose routes a test writes: it sends each watcher exactly the routes it follows.

For tests of the SDK's route cache and of its users. tests/client/test_scripted_nameserver.py
compares the replies of `WatchRoutes` and `GetRoute` with those of the real nameserver.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from types import TracebackType
from typing import Any, Self

from grpc import aio

from rockoon_core.errors import RockoonError, RouteNotReached
from rockoon_proto.v1 import nameserver_pb2 as pb
from rockoon_proto.v1.nameserver_pb2_grpc import (
    NameServerServicer,
    add_NameServerServicer_to_server,
)
from rockoon_runtime.wire import GrpcServer
from support.drains import AT_ONCE


class ScriptedNameserver(NameServerServicer):
    """An async context manager; `stop` and `start` end and restart the service at the same address.

    Attributes:
        revision: increases with every change.
        topics, nodes: by name.
        failure: raised by GetRoute while it is set.
        asked: the topics of every GetRoute.
        watched: the topics of every WatchRoutes.
    """

    def __init__(self, cluster: str = "rockoon") -> None:
        self.revision = 1
        self.topics: dict[str, pb.Topic] = {}
        self.nodes: dict[str, pb.Node] = {}
        self.failure: RockoonError | None = None
        self.asked: list[list[str]] = []
        self.watched: list[list[str]] = []
        self._cluster = cluster
        self._listen = "127.0.0.1:0"
        # All changes since the start, oldest first.
        self._log: list[pb.RouteUpdate] = []
        self._changed = asyncio.Event()
        self._server: GrpcServer | None = None

    @property
    def address(self) -> str:
        return self._listen

    async def start(self) -> None:
        def register(server: aio.Server) -> None:
            add_NameServerServicer_to_server(self, server)

        self._server = GrpcServer(
            "nameserver", self._cluster, self._listen, register, [], drain=AT_ONCE
        )
        await self._server.__aenter__()
        self._listen = self._server.address

    async def stop(self) -> None:
        if self._server is not None:
            server, self._server = self._server, None
            await server.__aexit__(None, None, None)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    # Changes by a test.

    def put_topic(
        self,
        name: str,
        queues: Mapping[str, int],
        permissions: int = 6,
        attributes: Mapping[str, str] | None = None,
    ) -> int:
        """Create or change a topic with a number of queues per broker; return the revision."""
        self.revision += 1
        before = self.topics.get(name)
        topic = pb.Topic(
            config=pb.TopicConfig(name=name, permissions=permissions, attributes=attributes),
            incarnation=before.incarnation if before else self.revision,
            modified_revision=self.revision,
            blocks=[
                pb.QueueBlock(broker=broker, queues=count, create_revision=self.revision)
                for broker, count in sorted(queues.items())
            ],
        )
        self.topics[name] = topic
        return self._tell(pb.RouteUpdate(topics=[topic]))

    def delete_topic(self, name: str) -> int:
        self.revision += 1
        del self.topics[name]
        return self._tell(pb.RouteUpdate(removed_topics=[name]))

    def put_node(self, name: str, address: str, kind: pb.NodeKind = pb.BROKER) -> int:
        self.revision += 1
        self.nodes[name] = pb.Node(kind=kind, name=name, address=address)
        return self._tell(pb.RouteUpdate(nodes=[self.nodes[name]]))

    def remove_node(self, name: str) -> int:
        self.revision += 1
        node = self.nodes.pop(name)
        return self._tell(pb.RouteUpdate(removed_nodes=[pb.Node(kind=node.kind, name=name)]))

    def _tell(self, update: pb.RouteUpdate) -> int:
        update.revision = self.revision
        self._log.append(self._signed(update))
        self._changed.set()
        self._changed = asyncio.Event()
        return self.revision

    # Calls of clients.

    async def GetRoute(self, request: pb.GetRouteRequest, _: Any) -> pb.RouteUpdate:
        self.asked.append(list(request.topics))
        if self.failure is not None:
            raise self.failure
        if request.min_revision > self.revision:
            raise RouteNotReached(wanted=request.min_revision, revision=self.revision)
        return self._snapshot(request.topics)

    async def WatchRoutes(
        self, request: pb.WatchRoutesRequest, _: Any
    ) -> AsyncIterator[pb.RouteUpdate]:
        self.watched.append(list(request.topics))
        place = request.after_revision
        if place == 0 or place > self.revision:
            snapshot = self._snapshot(request.topics)
            place = snapshot.revision
            yield snapshot
        while True:
            changed = self._changed
            for update in [each for each in self._log if each.revision > place]:
                place = update.revision
                yield _of(update, request.topics)
            await changed.wait()

    def _snapshot(self, topics: Collection[str]) -> pb.RouteUpdate:
        whole = pb.RouteUpdate(
            revision=self.revision,
            snapshot=True,
            nodes=self.nodes.values(),
            topics=self.topics.values(),
        )
        return _of(self._signed(whole), topics)

    def _signed(self, update: pb.RouteUpdate) -> pb.RouteUpdate:
        update.etcd_reachable = True
        update.cluster = self._cluster
        return update


def _of(update: pb.RouteUpdate, topics: Collection[str]) -> pb.RouteUpdate:
    """Return the part of an update for a client that follows `topics`; none means all."""
    if not topics:
        return update
    told = pb.RouteUpdate()
    told.CopyFrom(update)
    del told.topics[:], told.removed_topics[:]
    told.topics.extend(topic for topic in update.topics if topic.config.name in topics)
    told.removed_topics.extend(name for name in update.removed_topics if name in topics)
    return told
