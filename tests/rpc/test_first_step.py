"""Calls that begin without a task: a timeout or task group of the first step works in the task."""

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from rockoon_rpc import first_step

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]
VARIABLE = contextvars.ContextVar("variable", default="outside")


class End:
    """How a coroutine has ended."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[Any] = self._loop.create_future()
        self.tasks: list[asyncio.Task[None] | None] = []

    def returned(self, result: Any) -> None:
        self._ended.set_result(result)

    def raised(self, failure: BaseException) -> None:
        self._ended.set_result(failure)

    async def of(
        self, steps: Coroutine[Any, Any, Any], then: Callable[[Any], object] = lambda _: None
    ) -> Any:
        """What a coroutine returns or raises that begins in a callback, as received bytes are
        handled.

        Args:
            then: called with its task in the same step.
        """

        def begin() -> None:
            self.tasks.append(first_step.run(self._loop, steps, self))
            then(self.tasks[0])

        self._loop.call_soon(begin)
        return await self._ended


async def at_once() -> str:
    return "answer"


async def waits() -> str:
    for _ in range(3):
        await asyncio.sleep(0)
    return "answer"


async def fails() -> None:
    raise ValueError("here")


async def fails_later() -> None:
    await asyncio.sleep(0)
    raise ValueError("later")


async def times_out() -> str:
    VARIABLE.set("inside")
    try:
        async with asyncio.timeout(0.01):
            await asyncio.Event().wait()
    except TimeoutError:
        task = asyncio.current_task()
        assert task is not None
        return f"timeout {VARIABLE.get()} {task.cancelling()}"
    return "no timeout"


async def groups() -> list[int]:
    async def child(number: int) -> int:
        await asyncio.sleep(0)
        return number

    async with asyncio.TaskGroup() as tasks:
        children = [tasks.create_task(child(number)) for number in range(3)]
        await asyncio.sleep(0)
    return [each.result() for each in children]


async def child_fails() -> str:
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fails())
            await asyncio.Event().wait()
    except* ValueError:
        pass
    task = asyncio.current_task()
    assert task is not None
    return f"group {task.cancelling()}"


async def cancels_itself() -> str:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return f"cancelled {task.cancelling()} {task.uncancel()}"
    return "not cancelled"


@pytest.mark.parametrize("new_loop", LOOPS)
@pytest.mark.parametrize(
    ("steps", "end"),
    [
        (at_once, "answer"),
        (waits, "answer"),
        (fails, "ValueError('here')"),
        (fails_later, "ValueError('later')"),
        (times_out, "timeout inside 0"),
        (groups, "[0, 1, 2]"),
        (child_fails, "group 0"),
        (cancels_itself, "cancelled 1 0"),
    ],
)
def test_a_coroutine_ends_as_in_a_task(
    steps: Callable[[], Coroutine[Any, Any, Any]],
    end: str,
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def in_task() -> str:
        try:
            return str(await asyncio.get_running_loop().create_task(steps()))
        except ValueError as failure:
            return repr(failure)

    async def scenario() -> None:
        found = await End().of(steps())
        text = repr(found) if isinstance(found, Exception) else str(found)
        assert text == end == await in_task()
        # Each call has its own context.
        assert VARIABLE.get() == "outside"

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(scenario())


async def test_an_answer_at_once_has_no_task() -> None:
    end = End()
    before = len(asyncio.all_tasks())
    assert await end.of(at_once()) == "answer"
    assert end.tasks == [None]
    assert len(asyncio.all_tasks()) == before


@pytest.mark.parametrize("when", ["before its first step", "later"])
async def test_a_cancelled_call_cancels_what_it_waits_for(when: str) -> None:
    child: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    cleaned = False

    async def waits_for_child() -> None:
        nonlocal cleaned
        try:
            await child
        finally:
            await asyncio.sleep(0)
            cleaned = True

    def cancel(task: asyncio.Task[None]) -> None:
        if when == "later":
            asyncio.get_running_loop().call_later(0.01, task.cancel)
        else:
            task.cancel()

    found = await End().of(waits_for_child(), cancel)
    assert isinstance(found, asyncio.CancelledError)
    assert child.cancelled()
    assert cleaned


async def test_a_cancelled_call_may_go_on() -> None:
    async def stays() -> str:
        with pytest.raises(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        return "stayed"

    def cancel(task: asyncio.Task[None]) -> None:
        task.cancel()

    assert await End().of(stays(), cancel) == "stayed"
