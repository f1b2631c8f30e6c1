"""Topics and the create revisions of their queues, through two nameservers of one cluster."""

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from rockoon_core.errors import (
    BrokerNotFound,
    InvalidArgument,
    InvalidTopicName,
    NoWritableQueue,
    RockoonError,
    TopicChanged,
    TopicExists,
    TopicNotFound,
)
from rockoon_core.route_checks import changed_topic
from rockoon_nameserver.follower import BROKER_SECONDS_MAX
from rockoon_proto.v1.nameserver_pb2 import (
    CreateTopicRequest,
    CreateTopicsRequest,
    DeleteTopicRequest,
    GetRouteRequest,
    ListTopicsRequest,
    Placement,
    RegisterNodeRequest,
    SubscribeRequest,
    TopicConfig,
    UpdateTopicRequest,
)
from support.etcd import EtcdServer
from support.nameserver import Nameserver, Watching, broker_node, running_nameserver
from support.seeds import seeds

Pair = tuple[Nameserver, Nameserver]


@asynccontextmanager
async def two_nameservers(etcd: EtcdServer, cluster: str, *brokers: str) -> AsyncIterator[Pair]:
    async with AsyncExitStack() as stack:
        pair = [
            await stack.enter_async_context(
                running_nameserver(etcd=(etcd.endpoint,), cluster=cluster, name=name)
            )
            for name in ("one", "two")
        ]
        for broker in brokers:
            await pair[0].call("RegisterNode", RegisterNodeRequest(node=broker_node(broker)))
        yield pair[0], pair[1]


async def create(
    nameserver: Nameserver,
    name: str = "t",
    attributes: Mapping[str, str] | None = None,
    **request: Any,
) -> Any:
    config = TopicConfig(name=name, attributes=attributes)
    return await nameserver.call("CreateTopic", CreateTopicRequest(config=config, **request))


def blocks(topic: Any) -> list[tuple[str, int, int]]:
    return [(block.broker, block.first_queue_id, block.queues) for block in topic.blocks]


