"""Failing disks: a failed sync, a disk without space, no free descriptors.

A failed sync leaves its pages in memory, readable and clean: the next process reads them as if they
were stored, and no sync writes them to the disk any more (`disk_model.py`). So each run continues
with the next process, and then cuts the power.
"""

import asyncio
import random
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path

from faults.cluster import BROKER, OFFSET, FaultyCluster
from faults.power import GROUPS, QUEUES, TOPIC, cut_at
from faults.scenario import Outcome, Task
from faults.workload import Books, Committer, Sender, read_topic

import rockoon
from load.checker import Allowed
from rockoon.errors import RockoonError
from rockoon.producer.producer import Producer
from rockoon_runtime.process import ExitStatus

RUNS = 4
# Files whose sync fails, and the highest number of syncs before it.
BROKER_FILES = (("/commitlog/", 200), ("/commitlog/", 3), ("/consumequeue/", 6), ("", 60))
OFFSET_FILES = ((".journal", 150), ("", 60), (".snapshot", 1))
# Some batches have several pages.
BODY_BYTES = (40, 300, 4000, 20_000)
AWAIT_FAULT_SECONDS = 20.0
AFTERWARDS_SECONDS = 1.5
# An ordinary producer may store messages twice if it retries after a failure.
RESENT = Allowed(1 << 30, 1 << 30, "batches without an answer are sent again")


@asynccontextmanager
async def forgiving(producer: Producer) -> AsyncIterator[Producer]:
    """A producer whose messages may fail: without an acknowledgement a message counts as not
    sent."""
    try:
        yield producer
    finally:
        with suppress(RockoonError):
            await producer.close()


@asynccontextmanager
async def working(
    cluster: rockoon.Cluster,
    books: Books,
    committer: Committer,
    number: int,
    chance: random.Random,
) -> AsyncIterator[None]:
    """Send and commit until the block ends."""
    senders = [
        Sender(cluster, books, 2 * number + each, chance, body_bytes=BODY_BYTES)
        for each in range(2)
    ]
    async with (
        forgiving(cluster.producer(delivery_timeout_seconds=60)) as plain,
        forgiving(cluster.producer(idempotent=True, delivery_timeout_seconds=60)) as numbered,
        asyncio.TaskGroup() as tasks,
    ):
        tasks.create_task(senders[0].run(plain), name="ordinary")
        tasks.create_task(senders[1].run(numbered), name="idempotent")
        tasks.create_task(committer.run(), name="committer")
        try:
            yield
        finally:
            for sender in senders:
                sender.end()
            committer.end()


async def failed_syncs(task: Task, node: str) -> Outcome:
    """Fail a sync, let the service end, start it, continue, cut the power, and check."""
    outcome, chance = Outcome(), task.chance(node)
    local = FaultyCluster(task, watched=[node], recorded=[node])
    control, books = local.controls[node], Books(TOPIC)
    model = local.begin_record(node)
    progress: list[Committer] = []
    async with local, rockoon.connect(local.nameservers) as cluster:
        await cluster.admin.create_topic(TOPIC, queues_per_broker=QUEUES)
        queues = (await cluster.route(TOPIC)).queues
        for run in range(task.count(RUNS)):
            choices = BROKER_FILES if node == BROKER else OFFSET_FILES
            part, latest = choices[run % len(choices)]
            after = chance.randrange(latest)
            where = f"run {run}, sync {after} of {part or 'any file'}"
            # New groups each time: progress that a cut undid must not look like decreasing
            # progress. Many at once: their common commit has more than a page.
            times = 1 if node == BROKER else 6
            groups = [f"{group}-{run}-{each}" for group in GROUPS for each in range(times)]
            for group in groups:
                await cluster.admin.create_group(group)
            committer = Committer(cluster, books, groups, queues)
            progress.append(committer)
            async with working(cluster, books, committer, run, chance):
                control.fail_sync(part, after)
                ended = await local.ended_by_itself(AWAIT_FAULT_SECONDS)
                outcome.injected += control.injected > 0
                if ended is None and control.injected:
                    outcome.breaks(where, [f"{node} goes on after a sync that failed"])
                if ended is not None and ended.status != ExitStatus.DISK_FAILED:
                    outcome.breaks(where, [f"{node} ended with {ended.status}"])
                control.calm()
                if ended is not None:
                    refusal = await local.up(node)
                    if refusal:
                        outcome.breaks(where, [f"it does not start: {refusal}"])
                        return outcome
                await asyncio.sleep(AFTERWARDS_SECONDS)
            await local.down(node)
            deeds = local.take_record(node)
            target = local.aside / f"cut-{run}"
            cut_at(model, deeds, len(deeds), target, None)
            local.put_store(node, target)
            model = local.begin_record(node)
            outcome.runs += 1
            refusal = await local.up(node)
            if refusal:
                outcome.breaks(where, [f"it does not start after the cut: {refusal}"])
                return outcome
            outcome.acknowledged = len(books.acknowledged)
            outcome.breaks(where, books.judge(await read_topic(cluster, TOPIC), RESENT))
            for each in progress:
                outcome.breaks(where, await each.judge())
            if outcome.broken:
                break
    outcome.acknowledged += sum(len(each.acknowledged) for each in progress)
    local.close_controls()
    return outcome


