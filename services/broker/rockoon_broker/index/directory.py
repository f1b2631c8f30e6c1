"""The `index/` directory: lists, creates and deletes index files.

Each search lists the directory again. So a file that another program has built is served as soon as
it has its final name. That program must write the file under another name in the same directory,
sync it, and rename it. Its name must be older than the name of the last file, to which the broker
adds keys.

- A name is the local time of creation, 17 digits; names only increase, whatever the clock does.
- Every file has the configured size. A file of another size has other numbers of slots and units,
  which no file states: it is kept but not searched.

Source: IndexService#load, #getAndCreateLastIndexFile.
"""

import contextlib
import datetime
import errno
import logging
from dataclasses import dataclass
from pathlib import Path

from rockoon_broker.store.log.directory import move_to_lost
from rockoon_broker.store.recovery.cut import LOST_DIRECTORY
from rockoon_core.disk import Disk
from rockoon_format.file_names import index_file_name
from rockoon_format.index_file import (
    HEADER_BYTES,
    IndexHeader,
    decode_header,
    index_file_bytes,
    unit_position,
)

log = logging.getLogger(__name__)

INDEX_DIRECTORY = "index"
NAME_DIGITS = 17
UNFINISHED_SUFFIX = ".new"


@dataclass(frozen=True, slots=True)
class IndexShape:
    """Numbers of hash slots and of units (one per key) in an index file; must not change while a
    directory has files."""

    slots: int
    units: int
    """Number of units; the first one is never used."""

    @property
    def file_bytes(self) -> int:
        return index_file_bytes(self.slots, self.units)


@dataclass(frozen=True, slots=True)
class StoredFile:
    """An index file on disk with its header."""

    path: Path
    header: IndexHeader

    @property
    def keys(self) -> int:
        return self.header.next_unit - 1


