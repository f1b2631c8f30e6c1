"""Dead letters of receivers: messages whose attempts are used up, or that a receiver gives up."""

from collections.abc import Sequence

from rockoon.consumer.redelivery import Failure
from rockoon.consumer.retry import RetryPolicy, RetryStatistics, RetryTopic
from rockoon.message import Batch, Message
from rockoon.net.connection import Connection


class NeverAcknowledged(Exception):
    """Why a message is a dead letter: its receivers gave no reason."""


class Rejected(Exception):
    """Why a message is a dead letter: the last reason that a receiver gave."""


class DeadLettering:
    """Puts messages into dead-letter topics.

    Args:
        cluster: the connection.
    """

    def __init__(self, cluster: Connection) -> None:
        self._cluster = cluster
        self._statistics = RetryStatistics()

    async def bury(
        self,
        group: str,
        found: Sequence[tuple[int, Batch, int]],
        attempts: int,
        reason: Exception,
    ) -> list[int]:
        """Have brokers store messages of one queue as dead letters.

        Args:
            group: whose.
            found: as of a `Reading`.
            attempts: how often they were delivered in vain.
            reason: kept with the dead letter, with the name of its class.

        Returns:
            Offsets of those that are durable there. Of others, some may be.
        """
        if not found:
            return []
        messages = [Message(batch, index) for _, batch, index in found]
        failure = Failure(messages, max(attempts, 1), reason, is_last=True)
        topic = RetryTopic(self._cluster, group, RetryPolicy(), self._statistics)
        is_all = await topic.failed(failure) is None
        offsets = zip((at[0] for at in found), messages, strict=True)
        return [offset for offset, message in offsets if is_all or topic.has_sent(message)]
