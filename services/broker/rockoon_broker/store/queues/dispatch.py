"""Dispatch during recovery: ConsumeQueue entries from scanned records."""

import itertools
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rockoon_broker.store.log.epochs import Renewal
from rockoon_broker.store.log.scan import ScannedChunk
from rockoon_broker.store.queues.consume_queue import QueueKey
from rockoon_broker.store.queues.consume_queues import ConsumeQueues
from rockoon_format.consume_queue import EntryArray, encode_entries
from rockoon_format.names import topic_fault

log = logging.getLogger(__name__)

# With more runs in a chunk, the entries of each queue are grouped first.
RUNS_UNSORTED_MAX = 32


@dataclass(frozen=True, slots=True)
class EntryRun:
    """Consecutive entries of one queue, in log order."""

    key: QueueKey
    first_offset: int
    """Queue offset of the first entry."""
    entries: EntryArray

    def below(self, end: int) -> "EntryRun":
        """Return the entries of records that begin below a physical offset."""
        count = int(np.searchsorted(self.entries["offset"].astype(np.int64), end))
        return replace(self, entries=self.entries[:count])

    def without_first(self, count: int) -> "EntryRun":
        """Return the run without its first `count` entries."""
        return EntryRun(self.key, self.first_offset + count, self.entries[count:])


class Numbers:
    """Expected next offset of each queue after records that are not counted yet.

    Args:
        queues: state before these records.
        begins_anywhere: a queue without offsets may begin at any: the log was not copied from its
            beginning.
    """

    def __init__(self, queues: ConsumeQueues, *, begins_anywhere: bool = False) -> None:
        self._queues = queues
        self._begins_anywhere = begins_anywhere
        self._next: dict[QueueKey, int] = {}
        self._renewed: set[str] = set()

    def continues(self, run: EntryRun) -> bool:
        """Count a run; return whether it continues its queue without a gap."""
        expected = self._next.get(run.key)
        if expected is None:
            queue = None if run.key[0] in self._renewed else self._queues.find(*run.key)
            expected = queue.next_offset if queue else 0
            if self._begins_anywhere and not expected:
                expected = run.first_offset
        self._next[run.key] = run.first_offset + len(run.entries)
        return run.first_offset == expected

    def restart(self, topics: Collection[str]) -> None:
        """Restart the queues of some topics at offset 0.

        Keeps the counts of all other topics, including those restarted earlier.
        """
        self._renewed.update(topics)
        self._next = {key: at for key, at in self._next.items() if key[0] not in topics}


def parted(
    chunk: ScannedChunk, renewals: Sequence[Renewal]
) -> Iterator[tuple[ScannedChunk, Renewal | None]]:
    """Split a chunk before each record after which topics restart.

    Args:
        renewals: the renewals among them, in log order.

    Yields:
        Records, and the renewal that begins the next part; parts may be empty.
    """
    if not renewals:
        yield chunk, None
        return
    physical = chunk.records.offsets + chunk.base
    cuts = np.searchsorted(physical, [each.first for each in renewals]).tolist()
    bounds = itertools.pairwise([0, *cuts, len(physical)])
    for (first, end), renewal in zip(bounds, [*renewals, None], strict=True):
        yield replace(chunk, records=chunk.records.between(first, end)), renewal


def entry_runs(chunk: ScannedChunk, marks: Mapping[str, int]) -> Iterator[EntryRun]:
    """Split a chunk's records into runs, in log order per queue; a queue may have several.

    Args:
        marks: topic to the physical offset below which its records are deleted.
    """
    records = chunk.records
    if not records.count:
        return
    physical = records.offsets + chunk.base
    # A damaged name must not stop the scan; no valid topic has the replacement character.
    topics = [topic.decode(errors="replace") for topic in records.topics]
    floors = np.array([marks.get(topic, 0) for topic in topics], np.int64)
    is_listed = records.has_queue_entry & (physical >= floors[records.topic_numbers])
    if is_listed.all():
        # Mostly whole batches: split where they end, without sorting.
        firsts = _run_firsts(records.topic_numbers, records.queue_ids, records.queue_offsets)
        if len(firsts) <= RUNS_UNSORTED_MAX:
            entries = encode_entries(physical, records.sizes, records.tag_codes)
            for first, end in itertools.pairwise([*firsts, records.count]):
                topic = topics[int(records.topic_numbers[first])]
                key = (topic, int(records.queue_ids[first]))
                yield EntryRun(key, int(records.queue_offsets[first]), entries[first:end])
            return
    listed = np.flatnonzero(is_listed)
    if len(listed) == 0:
        return
    # A stable sort keeps each queue in log order.
    order = listed[np.lexsort((records.queue_ids[listed], records.topic_numbers[listed]))]
    numbers = records.topic_numbers[order]
    queue_ids = records.queue_ids[order]
    offsets = records.queue_offsets[order]
    entries = encode_entries(physical[order], records.sizes[order], records.tag_codes[order])
    firsts = _run_firsts(numbers, queue_ids, offsets)
    for first, end in itertools.pairwise([*firsts, len(order)]):
        key = (topics[int(numbers[first])], int(queue_ids[first]))
        yield EntryRun(key, int(offsets[first]), entries[first:end])


