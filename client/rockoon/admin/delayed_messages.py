"""Pending delayed messages: listing and cancellation.

sent = await producer.send("orders", b"remind", delay_seconds=3600)
await cluster.admin.delayed.cancel(sent.offset_message_id)
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rockoon.admin.reads import live_brokers, missing_brokers
from rockoon.bounds import refuses_invalid_text
from rockoon.errors import DelayedSettled, InvalidArgument, MessageNotFound, RockoonError
from rockoon_core.message_queue import MessageQueue
from rockoon_format.message_id import decode_offset_id
from rockoon_proto.v1 import broker_pb2 as broker_pb

if TYPE_CHECKING:
    from rockoon.net.connection import Connection

LISTED_DEFAULT = 100
LISTED_MAX = 1024


@dataclass(frozen=True, slots=True)
class DelayedMessage:
    """A pending delayed message."""

    offset_message_id: str
    """Argument of `DelayedMessages.cancel`."""
    queue: MessageQueue
    """The queue to which the broker will deliver it."""
    message_id: str
    """Unique message id (UNIQ_KEY); empty if the producer set none."""
    deliver_at_ms: int
    """Delivery time, epoch milliseconds."""
    level: int
    """Delay level; 0 if the producer set a delivery time."""
    store_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class WaitingMessages:
    """Pending delayed messages, as reported by the brokers."""

    messages: Sequence[DelayedMessage]
    """The messages that are due next, sorted by delivery time."""
    counts: Mapping[str, broker_pb.DelayedCounts]
    """Broker → numbers of its delayed messages."""
    errors: Mapping[str, RockoonError]
    """Broker → the error, if it did not answer."""

    @property
    def pending(self) -> int:
        """Number of pending messages at the brokers that answered."""
        return sum(
            each.pending_timed + sum(each.pending_by_level.values())
            for each in self.counts.values()
        )


@refuses_invalid_text
class DelayedMessages:
    """Delayed messages of a cluster: `cluster.admin.delayed`."""

    def __init__(self, cluster: "Connection") -> None:
        self._cluster = cluster

    async def cancel(self, offset_message_id: str, topic: str = "") -> None:
        """Cancel a delayed message: when this returns, its broker will never deliver it.

        If this call is cancelled, the message may or may not have been cancelled.

        Args:
            offset_message_id: `offset_message_id` of the SendResult.
            topic: fail unless the message is for this topic; empty for any topic.

        Raises:
            InvalidArgument: the id has another format.
            MessageNotFound: every broker answered, and none has the message.
            DelayedSettled: the message was already delivered or cancelled.
            BrokerUnavailable: a broker that may have the message does not answer.
            RockoonError: the broker is not writable now.
        """
        try:
            decode_offset_id(offset_message_id)
        except ValueError as failure:
            raise InvalidArgument(
                reason=f"{failure}: use the id from `SendResult` or the list of delayed messages"
            ) from None
        # The broker's address may have changed since the message was stored, so each broker is
        # asked: the one that has the message recognizes its former address in the id.
        refusals: list[RockoonError] = []
        for broker in live_brokers(self._cluster):
            request = broker_pb.CancelDelayedRequest(message_id=offset_message_id, topic=topic)
            try:
                await self._cluster.call_broker(broker, "CancelDelayed", request)
            except MessageNotFound:
                continue
            except DelayedSettled:
                raise
            except RockoonError as refusal:
                refusals.append(refusal)
            else:
                return
        refusals += (await missing_brokers(self._cluster)).values()
        raise refusals[0] if refusals else MessageNotFound(position=offset_message_id)

    async def list(self, max_messages: int = LISTED_DEFAULT) -> WaitingMessages:
        """Return the messages that are due next, and counts of pending messages.

        Args:
            max_messages: 1 to 1024, of all brokers together.

        Raises:
            InvalidArgument: the number is out of range.
        """
        if not 1 <= max_messages <= LISTED_MAX:
            raise InvalidArgument(reason=f"max_messages {max_messages} is not in 1..{LISTED_MAX}")
        errors: dict[str, RockoonError] = {**await missing_brokers(self._cluster)}
        async with asyncio.TaskGroup() as tasks:
            asked = {
                broker: tasks.create_task(self._list_at(broker, max_messages), name=f"ask {broker}")
                for broker in live_brokers(self._cluster)
            }
        messages: list[DelayedMessage] = []
        counts: dict[str, broker_pb.DelayedCounts] = {}
        for broker, task in asked.items():
            answer = task.result()
            if isinstance(answer, RockoonError):
                errors[broker] = answer
                continue
            counts[broker] = answer.counts
            messages += [
                DelayedMessage(
                    offset_message_id=one.message_id,
                    queue=MessageQueue(one.topic, broker, one.queue_id),
                    message_id=one.unique_id,
                    deliver_at_ms=one.deliver_at_ms,
                    level=one.level,
                    store_timestamp_ms=one.store_timestamp_ms,
                )
                for one in answer.messages
            ]
        messages.sort(key=lambda one: (one.deliver_at_ms, one.offset_message_id))
        return WaitingMessages(messages[:max_messages], counts, errors)

    async def _list_at(
        self, broker: str, max_messages: int
    ) -> broker_pb.ListDelayedReply | RockoonError:
        request = broker_pb.ListDelayedRequest(max_messages=max_messages)
        try:
            reply: broker_pb.ListDelayedReply = await self._cluster.call_broker(
                broker, "ListDelayed", request
            )
        except RockoonError as error:
            return error
        return reply
