"""Statistics of a push consumer, and the state of each of its queues."""

from collections import Counter
from dataclasses import dataclass, field

from rockoon.consumer.delivery import DeliveryStatistics
from rockoon.consumer.process_queue import Limit
from rockoon.consumer.queue_reader import PullStatistics, QueueReader
from rockoon.consumer.retry import RetryStatistics
from rockoon.errors import RockoonError
from rockoon.offsets.offset_store import Persisted
from rockoon.offsets.start import Start


@dataclass(slots=True)
class ConsumerStatistics:
    """Counts since the consumer was made."""

    pulls: PullStatistics
    delivery: DeliveryStatistics
    retries: RetryStatistics = field(default_factory=RetryStatistics)
    rebalances: int = 0
    """Times the allocation was worked out."""
    queues_gained: int = 0
    queues_lost: int = 0
    """To other members, or because the queue went away."""
    commits: int = 0
    """Offsets stored."""
    commits_failed: int = 0
    """Tries to store that failed in a way that can pass."""
    fenced: int = 0
    """Queues that another member or a reset had taken when progress was to be stored."""
    resets: int = 0
    """Queues resolved again because an operator reset their progress."""
    out_of_range: int = 0
    """Queues resolved again because they no longer had the place to read."""
    gap_total: int = 0
    """Messages that could not be read any more, as Resolve reported them."""
    starts: Counter[str] = field(default_factory=Counter)
    """Queues that reading was begun on, by StartReason."""

    def count_persisted(self, persisted: Persisted) -> None:
        """Count what became of progress that was to be stored."""
        self.commits += len(persisted.stored)
        self.commits_failed += len(persisted.kept)
        self.fenced += len(persisted.lost)


@dataclass(frozen=True, slots=True)
class QueueView:
    """One queue of a running consumer, for people and tools."""

    start: Start
    next_offset: int
    """Where the next pull starts."""
    commit_offset: int
    """Smallest offset that is not consumed."""
    max_offset: int | None
    """End of the queue at the last pull, None before it."""
    unfinished: int
    running: int
    """Handler calls with messages of this queue."""
    blocked_by: Limit | None
    """Why it is not pulled: flow control."""
    held_back_by: int | None
    """Offset of a message that failed and keeps the commit offset where it is."""
    attempts: int
    """How often that message has failed."""
    failure: RockoonError | None
    """Why the broker cannot be read at the moment."""


def view_of(reader: QueueReader) -> QueueView:
    """Return how a queue stands now."""
    held = reader.process_queue
    commit_offset = held.commit_offset
    attempts = reader.attempts.get(commit_offset, 0)
    return QueueView(
        start=reader.start,
        next_offset=held.next_offset,
        commit_offset=commit_offset,
        max_offset=reader.max_offset,
        unfinished=held.unfinished,
        running=reader.running,
        blocked_by=reader.blocked_by,
        held_back_by=commit_offset if attempts else None,
        attempts=attempts,
        failure=reader.failure,
    )
