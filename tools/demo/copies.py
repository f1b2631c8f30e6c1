"""Chapter 5: three copies. The leader of a broker's log is killed and its disk wiped while messages
are sent; the leader of the offset service is killed while a group reads.
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
# Records that a group reads while the offset service elects a new leader.
MORE_RECORDS = 500
# Messages in flight; each sender awaits one.
SENDERS = 16
LOOK_SECONDS = 0.05
COMMIT_SECONDS = 0.2


class Senders:
    """Send records concurrently, and record the time of each send."""

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
    """Wipe the disk of a log's leader in a cluster with three copies; raises TimeoutError."""
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
    """Kill the leader of the offset service while a group reads.

    Returns:
        Messages that the group had committed before the kill, and at the end; messages in the
        topic; ids of all sent messages.
    """
    wanted, arrived = set(sent), asyncio.Event()

    # In a thread, a comparison with the old `wanted` could set `arrived` after it is cleared.
    async def on_message(message: Message) -> None:
        received.add("only", message)
        if not received.missing(wanted):
            arrived.set()

    async with (
        cluster.push_consumer(
            received.group,
            {TOPIC: "*"},
            on_message,
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
        # A message handled before the line above was compared with the old `wanted`.
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
    """The number of committed messages of a group, once it is not zero."""
    while True:
        if found := await committed(cluster, group):
            return found
        await asyncio.sleep(LOOK_SECONDS)


async def committed(cluster: rockoon.Cluster, group: str) -> int:
    """Number of messages of the topic that a group has committed."""
    return sum(each.offset for each in await cluster.admin.progress(group, TOPIC))


async def described(
    cluster: rockoon.Cluster, holds: Callable[[LogDescription], bool], name: str = LOG
) -> LogDescription:
    """The description of a log, once `holds` is true for it."""
    while True:
        log = await cluster.admin.logs.describe(name)
        if holds(log):
            return log
        await asyncio.sleep(LOOK_SECONDS)
