"""Ends of a topic's queues as its brokers report them, with times and page-cache residency."""

import asyncio
from typing import TYPE_CHECKING

from rockoon.admin.descriptions import QueueEnds
from rockoon.errors import BrokerUnavailable, RockoonError
from rockoon.net.routes import TopicRoute
from rockoon_proto.v1.broker_pb2 import BrokerQueue, QueueStatusRequest

if TYPE_CHECKING:
    from rockoon.net.connection import Connection

QUEUES_PER_CALL_MAX = 4096


async def ask_queue_ends(
    cluster: "Connection", route: TopicRoute, *, with_residency: bool = False
) -> list[QueueEnds]:
    """Ask all brokers of a topic at once; what one does not say is an error beside its queues.

    Args:
        cluster: an open connection.
        route: the topic's.
        with_residency: also ask whether each queue's oldest message is in its broker's memory.
    """
    brokers = sorted({queue.broker for queue in route.queues})
    async with asyncio.TaskGroup() as tasks:
        asked = [
            tasks.create_task(
                _ends_at(cluster, broker, route, with_residency), name=f"queues of {broker}"
            )
            for broker in brokers
        ]
    return [ends for task in asked for ends in task.result()]


async def _ends_at(
    cluster: "Connection", broker: str, route: TopicRoute, with_residency: bool
) -> list[QueueEnds]:
    queues = [queue for queue in route.queues if queue.broker == broker]
    found: list[QueueEnds] = []
    for first in range(0, len(queues), QUEUES_PER_CALL_MAX):
        part = queues[first : first + QUEUES_PER_CALL_MAX]
        request = QueueStatusRequest(
            queues=[BrokerQueue(topic=each.topic, queue_id=each.queue_id) for each in part],
            route_revision=route.modified_revision,
            with_residency=with_residency,
        )
        try:
            reply = await cluster.call(
                cluster.broker(broker).QueueStatus,
                request,
                unavailable=BrokerUnavailable,
                broker=broker,
            )
        except RockoonError as error:
            found += [QueueEnds(each, route.create_revisions[each], None, error) for each in part]
            continue
        found += [
            QueueEnds(queue, route.create_revisions[queue], state, None)
            for queue, state in zip(part, reply.queues, strict=True)
        ]
    return found
