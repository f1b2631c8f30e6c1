"""The broker's memory of idempotent producers, across restarts.

    snapshot file ────┐
                      ├─→ ledger ←─ appends, once this broker leads
    log after it ─────┘       └──→ snapshot file, every 10 s or 64 MiB of log

Invariants:
1. A snapshot is written only when the log is durable up to its end: it never contains a
   message that a crash can lose.
2. Messages after the snapshot are applied from the log. Without a usable snapshot, the log of
   the whole remembered time is applied.
3. Before `lead` the ledger contains only applied, and so only committed, messages.

The snapshot file, `config/producerSequences`; all numbers are big-endian:

    +----------+---------+---------+-----------------+-------+----------+-----+-------+
    | ROCKSEQ2 | lineage | log end | forgotten until | count | sequence | ... | CRC32 |
    +----------+---------+---------+-----------------+-------+----------+-----+-------+
         8          16         8             8            4                        4

    sequence: producer id 8, queue 4, runs 1, length of the topic 2, topic, runs of 44 bytes:
    run:      first sequence 8, messages 4, queue offset 8, physical offset 8, store time 8, host 8

The lineage is the store's (checkpoint_files.py). Records of the log after `log end` are not
included. The CRC covers everything before it.
"""

import asyncio
import logging
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rockoon_broker.applying import apply_rest
from rockoon_broker.clock import Clock
from rockoon_broker.idempotence.ledger import MemoryLimits, Run, Runs, SequenceLedger
from rockoon_broker.store.log.batch import SequenceKey
from rockoon_broker.store.log.reading import LogChunk
from rockoon_broker.store.store import Store
from rockoon_core.disk import Disk
from rockoon_format.names import is_dlq_topic, is_retry_topic, is_system_topic
from rockoon_format.record import (
    AT_STORE_TIMESTAMP_V4,
    HOST_V4_BYTES,
    HOST_V6_EXTRA_BYTES,
    SYS_FLAG_BORN_HOST_V6,
)
from rockoon_format.sequences import find_sequences
from rockoon_runtime.waking import Bell

FILE = "producerSequences"
_MAGIC = b"ROCKSEQ2"
_HEAD = struct.Struct(">8s16sqqI")
_SEQUENCE = struct.Struct(">QiBH")
_RUN = struct.Struct(">qiqqq8s")
_CRC = struct.Struct(">I")
assert (_HEAD.size, _SEQUENCE.size, _RUN.size) == (44, 15, 44)


class SnapshotError(ValueError):
    """The bytes are not a valid snapshot; the message has the reason."""


@dataclass(frozen=True, slots=True)
class SequenceSnapshot:
    """State of a SequenceLedger."""

    lineage: bytes
    """Lineage of the store, 16 bytes."""
    log_end: int
    """Physical offset up to which all records are included."""
    discarded_until_ms: int
    sequences: Mapping[SequenceKey, Runs]
    """Least recently used first."""

    def encode(self) -> bytes:
        numbers = (self.log_end, self.discarded_until_ms, len(self.sequences))
        parts = [_HEAD.pack(_MAGIC, self.lineage, *numbers)]
        for key, runs in self.sequences.items():
            topic = key.topic.encode()
            parts += (_SEQUENCE.pack(key.producer_id, key.queue_id, len(runs), len(topic)), topic)
            parts += (_RUN.pack(*run) for run in runs)
        content = b"".join(parts)
        return content + _CRC.pack(zlib.crc32(content))