def _run_firsts(
    topic_numbers: NDArray[np.int64], queue_ids: NDArray[np.int64], offsets: NDArray[np.int64]
) -> list[int]:
    """Return the start indices of runs among one or more records."""
    breaks = topic_numbers[1:] != topic_numbers[:-1]
    breaks |= queue_ids[1:] != queue_ids[:-1]
    breaks |= offsets[1:] != offsets[:-1] + 1
    firsts: list[int] = (np.flatnonzero(breaks) + 1).tolist()
    return [0, *firsts]


def first_break(
    chunk: ScannedChunk,
    runs: Iterable[EntryRun],
    numbers: Numbers,
    newest_ms: int,
    file_bytes: int,
) -> int | None:
    """Return where records no longer continue the store, even if each one is intact.

    Records without checksums are verified only by their bodies. Records that this store appended
    after its own recovery point continue the log and each queue without a gap; a record that
    does not is damaged.

    Args:
        chunk: records that follow the listed or counted ones.
        runs: `entry_runs` of the chunk.
        numbers: state before the chunk.
        newest_ms: store time of the record before the chunk.
        file_bytes: CommitLog file size. Store times may decrease where a file begins.

    Returns:
        Physical offset of the first record that cannot be valid; None if all can.
    """
    records = chunk.records
    physical = records.offsets + chunk.base
    times_ms = records.store_timestamps_ms
    # Store times never decrease within a file (ADR 33); such a record was not appended here.
    before_ms = np.concatenate(([newest_ms], times_ms[:-1]))
    goes_back = (times_ms < before_ms) & (physical % file_bytes != 0)
    wrong = physical[(records.physical_offsets != physical) | goes_back].tolist()
    for run in runs:
        nameless = topic_fault(run.key[0]) is not None or run.key[1] < 0
        if not numbers.continues(run) or nameless:
            wrong.append(int(run.entries["offset"][0]))
    return min(wrong, default=None)


def empty_contradicted_queues(
    chunk: ScannedChunk, queues: ConsumeQueues, marks: Mapping[str, int], log_min: int
) -> None:
    """Empty queues that have only entries of deleted records and whose offsets contradict the log.

    Entries of deleted records cannot be verified, but the queue's next record states its offset.

    Args:
        chunk: records that follow those listed in `queues`.
        log_min: physical offset of the oldest kept byte.
    """
    seen: set[QueueKey] = set()
    for run in entry_runs(chunk, marks):
        queue = queues.find(*run.key)
        if run.key in seen or queue is None:
            continue
        seen.add(run.key)
        if queue.next_offset != run.first_offset and queues.is_all_below(queue, log_min):
            log.warning(
                "rebuilding queue %d of %s from the log: it ends at offset %d, but the next record "
                "has another offset",
                queue.queue_id,
                queue.topic,
                queue.max_offset,
            )
            queues.empty(queue)


def dispatch_runs(
    runs: Iterable[EntryRun], queues: ConsumeQueues, end: int | None = None
) -> list[QueueKey]:
    """Write entries, or those of records below `end`, to their queues.

    Returns:
        The queues that received entries; may contain duplicates.
    """
    advanced: list[QueueKey] = []
    for run in runs:
        entries = _below(run, end)
        if len(entries):
            queues.write(queues.find_or_create(*run.key), run.first_offset, entries.tobytes())
            advanced.append(run.key)
    return advanced


def count_runs(runs: Iterable[EntryRun], queues: ConsumeQueues, end: int | None = None) -> None:
    """Advance queues' next offsets past records, or those below `end`, that are not listed yet."""
    for run in runs:
        entries = _below(run, end)
        if len(entries):
            queue = queues.find_or_create(*run.key)
            # Otherwise two messages would get one offset (RocketMQ 7689).
            queue.next_offset = max(queue.next_offset, run.first_offset + len(entries))


def _below(run: EntryRun, end: int | None) -> EntryArray:
    """Return the entries of a run whose records are below a physical offset."""
    if end is None:
        return run.entries
    return run.below(end).entries
