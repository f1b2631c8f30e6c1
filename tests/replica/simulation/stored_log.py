"""Broker's store as a log of the simulation, on a disk that loses unsynced bytes."""

import random
import threading
from collections.abc import Mapping
from pathlib import Path

from replica.simulation.truth import Violation
from rockoon_broker.store.errors import StorageError
from rockoon_core.replication_rules import Boundary
from rockoon_format.file_names import offset_to_file_name
from rockoon_format.log_marks import LogTopics, TopicChange
from rockoon_format.record import decode_record
from rockoon_format.scan import scan
from rockoon_replica.log import NO_GENERATION, Generation
from support.byte_log import VALUE, LogRecord
from support.replicas import Replica
from support.store_check import verify_store
from support.store_directory import PowerCutDisk, crashed_copy, in_log
from support.waiting import DEADLINE_SECONDS

FILE_BYTES = 4096


class SteppedDisk(PowerCutDisk):
    """Syncs of the log by another thread wait until they are released: a seed is deterministic."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.may_sync = threading.Event()

    def fdatasync(self, fd: int) -> None:
        if in_log(self.paths[fd]) and threading.current_thread() is not threading.main_thread():
            assert self.may_sync.wait(DEADLINE_SECONDS)
        super().fdatasync(fd)


class StoredLog:
    """One replica's store. After each crash it continues in a copy of its directory.

    Args:
        root: parent of its directories.
        choose: chooses which unsynced bytes a disk writes.
    """

    def __init__(self, root: Path, choose: random.Random) -> None:
        self._root, self._choose = root, choose
        self._number = 0
        self._bytes = bytearray()
        self._records: list[LogRecord] = []
        self._is_refused = False
        self.losses: list[str] = []
        root.mkdir()
        self._open()

    def _open(self) -> None:
        place = self._root / str(self._number)
        place.mkdir(exist_ok=True)
        self._disk = SteppedDisk(place)
        self._owner = Replica(place, self._disk, on_loss=self.losses.append)
        self._begin = self.min_offset
        # Start of the last record; None: unknown.
        self._last: int | None = None
        self._bytes.clear()
        self._records.clear()

    @property
    def end(self) -> int:
        return self._owner.store.appended_end

    @property
    def durable_end(self) -> int:
        return self._owner.store.durable_end

    @property
    def min_offset(self) -> int:
        return self._owner.store.log_min_offset

    @property
    def committed_end(self) -> int:
        return self._owner.store.committed_end

    @property
    def dropped(self) -> Mapping[str, int]:
        return self._owner.store.dropped_marks

    @property
    def generation(self) -> Generation:
        """Return None: tests of stores cover it."""
        return NO_GENERATION

    def boundaries(self) -> list[Boundary]:
        return self._owner.store.boundaries()

    def tail_crc(self, end: int, size: int) -> int:
        return self._owner.store.tail_crc(end, size)

    def blank_at(self, position: int) -> int | None:
        return self._owner.store.blank_at(position)

    def damaged_at(self, offset: int, data: bytes) -> int | None:
        return self._owner.store.damaged_at(offset, data)

    def record_before(self, position: int) -> int:
        return self._owner.store.record_before(position)

    def is_damaged(self, position: int) -> bool:
        """Return None: bits flip in memory only."""
        del position
        return False

    def file_begin(self, position: int) -> int:
        return self._owner.store.file_begin(position)

    def read(self, offset: int, bytes_max: int) -> bytes:
        return self._owner.store.read_raw(offset, bytes_max)

    def write(self, offset: int, data: bytes) -> None:
        self._owner.store.write_raw(offset, data)

    def commit(self, offset: int) -> None:
        self._owner.store.confirm(offset)

    def open_epoch(self, epoch: int) -> None:
        self._owner.open_epoch(epoch)

    def truncate(self, offset: int) -> None:
        if offset != self.end:
            self._disk.may_sync.set()
            self._owner.store.close_to_truncate(offset)
            self._open()

    def sync_nowait(self) -> None:
        """Sync as `sync` does, in the time that the disk needs."""
        self._disk.may_sync.set()
        self._owner.sync()
        self._disk.may_sync.clear()
        # Work that waited for this copy's own disk; a broker's ticks do it.
        self._owner.store.confirm(self.committed_end)

    # Calls of the simulation.

    def append(self, body: bytes) -> int:
        """Append a value, with a size that lets files end anywhere; return its start."""
        padded = body + b" " * self._choose.choice((0, 30, 700))
        return self._owner.append(bodies=[padded]).first_physical_offset

    @property
    def topics(self) -> LogTopics:
        return self._owner.store.log_topics

    @property
    def visible_end(self) -> int:
        return self._owner.store.visible_end

    def change_topics(self, change: TopicChange) -> int:
        """Append a record of topics; return its end."""
        return self._owner.store.change_topics(change, self._owner.clock.time_ms).end_offset

    def visible_values(self) -> list[int]:
        """Return the messages that readers of the topic get."""
        return [int(body) for body in self._owner.bodies("T")]

    def bytes_between(self, first: int, end: int) -> bytes:
        self._learn()
        return bytes(self._bytes[first - self._begin : end - self._begin])

    def records(self) -> list[LogRecord]:
        """Return the values, in order."""
        self._learn()
        return self._records

    def _learn(self) -> None:
        at = self._begin + len(self._bytes)
        while at < self.end:
            data = self.read(at, FILE_BYTES)
            found = scan(data, 0, len(data))
            for offset, size in zip(found.offsets.tolist(), found.sizes.tolist(), strict=True):
                record = decode_record(data, offset)
                self._last = at + offset
                if record.topic == b"T":
                    place = (at + offset, at + offset + size)
                    self._records.append(LogRecord(*place, VALUE, record.body.strip(), 0))
            self._bytes += data
            at += len(data)

    def delete_below(self, offset: int) -> None:
        """Do nothing: tests of retention cover it."""

    def reopened(self, _choose: random.Random) -> None:
        """Open the log as a new process does: its records are synced first."""
        self.sync_nowait()

    def crash(self, *, power: bool) -> None:
        """End the process, or cut the machine's power, and open the remaining log."""
        self._end_process(power=power)
        self._open()

    def crash_damaged(self) -> bool:
        """As `crash`, with the last record damaged; return whether the log opens."""
        self._learn()
        self._end_process(power=False)
        if self._last is not None:
            first = self._last % FILE_BYTES
            path = (
                self._root
                / str(self._number)
                / "commitlog"
                / offset_to_file_name(self._last - first)
            )
            data = bytearray(path.read_bytes())
            # Of its length, and of the magic code.
            data[first : first + 8] = bytes(8)
            path.write_bytes(data)
        try:
            self._open()
        except StorageError:
            self._is_refused = True
        return not self._is_refused

    def _end_process(self, *, power: bool) -> None:
        before, disk = self._owner.store, self._disk
        place = self._root / str(self._number)
        self._number += 1
        if power:
            self._disk.cut(self._root / str(self._number), self._choose)
        else:
            crashed_copy(place, self._root / str(self._number))
        disk.may_sync.set()
        before.close()

    def close(self) -> None:
        """Close, and compare the queues with a rebuild if they must have the whole log."""
        if self._is_refused:
            return
        committed = self.committed_end == self.end
        self._disk.may_sync.set()
        self._owner.store.close()
        if committed and (problems := verify_store(self._root / str(self._number))):
            raise Violation(f"{self._root.name}: {problems}")
