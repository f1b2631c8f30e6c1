"""Lists open transactions of all brokers, for administration."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rockoon.errors import RockoonError
from rockoon_proto.v1.broker_pb2 import ListTransactionsReply, ListTransactionsRequest
from rockoon_proto.v1.nameserver_pb2 import BROKER

if TYPE_CHECKING:
    from rockoon.net.connection import Connection

LISTED_MAX = 1024
CALL_SECONDS_MAX = 5.0


@dataclass(frozen=True, slots=True)
class BrokerTransactions:
    """Open transactions of one broker, or the error if it did not answer."""

    broker: str
    reply: ListTransactionsReply | None
    error: RockoonError | None


async def pending_transactions(
    cluster: "Connection", count_max: int = 100
) -> Sequence[BrokerTransactions]:
    """Return the open transactions of every live broker; all are asked in parallel.

    Args:
        count_max: half messages per broker, oldest first; 1 to 1024.
    """
    brokers = [node.name for node in cluster.routes.nodes if node.kind == BROKER]
    async with asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(_ask(cluster, broker, count_max)) for broker in brokers]
    return [task.result() for task in asked]


async def _ask(cluster: "Connection", broker: str, count_max: int) -> BrokerTransactions:
    try:
        reply: ListTransactionsReply = await cluster.call_broker(
            broker,
            "ListTransactions",
            ListTransactionsRequest(max_messages=count_max),
            CALL_SECONDS_MAX,
        )
    except RockoonError as error:
        return BrokerTransactions(broker, None, error)
    return BrokerTransactions(broker, reply, None)
