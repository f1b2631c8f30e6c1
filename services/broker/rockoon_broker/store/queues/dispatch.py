"""From scanned records to ConsumeQueue entries, as recovery needs it."""

import itertools
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rockoon_broker.store.log.epochs import Renewal
from rockoon_broker.store.log.scan import Chunk
from rockoon_broker.store.queues.consume_queue import QueueKey
from rockoon_broker.store.queues.consume_queues import ConsumeQueues
from rockoon_format.consume_queue import EntryArray, encode_entries
from rockoon_format.names import topic_fault

log = logging.getLogger(__name__)

# In a chunk; of more, those of each queue are put together first.
RUNS_UNSORTED_MAX = 32


@dataclass(frozen=True, slots=True)
class EntryRun:
    """Consecutive entries of one queue, in the order of the log."""

    key: QueueKey
    first_offset: int
    """Queue offset of the first entry."""
    entries: EntryArray

    def below(self, end: int) -> "EntryRun":
        """The entries of records that begin below a physical offset."""
        count = int(np.searchsorted(self.entries["offset"].astype(np.int64), end))
        return replace(self, entries=self.entries[:count])

    def behind(self, count: int) -> "EntryRun":
        """Without the first ones."""
        return EntryRun(self.key, self.first_offset + count, self.entries[count:])


class Numbers:
    """Which number the next record of each queue bears, behind records that are not counted yet.

    Args:
        queues: as they are before these records.
        begins_anywhere: a queue without numbers may begin with any: the log was not copied from its
            very beginning.
    """

    def __init__(self, queues: ConsumeQueues, *, begins_anywhere: bool = False) -> None:
        self._queues = queues
        self._begins_anywhere = begins_anywhere
        self._next: dict[QueueKey, int] = {}
        self._renewed: set[str] = set()

    def go_on(self, run: EntryRun) -> bool:
        """Count a run; returns whether it goes on where its queue was."""
        expected = self._next.get(run.key)
        if expected is None:
            queue = None if run.key[0] in self._renewed else self._queues.find(*run.key)
            expected = queue.next_offset if queue else 0
            if self._begins_anywhere and not expected:
                expected = run.first_offset
        self._next[run.key] = run.first_offset + len(run.entries)
        return run.first_offset == expected

    def begin_anew(self, topics: Collection[str]) -> None:
        """Have the queues of some topics begin at offset 0.

        What was counted of others stays, also of those that began anew before.
        """
        self._renewed.update(topics)
        self._next = {key: at for key, at in self._next.items() if key[0] not in topics}


def parted(chunk: Chunk, renewals: Sequence[Renewal]) -> Iterator[tuple[Chunk, Renewal | None]]:
    """Cut a chunk before each record behind which topics begin anew.

    Args:
        chunk: records as scanned.
        renewals: those among them, in their order.

    Yields:
        Records, and what the next part begins with; parts may be without records.
    """
    if not renewals:
        yield chunk, None
        return
    physical = chunk.records.offsets + chunk.base
    cuts = np.searchsorted(physical, [each.first for each in renewals]).tolist()
    bounds = itertools.pairwise([0, *cuts, len(physical)])
    for (first, end), renewal in zip(bounds, [*renewals, None], strict=True):
        yield replace(chunk, records=chunk.records.between(first, end)), renewal


def entry_runs(chunk: Chunk, marks: Mapping[str, int]) -> Iterator[EntryRun]:
    """Cut a chunk's records into runs, in log order within each queue; one may have several.

    Args:
        chunk: records as scanned.
        marks: topics whose records below a physical offset do not exist.
    """
    records = chunk.records
    if not records.count:
        return
    physical = records.offsets + chunk.base
    # A damaged name must not stop the walk; no topic has the replacement character in it.
    topics = [topic.decode(errors="replace") for topic in records.topics]
    floors = np.array([marks.get(topic, 0) for topic in topics], np.int64)
    is_listed = records.has_queue_entry & (physical >= floors[records.topic_numbers])
    if is_listed.all():
        # Mostly whole batches: cut where they end, without putting anything in order.
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
    # Stable, so that each queue keeps the order of the log.
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
    """Where runs begin among records, of which there is one at least."""
    breaks = topic_numbers[1:] != topic_numbers[:-1]
    breaks |= queue_ids[1:] != queue_ids[:-1]
    breaks |= offsets[1:] != offsets[:-1] + 1
    firsts: list[int] = (np.flatnonzero(breaks) + 1).tolist()
    return [0, *firsts]


