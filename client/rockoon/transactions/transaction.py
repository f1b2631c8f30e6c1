"""A transaction of a sender: one message that is delivered if a local transaction commits.

The message is stored first, as a half message that no consumer sees. Then the local transaction
runs. Commit turns the half message into a message of its topic, rollback deletes it. If the broker
receives neither, it checks with a producer of the same group.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum

from rockoon.errors import TransactionEnded
from rockoon.message import SendResult
from rockoon_core.message_queue import MessageQueue
from rockoon_proto.v1 import broker_pb2


class Resolution(Enum):
    """Result of a transaction."""

    COMMIT = "commit"
    """The message is delivered."""
    ROLLBACK = "rollback"
    """The message is deleted."""
    UNKNOWN = "unknown"
    """Not known yet: the broker checks again later."""

    @property
    def on_wire(self) -> broker_pb2.Resolution:
        return _ON_WIRE[self]


_ON_WIRE: dict[Resolution, broker_pb2.Resolution] = {
    Resolution.COMMIT: broker_pb2.COMMIT,
    Resolution.ROLLBACK: broker_pb2.ROLLBACK,
    Resolution.UNKNOWN: broker_pb2.UNKNOWN,
}


@dataclass(frozen=True, slots=True)
class HalfPosition:
    """Position of a half message."""

    broker: str
    queue_offset: int
    physical_offset: int


EndCall = Callable[["Transaction", Resolution], Awaitable[broker_pb2.EndTransactionReply]]


class Transaction:
    """One transaction. Created by `TransactionalProducer.transaction` and `begin`.

    Attributes:
        message_id: the message's id (UNIQ_KEY), the same before and after the commit. If the local
            transaction stores it, the check can find out whether the local transaction committed.
        queue: the queue to which a commit appends the message.
        half: position of the half message.
        resolution: UNKNOWN while the transaction is open.
        result: position of the message after a commit.
    """

    __slots__ = ("_end", "half", "message_id", "queue", "resolution", "result")

    def __init__(
        self, message_id: str, queue: MessageQueue, half: HalfPosition, end: EndCall
    ) -> None:
        self.message_id = message_id
        self.queue = queue
        self.half = half
        self.resolution = Resolution.UNKNOWN
        self.result: SendResult | None = None
        self._end = end

    def __repr__(self) -> str:
        return f"Transaction({self.message_id}, {self.queue}, {self.resolution.value})"

    async def commit(self) -> SendResult:
        """Commit the transaction; return once the message is stored in its topic.

        Further calls return the same result.

        Raises:
            TransactionEnded: it was rolled back, or the broker has rolled it back after a timeout.
            RockoonError: no broker has confirmed the commit. It may be committed anyway; otherwise
                the check decides.
        """
        if self.result is None:
            self._decide(Resolution.COMMIT)
            reply = await self._end(self, Resolution.COMMIT)
            stored = reply.committed
            self.result = SendResult(
                queue=self.queue,
                queue_offset=stored.first_queue_offset,
                physical_offset=stored.first_physical_offset,
                message_id=self.message_id,
                store_timestamp_ms=stored.store_timestamp_ms,
                store_host=stored.store_host,
            )
        return self.result

    async def rollback(self) -> None:
        """Roll the transaction back; return once that is stored. Further calls have no effect.

        Raises:
            TransactionEnded: it was committed, or the broker has rolled it back after a timeout.
            RockoonError: no broker has confirmed the rollback; otherwise the check decides.
        """
        self._decide(Resolution.ROLLBACK)
        await self._end(self, Resolution.ROLLBACK)

    def _decide(self, resolution: Resolution) -> None:
        """Set the resolution before it is sent: a check in between gets the same answer."""
        if self.resolution not in (Resolution.UNKNOWN, resolution):
            raise TransactionEnded(outcome=f"by {self.resolution.value}")
        self.resolution = resolution
