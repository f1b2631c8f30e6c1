"""From scanned records to ConsumeQueue entries, as recovery needs it."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from rockoon_broker.store.log.scan import Chunk
from rockoon_broker.store.queues.consume_queue import ConsumeQueue, ConsumeQueues, QueueKey
from rockoon_format.consume_queue import EntryArray, encode_entries
from rockoon_format.names import topic_fault


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


def entry_runs(chunk: Chunk, marks: Mapping[str, int]) -> Iterator[EntryRun]:
    """Cut a chunk's records into runs, in log order within each queue.

    Args:
        chunk: records as scanned.
        marks: topics whose records below a physical offset do not exist.
    """
    records = chunk.records
    physical = records.offsets + chunk.base
    # A damaged name must not stop the walk; no topic has the replacement character in it.
    topics = [topic.decode(errors="replace") for topic in records.topics]
    floors = np.array([marks.get(topic, 0) for topic in topics], np.int64)
    listed = np.flatnonzero(records.has_queue_entry & (physical >= floors[records.topic_numbers]))
    if len(listed) == 0:
        return
    # Stable, so that each queue keeps the order of the log.
    order = listed[np.lexsort((records.queue_ids[listed], records.topic_numbers[listed]))]
    numbers = records.topic_numbers[order]
    queue_ids = records.queue_ids[order]
    offsets = records.queue_offsets[order]
    entries = encode_entries(physical[order], records.sizes[order], records.tag_codes[order])
    breaks = (np.diff(numbers) != 0) | (np.diff(queue_ids) != 0) | (np.diff(offsets) != 1)
    firsts = [0, *(np.flatnonzero(breaks) + 1).tolist(), len(order)]
    for first, end in itertools.pairwise(firsts):
        key = (topics[int(numbers[first])], int(queue_ids[first]))
        yield EntryRun(key, int(offsets[first]), entries[first:end])


def first_break(
    chunk: Chunk,
    runs: Iterable[EntryRun],
    queues: ConsumeQueues,
    newest_ms: int,
    file_bytes: int,
    *,
    begins_anywhere: bool = False,
) -> int | None:
    """Where records stop being a continuation of the store, though each looks whole by itself.

    Without checksums their bodies alone are proved. What this store appended behind its own
    recovery point goes on exactly where the log and each queue were, so a record that does not is
    damaged.

    Args:
        chunk: records that follow what `queues` already hold, or have counted.
        runs: `entry_runs` of it.
        queues: as they are before the chunk is dispatched or counted.
        newest_ms: store time of the record before the chunk.
        file_bytes: size of a CommitLog file. Where one begins, store times may go back.
        begins_anywhere: a queue without numbers may begin with any: the log was not copied from its
            very beginning.

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
    expected: dict[QueueKey, int] = {}
    for run in runs:
        if run.key not in expected:
            queue = queues.find(*run.key)
            begins = begins_anywhere and (queue is None or not queue.next_offset)
            expected[run.key] = run.first_offset if begins else queue.next_offset if queue else 0
        nameless = topic_fault(run.key[0]) is not None or run.key[1] < 0
        if nameless or run.first_offset != expected[run.key]:
            wrong.append(int(run.entries["offset"][0]))
        expected[run.key] = run.first_offset + len(run.entries)
    return min(wrong, default=None)


def contradicted_queues(
    chunk: Chunk, queues: ConsumeQueues, marks: Mapping[str, int], log_min: int
) -> list[ConsumeQueue]:
    """Queues whose entries are all of records that are gone, and whose numbers the log belies.

    What is gone proves nothing, but the next record of the queue says its number.

    Args:
        chunk: records that follow what `queues` already hold.
        log_min: physical offset of the oldest byte that is kept.
    """
    seen: set[QueueKey] = set()
    found = []
    for run in entry_runs(chunk, marks):
        queue = queues.find(*run.key)
        if run.key in seen or queue is None:
            continue
        seen.add(run.key)
        if queue.next_offset != run.first_offset and queues.is_all_below(queue, log_min):
            found.append(queue)
    return found


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
