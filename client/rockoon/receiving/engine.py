"""Receiving engine: what all receivers of a connection share.

Receivers wait here. Their wishes go together to the offset service, the messages that it grants are
read from the brokers once, and what is acknowledged goes together too.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rockoon.offsets.start import ConsumeFrom
from rockoon.receiving.received import ReceiptHandle, ReceivedMessage
from rockoon.subscription import Subscription

if TYPE_CHECKING:
    from rockoon.net.connection import Connection


class ReceivingEngine:
    """Receives for many receivers of many groups. `Cluster.receiving` is a connection's only one.

    Args:
        cluster: the connection.
    """

    def __init__(self, cluster: "Connection") -> None:
        self._cluster = cluster

    async def receive(
        self,
        group: str,
        subscriptions: Sequence[Subscription],
        *,
        messages_max: int,
        visible_after_ms: int,
        wait_seconds: float,
        attempt_id: str = "",
        receiver: str = "",
        consume_from: ConsumeFrom = ConsumeFrom.GROUP,
        create_group: bool = True,
    ) -> list[ReceivedMessage]:
        """Acquire messages, and read them. Cancelled, it gives back what it has acquired.

        Receivers of a group that want the same get messages in the order in which they came here.
        What a filter leaves out is acknowledged, so a group's receivers have to agree on filters.

        Args:
            group: whose progress it is.
            subscriptions: the topics to receive from, one or more; each topic once.
            messages_max: 1 to 1024.
            visible_after_ms: how long nobody else gets them, milliseconds, 1 to 12 hours.
            wait_seconds: how long to wait for the first one; 0: not at all.
            attempt_id: names this try in a FIFO group: the same again gets the same messages, as
                long as they are in flight. Empty: no such thing.
            receiver: who asks, for people; the connection's client id when empty.
            consume_from: where to start on queues without progress, when the group does not say.
            create_group: make the group when it does not exist.

        Returns:
            At most `messages_max` messages, those of one queue in order; none when time is over.

        Raises:
            TopicNotFound, TopicNotReadable, GroupNotFound, NotPermitted: nothing can be received.
            InvalidArgument: an argument is out of its bounds.
            OffsetServiceUnavailable: it was away all the time, and no queue could be asked for.
            Closed: the connection is.
        """
        raise NotImplementedError

    async def acknowledge(self, group: str, receipts: Sequence[ReceiptHandle]) -> list[bool]:
        """Messages are done: nobody gets them any more. Repeating it does no harm.

        Returns:
            For each whether it counts; False: its time was over, it was changed, or a reset or a
            commit of the group has gone past it.

        Raises:
            GroupNotFound: there is no such group.
            RockoonError: the offset service did not store it for `retry_seconds`.
        """
        raise NotImplementedError

    async def change_visibility(
        self,
        group: str,
        receipts: Sequence[ReceiptHandle],
        visible_after_ms: int,
        *,
        counted: bool = True,
        extend: bool = False,
    ) -> list[ReceiptHandle | None]:
        """Have messages stay invisible for another time, or be visible at once.

        Args:
            group: whose.
            receipts: which.
            visible_after_ms: from now, 0 to 12 hours.
            counted: False: the delivery that ends with this does not count as an attempt.
            extend: True: the holder lengthens its own time, and its receipts stay valid.

        Returns:
            The receipts that stand for them now; None for one that was not valid any more.

        Raises:
            GroupNotFound, RockoonError: as of `acknowledge`. After a lost answer the call is
                repeated; without `extend`, what it had done already counts as no longer valid.
        """
        raise NotImplementedError

    async def dead_letter(
        self, group: str, receipts: Sequence[ReceiptHandle], *, reason: str = ""
    ) -> list[bool]:
        """Put messages into the group's dead-letter topic, and acknowledge them.

        Args:
            group: whose.
            receipts: which.
            reason: for people, kept with them.

        Returns:
            As `acknowledge`. One whose receipt is not valid may be a dead letter all the same.

        Raises:
            BrokerUnavailable: no broker took one; those are still in flight.
            GroupNotFound, RockoonError: as of `acknowledge`.
        """
        raise NotImplementedError
