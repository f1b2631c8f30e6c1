"""Deadlines of a connection's calls, by one timer."""

import asyncio
from typing import Any

import grpc
import pytest

from rockoon_rpc.channel import Channel
from rockoon_rpc.client_connection import ENDED_MAX, Deadlines
from support.raw_server import raw_server
from support.waiting import DEADLINE_SECONDS


class Waiting:
    """A call that notes its end."""

    def __init__(self, number: int, over: list[int], all_over: asyncio.Event) -> None:
        self._number, self._over, self._all_over = number, over, all_over

    def overdue(self) -> None:
        self._over.append(self._number)
        if self._number == 0:
            self._all_over.set()


@pytest.mark.parametrize("reverse", [False, True])
async def test_calls_end_in_the_order_of_their_deadlines(reverse: bool) -> None:
    loop = asyncio.get_running_loop()
    over: list[int] = []
    last = asyncio.Event()
    calls = {number: Waiting(number, over, last) for number in range(6)}
    deadlines = Deadlines(calls, loop)
    now = loop.time()
    for number in sorted(calls, reverse=reverse):
        # The call with number 0 has the last deadline.
        deadlines.add(now + 0.02 - 0.002 * number, number)
    # It was answered.
    del calls[3]
    async with asyncio.timeout(DEADLINE_SECONDS):
        await last.wait()
    assert over == [5, 4, 2, 1, 0]


async def test_a_callback_that_fails_stops_no_other_deadline() -> None:
    """Nor the other answers of a turn."""
    loop = asyncio.get_running_loop()
    failures: list[Any] = []
    loop.set_exception_handler(lambda _, context: failures.append(context["exception"]))

    def fails(_call: Any) -> None:
        raise ValueError("callback")

    async with raw_server() as (address, _), Channel(address) as channel:
        await channel.channel_ready()
        method = channel.unary_unary("/test.Echo/Unary")
        calls = [method(b"x", timeout=0.01 * number) for number in range(1, 4)]
        for call in calls:
            call.add_done_callback(fails)
        async with asyncio.timeout(DEADLINE_SECONDS):
            codes = [await call.code() for call in calls]
    assert codes == [grpc.StatusCode.DEADLINE_EXCEEDED] * 3
    assert list(map(str, failures)) == ["callback"] * 3


async def test_deadlines_of_calls_that_are_over_are_not_kept() -> None:
    loop = asyncio.get_running_loop()
    deadlines = Deadlines({}, loop)
    for number in range(10 * ENDED_MAX):
        deadlines.add(loop.time() + DEADLINE_SECONDS, number)
    assert len(deadlines._heap) <= ENDED_MAX
    deadlines.stop()
