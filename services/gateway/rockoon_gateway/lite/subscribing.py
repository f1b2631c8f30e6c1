"""SyncLiteSubscription: the lite topics that a client reads, and their start positions.

Source: LiteSubscriptionService of RocketMQ's proxy, LiteSubscriptionRegistryImpl of its broker.
"""

import asyncio
import logging
from collections.abc import Collection, Iterable
from typing import NamedTuple

from rockoon import Cluster
from rockoon.admin.reads import ask_queue_ends
from rockoon.errors import (
    BrokerUnavailable,
    GroupNotFound,
    InvalidArgument,
    RockoonError,
    TopicNotFound,
)
from rockoon.net.routes import TopicRoute
from rockoon_core.clock import Backoff
from rockoon_core.message_queue import queue_to_wire
from rockoon_format.names import lite_topic_fault
from rockoon_gateway.calls import GatewayCall
from rockoon_gateway.clients.presence import GatewayClient, Presence
from rockoon_gateway.codes import OK, Refusal
from rockoon_gateway.consuming.receive_rules import require_reader
from rockoon_gateway.groups import LITE_CLIENTS, CachedGroups, LiteGroup
from rockoon_gateway.lite.lite_topics import LiteTopics, is_lite
from rockoon_gateway.lite.subscriptions import LiteSubscription, LiteSubscriptions
from rockoon_gateway.names import checked_epoch_ms, checked_group, checked_topic
from rockoon_gateway.routes import TopicRoutes
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import (
    ClientType,
    Code,
    LiteSubscriptionAction,
    OffsetOption,
)
from rockoon_proto.apache.rocketmq.v2.service_pb2 import (
    NotifyUnsubscribeLiteCommand,
    SyncLiteSubscriptionRequest,
    SyncLiteSubscriptionResponse,
    TelemetryCommand,
)
from rockoon_proto.v1.in_flight_pb2 import (
    ClientName,
    LiteChange,
    ReportClientsReply,
    ReportClientsRequest,
)
from rockoon_proto.v1.in_flight_pb2 import LiteSubscription as LiteState
from rockoon_proto.v1.offset_pb2 import QueueOffset, QueueOffsets, ResetTarget

log = logging.getLogger(__name__)

# Limits of one call on the wire.
CHANGES_MAX = 64
CHANGES_BYTES_MAX = 2 << 20


class SentChange(NamedTuple):
    """A change of a client's lite subscription that was sent, and the number of changes in it."""

    subscription: LiteSubscription
    changes: int