def first_break(
    chunk: Chunk,
    runs: Iterable[EntryRun],
    numbers: Numbers,
    newest_ms: int,
    file_bytes: int,
) -> int | None:
    """Where records stop being a continuation of the store, though each looks whole by itself.

    Without checksums their bodies alone are proved. What this store appended behind its own
    recovery point goes on exactly where the log and each queue were, so a record that does not is
    damaged.

    Args:
        chunk: records that follow what queues already hold, or have counted.
        runs: `entry_runs` of it.
        numbers: as they are before the chunk.
        newest_ms: store time of the record before the chunk.
        file_bytes: size of a CommitLog file. Where one begins, store times may go back.

    Returns:
        Physical offset of the first record that cannot be right, None if all can.
    """
    records = chunk.records
    physical = records.offsets + chunk.base
    times_ms = records.store_timestamps_ms
    # Store times never fall within a file (ADR 33): one whose time does was not appended here.
    before_ms = np.concatenate(([newest_ms], times_ms[:-1]))
    goes_back = (times_ms < before_ms) & (physical % file_bytes != 0)
    wrong = physical[(records.physical_offsets != physical) | goes_back].tolist()
    for run in runs:
        nameless = topic_fault(run.key[0]) is not None or run.key[1] < 0
        if not numbers.go_on(run) or nameless:
            wrong.append(int(run.entries["offset"][0]))
    return min(wrong, default=None)


def empty_contradicted_queues(
    chunk: Chunk, queues: ConsumeQueues, marks: Mapping[str, int], log_min: int
) -> None:
    """Empty queues with entries of records that are gone alone, whose numbers the log belies.

    What is gone proves nothing, but the next record of the queue says its number.

    Args:
        chunk: records that follow what `queues` already hold.
        log_min: physical offset of the oldest byte that is kept.
    """
    seen: set[QueueKey] = set()
    for run in entry_runs(chunk, marks):
        queue = queues.find(*run.key)
        if run.key in seen or queue is None:
            continue
        seen.add(run.key)
        if queue.next_offset != run.first_offset and queues.is_all_below(queue, log_min):
            log.warning(
                "queue %d of %s is made again from the log: it ends at %d, and the log goes on at "
                "another number",
                queue.queue_id,
                queue.topic,
                queue.max_offset,
            )
            queues.empty(queue)


def dispatch_runs(
    runs: Iterable[EntryRun], queues: ConsumeQueues, end: int | None = None
) -> list[QueueKey]:
    """Write entries, or those of records below `end`, into their queues.

    Returns:
        The queues that have got entries; one may be there twice.
    """
    advanced: list[QueueKey] = []
    for run in runs:
        entries = _below(run, end)
        if len(entries):
            queues.write(queues.find_or_create(*run.key), run.first_offset, entries)
            advanced.append(run.key)
    return advanced


def count_runs(runs: Iterable[EntryRun], queues: ConsumeQueues, end: int | None = None) -> None:
    """Have queues' numbers go on behind records, or those below `end`, which are not listed yet."""
    for run in runs:
        entries = _below(run, end)
        if len(entries):
            queue = queues.find_or_create(*run.key)
            # Given out twice, one number would be of two messages (RocketMQ 7689).
            queue.next_offset = max(queue.next_offset, run.first_offset + len(entries))


def _below(run: EntryRun, end: int | None) -> EntryArray:
    """Entries of a run whose records lie below a physical offset."""
    if end is None:
        return run.entries
    return run.below(end).entries
