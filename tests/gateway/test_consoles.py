"""Calls of consoles about topics, groups and clients."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from grpc import aio

import rockoon
from gateway.consumers import Consumer, bodies, handle, topic_with
from gateway.gateways import RunningGateway
from gateway.wire_client import WireClient, consumer_settings
from rockoon_proto.apache.rocketmq.v2 import admin_pb2 as a
from rockoon_proto.apache.rocketmq.v2 import definition_pb2 as d
from rockoon_proto.apache.rocketmq.v2 import service_pb2 as pb
from rockoon_proto.apache.rocketmq.v2.admin_pb2_grpc import AdminStub


class Console:
    """Calls of the Admin service."""

    def __init__(self, channel: aio.Channel) -> None:
        self._stub: Any = AdminStub(channel)

    async def ask(self, rpc: str, request: Any, seconds: float | None = None) -> Any:
        metadata = (("x-mq-client-id", "console"),)
        return await getattr(self._stub, rpc)(request, metadata=metadata, timeout=seconds)


@pytest.fixture
async def console(gateway: RunningGateway) -> AsyncIterator[Console]:
    async with aio.insecure_channel(gateway.address) as channel:
        yield Console(channel)


def named(name: str) -> d.Resource:
    return d.Resource(name=name)


async def test_a_topic_says_its_type_and_its_classic_route(
    console: Console, cluster: rockoon.Cluster
) -> None:
    await cluster.admin.create_topic(
        "told", queues_per_broker=3, attributes={"message.type": "FIFO"}
    )
    request = a.DescribeTopicStatusRequest(topic=named("told"))
    assert (await console.ask("DescribeTopicStatus", request)).topic_message_type == d.FIFO
    answer = await console.ask("GetTopicRoute", a.GetTopicRouteRequest(topic=named("told")))
    route = json.loads(answer.topic_route_data)
    (queues,) = route["queueDatas"]
    assert (queues["brokerName"], queues["readQueueNums"], queues["perm"]) == ("broker-a", 3, 6)
    (broker,) = route["brokerDatas"]
    assert broker["brokerAddrs"]["0"] == cluster.routes.broker_address("broker-a")
    absent = a.DescribeTopicStatusRequest(topic=named("no-such-topic"))
    assert (await console.ask("DescribeTopicStatus", absent)).status.code == d.TOPIC_NOT_FOUND


async def test_a_group_says_how_much_is_before_it_and_a_reset_puts_it_back(
    console: Console, client: WireClient, cluster: rockoon.Cluster
) -> None:
    topic = await topic_with(cluster, "accumulated", [b"0", b"1", b"2"])
    consumer = Consumer(client, "accumulators", topic)
    messages = await consumer.receive_all(3)
    asked = a.DescribeGroupAccumulationRequest(group=named(consumer.group), topics=[named(topic)])

    async def accumulation() -> int:
        answer = await console.ask("DescribeGroupAccumulation", asked)
        assert answer.status.code == d.OK
        assert answer.topic_accumulation[topic].accumulation == answer.accumulation.accumulation
        return int(answer.accumulation.accumulation)

    assert await accumulation() == 3
    handles = [message.system_properties.receipt_handle for message in messages]
    await consumer.acknowledge(*handles)
    assert await accumulation() == 0
    reset = a.ResetGroupOffsetRequest(
        group=named(consumer.group), topic=named(topic), reset_timestamp=Timestamp(seconds=1)
    )
    assert (await console.ask("ResetGroupOffset", reset)).status.code == d.OK
    assert await accumulation() == 3
    assert bodies(await consumer.receive_all(3)) == [b"0", b"1", b"2"]


async def test_messages_in_flight_at_a_reset_are_delivered_again_and_their_handles_are_void(
    console: Console, client: WireClient, cluster: rockoon.Cluster
) -> None:
    topic = await topic_with(cluster, "reset-in-flight", [b"0", b"1", b"2"])
    consumer = Consumer(client, "reset-in-flight", topic)
    first, held, settled = await consumer.receive_all(3)
    await consumer.acknowledge(handle(first), handle(settled))
    reset = a.ResetGroupOffsetRequest(
        group=named(consumer.group), topic=named(topic), reset_timestamp=Timestamp(seconds=1)
    )
    assert (await console.ask("ResetGroupOffset", reset)).status.code == d.OK
    refused = await consumer.acknowledge(handle(held))
    assert refused.entries[0].status.code == d.INVALID_RECEIPT_HANDLE
    assert (await consumer.change(handle(held), 10)).status.code == d.INVALID_RECEIPT_HANDLE
    again = await consumer.receive_all(3)
    assert bodies(again) == [b"0", b"1", b"2"]
    assert {each.system_properties.delivery_attempt for each in again} == {1}

    (progress,) = await cluster.admin.progress(consumer.group, topic)
    assert progress.offset == 0
    reset_id = progress.start_explanation.split()[1]
    await cluster.admin.undo_reset(reset_id, "a test")
    # Message 2 was settled above the committed offset; a reset keeps only this offset.
    assert bodies(await consumer.receive_all(2)) == [b"1", b"2"]


async def test_subscriptions_and_clients_are_those_of_this_gateway(
    console: Console, client: WireClient, cluster: rockoon.Cluster
) -> None:
    topic = await topic_with(cluster, "subscribed", [b"0"], tags=["TagA"])
    consumer = Consumer(client, "subscribers", topic)
    stream = client.telemetry()
    settings = consumer_settings("subscribers", topic, client_type=d.SIMPLE_CONSUMER)
    settings.subscription.subscriptions[0].expression.expression = "TagA"
    await stream.tell(settings)
    await consumer.receive_all(1, expression=d.FilterExpression(type=d.TAG, expression="TagA"))

    listed = await console.ask("ListSubscription", a.ListSubscriptionRequest(topic=named(topic)))
    (info,) = listed.subscription_info
    assert (info.group.name, info.topic.name, info.online) == ("subscribers", topic, True)
    assert (info.expression.expression, info.subscription_consistency) == ("TagA", True)

    group = named("subscribers")
    described = await console.ask(
        "DescribeSubscription", a.DescribeSubscriptionRequest(group=group)
    )
    (one,) = described.client_subscription_info
    assert one.client_info.client_id == client.client_id
    assert one.subscription_info.expression.expression == "TagA"

    request = a.ListConsumerConnectionRequest(group=group, topic=named(topic))
    (who,) = (await console.ask("ListConsumerConnection", request)).client_info
    assert (who.client_id, who.language) == (client.client_id, "JAVA")
    none = a.ListConsumerConnectionRequest(group=named("no-such-group"))
    answer = await console.ask("ListConsumerConnection", none)
    assert answer.status.code == d.CONSUMER_GROUP_NOT_FOUND
    await stream.close()


async def test_a_message_is_sent_and_found_by_its_id_and_by_its_key(
    console: Console, cluster: rockoon.Cluster
) -> None:
    topic = await topic_with(cluster, "found")
    sent = await console.ask(
        "AdminSendMessage",
        a.AdminSendMessageRequest(topic=named(topic), body=b"found", tag="TagA", key="k1"),
    )
    assert sent.status.code == d.OK
    for search in ({"message_id": sent.message_id}, {"message_key": "k1"}):
        request = a.ListMessageRequest(topic=named(topic), max_message_nums=8, **search)
        answer = await console.ask("QueryMessage", request)
        assert answer.status.code == d.OK
        (message,) = answer.messages
        system = message.system_properties
        assert (message.body, system.tag, list(system.keys)) == (b"found", "TagA", ["k1"])
    by_time = await console.ask("QueryMessage", a.ListMessageRequest(topic=named(topic)))
    assert by_time.status.code == d.BAD_REQUEST


async def test_a_client_is_asked_for_its_stacks_and_to_verify_a_message(
    console: Console, client: WireClient, cluster: rockoon.Cluster
) -> None:
    topic = await topic_with(cluster, "verified")
    sending = a.AdminSendMessageRequest(topic=named(topic), body=b"try me")
    sent = await console.ask("AdminSendMessage", sending)
    stream = client.telemetry()
    await stream.tell(consumer_settings("verifiers", topic))
    who = {"group": named("verifiers"), "client_id": client.client_id}
    stacks = a.PrintThreadStackTraceRequest(**who)
    call = console.ask("PrintThreadStackTrace", stacks)

    async def answered() -> None:
        command = (await stream.next()).print_thread_stack_trace_command
        trace = pb.ThreadStackTrace(nonce=command.nonce, thread_stack_trace="main: waiting")
        await stream.send(pb.TelemetryCommand(thread_stack_trace=trace))

    async def verified() -> None:
        command = (await stream.next()).verify_message_command
        assert command.message.body == b"try me"
        await stream.send(
            pb.TelemetryCommand(
                status=d.Status(code=d.FAILED_TO_CONSUME_MESSAGE),
                verify_message_result=pb.VerifyMessageResult(nonce=command.nonce),
            )
        )

    assert (await both(call, answered())).thread_stack_trace == "main: waiting"
    verify = a.VerifyMessageRequest(topic=named(topic), message_id=sent.message_id, **who)
    answer = await both(console.ask("VerifyMessage", verify), verified())
    assert answer.status.code == d.FAILED_TO_CONSUME_MESSAGE
    stacks.client_id = "nobody"
    assert (await console.ask("PrintThreadStackTrace", stacks)).status.code == d.NOT_FOUND
    await stream.close()


@pytest.mark.parametrize(
    ("language", "code"),
    [(d.Language.JAVA, d.REQUEST_TIMEOUT), (d.Language.PYTHON, d.NOT_IMPLEMENTED)],
)
async def test_a_silent_client_gives_a_code_before_the_console_gives_up(
    language: d.Language, code: d.Code, console: Console, client: WireClient
) -> None:
    stream = client.telemetry()
    await stream.tell(consumer_settings("silent", "t", language=language))
    stacks = a.PrintThreadStackTraceRequest(group=named("silent"), client_id=client.client_id)
    answer = await console.ask("PrintThreadStackTrace", stacks, seconds=1.0)
    assert answer.status.code == code
    assert (await stream.next()).HasField("print_thread_stack_trace_command")
    await stream.close()


async def test_a_client_that_refuses_to_verify_a_message_gives_its_code(
    console: Console, client: WireClient, cluster: rockoon.Cluster
) -> None:
    topic = await topic_with(cluster, "unverified")
    sending = a.AdminSendMessageRequest(topic=named(topic), body=b"try me")
    sent = await console.ask("AdminSendMessage", sending)
    stream = client.telemetry()
    await stream.tell(consumer_settings("refusers", topic))
    verify = a.VerifyMessageRequest(
        group=named("refusers"),
        client_id=client.client_id,
        topic=named(topic),
        message_id=sent.message_id,
    )

    async def refuse(as_node: bool) -> None:
        nonce = (await stream.next()).verify_message_command.nonce
        answer = pb.TelemetryCommand(status=d.Status(code=d.NOT_IMPLEMENTED))
        if as_node:
            answer.verify_message_command.nonce = nonce
        else:
            answer.verify_message_result.nonce = nonce
        await stream.send(answer)

    for as_node in (True, False):
        answer = await both(console.ask("VerifyMessage", verify, seconds=3.0), refuse(as_node))
        assert answer.status.code == d.NOT_IMPLEMENTED
        assert client.client_id in answer.status.message
    await stream.close()


async def test_a_client_without_a_stream_cannot_be_asked(
    console: Console, client: WireClient
) -> None:
    await client.heartbeat(d.PUSH_CONSUMER, "streamless")
    stacks = a.PrintThreadStackTraceRequest(group=named("streamless"), client_id=client.client_id)
    answer = await console.ask("PrintThreadStackTrace", stacks)
    assert answer.status.code == d.NOT_FOUND


async def test_from_when_to_when_a_queue_has_messages(
    console: Console, client: WireClient, cluster: rockoon.Cluster
) -> None:
    topic = await topic_with(cluster, "spanned", [b"0", b"1"])
    await Consumer(client, "spanners", topic).receive_all(2)
    request = a.QueryTimeSpanRequest(group=named("spanners"), topics=[named(topic)])
    (span,) = (await console.ask("QueryTimeSpan", request)).queue_time_span_list
    assert 0 < span.min_timestamp <= span.max_timestamp
    assert span.consume_timestamp == pytest.approx(span.min_timestamp, abs=5)


async def test_a_report_is_of_topics_that_the_group_does_not_read_and_of_no_more_than_64(
    console: Console, client: WireClient, cluster: rockoon.Cluster
) -> None:
    topic = await topic_with(cluster, "reported", [b"0"])
    unread = await topic_with(cluster, "unreported", [b"0"])
    await Consumer(client, "reporters", topic).receive_all(1)
    group = named("reporters")
    request = a.QueryTimeSpanRequest(group=group, topics=[named(unread)])
    answer = await console.ask("QueryTimeSpan", request)
    assert answer.status.code == d.OK
    assert [each.consume_timestamp for each in answer.queue_time_span_list] == [0]
    many = [named(f"t{number}") for number in range(65)]
    # The same topic many times counts as one.
    for topics, code in (([named(topic)] * 1000, d.OK), (many, d.BAD_REQUEST)):
        for rpc in ("QueryTimeSpan", "DescribeGroupAccumulation"):
            of = getattr(a, f"{rpc}Request")
            assert (await console.ask(rpc, of(group=group, topics=topics))).status.code == code


async def test_a_message_is_not_looked_for_by_what_is_no_key(
    console: Console, cluster: rockoon.Cluster
) -> None:
    topic = await topic_with(cluster, "looked-for")
    for key in ("", "two keys", "a\x01"):
        request = a.ListMessageRequest(topic=named(topic), message_key=key)
        assert (await console.ask("QueryMessage", request)).status.code == d.BAD_REQUEST


async def test_the_gateway_counts_its_clients_and_says_what_it_does_not_do(
    console: Console, client: WireClient
) -> None:
    await client.heartbeat(d.PUSH_CONSUMER, "counted")
    stats = await console.ask("GetProxyRuntimeStats", a.GetProxyRuntimeStatsRequest())
    assert (stats.status.code, stats.proxy_name, stats.consumers) == (d.OK, "gateway", 1)
    for rpc in ("DeleteSubscription", "GetConsumerRunningInfo"):
        answer = await console.ask(rpc, getattr(a, f"{rpc}Request")())
        assert answer.status.code == d.NOT_IMPLEMENTED
    remark = (await console.ask("ChangeLogLevel", a.ChangeLogLevelRequest())).remark
    assert remark.startswith("not supported")


async def both(call: Any, other: Any) -> Any:
    """Return the reply to a call, while another operation runs."""
    async with asyncio.TaskGroup() as tasks:
        calling = tasks.create_task(call)
        tasks.create_task(other)
    return calling.result()
