"""The `index/` directory: which files there are, what they are called, which of them can go.

Files are found by listing the directory, each time: one that was built elsewhere is served as soon
as it has its name. Whoever builds one writes it under another name in the same directory, syncs
it, and renames it; its name must be older than that of the last file here, which is written to.

- A name is the local time of creation, 17 digits; names only grow, whatever the clock does.
- Every file has the configured size. Another size is another shape, and no shape is written in a
  file: it is left alone and not served.

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
)

log = logging.getLogger(__name__)

INDEX_DIRECTORY = "index"
NAME_DIGITS = 17
UNFINISHED_SUFFIX = ".new"


@dataclass(frozen=True, slots=True)
class IndexShape:
    """How many slots and units a file has; must not change for a directory that has files."""

    slots: int
    units: int
    """One of them is never used."""

    @property
    def file_bytes(self) -> int:
        return index_file_bytes(self.slots, self.units)


@dataclass(frozen=True, slots=True)
class StoredFile:
    """An index file as it is on disk."""

    path: Path
    header: IndexHeader

    @property
    def keys(self) -> int:
        return self.header.next_unit - 1


class IndexDirectory:
    """The files of one broker's index.

    Args:
        root: the store's directory.
        shape: of every file.
        disk: the file layer.

    Attributes:
        unserved: names of the files of other sizes that `files` found last.
    """

    def __init__(self, root: Path, shape: IndexShape, disk: Disk) -> None:
        self.path = root / INDEX_DIRECTORY
        self.shape = shape
        self.disk = disk
        self.unserved: list[str] = []
        self._complained: set[str] = set()

    def files(self) -> list[StoredFile]:
        """Every file that can be served, in the order of the names.

        Raises:
            OSError: the disk.
        """
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
        """Make a sparse file, empty, behind all others; its name is durable on return.

        Raises:
            OSError: the disk; nothing that would be taken for an index file is left.
        """
        for changed in self.disk.make_directory(self.path):
            self.disk.sync_directory(changed)
        return self._create(name_behind(max(self._names(), default=""), now_ms))

    def create_between(self, after: str, before: str, now_ms: int) -> Path:
        """The same with a name between those of two other files; `after` may be empty.

        Raises:
            FileExistsError: no name is free there.
            OSError: as in `create`.
        """
        names = self._names()
        wanted = name_behind(after, now_ms)
        # A name of its own time if that lies between, or else the next one that is free.
        name = wanted if wanted < before else name_behind(after, 0)
        while name in names:
            name = name_behind(name, 0)
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
            self.disk.set_size(fd, self.shape.file_bytes)
            self.disk.fdatasync(fd)
        finally:
            self.disk.close(fd)
        self.disk.rename(unfinished, path)
        self.disk.sync_directory(self.path)
        return path

    def move_away(self) -> None:
        """Move to `lost` what is no file in the place of one, and what is no directory in ours.

        Raises:
            OSError: the disk.
        """
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
            log.warning("%s is in the place of index files: moved to %s", path, lost)

    def remove_resized(self) -> list[str]:
        """Delete the files that once were of this index and have not their size any more.

        Files of an earlier shape all have older names than those that were made again then.

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
        """Delete the files of other sizes whose names are older than this. Raises OSError."""
        self.files()
        for name in self.unserved:
            if name < before:
                log.warning("index file %s is deleted: what it held is made again", name)
                self.remove(self.path / name)

    def remove(self, path: Path) -> None:
        self.disk.unlink(path)
        self.disk.sync_directory(self.path)

    def remove_expired(self, log_min_offset: int, keep: Path | None) -> list[Path]:
        """Delete files whose every message is gone from the log, except one; return them."""
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
                "%s has %d bytes, not %d: it is not served", path, size, self.shape.file_bytes
            )


def read_whole(disk: Disk, fd: int, count: int, position: int) -> bytes:
    """Read so many bytes.

    Raises:
        OSError: the disk, or the file has been cut short.
    """
    data = disk.pread(fd, count, position)
    if len(data) != count:
        raise OSError(errno.EIO, f"an index file ends before byte {position + count}")
    return data


def is_index_name(name: str) -> bool:
    return len(name) == NAME_DIGITS and name.isascii() and name.isdigit()


def name_behind(last: str, now_ms: int) -> str:
    """The name of a file made now, above `last`, which may be empty.

    Raises:
        OSError: there is none above.
    """
    name = name_of(datetime.datetime.fromtimestamp(now_ms / 1000))
    if name > last:
        return name
    # What is no time may still be read as one, of other digits.
    with contextlib.suppress(ValueError, OverflowError):
        after = datetime.datetime.strptime(last, "%Y%m%d%H%M%S%f")
        name = name_of(after + datetime.timedelta(milliseconds=1))
        if name > last:
            return name
    name = f"{int(last) + 1:0{NAME_DIGITS}d}"
    if len(name) > NAME_DIGITS:
        raise OSError(errno.EEXIST, f"no index file can be named behind {last}: move it away")
    return name


def name_of(moment: datetime.datetime) -> str:
    milliseconds = moment.second * 1000 + moment.microsecond // 1000
    return index_file_name(
        moment.year, moment.month, moment.day, moment.hour, moment.minute, milliseconds
    )
