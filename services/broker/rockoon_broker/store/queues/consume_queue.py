"""One queue's entries: 20 bytes each, one entry per record.

Entry N is at byte 20 N of the queue's files, which are sparse and of fixed size. There are many,
mostly idle queues: a queue costs a small object and no descriptor; open files are few and shared.

Invariants of a queue:
1. Entries [first of its files, `max_offset`) are valid and in log order.
2. All bytes after them are zero, including those in later files.
3. Entry N points to the record with queue offset N. Offsets without a record (below the first
   one, if a queue begins in the middle) have filler entries, which every reader skips.
4. The last `unsaved_count` entries are only in memory. No recovery point counts them.

Entries have no checksum. But each entry points past the record of the previous one, within the log,
and its record states the queue offset of the entry; `plausible_count` and `matching_count` check
this.
"""

import numpy as np
from numpy.typing import NDArray

from rockoon_format import kernel
from rockoon_format.consume_queue import FILLER_SIZE, EntryArray
from rockoon_format.frames import locate
from rockoon_format.record import MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN

LMQ_PREFIX = "%LMQ%"
"""RocketMQ's queues that list records of other topics, under offsets that the records do not
state."""


def records_to_read(
    entries: EntryArray,
    log_min: int,
    log_end: int,
    file_bytes: int,
    messages_max: int,
    bytes_max: int,
) -> tuple[NDArray[np.int64], list[tuple[int, int]]] | None:
    """Plan one read of consecutive entries: sizes of their records, int64[n], and the runs of
    adjacent records as (start, end) physical offsets.

    None: use the general path, for example because an entry is implausible (`plausible_count`) or
    its record was deleted.

    Args:
        entries: one or more.
        log_min, log_end, file_bytes: see `plausible_count`.
        messages_max: maximum number of records, 1 or more.
        bytes_max: maximum total size; the first record is always included.
    """
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
    """Return how many leading entries are plausible by themselves and in their order.

    Args:
        positions, sizes: columns of consecutive entries; no entry's record was deleted.
        log_min, log_end: physical offsets between which every record must be.
        file_bytes: CommitLog file size; no record crosses a multiple of it.
    """
    listed = np.flatnonzero(sizes != FILLER_SIZE)
    starts, lengths = positions[listed], sizes[listed]
    wrong = (lengths < RECORD_BYTES_MIN) | (starts < log_min) | (starts > log_end - lengths)
    wrong |= starts % file_bytes + lengths > file_bytes
    # Either entry of the pair may be wrong.
    wrong[:-1] |= starts[:-1] + lengths[:-1] > starts[1:]
    return int(listed[wrong.argmax()]) if wrong.any() else len(positions)


def matching_count(
    frames: bytes,
    lengths: NDArray[np.int64],
    topic: str,
    queue_id: int,
    queue_offsets: NDArray[np.int64],
) -> int:
    """Return how many leading records are complete and match their entries, so that readers can
    split the bytes into records.

    Args:
        frames: the bytes that the entries point to, back to back.
        lengths: size of each record in bytes, n >= 1, at least 91.
        topic, queue_id, queue_offsets: expected values. Only the first record's topic is
            checked, because a swap of whole queue files affects all entries.
    """
    own = b"" if topic.startswith(LMQ_PREFIX) else topic.encode()
    found: int | None = kernel.native.matching(
        frames, lengths.tobytes(), queue_offsets.tobytes(), own, queue_id
    )
    if found is not None:
        return found
    parts = locate(frames, np.cumsum(lengths) - lengths)
    magics = parts.prefix["magic"]
    right = (parts.prefix["size"] == lengths) & ((magics == MAGIC_V1) | (magics == MAGIC_V2))
    # If a length field inside a record is damaged, none of its fields can be trusted.
    right &= (parts.computed_sizes == lengths) & (parts.topic_lengths >= 0)
    if own:
        right &= parts.prefix["queue_id"] == queue_id
        right &= parts.prefix["queue_offset"] == queue_offsets
        at = int(parts.topic_starts[0])
        if frames[at : at + max(int(parts.topic_lengths[0]), 0)] != own:
            right[0] = False
    return len(lengths) if right.all() else int(right.argmin())


QueueKey = tuple[str, int]
"""Topic and queue id."""


class ConsumeQueue:
    """State of one queue. Only the owner's thread writes it, through `ConsumeQueues`."""

    __slots__ = (
        "file_first",
        "file_last",
        "key",
        "max_offset",
        "min_known_for",
        "min_offset",
        "next_offset",
        "queue_id",
        "topic",
        "unsaved_count",
    )

    def __init__(self, topic: str, queue_id: int) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.key: QueueKey = (topic, queue_id)
        self.file_first = 0
        """Number of the first file: its first entry is `file_first` times the entries per file."""
        self.file_last = -1
        """Number of the last file; -1 while there is none."""
        self.max_offset = 0
        """Offset after the last entry that readers see."""
        self.next_offset = 0
        """Offset of the next message to be appended; ahead of `max_offset` until the commit."""
        self.min_offset = 0
        """Offset of the first entry whose record still exists, if the log begins at
        `min_known_for`."""
        self.min_known_for = -1
        self.unsaved_count = 0
        """Number of trailing entries that are in no file yet."""

    @property
    def saved_offset(self) -> int:
        """Offset after the last entry that is in a file."""
        return self.max_offset - self.unsaved_count

    @property
    def has_files(self) -> bool:
        return self.file_last >= self.file_first
