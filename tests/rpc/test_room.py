"""Senders of a stream that wait until windows and transport have room."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from rockoon_rpc.connection import SessionConnection
from rockoon_rpc.limits import Limits
from rockoon_rpc.server import Server
from rockoon_rpc.stream import MessageStream
from rockoon_rpc.turns import Turns
from support import http2_frames as frames
from support.raw_http2 import head, raw_peer
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


@pytest.mark.parametrize("calls", [1, 2])
async def test_a_message_of_an_only_call_is_written_immediately(calls: int) -> None:
    unsent: list[int] = []
    begun = asyncio.Semaphore(0)

    async def echo(requests: AsyncIterator[bytes], call: Any) -> AsyncIterator[bytes]:
        begun.release()
        async for request in requests:
            call.queue_message(request)
            call.flush_alone()
            unsent.append(call.connection.session.unsent_bytes)
            yield request

    server = Server()
    handler: Any = grpc.stream_stream_rpc_method_handler(echo)
    server.add_registered_method_handlers("test.Echo", {"Echo": handler})
    port = await server.listen("127.0.0.1", 0)
    async with raw_peer(port) as peer:
        for number in range(calls):
            await peer.send(head(2 * number + 1, "/test.Echo/Echo"))
            await begun.acquire()
        await peer.send(frames.data(1, frames.framed(b"x")))
        await peer.until(lambda each: each.kind == frames.DATA)
    await server.stop(None)
    assert bool(unsent[0]) == (calls > 1)
