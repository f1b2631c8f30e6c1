"""Journal of progress: implements `rockoon_replica.log.ReplicatedLog`.

Invariants:
- The ledger contains the committed records, and on a leader also its own appended records. After
  the end of a leadership the journal is opened as a new object, because changes of the ledger in
  memory cannot be undone.
- A file is deleted only after the state at the start of a later file is committed. So a start finds
  a complete state, and all later records. The file directly before that later file is kept, and
  older files as long as a follower may need them.
- The log contains the start and the initial state of each file, so all replicas have the same
  files.

Positions are bytes, see frames.py.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

from rockoon_core.disk import Disk
from rockoon_core.errors import Busy, StoreCorrupt, StoreFailed, StoreNotWritable
from rockoon_core.replication_rules import Boundary
from rockoon_offset.journal import frames
from rockoon_offset.journal.former_format import convert_journal
from rockoon_offset.journal.frames import EpochPayload, FrameKind, LogFrame
from rockoon_offset.journal.journal_files import JournalFiles, Reserve, is_shortage
from rockoon_offset.journal.outline import Outline, Replay, is_first
from rockoon_offset.progress.ledger import Ledger
from rockoon_offset.progress.progress_store import JournalCounts
from rockoon_offset.progress.records import Record, encode
from rockoon_replica.log import NO_GENERATION, Generation, LogFull, WriteCheck

ROOM_SECONDS = 1.0
PROBE_BYTES = 64 << 10
WAITING_BYTES_MAX = 64 << 20
# Pause after a new file that found no room.
ROTATION_RETRY_SECONDS = 30.0
FILES_HELD_MAX = 8
"""Number of old files that are kept for followers, beside the newest two. A follower that
lacks records of an older file loses its vote.
"""


class JournalLog:
    """The journal of one replica: writes its frames, and applies committed records to the ledger.
    Use it only from the event loop's thread.

    Args:
        directory: an existing directory that only this object writes to.
        replica: id of this replica.
        failed: called when the disk failed; the process must end.
        lost: called at the start with the reason, before records are cut that this replica may have
            acknowledged; None for the only copy, see `JournalFiles`.
        synced: see `JournalFiles`.
        bytes_max: a leader starts a new file after this many bytes since the last state.

    Attributes:
        retain_from: files with bytes beyond this position are kept.

    Raises:
        StoreCorrupt: synced bytes cannot be read.
        OSError: the disk failed.
    """

    def __init__(
        self,
        directory: Path,
        replica: str,
        *,
        failed: Callable[[OSError], None],
        lost: Callable[[str], None] | None = lambda _: None,
        synced: int = 0,
        disk: Disk | None = None,
        bytes_max: int = 64 << 20,
    ) -> None:
        self._directory = directory
        self._replica = replica
        self._failed = failed
        self._disk = disk or Disk()
        self._bytes_max = bytes_max
        self._failure: OSError | None = None
        self.retain_from = 0
        self._replay = Replay()
        # Frames that the ledger does not contain yet.
        self._pending: deque[LogFrame] = deque()
        self._outline = Outline()
        self._committed = 0
        # Rest of the state that a leader is writing to a new file.
        self._state: Iterator[bytes] | None = None
        self._state_after = 0.0
        # Number of cuts. A sync that started before a cut does not raise the durable end.
        self._cuts = 0
        # Since the start of the process.
        self.appended_batches = self.syncs = 0
        self.sync_seconds = 0.0
        convert_journal(directory, replica, self._disk, synced)
        self._files = JournalFiles(directory, self._disk, self._found, lost, synced)
        try:
            self._committed = max(self._committed, self.min_offset)
            self._skip_old()
            self._apply(self._committed)
            self._durable = self._files.end
            self._reserve = Reserve(directory, self._disk)
            self._room_after = 0.0
        except BaseException:
            self.close()
            raise

    # Queries of `ReplicatedLog`.

    @property
    def ledger(self) -> Ledger:
        """Ledger of the committed records, and of records that this replica appended as leader."""
        return self._replay.ledger

    @property
    def end(self) -> int:
        return self._files.end

    @property
    def durable_end(self) -> int:
        return self._durable

    @property
    def min_offset(self) -> int:
        return self._files.begin

    @property
    def committed_end(self) -> int:
        return self._committed

    @property
    def dropped(self) -> Mapping[str, int]:
        """Dropped topics: always empty, because a journal has no topics."""
        return {}

    @property
    def generation(self) -> Generation:
        """Generation: always none, because a journal has no compacted topics. Each file starts with
        the whole state.
        """
        return NO_GENERATION

    @property
    def kept_for_followers_end(self) -> int:
        """End of the files that are only kept for followers; 0 if their number is at most
        `FILES_HELD_MAX`."""
        held = max(self._outline.newest_whole(self._committed) - 1, 0)
        return self._outline.generations[held].begin if held > FILES_HELD_MAX else 0

    def boundaries(self) -> Sequence[Boundary]:
        return self._outline.boundaries(self.end)

    def tail_crc(self, end: int, size: int) -> int:
        return self._files.crc(end - size, end)

    def blank_at(self, position: int) -> int | None:
        """Return None: a journal has no blanks."""
        del position
        return None

    def damaged_at(self, offset: int, data: bytes) -> int | None:
        at = 0
        while at < len(data):
            frame = frames.decode(data, at, offset + at)
            if frame is None:
                return offset + at
            at = frame.end - offset
        return None

    def record_before(self, position: int) -> int:
        return self._files.file_begin_of(position)

    def file_begin(self, position: int) -> int:
        return self._files.file_begin_of(position)

    async def repair(self, offset: int, data: bytes) -> None:
        """Replace damaged bytes; a journal file is small enough to be synced on the loop."""
        if not self.min_offset <= offset <= offset + len(data) <= self.end:
            raise ValueError(f"the log does not have {offset} to {offset + len(data)}")
        self._files.rewrite(offset, data)

    def read(self, offset: int, bytes_max: int) -> bytes:
        """Return complete frames of one file; see `ReplicatedLog`."""
        if not self.min_offset <= offset <= self.end:
            raise ValueError(f"{offset} is not between {self.min_offset} and {self.end}")
        if offset == self.end:
            return b""
        data = self._files.read(offset, max(bytes_max, frames.FRAME_HEADER_BYTES))
        whole = frames.whole_bytes(data, offset)
        if whole:
            return data[:whole]
        size = frames.frame_bytes(data, 0, offset)
        data = self._files.read(offset, size)
        if not size or frames.whole_bytes(data, offset) != size:
            raise ValueError(f"no frame begins at {offset}")
        return data

    async def fetch(self, offset: int, bytes_max: int) -> bytes:
        """Return `read`, without a thread: a journal is small enough to be in the page cache."""
        return self.read(offset, bytes_max)

    # Changes by replication.

    def write(self, offset: int, data: bytes) -> None:
        """Append frames from the leader; see `ReplicatedLog`. Also raises OSError: the disk
        failed, and `failed` was called."""
        if offset != self.end:
            raise ValueError(f"{offset} is not the end, {self.end}")
        found = frames.whole_frames(data, offset)
        self._outline.check(found)
        starts = [offset, *(each.position for each in found if is_first(each)), offset + len(data)]
        before = self._files.length()
        try:
            for begin, end in pairwise(starts):
                if begin < end:
                    new_file = begin in starts[1:-1]
                    self._files.append(data[begin - offset : end - offset], new_file=new_file)
        except OSError as failure:
            self._files.undo_appends(before)
            if is_shortage(failure):
                self._reserve.set_shortage(failure)
                raise LogFull(str(failure)) from failure
            self._fail(failure)
            raise
        for frame in found:
            self._outline.add(frame)
            self._pending.append(frame)

    def check_writes(self, *, probe: bool = False) -> WriteCheck:
        """Return whether frames can be written; see `ReplicatedLog.check_writes`. Writes fail if
        the disk has no room for the reserve.
        """
        if probe:
            self._reserve.check(PROBE_BYTES)
        else:
            self._check_room()
        return WriteCheck(failure=self._reserve.shortage)

    async def sync(self) -> None:
        """Wait until all bytes written before are durable. Raises OSError if the disk failed."""
        wanted = self.end
        while self._durable < min(wanted, self.end):
            sync, record = self.begin_sync()
            syncing = asyncio.get_running_loop().run_in_executor(None, sync)
            try:
                # Shielded: the sync must run even if this call is cancelled, as it also closes
                # removed files.
                await asyncio.shield(syncing)
            except OSError as failure:
                self._fail(failure)
                raise
            record()

    def sync_nowait(self) -> None:
        """Sync the files in this thread, which blocks the event loop."""
        sync, record = self.begin_sync()
        sync()
        record()

    def begin_sync(self) -> tuple[Callable[[], None], Callable[[], None]]:
        """Return a function that syncs all bytes written so far, which another thread may call, and
        a function that records its success. Both raise OSError.
        """
        return self._files.sync(), partial(self._synced, self._cuts, self.end, time.perf_counter())

    def truncate(self, offset: int) -> None:
        """Cut the log at `offset`, durably; see `ReplicatedLog`. Also raises OSError: the disk
        failed, and `failed` was called."""
        if offset == self.end:
            return
        try:
            if self.end == self.min_offset and offset >= self.end:
                self._files.start_at(offset)
                self._committed = offset
            else:
                self._check_cut(offset)
                self._cut(offset)
        except OSError as failure:
            self._fail(failure)
            raise
        self._cuts += 1
        self._durable = offset
        while self._pending and self._pending[-1].position >= offset:
            self._pending.pop()
        self._outline.cut(offset, self.min_offset)

    def drop(self, dropped: Mapping[str, int]) -> None:
        """Do nothing: a journal has no topics to drop."""

    def need_generation(self, end: int) -> None:
        """Do nothing: a journal has no compacted generation to need."""

    def commit(self, offset: int) -> None:
        """Apply frames up to `offset` to the ledger, and delete files that no start needs. Raises
        StoreCorrupt: a record is invalid."""
        if offset <= self._committed:
            return
        if offset > self.end:
            raise ValueError(f"{offset} is beyond the end, {self.end}")
        self._committed = offset
        self._apply(offset)
        self._delete_old()

    def open_epoch(self, epoch: int) -> None:
        """Append the frame that starts an epoch. Raises ValueError if the epoch is not newer."""
        if self._outline.epochs and self._outline.epochs[-1][0] >= epoch:
            raise ValueError(f"epoch {epoch} cannot follow epoch {self._outline.epochs[-1][0]}")
        is_empty = self.end == self.min_offset
        known = (*self._outline.epochs, (epoch, self.end))
        # In an empty log the same frame also states that there is no earlier state: once the frame
        # is committed, the leader's ledger is complete.
        payload = EpochPayload(is_empty, is_empty, self._replica, known)
        self._append(FrameKind.EPOCH, frames.encode_epochs(payload))

    # Changes by a leader.

    def raise_level(self, level: int) -> None:
        """Write records that services of this feature level can read, or the level of records that
        the journal has already, if that is higher.
        """
        self._replay.level = max(self._replay.level, level)

    def encoded(self, records: Iterable[Record]) -> list[bytes]:
        """Return the journal form of records, at the feature level of the journal."""
        return [self._encode(record) for record in records]

    def _encode(self, record: Record) -> bytes:
        return encode(record, self._replay.level)

    def require_writable(self) -> None:
        """Raise an error if no change may be made now.

        Raises:
            Busy: too many bytes wait for a quorum.
            StoreNotWritable: the disk has no room.
            StoreFailed: the disk failed.
        """
        if self.end - self._committed > WAITING_BYTES_MAX:
            raise Busy(reason=f"{self.end - self._committed} bytes of progress are not committed")
        if self._failure is not None:
            raise StoreFailed(reason=str(self._failure))
        self._check_room()
        if self._reserve.shortage:
            raise not_stored(self._reserve.shortage)

    def append(self, records: Sequence[bytes]) -> int:
        """Append the records of a change that the ledger has applied already.

        Records of up to `frames.PART_BYTES_MAX` are committed together or not at all.

        Returns:
            End position of the records. They are durable once it is committed.

        Raises:
            LogFull: the disk has no room, even without the reserve. The ledger is then ahead of
                the log: the caller appends the same records later, or opens the log again.
            OSError: the disk failed; `failed` was called.
        """
        assert not self._pending, "the ledger of a leader contains all frames"
        for part in frames.parts(records):
            data = frames.encode(FrameKind.RECORDS, self.end, self._committed, frames.pack(part))
            self._write_own(data)
        self.appended_batches += 1
        return self.end

    @property
    def wants_generation(self) -> bool:
        """True if a leader should start a new file, and none is being started."""
        if (
            self._state is not None
            or self._pending
            or self._reserve.shortage
            or not self._outline.generations
        ):
            return False
        whole_at = self._outline.generations[-1].whole_at
        is_due = whole_at is None or self.end - whole_at > self._bytes_max
        return is_due and time.monotonic() >= self._state_after

    def start_generation(self) -> None:
        """Start a new file. `append_state` writes the current ledger to it in parts."""
        epochs = EpochPayload(True, False, self._replica, tuple(self._outline.epochs))
        # Set until the state is complete or abandoned.
        self._state = frames.state_payloads(map(self._encode, self.ledger.snapshot()))
        self._append_state(FrameKind.EPOCH, frames.encode_epochs(epochs))

    def append_state(self) -> bool:
        """Append the next part of the state to the new file; return whether parts are left."""
        if self._state is not None:
            payload = next(self._state, None)
            if payload is None:
                self._append_state(FrameKind.STATE_END, b"")
                self._state = None
            else:
                self._append_state(FrameKind.STATE, payload)
        return self._state is not None

    def counts(self) -> JournalCounts:
        size = self.end - self.min_offset
        return JournalCounts(size, self.syncs, self.sync_seconds, self.shortage)

    @property
    def shortage(self) -> str:
        """Reason why the journal refuses changes; empty if it accepts them."""
        return self._reserve.shortage

    def close(self) -> None:
        """Close the files without a sync."""
        self._files.close()

    # Internals.

    def _found(self, frame: LogFrame) -> None:
        """Add a frame that was read at the start of the process."""
        try:
            self._outline.check([frame])
        except ValueError as failure:
            raise StoreCorrupt(path=self._directory, reason=str(failure)) from failure
        self._outline.add(frame)
        self._committed = max(self._committed, frame.committed)
        self._pending.append(frame)

    def _skip_old(self) -> None:
        """Start the ledger with the newest complete state that is committed: skip older frames."""
        begin = (
            self._outline.generations[self._outline.newest_whole(self._committed)].begin
            if self._outline.generations
            else 0
        )
        while self._pending and self._pending[0].position < begin:
            self._pending.popleft()

    def _apply(self, offset: int) -> None:
        while self._pending and self._pending[0].end <= offset:
            frame = self._pending.popleft()
            try:
                self._replay.apply(frame)
            except (ValueError, TypeError, KeyError) as failure:
                raise StoreCorrupt(
                    path=self._directory,
                    reason=f"the frame at {frame.position} has an invalid record: {failure!r}",
                ) from failure

    def _delete_old(self) -> None:
        # The file before the newest complete state stays, so a follower with a small lag need not
        # copy the whole state.
        if len(self._outline.generations) <= 2:
            return
        for _ in range(self._outline.newest_whole(self._committed) - 1):
            if self._outline.generations[1].begin > self.retain_from:
                return
            del self._outline.generations[0]
            self._files.delete_first()

    def _append(self, kind: FrameKind, payload: bytes, *, spends_reserve: bool = True) -> None:
        """Append a frame that does not change the ledger."""
        data = frames.encode(kind, self.end, self._committed, payload)
        frame = frames.whole_frames(data, self.end)[0]
        self._write_own(data, new_file=is_first(frame), spends_reserve=spends_reserve)
        self._outline.add(frame)
        self._pending.append(frame)
        if len(self._pending) == 1 and self._replay.is_whole:
            # No other frame waits, and this one changes nothing: the ledger contains all frames, as
            # `append` of a leader requires.
            self._pending.clear()

    def _append_state(self, kind: FrameKind, payload: bytes) -> None:
        try:
            self._append(kind, payload, spends_reserve=False)
        except LogFull:
            # The state of this file stays incomplete; another file is started later.
            self._state = None
            self._state_after = time.monotonic() + ROTATION_RETRY_SECONDS

    def _write_own(
        self, data: bytes, *, new_file: bool = False, spends_reserve: bool = True
    ) -> None:
        while True:
            try:
                self._files.append(data, new_file=new_file)
            except OSError as failure:
                if not is_shortage(failure):
                    self._fail(failure)
                    raise
                if not (spends_reserve and self._reserve.release(failure)):
                    raise LogFull(str(failure)) from failure
            else:
                return

    def _check_room(self) -> None:
        """If the disk was full, check for free space, at most once per `ROOM_SECONDS`."""
        if self._reserve.shortage and time.monotonic() >= self._room_after:
            self._room_after = time.monotonic() + ROOM_SECONDS
            self._reserve.check(PROBE_BYTES)

    def _synced(self, cuts: int, end: int, began: float) -> None:
        self.syncs += 1
        self.sync_seconds += time.perf_counter() - began
        if cuts == self._cuts:
            self._durable = max(self._durable, end)
            try:
                self._files.write_synced(self._durable)
            except OSError as failure:
                self._fail(failure)
                raise

    def _cut(self, offset: int) -> None:
        try:
            self._files.truncate(offset)
        except OSError as failure:
            # The cut bytes are copied first. On a full disk the reserve has room for them.
            if not (is_shortage(failure) and self._reserve.release(failure)):
                raise
            self._files.truncate(offset)

    def _check_cut(self, offset: int) -> None:
        if not max(self._committed, self.min_offset) <= offset < self.end:
            raise ValueError(f"{offset} is not between {self._committed} and {self.end}")
        data = self._files.read(offset, frames.FRAME_HEADER_BYTES)
        if not frames.frame_bytes(data, 0, offset):
            raise ValueError(f"no frame ends at {offset}")
        if not self._pending or self._pending[0].position > offset:
            raise ValueError(f"the ledger already contains frames after {offset}")

    def _fail(self, failure: OSError) -> None:
        if self._failure is None:
            self._failure = failure
            self._failed(failure)


def not_stored(shortage: str) -> StoreNotWritable:
    return StoreNotWritable(f"progress cannot be stored now: {shortage}")