def decode_snapshot(content: bytes) -> SequenceSnapshot:
    """Decode the result of `SequenceSnapshot.encode`. Raises SnapshotError: it is truncated,
    damaged, or of another version."""
    if len(content) < _HEAD.size + _CRC.size or not content.startswith(_MAGIC):
        raise SnapshotError(f"its {len(content)} bytes do not begin with {_MAGIC.decode()}")
    at = len(content) - _CRC.size
    if _CRC.unpack_from(content, at)[0] != zlib.crc32(content[:at]):
        raise SnapshotError("its CRC does not match")
    _, lineage, log_end, discarded_until_ms, count = _HEAD.unpack_from(content)
    at = _HEAD.size
    sequences: dict[SequenceKey, Runs] = {}
    for _ in range(count):
        producer_id, queue_id, run_count, topic_bytes = _SEQUENCE.unpack_from(content, at)
        at += _SEQUENCE.size
        topic = content[at : at + topic_bytes].decode()
        at += topic_bytes
        end = at + run_count * _RUN.size
        runs = tuple(map(Run._make, _RUN.iter_unpack(content[at:end])))
        sequences[SequenceKey(producer_id, topic, queue_id)] = runs
        at = end
    return SequenceSnapshot(lineage, log_end, discarded_until_ms, sequences)


_TIMESTAMP_BYTES = 8


def takes_sequences(topic: str) -> bool:
    """Return whether an idempotent producer may send to a topic.

    In all other topics the broker stores copies of messages, which have the originals' numbers.
    """
    return not (is_system_topic(topic) or is_retry_topic(topic) or is_dlq_topic(topic))


class FoundRun(NamedTuple):
    """A run of messages in a part of the log."""

    key: SequenceKey
    run: Run
    record: int
    """Index of its first record in the part."""
    begins_batch: bool
    """Whether that record is the first of its batch."""


def runs_in(chunk: LogChunk) -> Iterator[FoundRun]:
    """Yield the runs of a part of the log, in log order.

    A batch that crosses two parts yields two runs. Damaged records are skipped, because their
    numbers could be those of another producer.
    """
    records = chunk.records
    found = find_sequences(chunk.frames, records.offsets, records.sizes)
    if not chunk.checked:
        found = found.of(np.isin(found.indices, chunk.intact(found.indices)))
    if not len(found.indices):
        return
    indices = found.indices
    # A run begins wherever a column of `same` changes or one of `rising` does not increase by one.
    same: tuple[NDArray[Any], ...] = (
        found.producer_ids,
        found.first_sequences,
        records.topic_numbers[indices],
        records.queue_ids[indices],
    )
    rising = (indices, found.batch_indices, records.queue_offsets[indices])
    begins = np.ones(len(indices), np.bool_)
    begins[1:] = False
    for column in same:
        begins[1:] |= column[1:] != column[:-1]
    for column in rising:
        begins[1:] |= column[1:] != column[:-1] + 1
    firsts = np.flatnonzero(begins)
    counts = np.diff(firsts, append=len(indices))
    for first, count in zip(firsts.tolist(), counts.tolist(), strict=True):
        index = int(indices[first])
        topic = records.topics[int(records.topic_numbers[index])].decode()
        if not takes_sequences(topic):
            continue
        position = int(records.offsets[index])
        born_v6 = int(records.sys_flags[index]) & SYS_FLAG_BORN_HOST_V6
        host_at = position + AT_STORE_TIMESTAMP_V4 + _TIMESTAMP_BYTES
        host_at += HOST_V6_EXTRA_BYTES if born_v6 else 0
        yield FoundRun(
            SequenceKey(int(found.producer_ids[first]), topic, int(records.queue_ids[index])),
            Run(
                first_sequence=int(found.first_sequences[first] + found.batch_indices[first]),
                messages=count,
                first_queue_offset=int(records.queue_offsets[index]),
                first_physical_offset=chunk.start + position,
                store_timestamp_ms=int(records.store_timestamps_ms[index]),
                store_host=chunk.frames[host_at : host_at + HOST_V4_BYTES],
            ),
            index,
            begins_batch=int(found.batch_indices[first]) == 0,
        )


log = logging.getLogger(__name__)

SNAPSHOT_SECONDS = 10.0
LOOK_SECONDS = 1.0
# A sequence may be discarded this much later than possible.
FORGET_SECONDS = 60.0


