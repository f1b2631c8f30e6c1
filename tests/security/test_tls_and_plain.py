"""Connections with TLS and without at one port of a service."""

import asyncio
import logging
import random
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import uvloop
from security.test_tls_renewal import shown_by

from rockoon.local.authority import Authority
from rockoon_core.channels import Channels, Tls
from rockoon_rpc.addresses import Addresses
from support import http2_frames as frames
from support.eventually import eventually
from support.tls_server import serving, who_am_i
from support.waiting import DEADLINE_SECONDS

TLS_RECORD = b"\x16"
LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]
SOON_SECONDS = 0.2


async def connected(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def closed_after(address: str, sent: bytes) -> bool:
    """Return whether the server ends a connection that begins with these bytes."""
    reader, writer = await connected(address)
    writer.write(sent)
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            # The server may send a TLS alert or a GOAWAY first.
            with suppress(ConnectionError):
                await reader.read()
    except TimeoutError:
        return False
    finally:
        writer.close()
    return True


@pytest.mark.parametrize("make_loop", LOOPS, ids=["asyncio", "uvloop"])
def test_one_port_answers_callers_with_tls_and_without(
    authority: Authority, make_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    own = authority.issue("client")

    async def scenario() -> list[str]:
        issued, ca = authority.issue("server"), authority.ca
        async with serving(issued, ca, accepts_plain=True) as address:
            encrypted, plain = Channels(Tls(ca, own.certificate, own.key)), Channels(None)
            callers = [encrypted, plain] * 3
            async with asyncio.TaskGroup() as tasks:
                calls = [tasks.create_task(who_am_i(each.get(address))) for each in callers]
            for each in (encrypted, plain):
                await each.close()
            return [each.result() for each in calls]

    with asyncio.Runner(loop_factory=make_loop) as runner:
        told = runner.run(scenario())
    # A caller without TLS has no certificate, also if callers with TLS must show one.
    assert [each.partition(",")[0] for each in told] == ["client", "nobody"] * 3


async def test_a_connection_whose_first_bytes_come_one_by_one_loses_none(
    authority: Authority,
) -> None:
    to_server, from_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    trust = ssl.create_default_context(cafile=str(authority.ca))
    hello = trust.wrap_bio(from_server, to_server, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        hello.do_handshake()
    async with serving(authority.issue("server"), accepts_plain=True) as address:
        for sent, answer in (
            (to_server.read(), TLS_RECORD),
            (frames.PREFACE + frames.settings({}), frames.settings({})[3:4]),
        ):
            reader, writer = await connected(address)
            for at in range(len(sent)):
                writer.write(sent[at : at + 1])
                await writer.drain()
            async with asyncio.timeout(DEADLINE_SECONDS):
                head = await reader.readexactly(4)
            assert answer in (head[:1], head[3:4])
            writer.close()


async def test_a_connection_that_begins_with_neither_is_closed(authority: Authority) -> None:
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    chance = random.Random(seed)
    async with serving(authority.issue("server"), accepts_plain=True) as address:
        garbage = [bytes([first]) + chance.randbytes(64) for first in range(256)]
        async with asyncio.TaskGroup() as tasks:
            closed = [tasks.create_task(closed_after(address, each)) for each in garbage]
        assert all(each.result() for each in closed)
        channels = Channels(None)
        assert await who_am_i(channels.get(address)) == "nobody"
        await channels.close()


@pytest.mark.parametrize("first", [b"", b"P", TLS_RECORD], ids=["nothing", "HTTP/2", "TLS"])
async def test_a_peer_that_stops_after_a_byte_or_before_is_closed_and_counts_until_then(
    authority: Authority, first: bytes
) -> None:
    bound = Addresses(2)
    more: dict[str, Any] = {
        "accepts_plain": True,
        "addresses": bound,
        "handshake_seconds_max": SOON_SECONDS,
    }
    async with serving(authority.issue("server"), **more) as address:
        async with asyncio.TaskGroup() as tasks:
            slow = [tasks.create_task(closed_after(address, first)) for _ in range(2)]
            await eventually(lambda: bound.count("127.0.0.1") == 2)
            assert await closed_after(address, first)
            assert bound.closed == 1, "at once, since the slow ones count"
        assert all(each.result() for each in slow)
        await eventually(lambda: not bound.count("127.0.0.1"))


async def test_a_peer_that_ends_before_its_first_byte_leaves_nothing_behind(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    bound = Addresses(1)
    async with serving(authority.issue("server"), accepts_plain=True, addresses=bound) as address:
        _, writer = await connected(address)
        await eventually(lambda: bound.count("127.0.0.1") == 1)
        caplog.clear()
        writer.close()
        await eventually(lambda: not bound.count("127.0.0.1"))
        assert not caplog.text, "a probe of the port is no failure"


async def test_a_server_stops_while_peers_have_sent_nothing(authority: Authority) -> None:
    bound = Addresses(9)
    more: dict[str, Any] = {"accepts_plain": True, "addresses": bound}
    async with asyncio.TaskGroup() as tasks:
        async with serving(authority.issue("server"), **more) as address:
            silent = tasks.create_task(closed_after(address, b""))
            await eventually(lambda: bound.count("127.0.0.1") == 1)
        assert not bound.count("127.0.0.1")
    assert silent.result()


async def test_a_certificate_is_renewed_while_callers_of_both_kinds_go_on(
    authority: Authority,
) -> None:
    issued = authority.issue("old", file_name="server")
    async with serving(issued, accepts_plain=True) as address:
        encrypted, plain = Channels(Tls(ca=authority.ca)), Channels(None)
        both = [each.get(address) for each in (encrypted, plain)]
        assert [await who_am_i(each) for each in both] == ["nobody"] * 2
        assert await shown_by(address) == "old"
        authority.issue("new", file_name="server")
        assert await shown_by(address) == "new"
        assert [await who_am_i(each) for each in both] == ["nobody"] * 2
        for each in (encrypted, plain):
            await each.close()


async def test_a_port_for_tls_alone_says_in_the_log_that_a_plain_caller_was_refused(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with serving(authority.issue("server")) as address:
        assert await closed_after(address, frames.PREFACE + frames.settings({}))
        said = "handshake of 127.0.0.1 failed: it began without TLS, and this port requires TLS"
        await eventually(lambda: said in caplog.text)
