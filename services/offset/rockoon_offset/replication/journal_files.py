"""Files of a journal with copies: where the bytes of its positions lie, on one disk.

    <generation>.journal    see frames.py; a file begins where its leader began a new generation
    truncation              where the log is to be cut; there only until that is done
    lost/                   what was cut, the newest CUTS_KEPT_MAX times

Generations number the files of one directory; copies number theirs otherwise.

Opening cuts what never finished being written, and refuses what is damaged: see `synced` in
frames.py. All that is found is synced again before anybody hears of it.
"""

import logging
import threading
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rockoon_core.disk import Disk
from rockoon_core.errors import StoreCorrupt
from rockoon_offset.journal.generation_files import generations, journal_path
from rockoon_offset.replication import frames
from rockoon_offset.replication.frames import FILE_HEADER_BYTES, LogFileHeader, LogFrame

log = logging.getLogger(__name__)

TRUNCATION = "truncation"
LOST = "lost"
# Nobody needs one once the copies are level again; a few, for people who look for what is gone.
CUTS_KEPT_MAX = 8
# How often the files themselves say how far they are synced.
SYNCED_BYTES = 64 << 10


@dataclass
class JournalFile:
    """One open file; `begin` and `end` are positions."""

    path: Path
    generation: int
    fd: int
    begin: int
    end: int

    def at(self, position: int) -> int:
        """Where a position lies in the file."""
        return FILE_HEADER_BYTES + position - self.begin


