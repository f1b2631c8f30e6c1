"""`rockoon dlq`, and the retries in `rockoon group`."""

import asyncio
import json
from typing import Any

import pytest

from rockoon.consumer.retry import RetryPolicy
from rockoon.message import Message
from support.eventually import eventually


async def fail(message: Message) -> None:
    raise ValueError(f"cannot read {message.body!r}")


@pytest.fixture
def group(cluster: Any, topic: str) -> str:
    """A group with three dead letters of a topic."""

    async def give_up() -> None:
        async with cluster.connect() as connection:
            async with connection.producer() as producer:
                for number in range(3):
                    await producer.send(
                        topic, b"bad %d" % number, keys=f"key-{number}", properties={"n": "1"}
                    )
            async with connection.push_consumer(
                f"{topic}-readers",
                {topic: "*"},
                fail,
                consume_from="first",
                redelivery=RetryPolicy(attempts_max=0),
            ) as consumer:
                await eventually(lambda: consumer.statistics.retries.dead == 3)

    asyncio.run(give_up())
    return f"{topic}-readers"


def test_dead_letters_are_counted_listed_shown_and_replayed_once(
    rockoon: Any, topic: str, group: str
) -> None:
    assert group in rockoon("dlq", "list").out
    [figures] = rockoon("dlq", "list", group, "--json").json
    assert (figures["messages"], figures["replayed"], figures["unknown"]) == (3, 0, [])
    table = rockoon("dlq", "show", group).out
    assert table.count("ValueError: cannot read") == 3
    lines = rockoon("dlq", "show", group, "--json").out.splitlines()
    assert len(lines) == 3
    letter = rockoon("dlq", "show", group, "--limit", "1", "--json").json
    assert (letter["topic"], letter["failed"], letter["replayed"]) == (topic, 1, False)

    one = rockoon("dlq", "show", group, "--id", letter["origin_message_id"]).out
    assert letter["body"] in one
    assert f"failed          1 times, last: ValueError: cannot read b'{letter['body']}'" in one
    queue = f"{letter['broker']}:{letter['queue_id']}"
    same = rockoon(
        "dlq", "show", group, "--queue", queue, "--offset", str(letter["queue_offset"]), "--json"
    ).json
    assert same == letter

    would = rockoon("dlq", "replay", group, "--all", "--dry-run", "--json").json
    assert (len(would["replayed"]), would["dry_run"]) == (3, True)
    done = rockoon("dlq", "replay", group, "--id", letter["message_id"]).out
    assert done == "1 replayed\n"
    done = rockoon("dlq", "replay", group, "--all", "--yes").out
    assert done == "2 replayed, 1 were before\n"
    assert rockoon("dlq", "replay", group, "--all", "--yes").out == "0 replayed, 3 were before\n"
    [figures] = rockoon("dlq", "list", group, "--json").json
    assert (figures["messages"], figures["replayed"]) == (3, 3)
    bodies = rockoon("consume", topic).out
    assert sorted(bodies.split("\n")) == ["", *sorted(2 * ["bad 0", "bad 1", "bad 2"])]


def test_a_replay_to_another_topic(rockoon: Any, cluster: Any, group: str) -> None:
    other = cluster.new_topic("repaired", queues_per_broker=1)
    done = rockoon("dlq", "replay", group, "--since", "1h", "--to", other, "--yes", "--json").json
    assert (len(done["replayed"]), done["left_out"]) == (3, 0)
    assert sorted(rockoon("consume", other).out.split()) == ["0", "1", "2", "bad", "bad", "bad"]
    message = json.loads(rockoon("consume", other, "--json").out.splitlines()[0])
    assert message["properties"]["ROCKOON_REPLAYED_FROM"] in done["replayed"]
    assert message["properties"]["n"] == "1"


def test_what_cannot_be_done_is_said_in_a_sentence(rockoon: Any, group: str) -> None:
    assert "no dead letters" in rockoon.fails("dlq", "show", "nobody")
    assert "no dead letters" in rockoon.fails("dlq", "replay", "nobody", "--all", "--yes")
    assert "'nobody' does not exist" in rockoon.fails("dlq", "list", "nobody")
    rockoon("group", "create", "flawless")
    assert rockoon("dlq", "list", "flawless").out == "There are no dead letters.\n"
    assert (
        "no dead letter has the id x" in rockoon("dlq", "replay", group, "--id", "x", status=1).err
    )
    assert "--yes" in rockoon.fails("dlq", "replay", group, "--all")
    rockoon.fails("dlq", "show", group, "--queue", "broker-a:0", "--offset", "99")
    assert "name the dead letters" in rockoon.misused("dlq", "replay", group)
    assert "--to-group" in rockoon.misused(
        "dlq", "replay", group, "--all", "--to", "x", "--to-group"
    )
    assert "--queue" in rockoon.misused("dlq", "show", group, "--offset", "1")
    assert "BROKER:QUEUE" in rockoon.misused("dlq", "show", group, "--queue", "broker-a")
    rockoon.misused("dlq", "replay", group, "--since", "yesterday")


def test_a_groups_retries_are_set_changed_and_shown(rockoon: Any, topic: str) -> None:
    group = f"{topic}-readers"
    rockoon("group", "create", group, "--from", "first", "--retry-attempts-max", "5")
    assert "retry-attempts-max: 5" in rockoon("group", "describe", group).out
    updated = rockoon("group", "update", group, "--retry-attempts-max", "3").out
    assert updated == f"group {group}: starts from first, retry-attempts-max 3\n"
    said = rockoon("group", "update", group, "--retry-queues", "0", "--json").json
    assert (said["retry_attempts_max"], said["retry_queues"]) == (3, 0)
    assert said["start_policy"]["consume_from"] == "CONSUME_FROM_FIRST", "as it was"
    assert "retry-queues: 0" in rockoon("group", "describe", group).out
    assert "does not exist" in rockoon.fails("group", "update", "nobody", "--retry-queues", "1")
    assert "name a setting to change" in rockoon.misused("group", "update", group)
    rockoon.misused("group", "update", group, "--retry-queues", "-1")


def test_the_topics_of_groups_are_listed_only_when_asked_for(
    rockoon: Any, topic: str, group: str
) -> None:
    own = {f"%RETRY%{group}", f"%DLQ%{group}"}
    names = {name for line in rockoon("topic", "list").words for name in line[:1]}
    assert topic in names
    assert not own & names
    assert own <= {name for line in rockoon("topic", "list", "--all").words for name in line[:1]}
    rockoon("group", "delete", group, "--yes")
    left = {name for line in rockoon("topic", "list", "--all").words for name in line[:1]}
    assert not own & left
