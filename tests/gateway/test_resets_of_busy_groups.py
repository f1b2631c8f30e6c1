"""Resets of groups that read and write: by the command line, the Admin service and the SDK."""

import asyncio
import json
import os
import re
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from grpc import aio

import rockoon
from gateway.consumers import Consumer, handle, topic_with
from gateway.gateways import RunningGateway
from gateway.wire_client import WireClient
from rockoon.errors import NotAcquired
from rockoon.local.cluster import LocalCluster
from rockoon_proto.apache.rocketmq.v2 import admin_pb2 as a
from rockoon_proto.apache.rocketmq.v2 import definition_pb2 as d
from rockoon_proto.apache.rocketmq.v2.admin_pb2_grpc import AdminStub
from rockoon_proto.v1.offset_pb2 import RESET, Progress, ResetTarget
from support.command_forks import CommandForks
from support.consumer_settings import grouped
from support.eventually import answered

QUEUES = 2
BATCH = 8
SHIFT = 40
BACK_MS = 400
# Pause between two sends.
PAUSE_SECONDS = 0.01
LATER_MS = 3_600_000
# A command is a process, which costs more than the rest of a reset.
COMMANDS_EVERY = 5
Handled = list[tuple[int, int]]


@pytest.fixture(scope="module")
def forks(
    local_cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CommandForks]:
    environment = {**os.environ, "ROCKOON_NAMESERVERS": ",".join(local_cluster.nameservers)}
    with CommandForks(tmp_path_factory.mktemp("commands"), environment) as forks:
        yield forks


class BusyGroup:
    """A group that reads without a pause.

    Attributes:
        handled: queue and offset of each message, recorded before it can be committed.
        refused: acknowledgements after a reset.
    """

    def __init__(self, cluster: rockoon.Cluster, name: str, topic: str) -> None:
        self.name = name
        self.topic = topic
        self.handled: Handled = []
        self.refused = 0
        self._admin = cluster.admin

    async def progress(self) -> dict[int, Progress]:
        found = await self._admin.progress(self.name, self.topic)
        return {each.queue.queue_id: each for each in found}

    def handled_since(self, mark: int) -> dict[int, set[int]]:
        found: dict[int, set[int]] = defaultdict(set)
        for queue_id, offset in self.handled[mark:]:
            found[queue_id].add(offset)
        return found

    async def check(self, mark: int, sentence: str, places: dict[int, int] | None = None) -> None:
        """Check that a reset or an undo has set the progress, and only handled messages increase
        it.

        Args:
            mark: length of `handled` before.
            sentence: beginning of the explanation of the progress.
            places: the offset to which each queue was reset; None: unknown.
        """

        async def goes_on() -> bool:
            progress = await self.progress()
            handled = self.handled_since(mark)
            for queue_id, each in progress.items():
                assert each.start_reason == RESET, each
                assert each.start_explanation.startswith(sentence), each
                assert places is None or each.start_offset == places[queue_id], each
                assert each.offset >= each.start_offset, each
                over = set(range(each.start_offset, each.offset)) - handled[queue_id]
                assert not over, f"committed over {sentence}: {sorted(over)} of {each}"
            return all(each.offset > each.start_offset for each in progress.values())

        await answered(goes_on, bool)


@asynccontextmanager
async def pushed(cluster: rockoon.Cluster, topic: str) -> AsyncIterator[BusyGroup]:
    group = BusyGroup(cluster, f"{topic}-pushed", topic)

    def note(message: rockoon.Message) -> None:
        group.handled.append((message.queue.queue_id, message.queue_offset))

    options = grouped({"consume_from": "first", "commit_seconds": 0.05})
    async with cluster.push_consumer(group.name, {topic: "*"}, note, **options):
        yield group


@asynccontextmanager
async def received(cluster: rockoon.Cluster, topic: str) -> AsyncIterator[BusyGroup]:
    group = BusyGroup(cluster, f"{topic}-received", topic)

    async def work(consumer: rockoon.SimpleConsumer) -> None:
        while True:
            messages = await consumer.receive(BATCH, wait=1.0)
            group.handled += [(each.queue.queue_id, each.queue_offset) for each in messages]
            for message in messages:
                try:
                    await consumer.ack(message)
                except NotAcquired:
                    group.refused += 1

    async with (
        cluster.simple_consumer(group.name, {topic: "*"}, consume_from="first") as consumer,
        asyncio.TaskGroup() as tasks,
    ):
        working = tasks.create_task(work(consumer), name="receiver")
        yield group
        working.cancel()


@asynccontextmanager
async def wired(
    cluster: rockoon.Cluster, client: WireClient, topic: str
) -> AsyncIterator[BusyGroup]:
    group = BusyGroup(cluster, f"{topic}-wired", topic)
    consumer = Consumer(client, group.name, topic)

    async def work() -> None:
        while True:
            messages = await consumer.receive(batch_size=BATCH, wait=1.0)
            properties = [each.system_properties for each in messages]
            group.handled += [(each.queue_id, each.queue_offset) for each in properties]
            if messages:
                answer = await consumer.acknowledge(*map(handle, messages))
                codes = [entry.status.code for entry in answer.entries]
                assert set(codes) <= {d.OK, d.INVALID_RECEIPT_HANDLE}, answer
                group.refused += codes.count(d.INVALID_RECEIPT_HANDLE)

    async with asyncio.TaskGroup() as tasks:
        working = tasks.create_task(work(), name="client")
        yield group
        working.cancel()


