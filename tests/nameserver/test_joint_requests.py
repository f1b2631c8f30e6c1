"""Requests that are sent as one call: each gets its own reply, and none waits for ever."""

import asyncio
from collections.abc import Sequence

import pytest

from rockoon_nameserver.etcd import JointRequests


async def test_each_gets_its_reply_in_one_call() -> None:
    asked: list[Sequence[int]] = []

    async def doubled(numbers: Sequence[int]) -> list[int]:
        asked.append(numbers)
        return [2 * each for each in numbers]

    async with asyncio.TaskGroup() as tasks:
        joint = JointRequests(doubled, tasks, gather_seconds=0, count_max=2)
        waits = [tasks.create_task(joint.ask(number)) for number in range(3)]
    assert [each.result() for each in waits] == [0, 2, 4]
    assert asked == [[0, 1], [2]]


async def test_what_fails_fails_for_each() -> None:
    async def broken(numbers: Sequence[int]) -> list[int]:
        raise LookupError(str(list(numbers)))

    async def refused(joint: JointRequests[int, int], number: int) -> None:
        with pytest.raises(LookupError, match=r"\[0, 1\]"):
            await joint.ask(number)

    async with asyncio.TaskGroup() as tasks:
        joint = JointRequests(broken, tasks, gather_seconds=0, count_max=2)
        for number in range(2):
            tasks.create_task(refused(joint, number))


async def test_a_call_that_is_cancelled_leaves_nobody_waiting() -> None:
    begun = asyncio.Event()

    async def stuck(_: Sequence[int]) -> list[int]:
        begun.set()
        await asyncio.Event().wait()
        return []

    async with asyncio.TaskGroup() as tasks:
        joint = JointRequests(stuck, tasks, gather_seconds=0, count_max=2)
        waiting = tasks.create_task(joint.ask(1))
        await begun.wait()
        (call,) = (each for each in asyncio.all_tasks() if each.get_name() == "joint request")
        call.cancel()
        await asyncio.wait([waiting], timeout=30)
        assert waiting.cancelled()