class IndexDirectory:
    """The files of one broker's index.

    Args:
        shape: numbers of slots and units of every file.

    Attributes:
        unserved: names of files with other sizes that the last `files` call found.
    """

    def __init__(self, root: Path, shape: IndexShape, disk: Disk) -> None:
        self.path = root / INDEX_DIRECTORY
        self.shape = shape
        self.disk = disk
        self.unserved: list[str] = []
        self._complained: set[str] = set()

    def files(self) -> list[StoredFile]:
        """Return every file of the configured size, ordered by name. Raises OSError."""
        if not self.path.is_dir():
            return []
        found = []
        unserved = []
        for path in sorted(each for each in self.path.iterdir() if is_index_name(each.name)):
            size = self.disk.facts(path).bytes
            if size != self.shape.file_bytes:
                self._complain(path, size)
                unserved.append(path.name)
                continue
            fd = self.disk.open_reading(path)
            try:
                header = decode_header(read_whole(self.disk, fd, HEADER_BYTES, 0))
            finally:
                self.disk.close(fd)
            found.append(StoredFile(path, header))
        self.unserved = unserved
        return found

    def create(self, now_ms: int) -> Path:
        """Create an empty file with a name after all others; the name is durable on return.

        Blocks are reserved for header and slots: slots are written only when the file is complete,
        and the disk may be full then. Units are sparse.

        Raises:
            OSError: the disk; no incomplete index file remains.
        """
        for changed in self.disk.make_directory(self.path):
            self.disk.sync_directory(changed)
        return self._create(name_after(max(self._names(), default=""), now_ms))

    def create_between(self, after: str, before: str, now_ms: int) -> Path:
        """Create a file with a name between those of two other files; `after` may be empty.

        Raises:
            FileExistsError: no name is free.
            OSError: see `create`.
        """
        names = self._names()
        wanted = name_after(after, now_ms)
        # The name of the present time if that is between, or else the next free name.
        name = wanted if wanted < before else name_after(after, 0)
        while name in names:
            name = name_after(name, 0)
        if name >= before:
            raise FileExistsError(
                errno.EEXIST, f"no index file can be named between {after} and {before}"
            )
        return self._create(name)

    def _names(self) -> set[str]:
        return {path.name for path in self.path.iterdir() if is_index_name(path.name)}

    def _create(self, name: str) -> Path:
        path = self.path / name
        unfinished = path.with_name(path.name + UNFINISHED_SUFFIX)
        self.disk.unlink(unfinished)
        fd = self.disk.open(unfinished, create=True)
        try:
            try:
                self.disk.set_size(fd, self.shape.file_bytes)
                self.disk.allocate(fd, unit_position(self.shape.slots, 0))
                self.disk.fdatasync(fd)
            finally:
                self.disk.close(fd)
            self.disk.rename(unfinished, path)
        except OSError:
            # If the disk is nearly full, the blocks reserved so far are needed by the log.
            with contextlib.suppress(OSError):
                self.disk.unlink(unfinished)
            raise
        self.disk.sync_directory(self.path)
        return path

    def move_away(self) -> None:
        """Move directories with names of index files, and a file named `index`, to `lost`. Raises
        OSError."""
        if self.path.is_dir():
            wrong = [
                path
                for path in self.path.iterdir()
                if is_index_name(path.name.removesuffix(UNFINISHED_SUFFIX)) and not path.is_file()
            ]
        else:
            wrong = [self.path] if self.path.exists() else []
        for path in wrong:
            lost = move_to_lost(path, self.path.parent / LOST_DIRECTORY, self.disk)
            self.disk.sync_directory(path.parent)
            log.warning("%s blocks the path of index files: moved to %s", path, lost)

    def remove_resized(self) -> list[str]:
        """Delete this broker's earlier files that have another size than configured now.

        Files of an earlier shape all have older names than those rebuilt since.

        Returns:
            Their names.

        Raises:
            OSError: the disk.
        """
        files = self.files()
        oldest = min((file.path.name for file in files), default="")
        resized = [name for name in self.unserved if oldest and name > oldest]
        for name in resized:
            self.remove(self.path / name)
        return resized

    def remove_unserved(self, before: str) -> None:
        """Delete the files of other sizes whose names are older than `before`. Raises OSError."""
        self.files()
        for name in self.unserved:
            if name < before:
                log.warning(
                    "deleting index file %s of another size: its keys are indexed again", name
                )
                self.remove(self.path / name)

    def remove(self, path: Path) -> None:
        self.disk.unlink(path)
        self.disk.sync_directory(self.path)

    def remove_expired(self, log_min_offset: int, keep: Path | None) -> list[Path]:
        """Delete files except `keep` whose messages are all deleted from the log; return them."""
        expired = [
            file.path
            for file in self.files()
            if file.path != keep and file.keys and file.header.end_offset < log_min_offset
        ]
        for path in expired:
            self.remove(path)
        return expired

    def _complain(self, path: Path, size: int) -> None:
        if path.name not in self._complained:
            self._complained.add(path.name)
            log.warning(
                "%s has %d bytes instead of %d: not used", path, size, self.shape.file_bytes
            )


def read_whole(disk: Disk, fd: int, count: int, position: int) -> bytes:
    """Read exactly `count` bytes. Raises OSError: the disk, or the file is truncated."""
    data = disk.pread(fd, count, position)
    if len(data) != count:
        raise OSError(errno.EIO, f"an index file ends before byte {position + count}")
    return data


def is_index_name(name: str) -> bool:
    return len(name) == NAME_DIGITS and name.isascii() and name.isdigit()


def name_after(last: str, now_ms: int) -> str:
    """Return the name of a file created now, larger than `last`, which may be empty. Raises
    OSError: no larger name exists."""
    name = name_of(datetime.datetime.fromtimestamp(now_ms / 1000))
    if name > last:
        return name
    # An invalid time may still be parsed as a time with other digits.
    with contextlib.suppress(ValueError, OverflowError):
        after = datetime.datetime.strptime(last, "%Y%m%d%H%M%S%f")
        name = name_of(after + datetime.timedelta(milliseconds=1))
        if name > last:
            return name
    name = f"{int(last) + 1:0{NAME_DIGITS}d}"
    if len(name) > NAME_DIGITS:
        raise OSError(errno.EEXIST, f"no index file can be named after {last}: move it away")
    return name


def name_of(moment: datetime.datetime) -> str:
    milliseconds = moment.second * 1000 + moment.microsecond // 1000
    return index_file_name(
        moment.year, moment.month, moment.day, moment.hour, moment.minute, milliseconds
    )
