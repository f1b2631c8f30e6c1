"""The NameServer service: reads from the follower's table, writes to etcd."""
# ruff: noqa: ARG002 - gRPC hands every method a request and a context

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from importlib.metadata import version
from typing import Any

from rockoon_core.clock import wall_clock_ms
from rockoon_core.errors import Busy, GroupNotFound, InvalidArgument
from rockoon_core.protocol import LEVEL
from rockoon_format.names import (
    group_resource,
    is_dlq_topic,
    is_retry_topic,
    is_system_topic,
    lite_topic_of,
    topic_resource,
)
from rockoon_nameserver.broker_removal import BrokerRemoval
from rockoon_nameserver.etcd_data import PutKey, only, unchanged
from rockoon_nameserver.follower import EtcdFollower, served
from rockoon_nameserver.groups import GroupRecords, GroupTopics
from rockoon_nameserver.keyspace import Keyspace, identity_value, read_identity, read_level
from rockoon_nameserver.nodes import Nodes
from rockoon_nameserver.request_checks import Fingerprints
from rockoon_nameserver.route_import import parts
from rockoon_nameserver.route_store import RouteStore
from rockoon_nameserver.route_table import Interest
from rockoon_nameserver.topics import TopicRecords
from rockoon_proto.v1 import nameserver_pb2 as pb
from rockoon_proto.v1.nameserver_pb2 import (
    FinishUpgradeReply,
    Node,
    ReplicaAddress,
    RouteUpdate,
    Subscription,
)
from rockoon_proto.v1.nameserver_pb2_grpc import NameServerServicer
from rockoon_runtime.access.callers import current_caller, sees
from rockoon_runtime.tls import NodeIdentities, peer_identity

log = logging.getLogger(__name__)

ATTEMPTS_MAX = 8


class ClusterLevel:
    """Raises the cluster's feature level. This process keeps no state."""

    def __init__(self, etcd: RouteStore, keyspace: Keyspace) -> None:
        self._etcd = etcd
        self._keyspace = keyspace

    async def raise_it(self, lacking: Sequence[str]) -> FinishUpgradeReply:
        """Raise the level to that of this program. A repeated call changes nothing.

        Args:
            lacking: names of registered services that do not support it.

        Raises:
            InvalidArgument: a registered service does not support it.
            Busy: concurrent changes won `ATTEMPTS_MAX` times.
        """
        if lacking:
            names = ", ".join(lacking)
            reason = f"services of a former version are registered: {names}. Upgrade them first"
            raise InvalidArgument(reason=reason)
        key = self._keyspace.identity
        for _ in range(ATTEMPTS_MAX):
            found = await self._etcd.read(only(key))
            (item,) = found.items
            if read_level(item.value) >= LEVEL:
                return FinishUpgradeReply(
                    level=read_level(item.value), revision=found.header.revision
                )
            value = identity_value(read_identity(item.value), LEVEL)
            outcome = await self._etcd.transaction(
                [unchanged(key, item.mod_revision)], [PutKey(key, value)]
            )
            if outcome.succeeded:
                log.info("the cluster has feature level %d now", LEVEL)
                return FinishUpgradeReply(level=LEVEL, revision=outcome.revision)
        raise Busy(reason="the cluster's identity keeps changing: try again")


ALL = Interest(groups=True)


