"""Reports of consumer groups: subscriptions, clients, lag; and resets of offsets.

The offset service knows the members of a group that pull, and the clients of all gateways.
"""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence

from google.protobuf.duration_pb2 import Duration

from rockoon import Cluster
from rockoon.errors import BrokerUnavailable, GroupNotFound
from rockoon_gateway.calls import GatewayCall
from rockoon_gateway.clients.reports import SQL_MARK
from rockoon_gateway.codes import OK, Refusal
from rockoon_gateway.names import (
    checked_group,
    checked_topic,
    cluster_name,
    epoch_ms,
    is_in,
    plain_name,
    resource_of,
)
from rockoon_proto.apache.rocketmq.v2 import admin_pb2 as pb
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import (
    Broker,
    Code,
    FilterExpression,
    FilterType,
    MessageQueue,
    Resource,
)
from rockoon_proto.v1.in_flight_pb2 import Client
from rockoon_proto.v1.offset_pb2 import (
    BROADCASTING,
    Member,
    QueueLag,
    ResetTarget,
    TopicSubscription,
)

# Of one request: each topic costs calls to brokers and the offset service.
TOPICS_MAX = 64


class GroupReports:
    """Serves the Admin calls about consumer groups.

    Args:
        learn: waits until the offset service knows the clients of this gateway.
    """

    def __init__(self, cluster: Cluster, learn: Callable[[], Awaitable[None]]) -> None:
        self._admin = cluster.admin
        self._learn = learn

    async def subscriptions(
        self, request: pb.ListSubscriptionRequest, call: GatewayCall
    ) -> pb.ListSubscriptionResponse:
        """List subscriptions: of one group, of one topic, or all in the caller's namespace that it
        may see."""
        only_group = cluster_name(request.group, call.namespace)
        only_topic = cluster_name(request.topic, call.namespace)
        namespace = _namespace(call, request.group, request.topic)
        found = []
        await self._learn()
        for summary in await self._admin.list_groups():
            group = summary.group.config.name
            if group != only_group if only_group else not is_in(group, namespace):
                continue
            if call.key is not None and not call.key.may("see", f"group:{group}"):
                continue
            members = await self._admin.members(group)
            clients = await self._clients(group)
            found += [
                self._subscription(group, topic, members, clients, namespace)
                for topic in sorted(summary.topics)
                if not only_topic or topic == only_topic
            ]
        return pb.ListSubscriptionResponse(status=OK, subscription_info=found)

    def _subscription(
        self,
        group: str,
        topic: str,
        members: Sequence[Member],
        clients: Sequence[Client],
        namespace: str,
    ) -> pb.SubscriptionInfo:
        told = [each for client in clients for each in read(client.details.subscriptions, topic)]
        told += [each for member in members for each in read(member.subscriptions, topic)]
        return pb.SubscriptionInfo(
            group=resource_of(group, namespace),
            topic=resource_of(topic, namespace),
            expression=told[0] if told else FilterExpression(type=FilterType.TAG, expression="*"),
            online=bool(told),
            message_model=model(members),
            subscription_consistency=all(each == told[0] for each in told),
        )

    async def _clients(self, group: str) -> Sequence[Client]:
        try:
            return (await self._admin.clients(group)).clients
        except GroupNotFound:
            # The group was deleted after it was listed.
            return ()

    async def clients(
        self, request: pb.DescribeSubscriptionRequest, call: GatewayCall
    ) -> pb.DescribeSubscriptionResponse:
        """List the subscriptions of each client of a group."""
        group = self._seen_group(request.group, call)
        wanted = cluster_name(request.topic, call.namespace)
        await self._learn()
        members = await self._admin.members(group)
        found = []
        for client in await self._clients(group):
            for entry in client.details.subscriptions:
                expression = parsed(entry.expression)
                found.append((client_info(client), entry.topic, expression, pb.CLUSTERING))
        for member in members:
            for subscription in member.subscriptions:
                expression = parsed(subscription.expression)
                info = member_info(member)
                found.append((info, subscription.topic, expression, info.message_model))
        return pb.DescribeSubscriptionResponse(
            status=OK,
            client_subscription_info=[
                pb.DescribeSubscriptionResponse.ClientSubscriptionInfo(
                    client_info=who,
                    subscription_info=pb.SubscriptionInfo(
                        group=request.group,
                        topic=resource_of(topic, request.group.resource_namespace),
                        expression=expression,
                        online=True,
                        message_model=shared,
                        subscription_consistency=True,
                    ),
                )
                for who, topic, expression, shared in found
                if not wanted or topic == wanted
            ],
        )

    async def connections(
        self, request: pb.ListConsumerConnectionRequest, call: GatewayCall
    ) -> pb.ListConsumerConnectionResponse:
        """List the connected clients of a group."""
        group = self._seen_group(request.group, call)
        await self._admin.get_group(group)
        wanted = cluster_name(request.topic, call.namespace)
        await self._learn()
        clients = [
            client_info(client)
            for client in await self._clients(group)
            if not wanted or any(True for _ in read(client.details.subscriptions, wanted))
        ]
        members = [
            member_info(member)
            for member in await self._admin.members(group)
            if not wanted or any(True for _ in read(member.subscriptions, wanted))
        ]
        return pb.ListConsumerConnectionResponse(status=OK, client_info=clients + members)

    async def accumulation(
        self, request: pb.DescribeGroupAccumulationRequest, call: GatewayCall
    ) -> pb.DescribeGroupAccumulationResponse:
        """Count the unread messages of a group; fails if a broker does not reply."""
        group = self._seen_group(request.group, call)
        topics = checked_topics(request.topics, call.namespace)
        await self._require_topics(call, group, topics)
        queues = [each for topic in topics or [""] for each in await self._lag(group, topic)]
        by_topic: dict[str, list[QueueLag]] = defaultdict(list)
        for each in queues:
            by_topic[each.queue.topic].append(each)
        return pb.DescribeGroupAccumulationResponse(
            status=OK,
            accumulation=accumulated(queues),
            topic_accumulation={
                plain_name(topic, request.group.resource_namespace): accumulated(some)
                for topic, some in by_topic.items()
            },
        )

    async def time_span(
        self, request: pb.QueryTimeSpanRequest, call: GatewayCall
    ) -> pb.QueryTimeSpanResponse:
        """Return the times of the first and last message of queues, and the group's lag."""
        group = self._seen_group(request.group, call)
        spans = []
        for topic, resource in checked_topics(request.topics, call.namespace).items():
            call.require_topic("see", topic)
            lags = {(x.queue.broker, x.queue.queue_id): x for x in await self._lag(group, topic)}
            for each in (await self._admin.describe_topic(topic)).queues:
                if each.state is None:
                    continue
                # The queue may have been added since, or not be read yet.
                lag = lags.get((each.queue.broker, each.queue.queue_id), QueueLag())
                spans.append(
                    pb.QueryTimeSpanResponse.QueueTimeSpan(
                        message_queue=MessageQueue(
                            topic=resource,
                            id=each.queue.queue_id,
                            broker=Broker(name=each.queue.broker),
                        ),
                        min_timestamp=each.state.first_store_timestamp_ms,
                        max_timestamp=each.state.last_store_timestamp_ms,
                        consume_timestamp=lag.as_of_ms - lag.lag_ms
                        if lag.HasField("lag_ms")
                        else 0,
                        delay_time_ms=lag.lag_ms,
                    )
                )
        return pb.QueryTimeSpanResponse(status=OK, queue_time_span_list=spans)

    async def reset(
        self, request: pb.ResetGroupOffsetRequest, call: GatewayCall
    ) -> pb.ResetGroupOffsetResponse:
        """Reset a group's progress to a time; earlier receipts become invalid."""
        group = checked_group(request.group, call.namespace)
        topic = checked_topic(request.topic, call.namespace)
        call.require("write", f"group:{group}")
        await self._require_topics(call, group, [topic])
        time_ms = epoch_ms(request.reset_timestamp, "reset_timestamp")
        who = call.key.key_id if call.key is not None else call.client_id
        await self._admin.reset_offsets(
            group, topic, ResetTarget(timestamp_ms=time_ms), operator=f"{who}, by a gateway"
        )
        return pb.ResetGroupOffsetResponse(status=OK)

    def _seen_group(self, resource: Resource, call: GatewayCall) -> str:
        group = checked_group(resource, call.namespace)
        call.require("see", f"group:{group}")
        return group

    async def _require_topics(self, call: GatewayCall, group: str, topics: Collection[str]) -> None:
        """Raise NotPermitted for a topic that the group does not read and that the caller may not
        see."""
        if call.key is None or not topics:
            return
        read = (await self._admin.get_group(group)).topics
        for topic in topics:
            if topic not in read:
                call.require_topic("see", topic)

    async def _lag(self, group: str, topic: str) -> Sequence[QueueLag]:
        reply = await self._admin.lag(group, topic)
        for each in reply.queues:
            if not each.known:
                raise BrokerUnavailable(each.unknown_because, broker=each.queue.broker)
        return reply.queues


