"""Received messages, and the handles by which they are acknowledged."""

from typing import NamedTuple

from rockoon.errors import InvalidArgument
from rockoon.message import Batch, Message
from rockoon_core.message_queue import MessageQueue

# What the wire's fields hold, and the largest offset that the offset service takes. Calls of many
# receivers go together: what cannot be sent would fail them all.
QUEUE_ID_MAX = (1 << 31) - 1
ACQUISITION_MAX = (1 << 63) - 1
OFFSET_MAX = 1 << 62
TEXT_CHARACTERS_MAX = 1024


class ReceiptHandle(NamedTuple):
    """One delivery of a message. Valid until it is acknowledged, changed, or its time is over;
    any process may use it."""

    queue: MessageQueue
    acquisition: int
    """The offset service's number of the delivery."""
    offset: int
    """Queue offset of the message."""

    def text(self) -> str:
        """Return it as text, for example "orders@broker-a:3/17/4711"."""
        return f"{self.queue}/{self.acquisition}/{self.offset}"

    @classmethod
    def parse(cls, text: str) -> "ReceiptHandle":
        """Read what `text` gives.

        Raises:
            InvalidArgument: the text is not of that form, or no handle has such numbers.
        """
        if len(text) > TEXT_CHARACTERS_MAX:
            raise InvalidArgument(reason=f"a handle of {len(text)} characters")
        queue, *numbers = text.rsplit("/", 2)
        # A topic with a slash is none, so there are two at most.
        if len(numbers) != 2 or not all(each.isdecimal() for each in numbers):
            raise InvalidArgument(reason=f"{text!r} is not of the form queue/acquisition/offset")
        handle = cls(MessageQueue.parse(queue), int(numbers[0]), int(numbers[1]))
        if (
            handle.queue.queue_id > QUEUE_ID_MAX
            or handle.acquisition > ACQUISITION_MAX
            or handle.offset > OFFSET_MAX
        ):
            raise InvalidArgument(reason=f"{text!r} is no handle: its numbers are too large")
        return handle


class ReceivedMessage(Message):
    """A message that is its receiver's for a while.

    Args:
        batch, index: as of a `Message`.
        attempt: which delivery this is.
        receipt: what acknowledges it.
        visible_at_ms: when others get it, by the offset service's clock.
    """

    __slots__ = ("_attempt", "receipt", "visible_at_ms")

    def __init__(
        self, batch: Batch, index: int, attempt: int, receipt: ReceiptHandle, visible_at_ms: int
    ) -> None:
        # Without `super().__init__`: this is made for each message.
        self._batch = batch
        self._index = index
        self._properties = None
        self._attempt = attempt
        self.receipt = receipt
        self.visible_at_ms = visible_at_ms

    @property
    def attempt(self) -> int:
        """Which delivery this is, from 1, those by way of the group's retry topic included."""
        return self.reconsume_times + self._attempt
