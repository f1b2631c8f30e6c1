"""Offsets, times and page-cache residency of queues, as reported by their brokers."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rockoon.admin.descriptions import QueueEnds
from rockoon.errors import BrokerUnavailable, RockoonError, from_wire
from rockoon.net.routes import TopicRoute
from rockoon_core.message_queue import MessageQueue, in_calls
from rockoon_proto.v1.broker_pb2 import BrokerQueue, QueueStatusRequest

if TYPE_CHECKING:
    from rockoon.net.connection import Connection


async def ask_queue_ends(
    cluster: "Connection", *routes: TopicRoute, with_residency: bool = False
) -> list[QueueEnds]:
    """Return the state of the queues of some topics; all brokers are asked in parallel. If a broker
    does not answer, its queues have the error. A broker answers once it knows the routes, or after
    a timeout; see `route_revision`.

    Args:
        cluster: an open connection.
        routes: routes of the topics.
        with_residency: also ask whether each queue's oldest message is in its broker's memory.
    """
    by_broker: dict[str, list[tuple[MessageQueue, TopicRoute]]] = {}
    for route in routes:
        for queue in route.queues:
            by_broker.setdefault(queue.broker, []).append((queue, route))
    async with asyncio.TaskGroup() as tasks:
        asked = [
            tasks.create_task(
                _ends_at(cluster, broker, queues, with_residency), name=f"queues of {broker}"
            )
            for broker, queues in sorted(by_broker.items())
        ]
    return [ends for task in asked for ends in task.result()]


async def _ends_at(
    cluster: "Connection",
    broker: str,
    queues: Sequence[tuple[MessageQueue, TopicRoute]],
    with_residency: bool,
) -> list[QueueEnds]:
    found: list[QueueEnds] = []
    for part in in_calls(queues):
        request = QueueStatusRequest(
            queues=[BrokerQueue(topic=each.topic, queue_id=each.queue_id) for each, _ in part],
            route_revision=max(route.modified_revision for _, route in part),
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
            found += [
                QueueEnds(each, route.create_revisions[each], None, error) for each, route in part
            ]
            continue
        found += [
            QueueEnds(
                queue,
                route.create_revisions[queue],
                None if state.HasField("error") else state,
                from_wire(state.error) if state.HasField("error") else None,
                reply.as_of_ms,
                reply.route_revision,
            )
            for (queue, route), state in zip(part, reply.queues, strict=True)
        ]
    return found
