"""Chapter 5: three copies. A broker's log loses its leader, with its disk, while messages are sent;
the offset service loses its leader while a group works.
"""

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
LOG, OFFSET = "broker-a", "offset"
COPIES = 3
RECORDS = 2_000
# What a group reads while nobody, or another one, leads the offset service.
MORE_RECORDS = 500
# How many messages are on their way at a time, each awaited by its sender.
SENDERS = 16
LOOK_SECONDS = 0.05
COMMIT_SECONDS = 0.2


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
        more = records[RECORDS : RECORDS + MORE_RECORDS]
        before, after, end, sent = await lose_an_offset_leader(
            local, cluster, received, senders.acknowledged, more, console
        )
    waited = senders.waited_ms
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

    verified.check(
        "three copies: no progress is lost with the offset service's leader",
        before <= after == end,
        f"{before} messages were committed when it was killed, {after} of {end} at the end",
    )


async def lose_an_offset_leader(
    local: LocalCluster,
    cluster: rockoon.Cluster,
    received: Received,
    sent: set[str],
    more: Sequence[Record],
    console: Console,
) -> tuple[int, int, int, set[str]]:
    """Have the offset service's leader killed while a group works.

    Returns:
        How much the group had committed before, and at the end; how much there is; and what was
        sent.
    """
    wanted, arrived = set(sent), asyncio.Event()

    def take(message: Message) -> None:
        received.take("only", message)
        if not received.missing(wanted):
            arrived.set()

    async with (
        cluster.push_consumer(
            received.group,
            {TOPIC: "*"},
            take,
            consume_from="first",
            timing=rockoon.Timing(commit_seconds=COMMIT_SECONDS),
        ),
        cluster.producer() as producer,
    ):
        await arrived.wait()
        arrived.clear()
        before = await first_commit(cluster, received.group)
        leader = (await described(cluster, lambda log: log.confirmed, OFFSET)).leader
        assert leader is not None
        local.kill(leader.name)
        console.print(f"{leader.name}, which led the offset service: killed with SIGKILL")
        senders = Senders(more)
        await senders.run(producer)
        wanted |= senders.acknowledged
        # What came while they were being sent found that nothing else was wanted.
        arrived.clear()
        if not received.missing(wanted):
            arrived.set()
        await arrived.wait()
    next_one = (await described(cluster, lambda log: log.confirmed, OFFSET)).leader
    console.print(f"the group went on; {next_one.name if next_one else 'nobody'} leads")
    queues = (await cluster.admin.describe_topic(TOPIC)).queues
    end = sum(each.state.max_offset for each in queues if each.state is not None)
    return before, await committed(cluster, received.group), end, wanted


async def first_commit(cluster: rockoon.Cluster, group: str) -> int:
    """How much a group has committed, once that is something."""
    while True:
        if found := await committed(cluster, group):
            return found
        await asyncio.sleep(LOOK_SECONDS)


async def committed(cluster: rockoon.Cluster, group: str) -> int:
    """Messages of the topic that a group has committed."""
    return sum(each.offset for each in await cluster.admin.progress(group, TOPIC))


async def described(
    cluster: rockoon.Cluster, holds: Callable[[LogDescription], bool], name: str = LOG
) -> LogDescription:
    """A log, once it is as wanted."""
    while True:
        log = await cluster.admin.logs.describe(name)
        if holds(log):
            return log
        await asyncio.sleep(LOOK_SECONDS)
