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
    """Counters of a push consumer."""

    pulls: PullStatistics
    delivery: DeliveryStatistics
    retries: RetryStatistics = field(default_factory=RetryStatistics)
    rebalances: int = 0
    """Number of rebalances."""
    queues_gained: int = 0
    queues_lost: int = 0
    """Queues that another member got, or that were deleted."""
    commits: int = 0
    """Offsets stored."""
    commits_failed: int = 0
    """Offsets not stored; they are retried."""
    fenced: int = 0
    """Offsets not stored because the queue was reset or has another owner."""
    resets: int = 0
    """Queues resolved again because an operator reset their progress."""
    out_of_range: int = 0
    """Queues resolved again because they no longer had the offset to read."""
    gap_total: int = 0
    """Messages that were deleted before they were read, as Resolve reported them."""
    starts: Counter[str] = field(default_factory=Counter)
    """Number of resolved start positions, by StartReason."""

    def count_persisted(self, persisted: Persisted) -> None:
        self.commits += len(persisted.stored)
        self.commits_failed += len(persisted.kept)
        self.fenced += len(persisted.lost)


@dataclass(frozen=True, slots=True)
class QueueView:
    """State of a queue of a running consumer, for operators and tools."""

    start: Start
    next_offset: int
    """Offset of the next pull."""
    commit_offset: int
    """Smallest offset that is not consumed."""
    max_offset: int | None
    """End of the queue at the last pull; None before the first pull."""
    unfinished: int
    running: int
    """Handler calls with messages of this queue."""
    blocked_by: Limit | None
    """Flow limit that prevents pulls; None if pulls are allowed."""
    held_back_by: int | None
    """Offset of a failed message that blocks the commit offset."""
    attempts: int
    """Failed deliveries of the message at `held_back_by`."""
    failure: RockoonError | None
    """Error of the last pull; None if it succeeded."""


def view_of(reader: QueueReader) -> QueueView:
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
