"""All cells at once, in one cluster of real processes."""

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

import rockoon
from rockoon.local import LocalCluster
from rockoon.producer.producer import Producer
from tools.expansion.cell import NEW_BROKER, OLD_BROKER, Cell, GroupIs, Growth, Policy, Rule

# RocketMQ 4.x takes a queue for new while its first message lies within 40 % of memory of the log's
# end. With memory "this large", a few hundred kilobytes bring a message "to disk".
BROKER_MEMORY = "256KiB"
FLOOD_TOPIC = "flood"
FLOOD_MESSAGES, FLOOD_BODY_BYTES = 400, 1024
CELLS_AT_ONCE = 16


def all_cells() -> list[Cell]:
    """Every combination, in the order of the table."""
    combinations = itertools.product(Rule, GroupIs, Growth, Policy)
    return [
        Cell(number, group_is, growth, policy, rule)
        for number, (rule, group_is, growth, policy) in enumerate(combinations)
    ]


async def run(cells: Sequence[Cell]) -> None:
    """Take cells through the growth of their topics; they then know what came of it.

    Raises:
        GaveUp: a group did not read on in time.
    """
    settings = {"broker": {"memory_bytes": BROKER_MEMORY, "flush": "async"}}
    async with (
        LocalCluster(brokers=1, settings=settings) as local,
        rockoon.connect(local.nameservers) as cluster,
        cluster.producer() as producer,
    ):
        await each(cells, lambda cell: cell.prepare(cluster, producer))
        await asyncio.to_thread(local.add_broker, NEW_BROKER)
        await each(cells, lambda cell: cell.grow(cluster, producer))
        # Those that run hear of the new queues while their first messages are in memory; those
        # that come back later do so when these have long gone to disk.
        running = [cell for cell in cells if cell.group_is is GroupIs.RUNNING]
        await each(running, lambda cell: cell.come_back(cluster))
        await flood(cluster, producer)
        others = [cell for cell in cells if cell.group_is is not GroupIs.RUNNING]
        await each(others, lambda cell: cell.come_back(cluster))
        await each(cells, lambda cell: cell.finish(producer))


async def flood(cluster: rockoon.Cluster, producer: Producer) -> None:
    """Append so much to both brokers that everything before counts as gone to disk."""
    placements = {OLD_BROKER: 1, NEW_BROKER: 1}
    made = await cluster.admin.create_topic(FLOOD_TOPIC, placements=placements)
    route = await cluster.route(FLOOD_TOPIC, min_revision=made.modified_revision)
    body = b"x" * FLOOD_BODY_BYTES
    for queue in route.queues:
        await producer.send_many(FLOOD_TOPIC, [body] * FLOOD_MESSAGES, queue=queue)


async def each(cells: Iterable[Cell], step: Callable[[Cell], Coroutine[Any, Any, None]]) -> None:
    """Do a step of every cell, some cells at once."""
    turns = asyncio.Semaphore(CELLS_AT_ONCE)

    async def one(cell: Cell) -> None:
        async with turns:
            await step(cell)

    async with asyncio.TaskGroup() as tasks:
        for cell in cells:
            tasks.create_task(one(cell), name=f"cell {cell.number}")


def failures(cells: Iterable[Cell]) -> list[str]:
    """What must not be: a cell of rule EXACT that skipped or replayed anything."""
    found = []
    for cell in cells:
        if cell.rule is Rule.EXACT:
            for name, queues in (("new", cell.new_queues), ("old", cell.old_queues)):
                difference = cell.difference(queues)
                if difference != (0, 0):
                    found.append(
                        f"{cell.describe()}: {difference.skipped} skipped and "
                        f"{difference.replayed} replayed on {name} queues"
                    )
    return found
