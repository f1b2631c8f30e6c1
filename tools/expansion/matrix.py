"""All cells concurrently, in one cluster of real processes."""

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

import rockoon
from rockoon.local import LocalCluster
from rockoon.producer.producer import Producer
from tools.expansion.cell import NEW_BROKER, OLD_BROKER, Cell, GroupIs, Growth, NewQueueRule, Policy

# RocketMQ 4.x treats a queue as new while its first message is within 40 % of memory of the log's
# end. With a memory setting this small, a few hundred kilobytes move a message "to disk".
BROKER_MEMORY = "256KiB"
FLOOD_TOPIC = "flood"
FLOOD_MESSAGES, FLOOD_BODY_BYTES = 400, 1024
CELLS_AT_ONCE = 16


def all_cells() -> list[Cell]:
    """Every combination, in the order of the table."""
    combinations = itertools.product(NewQueueRule, GroupIs, Growth, Policy)
    return [
        Cell(number, group_is, growth, policy, rule)
        for number, (rule, group_is, growth, policy) in enumerate(combinations)
    ]


async def run(cells: Sequence[Cell]) -> None:
    """Run the cells; each then has its result.

    Raises:
        GrowthNotRead: a group did not read to the end in time.
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
        # Running groups learn of the new queues while their first messages are in memory. Groups
        # that return later do so after these messages have been moved to disk.
        running = [cell for cell in cells if cell.group_is is GroupIs.RUNNING]
        await each(running, lambda cell: cell.come_back(cluster))
        await flood(cluster, producer)
        others = [cell for cell in cells if cell.group_is is not GroupIs.RUNNING]
        await each(others, lambda cell: cell.come_back(cluster))
        await each(cells, lambda cell: cell.finish(producer))


async def flood(cluster: rockoon.Cluster, producer: Producer) -> None:
    """Append enough to both brokers to count all earlier messages as moved to disk."""
    placements = {OLD_BROKER: 1, NEW_BROKER: 1}
    made = await cluster.admin.create_topic(FLOOD_TOPIC, placements=placements)
    route = await cluster.route(FLOOD_TOPIC, min_revision=made.modified_revision)
    body = b"x" * FLOOD_BODY_BYTES
    for queue in route.queues:
        await producer.send_many(FLOOD_TOPIC, [body] * FLOOD_MESSAGES, queue=queue)


async def each(cells: Iterable[Cell], step: Callable[[Cell], Coroutine[Any, Any, None]]) -> None:
    """Run a step of all cells, CELLS_AT_ONCE at a time."""
    turns = asyncio.Semaphore(CELLS_AT_ONCE)

    async def one(cell: Cell) -> None:
        async with turns:
            await step(cell)

    async with asyncio.TaskGroup() as tasks:
        for cell in cells:
            tasks.create_task(one(cell), name=f"cell {cell.number}")


def failures(cells: Iterable[Cell]) -> list[str]:
    """One sentence for each cell of rule EXACT that skipped or replayed a message."""
    found = []
    for cell in cells:
        if cell.rule is NewQueueRule.EXACT:
            for name, queues in (("new", cell.new_queues), ("old", cell.old_queues)):
                difference = cell.difference(queues)
                if difference != (0, 0):
                    found.append(
                        f"{cell.describe()}: {difference.skipped} skipped and "
                        f"{difference.replayed} replayed on {name} queues"
                    )
    return found
