"""Lite consumers and lite producers by the protocol's own calls."""

from dataclasses import dataclass
from typing import Any

import rockoon
from gateway.consumers import Consumer
from gateway.wire_client import WireClient, message
from rockoon_proto.apache.rocketmq.v2 import definition_pb2 as d
from rockoon_proto.apache.rocketmq.v2 import service_pb2 as pb


@dataclass(frozen=True)
class LiteConsumer(Consumer):
    """A client of a group that reads lite topics of `topic`; by default one message at a time."""

    def request(self, *, batch_size: int = 1, **options: Any) -> pb.ReceiveMessageRequest:
        return super().request(batch_size=batch_size, **options)

    async def sync(
        self, *lite_topics: str, action: d.LiteSubscriptionAction = d.PARTIAL_ADD, **fields: Any
    ) -> pb.SyncLiteSubscriptionResponse:
        request = pb.SyncLiteSubscriptionRequest(
            action=action,
            topic=d.Resource(name=self.topic),
            group=d.Resource(name=self.group),
            lite_topic_set=lite_topics,
            **fields,
        )
        answer: pb.SyncLiteSubscriptionResponse = await self.client.call(
            "SyncLiteSubscription", request
        )
        return answer

    async def subscribe(self, *lite_topics: str, **fields: Any) -> None:
        answer = await self.sync(*lite_topics, **fields)
        assert answer.status.code == d.OK, answer

    async def send(self, lite_topic: str, *bodies: bytes) -> None:
        """Send messages, one call each."""
        for body in bodies:
            answer = await self.client.send(lite_message(self.topic, lite_topic, body))
            assert answer.status.code == d.OK, answer


def lite_message(topic: str, lite_topic: str, body: bytes, **system: Any) -> d.Message:
    fields = {"message_type": d.LITE, "lite_topic": lite_topic, **system}
    return message(topic, body, f"id-{body.decode()}", **fields)


async def lite_parent(cluster: rockoon.Cluster, name: str, **attributes: str) -> str:
    """Create a parent topic of lite topics; return its name."""
    given = {"message.type": "LITE", **attributes}
    await cluster.admin.create_topic(name, queues_per_broker=2, attributes=given)
    return name


async def lite_consumer(client: WireClient, cluster: rockoon.Cluster, name: str) -> LiteConsumer:
    """Create a consumer of a parent of its own name, in a group that the gateway creates."""
    return LiteConsumer(client, f"readers-of-{name}", await lite_parent(cluster, name))
