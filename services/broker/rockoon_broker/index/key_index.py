"""The index by key of one broker: its state, additions and searches.

Any thread may call any method; a lock serializes them. Calls are short, except that a search
walks a chain of the active file while it holds the lock.

A file stores only the hash of a key, and times in seconds. So results of a search are candidates:
the caller must read the messages and compare key and time.
"""

import struct
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from rockoon_broker.index.active_file import ActiveFile
from rockoon_broker.index.directory import IndexDirectory, IndexShape, StoredFile, read_whole
from rockoon_broker.index.gaps import GapFiller, IndexGap, gaps_between
from rockoon_broker.index.reopening import Resumption
from rockoon_broker.store.log.found_keys import KeyRun
from rockoon_broker.store.log.reading import LogChunk
from rockoon_core.disk import Disk
from rockoon_format.index_entries import KeyEntries, index_entries, joined, keys_within
from rockoon_format.index_file import (
    HEADER_BYTES,
    SLOT_BYTES,
    UNIT_BYTES,
    FoundUnit,
    IndexFileError,
    IndexHeader,
    unit_position,
    walk_chain,
)

CANDIDATES_MAX = 4096
# Maximum number of units per search, so that a key with millions of messages blocks no other query.
UNITS_WALKED_MAX = 100_000
_SLOT = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class KeySearch:
    """A search: a key and a range of store times."""

    key_hash: int
    """Hash of the key: `hashes.index_key_hash` of `topic#key`."""
    begin_ms: int
    """First store time of the range, epoch milliseconds; the range is inclusive."""
    end_ms: int
    offset_min: int = 0
    """Physical offset from which messages are returned."""


@dataclass(slots=True)
class KeyCandidates:
    """Result of a search: physical offsets of possible matches, and which files were not
    searched."""

    offsets: list[int] = field(default_factory=list)
    units_walked: int = 0
    gave_up: str = ""
    """Why the search ended early, as a sentence; empty if it was complete."""
    unserved: str = ""
    """Why an index file, or a part of one, was not searched, as a sentence; empty if all were."""

    def walk(
        self,
        wanted: KeySearch,
        file: StoredFile,
        newest: int,
        read_unit: Callable[[int], bytes],
        slots: int,
    ) -> None:
        """Add the matches in one hash chain of a file; if the chain is damaged, only those before
        the damage."""
        try:
            self._walk(
                wanted,
                walk_chain(file.header, newest, read_unit, key_hash=wanted.key_hash, slots=slots),
            )
        except IndexFileError as damage:
            self.unserved = self.unserved or (
                f"index file {file.path.name} is damaged ({damage}) and may lack messages: stop "
                "the broker and delete the file; the next start indexes its keys again"
            )

    def _walk(self, wanted: KeySearch, chain: Iterable[FoundUnit]) -> None:
        for unit in chain:
            # The chain goes backwards in the log.
            if unit.physical_offset < wanted.offset_min:
                return
            self.units_walked += 1
            if len(self.offsets) >= CANDIDATES_MAX or self.units_walked > UNITS_WALKED_MAX:
                self.gave_up = (
                    f"the key is too frequent: {self.units_walked - 1} entries were checked "
                    "and older ones remain; narrow the time"
                )
                return
            # Stored in seconds: the message may be up to 999 ms newer.
            if unit.stored_ms + 999 < wanted.begin_ms:
                return
            if unit.key_hash == wanted.key_hash and unit.stored_ms <= wanted.end_ms:
                self.offsets.append(unit.physical_offset)


def may_hold(header: IndexHeader, wanted: KeySearch) -> bool:
    """Return whether a file may have messages in the time range of a search."""
    return (
        header.next_unit > 1
        and wanted.offset_min <= header.end_offset
        and wanted.begin_ms <= header.end_timestamp_ms
        and wanted.end_ms >= header.begin_timestamp_ms
    )


def search_files(
    candidates: KeyCandidates,
    wanted: KeySearch,
    files: Iterable[StoredFile],
    shape: IndexShape,
    disk: Disk,
) -> None:
    """Search index files, newest first, and add the matches.

    Ignores files that have been deleted: their messages are no longer in the log.

    Raises:
        OSError: the disk.
    """
    newest_first = sorted(files, key=lambda file: file.header.end_offset, reverse=True)
    for file in newest_first:
        if candidates.gave_up:
            return
        if not may_hold(file.header, wanted):
            continue
        try:
            fd = disk.open_reading(file.path)
        except FileNotFoundError:
            continue
        try:
            at = HEADER_BYTES + wanted.key_hash % shape.slots * SLOT_BYTES
            (newest,) = _SLOT.unpack(read_whole(disk, fd, SLOT_BYTES, at))
            candidates.walk(wanted, file, newest, unit_reader(fd, shape, disk), shape.slots)
        finally:
            disk.close(fd)


