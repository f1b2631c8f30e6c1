"""A small partition fills with messages that a group has not read yet.

By default unread messages are kept and new ones refused, until the group has read. The partition is
a separate tmpfs, so the scenario needs root.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable

from faults.cluster import BROKER, FaultyCluster
from faults.power import QUEUES, TOPIC
from faults.scenario import Outcome, Task
from faults.syncs import AFTERWARDS_SECONDS, RESENT, forgiving
from faults.workload import Books, Sender, read_topic

import rockoon
from rockoon.message import Message
from support.tmpfs import tmpfs

TRIALS = 3
PARTITION_BYTES = 48 << 20
GROUP = "behind"
BODY_BYTES = (1000, 4000, 20_000)
# Without an acknowledgement: messages are refused.
REFUSED_SECONDS = 4.0
FILLED_SECONDS_MAX = 120.0
READ_SECONDS_MAX = 120.0
# The defaults of a broker; the other scenarios switch them off.
SETTINGS: dict[str, object] = {
    "disk_forced_percent": 85,
    "disk_full_percent": 90,
    "disk_check_interval_ms": 200,
}


async def unread_messages(task: Task) -> Outcome:
    """Fill the partition, check that all messages are there, read, and continue; repeatedly."""
    if os.geteuid():
        return Outcome(notes=["a partition of its own needs root"])
    outcome, chance = Outcome(), task.chance("pressure")
    local = FaultyCluster(task, settings={"broker": SETTINGS})
    books = Books(TOPIC)
    handled: set[tuple[int, int]] = set()

    async def handle(message: Message) -> None:
        handled.add((message.queue.queue_id, message.queue_offset))

    def everything_is_read() -> bool:
        return all((each.queue.queue_id, each.offset) in handled for each in books.acknowledged)

    with tmpfs(task.directory / "cluster" / BROKER, PARTITION_BYTES):
        async with local, rockoon.connect(local.nameservers) as cluster:
            await cluster.admin.create_topic(TOPIC, queues_per_broker=QUEUES)
            # A group counts as behind once its progress is stored: a start position is progress.
            async with consumer(cluster, handle) as first:
                if not await within(READ_SECONDS_MAX, lambda: len(first.starts) == QUEUES):
                    outcome.breaks("at the start", ["the group has no start position"])
            for number in range(task.count(TRIALS)):
                where = f"trial {number}"
                sender = Sender(cluster, books, 2 * number, chance, body_bytes=BODY_BYTES)
                outcome.breaks(where, await fill(cluster, books, sender))
                outcome.runs += 1
                outcome.injected += 1
                stored = await read_topic(cluster, TOPIC)
                # Messages read in an earlier trial may be deleted: the books do not ask for them.
                stored.troubles = [each for each in stored.troubles if "begins at" not in each]
                outcome.breaks(f"{where}, full", books.judge(stored, RESENT))
                async with consumer(cluster, handle):
                    if not await within(READ_SECONDS_MAX, everything_is_read):
                        outcome.breaks(where, ["acknowledged messages were never consumed"])
                outcome.breaks(where, local.unexpected_ends())
                outcome.acknowledged += len(books.acknowledged)
                if outcome.broken:
                    break
                books.acknowledged.clear()
    return outcome


def consumer(cluster: rockoon.Cluster, handle: Callable[[Message], Awaitable[None]]):  # type: ignore[no-untyped-def]
    return cluster.push_consumer(GROUP, {TOPIC: "*"}, handle, consume_from="first")


async def fill(cluster: rockoon.Cluster, books: Books, sender: Sender) -> list[str]:
    """Send until messages are refused, or twice the partition's bytes were acknowledged."""
    seen, moved_at, began = 0, time.monotonic(), time.monotonic()
    async with (
        forgiving(cluster.producer(delivery_timeout_seconds=2)) as producer,
        asyncio.TaskGroup() as tasks,
    ):
        sending = tasks.create_task(sender.run(producer), name="sender")
        while not sending.done():
            await asyncio.sleep(AFTERWARDS_SECONDS / 50)
            now = time.monotonic()
            if len(books.acknowledged) > seen:
                seen, moved_at = len(books.acknowledged), now
            is_full = seen and now - moved_at > REFUSED_SECONDS
            is_twice = seen * sum(BODY_BYTES) / len(BODY_BYTES) > 2 * PARTITION_BYTES
            if is_full or is_twice or now - began > FILLED_SECONDS_MAX:
                sender.end()
                break
    return [] if seen else ["no message is taken"]


async def within(seconds: float, holds: Callable[[], bool]) -> bool:
    try:
        async with asyncio.timeout(seconds):
            while not holds():
                await asyncio.sleep(AFTERWARDS_SECONDS / 20)
    except TimeoutError:
        return False
    return True
