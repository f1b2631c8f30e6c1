"""The pending queues of an open store, restored after any end of the process.

Each queue is derived from the log: its entries are those of its ConsumeQueue, and an entry is
completed by a later record that names it as its source (pending_queue.py). A snapshot saves a start
from reading most of the log.

Invariants:
1. Every completion is a record in the log. So a missing, damaged or old snapshot costs only
   time: the log is read again.
2. A snapshot is a consistent state at one log end, and is written only when the log is durable up
   to there. Otherwise a power failure could lose a delivery but keep its completion.
3. A record completes only earlier ones, so records before the oldest pending entry need not
   be read, and none at all if nothing is pending.
4. Before `lead` it contains only applied, and so only committed, completions.

The snapshot is one file, replaced as a whole; all numbers are little-endian. A damaged one, or one
of another history of the store, is discarded.

    magic 8 | lineage 16 | covered end 8 | number of sections 4
    for each section:   name length 2 | name | content length 8 | content
    CRC-32 of all before 4
"""

import logging
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rockoon_broker.applying import apply_rest
from rockoon_broker.pending.pending_queue import PendingQueue, sources_of
from rockoon_broker.store.log.reading import LogChunk
from rockoon_broker.store.queues.consume_queue import QueueKey
from rockoon_broker.store.store import Store
from rockoon_core.disk import Disk
from rockoon_format.consume_queue import EntryArray

