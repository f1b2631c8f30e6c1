"""Failures of messages that nobody awaits: told once, by `wait_capacity`, `flush` or `close`."""

from rockoon.errors import RockoonError
from rockoon.producer.accumulator import ProducerBatch, fresh

# A program that never flushes must not fill memory with its failures.
_BATCHES_MAX = 1000


class UnreportedFailures:
    """The failed batches with messages that nobody was told about, oldest first."""

    def __init__(self) -> None:
        self._batches: list[ProducerBatch] = []

    def note(self, batch: ProducerBatch) -> None:
        """A batch is done."""
        if batch.unseen_failures:
            self._batches.append(batch)
            del self._batches[:-_BATCHES_MAX]

    def raise_first(self) -> None:
        """Raise, once, the first failure, if there is one."""
        batches, self._batches = self._batches, []
        # Asked again: some were awaited after they had failed.
        failed = [batch for batch in batches if batch.unseen_failures]
        if not failed:
            return
        error = failed[0].outcome
        assert isinstance(error, RockoonError)
        raised = fresh(error)
        messages = sum(batch.unseen_failures for batch in failed)
        raised.add_note(f"{messages} messages that nobody awaited were not delivered")
        raise raised
