"""Dispatch: adds queue entries of committed batches to the ConsumeQueues, so that readers see them.

Entries are added in log order. A ConsumeQueue may keep new entries in memory; `save` writes all of
them to files. A failed write is retried before all later entries.
"""

import errno
from collections import deque
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rockoon_broker.store.log.commit_log import CommitLog
from rockoon_broker.store.log.epochs import Renewal
from rockoon_broker.store.log.reading import read_chunk
from rockoon_broker.store.log.scan import WINDOW_BYTES, ScannedChunk
from rockoon_broker.store.queues.consume_queue import ConsumeQueue, QueueKey
from rockoon_broker.store.queues.consume_queues import ConsumeQueues
from rockoon_broker.store.queues.dispatch import EntryRun, dispatch_runs, entry_runs
from rockoon_broker.store.queues.dropped_topics import DroppedTopics
from rockoon_broker.store.queues.tails import QueueTailCache

# Maximum number of queues without messages whose max offset is written in one tick. Each write
# creates a file, which blocks the event loop for some tenths of a millisecond.
NUMBERS_A_TICK_MAX = 100


class Undispatched(NamedTuple):
    """A batch in the log whose entries are not in its ConsumeQueue yet."""

    queue: ConsumeQueue | None
    """None if its topic was deleted: dispatch advances its end, but adds no entries."""
    first_queue_offset: int
    entries: bytes
    end_offset: int
    store_timestamp_ms: int
    frames: bytes = b""
    """Its records as stored, if they are few enough to be kept in memory; else empty."""


@dataclass(frozen=True, slots=True)
class UnreadRange:
    """A range of the log that was written before this start. Its records are read when their
    entries are due."""

    end_offset: int


@dataclass(frozen=True, slots=True)
class CopiedRecords:
    """Records copied from another replica's log, without queue entries yet."""

    end_offset: int
    """After the records and a blank that follows them, if there is one."""
    runs: Sequence[EntryRun]
    record_ends: NDArray[np.int64]
    """Physical end offset of each record, ascending, n."""
    store_timestamps_ms: NDArray[np.int64]
    """Store time of each record, n."""

    def below(self, end: int) -> "CopiedRecords | None":
        """Return the part whose records end at or before a physical offset; None if none does."""
        if end >= self.end_offset:
            return self
        count = int(np.searchsorted(self.record_ends, end, side="right"))
        if not count:
            return None
        reached = int(self.record_ends[count - 1])
        runs = [run.below(reached) for run in self.runs]
        return CopiedRecords(
            reached, runs, self.record_ends[:count], self.store_timestamps_ms[:count]
        )

    def after(self, first: "CopiedRecords") -> "CopiedRecords":
        """Return the part after `first`, a result of `below`."""
        count = len(first.record_ends)
        runs = [
            run.without_first(len(before.entries))
            for run, before in zip(self.runs, first.runs, strict=True)
        ]
        ends, times_ms = self.record_ends[count:], self.store_timestamps_ms[count:]
        return CopiedRecords(self.end_offset, runs, ends, times_ms)


