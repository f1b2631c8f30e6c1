"""A transaction as its sender holds it: one message that is sent, or not, with a local transaction.

The message is stored first, as a half message that no consumer sees. Then the local transaction
runs, and its end decides: commit makes the half message a message of its topic, rollback drops it.
When neither is heard of, the broker asks a producer of the same group.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum

from rockoon.errors import TransactionEnded
from rockoon.message import SendResult
from rockoon_core.message_queue import MessageQueue
from rockoon_proto.v1 import broker_pb2


class Resolution(Enum):
    """What becomes of a message that was sent in a transaction."""

    COMMIT = "commit"
    """Its consumers get it."""
    ROLLBACK = "rollback"
    """Nobody gets it."""
    UNKNOWN = "unknown"
    """Not known yet: the broker asks again later."""

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
    """Where a half message waits."""

    broker: str
    queue_offset: int
    physical_offset: int


EndCall = Callable[["Transaction", Resolution], Awaitable[broker_pb2.EndTransactionReply]]


class Transaction:
    """One open transaction. Made by `TransactionalProducer.transaction` and `begin`.

    Attributes:
        message_id: the message's id (UNIQ_KEY): the same before the commit and behind it. Store it
            with what the local transaction writes, and the check can tell whether that happened.
        queue: where the message goes when it is committed.
        half: where it waits until then.
        resolution: UNKNOWN while it is open.
        result: where the message is, once it is committed.
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
        """Let the consumers have the message; returns once that is stored.

        Calling it again returns the same.

        Raises:
            TransactionEnded: it was rolled back, or given up because nobody ended it in time.
            RockoonError: no broker has confirmed it. It may be committed all the same; if it is
                not, the check will ask.
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
        """Drop the message; returns once that is stored. Calling it again changes nothing.

        Raises:
            TransactionEnded: it was committed, or given up because nobody ended it in time.
            RockoonError: no broker has confirmed it; if it is not rolled back, the check will ask.
        """
        self._decide(Resolution.ROLLBACK)
        await self._end(self, Resolution.ROLLBACK)

    def _decide(self, resolution: Resolution) -> None:
        """Note what was decided before the broker is told: a check meanwhile gets the same."""
        if self.resolution not in (Resolution.UNKNOWN, resolution):
            raise TransactionEnded(outcome=f"by {self.resolution.value}")
        self.resolution = resolution
