"""Valid requests for every call of the gateway, about existing topics and groups."""

import random
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

import rockoon
from gateway.consumers import Consumer
from gateway.lite_consumers import lite_message, lite_parent
from gateway.wire_client import WireClient, due, message
from rockoon_core.clock import wall_clock_ms
from rockoon_proto.apache.rocketmq.v2 import admin_pb2 as a
from rockoon_proto.apache.rocketmq.v2 import definition_pb2 as d
from rockoon_proto.apache.rocketmq.v2 import service_pb2 as pb

TOPIC, LITE, PRIORITY, GROUP, LITE_GROUP = "fuzz", "lite", "priority", "fuzz", "lite-readers"
CLIENTS = tuple(f"host@{number}@0@fuzz" for number in range(20))
MESSAGE_IDS = ("fuzz-1", "fuzz-2")


def methods() -> list[MethodDescriptor]:
    """Return every call of the protocol's two services."""
    return [
        method
        for service in (
            pb.DESCRIPTOR.services_by_name["MessagingService"],
            a.DESCRIPTOR.services_by_name["Admin"],
        )
        for method in service.methods
    ]


class Delivery(NamedTuple):
    """A received message."""

    message_id: str
    handle: str


async def make_topics(cluster: rockoon.Cluster) -> None:
    """Create the topics and groups that requests name."""
    await cluster.admin.create_topic(TOPIC, queues_per_broker=2)
    await lite_parent(cluster, LITE)
    attributes = {"message.type": "PRIORITY"}
    await cluster.admin.create_topic(PRIORITY, queues_per_broker=2, attributes=attributes)
    await cluster.admin.create_group(GROUP)