def _namespace(call: GatewayCall, *named: Resource) -> str:
    """Return the namespace of the first resource that a request names, or the caller's."""
    return next((each.resource_namespace for each in named if each.name), "") or call.namespace


def checked_topics(resources: Sequence[Resource], namespace: str) -> dict[str, Resource]:
    """Return the topics of a request, each once, by their names in the cluster. Raises Refusal: a
    name is not allowed, or the request has too many topics."""
    found = {checked_topic(each, namespace): each for each in resources}
    if len(found) > TOPICS_MAX:
        raise Refusal(Code.BAD_REQUEST, f"{len(found)} topics in one request, not {TOPICS_MAX}")
    return found


def accumulated(
    queues: Iterable[QueueLag],
) -> pb.DescribeGroupAccumulationResponse.GroupAccumulation:
    """Sum the messages of a group's queues that exist and are not settled."""
    inflight = waiting = delay_ms = 0
    for each in queues:
        waiting += max(0, each.lag - each.lost - each.settled_above)
        inflight += each.in_flight
        delay_ms = max(delay_ms, each.lag_ms)
    delay = Duration()
    delay.FromMilliseconds(delay_ms)
    return pb.DescribeGroupAccumulationResponse.GroupAccumulation(
        inflight_messages=inflight,
        ready_messages=waiting - inflight,
        accumulation=waiting,
        deliver_delay_time=delay,
    )


