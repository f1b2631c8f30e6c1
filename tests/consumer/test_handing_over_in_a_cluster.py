"""Queues that move between live members, on a cluster of real processes."""

import asyncio
import contextlib
import os
import signal
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import rockoon
from rockoon.cluster import Cluster
from rockoon.consumer.push_consumer import PushConsumer
from rockoon.local import LocalCluster
from rockoon.message import Message
from rockoon_core.message_queue import MessageQueue
from support import member_process
from support.eventually import eventually
from support.waiting import DEADLINE_SECONDS

# Messages sent and not yet handled.
AHEAD_MAX = 1000
HANDOVER_SECONDS_MAX = 3.0


@pytest.fixture(scope="module")
def local() -> Iterator[LocalCluster]:
    # The usual lease, longer than the bound: no member here is silent for so long.
    settings = {"offset": {"handover_seconds_max": HANDOVER_SECONDS_MAX}}
    with LocalCluster(brokers=2, settings=settings) as cluster:
        yield cluster


@pytest.fixture
async def cluster(local: LocalCluster) -> AsyncIterator[Cluster]:
    async with rockoon.connect(local.nameservers) as connected:
        yield connected


class Seen:
    """Messages of all members of a group, by queue."""

    def __init__(self) -> None:
        self.offsets: dict[MessageQueue, list[int]] = defaultdict(list)
        self.count = 0

    async def __call__(self, message: Message) -> None:
        # So that some calls always run.
        for _ in range(10):
            await asyncio.sleep(0)
        self.offsets[message.queue].append(message.queue_offset)
        self.count += 1


async def test_two_members_then_four_then_two_with_nothing_twice_and_nothing_left_out(
    cluster: Cluster, local: LocalCluster
) -> None:
    await cluster.admin.create_topic("orders", queues_per_broker=4)
    seen, sent = Seen(), [0]

    async def send() -> None:
        async with cluster.producer() as producer:
            while True:
                await producer.send_many("orders", [b"x"] * 16)
                sent[0] += 16
                await eventually(lambda: sent[0] < seen.count + AHEAD_MAX)

    async with contextlib.AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:

        async def join(name: str) -> PushConsumer:
            connection = await stack.enter_async_context(rockoon.connect(local.nameservers))
            return await stack.enter_async_context(
                connection.push_consumer(
                    "billing",
                    {"orders": "*"},
                    seen,
                    member_id=name,
                    consume_from="first",
                    concurrency=1,
                    timing=rockoon.Timing(commit_seconds=60),
                )
            )

        async def settled(*members: PushConsumer) -> None:
            share = 8 // len(members)
            await eventually(lambda: all(len(each.assignment) == share for each in members))
            count = seen.count
            await eventually(lambda: seen.count > count + 200)

        sending = tasks.create_task(send())
        a, b = await join("a"), await join("b")
        await settled(a, b)
        c, d = await join("c"), await join("d")
        await settled(a, b, c, d)
        async with asyncio.TaskGroup() as leaving:
            leaving.create_task(b.close())
            leaving.create_task(c.close())
        await settled(a, d)
        sending.cancel()
        await asyncio.wait({sending})
        ends = {
            each.queue: each.state.max_offset
            for each in (await cluster.admin.describe_topic("orders")).queues
            if each.state is not None
        }
        assert sum(ends.values()) >= sent[0]
        await eventually(lambda: seen.count >= sum(ends.values()))
        assert [each.statistics.fenced for each in (a, b, c, d)] == [0, 0, 0, 0]
    assert {queue: list(range(end)) for queue, end in ends.items()} == seen.offsets
    progress = await cluster.admin.progress("billing", "orders")
    assert sum(each.offset for each in progress) == sum(ends.values())


async def test_a_process_that_was_stopped_is_overtaken_after_the_bound_and_undoes_nothing(
    cluster: Cluster, local: LocalCluster
) -> None:
    await cluster.admin.create_topic("payments", queues_per_broker=1)
    async with cluster.producer() as producer:
        await producer.send_many("payments", [b"%d" % number for number in range(1000)])
    stopped = await asyncio.create_subprocess_exec(
        sys.executable,
        str(Path(member_process.__file__)),
        ",".join(local.nameservers),
        "paying",
        "payments",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, "GRPC_VERBOSITY": "NONE"},
    )
    assert stopped.stdout is not None
    bodies: set[bytes] = set()

    async def handle(message: Message) -> None:
        bodies.add(message.body)

    async def owners() -> list[str]:
        progress = await cluster.admin.progress("paying", "payments")
        return [each.owner for each in progress]

    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            printed = {(await stopped.stdout.readline()).strip() for _ in range(1000)}
        assert printed == {b"%d" % number for number in range(1000)}
        stopped.send_signal(signal.SIGSTOP)
        await send_more(cluster, 1000, 2000)
        async with cluster.push_consumer(
            "paying",
            {"payments": "*"},
            handle,
            member_id="late",
            timing=rockoon.Timing(commit_seconds=0.1),
        ) as late:
            loop = asyncio.get_running_loop()
            joined_at = loop.time()
            await eventually(lambda: len(late.assignment) == 1)
            assert loop.time() - joined_at >= HANDOVER_SECONDS_MAX - 0.1
            (taken,) = late.assignment
            stopped.send_signal(signal.SIGCONT)
            await send_more(cluster, 2000, 3000)
            wanted = {b"%d" % number for number in range(1000, 3000)}
            async with asyncio.TaskGroup() as tasks:
                reading = tasks.create_task(read_into(printed, stopped.stdout))
                await eventually(lambda: wanted <= printed | bodies)
                reading.cancel()
            assert late.assignment == [taken]
            assert late.statistics.fenced == 0
            assert sorted(await owners()).count("late") == 1
    finally:
        if stopped.returncode is None:
            stopped.kill()
        await stopped.wait()


async def send_more(cluster: Cluster, first: int, stop: int) -> None:
    async with cluster.producer() as producer:
        await producer.send_many("payments", [b"%d" % number for number in range(first, stop)])


async def read_into(lines: set[bytes], output: asyncio.StreamReader) -> None:
    while line := await output.readline():
        lines.add(line.strip())