class SequenceMemory:
    """The ledger and its snapshot file. Construct it with `begin`.

    Used only by the event loop's thread; another thread only writes the file.

    Attributes:
        ledger: state after the applied log; once this broker leads, after the newest message.
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
            self.ledger = SequenceLedger(limits, snapshot.sequences, snapshot.discarded_until_ms)
            start = snapshot.log_end
        # End of the applied log; None once appends update the ledger directly.
        self._applied_end: int | None = start
        # Whether the ledger contains all messages before that which must be remembered.
        self._whole = start == 0 or snapshot is not None
        # Sequence of the last applied record.
        self._last_key: SequenceKey | None = None
        self._dropped_marks: Mapping[str, int] = {}
        self._log_bytes = limits.snapshot_log_bytes
        self._store = store
        self._path = path
        self._disk = disk
        self._clock = clock
        # Written once the log is durable up to its end, with the ledger's change counter.
        self._waiting: tuple[SequenceSnapshot, int] | None = None
        # State of the last write: the ledger's change counter, the log's end, monotonic seconds.
        self._written_changes = -1
        self._written_end = -1
        self._written_at = clock.monotonic_seconds()

    @classmethod
    def begin(
        cls, store: Store, config: Path, disk: Disk, clock: Clock, limits: MemoryLimits
    ) -> "SequenceMemory":
        """Read the snapshot. Then apply the log after it, and call `lead`.

        Args:
            store: open; all records from before its opening are visible.
            clock: for intervals of writes.

        Raises:
            OSError, StorageError: the log cannot be read.
        """
        path = config / FILE
        snapshot = _read_snapshot(path, store)
        if snapshot is None and path.exists():
            # Remove it: once the log has grown, its uselessness could no longer be detected.
            disk.unlink(path)
            disk.sync_directory(config)
        return cls(store, path, disk, clock, limits, snapshot)

    @classmethod
    def recall(
        cls, store: Store, config: Path, disk: Disk, clock: Clock, limits: MemoryLimits
    ) -> "SequenceMemory":
        """Like `begin`, then apply the log after the snapshot, which may be large, and `lead`."""
        memory = cls.begin(store, config, disk, clock, limits)
        apply_rest(store, [memory])
        memory.lead()
        return memory

    # Before this broker leads.

    def lacks_from(self) -> int:
        """Return the physical offset of the next record to apply; see `Derived`."""
        assert self._applied_end is not None, "after `lead`, appends record their messages"
        return self._applied_end

    def apply(self, chunk: LogChunk) -> None:
        """Add the messages of a part of the log; see `Derived`."""
        # First: otherwise messages in a recreated topic would look like repeats.
        self._drop_deleted()
        ledger, records = self.ledger, chunk.records
        # Messages that retention deleted before they were applied are unknown.
        self._whole = self._whole and chunk.start <= self.lacks_from()
        if records.count and not self._whole:
            # Earlier messages may be of producers that the ledger does not know. Repeats from
            # then are refused; as new batches they would be stored twice.
            first_ms = int(records.store_timestamps_ms[0])
            ledger.extend_discarded(self._store.runs.least_ms(chunk.start, first_ms))
            self._whole = True
        last_key, self._last_key = self._last_key, None
        for key, run, record, begins_batch in runs_in(chunk):
            if not self._store.is_dropped(key.topic, run.first_physical_offset):
                # Cut by the chunk's start, not by a crash: counted as two runs, a large batch
                # would evict earlier ones.
                joins = record == 0 and key == last_key and not begins_batch
                ledger.record(key, run, joins=joins)
                if record + run.messages == records.count:
                    self._last_key = key
        if chunk.skipped_bytes:
            # The producers of the damaged messages are unknown.
            self._whole = False
        self._applied_end = chunk.next_offset

    def lead(self) -> None:
        """From now on appends update the ledger; all visible records have been applied."""
        self._drop_deleted()
        self._applied_end = None
        self.ledger.discard_unused(self._store.runs.newest_ms)

    def _drop_deleted(self) -> None:
        """Drop sequences of topics that were deleted since the last call."""
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
        """Physical offset up to which the ledger contains the log."""
        return self._store.appended_end if self._applied_end is None else self._applied_end

    async def run(self, store_changed: Bell) -> None:
        """Discard unused sequences and write snapshots, until cancelled.

        Args:
            store_changed: rung when the log has grown or topics were deleted.
        """
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.look()
            if self._waiting is None and not self._has_news:
                await store_changed.wait(FORGET_SECONDS if len(self.ledger) else None)

    async def look(self) -> None:
        """Discard sequences of producers that have sent nothing for long; write a snapshot if one
        is due and the log is durable up to its end."""
        self.ledger.discard_unused(self._store.runs.newest_ms)
        if self._waiting is None and self._is_due():
            self._waiting = self.snapshot(), self.ledger.changes
        if self._waiting and self._store.settled_end >= self._waiting[0].log_end:
            await self._write_waiting(*self._waiting)

    def snapshot(self) -> SequenceSnapshot:
        """Return the present state, which may be written once the log is durable up to its end."""
        # Without an await in between: messages before `log_end` that the sequences lack would
        # never be read again, and a repeat of them could be stored twice.
        return SequenceSnapshot(
            lineage=self._store.recovery.lineage,
            log_end=self._known_end,
            discarded_until_ms=self.ledger.discarded_until_ms,
            sequences=self.ledger.copy(),
        )

    def write(self, snapshot: SequenceSnapshot) -> None:
        """Replace the file durably. Raises OSError: the old file is unchanged and still valid."""
        for changed in self._disk.make_directory(self._path.parent):
            self._disk.sync_directory(changed)
        self._disk.replace_file(self._path, snapshot.encode())

    def write_last(self, snapshot: SequenceSnapshot) -> None:
        """Write the state captured before a clean close of the store."""
        try:
            self.write(snapshot)
        except OSError as failure:
            log.warning("cannot write %s, the next start reads the log: %s", self._path, failure)

    def _is_due(self) -> bool:
        """Return whether a snapshot is due: a start would have to read too much of the log."""
        if not self._has_news:
            return False
        age_seconds = self._clock.monotonic_seconds() - self._written_at
        return age_seconds >= SNAPSHOT_SECONDS or (
            self.ledger.changes != self._written_changes and self._has_large_lag
        )

    @property
    def _has_news(self) -> bool:
        """True if sequences have changed since the last snapshot, or much of the log follows it.

        Also without idempotent producers, so that a start knows that there were none.
        """
        return self.ledger.changes != self._written_changes or self._has_large_lag

    @property
    def _has_large_lag(self) -> bool:
        return self._known_end - self._written_end >= self._log_bytes

    async def _write_waiting(self, snapshot: SequenceSnapshot, changes: int) -> None:
        self._waiting = None
        self._written_at = self._clock.monotonic_seconds()
        try:
            await asyncio.to_thread(self.write, snapshot)
        except OSError as failure:
            log.warning("cannot write %s, retrying: %s", self._path, failure)
        else:
            # The counter at the snapshot, not now: changes during the write are not in the file.
            self._written_changes, self._written_end = changes, snapshot.log_end


def _read_snapshot(path: Path, store: Store) -> SequenceSnapshot | None:
    """Return the snapshot, None if there is no usable one."""
    if not path.exists():
        return None
    try:
        snapshot = decode_snapshot(path.read_bytes())
    except SnapshotError as failure:
        log.error("%s is damaged, reading the log instead: %s", path, failure)  # noqa: TRY400
        return None
    if snapshot.lineage != store.recovery.lineage:
        log.info("another broker used the store after %s was written, reading the log", path)
        return None
    if snapshot.log_end > store.visible_end:
        log.error(
            "%s ends at offset %d, but the log at %d: reading the log instead",
            path,
            snapshot.log_end,
            store.visible_end,
        )
        return None
    return snapshot


def _first_remembered(store: Store, since_ms: int) -> int:
    """Return the start of a CommitLog file before which nothing was stored since a time."""
    file_bytes = store.settings.commit_log_file_bytes
    start = store.visible_end - store.visible_end % file_bytes
    while start > store.log_min_offset:
        times_ms = store.read_log(start, 1).records.store_timestamps_ms
        if len(times_ms) and int(times_ms[0]) < since_ms:
            break
        start -= file_bytes
    return max(start, store.log_min_offset)
