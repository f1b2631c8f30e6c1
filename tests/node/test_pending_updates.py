"""Updates that wait for a slow service: merged ones have the same result as single ones."""

import asyncio
import random
from collections.abc import Callable

import pytest

from rockoon_node.route_follower import UPDATES_MAX, PendingUpdates
from rockoon_proto.v1.nameserver_pb2 import (
    BROKER,
    Group,
    GroupConfig,
    Node,
    RouteUpdate,
    Subscription,
    Topic,
    TopicConfig,
)
from support.seeds import seeds

ETCD = 7


def topic(name: str, incarnation: int) -> Topic:
    return Topic(config=TopicConfig(name=name), incarnation=incarnation)


def change(revision: int, etcd: int = ETCD, **contents: object) -> RouteUpdate:
    return RouteUpdate(
        revision=revision,
        etcd_cluster_id=etcd,
        cluster="rockoon",
        etcd_reachable=True,
        **contents,  # type: ignore[arg-type]
    )


class Routes:
    """State of a reader that applies updates by the rules of nameserver.proto."""

    def __init__(self) -> None:
        self.held: dict[tuple[str, ...], bytes] = {}
        self.revision = 0

    def take(self, update: RouteUpdate) -> None:
        if update.snapshot:
            self.held.clear()
        for each in update.nodes:
            self.held["node", each.name] = each.SerializeToString()
        for each in update.topics:
            self.held["topic", each.config.name] = each.SerializeToString()
        for each in update.groups:
            self.held["group", each.config.name] = each.SerializeToString()
        for each in update.subscriptions:
            self.held["read", each.group, each.topic] = each.SerializeToString()
        for each in update.removed_nodes:
            self.held.pop(("node", each.name), None)
        for name in update.removed_topics:
            self.held.pop(("topic", name), None)
        for name in update.removed_groups:
            self.held.pop(("group", name), None)
        for each in update.removed_subscriptions:
            self.held.pop(("read", each.group, each.topic), None)
        self.revision = update.revision


def by_chance(chance: random.Random, revision: int) -> RouteUpdate:
    """Return a change of a few names out of few, so that they overlap; sometimes a snapshot."""
    if chance.random() < 0.05:
        return change(revision, snapshot=True, topics=[topic("T1", revision)])
    name = f"{chance.randrange(4)}"
    etcd = ETCD if chance.random() < 0.95 else ETCD + 1
    kinds: list[Callable[[], RouteUpdate]] = [
        lambda: change(revision, etcd, topics=[topic(f"T{name}", revision)]),
        lambda: change(revision, etcd, removed_topics=[f"T{name}"]),
        lambda: change(revision, etcd, nodes=[Node(kind=BROKER, name=name, address=str(revision))]),
        lambda: change(revision, etcd, removed_nodes=[Node(kind=BROKER, name=name)]),
        lambda: change(revision, etcd, groups=[Group(config=GroupConfig(name=name))]),
        lambda: change(revision, etcd, removed_groups=[name]),
        lambda: change(
            revision, etcd, subscriptions=[Subscription(group=name, topic="T", revision=revision)]
        ),
        lambda: change(revision, etcd, removed_subscriptions=[Subscription(group=name, topic="T")]),
        lambda: change(revision, etcd),
    ]
    return chance.choice(kinds)()


@pytest.mark.parametrize("seed", seeds(20))
async def test_what_is_added_up_gives_the_routes_that_one_by_one_gives(seed: int) -> None:
    chance = random.Random(seed)
    pending, one_by_one, added_up = PendingUpdates(), Routes(), Routes()
    for revision in range(1, 200):
        update = by_chance(chance, revision)
        one_by_one.take(update)
        await pending.put(update)
        # Snapshots are not merged; before there are so many that `put` waits.
        while chance.random() < 0.4:
            if (ready := await taken(pending)) is None:
                break
            added_up.take(ready)
    while (ready := await taken(pending)) is not None:
        added_up.take(ready)
    assert added_up.held == one_by_one.held
    assert added_up.revision == one_by_one.revision


async def taken(pending: PendingUpdates) -> RouteUpdate | None:
    """Return the waiting updates, without a wait."""
    try:
        async with asyncio.timeout(0):
            return await pending.get()
    except TimeoutError:
        return None


async def test_a_thousand_changes_of_one_topic_wait_as_one() -> None:
    pending = PendingUpdates()
    for revision in range(1, 1001):
        await pending.put(change(revision, topics=[topic("T", revision)]))
    await pending.end()
    update = await pending.get()
    assert update is not None
    assert [each.incarnation for each in update.topics] == [1000]
    assert (update.revision, update.cluster, update.etcd_reachable) == (1000, "rockoon", True)
    assert await pending.get() is None


async def test_changes_that_two_etcds_count_stay_apart() -> None:
    pending = PendingUpdates()
    await pending.put(change(5, ETCD))
    await pending.put(change(6, ETCD + 1))
    assert [(await pending.get()).etcd_cluster_id for _ in range(2)] == [ETCD, ETCD + 1]  # type: ignore[union-attr]


async def test_what_cannot_be_added_up_has_an_end() -> None:
    pending = PendingUpdates()
    for revision in range(UPDATES_MAX):
        await pending.put(change(revision, snapshot=True))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await pending.put(change(99, snapshot=True))
    await pending.get()
    await pending.put(change(100, snapshot=True))
