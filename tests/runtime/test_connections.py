"""The bound on connections of one address: an address with too many loses its newest, no others
do."""

import asyncio
import contextlib
import errno
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from rockoon.local.authority import Authority
from rockoon_rpc import listener
from rockoon_rpc.addresses import Addresses, one_address
from rockoon_rpc.listener import Listener
from rockoon_rpc.server import Server
from rockoon_runtime.tls import ServerTls
from rockoon_runtime.wire import GrpcServer
from support.drains import AT_ONCE
from support.eventually import eventually

PER_ADDRESS_MAX = 20


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8::1", "2001:db8::1"),
        ("fe80::1%eth0", "fe80::1%eth0"),
    ],
)
def test_an_ipv4_address_within_ipv6_is_the_same(host: str, address: str) -> None:
    assert one_address(host) == address


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority", "Rockoon test")


def is_open(connection: socket.socket) -> bool:
    """Return whether the other side has not closed it; sends nothing itself."""
    try:
        received = b"?"
        while received:
            received = connection.recv(4096)
    except BlockingIOError:
        return True
    except ConnectionError:
        return False
    return False


@contextlib.contextmanager
def connected(port: int, address: str, count: int) -> Iterator[list[socket.socket]]:
    """Connections from an address that send nothing."""
    with contextlib.ExitStack() as stack:
        made = [
            stack.enter_context(
                socket.create_connection(("127.0.0.1", port), source_address=(address, 0))
            )
            for _ in range(count)
        ]
        for each in made:
            each.setblocking(False)
        yield made


@contextlib.asynccontextmanager
async def served(bound: Addresses, tls_in: Path | None = None) -> AsyncIterator[GrpcServer]:
    tls = None
    if tls_in is not None:
        issued = Authority(tls_in, "Rockoon test").issue("server")
        tls = ServerTls(issued.certificate, issued.key, None)
    server = GrpcServer(
        "sample", "test", "[::]:0", lambda _: None, (), addresses=bound, drain=AT_ONCE, tls=tls
    )
    async with server:
        yield server