class NameServer(NameServerServicer):
    """The gRPC service NameServer (nameserver.proto): returns routes, registers nodes, changes
    topics and groups.

    Args:
        fingerprints: settings that nodes must share.
        level: the cluster's feature level in etcd.
        node_identities: required certificates of nodes; None if callers have none.
        external: whether callers are in another network.
        routes_in_file: whether there is no etcd.
    """

    def __init__(
        self,
        keyspace: Keyspace,
        name: str,
        follower: EtcdFollower,
        nodes: Nodes,
        topics: TopicRecords,
        groups: GroupRecords,
        group_topics: GroupTopics,
        removal: BrokerRemoval,
        fingerprints: Fingerprints,
        level: ClusterLevel,
        node_identities: NodeIdentities | None = None,
        *,
        external: bool = False,
        routes_in_file: bool = False,
    ) -> None:
        self._keyspace = keyspace
        self._cluster = keyspace.cluster
        self._name = name
        self._follower = follower
        self._nodes = nodes
        self._topics = topics
        self._groups = groups
        self._group_topics = group_topics
        self._removal = removal
        self._fingerprints = fingerprints
        self._level = level
        self._node_identities = node_identities
        self._external = external
        self._routes_in_file = routes_in_file
        self._version = version("rockoon-nameserver")

    async def RegisterNode(
        self, request: pb.RegisterNodeRequest, context: Any
    ) -> pb.RegisterNodeReply:
        self._check_identity(request.node.name, context)
        level = self._follower.table.level
        self._fingerprints.check(request, self._follower.cluster_id, level)
        reply = await self._follower.served(self._nodes.register(request))
        nodes = self._follower.table.nodes()
        reply.differences.extend(self._fingerprints.differences(request.node, nodes))
        return reply

    async def UnregisterNode(
        self, request: pb.UnregisterNodeRequest, context: Any
    ) -> pb.UnregisterNodeReply:
        self._check_identity(request.name, context)
        return await self._follower.served(self._nodes.unregister(request))

    async def GetRoute(self, request: pb.GetRouteRequest, context: Any) -> pb.RouteUpdate:
        await self._follower.wait_reached(max(1, request.min_revision))
        update = self._follower.table.snapshot(
            interest(list(request.topics), groups=request.include_groups)
        )
        update.etcd_reachable = self._follower.reachable
        self._set_facts(update)
        if current_caller() is not None:
            keep_visible(update, sees)
        return update

    async def WatchRoutes(
        self, request: pb.WatchRoutesRequest, context: Any
    ) -> AsyncIterator[pb.RouteUpdate]:
        wanted = interest(list(request.topics), groups=request.include_groups)
        position, caller = request.after_revision, current_caller()
        if caller is not None and caller.permissions_revision > position:
            # Other topics are visible since, so the whole routes are sent.
            position = 0
        async for update in self._follower.updates(
            position, wanted, request.seen_revision, request.history
        ):
            if caller is not None:
                keep_visible(update, sees)
            self._set_facts(update)
            yield update

    def _set_facts(self, update: pb.RouteUpdate) -> None:
        """Set the facts of the cluster that each update has."""
        update.cluster = self._cluster
        update.etcd_cluster_id = self._follower.etcd_cluster_id
        update.cluster_id = self._follower.cluster_id
        update.level = self._follower.table.level
        set_addresses(update.nodes, external=self._external)

    CreateTopic = served("_topics.create")

    async def CreateTopics(
        self, request: pb.CreateTopicsRequest, context: Any
    ) -> pb.CreateTopicsReply:
        return await self._follower.served(self._topics.create_many(request.topics))

    UpdateTopic = served("_topics.update")
    DeleteTopic = served("_topics.delete")

    async def ListTopics(self, request: pb.ListTopicsRequest, context: Any) -> pb.ListTopicsReply:
        everything = self._everything()
        topics = [
            topic
            for topic in everything.topics
            if (request.include_system or not made_by_rockoon(topic.config.name))
            and sees(topic_resource(topic.config.name))
        ]
        return pb.ListTopicsReply(
            topics=topics,
            revision=everything.revision,
            etcd_reachable=self._follower.reachable,
        )

    CreateGroup = served("_groups.create")
    UpdateGroup = served("_groups.update")
    DeleteGroup = served("_groups.delete")

    async def GetGroup(self, request: pb.GetGroupRequest, context: Any) -> pb.GetGroupReply:
        self._follower.refuse_unloaded()
        table = self._follower.table
        group = table.group(request.group)
        if group is None:
            raise GroupNotFound(group=request.group)
        return pb.GetGroupReply(
            group=group,
            subscriptions=[
                each
                for each in table.subscriptions_of(request.group)
                if sees(topic_resource(each.topic))
            ],
            revision=table.revision,
            etcd_reachable=self._follower.reachable,
        )

    async def ListGroups(self, request: pb.ListGroupsRequest, context: Any) -> pb.ListGroupsReply:
        everything = self._everything()
        if current_caller() is not None:
            keep_visible(everything, sees)
        return pb.ListGroupsReply(
            groups=everything.groups,
            subscriptions=everything.subscriptions,
            revision=everything.revision,
            etcd_reachable=self._follower.reachable,
        )

    Subscribe = served("_groups.subscribe")
    ProvideGroupTopic = served("_group_topics.provide")
    RemoveBroker = served("_removal.remove")

    async def DescribeCluster(
        self, request: pb.DescribeClusterRequest, context: Any
    ) -> pb.DescribeClusterReply:
        self._follower.refuse_unloaded()
        # Counted and not copied: clients that wait for a cluster poll this call.
        table = self._follower.table
        counts = table.counts()
        reply = pb.DescribeClusterReply(
            cluster=self._cluster,
            nodes=table.nodes(),
            topics=counts.topics,
            groups=counts.groups,
            revision=table.revision,
            etcd_reachable=self._follower.reachable,
            etcd_away_seconds=self._follower.away_seconds,
            nameserver=self._name,
            away_brokers=table.away_brokers(),
            routes_in_file=self._routes_in_file,
            version=self._version,
            clock_ms=wall_clock_ms(),
            level=table.level,
            level_max=LEVEL,
            level_lacking=table.lacking(LEVEL),
        )
        set_addresses(reply.nodes, external=self._external)
        return reply

    async def ReadRoutes(
        self, request: pb.ReadRoutesRequest, context: Any
    ) -> AsyncIterator[pb.ReadRoutesReply]:
        self._follower.refuse_unloaded()
        found = await self._follower.stored()
        for part in parts(found, self._keyspace, self._follower.cluster_id):
            yield part

    async def FinishUpgrade(
        self, request: pb.FinishUpgradeRequest, context: Any
    ) -> pb.FinishUpgradeReply:
        self._follower.refuse_unloaded()
        return await self._follower.served(
            self._level.raise_it(self._follower.table.lacking(LEVEL))
        )

    def _check_identity(self, node_name: str, context: Any) -> None:
        if self._external:
            raise InvalidArgument(
                reason=f"{node_name!r} cannot be registered here: this is the nameserver's "
                "external listener, which is for clients"
            )
        if self._node_identities is not None:
            identity = peer_identity(context)
            self._node_identities.check(node_name, identity.names if identity is not None else ())

    def _everything(self) -> pb.RouteUpdate:
        self._follower.refuse_unloaded()
        return self._follower.table.snapshot(ALL)


