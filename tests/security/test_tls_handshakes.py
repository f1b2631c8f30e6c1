"""Connections before their TLS handshake is complete: their number, and refusals."""

import asyncio
import logging
from contextlib import suppress

import pytest

from rockoon.local.authority import Authority
from rockoon_core.channels import Channels, Tls
from rockoon_rpc.server import Server
from rockoon_runtime.tls import ServerTls
from support.eventually import eventually
from support.tls_server import WHO, serving
from support.waiting import DEADLINE_SECONDS


async def test_connections_that_do_not_shake_hands_count(authority: Authority) -> None:
    issued = authority.issue("server")
    server = Server(connections_max=2, handshake_seconds_max=DEADLINE_SECONDS)
    tls = ServerTls(issued.certificate, issued.key, None)
    port = await server.listen("127.0.0.1", 0, tls.context())
    try:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with suppress(ConnectionError):
            async with asyncio.timeout(DEADLINE_SECONDS):
                assert await reader.read() == b""
        writer.close()
        for _, each in silent:
            each.close()
    finally:
        await server.stop(None)


async def test_the_log_says_why_a_certificate_is_refused(
    authority: Authority, stranger: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    own = stranger.issue("client")
    async with serving(authority.issue("server"), authority.ca) as address:
        channels = Channels(Tls(authority.ca, own.certificate, own.key))
        # It connects again until it is cancelled.
        call = channels.get(address).unary_unary(WHO)(b"", wait_for_ready=True)
        await eventually(lambda: "certificate verify failed" in caplog.text)
        call.cancel()
        await channels.close()
    assert "handshake of 127.0.0.1" in caplog.text


async def test_the_log_says_that_a_client_ended_its_handshake(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with serving(authority.issue("server"), authority.ca) as address:
        host, _, port = address.rpartition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        # The beginning of a TLS record.
        writer.write(b"\x16\x03\x01")
        await writer.drain()
        writer.close()
        await eventually(lambda: "handshake of 127.0.0.1 failed" in caplog.text)
    (line,) = (each for each in caplog.messages if "handshake of" in each)
    assert line.endswith("failed: the client closed the connection")
