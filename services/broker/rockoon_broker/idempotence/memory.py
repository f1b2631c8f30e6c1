"""The broker's memory of idempotent producers, across its starts.

    snapshot file ──┐
                    ├─→ ledger ←─ appends, once this broker leads
    log behind it ──┘       └──→ snapshot file, every 10 s or 64 MiB of log

Invariants:
1. A snapshot is written only when the log is durable up to where it reaches: it never knows of a
   message that a crash takes back.
2. What is not in the snapshot is applied from the log. Without a snapshot that can be used this is
   whatever the log holds of the time that is to be remembered.
3. Before `lead` the ledger knows what was applied, so only what is committed.
"""

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path

from rockoon_broker.applying import apply_rest
from rockoon_broker.clock import Clock
from rockoon_broker.idempotence.ledger import MemoryLimits, SequenceLedger
from rockoon_broker.idempotence.replay import runs_in
from rockoon_broker.idempotence.snapshot import (
    FILE,
    SequenceSnapshot,
    SnapshotError,
    decode_snapshot,
)
from rockoon_broker.store.log.batch import SequenceKey
from rockoon_broker.store.log.reading import LogChunk
from rockoon_broker.store.store import Store
from rockoon_core.disk import Disk
from rockoon_runtime.waking import Bell

log = logging.getLogger(__name__)

SNAPSHOT_SECONDS = 10.0
LOOK_SECONDS = 1.0
# How much later than it might be something is forgotten.
FORGET_SECONDS = 60.0


