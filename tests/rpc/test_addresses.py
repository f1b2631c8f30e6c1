"""Shares of addresses: connections, calls, and the pause after a flood."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from rockoon_rpc.addresses import (
    BROKEN_COST,
    CALM_ADDRESSES_MAX,
    USELESS_BURST,
    USELESS_PER_SECOND,
    Addresses,
)
from rockoon_rpc.limits import Limits
from rockoon_rpc.listener import REFUSED_SECONDS
from rockoon_rpc.server import Server
from rockoon_rpc.session import ErrorCode
from support import http2_frames as frames
from support.eventually import eventually
from support.raw_http2 import call, head, raw_peer
from support.waiting import DEADLINE_SECONDS

PING = frames.frame(frames.PING, 0, 0, b"pingping")


class Callee:
    """Waits, or answers."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.parked = self.cancelled = 0
        # A call that is cancelled has something to do first.
        self.must_finish = False

    async def unary(self, request: bytes, _context: Any) -> bytes:
        return request

    async def parks(self, request: bytes, context: Any) -> bytes:
        if request in (b"trusted", b"internal"):
            context.connection.mark_internal(is_trusted=request == b"trusted")
        self.parked += 1
        try:
            await self.may_answer.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            if self.must_finish:
                await self.may_answer.wait()
            raise
        return request


@asynccontextmanager
async def served(callee: Callee, **bounds: Any) -> AsyncIterator[int]:
    server = Server(**bounds)
    handlers: dict[str, Any] = {
        "Unary": grpc.unary_unary_rpc_method_handler(callee.unary),
        "Parks": grpc.unary_unary_rpc_method_handler(callee.parks),
    }
    server.add_registered_method_handlers("test.Echo", handlers)
    try:
        yield await server.listen("127.0.0.1", 0)
    finally:
        await server.stop(None)


def parks(stream_id: int, request: bytes = b"x") -> bytes:
    return call(stream_id, request, "/test.Echo/Parks")


async def test_an_address_has_a_share_of_the_calls_and_gets_it_back() -> None:
    callee = Callee()
    async with (
        served(callee, calls_max=9, calls_per_address_max=2) as port,
        raw_peer(port) as peer,
        raw_peer(port) as other,
    ):
        await peer.send(parks(1))
        await other.send(parks(1))
        await eventually(lambda: callee.parked == 2)
        await peer.send(call(3))
        refused = await peer.until(lambda each: "grpc-status" in each.headers)
        assert refused is not None
        assert refused.headers["grpc-status"] == "8"
        assert "2 calls in progress" in refused.headers["grpc-message"]
        await other.send(frames.rst_stream(1, ErrorCode.CANCEL))
        await other.send(call(3))
        assert await other.is_answered(3)


async def test_a_service_of_the_cluster_is_not_held_by_the_share() -> None:
    callee = Callee()
    async with served(callee, calls_per_address_max=1) as port, raw_peer(port) as peer:
        await peer.send(parks(1, b"trusted"))
        await eventually(lambda: callee.parked == 1)
        await peer.send(call(3))
        assert await peer.is_answered(3)


async def test_a_caller_that_pretends_to_be_a_service_has_a_larger_share_and_no_more() -> None:
    """Without access keys any caller can call a method of the cluster's services."""
    callee = Callee()
    async with (
        served(callee, calls_per_address_max=4) as port,
        raw_peer(port) as fake,
        raw_peer(port) as client,
    ):
        await fake.send(b"".join(parks(stream, b"internal") for stream in range(1, 12, 2)))
        await eventually(lambda: callee.parked == 6)
        await fake.send(call(13))
        refused = await fake.until(lambda each: "grpc-status" in each.headers)
        assert refused is not None
        assert (refused.stream_id, refused.headers["grpc-status"]) == (13, "8")
        # A service at the address of a client that has used up its share is still served.
        await fake.send(frames.rst_stream(1, ErrorCode.CANCEL) + call(15))
        assert await fake.is_answered(15)
        await client.send(call(1))
        refused = await client.until(lambda each: "grpc-status" in each.headers)
        assert refused is not None
        assert refused.headers["grpc-status"] == "8"


async def test_an_address_that_pretends_to_be_a_service_has_pauses() -> None:
    addresses = Addresses(calm_seconds=5, clock=lambda: 0.0)
    few = Limits(idle_frames_burst=100, idle_frames_per_second=1)
    callee = Callee()
    async with served(callee, limits=few, addresses=addresses) as port:
        async with raw_peer(port) as fake:
            await fake.send(parks(1, b"internal"))
            await eventually(lambda: callee.parked == 1)
            await fake.send(500 * PING)
            end = await fake.until(lambda each: each.kind == frames.GOAWAY)
            assert end is not None
            assert end.error is ErrorCode.ENHANCE_YOUR_CALM
        async with raw_peer(port) as early:
            assert await early.until(lambda _: False) is None


