"""Sent spans: which messages of which batches a `send_many` has taken."""

from rockoon.errors import RockoonError
from rockoon.producer.accumulator import ProducerBatch
from rockoon.producer.receipt import SendResults, Span


class SentSpans:
    """Messages in the order in which they were taken; a span is some that follow one another in a
    batch. A receipt for each would cost more than the sending."""

    def __init__(self) -> None:
        self._spans: list[Span] = []

    def note(self, batch: ProducerBatch, first: int, count: int) -> None:
        """Add messages behind those noted before, as one span with the last if they follow it."""
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
        # All are claimed before the first is awaited: `flush` and `wait_capacity` do not report a
        # failure of one that is awaited here.
        for batch, _, count in self._spans:
            batch.awaited += count
            batch.batch_queue.accumulator.flush_now(batch)
        for batch, first, _ in self._spans:
            if not batch.is_done:
                await batch.waiter()
            if isinstance(batch.outcome, RockoonError):
                batch.result(first)
        return SendResults(self._spans)
