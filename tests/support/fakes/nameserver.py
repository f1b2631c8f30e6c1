"""The nameserver of a fake cluster."""

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

from rockoon_core import errors
from rockoon_core.changes import Changes
from rockoon_format.names import dlq_topic, is_system_topic, retry_topic
from rockoon_proto.v1 import nameserver_pb2 as route_wire
from rockoon_proto.v1.nameserver_pb2_grpc import (
    NameServerServicer,
    add_NameServerServicer_to_server,
)
from support.fakes.listener import Listener
from support.fakes.places import Place

if TYPE_CHECKING:
    from support.fake_cluster import FakeCluster


class FakeNameserver(NameServerServicer):
    """Routes in memory; each change is told to watchers as a whole snapshot."""

    def __init__(self, cluster: "FakeCluster") -> None:
        self.listener = Listener(add_NameServerServicer_to_server, self)
        self.cluster = cluster
        self.revision = 1
        self.changes = Changes()
        self.nodes: dict[str, route_wire.Node] = {}
        self.topics: dict[str, route_wire.Topic] = {}
        self.groups: dict[str, int] = {}
        self.group_configs: dict[str, route_wire.GroupConfig] = {}
        """Of groups that are not as they were made."""
        self.subscriptions: dict[tuple[str, str], int] = {}

    def changed(self) -> int:
        self.revision += 1
        self.changes.notify()
        return self.revision

    def put_node(self, kind: route_wire.NodeKind, name: str, address: str) -> None:
        self.nodes[name] = route_wire.Node(kind=kind, name=name, address=address)
        self.changed()

    def remove_node(self, name: str) -> None:
        if self.nodes.pop(name, None):
            self.changed()

    def create_revisions(self, topic: str) -> dict[Place, int]:
        blocks = self.topics[topic].blocks if topic in self.topics else ()
        return {
            (topic, block.broker, block.first_queue_id + number): block.create_revision
            for block in blocks
            for number in range(block.queues)
        }

    def create_revision(self, place: Place) -> int | None:
        """Of one queue; None if it does not exist."""
        topic, broker, number = place
        for block in self.topics[topic].blocks if topic in self.topics else ():
            first = block.first_queue_id
            if block.broker == broker and first <= number < first + block.queues:
                return int(block.create_revision)
        return None

    def _update(self, topics: Sequence[str]) -> route_wire.RouteUpdate:
        return route_wire.RouteUpdate(
            revision=self.revision,
            snapshot=True,
            nodes=list(self.nodes.values()),
            topics=[t for name, t in self.topics.items() if not topics or name in topics],
            etcd_reachable=True,
            cluster="rockoon",
        )

    async def GetRoute(self, request: Any, _: Any) -> route_wire.RouteUpdate:
        return self._update(request.topics)

    async def ListTopics(self, request: Any, _: Any) -> route_wire.ListTopicsReply:
        topics = [
            topic
            for name, topic in sorted(self.topics.items())
            if request.include_system or not is_system_topic(name)
        ]
        return route_wire.ListTopicsReply(topics=topics, revision=self.revision)

    async def WatchRoutes(self, request: Any, _: Any) -> AsyncIterator[route_wire.RouteUpdate]:
        while True:
            seen = self.changes.count
            yield self._update(request.topics)
            await self.changes.wait(seen)

    async def GetGroup(self, request: Any, _: Any) -> route_wire.GetGroupReply:
        name = request.group
        if name not in self.groups:
            raise errors.GroupNotFound(group=name)
        config = self.group_configs.get(name, route_wire.GroupConfig(name=name))
        return route_wire.GetGroupReply(
            group=route_wire.Group(config=config, incarnation=self.groups[name]),
            subscriptions=[
                route_wire.Subscription(group=group, topic=topic, revision=revision)
                for (group, topic), revision in sorted(self.subscriptions.items())
                if group == name
            ],
            revision=self.revision,
            etcd_reachable=True,
        )

    async def ProvideGroupTopic(self, request: Any, _: Any) -> route_wire.TopicReply:
        if request.group not in self.groups:
            raise errors.GroupNotFound(group=request.group)
        is_retry = request.topic == route_wire.GROUP_RETRY
        topic = (retry_topic if is_retry else dlq_topic)(request.group)
        created = topic not in self.topics
        if created:
            self.cluster.create_topic(topic)
        return route_wire.TopicReply(
            topic=self.topics[topic], revision=self.revision, created=created
        )

    async def Subscribe(self, request: Any, _: Any) -> route_wire.SubscribeReply:
        if request.topic not in self.topics:
            raise errors.TopicNotFound(topic=request.topic)
        if request.group not in self.groups:
            if not request.create_group:
                raise errors.GroupNotFound(group=request.group)
            self.groups[request.group] = self.changed()
        key = (request.group, request.topic)
        created = key not in self.subscriptions
        if created:
            self.subscriptions[key] = self.changed()
        return route_wire.SubscribeReply(revision=self.revision, created=created)