@pytest.mark.parametrize("over_tls", [False, True])
async def test_who_opens_too_many_loses_the_newest_and_nobody_else_any(
    over_tls: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The service listens on IPv6, so that IPv4 callers have IPv6 addresses."""
    bound = Addresses(PER_ADDRESS_MAX)
    async with served(bound, tmp_path if over_tls else None) as server:
        with contextlib.ExitStack() as stack:
            older = stack.enter_context(connected(server.port, "127.0.0.1", PER_ADDRESS_MAX))
            newer = stack.enter_context(connected(server.port, "127.0.0.1", 50))
            others = stack.enter_context(connected(server.port, "127.0.0.2", PER_ADDRESS_MAX))
            await eventually(lambda: not any(map(is_open, newer)))
            assert bound.closed == 50
            assert all(map(is_open, older))
            assert all(map(is_open, others))
            older.pop().close()
            with connected(server.port, "127.0.0.1", 1) as (again,):
                # Accepted in the order of their arrival, after the end of the former one.
                await eventually(lambda: bound.count("127.0.0.1") == PER_ADDRESS_MAX)
                assert is_open(again)
        await eventually(lambda: not bound.count("127.0.0.1"))
    assert not bound.count("127.0.0.2")
    said = [each.getMessage() for each in caplog.records if "127.0.0.1" in each.getMessage()]
    assert len([each for each in said if "connections_per_address_max" in each]) == 1


class ClosesAtOnce:
    """Admits connections, and closes its listener before any other work for them."""

    def __init__(self) -> None:
        self.admitted_count = self.open_count = 0
        listening = socket.create_server(("127.0.0.1", 0))
        self.port = listening.getsockname()[1]
        self.listener: Listener[asyncio.Protocol] = Listener(listening, self, None, 1.0)

    def admitted(self, _address: str) -> asyncio.Protocol:
        asyncio.get_running_loop().call_soon(self.listener.close)
        self.admitted_count += 1
        self.open_count += 1
        return asyncio.Protocol()

    def disconnected(self, _connection: asyncio.Protocol) -> None:
        self.open_count -= 1

    handshake_failed = disconnected


async def test_who_comes_in_the_moment_of_the_end_is_not_counted_for_ever() -> None:
    """The task of its greeting is cancelled before its first step."""
    closing = ClosesAtOnce()
    with connected(closing.port, "127.0.0.1", 1) as (coming,):
        await eventually(lambda: closing.admitted_count == 1)
        await closing.listener.wait_closed()
        assert closing.open_count == 0
        await eventually(lambda: not is_open(coming))


class NoDescriptors(socket.socket):
    """Connections arrive, and no descriptor is left for them."""

    are_left = False

    def accept(self) -> tuple[socket.socket, object]:
        if not self.are_left:
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


class AdmitsAll:
    """Counts admitted connections."""

    def __init__(self) -> None:
        self.count = 0

    def admitted(self, _address: str) -> asyncio.Protocol:
        self.count += 1
        return asyncio.Protocol()

    def disconnected(self, _connection: asyncio.Protocol) -> None:
        pass

    handshake_failed = disconnected


@contextlib.contextmanager
def without_descriptors() -> Iterator[NoDescriptors]:
    with NoDescriptors() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening


async def test_who_comes_while_no_file_is_left_is_taken_after_a_pause(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listener, "PAUSE_SECONDS", 0.01)
    admits = AdmitsAll()
    with without_descriptors() as listening:
        listens: Listener[asyncio.Protocol] = Listener(listening, admits, None, 1.0)
        with connected(listening.getsockname()[1], "127.0.0.1", 1):
            await eventually(lambda: caplog.text.count("accept failed") >= 2)
            listening.are_left = True
            await eventually(lambda: admits.count == 1)
        listens.close()
        await listens.wait_closed()


@pytest.mark.parametrize("pause_seconds", [0.01, 1e6])
async def test_a_listener_that_pauses_can_be_closed_and_says_once_why_it_does(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, pause_seconds: float
) -> None:
    monkeypatch.setattr(listener, "PAUSE_SECONDS", pause_seconds)
    loop, failed = asyncio.get_running_loop(), list[object]()
    loop.set_exception_handler(lambda _, context: failed.append(context))
    with without_descriptors() as listening:
        listens: Listener[asyncio.Protocol] = Listener(listening, AdmitsAll(), None, 1.0)
        with connected(listening.getsockname()[1], "127.0.0.1", 1):
            await eventually(lambda: "accept failed" in caplog.text)
            if pause_seconds > 1:
                for _ in range(100):
                    await asyncio.sleep(0)
                assert caplog.text.count("accept failed") == 1
        listens.close()
        over = asyncio.Event()
        # After the end of the pause.
        loop.call_later(0.02, over.set)
        await over.wait()
    assert not failed


async def test_an_address_that_has_gone_leaves_nothing_behind() -> None:
    bound = Addresses(2)
    before = repr(vars(bound))
    shares = [bound.enter(host) for host in ("127.0.0.1", "::ffff:127.0.0.1")]
    assert shares[0] is shares[1]
    for share in shares:
        assert share is not None
        bound.leave(share)
    assert repr(vars(bound)) == before


@pytest.mark.parametrize("over_tls", [False, True])
async def test_who_says_nothing_is_closed(authority: Authority, over_tls: bool) -> None:
    issued = authority.issue("server")
    tls = ServerTls(issued.certificate, issued.key, None).context() if over_tls else None
    server = Server(handshake_seconds_max=0.05)
    port = await server.listen("127.0.0.1", 0, tls)
    try:
        with connected(port, "127.0.0.1", 1) as (silent,):
            await eventually(lambda: not is_open(silent))
    finally:
        await server.stop(None)


async def test_no_bound_is_no_bound() -> None:
    bound = Addresses(0)
    async with served(bound) as server:
        with connected(server.port, "127.0.0.1", 50) as open_ones:
            await eventually(lambda: bound.count("127.0.0.1") == 50)
            assert all(map(is_open, open_ones))
