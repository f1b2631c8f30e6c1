"""Properties of a store of routes on which the nameserver relies: a real etcd, and its own file."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rockoon_nameserver import etcd as etcd_module
from rockoon_nameserver.embedded_store import EmbeddedStore
from rockoon_nameserver.etcd import Etcd
from rockoon_nameserver.etcd_data import (
    DeleteKey,
    KeyEvent,
    PutKey,
    WatchBatch,
    absent,
    exists,
    not_put_since,
    only,
    unchanged,
    under,
)
from rockoon_nameserver.route_store import LeaseGone, RouteStore
from support.etcd import EtcdServer
from support.waiting import DEADLINE_SECONDS


@pytest.fixture(params=["etcd", "file"])
async def etcd(
    request: pytest.FixtureRequest, shared_etcd: EtcdServer, tmp_path: Path
) -> AsyncIterator[RouteStore]:
    if request.param == "etcd":
        async with Etcd([shared_etcd.endpoint]) as connected:
            yield connected
    else:
        async with EmbeddedStore(tmp_path / "routes.db", pytest.fail) as store:
            yield store


async def put(etcd: RouteStore, key: str, value: bytes = b"v") -> int:
    return (await etcd.transaction([], [PutKey(key, value)])).revision


async def next_batch(batches: AsyncIterator[WatchBatch]) -> WatchBatch:
    async with asyncio.timeout(DEADLINE_SECONDS):
        return await anext(batches)


async def test_all_keys_put_by_one_transaction_are_born_at_its_revision(
    etcd: RouteStore, cluster: str
) -> None:
    done = await etcd.transaction([], [PutKey(f"{cluster}/a", b"1"), PutKey(f"{cluster}/b", b"2")])
    found = await etcd.read(under(f"{cluster}/"))
    assert [(item.key, item.value) for item in found.items] == [
        (f"{cluster}/a", b"1"),
        (f"{cluster}/b", b"2"),
    ]
    assert {item.create_revision for item in found.items} == {done.revision}
    assert found.header.revision >= done.revision


async def test_a_key_keeps_its_create_revision_when_put_again_and_loses_it_when_deleted(
    etcd: RouteStore, cluster: str
) -> None:
    key = f"{cluster}/a"
    born = await put(etcd, key)
    changed = await put(etcd, key)
    [item] = (await etcd.read(only(key))).items
    assert (item.create_revision, item.mod_revision) == (born, changed)
    await etcd.transaction([], [DeleteKey(only(key))])
    recreated = await put(etcd, key)
    [item] = (await etcd.read(only(key))).items
    assert (item.create_revision, item.mod_revision) == (recreated, recreated)


async def test_a_transaction_whose_condition_fails_changes_nothing_and_reads(
    etcd: RouteStore, cluster: str
) -> None:
    key, other = f"{cluster}/a", f"{cluster}/b"
    born = await put(etcd, key)
    for condition in (
        absent(only(key)),
        absent(under(f"{cluster}/")),
        exists(other),
        unchanged(key, born - 1),
        unchanged(other, born),
        not_put_since(under(f"{cluster}/"), born - 1),
    ):
        outcome = await etcd.transaction(
            [condition], [PutKey(other, b"x")], [only(key), only(other)]
        )
        assert not outcome.succeeded
        assert [len(found) for found in outcome.found] == [1, 0]
    for condition in (
        absent(only(other)),
        absent(under(f"{cluster}/nothing/")),
        exists(key),
        unchanged(key, born),
        unchanged(other, 0),
        not_put_since(under(f"{cluster}/"), born),
        not_put_since(under(f"{cluster}/nothing/"), born),
    ):
        assert (await etcd.transaction([condition], [])).succeeded


async def test_a_prefix_larger_than_a_page_is_read_at_one_revision(
    etcd: RouteStore, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_module, "PAGE_KEYS_MAX", 10)
    keys = [f"{cluster}/{number:03d}" for number in range(95)]
    await etcd.transaction([], [PutKey(key, b"v") for key in keys])
    found = await etcd.read(under(f"{cluster}/"))
    assert [item.key for item in found.items] == keys


async def test_keys_under_a_lease_go_when_it_is_revoked(etcd: RouteStore, cluster: str) -> None:
    lease_id, ttl_seconds = await etcd.grant_lease(60)
    assert ttl_seconds == 60
    await etcd.transaction([], [PutKey(f"{cluster}/a", b"v", lease_id)])
    assert await etcd.renew_lease(lease_id) == 60
    [item] = (await etcd.read(only(f"{cluster}/a"))).items
    assert item.lease_id == lease_id
    await etcd.revoke_lease(lease_id)
    assert (await etcd.read(only(f"{cluster}/a"))).items == []
    assert await etcd.renew_lease(lease_id) == 0
    await etcd.revoke_lease(lease_id)
    with pytest.raises(LeaseGone):
        await etcd.transaction([], [PutKey(f"{cluster}/a", b"v", lease_id)])


async def test_renewing_a_lease_makes_no_revision(etcd: RouteStore, cluster: str) -> None:
    lease_id, _ = await etcd.grant_lease(60)
    revision = await put(etcd, f"{cluster}/a")
    await etcd.renew_lease(lease_id)
    assert (await etcd.header()).revision == revision
    await etcd.revoke_lease(lease_id)


async def test_a_watch_brings_what_happened_before_it_and_then_what_happens(
    etcd: RouteStore, cluster: str
) -> None:
    first = await put(etcd, f"{cluster}/a")
    async with etcd.watch(under(f"{cluster}/"), first) as (header, batches):
        assert header.revision >= first
        assert await next_batch(batches) == (first, [KeyEvent(f"{cluster}/a", b"v", first, first)])
        await put(etcd, f"{cluster}-other/a")
        both = await etcd.transaction(
            [], [DeleteKey(only(f"{cluster}/a")), PutKey(f"{cluster}/b", b"")]
        )
        batch = await next_batch(batches)
        assert batch.revision == both.revision
        assert [(event.key, event.value) for event in batch.events] == [
            (f"{cluster}/a", None),
            (f"{cluster}/b", b""),
        ]
        assert {event.mod_revision for event in batch.events} == {both.revision}


async def test_keys_under_a_lease_that_nobody_renews_go_when_it_ends(
    etcd: RouteStore, cluster: str
) -> None:
    lease_id, ttl_seconds = await etcd.grant_lease(1)
    put_at = (await etcd.transaction([], [PutKey(f"{cluster}/a", b"v", lease_id)])).revision
    assert 0 < await etcd.lease_seconds_left(lease_id) <= ttl_seconds
    async with etcd.watch(under(f"{cluster}/"), put_at + 1) as (_, batches):
        told: list[KeyEvent] = []
        while not told:
            # Some updates contain only changes of other keys.
            told += (await next_batch(batches)).events
    assert [(event.key, event.value) for event in told] == [(f"{cluster}/a", None)]
    assert await etcd.lease_seconds_left(lease_id) == 0


async def test_what_was_put_after_a_revision_is_counted_beside_all_there_is(
    etcd: RouteStore, cluster: str
) -> None:
    first = await put(etcd, f"{cluster}/a")
    last = await put(etcd, f"{cluster}/b")
    header, keys, changed = await etcd.count_and_changes(under(f"{cluster}/"), first)
    assert (header.revision >= last, keys, changed) == (True, 2, 1)


async def test_a_transaction_that_changes_nothing_makes_no_revision(
    etcd: RouteStore, cluster: str
) -> None:
    revision = await put(etcd, f"{cluster}/a")
    await etcd.transaction([], [DeleteKey(only(f"{cluster}/nothing"))])
    await etcd.transaction([], [])
    assert (await etcd.header()).revision == revision


async def test_two_watches_are_told_of_the_same_changes_in_whole_revisions(
    etcd: RouteStore, cluster: str
) -> None:
    start = (await etcd.header()).revision + 1
    key_range = under(f"{cluster}/")
    async with etcd.watch(key_range, start) as (_, one), etcd.watch(key_range, start) as (_, other):
        puts = [
            [PutKey(f"{cluster}/{number}", b"v"), PutKey(f"{cluster}/x", b"")]
            for number in range(9)
        ]
        async with asyncio.TaskGroup() as tasks:
            for each in puts:
                tasks.create_task(etcd.transaction([], each))
        for batches in (one, other):
            found: list[KeyEvent] = []
            while len(found) < 18:
                batch = await next_batch(batches)
                found += batch.events
                of_last = [each for each in batch.events if each.mod_revision == batch.revision]
                assert len(of_last) in (0, 2)
            revisions = [event.mod_revision for event in found]
            assert revisions == sorted(revisions)
            assert len(set(revisions)) == 9
