"""Clients of two namespaces that use the same names of topics and groups."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from grpc import aio

import rockoon
from gateway.consumers import Consumer, bodies, handle
from gateway.gateways import RunningGateway, running_gateway
from gateway.lite_consumers import LiteConsumer
from gateway.wire_client import (
    WireClient,
    consumer_settings,
    due,
    message,
    place,
    producer_settings,
)
from rockoon.errors import TopicNotFound
from rockoon.local.cluster import LocalCluster
from rockoon_proto.apache.rocketmq.v2 import admin_pb2 as a
from rockoon_proto.apache.rocketmq.v2 import definition_pb2 as d
from rockoon_proto.apache.rocketmq.v2 import service_pb2 as pb
from rockoon_proto.apache.rocketmq.v2.admin_pb2_grpc import AdminStub
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import Code
from rockoon_proto.v1.nameserver_pb2 import CLASSIC, GroupConfig
from support.waiting import DEADLINE_SECONDS

NAMESPACE = "x-mq-namespace"


@pytest.fixture(scope="module")
def local_cluster() -> Iterator[LocalCluster]:
    soon = {"transaction_check_interval_ms": 200, "transaction_timeout_ms": 400}
    with LocalCluster(single=True, settings={"broker": soon}) as cluster:
        yield cluster


@pytest.fixture
async def gateway(local_cluster: LocalCluster) -> AsyncIterator[RunningGateway]:
    async with running_gateway(local_cluster, create_topics=True) as running:
        yield running


@pytest.fixture
async def east(gateway: RunningGateway) -> AsyncIterator[WireClient]:
    async with WireClient(gateway.address, "east@1", namespace="east") as connected:
        yield connected


@pytest.fixture
async def west(gateway: RunningGateway) -> AsyncIterator[WireClient]:
    async with WireClient(gateway.address, "west@1", namespace="west") as connected:
        yield connected


def resource(namespace: str, name: str) -> d.Resource:
    return d.Resource(resource_namespace=namespace, name=name)


async def test_each_namespace_has_its_own_topic_and_its_own_group(
    client: WireClient, east: WireClient, west: WireClient, cluster: rockoon.Cluster
) -> None:
    for sender in (east, west):
        assert (await sender.send(message("orders", sender.namespace.encode()))).status.code == (
            Code.OK
        )
    readers = {each.namespace: Consumer(each, "billing", "orders") for each in (east, west)}
    for namespace, reader in readers.items():
        (got,) = await reader.receive_all(1)
        assert (got.body, got.topic) == (namespace.encode(), resource(namespace, "orders"))
        assert (await reader.change(handle(got), 0)).status.code == Code.OK
        (again,) = await reader.receive_all(1)
        assert (await reader.acknowledge(handle(again))).status.code == Code.OK
        assert (
            await cluster.admin.lag(f"{namespace}%billing", f"{namespace}%orders")
        ).total_lag == 0
    # A client outside all namespaces has neither.
    with pytest.raises(TopicNotFound):
        await cluster.route("orders")
    assert await Consumer(client, "billing", "orders").receive(wait=0) == []


async def test_a_receipt_handle_of_one_namespace_settles_nothing_in_another(
    east: WireClient, west: WireClient
) -> None:
    await east.send(message("held", b"1"))
    mine, yours = (Consumer(each, "holders", "held") for each in (east, west))
    assert await yours.receive(wait=0) == []
    (held,) = await mine.receive_all(1)
    for answer in (
        await yours.acknowledge(handle(held)),
        await yours.change(handle(held), 0),
        await yours.forward(handle(held)),
    ):
        assert answer.status.code == Code.INVALID_RECEIPT_HANDLE
    assert (await mine.acknowledge(handle(held))).status.code == Code.OK


async def test_the_cluster_has_a_topic_of_a_namespace_by_its_whole_name(
    client: WireClient, east: WireClient, west: WireClient, cluster: rockoon.Cluster
) -> None:
    """The SDK and clients outside all namespaces use that name, and clients inside may."""
    await cluster.admin.create_topic("east%whole", queues_per_broker=1)
    async with cluster.producer() as producer:
        await producer.send("east%whole", b"by the SDK")
    for sender in (client, east):
        answer = await sender.send(message("east%whole", sender.client_id.encode()))
        assert answer.status.code == Code.OK
    sent = [b"by the SDK", client.client_id.encode(), b"east@1"]
    for reader, group, topic in (
        (client, "east%all", "east%whole"),
        (east, "own", "whole"),
        (east, "east%own2", "east%whole"),
    ):
        found = await Consumer(reader, group, topic).receive_all(3)
        assert bodies(found) == sent
        assert {each.topic.name for each in found} == {topic}
    groups = {each.group.config.name for each in await cluster.admin.list_groups()}
    assert {"east%all", "east%own", "east%own2"} <= groups
    # In another namespace it is the name of another topic.
    assert await Consumer(west, "east%all", "east%whole").receive(wait=0) == []
    assert (await cluster.route("west%east%whole")).readable


async def test_routes_assignments_and_settings_repeat_what_the_client_says(
    east: WireClient, cluster: rockoon.Cluster
) -> None:
    await cluster.admin.create_group(
        GroupConfig(name="east%sorters", fifo=True, new_queue_rule=CLASSIC)
    )
    topic, group = resource("east", "routed"), resource("east", "sorters")
    route = await east.route("routed")
    assert {each.topic.SerializeToString() for each in route.message_queues} == {
        topic.SerializeToString()
    }
    request = pb.QueryAssignmentRequest(topic=topic, group=group, endpoints=east.endpoints)
    assigned = (await east.call("QueryAssignment", request)).assignments
    # Of a FIFO group: one of each queue.
    assert len(assigned) == len(route.message_queues) > 1
    assert assigned[0].message_queue.topic == topic
    stream = east.telemetry()
    told = (await stream.tell(consumer_settings("sorters", "routed"))).settings.subscription
    assert (told.group, told.subscriptions[0].topic, told.fifo) == (group, topic, True)
    assert (await east.heartbeat(d.PUSH_CONSUMER, "sorters")).status.code == Code.OK
    await stream.close()


async def test_a_namespace_that_only_the_header_names_counts_for_every_resource(
    gateway: RunningGateway, cluster: rockoon.Cluster
) -> None:
    """Node.js sets it in no resource that its consumers name."""
    async with (
        WireClient(gateway.address, "by-header", {NAMESPACE: "north"}) as by_header,
        WireClient(gateway.address, "by-name", {NAMESPACE: "north"}, namespace="south") as by_name,
    ):
        for sender in (by_header, by_name):
            assert (
                await sender.send(message("headed", sender.client_id.encode()))
            ).status.code == (Code.OK)
        for reader, namespace in ((by_header, "north"), (by_name, "south")):
            stream = reader.telemetry()
            settings = consumer_settings("deaf", "headed")
            settings.subscription.subscriptions[0].expression.expression = "none"
            await stream.tell(settings)
            consumer = Consumer(reader, "headers", "headed")
            request = Consumer(reader, "deaf", "headed").request(wait=0)
            request.ClearField("filter_expression")
            (frame, _) = await reader.frames("ReceiveMessage", request)
            assert frame.status.code == Code.MESSAGE_NOT_FOUND, "by the filter of its settings"
            (got,) = await consumer.receive_all(1)
            assert (got.body, got.topic) == (
                reader.client_id.encode(),
                resource(namespace, "headed"),
            )
            assert (await consumer.acknowledge(handle(got))).status.code == Code.OK
            assert (await cluster.route(f"{namespace}%headed")).readable
            await stream.close()


async def test_messages_of_a_group_are_in_order_in_each_namespace(
    east: WireClient, west: WireClient, cluster: rockoon.Cluster
) -> None:
    for sender in (east, west):
        config = GroupConfig(name=f"{sender.namespace}%sorted", fifo=True, new_queue_rule=CLASSIC)
        await cluster.admin.create_group(config)
        for number in (b"1", b"2"):
            one = message("sorted", number, number.decode(), message_type=d.FIFO, message_group="g")
            assert (await sender.send(one)).status.code == Code.OK
    first, other = (Consumer(each, "sorted", "sorted") for each in (east, west))
    (held,) = await first.receive_all(1, batch_size=1)
    # Messages held in one namespace do not block another one.
    for number in (b"1", b"2"):
        (got,) = await other.receive_all(1, batch_size=1)
        assert got.body == number
        await other.acknowledge(handle(got))
    assert held.body == b"1"
    await first.acknowledge(handle(held))
    assert bodies(await first.receive_all(1)) == [b"2"]


async def test_a_delayed_message_comes_or_is_recalled_in_its_own_namespace(
    east: WireClient, west: WireClient
) -> None:
    now_ms = time.time_ns() // 1_000_000
    soon, late = (
        message("later", body, body.decode(), message_type=d.DELAY, delivery_timestamp=due(at))
        for body, at in ((b"soon", now_ms + 500), (b"late", now_ms + 3_600_000))
    )
    sent = await east.send(soon, late)
    assert sent.status.code == Code.OK
    recall = pb.RecallMessageRequest(
        topic=d.Resource(name="later"), recall_handle=sent.entries[1].recall_handle
    )
    elsewhere = pb.RecallMessageRequest()
    elsewhere.CopyFrom(recall)
    assert (await west.call("RecallMessage", elsewhere)).status.code == Code.BAD_REQUEST
    assert (await east.call("RecallMessage", recall)).status.code == Code.OK
    (got,) = await Consumer(east, "waiters", "later").receive_all(1)
    assert (got.body, got.topic) == (b"soon", resource("east", "later"))


async def test_only_producers_of_the_namespace_are_asked_about_a_half_message(
    east: WireClient, west: WireClient
) -> None:
    streams = {each.namespace: each.telemetry() for each in (west, east)}
    for stream in streams.values():
        await stream.tell(producer_settings("paid"))
    half = message("paid", b"who knows", "half", message_type=d.TRANSACTION)
    half.system_properties.orphaned_transaction_recovery_duration.CopyFrom(Duration(seconds=1))
    entry = (await east.send(half)).entries[0]
    assert entry.status.code == Code.OK
    async with asyncio.timeout(DEADLINE_SECONDS):
        check = (await streams["east"].next()).recover_orphaned_transaction_command
    assert check.transaction_id == entry.transaction_id
    assert check.message.topic == resource("east", "paid")
    code = await west.end("paid", entry, d.COMMIT)
    assert code == Code.INVALID_TRANSACTION_ID, "it is of another namespace"
    assert await east.end("paid", entry, d.COMMIT, source=d.SOURCE_SERVER_CHECK) == Code.OK
    assert bodies(await Consumer(east, "payees", "paid").receive_all(1)) == [b"who knows"]
    assert await Consumer(west, "payees", "paid").receive(wait=0) == []
    for stream in streams.values():
        await stream.close()


async def test_dead_letters_of_a_group_are_in_its_namespace(
    east: WireClient, west: WireClient
) -> None:
    for sender in (east, west):
        await sender.send(message("doomed", sender.namespace.encode()))
        consumer = Consumer(sender, "doomers", "doomed")
        (bad,) = await consumer.receive_all(1)
        assert (await consumer.forward(handle(bad))).status.code == Code.OK
    for reader in (east, west):
        namespace = reader.namespace
        consumer = Consumer(reader, "undertakers", "%DLQ%doomers")
        (dead,) = await consumer.receive_all(1)
        assert (dead.body, dead.topic) == (
            namespace.encode(),
            resource(namespace, "%DLQ%doomers"),
        )
        assert dead.system_properties.dead_letter_queue.topic == "doomed"
        assert (await consumer.acknowledge(handle(dead))).status.code == Code.OK
        assert await consumer.receive(wait=0) == []


async def test_a_lite_topic_of_one_namespace_is_none_of_another(
    east: WireClient, west: WireClient, cluster: rockoon.Cluster
) -> None:
    for sender in (east, west):
        await cluster.admin.create_topic(
            f"{sender.namespace}%chat", attributes={"message.type": "LITE"}
        )
    for sender in (east, west):
        stream = sender.telemetry()
        settings = consumer_settings("talkers", "chat", client_type=d.LITE_SIMPLE_CONSUMER)
        told = await stream.tell(settings)
        assert told.settings.subscription.lite_subscription_quota > 0
        consumer = LiteConsumer(sender, "talkers", "chat")
        await consumer.send("one", sender.namespace.encode())
        await consumer.subscribe("one", offset_option=d.OffsetOption(policy=d.OffsetOption.MIN))
        (got,) = await consumer.receive_all(1)
        assert (got.body, got.topic) == (
            sender.namespace.encode(),
            resource(sender.namespace, "chat"),
        )
        assert got.system_properties.lite_topic == "one"
        assert (await consumer.forward(handle(got))).status.code == Code.OK
        dead = Consumer(sender, "undertakers", "%DLQ%talkers")
        (letter,) = await dead.receive_all(1)
        assert letter.system_properties.dead_letter_queue.topic == "chat"
        assert await consumer.receive(wait=0) == []
        await stream.close()
    names = {each.name for each in await cluster.admin.list_topics(include_system=True)}
    assert {"%LITE%east%chat|one", "%LITE%west%chat|one"} <= names


async def test_queues_are_read_by_offset_in_the_namespace(
    east: WireClient, west: WireClient, cluster: rockoon.Cluster
) -> None:
    (queue,) = (await cluster.admin.create_topic("east%pulled", queues_per_broker=1)).queues
    async with cluster.producer() as producer:
        for body in (b"0", b"1"):
            await producer.send("east%pulled", body)
    group = d.Resource(name="pullers")

    def where() -> d.MessageQueue:
        broker = d.Broker(name=queue.broker)
        return d.MessageQueue(topic=d.Resource(name="pulled"), id=queue.queue_id, broker=broker)

    pull = pb.PullMessageRequest(group=group, message_queue=where(), batch_size=2)
    frames = await east.frames("PullMessage", pull)
    assert [each.message.body for each in frames[1:-1]] == [b"0", b"1"]
    assert frames[1].message.topic == resource("east", "pulled")
    update = pb.UpdateOffsetRequest(group=group, message_queue=where(), offset=1)
    assert (await east.call("UpdateOffset", update)).status.code == Code.OK
    get = pb.GetOffsetRequest(group=group, message_queue=where())
    assert (await east.call("GetOffset", get)).offset == 1
    end = pb.QueryOffsetRequest(message_queue=where(), query_offset_policy=d.END)
    assert (await east.call("QueryOffset", end)).offset == 2
    (progress,) = await cluster.admin.progress(topic="east%pulled")
    assert (progress.group, progress.offset) == ("east%pullers", 1)
    other = pb.QueryOffsetRequest(message_queue=where(), query_offset_policy=d.END)
    assert (await west.call("QueryOffset", other)).status.code == Code.TOPIC_NOT_FOUND


class Console:
    """Calls of the Admin service by a client of a namespace."""

    def __init__(self, channel: aio.Channel, namespace: str) -> None:
        self._stub: Any = AdminStub(channel)
        self._namespace = namespace

    async def ask(self, rpc: str, request: Any) -> Any:
        place(request, self._namespace)
        headers = (("x-mq-client-id", "console"), (NAMESPACE, self._namespace))
        return await getattr(self._stub, rpc)(request, metadata=headers)


async def test_a_console_sees_its_namespace_by_plain_names(
    gateway: RunningGateway, east: WireClient, west: WireClient
) -> None:
    topic, group = d.Resource(name="seen"), d.Resource(name="seers")
    for sender in (east, west):
        await sender.send(message("seen", b"1", f"{sender.namespace}-1"))
    consumer = Consumer(east, "seers", "seen")
    (held,) = await consumer.receive_all(1)
    await Consumer(west, "others", "seen").receive_all(1)
    stream = east.telemetry()
    await stream.tell(consumer_settings("seers", "seen"))
    async with aio.insecure_channel(gateway.address) as channel:
        console, elsewhere = Console(channel, "east"), Console(channel, "west")
        listed = await console.ask("ListSubscription", a.ListSubscriptionRequest())
        found = {(x.group.name, x.topic.name, x.online) for x in listed.subscription_info}
        assert ("seers", "seen", True) in found
        assert {x.group.resource_namespace for x in listed.subscription_info} == {"east"}
        of_topic = a.ListSubscriptionRequest(topic=topic)
        (info,) = (await elsewhere.ask("ListSubscription", of_topic)).subscription_info
        assert (info.group, info.topic) == (resource("west", "others"), resource("west", "seen"))
        of_group = a.DescribeSubscriptionRequest(group=group, topic=topic)
        (one,) = (await console.ask("DescribeSubscription", of_group)).client_subscription_info
        assert one.client_info.client_id == east.client_id
        assert one.subscription_info.topic == resource("east", "seen")
        connected = a.ListConsumerConnectionRequest(group=group, topic=topic)
        (who,) = (await console.ask("ListConsumerConnection", connected)).client_info
        assert who.client_id == east.client_id
        backlog = a.DescribeGroupAccumulationRequest(group=group, topics=[topic])
        behind = await console.ask("DescribeGroupAccumulation", backlog)
        assert behind.topic_accumulation["seen"].inflight_messages == 1
        spans = a.QueryTimeSpanRequest(group=group, topics=[topic])
        (span,) = (await console.ask("QueryTimeSpan", spans)).queue_time_span_list[:1]
        assert span.message_queue.topic == resource("east", "seen")
        by_id = a.ListMessageRequest(topic=topic, message_id="east-1")
        (stored,) = (await console.ask("QueryMessage", by_id)).messages
        assert stored.topic == resource("east", "seen")
        by_id = a.ListMessageRequest(topic=d.Resource(name="seen"), message_id="east-1")
        assert not (await elsewhere.ask("QueryMessage", by_id)).messages
        sent = await console.ask(
            "AdminSendMessage", a.AdminSendMessageRequest(topic=d.Resource(name="sent"), body=b"2")
        )
        assert sent.status.code == Code.OK
        status = a.DescribeTopicStatusRequest(topic=topic)
        assert (await console.ask("DescribeTopicStatus", status)).status.code == Code.OK
        assert (await consumer.acknowledge(handle(held))).status.code == Code.OK
        reset = a.ResetGroupOffsetRequest(
            group=group, topic=topic, reset_timestamp=Timestamp(seconds=1)
        )
        assert (await console.ask("ResetGroupOffset", reset)).status.code == Code.OK
    assert bodies(await consumer.receive_all(1)) == [b"1"]
    assert bodies(await Consumer(east, "seers", "sent").receive_all(1)) == [b"2"]
    await stream.close()


async def test_a_client_is_shown_a_message_as_it_names_the_topic(
    gateway: RunningGateway, east: WireClient
) -> None:
    """The console may use the whole name."""
    await east.send(message("tried", b"1", "tried-1"))
    stream = east.telemetry()
    await stream.tell(consumer_settings("triers", "tried"))
    async with aio.insecure_channel(gateway.address) as channel, asyncio.TaskGroup() as tasks:
        request = a.VerifyMessageRequest(
            client_id=east.client_id,
            group=d.Resource(name="east%triers"),
            topic=d.Resource(name="east%tried"),
            message_id="tried-1",
        )
        asking = tasks.create_task(Console(channel, "").ask("VerifyMessage", request))
        command = (await stream.next()).verify_message_command
        assert command.message.topic == resource("east", "tried")
        result = pb.VerifyMessageResult(nonce=command.nonce)
        await stream.send(
            pb.TelemetryCommand(status=d.Status(code=d.OK), verify_message_result=result)
        )
        assert (await asking).status.code == Code.OK
    await stream.close()


@pytest.mark.parametrize("namespace", ["a%b", "a|b", "a b", "a.b", "ä", "n" * 126, "n" * 1000])
async def test_a_namespace_that_no_name_can_have_is_refused(
    gateway: RunningGateway, namespace: str
) -> None:
    """By the code of the resource, as the protocol has none for namespaces."""
    async with WireClient(gateway.address, namespace=namespace) as wrong:
        route, sent = await wrong.route("orders"), await wrong.send(message("orders"))
        for refused in (route, sent):
            assert refused.status.code == Code.ILLEGAL_TOPIC
            assert "namespace" in refused.status.message
            assert len(refused.status.message) < 400
        beat = await wrong.heartbeat(d.PUSH_CONSUMER, "billing")
        assert beat.status.code == Code.ILLEGAL_CONSUMER_GROUP
