"""Files of a journal on one disk.

    <generation>.journal    see frames.py
    truncation              position at which the log is being cut; removed afterwards
    lost/                   bytes of the newest CUTS_KEPT_MAX cuts
    reserve                 reserves room, so that accepted changes can be written to a full disk

A generation is the number of a file: each file of a directory has the next number. The leader
decides at which frames files begin. The same file may have another number in another replica.

Opening cuts an unfinished write at the end, and fails if a synced frame is damaged: see `synced` in
frames.py. All frames are synced again before they are used.
"""

import contextlib
import logging
import re
import threading
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rockoon_core.disk import SHORTAGES, Disk, Shortage
from rockoon_core.errors import StoreCorrupt
from rockoon_offset.journal import frames
from rockoon_offset.journal.frames import FILE_HEADER_BYTES, LogFileHeader, LogFrame

RESERVE_FILE = "reserve"


RESERVE_BYTES = 1 << 20


class Reserve:
    """File that reserves RESERVE_BYTES of disk space in a directory.

    Attributes:
        shortage: reason why the disk has no room; empty while it has.
    """

    def __init__(self, directory: Path, disk: Disk) -> None:
        self._path = directory / RESERVE_FILE
        self._directory = directory
        self._disk = disk
        self.shortage = ""
        self.allocate()

    def allocate(self) -> None:
        """Create the reserve file, and set `shortage` if the disk has no room for it."""
        try:
            fd = self._disk.open_or_create(self._path)
            try:
                self._disk.allocate(fd, RESERVE_BYTES)
            finally:
                self._disk.close(fd)
        except OSError as failure:
            with contextlib.suppress(OSError):
                self._disk.unlink(self._path)
            # Other errors: some file systems cannot allocate, and changes are still accepted.
            if is_shortage(failure):
                self.shortage = f"{failure.strerror or failure} on {self._directory}"
                return
        self.shortage = ""

    def check(self, count: int) -> None:
        """If the disk was full, check for the reserve and `count` bytes, and set `shortage`."""
        if not self._path.exists():
            self.allocate()
            return
        try:
            fd = self._disk.open_or_create(self._path)
            try:
                self._disk.allocate(fd, RESERVE_BYTES + count)
            finally:
                self._disk.set_size(fd, RESERVE_BYTES)
                self._disk.close(fd)
        except OSError as failure:
            if is_shortage(failure):
                self.set_shortage(failure)
                return
        self.shortage = ""

    def set_shortage(self, failure: OSError) -> None:
        """Set `shortage`, because a write found no room on the disk."""
        self.shortage = f"{failure.strerror or failure} on {self._directory}"

    def release(self, failure: OSError) -> bool:
        """Delete the reserve file after a shortage. Returns False if it was deleted before."""
        self.set_shortage(failure)
        if not self._path.exists():
            return False
        self._disk.unlink(self._path)
        return True


def is_shortage(failure: OSError) -> bool:
    """True if a write failed because the disk is full; it may be retried."""
    return failure.errno in SHORTAGES


log = logging.getLogger(__name__)

FILE_NAME = re.compile(r"(\d{12})\.(journal|snapshot)")
TRUNCATION = "truncation"
LOST = "lost"
# Cuts are only kept so that an operator can search them for lost changes.
CUTS_KEPT_MAX = 8
# `synced` is written again after this many bytes.
SYNCED_BYTES = 64 << 10


def journal_path(directory: Path, generation: int) -> Path:
    return directory / f"{generation:012}.journal"


def generations(directory: Path, kind: str = "journal") -> list[int]:
    """Return the numbers of generations with a file of this kind, oldest first. Snapshots are files
    of the former format.
    """
    matches = (FILE_NAME.fullmatch(path.name) for path in directory.iterdir())
    return sorted(int(match[1]) for match in matches if match and match[2] == kind)


@dataclass
class JournalFile:
    """One open file of the journal; `begin` and `end` are positions in the log."""

    path: Path
    generation: int
    fd: int
    begin: int
    end: int

    def at(self, position: int) -> int:
        """Return the byte offset of a position in the file."""
        return FILE_HEADER_BYTES + position - self.begin


