"""Look-ups for consoles: topics, messages, and commands to clients."""

import json
import secrets
from collections.abc import Sequence

from rockoon import Cluster
from rockoon.message import Message
from rockoon.net.routes import TopicRoute
from rockoon_gateway.calls import GatewayCall
from rockoon_gateway.clients.presence import GatewayClient, Presence
from rockoon_gateway.clients.reports import details_of
from rockoon_gateway.clients.telemetry import TelemetryStreams
from rockoon_gateway.codes import OK, Refusal, code_of, status
from rockoon_gateway.delivered import to_wire
from rockoon_gateway.names import checked_group, checked_topic, epoch_ms
from rockoon_gateway.routes import TopicRoutes, accepted_types
from rockoon_proto.apache.rocketmq.v2 import admin_pb2 as pb
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import Code, MessageType, Resource
from rockoon_proto.apache.rocketmq.v2.service_pb2 import (
    PrintThreadStackTraceCommand,
    TelemetryCommand,
    VerifyMessageCommand,
)

MESSAGES_MAX = 64
# Official clients and consoles end a call after three seconds: the gateway replies before.
ANSWER_SECONDS_MAX = 2.5
# Seconds of the caller's timeout reserved for sending the reply.
ANSWER_SECONDS_LEFT = 0.25
# Languages whose client libraries ignore the commands below. They receive them anyway: a later
# release may reply.
IGNORING_LANGUAGES = frozenset({"PYTHON", "RUST", "DOT_NET"})
MASTER = "0"


