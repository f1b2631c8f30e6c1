"""A service and the routes: received updates, their order, and operation without nameservers."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from rockoon_node.nameservers import Nameservers
from rockoon_node.route_follower import BEHIND_SECONDS_MAX, RouteFollower
from rockoon_proto.v1 import nameserver_pb2 as pb
from rockoon_runtime.process import ExitStatus, Stop
from support.broker_routes import BrokerRoutes
from support.eventually import eventually
from support.waiting import DEADLINE_SECONDS

TellsOf = Callable[..., Nameservers]

NOBODY = "127.0.0.1:1"


class Follower:
    """A follower and its received updates."""

    def __init__(self, nameservers: Nameservers) -> None:
        self.told: list[pb.RouteUpdate] = []
        self.routes = RouteFollower(nameservers, self.take)
        self.stop = Stop()
        # While it is cleared, a received update is not in effect yet.
        self.taking = asyncio.Event()
        self.taking.set()

    async def take(self, update: pb.RouteUpdate) -> None:
        self.told.append(update)
        await self.taking.wait()

    @property
    def revisions(self) -> list[int]:
        return [update.revision for update in self.told]


@asynccontextmanager
async def following(nameservers: Nameservers) -> AsyncIterator[Follower]:
    follower = Follower(nameservers)
    async with asyncio.timeout(DEADLINE_SECONDS), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(follower.routes.run(follower.stop))
        yield follower
        running.cancel()


async def test_a_snapshot_and_then_every_change(nameserver: BrokerRoutes, told_of: TellsOf) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    async with following(told_of(nameserver.address)) as follower:
        await follower.routes.loaded.wait()
        assert follower.routes.following
        revision = await nameserver.create_topic("U", {"broker-a": 1})
        assert await follower.routes.wait_revision(revision, 20)
        first, second = follower.told
        assert [topic.config.name for topic in first.topics] == ["T"]
        assert [topic.config.name for topic in second.topics] == ["U"]
        assert (first.snapshot, second.snapshot) == (True, False)


async def test_an_update_counts_when_it_is_in_force(
    nameserver: BrokerRoutes, told_of: TellsOf
) -> None:
    async with following(told_of(nameserver.address)) as follower:
        await follower.routes.loaded.wait()
        follower.taking.clear()
        revision = await nameserver.create_topic("T", {"broker-a": 1})
        await eventually(lambda: revision in follower.revisions)
        assert not await follower.routes.wait_revision(revision, 0.01)
        follower.taking.set()
        assert await follower.routes.wait_revision(revision, 20)


async def test_what_is_told_while_an_update_is_put_into_force_comes_as_one(
    nameserver: BrokerRoutes, told_of: TellsOf
) -> None:
    async with (
        following(told_of(nameserver.address)) as follower,
        following(told_of(nameserver.address)) as quick,
    ):
        await follower.routes.loaded.wait()
        follower.taking.clear()
        first = await nameserver.create_topic("T", {"broker-a": 1})
        await eventually(lambda: first in follower.revisions)
        for number in range(200):
            last = await nameserver.create_topic(f"U{number}", {"broker-a": 1})
        # By then the other one has received most of it as well.
        assert await quick.routes.wait_revision(last, 60)
        follower.taking.set()
        assert await follower.routes.wait_revision(last, 60)
        names = [topic.config.name for update in follower.told for topic in update.topics]
        assert names == ["T", *(f"U{number}" for number in range(200))]
        assert len(follower.told) < 100


async def test_a_broken_watch_goes_on_where_it_broke(
    nameserver: BrokerRoutes, told_of: TellsOf
) -> None:
    async with following(told_of(nameserver.address)) as follower:
        revision = await nameserver.create_topic("T", {"broker-a": 1})
        assert await follower.routes.wait_revision(revision, 20)
        await nameserver.stop()
        await eventually(lambda: not follower.routes.following)
        missed = await nameserver.create_topic("U", {"broker-a": 1})
        before = len(follower.told)
        await nameserver.start()
        assert await follower.routes.wait_revision(missed, 20)
        assert follower.routes.following
        assert [update.snapshot for update in follower.told[before:]] == [False]


async def test_a_dead_nameserver_is_passed_over(nameserver: BrokerRoutes, told_of: TellsOf) -> None:
    async with following(told_of(NOBODY, nameserver.address)) as follower:
        await follower.routes.loaded.wait()


async def test_a_service_that_nobody_answers_knows_that_everybody_was_asked(
    told_of: TellsOf,
) -> None:
    async with following(told_of(NOBODY, "127.0.0.1:2")) as follower:
        await follower.routes.attempted.wait()
        assert not follower.routes.loaded.is_set()
        assert not follower.stop.requested


async def test_an_etcd_that_lost_its_data_is_followed_from_where_it_is_now(
    nameserver: BrokerRoutes, told_of: TellsOf
) -> None:
    nameserver.revision = 500
    async with following(told_of(nameserver.address)) as follower:
        await follower.routes.loaded.wait()
        await nameserver.stop()
        nameserver.lose_everything(77)
        await nameserver.start()
        await eventually(lambda: follower.routes.revision == 1)
        assert follower.told[-1].snapshot
        assert not await follower.routes.wait_revision(500, 0.01)
        assert await nameserver.create_topic("T", {"broker-a": 1}) == 2
        assert await follower.routes.wait_revision(2, 20)
        assert follower.revisions == [500, 1, 2]


async def test_changes_of_another_etcd_are_not_put_on_top_of_what_is_known(
    nameserver: BrokerRoutes, told_of: TellsOf
) -> None:
    async with following(told_of(nameserver.address)) as follower:
        revision = await nameserver.create_topic("T", {"broker-a": 1})
        assert await follower.routes.wait_revision(revision, 20)
        await nameserver.stop()
        # Its history has the requested revision, and continues after it.
        nameserver.etcd_cluster_id += 1
        missed = await nameserver.create_topic("U", {"broker-a": 1})
        before = len(follower.told)
        await nameserver.start()
        assert await follower.routes.wait_revision(missed, 20)
        assert [update.snapshot for update in follower.told[before:]] == [True]


async def test_nameservers_of_another_cluster_end_a_service_that_knows_no_routes(
    told_of: TellsOf,
) -> None:
    other = BrokerRoutes()
    other.cluster = "other"
    async with other, following(told_of(other.address)) as follower:
        assert "this is cluster 'other'" in await follower.stop.wait()
        assert follower.routes.attempted.is_set()
        assert follower.stop.fatal is not None
        assert follower.stop.fatal.status is ExitStatus.CONFIGURATION


async def test_a_nameserver_set_up_wrongly_meanwhile_ends_no_service(
    nameserver: BrokerRoutes, told_of: TellsOf, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with following(told_of(nameserver.address)) as follower:
        await follower.routes.loaded.wait()
        for cluster in ("other", "rockoon"):
            await nameserver.stop()
            nameserver.cluster = cluster
            await nameserver.start()
            await eventually(lambda: "this is cluster 'other'" in caplog.text)
        revision = await nameserver.create_topic("T", {"broker-a": 1})
        assert await follower.routes.wait_revision(revision, 20)
        assert not follower.stop.requested


async def test_a_revision_that_never_comes_is_not_waited_for_longer_than_asked(
    nameserver: BrokerRoutes, told_of: TellsOf
) -> None:
    async with following(told_of(nameserver.address)) as follower:
        await follower.routes.loaded.wait()
        assert not await follower.routes.wait_revision(1 << 40, 0.01)
        assert await follower.routes.wait_revision(follower.routes.revision, 0)


async def test_who_is_behind_what_others_have_seen_asks_the_next_nameserver(
    nameserver: BrokerRoutes, told_of: TellsOf
) -> None:
    """The first one is silent, as if the connection were cut, and no error reports it."""
    async with (
        BrokerRoutes() as other,
        following(told_of(nameserver.address, other.address)) as follower,
    ):
        await follower.routes.loaded.wait()
        nameserver.telling.clear()
        await nameserver.create_topic("T", {"broker-a": 1})
        revision = await other.create_topic("T", {"broker-a": 1})
        while not await follower.routes.wait_revision(revision, 0.1):
            # No client learns that no nameserver replied: another one may have seen a deleted
            # topic.
            assert follower.routes.following
        assert other.watches == 1
        assert [topic.config.name for topic in follower.told[-1].topics] == ["T"]


async def test_who_is_told_nothing_by_two_nameservers_follows_none(
    nameserver: BrokerRoutes, told_of: TellsOf
) -> None:
    async with (
        BrokerRoutes() as other,
        following(told_of(nameserver.address, other.address)) as follower,
    ):
        await follower.routes.loaded.wait()
        nameserver.telling.clear()
        other.telling.clear()
        while follower.routes.following:
            assert not await follower.routes.wait_revision(1 << 40, 0.1)
        assert other.watches == 1
        other.telling.set()
        await other.create_topic("T", {"broker-a": 1})
        await eventually(lambda: follower.routes.following)


async def test_a_revision_that_nobody_has_ends_no_watch_of_the_only_nameserver(
    nameserver: BrokerRoutes, told_of: TellsOf
) -> None:
    async with following(told_of(nameserver.address)) as follower:
        await follower.routes.loaded.wait()
        for _ in range(3):
            assert not await follower.routes.wait_revision(1 << 40, BEHIND_SECONDS_MAX)
        assert nameserver.watches == 1