class JournalFiles:
    """The journal files of one directory: reads, appends, cuts and deletes frames.

    Args:
        directory: an existing directory.
        found: called with each existing frame, in order.
        lost: called with the reason before frames are cut that may have been synced. None: this is
            the only copy of the log, whose leader syncs all frames before it commits them. Then
            damage to synced frames is an error. A damaged STATE frame is skipped, because the file
            before it has the state.
        synced: position up to which the log is known to be synced.

    Raises:
        StoreCorrupt: a synced frame cannot be read.
        OSError: the disk failed.
    """

    def __init__(
        self,
        directory: Path,
        disk: Disk,
        found: Callable[[LogFrame], None],
        lost: Callable[[str], None] | None,
        synced: int = 0,
    ) -> None:
        self._directory = directory
        self._disk = disk
        self._lost = lost
        self.files: list[JournalFile] = []
        # Files with unsynced bytes, and whether the directory has unsynced names.
        self._dirty: list[JournalFile] = []
        self._names_changed = False
        # Last written value of `synced`.
        self._synced = synced
        # Guards `_syncs` and `_retired`: a descriptor is not closed while another thread syncs it.
        self._guard = threading.Lock()
        self._syncs = 0
        self._retired: list[int] = []
        try:
            self._open()
            self._finish_truncation()
            self._read(found)
        except BaseException:
            self.close()
            raise

    @property
    def begin(self) -> int:
        return self.files[0].begin if self.files else 0

    @property
    def end(self) -> int:
        return self.files[-1].end if self.files else 0

    # Opening.

    def _open(self) -> None:
        for generation in generations(self._directory):
            path = journal_path(self._directory, generation)
            fd = self._disk.open(path)
            # Before reading: after a failed sync, the page cache may have bytes that never reached
            # the disk.
            self._disk.drop_clean(fd)
            begin = -1
            try:
                header = frames.decode_header(self._disk.pread(fd, FILE_HEADER_BYTES, 0))
            except ValueError as failure:
                self._disk.close(fd)
                raise StoreCorrupt(path=path, reason=str(failure)) from failure
            if header is not None:
                begin = header.position
                self._synced = max(self._synced, header.synced)
            size = self._disk.facts(path).bytes
            end = begin + max(0, size - FILE_HEADER_BYTES)
            self.files.append(JournalFile(path, generation, fd, begin, end))

    def _read(self, found: Callable[[LogFrame], None]) -> None:
        """Read all frames at the start, and cut unsynced bytes after the last valid one."""
        known_synced = self._synced
        end = 0
        for number, file in enumerate(self.files):
            # A file whose header was never completely written has no position.
            if file.begin >= 0 and (file.begin == end or number == 0):
                end = self._read_file(file, found)
                if end == file.end and (end > file.begin or number == 0):
                    continue
            self._cut_tail(number, end, known_synced)
            break
        if self._lost is None:
            self._check_end(self.files[-1] if self.files else None, self.end, known_synced)
        for file in self.files:
            if file.end > known_synced or file is self.files[-1]:
                kept = max(file.begin, min(known_synced, file.end))
                self._disk.set_size(file.fd, file.at(file.end))
                self._disk.rewrite(file.fd, file.at(kept), file.at(file.end))
                self._disk.fdatasync(file.fd)
        self._disk.sync_directory(self._directory)
        self._synced = 0
        self.write_synced(self.end)

    def _read_file(self, file: JournalFile, found: Callable[[LogFrame], None]) -> int:
        data = self._disk.pread(file.fd, file.at(file.end), 0)
        position = file.begin
        while True:
            at = file.at(position)
            frame = frames.decode(data, at, position)
            if frame is None and self._lost is None:
                frame = frames.decode_damaged(data, at, position)
                if frame is not None:
                    log.error(
                        "skipped a damaged frame of a state in %s at %d: the file before it has "
                        "the state",
                        *(file.path, position),
                    )
            if frame is None:
                return position
            found(frame)
            position = frame.end

    def _cut_tail(self, number: int, end: int, known_synced: int) -> None:
        """Cut the log at `end`, after its last valid frame. If later frames are valid, report them
        as lost first. Raises StoreCorrupt if `end` is before the synced position.
        """
        file = self.files[number]
        self._check_end(file, end, known_synced)
        later = self._frames_after(number, end)
        if self._lost is None:
            # A leader without followers commits exactly the synced frames.
            self._check_end(file, end, max((each.committed for each in later), default=0))
        elif later or any(each.end > each.begin for each in self.files[number + 1 :]):
            # Later frames may have been synced together with the unreadable frame, or after it.
            self._lost(f"cut valid records after {end}, where {file.path} cannot be read")
        log.warning(
            "cut %s at %d, where its last valid frame ends: the bytes after it are an unfinished "
            "write; after a power cut they may be the newest changes, which are then lost",
            *(file.path, end),
        )
        keeps_file = 0 <= file.begin <= end and (file.begin < end or number == 0)
        while len(self.files) > number + keeps_file:
            self._remove(self.files.pop())
        for last in self.files[-1:]:
            last.end = end

    def _check_end(self, last: JournalFile | None, end: int, known_synced: int) -> None:
        if end < known_synced:
            reason = f"no valid frame at {end}, although it was synced up to {known_synced}"
            raise StoreCorrupt(path=last.path if last else self._directory, reason=reason)

    def _frames_after(self, number: int, end: int) -> list[LogFrame]:
        """Return the valid frames after `end`, in the file of this number and in later files."""
        found: list[LogFrame] = []
        for file in self.files[number:]:
            begin = max(file.at(end), FILE_HEADER_BYTES) if file.begin >= 0 else FILE_HEADER_BYTES
            size = self._disk.facts(file.path).bytes
            data = self._disk.pread(file.fd, max(0, size - begin), begin)
            found += frames.valid_frames(data)
        return found

    # Reading and writing.

    def read(self, position: int, count: int) -> bytes:
        """Read at most `count` bytes of one file from a position on; empty at the end."""
        for file in reversed(self.files):
            if file.begin <= position:
                count = min(count, file.end - position)
                return self._disk.pread(file.fd, count, file.at(position))
        raise ValueError(f"{position} is below {self.begin}")

    def file_begin_of(self, position: int) -> int:
        """Return the first position of the file that contains a position."""
        begins = [file.begin for file in self.files if file.begin <= position]
        return begins[-1] if begins else self.begin

    def rewrite(self, position: int, data: bytes) -> None:
        """Replace bytes of one file, durably. Raises ValueError, OSError."""
        for file in reversed(self.files):
            if file.begin <= position:
                if position + len(data) > file.end:
                    raise ValueError(f"{file.path} ends before {position + len(data)}")
                self._disk.write_all(file.fd, data, file.at(position))
                self._disk.fdatasync(file.fd)
                self._disk.drop_clean(file.fd)
                return
        raise ValueError(f"{position} is below {self.begin}")

    def crc(self, begin: int, end: int) -> int:
        """Return the CRC-32 of a range of positions."""
        crc = 0
        while begin < end:
            data = self.read(begin, min(end - begin, 1 << 20))
            if not data:
                raise OSError(5, "the file is shorter than it was")
            crc = zlib.crc32(data, crc)
            begin += len(data)
        return crc

    def append(self, data: bytes, *, new_file: bool) -> None:
        """Append frames completely or not at all; `new_file`: in a new file. Raises OSError."""
        before = self.length()
        try:
            if new_file and not (self.files and self.files[-1].end == self.files[-1].begin):
                self._start_file(before[1])
            file = self.files[-1]
            if file not in self._dirty:
                self._dirty.append(file)
            self._disk.write_all(file.fd, data, file.at(file.end))
            file.end += len(data)
        except OSError:
            self.undo_appends(before)
            raise

    def length(self) -> tuple[int, int]:
        """Return the number of files and the end position, for `undo_appends`."""
        return len(self.files), self.end

    def undo_appends(self, length: tuple[int, int]) -> None:
        """Remove the frames that were appended after `length`, because their append failed."""
        count, end = length
        while len(self.files) > count:
            self._remove(self.files.pop())
        for file in self.files[-1:]:
            file.end = end
            with suppress(OSError):
                self._disk.set_size(file.fd, file.at(end))

    def _start_file(self, position: int) -> None:
        generation = max([0, *generations(self._directory)]) + 1
        path = journal_path(self._directory, generation)
        fd = self._disk.open(path, create=True)
        file = JournalFile(path, generation, fd, position, position)
        self.files.append(file)
        self._names_changed = True
        self._dirty.append(file)
        header = LogFileHeader(generation, position, self._synced)
        self._disk.write_all(fd, frames.encode_header(header), 0)

    def delete_first(self) -> None:
        """Delete the oldest file."""
        self._remove(self.files.pop(0))
        self._names_changed = True

    def _remove(self, file: JournalFile) -> None:
        self._retire(file.fd)
        if file in self._dirty:
            self._dirty.remove(file)
        self._disk.unlink(file.path)

    # Syncing.

    def sync(self) -> Callable[[], None]:
        """Return a function that syncs all written bytes; another thread may call it.

        Files are synced in order, so a file is never on the disk without the file before it.
        """
        files, names = self._dirty, self._names_changed
        self._dirty, self._names_changed = [], False
        with self._guard:
            self._syncs += 1

        def do() -> None:
            try:
                for file in files:
                    self._disk.fdatasync(file.fd)
                if names:
                    self._disk.sync_directory(self._directory)
            except Shortage:
                # No descriptor was free: the next sync repeats it.
                self._names_changed = True
                raise
            finally:
                with self._guard:
                    self._syncs -= 1
                    retired: list[int] = []
                    if not self._syncs:
                        retired, self._retired = self._retired, retired
                for fd in retired:
                    self._disk.close(fd)

        return do

    def write_synced(self, position: int) -> None:
        """Write the position up to which the log is synced into the newest file's header, once for
        each `SYNCED_BYTES` of progress. The header is not synced.
        """
        file = self.files[-1] if self.files else None
        if file is None or position < file.begin:
            return
        if self._synced and position < self._synced + SYNCED_BYTES:
            return
        try:
            self._disk.write_all(file.fd, frames.encode_synced(position), frames.SYNCED_AT)
        except OSError as failure:
            if failure.errno not in SHORTAGES:
                raise
            # Tried again after the next sync.
            return
        self._synced = position
        if file not in self._dirty:
            self._dirty.append(file)

    # Cutting.

    def truncate(self, position: int) -> None:
        """Cut the log at a position, durably. After a crash the next start completes the cut."""
        kept = self._directory / LOST
        for changed in self._disk.make_directory(kept):
            self._disk.sync_directory(changed)
        cut = b"".join(
            self.read(max(file.begin, position), file.end)
            for file in self.files
            if file.end > position
        )
        target = kept / f"{position}-{position + len(cut)}.frames"
        number = 0
        while target.exists():
            # A former cut of the same range, by another leader.
            number += 1
            target = target.with_suffix(f".frames-{number}")
        self._disk.replace_file(target, cut)
        content = frames.encode_synced(position)
        self._disk.replace_file(self._directory / TRUNCATION, content)
        self._finish_truncation()
        cuts = sorted(kept.iterdir(), key=lambda path: self._disk.facts(path).modified_ms)
        for path in cuts[:-CUTS_KEPT_MAX]:
            self._disk.unlink(path)

    def _finish_truncation(self) -> None:
        path = self._directory / TRUNCATION
        if not path.exists():
            return
        content = path.read_bytes()
        (position,) = frames.SYNCED.unpack_from(content)
        while len(self.files) > 1 and not 0 <= self.files[-1].begin < position:
            self._remove(self.files.pop())
        self._synced = min(self._synced, position)
        for file in self.files[-1:]:
            file.end = min(file.end, position)
            # `synced` in the file must not be beyond the end.
            self._disk.write_all(file.fd, frames.encode_synced(self._synced), frames.SYNCED_AT)
            self._disk.set_size(file.fd, file.at(file.end))
        for file in self.files:
            self._disk.fdatasync(file.fd)
        self._disk.sync_directory(self._directory)
        self._disk.unlink(path)
        self._disk.sync_directory(self._directory)

    def start_at(self, position: int) -> None:
        """Start the log at a position, durably. The directory has no frames."""
        while self.files:
            self._remove(self.files.pop())
        self._start_file(position)
        self.sync()()

    def close(self) -> None:
        while self.files:
            self._retire(self.files.pop().fd)

    def _retire(self, fd: int) -> None:
        with self._guard:
            if self._syncs:
                self._retired.append(fd)
                return
        self._disk.close(fd)