class SequenceMemory:
    """The ledger, and the file in which it outlives the process. Make one with `begin`.

    Used by the event loop's thread alone; only writing the file happens in another.

    Attributes:
        ledger: as of what was applied; once this broker leads, of the newest message in the log.
    """

    def __init__(
        self,
        store: Store,
        path: Path,
        disk: Disk,
        clock: Clock,
        limits: MemoryLimits,
        snapshot: SequenceSnapshot | None,
    ) -> None:
        if snapshot is None:
            self.ledger = SequenceLedger(limits)
            start = _first_remembered(store, store.runs.newest_ms - limits.memory_ms)
        else:
            self.ledger = SequenceLedger(limits, snapshot.sequences, snapshot.forgotten_until_ms)
            start = snapshot.log_end
        # Up to where the log was applied; None from when whoever appends notes it here at once.
        self._applied_end: int | None = start
        # Whether nothing that ought to be remembered lies before that and is not in the ledger.
        self._whole = start == 0 or snapshot is not None
        # Whose run the last record applied is of.
        self._last_key: SequenceKey | None = None
        self._dropped_marks: Mapping[str, int] = {}
        self._log_bytes = limits.snapshot_log_bytes
        self._store = store
        self._path = path
        self._disk = disk
        self._clock = clock
        # To be written once the log is durable up to its end, with the ledger's count of changes.
        self._waiting: tuple[SequenceSnapshot, int] | None = None
        # What was written last: the ledger's count of changes, the log's end, monotonic seconds.
        self._written_changes = -1
        self._written_end = -1
        self._written_at = clock.monotonic_seconds()

    @classmethod
    def begin(
        cls, store: Store, config: Path, disk: Disk, clock: Clock, limits: MemoryLimits
    ) -> "SequenceMemory":
        """Read the snapshot; what the log has behind it is to be applied, and then `lead` called.

        Args:
            store: open; its readers see all that it had when it was opened.
            config: the store's config directory.
            disk: where the file is written.
            clock: for what is too old, and for when to write.
            limits: how much to remember.

        Raises:
            OSError, StoreError: the log cannot be read.
        """
        path = config / FILE
        snapshot = _read_snapshot(path, store)
        if snapshot is None and path.exists():
            # Once the log has grown, nothing would tell that it is of no use.
            disk.unlink(path)
            disk.sync_directory(config)
        return cls(store, path, disk, clock, limits, snapshot)

    @classmethod
    def recall(
        cls, store: Store, config: Path, disk: Disk, clock: Clock, limits: MemoryLimits
    ) -> "SequenceMemory":
        """See `begin`; may take as long as the log behind the snapshot is large."""
        memory = cls.begin(store, config, disk, clock, limits)
        apply_rest(store, [memory])
        memory.lead()
        return memory

    # Before this broker leads.

    def lacks_from(self) -> int:
        """See `Derived`."""
        assert self._applied_end is not None, "appends note what they store"
        return self._applied_end

    def apply(self, chunk: LogChunk) -> None:
        """Note what a piece of the log says; see `Derived`."""
        # First, or what is stored in a topic made again would be taken for repeats.
        self._drop_deleted()
        ledger, records = self.ledger, chunk.records
        # What retention took before it was applied is known to nobody.
        self._whole = self._whole and chunk.start <= self.lacks_from()
        if records.count and not self._whole:
            # Before this there may be messages of producers that the ledger does not know. Repeats
            # from that time are refused; taken for new ones they would be stored twice.
            first_ms = int(records.store_timestamps_ms[0])
            ledger.forgotten(self._store.runs.least_ms(chunk.start, first_ms))
            self._whole = True
        last_key, self._last_key = self._last_key, None
        for key, run, record, begins_batch in runs_in(chunk):
            if not self._store.is_dropped(key.topic, run.first_physical_offset):
                # Cut by where the chunk begins, not by a crash: counted as two, a large batch would
                # take the place of those before it.
                joins = record == 0 and key == last_key and not begins_batch
                ledger.note(key, run, joins=joins)
                if record + run.messages == records.count:
                    self._last_key = key
        if chunk.skipped_bytes:
            # Whose messages these were, nobody knows.
            self._whole = False
        self._applied_end = chunk.next_offset

    def lead(self) -> None:
        """Whoever appends notes it here from now on; all that readers see was applied."""
        self._drop_deleted()
        self._applied_end = None
        self.ledger.forget(self._store.runs.newest_ms)

    def _drop_deleted(self) -> None:
        """Drop the sequences of messages that went with their topics, if some went since."""
        marks = self._store.dropped_marks
        if marks is self._dropped_marks:
            return
        self._dropped_marks = marks
        self.ledger.drop(
            [
                key
                for key, runs in self.ledger.copy().items()
                if self._store.is_dropped(key.topic, runs[-1].first_physical_offset)
            ]
        )

    @property
    def _known_end(self) -> int:
        """Physical offset up to which the ledger knows the log."""
        return self._store.appended_end if self._applied_end is None else self._applied_end

    async def run(self, store_changed: Bell) -> None:
        """Forget unused sequences and write snapshots, until cancelled.

        Args:
            store_changed: rung when the log has grown, or topics were deleted.
        """
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.look()
            if self._waiting is None and not self._has_news:
                await store_changed.wait(FORGET_SECONDS if len(self.ledger) else None)

    async def look(self) -> None:
        """Forget sequences and write a snapshot if they are due."""
        self.ledger.forget(self._store.runs.newest_ms)
        if self._waiting is None and self._is_due():
            self._waiting = self.snapshot(), self.ledger.changes
        if self._waiting and self._store.settled_end >= self._waiting[0].log_end:
            await self._write_waiting(*self._waiting)

    def snapshot(self) -> SequenceSnapshot:
        """What is remembered now, which may be written once the log is durable up to its end."""
        # Of one moment, without a pause in between: messages before `log_end` that the sequences
        # lack would never be read again, and a repeat of them could be stored twice.
        return SequenceSnapshot(
            lineage=self._store.recovery.lineage,
            log_end=self._known_end,
            forgotten_until_ms=self.ledger.forgotten_until_ms,
            sequences=self.ledger.copy(),
        )

    def write(self, snapshot: SequenceSnapshot) -> None:
        """Durably replace the file.

        Raises:
            OSError: the old file is still there, and still true.
        """
        for changed in self._disk.make_directory(self._path.parent):
            self._disk.sync_directory(changed)
        self._disk.replace_file(self._path, snapshot.encode())

    def write_last(self, snapshot: SequenceSnapshot) -> None:
        """At the end, when the store was closed in order: write what it was before."""
        try:
            self.write(snapshot)
        except OSError as failure:
            log.warning("%s was not written, the next start reads the log: %s", self._path, failure)

    def _is_due(self) -> bool:
        """Whether a start would have too much to read."""
        if not self._has_news:
            return False
        age_seconds = self._clock.monotonic_seconds() - self._written_at
        return age_seconds >= SNAPSHOT_SECONDS or (
            self.ledger.changes != self._written_changes and self._is_far_behind
        )

    @property
    def _has_news(self) -> bool:
        """Whether the file is to be written before long.

        Also while there are no idempotent producers: a start has to know that there were none.
        """
        return self.ledger.changes != self._written_changes or self._is_far_behind

    @property
    def _is_far_behind(self) -> bool:
        return self._known_end - self._written_end >= self._log_bytes

    async def _write_waiting(self, snapshot: SequenceSnapshot, changes: int) -> None:
        self._waiting = None
        self._written_at = self._clock.monotonic_seconds()
        try:
            await asyncio.to_thread(self.write, snapshot)
        except OSError as failure:
            log.warning("%s was not written, it is tried again: %s", self._path, failure)
        else:
            # As of the snapshot, not of now: what has changed while it was written is still news.
            self._written_changes, self._written_end = changes, snapshot.log_end


def _read_snapshot(path: Path, store: Store) -> SequenceSnapshot | None:
    """The snapshot, None when there is none that can be used."""
    if not path.exists():
        return None
    try:
        snapshot = decode_snapshot(path.read_bytes())
    except SnapshotError as failure:
        log.error("%s is damaged, the log is read instead: %s", path, failure)  # noqa: TRY400
        return None
    if snapshot.lineage != store.recovery.lineage:
        log.info("another broker has used the store since %s was written: the log is read", path)
        return None
    if snapshot.log_end > store.visible_end:
        log.error(
            "%s reaches to offset %d, the log to %d: the log is read instead",
            path,
            snapshot.log_end,
            store.visible_end,
        )
        return None
    return snapshot


def _first_remembered(store: Store, since_ms: int) -> int:
    """Start of the newest CommitLog file that has everything stored since then, or before it."""
    file_bytes = store.settings.commit_log_file_bytes
    start = store.visible_end - store.visible_end % file_bytes
    while start > store.log_min_offset:
        times_ms = store.read_log(start, 1).records.store_timestamps_ms
        if len(times_ms) and int(times_ms[0]) < since_ms:
            break
        start -= file_bytes
    return max(start, store.log_min_offset)
