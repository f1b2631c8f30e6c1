"""From batches in the log to what readers see: their entries, in the order of the log.

What cannot be written now stays first in line: later entries wait behind it.
"""

from collections import deque
from collections.abc import Container
from dataclasses import dataclass, replace

from rockoon_broker.store.queues.consume_queue import ConsumeQueue, ConsumeQueues, QueueKey
from rockoon_format.consume_queue import EntryArray


@dataclass(frozen=True, slots=True)
class Undispatched:
    """A batch in the log whose queue entries are not written yet."""

    queue: ConsumeQueue | None
    """None when it went with its topic: it has no entries, but its place and time count."""
    first_queue_offset: int
    entries: EntryArray
    end_offset: int
    store_timestamp_ms: int


class DispatchQueue:
    """The batches whose entries are still to be written, without gaps.

    Args:
        queues: takes the entries.
        end: physical offset up to which the log is dispatched already.
        store_timestamp_ms: store time of the newest message up to there.

    Attributes:
        end: physical offset behind the newest message that readers see.
        store_timestamp_ms: its store time.
        failure: why entries cannot be written, None while they can.
    """

    def __init__(self, queues: ConsumeQueues, end: int, store_timestamp_ms: int) -> None:
        self.end = end
        self.store_timestamp_ms = store_timestamp_ms
        self.failure: OSError | None = None
        self._queues = queues
        self._waiting: deque[Undispatched] = deque()

    @property
    def pending(self) -> int:
        """How many batches wait."""
        return len(self._waiting)

    def add(self, batch: Undispatched) -> None:
        """Take the batch that the log holds behind the one added last."""
        self._waiting.append(batch)

    def drop(self, topics: Container[str]) -> None:
        """Write no entries for the batches of topics that are deleted."""
        self._waiting = deque(
            replace(each, queue=None) if each.queue and each.queue.topic in topics else each
            for each in self._waiting
        )

    def dispatch(self, end: int) -> list[QueueKey]:
        """Write the entries of batches up to a physical offset.

        What cannot be written is tried again by the next call; `failure` says why.

        Returns:
            The queues that have got entries.
        """
        advanced: dict[QueueKey, None] = {}
        waiting = self._waiting
        try:
            while waiting and waiting[0].end_offset <= end:
                batch = waiting[0]
                if batch.queue is not None:
                    self._queues.write(batch.queue, batch.first_queue_offset, batch.entries)
                    advanced[batch.queue.key] = None
                # After its entries are written: where that fails the batch stays, and is written
                # again.
                waiting.popleft()
                # Readers see the log up to here, so never past entries that are not written.
                self.end = batch.end_offset
                self.store_timestamp_ms = batch.store_timestamp_ms
        except OSError as error:
            self.failure = error
        else:
            self.failure = None
        return list(advanced)
