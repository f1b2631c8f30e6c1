"""Dead letters of receivers: messages without attempts left, or rejected by a receiver."""

from collections.abc import Sequence

from rockoon.consumer.redelivery import Failure
from rockoon.consumer.retry import RetryPolicy, RetryStatistics, RetryTopic
from rockoon.message import Batch, Message
from rockoon.net.connection import Connection


class NeverAcknowledged(Exception):
    """Reason of a dead letter whose receivers reported no reason."""


class Rejected(Exception):
    """Reason of a dead letter: the last reason that a receiver reported."""


class DeadLettering:
    """Puts messages into dead-letter topics.

    Args:
        cluster: the connection.
    """

    def __init__(self, cluster: Connection) -> None:
        self._cluster = cluster
        self._statistics = RetryStatistics()

    async def store(
        self,
        group: str,
        found: Sequence[tuple[int, Batch, int]],
        attempts: int,
        reason: Exception,
    ) -> list[int]:
        """Store messages of one queue as dead letters on brokers.

        Args:
            group: name of the consumer group.
            found: offset, batch and index of each message.
            attempts: number of failed deliveries.
            reason: stored with the dead letter, with the name of its class.

        Returns:
            Offsets whose dead letters are durable. Dead letters of other offsets may exist.
        """
        if not found:
            return []
        messages = [Message(batch, index) for _, batch, index in found]
        failure = Failure(messages, max(attempts, 1), reason, is_last=True)
        topic = RetryTopic(self._cluster, group, RetryPolicy(), self._statistics)
        is_all = await topic.failed(failure) is None
        offsets = zip((at[0] for at in found), messages, strict=True)
        return [offset for offset, message in offsets if is_all or topic.has_sent(message)]
