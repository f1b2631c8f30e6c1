"""Names and other texts with lone surrogates: each call refuses them with a sentence."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

import rockoon
from rockoon.cluster import Cluster
from rockoon.errors import (
    InvalidArgument,
    InvalidExpression,
    InvalidGroupName,
    InvalidTopicName,
    RockoonError,
)
from support.fake_cluster import FakeCluster

BAD = "or\ud83dders"
SENTENCE = "is not valid Unicode: character [0-9]+ is the lone surrogate U\\+D83D"


def handle(_: object) -> None:
    """Never called."""


@pytest.fixture
async def fake_cluster() -> AsyncIterator[Cluster]:
    async with FakeCluster() as fake, rockoon.connect(fake.address) as connected:
        fake.create_topic("orders")
        yield connected


async def assign(cluster: Cluster, topic: str, expression: str = "*") -> None:
    async with cluster.pull_consumer() as consumer:
        await consumer.assign_all(topic, expression)


async def letters(cluster: Cluster) -> None:
    async for _ in cluster.admin.dead_letters.letters(BAD):
        pass


CALLS: dict[str, tuple[type[RockoonError], Callable[[Cluster], Awaitable[Any]]]] = {
    "create_topic": (InvalidArgument, lambda c: c.admin.create_topic(BAD)),
    "create_topics": (InvalidArgument, lambda c: c.admin.create_topics([BAD])),
    "delete_topic": (InvalidArgument, lambda c: c.admin.delete_topic(BAD)),
    "describe_topic": (InvalidArgument, lambda c: c.admin.describe_topic(BAD)),
    "create_group": (InvalidArgument, lambda c: c.admin.create_group(BAD)),
    "get_group": (InvalidArgument, lambda c: c.admin.get_group(BAD)),
    "delete_group": (InvalidArgument, lambda c: c.admin.delete_group(BAD)),
    "members": (InvalidArgument, lambda c: c.admin.members(BAD)),
    "lag": (InvalidArgument, lambda c: c.admin.lag(BAD)),
    "progress": (InvalidArgument, lambda c: c.admin.progress(topic=BAD)),
    "undo_reset": (InvalidArgument, lambda c: c.admin.undo_reset("1", BAD)),
    "access_keys.describe": (InvalidArgument, lambda c: c.admin.access_keys.describe(BAD)),
    "logs.describe": (InvalidArgument, lambda c: c.admin.logs.describe(BAD)),
    "messages.query": (InvalidArgument, lambda c: c.admin.messages.query("orders", BAD)),
    "dead_letters.letters": (InvalidGroupName, letters),
    "dead_letters.overview": (InvalidArgument, lambda c: c.admin.dead_letters.overview(BAD)),
    "route": (InvalidTopicName, lambda c: c.route(BAD)),
    "learn_routes": (InvalidTopicName, lambda c: c.learn_routes([BAD])),
    "topic of a pull consumer": (InvalidTopicName, lambda c: assign(c, BAD)),
    "tag of a pull consumer": (InvalidExpression, lambda c: assign(c, "orders", BAD)),
}


@pytest.mark.parametrize("call", CALLS)
async def test_a_call_with_invalid_text_is_refused(fake_cluster: Cluster, call: str) -> None:
    kind, make = CALLS[call]
    with pytest.raises(kind, match=SENTENCE) as caught:
        await make(fake_cluster)
    assert type(caught.value) is kind
    assert caught.value.to_wire().message


def push(cluster: Cluster, group: str, topic: str, expression: str, member: str | None) -> object:
    return cluster.push_consumer(group, {topic: expression}, handle, member_id=member)


MADE: dict[str, tuple[type[RockoonError], Callable[[Cluster], object]]] = {
    "group": (InvalidGroupName, lambda c: push(c, BAD, "orders", "*", None)),
    "topic": (InvalidTopicName, lambda c: push(c, "billing", BAD, "*", None)),
    "tag": (InvalidExpression, lambda c: push(c, "billing", "orders", f"new || {BAD}", None)),
    "SQL": (InvalidExpression, lambda c: push(c, "billing", "orders", f"SQL92: a='{BAD}'", None)),
    "member id": (InvalidArgument, lambda c: push(c, "billing", "orders", "*", BAD)),
    "group of a pull consumer": (InvalidGroupName, lambda c: c.pull_consumer(BAD)),
    "group of receivers": (InvalidGroupName, lambda c: c.simple_consumer(BAD, {"orders": "*"})),
    "receiver": (
        InvalidArgument,
        lambda c: c.simple_consumer("billing", {"orders": "*"}, receiver=BAD),
    ),
}


@pytest.mark.parametrize("argument", MADE)
async def test_a_consumer_with_invalid_text_is_refused(
    fake_cluster: Cluster, argument: str
) -> None:
    kind, make = MADE[argument]
    with pytest.raises(kind, match=SENTENCE):
        make(fake_cluster)


@pytest.mark.parametrize(
    ("nameservers", "options", "reason"),
    [
        ("127.0.0.1:1", {"client_id": BAD}, "client_id: .* lone surrogate"),
        ("127.0.0.1:1", {"cluster": "Köln"}, "cluster 'Köln' is not printable ASCII"),
        ("127.0.0.1:1", {"cluster": BAD}, "is not printable ASCII"),
        (f"{BAD}:1", {}, "is not a host name"),
        ("a" * 64 + ".example:1", {}, "is not a host name"),
    ],
    ids=["client id", "cluster", "surrogate in cluster", "surrogate in host", "long host"],
)
def test_a_connection_with_invalid_text_is_refused(
    nameservers: str, options: dict[str, str], reason: str
) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        rockoon.connect(nameservers, **options)  # type: ignore[arg-type]
