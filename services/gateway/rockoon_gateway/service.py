"""Servicers: pass the protocol's calls to their implementations; errors are statuses of replies.

gRPC's own status is always OK: clients read the status in the reply. Only Telemetry ends with
gRPC's.
"""

import logging
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import grpc

from rockoon_core.errors import RockoonError
from rockoon_core.valid_text import exception_text
from rockoon_gateway.calls import Callers, GatewayCall, served
from rockoon_gateway.clients.presence import Presence
from rockoon_gateway.clients.telemetry import TelemetryStreams
from rockoon_gateway.codes import OK, Refusal, status, status_of
from rockoon_gateway.consoles.groups_report import GroupReports, not_answered
from rockoon_gateway.consoles.lookups import Lookups
from rockoon_gateway.consuming.consuming import Consuming
from rockoon_gateway.producing.sending import Sending
from rockoon_gateway.routes import QueryRoutes
from rockoon_proto.apache.rocketmq.v2 import admin_pb2
from rockoon_proto.apache.rocketmq.v2 import service_pb2 as pb
from rockoon_proto.apache.rocketmq.v2.admin_pb2_grpc import AdminServicer
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import (
    ClientType,
    Code,
    Message,
    Status,
    SystemProperties,
)
from rockoon_proto.apache.rocketmq.v2.service_pb2_grpc import MessagingServiceServicer
from rockoon_rpc.session import framed

log = logging.getLogger(__name__)

_CALLERS_FAULT = range(40_000, 50_000)


@dataclass(frozen=True, slots=True)
class Services:
    """Components that implement the calls of the Messaging service."""

    routes: QueryRoutes
    presence: Presence
    telemetry: TelemetryStreams
    sending: Sending
    consuming: Consuming


class MessagingServicer(MessagingServiceServicer):
    """Serves the protocol's Messaging service."""

    def __init__(self, callers: Callers, services: Services) -> None:
        self._callers = callers
        self._services = services

    QueryRoute = served("_services.routes.query", pb.QueryRouteResponse)
    Heartbeat = served("_services.presence.heartbeat", pb.HeartbeatResponse)
    NotifyClientTermination = served(
        "_services.presence.terminate", pb.NotifyClientTerminationResponse
    )
    SendMessage = served("_services.sending.send", pb.SendMessageResponse)
    EndTransaction = served("_services.sending.end_transaction", pb.EndTransactionResponse)
    RecallMessage = served("_services.sending.recall", pb.RecallMessageResponse)
    QueryAssignment = served("_services.consuming.query_assignment", pb.QueryAssignmentResponse)
    AckMessage = served("_services.consuming.acknowledge", pb.AckMessageResponse)
    ForwardMessageToDeadLetterQueue = served(
        "_services.consuming.forward_to_dead_letters", pb.ForwardMessageToDeadLetterQueueResponse
    )
    ChangeInvisibleDuration = served(
        "_services.consuming.change_invisible", pb.ChangeInvisibleDurationResponse
    )
    UpdateOffset = served("_services.consuming.update_offset", pb.UpdateOffsetResponse)
    GetOffset = served("_services.consuming.get_offset", pb.GetOffsetResponse)
    QueryOffset = served("_services.consuming.query_offset", pb.QueryOffsetResponse)
    SyncLiteSubscription = served("_services.consuming.sync_lite", pb.SyncLiteSubscriptionResponse)

    # The generated class expects an async generator.
    async def ReceiveMessage(  # type: ignore[override]
        self, request: pb.ReceiveMessageRequest, context: Any
    ) -> None:
        try:
            caller = self._callers.caller(context)
            await self._services.consuming.receive(request, caller, context)
        except Exception as failure:  # noqa: BLE001 - logged by `_refused`
            refused = self._refused(failure, pb.ReceiveMessageResponse)
            if not context.done():
                await context.write_framed(framed(refused.SerializeToString()), last=True)

    def PullMessage(self, request: pb.PullMessageRequest, context: Any) -> AsyncIterator[Any]:
        pull = self._services.consuming.pull
        return self._stream(pull, request, context, pb.PullMessageResponse)

    async def Telemetry(
        self, requests: AsyncIterator[pb.TelemetryCommand], context: Any
    ) -> AsyncIterator[pb.TelemetryCommand]:
        refused: Status | None = None
        try:
            call = self._callers.caller(context)
            stream = self._services.telemetry.stream(requests, call, lambda: context.signs_of_life)
            async with aclosing(stream) as commands:
                async for command in commands:
                    yield command
        except (Refusal, RockoonError) as error:
            refused = status_of(error)
        if refused is not None:
            self._callers.count_refused("TelemetryStreams", refused)
            by_caller = refused.code in _CALLERS_FAULT
            code = grpc.StatusCode.INVALID_ARGUMENT if by_caller else grpc.StatusCode.INTERNAL
            await context.abort(code, refused.message)

    async def _stream(
        self,
        method: Callable[[Any, GatewayCall], AsyncGenerator[Any, None]],
        request: Any,
        context: Any,
        answer: type[Any],
    ) -> AsyncGenerator[Any, None]:
        try:
            async with aclosing(method(request, self._callers.caller(context))) as each:
                async for one in each:
                    yield one
        except Exception as failure:  # noqa: BLE001 - logged by `_refused`
            yield self._refused(failure, answer)

    def _refused(self, failure: Exception, answer: type[Any]) -> Any:
        if isinstance(failure, Refusal | RockoonError):
            refused = status_of(failure)
        else:
            text = "unexpected error, returned to the caller in %s (bug)"
            log.error(text, answer.__name__, exc_info=failure)
            refused = status(Code.INTERNAL_SERVER_ERROR, exception_text(failure))
        self._callers.count_refused(answer.__name__, refused)
        return answer(status=refused)


