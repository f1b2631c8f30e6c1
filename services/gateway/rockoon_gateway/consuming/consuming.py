"""Consuming: passes the protocol's calls of consumers to their implementations.

All clients share one receiving engine: it waits for all their polls, and sends their
acknowledgements together.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

from rockoon import Cluster
from rockoon.receiving.received import ReceiptHandle
from rockoon_core.message_queue import MessageQueue
from rockoon_gateway.calls import GatewayCall
from rockoon_gateway.clients.client_settings import request_timeout_ms
from rockoon_gateway.clients.presence import GatewayClient, Presence
from rockoon_gateway.clients.reports import Reports
from rockoon_gateway.codes import OK, Refusal
from rockoon_gateway.consuming.offset_reads import OffsetReads
from rockoon_gateway.consuming.receive_rules import REQUEST_TIMEOUT_SECONDS, require_reader
from rockoon_gateway.consuming.receiving import LiteReceiving, Receiving, Writer
from rockoon_gateway.consuming.settling import ReturnedMessages, Settling
from rockoon_gateway.groups import CachedGroups
from rockoon_gateway.lite.lite_topics import LiteTopics, is_lite
from rockoon_gateway.lite.subscribing import LiteSubscribing, SharedSubscriptions
from rockoon_gateway.names import checked_group, checked_topic, cluster_name
from rockoon_gateway.routes import TopicRoutes, checked_endpoints, live_queues, permission
from rockoon_proto.apache.rocketmq.v2 import definition_pb2 as v2
from rockoon_proto.apache.rocketmq.v2 import service_pb2 as pb
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import Code, FilterExpression, Resource
from rockoon_proto.apache.rocketmq.v2.service_pb2 import (
    QueryAssignmentRequest,
    QueryAssignmentResponse,
)

Answer = TypeVar("Answer")

ANY_QUEUE = -1


class Assignments:
    """Serves QueryAssignment: replies with the queues that a push consumer should receive from.

    All members of a group get the same assignment, because any member may receive from any queue.
    So one entry per broker is enough, with the id -1; in a FIFO group it is one per queue, as
    clients that poll queues in rotation expect.
    Source: RouteActivity#queryAssignment.
    """

    def __init__(self, cluster: Cluster, topics: TopicRoutes, groups: CachedGroups) -> None:
        self._cluster = cluster
        self._topics = topics
        self._groups = groups

    async def query_assignment(
        self, request: QueryAssignmentRequest, call: GatewayCall
    ) -> QueryAssignmentResponse:
        """Serve the QueryAssignment call of a client."""
        group = checked_group(request.group, call.namespace)
        topic = checked_topic(request.topic, call.namespace)
        require_reader(call, group, topic)
        endpoints = checked_endpoints(request.endpoints)
        route = await self._topics.route(topic)
        if not route.readable or not route.queues:
            raise Refusal(Code.FORBIDDEN, f"no readable queue of topic {topic}")
        queues = live_queues(self._cluster, route)
        if is_lite(route):
            # One queue: each receive covers all lite topics of the parent.
            await self._groups.lite(group, topic)
            queues, is_fifo = queues[:1], False
        else:
            is_fifo = (await self._groups.facts(group)).fifo
        return QueryAssignmentResponse(
            status=OK,
            assignments=[
                v2.Assignment(
                    message_queue=v2.MessageQueue(
                        topic=request.topic,
                        id=queue_id,
                        permission=permission(route),
                        broker=v2.Broker(name=broker, id=0, endpoints=endpoints),
                    )
                )
                for broker, queue_id in units(queues, is_fifo=is_fifo)
            ],
        )


def units(queues: Iterable[MessageQueue], *, is_fifo: bool) -> list[tuple[str, int]]:
    """Return the broker and queue id of each assignment in a reply."""
    if is_fifo:
        return [(queue.broker, queue.queue_id) for queue in queues]
    return [(broker, ANY_QUEUE) for broker in sorted({queue.broker for queue in queues})]


# Part of the lease. At its end the messages become visible and the delivery counts as an attempt.
RETURN_SHARE = 3 / 4


class Confirmations:
    """Reports deliveries that clients have received, and returns messages that they may have lost.

        reply written ─┬─▶ the client acknowledged a PING sent after it: the delivery is reported
                       └─▶ the connection ended or the client reset the call: returned uncounted,
                           after a part of the lease

    The client may have received a reply whose connection ended before the acknowledgement. So it
    can acknowledge its messages during that part of the lease.
    """

    def __init__(self, reports: Reports, returned_messages: ReturnedMessages) -> None:
        self._reports = reports
        self._returned_messages = returned_messages

    def await_receipt(self, writer: Writer, group: str, receipts: Sequence[ReceiptHandle]) -> None:
        """Report messages when the client has received them; return those that it may have lost."""
        writer.on_received(partial(self._ended, group, receipts))

    def _ended(self, group: str, receipts: Sequence[ReceiptHandle], is_received: bool) -> None:
        if is_received:
            self._reports.delivered(receipts)
            return
        asyncio.get_running_loop().call_later(
            RETURN_SHARE * self._reports.lease_seconds,
            self._returned_messages.return_later,
            group,
            receipts,
        )


class Consuming:
    """Passes consumers' calls to `Receiving`, `Settling`, `OffsetReads` and `Assignments`.

    Attributes:
        returned_messages, reports: run by the owner of their tasks.
        delivered: number of delivered messages, by topic and group.
    """

    def __init__(
        self,
        cluster: Cluster,
        topics: TopicRoutes,
        groups: CachedGroups,
        lite_topics: LiteTopics,
        presence: Presence,
        name: str,
        *,
        create_groups: bool,
    ) -> None:
        self._presence = presence
        self.returned_messages = ReturnedMessages(cluster.receiving)
        lite = LiteSubscribing(cluster, topics, groups, lite_topics, presence)
        self.sync_lite = lite.sync
        self.lite_subscriptions = lite.subscriptions
        shared = SharedSubscriptions(cluster, topics, lite_topics, presence, lite.subscriptions)
        self.reports = Reports(cluster, name, presence, shared)
        self._receiving = Receiving(
            cluster.receiving,
            topics,
            groups,
            LiteReceiving(lite_topics),
            lite.subscriptions,
            self.returned_messages,
            Confirmations(self.reports, self.returned_messages).await_receipt,
            self.reports.soon,
        )
        self.delivered = self._receiving.delivered
        settling = Settling(cluster.receiving)
        self.acknowledge = self._recorded(settling.acknowledge)
        self.change_invisible = self._recorded(settling.change_invisible)
        self.forward_to_dead_letters = self._recorded(settling.forward_to_dead_letters)
        offsets = OffsetReads(cluster, create_groups=create_groups)
        self.pull = offsets.pull
        self.update_offset = offsets.update_offset
        self.get_offset = offsets.get_offset
        self.query_offset = offsets.query_offset
        self.query_assignment = Assignments(cluster, topics, groups).query_assignment
        self.close = self._receiving.close

    async def receive(
        self, request: pb.ReceiveMessageRequest, call: GatewayCall, answers: Writer
    ) -> None:
        """Serve ReceiveMessage; fields that the request lacks come from the client's settings."""
        expression: FilterExpression | None = None
        timeout_seconds = REQUEST_TIMEOUT_SECONDS
        topic = cluster_name(request.message_queue.topic, call.namespace)
        # Some clients continue after a restart of the gateway without sending their settings.
        if (settings := self._record_call(call, request.group).settings) is not None:
            if settings.HasField("request_timeout"):
                timeout_seconds = request_timeout_ms(settings) / 1000
            for each in settings.subscription.subscriptions:
                if cluster_name(each.topic) == topic:
                    expression = each.expression
        await self._receiving.receive(request, call, answers, expression, timeout_seconds)

    @property
    def waiting_receivers(self) -> Counter[str]:
        """Number of waiting receivers, by group."""
        return self._receiving.waiting_receivers

    def _recorded(
        self, method: Callable[[Any, GatewayCall], Awaitable[Answer]]
    ) -> Callable[[Any, GatewayCall], Awaitable[Answer]]:
        """Return a method that records the client's call for a group before it serves the call."""

        async def serve(request: Any, call: GatewayCall) -> Answer:
            self._record_call(call, request.group)
            return await method(request, call)

        return serve

    def _record_call(self, call: GatewayCall, resource: Resource) -> GatewayClient:
        """Record a client's call for a group. Raises NotPermitted if it may not read the group."""
        group = checked_group(resource, call.namespace)
        call.require("read", f"group:{group}")
        return self._presence.record_call(call, group)