class SharedSubscriptions:
    """Exchanges clients' lite subscriptions with other gateways, through the offset service.

    The offset service has the state of each client, with a version. A gateway sends changes with
    the version that they are based on. If another gateway was faster, the gateway receives the
    newer state, and applies its changes to that.
    """

    def __init__(
        self,
        cluster: Cluster,
        topics: TopicRoutes,
        lite_topics: LiteTopics,
        presence: Presence,
        subscriptions: LiteSubscriptions,
    ) -> None:
        self._cluster = cluster
        self._topics = topics
        self._lite_topics = lite_topics
        self._presence = presence
        self.subscriptions = subscriptions
        # Subscriptions that the offset service has asked for.
        self._wanted: list[LiteSubscription] = []

    @property
    def has_changes(self) -> bool:
        """True if there are lite subscriptions to send to the offset service."""
        return bool(self._wanted) or any(each.changes for each in self.subscriptions.clients)

    @property
    def follows(self) -> bool:
        """True if this gateway has clients: it needs the changes that other gateways made."""
        return bool(self.subscriptions.clients)

    def version_of(self, client_id: str, group: str) -> int:
        """Return the version of a client's lite subscription at this gateway; 0 without one."""
        found = self.subscriptions.find(client_id, group)
        return 0 if found is None else found.version

    def add_changes(self, request: ReportClientsRequest) -> list[SentChange]:
        """Add the clients' changes of lite subscriptions to a report, up to a call's limits."""
        sent: list[SentChange] = []
        wanted, self._wanted = self._wanted, []
        changed = [each for each in self.subscriptions.clients if each.changes]
        size = 0
        for each in dict.fromkeys((*wanted, *changed)):
            if size >= CHANGES_BYTES_MAX or len(sent) == CHANGES_MAX:
                if not each.changes:
                    self._wanted.append(each)
                continue
            change = self._change(each)
            size += change.ByteSize()
            request.lite_changes.append(change)
            sent.append(SentChange(each, each.changes.count))
        return sent

    def _change(self, of: LiteSubscription) -> LiteChange:
        return LiteChange(
            subscription=LiteState(
                name=self._name(of),
                parent=of.parent,
                lite_topics=of.lite_topics,
                version=of.version,
                client_version=of.client_version,
            ),
            is_known=not of.changes,
            is_exclusive=of.is_exclusive,
            claimed=of.changes.claimed if of.is_exclusive else (),
        )

    def _name(self, of: LiteSubscription) -> ClientName:
        client = self._presence.get(of.client_id)
        key_id = client.key_id if client is not None else ""
        return ClientName(group=of.group, client_id=of.client_id, key_id=key_id)

    def apply_reply(
        self, sent: Iterable[SentChange], reply: ReportClientsReply, sent_at: float
    ) -> None:
        """Apply the offset service's reply to a report; `sent_at`: the loop's time of the call."""
        for each, version in zip(sent, reply.lite_versions, strict=True):
            if version:
                each.subscription.changes_stored(each.changes, version)
        for state in reply.lite:
            client = self._client(state.name)
            # A client that said goodbye after the report was sent starts without lite topics.
            if client is not None and client.began < sent_at:
                self._apply_state(client, state)
        for name in reply.lite_wanted:
            found = self.subscriptions.find(name.client_id, name.group)
            if found is not None and self._client(name) is not None:
                self._wanted.append(found)

    def _client(self, name: ClientName) -> GatewayClient | None:
        client = self._presence.get(name.client_id)
        return client if client is not None and client.key_id == name.key_id else None

    def _apply_state(self, client: GatewayClient, state: LiteState) -> None:
        mine = self.subscriptions.of(client.client_id, state.name.group, state.parent)
        if state.version <= mine.version and not mine.changes:
            return
        lost = [each for each in state.lost if each in mine.lite_topics]
        new = mine.apply_state(state.lite_topics, state.version, state.client_version)
        notify_lost(client, lost)
        if new:
            self._cluster.tasks.create_task(
                self._provide(mine, new), name=f"lite topics of {client.client_id}"
            )

    async def _provide(self, mine: LiteSubscription, lite_topics: Collection[str]) -> None:
        """Cache the routes of lite topics that another gateway has created."""
        try:
            parent = await self._topics.route(mine.parent)
            await self._lite_topics.provide(parent, lite_topics, to_send=False)
        except (RockoonError, Refusal) as failure:
            log.warning(
                "%d lite topics of %s are not read until the client names them again: %s",
                len(lite_topics),
                mine.client_id,
                failure,
            )
        mine.wake()


def notify_lost(client: GatewayClient | None, lite_topics: Iterable[str]) -> None:
    """Notify a client of lite topics that another client of its exclusive group reads now."""
    for outbox in client.outboxes if client is not None else ():
        for lite_topic in lite_topics:
            command = NotifyUnsubscribeLiteCommand(lite_topic=lite_topic)
            outbox.put(TelemetryCommand(status=OK, notify_unsubscribe_lite_command=command))


# The offset service sees a new topic or group by its own watch, after the creation.
HEARS_SECONDS_MAX = 5.0


def is_reset(option: OffsetOption) -> bool:
    """True if the offset option of a request requests a reset."""
    kind = option.WhichOneof("offset_type")
    return kind is not None and not (kind == "policy" and option.policy == OffsetOption.LAST)


