"""Chapter 5: a log with three copies loses its leader, with its disk, while messages are sent."""

import asyncio
import itertools
import shutil
import statistics
import time
from collections.abc import Callable, Sequence

from rich.console import Console

import rockoon
from rockoon.admin.logs import LogDescription
from rockoon.errors import RockoonError
from rockoon.local import LocalCluster
from rockoon.message import Message
from rockoon.producer.producer import Producer
from tools.demo.records import Record
from tools.demo.verified import Received, Verified

TOPIC = "packages"
LOG = "broker-a"
COPIES = 3
RECORDS = 2_000
# How many messages are on their way at a time, each awaited by its sender.
SENDERS = 16
LOOK_SECONDS = 0.05


class Senders:
    """Send records, each sender one after the other, and note how long each send waited."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._records = records
        self._next = itertools.count()
        self.acknowledged: set[str] = set()
        self.waited_ms: list[float] = []
        self.failed = 0
        self.half_sent = asyncio.Event()

    async def run(self, producer: Producer) -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(SENDERS):
                tasks.create_task(self._send(producer))

    async def _send(self, producer: Producer) -> None:
        while (number := next(self._next)) < len(self._records):
            record = self._records[number]
            began = time.perf_counter()
            try:
                result = await producer.send(TOPIC, record.line, tags=record.tag)
            except RockoonError:
                self.failed += 1
                continue
            self.waited_ms.append((time.perf_counter() - began) * 1000)
            self.acknowledged.add(result.message_id)
            if number >= len(self._records) // 2:
                self.half_sent.set()


async def lose_a_disk(
    local: LocalCluster, records: Sequence[Record], verified: Verified, console: Console
) -> None:
    """Have a cluster with three copies of one log lose the leader's; TimeoutError is not caught."""
    async with rockoon.connect(local.nameservers) as cluster:
        await cluster.admin.create_topic(TOPIC, queues_per_broker=4)
        log = await described(cluster, lambda log: log.confirmed)
        assert log.leader is not None
        lost = log.leader
        senders = Senders(records[:RECORDS])
        async with cluster.producer() as producer, asyncio.TaskGroup() as tasks:
            tasks.create_task(senders.run(producer))
            await senders.half_sent.wait()
            local.kill(lost.name)
            shutil.rmtree(local.directory / lost.name)
            console.print(f"{lost.name}, which led: killed with SIGKILL, its disk wiped")
            local.start(lost.name, wait=False)

        def is_replaced(log: LogDescription) -> bool:
            ids = {each.id for each in log.in_sync}
            return len(ids) == COPIES and lost.id not in ids

        log = await described(cluster, is_replaced)
        leader = log.leader.name if log.leader else "nobody"
        console.print(f"{lost.name}: back, has copied the log and counts again; {leader} leads")
        received = Received("after-the-loss")

        arrived = asyncio.Event()

        def take(message: Message) -> None:
            received.take("only", message)
            if not received.missing(senders.acknowledged):
                arrived.set()

        async with cluster.push_consumer(received.group, {TOPIC: "*"}, take, consume_from="first"):
            await arrived.wait()
    sent, waited = senders.acknowledged, senders.waited_ms
    verified.check(
        "three copies: nothing acknowledged is lost with the leader's disk",
        bool(sent) and not received.missing(sent),
        f"{len(sent)} acknowledged, {len(received.missing(sent))} missing, "
        f"{received.stored_twice} stored twice (resent after the kill)",
    )
    verified.check(
        "three copies: no send fails; some wait until another copy leads",
        not senders.failed,
        f"{senders.failed} failed; a send waited {statistics.median(waited):.1f} ms (p50), "
        f"{max(waited):.0f} ms (max)",
    )


async def described(
    cluster: rockoon.Cluster, holds: Callable[[LogDescription], bool]
) -> LogDescription:
    """The log, once it is as wanted."""
    while True:
        log = await cluster.admin.logs.describe(LOG)
        if holds(log):
            return log
        await asyncio.sleep(LOOK_SECONDS)
