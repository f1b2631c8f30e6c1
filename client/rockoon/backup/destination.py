"""Destination of backups: a directory of this machine, or a file system that Arrow knows (S3).

A file appears once it is complete, and never changes.
"""

import os
import re
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote, urlsplit

from rockoon_core.disk import DirectoryLock, DirectoryLocked
from rockoon_core.valid_text import redacted

CHUNK_BYTES = 4 << 20
PARTIAL_SUFFIX = ".partial"


class BackupError(Exception):
    """A backup cannot be made, is damaged, or cannot be restored; the text is for the operator."""


class FileMissing(BackupError):
    """A file of a backup is missing."""


class ContentUnreadable(BackupError):
    """The content of a file is damaged, or has the format of another version."""


class OtherFormat(ContentUnreadable):
    """An intact file has the format of another version."""


@contextmanager
def disk_failures(place: str, verb: str) -> Iterator[None]:
    """Raise BackupError for an error of the destination's disk or object store, and FileMissing for
    a missing file.

    Args:
        place: the file, without secrets.
        verb: "read", "written", "locked" or "removed".
    """
    try:
        yield
    except FileNotFoundError:
        raise FileMissing(f"{place} is missing") from None
    except OSError as failure:
        reason = redacted(failure.strerror or failure)
        raise BackupError(f"{place} cannot be {verb}: {reason}") from failure


class Destination(ABC):
    """Files of backups, by names such as "logs/broker-a/00000000000000000000". `shown`: the
    destination without secrets, for messages."""

    shown: str

    @abstractmethod
    def exists(self) -> bool:
        """True if the destination is a directory, or a prefix with at least one object. Raises
        BackupError if it cannot be read, or is a file."""

    @abstractmethod
    def names(self) -> dict[str, int]:
        """Return the names of all files with their sizes in bytes."""

    @abstractmethod
    def read(self, name: str) -> Iterator[bytes]:
        """Yield the content of a file in chunks. Raises BackupError if it is missing or cannot be
        read."""

    @abstractmethod
    def writer(self, name: str) -> Any:
        """Return a context manager with a binary file; the file appears if no error is raised.
        Raises BackupError if the destination refuses a write, for example because it is full."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a file; no error if it is missing. Raises BackupError if the destination
        refuses."""

    @contextmanager
    def locked(self) -> Iterator[bool]:
        """Keep other programs from writing. Yields False if the destination has no locks."""
        yield False

    def content(self, name: str) -> bytes:
        return b"".join(self.read(name))

    def write(self, name: str, content: bytes) -> None:
        with self.writer(name) as file:
            file.write(content)


