"""Senders of a stream that wait until windows and transport have room."""

import asyncio
from typing import Any

from rockoon_rpc.connection import SessionConnection
from rockoon_rpc.limits import Limits
from rockoon_rpc.stream import MessageStream
from rockoon_rpc.turns import Turns
from support.waiting import DEADLINE_SECONDS


class WithoutWindow:
    """A session whose peer has given no window."""

    def send(self, *_message: object) -> bool:
        return False

    def output(self) -> tuple[tuple[bytes, ...], tuple[Any, ...]]:
        return (), ()


async def test_a_sender_continues_if_the_transport_fills_before_its_message_has_left() -> None:
    session: Any = WithoutWindow()
    connection = SessionConnection(session, Limits(), None, Turns.of_loop().own)
    stream = connection.streams[1] = MessageStream(connection, 1)
    async with asyncio.timeout(DEADLINE_SECONDS), asyncio.TaskGroup() as tasks:
        sending = tasks.create_task(stream.send_message(b"long"))
        await asyncio.sleep(0)
        # The peer opens its window: the message fills the transport.
        connection.pause_writing()
        connection._room(1)
        await asyncio.sleep(0)
        assert not sending.done()
        connection.resume_writing()
