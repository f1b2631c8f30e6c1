"""The pending queues of an open store: what waits is known again after any end of the process.

Each queue is worked out of the log: its entries are its ConsumeQueue's, and what is completed is
what later records name as their source (sources.py). A snapshot spares a start most of that
reading.

Invariants:
1. Everything completed is completed by a record in the log. So there is nothing to lose but time
   when a snapshot is missing, damaged or old: the log says it again.
2. A snapshot is taken of one moment, with the log's end at that moment, and written only when the
   log is durable up to there. Else a power cut could take a delivery back and keep the note of it.
3. A record completes what lies before it in the log, so nothing before the oldest pending entry has
   to be read, and nothing at all while none is pending.
4. Before `lead` it knows what was applied, so only what is committed.
"""

import logging
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rockoon_broker.applying import apply_rest
from rockoon_broker.pending.pending_queue import PendingQueue
from rockoon_broker.pending.snapshot import Snapshot, decode_snapshot, encode_snapshot
from rockoon_broker.pending.sources import sources_of
from rockoon_broker.store.log.reading import LogChunk
from rockoon_broker.store.queues.consume_queue import QueueKey
from rockoon_broker.store.store import Store
from rockoon_core.disk import Disk
from rockoon_format.consume_queue import EntryArray

log = logging.getLogger(__name__)

SNAPSHOT_FILE = "settledQueues"
SNAPSHOT_SECONDS = 10.0
# A start reads no more than this behind the snapshot, or than the snapshot is large.
UNCOVERED_BYTES_MAX = 64 << 20
# A large snapshot waits until the log has grown by this share of it.
GROWTH_SHARE_MIN = 0.25
ENTRIES_PER_READ = 16_384
NEAR_BYTES = 1 << 20

# Nothing is wrong with these: what a snapshot would have said is in the log.
_NO_SNAPSHOT = "there is no snapshot"
_ANOTHER_BROKER = "another broker has used the store since the snapshot was written"

Export = Callable[[], tuple[Path, bytes]]
"""A file that goes with the snapshot and what it holds now."""
Named = Callable[[LogChunk, NDArray[np.int64], NDArray[np.int64]], None]
"""Sees what is applied: a chunk, which of its records name a source, if any do, and the sources."""


@dataclass(frozen=True, slots=True)
class Captured:
    """A state to be written down once the log is durable up to what it covers."""

    snapshot: Snapshot
    exports: tuple[tuple[Path, bytes], ...]