async def test_a_topic_gets_queues_on_every_live_broker_all_born_with_it(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    async with two_nameservers(shared_etcd, cluster, "b", "a") as (one, two):
        reply = await create(one)
        assert reply.created
        assert blocks(reply.topic) == [("a", 0, 4), ("b", 0, 4)]
        assert {block.create_revision for block in reply.topic.blocks} == {reply.revision}
        assert reply.topic.config.permissions == 6
        route = await two.call("GetRoute", GetRouteRequest(min_revision=reply.revision))
        assert list(route.topics) == [reply.topic]
        assert route.revision >= reply.revision
        assert route.cluster == cluster


async def test_later_create_revisions_have_larger_revisions_whoever_made_them(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    async with two_nameservers(shared_etcd, cluster, "a") as pair:
        seen = 0
        for number in range(6):
            name = f"t{number}"
            reply = await create(pair[number % 2], name)
            assert reply.topic.incarnation > seen
            subscribed = await pair[(number + 1) % 2].call(
                "Subscribe", SubscribeRequest(group="g", topic=name, create_group=True)
            )
            assert subscribed.subscription.revision > reply.topic.incarnation
            seen = subscribed.subscription.revision


async def test_added_queues_go_behind_the_old_ones_and_onto_new_brokers(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    async with two_nameservers(shared_etcd, cluster, "a") as (one, two):
        first = await create(one, queues_per_broker=2)
        await two.call("RegisterNode", RegisterNodeRequest(node=broker_node("b")))
        add = [Placement(broker="a", queues=3), Placement(broker="b", queues=5)]
        second = await two.call("UpdateTopic", UpdateTopicRequest(name="t", add=add))
        assert blocks(second.topic) == [("a", 0, 2), ("a", 2, 3), ("b", 0, 5)]
        create_revisions = [block.create_revision for block in second.topic.blocks]
        assert create_revisions == [first.revision, second.revision, second.revision]
        assert second.topic.incarnation == first.topic.incarnation
        assert second.topic.modified_revision == second.revision > first.revision
        third = await one.call("UpdateTopic", UpdateTopicRequest(name="t", add=add[:1]))
        assert blocks(third.topic)[:3] == [("a", 0, 2), ("a", 2, 3), ("a", 5, 3)]
        route = await two.call("GetRoute", GetRouteRequest(min_revision=third.revision))
        assert list(route.topics) == [third.topic]


@pytest.mark.parametrize("seed", seeds(1))
async def test_everybody_adds_queues_at_once_and_no_id_is_given_twice_or_left_out(
    shared_etcd: EtcdServer, cluster: str, seed: int
) -> None:
    chance = random.Random(seed)
    async with two_nameservers(shared_etcd, cluster, "a", "b") as pair:
        await create(pair[0], queues_per_broker=1)
        added = 0

        async def add(nameserver: Nameserver, broker: str, queues: int) -> None:
            nonlocal added
            placement = Placement(broker=broker, queues=queues)
            request = UpdateTopicRequest(name="t", add=[placement])
            while True:
                try:
                    await nameserver.call("UpdateTopic", request)
                except RockoonError as failure:
                    # Another caller was faster eight times: the caller is asked to try again.
                    assert failure.retriable
                else:
                    added += queues
                    return

        async with asyncio.TaskGroup() as tasks:
            for _ in range(24):
                tasks.create_task(
                    add(chance.choice(pair), chance.choice("ab"), chance.randint(1, 4))
                )
        [topic] = (await pair[0].call("GetRoute", GetRouteRequest(topics=["t"]))).topics
        async with Watching(pair[0]) as watching:
            view = await watching.until(
                lambda view: (
                    sum(block.queues for block in view.topics["t"].blocks) == added + 2
                    if "t" in view.topics
                    else False
                )
            )
        topic = view.topics["t"]
        for broker in "ab":
            expected = 0
            for block in topic.blocks:
                if block.broker == broker:
                    assert block.first_queue_id == expected
                    expected += block.queues


async def test_of_two_who_create_the_same_topic_at_once_one_wins(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    async with two_nameservers(shared_etcd, cluster, "a") as pair:
        for number in range(5):
            outcomes: list[object] = []

            async def attempt(
                nameserver: Nameserver, queues: int, name: str, outcomes: list[object]
            ) -> None:
                try:
                    outcomes.append(await create(nameserver, name, queues_per_broker=queues))
                except TopicExists as failure:
                    outcomes.append(failure)

            async with asyncio.TaskGroup() as tasks:
                for queues, nameserver in enumerate(pair, 1):
                    tasks.create_task(attempt(nameserver, queues, f"t{number}", outcomes))
            assert sorted(type(outcome).__name__ for outcome in outcomes) == [
                "TopicExists",
                "TopicReply",
            ]


async def test_if_absent_answers_with_the_topic_that_is_there(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    async with two_nameservers(shared_etcd, cluster, "a") as (one, two):
        first = await create(one, queues_per_broker=2)
        with pytest.raises(TopicExists):
            await create(two)
        again = await create(two, if_absent=True, queues_per_broker=9)
        assert not again.created
        assert again.topic == first.topic
        route = await two.call("GetRoute", GetRouteRequest(min_revision=again.revision))
        assert list(route.topics) == [first.topic]


async def test_a_topic_created_again_is_another_incarnation_without_subscriptions(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    async with two_nameservers(shared_etcd, cluster, "a") as (one, two), Watching(two) as watching:
        first = await create(one)
        # A neighbour whose name begins with the deleted one's must stay.
        await create(one, "t-neighbour")
        for topic in ("t", "t-neighbour"):
            await one.call("Subscribe", SubscribeRequest(group="g", topic=topic, create_group=True))
        await watching.until(lambda view: len(view.subscriptions) == 2)
        await two.call("DeleteTopic", DeleteTopicRequest(name="t"))
        await watching.until(lambda view: "t" not in view.topics)
        assert list(watching.view.subscriptions) == [("t-neighbour", "g")]
        assert list(watching.view.topics) == ["t-neighbour"]
        second = await create(one)
        assert second.topic.incarnation > first.topic.incarnation
        await watching.until(lambda view: "t" in view.topics)
        assert watching.view.topics["t"] == second.topic
        with pytest.raises(TopicNotFound):
            await one.call("DeleteTopic", DeleteTopicRequest(name="never"))


async def test_attributes_are_set_and_removed_and_permissions_changed(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    async with two_nameservers(shared_etcd, cluster, "a") as (one, two):
        first = await create(one)
        changed = await two.call(
            "UpdateTopic",
            UpdateTopicRequest(
                name="t",
                permissions=4,
                attributes={"cleanup.policy": "COMPACTION", "message.type": "FIFO"},
                expected_modified_revision=first.topic.modified_revision,
            ),
        )
        assert changed.topic.config.permissions == 4
        assert dict(changed.topic.config.attributes) == {
            "cleanup.policy": "COMPACTION",
            "message.type": "FIFO",
        }
        with pytest.raises(TopicChanged):
            await one.call(
                "UpdateTopic",
                UpdateTopicRequest(
                    name="t",
                    permissions=6,
                    expected_modified_revision=first.topic.modified_revision,
                ),
            )
        removed = await one.call(
            "UpdateTopic", UpdateTopicRequest(name="t", attributes={"message.type": ""})
        )
        assert dict(removed.topic.config.attributes) == {"cleanup.policy": "COMPACTION"}
        assert removed.topic.config.permissions == 4
        same = await one.call("UpdateTopic", UpdateTopicRequest(name="t"))
        assert same.revision == removed.revision


async def test_a_topic_that_was_changed_is_not_deleted_as_it_was_seen(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    async with two_nameservers(shared_etcd, cluster, "a") as (one, two):
        seen = (await create(one)).topic.modified_revision
        changed = await two.call("UpdateTopic", UpdateTopicRequest(name="t", permissions=4))
        outdated = DeleteTopicRequest(name="t", expected_modified_revision=seen)
        with pytest.raises(TopicChanged):
            await one.call("DeleteTopic", outdated)
        revision = changed.topic.modified_revision
        newest = DeleteTopicRequest(name="t", expected_modified_revision=revision)
        await one.call("DeleteTopic", newest)
        with pytest.raises(TopicNotFound):
            await one.call("DeleteTopic", newest)


@pytest.mark.parametrize(
    ("request_fields", "failure"),
    [
        ({"name": ""}, InvalidTopicName),
        ({"name": "a/b"}, InvalidTopicName),
        ({"name": "x" * 128}, InvalidTopicName),
        ({"name": "x" * 20_000}, InvalidTopicName),
        ({"name": "TBW102"}, InvalidTopicName),
        ({"placements": [Placement(broker="a", queues=0)]}, InvalidArgument),
        ({"placements": [Placement(broker="a", queues=4097)]}, InvalidArgument),
        ({"placements": [Placement(broker="a", queues=1)] * 2}, InvalidArgument),
        ({"placements": [Placement(broker="nobody", queues=1)]}, BrokerNotFound),
        ({"queues_per_broker": -1}, InvalidArgument),
    ],
)
async def test_a_topic_that_cannot_be_is_refused(
    shared_etcd: EtcdServer, cluster: str, request_fields: dict[str, Any], failure: type
) -> None:
    async with running_nameserver(etcd=(shared_etcd.endpoint,), cluster=cluster) as nameserver:
        await nameserver.call("RegisterNode", RegisterNodeRequest(node=broker_node("a")))
        with pytest.raises(failure):
            await create(nameserver, **{"name": "t", **request_fields})


async def test_a_policy_that_no_broker_knows_is_refused(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    async with running_nameserver(etcd=(shared_etcd.endpoint,), cluster=cluster) as nameserver:
        await nameserver.call("RegisterNode", RegisterNodeRequest(node=broker_node("a")))
        compacted = {"cleanup.policy": "COMPACTION", "delete.retention.ms": "60000"}
        await create(nameserver, "t", attributes=compacted)
        for name, value in (("cleanup.policy", "compact"), ("delete.retention.ms", "-1")):
            with pytest.raises(InvalidArgument, match=f"{name} is '{value}'"):
                await create(nameserver, "other", attributes={name: value})
            with pytest.raises(InvalidArgument, match=f"{name} is '{value}'"):
                await nameserver.call(
                    "UpdateTopic", UpdateTopicRequest(name="t", attributes={name: value})
                )
        changed = await nameserver.call(
            "UpdateTopic", UpdateTopicRequest(name="t", attributes={"cleanup.policy": "DELETE"})
        )
        assert changed.topic.config.attributes["cleanup.policy"] == "DELETE"


async def test_an_attribute_that_there_is_not_is_refused_with_the_one_that_was_meant(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    async with running_nameserver(etcd=(shared_etcd.endpoint,), cluster=cluster) as nameserver:
        await nameserver.call("RegisterNode", RegisterNodeRequest(node=broker_node("a")))
        meant = "'cleanup.polcy': did you mean cleanup.policy"
        with pytest.raises(InvalidArgument, match=meant):
            await create(nameserver, attributes={"cleanup.polcy": "COMPACTION"})
        await create(nameserver)
        for value in ("COMPACTION", ""):
            change = UpdateTopicRequest(name="t", attributes={"cleanup.polcy": value})
            with pytest.raises(InvalidArgument, match=meant):
                await nameserver.call("UpdateTopic", change)
        with pytest.raises(InvalidArgument, match=r"there are cleanup\.policy, "):
            await create(nameserver, "u", attributes={"x": "1"})


def test_an_attribute_from_before_names_were_looked_at_stays_and_can_be_taken_away() -> None:
    old = TopicConfig(name="t", attributes={"x": "1"})
    kept = changed_topic(old, UpdateTopicRequest(name="t", attributes={"message.type": "FIFO"}))
    assert dict(kept.attributes) == {"x": "1", "message.type": "FIFO"}
    removed = changed_topic(old, UpdateTopicRequest(name="t", attributes={"x": ""}))
    assert dict(removed.attributes) == {}


async def test_a_topic_of_failed_messages_is_not_compacted(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    async with running_nameserver(etcd=(shared_etcd.endpoint,), cluster=cluster) as nameserver:
        await nameserver.call("RegisterNode", RegisterNodeRequest(node=broker_node("a")))
        await create(nameserver, "%RETRY%g")
        with pytest.raises(InvalidArgument, match="it cannot be compacted"):
            await nameserver.call(
                "UpdateTopic",
                UpdateTopicRequest(name="%RETRY%g", attributes={"cleanup.policy": "COMPACTION"}),
            )


async def test_the_longest_names_and_the_widest_topic_fit(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    brokers = [f"broker-{number:03d}" for number in range(100)]
    async with two_nameservers(shared_etcd, cluster, *brokers) as (one, _):
        reply = await create(one, "%RETRY%" + "x" * 248, queues_per_broker=4096)
        assert len(reply.topic.blocks) == 100
        await one.call("RegisterNode", RegisterNodeRequest(node=broker_node("one-more")))
        with pytest.raises(InvalidArgument, match="at most 100"):
            await create(one, "wider")
        listed = await one.call("ListTopics", ListTopicsRequest())
        assert not listed.topics
        listed = await one.call("ListTopics", ListTopicsRequest(include_system=True))
        assert len(listed.topics) == 1


async def test_without_a_live_broker_a_topic_has_no_place(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    async with running_nameserver(etcd=(shared_etcd.endpoint,), cluster=cluster) as nameserver:
        with pytest.raises(NoWritableQueue, match="start one"):
            await create(nameserver)


@pytest.mark.parametrize("call", ["CreateTopic", "CreateTopics"])
async def test_a_topic_waits_for_the_first_broker_of_a_cluster_that_starts(
    shared_etcd: EtcdServer, cluster: str, call: str
) -> None:
    one = CreateTopicRequest(config=TopicConfig(name="t"))
    request = one if call == "CreateTopic" else CreateTopicsRequest(topics=[one])
    async with (
        running_nameserver(etcd=(shared_etcd.endpoint,), cluster=cluster) as nameserver,
        asyncio.TaskGroup() as tasks,
    ):
        creating = tasks.create_task(nameserver.call(call, request))
        listed = await nameserver.call("ListTopics", ListTopicsRequest())
        assert not listed.topics
        await nameserver.call("RegisterNode", RegisterNodeRequest(node=broker_node()))
        reply = await creating
        topic = reply.topic if call == "CreateTopic" else reply.results[0].topic
        assert [block.broker for block in topic.blocks] == ["broker-a"]


async def test_many_topics_wait_for_a_broker_once_and_not_each(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    async with running_nameserver(etcd=(shared_etcd.endpoint,), cluster=cluster) as nameserver:
        topics = [CreateTopicRequest(config=TopicConfig(name=f"t{n}")) for n in range(20)]
        async with asyncio.timeout(10 * BROKER_SECONDS_MAX):
            reply = await nameserver.call("CreateTopics", CreateTopicsRequest(topics=topics))
        assert all(each.HasField("error") for each in reply.results)


async def test_a_revision_that_others_keys_made_is_reached_all_the_same(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    async with (
        two_nameservers(shared_etcd, cluster, "a") as (one, _),
        two_nameservers(shared_etcd, cluster + "-other", "a") as (other, _),
    ):
        elsewhere = await create(other)
        route = await one.call("GetRoute", GetRouteRequest(min_revision=elsewhere.revision))
        assert route.revision >= elsewhere.revision
        assert not route.topics
