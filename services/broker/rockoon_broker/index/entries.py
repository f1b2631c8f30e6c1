"""From records of the log to what the index holds of them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rockoon_broker.store.log_reading import LogChunk
from rockoon_format.index_file import index_entries
from rockoon_format.properties import decode_text


@dataclass(frozen=True, slots=True)
class KeyEntries:
    """Keys in the order in which they are put, as columns of k items."""

    hashes: NDArray[np.int64]
    offsets: NDArray[np.int64]
    """Physical offset of each key's record, never descending."""
    timestamps_ms: NDArray[np.int64]
    """Its store time."""

    def __len__(self) -> int:
        return len(self.hashes)

    def behind(self, count: int) -> "KeyEntries":
        """All but the first `count`."""
        return KeyEntries(self.hashes[count:], self.offsets[count:], self.timestamps_ms[count:])


def entries_of(chunk: LogChunk) -> KeyEntries:
    """The keys of some records: of each record its unique key first, then those of KEYS."""
    records, frames = chunk.records, chunk.frames
    starts = records.properties_starts
    ends = starts + records.properties_lengths
    numbers, hashes = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for topic_number, topic in enumerate(records.topics):
        of_topic = np.flatnonzero(records.topic_numbers == topic_number)
        sections = [
            frames[start:end]
            for start, end in zip(starts[of_topic].tolist(), ends[of_topic].tolist(), strict=True)
        ]
        found, found_hashes = index_entries(
            decode_text(topic), sections, records.sys_flags[of_topic]
        )
        numbers.append(of_topic[found])
        hashes.append(found_hashes)
    together = np.concatenate(numbers)
    order = np.argsort(together, kind="stable")
    record_numbers = together[order]
    return KeyEntries(
        hashes=np.concatenate(hashes)[order],
        offsets=records.offsets[record_numbers] + chunk.start,
        timestamps_ms=records.store_timestamps_ms[record_numbers],
    )
