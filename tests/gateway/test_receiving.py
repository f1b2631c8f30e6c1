"""Messages are received, acknowledged and postponed through the gateway, on a real cluster.

Several are scenarios of RocketMQ's own GrpcBaseIT; their docstrings have its names.
"""

import asyncio
import hashlib

import pytest

import rockoon
from gateway.consumers import ALL, Consumer, bodies, duration, handle, send, topic_with
from gateway.gateways import RunningGateway
from gateway.wire_client import WireClient, consumer_settings
from rockoon_proto.apache.rocketmq.v2 import definition_pb2 as d
from rockoon_proto.apache.rocketmq.v2 import service_pb2 as pb
from rockoon_proto.v1.nameserver_pb2 import CLASSIC, GroupConfig
from support.waiting import DEADLINE_SECONDS, pauses


async def test_what_was_sent_is_received_whole_and_gone_once_acknowledged(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    """testSimpleConsumerSendAndRecv."""
    topic = await topic_with(cluster, "received", [b"one"], tags=["TagA"], properties={"a": "b"})
    consumer = Consumer(client, "receivers", topic)
    frames = await consumer.frames()
    assert [each.WhichOneof("content") for each in frames] == [
        "status",
        "message",
        "delivery_timestamp",
    ]
    assert frames[0].status.code == d.OK
    message = frames[1].message
    system = message.system_properties
    assert (message.topic.name, message.body) == (topic, b"one")
    assert dict(message.user_properties) == {"a": "b"}
    assert (system.tag, system.delivery_attempt) == ("TagA", 1)
    assert system.body_digest.checksum == hashlib.md5(b"one").hexdigest().upper()
    answer = await consumer.acknowledge(handle(message))
    assert answer.status.code == d.OK
    (entry,) = answer.entries
    assert (entry.message_id, entry.receipt_handle) == ("m0", handle(message))
    assert (await cluster.admin.lag("receivers", topic)).total_lag == 0


async def test_nothing_to_be_had_is_one_status_that_says_so(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    topic = await topic_with(cluster, "empty")
    frames = await Consumer(client, "receivers", topic).frames(wait=0)
    assert [each.WhichOneof("content") for each in frames] == ["status", "delivery_timestamp"]
    assert frames[0].status.code == d.MESSAGE_NOT_FOUND


async def test_a_parked_receiver_gets_what_comes(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    topic = await topic_with(cluster, "parked")
    consumer = Consumer(client, "receivers", topic)
    assert await consumer.receive(wait=0) == []
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(consumer.receive_all(1, wait=20))
        await send(cluster, topic, [b"new"])
    assert bodies(waiting.result()) == [b"new"]


async def test_a_big_message_comes_whole(client: WireClient, cluster: rockoon.Cluster) -> None:
    """testSimpleConsumerSendAndRecvBigMessage."""
    body = bytes(range(256)) * (4 << 12)
    topic = await topic_with(cluster, "big", [body])
    (message,) = await Consumer(client, "receivers", topic).receive()
    assert message.body == body


async def test_never_more_than_32_come_at_once(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    topic = await topic_with(cluster, "many", [b"%d" % n for n in range(40)])
    consumer = Consumer(client, "receivers", topic)
    first = await consumer.receive(batch_size=50)
    assert len(first) == 32
    rest = await consumer.receive_all(8, batch_size=50)
    assert bodies(first + rest) == [b"%d" % n for n in range(40)]


async def test_of_two_handles_one_is_of_before_the_change(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    topic = await topic_with(cluster, "changed", [b"one"])
    consumer = Consumer(client, "receivers", topic)
    (message,) = await consumer.receive()
    changed = await consumer.change(handle(message), 60)
    assert changed.status.code == d.OK
    assert changed.receipt_handle not in ("", handle(message))
    answer = await consumer.acknowledge(handle(message), changed.receipt_handle)
    assert answer.status.code == d.MULTIPLE_RESULTS
    codes = [entry.status.code for entry in answer.entries]
    assert codes == [d.INVALID_RECEIPT_HANDLE, d.OK]
    assert answer.entries[0].status.message.startswith("INVALID_RECEIPT_HANDLE")


async def test_a_handle_that_is_none_is_invalid_for_every_call(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    topic = await topic_with(cluster, "handles", [b"one"])
    consumer = Consumer(client, "receivers", topic)
    await consumer.receive()
    for wrong in ("", "h-0-1", f"{topic}@broker-a:0/99999/0/0"):
        assert (await consumer.acknowledge(wrong)).status.code == d.INVALID_RECEIPT_HANDLE
        assert (await consumer.change(wrong, 10)).status.code == d.INVALID_RECEIPT_HANDLE
        assert (await consumer.forward(wrong)).status.code == d.INVALID_RECEIPT_HANDLE


async def test_a_message_that_is_put_off_by_nothing_comes_at_once_as_another_attempt(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    topic = await topic_with(cluster, "nacked", [b"one"])
    consumer = Consumer(client, "receivers", topic)
    (first,) = await consumer.receive()
    assert (await consumer.change(handle(first), 0)).status.code == d.OK
    (second,) = await consumer.receive_all(1)
    assert second.system_properties.delivery_attempt == 2
    assert second.system_properties.message_id == first.system_properties.message_id
    assert handle(second) != handle(first)
    assert (await consumer.change(handle(second), 0, suspend=True)).status.code == d.OK
    (third,) = await consumer.receive_all(1)
    assert third.system_properties.delivery_attempt == 2


async def test_of_twenty_messages_the_one_that_was_not_acknowledged_comes_again(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    topic = await topic_with(cluster, "twenty", [b"%d" % n for n in range(20)], queues=3)
    consumer = Consumer(client, "receivers", topic)
    messages = await consumer.receive_all(20, batch_size=32)
    kept = messages.pop(7)
    shortly = await consumer.change(handle(kept), 1)
    answer = await consumer.acknowledge(*map(handle, messages))
    assert answer.status.code == d.OK
    assert len(answer.entries) == 19
    (again,) = await consumer.receive_all(1, wait=20)
    assert again.body == kept.body
    assert again.system_properties.delivery_attempt == 2
    answer = await consumer.acknowledge(shortly.receipt_handle, handle(again))
    assert [each.status.code for each in answer.entries] == [d.INVALID_RECEIPT_HANDLE, d.OK]
    assert (await cluster.admin.lag("receivers", topic)).total_lag == 0


@pytest.mark.parametrize(
    ("name", "expression", "wanted"),
    [
        ("tag", d.FilterExpression(type=d.TAG, expression="TagA || TagC"), [b"0", b"2"]),
        ("sql", d.FilterExpression(type=d.SQL, expression="TAGS IN ('TagB')"), [b"1"]),
        ("all", ALL, [b"0", b"1", b"2"]),
    ],
)
async def test_a_filter_leaves_out_what_is_not_wanted(
    client: WireClient,
    cluster: rockoon.Cluster,
    name: str,
    expression: d.FilterExpression,
    wanted: list[bytes],
) -> None:
    topic = await topic_with(
        cluster, f"filtered-{name}", [b"0", b"1", b"2"], tags=["TagA", "TagB", "TagC"]
    )
    consumer = Consumer(client, f"filters-{name}", topic)
    found = await consumer.receive_all(len(wanted), expression=expression)
    assert bodies(found) == wanted


async def test_without_a_filter_in_the_request_that_of_the_settings_holds(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    topic = await topic_with(cluster, "settings", [b"0", b"1"], tags=["TagA", "TagB"])
    consumer = Consumer(client, "by-settings", topic)
    settings = consumer_settings("by-settings", topic, client_type=d.SIMPLE_CONSUMER)
    settings.subscription.subscriptions[0].expression.expression = "TagB"
    stream = client.telemetry()
    await stream.tell(settings)
    request = consumer.request()
    request.ClearField("filter_expression")
    frames = await client.frames("ReceiveMessage", request)
    assert bodies([each.message for each in frames if each.HasField("message")]) == [b"1"]
    await stream.close()


async def test_the_filter_of_a_request_has_priority_over_that_of_the_settings(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    topic = await topic_with(cluster, "both-filters", [b"0", b"1"], tags=["TagA", "TagB"])
    consumer = Consumer(client, "by-request", topic)
    settings = consumer_settings("by-request", topic, client_type=d.SIMPLE_CONSUMER)
    settings.subscription.subscriptions[0].expression.expression = "TagB"
    stream = client.telemetry()
    await stream.tell(settings)
    tag_a = d.FilterExpression(type=d.TAG, expression="TagA")
    assert bodies(await consumer.receive_all(1, expression=tag_a)) == [b"0"]
    await stream.close()


async def test_a_receive_that_names_one_queue_gets_messages_of_every_queue(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    topic = await topic_with(cluster, "any-queue", [b"0", b"1", b"2", b"3"], queues=4)
    consumer = Consumer(client, "of-any-queue", topic)
    request = consumer.request()
    request.message_queue.id = 2
    found: list[d.Message] = []
    while len(found) < 4:
        frames = await client.frames("ReceiveMessage", request)
        found += [each.message for each in frames if each.HasField("message")]
    assert {each.system_properties.queue_id for each in found} == set(range(4))


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"group": d.Resource(name="not a name")}, d.ILLEGAL_CONSUMER_GROUP),
        ({"message_queue": d.MessageQueue()}, d.ILLEGAL_TOPIC),
        (
            {"message_queue": d.MessageQueue(topic=d.Resource(name="no-such-topic"))},
            d.TOPIC_NOT_FOUND,
        ),
        ({"invisible_duration": duration(9.9)}, d.ILLEGAL_INVISIBLE_TIME),
        ({"invisible_duration": duration(12 * 3600 + 1)}, d.ILLEGAL_INVISIBLE_TIME),
        (
            {"filter_expression": d.FilterExpression(type=d.SQL, expression="a >")},
            d.ILLEGAL_FILTER_EXPRESSION,
        ),
    ],
)
async def test_a_receive_that_makes_no_sense_is_told_so_in_one_status(
    client: WireClient, cluster: rockoon.Cluster, change: dict[str, object], code: d.Code
) -> None:
    await cluster.admin.create_topic("sense", if_absent=True)
    request = Consumer(client, "receivers", "sense").request()
    for name, value in change.items():
        getattr(request, name).CopyFrom(value)
    (frame,) = await client.frames("ReceiveMessage", request)
    assert frame.status.code == code
    assert frame.status.message.startswith(d.Code.Name(code))


async def test_a_deadline_too_near_to_poll_is_told_so(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    topic = await topic_with(cluster, "deadline")
    request = Consumer(client, "receivers", topic).request(wait=20)
    (frame,) = await client.frames("ReceiveMessage", request, 4.0)
    assert frame.status.code == d.ILLEGAL_POLLING_TIME


async def test_a_message_that_fails_too_often_is_a_dead_letter_with_its_id(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    """testSimpleConsumerToDLQ: one retry gives exactly two deliveries."""
    topic = await topic_with(cluster, "doomed", [b"bad"])
    await cluster.admin.create_group(
        GroupConfig(name="doomers", retry_attempts_max=1, new_queue_rule=CLASSIC)
    )
    consumer = Consumer(client, "doomers", topic)
    for attempt in (1, 2):
        (message,) = await consumer.receive_all(1)
        assert message.system_properties.delivery_attempt == attempt
        await consumer.change(handle(message), 0)
    # The next call makes it a dead letter, and gets no message.
    dead = Consumer(client, "undertakers", "%DLQ%doomers")
    async with asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(consumer.receive_all(1, wait=20))
        await until_topic(cluster, dead.topic)
        (letter,) = await dead.receive_all(1)
        asking.cancel()
    assert letter.body == b"bad"
    assert letter.topic.name == "%DLQ%doomers"
    assert letter.system_properties.message_id == message.system_properties.message_id
    assert letter.system_properties.dead_letter_queue.topic == topic


async def until_topic(cluster: rockoon.Cluster, name: str) -> None:
    """Wait until a topic is there."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        for pause in pauses():
            found = await cluster.admin.list_topics(include_system=True)
            if any(route.name == name for route in found):
                return
            await asyncio.sleep(pause)


async def test_a_message_is_forwarded_to_the_dead_letters(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    topic = await topic_with(cluster, "forwarded", [b"bad"])
    consumer = Consumer(client, "forwarders", topic)
    (message,) = await consumer.receive()
    assert (await consumer.forward(handle(message))).status.code == d.OK
    assert (await cluster.admin.lag("forwarders", topic)).total_lag == 0
    (letter,) = await Consumer(client, "buriers", "%DLQ%forwarders").receive_all(1)
    assert letter.body == b"bad"


async def test_what_a_client_did_not_take_before_it_went_is_anothers_at_once(
    gateway: RunningGateway, cluster: rockoon.Cluster
) -> None:
    # More than fits between the two, so that the gateway still writes when the client leaves.
    topic = await topic_with(cluster, "untaken", [bytes(1 << 20) for _ in range(24)])
    async with WireClient(gateway.address, "goes") as first, WireClient(gateway.address) as second:
        request = Consumer(first, "takers", topic).request(batch_size=32, invisible=600)
        call = first.stub.ReceiveMessage(request, metadata=first.metadata)
        assert (await call.read()).status.code == d.OK
        taken = (await call.read()).message
        call.cancel()
        rest = await Consumer(second, "takers", topic).receive(batch_size=1, wait=20)
        assert len(rest) == 1
        assert rest[0].system_properties.delivery_attempt == 1
        assert handle(rest[0]) != handle(taken)


async def test_nobody_is_needed_to_have_said_anything_before(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    """After a gateway's restart some clients send no settings and no heartbeat."""
    topic = await topic_with(cluster, "silent", [b"one"])
    consumer = Consumer(client, "strangers", topic)
    (message,) = await consumer.receive(renewed=True)
    assert (await consumer.acknowledge(handle(message))).status.code == d.OK


async def test_what_a_push_consumer_has_is_anothers_when_it_says_goodbye(
    gateway: RunningGateway, cluster: rockoon.Cluster
) -> None:
    topic = await topic_with(cluster, "left", [b"one"])
    async with WireClient(gateway.address, "leaver") as first, WireClient(gateway.address) as other:
        group = d.Resource(name="leavers")
        consumer = Consumer(first, group.name, topic)
        assert (await first.heartbeat(d.PUSH_CONSUMER, group.name)).status.code == d.OK
        (message,) = await consumer.receive(renewed=True)
        goodbye = pb.NotifyClientTerminationRequest(group=group)
        assert (await first.call("NotifyClientTermination", goodbye)).status.code == d.OK
        (again,) = await Consumer(other, group.name, topic).receive_all(1)
        assert again.system_properties.delivery_attempt == 2
        late = await consumer.acknowledge(handle(message))
        assert late.status.code == d.INVALID_RECEIPT_HANDLE


async def test_two_consumers_of_a_group_share_and_lose_nothing(
    gateway: RunningGateway, cluster: rockoon.Cluster
) -> None:
    sent = [b"%d" % n for n in range(200)]
    topic = await topic_with(cluster, "shared", sent, queues=4)
    async with WireClient(gateway.address, "a") as one, WireClient(gateway.address, "b") as two:
        found: list[bytes] = []
        are_all_there = asyncio.Event()

        async def work(client: WireClient) -> None:
            consumer = Consumer(client, "sharers", topic)
            while True:
                messages = await consumer.receive_all(1, batch_size=8)
                answer = await consumer.acknowledge(*map(handle, messages))
                assert answer.status.code == d.OK
                found.extend(bodies(messages))
                if len(found) >= len(sent):
                    are_all_there.set()

        async with asyncio.timeout(DEADLINE_SECONDS), asyncio.TaskGroup() as tasks:
            workers = [tasks.create_task(work(client)) for client in (one, two)]
            await are_all_there.wait()
            for worker in workers:
                worker.cancel()
    assert sorted(found, key=int) == sent


async def test_an_acknowledgement_without_entries_is_the_callers_fault(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    topic = await topic_with(cluster, "without-entries")
    answer = await Consumer(client, "receivers", topic).acknowledge()
    assert answer.status.code == d.BAD_REQUEST


async def test_a_filter_is_as_long_as_a_tag_may_be(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    longest, topic = "t" * 16_384, "long-tags"
    await topic_with(cluster, topic, [b"one", b"other"], tags=[longest, longest[1:]])
    consumer = Consumer(client, "receivers", topic)
    wanted = d.FilterExpression(type=d.TAG, expression=longest)
    assert bodies(await consumer.receive(expression=wanted)) == [b"one"]


async def test_a_group_reads_its_own_retry_topic(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    """Each receiver reads it anyway; one that names it reads it once."""
    topic = await topic_with(cluster, "failing-once", [b"one"])
    (received,) = await Consumer(client, "own-retries", topic).receive(invisible=10)
    consumer = Consumer(client, "own-retries", "%RETRY%own-retries")
    for _ in range(2):
        assert await consumer.receive(wait=0) == []
    assert handle(received)


async def test_clients_of_a_group_with_other_filters_are_warned_of_in_the_gateways_log(
    client: WireClient, cluster: rockoon.Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    topic = await topic_with(cluster, "filtered", [b"one"], tags=["TagA"])
    consumer = Consumer(client, "contradicting", topic)
    for expression in ("TagA", "TagB"):
        wanted = d.FilterExpression(type=d.TAG, expression=expression)
        await consumer.receive(wait=0, expression=wanted)
    said = [each.getMessage() for each in caplog.records if "different filters" in each.message]
    assert len(said) == 1
    assert f"group contradicting: readers of topic {topic}" in said[0]
    assert "'TagA', 'TagB'" in said[0]