class ConsoleServicer(AdminServicer):
    """Serves the protocol's Admin service of the gateway `name`.

    Calls without a correct reply are NOT_IMPLEMENTED: the memory contents of a running consumer,
    and deleting the record that a group reads a topic, which nameservers delete only with the
    group.
    """

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

    async def ChangeLogLevel(self, _request: admin_pb2.ChangeLogLevelRequest, _context: Any) -> Any:
        # The reply has no status.
        return admin_pb2.ChangeLogLevelResponse(remark="not supported: log_level is a setting")

    DescribeTopicStatus = served("_lookups.topic_status", admin_pb2.DescribeTopicStatusResponse)
    ListSubscription = served("_groups.subscriptions", admin_pb2.ListSubscriptionResponse)
    DescribeSubscription = served("_groups.clients", admin_pb2.DescribeSubscriptionResponse)

    async def DeleteSubscription(
        self, _request: admin_pb2.DeleteSubscriptionRequest, _context: Any
    ) -> Any:
        return admin_pb2.DeleteSubscriptionResponse(
            status=not_answered("DeleteSubscription").status
        )

    DescribeGroupAccumulation = served(
        "_groups.accumulation", admin_pb2.DescribeGroupAccumulationResponse
    )
    ListConsumerConnection = served("_groups.connections", admin_pb2.ListConsumerConnectionResponse)
    ResetGroupOffset = served("_groups.reset", admin_pb2.ResetGroupOffsetResponse)
    QueryMessage = served("_lookups.messages", admin_pb2.ListMessageResponse)
    PrintThreadStackTrace = served("_lookups.stack", admin_pb2.PrintThreadStackTraceResponse)
    VerifyMessage = served("_lookups.verify", admin_pb2.VerifyMessageResponse)
    AdminSendMessage = served("_send", admin_pb2.AdminSendMessageResponse)

    async def GetConsumerRunningInfo(
        self, _request: admin_pb2.GetConsumerRunningInfoRequest, _context: Any
    ) -> Any:
        refused = not_answered("GetConsumerRunningInfo").status
        return admin_pb2.GetConsumerRunningInfoResponse(status=refused)

    GetTopicRoute = served("_lookups.topic_route", admin_pb2.GetTopicRouteResponse)
    QueryTimeSpan = served("_groups.time_span", admin_pb2.QueryTimeSpanResponse)
    GetProxyRuntimeStats = served("_stats", admin_pb2.GetProxyRuntimeStatsResponse)

    async def _send(
        self, request: admin_pb2.AdminSendMessageRequest, call: GatewayCall
    ) -> admin_pb2.AdminSendMessageResponse:
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
        sent = await self._sending.send(pb.SendMessageRequest(messages=[message]), call)
        return admin_pb2.AdminSendMessageResponse(status=sent.status, message_id=system.message_id)

    async def _stats(
        self, _request: admin_pb2.GetProxyRuntimeStatsRequest, _call: GatewayCall
    ) -> admin_pb2.GetProxyRuntimeStatsResponse:
        clients = list(self._presence)
        return admin_pb2.GetProxyRuntimeStatsResponse(
            status=OK,
            proxy_name=self._name,
            version=version("rockoon-gateway"),
            connections=len(clients),
            producers=sum(each.client_type == ClientType.PRODUCER for each in clients),
            consumers=sum(each.is_consumer for each in clients),
        )
