"""The journal as a log with copies: what `rockoon_replica.log.ReplicatedLog` asks for.

Invariants:
- The ledger is made of what is committed, and on a leader of its own appended records too. A leader
  that leads no more is opened again, as another object: nothing is undone in memory.
- A file is deleted only when the state at the head of a later one is committed, so the log is
  complete from `min_offset` on. The file before that one stays, as long as others may need it.
- Where a file begins, and what state it begins with, is in the log: copies have the same files.

Positions are bytes, see frames.py.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from rockoon_core.disk import Disk
from rockoon_core.errors import Busy, StoreCorrupt, StoreFailed
from rockoon_core.replication_rules import Boundary
from rockoon_offset.journal.journal import ROTATION_RETRY_SECONDS, is_shortage, not_stored
from rockoon_offset.progress.ledger import Ledger
from rockoon_offset.progress.records import encode
from rockoon_offset.replication import frames
from rockoon_offset.replication.frames import Epochs, Kind, LogFrame
from rockoon_offset.replication.journal_files import JournalFiles
from rockoon_offset.replication.outline import Outline, is_first
from rockoon_offset.replication.replay import Replay
from rockoon_offset.replication.reserve import Reserve
from rockoon_offset.replication.takeover import STATE_RECORDS, state_payloads, take_over
from rockoon_replica.log import NO_GENERATION, Generation, LogFull, WriteCheck

ROOM_SECONDS = 1.0
PROBE_BYTES = 64 << 10
WAITING_BYTES_MAX = 64 << 20
FILES_HELD_MAX = 8
"""A copy that lacks more files than the newest two and these gives its vote up."""


class JournalLog:
    """One replica's journal. Used by the event loop's thread alone.

    Args:
        directory: holds the files, and nobody else writes there; it exists.
        replica: this replica's id.
        failed: called when the disk failed; the process has to end.
        lost: called by a start, with the reason, before it cuts records that this copy may have
            acknowledged.
        disk: the file system.
        bytes_max: a leader begins a new file when so much was appended behind a state.

    Attributes:
        retain_from: files that reach beyond this position are kept, whatever else is there.

    Raises:
        StoreCorrupt: something that was on this disk cannot be read.
        OSError: the disk.
    """

    def __init__(
        self,
        directory: Path,
        replica: str,
        *,
        failed: Callable[[OSError], None],
        lost: Callable[[str], None] = lambda _: None,
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
        # Behind what the ledger is made of.
        self._pending: deque[LogFrame] = deque()
        self._outline = Outline()
        self._committed = 0
        # A leader's, while a state is being written.
        self._state: Iterator[bytes] | None = None
        self._state_after = 0.0
        # Grows when the log is cut: a sync that was on its way then says nothing.
        self._cuts = 0
        # Of this process.
        self.appended_batches = self.syncs = 0
        self.sync_seconds = 0.0
        take_over(directory, replica, self._disk)
        self._files = JournalFiles(directory, self._disk, self._found, lost)
        try:
            self._committed = max(self._committed, self.min_offset)
            self._leave_out_old()
            self._apply(self._committed)
            self._durable = self._files.end
            self._reserve = Reserve(directory, self._disk)
            self._room_after = 0.0
        except BaseException:
            self.close()
            raise

    # What replication may ask.

    @property
    def ledger(self) -> Ledger:
        """What is committed, and what this replica has appended as a leader."""
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
        """Nothing ever is left out."""
        return {}

    @property
    def generation(self) -> Generation:
        """Each file begins with all that those before it have made: nothing lies beside it."""
        return NO_GENERATION

    @property
    def held_end(self) -> int:
        """Up to where files wait for copies that lack them; 0 while these are no more than some."""
        held = max(self._outline.newest_whole(self._committed) - 1, 0)
        return self._outline.generations[held].begin if held > FILES_HELD_MAX else 0

    def boundaries(self) -> Sequence[Boundary]:
        return self._outline.boundaries(self.end)

    def tail_crc(self, end: int, size: int) -> int:
        return self._files.crc(end - size, end)

    def blank_at(self, position: int) -> int | None:
        """It has none."""
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
        return self._files.begin_of(position)

    def file_begin(self, position: int) -> int:
        return self._files.begin_of(position)

    async def repair(self, offset: int, data: bytes) -> None:
        """See `ReplicatedLog`; a journal's file is small enough to be synced on the loop."""
        if not self.min_offset <= offset <= offset + len(data) <= self.end:
            raise ValueError(f"the log does not have {offset} to {offset + len(data)}")
        self._files.rewrite(offset, data)

    def read(self, offset: int, bytes_max: int) -> bytes:
        """Whole frames, of one file; see `ReplicatedLog`."""
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
        """As `read`: a journal is small enough to be in the page cache."""
        return self.read(offset, bytes_max)

    # What replication does.

    def write(self, offset: int, data: bytes) -> None:
        """Append what a leader has sent.

        Raises:
            ValueError: it does not go on where the log ends, or is not whole; nothing was written.
            LogFull: the disk has no room; nothing was written.
            OSError: the disk; `failed` was called.
        """
        if offset != self.end:
            raise ValueError(f"{offset} is not the end, {self.end}")
        found = frames.whole_frames(data, offset)
        self._outline.check(found)
        starts = [offset, *(each.position for each in found if is_first(each)), offset + len(data)]
        place = self._files.place()
        try:
            for begin, end in pairwise(starts):
                if begin < end:
                    new_file = begin in starts[1:-1]
                    self._files.append(data[begin - offset : end - offset], new_file=new_file)
        except OSError as failure:
            self._files.take_back(place)
            if is_shortage(failure):
                self._reserve.note(failure)
                raise LogFull(str(failure)) from failure
            self._fail(failure)
            raise
        for frame in found:
            self._outline.learn(frame)
            self._pending.append(frame)

    def check_writes(self, *, probe: bool = False) -> WriteCheck:
        """See `ReplicatedLog.check_writes`. Without room even for the reserve, writes fail."""
        if probe:
            self._reserve.check(PROBE_BYTES)
        else:
            self._look_for_room()
        return WriteCheck(failure=self._reserve.shortage)

    async def sync(self) -> None:
        """Return when all that was written before is durable; OSError when it never will be."""
        wanted = self.end
        while self._durable < min(wanted, self.end):
            cuts, end, began = self._cuts, self.end, time.perf_counter()
            doing = asyncio.get_running_loop().run_in_executor(None, self._files.sync())
            try:
                # Not cancelled before it has begun: it closes what it has synced.
                await asyncio.shield(doing)
            except OSError as failure:
                self._fail(failure)
                raise
            self._synced(cuts, end, began)

    def sync_nowait(self) -> None:
        """As `sync`, in the time that the disk takes."""
        cuts, end, began = self._cuts, self.end, time.perf_counter()
        self._files.sync()()
        self._synced(cuts, end, began)

    def truncate(self, offset: int) -> None:
        """Make `offset` the end, durably; see `ReplicatedLog`.

        Raises:
            ValueError: no frame ends there, or it is committed.
            OSError: the disk; `failed` was called.
        """
        if offset == self.end:
            return
        try:
            if self.end == self.min_offset and offset >= self.end:
                self._files.begin_at(offset)
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
        """Nothing: nothing is left out of a journal beside it."""

    def need_generation(self, end: int) -> None:
        """Never asked for: no leader has one."""

    def commit(self, offset: int) -> None:
        """Have the ledger follow, and delete what no start needs any more.

        Raises:
            StoreCorrupt: a record makes no sense.
        """
        if offset <= self._committed:
            return
        if offset > self.end:
            raise ValueError(f"{offset} is behind the end, {self.end}")
        self._committed = offset
        self._apply(offset)
        self._delete_old()

    def open_epoch(self, epoch: int) -> None:
        """Append the frame that opens an epoch; ValueError: there is one already."""
        if self._outline.epochs and self._outline.epochs[-1][0] >= epoch:
            raise ValueError(f"epoch {epoch} cannot begin behind {self._outline.epochs[-1][0]}")
        is_empty = self.end == self.min_offset
        known = (*self._outline.epochs, (epoch, self.end))
        # In one frame: with it committed a leader leads, and its ledger is whole.
        epochs = Epochs(is_empty, is_empty, self._replica, known)
        self._append(Kind.EPOCH, frames.encode_epochs(epochs))

    # A leader.

    def admit(self) -> None:
        """Whether a change may be made now.

        Raises:
            Busy: too much waits for other copies.
            StoreNotWritable: the disk has no room.
            StoreFailed: the disk failed before.
        """
        if self.end - self._committed > WAITING_BYTES_MAX:
            raise Busy(reason=f"{self.end - self._committed} bytes of progress wait for a quorum")
        if self._failure is not None:
            raise StoreFailed(reason=str(self._failure))
        self._look_for_room()
        if self._reserve.shortage:
            raise not_stored(self._reserve.shortage)

    def append(self, records: Sequence[bytes]) -> int:
        """Append a change's records, which the ledger has applied already.

        They are committed together, or not at all, up to `frames.PART_BYTES_MAX`.

        Returns:
            The position up to which the log is to be committed before anybody hears of them.

        Raises:
            LogFull: there was no room, not even what was taken aside. The ledger is ahead of the
                log then: it has to be opened again.
            OSError: the disk; `failed` was called.
        """
        assert not self._pending, "a leader has committed all that it did not append"
        for part in frames.parts(records):
            data = frames.encode(Kind.RECORDS, self.end, self._committed, frames.pack(part))
            self._write_own(data)
        self.appended_batches += 1
        return self.end

    @property
    def wants_generation(self) -> bool:
        """Whether a leader should begin a new file, and is not about to."""
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

    def begin_generation(self) -> None:
        """Begin a new file, with the ledger as it is; `carry_state` writes that bit by bit."""
        epochs = Epochs(True, False, self._replica, tuple(self._outline.epochs))
        # Until the state is whole, or is given up.
        self._state = state_payloads(map(encode, self.ledger.snapshot()), STATE_RECORDS)
        self._append_state(Kind.EPOCH, frames.encode_epochs(epochs))

    def carry_state(self) -> bool:
        """Append the next part of the state; returns whether there is more."""
        if self._state is not None:
            payload = next(self._state, None)
            if payload is None:
                self._append_state(Kind.STATE_END, b"")
                self._state = None
            else:
                self._append_state(Kind.STATE, payload)
        return self._state is not None

    @property
    def shortage(self) -> str:
        """Why changes are refused; empty while they are not."""
        return self._reserve.shortage

    def close(self) -> None:
        """Let go of the files. What is not synced may be lost."""
        self._files.close()

    # Its parts.

    def _found(self, frame: LogFrame) -> None:
        """A frame that the start found."""
        try:
            self._outline.check([frame])
        except ValueError as failure:
            raise StoreCorrupt(path=self._directory, reason=str(failure)) from failure
        self._outline.learn(frame)
        self._committed = max(self._committed, frame.committed)
        self._pending.append(frame)

    def _leave_out_old(self) -> None:
        """A ledger begins with the newest state that is whole, if that will never be cut."""
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
                self._replay.take(frame)
            except (ValueError, TypeError, KeyError) as failure:
                raise StoreCorrupt(
                    path=self._directory,
                    reason=f"the frame at {frame.position} makes no sense: {failure!r}",
                ) from failure

    def _delete_old(self) -> None:
        # The one before it stays: a copy that is not far behind need not be made anew.
        for _ in range(self._outline.newest_whole(self._committed) - 1):
            if self._outline.generations[1].begin > self.retain_from:
                return
            del self._outline.generations[0]
            self._files.delete_first()

    def _append(self, kind: Kind, payload: bytes) -> None:
        """Append a frame of the log's own, which the ledger is not changed by."""
        data = frames.encode(kind, self.end, self._committed, payload)
        frame = frames.whole_frames(data, self.end)[0]
        self._write_own(data, new_file=is_first(frame))
        self._outline.learn(frame)
        self._pending.append(frame)
        if len(self._pending) == 1 and self._replay.is_whole:
            # A leader's: nothing waits for this to be committed.
            self._pending.clear()

    def _append_state(self, kind: Kind, payload: bytes) -> None:
        try:
            self._append(kind, payload)
        except LogFull:
            # The file has no whole state then: another one is begun later.
            self._state = None
            self._state_after = time.monotonic() + ROTATION_RETRY_SECONDS

    def _write_own(self, data: bytes, *, new_file: bool = False) -> None:
        while True:
            try:
                self._files.append(data, new_file=new_file)
            except OSError as failure:
                if not is_shortage(failure):
                    self._fail(failure)
                    raise
                if not self._reserve.give_up(failure):
                    raise LogFull(str(failure)) from failure
            else:
                return

    def _look_for_room(self) -> None:
        """Repeat what found no room, at most once a second."""
        if self._reserve.shortage and time.monotonic() >= self._room_after:
            self._room_after = time.monotonic() + ROOM_SECONDS
            self._reserve.check(PROBE_BYTES)

    def _synced(self, cuts: int, end: int, began: float) -> None:
        self.syncs += 1
        self.sync_seconds += time.perf_counter() - began
        if cuts == self._cuts:
            self._durable = max(self._durable, end)
            try:
                self._files.note_synced(self._durable)
            except OSError as failure:
                self._fail(failure)
                raise

    def _cut(self, offset: int) -> None:
        try:
            self._files.truncate(offset)
        except OSError as failure:
            # What is cut is written elsewhere first: on a full disk there is room for that.
            if not (is_shortage(failure) and self._reserve.give_up(failure)):
                raise
            self._files.truncate(offset)

    def _check_cut(self, offset: int) -> None:
        if not max(self._committed, self.min_offset) <= offset < self.end:
            raise ValueError(f"{offset} is not between {self._committed} and {self.end}")
        data = self._files.read(offset, frames.FRAME_HEADER_BYTES)
        if not frames.frame_bytes(data, 0, offset):
            raise ValueError(f"no frame ends at {offset}")
        if not self._pending or self._pending[0].position > offset:
            raise ValueError(f"the ledger is made of what is behind {offset}")

    def _fail(self, failure: OSError) -> None:
        if self._failure is None:
            self._failure = failure
            self._failed(failure)