def read(subscriptions: Iterable[TopicSubscription], topic: str) -> Iterable[FilterExpression]:
    """Return the filters of all subscriptions to a topic."""
    for each in subscriptions:
        if each.topic == topic:
            yield parsed(each.expression)


def parsed(expression: str) -> FilterExpression:
    """Convert a filter in Rockoon's notation to the protocol's."""
    if expression.startswith(SQL_MARK):
        text = expression.removeprefix(SQL_MARK).strip()
        return FilterExpression(type=FilterType.SQL, expression=text)
    return FilterExpression(type=FilterType.TAG, expression=expression)


def model(members: Iterable[Member]) -> "pb.MessageModel":
    """Return a group's message model: its members share the messages, or each reads all."""
    is_shared = all(member.mode != BROADCASTING for member in members)
    return pb.CLUSTERING if is_shared else pb.BROADCASTING


def client_info(client: Client) -> pb.ClientInfo:
    """Convert a client of a gateway to the protocol's ClientInfo."""
    details = client.details
    return pb.ClientInfo(
        client_id=client.client_id,
        version=details.version,
        language=details.language,
        hostname=details.hostname,
        egress_ip=details.address,
        message_model=pb.CLUSTERING,
    )


def member_info(member: Member) -> pb.ClientInfo:
    """Convert a member with Rockoon's own SDK to the protocol's ClientInfo."""
    return pb.ClientInfo(
        client_id=member.member_id, egress_ip=member.peer, message_model=model([member])
    )


def not_answered(rpc: str) -> Refusal:
    """Return the error for a call that this gateway does not implement."""
    return Refusal(Code.NOT_IMPLEMENTED, f"this gateway does not answer {rpc}")
