"""Receipts: results of `send`, one for each message of a batch.

Programs create millions of receipts and read few of them, so a receipt is two references, and its
values are computed when they are read.
"""

from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any

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
