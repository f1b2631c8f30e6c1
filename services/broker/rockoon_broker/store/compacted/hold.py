"""Hold on the log: the range that must be kept because no generation has its messages yet."""

from collections.abc import Container, Mapping
from dataclasses import dataclass

from rockoon_broker.store.compacted.fitting import first_listed
from rockoon_broker.store.compacted.open_generation import QueueCoverage
from rockoon_broker.store.log.commit_log import CommitLog
from rockoon_broker.store.log.time_runs import record_time_ms
from rockoon_broker.store.queues.consume_queue import ConsumeQueue, QueueKey
from rockoon_broker.store.queues.consume_queues import ConsumeQueues


@dataclass(frozen=True, slots=True)
class Hold:
    """The oldest message in the log that is still to be compacted."""

    physical_offset: int
    topic: str
    stored_ms: int | None = None
    """Its store time, epoch milliseconds; None if its record cannot be read."""


def oldest_uncompacted(
    topics: Container[str],
    coverages: Mapping[QueueKey, QueueCoverage],
    queues: ConsumeQueues,
    log: CommitLog,
    known: Hold | None = None,
) -> Hold | None:
    """Return the oldest message of some topics that the log has but the active generation lacks.

    Args:
        coverages: ranges of queues that the active generation covers.
        known: the result of the previous call; its record is not read again.

    Raises:
        OSError: the disk.
    """
    oldest: tuple[int, str] | None = None
    for queue in queues:
        if queue.topic not in topics or not queue.max_offset:
            continue
        first = _first_uncovered(queue, coverages, queues, log)
        if first is not None and (oldest is None or first < oldest[0]):
            oldest = first, queue.topic
    if oldest is None or (known and oldest == (known.physical_offset, known.topic)):
        return known if oldest else None
    return Hold(*oldest, record_time_ms(log, oldest[0]))


def loses_uncompacted(
    topic: str,
    log_min: int,
    coverages: Mapping[QueueKey, QueueCoverage],
    queues: ConsumeQueues,
    log: CommitLog,
) -> bool:
    """Return whether log removal below `log_min` deletes a message that the generation lacks.
    Raises OSError."""
    firsts = (_first_uncovered(queue, coverages, queues, log) for queue in queues.of_topic(topic))
    return any(first is not None and first < log_min for first in firsts)


def _first_uncovered(
    queue: ConsumeQueue,
    coverages: Mapping[QueueKey, QueueCoverage],
    queues: ConsumeQueues,
    log: CommitLog,
) -> int | None:
    coverage = coverages.get(queue.key)
    return first_listed(queue, coverage.covered_to if coverage else 0, queues, log)
