"""Handler calls in steps: calls that end immediately, wait, or raise."""

import asyncio
import threading
from typing import Any

import pytest

from rockoon.consumer.delivery import step_through
from support.waiting import DEADLINE_SECONDS


async def stepped(handler: Any, arguments: Any, may_start: Any = lambda: True) -> tuple[int, Any]:
    ended, begun = step_through(handler, arguments, may_start, DEADLINE_SECONDS)
    return ended, None if begun is None else await begun


async def test_calls_that_wait_for_nothing_follow_each_other() -> None:
    seen: list[int] = []

    async def handle(number: int) -> bool | None:
        seen.append(number)
        return True if number % 2 else None

    assert await stepped(handle, range(5)) == (5, None)
    assert seen == [0, 1, 2, 3, 4]


async def test_a_call_that_waits_goes_on_where_it_stopped_and_none_begins_behind_it() -> None:
    seen: list[object] = []
    waits: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def handle(number: int) -> str | None:
        if number < 2:
            return None
        seen.append(number)
        asyncio.get_running_loop().call_soon(waits.set_result, "first")
        seen.append(await waits)
        async with asyncio.timeout(DEADLINE_SECONDS):
            await asyncio.sleep(0)
        seen.append(asyncio.current_task())
        return "done"

    assert await stepped(handle, range(5)) == (2, "done")
    assert seen == [2, "first", asyncio.current_task()]


async def test_what_a_call_raises_before_or_after_waiting_comes_out_where_it_is_awaited() -> None:
    async def handle(number: int) -> None:
        if number == 3:
            await asyncio.sleep(0)
        if number in (1, 3):
            raise ZeroDivisionError

    for arguments, ended in (([0, 1, 2], 1), ([0, 2, 3], 2)):
        found, begun = step_through(handle, arguments, lambda: True, DEADLINE_SECONDS)
        assert found == ended
        assert begun is not None
        with pytest.raises(ZeroDivisionError):
            await begun


async def test_a_value_other_than_success_is_returned() -> None:
    async def handle(_: int) -> bool:
        return False

    assert await stepped(handle, [0, 1]) == (0, False)


async def test_a_call_that_waits_is_cancelled_with_the_task_that_awaits_it() -> None:
    seen: list[str] = []

    async def handle(_: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            seen.append("cleaned up")

    async with asyncio.TaskGroup() as tasks:
        worker = tasks.create_task(stepped(handle, [0]))
        await asyncio.sleep(0)
        worker.cancel()
    assert worker.cancelled()
    assert seen == ["cleaned up"]


async def test_after_a_call_that_held_the_loop_it_is_asked_whether_the_next_may_begin() -> None:
    seen: list[int] = []

    async def handle(number: int) -> None:
        seen.append(number)
        if number == 1:
            threading.Event().wait(0.01)

    assert await stepped(handle, range(5), lambda: False) == (2, None)
    assert seen == [0, 1]


async def test_no_call_begins_beyond_its_time() -> None:
    async def handle(_: int) -> None:
        threading.Event().wait(0.01)

    assert step_through(handle, range(5), lambda: True, 0.005) == (1, None)