async def broker_failed_syncs(task: Task) -> Outcome:
    """Fail syncs of the broker's files."""
    return await failed_syncs(task, BROKER)


async def offset_failed_syncs(task: Task) -> Outcome:
    """Fail syncs of the offset service's files."""
    return await failed_syncs(task, OFFSET)


async def scarce(task: Task, kind: str) -> Outcome:
    """No space on the disk, or no descriptors, for some time, for each service in turn."""
    outcome, chance = Outcome(), task.chance(kind)
    local = FaultyCluster(task, watched=[BROKER, OFFSET])
    books = Books(TOPIC)
    progress: list[Committer] = []
    async with local, rockoon.connect(local.nameservers) as cluster:
        await cluster.admin.create_topic(TOPIC, queues_per_broker=QUEUES)
        queues = (await cluster.route(TOPIC)).queues
        for run in range(task.count(1)):
            for node in (BROKER, OFFSET):
                where = f"run {run}, {node}"
                committer = Committer(cluster, books, [f"{node}-{run}"], queues)
                await cluster.admin.create_group(f"{node}-{run}")
                progress.append(committer)
                number = 2 * run + (node == OFFSET)
                async with working(cluster, books, committer, number, chance):
                    await asyncio.sleep(AFTERWARDS_SECONDS)
                    before = local.controls[node].injected
                    give_back = take(local, node, kind)
                    ended = await local.ended_by_itself(2 * AFTERWARDS_SECONDS)
                    if kind == "descriptors":
                        await ask_much(cluster)
                    give_back()
                    outcome.runs += 1
                    outcome.injected += max(1, local.controls[node].injected - before)
                    if ended is not None:
                        said = " ".join(str(ended).split())[-400:]
                        outcome.breaks(where, [f"it ended for want of {kind}: {said}"])
                        refusal = await local.up(node)
                        if refusal:
                            outcome.breaks(where, [f"it does not start again: {refusal}"])
                            return outcome
                    outcome.breaks(where, await goes_on(books, committer))
        outcome.breaks("at the end", local.unexpected_ends())
        outcome.breaks("at the end", books.judge(await read_topic(cluster, TOPIC), RESENT))
        for each in progress:
            outcome.breaks("at the end", await each.judge())
        # And the result of a start on it.
        for node in (BROKER, OFFSET):
            await local.down(node)
            outcome.breaks(node, [text for text in [await local.up(node)] if text])
        outcome.breaks("after a start", books.judge(await read_topic(cluster, TOPIC), RESENT))
        for each in progress:
            outcome.breaks("after a start", await each.judge())
    outcome.acknowledged = len(books.acknowledged) + sum(len(e.acknowledged) for e in progress)
    local.close_controls()
    return outcome


def take(local: FaultyCluster, node: str, kind: str):  # type: ignore[no-untyped-def]
    """Take space or descriptors from a process; return a function that restores them."""
    if kind == "room":
        local.controls[node].fill_disk(True)
        return lambda: local.controls[node].fill_disk(False)
    pid = local.node(node).pid
    assert pid is not None
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    used = {int(each.name) for each in Path(f"/proc/{pid}/fd").iterdir()}
    # Files of a store have far higher numbers: the limit is the first free number below them.
    free = next(number for number in count() if number not in used)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (free, hard))

    def give_back() -> None:
        with suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))

    return give_back


async def ask_much(cluster: rockoon.Cluster) -> None:
    """New topics need new files, new connections new descriptors."""
    for number in range(3):
        try:
            async with asyncio.timeout(5), rockoon.connect(cluster.nameservers) as another:
                await another.admin.create_topic(f"more-{number}", if_absent=True)
                async with another.producer(delivery_timeout_seconds=3) as producer:
                    await producer.send(f"more-{number}", b"x")
        except (RockoonError, TimeoutError):
            continue


async def goes_on(books: Books, committer: Committer) -> list[str]:
    """Return whether messages and progress are acknowledged again."""
    seen = len(books.acknowledged), len(committer.acknowledged)
    try:
        async with asyncio.timeout(AWAIT_FAULT_SECONDS):
            while len(books.acknowledged) <= seen[0] or len(committer.acknowledged) <= seen[1]:
                await asyncio.sleep(AFTERWARDS_SECONDS / 50)
    except TimeoutError:
        stands = "messages" if len(books.acknowledged) <= seen[0] else "progress"
        return [f"no {stands} acknowledged any more"]
    return []


async def full_disks(task: Task) -> Outcome:
    """ENOSPC for all writes that need new blocks."""
    return await scarce(task, "room")


async def no_descriptors(task: Task) -> Outcome:
    """EMFILE for all calls that open or accept."""
    return await scarce(task, "descriptors")
