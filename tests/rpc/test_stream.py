"""Streams: a sender that waits for the peer's windows and for the transport."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from rockoon_rpc.connection import SessionConnection
from rockoon_rpc.limits import Limits
from rockoon_rpc.stream import MessageStream
from rockoon_rpc.turns import Turns
from support.eventually import eventually


class Session:
    """Has no window, and no bytes to write."""

    is_behind = False

    def send(self, *_: object) -> bool:
        return False

    def output(self) -> tuple[tuple[bytes, ...], tuple[Any, ...]]:
        return (), ()


@pytest.mark.parametrize("choked_first", [False, True])
@pytest.mark.parametrize("room_first", [False, True])
async def test_a_sender_waits_for_windows_and_transport(
    choked_first: bool, room_first: bool
) -> None:
    session: Any = Session()
    connection = SessionConnection(session, Limits(), None, Turns.of_loop().own)
    connection.transport = SimpleNamespace(is_closing=lambda: False)
    stream = MessageStream(connection, 1)
    async with asyncio.TaskGroup() as tasks:
        if choked_first:
            connection.pause_writing()
        sending = tasks.create_task(stream.send_message(b"x"))
        await eventually(lambda: stream.is_pending)
        if not choked_first:
            connection.pause_writing()
        steps = [stream.sent_all, connection.resume_writing]
        if not room_first:
            steps.reverse()
        for step in steps:
            assert not sending.done()
            step()
            for _ in range(3):
                await asyncio.sleep(0)
        await eventually(sending.done)
