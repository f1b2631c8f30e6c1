"""Administration of a cluster: topics, groups, progress and status.

    cluster.admin.create_topic("orders", queues_per_broker=4)

Nameservers answer for topics and groups, the offset service for progress, brokers for their queues.
If a node does not answer, the result has its error instead of its data.
"""

import secrets
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from rockoon.admin import reads
from rockoon.admin.cluster_status import ask_broker, ask_status
from rockoon.admin.delayed_messages import DelayedMessages
from rockoon.admin.descriptions import (
    ClusterStatus,
    GroupClient,
    GroupDescription,
    GroupSummary,
    NodeStatus,
    QueueStory,
    TopicDescription,
    group_clients,
)
from rockoon.admin.reads import GroupLag, all_lags, ask_offset_service
from rockoon.admin.stored_messages import StoredMessages
from rockoon.bounds import check_epoch_ms, refuses_invalid_text
from rockoon.errors import GroupHasMembers, GroupNotFound, InvalidArgument, RockoonError, from_wire
from rockoon.net.routes import TopicRoute
from rockoon.transactions.listing import BrokerTransactions, pending_transactions
from rockoon_core.message_queue import MessageQueue, queue_to_wire
from rockoon_proto.v1 import in_flight_pb2 as in_flight_pb
from rockoon_proto.v1 import nameserver_pb2 as nameserver_pb
from rockoon_proto.v1 import offset_pb2 as offset_pb

if TYPE_CHECKING:
    from rockoon.admin.access_keys import AccessKeyAdmin
    from rockoon.admin.dead_letters import DeadLetters
    from rockoon.admin.drains import DrainAdmin
    from rockoon.admin.live_settings import SettingsAdmin
    from rockoon.admin.logs import LogAdmin
    from rockoon.admin.producers import ConnectedProducers
    from rockoon.net.connection import Connection


TOPICS_PER_CALL_MAX = 1024
CREATE_SECONDS_MAX = 60.0


