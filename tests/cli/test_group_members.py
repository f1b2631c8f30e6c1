"""`rockoon group members`, `locks` and `in-flight`, with live readers."""

import asyncio
from importlib import metadata
from typing import Any

import rockoon as sdk
from rockoon.message import Message
from support.eventually import eventually


async def ignore(_: Message) -> None:
    pass


async def test_members_and_locks_are_shown_with_idle_and_odd_ones(
    rockoon: Any, cluster: Any
) -> None:
    topic = cluster.new_topic("crowded", queues_per_broker=1)
    group = f"{topic}-billing"
    rockoon("group", "create", group)
    assert "It has no members" in rockoon("group", "members", group).out
    assert "No member holds one of its queues" in rockoon("group", "locks", group).out
    async with (
        sdk.connect(cluster.nameservers) as connected,
        connected.push_consumer(group, {topic: "*"}, ignore, member_id="a") as a,
        connected.push_consumer(group, {topic: "*"}, ignore, member_id="b") as b,
        connected.push_consumer(group, {topic: "TagA"}, ignore, member_id="c") as c,
    ):

        async def command(*arguments: str) -> Any:
            # Members continue their calls, however long it takes.
            return await asyncio.to_thread(rockoon, *arguments)

        def is_settled() -> bool:
            shares = [[q for q in each.queues() if q.topic == topic] for each in (a, b, c)]
            return [len(share) for share in shares] == [1, 1, 0]

        await eventually(is_settled)
        shown = (await command("group", "members", group)).words
        rows = {words[0]: words for words in shown if words}
        version = metadata.version("rockoon")
        assert rows["a"][:3] == ["a", "PYTHON", version]
        assert rows["a"][3].startswith("ipv4:127.0.0.1:")
        assert rows["a"][4:6] == ["clustering", "AVG"]
        assert f"{topic}@broker-a:0" in " ".join(rows["a"])
        assert f"read different things of topic {topic}: *: a, b; TagA: c" in " ".join(rows["!"])
        told = (await command("group", "members", group, "--json")).json
        described = (await command("group", "describe", group, "--json")).json
        for each in (*told["members"], *described["members"]):
            assert (each["language"], each["version"]) == ("PYTHON", version)
        shown = (await command("group", "describe", group)).words
        assert ["a", "PYTHON", version] in [words[:3] for words in shown]
        queues = {
            each["member_id"]: [q for q in each["queues"] if topic == q.split("@")[0]]
            for each in told["members"]
        }
        assert queues == {"a": [f"{topic}@broker-a:0"], "b": [f"{topic}@broker-b:0"], "c": []}

        locks = [
            each
            for each in (await command("group", "locks", group, "--json")).json
            if each["topic"] == topic
        ]
        assert [(each["broker"], each["owner"]) for each in locks] == [
            ("broker-a", "a"),
            ("broker-b", "b"),
        ]
        assert all(each["lease_left_ms"] > 0 and each["since_ms"] > 0 for each in locks)
        assert [f"{topic}@broker-a:0", "a"] in [
            words[:2] for words in (await command("group", "locks", group)).words
        ]


async def test_what_receivers_have_is_shown(rockoon: Any, cluster: Any) -> None:
    topic = cluster.new_topic("received", queues_per_broker=1)
    group = f"{topic}-billing"
    assert "does not exist" in rockoon.fails("group", "in-flight", group)
    rockoon("group", "create", group)
    assert "No client has received" in rockoon("group", "in-flight", group).out
    async with (
        sdk.connect(cluster.nameservers) as connected,
        connected.producer() as producer,
        connected.simple_consumer(group, {topic: "*"}, consume_from="first") as consumer,
    ):
        queue = (await connected.admin.describe_topic(topic)).queues[0].queue
        await producer.send_many(topic, [b"1", b"2", b"3"], queue=queue)
        got: list[Any] = []
        while len(got) < 3:
            got += await consumer.receive(visible_after=3600.0)
        await consumer.ack(got[1])
        (row,) = (await asyncio.to_thread(rockoon, "group", "in-flight", group, "--json")).json
        assert (row["broker"], row["queue_id"]) == (queue.broker, queue.queue_id)
        assert (row["settled_to"], row["acquired_to"], row["settled_above"]) == (0, 3, 1)
        assert (row["in_flight"], row["visible_again"], row["attempt_max"]) == (2, 0, 1)
        shown = (await asyncio.to_thread(rockoon, "group", "in-flight", group)).words
        assert [f"{topic}@{queue.broker}:0", "0", "3", "1", "2", "0", "1"] in [
            words[:7] for words in shown
        ]


async def test_receivers_with_other_filters_are_shown_and_marked(
    rockoon: Any, cluster: Any
) -> None:
    topic = cluster.new_topic("filtered", queues_per_broker=1)
    group = f"{topic}-billing"

    async def command(*arguments: str) -> Any:
        return await asyncio.to_thread(rockoon, *arguments)

    async with sdk.connect(cluster.nameservers) as connected:
        for name, tags in (("one", "TagA"), ("two", "TagB")):
            wanted = {topic: tags}
            async with connected.simple_consumer(group, wanted, receiver=name) as consumer:
                await consumer.receive(wait=0)
        mark = f"readers of topic {topic} have different filters: 'TagA' (one), 'TagB' (two)."
        for verb in ("members", "describe"):
            ran = await command("group", verb, group)
            shown = ran.words
            assert ["one", f"{topic}:", "TagA"] in [[*words[:1], *words[-2:]] for words in shown]
            assert mark in " ".join(" ".join(words) for words in shown)
            told = (await command("group", verb, group, "--json")).json
            assert [each["filter"] for each in told["receivers"]] == ["TagA", "TagB"]
            assert mark in told["contradictions"][0]
        lag = (await command("lag", group, topic)).out
        assert f"! readers of {topic} have different filters" in lag
        assert (await command("lag", group, topic, "--json")).json["queues"][0]["filters_differ"]
