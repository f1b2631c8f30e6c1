"""Servicer of the protocol's Admin service; errors are statuses of replies.

Calls without a correct reply are NOT_IMPLEMENTED: the memory contents of a running consumer, and
deleting the record that a group reads a topic, which nameservers delete only with the group.
"""

import secrets
from importlib.metadata import version
from typing import Any

from rockoon_gateway.calls import Callers, GatewayCall, served
from rockoon_gateway.clients.presence import Presence
from rockoon_gateway.codes import OK
from rockoon_gateway.consoles.groups_report import GroupReports, not_answered
from rockoon_gateway.consoles.lookups import Lookups
from rockoon_gateway.producing.sending import Sending
from rockoon_proto.apache.rocketmq.v2 import admin_pb2 as pb
from rockoon_proto.apache.rocketmq.v2.admin_pb2_grpc import AdminServicer
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import (
    ClientType,
    Message,
    SystemProperties,
)
from rockoon_proto.apache.rocketmq.v2.service_pb2 import SendMessageRequest


class ConsoleServicer(AdminServicer):
    """Serves the protocol's Admin service of the gateway `name`."""

    def __init__(
        self,
        name: str,
        callers: Callers,
        groups: GroupReports,
        lookups: Lookups,
        sending: Sending,
        presence: Presence,
    ) -> None:
        self._name = name
        self._callers = callers
        self._groups = groups
        self._lookups = lookups
        self._sending = sending
        self._presence = presence

    async def ChangeLogLevel(self, _request: pb.ChangeLogLevelRequest, _context: Any) -> Any:
        # The reply has no status.
        return pb.ChangeLogLevelResponse(remark="not supported: log_level is a setting")

    DescribeTopicStatus = served("_lookups.topic_status", pb.DescribeTopicStatusResponse)
    ListSubscription = served("_groups.subscriptions", pb.ListSubscriptionResponse)
    DescribeSubscription = served("_groups.clients", pb.DescribeSubscriptionResponse)

    async def DeleteSubscription(
        self, _request: pb.DeleteSubscriptionRequest, _context: Any
    ) -> Any:
        return pb.DeleteSubscriptionResponse(status=not_answered("DeleteSubscription").status)

    DescribeGroupAccumulation = served("_groups.accumulation", pb.DescribeGroupAccumulationResponse)
    ListConsumerConnection = served("_groups.connections", pb.ListConsumerConnectionResponse)
    ResetGroupOffset = served("_groups.reset", pb.ResetGroupOffsetResponse)
    QueryMessage = served("_lookups.messages", pb.ListMessageResponse)
    PrintThreadStackTrace = served("_lookups.stack", pb.PrintThreadStackTraceResponse)
    VerifyMessage = served("_lookups.verify", pb.VerifyMessageResponse)
    AdminSendMessage = served("_send", pb.AdminSendMessageResponse)

    async def GetConsumerRunningInfo(
        self, _request: pb.GetConsumerRunningInfoRequest, _context: Any
    ) -> Any:
        refused = not_answered("GetConsumerRunningInfo").status
        return pb.GetConsumerRunningInfoResponse(status=refused)

    GetTopicRoute = served("_lookups.topic_route", pb.GetTopicRouteResponse)
    QueryTimeSpan = served("_groups.time_span", pb.QueryTimeSpanResponse)
    GetProxyRuntimeStats = served("_stats", pb.GetProxyRuntimeStatsResponse)

    async def _send(
        self, request: pb.AdminSendMessageRequest, call: GatewayCall
    ) -> pb.AdminSendMessageResponse:
        system = SystemProperties()
        if request.HasField("system_properties"):
            system.CopyFrom(request.system_properties)
        if request.HasField("tag"):
            system.tag = request.tag
        if request.HasField("key"):
            system.keys.append(request.key)
        system.message_id = system.message_id or secrets.token_hex(16).upper()
        message = Message(
            topic=request.topic,
            user_properties=request.user_properties,
            system_properties=system,
            body=request.body,
        )
        sent = await self._sending.send(SendMessageRequest(messages=[message]), call)
        return pb.AdminSendMessageResponse(status=sent.status, message_id=system.message_id)

    async def _stats(
        self, _request: pb.GetProxyRuntimeStatsRequest, _call: GatewayCall
    ) -> pb.GetProxyRuntimeStatsResponse:
        clients = list(self._presence)
        return pb.GetProxyRuntimeStatsResponse(
            status=OK,
            proxy_name=self._name,
            version=version("rockoon-gateway"),
            connections=len(clients),
            producers=sum(each.client_type == ClientType.PRODUCER for each in clients),
            consumers=sum(each.is_consumer for each in clients),
        )