class Operator:
    """Ways to reset a group; each returns the id of the reset."""

    def __init__(self, cluster: rockoon.Cluster, gateway: str, forks: CommandForks) -> None:
        self._cluster = cluster
        self._gateway = gateway
        self._forks = forks

    async def command(self, *arguments: str) -> Any:
        status, out, err = await asyncio.to_thread(
            self._forks.run, ("offsets", *arguments, "--json"), b""
        )
        assert status == 0, err
        return json.loads(out)

    async def by_command(self, group: BusyGroup, number: int) -> str:
        targets = (("--shift", f"-{SHIFT}"), ("--to-latest",), ("--by-duration", f"{BACK_MS}ms"))
        target = targets[number % len(targets)]
        done = await self.command("reset", group.name, group.topic, *target, "--yes")
        assert done["applied"]
        if target[0] == "--shift":
            for step in done["steps"]:
                assert step["to_offset"] == max(step["from_offset"] - SHIFT, 0), step
        return str(done["reset_id"])

    async def by_admin(self, group: BusyGroup, number: int) -> str:
        ms = now_ms() + LATER_MS if number % 2 else now_ms() - BACK_MS
        at = Timestamp()
        at.FromMilliseconds(ms)
        request = a.ResetGroupOffsetRequest(
            group=d.Resource(name=group.name),
            topic=d.Resource(name=group.topic),
            reset_timestamp=at,
        )
        async with aio.insecure_channel(self._gateway) as channel:
            stub: Any = AdminStub(channel)
            metadata = (("x-mq-client-id", "console"),)
            answer = await stub.ResetGroupOffset(request, metadata=metadata)
        assert answer.status.code == d.OK, answer
        explanation = (await group.progress())[0].start_explanation
        found = re.match("reset ([0-9a-f]+) by console, by a gateway", explanation)
        assert found, explanation
        return found[1]

    async def by_sdk(self, group: BusyGroup, number: int) -> str:
        targets = (
            ResetTarget(shift=-SHIFT),
            ResetTarget(latest=True),
            ResetTarget(timestamp_ms=now_ms() - BACK_MS),
        )
        done = await self._cluster.admin.reset_offsets(
            group.name, group.topic, targets[number % len(targets)], operator="a test"
        )
        return str(done.reset_id)

    async def undo(self, reset_id: str, number: int) -> dict[int, int]:
        """Return the offset to which each queue returns."""
        if number % COMMANDS_EVERY == 0:
            steps = (await self.command("undo", reset_id))["steps"]
            return {each["queue_id"]: each["from_offset"] for each in steps}
        undone = await self._cluster.admin.undo_reset(reset_id, "a test")
        return {each.queue.queue_id: each.from_offset for each in undone.steps}


def now_ms() -> int:
    return time.time_ns() // 1_000_000


async def keep_sending(cluster: rockoon.Cluster, topic: str) -> None:
    async with cluster.producer() as producer:
        while True:
            await producer.send_many(topic, [b"x"] * QUEUES)
            await asyncio.sleep(PAUSE_SECONDS)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("resets", [10, pytest.param(200, marks=pytest.mark.soak)])
async def test_busy_groups_are_reset_and_each_reset_is_undone(
    cluster: rockoon.Cluster,
    gateway: RunningGateway,
    client: WireClient,
    forks: CommandForks,
    resets: int,
) -> None:
    topic = await topic_with(cluster, f"busy-{resets}", [b"x"] * 100, queues=QUEUES)
    operator = Operator(cluster, gateway.address, forks)
    async with AsyncExitStack() as stack:
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        sending = tasks.create_task(keep_sending(cluster, topic), name="producer")
        groups = [
            await stack.enter_async_context(pushed(cluster, topic)),
            await stack.enter_async_context(received(cluster, topic)),
            await stack.enter_async_context(wired(cluster, client, topic)),
        ]
        for group in groups:
            await answered(group.progress, lambda found: len(found) == QUEUES)
        for number in range(resets):
            group, way = groups[number % 3], number // 3 % 3
            before, mark = await group.progress(), len(group.handled)
            kinds = (operator.by_command, operator.by_admin, operator.by_sdk)
            reset_id = await kinds[way](group, number // 9)
            await group.check(mark, f"reset {reset_id} by")
            mark = len(group.handled)
            former = await operator.undo(reset_id, number)
            handled = group.handled_since(0)
            for queue_id, offset in former.items():
                assert offset >= before[queue_id].offset
                assert set(range(before[queue_id].offset, offset)) <= handled[queue_id]
            await group.check(mark, f"reset {reset_id} undone", former)
        sending.cancel()
    refused = {group.name: group.refused for group in groups}
    print(f"{resets} resets; messages handled: {[len(each.handled) for each in groups]}; {refused}")
