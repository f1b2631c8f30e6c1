"""The bound on connections of one address: who has too many loses the newest, nobody else any."""

import contextlib
import fcntl
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from rockoon_runtime.connections import (
    Connection,
    ConnectionBound,
    ConnectionGuard,
    beyond,
    one_address,
)
from rockoon_runtime.wire import GrpcServer
from support.drains import AT_ONCE
from support.eventually import eventually

OWN = (("grpc.use_local_subchannel_pool", 1),)
PER_ADDRESS_MAX = 20
LOOK_SECONDS = 0.05


def of(address: str, *places: tuple[int, int]) -> list[Connection]:
    return [Connection(address, look, inode) for look, inode in places]


@pytest.mark.parametrize(
    ("connections", "closed"),
    [
        ([], []),
        (of("a", (1, 1), (1, 2)), []),
        (of("a", (1, 1), (1, 2), (1, 3)), of("a", (1, 3))),
        # The look that found it comes before the number of its socket.
        (of("a", (2, 1), (1, 8), (1, 9)), of("a", (2, 1))),
        (of("a", (1, 1), (2, 2)) + of("b", (1, 3), (2, 4)), []),
        (
            of("a", (1, 1), (1, 2), (3, 5)) + of("b", (1, 3), (2, 4), (3, 6), (3, 7)),
            of("a", (3, 5)) + of("b", (3, 6), (3, 7)),
        ),
    ],
)
def test_the_newest_of_each_address_beyond_two(
    connections: list[Connection], closed: list[Connection]
) -> None:
    assert beyond(connections, 2) == closed
    assert sorted(beyond(reversed(connections), 2)) == closed


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


def is_open(connection: socket.socket) -> bool:
    """Whether the other side has not closed it; says nothing itself."""
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
    """Connections from an address that say nothing."""
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
async def served(bound: ConnectionBound) -> AsyncIterator[GrpcServer]:
    server = GrpcServer(
        "sample", "test", "[::]:0", lambda _: None, (), connections=bound, drain=AT_ONCE
    )
    async with server:
        await server.set_serving(True)
        yield server


@pytest.mark.skipif(sys.platform != "linux", reason="the bound is held on Linux only")
async def test_who_opens_too_many_loses_the_newest_and_nobody_else_any(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The service listens on IPv6, so that IPv4 callers come as IPv6 addresses."""
    bound = ConnectionBound(PER_ADDRESS_MAX, LOOK_SECONDS)
    async with served(bound) as server:
        asked = health_pb2.HealthCheckRequest()
        with connected(server.port, "127.0.0.1", PER_ADDRESS_MAX - 1) as older:
            target = f"127.0.0.1:{server.port}"
            async with aio.insecure_channel(target, options=OWN) as channel:
                stub = health_pb2_grpc.HealthStub(channel)
                watch = stub.Watch(asked)
                await watch.read()
                guard = server._guard
                assert guard is not None
                looks = guard.looks
                # One may have been under way.
                await eventually(lambda: guard.looks > looks + 1)
                with (
                    connected(server.port, "127.0.0.1", 50) as newer,
                    connected(server.port, "127.0.0.2", PER_ADDRESS_MAX) as others,
                ):
                    await eventually(lambda: not any(map(is_open, newer)))
                    await eventually(lambda: bound.closed == 50)
                    assert all(map(is_open, older))
                    assert all(map(is_open, others))
                    await server.set_serving(False)
                    told = await watch.read()
                    assert told.status == health_pb2.HealthCheckResponse.NOT_SERVING
                    await stub.Check(asked)
    assert bound.closed == 50
    said = [each.getMessage() for each in caplog.records if "127.0.0.1" in each.getMessage()]
    assert len(said) == 1, "once a minute, however often"


async def test_no_bound_no_look() -> None:
    async with served(ConnectionBound(0)) as server:
        assert server._guard is None


LOCK_IS_FREE = """
import fcntl, sys
with open(sys.argv[1], "w") as file:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the bound is held on Linux only")
def test_a_look_leaves_the_locks_of_other_files_alone(tmp_path: Path) -> None:
    """A store's is lost with the first descriptor of its file that the process closes."""
    path = tmp_path / "lock"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX)
        ConnectionGuard(1, ConnectionBound(1)).look()
        other = [sys.executable, "-c", LOCK_IS_FREE, str(path)]
        assert subprocess.run(other, capture_output=True, check=False).returncode != 0
    finally:
        os.close(fd)