class PendingIndex:
    """The pending queues of one store. Used by whoever owns the store, except for `write`.

    Add the queues and notes, `begin`, apply the log, and `lead`; from then on take in entries,
    append what is made out of them (naming them) and complete them. Let a snapshot be written now
    and then.

    Args:
        store: open.
        config: the store's config directory.
        disk: where the snapshot is written.

    Attributes:
        rebuilt_because: why the snapshot was of no use; empty when it was.
        bytes_applied: of the log, since `begin`.
    """

    def __init__(self, store: Store, config: Path, disk: Disk) -> None:
        self._store = store
        self._path = config / SNAPSHOT_FILE
        self._disk = disk
        self._queues: dict[QueueKey, PendingQueue] = {}
        self._notes: dict[str, tuple[Callable[[], bytes], Callable[[bytes], None]]] = {}
        self._exports: list[Export] = []
        self._named: list[Named] = []
        self.rebuilt_because = ""
        self.bytes_applied = 0
        # Up to where the log was applied; None from when whoever appends completes here at once.
        self._applied_end: int | None = 0
        # Of the newest capture, which may not be written yet.
        self._covered_end = 0
        self._snapshot_bytes = 0
        self._captured_at = 0.0
        self._waiting: Captured | None = None

    # Before `begin`.

    def add_queue(self, topic: str, queue_id: int) -> None:
        """Follow a queue. Nobody else may complete its entries."""
        self._queues[topic, queue_id] = PendingQueue()

    def add_note(
        self, name: str, write: Callable[[], bytes], read: Callable[[bytes], None]
    ) -> None:
        """Keep something else in the snapshot, which may get lost.

        Args:
            name: of the section, unlike a queue's "topic/number".
            write: what to keep, asked at each capture.
            read: called by `begin` with what was kept; not called when there is nothing. Raises
                ValueError or struct.error when that is of another form.
        """
        self._notes[name] = write, read

    def add_export(self, export: Export) -> None:
        """Write a file for others whenever a snapshot is written, of the same moment."""
        self._exports.append(export)

    def add_named(self, named: Named) -> None:
        """Look at what is applied, in the log's order."""
        self._named.append(named)

    def begin(self, completed_below: Mapping[QueueKey, int]) -> None:
        """Take the snapshot over; what the log has behind it is to be applied then.

        Args:
            completed_below: queue offsets below which another broker completed everything.

        Raises:
            OSError: the disk.
        """
        self.rebuilt_because = self._read_snapshot()
        if self.rebuilt_because and self._path.exists():
            # Once the log has grown, nothing would tell that it is of no use.
            self._disk.unlink(self._path)
            self._disk.sync_directory(self._path.parent)
        for key, queue in self._queues.items():
            below = completed_below.get(key, 0)
            # The other broker's note may count on a queue that a crash has shortened since: what is
            # stored in those places next is not completed.
            queue.complete_below(min(below, self._store.max_offset(*key)))

    def load(self, completed_below: Mapping[QueueKey, int]) -> None:
        """See `begin`; may read the whole log."""
        self.begin(completed_below)
        apply_rest(self._store, [self])
        self.lead()

    # Before this broker leads.

    def lacks_from(self) -> int:
        """Take in what readers see of the queues, and say from where the log is needed; see
        `Derived`."""
        assert self._applied_end is not None, "who appends completes"
        end = self._store.visible_end
        for key, queue in self._queues.items():
            first_new = queue.next_offset
            while (found := self.new_entries(key)) is not None:
                queue.take_in(*found)
            if queue.next_offset == first_new:
                continue
            new = queue.pending_from(first_new)
            if len(new):
                # A snapshot was made before these were seen; what completed them is behind them.
                self._applied_end = min(self._applied_end, int(new.positions[0]))
        oldest = [each.oldest_position for each in self._queues.values()]
        first = min((each for each in oldest if each is not None), default=end)
        # Nothing completes what lies behind it. What is near is read for others as well.
        if first == end or first - self._applied_end > NEAR_BYTES:
            self._applied_end = max(self._applied_end, first)
        return self._applied_end

    def apply(self, chunk: LogChunk) -> None:
        """Complete what the records of a piece of the log name; see `Derived`."""
        if chunk.skipped_bytes:
            log.error(
                "%d bytes of the log before offset %d are damaged: what they completed is done "
                "again",
                chunk.skipped_bytes,
                chunk.next_offset,
            )
        self.bytes_applied += len(chunk.frames)
        indices, sources = sources_of(chunk.frames, chunk.records)
        intact = chunk.intact(indices)
        if len(intact) < len(indices):
            log.error(
                "%d records before offset %d of the log are damaged: what they completed is done "
                "again",
                len(indices) - len(intact),
                chunk.next_offset,
            )
            indices, sources = intact, sources[np.isin(indices, intact)]
        for queue in self._queues.values():
            queue.complete(sources)
        for named in self._named:
            named(chunk, indices, sources)
        self._applied_end = chunk.next_offset

    def lead(self) -> None:
        """Whoever appends completes here from now on; all that readers see was applied."""
        self._applied_end = None
        self._covered_end = self._store.visible_end
        reason, pending = self.rebuilt_because, sum(map(len, self._queues.values()))
        if reason and (pending or self.bytes_applied):
            log.log(
                logging.INFO if reason in (_NO_SNAPSHOT, _ANOTHER_BROKER) else logging.WARNING,
                "what waits was worked out of %d bytes of log, because %s: %d messages",
                self.bytes_applied,
                reason,
                pending,
            )

    @property
    def _known_end(self) -> int:
        """Physical offset up to which it is known here what the log completes."""
        return self._store.appended_end if self._applied_end is None else self._applied_end

    # While the store is open.

    def queue(self, topic: str, queue_id: int) -> PendingQueue:
        """A queue that was added."""
        return self._queues[topic, queue_id]

    def waiting_below(self, position: int) -> int:
        """How many entries wait whose records begin before a physical offset."""
        return sum(len(each.pending_before(position).positions) for each in self._queues.values())

    def new_entries(self, key: QueueKey) -> tuple[int, EntryArray] | None:
        """Entries of a queue that were not taken in; some of them if they are many.

        Returns:
            The first one's queue offset and the entries, for `PendingQueue.take_in`; None if there
            are none. What retention has deleted is passed over.

        Raises:
            OSError: the disk.
        """
        queue = self._queues[key]
        end = self._store.max_offset(*key)
        while queue.next_offset < end:
            offset = max(queue.next_offset, self._store.min_offset(*key))
            entries = self._store.entries(*key, offset, ENTRIES_PER_READ)
            if len(entries):
                return offset, entries
            # Everything is deleted, or somebody has deleted a file of the queue.
            queue.skip_to(min(offset + 1, end))
        return None

    @property
    def wants_capture(self) -> bool:
        """Whether the state is to be written down, at once or before long, as the log is now."""
        grown = self._known_end - self._covered_end
        return self._waiting is not None or (grown > 0 and self._is_worth(grown))

    def _is_worth(self, grown_bytes: int) -> bool:
        return grown_bytes >= self._snapshot_bytes * GROWTH_SHARE_MIN

    def capture_if_due(self, now_seconds: float) -> None:
        """Note the state, when it is time to write it down.

        Args:
            now_seconds: monotonic.
        """
        grown = self._known_end - self._covered_end
        if grown <= 0 or self._waiting is not None:
            return
        elapsed = now_seconds - self._captured_at
        if (elapsed >= SNAPSHOT_SECONDS and self._is_worth(grown)) or grown >= max(
            UNCOVERED_BYTES_MAX, self._snapshot_bytes
        ):
            self._captured_at = now_seconds
            self._waiting = self.capture()

    def take_durable(self) -> Captured | None:
        """The noted state, once, when the log is durable as far as it covers: `write` it now."""
        waiting = self._waiting
        # See "a snapshot never knows more than the disk" in docs/understand/architecture.md.
        if waiting is None or waiting.snapshot.covered_end > self._store.settled_end:
            return None
        self._waiting = None
        return waiting

    def capture(self) -> Captured:
        """The state of this moment. It may be written when the log is durable up to its end."""
        sections = {section_of(key): queue.to_bytes() for key, queue in self._queues.items()}
        sections |= {name: write() for name, (write, _) in self._notes.items()}
        # The same moment as the sections above: nothing awaits in between.
        self._covered_end = self._known_end
        self._snapshot_bytes = sum(map(len, sections.values()))
        snapshot = Snapshot(self._store.recovery.lineage, self._covered_end, sections)
        return Captured(snapshot, tuple(export() for export in self._exports))

    def write(self, captured: Captured) -> None:
        """Durably replace the snapshot and what goes with it; may be called from any thread.

        Raises:
            OSError: the old files are still there, which is as true as before.
        """
        for changed in self._disk.make_directory(self._path.parent):
            self._disk.sync_directory(changed)
        self._disk.replace_file(self._path, encode_snapshot(captured.snapshot))
        for path, content in captured.exports:
            self._disk.replace_file(path, content)

    # Inside.

    def _read_snapshot(self) -> str:
        """Take over the snapshot; returns why not, or an empty text."""
        if not self._path.exists():
            return _NO_SNAPSHOT
        try:
            snapshot = decode_snapshot(self._path.read_bytes())
            queues = {
                key: PendingQueue.from_bytes(snapshot.sections[section_of(key)])
                for key in self._queues
                if section_of(key) in snapshot.sections
            }
        except ValueError as error:
            return f"{self._path} cannot be used: {error}"
        # Another broker has written the store since; what it completed is not in this snapshot.
        if snapshot.lineage != self._store.recovery.lineage:
            return _ANOTHER_BROKER
        # A crash took back log that it counts on: it would call messages completed that wait.
        if snapshot.covered_end > self._store.appended_end:
            return f"{self._path} knows of a longer log"
        for key, queue in queues.items():
            if queue.next_offset > self._store.max_offset(*key):
                return f"{self._path} knows of more entries of queue {key[1]} of {key[0]}"
        for name, (_, read) in self._notes.items():
            if name in snapshot.sections:
                try:
                    read(snapshot.sections[name])
                except (ValueError, struct.error) as error:
                    return f"{self._path} cannot be used: {name}: {error}"
        # Last: of a snapshot that is refused nothing may count as completed.
        self._queues |= queues
        self._covered_end = self._applied_end = snapshot.covered_end
        return ""


def section_of(key: QueueKey) -> str:
    """Name of a queue's section."""
    return f"{key[0]}/{key[1]}"
