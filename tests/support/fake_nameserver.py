"""A nameserver without etcd: one process, one dictionary, the same replies.

`tests/offset/test_fakes.py` compares it with the real nameserver.
"""
# ruff: noqa: ARG002 - gRPC passes a request and a context to every method

import asyncio
import copy
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from grpc import aio

from rockoon_core.errors import GroupNotFound, NodeNameTaken, TopicExists, TopicNotFound
from rockoon_core.protocol import LEVEL
from rockoon_format.names import dlq_topic, retry_topic
from rockoon_proto.v1 import nameserver_pb2 as pb
from rockoon_proto.v1.nameserver_pb2_grpc import (
    NameServerServicer,
    add_NameServerServicer_to_server,
)
from rockoon_runtime.wire import GrpcServer
from support.drains import AT_ONCE


async def nothing() -> None:
    """Do nothing; the default of a hook."""


class FakeNameserver(NameServerServicer):
    """Routes in memory. An async context manager; `stop` and `start` may be repeated.

    Every change is an update for the watchers; a later watcher gets a snapshot.
    """

    def __init__(self, cluster: str = "rockoon") -> None:
        self.cluster = cluster
        self.revision = 1
        self.etcd_cluster_id = 0x51
        # Awaited after a node has unregistered, before it is removed.
        self.on_unregister: Callable[[], Awaitable[None]] = nothing
        # As nameservers of a former version, which send no value.
        self.cluster_id = 0
        # The cluster that each node named as the owner of its store.
        self.store_clusters: dict[str, int] = {}
        self.nodes: dict[tuple[int, str], pb.Node] = {}
        self.topics: dict[str, pb.Topic] = {}
        self.groups: dict[str, pb.Group] = {}
        self.subscriptions: dict[tuple[str, str], pb.Subscription] = {}
        # (topic, "") or ("", group) → revision of its last deletion.
        self.deletions: dict[tuple[str, str], int] = {}
        self.deletions_since = 1
        # This nameserver is behind etcd: it sends its own state.
        self.lags = False
        self.history = 1
        self.renew_seconds = 0.2
        # Longer than any test, so that no lease of a node expires.
        self.lease_seconds = 600.0
        # Sent to a node that registers: seconds for which its predecessor may still serve clients.
        self.predecessor_seconds = 0.0
        self.left: list[pb.UnregisterNodeRequest] = []
        # While it is cleared, registrations get no reply.
        self.registering = asyncio.Event()
        self.registering.set()
        self.subscribe_calls = 0
        self.listen = "127.0.0.1:0"
        self._updates: list[pb.RouteUpdate] = []
        self._changed = asyncio.Condition()
        self._server: GrpcServer | None = None
        # While it is cleared, watchers get no updates: their routes are out of date.
        self.telling = asyncio.Event()
        self.telling.set()
        self._stopping = False

    @property
    def address(self) -> str:
        assert self._server is not None
        return self._server.address

    async def start(self) -> None:
        self._stopping = False

        def register(server: aio.Server) -> None:
            add_NameServerServicer_to_server(self, server)

        self._server = GrpcServer(
            "nameserver", self.cluster, self.listen, register, (), drain=AT_ONCE
        )
        await self._server.__aenter__()
        self.listen = self._server.address

    async def stop(self) -> None:
        assert self._server is not None
        self._stopping = True
        async with self._changed:
            self._changed.notify_all()
        await self._server.__aexit__(None, None, None)

    async def __aenter__(self) -> "FakeNameserver":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def lose_everything(self, revision: int = 1, etcd_cluster_id: int = 0x51) -> None:
        """Simulate that an empty etcd has replaced the former one; watches begin again."""
        await self.stop()
        self.revision, self.etcd_cluster_id = revision, etcd_cluster_id
        self.topics.clear()
        self.groups.clear()
        self.subscriptions.clear()
        self.deletions.clear()
        self._updates.clear()
        self.history += 1
        await self.start()

    def backup(self) -> dict[str, Any]:
        """Return the content of a backup of its etcd."""
        names = ("revision", "nodes", "topics", "groups", "subscriptions", "deletions")
        return {name: copy.deepcopy(getattr(self, name)) for name in names}

    async def restore(self, backup: dict[str, Any], *, revisions_more: int = 0) -> None:
        """Restore a backup of its etcd; further revisions without changes of routes follow. Watches
        begin again."""
        await self.stop()
        for name, content in copy.deepcopy(backup).items():
            setattr(self, name, content)
        self.revision += revisions_more
        self._updates.clear()
        self.history += 1
        await self.start()

    async def RegisterNode(
        self, request: pb.RegisterNodeRequest, context: Any
    ) -> pb.RegisterNodeReply:
        await self.registering.wait()
        node = request.node
        self.store_clusters[node.name] = request.cluster_id
        for (kind, name), held in self.nodes.items():
            same_place = kind == node.kind and (name == node.name or kind == pb.OFFSET_SERVICE)
            if same_place and (name != node.name or held.store_id != node.store_id):
                raise NodeNameTaken(name=name, address=held.address)
        if self.nodes.get((node.kind, node.name)) != node:
            self.nodes[node.kind, node.name] = node
            await self._tell(nodes=[node])
        return pb.RegisterNodeReply(
            lease_id=7,
            ttl_seconds=self.lease_seconds,
            renew_seconds=self.renew_seconds,
            revision=self.revision,
            predecessor_seconds=self.predecessor_seconds,
        )

    async def UnregisterNode(
        self, request: pb.UnregisterNodeRequest, context: Any
    ) -> pb.UnregisterNodeReply:
        self.left.append(request)
        await self.on_unregister()
        if self.nodes.pop((request.kind, request.name), None) is not None:
            await self._tell(removed_nodes=[pb.Node(kind=request.kind, name=request.name)])
        return pb.UnregisterNodeReply(revision=self.revision)

    async def GetRoute(self, request: pb.GetRouteRequest, context: Any) -> pb.RouteUpdate:
        return self._snapshot()

    async def ListTopics(self, request: pb.ListTopicsRequest, context: Any) -> pb.ListTopicsReply:
        return pb.ListTopicsReply(topics=self.topics.values(), revision=self.revision)

    async def WatchRoutes(
        self, request: pb.WatchRoutesRequest, context: Any
    ) -> AsyncIterator[pb.RouteUpdate]:
        after = request.after_revision
        first = not any(update.revision == after for update in self._updates)
        seen = max(after, request.seen_revision)
        is_foreign = request.history not in (0, self.history)
        first = first or is_foreign
        while not self._stopping:
            await self.telling.wait()
            if first and (is_foreign or after != self.revision):
                # Before the snapshot is sent: later changes are not in it.
                snapshot = self._snapshot()
                # A real nameserver confirms its state with etcd first.
                snapshot.etcd_went_back = seen > self.revision and not self.lags
                after = snapshot.revision
                yield snapshot
            first = False
            for update in list(self._updates):
                if update.revision > after:
                    yield update
                    after = update.revision
            async with self._changed:
                if after == self.revision and not self._stopping:
                    await self._changed.wait()

    async def CreateTopic(self, request: pb.CreateTopicRequest, context: Any) -> pb.TopicReply:
        name = request.config.name
        if name in self.topics:
            if not request.if_absent:
                raise TopicExists(topic=name)
            return pb.TopicReply(topic=self.topics[name], revision=self.revision)
        revision = self.revision + 1
        topic = pb.Topic(config=request.config, incarnation=revision, modified_revision=revision)
        self._place(topic, list(request.placements), revision)
        self.topics[name] = topic
        await self._tell(topics=[topic])
        return pb.TopicReply(topic=topic, revision=revision, created=True)

    async def UpdateTopic(self, request: pb.UpdateTopicRequest, context: Any) -> pb.TopicReply:
        topic = self._topic(request.name)
        topic.modified_revision = self.revision + 1
        self._place(topic, list(request.add), self.revision + 1)
        await self._tell(topics=[topic])
        return pb.TopicReply(topic=topic, revision=self.revision)

    async def DeleteTopic(self, request: pb.DeleteTopicRequest, context: Any) -> pb.DeleteReply:
        self._topic(request.name)
        del self.topics[request.name]
        gone = self._drop_subscriptions(lambda entry: entry.topic == request.name)
        await self._tell(
            removed_topics=[request.name],
            removed_subscriptions=gone,
            deletions=self._noted((request.name, "")),
        )
        return pb.DeleteReply(revision=self.revision)

    async def CreateGroup(self, request: pb.CreateGroupRequest, context: Any) -> pb.GroupReply:
        group = self._make_group(request.config)
        await self._tell(groups=[group])
        return pb.GroupReply(group=group, revision=self.revision, created=True)

    async def UpdateGroup(self, request: pb.UpdateGroupRequest, context: Any) -> pb.GroupReply:
        group = self.groups.get(request.config.name)
        if group is None:
            raise GroupNotFound(group=request.config.name)
        group.config.CopyFrom(request.config)
        group.modified_revision = self.revision + 1
        await self._tell(groups=[group])
        return pb.GroupReply(group=group, revision=self.revision)

    async def DeleteGroup(self, request: pb.DeleteGroupRequest, context: Any) -> pb.DeleteReply:
        if self.groups.pop(request.name, None) is None:
            raise GroupNotFound(group=request.name)
        names = [retry_topic(request.name), dlq_topic(request.name)]
        topics = [name for name in names if self.topics.pop(name, None) is not None]
        gone = self._drop_subscriptions(
            lambda entry: entry.group == request.name or entry.topic in topics
        )
        await self._tell(
            removed_groups=[request.name],
            removed_topics=topics,
            removed_subscriptions=gone,
            deletions=self._noted(("", request.name), *((name, "") for name in names)),
        )
        return pb.DeleteReply(revision=self.revision)

    async def Subscribe(self, request: pb.SubscribeRequest, context: Any) -> pb.SubscribeReply:
        self.subscribe_calls += 1
        self._topic(request.topic)
        key = (request.group, request.topic)
        created = key not in self.subscriptions or request.group not in self.groups
        if created:
            if request.group not in self.groups:
                if not request.create_group:
                    raise GroupNotFound(group=request.group)
                self._make_group(pb.GroupConfig(name=request.group))
            self.subscriptions[key] = pb.Subscription(
                group=request.group, topic=request.topic, revision=self.revision + 1
            )
            await self._tell(
                groups=[self.groups[request.group]], subscriptions=[self.subscriptions[key]]
            )
        return pb.SubscribeReply(
            subscription=self.subscriptions[key],
            group=self.groups[request.group],
            revision=self.revision,
            created=created,
        )

    async def ProvideGroupTopic(
        self, request: pb.ProvideGroupTopicRequest, context: Any
    ) -> pb.TopicReply:
        if request.group not in self.groups:
            raise GroupNotFound(group=request.group)
        is_retry = request.topic == pb.GROUP_RETRY
        name = retry_topic(request.group) if is_retry else dlq_topic(request.group)
        topic = self.topics.get(name)
        brokers = [request.broker]
        if not request.broker:
            brokers = sorted(name for kind, name in self.nodes if kind == pb.BROKER)
        config = self.groups[request.group].config
        queues = config.retry_queues if is_retry and config.HasField("retry_queues") else 1
        queues = max(queues, request.queues)
        held = {block.broker: 0 for block in topic.blocks} if topic else {}
        for block in topic.blocks if topic else ():
            held[block.broker] += block.queues
        missing = [
            pb.Placement(broker=broker, queues=queues - held.get(broker, 0))
            for broker in brokers
            if queues > held.get(broker, 0)
        ]
        created = topic is None
        if topic is not None and not missing:
            return pb.TopicReply(topic=topic, revision=topic.modified_revision)
        revision = self.revision + 1
        if topic is None:
            wanted = pb.TopicConfig(name=name, permissions=6)
            topic = self.topics[name] = pb.Topic(config=wanted, incarnation=revision)
        topic.modified_revision = revision
        self._place(topic, missing, revision)
        await self._tell(topics=[topic])
        return pb.TopicReply(topic=topic, revision=revision, created=created)

    def _topic(self, name: str) -> pb.Topic:
        if name not in self.topics:
            raise TopicNotFound(topic=name)
        return self.topics[name]

    def _make_group(self, config: pb.GroupConfig) -> pb.Group:
        revision = self.revision + 1
        group = pb.Group(config=config, incarnation=revision, modified_revision=revision)
        self.groups[config.name] = group
        return group

    def _place(self, topic: pb.Topic, placements: list[pb.Placement], revision: int) -> None:
        for placement in placements:
            first = sum(block.queues for block in topic.blocks if block.broker == placement.broker)
            topic.blocks.add(
                broker=placement.broker,
                first_queue_id=first,
                queues=placement.queues,
                create_revision=revision,
            )

    def _noted(self, *names: tuple[str, str]) -> list[pb.Deletion]:
        self.deletions |= dict.fromkeys(names, self.revision + 1)
        return [
            pb.Deletion(topic=topic, group=group, revision=self.revision + 1)
            for topic, group in names
        ]

    def _drop_subscriptions(
        self, chosen: Callable[[pb.Subscription], bool]
    ) -> list[pb.Subscription]:
        gone = [entry for entry in self.subscriptions.values() if chosen(entry)]
        for entry in gone:
            del self.subscriptions[entry.group, entry.topic]
        return [pb.Subscription(group=entry.group, topic=entry.topic) for entry in gone]

    def _snapshot(self) -> pb.RouteUpdate:
        return pb.RouteUpdate(
            revision=self.revision,
            level=LEVEL,
            snapshot=True,
            nodes=list(self.nodes.values()),
            topics=list(self.topics.values()),
            groups=list(self.groups.values()),
            subscriptions=list(self.subscriptions.values()),
            deletions=[
                pb.Deletion(topic=topic, group=group, revision=revision)
                for (topic, group), revision in self.deletions.items()
            ],
            deletions_since=self.deletions_since,
            history=self.history,
            etcd_reachable=True,
            cluster=self.cluster,
            etcd_cluster_id=self.etcd_cluster_id,
            cluster_id=self.cluster_id,
        )

    async def _tell(self, **changes: Any) -> None:
        self.revision += 1
        update = pb.RouteUpdate(
            revision=self.revision,
            level=LEVEL,
            deletions_since=self.deletions_since,
            history=self.history,
            etcd_reachable=True,
            cluster=self.cluster,
            etcd_cluster_id=self.etcd_cluster_id,
            cluster_id=self.cluster_id,
            **changes,
        )
        self._updates.append(update)
        async with self._changed:
            self._changed.notify_all()