class DirectoryDestination(Destination):
    """Directory of this machine. Its files are readable by their owner alone: they contain
    messages, and what verifies the signatures of access keys. `root`: the directory; the first
    written file creates it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.shown = str(root)

    def exists(self) -> bool:
        with disk_failures(self.shown, "read"):
            if self._root.is_dir():
                return True
            if self._root.exists():
                raise BackupError(f"{self.shown} is no directory")
        return False

    def names(self) -> dict[str, int]:
        # Without the lock, a backup may rename or remove files meanwhile.
        def refused(failure: OSError) -> None:
            if not isinstance(failure, FileNotFoundError):
                raise failure

        found: dict[str, int] = {}
        with disk_failures(self.shown, "read"):
            for folder, _, names in os.walk(self._root, onerror=refused):
                for path in (Path(folder, name) for name in names if name != "lock"):
                    with suppress(FileNotFoundError):
                        status = path.stat()
                        if stat.S_ISREG(status.st_mode):
                            found[path.relative_to(self._root).as_posix()] = status.st_size
        return found

    def read(self, name: str) -> Iterator[bytes]:
        with (
            disk_failures(f"{self.shown}/{name}", "read"),
            (self._root / name).open("rb") as file,
        ):
            while data := file.read(CHUNK_BYTES):
                yield data

    @contextmanager
    def writer(self, name: str) -> Iterator[IO[bytes]]:
        path = self._root / name
        partial = path.with_name(path.name + PARTIAL_SUFFIX)
        with disk_failures(f"{self.shown}/{name}", "written"):
            make_directory(path.parent)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            descriptor = os.open(partial, flags, 0o600)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    yield file
                    file.flush()
                    os.fsync(file.fileno())
                partial.replace(path)
            except BaseException:
                with suppress(OSError):
                    partial.unlink()
                raise
            sync_directory(path.parent)

    def remove(self, name: str) -> None:
        path = self._root / name
        with disk_failures(f"{self.shown}/{name}", "removed"):
            path.unlink(missing_ok=True)
        # Also directories that are empty now.
        with suppress(OSError):
            for parent in path.relative_to(self._root).parents[:-1]:
                (self._root / parent).rmdir()

    @contextmanager
    def locked(self) -> Iterator[bool]:
        with locked_directory(self._root, "another backup is being made or removed"):
            yield True


class ArrowDestination(Destination):
    """Directory of a file system that Arrow knows, for example "s3://bucket/backups". `uri`: uri of
    the directory."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        # Without parameters, so that the name of a file can follow.
        self.shown = redacted(uri.partition("?")[0].rstrip("/"))

    @cached_property
    def _location(self) -> tuple[Any, str]:
        try:
            import pyarrow.fs as pafs
        except ModuleNotFoundError as failure:
            raise BackupError(
                f"{self.shown} needs pyarrow: pip install 'rockoon[arrow]'"
            ) from failure
        try:
            files, root = pafs.FileSystem.from_uri(self._uri)
        except (ValueError, OSError) as failure:
            raise BackupError(f"{self.shown} cannot be used: {redacted(failure)}") from failure
        return files, root.rstrip("/")

    def exists(self) -> bool:
        from pyarrow.fs import FileType

        files, root = self._location
        with disk_failures(self.shown, "read"):
            return bool(files.get_file_info(root).type == FileType.Directory)

    def names(self) -> dict[str, int]:
        from pyarrow.fs import FileSelector

        files, root = self._location
        selector = FileSelector(root, recursive=True, allow_not_found=True)
        with disk_failures(self.shown, "read"):
            found = files.get_file_info(selector)
        return {info.path[len(root) + 1 :]: info.size for info in found if info.is_file}

    def read(self, name: str) -> Iterator[bytes]:
        files, root = self._location
        with (
            disk_failures(f"{self.shown}/{name}", "read"),
            files.open_input_stream(f"{root}/{name}") as file,
        ):
            while data := file.read(CHUNK_BYTES):
                yield data

    @contextmanager
    def writer(self, name: str) -> Iterator[Any]:
        files, root = self._location
        path = f"{root}/{name}"
        with disk_failures(f"{self.shown}/{name}", "written"):
            files.create_dir(path.rpartition("/")[0], recursive=True)
            try:
                with files.open_output_stream(path) as file:
                    yield file
            except BaseException:
                # An object store may have stored the first bytes.
                with suppress(BackupError):
                    self.remove(name)
                raise

    def remove(self, name: str) -> None:
        files, root = self._location
        with disk_failures(f"{self.shown}/{name}", "removed"), suppress(FileNotFoundError):
            files.delete_file(f"{root}/{name}")


def open_destination(place: str, *, existing: bool = False) -> Destination:
    """Return the destination of a path or a URI.

    Args:
        place: the path or the URI. A `file` URI is a path: Arrow would write a file in place.
        existing: the destination must exist: a path to read may be mistyped.

    Raises:
        BackupError: it does not exist, or cannot be used.
    """
    found: Destination
    if place.startswith("file:"):
        uri = urlsplit(place)
        if uri.netloc not in ("", "localhost") or not uri.path.startswith("/"):
            raise BackupError(f"{place} names no file of this machine: write file:///PATH")
        if uri.query or uri.fragment:
            raise BackupError(f"{place} has a query or fragment: write %3F for ?, and %23 for #")
        found = DirectoryDestination(Path(unquote(uri.path)))
    elif "://" in place:
        found = ArrowDestination(place)
    elif re.match("[a-z0-9]+:/", place):
        raise BackupError(f"{place} is no URI: write {place.replace(':/', '://', 1)}")
    else:
        found = DirectoryDestination(Path(place))
    if existing and not found.exists():
        raise BackupError(f"{found.shown} is no directory with backups: it does not exist")
    return found


@contextmanager
def locked_directory(directory: Path, user: str) -> Iterator[None]:
    """Create a directory if it is missing, and hold its lock. `user`: the program that may hold the
    lock, as part of the error message. Raises BackupError: another program holds the lock, or the
    disk refuses."""
    try:
        with disk_failures(str(directory), "locked"):
            make_directory(directory)
            lock = DirectoryLock(directory)
    except DirectoryLocked:
        raise BackupError(f"{directory} is in use: {user}") from None
    try:
        yield
    finally:
        lock.release()


def make_directory(directory: Path) -> None:
    """Create a directory of the owner alone, and its missing parents. Their entries are synced."""
    missing = [each for each in (directory, *directory.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)
        sync_directory(each.parent)


def sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
