"""The session of a connection that has ended."""

import asyncio
from typing import Any

import pytest

from rockoon_rpc.connection import ENDED, EndedSession
from rockoon_rpc.server import Server
from rockoon_rpc.session import ClientSession, ServerSession, Session
from support.eventually import eventually
from support.kernels import BOTH, each_kernel

each_implementation = pytest.fixture(params=BOTH, autouse=True)(each_kernel)


def names(protocol: Any) -> set[str]:
    return {name for name in dir(protocol) if not name.startswith("_")}


def test_it_has_all_that_sessions_have() -> None:
    for protocol in (Session, ServerSession, ClientSession):
        assert names(protocol) <= names(EndedSession), protocol


def test_nothing_can_be_sent_by_it() -> None:
    assert ENDED.send(1, b"message")
    assert ENDED.respond(1, b"answer")
    assert ENDED.request(None, b"request") == 0
    assert ENDED.output() == ((), ())


async def test_a_lost_connection_holds_no_session() -> None:
    server = Server()
    port = await server.listen("127.0.0.1", 0)
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    await eventually(lambda: bool(server.connections))
    (connection,) = server.connections
    assert connection.session is not ENDED
    writer.close()
    await eventually(lambda: connection.is_lost)
    assert connection.session is ENDED
    await server.stop(None)
