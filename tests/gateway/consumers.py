"""Consumers by the protocol's own calls, as client libraries make them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.duration_pb2 import Duration

import rockoon
from gateway.wire_client import WireClient
from rockoon_proto.apache.rocketmq.v2 import definition_pb2 as d
from rockoon_proto.apache.rocketmq.v2 import service_pb2 as pb

ALL = d.FilterExpression(type=d.TAG, expression="*")


def duration(seconds: float) -> Duration:
    made = Duration()
    made.FromMilliseconds(round(seconds * 1000))
    return made


@dataclass(frozen=True)
class Consumer:
    """One group and topic, by one client."""

    client: WireClient
    group: str
    topic: str

    def request(
        self,
        *,
        batch_size: int = 16,
        invisible: float = 30.0,
        wait: float = 10.0,
        renewed: bool = False,
        expression: d.FilterExpression = ALL,
        attempt_id: str = "",
    ) -> pb.ReceiveMessageRequest:
        request = pb.ReceiveMessageRequest(
            group=d.Resource(name=self.group),
            message_queue=d.MessageQueue(
                topic=d.Resource(name=self.topic), id=-1, broker=d.Broker(name="broker-a")
            ),
            filter_expression=expression,
            batch_size=batch_size,
            auto_renew=renewed,
            long_polling_timeout=duration(wait),
        )
        if not renewed:
            request.invisible_duration.CopyFrom(duration(invisible))
        if attempt_id:
            request.attempt_id = attempt_id
        return request

    async def frames(self, **options: Any) -> list[pb.ReceiveMessageResponse]:
        """Return the replies of one call."""
        return await self.client.frames("ReceiveMessage", self.request(**options))

    async def receive(self, **options: Any) -> list[d.Message]:
        """Return the messages of one call; empty if there are none."""
        frames = await self.frames(**options)
        code = frames[0].status.code
        found = [each.message for each in frames if each.WhichOneof("content") == "message"]
        assert code == (d.OK if found else d.MESSAGE_NOT_FOUND), frames[0]
        return found

    async def receive_all(self, count: int, **options: Any) -> list[d.Message]:
        """Repeat the call until this number of messages has arrived; the test's timeout limits the
        wait."""
        found: list[d.Message] = []
        while len(found) < count:
            found += await self.receive(**options)
        return found

    async def acknowledge(self, *handles: str) -> pb.AckMessageResponse:
        entries = [
            pb.AckMessageEntry(message_id=f"m{number}", receipt_handle=handle)
            for number, handle in enumerate(handles)
        ]
        request = pb.AckMessageRequest(
            group=d.Resource(name=self.group), topic=d.Resource(name=self.topic), entries=entries
        )
        answer: pb.AckMessageResponse = await self.client.call("AckMessage", request)
        return answer

    async def change(
        self, handle: str, seconds: float, **fields: Any
    ) -> pb.ChangeInvisibleDurationResponse:
        request = pb.ChangeInvisibleDurationRequest(
            group=d.Resource(name=self.group),
            topic=d.Resource(name=self.topic),
            receipt_handle=handle,
            invisible_duration=duration(seconds),
            **fields,
        )
        answer: pb.ChangeInvisibleDurationResponse = await self.client.call(
            "ChangeInvisibleDuration", request
        )
        return answer

    async def forward(self, handle: str) -> pb.ForwardMessageToDeadLetterQueueResponse:
        request = pb.ForwardMessageToDeadLetterQueueRequest(
            group=d.Resource(name=self.group),
            topic=d.Resource(name=self.topic),
            receipt_handle=handle,
            delivery_attempt=1,
            max_delivery_attempts=3,
        )
        answer: pb.ForwardMessageToDeadLetterQueueResponse = await self.client.call(
            "ForwardMessageToDeadLetterQueue", request
        )
        return answer


def handle(message: d.Message) -> str:
    return message.system_properties.receipt_handle


def bodies(messages: Sequence[d.Message]) -> list[bytes]:
    return [message.body for message in messages]


async def topic_with(
    cluster: rockoon.Cluster,
    name: str,
    messages: Sequence[bytes] = (),
    *,
    queues: int = 1,
    tags: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
) -> str:
    """Create a topic, and send messages to it by the SDK; return its name."""
    await cluster.admin.create_topic(name, queues_per_broker=queues)
    await send(cluster, name, messages, tags=tags, properties=properties)
    return name


async def send(
    cluster: rockoon.Cluster,
    topic: str,
    messages: Sequence[bytes],
    *,
    tags: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
) -> None:
    async with cluster.producer() as producer:
        for number, body in enumerate(messages):
            tag = tags[number] if tags else None
            await producer.send(topic, body, tags=tag, properties=properties)