def interest(topics: list[str], *, groups: bool) -> Interest:
    return Interest(frozenset(topics) if topics else None, groups)


def made_by_rockoon(topic: str) -> bool:
    is_groups = is_retry_topic(topic) or is_dlq_topic(topic)
    return is_groups or is_system_topic(topic) or lite_topic_of(topic) is not None


Sees = Callable[[str], bool]


def keep_visible(update: RouteUpdate, sees: Sees) -> None:
    """Remove topics and groups that the caller must not see, and removals, from an update."""

    def topic(name: str) -> bool:
        return sees(topic_resource(name))

    def group(name: str) -> bool:
        return sees(group_resource(name))

    def subscription(entry: Subscription) -> bool:
        return topic(entry.topic) and group(entry.group)

    keep(update.topics, [each for each in update.topics if topic(each.config.name)])
    keep(update.groups, [each for each in update.groups if group(each.config.name)])
    keep(update.subscriptions, [each for each in update.subscriptions if subscription(each)])
    keep(update.removed_topics, [each for each in update.removed_topics if topic(each)])
    keep(update.removed_groups, [each for each in update.removed_groups if group(each)])
    keep(
        update.deletions,
        [e for e in update.deletions if (topic(e.topic) if e.topic else group(e.group))],
    )
    keep(
        update.removed_subscriptions,
        [each for each in update.removed_subscriptions if subscription(each)],
    )


def keep(field: Any, kept: list[Any]) -> None:
    if len(kept) < len(field):
        del field[:]
        field.extend(kept)


def set_addresses(nodes: Iterable[Node], *, external: bool) -> None:
    """Set nodes' addresses to those for callers in another network (`external`) or this one."""
    if not external:
        return
    for node in nodes:
        entries: list[Node | ReplicaAddress] = [node, *node.replicas]
        for each in entries:
            each.address = each.external_address
            each.ClearField("external_address")
            each.ClearField("ip_address")
