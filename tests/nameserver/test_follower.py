"""Updates that readers of the follower get, and their times; with times short enough to wait."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from rockoon_core.errors import EtcdUnavailable, NotReady, RouteNotReached
from rockoon_nameserver.etcd import Etcd
from rockoon_nameserver.etcd_data import DeleteKey, KeyRange, PutKey, RangeRead
from rockoon_nameserver.follower import SERVED_SECONDS_MAX, AnotherEtcd, EtcdFollower
from rockoon_nameserver.keyspace import AccessKeyName, GroupKey, Keyspace, LogKey, TopicKey
from rockoon_nameserver.route_store import Compacted
from rockoon_nameserver.route_table import Interest
from rockoon_proto.v1.access_pb2 import KeysUpdate
from rockoon_proto.v1.nameserver_pb2 import BROKER, RouteUpdate
from support.etcd import EtcdServer
from support.eventually import eventually
from support.own_logs import own_warnings
from support.tcp_gate import TcpGate
from support.waiting import DEADLINE_SECONDS

ALL = Interest(groups=True)


@asynccontextmanager
async def following(
    server: EtcdServer, cluster: str, *, first: str = "", **times: float
) -> AsyncIterator[tuple[EtcdFollower, Etcd, Keyspace]]:
    keyspace = Keyspace(cluster)
    endpoints = [*filter(None, [first]), server.endpoint]
    async with Etcd(endpoints) as etcd, asyncio.TaskGroup() as tasks:
        follower = EtcdFollower(etcd, keyspace, time.monotonic, **times)  # type: ignore[arg-type]
        task = tasks.create_task(follower.run())
        async with asyncio.timeout(DEADLINE_SECONDS):
            await follower.wait_loaded()
            yield follower, etcd, keyspace
        task.cancel()


async def put(etcd: Etcd, key: str, value: bytes = b"{}") -> int:
    return (await etcd.transaction([], [PutKey(key, value)])).revision


async def put_again(etcd: Etcd, key: str) -> int:
    while True:
        with suppress(EtcdUnavailable):
            return await put(etcd, key)


async def test_a_revision_that_never_comes_is_said_so_in_time(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    async with following(shared_etcd, cluster, reach_seconds_max=0.1) as (follower, _, _):
        with pytest.raises(RouteNotReached) as failure:
            await follower.wait_reached(1 << 40)
        assert failure.value.retriable


async def test_another_member_of_etcd_is_followed_at_once(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    async with (
        TcpGate(shared_etcd.endpoint) as gate,
        following(
            shared_etcd, cluster, first=gate.address, retry_seconds=100 * DEADLINE_SECONDS
        ) as (follower, etcd, keyspace),
    ):
        await gate.cut()
        # The first calls may still reach the member that ended.
        async with asyncio.timeout(DEADLINE_SECONDS):
            await follower.wait_reached(await put_again(etcd, keyspace.key(GroupKey("g"))))


@pytest.mark.parametrize(
    "refusal",
    [
        EtcdUnavailable(),
        Compacted("nothing is kept before revision 9"),
        AnotherEtcd("etcd was replaced"),
    ],
    ids=["unavailable", "compacted", "replaced"],
)
async def test_slow_reads_of_all_routes_are_not_repeated_at_once(
    shared_etcd: EtcdServer, cluster: str, refusal: Exception
) -> None:
    """A member of etcd that serves reads and refuses watches must not cause reads in a loop."""
    keyspace, seconds, reads = Keyspace(cluster), 0.0, 0
    enough = asyncio.Event()

    class RefusingWatches(Etcd):
        async def read(self, key_range: KeyRange) -> RangeRead:
            nonlocal seconds, reads
            # More than the longest pause.
            seconds += 1.0
            if key_range == keyspace.everything:
                reads += 1
            if reads == 9:
                enough.set()
            return await super().read(key_range)

        def watch(self, *_: Any, **__: Any) -> Any:
            raise refusal

    async with RefusingWatches([shared_etcd.endpoint]) as etcd, asyncio.TaskGroup() as tasks:
        follower = EtcdFollower(etcd, keyspace, lambda: seconds, retry_seconds=0.4)
        began = time.monotonic()
        task = tasks.create_task(follower.run())
        async with asyncio.timeout(DEADLINE_SECONDS):
            await enough.wait()
        took = time.monotonic() - began
        follower.close()
        task.cancel()
    # Half of the limit of each of six pauses; a new cluster is read three times before the first.
    assert took >= 0.01 + 0.02 + 0.04 + 0.08 + 0.16 + 0.2


async def test_who_waits_for_a_revision_does_not_hold_up_a_stop(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    async with following(shared_etcd, cluster, reach_seconds_max=600) as (follower, _, _):
        loop = asyncio.get_running_loop()
        loop.call_soon(follower.close)
        with pytest.raises(NotReady, match="stopping"):
            await follower.wait_reached(1 << 40)


async def test_an_answer_to_a_change_waits_for_the_watch_and_not_for_ever(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    async with following(shared_etcd, cluster) as (follower, etcd, keyspace):
        revision = await put(etcd, keyspace.key(GroupKey("g")))
        await follower.wait_served(revision)
        assert follower.table.revision >= revision
        begun = time.monotonic()
        await follower.wait_served(1 << 40)
        assert time.monotonic() - begun >= SERVED_SECONDS_MAX


async def test_a_reader_from_a_history_that_was_lost_gets_a_snapshot_after_a_while(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    async with following(shared_etcd, cluster, reach_seconds_max=0.1, heartbeat_seconds=0.05) as (
        follower,
        etcd,
        keyspace,
    ):
        await put(etcd, keyspace.key(GroupKey("g")))
        seen: list[RouteUpdate] = []
        async for update in follower.updates(1 << 40, ALL):
            seen.append(update)
            if update.snapshot:
                break
        assert {update.revision for update in seen[:-1]} == {1 << 40}
        assert seen[-1].revision < 1 << 40
        assert [group.config.name for group in seen[-1].groups] == ["g"]


async def test_a_watcher_hears_from_us_when_nothing_happens_or_nothing_of_its_own(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    async with following(shared_etcd, cluster, heartbeat_seconds=0.05) as (
        follower,
        etcd,
        keyspace,
    ):
        updates = follower.updates(0, Interest(frozenset({"mine"})))
        assert (await anext(updates)).snapshot
        others = await put(etcd, keyspace.key(TopicKey("other")))
        revision = 0
        while revision < others:
            update = await anext(updates)
            assert not update.snapshot
            assert not update.topics
            revision = update.revision
        mine = await put(etcd, keyspace.key(TopicKey("mine")))
        while not update.topics:
            update = await anext(updates)
        assert update.revision == mine


async def test_with_others_writing_into_the_same_etcd_the_revision_moves_on(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    async with following(shared_etcd, cluster, probe_seconds=0.02, heartbeat_seconds=0.02) as (
        follower,
        etcd,
        _,
    ):
        elsewhere = await put(etcd, f"{cluster} is somebody else's")
        async for update in follower.updates(0, ALL):
            if update.revision >= elsewhere:
                break


async def test_probes_under_way_while_routes_change_are_no_false_alarm(
    shared_etcd: EtcdServer, cluster: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with following(shared_etcd, cluster, probe_seconds=0.0) as (follower, etcd, keyspace):
        for number in range(300):
            last = await put(etcd, keyspace.key(GroupKey(f"g{number}")))
        await follower.wait_reached(last)
        assert follower.table.history == 1
        assert len(follower.table.snapshot(ALL).groups) == 300
    assert not own_warnings(caplog)


async def test_nothing_is_told_before_the_first_snapshot() -> None:
    async with Etcd(["127.0.0.1:1"]) as etcd:
        follower = EtcdFollower(etcd, Keyspace("test"), time.monotonic)
        with pytest.raises(NotReady):
            await anext(follower.updates(0, ALL))
        with pytest.raises(NotReady):
            await follower.wait_reached(1)


async def test_readers_of_routes_hear_at_once_that_a_key_change_is_none_of_routes(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    """A client with routes of that revision from elsewhere makes a broker wait for this
    revision."""
    async with following(shared_etcd, cluster, heartbeat_seconds=3600.0) as (
        follower,
        etcd,
        keyspace,
    ):
        updates = follower.updates(0, ALL)
        assert (await anext(updates)).snapshot
        revision = await put(etcd, keyspace.key(AccessKeyName("shop")), b'{"disabled":true}')
        async for update in updates:
            assert not update.snapshot
            assert not update.topics
            if update.revision >= revision:
                break


async def test_a_service_receives_the_revision_of_a_log_change_promptly(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    """A client that connects after a change of leader has routes of that revision: its first send
    waits until the broker has reached the revision."""
    async with following(shared_etcd, cluster, heartbeat_seconds=3600.0) as (
        follower,
        etcd,
        keyspace,
    ):
        updates = follower.updates(0, ALL)
        assert (await anext(updates)).snapshot
        for _ in range(3):
            revision = await put(etcd, keyspace.key(LogKey(BROKER, "broker-a")))
            async for update in updates:
                assert not update.snapshot
                if update.revision >= revision:
                    break


async def test_services_are_told_all_access_keys_whenever_one_has_changed(
    shared_etcd: EtcdServer, cluster: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with following(shared_etcd, cluster) as (follower, etcd, keyspace):
        told = follower.access_keys()
        assert [*(await anext(told)).keys] == []
        await put(etcd, keyspace.key(AccessKeyName("b")), b'{"description":"one"}')
        assert [key.description for key in (await anext(told)).keys] == ["one"]
        revision = await put(etcd, keyspace.key(AccessKeyName("a")))
        update = await anext(told)
        assert [key.key_id for key in update.keys] == ["a", "b"]
        assert update.revision >= revision
        assert update.keys[0].modified_revision == revision
        # An unreadable value is no key, and is not shown: it may contain data that checks
        # signatures.
        await put(etcd, keyspace.key(AccessKeyName("b")), b'{"verifier": "c2VjcmV0" and more')
        assert [key.key_id for key in (await anext(told)).keys] == ["a"]
        await etcd.transaction([], [DeleteKey(keyspace.access_keys())])
        assert [*(await anext(told)).keys] == []
    assert "does not describe an access key" in caplog.text
    assert "c2VjcmV0" not in caplog.text


async def wait_next(updates: AsyncIterator[KeysUpdate]) -> KeysUpdate:
    return await anext(updates)


async def test_who_follows_access_keys_is_sent_on_when_etcd_stays_away(
    own_etcd: EtcdServer, cluster: str
) -> None:
    """Another nameserver may know of a key that was revoked in the meantime."""
    async with (
        following(own_etcd, cluster, probe_seconds=0.1) as (follower, _, _),
        asyncio.TaskGroup() as tasks,
    ):
        await eventually(lambda: follower.reachable)
        told = follower.access_keys(0.3)
        assert (await anext(told)).etcd_reachable
        # The nameserver itself uses its own knowledge.
        own = follower.access_keys()
        await anext(own)
        own_next = tasks.create_task(wait_next(own))
        own_etcd.kill()
        with pytest.raises(NotReady, match="etcd is unreachable"):
            await anext(told)
        # A new reader gets the present state, and then waits as long: no reader asks without a
        # pause.
        began = time.monotonic()
        again = follower.access_keys(0.3)
        assert not (await anext(again)).etcd_reachable
        with pytest.raises(NotReady, match="etcd is unreachable"):
            await anext(again)
        assert time.monotonic() - began >= 0.29
        assert not own_next.done()
        own_next.cancel()