async def test_an_address_that_floods_has_a_pause_and_is_served_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    now = 100.0
    addresses = Addresses(calm_seconds=5, clock=lambda: now)
    few = Limits(idle_frames_burst=100, idle_frames_per_second=1)
    async with served(Callee(), limits=few, addresses=addresses) as port:
        async with raw_peer(port) as flooding:
            await flooding.send(500 * PING)
            end = await flooding.until(lambda each: each.kind == frames.GOAWAY)
            assert end is not None
            assert end.error is ErrorCode.ENHANCE_YOUR_CALM
        async with raw_peer(port) as early:
            assert await early.until(lambda _: False) is None
        assert addresses.calmed == 2
        now += 5
        async with raw_peer(port) as again:
            await again.send(call(1))
            assert await again.is_answered(1)
    assert caplog.text.count("closed a connection of 127.0.0.1: too many frames") == 1


async def test_an_address_whose_connections_break_the_protocol_has_a_pause() -> None:
    """An accepted connection, above all over TLS, costs more than the frames that end it."""
    addresses = Addresses(clock=lambda: 0.0)
    async with served(Callee(), addresses=addresses) as port, raw_peer(port) as honest:
        for _ in range(USELESS_BURST // BROKEN_COST):
            async with raw_peer(port) as peer:
                await peer.send(frames.window_update(0, 0))
                end = await peer.until(lambda each: each.kind == frames.GOAWAY)
                assert end is not None
                assert end.error is ErrorCode.PROTOCOL_ERROR
        assert addresses.calmed == 0
        for _ in range(10 * USELESS_BURST):
            if addresses.calmed:
                break
            async with raw_peer(port) as peer:
                await peer.send(frames.window_update(0, 0))
                assert await peer.until(lambda each: each.kind == frames.GOAWAY) is not None
        assert addresses.calmed == 1
        async with raw_peer(port) as late:
            assert await late.until(lambda _: False) is None
        # Its open connections are served.
        await honest.send(call(1))
        assert await honest.is_answered(1)


GOES = frames.goaway(0, ErrorCode.NO_ERROR)


@pytest.mark.parametrize("sent", [b"", GOES], ids=["nothing", "goaway"])
async def test_an_address_whose_connections_have_no_call_has_a_pause(sent: bytes) -> None:
    """A client that connects again at once costs an accept and a session each time."""
    addresses = Addresses(clock=lambda: 0.0)
    async with served(Callee(), addresses=addresses) as port, raw_peer(port) as honest:
        ended = 0
        while not addresses.calmed and ended < 2 * USELESS_BURST:
            ended += 1
            async with raw_peer(port) as peer:
                await peer.send(sent)
                if sent:
                    assert await peer.until(lambda _: False) is None
                else:
                    await eventually(lambda: addresses.count("127.0.0.1") == 2)
            await eventually(lambda: addresses.count("127.0.0.1") == 1)
        assert (ended, addresses.calmed) == (USELESS_BURST + 1, 1)
        await honest.send(call(1))
        assert await honest.is_answered(1)


async def test_connections_with_a_call_and_longer_ones_cause_no_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    addresses = Addresses(clock=lambda: 0.0)
    async with served(Callee(), addresses=addresses) as port:
        for _ in range(USELESS_BURST + 2):
            async with raw_peer(port) as peer:
                await peer.send(call(1))
                assert await peer.is_answered(1)
        monkeypatch.setattr("rockoon_rpc.server_connection.SHORT_SECONDS", 0.0)
        for _ in range(USELESS_BURST + 2):
            async with raw_peer(port):
                pass
        await eventually(lambda: addresses.count("127.0.0.1") == 0)
    assert addresses.calmed == 0


async def test_a_refused_connection_is_closed_later() -> None:
    addresses = Addresses()
    async with served(Callee(), addresses=addresses) as port:
        addresses.calm("127.0.0.1", "test")
        loop = asyncio.get_running_loop()
        began = loop.time()
        for _ in range(3):
            async with raw_peer(port) as peer:
                assert await peer.until(lambda _: False) is None
        assert loop.time() - began >= 3 * REFUSED_SECONDS
        left = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        await eventually(lambda: addresses.calmed == 7)
    # A server that stops closes them.
    for reader, writer in left:
        assert await reader.read() == b""
        writer.close()


def test_useless_connections_of_an_address_are_counted_one_after_the_other() -> None:
    """An attacker with one connection at a time, and more addresses than are remembered."""
    now = 0.0
    addresses = Addresses(clock=lambda: now)
    for _ in range(USELESS_BURST):
        share = addresses.enter("192.0.2.1")
        assert share is not None
        assert not addresses.count_useless(share.address, 1)
        addresses.leave(share)
    assert addresses.count_useless("192.0.2.1", 1)
    now += (USELESS_BURST + 1) / USELESS_PER_SECOND
    assert not addresses.count_useless("192.0.2.1", BROKEN_COST)
    for number in range(CALM_ADDRESSES_MAX + 10):
        addresses.count_useless(f"2001:db8::{number:x}", 1)
    assert len(addresses._useless) == CALM_ADDRESSES_MAX


def test_the_log_names_one_flood_in_a_second(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    now = 100.0
    addresses = Addresses(clock=lambda: now)
    for number in range(100):
        addresses.calm(f"192.0.2.{number}", "resets")
    assert len(caplog.records) == 1
    assert addresses.enter("192.0.2.50") is None
    now += 6
    assert addresses.enter("192.0.2.50") is not None


def test_an_address_with_a_service_of_the_cluster_has_no_pause() -> None:
    addresses = Addresses()
    share = addresses.enter("192.0.2.1")
    assert share is not None
    share.is_internal = True
    addresses.calm("192.0.2.1", "resets")
    assert addresses.enter("192.0.2.1") is share
    for _ in range(2):
        addresses.leave(share)
    # The service has left the address.
    assert addresses.enter("192.0.2.1") is not None
    addresses.calm("192.0.2.1", "resets")
    assert addresses.enter("192.0.2.1") is None


async def test_a_server_reports_when_many_calls_have_ended_with_their_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rockoon_rpc.server.ENDED_SECONDS", 0.01)
    reported = asyncio.Event()
    async with served(Callee(), on_many_ended=reported.set) as port:
        for calls in (10, 600):
            assert not reported.is_set()
            async with raw_peer(port) as peer:
                # Their requests are not complete.
                heads = [head(stream, "/test.Echo/Unary") for stream in range(1, 2 * calls, 2)]
                await peer.send(b"".join(heads) + PING)
                assert await peer.until(lambda each: each.kind == frames.PING)
        async with asyncio.timeout(DEADLINE_SECONDS):
            await reported.wait()


async def test_a_server_reports_calls_of_ended_connections_when_their_servicers_have_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before that their memory is not free."""
    monkeypatch.setattr("rockoon_rpc.server.ENDED_SECONDS", 0.0)
    reported = asyncio.Event()
    callee = Callee()
    callee.must_finish = True
    async with served(callee, on_many_ended=reported.set) as port:
        async with raw_peer(port) as peer:
            await peer.send(b"".join(map(parks, range(1, 1_201, 2))))
            await eventually(lambda: callee.parked == 600)
        await eventually(lambda: callee.cancelled == 600)
        assert not reported.is_set()
        callee.may_answer.set()
        async with asyncio.timeout(DEADLINE_SECONDS):
            await reported.wait()


async def test_a_server_reports_ended_calls_when_they_are_as_many_as_those_in_progress(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the owner does then costs time for each call in progress."""
    monkeypatch.setattr("rockoon_rpc.server.ENDED_SECONDS", 0.0)
    looks, reports = 0, 0
    look = Server._many_ended

    def looked(server: Server) -> None:
        nonlocal looks
        looks += 1
        look(server)

    def reported() -> None:
        nonlocal reports
        reports += 1

    monkeypatch.setattr(Server, "_many_ended", looked)
    callee = Callee()
    async with served(callee, on_many_ended=reported) as port:
        async with raw_peer(port) as staying:
            await staying.send(b"".join(map(parks, range(1, 1_601, 2))))
            async with raw_peer(port) as leaving:
                await leaving.send(b"".join(map(parks, range(1, 1_201, 2))))
                await eventually(lambda: callee.parked == 1_400)
            await eventually(lambda: callee.cancelled == 600 and looks >= 2)
            assert reports == 0
        await eventually(lambda: reports == 1)


def test_no_flood_of_addresses_takes_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rockoon_rpc.addresses.CALM_ADDRESSES_MAX", 10)
    addresses = Addresses()
    for number in range(1_000):
        addresses.calm(f"2001:db8::{number:x}", "resets")
    assert len(vars(addresses)["_calm_until"]) <= 10
