"""Received messages, and the handles by which they are acknowledged."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, overload

from rockoon.errors import InvalidArgument
from rockoon.message import Batch, Message
from rockoon_core.message_queue import MessageQueue

# Largest values of the wire's fields, and the largest offset that the offset service accepts. A
# value beyond them would fail a call that many receivers share.
QUEUE_ID_MAX = (1 << 31) - 1
ACQUISITION_MAX = (1 << 63) - 1
OFFSET_MAX = 1 << 62
TEXT_CHARACTERS_MAX = 1024


class ReceiptHandle(NamedTuple):
    """Identifies one delivery of a message. Valid until the message is acknowledged, its visibility
    is changed, or its time is over; any process may use it."""

    queue: MessageQueue
    acquisition: int
    """Number of the delivery, assigned by the offset service."""
    offset: int
    """Queue offset of the message."""

    def text(self) -> str:
        """Return the handle as text, for example "orders@broker-a:3/17/4711"."""
        return f"{self.queue}/{self.acquisition}/{self.offset}"

    @classmethod
    def parse(cls, text: str) -> "ReceiptHandle":
        """Parse a text in the format of `text`.

        Raises:
            InvalidArgument: the text has another format, or a number is too large.
        """
        if len(text) > TEXT_CHARACTERS_MAX:
            raise InvalidArgument(
                reason=f"a handle has {len(text)} characters, the maximum is {TEXT_CHARACTERS_MAX}"
            )
        # Names of topics contain no slash.
        queue, *numbers = text.rsplit("/", 2)
        if len(numbers) != 2 or not all(each.isdecimal() for each in numbers):
            raise InvalidArgument(reason=f"{text!r} is not of the form queue/acquisition/offset")
        handle = cls(MessageQueue.parse(queue), int(numbers[0]), int(numbers[1]))
        if (
            handle.queue.queue_id > QUEUE_ID_MAX
            or handle.acquisition > ACQUISITION_MAX
            or handle.offset > OFFSET_MAX
        ):
            raise InvalidArgument(reason=f"{text!r} is not a handle: its numbers are too large")
        return handle


class ReceivedMessage(Message):
    """A message that is invisible to other receivers for a limited time.

    Args:
        batch, index: see `Message`.
        attempt: number of the delivery, without those from the retry topic.
        receipt: handle that acknowledges the message.
        visible_at_ms: when other receivers can get it, by the offset service's clock, milliseconds.
    """

    # Weak references show whether a receiver still holds a message (`extensions`).
    __slots__ = ("__weakref__", "_attempt", "receipt", "visible_at_ms")

    def __init__(
        self, batch: Batch, index: int, attempt: int, receipt: ReceiptHandle, visible_at_ms: int
    ) -> None:
        # Without `super().__init__`, because one object is made for each message.
        self._batch = batch
        self._index = index
        self._properties = None
        self._attempt = attempt
        self.receipt = receipt
        self.visible_at_ms = visible_at_ms

    @property
    def attempt(self) -> int:
        """Number of the delivery, from 1, those from the group's retry topic included."""
        return self.reconsume_times + self._attempt


class ReceivedRun(NamedTuple):
    """Messages of one delivery in one batch."""

    queue: MessageQueue
    acquisition: int
    attempt: int
    """Number of the delivery, without those from the retry topic."""
    visible_at_ms: int
    batch: Batch
    offsets: Sequence[int]
    """Queue offsets of the messages, ascending."""
    indices: Sequence[int]
    """Their indices in the batch."""

    def part(self, first: int, end: int) -> "ReceivedRun":
        """Return the messages with numbers `first` to `end - 1`."""
        return self._replace(offsets=self.offsets[first:end], indices=self.indices[first:end])

    def receipt(self, number: int) -> ReceiptHandle:
        return ReceiptHandle(self.queue, self.acquisition, self.offsets[number])

    def message(self, number: int) -> ReceivedMessage:
        return ReceivedMessage(
            self.batch, self.indices[number], self.attempt, self.receipt(number), self.visible_at_ms
        )


class ReceivedMessages(Sequence[ReceivedMessage]):
    """Messages that a receiver got, stored as runs. Message objects are created on access. `runs`:
    none is empty."""

    __slots__ = ("_count", "runs")

    def __init__(self, runs: Iterable[ReceivedRun] = ()) -> None:
        self.runs = list(runs)
        self._count = 0
        for run in self.runs:
            self._count += len(run.offsets)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[ReceivedMessage]:
        return (run.message(number) for run in self.runs for number in range(len(run.offsets)))

    def __repr__(self) -> str:
        return f"ReceivedMessages({len(self)})"

    @overload
    def __getitem__(self, index: int) -> ReceivedMessage: ...

    @overload
    def __getitem__(self, index: slice) -> "ReceivedMessages": ...

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, slice):
            return next(iter(self._part(at := range(len(self))[index], at + 1)))
        first, end, step = index.indices(len(self))
        if step == 1:
            return self._part(first, end)
        single = [self._part(at, at + 1) for at in range(first, end, step)]
        return ReceivedMessages(run for each in single for run in each.runs)

    def _part(self, first: int, end: int) -> "ReceivedMessages":
        if first == 0 and end >= self._count:
            return self
        chosen = []
        run_end = 0
        for run in self.runs:
            start, run_end = run_end, run_end + len(run.offsets)
            if first <= start and run_end <= end:
                chosen.append(run)
            elif start < end and first < run_end:
                chosen.append(run.part(max(first - start, 0), end - start))
        return ReceivedMessages(chosen)

    @property
    def receipts(self) -> list[ReceiptHandle]:
        return [
            ReceiptHandle(run.queue, run.acquisition, offset)
            for run in self.runs
            for offset in run.offsets
        ]