def reset_target(option: OffsetOption) -> ResetTarget | None:
    """Return the target of an offset option; None for the last n messages, which need the queue's
    end.

    Raises:
        InvalidArgument: a negative number, or an unknown policy.
        Refusal: the timestamp is out of range.
    """
    match option.WhichOneof("offset_type"):
        case "policy" if option.policy == OffsetOption.MIN:
            return ResetTarget(earliest=True)
        case "policy" if option.policy == OffsetOption.MAX:
            return ResetTarget(latest=True)
        case "offset" if option.offset >= 0:
            return ResetTarget(offset=option.offset)
        case "timestamp":
            return ResetTarget(timestamp_ms=checked_epoch_ms(option.timestamp, "timestamp"))
        case "tail_n" if option.tail_n >= 0:
            return None
    raise InvalidArgument(reason=f"not a start position: {str(option).strip()}")


async def reset_progress(
    cluster: Cluster, group: str, route: TopicRoute, option: OffsetOption, operator: str
) -> None:
    """Set a group's progress on a lite topic by an offset option, also for its other clients.

        LAST         the group's position: nothing is reset
        MIN, MAX     the oldest message, the end
        offset       this offset
        tail_n       the last n messages
        timestamp    the first message stored at or after a time

    Source: OffsetOption of the protocol.

    Args:
        operator: name for the log of resets.

    Raises:
        RockoonError: it was not set.
    """
    target = reset_target(option) or await _last(cluster, route, option.tail_n)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + HEARS_SECONDS_MAX
    backoff = Backoff()
    while True:
        try:
            await cluster.admin.reset_offsets(group, route.name, target, operator=operator)
            break
        except (TopicNotFound, GroupNotFound):
            pause = backoff.next_seconds()
            if loop.time() + pause > deadline:
                raise
        await asyncio.sleep(pause)


async def _last(cluster: Cluster, route: TopicRoute, messages: int) -> ResetTarget:
    found = []
    for ends in await ask_queue_ends(cluster, route):
        if ends.state is None:
            raise ends.error or BrokerUnavailable(broker=ends.queue.broker)
        offset = max(ends.state.max_offset - messages, ends.state.min_offset)
        found.append(QueueOffset(queue=queue_to_wire(ends.queue), offset=offset))
    return ResetTarget(offsets=QueueOffsets(offsets=found))


