"""A client of the gateway with its own stubs: each call as a client library makes it."""

from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from grpc import aio

from rockoon_proto.apache.rocketmq.v2 import definition_pb2 as d
from rockoon_proto.apache.rocketmq.v2 import service_pb2 as pb
from rockoon_proto.apache.rocketmq.v2.service_pb2_grpc import MessagingServiceStub

CALL_SECONDS_MAX = 60.0


class WireClient:
    """One connection.

    Args:
        address: address of the gateway.
        client_id: its client id; empty: no header.
        headers: further headers.
        ca: PEM file of the authority of the gateway's certificate; None: a connection without TLS.
        server_name: name that the certificate must have; empty: the host of the address.
        channel: used instead of gRPC's own; it is closed with this.
        namespace: namespace of all resources in its requests.
    """

    def __init__(
        self,
        address: str,
        client_id: str = "host@1@0@test",
        headers: dict[str, str] | None = None,
        ca: Path | None = None,
        server_name: str = "",
        channel: aio.Channel | None = None,
        namespace: str = "",
    ) -> None:
        own = {"x-mq-client-id": client_id, "x-mq-language": "JAVA", "x-mq-protocol": "v2"}
        if not client_id:
            del own["x-mq-client-id"]
        self.address = address
        self.client_id = client_id
        self.namespace = namespace
        self.metadata = tuple({**own, **(headers or {})}.items())
        options = (
            ("grpc.max_receive_message_length", -1),
            # A separate connection; otherwise all channels of a process to one address share one.
            ("grpc.use_local_subchannel_pool", 1),
        )
        if channel is not None:
            self._channel = channel
        elif ca is None:
            self._channel = aio.insecure_channel(address, options)
        else:
            trust = grpc.ssl_channel_credentials(ca.read_bytes())
            named = (("grpc.ssl_target_name_override", server_name),) if server_name else ()
            self._channel = aio.secure_channel(address, trust, (*options, *named))
        self.stub: Any = MessagingServiceStub(self._channel)

    async def __aenter__(self) -> "WireClient":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._channel.close()

    @property
    def endpoints(self) -> d.Endpoints:
        host, _, port = self.address.rpartition(":")
        return d.Endpoints(scheme=d.IPv4, addresses=[d.Address(host=host, port=int(port))])

    async def call(self, rpc: str, request: Any, seconds: float = CALL_SECONDS_MAX) -> Any:
        """Make a unary call."""
        place(request, self.namespace)
        return await getattr(self.stub, rpc)(request, metadata=self.metadata, timeout=seconds)

    async def frames(self, rpc: str, request: Any, seconds: float = CALL_SECONDS_MAX) -> list[Any]:
        """Return all replies of a streaming call."""
        place(request, self.namespace)
        call = getattr(self.stub, rpc)(request, metadata=self.metadata, timeout=seconds)
        return [answer async for answer in call]

    async def route(self, topic: str) -> pb.QueryRouteResponse:
        request = pb.QueryRouteRequest(topic=d.Resource(name=topic), endpoints=self.endpoints)
        answer: pb.QueryRouteResponse = await self.call("QueryRoute", request)
        return answer

    async def send(self, *messages: d.Message) -> pb.SendMessageResponse:
        request = pb.SendMessageRequest(messages=messages)
        answer: pb.SendMessageResponse = await self.call("SendMessage", request)
        return answer

    async def end(
        self,
        topic: str,
        entry: pb.SendResultEntry,
        resolution: d.TransactionResolution,
        **others: Any,
    ) -> d.Code:
        """End the transaction of a half message; return the code."""
        fields = {
            "topic": d.Resource(name=topic),
            "message_id": entry.message_id,
            "transaction_id": entry.transaction_id,
            "resolution": resolution,
            "source": d.SOURCE_CLIENT,
            **others,
        }
        answer = await self.call("EndTransaction", pb.EndTransactionRequest(**fields))
        code: d.Code = answer.status.code
        return code

    async def heartbeat(self, client_type: d.ClientType, group: str = "") -> pb.HeartbeatResponse:
        request = pb.HeartbeatRequest(client_type=client_type)
        if group:
            request.group.name = group
        answer: pb.HeartbeatResponse = await self.call("Heartbeat", request)
        return answer

    def telemetry(self) -> "TelemetryStream":
        return TelemetryStream(self.stub.Telemetry(metadata=self.metadata), self.namespace)


def place(request: Any, namespace: str) -> None:
    """Put every resource of a request into a namespace, as client libraries do."""
    if isinstance(request, d.Resource):
        request.resource_namespace = request.resource_namespace or namespace
        return
    for field, value in request.ListFields():
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for each in [value] if isinstance(value, Message) else value:
                place(each, namespace)


class TelemetryStream:
    """One Telemetry stream.

    Args:
        call: the call of gRPC.
        namespace: namespace of all resources in commands.
    """

    def __init__(self, call: Any, namespace: str = "") -> None:
        self._call = call
        self._namespace = namespace

    async def tell(self, settings: d.Settings) -> pb.TelemetryCommand:
        """Send settings; return the first reply."""
        await self.send(pb.TelemetryCommand(settings=settings))
        return await self.next()

    async def send(self, command: pb.TelemetryCommand) -> None:
        place(command, self._namespace)
        await self._call.write(command)

    async def next(self) -> pb.TelemetryCommand:
        answer = await self._call.read()
        assert isinstance(answer, pb.TelemetryCommand), "the stream has ended"
        return answer

    async def rest(self) -> AsyncIterator[pb.TelemetryCommand]:
        """Yield the commands until the server ends the stream."""
        while isinstance(answer := await self._call.read(), pb.TelemetryCommand):
            yield answer

    async def has_ended(self) -> None:
        """Wait until the stream has ended, in any way."""
        with suppress(aio.AioRpcError):
            async for _ in self.rest():
                pass

    async def close(self) -> None:
        """End the stream as clients do."""
        await self._call.done_writing()


def message(topic: str, body: bytes = b"body", message_id: str = "01", **system: Any) -> d.Message:
    """Return a message as producers make it; `system` are further system properties."""
    born = Timestamp()
    born.FromMilliseconds(1_700_000_000_123)
    fields = {
        "message_id": message_id,
        "message_type": d.NORMAL,
        "body_encoding": d.IDENTITY,
        "born_timestamp": born,
        "born_host": "client.example.org",
        **system,
    }
    user = fields.pop("user_properties", {})
    return d.Message(
        topic=d.Resource(name=topic),
        user_properties=user,
        system_properties=d.SystemProperties(**fields),
        body=body,
    )


def due(epoch_ms: int) -> Timestamp:
    """Return a time in its wire form."""
    time = Timestamp()
    time.FromMilliseconds(epoch_ms)
    return time


def producer_settings(*topics: str, language: d.Language = d.Language.JAVA) -> d.Settings:
    return d.Settings(
        client_type=d.PRODUCER,
        user_agent=d.UA(language=language),
        publishing=d.Publishing(topics=[d.Resource(name=topic) for topic in topics]),
    )


def consumer_settings(
    group: str,
    *topics: str,
    client_type: d.ClientType = d.PUSH_CONSUMER,
    language: d.Language = d.Language.JAVA,
) -> d.Settings:
    entries = [
        d.SubscriptionEntry(
            topic=d.Resource(name=topic), expression=d.FilterExpression(type=d.TAG, expression="*")
        )
        for topic in topics
    ]
    return d.Settings(
        client_type=client_type,
        user_agent=d.UA(language=language),
        subscription=d.Subscription(group=d.Resource(name=group), subscriptions=entries),
    )
