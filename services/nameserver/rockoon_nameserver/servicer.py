"""The NameServer service: reads from the follower's table, writes to etcd. Translates, no more."""
# ruff: noqa: ARG002 - gRPC hands every method a request and a context

from collections.abc import AsyncIterator
from typing import Any

from rockoon_format.names import is_dlq_topic, is_retry_topic, is_system_topic
from rockoon_nameserver.follower import RouteFollower
from rockoon_nameserver.group_topics import GroupTopics
from rockoon_nameserver.groups import Groups
from rockoon_nameserver.nodes import Nodes
from rockoon_nameserver.route_table import Interest
from rockoon_nameserver.topics import Topics
from rockoon_proto.v1 import nameserver_pb2 as pb
from rockoon_proto.v1.nameserver_pb2_grpc import NameServerServicer

ALL = Interest(groups=True)


class NameServer(NameServerServicer):
    """See nameserver.proto.

    Args:
        cluster: its name, which every update carries.
        name: this nameserver's.
        follower, nodes, topics, groups, group_topics: what does the work.
    """

    def __init__(
        self,
        cluster: str,
        name: str,
        follower: RouteFollower,
        nodes: Nodes,
        topics: Topics,
        groups: Groups,
        group_topics: GroupTopics,
    ) -> None:
        self._cluster = cluster
        self._name = name
        self._follower = follower
        self._nodes = nodes
        self._topics = topics
        self._groups = groups
        self._group_topics = group_topics

    async def RegisterNode(
        self, request: pb.RegisterNodeRequest, context: Any
    ) -> pb.RegisterNodeReply:
        return await self._nodes.register(request)

    async def UnregisterNode(
        self, request: pb.UnregisterNodeRequest, context: Any
    ) -> pb.UnregisterNodeReply:
        return await self._nodes.unregister(request)

    async def GetRoute(self, request: pb.GetRouteRequest, context: Any) -> pb.RouteUpdate:
        await self._follower.wait_reached(max(1, request.min_revision))
        update = self._follower.table.snapshot(
            interest(list(request.topics), groups=request.include_groups)
        )
        update.etcd_reachable = self._follower.reachable
        update.cluster = self._cluster
        update.etcd_cluster_id = self._follower.etcd_cluster_id
        return update

    async def WatchRoutes(
        self, request: pb.WatchRoutesRequest, context: Any
    ) -> AsyncIterator[pb.RouteUpdate]:
        wanted = interest(list(request.topics), groups=request.include_groups)
        async for update in self._follower.updates(request.after_revision, wanted):
            update.cluster = self._cluster
            update.etcd_cluster_id = self._follower.etcd_cluster_id
            yield update

    async def CreateTopic(self, request: pb.CreateTopicRequest, context: Any) -> pb.TopicReply:
        return await self._topics.create(request)

    async def UpdateTopic(self, request: pb.UpdateTopicRequest, context: Any) -> pb.TopicReply:
        return await self._topics.update(request)

    async def DeleteTopic(self, request: pb.DeleteTopicRequest, context: Any) -> pb.DeleteReply:
        return await self._topics.delete(request.name)

    async def ListTopics(self, request: pb.ListTopicsRequest, context: Any) -> pb.ListTopicsReply:
        everything = self._everything()
        topics = [
            topic
            for topic in everything.topics
            if request.include_system or not made_by_rockoon(topic.config.name)
        ]
        return pb.ListTopicsReply(
            topics=topics,
            revision=everything.revision,
            etcd_reachable=self._follower.reachable,
        )

    async def CreateGroup(self, request: pb.CreateGroupRequest, context: Any) -> pb.GroupReply:
        return await self._groups.create(request)

    async def UpdateGroup(self, request: pb.UpdateGroupRequest, context: Any) -> pb.GroupReply:
        return await self._groups.update(request)

    async def DeleteGroup(self, request: pb.DeleteGroupRequest, context: Any) -> pb.DeleteReply:
        return await self._groups.delete(request.name)

    async def ListGroups(self, request: pb.ListGroupsRequest, context: Any) -> pb.ListGroupsReply:
        everything = self._everything()
        return pb.ListGroupsReply(
            groups=everything.groups,
            subscriptions=everything.subscriptions,
            revision=everything.revision,
            etcd_reachable=self._follower.reachable,
        )

    async def Subscribe(self, request: pb.SubscribeRequest, context: Any) -> pb.SubscribeReply:
        return await self._groups.subscribe(request)

    async def ProvideGroupTopic(
        self, request: pb.ProvideGroupTopicRequest, context: Any
    ) -> pb.TopicReply:
        return await self._group_topics.provide(request)

    async def DescribeCluster(
        self, request: pb.DescribeClusterRequest, context: Any
    ) -> pb.DescribeClusterReply:
        everything = self._everything()
        return pb.DescribeClusterReply(
            cluster=self._cluster,
            nodes=everything.nodes,
            topics=len(everything.topics),
            groups=len(everything.groups),
            revision=everything.revision,
            etcd_reachable=self._follower.reachable,
            etcd_away_seconds=self._follower.away_seconds,
            nameserver=self._name,
        )

    def _everything(self) -> pb.RouteUpdate:
        self._follower.refuse_unloaded()
        return self._follower.table.snapshot(ALL)


def interest(topics: list[str], *, groups: bool) -> Interest:
    return Interest(frozenset(topics) if topics else None, groups)


def made_by_rockoon(topic: str) -> bool:
    return is_retry_topic(topic) or is_dlq_topic(topic) or is_system_topic(topic)
