"""Workers of a consumer: run where work is added, or by the loop; none runs twice or is left
out."""

import asyncio
import random

import pytest

from rockoon.consumer.delivery import WorkQueue
from rockoon_core.changes import Changes

DEADLINE_SECONDS = 30.0


class Workers:
    """Tasks that receive work, and the order in which they received it."""

    def __init__(self, owner: asyncio.TaskGroup, count: int) -> None:
        self.queue: WorkQueue[int] = WorkQueue()
        self.got: list[int] = []
        self.changes = Changes()
        self.tasks_of: list[asyncio.Task[None] | None] = []
        self.tasks = [owner.create_task(self.work(), name="worker") for _ in range(count)]

    async def work(self) -> None:
        while True:
            work = await self.queue.get()
            self.got.append(work)
            self.changes.notify()
            self.tasks_of.append(asyncio.current_task())

    async def until(self, count: int) -> None:
        async with asyncio.timeout(DEADLINE_SECONDS):
            seen = self.changes.count
            while len(self.got) < count:
                seen = await self.changes.wait(seen)

    def close(self) -> None:
        for task in self.tasks:
            task.cancel()


async def test_work_that_a_callback_puts_is_done_before_it_returns() -> None:
    async with asyncio.TaskGroup() as owner:
        workers = Workers(owner, 2)
        await asyncio.sleep(0)
        seen: list[list[int]] = []

        def received(number: int) -> None:
            workers.queue.put(number)
            seen.append(list(workers.got))

        loop = asyncio.get_running_loop()
        done = loop.create_future()
        loop.call_soon(received, 1)
        loop.call_soon(done.set_result, None)
        await done
        assert seen == [[1]]
        # The handler is in a task: timeouts and cancellation need one.
        assert workers.tasks_of[0] in workers.tasks
        workers.close()


async def test_work_that_a_task_puts_is_left_to_the_loop() -> None:
    async with asyncio.TaskGroup() as owner:
        workers = Workers(owner, 1)
        await asyncio.sleep(0)
        workers.queue.put(1)
        assert workers.got == []
        await workers.until(1)
        assert workers.got == [1]
        workers.close()


async def test_workers_that_run_long_in_callbacks_leave_time_to_the_loop() -> None:
    now = 1.0
    queue: WorkQueue[float] = WorkQueue(lambda: now)
    ran: list[float] = []
    counts: list[int] = []

    async def work() -> None:
        nonlocal now
        now += await queue.get()
        ran.append(now)

    def received() -> None:
        for _ in range(4):
            queue.put(1.0)
            counts.append(len(ran))

    async with asyncio.timeout(DEADLINE_SECONDS), asyncio.TaskGroup() as owner:
        for _ in range(4):
            owner.create_task(work(), name="worker")
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(received)
    assert counts == [1, 1, 1, 1]
    assert len(ran) == 4


@pytest.mark.parametrize("is_woken", [False, True])
async def test_work_of_a_cancelled_worker_is_for_another_one(is_woken: bool) -> None:
    async with asyncio.TaskGroup() as owner:
        workers = Workers(owner, 2)
        await asyncio.sleep(0)
        if is_woken:
            workers.queue.put(1)
        # The last one that began to wait; the loop has not run it yet.
        workers.tasks[1].cancel()
        if not is_woken:
            workers.queue.put(1)
        await workers.until(1)
        assert workers.tasks_of == [workers.tasks[0]]
        assert workers.tasks[1].cancelled()
        workers.close()


def test_what_ends_the_program_ends_the_loop_and_not_the_callback() -> None:
    queue: WorkQueue[None] = WorkQueue()
    raised: list[bool] = []

    async def work() -> None:
        await queue.get()
        raise SystemExit(3)

    def run() -> None:
        loop = asyncio.new_event_loop()
        task = loop.create_task(work())

        def received() -> None:
            queue.put(None)
            raised.append(False)

        loop.call_soon(loop.call_soon, received)
        try:
            loop.run_forever()
        finally:
            assert isinstance(task.exception(), SystemExit)
            loop.close()

    with pytest.raises(SystemExit):
        run()
    assert raised == [False]


async def test_work_put_in_any_way_is_got_once() -> None:
    async with asyncio.TaskGroup() as owner:
        seed = random.randrange(1 << 32)
        print(f"seed {seed}")
        rng = random.Random(seed)
        workers = Workers(owner, 4)
        loop = asyncio.get_running_loop()
        count = 0
        for _ in range(300):
            for _ in range(rng.randrange(4)):
                count += 1
                if rng.random() < 0.5:
                    workers.queue.put(count)
                else:
                    loop.call_soon(workers.queue.put, count)
            if rng.random() < 0.1:
                cancelled = rng.choice(workers.tasks)
                cancelled.cancel()
                workers.tasks.remove(cancelled)
                workers.tasks.append(owner.create_task(workers.work(), name="worker"))
            for _ in range(rng.randrange(3)):
                await asyncio.sleep(0)
        await workers.until(count)
        assert sorted(workers.got) == list(range(1, count + 1))
        workers.close()