class LiteSubscribing:
    """Serves the SyncLiteSubscription call.

    Attributes:
        subscriptions: lite topics by client.
    """

    def __init__(
        self,
        cluster: Cluster,
        topics: TopicRoutes,
        groups: CachedGroups,
        lite_topics: LiteTopics,
        presence: Presence,
    ) -> None:
        self._cluster = cluster
        self._topics = topics
        self._groups = groups
        self._lite_topics = lite_topics
        self._presence = presence
        self.subscriptions = LiteSubscriptions(lambda each: presence.get(each) is not None)
        presence.on_change.append(self._changed)

    async def sync(
        self, request: SyncLiteSubscriptionRequest, call: GatewayCall
    ) -> SyncLiteSubscriptionResponse:
        """Serve the SyncLiteSubscription call of a client.

        Raises:
            Refusal: ILLEGAL_LITE_TOPIC, ILLEGAL_TOPIC, ILLEGAL_CONSUMER_GROUP,
                LITE_TOPIC_QUOTA_EXCEEDED, LITE_SUBSCRIPTION_QUOTA_EXCEEDED.
            RockoonError: a service that is needed does not reply.
        """
        if request.action not in LiteSubscriptionAction.values():
            raise Refusal(Code.BAD_REQUEST, f"{request.action} is not an action")
        group = checked_group(request.group, call.namespace)
        topic = checked_topic(request.topic, call.namespace)
        require_reader(call, group, topic)
        self._record_lite_consumer(call, group)
        wanted = dict.fromkeys(request.lite_topic_set)
        for each in wanted:
            if fault := lite_topic_fault(each):
                raise Refusal(Code.ILLEGAL_LITE_TOPIC, fault)
        if request.action == LiteSubscriptionAction.COMPLETE_REMOVE:
            mine = self.subscriptions.of(call.client_id, group, topic)
            mine.replace((), mine.client_version)
            return SyncLiteSubscriptionResponse(status=OK)
        parent = await self._topics.route(topic)
        if not is_lite(parent):
            raise Refusal(Code.ILLEGAL_TOPIC, f"topic {topic!r} has no lite topics")
        rules = await self._groups.lite(group, topic)
        mine = self.subscriptions.of(call.client_id, group, topic)
        mine.is_exclusive = rules.is_exclusive
        match request.action:
            case LiteSubscriptionAction.PARTIAL_REMOVE:
                mine.remove(wanted)
            case LiteSubscriptionAction.COMPLETE_ADD:
                check_quota(wanted, rules)
                await self._replace(mine, parent, wanted, request.version, rules)
            case _:
                check_quota({**mine.lite_topics, **wanted}, rules)
                await self._lite_topics.provide(parent, wanted, to_send=False)
                await self._set_start(mine, wanted, request.offset_option, call)
                # The client may have said goodbye during the calls.
                if rules.is_exclusive and self.subscriptions.is_there(mine.client_id):
                    self._take_over(mine, wanted)
                mine.add(wanted)
        return SyncLiteSubscriptionResponse(status=OK)

    async def _replace(
        self,
        mine: LiteSubscription,
        parent: TopicRoute,
        wanted: Collection[str],
        version: int,
        rules: LiteGroup,
    ) -> None:
        """Replace a client's lite topics. They are replaced before the first wait, so concurrent
        changes of the client, and takeovers by other clients, apply to the new ones."""
        if rules.is_exclusive:
            # Other clients have these now; this one has not been notified yet.
            taken = {
                each for other in self.subscriptions.others(mine) for each in other.lite_topics
            }
            wanted = [each for each in wanted if each not in taken]
        mine.replace(wanted, version)
        if not self._unknown(parent, wanted):
            return
        try:
            await self._lite_topics.provide(parent, wanted, to_send=False)
        except BaseException:
            mine.remove(self._unknown(parent, wanted))
            raise
        mine.wake()

    def _unknown(self, parent: TopicRoute, lite_topics: Collection[str]) -> list[str]:
        return [each for each in lite_topics if self._lite_topics.known(parent.name, each) is None]

    def _record_lite_consumer(self, call: GatewayCall, group: str) -> None:
        """Record the client as a lite consumer, even if it has not sent its settings here."""
        client = self._presence.record_call(call, group)
        if client.client_type not in LITE_CLIENTS:
            client.client_type, client.group = ClientType.LITE_SIMPLE_CONSUMER, group

    async def _set_start(
        self,
        mine: LiteSubscription,
        wanted: Collection[str],
        option: OffsetOption,
        call: GatewayCall,
    ) -> None:
        if not is_reset(option):
            return
        # It changes the group's progress, like UpdateOffset.
        call.require("write", f"group:{mine.group}")
        who = f"{call.client_id}, by its lite subscription"
        for each in wanted:
            route = self._lite_topics.known(mine.parent, each)
            if route is not None:
                await reset_progress(self._cluster, mine.group, route, option, who)

    def _take_over(self, mine: LiteSubscription, wanted: Collection[str]) -> None:
        """Remove lite topics from the other clients of the group at this gateway, and notify those
        clients. The offset service does the same for clients of other gateways."""
        for other in self.subscriptions.others(mine):
            lost = [each for each in wanted if each in other.lite_topics]
            other.remove(lost)
            notify_lost(self._presence.get(other.client_id), lost)

    def _changed(self, client: GatewayClient) -> None:
        if self._presence.get(client.client_id) is None:
            self.subscriptions.remove(client.client_id)


def check_quota(lite_topics: Collection[str], rules: LiteGroup) -> None:
    """Raise Refusal if a client would subscribe to more lite topics than its group permits."""
    if len(lite_topics) > rules.quota:
        raise Refusal(
            Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
            f"{len(lite_topics)} lite topics, and a client may subscribe to {rules.quota}",
        )


async def lite_parent(topics: TopicRoutes, topic: str) -> TopicRoute | None:
    """Return a topic's route if it is a parent of lite topics. Raises like `TopicRoutes.route`."""
    route = await topics.route(topic)
    return route if is_lite(route) else None
