"""Topics and groups of a namespace on the command line: by their names in the cluster."""

import asyncio
from typing import Any

from rockoon.consumer.retry import RetryPolicy
from rockoon.message import Message
from support.eventually import eventually

TOPIC, GROUP = "shop%orders", "shop%billing"


async def fail(_message: Message) -> None:
    raise ValueError("broken")


async def give_up(cluster: Any) -> None:
    async with (
        cluster.connect() as connection,
        connection.push_consumer(
            GROUP,
            {TOPIC: "*"},
            fail,
            consume_from="first",
            redelivery=RetryPolicy(attempts_max=0),
        ) as consumer,
    ):
        await eventually(lambda: consumer.statistics.retries.dead == 3)


def test_commands_take_names_with_a_namespace(rockoon: Any, cluster: Any) -> None:
    rockoon("topic", "create", TOPIC, "--queues", "1")
    assert TOPIC in rockoon("topic", "list").out.split()
    rockoon("produce", TOPIC, stdin="1\n2\n3")
    asyncio.run(give_up(cluster))
    assert GROUP in rockoon("group", "list").out.split()
    assert TOPIC in rockoon("offsets", "why", GROUP, TOPIC).out
    lag = rockoon("lag", GROUP, TOPIC, "--json").out
    assert GROUP in lag
    assert TOPIC in lag

    letter = rockoon("dlq", "show", GROUP, "--limit", "1", "--json").json
    assert letter["topic"] == TOPIC
    assert rockoon("dlq", "replay", GROUP, "--all", "-y").out == "3 replayed\n"
    rockoon("offsets", "reset", GROUP, TOPIC, "--to-earliest", "-y")
    again = rockoon("consume", TOPIC, "--group", GROUP).out
    assert sorted(again.split()) == ["1", "1", "2", "2", "3", "3"]
    rockoon("group", "delete", GROUP, "-y")
    rockoon("topic", "delete", TOPIC, "-y")
    assert TOPIC not in rockoon("topic", "list").out.split()
