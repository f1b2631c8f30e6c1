"""Live brokers, and brokers that have queues but are away."""

from typing import TYPE_CHECKING

from rockoon.admin.reads import list_topics
from rockoon.errors import BrokerUnavailable
from rockoon_proto.v1.nameserver_pb2 import BROKER

if TYPE_CHECKING:
    from rockoon.net.connection import Connection


def live_brokers(cluster: "Connection") -> list[str]:
    """Return the names of the brokers in the routes, sorted."""
    return sorted(node.name for node in cluster.routes.nodes if node.kind == BROKER)


async def missing_brokers(cluster: "Connection") -> dict[str, BrokerUnavailable]:
    """Return the brokers that have queues but are not in the routes, each with its error.

    While a broker is away, a search cannot conclude that a message does not exist.

    Raises:
        RockoonError: no nameserver answers.
    """
    routes = await list_topics(cluster, include_system=True)
    with_queues = {queue.broker for route in routes for queue in route.queues}
    missing = sorted(with_queues.difference(live_brokers(cluster)))
    return {broker: BrokerUnavailable(broker=broker) for broker in missing}
