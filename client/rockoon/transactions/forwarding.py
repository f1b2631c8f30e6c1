"""Forwarding of transactions: half messages that somebody else has made, and their ends.

For gateways: who ends a transaction, and who is asked about it, is a client of the gateway, so
nothing is kept here of what is open.
"""

from typing import TYPE_CHECKING

from rockoon.net.host import born_host
from rockoon.producer.forwarded_batches import ForwardingEncoder
from rockoon.producer.outgoing import BatchEncoder, check_extras
from rockoon.transactions.checks import Check
from rockoon.transactions.producer import TransactionalProducer
from rockoon.transactions.transaction import HalfPosition, Resolution
from rockoon_format.record import PROPERTY_CRC_BYTES

if TYPE_CHECKING:
    from rockoon.net.connection import Connection


class ForwardedTransactions(TransactionalProducer):
    """A producer group whose members are elsewhere.

    Args:
        cluster: the connection, entered.
        group: the producer group.
        check: as of `TransactionalProducer`; asked about every half message of the group.
        delivery_timeout_seconds: how long to go on trying.
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
        """Store a half message; returns where it waits.

        Args:
            topic, body, ordering_key: as of `TransactionalProducer.begin`.
            properties: all of them, encoded: TRAN_MSG, PGROUP and UNIQ_KEY among them.

        Raises:
            RockoonError: as `begin`.
        """
        extras = (properties, b"")
        check_extras(extras, PROPERTY_CRC_BYTES)
        transaction = await self._begin(topic, body, extras, None, ordering_key)
        # Nobody here ends it: a check goes to those who may know.
        self._open.pop(transaction.message_id, None)
        return transaction.half

    async def end(self, half: HalfPosition, resolution: Resolution, *, from_check: bool) -> None:
        """Say how a transaction ends.

        Args:
            half: where its half message waits; a queue offset of -1 is not known.
            resolution: COMMIT or ROLLBACK; UNKNOWN only with `from_check`.
            from_check: whether somebody was asked.

        Raises:
            TransactionEnded: it has ended another way.
            TransactionNotFound: no half message of the group is or was there.
            RockoonError: no broker has confirmed it.
        """
        await self._tell(half, resolution, from_check=from_check)

    async def _ready_encoder(self) -> BatchEncoder:
        if self._encoder is None:
            host = await born_host(self._cluster.nameservers[0])
            self._encoder = ForwardingEncoder(host, self._instance_hash, self._clock)
        return self._encoder
