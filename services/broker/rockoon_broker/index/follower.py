"""Index follower: adds the visible log to the index in small pieces, on another thread.

The event loop provides the keys that were found at the append, or reads a piece of the log. A
thread extracts the keys and adds them to the index. Then the follower pauses (`pace`). If the disk
fails, the index is opened again later from its files. Appends and pulls are not affected.

Indexing shares the CPU with appends. While CPU is scarce, its share grows with its lag: a burst is
indexed later, and the lag of a constantly busy broker settles where the share suffices. If CPU is
free, or a query waits, the index catches up at once.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from rockoon_broker import cold_reads
from rockoon_broker.clock import Clock
from rockoon_broker.index.directory import IndexDirectory
from rockoon_broker.index.gaps import IndexGap
from rockoon_broker.index.key_index import KeyIndex
from rockoon_broker.index.reopening import Reopening
from rockoon_broker.store.errors import StoreClosed, StoreSyncFailed
from rockoon_broker.store.log.file_reads import ColdRead
from rockoon_broker.store.log.found_keys import KeyRun
from rockoon_broker.store.log.reading import LogChunk
from rockoon_broker.store.store import Store
from rockoon_core.clock import wait_at_most
from rockoon_format.index_file import IndexHeader
from rockoon_runtime.waking import Bell

# Share of the time while CPU is scarce and no query waits: minimum,
BUSY_SHARE_MIN = 0.04
# maximum,
BUSY_SHARE_MAX = 0.8
# and in between the lag divided by this.
FAR_BEHIND_BYTES = 32 << 20
# Minimum share while CPU is not scarce.
IDLE_SHARE = 0.5
# CPU is scarce if the broker uses this much of a CPU for other work than indexing,
BUSY_RATIO = 0.5
# or if a piece needs this many times its CPU time, because other threads run.
SLOWDOWN_MAX = 1.5
POLL_SECONDS = 0.2
BUSY_PAUSE_SECONDS_MAX = 1.0
PIECE_BYTES_MIN = 512 << 10
PIECE_BYTES_MAX = 2 << 20
# A piece needs the interpreter lock, and delays the messages that arrive while it runs by some
# tenths of a millisecond, whatever its size. So a smaller lag waits this long for more. With ten
# pieces a second, one of a hundred messages of a slow producer would be late.
LITTLE_PAUSE_SECONDS = 0.5


def piece_bytes(behind_bytes: int) -> int:
    """Return the size of the next piece of the log to index.

    A small piece blocks the event loop for a shorter time. A large one costs less per
    message, and releases the interpreter lock less often, which is slow to regain while the
    loop is busy.
    """
    share = behind_bytes / FAR_BEHIND_BYTES
    return min(max(int(share * PIECE_BYTES_MAX), PIECE_BYTES_MIN), PIECE_BYTES_MAX)


def pause_seconds(
    work_seconds: float,
    *,
    processor_seconds: float,
    busy_ratio: float,
    behind_bytes: int,
    somebody_waits: bool,
) -> float:
    """Return how long to pause before the next piece.

    Args:
        work_seconds: duration of the work on the last piece.
        processor_seconds: CPU time of the last piece.
        busy_ratio: CPU time that the broker used for other work since the piece before,
            in seconds per second.
        behind_bytes: lag of the index in the log.
        somebody_waits: True if a query waits for the index to reach the log's end.
    """
    if behind_bytes <= 0:
        return POLL_SECONDS
    if somebody_waits:
        return 0.0
    if behind_bytes < PIECE_BYTES_MIN:
        return LITTLE_PAUSE_SECONDS
    is_scarce = busy_ratio > BUSY_RATIO or work_seconds > SLOWDOWN_MAX * processor_seconds
    share_min = BUSY_SHARE_MIN if is_scarce else IDLE_SHARE
    share = min(max(behind_bytes / FAR_BEHIND_BYTES, share_min), BUSY_SHARE_MAX)
    return min(work_seconds * (1 / share - 1), BUSY_PAUSE_SECONDS_MAX)


Result = TypeVar("Result")

log = logging.getLogger(__name__)

CHECKPOINT_SECONDS = 10.0
RETRY_SECONDS = 5.0
CLOSE_SECONDS_MAX = 1.0
# Range of a gap to search for keys before anything is logged about it.
GAP_BYTES_MAX = 64 << 20


class IndexFollower:
    """Background task that adds new messages to the index; queries wait for it. Used by the event
    loop's thread.

    Args:
        clock: used for names of files, and to measure durations.
        store_changed: event, set when the log has grown or lost its oldest files.

    Attributes:
        index: the open index; None before its files are checked, and after a failure.
    """

    def __init__(
        self, store: Store, directory: IndexDirectory, clock: Clock, store_changed: Bell
    ) -> None:
        self.index: KeyIndex | None = None
        self._store = store
        self._directory = directory
        self._clock = clock
        self._store_changed = store_changed
        # The index must not contain more than the log had at the start.
        self._log_end = store.recovery.log_end
        self._waiting = 0
        self._progress = asyncio.Condition()
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._busy_ratio = 0.0
        self._complained = False
        # Error for which the index is currently closed.
        self.failure: OSError | None = None
        # Set on a follower, where no queries arrive: index only large pieces.
        self.gathers = False
        # Whether the last piece came from the cache of copied chunks.
        self._is_copied = False
        self._log_min = -1

    @property
    def end_offset(self) -> int:
        """Physical offset up to which the log is indexed; 0 while the index is closed."""
        return 0 if self.index is None else self.index.position

    async def run(self) -> None:
        """Index until cancelled or the store has ended."""
        while True:
            try:
                index = await self._open()
                self.failure = None
                await self._check_gaps(index)
                await self._follow(index)
            except (StoreSyncFailed, StoreClosed):
                return
            except OSError as failure:
                self.failure = failure
                self._store.found_keys.clear()
                self._complain(failure)
                if self.index is not None:
                    index, self.index = self.index, None
                    await self._in_thread(index.abandon)
                # There was no crash: the index may contain everything that readers have seen.
                self._log_end = self._store.visible_end
            await asyncio.sleep(RETRY_SECONDS)

    async def _open(self) -> KeyIndex:
        await self._remove_foreign()
        was_clean = self._store.recovery.was_clean
        reopening = Reopening(self._directory, self._log_end, was_clean=was_clean)
        while True:
            began = self._clock.monotonic_seconds()
            if not await self._in_thread(reopening.step):
                break
            # Use half of the time, because a start has other work to do.
            await asyncio.sleep(self._clock.monotonic_seconds() - began)
        for name in reopening.removed:
            log.warning("index file %s was invalid: its keys are indexed again", name)
        assert reopening.result is not None
        log_min = self._store.log_min_offset
        self.index = await self._in_thread(
            partial(KeyIndex, self._directory, reopening.result, log_min, self._full)
        )
        self._store.found_keys.wanted = True
        return self.index

    async def _remove_foreign(self) -> None:
        """Delete the last files if they index another log, because their range would be trusted."""
        files = await self._in_thread(self._directory.files)
        while files and not self._is_of_this_log(files[-1].header):
            path = files.pop().path
            log.warning("index file %s is of another log: its keys are indexed again", path.name)
            await self._in_thread(partial(self._directory.remove, path))

    def _is_of_this_log(self, header: IndexHeader) -> bool:
        """Return whether the last message of a file is in this log; True if it cannot be
        checked."""
        end_offset = header.end_offset
        in_log = self._store.log_min_offset <= end_offset < self._store.visible_end
        if header.next_unit <= 1 or not in_log:
            return True
        chunk = self._store.read_log(end_offset, 1)
        if chunk.records.count == 0 or chunk.start != end_offset:
            return False
        return int(chunk.records.store_timestamps_ms[0]) == header.end_timestamp_ms

    async def _check_gaps(self, index: KeyIndex) -> None:
        """Check whether keys are missing between the index's files, or before the first.

        Messages without keys leave no trace in the index, so only the log can answer that. If the
        first bytes of a gap do not, filling it does.
        """
        for gap in index.gaps:
            lacks_keys = await self._lacks_keys(gap)
            if lacks_keys is False:
                index.close_gap(gap)
            elif lacks_keys:
                log.warning(
                    "the index by key lacks messages between physical offsets %d and %d: "
                    "indexing them again from the log",
                    gap.begin,
                    gap.end,
                )
            else:
                log.info(
                    "checking in the log whether the index by key lacks messages between physical "
                    "offsets %d and %d",
                    gap.begin,
                    gap.end,
                )

    async def _lacks_keys(self, gap: IndexGap) -> bool | None:
        """Return whether keys of the log are missing in a gap; None if its first bytes contain no
        key."""
        position = gap.begin
        while position <= min(gap.end, gap.begin + GAP_BYTES_MAX):
            chunk = await self._chunk(position, gap)
            missing = await self._in_thread(partial(gap.missing, chunk))
            if len(missing):
                return True
            if chunk.next_offset <= position:
                return None
            position = chunk.next_offset
        return False if position > gap.end else None

    async def _chunk(self, position: int, gap: IndexGap) -> LogChunk:
        """Read a chunk of the log within a gap."""
        wanted = min(PIECE_BYTES_MIN, gap.end - position + 1)
        return await cold_reads.read(partial(self._store.read_log, position, wanted))

    async def _fill_gap(self, index: KeyIndex) -> float:
        """Add missing keys to a part of the first gap; return the CPU seconds used."""
        if not index.gaps:
            return 0.0
        gap = index.gaps[0]
        position = max(index.fill_from, self._store.log_min_offset)
        if position > gap.end:
            # Retention has deleted the rest of the gap.
            index.leave_gap(gap)
            return 0.0
        chunk = await self._chunk(position, gap)

        def fill() -> float:
            began = time.thread_time()
            index.fill_gap(chunk)
            return time.thread_time() - began

        try:
            return await self._in_thread(fill)
        except FileExistsError as failure:
            log.error("%s: cannot find its messages by key", failure)  # noqa: TRY400
            index.leave_gap(gap)
            return 0.0

    async def _follow(self, index: KeyIndex) -> None:
        began = checkpointed_at = self._clock.monotonic_seconds()
        used = time.process_time()
        # State of the index at the last checkpoint; a newly opened file may need one.
        checkpointed = None
        while True:
            own_seconds = await self._piece(index) + await self._fill_gap(index)
            now = self._clock.monotonic_seconds()
            if now - checkpointed_at >= CHECKPOINT_SECONDS:
                checkpointed_at, checkpointed = now, (index.position, len(index.gaps))
                await self._in_thread(index.checkpoint)
                self._complained = False
            await self._clean(index)
            async with self._progress:
                self._progress.notify_all()
            work_seconds = now - began
            if self._is_idle(index):
                due_seconds = max(checkpointed_at + CHECKPOINT_SECONDS - now, 0.0)
                is_new = checkpointed != (index.position, len(index.gaps))
                await self._store_changed.wait(due_seconds if is_new else None)
            behind_bytes = self._store.visible_end - index.position
            pause = pause_seconds(
                work_seconds,
                processor_seconds=own_seconds,
                busy_ratio=self._busy_ratio,
                # No query waits for gaps, so they get the smallest share whatever their size.
                behind_bytes=max(behind_bytes, PIECE_BYTES_MIN if index.gaps else 0),
                somebody_waits=self._waiting > 0,
            )
            if self.gathers and behind_bytes < PIECE_BYTES_MAX:
                pause = max(pause, POLL_SECONDS)
            elif self.gathers and self._is_copied:
                # Later it would have to be read from the disk.
                pause = 0.0
            await self._pause(pause)
            # Measured from one piece's start to the next one's, including the pause.
            used_before, used = used, time.process_time()
            began_before, began = began, self._clock.monotonic_seconds()
            elapsed_seconds = max(began - began_before, 1e-6)
            self._busy_ratio = (used - used_before - own_seconds) / elapsed_seconds

    def _is_idle(self, index: KeyIndex) -> bool:
        """Return whether the whole log is indexed, so that there is no work before it changes."""
        log_min, end = self._store.log_min_offset, self._store.appended_end
        return index.position >= end and not index.gaps and self._log_min == log_min

    async def _piece(self, index: KeyIndex) -> float:
        """Add one piece of the log to the index; return the CPU seconds used."""
        behind_bytes = self._store.visible_end - index.position
        if behind_bytes <= 0:
            return 0.0
        wanted = (self._store, index.position, piece_bytes(behind_bytes))

        def read() -> tuple[list[LogChunk | KeyRun], float]:
            began = time.thread_time()
            return next_pieces(*wanted), time.thread_time() - began

        pieces, read_seconds = await cold_reads.read(read)
        last = pieces[-1]
        self._is_copied = isinstance(last, LogChunk) and last.checked
        now_ms = self._clock.now_ms()

        def add_keys() -> float:
            began = time.thread_time()
            index.add(pieces, now_ms)
            return time.thread_time() - began

        return read_seconds + await self._in_thread(add_keys)

    async def _pause(self, seconds: float) -> None:
        if seconds == 0:
            await asyncio.sleep(0)
            return
        self._wake.clear()
        await wait_at_most(seconds, self._wake.wait())

    async def _clean(self, index: KeyIndex) -> None:
        """Delete index files whose messages retention has deleted."""
        log_min = self._store.log_min_offset
        if log_min != self._log_min:
            self._log_min = log_min
            for name in await self._in_thread(partial(index.remove_expired, log_min)):
                log.info("deleted index file %s: its messages are deleted", name)

    async def wait_caught_up(self, seconds: float) -> int:
        """Wait until the log that is visible now is indexed, up to a time limit in seconds.

        Returns:
            End of the log when the wait began.
        """
        end = self._store.visible_end
        self._waiting += 1
        self._wake.set()
        try:
            async with asyncio.timeout(seconds), self._progress:
                await self._progress.wait_for(lambda: self.end_offset >= end)
        except TimeoutError:
            pass
        finally:
            self._waiting -= 1
        return end

    def close(self) -> None:
        """Index the rest of the log if that is quick, and close the index. `run` must have ended.

        After a clean stop, a RocketMQ broker that opens the store next would not index the rest.
        """
        index, self.index = self.index, None
        if index is None:
            return
        deadline = self._clock.monotonic_seconds() + CLOSE_SECONDS_MAX
        try:
            while (
                index.position < self._store.visible_end
                and self._clock.monotonic_seconds() < deadline
            ):
                chunk = self._store.read_log(index.position, PIECE_BYTES_MAX)
                index.add([chunk], self._clock.now_ms())
        except (OSError, StoreSyncFailed, StoreClosed) as failure:
            log.warning("the index is incomplete and is continued at the next start: %s", failure)
        try:
            index.close()
        except OSError as failure:
            log.warning(
                "the index was not closed, its end is rebuilt at the next start: %s", failure
            )

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        """Run a function on a thread; returns only when it is done, even if cancelled."""
        # A thread cannot be cancelled: otherwise it would write to files that `close` or the
        # next attempt uses.
        working = asyncio.get_running_loop().run_in_executor(None, work)
        try:
            return await asyncio.shield(working)
        except asyncio.CancelledError:
            await asyncio.wait([working])
            raise

    def _full(self, header: IndexHeader) -> None:
        """Handle an index file that is full and synced; runs on the indexing thread."""
        self._loop.call_soon_threadsafe(self._on_file_full, header)

    def _on_file_full(self, header: IndexHeader) -> None:
        # A recovery point must not cover messages after the file.
        least_ms = self._store.runs.least_ms(header.end_offset, header.end_timestamp_ms)
        self._store.points.index_timestamp_ms = least_ms

    def _complain(self, failure: OSError) -> None:
        if not self._complained:
            self._complained = True
            log.warning("indexing by key is interrupted by the disk, retrying: %s", failure)


# Cached keys need no read, so they may cover this many times as much of the log.
FOUND_KEYS_TIMES = 4
# Reads per call, if ranges without cached keys are in between: each blocks the event loop.
READS_MAX = 4


def next_pieces(store: Store, position: int, bytes_max: int) -> list[LogChunk | KeyRun]:
    """Return adjacent pieces of the log from a position on: cached keys, copied chunks, or records
    that are read.

    Args:
        position: below `visible_end`.
        bytes_max: maximum range to read. Cached keys may cover FOUND_KEYS_TIMES as much; their last
            batch may be longer.

    Raises:
        OSError: the disk. StoreSyncFailed, StoreClosed. ColdRead: see `file_reads`.
    """
    pieces: list[LogChunk | KeyRun] = []
    found_keys, end, reads = store.found_keys, store.visible_end, 0
    stop, found_stop = position + bytes_max, position + bytes_max * FOUND_KEYS_TIMES
    while position < min(end, found_stop) and reads < READS_MAX:
        found = found_keys.pop_run(position, end, found_stop - position)
        if found is not None:
            pieces.append(found)
        elif position < stop:
            wanted = found_keys.stop_before(position, stop) - position
            try:
                chunk = store.next_chunk(position, wanted)
            except ColdRead:
                if pieces:
                    # Cached keys that were removed from the cache must be returned now.
                    break
                raise
            reads += not chunk.checked
            pieces.append(chunk)
        else:
            break
        position = pieces[-1].next_offset
    return pieces