_MAGIC = b"ROCKSTL1"
_HEAD = struct.Struct("<8s16sqI")
_NAME = struct.Struct("<H")
_CONTENT = struct.Struct("<Q")
_CRC = struct.Struct("<I")
assert _HEAD.size == 36


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A state, and the end of the log from which it was derived."""

    lineage: bytes
    """Lineage of the store (see store/recovery/checkpoint_files.py), 16 bytes."""
    covered_end: int
    """Physical offset up to which completions are included."""
    sections: Mapping[str, bytes]


def encode_snapshot(snapshot: Snapshot) -> bytes:
    pieces = [_HEAD.pack(_MAGIC, snapshot.lineage, snapshot.covered_end, len(snapshot.sections))]
    for name, content in snapshot.sections.items():
        raw = name.encode()
        pieces += [_NAME.pack(len(raw)), raw, _CONTENT.pack(len(content)), content]
    body = b"".join(pieces)
    return body + _CRC.pack(zlib.crc32(body))


def decode_snapshot(raw: bytes) -> Snapshot:
    """Decode the file's content. Raises ValueError: it is truncated, damaged or malformed; the
    message has the reason."""
    if len(raw) < _HEAD.size + _CRC.size or not raw.startswith(_MAGIC):
        raise ValueError("it is not a snapshot")
    end = len(raw) - _CRC.size
    if _CRC.unpack_from(raw, end)[0] != zlib.crc32(raw[:end]):
        raise ValueError("its checksum is wrong")
    _, lineage, covered_end, count = _HEAD.unpack_from(raw)
    sections: dict[str, bytes] = {}
    at = _HEAD.size
    try:
        for _ in range(count):
            (name_bytes,) = _NAME.unpack_from(raw, at)
            at += _NAME.size
            name = raw[at : at + name_bytes].decode()
            at += name_bytes
            (content_bytes,) = _CONTENT.unpack_from(raw, at)
            at += _CONTENT.size
            sections[name] = raw[at : at + content_bytes]
            at += content_bytes
    except (struct.error, UnicodeDecodeError) as error:
        raise ValueError(f"a section is malformed: {error}") from error
    if at != end:
        raise ValueError("its sections do not fill the file")
    return Snapshot(lineage, covered_end, sections)


log = logging.getLogger(__name__)

SNAPSHOT_FILE = "settledQueues"
SNAPSHOT_SECONDS = 10.0
# A start reads at most this much log after the snapshot, or as much as the snapshot's size.
UNCOVERED_BYTES_MAX = 64 << 20
# A large snapshot is replaced when the log has grown by this share of its size.
GROWTH_SHARE_MIN = 0.25
ENTRIES_PER_READ = 16_384
NEAR_BYTES = 1 << 20

# Expected reasons for a missing snapshot, not errors.
_NO_SNAPSHOT = "there is no snapshot"
_ANOTHER_BROKER = "another broker has used the store since the snapshot was written"

Export = Callable[[], tuple[Path, bytes]]
"""Returns the path and the content of a file that is written with the snapshot."""
Named = Callable[[LogChunk, NDArray[np.int64], NDArray[np.int64]], None]
"""Receives each applied chunk, the indices of its records that name a source, and the sources."""


@dataclass(frozen=True, slots=True)
class CapturedState:
    """A state to be written once the log is durable up to its end."""

    snapshot: Snapshot
    exports: tuple[tuple[Path, bytes], ...]
    counts: list[tuple[int, int]]
    """Next offset and number of entries of each queue."""


class PendingIndex:
    """The pending queues of one store. Used by the store's owner, except for `write`.

    Order of calls: add the queues and notes, `begin`, apply the log, `lead`. From then on add new
    entries, append records that name them, complete them, and write snapshots.

    Attributes:
        rebuilt_because: why the snapshot was not used; empty if it was.
        bytes_applied: bytes of the log applied since `begin`.
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
        # End of the applied log; None once appends complete entries directly.
        self._applied_end: int | None = 0
        # Of the newest captured state. If its write fails, the next attempt follows after a pause.
        self._captured_end = 0
        self._captured_at = 0.0
        # Log end of the newest state that was written.
        self._covered_end = 0
        self._snapshot_bytes = 0
        self._written_counts: list[tuple[int, int]] = []
        self._waiting: CapturedState | None = None

    # Before `begin`.

    def add_queue(self, topic: str, queue_id: int) -> None:
        """Follow a queue. No other code may complete its entries."""
        self._queues[topic, queue_id] = PendingQueue()

    def add_note(
        self, name: str, write: Callable[[], bytes], read: Callable[[bytes], None]
    ) -> None:
        """Add a section to the snapshot for data that may be lost.

        Args:
            name: name of the section, different from a queue's "topic/number".
            write: returns the data, called at each capture.
            read: called by `begin` with the data of the snapshot, if it has the section. Raises
                ValueError or struct.error if the data is malformed.
        """
        self._notes[name] = write, read

    def add_export(self, export: Export) -> None:
        """Add a file that is written with each snapshot, from the same state."""
        self._exports.append(export)

    def add_named(self, named: Named) -> None:
        """Add a callback that is called for each applied chunk, in log order."""
        self._named.append(named)

    def begin(self, completed_below: Mapping[QueueKey, int]) -> None:
        """Load the snapshot; then the log after it must be applied.

        Args:
            completed_below: queue offsets below which another broker completed everything.

        Raises:
            OSError: the disk.

        """
        self.rebuilt_because = self._read_snapshot()
        if self.rebuilt_because and self._path.exists():
            # Remove it: once the log has grown, its uselessness could no longer be detected.
            self._disk.unlink(self._path)
            self._disk.sync_directory(self._path.parent)
        for key, queue in self._queues.items():
            below = completed_below.get(key, 0)
            # The other broker's offset may be beyond a queue that a crash has shortened; new
            # entries there are not completed.
            queue.complete_below(min(below, self._store.max_offset(*key)))

    def load(self, completed_below: Mapping[QueueKey, int]) -> None:
        """Like `begin`, then apply the log, possibly all of it, and `lead`."""
        self.begin(completed_below)
        apply_rest(self._store, [self])
        self.lead()

    # Before this broker leads.

    def lacks_from(self) -> int:
        """Add the visible entries of the queues, and return the position from which the log must be
        applied; see `Derived`."""
        assert self._applied_end is not None, "after `lead`, appends complete entries"
        end = self._store.visible_end
        for key, queue in self._queues.items():
            first_new = queue.next_offset
            while (found := self.new_entries(key)) is not None:
                queue.add_entries(*found)
            if queue.next_offset == first_new:
                continue
            new = queue.pending_from(first_new)
            if len(new):
                # The snapshot is older than these entries; records after them may complete them.
                self._applied_end = min(self._applied_end, int(new.positions[0]))
        oldest = [each.oldest_position for each in self._queues.values()]
        first = min((each for each in oldest if each is not None), default=end)
        # Records before it complete nothing. A short range is read anyway, for other followers.
        if first == end or first - self._applied_end > NEAR_BYTES:
            self._applied_end = max(self._applied_end, first)
        return self._applied_end

    def apply(self, chunk: LogChunk) -> None:
        """Complete entries that the records of a part of the log name; see `Derived`."""
        if chunk.skipped_bytes:
            log.error(
                "%d bytes of the log before offset %d are damaged: messages completed there "
                "are handled again",
                chunk.skipped_bytes,
                chunk.next_offset,
            )
        self.bytes_applied += len(chunk.frames)
        indices, sources = sources_of(chunk.frames, chunk.records)
        intact = chunk.intact(indices)
        if len(intact) < len(indices):
            log.error(
                "%d records before offset %d of the log are damaged: messages completed by them "
                "are handled again",
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
        """From now on appends complete entries; all visible records have been applied."""
        self._applied_end = None
        reason, pending = self.rebuilt_because, sum(map(len, self._queues.values()))
        if reason and (pending or self.bytes_applied):
            log.log(
                logging.INFO if reason in (_NO_SNAPSHOT, _ANOTHER_BROKER) else logging.WARNING,
                "read %d bytes of log to find pending messages, because %s: %d messages",
                self.bytes_applied,
                reason,
                pending,
            )

    @property
    def _known_end(self) -> int:
        """Physical offset up to which completions of the log are known."""
        return self._store.appended_end if self._applied_end is None else self._applied_end

    # While the store is open.

    def queue(self, topic: str, queue_id: int) -> PendingQueue:
        """Return a queue that was added."""
        return self._queues[topic, queue_id]

    def waiting_below(self, position: int) -> int:
        """Return the number of pending entries whose records begin before a physical offset."""
        return sum(len(each.pending_before(position).positions) for each in self._queues.values())

    def new_entries(self, key: QueueKey) -> tuple[int, EntryArray] | None:
        """Return entries of a queue that were not added yet; only the first ones if there are many.

        Returns:
            The first one's queue offset and the entries, for `PendingQueue.add_entries`; None if
            there are none. Entries that retention has deleted are skipped.

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
            # The entries are deleted, or another program has deleted a file of the queue.
            queue.skip_to(min(offset + 1, end))
        return None

    @property
    def wants_capture(self) -> bool:
        """Whether the present state must be written, now or soon."""
        grown = self._known_end - self._covered_end
        return self._waiting is not None or (grown > 0 and self._is_worth(grown))

    def _is_worth(self, grown_bytes: int) -> bool:
        # Without pending entries a start reads no log, whatever the snapshot covers. So a broker
        # without delayed messages and transactions does not sync two files every ten seconds, for
        # which its appends would wait.
        is_needed = any(self._queues.values()) or self._written_counts != self._counts()
        return is_needed and grown_bytes >= self._snapshot_bytes * GROWTH_SHARE_MIN

    def _counts(self) -> list[tuple[int, int]]:
        return [(queue.next_offset, len(queue)) for queue in self._queues.values()]

    def capture_if_due(self, now_seconds: float) -> None:
        """Capture the state if a snapshot is due by the monotonic clock."""
        grown = self._known_end - self._covered_end
        if grown <= 0 or self._waiting is not None:
            return
        elapsed = now_seconds - self._captured_at
        uncaptured = self._known_end - max(self._captured_end, self._covered_end)
        if (elapsed >= SNAPSHOT_SECONDS and self._is_worth(grown)) or uncaptured >= max(
            UNCOVERED_BYTES_MAX, self._snapshot_bytes
        ):
            self._captured_at, self._captured_end = now_seconds, self._known_end
            self._waiting = self.capture()

    def pop_durable(self) -> CapturedState | None:
        """Return the captured state, once, when the log is durable up to its end: `write` it."""
        waiting = self._waiting
        # See "a snapshot never knows more than the disk" in docs/understand/architecture.md.
        if waiting is None or waiting.snapshot.covered_end > self._store.settled_end:
            return None
        self._waiting = None
        return waiting

    def capture(self) -> CapturedState:
        """Return the present state. It may be written when the log is durable up to its end."""
        sections = {section_of(key): queue.to_bytes() for key, queue in self._queues.items()}
        sections |= {name: write() for name, (write, _) in self._notes.items()}
        # No await since the sections above, so that the end matches them.
        snapshot = Snapshot(self._store.recovery.lineage, self._known_end, sections)
        exports = tuple(export() for export in self._exports)
        return CapturedState(snapshot, exports, self._counts())

    def write(self, captured: CapturedState) -> None:
        """Replace the snapshot and its exports durably; may be called from any thread. Raises
        OSError: the old files are unchanged and still valid."""
        for changed in self._disk.make_directory(self._path.parent):
            self._disk.sync_directory(changed)
        self._disk.replace_file(self._path, encode_snapshot(captured.snapshot))
        for path, content in captured.exports:
            self._disk.replace_file(path, content)
        self._covered_end = captured.snapshot.covered_end
        self._snapshot_bytes = sum(map(len, captured.snapshot.sections.values()))
        self._written_counts = captured.counts

    # Inside.

    def _read_snapshot(self) -> str:
        """Load the snapshot; return why not, or an empty text."""
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
            return f"{self._path} is damaged: {error}"
        # Another broker has used the store since; its completions are not in this snapshot.
        if snapshot.lineage != self._store.recovery.lineage:
            return _ANOTHER_BROKER
        # A crash has lost log that it covers: completions in it are invalid.
        if snapshot.covered_end > self._store.appended_end:
            return f"{self._path} covers more than the log has"
        for key, queue in queues.items():
            if queue.next_offset > self._store.max_offset(*key):
                return f"{self._path} has more entries than queue {key[1]} of {key[0]}"
        for name, (_, read) in self._notes.items():
            if name in snapshot.sections:
                try:
                    read(snapshot.sections[name])
                except (ValueError, struct.error) as error:
                    return f"{self._path} is damaged: {name}: {error}"
        # Last: from a refused snapshot no entry may count as completed.
        self._queues |= queues
        self._covered_end = self._applied_end = snapshot.covered_end
        return ""


def section_of(key: QueueKey) -> str:
    """Return the name of a queue's section."""
    return f"{key[0]}/{key[1]}"