def unit_reader(fd: int, shape: IndexShape, disk: Disk) -> Callable[[int], bytes]:
    """Return a function that reads a unit of an open index file by its number."""

    def read(unit: int) -> bytes:
        return read_whole(disk, fd, UNIT_BYTES, unit_position(shape.slots, unit))

    return read


class KeyIndex:
    """An open index. After an OSError of `add` or `checkpoint`, the caller must `abandon` it and
    open it again.

    A partial result of `add` is never visible: the file is not searched any more, and
    nothing more is written to it.

    Args:
        resumption: result of `Reopening`.
        log_min_offset: physical offset of the log's beginning.
        on_full: called on the caller's thread with the header of a synced file that is full, or
        after
            which store times decrease.

    Attributes:
        position: physical offset up to which all records have been processed.
        covered_from: every record from this physical offset up to `position` is in the index,
            except for records in `gaps`.
        gaps: ranges with possibly missing keys, in log order. The follower checks
            them, and fills them with `fill_gap`.
        left_gaps: gaps in which keys stay missing.
        begins_ms: store time of the first message in the index; None while it is empty.
        until_ms: store time of the last processed message; None before the first.
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
        self._keys_indexed = resumption.keys_indexed
        self.position = log_min_offset
        self.covered_from = log_min_offset
        self.begins_ms: int | None = None
        self.until_ms: int | None = None
        self.gaps: list[IndexGap] = []
        self.left_gaps: list[IndexGap] = []
        self._filler: GapFiller | None = None
        # Error of the last `add`: slots in memory may refer to missing units, and a file that
        # it filled has keys after `position`.
        self._failure: OSError | None = None
        if resumption.last is not None:
            files = [file for file in directory.files() if file.keys]
            self.gaps = gaps_between(files, log_min_offset, directory)
            first = min((file.header for file in files), key=lambda each: each.begin_offset)
            self.position = resumption.last.end_offset
            self.until_ms = resumption.last.end_timestamp_ms
            self.begins_ms, self.covered_from = first.begin_timestamp_ms, first.begin_offset

    def add(self, pieces: Sequence[LogChunk | KeyRun], now_ms: int) -> int:
        """Add the keys of records at `position`; return how many keys were added.

        Args:
            pieces: one or more adjacent parts of the log.
            now_ms: epoch milliseconds, for the name of a new file.

        Raises:
            OSError: the disk, now or in an earlier call.
        """
        entries = joined([_entries(each) for each in pieces])
        with self._lock:
            self._raise_failure()
            entries = self._without_indexed(entries)
            added = len(entries)
            if added and self.begins_ms is None:
                self.begins_ms = int(entries.timestamps_ms[0])
            try:
                self._add(entries, now_ms)
            except OSError as failure:
                self._failure = failure
                raise
            # Set last: a search assumes that everything before it is in the index.
            self.position = pieces[-1].next_offset
            self.until_ms = next(filter(None, map(_newest_ms, reversed(pieces))), self.until_ms)
        return added

    def _add(self, entries: KeyEntries, now_ms: int) -> None:
        while len(entries):
            if self._active is None:
                self._active = ActiveFile.create(self._directory, now_ms, self._last)
            entries = entries.without_first(self._active.add(entries))
            if self._active.remaining == 0 or len(entries):
                self._seal(self._active)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _without_indexed(self, entries: KeyEntries) -> KeyEntries:
        """Return entries without the keys that were already in the index when it was opened."""
        taken, self._keys_indexed = self._keys_indexed, 0
        if not taken or self._last is None or not len(entries):
            return entries
        same = int((entries.offsets == self._last.end_offset).sum())
        return entries.without_first(min(taken, same))

    @property
    def fill_from(self) -> int:
        """Physical offset of the record that `fill_gap` expects next, if there is a gap."""
        return self.gaps[0].begin if self._filler is None else self._filler.position

    def fill_gap(self, chunk: LogChunk) -> None:
        """Add the keys of a part of the log to the first gap; the last part closes the gap.

        Args:
            chunk: records at `fill_from`.

        Raises:
            FileExistsError: no file name in the gap is free. Call `leave_gap`.
            OSError: the disk.
        """
        with self._lock:
            if self._filler is None:
                self._filler = GapFiller(self.gaps[0], self._directory)
            self._filler.add(chunk)
            if self._filler.is_done:
                self._filler = None
                self.close_gap(self.gaps[0])
                self._find_beginning()

    def close_gap(self, gap: IndexGap) -> None:
        """Remove a gap from `gaps`, because no key is missing in it."""
        self.gaps = [each for each in self.gaps if each is not gap]
        if gap.before is None:
            self.covered_from = gap.begin

    def leave_gap(self, gap: IndexGap) -> None:
        """Record that a gap cannot be filled; queries then report that messages may be missing."""
        with self._lock:
            self._abandon_filler()
        self.gaps = [each for each in self.gaps if each is not gap]
        self.left_gaps.append(gap)

    def _seal(self, full: ActiveFile) -> None:
        # Made durable before the callback: recovery points then state that it is indexed, and
        # RocketMQ never indexes that range again.
        full.complete()
        full.close()
        self._last, self._active = full.header, None
        self._on_full(full.header)

    def checkpoint(self) -> None:
        """Make added keys durable. Raises OSError: the disk, now or in `add`."""
        with self._lock:
            self._raise_failure()
            if self._active is not None:
                self._active.checkpoint()

    def remove_expired(self, log_min_offset: int) -> list[str]:
        """Delete files whose messages are all deleted from the log; return their names."""
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

    def search(self, wanted: KeySearch) -> KeyCandidates:
        """Search for a key. Raises OSError."""
        candidates = KeyCandidates()
        with self._lock:
            files = self._directory.files()
            candidates.unserved = self._unserved_among(files)
            active = self._active
            if active is not None:
                files = [file for file in files if file.path != active.path]
                if self._failure is not None:
                    candidates.unserved = (
                        f"index file {active.path.name} could not be written ({self._failure}), "
                        "and is being opened again: retry the query"
                    )
                elif may_hold(active.header, wanted):
                    newest = active.newest_unit(wanted.key_hash)
                    slots = self._directory.shape.slots
                    file = StoredFile(active.path, active.header)
                    candidates.walk(wanted, file, newest, active.read_unit, slots)
        search_files(candidates, wanted, files, self._directory.shape, self._directory.disk)
        return candidates

    def _unserved_among(self, files: Sequence[StoredFile]) -> str:
        """Return why former index files are not searched; empty if there are none.

        Files of an earlier shape all have older names than those rebuilt since.
        """
        oldest = min((file.path.name for file in files), default="")
        for name in self._directory.unserved:
            if oldest and name > oldest:
                return f"index file {name} has a wrong size: its messages are not found"
        return ""

    def close(self) -> None:
        """Write the rest of the active file, and close the index.

        After a failure of `add`, only closes, like `abandon`.

        Raises:
            OSError: the disk.
        """
        with self._lock:
            self._abandon_filler()
            active, self._active = self._active, None
            if active is not None:
                try:
                    if self._failure is None:
                        active.complete()
                finally:
                    self._close_active(active)

    def abandon(self) -> None:
        """Close the index without a write; keys after the last checkpoint are indexed again
        later."""
        with self._lock:
            active, self._active = self._active, None
            if active is not None:
                self._close_active(active)
            self._abandon_filler()

    def _abandon_filler(self) -> None:
        filler, self._filler = self._filler, None
        if filler is not None:
            filler.abandon()

    def _close_active(self, active: ActiveFile) -> None:
        active.close()
        if active.sync_failed:
            self._directory.remove(active.path)


def _entries(piece: LogChunk | KeyRun) -> KeyEntries:
    """Return the keys of the records in a part of the log."""
    if isinstance(piece, KeyRun):
        return piece.entries()
    found = keys_within(piece.frames, len(piece.frames), piece.start)
    return index_entries(piece.frames, piece.records, piece.start) if found is None else found


def _newest_ms(piece: LogChunk | KeyRun) -> int | None:
    """Return the store time of the last record in a part of the log; None if it has no record."""
    if isinstance(piece, KeyRun):
        return piece.newest_ms
    return int(piece.records.store_timestamps_ms[-1]) if piece.records.count else None
