"""Topics, groups, progress and status of a cluster, for people and tools.

    cluster.admin.create_topic("orders", queues_per_broker=4)

Topics and groups are asked of any nameserver, progress of the offset service, the ends of queues
of the brokers themselves. What one of them has to say beyond its own ground is never guessed: a
node that does not answer shows as an error beside its name.
"""

import secrets
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from rockoon.admin import reads
from rockoon.admin.cluster_status import ask_broker, ask_status
from rockoon.admin.delayed_messages import DelayedMessages
from rockoon.admin.descriptions import (
    ClusterStatus,
    GroupDescription,
    GroupSummary,
    NodeStatus,
    QueueStory,
    TopicDescription,
)
from rockoon.admin.group_clients import GroupClient, group_clients
from rockoon.admin.lags import GroupLag, all_lags
from rockoon.admin.new_topics import create_topics
from rockoon.admin.offset_calls import ask_offset_service
from rockoon.admin.stored_messages import StoredMessages
from rockoon.bounds import check_epoch_ms
from rockoon.errors import GroupHasMembers, GroupNotFound
from rockoon.net.routes import TopicRoute
from rockoon.text_checks import refuses_invalid_text
from rockoon.transactions.listing import BrokerTransactions, pending_transactions
from rockoon_core.message_queue import MessageQueue, queue_to_wire
from rockoon_proto.v1.in_flight_pb2 import (
    ListClientsReply,
    ListClientsRequest,
    ListInFlightReply,
    ListInFlightRequest,
)
from rockoon_proto.v1.nameserver_pb2 import (
    CreateGroupRequest,
    CreateTopicRequest,
    DeleteGroupRequest,
    DeleteTopicRequest,
    Group,
    GroupConfig,
    Placement,
    TopicConfig,
    UpdateGroupRequest,
    UpdateTopicRequest,
)
from rockoon_proto.v1.offset_pb2 import (
    ApplyResetRequest,
    ExportFormat,
    ExportReply,
    ExportRequest,
    GroupMembers,
    ImportReply,
    ImportRequest,
    LagReply,
    LagRequest,
    ListLocksReply,
    ListLocksRequest,
    ListMembersRequest,
    Member,
    PlanResetRequest,
    Progress,
    ResetPlan,
    ResetRequest,
    ResetTarget,
    UndoResetRequest,
)

if TYPE_CHECKING:
    from rockoon.admin.access_keys import AccessKeyAdmin
    from rockoon.admin.dead_letters import DeadLetters
    from rockoon.admin.logs import LogAdmin
    from rockoon.net.connection import Connection


