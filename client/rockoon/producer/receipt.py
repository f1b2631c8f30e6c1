"""Receipts: results of `send`, one for each message of a batch, and of `send_many`.

Programs create millions of receipts and read few of them, so a receipt is two references, and its
values are computed when they are read.
"""

from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rockoon.errors import RockoonError
from rockoon.message import SendResult

if TYPE_CHECKING:
    from rockoon.producer.accumulator import ProducerBatch


class Receipt:
    """Pending result of a message: `result = await receipt` waits until the broker has stored it.

    Cancelling a task that awaits it does not cancel the message.

    Awaiting raises:
        RockoonError: the message was not acknowledged. If the broker's reply was lost, the message
            may be stored.
    """

    # The producer sets both attributes: calling an __init__ would cost a fifth of a send.
    __slots__ = ("batch", "index")

    batch: "ProducerBatch"
    index: int

    def __await__(self) -> Generator[Any, None, SendResult]:
        # A message that waited for its topic's route moves to another batch.
        while not self.batch.is_done:
            yield from self.batch.waiter(self.index)
        return self.batch.result(self.index)

    def __repr__(self) -> str:
        return f"Receipt({self.batch.batch_queue}, message {self.index}, done={self.done})"

    @property
    def done(self) -> bool:
        """True if awaiting the receipt returns or raises without waiting."""
        return self.batch.is_done


Span = tuple["ProducerBatch", int, int]
"""Consecutive messages of a batch: the batch, the index of the first, the count."""


class SendResults(Sequence[SendResult]):
    """Results of many messages in the order of sending, computed when they are read."""

    __slots__ = ("_count", "_spans")

    def __init__(self, spans: list[Span]) -> None:
        self._spans = spans
        self._count = sum(count for _, _, count in spans)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[SendResult]:
        for batch, first, count in self._spans:
            for index in range(first, first + count):
                yield batch.result(index)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._count))]
        if not -self._count <= index < self._count:
            raise IndexError(index)
        index %= self._count
        for batch, first, count in self._spans:
            if index < count:
                return batch.result(first + index)
            index -= count
        raise AssertionError("the spans are shorter than their sum")

    def __repr__(self) -> str:
        return f"SendResults({self._count} messages in {len(self._spans)} batches)"


class SentSpans:
    """Messages in the order of their bodies; a span is consecutive messages of one batch.

    A receipt for each message would cost more than sending it.
    """

    def __init__(self) -> None:
        self._spans: list[Span] = []

    def add(self, batch: "ProducerBatch", first: int, count: int) -> None:
        """Add messages at the end; if they follow the last span in its batch, extend that span."""
        spans = self._spans
        if spans:
            last, start, length = spans[-1]
            if last is batch and start + length == first:
                spans[-1] = (batch, start, length + count)
                return
        spans.append((batch, first, count))

    async def results(self) -> SendResults:
        """Wait until all are stored. Raises RockoonError: one message could not be delivered; other
        messages may have been stored."""
        # All are counted as awaited first, so that `flush` and `wait_capacity` do not report their
        # failures as well.
        for batch, _, count in self._spans:
            batch.awaited += count
            batch.batch_queue.accumulator.flush_now(batch)
        for batch, first, _ in self._spans:
            if not batch.is_done:
                await batch.waiter()
            if isinstance(batch.outcome, RockoonError):
                batch.result(first)
        return SendResults(self._spans)
