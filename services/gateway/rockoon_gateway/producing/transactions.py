"""Transactions: half messages of the gateway's clients, their ends, and checks.

A topic's half messages belong to one producer group, which has the topic's name. This gateway
serves the brokers' checks for the topics that its clients send to: each check is sent to one of the
topic's producers by Telemetry, in rotation, because only some can answer it. The answer is a
separate call (EndTransaction), so the gateway replies UNKNOWN to the broker without waiting.
"""

import itertools
import logging
from collections import OrderedDict

from rockoon import Cluster
from rockoon.errors import RockoonError
from rockoon.message import Message
from rockoon.transactions.forwarding import ForwardedTransactions
from rockoon.transactions.transaction import HalfPosition, Resolution
from rockoon_format.names import GROUP_BYTES_MAX, topic_resource
from rockoon_gateway.clients.presence import GatewayClient, Presence
from rockoon_gateway.codes import OK
from rockoon_gateway.delivered import TransactionPosition, to_wire, transaction_id
from rockoon_gateway.producing.message_checks import AcceptedMessage, producer_group
from rockoon_gateway.routes import TopicRoutes, accepted_types
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import MessageType, Resource
from rockoon_proto.apache.rocketmq.v2.service_pb2 import (
    RecoverOrphanedTransactionCommand,
    TelemetryCommand,
)

log = logging.getLogger(__name__)

# For a half message that is identified by its physical offset.
_ANY_QUEUE_OFFSET = -1


class GatewayTransactions:
    """Serves producers' transactions: stores half messages, ends transactions, and forwards
    brokers' checks to producers.

    Args:
        topics: their accepted message types.
        timeout_seconds: how long to try to store a half message, or its end.
        checked_max: maximum of topics with checks here; each needs a stream to every broker.

    Attributes:
        checked_max: see the argument; may change. The checks of excess topics end then.
    """

    def __init__(
        self,
        cluster: Cluster,
        topics: TopicRoutes,
        presence: Presence,
        timeout_seconds: float,
        checked_max: int,
    ) -> None:
        self._cluster = cluster
        self._topics = topics
        self._presence = presence
        self._timeout_seconds = timeout_seconds
        self._checked_max = checked_max
        # By producer group, the last used one at the end.
        self._groups: OrderedDict[str, ForwardedTransactions] = OrderedDict()
        self._turns = itertools.count()
        self.checks = 0
        """Number of checks that were sent to producers."""
        presence.on_change.append(self._offer)

    @property
    def checked_max(self) -> int:
        return self._checked_max

    @checked_max.setter
    def checked_max(self, count: int) -> None:
        self._checked_max = count
        self._end_excess_checks()

    async def begin(self, topic: str, message: AcceptedMessage) -> str:
        """Store a half message; return the transaction's id. Raises RockoonError if not stored."""
        group = self._group(producer_group(topic))
        half = await group.forward(
            topic, message.body, message.properties, message.message_group or None
        )
        return transaction_id(half.broker, half.physical_offset)

    async def end(
        self, topic: str, position: TransactionPosition, resolution: Resolution, *, from_check: bool
    ) -> None:
        """Commit or roll back a transaction.

        Raises:
            TransactionNotFound, TransactionEnded: it does not exist, or was ended differently.
            RockoonError: no broker has confirmed it.
        """
        group = self._group(producer_group(topic))
        half = HalfPosition(position.broker, _ANY_QUEUE_OFFSET, position.physical_offset)
        await group.end(topic, half, resolution, from_check=from_check)

    def _group(self, name: str) -> ForwardedTransactions:
        group = self._groups.get(name)
        if group is not None:
            self._groups.move_to_end(name)
            return group
        group = self._groups[name] = ForwardedTransactions(
            self._cluster,
            name,
            check=self._check,
            delivery_timeout_seconds=self._timeout_seconds,
        )
        self._end_excess_checks()
        return group

    def _end_excess_checks(self) -> None:
        """End the checks of the topics that were used longest ago, without waiting for brokers."""
        while len(self._groups) > self._checked_max:
            idle, longest = self._groups.popitem(last=False)
            log.warning(
                "transactions of topic %s are not checked here any more: there are more topics than"
                " %d (checked_topics_max)",
                idle,
                self._checked_max,
            )
            self._cluster.tasks.create_task(
                longest.close(), name=f"end of transaction checks of {idle}"
            )

    def _offer(self, client: GatewayClient) -> None:
        """Receive brokers' checks for a producer's topics from now on, and forward them."""
        for topic in client.topics if client.outboxes else ():
            is_short = len(topic.encode()) <= GROUP_BYTES_MAX
            if is_short and producer_group(topic) not in self._groups:
                self._cluster.tasks.create_task(
                    self._offer_topic(topic), name=f"transaction checks of {topic}"
                )

    async def _offer_topic(self, topic: str) -> None:
        try:
            route = await self._topics.route(topic)
            if MessageType.TRANSACTION in accepted_types(route):
                self._group(producer_group(topic))
        except RockoonError as failure:
            # Retried with the producer's next settings, or its first half message.
            log.info("transactions of topic %s are not checked yet: %s", topic, failure)

    async def _check(self, message: Message) -> Resolution:
        producers = self._presence.producers(message.topic)
        command = RecoverOrphanedTransactionCommand(
            message=to_wire(message, Resource(name=message.topic)),
            transaction_id=transaction_id(message.queue.broker, message.physical_offset),
        )
        if producers:
            first = next(self._turns) % len(producers)
            for producer in (*producers[first:], *producers[:first]):
                command.message.topic.CopyFrom(producer.named(message.topic))
                telemetry = TelemetryCommand(
                    status=OK, recover_orphaned_transaction_command=command
                )
                outbox = producer.outboxes[-1]
                if outbox.allows("write", topic_resource(message.topic)) and outbox.put(telemetry):
                    self.checks += 1
                    break
        return Resolution.UNKNOWN
