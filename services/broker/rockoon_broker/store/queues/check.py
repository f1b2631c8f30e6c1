"""Checks of ConsumeQueue entries against the records that they point to.

Entries have no checksum. But each lies behind the one before it, within the log, and its record
says the queue offset at which the entry stands.
"""

import numpy as np
from numpy.typing import NDArray

from rockoon_format import kernel
from rockoon_format.consume_queue import FILLER_SIZE, EntryArray
from rockoon_format.frames import locate
from rockoon_format.record import MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN

LMQ_PREFIX = "%LMQ%"
"""Queues of RocketMQ that list records of other topics, under numbers the records do not bear."""


def records_to_read(
    entries: EntryArray,
    log_min: int,
    log_end: int,
    file_bytes: int,
    messages_max: int,
    bytes_max: int,
) -> tuple[NDArray[np.int64], list[tuple[int, int]]] | None:
    """What one read gives of consecutive entries that are all wanted: sizes of records, int64[n],
    and the runs of neighbours among them, each from one physical offset to another.

    None where an entry among them is not plausible (`plausible_count`) or its record was deleted,
    and without the compiled kernel.

    Args:
        entries: one or more.
        log_min, log_end, file_bytes: as of `plausible_count`.
        messages_max: at most so many, 1 or more.
        bytes_max: at most so long, but for the first.
    """
    if kernel.native is None:
        return None
    bounds = (log_min, log_end, file_bytes, messages_max, bytes_max)
    found = kernel.native.records_to_read(entries.tobytes(), *bounds)
    if found is None:
        return None
    sizes, runs = found
    return np.frombuffer(sizes, np.int64), runs


def plausible_count(
    positions: NDArray[np.int64],
    sizes: NDArray[np.int64],
    log_min: int,
    log_end: int,
    file_bytes: int,
) -> int:
    """How many leading entries can be right, by themselves and in their order.

    Args:
        positions, sizes: of consecutive entries, none of them of a record that was deleted.
        log_min, log_end: physical offsets between which every record lies.
        file_bytes: no record crosses a multiple of it.
    """
    listed = np.flatnonzero(sizes != FILLER_SIZE)
    starts, lengths = positions[listed], sizes[listed]
    wrong = (lengths < RECORD_BYTES_MIN) | (starts < log_min) | (starts > log_end - lengths)
    wrong |= starts % file_bytes + lengths > file_bytes
    # Either of the two may be the wrong one.
    wrong[:-1] |= starts[:-1] + lengths[:-1] > starts[1:]
    return int(listed[wrong.argmax()]) if wrong.any() else len(positions)


def matching_count(
    frames: bytes,
    lengths: NDArray[np.int64],
    topic: str,
    queue_id: int,
    queue_offsets: NDArray[np.int64],
) -> int:
    """How many leading records are what their entries' places say, and whole: readers can take each
    apart.

    Args:
        frames: back-to-back bytes that the entries point to.
        lengths: of each in bytes, n >= 1, at least 91.
        topic, queue_id, queue_offsets: what they should say themselves; the topic of the first is
            looked at, since what exchanges whole queues exchanges all their entries.
    """
    if kernel.native is not None:
        own = b"" if topic.startswith(LMQ_PREFIX) else topic.encode()
        found: int = kernel.native.matching(
            frames, lengths.tobytes(), queue_offsets.tobytes(), own, queue_id
        )
        return found
    parts = locate(frames, np.cumsum(lengths) - lengths)
    magics = parts.prefix["magic"]
    right = (parts.prefix["size"] == lengths) & ((magics == MAGIC_V1) | (magics == MAGIC_V2))
    # Where a length inside of a record is damaged nobody can tell what else is in it.
    right &= (parts.computed_sizes == lengths) & (parts.topic_lengths >= 0)
    if not topic.startswith(LMQ_PREFIX):
        right &= parts.prefix["queue_id"] == queue_id
        right &= parts.prefix["queue_offset"] == queue_offsets
        at = int(parts.topic_starts[0])
        if frames[at : at + max(int(parts.topic_lengths[0]), 0)] != topic.encode():
            right[0] = False
    return len(lengths) if right.all() else int(right.argmin())