@refuses_invalid_text
class Admin:
    """Administration through a connection; `cluster.admin` is one.

    All methods raise the error table's exceptions. Changes are answered when etcd has them; the
    answer's route carries the revision with which a producer or consumer asks for no earlier state.

    Args:
        cluster: an open connection.

    Attributes:
        messages: messages by key or id: `rockoon.admin.stored_messages.StoredMessages`.
        delayed: delayed messages that wait: `rockoon.admin.delayed_messages.DelayedMessages`.
    """

    def __init__(self, cluster: "Connection") -> None:
        self._cluster = cluster
        self._ask = partial(ask_offset_service, cluster)
        self.messages = StoredMessages(cluster)
        self.delayed = DelayedMessages(cluster)

    @property
    def dead_letters(self) -> "DeadLetters":
        """What consumer groups gave up on."""
        from rockoon.admin.dead_letters import DeadLetters

        return DeadLetters(self._cluster)

    @property
    def access_keys(self) -> "AccessKeyAdmin":
        """Who may call the cluster, and what for."""
        from rockoon.admin.access_keys import AccessKeyAdmin

        return AccessKeyAdmin(self._cluster)

    @property
    def logs(self) -> "LogAdmin":
        """Logs, their copies, and who leads them."""
        from rockoon.admin.logs import LogAdmin

        return LogAdmin(self._cluster)

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

    async def create_topics(
        self,
        names: Iterable[str],
        *,
        queues_per_broker: int = 0,
        placements: Mapping[str, int] | None = None,
        permissions: int = 0,
        attributes: Mapping[str, str] | None = None,
        if_absent: bool = False,
    ) -> list[TopicRoute]:
        """Create many topics that are alike, in few calls; arguments as of `create_topic`.

        Raises:
            InvalidTopicName, TopicExists, BrokerNotFound, EtcdUnavailable: the first refusal; the
                others were made all the same. With `if_absent` it can be asked again.
        """
        routes = await create_topics(
            self._cluster,
            names,
            CreateTopicRequest(
                config=TopicConfig(permissions=permissions, attributes=attributes or {}),
                placements=to_placements(placements or {}),
                queues_per_broker=queues_per_broker,
                if_absent=if_absent,
            ),
        )
        return [self._changed(route) for route in routes]

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

    async def delete_topic(self, name: str, *, expected_modified_revision: int = 0) -> None:
        """Delete a topic with its queues, messages and everybody's progress on it.

        Raises:
            TopicNotFound, EtcdUnavailable.
            TopicChanged: its `modified_revision` is not the expected one, if one is (not 0).
        """
        request = DeleteTopicRequest(
            name=name, expected_modified_revision=expected_modified_revision
        )
        await self._cluster.call_nameserver("DeleteTopic", request)

    async def list_topics(self, *, include_system: bool = False) -> list[TopicRoute]:
        """All topics, sorted by name.

        Args:
            include_system: also those that Rockoon makes for itself (%RETRY%..., %DLQ%...,
                %LITE%...).
        """
        return await reads.list_topics(self._cluster, include_system=include_system)

    async def describe_topic(self, name: str, *, with_residency: bool = False) -> TopicDescription:
        """A topic, what its brokers say of its queues now, and who reads it.

        Args:
            name: the topic.
            with_residency: also ask whether each queue's oldest message is in its broker's memory.

        Raises:
            TopicNotFound: there is no such topic.
        """
        return await reads.describe_topic(self._cluster, name, with_residency=with_residency)

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
        return reads.group_summaries(await reads.ask_groups(self._cluster))

    async def get_group(self, name: str) -> GroupSummary:
        """A group's configuration and the topics it reads.

        Raises:
            GroupNotFound: there is no such group.
        """
        return await reads.get_group(self._cluster, name)

    async def describe_group(self, name: str) -> GroupDescription:
        """A group's configuration, topics, live members, clients and lag.

        Raises:
            GroupNotFound: there is no such group.
        """
        summary = await self.get_group(name)
        readers = await self.readers(name)
        return GroupDescription(
            group=summary.group,
            topics=summary.topics,
            members=readers.members,
            lag=await self.lag(name),
            clients=group_clients(await self._clients_or_none(name), readers),
            receivers=readers.receivers,
            filter_conflicts=readers.filter_conflicts,
        )

    async def members(self, group: str) -> list[Member]:
        """Live members of a group, sorted by id."""
        return list((await self.readers(group)).members)

    async def readers(self, group: str) -> GroupMembers:
        """Live members of a group, and the filters that its receivers reported lately.

        `filter_conflicts` has a sentence for each topic that they read by different filters.
        """
        reply = await self._ask("ListMembers", ListMembersRequest(group=group))
        found = (each for each in reply.groups if each.group == group)
        return next(found, GroupMembers(group=group))

    async def locks(self, group: str) -> ListLocksReply:
        """Which member holds which queue of a group, sorted by queue."""
        reply: ListLocksReply = await self._ask("ListLocks", ListLocksRequest(group=group))
        return reply

    async def list_clients(self, group: str) -> list[GroupClient]:
        """All clients that read a group message by message, sorted by id: clients that gateways
        have heard within the lease, and simple consumers that hold messages or have reported their
        filters lately. Members that pull are in `members`.

        Raises:
            GroupNotFound: the group does not exist.
        """
        readers = await self.readers(group)
        return group_clients(await self._clients_or_none(group), readers)

    async def _clients_or_none(self, group: str) -> ListClientsReply:
        try:
            return await self.clients(group)
        except GroupNotFound:
            # The offset service learns a little later that a group was created.
            await self.get_group(group)
            return ListClientsReply()

    async def clients(self, group: str) -> ListClientsReply:
        """Clients of a group that gateways have heard within the lease, and what each receiver of
        the group has now, those of the SDK included. `list_clients` has both in one list."""
        reply: ListClientsReply = await self._ask("ListClients", ListClientsRequest(group=group))
        return reply

    async def in_flight(self, group: str, topic: str = "") -> ListInFlightReply:
        """What receivers of a group have of the queues of a topic, or all; sorted by queue."""
        request = ListInFlightRequest(group=group, topic=topic)
        reply: ListInFlightReply = await self._ask("ListInFlight", request)
        return reply

    # Progress

    async def progress(self, group: str = "", topic: str = "") -> list[Progress]:
        """Stored progress, sorted by group, topic, broker and queue.

        Args:
            group: empty means all groups.
            topic: empty means all topics.
        """
        return await reads.progress(self._cluster, group, topic)

    async def lag(self, group: str, topic: str = "") -> LagReply:
        """How far behind a group is.

        Args:
            group: the group.
            topic: empty means every topic it reads.
        """
        reply: LagReply = await self._ask("Lag", LagRequest(group=group, topic=topic))
        return reply

    def lags(self) -> AsyncGenerator[GroupLag]:
        """Yield the lag of each group that the access key may see, in no particular order.

        At most 16 groups are asked about at a time, and no reply is kept, so that thousands of
        groups need little memory. A group that is deleted during the call is omitted.

        Raises:
            NameserverUnavailable, OffsetServiceUnavailable: the service does not answer. A refusal
                for one group is its `GroupLag.error`.
        """
        return all_lags(self._cluster)

    async def why(self, group: str, topic: str = "") -> list[QueueStory]:
        """For each queue that a group reads: where it started and why, and where it is now.

        Args:
            group: the group.
            topic: empty means every topic it reads.

        Raises:
            GroupNotFound: there is no such group.
            TopicNotFound: the group does not read it, and it does not exist.
        """
        summary = await self.get_group(group)
        if topic and topic not in summary.topics:
            await self._cluster.route(topic)
        stored = {
            (reads.to_queue(each.queue), each.member): each
            for each in await self.progress(group, topic)
        }
        lags = {
            (reads.to_queue(each.queue), each.member): each
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

        A plan is for a person or a check that reads it before `apply_reset`. Without one, use
        `reset_offsets`: while a group reads, its progress moves between the two calls, and
        `apply_reset` refuses the plan.

        Args:
            group: whose progress.
            topic: on which topic.
            target: where to.
            queues: only these; none means all of the topic.
            member: only the own progress of this member; empty means everybody's.

        Raises:
            InvalidArgument: a timestamp is not in epoch milliseconds.
        """
        request = _reset_request(group, topic, target, queues, member)
        plan: ResetPlan = await self._ask("PlanReset", request)
        return plan

    async def reset_offsets(
        self,
        group: str,
        topic: str,
        target: ResetTarget,
        queues: Iterable[MessageQueue] = (),
        *,
        member: str = "",
        operator: str,
        reset_id: str = "",
    ) -> ResetPlan:
        """Reset progress in one step, from wherever it is.

        No plan is compared, so the group may read during the call. No commit or acknowledgement
        from before the reset counts after it. Receivers lose the messages that they hold on the
        queues: acknowledging one raises NotAcquired, and the messages from the new offset on are
        delivered with attempt 1. The result has the offsets that were replaced, and `undo_reset`
        puts them back.

        Args:
            group, topic, target, queues, member: as in `plan_reset`.
            operator: person and reason, for the record.
            reset_id: name of the reset, at most 255 bytes. A program that repeats a failed call
                with the same name resets once. Empty means a new name.

        Raises:
            InvalidArgument: a timestamp is not in epoch milliseconds, or `reset_id` is in use.
            PlanStale: a queue was deleted or created again during the call.
        """
        request = ResetRequest(
            wanted=_reset_request(group, topic, target, queues, member),
            # The call is made again if its answer is lost.
            reset_id=reset_id or secrets.token_hex(8),
            operator=operator,
        )
        done: ResetPlan = await self._ask("Reset", request)
        return done

    async def apply_reset(self, reset_id: str, operator: str) -> ResetPlan:
        """Apply a plan if progress is still as the plan saw it.

        Args:
            reset_id: from the plan.
            operator: person and reason, for the record.

        Raises:
            PlanStale: progress has moved since. Plan again, or use `reset_offsets`.
            ResetNotFound: the plan is older than ten minutes, or never was.
        """
        request = ApplyResetRequest(reset_id=reset_id, operator=operator)
        plan: ResetPlan = await self._ask("ApplyReset", request)
        return plan

    async def undo_reset(self, reset_id: str, operator: str) -> ResetPlan:
        """Put back the offsets that a reset replaced, wherever the group is by now.

        Raises:
            ResetNotFound: no such reset is remembered.
            PlanStale: one of its queues was deleted or created again since.
        """
        request = UndoResetRequest(reset_id=reset_id, operator=operator)
        plan: ResetPlan = await self._ask("UndoReset", request)
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
        reply: ExportReply = await self._ask("Export", request)
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
        """Import progress from a file's content, each entry for itself.

        The reply has the number of entries that were imported and skipped, and of each kind the
        first thousand. Retry and dead-letter topics that the progress is on are created. If the
        call fails on the way, some entries may be imported; the next import skips these.

        Args:
            form: JSON_LINES or ROCKETMQ.
            content: an export, or a broker's consumerOffset.json; 100,000 entries at most.
            broker: name of the broker whose queues these are, for ROCKETMQ.
            dry_run: only report the changes.
            overwrite: replace stored progress, also by smaller offsets.
            operator: person and reason, for the record.

        Raises:
            InvalidArgument: the content is of another kind, or has too many entries.
        """
        request = ImportRequest(
            format=form,
            content=content,
            broker=broker,
            dry_run=dry_run,
            overwrite=overwrite,
            operator=operator,
        )
        reply: ImportReply = await self._ask("Import", request)
        return reply

    # Transactions

    async def transactions(self, count_max: int = 100) -> Sequence[BrokerTransactions]:
        """The half messages that wait; see `rockoon.transactions.listing.pending_transactions`."""
        return await pending_transactions(self._cluster, count_max)

    # Status

    async def status(self) -> ClusterStatus:
        """Ask every node of the cluster how it is, all at once, three seconds at most.

        Raises:
            NotPermitted: the access key may not ask, which says nothing about the nodes.
        """
        return await ask_status(self._cluster)

    async def describe_broker(self, name: str) -> NodeStatus:
        """A broker, and what it says of itself.

        Raises:
            BrokerNotFound: it is not in the routes.
            BrokerUnavailable: it does not answer.
        """
        return await ask_broker(self._cluster, name)


def to_placements(queues: Mapping[str, int]) -> list[Placement]:
    return [Placement(broker=broker, queues=count) for broker, count in queues.items()]


def _reset_request(
    group: str, topic: str, target: ResetTarget, queues: Iterable[MessageQueue], member: str
) -> PlanResetRequest:
    """Raises InvalidArgument: a timestamp is not in epoch milliseconds."""
    check_epoch_ms("timestamp_ms", target.timestamp_ms)
    return PlanResetRequest(
        group=group,
        topic=topic,
        target=target,
        queues=[queue_to_wire(each) for each in queues],
        member=member,
    )
