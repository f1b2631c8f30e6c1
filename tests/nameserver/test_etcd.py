"""What the nameserver relies on in etcd, against a real one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from rockoon.local.ports import choose_port
from rockoon_core.errors import EtcdUnavailable
from rockoon_nameserver import etcd as etcd_module
from rockoon_nameserver.etcd import Compacted, Etcd, LeaseGone
from rockoon_nameserver.etcd_data import (
    Delete,
    Event,
    Put,
    WatchBatch,
    absent,
    exists,
    only,
    quiet_since,
    unchanged,
    under,
)
from support.etcd import EtcdServer
from support.eventually import answered
from support.tcp_gate import TcpGate
from support.waiting import DEADLINE_SECONDS


@pytest.fixture
async def etcd(shared_etcd: EtcdServer) -> AsyncIterator[Etcd]:
    async with Etcd([shared_etcd.endpoint]) as connected:
        yield connected


async def put(etcd: Etcd, key: str, value: bytes = b"v") -> int:
    return (await etcd.transaction([], [Put(key, value)])).revision


async def next_batch(batches: AsyncIterator[WatchBatch]) -> WatchBatch:
    async with asyncio.timeout(DEADLINE_SECONDS):
        return await anext(batches)


async def test_all_keys_put_by_one_transaction_are_born_at_its_revision(
    etcd: Etcd, cluster: str
) -> None:
    done = await etcd.transaction([], [Put(f"{cluster}/a", b"1"), Put(f"{cluster}/b", b"2")])
    found = await etcd.read(under(f"{cluster}/"))
    assert [(item.key, item.value) for item in found.items] == [
        (f"{cluster}/a", b"1"),
        (f"{cluster}/b", b"2"),
    ]
    assert {item.create_revision for item in found.items} == {done.revision}
    assert found.header.revision >= done.revision


async def test_a_key_keeps_its_create_revision_when_put_again_and_loses_it_when_deleted(
    etcd: Etcd, cluster: str
) -> None:
    key = f"{cluster}/a"
    born = await put(etcd, key)
    changed = await put(etcd, key)
    [item] = (await etcd.read(only(key))).items
    assert (item.create_revision, item.mod_revision) == (born, changed)
    await etcd.transaction([], [Delete(only(key))])
    recreated = await put(etcd, key)
    [item] = (await etcd.read(only(key))).items
    assert (item.create_revision, item.mod_revision) == (recreated, recreated)


async def test_a_transaction_whose_condition_fails_changes_nothing_and_reads(
    etcd: Etcd, cluster: str
) -> None:
    key, other = f"{cluster}/a", f"{cluster}/b"
    born = await put(etcd, key)
    for condition in (
        absent(only(key)),
        absent(under(f"{cluster}/")),
        exists(other),
        unchanged(key, born - 1),
        unchanged(other, born),
        quiet_since(under(f"{cluster}/"), born - 1),
    ):
        outcome = await etcd.transaction([condition], [Put(other, b"x")], [only(key), only(other)])
        assert not outcome.succeeded
        assert [len(found) for found in outcome.found] == [1, 0]
    for condition in (
        absent(only(other)),
        absent(under(f"{cluster}/nothing/")),
        exists(key),
        unchanged(key, born),
        unchanged(other, 0),
        quiet_since(under(f"{cluster}/"), born),
        quiet_since(under(f"{cluster}/nothing/"), born),
    ):
        assert (await etcd.transaction([condition], [])).succeeded


async def test_a_prefix_larger_than_a_page_is_read_at_one_revision(
    etcd: Etcd, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_module, "PAGE_KEYS_MAX", 10)
    keys = [f"{cluster}/{number:03d}" for number in range(95)]
    await etcd.transaction([], [Put(key, b"v") for key in keys])
    found = await etcd.read(under(f"{cluster}/"))
    assert [item.key for item in found.items] == keys


async def test_keys_under_a_lease_go_when_it_is_revoked(etcd: Etcd, cluster: str) -> None:
    lease_id, ttl_seconds = await etcd.grant_lease(60)
    assert ttl_seconds == 60
    await etcd.transaction([], [Put(f"{cluster}/a", b"v", lease_id)])
    assert await etcd.renew_lease(lease_id) == 60
    [item] = (await etcd.read(only(f"{cluster}/a"))).items
    assert item.lease_id == lease_id
    await etcd.revoke_lease(lease_id)
    assert (await etcd.read(only(f"{cluster}/a"))).items == []
    assert await etcd.renew_lease(lease_id) == 0
    await etcd.revoke_lease(lease_id)
    with pytest.raises(LeaseGone):
        await etcd.transaction([], [Put(f"{cluster}/a", b"v", lease_id)])


async def test_renewing_a_lease_makes_no_revision(etcd: Etcd, cluster: str) -> None:
    lease_id, _ = await etcd.grant_lease(60)
    revision = await put(etcd, f"{cluster}/a")
    await etcd.renew_lease(lease_id)
    assert (await etcd.header()).revision == revision
    await etcd.revoke_lease(lease_id)


async def test_a_watch_brings_what_happened_before_it_and_then_what_happens(
    etcd: Etcd, cluster: str
) -> None:
    first = await put(etcd, f"{cluster}/a")
    async with etcd.watch(under(f"{cluster}/"), first) as (header, batches):
        assert header.revision >= first
        assert await next_batch(batches) == (first, [Event(f"{cluster}/a", b"v", first, first)])
        await put(etcd, f"{cluster}-other/a")
        both = await etcd.transaction([], [Delete(only(f"{cluster}/a")), Put(f"{cluster}/b", b"")])
        batch = await next_batch(batches)
        assert batch.revision == both.revision
        assert [(event.key, event.value) for event in batch.events] == [
            (f"{cluster}/a", None),
            (f"{cluster}/b", b""),
        ]
        assert {event.mod_revision for event in batch.events} == {both.revision}


async def test_a_watch_from_a_compacted_revision_is_refused_by_that_name(
    own_etcd: EtcdServer,
) -> None:
    async with Etcd([own_etcd.endpoint]) as etcd:
        for _ in range(3):
            revision = await put(etcd, "a")
        own_etcd.control("compact", str(revision))
        with pytest.raises(Compacted):
            async with etcd.watch(under("a/"), 2) as (_, batches):
                await next_batch(batches)


async def test_a_watch_fails_when_etcd_dies_and_a_new_one_goes_on_where_it_was(
    own_etcd: EtcdServer,
) -> None:
    async with Etcd([own_etcd.endpoint]) as etcd:
        seen = await put(etcd, "k/a")
        async with etcd.watch(under("k/"), seen + 1) as (_, batches):
            own_etcd.kill()
            with pytest.raises(EtcdUnavailable):
                await next_batch(batches)
        own_etcd.start()

        async def put_if_up() -> int | None:
            with suppress(EtcdUnavailable):
                return await put(etcd, "k/b")
            return None

        missed = await answered(put_if_up, lambda revision: revision is not None)
        assert missed is not None
        async with etcd.watch(under("k/"), seen + 1) as (_, batches):
            assert (await next_batch(batches)).events == [Event("k/b", b"v", missed, missed)]


async def test_an_etcd_that_is_not_there_fails_every_call_and_soon() -> None:
    async with Etcd([f"127.0.0.1:{choose_port()}"], timeout_seconds=1) as etcd:
        await every_call_fails(etcd)


async def test_an_etcd_that_falls_silent_fails_every_call_in_time(shared_etcd: EtcdServer) -> None:
    async with (
        TcpGate(shared_etcd.endpoint) as gate,
        Etcd([gate.address], timeout_seconds=0.3) as etcd,
    ):
        await etcd.header()
        gate.freeze()
        await every_call_fails(etcd)


async def every_call_fails(etcd: Etcd) -> None:
    async def watch() -> None:
        async with etcd.watch(under("k/"), 1):
            pass

    for call in (
        etcd.header,
        lambda: etcd.read(under("k/")),
        lambda: etcd.read_together(only("k")),
        lambda: etcd.transaction([], [Put("k", b"v")]),
        lambda: etcd.grant_lease(10),
        lambda: etcd.renew_lease(1),
        lambda: etcd.revoke_lease(1),
        watch,
    ):
        async with asyncio.timeout(DEADLINE_SECONDS):
            with pytest.raises(EtcdUnavailable):
                await call()


async def test_the_next_member_is_asked_after_one_that_does_not_answer(
    shared_etcd: EtcdServer,
) -> None:
    nobody = f"127.0.0.1:{choose_port()}"
    async with Etcd([nobody, shared_etcd.endpoint]) as etcd:
        with pytest.raises(EtcdUnavailable, match=nobody):
            await etcd.header()
        assert (await etcd.header()).revision >= 1


async def test_a_user_s_token_is_renewed_when_etcd_has_forgotten_it(own_etcd: EtcdServer) -> None:
    own_etcd.control("user", "add", "root:secret")
    own_etcd.control("user", "grant-role", "root", "root")
    own_etcd.control("auth", "enable")
    async with Etcd([own_etcd.endpoint]) as nobody:
        with pytest.raises(EtcdUnavailable, match="refuses"):
            await put(nobody, "a")
    async with Etcd([own_etcd.endpoint], user="root", password="wrong") as wrong:
        with pytest.raises(EtcdUnavailable, match="refuses"):
            await put(wrong, "a")
    async with Etcd([own_etcd.endpoint], user="root", password="secret") as etcd:
        revision = await put(etcd, "k/a")
        # Tokens live in the memory of the process that gave them.
        own_etcd.stop()
        own_etcd.start()
        async with asyncio.timeout(DEADLINE_SECONDS):
            while True:
                try:
                    await etcd.header()
                    break
                except EtcdUnavailable as failure:
                    assert "refuses" not in str(failure)
        async with etcd.watch(under("k/"), revision) as (_, batches):
            assert (await next_batch(batches)).revision == revision