class DispatchQueue:
    """The contiguous batches whose entries are not in the ConsumeQueues yet.

    Args:
        log: source of `UnreadRange` ranges.
        dropped: deleted topics, whose records have no entries.
        delay_levels_ms: see `scan`.
        end: physical offset up to which the log is already dispatched.
        store_timestamp_ms: store time of the newest message before `end`.
        renew: removes the former entries of topics that restart; False: retry later.
        tails: receives visible batches.

    Attributes:
        end: physical offset after the newest message that readers see.
        store_timestamp_ms: its store time.
        failure: error of the last write of entries; None if it succeeded.
    """

    def __init__(
        self,
        queues: ConsumeQueues,
        log: CommitLog,
        dropped: DroppedTopics,
        delay_levels_ms: Sequence[int],
        end: int,
        store_timestamp_ms: int,
        renew: Callable[[Renewal], bool],
        tails: QueueTailCache,
    ) -> None:
        self.end = end
        self.store_timestamp_ms = store_timestamp_ms
        self._write_failure: OSError | None = None
        self._save_failure: OSError | None = None
        self.failure: OSError | None = None
        self._tails = tails
        self._queues = queues
        self._log = log
        self._dropped = dropped
        self._delay_levels_ms = delay_levels_ms
        self._renew = renew
        self._waiting: deque[Undispatched | CopiedRecords | UnreadRange | Renewal] = deque()

    @property
    def pending(self) -> int:
        """Number of waiting batches, plus queues whose max offset is in no file yet."""
        return len(self._waiting) + self._queues.unwritten

    def is_behind(self, end: int) -> bool:
        """Return whether entries before a physical offset, or queues' max offsets, are
        unwritten."""
        return self.end < end or self._queues.unwritten > 0

    def add(self, batch: Undispatched | CopiedRecords | Renewal) -> None:
        """Add the next records of the log. If topics restart at a record, their `Renewal` is added
        first, so that no recovery point includes the record before the renewal is done."""
        self._waiting.append(batch)

    def add_unread(self, end: int, renewals: Iterable[Renewal]) -> None:
        """Add an opened log's range up to a physical offset, with its renewals."""
        at = self.end
        for renewal in renewals:
            if renewal.first > at:
                self._waiting.append(UnreadRange(renewal.first))
            self._waiting.append(renewal)
            at = renewal.first
        if end > at:
            self._waiting.append(UnreadRange(end))

    def drop(self, topics: Container[str]) -> None:
        """Skip the entries of waiting batches of deleted topics."""
        self._tails.drop_topics(topics)

        def without(
            each: Undispatched | CopiedRecords | UnreadRange | Renewal,
        ) -> Undispatched | CopiedRecords | UnreadRange | Renewal:
            if isinstance(each, Undispatched) and each.queue and each.queue.topic in topics:
                return each._replace(queue=None)
            if isinstance(each, CopiedRecords):
                return replace(each, runs=[run for run in each.runs if run.key[0] not in topics])
            return each

        self._waiting = deque(map(without, self._waiting))

    def dispatch(self, end: int) -> list[QueueKey]:
        """Add the entries of batches up to a physical offset to their ConsumeQueues.

        A failed write is retried by the next call; `failure` has the error.

        Returns:
            The queues that received entries.
        """
        advanced: dict[QueueKey, None] = {}
        waiting = self._waiting
        try:
            while waiting and self.end < end:
                batch = waiting[0]
                if isinstance(batch, Undispatched):
                    queue, first, entries, batch_end, stored_ms, frames = batch
                    if batch_end > end:
                        break
                    if queue is not None:
                        self._queues.write(queue, first, entries)
                        self._tails.add(queue, first, entries, frames)
                        advanced[queue.key] = None
                    # After its entries: a batch stays until they are written.
                    waiting.popleft()
                    # Readers see the log up to here, so it never passes an unwritten entry.
                    self.end = batch_end
                    self.store_timestamp_ms = stored_ms
                elif isinstance(batch, Renewal):
                    if batch.end > end or not self._renew(batch):
                        break
                    self._tails.drop_topics(batch.topics)
                    waiting.popleft()
                elif isinstance(batch, UnreadRange):
                    self._dispatch_unread(min(batch.end_offset, end), advanced)
                    if self.end == batch.end_offset:
                        waiting.popleft()
                else:
                    committed = batch.below(end)
                    if committed is None:
                        break
                    self._dispatch_copied(batch, committed, advanced)
        except OSError as error:
            self._write_failure = self.failure = error
        else:
            self._write_failure, self.failure = None, self._save_failure
        return list(advanced)

    def save(self) -> bool:
        """Write all unsaved entries to files, as a recovery point requires; False if that fails."""
        try:
            self._queues.save()
        except OSError as error:
            self._save_failure = error
        else:
            self._save_failure = None
        self.failure = self._write_failure or self._save_failure
        return self._save_failure is None

    def tick(self, end: int) -> list[QueueKey]:
        """Like `dispatch`; then create files of some queues that have only a max offset."""
        advanced = self.dispatch(end)
        if self.failure is None:
            try:
                self._queues.write_numbers(NUMBERS_A_TICK_MAX)
            except OSError as error:
                self._write_failure = self.failure = error
        return advanced

    def _dispatch_copied(
        self, batch: CopiedRecords, committed: CopiedRecords, advanced: dict[QueueKey, None]
    ) -> None:
        """Write the entries of the committed part of copied records."""
        advanced.update(dict.fromkeys(dispatch_runs(committed.runs, self._queues)))
        if committed is batch:
            self._waiting.popleft()
        else:
            self._waiting[0] = batch.after(committed)
        self.end = committed.end_offset
        if len(committed.store_timestamps_ms):
            self.store_timestamp_ms = int(committed.store_timestamps_ms[-1])

    def _dispatch_unread(self, end: int, advanced: dict[QueueKey, None]) -> None:
        """Write the entries of log records up to a physical offset, at most one window."""
        read = read_chunk(
            self._log,
            self.end,
            end,
            WINDOW_BYTES,
            search_bytes_max=0,
            delay_levels_ms=self._delay_levels_ms,
        )
        if read.skipped_bytes or read.next_offset == self.end:
            # An error, not a skip: otherwise later messages would be visible but not this one.
            raise OSError(
                errno.EIO, f"the log is damaged at {self.end}; cannot list later messages"
            )
        chunk = ScannedChunk(read.start, read.records)
        runs = entry_runs(chunk, self._dropped.marks)
        advanced.update(dict.fromkeys(dispatch_runs(runs, self._queues)))
        if read.records.count:
            self.store_timestamp_ms = int(read.records.store_timestamps_ms[-1])
        self.end = read.next_offset
