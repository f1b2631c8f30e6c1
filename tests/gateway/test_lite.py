"""Lite topics through the gateway: each has its own order and progress, and its own readers."""

import asyncio

import grpc
import pytest

import rockoon
from gateway.consumers import Consumer, bodies, handle
from gateway.gateways import RunningGateway, running_gateway
from gateway.lite_consumers import LiteConsumer, lite_consumer, lite_message, lite_parent
from gateway.wire_client import WireClient, consumer_settings, message
from rockoon.errors import GroupNotFound, TopicNotFound
from rockoon.local.cluster import LocalCluster
from rockoon_format.names import lite_topic_of, stored_lite_topic
from rockoon_gateway.clients.client_settings import GroupFacts, answered
from rockoon_gateway.groups import lite_group
from rockoon_gateway.lite.subscriptions import LiteSubscriptions
from rockoon_proto.apache.rocketmq.v2 import definition_pb2 as d
from rockoon_proto.apache.rocketmq.v2 import service_pb2 as pb
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import Code
from rockoon_proto.v1.nameserver_pb2 import (
    CLASSIC,
    CONSUME_FROM_LAST,
    EXACT,
    NEW_QUEUE_RULE_UNSPECIFIED,
    GroupConfig,
    StartPolicy,
)


async def test_a_lite_topic_is_sent_to_subscribed_received_and_acknowledged(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    consumer = await lite_consumer(client, cluster, "chat")
    await consumer.send("one", b"before")
    await consumer.subscribe("one")
    (first,) = await consumer.receive_all(1)
    system = first.system_properties
    assert (first.body, first.topic.name) == (b"before", "chat")
    assert (system.lite_topic, system.message_type) == ("one", d.LITE)
    assert dict(first.user_properties) == {}
    assert (await consumer.acknowledge(handle(first))).status.code == Code.OK
    assert await consumer.receive(wait=0) == []


async def test_a_group_of_any_rule_reads_a_lite_topic_from_its_first_message(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    topic = await lite_parent(cluster, "begun-before")
    for rule in (NEW_QUEUE_RULE_UNSPECIFIED, EXACT, CLASSIC):
        # As `rockoon group create --fifo yes --attribute lite.bind.topic=...` creates it.
        config = GroupConfig(name=f"rule-{rule}", fifo=True, new_queue_rule=rule)
        config.attributes["lite.bind.topic"] = topic
        await cluster.admin.create_group(config)
        consumer = LiteConsumer(client, config.name, topic)
        await consumer.send(f"of-{rule}", b"before")
        await consumer.subscribe(f"of-{rule}")
        assert bodies(await consumer.receive_all(1)) == [b"before"]


async def test_a_group_with_a_start_policy_begins_there(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    topic = await lite_parent(cluster, "begun-at-the-end")
    start = StartPolicy(consume_from=CONSUME_FROM_LAST)
    config = GroupConfig(name="latecomers", fifo=True, start_policy=start)
    config.attributes["lite.bind.topic"] = topic
    await cluster.admin.create_group(config)
    consumer = LiteConsumer(client, config.name, topic)
    await consumer.send("one", b"before")
    await consumer.subscribe("one")
    assert await consumer.receive(wait=0) == []
    await consumer.send("one", b"after")
    assert bodies(await consumer.receive_all(1)) == [b"after"]


async def test_a_deleted_parent_leaves_its_lite_topics(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    consumer = await lite_consumer(client, cluster, "left-behind")
    await consumer.send("one", b"1")
    await cluster.admin.delete_topic(consumer.topic)
    stored = stored_lite_topic(consumer.topic, "one")
    described = await cluster.admin.describe_topic(stored)
    assert [each.state.max_offset for each in described.queues if each.state] == [1]
    await cluster.admin.delete_topic(stored)
    with pytest.raises(TopicNotFound):
        await cluster.admin.describe_topic(stored)


async def test_the_topic_behind_a_lite_topic_is_nobodys_to_name(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    consumer = await lite_consumer(client, cluster, "hidden")
    await consumer.send("one", b"1")
    stored = stored_lite_topic("hidden", "one")
    assert (await client.send(message(stored))).status.code == Code.ILLEGAL_TOPIC
    assert (await client.route(stored)).status.code == Code.ILLEGAL_TOPIC
    (frame,) = await Consumer(client, "others", stored).frames(wait=0)
    assert frame.status.code == Code.ILLEGAL_TOPIC


async def test_messages_of_one_lite_topic_come_in_order_and_in_batches(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    consumer = await lite_consumer(client, cluster, "in-order")
    await consumer.send("one", b"1", b"2", b"3", b"4")
    await consumer.subscribe("one")
    for expected in ([b"1", b"2", b"3"], [b"4"]):
        got = await consumer.receive_all(1, batch_size=3)
        assert bodies(got) == expected
        assert await consumer.receive(wait=0) == []
        await consumer.acknowledge(*map(handle, got))


async def test_consumers_that_do_not_wait_for_a_failed_message_get_one_of_a_lite_topic_at_a_time(
    gateway: RunningGateway, cluster: rockoon.Cluster
) -> None:
    async with WireClient(gateway.address, headers={"x-mq-language": "GO"}) as client:
        consumer = await lite_consumer(client, cluster, "in-go")
        await consumer.send("one", b"1", b"2")
        await consumer.subscribe("one")
        assert bodies(await consumer.receive_all(1, batch_size=3)) == [b"1"]


async def test_one_lite_topic_that_waits_holds_up_no_other(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    consumer = await lite_consumer(client, cluster, "beside")
    await consumer.subscribe("stuck", "free")
    await consumer.send("stuck", b"s1", b"s2")
    (held,) = await consumer.receive_all(1)
    assert held.body == b"s1"
    await consumer.send("free", b"f1")
    (other,) = await consumer.receive_all(1)
    assert other.body == b"f1"


async def test_only_what_was_subscribed_to_comes_and_the_rest_stays(
    client: WireClient, gateway: RunningGateway, cluster: rockoon.Cluster
) -> None:
    mine = await lite_consumer(client, cluster, "apart")
    async with WireClient(gateway.address, "another@2@0@test") as second:
        yours = LiteConsumer(second, mine.group, mine.topic)
        await mine.subscribe("mine")
        await yours.subscribe("yours")
        await mine.send("mine", b"m")
        await mine.send("yours", b"y")
        await mine.send("nobodys", b"n")
        assert bodies(await mine.receive_all(1)) == [b"m"]
        assert bodies(await yours.receive_all(1)) == [b"y"]
        assert await mine.receive(wait=0) == []
    await mine.subscribe("nobodys")
    assert bodies(await mine.receive_all(1)) == [b"n"]


async def test_a_receiver_that_waits_gets_what_is_subscribed_to_meanwhile(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    consumer = await lite_consumer(client, cluster, "meanwhile")
    await consumer.send("late", b"l")
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(consumer.receive(wait=20))
        await consumer.subscribe("late")
    assert bodies(waiting.result()) == [b"l"]


async def test_a_receiver_that_waits_gets_what_is_made_for_all_that_it_names_meanwhile(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    consumer = await lite_consumer(client, cluster, "made-meanwhile")
    await consumer.subscribe("known")
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(consumer.receive(wait=20))
        await consumer.subscribe("known", "unknown", action=d.COMPLETE_ADD, version=1)
        await consumer.send("unknown", b"u")
    assert bodies(waiting.result()) == [b"u"]


async def test_who_has_said_goodbye_and_comes_again_has_to_subscribe_again(
    client: WireClient, gateway: RunningGateway, cluster: rockoon.Cluster
) -> None:
    consumer = await lite_consumer(client, cluster, "goodbye")
    async with WireClient(gateway.address, "leaves@2@0@test") as leaves:
        leaving = LiteConsumer(leaves, consumer.group, consumer.topic)
        await leaving.subscribe("one")
        goodbye = pb.NotifyClientTerminationRequest(group=d.Resource(name=consumer.group))
        assert (await leaves.call("NotifyClientTermination", goodbye)).status.code == Code.OK
        await leaving.subscribe("two")
        await consumer.send("one", b"1")
        await consumer.send("two", b"2")
        assert bodies(await leaving.receive_all(1)) == [b"2"]
        assert await leaving.receive(wait=0) == []


async def test_what_is_unsubscribed_from_comes_no_more_and_goes_on_where_it_was(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    consumer = await lite_consumer(client, cluster, "left")
    await consumer.subscribe("one", "two")
    await consumer.send("one", b"1", b"2")
    (first,) = await consumer.receive_all(1)
    await consumer.acknowledge(handle(first))
    await consumer.subscribe("one", action=d.PARTIAL_REMOVE)
    assert await consumer.receive(wait=0) == []
    await consumer.subscribe("one", "two", action=d.COMPLETE_ADD, version=2)
    await consumer.subscribe("two", action=d.COMPLETE_ADD, version=1)
    assert bodies(await consumer.receive_all(1)) == [b"2"]
    await consumer.subscribe(action=d.COMPLETE_REMOVE)
    unknown = await consumer.sync("one", action=d.LiteSubscriptionAction.ValueType(99))
    assert unknown.status.code == d.BAD_REQUEST
    assert await consumer.receive(wait=0) == []


async def test_what_is_added_while_all_of_them_are_being_made_stays(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    consumer = await lite_consumer(client, cluster, "overtaken")
    await consumer.subscribe("known")
    await consumer.subscribe("known", action=d.PARTIAL_REMOVE)
    everything = client.stub.SyncLiteSubscription(
        pb.SyncLiteSubscriptionRequest(
            action=d.COMPLETE_ADD,
            topic=d.Resource(name=consumer.topic),
            group=d.Resource(name=consumer.group),
            lite_topic_set=[f"made-{number}" for number in range(20)],
            version=1,
        ),
        metadata=client.metadata,
    )
    await consumer.subscribe("known")
    assert (await everything).status.code == Code.OK
    await consumer.send("known", b"k")
    await consumer.send("made-7", b"m")
    assert sorted(bodies(await consumer.receive_all(2))) == [b"k", b"m"]


def test_what_a_client_says_that_has_gone_is_not_kept() -> None:
    there = {"here"}
    subscriptions = LiteSubscriptions(there.__contains__)
    assert subscriptions.of("here", "g", "t") is subscriptions.of("here", "g", "t")
    gone = subscriptions.of("gone", "g", "t")
    gone.lite_topics["one"] = None
    assert subscriptions.of("gone", "g", "t") is not gone
    assert subscriptions.read() == set()


async def test_another_gateway_goes_on_from_the_acknowledged_message(
    client: WireClient, cluster: rockoon.Cluster, local_cluster: LocalCluster
) -> None:
    consumer = await lite_consumer(client, cluster, "moved")
    await consumer.send("one", b"1", b"2")
    await consumer.subscribe("one")
    (first,) = await consumer.receive_all(1)
    async with running_gateway(local_cluster) as second, WireClient(second.address) as moved:
        there = LiteConsumer(moved, consumer.group, consumer.topic)
        assert (await there.acknowledge(handle(first))).status.code == Code.OK
        assert await there.receive(wait=0) == []
        await there.subscribe("one", action=d.COMPLETE_ADD)
        assert bodies(await there.receive_all(1)) == [b"2"]


async def test_a_message_that_is_suspended_comes_again_and_does_not_count(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    consumer = await lite_consumer(client, cluster, "suspended")
    await consumer.subscribe("one")
    await consumer.send("one", b"1", b"2")
    (first,) = await consumer.receive_all(1)
    changed = await consumer.change(handle(first), 0.2, suspend=True, lite_topic="one")
    assert changed.status.code == Code.OK
    (again,) = await consumer.receive_all(1)
    assert (again.body, again.system_properties.delivery_attempt) == (b"1", 1)


async def test_a_dead_letter_says_which_lite_topic_it_was_of(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    consumer = await lite_consumer(client, cluster, "dying")
    await consumer.subscribe("one")
    await consumer.send("one", b"1")
    (first,) = await consumer.receive_all(1)
    assert (await consumer.forward(handle(first))).status.code == Code.OK
    (dead,) = await Consumer(client, "undertakers", f"%DLQ%{consumer.group}").receive_all(1)
    assert (dead.body, dead.system_properties.lite_topic) == (b"1", "one")
    assert dead.system_properties.dead_letter_queue.topic == "dying"


@pytest.mark.parametrize(
    ("option", "found"),
    [
        (d.OffsetOption(policy=d.OffsetOption.LAST), b"1"),
        (d.OffsetOption(policy=d.OffsetOption.MIN), b"0"),
        (d.OffsetOption(policy=d.OffsetOption.MAX), b"new"),
        (d.OffsetOption(offset=3), b"3"),
        (d.OffsetOption(tail_n=2), b"4"),
        (d.OffsetOption(timestamp=0), b"0"),
    ],
    ids=["last", "min", "max", "offset", "tail", "timestamp"],
)
async def test_a_subscription_begins_where_it_says(
    client: WireClient, cluster: rockoon.Cluster, option: d.OffsetOption, found: bytes
) -> None:
    kind = f"{option.WhichOneof('offset_type')}-{option.policy}"
    consumer = await lite_consumer(client, cluster, f"from-{kind}")
    await consumer.send("one", *(b"%d" % number for number in range(6)))
    await consumer.subscribe("one")
    (first,) = await consumer.receive_all(1)
    await consumer.acknowledge(handle(first))
    await consumer.subscribe("one", action=d.PARTIAL_REMOVE)
    await consumer.subscribe("one", offset_option=option)
    (story,) = await cluster.admin.why(consumer.group, stored_lite_topic(consumer.topic, "one"))
    assert story.progress is not None
    is_reset = "by its lite subscription" in story.progress.start_explanation
    assert is_reset == (option != d.OffsetOption(policy=d.OffsetOption.LAST))
    await consumer.send("one", b"new")
    assert bodies(await consumer.receive_all(1)) == [found]


async def test_the_last_subscriber_of_an_exclusive_group_takes_over_and_the_first_is_told(
    client: WireClient, gateway: RunningGateway, cluster: rockoon.Cluster
) -> None:
    topic = await lite_parent(cluster, "exclusive")
    attributes = {"lite.bind.topic": topic, "lite.sub.model": "Exclusive"}
    config = GroupConfig(name="alone", fifo=True, new_queue_rule=CLASSIC, attributes=attributes)
    await cluster.admin.create_group(config)
    first = LiteConsumer(client, "alone", topic)
    stream = client.telemetry()
    settings = consumer_settings("alone", topic, client_type=d.LITE_PUSH_CONSUMER)
    answer = (await stream.tell(settings)).settings.subscription
    assert (answer.lite_subscription_quota, answer.max_lite_topic_size) == (2000, 64)
    await first.subscribe("one", "two")
    async with WireClient(gateway.address, "another@2@0@test") as second:
        taker = LiteConsumer(second, "alone", topic)
        await taker.subscribe("one")
        told = await stream.next()
        assert told.notify_unsubscribe_lite_command.lite_topic == "one"
        await first.send("one", b"1")
        await first.send("two", b"2")
        (got,) = await taker.receive_all(1)
        assert got.body == b"1"
        await taker.acknowledge(handle(got))
        assert bodies(await first.receive_all(1)) == [b"2"]
        # It sends its whole list before it learns that one of them belongs to another client.
        await first.subscribe("one", "two", action=d.COMPLETE_ADD, version=1)
        await first.send("one", b"3")
        assert await first.receive(wait=0) == []
        assert bodies(await taker.receive_all(1)) == [b"3"]
    await stream.close()


async def test_a_group_is_not_bound_to_a_topic_that_has_no_lite_topics(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    await cluster.admin.create_topic("mistyped", queues_per_broker=1)
    stream = client.telemetry()
    settings = consumer_settings("unbound", "mistyped", client_type=d.LITE_PUSH_CONSUMER)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stream.tell(settings)
    assert "has no lite topics" in str(refused.value.details())
    with pytest.raises(GroupNotFound):
        await cluster.admin.get_group("unbound")


@pytest.mark.parametrize("name", ["", "a b", "x" * 65, "a|b", "ä"])
async def test_a_name_that_is_none_is_refused(
    client: WireClient, cluster: rockoon.Cluster, name: str
) -> None:
    if cluster.routes.topic("names") is None:
        await cluster.admin.create_topic(
            "names", attributes={"message.type": "LITE"}, if_absent=True
        )
    consumer = LiteConsumer(client, "readers-of-names", "names")
    assert (await consumer.sync(name)).status.code == Code.ILLEGAL_LITE_TOPIC
    answer = await client.send(lite_message("names", name, b"x"))
    assert answer.status.code == Code.ILLEGAL_LITE_TOPIC


async def test_types_and_groups_that_do_not_fit_are_refused(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    consumer = await lite_consumer(client, cluster, "typed")
    await cluster.admin.create_topic("untyped", queues_per_broker=1)
    await consumer.subscribe("one")
    plain = await client.send(message("typed"))
    assert plain.status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    lite = await client.send(lite_message("untyped", "one", b"x"))
    assert lite.status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    other = LiteConsumer(client, "others", "untyped")
    assert (await other.sync("one")).status.code == Code.ILLEGAL_TOPIC
    # A group is bound to one parent, and reads no other topic.
    await lite_parent(cluster, "typed-too")
    crossed = LiteConsumer(client, consumer.group, "typed-too")
    assert (await crossed.sync("one")).status.code == Code.ILLEGAL_TOPIC
    (frame,) = await Consumer(client, consumer.group, "untyped").frames(wait=0)
    assert frame.status.code == Code.ILLEGAL_CONSUMER_GROUP
    await cluster.admin.create_group(GroupConfig(name="usual", new_queue_rule=CLASSIC))
    usual = LiteConsumer(client, "usual", "typed")
    assert (await usual.sync("one")).status.code == Code.ILLEGAL_CONSUMER_GROUP


@pytest.mark.parametrize(
    ("said", "quota"),
    [("7", 7), ("-1", 2000), (str(1 << 31), (1 << 31) - 1), ("9" * 5000, (1 << 31) - 1)],
)
async def test_a_quota_of_any_size_is_one_that_clients_can_be_told(said: str, quota: int) -> None:
    attributes = {"lite.bind.topic": "parent", "lite.sub.client.quota": said}
    found = lite_group(GroupConfig(name="lite", attributes=attributes))
    assert found is not None
    facts = GroupFacts(lite_topics_max=found.quota)
    answer = answered(d.Settings(client_type=d.LITE_PUSH_CONSUMER), 1, facts, is_node=False)
    assert answer.subscription.lite_subscription_quota == quota


async def test_quotas_of_a_client_and_of_the_gateway(
    cluster: rockoon.Cluster, local_cluster: LocalCluster
) -> None:
    topic = await lite_parent(cluster, "bounded")
    attributes = {"lite.bind.topic": topic, "lite.sub.client.quota": "2"}
    config = GroupConfig(name="few", fifo=True, new_queue_rule=CLASSIC, attributes=attributes)
    await cluster.admin.create_group(config)
    there = len(await cluster.admin.list_topics(include_system=True))
    async with (
        running_gateway(local_cluster, lite_topics_max=2 * there) as bounded,
        WireClient(bounded.address) as client,
    ):
        consumer = LiteConsumer(client, "few", topic)
        await consumer.subscribe("a", "b")
        answer = await consumer.sync("c")
        assert answer.status.code == Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
        answer = await consumer.sync("c", "d", "e", action=d.COMPLETE_ADD, version=1)
        assert answer.status.code == Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
        many = LiteConsumer(client, "many", topic)
        answer = await many.sync(*(f"n{number}" for number in range(there + 1)))
        assert answer.status.code == Code.LITE_TOPIC_QUOTA_EXCEEDED
        # Subscriptions leave space for producers.
        await many.send("sent", b"1")
    every = await cluster.admin.list_topics(include_system=True)
    lite = sum(lite_topic_of(each.name) is not None for each in every)
    async with (
        running_gateway(local_cluster, lite_topics_max=lite + 2) as nearly,
        WireClient(nearly.address) as client,
    ):
        codes = [
            (await client.send(lite_message(topic, f"last-{number}", b"x"))).status.code
            for number in range(3)
        ]
        assert codes == [Code.OK, Code.OK, Code.LITE_TOPIC_QUOTA_EXCEEDED]
    async with (
        running_gateway(local_cluster, lite_topics_max=1) as full,
        WireClient(full.address) as client,
    ):
        # Topics of other gateways count too, from the first one on.
        answer = await client.send(lite_message(topic, "one-more", b"x"))
        assert answer.status.code == Code.LITE_TOPIC_QUOTA_EXCEEDED
