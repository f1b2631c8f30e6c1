"""Deadlines of a connection's calls, by one timer."""

import asyncio

import pytest

from rockoon_rpc.deadlines import ENDED_MAX, Deadlines
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


async def test_deadlines_of_calls_that_are_over_are_not_kept() -> None:
    loop = asyncio.get_running_loop()
    deadlines = Deadlines({}, loop)
    for number in range(10 * ENDED_MAX):
        deadlines.add(loop.time() + DEADLINE_SECONDS, number)
    assert len(deadlines._heap) <= ENDED_MAX
    deadlines.stop()
