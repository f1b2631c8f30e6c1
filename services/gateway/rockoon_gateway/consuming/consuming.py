"""Consuming: passes the protocol's calls of consumers to their implementations.

All clients share one receiving engine: it waits for all their polls, and sends their
acknowledgements together.
"""

from collections import Counter

from rockoon import Cluster
from rockoon_gateway.calls import GatewayCall
from rockoon_gateway.clients.presence import GatewayClient, Presence
from rockoon_gateway.clients.reports import Reports
from rockoon_gateway.clients.settings_checks import request_timeout_ms
from rockoon_gateway.consuming.assignments import Assignments
from rockoon_gateway.consuming.confirmations import Confirmations
from rockoon_gateway.consuming.offset_reads import OffsetReads
from rockoon_gateway.consuming.receive_rules import REQUEST_TIMEOUT_SECONDS
from rockoon_gateway.consuming.receiving import Receiving, Writer
from rockoon_gateway.consuming.returned_messages import ReturnedMessages
from rockoon_gateway.consuming.settling import Settling
from rockoon_gateway.groups import GroupConfigs
from rockoon_gateway.lite.lite_receiving import LiteReceiving
from rockoon_gateway.lite.lite_topics import LiteTopics
from rockoon_gateway.lite.shared_subscriptions import SharedSubscriptions
from rockoon_gateway.lite.subscribing import LiteSubscribing
from rockoon_gateway.names import checked_group, cluster_name
from rockoon_gateway.topics import TopicRoutes
from rockoon_proto.apache.rocketmq.v2 import service_pb2 as pb
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import FilterExpression, Resource


class Consuming:
    """Wires the implementations of consumers' calls.

    Args:
        cluster: the connection.
        topics: their routes.
        groups: consumer groups.
        lite_topics: those below a parent.
        presence: the clients and their settings.
        name: of the gateway.
        create_groups: whether groups are created on first use.

    Attributes:
        giving_back, reports: run by the owner of their tasks.
        delivered: number of delivered messages, by topic and group.
    """

    def __init__(
        self,
        cluster: Cluster,
        topics: TopicRoutes,
        groups: GroupConfigs,
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
        self._settling = Settling(cluster.receiving)
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
        """See `Receiving`; missing fields of the request come from the client's settings."""
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

    async def acknowledge(
        self, request: pb.AckMessageRequest, call: GatewayCall
    ) -> pb.AckMessageResponse:
        """See `Settling`."""
        self._record_call(call, request.group)
        return await self._settling.acknowledge(request, call)

    async def change_invisible(
        self, request: pb.ChangeInvisibleDurationRequest, call: GatewayCall
    ) -> pb.ChangeInvisibleDurationResponse:
        """See `Settling`."""
        self._record_call(call, request.group)
        return await self._settling.change_invisible(request, call)

    async def forward_to_dead_letters(
        self, request: pb.ForwardMessageToDeadLetterQueueRequest, call: GatewayCall
    ) -> pb.ForwardMessageToDeadLetterQueueResponse:
        """See `Settling`."""
        self._record_call(call, request.group)
        return await self._settling.forward_to_dead_letters(request, call)

    def _record_call(self, call: GatewayCall, resource: Resource) -> GatewayClient:
        """Record a client's call for a group; raises NotPermitted if it may not read the group."""
        group = checked_group(resource, call.namespace)
        call.require("read", f"group:{group}")
        return self._presence.record_call(call, group)
