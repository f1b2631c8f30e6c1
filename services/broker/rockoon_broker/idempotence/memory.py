"""The broker's memory of idempotent producers, across its starts.

    snapshot file ──┐
                    ├─→ ledger ←─ appends
    log behind it ──┘       └──→ snapshot file, every 10 s or 64 MiB of log

Invariants:
1. A snapshot is written only when the log is durable up to where it reaches: it never knows of a
   message that a crash takes back.
2. What a start does not find in the snapshot it reads in the log. Without one that can be used it
   reads whatever the log holds of the time that is to be remembered.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from rockoon_broker.clock import Clock
from rockoon_broker.idempotence.ledger import MemoryLimits, SequenceLedger
from rockoon_broker.idempotence.replay import runs_in
from rockoon_broker.idempotence.snapshot import (
    FILE,
    SequenceSnapshot,
    SnapshotError,
    decode_snapshot,
)
from rockoon_broker.store.store import Store
from rockoon_core.disk import Disk
from rockoon_runtime.waking import Bell

log = logging.getLogger(__name__)

SNAPSHOT_SECONDS = 10.0
LOOK_SECONDS = 1.0
# How much later than it might be something is forgotten.
FORGET_SECONDS = 60.0
CHUNK_BYTES = 8 << 20


class SequenceMemory:
    """The ledger, and the file in which it outlives the process. Make one with `recall`.

    Used by the event loop's thread alone; only writing the file happens in another.

    Attributes:
        ledger: as of the newest message in the log.
    """

    def __init__(
        self,
        store: Store,
        path: Path,
        disk: Disk,
        clock: Clock,
        limits: MemoryLimits,
        ledger: SequenceLedger,
    ) -> None:
        self.ledger = ledger
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
    def recall(
        cls, store: Store, config: Path, disk: Disk, clock: Clock, limits: MemoryLimits
    ) -> "SequenceMemory":
        """Read the snapshot, and the log behind it; may take as long as that is large.

        Args:
            store: open, and not used by anybody else meanwhile.
            config: the store's config directory.
            disk: where the file is written.
            clock: for what is too old, and for when to write.
            limits: how much to remember.

        Raises:
            OSError, StoreError: the log cannot be read.
        """
        path = config / FILE
        now_ms = clock.now_ms()
        snapshot = _read_snapshot(path, store)
        if snapshot is None:
            if path.exists():
                # Once the log has grown, nothing would tell that it is of no use.
                disk.unlink(path)
                disk.sync_directory(config)
            ledger = SequenceLedger(limits)
            start = _first_remembered(store, now_ms - limits.memory_ms)
        else:
            ledger = SequenceLedger(limits, snapshot.sequences, snapshot.forgotten_until_ms)
            start = snapshot.log_end
        _replay(store, start, ledger, whole=start == 0 or snapshot is not None)
        ledger.forget(now_ms)
        return cls(store, path, disk, clock, limits, ledger)

    async def run(self, now_ms: Callable[[], int], store_changed: Bell) -> None:
        """Forget what is too old and write snapshots, until cancelled.

        Args:
            now_ms: tells the time as it goes into the store, epoch milliseconds.
            store_changed: rung when the log has grown, or topics were deleted.
        """
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.look(now_ms())
            if self._waiting is None and not self._has_news:
                await store_changed.wait(FORGET_SECONDS if len(self.ledger) else None)

    async def look(self, now_ms: int) -> None:
        """Do what is due now."""
        self.ledger.forget(now_ms)
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
            log_end=self._store.appended_end,
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
        return self._store.appended_end - self._written_end >= self._log_bytes

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


def _replay(store: Store, start: int, ledger: SequenceLedger, *, whole: bool) -> None:
    """Note what the log says from `start` on.

    Args:
        store: open.
        start: a physical offset.
        ledger: as of there.
        whole: nothing that ought to be remembered was stored before and is not in the ledger.
    """
    # First, or what is stored in a topic made again would be taken for repeats.
    ledger.drop(
        [
            key
            for key, runs in ledger.copy().items()
            if store.is_dropped(key.topic, runs[-1].first_physical_offset)
        ]
    )
    # What retention took behind the snapshot is known to nobody.
    whole = whole and start >= store.log_min_offset
    position, end = start, store.visible_end
    while position < end:
        chunk = store.read_log(position, CHUNK_BYTES)
        times_ms = chunk.records.store_timestamps_ms
        if len(times_ms) and not whole:
            # Before this there may be messages of producers that the ledger does not know. Repeats
            # from that time are refused; taken for new ones they would be stored twice.
            ledger.forgotten(store.runs.least_ms(chunk.start, int(times_ms[0])))
            whole = True
        for key, run in runs_in(chunk):
            if not store.is_dropped(key.topic, run.first_physical_offset):
                ledger.note(key, run)
        if chunk.skipped_bytes:
            # Whose messages these were, nobody knows.
            whole = False
        position = chunk.next_offset
