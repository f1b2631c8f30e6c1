"""How channels come to a connection: names that move, addresses that are silent, TLS."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from rockoon.local.authority import Authority, Issued
from rockoon_core.channels import Dialer, Tls
from rockoon_rpc import dialing
from rockoon_rpc.channel import Channel
from rockoon_rpc.server import Server
from support.names import named
from support.waiting import DEADLINE_SECONDS


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority", "Rockoon test")


class Echo(grpc.GenericRpcHandler):
    def service(self, _details: grpc.HandlerCallDetails) -> Any:
        async def echo(request: bytes, _context: object) -> bytes:
            return request

        return grpc.unary_unary_rpc_method_handler(echo)


async def echoed(channel: aio.Channel, body: bytes = b"x" * (3 << 20)) -> None:
    call: Any = channel.unary_unary("/test.Echo/Echo")
    assert await call(body, timeout=DEADLINE_SECONDS, wait_for_ready=True) == body


@asynccontextmanager
async def served(host: str, port: int = 0) -> AsyncIterator[int]:
    server = Server()
    server.add_generic_rpc_handlers((Echo(),))
    yield await server.listen(host, port)
    await server.stop(None)


@asynccontextmanager
async def served_by_grpc(issued: Issued, callers_ca: bytes | None) -> AsyncIterator[int]:
    server = aio.server(options=(("grpc.max_receive_message_length", -1),))
    server.add_generic_rpc_handlers((Echo(),))
    shown = (issued.key.read_bytes(), issued.certificate.read_bytes())
    credentials = grpc.ssl_server_credentials(
        [shown], callers_ca, require_client_auth=callers_ca is not None
    )
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    yield port
    await server.stop(None)


async def test_a_name_is_looked_up_again_with_each_connection() -> None:
    with named() as names:
        async with served("127.0.0.2") as port:
            names["pod.test"] = ["127.0.0.2"]
            channel = Channel(f"pod.test:{port}")
            await echoed(channel)
        names["pod.test"] = []
        call: Any = channel.unary_unary("/test.Echo/Echo")
        with pytest.raises(aio.AioRpcError, match="Name or service not known"):
            await call(b"")
        async with served("127.0.0.3", port):
            names["pod.test"] = ["127.0.0.3"]
            await echoed(channel)
        await channel.close()


def silent_address(stack: ExitStack, host: str, port: int) -> None:
    """An address that neither refuses nor accepts connections: its queue is full."""
    listening = stack.enter_context(socket.create_server((host, port), backlog=0))
    for _ in range(2):
        waiting = stack.enter_context(socket.socket())
        waiting.setblocking(False)
        waiting.connect_ex(listening.getsockname())


async def test_a_silent_address_hides_none_behind_it() -> None:
    async with served("127.0.0.3") as port:
        with ExitStack() as stack, named() as names:
            silent_address(stack, "127.0.0.2", port)
            names["pod.test"] = ["127.0.0.2", "127.0.0.4", "127.0.0.3"]
            channel = Channel(f"pod.test:{port}")
            call: Any = channel.unary_unary("/test.Echo/Echo")
            # One attempt: a call that does not wait fails with the first failed attempt.
            assert await call(b"one", timeout=DEADLINE_SECONDS) == b"one"
            await channel.close()

            names["away.test"] = ["127.0.0.4", "127.0.0.5"]
            with pytest.raises(OSError, match=r"127\.0\.0\.4.*127\.0\.0\.5"):
                await dialing.dialed("away.test", port, asyncio.Protocol)


class Answers(list[str]):
    """Answers of a DNS server: one lookup gets the first, all later lookups get the second."""

    def __init__(self, first: list[str], second: list[str]) -> None:
        super().__init__(first)
        self._second = second

    def __iter__(self) -> Iterator[str]:
        found = list(super().__iter__())
        self[:] = self._second
        return iter(found)


async def test_a_name_is_looked_up_again_while_its_former_address_is_silent() -> None:
    async with served("127.0.0.3") as port:
        with ExitStack() as stack, named() as names:
            silent_address(stack, "127.0.0.2", port)
            names["pod.test"] = Answers(["127.0.0.2"], ["127.0.0.3"])
            async with Channel(f"pod.test:{port}") as channel:
                # One attempt: a call that does not wait fails with the first failed attempt.
                call: Any = channel.unary_unary("/test.Echo/Echo")
                assert await call(b"one", timeout=DEADLINE_SECONDS) == b"one"


async def test_a_known_ip_address_is_tried_first_and_the_name_if_it_fails() -> None:
    async with served("127.0.0.3") as port, served("127.0.0.4", port):
        with ExitStack() as stack, named() as names:
            silent_address(stack, "127.0.0.2", port)
            for stale in (["127.0.0.2"], []):
                names["pod.test"] = stale
                transport, _ = await dialing.dialed(
                    "pod.test", port, asyncio.Protocol, known=lambda: ["127.0.0.3"]
                )
                assert transport.get_extra_info("peername")[0] == "127.0.0.3"
                transport.close()
            names["pod.test"] = ["127.0.0.4"]
            # Nothing listens at 127.0.0.5.
            for unreachable in ("127.0.0.2", "127.0.0.5"):
                known = partial(iter, [unreachable])
                transport, _ = await dialing.dialed("pod.test", port, asyncio.Protocol, known=known)
                assert transport.get_extra_info("peername")[0] == "127.0.0.4"
                transport.close()


async def test_a_channel_follows_a_process_to_its_new_ip_address() -> None:
    async with served("127.0.0.3") as port:
        with ExitStack() as stack, named() as names:
            silent_address(stack, "127.0.0.2", port)
            names["pod.test"] = ["127.0.0.2"]
            async with Channel(f"pod.test:{port}") as channel:
                call: Any = channel.unary_unary("/test.Echo/Echo")
                asyncio.get_running_loop().call_later(0.05, channel.move, "127.0.0.3")
                assert await call(b"one", timeout=DEADLINE_SECONDS) == b"one"


async def test_connections_to_a_vanished_host_end_when_its_successor_is_known() -> None:
    released = asyncio.Event()

    class Waiting(grpc.GenericRpcHandler):
        def service(self, _details: grpc.HandlerCallDetails) -> Any:
            async def wait(_request: bytes, _context: object) -> bytes:
                await released.wait()
                return b""

            return grpc.unary_unary_rpc_method_handler(wait)

    server = Server()
    server.add_generic_rpc_handlers((Waiting(),))
    port = await server.listen("127.0.0.2", 0)
    with named() as names:
        names["pod.test"] = ["127.0.0.2"]
        async with (
            served("127.0.0.3", port),
            Channel(f"pod.test:{port}", ip_address="127.0.0.2") as channel,
        ):
            call: Any = channel.unary_unary("/test.Echo/Wait")
            stuck = call(b"", timeout=DEADLINE_SECONDS)
            await stuck.wait_for_connection()
            channel.move("127.0.0.3")
            with pytest.raises(aio.AioRpcError) as failure:
                await stuck
            assert failure.value.code() is grpc.StatusCode.UNAVAILABLE
            await echoed(channel, b"one")
    released.set()
    await server.stop(None)


async def test_one_that_is_not_wanted_any_more_leaves_no_socket() -> None:
    with ExitStack() as stack:
        silent = stack.enter_context(socket.create_server(("127.0.0.2", 0), backlog=0))
        port = silent.getsockname()[1]
        waiting = stack.enter_context(socket.socket())
        waiting.setblocking(False)
        waiting.connect_ex(silent.getsockname())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(dialing.STAGGER_SECONDS):
                await dialing.dialed("127.0.0.2", port, asyncio.Protocol)
    # A socket that is not closed fails the suite: ResourceWarning is an error.


async def test_of_two_addresses_that_answer_at_once_one_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dialing, "STAGGER_SECONDS", 0.0)
    loop: Any = asyncio.get_running_loop()
    connect, both, waiting = loop.sock_connect, asyncio.Event(), 0

    async def together(connecting: socket.socket, address: Any) -> None:
        nonlocal waiting
        waiting += 1
        if waiting == 2:
            both.set()
        await both.wait()
        await connect(connecting, address)

    with ExitStack() as stack, named() as names:
        monkeypatch.setattr(loop, "sock_connect", together, raising=False)
        first = stack.enter_context(socket.create_server(("127.0.0.2", 0)))
        port = first.getsockname()[1]
        second = stack.enter_context(socket.create_server(("127.0.0.3", port)))
        names["pod.test"] = ["127.0.0.2", "127.0.0.3"]
        transport, _ = await dialing.dialed("pod.test", port, asyncio.Protocol)
        accepting, other = first, second
        if transport.get_extra_info("peername")[0] == "127.0.0.3":
            accepting, other = second, first
        unwanted = stack.enter_context(other.accept()[0])
        unwanted.settimeout(DEADLINE_SECONDS)
        # The end of the connection may be a reset.
        with suppress(ConnectionResetError):
            assert await asyncio.to_thread(unwanted.recv, 1) == b""
        wanted = stack.enter_context(accepting.accept()[0])
        transport.write(b"x")
        wanted.settimeout(DEADLINE_SECONDS)
        assert await asyncio.to_thread(wanted.recv, 1) == b"x"
        transport.close()


async def test_addresses_are_tried_in_turns_of_their_families(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Any two families, which need not be the machine's.
    one, other = socket.AF_INET6, socket.AF_INET
    found = [
        (family, 1, 6, "", (host, 1)) for family, host in ((one, "a"), (one, "b"), (other, "c"))
    ]
    tried: list[str] = []
    loop: Any = asyncio.get_running_loop()

    async def getaddrinfo(*_: Any, **_options: Any) -> list[Any]:
        return found

    async def create_connection(_protocol: Any, host: str, *_: Any, **_options: Any) -> None:
        tried.append(host)
        raise OSError(f"{host} is away")

    monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo, raising=False)
    monkeypatch.setattr(loop, "create_connection", create_connection, raising=False)
    with pytest.raises(OSError, match="a is away, c is away, b is away"):
        await dialing.dialed("pod.test", 1, asyncio.Protocol)
    assert tried == ["a", "c", "b"]


@pytest.mark.parametrize("mutual", [False, True])
async def test_a_server_of_grpc_is_called_over_tls(authority: Authority, mutual: bool) -> None:
    own = authority.issue("client")
    tls = Tls(authority.ca, own.certificate, own.key) if mutual else Tls(authority.ca)
    callers_ca = authority.ca.read_bytes() if mutual else None
    async with served_by_grpc(authority.issue("server"), callers_ca) as port:
        async with Dialer(tls).channel(f"127.0.0.1:{port}") as channel:
            await echoed(channel)
        if mutual:
            async with Dialer(Tls(authority.ca)).channel(f"127.0.0.1:{port}") as channel:
                call: Any = channel.unary_unary("/test.Echo/Echo")
                with pytest.raises(aio.AioRpcError) as refused:
                    await call(b"", timeout=DEADLINE_SECONDS)
                assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_server_that_speaks_no_http_2_is_named(authority: Authority) -> None:
    issued = authority.issue("server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(issued.certificate, issued.key)

    def ended(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(ended, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    async with server, Dialer(Tls(authority.ca)).channel(f"127.0.0.1:{port}") as channel:
        call: Any = channel.unary_unary("/test.Echo/Echo")
        with pytest.raises(aio.AioRpcError, match="does not agree on h2"):
            await call(b"", timeout=DEADLINE_SECONDS)
