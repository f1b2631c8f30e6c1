"""The index of one broker: what has been added, from where to go on, and searching it.

Any thread may call anything, one at a time: a lock says so. A call is short, except that a search
walks a chain of the file that is being written while it holds the lock.
"""

import threading
from collections.abc import Callable, Sequence

from rockoon_broker.index.active_file import ActiveFile
from rockoon_broker.index.directory import IndexDirectory, StoredFile
from rockoon_broker.index.gaps import Gap, GapFiller, gaps_between
from rockoon_broker.index.lookup import Candidates, Wanted, may_hold, search_files
from rockoon_broker.index.reopening import Resumption
from rockoon_broker.store.log.found_keys import KeyRun
from rockoon_broker.store.log.reading import LogChunk
from rockoon_format.index_entries import KeyEntries, index_entries, joined, keys_within
from rockoon_format.index_file import IndexHeader


class KeyIndex:
    """An open index. After an OSError of `take` or `checkpoint`: `abandon` it and open it again.

    What `take` left half done nobody sees: the file that it added to is not searched any more, and
    nothing more is written to it.

    Args:
        directory: the files.
        resumption: what `Reopening` found.
        log_min_offset: where the log begins.
        on_full: called with a file's header when it is full, or store times go back behind it, and
            it is synced, in the thread that called.

    Attributes:
        position: every record of the log below this physical offset has been taken.
        covered_from: every record from this physical offset up to `position` is in the index,
            except for what `gaps` may miss.
        gaps: where files may be missing, in the log's order. Whoever follows the log looks
            whether they are, and fills them with `mend`.
        left_gaps: those that cannot be filled.
        begins_ms: store time of its first message; None while it has none.
        until_ms: store time of the last message taken; None before the first.
    """

    def __init__(
        self,
        directory: IndexDirectory,
        resumption: Resumption,
        log_min_offset: int,
        on_full: Callable[[IndexHeader], None],
    ) -> None:
        self._directory = directory
        self._on_full = on_full
        self._lock = threading.Lock()
        self._active = resumption.active
        self._last = resumption.last
        self._keys_taken = resumption.keys_taken
        self.position = log_min_offset
        self.covered_from = log_min_offset
        self.begins_ms: int | None = None
        self.until_ms: int | None = None
        self.gaps: list[Gap] = []
        self.left_gaps: list[Gap] = []
        self._filler: GapFiller | None = None
        # Why the last `take` failed: the slots in memory lead to units that no file has, and a file
        # that it filled has keys beyond `position`.
        self._failure: OSError | None = None
        if resumption.last is not None:
            files = [file for file in directory.files() if file.keys]
            self.gaps = gaps_between(files, log_min_offset, directory)
            first = min((file.header for file in files), key=lambda each: each.begin_offset)
            self.position = resumption.last.end_offset
            self.until_ms = resumption.last.end_timestamp_ms
            self.begins_ms, self.covered_from = first.begin_timestamp_ms, first.begin_offset

    def take(self, pieces: Sequence[LogChunk | KeyRun], now_ms: int) -> int:
        """Add the keys of some records, those at `position`; return how many were added.

        Args:
            pieces: what the log has there, one behind the other, at least one.
            now_ms: epoch milliseconds, for the name of a new file.

        Raises:
            OSError: the disk, now or at an earlier call.
        """
        entries = joined([_entries(each) for each in pieces])
        with self._lock:
            self._raise_failure()
            entries = self._without_taken(entries)
            added = len(entries)
            if added and self.begins_ms is None:
                self.begins_ms = int(entries.timestamps_ms[0])
            try:
                self._add(entries, now_ms)
            except OSError as failure:
                self._failure = failure
                raise
            # Only when all was added: who asks for a key takes it that what lies before is here.
            self.position = pieces[-1].next_offset
            self.until_ms = next(filter(None, map(_newest_ms, reversed(pieces))), self.until_ms)
        return added

    def _add(self, entries: KeyEntries, now_ms: int) -> None:
        while len(entries):
            if self._active is None:
                self._active = ActiveFile.create(self._directory, now_ms, self._last)
            entries = entries.behind(self._active.add(entries))
            if self._active.remaining == 0 or len(entries):
                self._seal(self._active)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _without_taken(self, entries: KeyEntries) -> KeyEntries:
        """Leave out the keys that were in the index when it was opened."""
        taken, self._keys_taken = self._keys_taken, 0
        if not taken or self._last is None or not len(entries):
            return entries
        same = int((entries.offsets == self._last.end_offset).sum())
        return entries.behind(min(taken, same))

    @property
    def mend_from(self) -> int:
        """Physical offset of the record that `mend` wants next; there is a gap."""
        return self.gaps[0].begin if self._filler is None else self._filler.position

    def mend(self, chunk: LogChunk) -> None:
        """Add a piece of the log to what the first gap misses; the last piece ends the gap.

        Args:
            chunk: what the log has at `mend_from`.

        Raises:
            FileExistsError: there is no name for a file in the gap. `leave` it.
            OSError: the disk.
        """
        with self._lock:
            if self._filler is None:
                self._filler = GapFiller(self.gaps[0], self._directory)
            self._filler.take(chunk)
            if self._filler.is_done:
                self._filler = None
                self.close_gap(self.gaps[0])
                self._find_beginning()

    def close_gap(self, gap: Gap) -> None:
        """Nothing is missing in a gap."""
        self.gaps = [each for each in self.gaps if each is not gap]
        if gap.before is None:
            self.covered_from = gap.begin

    def leave_gap(self, gap: Gap) -> None:
        """The first gap cannot be filled: queries go on to say that something is missing."""
        with self._lock:
            self._let_filler_go()
        self.gaps = [each for each in self.gaps if each is not gap]
        self.left_gaps.append(gap)

    def _seal(self, full: ActiveFile) -> None:
        # Durable before anybody is told: recovery points will say that it is, and RocketMQ makes
        # nothing again that they call indexed.
        full.checkpoint()
        full.close()
        self._last, self._active = full.header, None
        self._on_full(full.header)

    def checkpoint(self) -> None:
        """Make what was added durable.

        Raises:
            OSError: the disk, now or in `take`.
        """
        with self._lock:
            self._raise_failure()
            if self._active is not None:
                self._active.checkpoint()

    def remove_expired(self, log_min_offset: int) -> list[str]:
        """Delete files whose every message is gone from the log; return their names."""
        with self._lock:
            keep = None if self._active is None else self._active.path
            removed = self._directory.remove_expired(log_min_offset, keep)
            if removed:
                self._find_beginning()
        return [path.name for path in removed]

    def _find_beginning(self) -> None:
        headers = [file.header for file in self._directory.files() if file.keys]
        if self._active is not None:
            headers.append(self._active.header)
        begins = [each.begin_timestamp_ms for each in headers if each.next_unit > 1]
        self.begins_ms = min(begins, default=None)

    def search(self, wanted: Wanted) -> Candidates:
        """Look for a key.

        Raises:
            OSError: the disk.
        """
        candidates = Candidates()
        with self._lock:
            files = self._directory.files()
            candidates.unserved = self._unserved_among(files)
            active = self._active
            if active is not None:
                files = [file for file in files if file.path != active.path]
                if self._failure is not None:
                    candidates.unserved = (
                        f"index file {active.path.name} could not be written ({self._failure}), "
                        "and is opened again: ask again"
                    )
                elif may_hold(active.header, wanted):
                    newest = active.newest_unit(wanted.key_hash)
                    slots = self._directory.shape.slots
                    file = StoredFile(active.path, active.header)
                    candidates.walk(wanted, file, newest, active.read_unit, slots)
        search_files(candidates, wanted, files, self._directory.shape, self._directory.disk)
        return candidates

    def _unserved_among(self, files: Sequence[StoredFile]) -> str:
        """Why a file that once was one of the index's is not searched; empty if there is none.

        Files of an earlier shape all have older names than those that were made again then.
        """
        oldest = min((file.path.name for file in files), default="")
        for name in self._directory.unserved:
            if oldest and name > oldest:
                return f"index file {name} has not its size any more: what is in it is not found"
        return ""

    def close(self) -> None:
        """Checkpoint and let go; the index is as if it had been written one key after another.

        After a failure of `take` it lets go as `abandon` does.

        Raises:
            OSError: the disk.
        """
        with self._lock:
            self._let_filler_go()
            active, self._active = self._active, None
            if active is not None:
                try:
                    if self._failure is None:
                        active.checkpoint()
                finally:
                    self._let_go(active)

    def abandon(self) -> None:
        """Let go without writing; what no checkpoint covered is indexed again."""
        with self._lock:
            active, self._active = self._active, None
            if active is not None:
                self._let_go(active)
            self._let_filler_go()

    def _let_filler_go(self) -> None:
        filler, self._filler = self._filler, None
        if filler is not None:
            filler.abandon()

    def _let_go(self, active: ActiveFile) -> None:
        active.close()
        if active.sync_failed:
            self._directory.remove(active.path)


def _entries(piece: LogChunk | KeyRun) -> KeyEntries:
    """The keys of a piece's records."""
    if isinstance(piece, KeyRun):
        return piece.entries()
    found = keys_within(piece.frames, len(piece.frames), piece.start)
    return index_entries(piece.frames, piece.records, piece.start) if found is None else found


def _newest_ms(piece: LogChunk | KeyRun) -> int | None:
    """Store time of its last record, None if it has none."""
    if isinstance(piece, KeyRun):
        return piece.newest_ms
    return int(piece.records.store_timestamps_ms[-1]) if piece.records.count else None
