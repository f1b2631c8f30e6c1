"""Receipts: what `send` returns, one for each message of a batch.

Millions of these are made, most of them never looked at, so a receipt is two references and
whatever it can tell is worked out when it is asked.
"""

from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rockoon.message import SendResult

if TYPE_CHECKING:
    from rockoon.producer.accumulator import ProducerBatch


class Receipt:
    """A message on its way: `result = await receipt` waits until the broker has stored it.

    Cancelling a task that awaits it does not take the message back.

    Awaiting raises:
        RockoonError: the message was not acknowledged. It may have been stored all the same when
            the broker's answer was lost.
    """

    # The producer sets both; there is no __init__ because its call would cost a fifth of a send.
    __slots__ = ("batch", "index")

    batch: "ProducerBatch"
    index: int

    def __await__(self) -> Generator[Any, None, SendResult]:
        # A message that was waiting for its topic's route moves from one batch to another.
        while not self.batch.is_done:
            yield from self.batch.waiter(self.index)
        return self.batch.result(self.index)

    def __repr__(self) -> str:
        return f"Receipt({self.batch.batch_queue}, message {self.index}, done={self.done})"

    @property
    def done(self) -> bool:
        """Whether awaiting it would return, or raise, at once."""
        return self.batch.is_done


Span = tuple["ProducerBatch", int, int]
"""Messages that follow one another in a batch: the batch, the first's index, how many."""


class SendResults(Sequence[SendResult]):
    """The results of many messages in the order in which they were sent, made as they are read."""

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