class JournalFiles:
    """The files of one directory.

    Args:
        directory: exists.
        disk: the file system.
        found: called with each frame that is there, in order.
        lost: called, with the reason, before records are cut that may have been synced.

    Raises:
        StoreCorrupt: something that was on this disk cannot be read.
        OSError: the disk.
    """

    def __init__(
        self,
        directory: Path,
        disk: Disk,
        found: Callable[[LogFrame], None],
        lost: Callable[[str], None],
    ) -> None:
        self._directory = directory
        self._disk = disk
        self._lost = lost
        self.files: list[JournalFile] = []
        # Files that were written since they were synced, and whether names were.
        self._dirty: list[JournalFile] = []
        self._names_changed = False
        self._noted = 0
        # Guards `_syncs` and `_retired`: what is synced by another thread is not closed yet.
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
        for generation in generations(self._directory, "journal"):
            path = journal_path(self._directory, generation)
            fd = self._disk.open(path)
            # Before reading: after a failed sync memory may show what never reached the disk.
            self._disk.drop_clean(fd)
            begin = -1
            try:
                header = frames.decode_header(self._disk.pread(fd, FILE_HEADER_BYTES, 0))
            except ValueError as failure:
                self._disk.close(fd)
                raise StoreCorrupt(path=path, reason=str(failure)) from failure
            if header is not None:
                begin = header.position
                self._noted = max(self._noted, header.synced)
            size = self._disk.facts(path).bytes
            end = begin + max(0, size - FILE_HEADER_BYTES)
            self.files.append(JournalFile(path, generation, fd, begin, end))

    def _read(self, found: Callable[[LogFrame], None]) -> None:
        """Tell the frames, and cut what was never synced behind the last good one."""
        known_synced = self._noted
        end = 0
        for number, file in enumerate(self.files):
            # One of which nothing was ever synced begins nowhere.
            if file.begin >= 0 and (file.begin == end or number == 0):
                end = self._read_file(file, found)
                if end == file.end and (end > file.begin or number == 0):
                    continue
            self._cut_tail(number, end, known_synced)
            break
        for file in self.files:
            if file.end > known_synced or file is self.files[-1]:
                kept = max(file.begin, min(known_synced, file.end))
                self._disk.set_size(file.fd, file.at(file.end))
                self._disk.rewrite(file.fd, file.at(kept), file.at(file.end))
                self._disk.fdatasync(file.fd)
        self._disk.sync_directory(self._directory)
        self._noted = 0
        self.note_synced(self.end)

    def _read_file(self, file: JournalFile, found: Callable[[LogFrame], None]) -> int:
        data = self._disk.pread(file.fd, file.at(file.end), 0)
        position = file.begin
        while frame := frames.decode(data, file.at(position), position):
            found(frame)
            position = frame.end
        return position

    def _cut_tail(self, number: int, end: int, known_synced: int) -> None:
        """End the log before it should: in the file of this number, or where that was to begin."""
        file = self.files[number]
        if end < known_synced:
            reason = f"nothing valid at {end}, and it was synced up to {known_synced}"
            raise StoreCorrupt(path=file.path, reason=reason)
        behind = any(each.end > each.begin for each in self.files[number + 1 :])
        if behind or self._has_frames_behind(file, end):
            # Other frames were synced together with what cannot be read, or after it.
            self._lost(f"whole records behind {end}, where {file.path} cannot be read, are cut")
        log.warning("%s ends at %d: what follows was never written whole", file.path, end)
        begins = 0 <= file.begin <= end and (file.begin < end or number == 0)
        while len(self.files) > number + begins:
            self._remove(self.files.pop())
        for last in self.files[-1:]:
            last.end = end

    def _has_frames_behind(self, file: JournalFile, end: int) -> bool:
        size = self._disk.facts(file.path).bytes
        begin = file.at(end) if 0 <= file.begin <= end else FILE_HEADER_BYTES
        return frames.has_whole_frame(self._disk.pread(file.fd, max(0, size - begin), begin))

    # Reading and writing.

    def read(self, position: int, count: int) -> bytes:
        """Bytes of one file from a position on, at most so many; empty at the end."""
        for file in reversed(self.files):
            if file.begin <= position:
                count = min(count, file.end - position)
                return self._disk.pread(file.fd, count, file.at(position))
        raise ValueError(f"{position} is below {self.begin}")

    def begin_of(self, position: int) -> int:
        """Where the file begins that has a position."""
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
        """CRC-32 of a range."""
        crc = 0
        while begin < end:
            data = self.read(begin, min(end - begin, 1 << 20))
            if not data:
                raise OSError(5, "the file is shorter than it was")
            crc = zlib.crc32(data, crc)
            begin += len(data)
        return crc

    def append(self, data: bytes, *, new_file: bool) -> None:
        """Write at the end, in a file of its own where asked; whole, or nothing.

        Raises:
            OSError: the disk.
        """
        place = self.place()
        try:
            if new_file and not (self.files and self.files[-1].end == self.files[-1].begin):
                self._begin_file(place[1])
            file = self.files[-1]
            if file not in self._dirty:
                self._dirty.append(file)
            self._disk.write_all(file.fd, data, file.at(file.end))
            file.end += len(data)
        except OSError:
            self.take_back(place)
            raise

    def place(self) -> tuple[int, int]:
        """Where the log ends, for `take_back`."""
        return len(self.files), self.end

    def take_back(self, place: tuple[int, int]) -> None:
        """Forget what was written since, and was told to nobody."""
        count, end = place
        while len(self.files) > count:
            self._remove(self.files.pop())
        for file in self.files[-1:]:
            file.end = end
            with suppress(OSError):
                self._disk.set_size(file.fd, file.at(end))

    def _begin_file(self, position: int) -> None:
        generation = max([0, *generations(self._directory, "journal")]) + 1
        path = journal_path(self._directory, generation)
        fd = self._disk.open(path, create=True)
        file = JournalFile(path, generation, fd, position, position)
        self.files.append(file)
        self._names_changed = True
        self._dirty.append(file)
        header = LogFileHeader(generation, position, self._noted)
        self._disk.write_all(fd, frames.encode_header(header), 0)

    def delete_first(self) -> None:
        """Take the oldest file away."""
        self._remove(self.files.pop(0))
        self._names_changed = True

    def _remove(self, file: JournalFile) -> None:
        self._retire(file.fd)
        if file in self._dirty:
            self._dirty.remove(file)
        self._disk.unlink(file.path)

    # Syncing.

    def sync(self) -> Callable[[], None]:
        """What has to be done for all that is written to be durable; another thread may do it.

        The files are synced in their order: one that goes on where another ends is never there
        without that one.
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
            finally:
                with self._guard:
                    self._syncs -= 1
                    retired: list[int] = []
                    if not self._syncs:
                        retired, self._retired = self._retired, retired
                for fd in retired:
                    self._disk.close(fd)

        return do

    def note_synced(self, position: int) -> None:
        """Have the newest file say how far everything is synced; by and by, and without a sync."""
        file = self.files[-1] if self.files else None
        if file is None or position < file.begin:
            return
        if self._noted and position < self._noted + SYNCED_BYTES:
            return
        self._noted = position
        self._disk.write_all(file.fd, frames.encode_synced(position), frames.SYNCED_AT)
        if file not in self._dirty:
            self._dirty.append(file)

    # Cutting.

    def truncate(self, position: int) -> None:
        """Make a position the end; durable when it returns, and done by the next start if not."""
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
            # Of another leader, as long as this one.
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
        self._noted = min(self._noted, position)
        for file in self.files[-1:]:
            file.end = min(file.end, position)
            # What it says of itself must not be beyond.
            self._disk.write_all(file.fd, frames.encode_synced(self._noted), frames.SYNCED_AT)
            self._disk.set_size(file.fd, file.at(file.end))
        for file in self.files:
            self._disk.fdatasync(file.fd)
        self._disk.sync_directory(self._directory)
        self._disk.unlink(path)
        self._disk.sync_directory(self._directory)

    def begin_at(self, position: int) -> None:
        """Begin at a position, durably, in a directory that holds no frame."""
        while self.files:
            self._remove(self.files.pop())
        self._begin_file(position)
        self.sync()()

    def close(self) -> None:
        """Let go of the files."""
        while self.files:
            self._retire(self.files.pop().fd)

    def _retire(self, fd: int) -> None:
        with self._guard:
            if self._syncs:
                self._retired.append(fd)
                return
        self._disk.close(fd)
