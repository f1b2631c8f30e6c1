"""Sent spans: the messages of a `send_many`, as spans of batches."""

from rockoon.errors import RockoonError
from rockoon.producer.accumulator import ProducerBatch
from rockoon.producer.receipt import SendResults, Span


class SentSpans:
    """Messages in the order of their bodies; a span is consecutive messages of one batch.

    A receipt for each message would cost more than sending it.
    """

    def __init__(self) -> None:
        self._spans: list[Span] = []

    def add(self, batch: ProducerBatch, first: int, count: int) -> None:
        """Add messages at the end; if they follow the last span in its batch, extend that span."""
        spans = self._spans
        if spans:
            last, start, length = spans[-1]
            if last is batch and start + length == first:
                spans[-1] = (batch, start, length + count)
                return
        spans.append((batch, first, count))

    async def results(self) -> SendResults:
        """Wait until all are stored.

        Raises:
            RockoonError: one could not be delivered; others may have been stored.
        """
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
