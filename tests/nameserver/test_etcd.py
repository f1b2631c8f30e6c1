"""Failures and new attempts of calls to a real etcd; test_route_store.py tests its content."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial

import pytest

from rockoon.local.directory import choose_port
from rockoon_core.errors import EtcdUnavailable
from rockoon_nameserver.etcd import LIVENESS, Etcd
from rockoon_nameserver.etcd_data import KeyEvent, PutKey, WatchBatch, only, under
from rockoon_nameserver.route_store import Compacted
from rockoon_rpc.liveness import Liveness
from support.etcd import EtcdServer
from support.eventually import answered
from support.tcp_gate import TcpGate
from support.waiting import DEADLINE_SECONDS


async def put(etcd: Etcd, key: str, value: bytes = b"v") -> int:
    return (await etcd.transaction([], [PutKey(key, value)])).revision


async def is_refused(etcd: Etcd) -> bool:
    """Return whether etcd refuses; it may be too slow to reply in time."""
    with pytest.raises(EtcdUnavailable) as failure:
        await put(etcd, "a")
    return "refuses" in str(failure.value)


async def next_batch(batches: AsyncIterator[WatchBatch]) -> WatchBatch:
    async with asyncio.timeout(DEADLINE_SECONDS):
        return await anext(batches)


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
            assert (await next_batch(batches)).events == [KeyEvent("k/b", b"v", missed, missed)]


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


async def test_a_connection_to_a_vanished_host_is_replaced(shared_etcd: EtcdServer) -> None:
    """For example of a pod that was deleted by force: its address sends no reply and no reset."""
    assert LIVENESS.ping_seconds >= 5.0, "etcd ends connections with more frequent pings"
    liveness = Liveness(ping_seconds=0.2, answer_seconds=0.1)
    async with (
        TcpGate(shared_etcd.endpoint) as gate,
        Etcd([gate.address], timeout_seconds=0.3, liveness=liveness) as etcd,
    ):
        await etcd.header()
        gate.forget()
        with pytest.raises(EtcdUnavailable):
            await etcd.header()

        async def header_if_up() -> object:
            with suppress(EtcdUnavailable):
                return await etcd.header()
            return None

        assert await answered(header_if_up, lambda found: found is not None) is not None


async def every_call_fails(etcd: Etcd) -> None:
    async def watch() -> None:
        async with etcd.watch(under("k/"), 1):
            pass

    for call in (
        etcd.header,
        lambda: etcd.read(under("k/")),
        lambda: etcd.read_at_once(only("k")),
        lambda: etcd.read_jointly(only("k")),
        lambda: etcd.transaction([], [PutKey("k", b"v")]),
        lambda: etcd.grant_lease(10),
        lambda: etcd.renew_lease(1),
        lambda: etcd.revoke_lease(1),
        watch,
    ):
        async with asyncio.timeout(DEADLINE_SECONDS):
            with pytest.raises(EtcdUnavailable):
                await call()


async def test_what_is_asked_now_and_then_within_a_moment_is_one_call(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    keys = [f"{cluster}/{number}" for number in range(100)]
    async with Etcd([shared_etcd.endpoint]) as etcd, asyncio.TaskGroup() as tasks:
        revision = (
            await etcd.transaction([], [PutKey(key, key.encode()) for key in keys])
        ).revision
        leases = [(await etcd.grant_lease(60 + number))[0] for number in range(3)]
        etcd.request_times.clear()
        # The first caller does not answer for the others.
        gone = tasks.create_task(etcd.read_jointly(only(keys[0])))
        reads = [tasks.create_task(etcd.read_jointly(only(key), under("none/"))) for key in keys]
        renewals = [tasks.create_task(etcd.renew_lease(each)) for each in (*leases, 1)]
        await asyncio.sleep(0)
        gone.cancel()
        for key, read in zip(keys, reads, strict=True):
            header, found = await read
            assert [[item.value for item in items] for items in found] == [[key.encode()], []]
            assert header.revision >= revision
        assert [await each for each in renewals] == [60, 61, 62, 0]
        calls = {what: sum(times.counts) for (what, _), times in etcd.request_times.items()}
        # etcd refuses more operations at once.
        assert (calls["txn"], calls["lease_keep_alive"]) == (3, 1)


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
        await answered(partial(is_refused, nobody), bool)
    async with Etcd([own_etcd.endpoint], user="root", password="wrong") as wrong:
        await answered(partial(is_refused, wrong), bool)
    async with Etcd([own_etcd.endpoint], user="root", password="secret") as etcd:
        revision = await put(etcd, "k/a")
        # Tokens exist in the memory of the process that issued them.
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
