"""Topics, groups, progress and status of a cluster, for people and tools.

    cluster.admin.create_topic("orders", queues_per_broker=4)

Topics and groups are asked of any nameserver, progress of the offset service, the ends of queues
of the brokers themselves. What one of them has to say beyond its own ground is never guessed: a
node that does not answer shows as an error beside its name.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rockoon.backoff import Backoff
from rockoon.channels import CHANNEL_OPTIONS
from rockoon.connection import UNLISTED_SECONDS
from rockoon.delayed_messages import DelayedMessages
from rockoon.descriptions import (
    ClusterStatus,
    GroupDescription,
    GroupSummary,
    NodeStatus,
    QueueEnds,
    QueueStory,
    TopicDescription,
)
from rockoon.errors import (
    BrokerNotFound,
    BrokerUnavailable,
    GroupHasMembers,
    GroupNotFound,
    NameserverUnavailable,
    NotPermitted,
    OffsetServiceUnavailable,
    RockoonError,
    TopicNotFound,
)
from rockoon.message import MessageQueue
from rockoon.routes import TopicRoute
from rockoon.stored_messages import StoredMessages
from rockoon.transaction_listing import BrokerTransactions, pending_transactions
from rockoon_proto.channels import Channels
from rockoon_proto.v1.broker_pb2 import (
    BrokerQueue,
    DescribeBrokerRequest,
    QueueStatusRequest,
)
from rockoon_proto.v1.nameserver_pb2 import (
    BROKER,
    OFFSET_SERVICE,
    CreateGroupRequest,
    CreateTopicRequest,
    DeleteGroupRequest,
    DeleteTopicRequest,
    DescribeClusterRequest,
    Group,
    GroupConfig,
    ListGroupsReply,
    ListGroupsRequest,
    ListTopicsRequest,
    Node,
    Placement,
    TopicConfig,
    UpdateGroupRequest,
    UpdateTopicRequest,
)
from rockoon_proto.v1.nameserver_pb2_grpc import NameServerStub
from rockoon_proto.v1.offset_pb2 import (
    ApplyResetRequest,
    ExportFormat,
    ExportReply,
    ExportRequest,
    ImportReply,
    ImportRequest,
    LagReply,
    LagRequest,
    ListLocksReply,
    ListLocksRequest,
    ListMembersRequest,
    ListProgressRequest,
    Member,
    PlanResetRequest,
    Progress,
    QueueRef,
    ResetPlan,
    ResetTarget,
    UndoResetRequest,
)

if TYPE_CHECKING:
    from rockoon.access_keys import AccessKeyAdmin
    from rockoon.connection import Cluster
    from rockoon.dead_letters import DeadLetters
    from rockoon_proto.v1.nameserver_pb2_grpc import NameServerAsyncStub

STATUS_SECONDS_MAX = 3.0
QUEUES_PER_CALL_MAX = 4096

# Calls to the offset service that change nothing.
_LOOKS = frozenset({"ListLocks", "ListMembers", "ListProgress", "Lag", "Export"})


class Admin:
    """Administration through a connection; `cluster.admin` is one.

    All methods raise the error table's exceptions. Changes are answered when etcd has them; the
    answer's route carries the revision with which a producer or consumer asks for no earlier state.

    Args:
        cluster: an open connection.

    Attributes:
        messages: messages by key or id: `rockoon.stored_messages.StoredMessages`.
        delayed: messages that wait for their time: `rockoon.delayed_messages.DelayedMessages`.
    """

    def __init__(self, cluster: "Cluster") -> None:
        self._cluster = cluster
        self.messages = StoredMessages(cluster)
        self.delayed = DelayedMessages(cluster)

    @property
    def dead_letters(self) -> "DeadLetters":
        """What consumer groups gave up on."""
        from rockoon.dead_letters import DeadLetters

        return DeadLetters(self._cluster)

    @property
    def access_keys(self) -> "AccessKeyAdmin":
        """Who may call the cluster, and what for."""
        from rockoon.access_keys import AccessKeyAdmin

        return AccessKeyAdmin(self._cluster)

    # Topics

    async def create_topic(
        self,
        name: str,
        *,
        queues_per_broker: int = 0,
        placements: Mapping[str, int] | None = None,
        permissions: int = 0,
        attributes: Mapping[str, str] | None = None,
        if_absent: bool = False,
    ) -> TopicRoute:
        """Create a topic.

        Args:
            name: letters, digits and `%|_-`.
            queues_per_broker: on every live broker; 0 means 4.
            placements: broker → queues, instead of every live broker.
            permissions: 6 read and write (0 means that too), 4 read, 2 write.
            attributes: kept with the topic, for example `{"cleanup.policy": "COMPACTION"}`.
            if_absent: return a topic that exists already instead of raising TopicExists.

        Raises:
            InvalidTopicName, TopicExists, BrokerNotFound, EtcdUnavailable.
        """
        request = CreateTopicRequest(
            config=TopicConfig(name=name, permissions=permissions, attributes=attributes or {}),
            placements=to_placements(placements or {}),
            queues_per_broker=queues_per_broker,
            if_absent=if_absent,
        )
        reply = await self._cluster.call_nameserver("CreateTopic", request)
        return self._changed(TopicRoute.from_wire(reply.topic))

    async def update_topic(
        self,
        name: str,
        *,
        add: Mapping[str, int] | None = None,
        permissions: int = 0,
        attributes: Mapping[str, str] | None = None,
    ) -> TopicRoute:
        """Add queues to a topic, or change its permissions or attributes.

        Args:
            name: the topic.
            add: broker → queues to add there; the broker may be new to the topic.
            permissions: new ones; 0 leaves them.
            attributes: to set; an empty value removes one.

        Raises:
            TopicNotFound, BrokerNotFound, EtcdUnavailable.
        """
        request = UpdateTopicRequest(
            name=name,
            permissions=permissions,
            attributes=attributes or {},
            add=to_placements(add or {}),
        )
        reply = await self._cluster.call_nameserver("UpdateTopic", request)
        return self._changed(TopicRoute.from_wire(reply.topic))

    def _changed(self, route: TopicRoute) -> TopicRoute:
        self._cluster.note_change(route.name, route.modified_revision)
        return route

    async def delete_topic(self, name: str) -> None:
        """Delete a topic with its queues, messages and everybody's progress on it.

        Raises:
            TopicNotFound, EtcdUnavailable.
        """
        await self._cluster.call_nameserver("DeleteTopic", DeleteTopicRequest(name=name))

    async def list_topics(self, *, include_system: bool = False) -> list[TopicRoute]:
        """All topics, sorted by name.

        Args:
            include_system: also those that Rockoon makes for itself (%RETRY%..., %DLQ%...).
        """
        request = ListTopicsRequest(include_system=include_system)
        reply = await self._cluster.call_nameserver("ListTopics", request)
        return sorted(map(TopicRoute.from_wire, reply.topics), key=lambda route: route.name)

    async def describe_topic(self, name: str, *, with_residency: bool = False) -> TopicDescription:
        """A topic, what its brokers say of its queues now, and who reads it.

        Args:
            name: the topic.
            with_residency: also ask whether each queue's oldest message is in its broker's memory.

        Raises:
            TopicNotFound: there is no such topic.
        """
        route = next(
            (each for each in await self.list_topics(include_system=True) if each.name == name),
            None,
        )
        if route is None:
            raise TopicNotFound(topic=name)
        groups = await self._groups()
        return TopicDescription(
            route=route,
            queues=await self._ends(route, with_residency),
            groups=sorted(each.group for each in groups.subscriptions if each.topic == name),
        )

    async def _ends(self, route: TopicRoute, with_residency: bool) -> list[QueueEnds]:
        brokers = sorted({queue.broker for queue in route.queues})
        async with asyncio.TaskGroup() as tasks:
            asked = [
                tasks.create_task(
                    self._ends_at(broker, route, with_residency), name=f"queues of {broker}"
                )
                for broker in brokers
            ]
        return [ends for task in asked for ends in task.result()]

    async def _ends_at(
        self, broker: str, route: TopicRoute, with_residency: bool
    ) -> list[QueueEnds]:
        queues = [queue for queue in route.queues if queue.broker == broker]
        found: list[QueueEnds] = []
        for first in range(0, len(queues), QUEUES_PER_CALL_MAX):
            part = queues[first : first + QUEUES_PER_CALL_MAX]
            request = QueueStatusRequest(
                queues=[BrokerQueue(topic=each.topic, queue_id=each.queue_id) for each in part],
                route_revision=route.modified_revision,
                with_residency=with_residency,
            )
            try:
                reply = await self._cluster.call(
                    self._cluster.broker(broker).QueueStatus,
                    request,
                    unavailable=BrokerUnavailable,
                    broker=broker,
                )
            except RockoonError as error:
                found += [QueueEnds(each, route.births[each], None, error) for each in part]
                continue
            found += [
                QueueEnds(queue, route.births[queue], state, None)
                for queue, state in zip(part, reply.queues, strict=True)
            ]
        return found

    # Groups

    async def create_group(self, config: GroupConfig | str, *, if_absent: bool = False) -> Group:
        """Create a consumer group.

        Args:
            config: its configuration, or only its name.
            if_absent: return a group that exists already instead of raising GroupExists.

        Raises:
            InvalidGroupName, GroupExists, EtcdUnavailable.
        """
        wanted = GroupConfig(name=config) if isinstance(config, str) else config
        request = CreateGroupRequest(config=wanted, if_absent=if_absent)
        group: Group = (await self._cluster.call_nameserver("CreateGroup", request)).group
        return group

    async def update_group(self, config: GroupConfig) -> Group:
        """Replace a group's configuration.

        Raises:
            GroupNotFound, EtcdUnavailable.
        """
        request = UpdateGroupRequest(config=config)
        group: Group = (await self._cluster.call_nameserver("UpdateGroup", request)).group
        return group

    async def delete_group(self, name: str) -> None:
        """Delete a group, its subscriptions and its progress.

        Raises:
            GroupNotFound: there is no such group.
            GroupHasMembers: somebody is reading with it.
            OffsetServiceUnavailable: nobody can say whether somebody is.
        """
        members = await self.members(name)
        if members:
            raise GroupHasMembers(group=name, members=len(members))
        await self._cluster.call_nameserver("DeleteGroup", DeleteGroupRequest(name=name))

    async def list_groups(self) -> list[GroupSummary]:
        """All groups with the topics they read, sorted by name."""
        reply = await self._groups()
        return [
            GroupSummary(group, topics_of(group.config.name, reply))
            for group in sorted(reply.groups, key=lambda group: str(group.config.name))
        ]

    async def describe_group(self, name: str) -> GroupDescription:
        """A group's configuration, topics, live members and lag.

        Raises:
            GroupNotFound: there is no such group.
        """
        summary = await self._group(name)
        return GroupDescription(
            group=summary.group,
            topics=summary.topics,
            members=await self.members(name),
            lag=await self.lag(name),
        )

    async def _group(self, name: str) -> GroupSummary:
        reply = await self._groups()
        for group in reply.groups:
            if group.config.name == name:
                return GroupSummary(group, topics_of(name, reply))
        raise GroupNotFound(group=name)

    async def _groups(self) -> ListGroupsReply:
        reply: ListGroupsReply = await self._cluster.call_nameserver(
            "ListGroups", ListGroupsRequest()
        )
        return reply

    async def members(self, group: str) -> list[Member]:
        """Live members of a group, sorted by id."""
        reply = await self._offset("ListMembers", ListMembersRequest(group=group))
        return [member for each in reply.groups if each.group == group for member in each.members]

    async def locks(self, group: str) -> ListLocksReply:
        """Which member holds which queue of a group, sorted by queue."""
        reply: ListLocksReply = await self._offset("ListLocks", ListLocksRequest(group=group))
        return reply

    # Progress

    async def progress(self, group: str = "", topic: str = "") -> list[Progress]:
        """Stored progress, sorted by group, topic, broker and queue.

        Args:
            group: empty means all groups.
            topic: empty means all topics.
        """
        reply = await self._offset("ListProgress", ListProgressRequest(group=group, topic=topic))
        return sorted(reply.progress, key=lambda each: (each.group, to_queue(each.queue)))

    async def lag(self, group: str, topic: str = "") -> LagReply:
        """How far behind a group is.

        Args:
            group: the group.
            topic: empty means every topic it reads.
        """
        reply: LagReply = await self._offset("Lag", LagRequest(group=group, topic=topic))
        return reply

    async def why(self, group: str, topic: str = "") -> list[QueueStory]:
        """For each queue that a group reads: where it started and why, and where it is now.

        Args:
            group: the group.
            topic: empty means every topic it reads.

        Raises:
            GroupNotFound: there is no such group.
            TopicNotFound: the group does not read it, and it does not exist.
        """
        summary = await self._group(group)
        if topic and topic not in summary.topics:
            await self._cluster.route(topic)
        stored = {
            (to_queue(each.queue), each.member): each for each in await self.progress(group, topic)
        }
        lags = {
            (to_queue(each.queue), each.member): each
            for each in (await self.lag(group, topic)).queues
        }
        return [
            QueueStory(*reader, stored.get(reader), lags.get(reader))
            for reader in sorted(stored.keys() | lags.keys())
        ]

    async def plan_reset(
        self,
        group: str,
        topic: str,
        target: ResetTarget,
        queues: Iterable[MessageQueue] = (),
        *,
        member: str = "",
    ) -> ResetPlan:
        """Work out a reset of progress; nothing changes. The plan is kept for ten minutes.

        Args:
            group: whose progress.
            topic: on which topic.
            target: where to.
            queues: only these; none means all of the topic.
            member: only the own progress of this member; empty means everybody's.
        """
        request = PlanResetRequest(
            group=group,
            topic=topic,
            target=target,
            queues=[to_ref(each) for each in queues],
            member=member,
        )
        plan: ResetPlan = await self._offset("PlanReset", request)
        return plan

    async def apply_reset(self, reset_id: str, operator: str) -> ResetPlan:
        """Do what a plan says.

        Args:
            reset_id: from the plan.
            operator: who and why, for the record.

        Raises:
            PlanStale: progress has moved since.
            ResetNotFound: the plan is older than ten minutes, or never was.
        """
        request = ApplyResetRequest(reset_id=reset_id, operator=operator)
        plan: ResetPlan = await self._offset("ApplyReset", request)
        return plan

    async def undo_reset(self, reset_id: str, operator: str) -> ResetPlan:
        """Put back what a reset replaced.

        Raises:
            ResetNotFound: no such reset is remembered.
        """
        request = UndoResetRequest(reset_id=reset_id, operator=operator)
        plan: ResetPlan = await self._offset("UndoReset", request)
        return plan

    async def export_offsets(
        self, form: ExportFormat, *, group: str = "", broker: str = ""
    ) -> ExportReply:
        """Progress as a file's content.

        Args:
            form: JSON_LINES, or ROCKETMQ for a broker's consumerOffset.json.
            group: empty means all groups.
            broker: whose queues, for ROCKETMQ.
        """
        request = ExportRequest(format=form, group=group, broker=broker)
        reply: ExportReply = await self._offset("Export", request)
        return reply

    async def import_offsets(
        self,
        form: ExportFormat,
        content: bytes,
        *,
        broker: str = "",
        dry_run: bool = False,
        overwrite: bool = False,
        operator: str = "",
    ) -> ImportReply:
        """Take over progress from a file's content.

        Args:
            form: JSON_LINES or ROCKETMQ.
            content: what an export gave, or a broker's consumerOffset.json.
            broker: whose queues, for ROCKETMQ.
            dry_run: only say what would change.
            overwrite: replace progress that is stored already, also by smaller offsets.
            operator: who and why, for the record.
        """
        request = ImportRequest(
            format=form,
            content=content,
            broker=broker,
            dry_run=dry_run,
            overwrite=overwrite,
            operator=operator,
        )
        reply: ImportReply = await self._offset("Import", request)
        return reply

    async def _offset(self, method_name: str, request: Any) -> Any:
        """Call the offset service, which may be on its way back.

        What only looks is asked again when the call fails on the way; what changes something may
        have been done although its answer was lost, and is not.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._cluster.retry_seconds
        backoff = Backoff()
        looks = method_name in _LOOKS
        while True:
            left = max(deadline - loop.time(), 0.0)
            try:
                # One that is not in the routes for long may answer all the same.
                stub = await self._cluster.wait_offset_service(
                    min(left, UNLISTED_SECONDS) if looks else left
                )
                return await self._cluster.call(
                    getattr(stub, method_name), request, unavailable=OffsetServiceUnavailable
                )
            except RockoonError as error:
                pause = backoff.next_seconds()
                may_pass = looks and error.retriable
                if not may_pass or loop.time() + pause > deadline:
                    raise
            await asyncio.sleep(pause)

    # Transactions

    async def transactions(self, count_max: int = 100) -> Sequence[BrokerTransactions]:
        """The half messages that wait; see `rockoon.transaction_listing.pending_transactions`."""
        return await pending_transactions(self._cluster, count_max)

    # Status

    async def status(self) -> ClusterStatus:
        """Ask every node of the cluster how it is, all at once, three seconds at most.

        Raises:
            NotPermitted: the access key may not ask, which says nothing about the nodes.
        """
        nodes = self._cluster.routes.nodes
        channels = Channels(CHANNEL_OPTIONS, self._cluster.tls, self._cluster.access)
        try:
            async with asyncio.TaskGroup() as tasks:
                nameservers = [
                    tasks.create_task(self._nameserver_status(channels, address))
                    for address in self._cluster.nameservers
                ]
                brokers = [
                    tasks.create_task(self._broker_status(node))
                    for node in nodes
                    if node.kind == BROKER
                ]
                offset_services = [
                    tasks.create_task(self._offset_status(node))
                    for node in nodes
                    if node.kind == OFFSET_SERVICE
                ]
        finally:
            await channels.close()
        for task in (*nameservers, *brokers, *offset_services):
            error = task.result().error
            if isinstance(error, NotPermitted):
                raise error
        return ClusterStatus(
            cluster=self._cluster.routes.cluster,
            nameservers=[task.result() for task in nameservers],
            brokers=[task.result() for task in brokers],
            offset_services=[task.result() for task in offset_services],
        )

    async def _nameserver_status(self, channels: Channels, address: str) -> NodeStatus:
        stub: NameServerAsyncStub = NameServerStub(channels.get(address))
        try:
            reply = await self._cluster.call(
                stub.DescribeCluster,
                DescribeClusterRequest(),
                unavailable=NameserverUnavailable,
                timeout_seconds=STATUS_SECONDS_MAX,
                address=address,
            )
        except RockoonError as error:
            return NodeStatus(name="", address=address, error=error)
        return NodeStatus(name=reply.nameserver, address=address, cluster=reply)

    async def describe_broker(self, name: str) -> NodeStatus:
        """A broker, and what it says of itself.

        Raises:
            BrokerNotFound: it is not in the routes.
            BrokerUnavailable: it does not answer.
        """
        node = self._cluster.routes.broker(name)
        if node is None:
            raise BrokerNotFound(broker=name)
        found = await self._broker_status(node)
        if found.error is not None:
            raise found.error
        return found

    async def _broker_status(self, node: Node) -> NodeStatus:
        try:
            reply = await self._cluster.call(
                self._cluster.broker(node.name).DescribeBroker,
                DescribeBrokerRequest(),
                unavailable=BrokerUnavailable,
                timeout_seconds=STATUS_SECONDS_MAX,
                broker=node.name,
            )
        except RockoonError as error:
            return NodeStatus(name=node.name, address=node.address, node=node, error=error)
        return NodeStatus(name=node.name, address=node.address, node=node, broker=reply)

    async def _offset_status(self, node: Node) -> NodeStatus:
        try:
            reply = await self._cluster.call(
                self._cluster.offset_service().ListMembers,
                ListMembersRequest(),
                unavailable=OffsetServiceUnavailable,
                timeout_seconds=STATUS_SECONDS_MAX,
            )
        except RockoonError as error:
            return NodeStatus(name=node.name, address=node.address, node=node, error=error)
        members = sum(len(group.members) for group in reply.groups)
        return NodeStatus(name=node.name, address=node.address, node=node, members=members)


def to_placements(queues: Mapping[str, int]) -> list[Placement]:
    return [Placement(broker=broker, queues=count) for broker, count in queues.items()]


def topics_of(group: str, reply: ListGroupsReply) -> dict[str, int]:
    return {each.topic: each.revision for each in reply.subscriptions if each.group == group}


def to_queue(ref: QueueRef) -> MessageQueue:
    return MessageQueue(ref.topic, ref.broker, ref.queue_id)


def to_ref(queue: MessageQueue) -> QueueRef:
    return QueueRef(topic=queue.topic, broker=queue.broker, queue_id=queue.queue_id)
