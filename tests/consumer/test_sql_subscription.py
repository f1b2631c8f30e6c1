"""Subscriptions with an SQL92 expression: checked immediately, evaluated by the broker."""

from collections.abc import AsyncIterator

import pytest

import rockoon
from rockoon import Sql
from rockoon.cluster import Cluster
from rockoon.consumer.pull import PullLimits
from rockoon.errors import InvalidExpression
from rockoon.local import LocalCluster
from rockoon.message import Message
from rockoon.subscription import Subscription
from support.eventually import answered, eventually
from support.fake_cluster import FakeCluster
from support.waiting import DEADLINE_SECONDS


def test_an_expression_is_kept_as_it_is_and_shown_as_sql() -> None:
    subscription = Subscription.parse("orders", Sql("price > 9"))
    assert subscription == Subscription.sql("orders", "price > 9")
    assert subscription.sql_expression == "price > 9"
    assert (subscription.tags, subscription.tag_hashes) == (frozenset(), ())
    assert subscription.expression == "SQL92: price > 9"
    assert subscription.matches(None)
    assert subscription.matching(["any", None]) is None


def test_an_expression_may_be_spelled_as_it_is_shown() -> None:
    subscription = Subscription.parse("orders", "SQL92: price > 9")
    assert subscription == Subscription.sql("orders", "price > 9")
    assert Subscription.parse("orders", subscription.expression) == subscription
    with pytest.raises(InvalidExpression):
        Subscription.parse("orders", "SQL92: price >")


def test_what_is_no_text_is_no_expression() -> None:
    with pytest.raises(InvalidExpression, match="it is not"):
        Subscription.parse("orders", None)  # type: ignore[arg-type]


def test_the_same_text_without_the_mark_is_a_tag() -> None:
    assert Subscription.parse("orders", "price > 9").tags == {"price > 9"}


def test_a_mistake_is_shown_with_a_caret_when_subscribing() -> None:
    with pytest.raises(InvalidExpression) as refusal:
        Subscription.parse("orders", Sql("price >> 9"))
    sentence, expression, caret = str(refusal.value).split("\n")
    assert sentence.startswith("'price >> 9' is not a subscription expression: ")
    assert sentence.endswith("(at character 8)")
    assert expression == "    price >> 9"
    assert caret == "           ^"
    assert refusal.value.details["position"] == "7"


async def test_no_consumer_starts_with_a_mistake(cluster: Cluster, fake: FakeCluster) -> None:
    fake.create_topic("orders")

    async def handler(message: Message) -> None:
        raise AssertionError(message)

    with pytest.raises(InvalidExpression):
        cluster.push_consumer("billing", {"orders": Sql("price >")}, handler)
    async with cluster.pull_consumer() as consumer:
        with pytest.raises(InvalidExpression):
            await consumer.assign_all("orders", Sql("price >"))
        assert consumer.assignment == []


@pytest.fixture
async def real() -> AsyncIterator[Cluster]:
    with LocalCluster(brokers=1) as local:
        async with rockoon.connect(local.nameservers) as connected:
            yield connected


async def test_pull_and_push_consumers_get_what_the_expression_selects_and_nothing_else(
    real: Cluster,
) -> None:
    await real.admin.create_topic("orders", queues_per_broker=2)

    async def send(prices: range) -> None:
        async with real.producer() as producer:
            for price in prices:
                region = "north" if price % 2 else "south"
                await producer.send(
                    "orders",
                    b"%d" % price,
                    tags="new",
                    properties={"price": str(price), "region": region},
                )

    expression = Sql("price BETWEEN 10 AND 119 AND region = 'north' AND TAGS IN ('new')")
    pushed: set[int] = set()

    async def handler(message: Message) -> None:
        pushed.add(int(message.body))

    async with real.push_consumer(
        "billing",
        {"orders": expression},
        handler,
        consume_from="first",
        timing=rockoon.Timing(commit_seconds=0.1),
        # Skipped messages count as read when the pull gets its reply.
        pull_limits=PullLimits(wait_ms=500),
    ):
        await send(range(100))
        await eventually(lambda: len(pushed) == 45)
        # Readers at the end of their queue are woken only by matching messages.
        await send(range(100, 150))
        await eventually(lambda: len(pushed) == 55)

        await answered(
            lambda: real.admin.lag("billing", "orders"), lambda seen: seen.total_lag == 0
        )
    assert pushed == set(range(11, 120, 2))

    async with real.pull_consumer(consume_from="first") as reader:
        await reader.assign_all("orders", expression)
        pulled: list[int] = []
        while len(pulled) < 55:
            messages = await reader.poll(timeout=DEADLINE_SECONDS)
            assert messages
            pulled += [int(message.body) for message in messages]
        assert sorted(pulled) == sorted(pushed)
        assert await reader.poll(timeout=0.1) == []
