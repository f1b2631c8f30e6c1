"""Journal of the offset service as a log of the simulation, on a disk that loses unsynced bytes."""

import errno
import random
from collections.abc import Mapping
from pathlib import Path

from replica.simulation.truth import Violation
from rockoon_core.errors import StoreCorrupt
from rockoon_core.replication_rules import Boundary
from rockoon_offset.journal.frames import FrameKind, LogFrame, unpack, whole_frames
from rockoon_offset.journal.journal_files import generations, journal_path
from rockoon_offset.journal.journal_log import JournalLog
from rockoon_offset.journal.outline import Replay
from rockoon_offset.progress.records import decode, encode
from rockoon_replica.log import Generation
from support.byte_log import VALUE, LogRecord
from support.journal_logs import change, ledger_state
from support.store_directory import PowerCutDisk, crashed_copy

READ_BYTES = 1 << 20


class JournaledLog:
    """One replica's journal. After each crash it continues in a copy of its directory.

    Args:
        root: parent of its directories.
        choose: chooses which unsynced bytes a disk writes.
        file_bytes: size at which a leader begins another file.
    """

    def __init__(self, root: Path, choose: random.Random, file_bytes: int) -> None:
        self._root, self._choose, self._file_bytes = root, choose, file_bytes
        self._number = 0
        self._commits = 0
        self._is_refused = False
        self.losses: list[str] = []
        root.mkdir()
        self._open()

    def _open(self) -> None:
        place = self._root / str(self._number)
        place.mkdir(exist_ok=True)
        self._disk = PowerCutDisk(place)
        # No file is reserved ahead: each crash would copy it.
        self._disk.fail_allocate = lambda _: errno.EOPNOTSUPP
        self._log = JournalLog(
            place,
            self._root.name,
            failed=_failed,
            lost=self.losses.append,
            disk=self._disk,
            bytes_max=self._file_bytes,
        )
        self._has_appended = False
        self._forget()
        self._check_ledger()

    def _forget(self) -> None:
        self._begin = self._log.min_offset
        self._bytes = bytearray()
        self._frames: list[LogFrame] = []
        # State after this number of first records, applied one after another.
        self._followed, self._followed_frames = Replay(), 0

    @property
    def end(self) -> int:
        return self._log.end

    @property
    def durable_end(self) -> int:
        return self._log.durable_end

    @property
    def min_offset(self) -> int:
        return self._log.min_offset

    @property
    def committed_end(self) -> int:
        return self._log.committed_end

    @property
    def dropped(self) -> Mapping[str, int]:
        return self._log.dropped

    @property
    def generation(self) -> Generation:
        return self._log.generation

    def boundaries(self) -> list[Boundary]:
        return list(self._log.boundaries())

    def tail_crc(self, end: int, size: int) -> int:
        return self._log.tail_crc(end, size)

    def damaged_at(self, offset: int, data: bytes) -> int | None:
        return self._log.damaged_at(offset, data)

    def record_before(self, position: int) -> int:
        return self._log.record_before(position)

    def is_damaged(self, position: int) -> bool:
        """Return None: bits flip in memory only."""
        del position
        return False

    def file_begin(self, position: int) -> int:
        return self._log.file_begin(position)

    def blank_at(self, position: int) -> int | None:
        """Return None: this log has no blanks."""
        del position

    def read(self, offset: int, bytes_max: int) -> bytes:
        return self._log.read(offset, bytes_max)

    def write(self, offset: int, data: bytes) -> None:
        self._log.write(offset, data)

    def commit(self, offset: int) -> None:
        self._log.commit(offset)
        self._commits += 1
        if self._commits % 20 == 0:
            self._check_ledger()
        else:
            self._follow_ledger()

    def open_epoch(self, epoch: int) -> None:
        self._log.open_epoch(epoch)

    def truncate(self, offset: int) -> None:
        self._log.truncate(offset)
        self._forget()

    def sync_nowait(self) -> None:
        """Sync as `sync` does, in the time that the disk needs."""
        self._log.sync_nowait()

    # Calls of the simulation.

    def append(self, body: bytes) -> int:
        """Append a value, and a part of a state before it; return its start."""
        self._has_appended = True
        log = self._log
        if log.wants_generation:
            log.start_generation()
        elif self._choose.random() < 0.5:
            log.append_state()
        first = self.end
        records = change(log.ledger, f"g{self._choose.randrange(5)}", int(body))
        log.append([encode(record) for record in records])
        return first

    def bytes_between(self, first: int, end: int) -> bytes:
        self._learn()
        return bytes(self._bytes[first - self._begin : end - self._begin])

    def records(self) -> list[LogRecord]:
        """Return the values, in order."""
        self._learn()
        return [
            LogRecord(frame.position, frame.end, VALUE, b"%d" % _value(frame), 0)
            for frame in self._frames
            if frame.kind is FrameKind.RECORDS and frame.position >= self.min_offset
        ]

    def _learn(self) -> None:
        at = self._begin + len(self._bytes)
        while data := self.read(at, READ_BYTES):
            self._frames += whole_frames(data, at)
            self._bytes += data
            at += len(data)

    def _follow_ledger(self) -> None:
        """Compare the ledger with one that is updated at each commit, because a rebuild would cost
        more."""
        self._learn()
        end = self.end if self._has_appended else self.committed_end
        for frame in self._frames[self._followed_frames :]:
            if frame.end > end:
                break
            self._followed.apply(frame)
            self._followed_frames += 1
        if ledger_state(self._log.ledger) != ledger_state(self._followed.ledger):
            raise Violation(f"{self._root.name}: the ledger is not what was committed")

    def _check_ledger(self) -> None:
        """Compare the ledger with one built from the log's bytes: a leader's ledger has all
        appends."""
        self._learn()
        known = ledger_state(self._log.ledger)
        replay = Replay()
        states = []
        for frame in self._frames:
            if frame.position < self.min_offset:
                continue
            if frame.position == self.committed_end:
                states.append(ledger_state(replay.ledger))
            replay.apply(frame)
        states.append(ledger_state(replay.ledger))
        if known != states[-1 if self._has_appended else 0]:
            raise Violation(f"{self._root.name}: the ledger is not what the log makes")

    def delete_below(self, offset: int) -> None:
        """Allow, from the next commit on, the deletion of files before a position."""
        self._log.retain_from = max(self._log.retain_from, offset)

    def reopened(self, _choose: random.Random) -> None:
        """Open the log again, as a new process does."""
        self._log.close()
        self._open()

    def crash(self, *, power: bool) -> None:
        """End the process, or cut the machine's power, and open the remaining log."""
        self._end_process(power=power)
        self._open()

    def crash_damaged(self) -> bool:
        """As `crash`, with a byte of the last frame changed; return whether the log opens."""
        self._learn()
        last = self._frames[-1] if self._frames else None
        self._end_process(power=False)
        place = self._root / str(self._number)
        if last is not None:
            path = journal_path(place, generations(place, "journal")[-1])
            data = bytearray(path.read_bytes())
            data[-self._choose.randrange(1, last.end - last.position + 1)] ^= 1
            path.write_bytes(data)
        try:
            self._open()
        except StoreCorrupt:
            self._is_refused = True
        return not self._is_refused

    def _end_process(self, *, power: bool) -> None:
        place = self._root / str(self._number)
        self._number += 1
        if power:
            self._disk.cut(self._root / str(self._number), self._choose)
        else:
            crashed_copy(place, self._root / str(self._number))
        self._log.close()

    def close(self) -> None:
        """Close, and compare the ledger once more."""
        if self._is_refused:
            return
        self._check_ledger()
        self._log.close()


def _value(frame: LogFrame) -> int:
    record = decode(list(unpack(frame.payload))[-1])
    value = getattr(record, "offset", None)
    return record.progress.offset if value is None else value  # type: ignore[union-attr]


def _failed(failure: OSError) -> None:
    raise failure
