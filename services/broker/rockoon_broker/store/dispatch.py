"""From scanned records to ConsumeQueue entries, as recovery needs it."""

import itertools
from collections.abc import Iterator, Mapping

import numpy as np

from rockoon_broker.store.consume_queue import ConsumeQueues, QueueKey
from rockoon_broker.store.log_scan import Chunk
from rockoon_format.consume_queue import EntryArray, encode_entries


def entry_runs(
    chunk: Chunk, marks: Mapping[str, int]
) -> Iterator[tuple[QueueKey, int, EntryArray]]:
    """Cut a chunk into runs of consecutive entries of one queue, in log order within each queue.

    Args:
        chunk: records as scanned.
        marks: topics whose records below an offset do not exist.

    Yields the queue, the queue offset of the run's first entry, and the entries.
    """
    records = chunk.records
    physical = records.offsets + chunk.base
    topics = [topic.decode() for topic in records.topics]
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
        yield key, int(offsets[first]), entries[first:end]


def dispatch(chunk: Chunk, queues: ConsumeQueues, marks: Mapping[str, int]) -> None:
    """Write a chunk's entries into their queues."""
    for (topic, queue_id), first_offset, entries in entry_runs(chunk, marks):
        queues.write(queues.find_or_create(topic, queue_id), first_offset, entries)
