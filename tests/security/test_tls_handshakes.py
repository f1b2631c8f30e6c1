"""Connections before their TLS handshake is complete: their number, and refusals."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from contextlib import ExitStack, suppress

import grpc
import pytest
import uvloop

from rockoon.local.authority import Authority
from rockoon_core.channels import Channels, Tls
from rockoon_rpc.addresses import USELESS_BURST, USELESS_PER_SECOND, Addresses
from rockoon_rpc.server import Server
from rockoon_rpc.turns import HANDSHAKES_MAX
from rockoon_runtime.tls import ServerTls
from support.eventually import eventually
from support.tls_server import WHO, serving
from support.waiting import DEADLINE_SECONDS

HONEST, HOSTILE = "127.0.0.1", "127.0.0.2"


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


def client_hello(name: str) -> bytes:
    """Return the first message of a client; it may be sent on any number of connections."""
    sent = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), sent, server_hostname=name)
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return sent.read()


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_handshakes_that_arrive_together_share_iterations(
    new_loop: Callable[[], asyncio.AbstractEventLoop], authority: Authority
) -> None:
    issued = authority.issue("server")
    count = 10 * HANDSHAKES_MAX
    # The server name in each ClientHello that the server has handled, and the iteration.
    handled: list[tuple[str | None, int]] = []
    iterations = 0

    async def scenario() -> None:
        tls = ServerTls(issued.certificate, issued.key, None).context()
        tls.sni_callback = lambda _tls, name, _context: handled.append((name, iterations))
        server = Server()
        port = await server.listen("127.0.0.1", 0, tls)

        def count_iterations() -> None:
            nonlocal iterations
            iterations += 1
            if len(handled) <= count:
                asyncio.get_running_loop().call_soon(count_iterations)

        with ExitStack() as stack:
            # The kernel has all input before the server runs again.
            for address, name, number in ((HOSTILE, "hostile", count), (HONEST, "honest", 1)):
                hello = client_hello(name)
                for _ in range(number):
                    peer = socket.create_connection(
                        ("127.0.0.1", port), DEADLINE_SECONDS, source_address=(address, 0)
                    )
                    stack.enter_context(peer).sendall(hello)
            count_iterations()
            await eventually(lambda: len(handled) == count + 1)
        await server.stop(None)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(scenario())
    times = [at for _, at in handled]
    # Handshakes that start in two iterations may be handled in one.
    assert max(times.count(at) for at in set(times)) <= 2 * HANDSHAKES_MAX
    names = [name for name, _ in handled]
    # The listener may accept it one iteration after the first ones.
    assert names.index("honest") <= 4 * HANDSHAKES_MAX


async def test_an_address_whose_handshakes_fail_gets_a_pause(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    issued = authority.issue("server")
    addresses = Addresses(calm_seconds=DEADLINE_SECONDS)
    server = Server(addresses=addresses)
    tls = ServerTls(issued.certificate, issued.key, None)
    port = await server.listen("127.0.0.1", 0, tls.context())
    # The budget recovers by that many while they fail.
    count = USELESS_BURST + USELESS_PER_SECOND * round(DEADLINE_SECONDS)
    try:
        for _ in range(count):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, local_addr=(HOSTILE, 0)
            )
            # A TLS record with a HelloRequest, which only a server may send.
            writer.write(b"\x16\x03\x01\x00\x04\x00\x00\x00\x00")
            try:
                async with asyncio.timeout(DEADLINE_SECONDS):
                    await reader.read()
            except ConnectionError:
                pass
            finally:
                writer.close()
            if addresses.calmed:
                break
        assert "many connections end like this one: their TLS handshake fails" in caplog.text
        honest = Channels(Tls(authority.ca))
        health = honest.get(f"localhost:{port}").unary_unary("/test.Nothing/Here")
        with pytest.raises(grpc.RpcError) as failure:
            await health(b"", timeout=DEADLINE_SECONDS)
        assert failure.value.code() is grpc.StatusCode.UNIMPLEMENTED
        await honest.close()
    finally:
        await server.stop(None)