@refuses_invalid_text
class Admin:
    """Administration through a connection: `cluster.admin`.

    All methods raise exceptions of `rockoon.errors`. A change returns once it is stored in etcd.
    This connection's producers and consumers wait for the changed route before they use the topic.

    Attributes:
        messages: stored messages by key or id: `rockoon.admin.stored_messages.StoredMessages`.
        delayed: pending delayed messages: `rockoon.admin.delayed_messages.DelayedMessages`.
    """

    def __init__(self, cluster: "Connection") -> None:
        self._cluster = cluster
        self._ask = partial(ask_offset_service, cluster)
        self.messages = StoredMessages(cluster)
        self.delayed = DelayedMessages(cluster)

    @property
    def dead_letters(self) -> "DeadLetters":
        """Administration of the dead letters of consumer groups."""
        from rockoon.admin.dead_letters import DeadLetters

        return DeadLetters(self._cluster)

    @property
    def access_keys(self) -> "AccessKeyAdmin":
        """Administration of access keys and their permissions."""
        from rockoon.admin.access_keys import AccessKeyAdmin

        return AccessKeyAdmin(self._cluster)

    @property
    def logs(self) -> "LogAdmin":
        """Administration of replicated logs, their copies and their leaders."""
        from rockoon.admin.logs import LogAdmin

        return LogAdmin(self._cluster)

    @property
    def drains(self) -> "DrainAdmin":
        """Drains of brokers."""
        from rockoon.admin.drains import DrainAdmin

        return DrainAdmin(self._cluster)

    @property
    def settings(self) -> "SettingsAdmin":
        """Settings of running services."""
        from rockoon.admin.live_settings import SettingsAdmin

        return SettingsAdmin(self._cluster)

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
            queues_per_broker: number of queues on every live broker; 0 means 4.
            placements: broker → number of queues, instead of every live broker.
            permissions: 6 read and write, 4 read, 2 write; 0 means 6.
            attributes: attributes of the topic, for example `{"cleanup.policy": "COMPACTION"}`.
            if_absent: return an existing topic instead of raising TopicExists.

        Raises:
            InvalidTopicName, TopicExists, BrokerNotFound, EtcdUnavailable.
        """
        request = nameserver_pb.CreateTopicRequest(
            config=nameserver_pb.TopicConfig(
                name=name, permissions=permissions, attributes=attributes or {}
            ),
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
        """Create many topics with equal settings in few calls; arguments as in `create_topic`.

        Raises:
            InvalidTopicName, TopicExists, BrokerNotFound, EtcdUnavailable: the first refusal; all
                other topics were created. With `if_absent`, the call can be repeated.
        """
        routes = await _create_topics(
            self._cluster,
            names,
            nameserver_pb.CreateTopicRequest(
                config=nameserver_pb.TopicConfig(
                    permissions=permissions, attributes=attributes or {}
                ),
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
        expected_modified_revision: int = 0,
    ) -> TopicRoute:
        """Add queues to a topic, or change its permissions or attributes.

        Args:
            add: broker → number of queues to add; the broker may be new to the topic.
            permissions: as in `create_topic`; 0 means no change.
            attributes: attributes to set; an empty value removes one.
            expected_modified_revision: change the topic only if it has this `modified_revision`;
                0 means any.

        Raises:
            TopicNotFound, BrokerNotFound, EtcdUnavailable.
            TopicChanged: the topic has another `modified_revision`.
        """
        request = nameserver_pb.UpdateTopicRequest(
            name=name,
            permissions=permissions,
            attributes=attributes or {},
            add=to_placements(add or {}),
            expected_modified_revision=expected_modified_revision,
        )
        reply = await self._cluster.call_nameserver("UpdateTopic", request)
        return self._changed(TopicRoute.from_wire(reply.topic))

    def _changed(self, route: TopicRoute) -> TopicRoute:
        self._cluster.record_change(route.name, route.modified_revision)
        return route

    async def delete_topic(self, name: str, *, expected_modified_revision: int = 0) -> None:
        """Delete a topic with its queues, its messages and the progress of all groups on it.

        Args:
            expected_modified_revision: delete only if the topic has this `modified_revision`;
                0 means any.

        Raises:
            TopicNotFound, EtcdUnavailable.
            TopicChanged: the topic has another `modified_revision`.
        """
        request = nameserver_pb.DeleteTopicRequest(
            name=name, expected_modified_revision=expected_modified_revision
        )
        await self._cluster.call_nameserver("DeleteTopic", request)

    async def list_topics(self, *, include_system: bool = False) -> list[TopicRoute]:
        """Return all topics, sorted by name.

        Args:
            include_system: include topics that Rockoon creates (%RETRY%..., %DLQ%..., %LITE%...).
        """
        return await reads.list_topics(self._cluster, include_system=include_system)

    async def describe_topic(self, name: str, *, with_residency: bool = False) -> TopicDescription:
        """Return a topic, the current state of its queues, and the groups that read it.

        Args:
            with_residency: also ask whether each queue's oldest message is in its broker's memory.

        Raises:
            TopicNotFound: the topic does not exist.
        """
        return await reads.describe_topic(self._cluster, name, with_residency=with_residency)

    # Groups

    async def create_group(
        self, config: nameserver_pb.GroupConfig | str, *, if_absent: bool = False
    ) -> nameserver_pb.Group:
        """Create a consumer group.

        Args:
            config: its configuration, or its name for the default configuration.
            if_absent: return an existing group instead of raising GroupExists.

        Raises:
            InvalidGroupName, GroupExists, EtcdUnavailable.
        """
        wanted = nameserver_pb.GroupConfig(name=config) if isinstance(config, str) else config
        request = nameserver_pb.CreateGroupRequest(config=wanted, if_absent=if_absent)
        group: nameserver_pb.Group = (
            await self._cluster.call_nameserver("CreateGroup", request)
        ).group
        return group

    async def update_group(
        self, config: nameserver_pb.GroupConfig, *, expected_modified_revision: int = 0
    ) -> nameserver_pb.Group:
        """Replace a group's configuration.

        Args:
            expected_modified_revision: change the group only if it has this `modified_revision`;
                0 means any.

        Raises:
            GroupNotFound, EtcdUnavailable.
            GroupChanged: the group has another `modified_revision`.
        """
        request = nameserver_pb.UpdateGroupRequest(
            config=config, expected_modified_revision=expected_modified_revision
        )
        group: nameserver_pb.Group = (
            await self._cluster.call_nameserver("UpdateGroup", request)
        ).group
        return group

    async def delete_group(self, name: str, *, expected_modified_revision: int = 0) -> None:
        """Delete a group with its subscriptions and progress.

        Args:
            expected_modified_revision: delete only if the group has this `modified_revision`;
                0 means any.

        Raises:
            GroupNotFound: the group does not exist.
            GroupChanged: the group has another `modified_revision`.
            GroupHasMembers: the group has live members.
            OffsetServiceUnavailable: the members are unknown, because the offset service does not
                answer.
        """
        members = await self.members(name)
        if members:
            raise GroupHasMembers(group=name, members=len(members))
        request = nameserver_pb.DeleteGroupRequest(
            name=name, expected_modified_revision=expected_modified_revision
        )
        await self._cluster.call_nameserver("DeleteGroup", request)

    async def list_groups(self) -> list[GroupSummary]:
        """Return all groups with the topics they read, sorted by name."""
        return reads.group_summaries(await reads.ask_groups(self._cluster))

    async def get_group(self, name: str) -> GroupSummary:
        """Return a group's configuration and the topics it reads.

        Raises:
            GroupNotFound: the group does not exist.
        """
        return await reads.get_group(self._cluster, name)

    async def describe_group(self, name: str) -> GroupDescription:
        """Return a group's configuration, topics, live members, clients and lag.

        Raises:
            GroupNotFound: the group does not exist.
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

    async def members(self, group: str) -> list[offset_pb.Member]:
        """Return the live members of a group, sorted by id."""
        return list((await self.readers(group)).members)

    async def readers(self, group: str) -> offset_pb.GroupMembers:
        """Return the live members of a group, and the filters its receivers reported lately.

        `filter_conflicts` has a sentence for each topic that readers filter differently.
        """
        reply = await self._ask("ListMembers", offset_pb.ListMembersRequest(group=group))
        found = (each for each in reply.groups if each.group == group)
        return next(found, offset_pb.GroupMembers(group=group))

    async def locks(self, group: str) -> offset_pb.ListLocksReply:
        """Return which member holds each queue of a group, sorted by queue."""
        reply: offset_pb.ListLocksReply = await self._ask(
            "ListLocks", offset_pb.ListLocksRequest(group=group)
        )
        return reply

    async def list_clients(self, group: str) -> list[GroupClient]:
        """Return all clients that acknowledge a group's messages one by one, sorted by id.

        These are the clients that gateways have heard within the lease, and the simple consumers
        that hold messages or have reported filters lately. Members that pull are in `members`.

        Raises:
            GroupNotFound: the group does not exist.
        """
        readers = await self.readers(group)
        return group_clients(await self._clients_or_none(group), readers)

    async def _clients_or_none(self, group: str) -> in_flight_pb.ListClientsReply:
        try:
            return await self.clients(group)
        except GroupNotFound:
            # The offset service learns of a new group a little later than the nameserver.
            await self.get_group(group)
            return in_flight_pb.ListClientsReply()

    async def clients(self, group: str) -> in_flight_pb.ListClientsReply:
        """Return the clients of a group that gateways have heard within the lease, and the
        in-flight messages of each receiver, also of the SDK. `list_clients` merges both."""
        reply: in_flight_pb.ListClientsReply = await self._ask(
            "ListClients", in_flight_pb.ListClientsRequest(group=group)
        )
        return reply

    async def in_flight(self, group: str, topic: str = "") -> in_flight_pb.ListInFlightReply:
        """Return a group's in-flight messages on one topic or all, sorted by queue."""
        request = in_flight_pb.ListInFlightRequest(group=group, topic=topic)
        reply: in_flight_pb.ListInFlightReply = await self._ask("ListInFlight", request)
        return reply

    # Progress

    async def progress(self, group: str = "", topic: str = "") -> list[offset_pb.Progress]:
        """Return stored progress, sorted by group, topic, broker and queue.

        Args:
            group: only this group; empty for all groups.
            topic: only this topic; empty for all topics.
        """
        return await reads.progress(self._cluster, group, topic)

    async def lag(self, group: str, topic: str = "") -> offset_pb.LagReply:
        """Return the lag of a group.

        Args:
            topic: only this topic; empty for every topic it reads.
        """
        reply: offset_pb.LagReply = await self._ask(
            "Lag", offset_pb.LagRequest(group=group, topic=topic)
        )
        return reply

    def lags(self) -> AsyncGenerator[GroupLag]:
        """Yield the lag of each group that the access key may see, in no particular order.

        At most 16 groups are queried at a time and no reply is kept, so thousands of groups need
        little memory. A group that is deleted during the call is omitted.

        Raises:
            NameserverUnavailable, OffsetServiceUnavailable: the service does not answer. A refusal
                for one group is its `GroupLag.error`.
        """
        return all_lags(self._cluster)

    async def why(self, group: str, topic: str = "") -> list[QueueStory]:
        """Return, for each queue that a group reads, where and why it started, and its progress.

        Args:
            topic: only this topic; empty for every topic it reads.

        Raises:
            GroupNotFound: the group does not exist.
            TopicNotFound: the group does not read the topic, and the topic does not exist.
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
        target: offset_pb.ResetTarget,
        queues: Iterable[MessageQueue] = (),
        *,
        member: str = "",
    ) -> offset_pb.ResetPlan:
        """Plan a reset of progress without changing it.

        The plan can be applied for a limited time: the setting `plan_seconds` of the offset
        service, by default ten minutes. Many newer plans remove it earlier.

        A plan lets a person or a program check the reset before `apply_reset`. Otherwise use
        `reset_offsets`: while a group reads, its progress moves between the two calls, and
        `apply_reset` refuses the plan.

        Args:
            group: the group to reset.
            target: the target of the reset.
            queues: only these queues; empty for all queues of the topic.
            member: only this member's own progress; empty for the progress of all members.

        Raises:
            InvalidArgument: a timestamp is not in epoch milliseconds.
        """
        request = _reset_request(group, topic, target, queues, member)
        plan: offset_pb.ResetPlan = await self._ask("PlanReset", request)
        return plan

    async def reset_offsets(
        self,
        group: str,
        topic: str,
        target: offset_pb.ResetTarget,
        queues: Iterable[MessageQueue] = (),
        *,
        member: str = "",
        operator: str,
        reset_id: str = "",
    ) -> offset_pb.ResetPlan:
        """Reset progress in one step, from its current offsets.

        No plan is compared, so the group may read during the call. Commits and acknowledgements
        from before the reset are ignored after it. Receivers lose the messages that they hold on
        the queues: acknowledging one raises NotAcquired. The messages from the new offset on are
        delivered with attempt 1. The result has the replaced offsets, which `undo_reset` restores.

        Args:
            group, topic, target, queues, member: as in `plan_reset`.
            operator: person and reason, for the record.
            reset_id: name of the reset, at most 255 bytes; empty for a generated name. A program
                that repeats a failed call with the same name resets only once.

        Raises:
            InvalidArgument: a timestamp is not in epoch milliseconds, or `reset_id` is in use.
            PlanStale: a queue was deleted or created again during the call.
        """
        request = offset_pb.ResetRequest(
            wanted=_reset_request(group, topic, target, queues, member),
            # Generated once per call: a retry after a lost reply must not reset twice.
            reset_id=reset_id or secrets.token_hex(8),
            operator=operator,
        )
        done: offset_pb.ResetPlan = await self._ask("Reset", request)
        return done

    async def apply_reset(self, reset_id: str, operator: str) -> offset_pb.ResetPlan:
        """Apply a plan, if progress has not moved since it was made.

        Args:
            operator: person and reason, for the record.

        Raises:
            PlanStale: progress has moved. Plan again, or use `reset_offsets`.
            ResetNotFound: the plan does not exist, or is no longer kept.
        """
        request = offset_pb.ApplyResetRequest(reset_id=reset_id, operator=operator)
        plan: offset_pb.ResetPlan = await self._ask("ApplyReset", request)
        return plan

    async def undo_reset(self, reset_id: str, operator: str) -> offset_pb.ResetPlan:
        """Restore the offsets that a reset replaced, wherever the group's progress is now.

        Args:
            operator: person and reason, for the record.

        Raises:
            ResetNotFound: the offset service does not keep this reset.
            PlanStale: one of its queues was deleted or created again since.
        """
        request = offset_pb.UndoResetRequest(reset_id=reset_id, operator=operator)
        plan: offset_pb.ResetPlan = await self._ask("UndoReset", request)
        return plan

    async def export_offsets(
        self, form: offset_pb.ExportFormat, *, group: str = "", broker: str = ""
    ) -> offset_pb.ExportReply:
        """Return progress as the content of a file.

        Args:
            form: JSON_LINES, or ROCKETMQ for a broker's consumerOffset.json.
            group: only this group; empty for all groups.
            broker: the broker of the queues, for ROCKETMQ.
        """
        request = offset_pb.ExportRequest(format=form, group=group, broker=broker)
        reply: offset_pb.ExportReply = await self._ask("Export", request)
        return reply

    async def import_offsets(
        self,
        form: offset_pb.ExportFormat,
        content: bytes,
        *,
        broker: str = "",
        dry_run: bool = False,
        overwrite: bool = False,
        operator: str = "",
    ) -> offset_pb.ImportReply:
        """Import progress from a file's content; each entry is applied on its own.

        The reply has the numbers of imported and skipped entries, and the first thousand of each.
        Missing retry and dead-letter topics are created. If the call fails, some entries may have
        been imported; a repeated import skips them.

        Args:
            form: JSON_LINES or ROCKETMQ.
            content: an export, or a broker's consumerOffset.json; at most 100,000 entries.
            broker: name of the broker of the queues, for ROCKETMQ.
            dry_run: only report the changes.
            overwrite: replace stored progress, also by smaller offsets.
            operator: person and reason, for the record.

        Raises:
            InvalidArgument: the content has another format, or too many entries.
        """
        request = offset_pb.ImportRequest(
            format=form,
            content=content,
            broker=broker,
            dry_run=dry_run,
            overwrite=overwrite,
            operator=operator,
        )
        reply: offset_pb.ImportReply = await self._ask("Import", request)
        return reply

    # Producers

    async def producers(self, topic: str = "") -> "ConnectedProducers":
        """Return the connected programs that send: of the SDK, gateways, and clients of gateways.

        Args:
            topic: only programs that send to this topic; empty for all.

        Raises:
            NotPermitted: the access key may not see the topic or, without a topic, the cluster.
        """
        from rockoon.admin.producers import connected_producers

        return await connected_producers(self._cluster, topic)

    # Transactions

    async def transactions(self, count_max: int = 100) -> Sequence[BrokerTransactions]:
        """Return open transactions; see `rockoon.transactions.listing.pending_transactions`."""
        return await pending_transactions(self._cluster, count_max)

    # Status

    async def status(self) -> ClusterStatus:
        """Return the status of every node; all nodes are asked in parallel, for at most 3 seconds.

        Raises:
            NotPermitted: the access key has no permission to ask.
        """
        return await ask_status(self._cluster)

    async def finish_upgrade(self) -> int:
        """Raise the cluster's feature level to that of the nameservers; return the level.

        Services of a former version are refused from then on.

        Raises:
            InvalidArgument: a nameserver of this connection or a registered service is of a former
                version.
        """
        nameservers = (await self.status()).nameservers
        former = [each.name or each.address for each in nameservers if not each.is_of_levels]
        if former:
            names = ", ".join(former)
            reason = f"nameservers of a former version, or without an answer: {names}"
            raise InvalidArgument(reason=f"{reason}. Upgrade and start them first")
        reply = await self._cluster.call_nameserver(
            "FinishUpgrade", nameserver_pb.FinishUpgradeRequest()
        )
        level: int = reply.level
        return level

    async def describe_broker(self, name: str) -> NodeStatus:
        """Return the status of one broker.

        Raises:
            BrokerNotFound: the broker is not in the routes.
            BrokerUnavailable: the broker does not answer.
        """
        return await ask_broker(self._cluster, name)


def to_placements(queues: Mapping[str, int]) -> list[nameserver_pb.Placement]:
    return [
        nameserver_pb.Placement(broker=broker, queues=count) for broker, count in queues.items()
    ]


def _reset_request(
    group: str,
    topic: str,
    target: offset_pb.ResetTarget,
    queues: Iterable[MessageQueue],
    member: str,
) -> offset_pb.PlanResetRequest:
    """Return the request for a plan. Raises InvalidArgument if a timestamp is not in epoch
    milliseconds."""
    check_epoch_ms("timestamp_ms", target.timestamp_ms)
    return offset_pb.PlanResetRequest(
        group=group,
        topic=topic,
        target=target,
        queues=[queue_to_wire(each) for each in queues],
        member=member,
    )


async def _create_topics(
    connection: "Connection", names: Iterable[str], alike: nameserver_pb.CreateTopicRequest
) -> list[TopicRoute]:
    """Create topics; see `Admin.create_topics`.

    Args:
        names: names of the topics.
        alike: the request for each topic, without its name.
    """
    routes: list[TopicRoute] = []
    refusal: RockoonError | None = None
    rest = iter(names)
    while some := list(islice(rest, TOPICS_PER_CALL_MAX)):
        request = nameserver_pb.CreateTopicsRequest()
        for name in some:
            asked = request.topics.add()
            asked.CopyFrom(alike)
            asked.config.name = name
        reply: nameserver_pb.CreateTopicsReply = await connection.call_nameserver(
            "CreateTopics", request, timeout_seconds=CREATE_SECONDS_MAX
        )
        for result in reply.results:
            if not result.HasField("error"):
                routes.append(TopicRoute.from_wire(result.topic))
            elif refusal is None:
                refusal = from_wire(result.error)
    if refusal is not None:
        raise refusal
    return routes