class Lookups:
    """Serves the Admin calls about topics, messages and clients of this gateway."""

    def __init__(
        self, cluster: Cluster, topics: TopicRoutes, presence: Presence, telemetry: TelemetryStreams
    ) -> None:
        self._cluster = cluster
        self._topics = topics
        self._presence = presence
        self._telemetry = telemetry

    async def topic_status(
        self, request: pb.DescribeTopicStatusRequest, call: GatewayCall
    ) -> pb.DescribeTopicStatusResponse:
        """Return the message type of a topic; UNSPECIFIED if it accepts several."""
        route = await self._route(request.topic, call)
        types = accepted_types(route)
        only = types[0] if len(types) == 1 else MessageType.MESSAGE_TYPE_UNSPECIFIED
        return pb.DescribeTopicStatusResponse(status=OK, topic_message_type=only)

    async def topic_route(
        self, request: pb.GetTopicRouteRequest, call: GatewayCall
    ) -> pb.GetTopicRouteResponse:
        """Return a topic's route as JSON of the classic protocol, with Rockoon's addresses."""
        route = await self._route(request.topic, call)
        return pb.GetTopicRouteResponse(
            status=OK, topic_route_data=json.dumps(classic_route(self._cluster, route))
        )

    async def messages(
        self, request: pb.ListMessageRequest, call: GatewayCall
    ) -> pb.ListMessageResponse:
        """Find messages by id or key, the newest first; fails if brokers could not search."""
        topic = checked_topic(request.topic, call.namespace)
        call.require_topic("read", topic)
        by = request.WhichOneof("search_key")
        if by not in ("message_id", "message_key"):
            raise Refusal(Code.BAD_REQUEST, "messages are found by message_id or message_key")
        begin_ms = epoch_ms(request.begin_timestamp, "begin_timestamp")
        end_ms = epoch_ms(request.end_timestamp, "end_timestamp")
        found = await self._cluster.admin.messages.query(
            topic,
            getattr(request, by),
            unique=by == "message_id",
            begin_ms=begin_ms,
            end_ms=end_ms,
            max_messages=min(max(request.max_message_nums or MESSAGES_MAX, 1), MESSAGES_MAX),
        )
        if not found.messages and not found.whole:
            failed = {**found.unsearched, **{at: str(e) for at, e in found.errors.items()}}
            codes = {code_of(error) for error in found.errors.values()}
            code = codes.pop() if len(codes) == 1 else Code.PROXY_TIMEOUT
            raise Refusal(code, "; ".join(f"{at}: {x}" for at, x in failed.items()))
        messages = paged(found.messages, request)
        return pb.ListMessageResponse(
            status=OK,
            messages=[to_wire(each, request.topic, attempt=each.attempt) for each in messages],
        )

    async def stack(
        self, request: pb.PrintThreadStackTraceRequest, call: GatewayCall
    ) -> pb.PrintThreadStackTraceResponse:
        """Return the stacks of a client's threads, as the client reports them."""
        client = self._client(request.group, request.client_id, call)
        nonce = secrets.token_hex(16)
        command = TelemetryCommand(
            status=OK,
            print_thread_stack_trace_command=PrintThreadStackTraceCommand(nonce=nonce),
        )
        answer = await self._asked(client, nonce, command, call)
        return pb.PrintThreadStackTraceResponse(
            status=answer.status, thread_stack_trace=answer.thread_stack_trace.thread_stack_trace
        )

    async def verify(
        self, request: pb.VerifyMessageRequest, call: GatewayCall
    ) -> pb.VerifyMessageResponse:
        """Request that a push consumer's listener handles a message again; return the result."""
        topic = checked_topic(request.topic, call.namespace)
        call.require_topic("read", topic)
        client = self._client(request.group, request.client_id, call)
        found = await self._cluster.admin.messages.query(topic, request.message_id, unique=True)
        if not found.messages:
            raise Refusal(Code.NOT_FOUND, f"topic {topic} has no message {request.message_id}")
        nonce = secrets.token_hex(16)
        message = to_wire(found.messages[0], client.named(topic))
        command = TelemetryCommand(
            status=OK, verify_message_command=VerifyMessageCommand(nonce=nonce, message=message)
        )
        answer = await self._asked(client, nonce, command, call)
        return pb.VerifyMessageResponse(status=answer.status)

    async def _asked(
        self, client: GatewayClient, nonce: str, command: TelemetryCommand, call: GatewayCall
    ) -> TelemetryCommand:
        """Send a command to a client of this gateway and return its reply, which has a status.

        Raises:
            Refusal: NOT_IMPLEMENTED, the client does not reply and its library ignores the
                command; NOT_FOUND, it has no stream here; REQUEST_TIMEOUT, it does not reply before
                the caller's timeout.
        """
        name = str(command.WhichOneof("command"))
        if not client.outboxes:
            text = f"client {client.client_id} has no open Telemetry stream at this gateway"
            raise Refusal(Code.NOT_FOUND, text)
        answer = await self._telemetry.ask(client, nonce, command, seconds_for_answer(call))
        if answer is None and (language := details_of(client).language) in IGNORING_LANGUAGES:
            text = (
                f"client {client.client_id} did not answer {name}: {language} does not support it"
            )
            raise Refusal(Code.NOT_IMPLEMENTED, text)
        if answer is None:
            text = f"client {client.client_id} did not answer {name} in time"
            raise Refusal(Code.REQUEST_TIMEOUT, text)
        if not answer.HasField("status"):
            answer.status.CopyFrom(OK)
        elif not answer.status.message:
            text = f"client {client.client_id} answered {name}"
            answer.status.message = status(answer.status.code, text).message
        return answer

    def _client(self, group: Resource, client_id: str, call: GatewayCall) -> GatewayClient:
        name = checked_group(group, call.namespace)
        call.require("write", f"group:{name}")
        client = self._presence.get(client_id)
        if client is None or client.group != name:
            raise Refusal(Code.NOT_FOUND, f"no client {client_id!r} of {name} is at this gateway")
        return client

    async def _route(self, resource: Resource, call: GatewayCall) -> TopicRoute:
        topic = checked_topic(resource, call.namespace)
        call.require_topic("see", topic)
        return await self._topics.route(topic)


def seconds_for_answer(call: GatewayCall) -> float:
    """Return the seconds to wait for a client, which leave time to reply to the caller."""
    if (left := call.seconds_left) is None:
        return ANSWER_SECONDS_MAX
    return max(min(left - ANSWER_SECONDS_LEFT, ANSWER_SECONDS_MAX), 0.0)


def paged(messages: Sequence[Message], request: pb.ListMessageRequest) -> Sequence[Message]:
    """Return the messages on the requested page; all messages without a page."""
    if request.page_size <= 0:
        return messages
    first = (max(request.page_num, 1) - 1) * request.page_size
    return messages[first : first + request.page_size]


def classic_route(cluster: Cluster, route: TopicRoute) -> dict[str, object]:
    """Return TopicRouteData of the classic protocol for a topic."""
    counts: dict[str, int] = {}
    for queue in route.queues:
        counts[queue.broker] = counts.get(queue.broker, 0) + 1
    return {
        "brokerDatas": [
            {
                "cluster": cluster.routes.cluster,
                "brokerName": broker,
                "brokerAddrs": {MASTER: cluster.routes.broker_address(broker) or ""},
            }
            for broker in counts
        ],
        "queueDatas": [
            {
                "brokerName": broker,
                "readQueueNums": count,
                "writeQueueNums": count,
                "perm": route.permissions,
                "topicSysFlag": 0,
            }
            for broker, count in counts.items()
        ],
        "filterServerTable": {},
    }
