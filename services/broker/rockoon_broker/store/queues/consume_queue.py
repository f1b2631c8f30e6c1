"""One queue's entries: 20 bytes each, one entry per record.

Entry N is at byte 20 N of the queue's files, which are sparse and of fixed size. There are many,
mostly idle queues: a queue costs a small object and no descriptor; open files are few and shared.

Invariants of a queue:
1. Entries [first of its files, `max_offset`) are valid and in log order.
2. All bytes after them are zero, including those in later files.
3. Entry N points to the record with queue offset N. Offsets without a record (below the first
   one, if a queue begins in the middle) have filler entries, which every reader skips.
4. The last `unsaved_count` entries are only in memory. No recovery point counts them.
"""

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
        """Offset of the next message to be appended; ahead of `max_offset` until a sync."""
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
