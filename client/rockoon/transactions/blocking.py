"""Transactions for blocking code, created by `rockoon.sync`.

    producer = cluster.transactional_producer("payments", check=check)
    with producer.transaction("paid", body, keys=order_id) as transaction:
        database.mark_paid(order_id)

Every call blocks until it is done.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self, Unpack

from rockoon.errors import RockoonError
from rockoon.message import SendResult
from rockoon.producer.options import HalfMessageOptions, rename_key
from rockoon.producer.outgoing import Body
from rockoon.transactions.transaction import Resolution, Transaction

if TYPE_CHECKING:
    from rockoon import sync
    from rockoon.transactions.producer import TransactionalProducer


class BlockingTransaction:
    """An open transaction; the attribute `transaction` is the asyncio one, for reading."""

    def __init__(self, cluster: "sync.Cluster", transaction: Transaction) -> None:
        self._cluster = cluster
        self.transaction = transaction

    @property
    def message_id(self) -> str:
        """Same as `Transaction.message_id`."""
        return self.transaction.message_id

    @property
    def resolution(self) -> Resolution:
        """UNKNOWN while the transaction is open."""
        return self.transaction.resolution

    def commit(self) -> SendResult:
        """Same as `Transaction.commit`."""
        return self._cluster.call(self.transaction.commit())

    def rollback(self) -> None:
        """Same as `Transaction.rollback`."""
        self._cluster.call(self.transaction.rollback())


class BlockingTransactionalProducer:
    """A `TransactionalProducer` for blocking code; its check runs in a separate thread.

    Created by `rockoon.sync.Cluster.transactional_producer`.
    """

    def __init__(self, cluster: "sync.Cluster", producer: "TransactionalProducer") -> None:
        self._cluster = cluster
        self.asyncio = producer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(
        self, topic: str, body: Body, **options: Unpack[HalfMessageOptions]
    ) -> BlockingTransaction:
        """Same as `TransactionalProducer.begin`."""
        rename_key(options)
        begun = self._cluster.call(self.asyncio.begin(topic, body, **options))
        return BlockingTransaction(self._cluster, begun)

    @contextmanager
    def transaction(
        self, topic: str, body: Body, **options: Unpack[HalfMessageOptions]
    ) -> Iterator[BlockingTransaction]:
        """Same as `TransactionalProducer.transaction`; the block runs in the caller's thread."""
        begun = self.begin(topic, body, **options)
        try:
            yield begun
        except BaseException as failure:
            if begun.resolution is Resolution.UNKNOWN:
                try:
                    begun.rollback()
                except RockoonError as error:
                    failure.add_note(f"rollback failed, the check decides: {error}")
            raise
        if begun.resolution is Resolution.UNKNOWN:
            begun.commit()

    def send_in_transaction(
        self,
        topic: str,
        body: Body,
        execute: Callable[[Transaction], Resolution],
        **options: Unpack[HalfMessageOptions],
    ) -> Transaction:
        """Same as `TransactionalProducer.send_in_transaction`; `execute` runs in a thread."""
        rename_key(options)
        return self._cluster.call(self.asyncio.send_in_transaction(topic, body, execute, **options))

    def close(self) -> None:
        """Same as `TransactionalProducer.close`."""
        self._cluster.call_close(self.asyncio.close())