class Requests:
    """Makes valid requests. Their handles and ids belong to messages that were sent before.

    Args:
        client: sends and receives these messages.
    """

    def __init__(self, client: WireClient) -> None:
        self._client = client
        self._deliveries: deque[Delivery] = deque()
        self._halves: deque[str] = deque()
        self._recalls: deque[str] = deque()
        self._makers: Mapping[str, Callable[[random.Random], Message]] = {
            name.removeprefix("_make_"): getattr(self, name)
            for name in dir(self)
            if name.startswith("_make_")
        }

    async def valid(self, method: MethodDescriptor, chance: random.Random) -> Message:
        """Return a request that gets OK, or the status that there is no message."""
        await self._fill()
        return self._makers[method.name](chance)

    async def _fill(self) -> None:
        """Create messages in flight, half messages and delayed messages."""
        if not self._halves:
            for _ in range(16):
                half = message(TOPIC, b"half", message_type=d.TRANSACTION)
                self._halves.append((await self._send(half)).transaction_id)
        if not self._recalls:
            for _ in range(16):
                delayed = message(TOPIC, b"later", delivery_timestamp=due(wall_clock_ms() + 10**6))
                self._recalls.append((await self._send(delayed)).recall_handle)
        if not self._deliveries:
            sent = [message(TOPIC, b"body", MESSAGE_IDS[n % 2], keys=["key"]) for n in range(64)]
            answer = await self._client.send(*sent)
            assert answer.status.code == d.OK, answer
            consumer = Consumer(self._client, GROUP, TOPIC)
            self._deliveries.extend(
                Delivery(each.system_properties.message_id, each.system_properties.receipt_handle)
                for each in await consumer.receive(batch_size=32, wait=2.0)
            )

    async def _send(self, one: d.Message) -> pb.SendResultEntry:
        answer = await self._client.send(one)
        assert answer.status.code == d.OK, answer
        return answer.entries[0]

    def _delivery(self) -> Delivery:
        # Several requests wait for the same messages.
        return self._deliveries.popleft() if self._deliveries else Delivery("none", "none")

    def _queue(self, chance: random.Random) -> d.MessageQueue:
        broker = d.Broker(name="broker-a", endpoints=self._client.endpoints)
        queue_id = chance.choice((-1, 0, 1))
        return d.MessageQueue(topic=named(TOPIC), id=queue_id, broker=broker)

    def _stored_queue(self, chance: random.Random) -> d.MessageQueue:
        queue = self._queue(chance)
        queue.id = max(queue.id, 0)
        return queue

    # One for each call; `message` makes messages.

    def _make_QueryRoute(self, chance: random.Random) -> Message:
        topic = chance.choice((TOPIC, LITE, PRIORITY))
        return pb.QueryRouteRequest(topic=named(topic), endpoints=self._client.endpoints)

    def _make_Heartbeat(self, chance: random.Random) -> Message:
        client_type = chance.choice((d.PRODUCER, d.PUSH_CONSUMER, d.SIMPLE_CONSUMER))
        return pb.HeartbeatRequest(group=named(GROUP), client_type=client_type)

    def _make_SendMessage(self, chance: random.Random) -> Message:
        kind = chance.randrange(8)
        fields: dict[str, Any] = {"tag": "red", "keys": ["k1", "k2"], "trace_context": "trace"}
        body = chance.randbytes(chance.choice((1, 20, 2000)))
        match kind:
            case 0:
                one = message(TOPIC, body, message_type=d.FIFO, message_group="group", **fields)
            case 1:
                at = due(wall_clock_ms() + 10**6)
                one = message(TOPIC, body, message_type=d.DELAY, delivery_timestamp=at, **fields)
            case 2:
                recovery = Duration(seconds=30)
                fields["orphaned_transaction_recovery_duration"] = recovery
                one = message(TOPIC, body, message_type=d.TRANSACTION, **fields)
            case 3:
                one = lite_message(LITE, "one", b"lite", **fields)
            case 4:
                one = message(PRIORITY, body, message_type=d.PRIORITY, priority=1, **fields)
            case _:
                one = message(TOPIC, body, user_properties={"color": "red"}, **fields)
        return pb.SendMessageRequest(messages=[one] * chance.choice((1, 1, 3)))

    def _make_QueryAssignment(self, _chance: random.Random) -> Message:
        return pb.QueryAssignmentRequest(
            topic=named(TOPIC), group=named(GROUP), endpoints=self._client.endpoints
        )

    def _make_ReceiveMessage(self, chance: random.Random) -> Message:
        topic, group = chance.choice(((TOPIC, GROUP), (LITE, LITE_GROUP)))
        sql = d.FilterExpression(type=d.SQL, expression="color = 'red'")
        tags = d.FilterExpression(type=d.TAG, expression=chance.choice(("*", "red || blue")))
        request = Consumer(self._client, group, topic).request(
            batch_size=chance.choice((1, 32)),
            wait=0.0,
            renewed=chance.random() < 0.3,
            expression=chance.choice((tags, sql)),
            attempt_id="attempt",
        )
        request.message_queue.CopyFrom(self._queue(chance))
        request.message_queue.topic.name = topic
        return request

    def _make_AckMessage(self, chance: random.Random) -> Message:
        entries = [self._delivery() for _ in range(chance.choice((1, 3)))]
        return pb.AckMessageRequest(
            group=named(GROUP),
            topic=named(TOPIC),
            entries=[
                pb.AckMessageEntry(message_id=each.message_id, receipt_handle=each.handle)
                for each in entries
            ],
        )

    def _make_ForwardMessageToDeadLetterQueue(self, _chance: random.Random) -> Message:
        delivery = self._delivery()
        return pb.ForwardMessageToDeadLetterQueueRequest(
            group=named(GROUP),
            topic=named(TOPIC),
            receipt_handle=delivery.handle,
            message_id=delivery.message_id,
            delivery_attempt=1,
            max_delivery_attempts=3,
        )

    def _make_PullMessage(self, chance: random.Random) -> Message:
        return pb.PullMessageRequest(
            group=named(GROUP),
            message_queue=self._stored_queue(chance),
            offset=chance.randrange(5),
            batch_size=8,
            filter_expression=d.FilterExpression(type=d.TAG, expression="*"),
            long_polling_timeout=Duration(nanos=10**6),
        )

    def _make_UpdateOffset(self, chance: random.Random) -> Message:
        # No receiver of this group has acquired messages below the offset.
        return pb.UpdateOffsetRequest(
            group=named("pulling"), message_queue=self._stored_queue(chance), offset=1
        )

    def _make_GetOffset(self, chance: random.Random) -> Message:
        return pb.GetOffsetRequest(group=named(GROUP), message_queue=self._stored_queue(chance))

    def _make_QueryOffset(self, chance: random.Random) -> Message:
        return pb.QueryOffsetRequest(
            message_queue=self._stored_queue(chance),
            query_offset_policy=chance.choice((d.BEGINNING, d.END, d.TIMESTAMP)),
            timestamp=Timestamp(seconds=10**9),
        )

    def _make_EndTransaction(self, chance: random.Random) -> Message:
        return pb.EndTransactionRequest(
            topic=named(TOPIC),
            message_id="01",
            transaction_id=self._halves.popleft() if self._halves else "none",
            resolution=chance.choice((d.COMMIT, d.ROLLBACK)),
            source=chance.choice((d.SOURCE_CLIENT, d.SOURCE_SERVER_CHECK)),
            trace_context="trace",
        )

    def _make_Telemetry(self, chance: random.Random) -> Message:
        settings = d.Settings(
            client_type=chance.choice((d.PRODUCER, d.PUSH_CONSUMER)),
            access_point=self._client.endpoints,
            request_timeout=Duration(seconds=3),
            user_agent=d.UA(language=d.JAVA, version="5.0", platform="Linux", hostname="host"),
        )
        if settings.client_type == d.PRODUCER:
            settings.publishing.topics.append(named(TOPIC))
            settings.publishing.max_body_size = 4 << 20
        else:
            settings.subscription.group.name = GROUP
            entry = settings.subscription.subscriptions.add(topic=named(TOPIC))
            entry.expression.CopyFrom(d.FilterExpression(type=d.TAG, expression="*"))
            settings.subscription.long_polling_timeout.seconds = 20
        return pb.TelemetryCommand(settings=settings)

    def _make_NotifyClientTermination(self, _chance: random.Random) -> Message:
        return pb.NotifyClientTerminationRequest(group=named(GROUP))

    def _make_ChangeInvisibleDuration(self, _chance: random.Random) -> Message:
        delivery = self._delivery()
        return pb.ChangeInvisibleDurationRequest(
            group=named(GROUP),
            topic=named(TOPIC),
            receipt_handle=delivery.handle,
            message_id=delivery.message_id,
            invisible_duration=Duration(seconds=20),
        )

    def _make_RecallMessage(self, _chance: random.Random) -> Message:
        recall = self._recalls.popleft() if self._recalls else "none"
        return pb.RecallMessageRequest(topic=named(TOPIC), recall_handle=recall)

    def _make_SyncLiteSubscription(self, chance: random.Random) -> Message:
        option = d.OffsetOption()
        which = chance.choice(("policy", "offset", "tail_n", "timestamp"))
        setattr(option, which, 1)
        actions = (d.PARTIAL_ADD, d.PARTIAL_REMOVE, d.COMPLETE_ADD, d.COMPLETE_REMOVE)
        return pb.SyncLiteSubscriptionRequest(
            action=chance.choice(actions),
            topic=named(LITE),
            group=named(LITE_GROUP),
            lite_topic_set=["one", "two"],
            version=1,
            offset_option=option if chance.random() < 0.3 else None,
        )

    def _make_ChangeLogLevel(self, _chance: random.Random) -> Message:
        return a.ChangeLogLevelRequest(level=a.ChangeLogLevelRequest.INFO)

    def _make_DescribeTopicStatus(self, _chance: random.Random) -> Message:
        return a.DescribeTopicStatusRequest(topic=named(TOPIC))

    def _make_ListSubscription(self, _chance: random.Random) -> Message:
        return a.ListSubscriptionRequest(topic=named(TOPIC), group=named(GROUP))

    def _make_DescribeSubscription(self, _chance: random.Random) -> Message:
        return a.DescribeSubscriptionRequest(topic=named(TOPIC), group=named(GROUP))

    def _make_DeleteSubscription(self, _chance: random.Random) -> Message:
        return a.DeleteSubscriptionRequest(topic=named(TOPIC), group=named(GROUP))

    def _make_DescribeGroupAccumulation(self, _chance: random.Random) -> Message:
        return a.DescribeGroupAccumulationRequest(group=named(GROUP), topics=[named(TOPIC)])

    def _make_ListConsumerConnection(self, _chance: random.Random) -> Message:
        return a.ListConsumerConnectionRequest(group=named(GROUP), topic=named(TOPIC))

    def _make_ResetGroupOffset(self, _chance: random.Random) -> Message:
        at = Timestamp(seconds=10**9)
        return a.ResetGroupOffsetRequest(
            group=named("pulling"), topic=named(TOPIC), reset_timestamp=at
        )

    def _make_QueryMessage(self, chance: random.Random) -> Message:
        request = a.ListMessageRequest(
            topic=named(TOPIC),
            max_message_nums=4,
            begin_timestamp=Timestamp(seconds=10**9),
            end_timestamp=Timestamp(seconds=9 * 10**9),
        )
        if chance.random() < 0.5:
            request.message_id = MESSAGE_IDS[0]
        else:
            request.message_key = "key"
        return request

    def _make_PrintThreadStackTrace(self, chance: random.Random) -> Message:
        client_id = chance.choice(CLIENTS)
        return a.PrintThreadStackTraceRequest(client_id=client_id, group=named(GROUP))

    def _make_VerifyMessage(self, chance: random.Random) -> Message:
        return a.VerifyMessageRequest(
            client_id=chance.choice(CLIENTS),
            group=named(GROUP),
            topic=named(TOPIC),
            message_id=MESSAGE_IDS[0],
        )

    def _make_AdminSendMessage(self, _chance: random.Random) -> Message:
        return a.AdminSendMessageRequest(
            topic=named(TOPIC), tag="red", key="key", body=b"body", user_properties={"a": "b"}
        )

    def _make_GetConsumerRunningInfo(self, chance: random.Random) -> Message:
        client_id = chance.choice(CLIENTS)
        return a.GetConsumerRunningInfoRequest(group=named(GROUP), client_id=client_id)

    def _make_GetTopicRoute(self, _chance: random.Random) -> Message:
        return a.GetTopicRouteRequest(topic=named(TOPIC))

    def _make_QueryTimeSpan(self, _chance: random.Random) -> Message:
        return a.QueryTimeSpanRequest(group=named(GROUP), topics=[named(TOPIC)])

    def _make_GetProxyRuntimeStats(self, _chance: random.Random) -> Message:
        return a.GetProxyRuntimeStatsRequest()


def named(name: str) -> d.Resource:
    return d.Resource(name=name)
