"""Forwarding of transactions: half messages of other clients, and their ends.

For gateways: a client of the gateway ends its transactions and answers its checks, so no open
transactions are kept here.
"""

from contextlib import nullcontext
from typing import TYPE_CHECKING

from rockoon.net.addresses import born_host
from rockoon.producer.forwarded_batches import ForwardingEncoder
from rockoon.producer.outgoing import BatchEncoder, check_extras
from rockoon.transactions.producer import TransactionalProducer
from rockoon.transactions.transaction import Check, HalfPosition, Resolution
from rockoon_format.properties import (
    PROPERTIES_BYTES_MAX,
    TRACEPARENT,
    TRACEPARENT_MARK,
    decode,
    encode,
)
from rockoon_format.record import PROPERTY_CRC_BYTES

if TYPE_CHECKING:
    from rockoon.net.connection import Connection


class ForwardedTransactions(TransactionalProducer):
    """A producer group whose members are clients of a gateway.

    Args:
        check: as in `TransactionalProducer`; called for every half message of the group.
        delivery_timeout_seconds: timeout of storing and ending a transaction, with retries.
    """

    def __init__(
        self,
        cluster: "Connection",
        group: str,
        *,
        check: Check,
        delivery_timeout_seconds: float,
    ) -> None:
        super().__init__(
            cluster, group, check=check, delivery_timeout_seconds=delivery_timeout_seconds
        )

    async def forward(
        self, topic: str, body: bytes, properties: bytes, ordering_key: str | None = None
    ) -> HalfPosition:
        """Store a half message; return its position.

        Args:
            topic, body, ordering_key: as in `TransactionalProducer.begin`.
            properties: all encoded properties, including TRAN_MSG, PGROUP and UNIQ_KEY.

        Raises:
            RockoonError: as `begin`.
        """
        check_extras((b"", properties), PROPERTY_CRC_BYTES)
        hooks = self._hooks
        with nullcontext() if hooks is None else hooks.on_begin(topic, decode(properties)) as half:
            if half is not None:
                properties = _with_traceparent(properties, half.properties[TRACEPARENT])
            extras = (b"", properties)
            transaction = await self._store_half(topic, body, extras, None, ordering_key)
        # This producer does not end the transaction: checks go to the gateway's clients.
        self._open.pop(transaction.message_id, None)
        return transaction.half

    async def end(
        self, topic: str, half: HalfPosition, resolution: Resolution, *, from_check: bool
    ) -> None:
        """Send the end of a transaction to its broker.

        Args:
            half: position of its half message; queue offset -1 means unknown.
            resolution: COMMIT or ROLLBACK; UNKNOWN only with `from_check`.
            from_check: whether this answers a check.

        Raises:
            TransactionEnded: it has ended in another way.
            TransactionNotFound: the group has and had no half message there.
            RockoonError: no broker has confirmed it.
        """
        hooks, name = self._hooks, resolution.name.lower()
        with nullcontext() if hooks is None else hooks.on_end("", topic, name):
            await self._send_end(half, resolution, from_check=from_check)

    async def _ready_encoder(self) -> BatchEncoder:
        if self._encoder is None:
            host = await born_host(self._cluster.nameservers[0])
            self._encoder = ForwardingEncoder(host, self._instance_hash, self._clock)
        return self._encoder


def _with_traceparent(properties: bytes, traceparent: str) -> bytes:
    """Return properties with a trace context, if they have none and it fits."""
    marked = properties + encode({TRACEPARENT: traceparent})
    fits = len(marked) + PROPERTY_CRC_BYTES <= PROPERTIES_BYTES_MAX
    return marked if fits and TRACEPARENT_MARK not in properties else properties
