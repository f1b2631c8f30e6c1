"""Senders wait for the peer's windows and for the transport, in any order."""

import asyncio
from typing import Any, Self

import pytest

from rockoon_rpc.connection import Connection
from rockoon_rpc.limits import Limits
from rockoon_rpc.session import ErrorCode
from rockoon_rpc.stream import MessageStream
from support import http2_frames as frames
from support.session_pairs import IMPLEMENTATIONS, MANY, head
from support.waiting import DEADLINE_SECONDS


class Side(Connection):
    """A side whose streams the test opens itself."""


class FullTransport:
    """Is full after each write."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def get_extra_info(self, _name: str) -> Self:
        return self

    def setsockopt(self, *_: Any) -> None:
        pass

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def write(self, _data: bytes) -> None:
        self._connection.pause_writing()

    writelines = write


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
async def test_room_that_arises_while_the_transport_is_full_is_reported_later(
    implementation: Any,
) -> None:
    session = implementation.ClientSession(Limits())
    connection = Side(session, Limits(), None)
    connection.connection_made(FullTransport(connection))

    def received(raw: bytes) -> None:
        connection.get_buffer(-1)[: len(raw)] = raw
        connection.buffer_updated(len(raw))

    received(frames.settings({}))
    stream = MessageStream(connection, session.request(head(implementation, MANY), None))
    connection.streams[stream.id] = stream
    while connection.is_choked:
        connection.resume_writing()
    sending = asyncio.create_task(stream.send_message(bytes(3 << 20)))
    await asyncio.sleep(0)
    # The message leaves in several writes, each of which fills the transport.
    received(b"".join(frames.window_update(each, 4 << 20) for each in (0, stream.id)))
    writes = 0
    while stream.is_pending:
        assert connection.is_choked
        connection.resume_writing()
        writes += 1
    assert writes
    assert connection.is_choked
    while connection.is_choked:
        connection.resume_writing()
    async with asyncio.timeout(DEADLINE_SECONDS):
        await sending
    stream.reset(ErrorCode.CANCEL)
