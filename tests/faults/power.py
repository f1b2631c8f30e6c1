"""Power cuts: the state of the disk at a random moment is derived from the recorded operations of
broker and offset service, and the service starts on it."""

import asyncio
import copy
import random
from bisect import bisect_left
from pathlib import Path

from faults.cluster import BROKER, OFFSET, FaultyCluster
from faults.disk_model import Deed, DiskModel
from faults.scenario import Outcome, Task
from faults.workload import Books, Committer, Sender, read_topic

import rockoon

TOPIC = "cut"
QUEUES = 3
ROUNDS = 2
CUTS = 8
SECONDS = 3.0
GROUPS = ("one", "two", "three", "four")


def cut_points(
    deeds: list[Deed], promised_ns: list[int], count: int, chance: random.Random
) -> list[int]:
    """Return numbers of records before which the power is lost: half of them anywhere, half right
    after an acknowledgement."""
    times = [deed.time_ns for deed in deeds]
    points = []
    for number in range(count):
        if number % 2 and promised_ns:
            points.append(min(bisect_left(times, chance.choice(promised_ns)), len(deeds) - 1))
        else:
            points.append(chance.randrange(len(deeds)))
    return points


def cut_at(
    model: DiskModel, deeds: list[Deed], point: int, target: Path, chance: random.Random | None
) -> int:
    """Write the state of a store after a power cut before a record (or after the last); return its
    time."""
    copied = copy.deepcopy(model)
    for deed in deeds[:point]:
        copied.apply(deed)
    copied.cut(target, chance)
    return deeds[min(point, len(deeds) - 1)].time_ns


async def work(
    cluster: rockoon.Cluster, books: Books, committer: Committer, number: int, chance: random.Random
) -> None:
    """Send and commit for some seconds; half of the streams belong to an idempotent producer."""
    ordinary = Sender(cluster, books, 2 * number, chance)
    idempotent = Sender(cluster, books, 2 * number + 1, chance)
    async with (
        cluster.producer() as plain,
        cluster.producer(idempotent=True) as numbered,
        asyncio.TaskGroup() as tasks,
    ):
        tasks.create_task(ordinary.run(plain), name="ordinary")
        tasks.create_task(idempotent.run(numbered), name="idempotent")
        tasks.create_task(committer.run(), name="committer")
        await asyncio.sleep(SECONDS * chance.uniform(0.7, 1.3))
        for each in (ordinary, idempotent, committer):
            each.end()


async def broker_power_cuts(task: Task) -> Outcome:
    """Cut the power of a broker's store."""
    outcome, chance = Outcome(), task.chance("broker")
    local = FaultyCluster(task, watched=[BROKER], recorded=[BROKER])
    books = Books(TOPIC)
    model = local.begin_record(BROKER)
    async with local, rockoon.connect(local.nameservers) as cluster:
        await cluster.admin.create_topic(TOPIC, queues_per_broker=QUEUES)
        queues = (await cluster.route(TOPIC)).queues
        for number in range(ROUNDS):
            committer = Committer(cluster, books, GROUPS[:1], queues)
            await work(cluster, books, committer, number, chance)
            await local.down(BROKER)
            deeds = local.take_record(BROKER)
            promised = [each.time_ns for each in books.acknowledged]
            promised = [each for each in promised if each > deeds[0].time_ns]
            points = cut_points(deeds, promised, task.count(CUTS), chance)
            for index, point in enumerate(points):
                lenient = random.Random(chance.random()) if index % 2 else None
                where = f"round {number}, {'lenient' if lenient else 'strict'} cut at {point}"
                target = local.aside / f"cut-{number}-{index}"
                at_ns = cut_at(model, deeds, point, target, lenient)
                local.put_store(BROKER, target)
                outcome.runs += 1
                outcome.injected += 1
                last = index == len(points) - 1
                if last:
                    model = local.begin_record(BROKER)
                refusal = await local.up(BROKER)
                if refusal:
                    outcome.breaks(where, [f"it does not start: {refusal}"])
                    return outcome
                left = books.until(at_ns)
                outcome.breaks(where, left.judge(await read_topic(cluster, TOPIC)))
                if last:
                    # The next round continues with this store.
                    outcome.acknowledged += len(books.acknowledged)
                    books.acknowledged[:] = left.acknowledged
                else:
                    await local.down(BROKER)
        outcome.breaks("at the end", local.unexpected_ends())
    local.close_controls()
    return outcome


async def offset_power_cuts(task: Task) -> Outcome:
    """Cut the power of the offset service's journal and snapshots."""
    outcome, chance = Outcome(), task.chance("offset")
    local = FaultyCluster(task, watched=[OFFSET], recorded=[OFFSET])
    books = Books(TOPIC)
    model = local.begin_record(OFFSET)
    async with local, rockoon.connect(local.nameservers) as cluster:
        await cluster.admin.create_topic(TOPIC, queues_per_broker=QUEUES)
        queues = (await cluster.route(TOPIC)).queues
        for group in GROUPS:
            await cluster.admin.create_group(group)
        committer = Committer(cluster, books, GROUPS, queues)
        await work(cluster, books, committer, 0, chance)
        await local.down(OFFSET)
        deeds = local.take_record(OFFSET)
        outcome.acknowledged = len(committer.acknowledged)
        promised = [each.time_ns for each in committer.acknowledged]
        for index, point in enumerate(cut_points(deeds, promised, task.count(2 * CUTS), chance)):
            lenient = random.Random(chance.random()) if index % 2 else None
            where = f"{'lenient' if lenient else 'strict'} cut at {point}"
            target = local.aside / f"cut-{index}"
            at_ns = cut_at(model, deeds, point, target, lenient)
            local.put_store(OFFSET, target)
            outcome.runs += 1
            outcome.injected += 1
            refusal = await local.up(OFFSET)
            if refusal:
                outcome.breaks(where, [f"it does not start: {refusal}"])
                continue
            outcome.breaks(where, await committer.judge(at_ns))
            await local.down(OFFSET)
        outcome.breaks("at the end", local.unexpected_ends())
    local.close_controls()
    return outcome
