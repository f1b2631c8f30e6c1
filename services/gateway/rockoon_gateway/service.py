"""Service: passes the protocol's calls to their implementations; errors are statuses of replies.

gRPC's own status is always OK: clients read the status in the reply. Only Telemetry ends with
gRPC's.
"""

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import grpc

from rockoon_core.errors import RockoonError
from rockoon_core.valid_text import exception_text
from rockoon_gateway.calls import Callers, GatewayCall, served
from rockoon_gateway.clients.presence import Presence
from rockoon_gateway.clients.telemetry import TelemetryStreams
from rockoon_gateway.codes import Refusal, status, status_of
from rockoon_gateway.consuming.consuming import Consuming
from rockoon_gateway.producing.sending import Sending
from rockoon_gateway.routes import QueryRoutes
from rockoon_proto.apache.rocketmq.v2 import service_pb2 as pb
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import Code, Status
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
