"""The file system for logs and journals: an object, so that tests can replace it by a failing one.

All calls that can lose or refuse data are made here. Errors are OSErrors of the operating system;
callers interpret them.

A store's files and its lock have reserved descriptor numbers: the system gives a new file or socket
the lowest free number, so if a fault anywhere in the process closes a number twice, it hits a low
number, of a recently opened file or socket. The system uses numbers of the upper half of the limit
only on request.
"""

import ctypes
import errno
import mmap
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer
import contextlib
import fcntl
import resource
import threading
from contextlib import suppress

# A larger number would cost the system more memory for the process's table of descriptors.
RANGE_START_MAX = 16384


def in_reserved_range(fd: int) -> int:
    """Move a descriptor to a number that sockets do not get; the old one is closed.

    Returns:
        The new number; the old one if no number of the range is free.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    start = RANGE_START_MAX if soft == resource.RLIM_INFINITY else min(soft // 2, RANGE_START_MAX)
    if fd >= start:
        return fd
    with contextlib.suppress(OSError):
        moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, start)
        os.close(fd)
        return moved
    return fd


CHUNK_BYTES = 1 << 20
_NO_DESCRIPTOR = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
# Errors that may pass without an action on the disk: no room, or no descriptor.
SHORTAGES = frozenset({errno.ENOSPC, errno.EDQUOT, *_NO_DESCRIPTOR})
# The file system has no hard links, or the file has too many.
LINKS_REFUSED = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV, errno.EMLINK})
# The descriptor is closed, or belongs to a socket or pipe: other code closed its number.
_NOT_OURS = frozenset({errno.EBADF, errno.ESPIPE})
# Suffix of a file that will replace another.
NEW_SUFFIX = ".new"
# bytes() zeroes its memory, a sixth of the cost of a bulk read. Accessed as an item: the attribute
# is shared by the process, and other code may declare it differently.
_new_bytes = ctypes.pythonapi["PyBytes_FromStringAndSize"]
_new_bytes.argtypes, _new_bytes.restype = (ctypes.c_void_p, ctypes.c_ssize_t), ctypes.py_object


def unfilled(count: int) -> tuple[BytesIO, memoryview]:
    """Return uninitialized memory of `count` bytes, and a view to fill it.

    Once it is full and the view is released, `getvalue` returns the bytes without a copy.
    Unfilled bytes must not be read: they may be of another message.
    """
    # A BytesIO shares the memory of a bytes object without other references; otherwise it copies.
    memory = BytesIO(_new_bytes(None, count))
    return memory, memory.getbuffer()


class Shortage(OSError):
    """Raised if the system has no file descriptor or no disk space; the call may be retried.

    No sync failed: the data to be synced is still in memory.
    """


class StartInterrupted(Exception):
    """Raised when the process stops while it opens its store; the store is not faulty.

    Not a StoreError: code that continues without unreadable data must not continue after this.
    """


@dataclass(frozen=True)
class DiskUsage:
    """Usage of a disk partition, as the operating system reports it to an ordinary user."""

    used_bytes: int
    usable_bytes: int

    @property
    def used_percent(self) -> int:
        """Used share in percent, rounded up like in RocketMQ; 100 for a partition of size 0."""
        total = self.used_bytes + self.usable_bytes
        return 100 if total <= 0 else -(-self.used_bytes * 100 // total)

    @property
    def used_ratio(self) -> float:
        """Used share, 0 to 1."""
        return self.used_bytes / max(self.used_bytes + self.usable_bytes, 1)


class FileFacts(NamedTuple):
    """File attributes that retention and recovery need."""

    bytes: int
    modified_ms: int


class OpenFile(NamedTuple):
    """An open file of a `Disk`."""

    path: Path
    device: int
    inode: int


# By descriptor, for all Disk objects: descriptors belong to the process.
_open_files: dict[int, OpenFile] = {}


def _ignore(_: str) -> None:
    pass


class Disk:
    """The real file system.

    Only the owner can access files and directories that it creates. If no descriptor is free,
    opening a file raises Shortage, an OSError.

    A store may need minutes to open, in which it only reads, or writes derived data. Another thread
    can call `interrupt`: the next read then raises StartInterrupted.

    Descriptors have reserved numbers (`descriptors.py`), which sockets do not get. If other code
    closes one anyway, the next call that uses it fails, and `on_lost` is called. A sync checks that
    its descriptor still belongs to the file that was opened.

    Attributes:
        on_lost: called on any thread with a sentence that names the file. The owner must end the
            process: it cannot know which of its other descriptors were closed.
    """

    on_lost: Callable[[str], object] = staticmethod(_ignore)
    _is_interrupted = False

    def interrupt(self) -> None:
        """Make each read raise StartInterrupted, until `go_on` is called."""
        self._is_interrupted = True

    def go_on(self) -> None:
        """Allow reads again."""
        self._is_interrupted = False

    def open(self, path: Path, *, create: bool = False) -> int:
        """Open for reading and writing; with `create` the file must not exist yet."""
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if create else 0)
        return self._opened(path, flags)

    def open_or_create(self, path: Path) -> int:
        """Open for reading and writing; a missing file is created empty."""
        return self._opened(path, os.O_RDWR | os.O_CLOEXEC | os.O_CREAT)

    def open_reading(self, path: Path) -> int:
        """Open for reading only."""
        return self._opened(path, os.O_RDONLY | os.O_CLOEXEC)

    def duplicate(self, fd: int) -> int:
        """Return another descriptor of the same open file."""
        try:
            opened = _open_files.get(fd)
            other = in_reserved_range(os.dup(fd))
        except OSError as error:
            raise self._descriptor_error(fd, error) from error
        if opened is not None:
            _open_files[other] = opened
        return other

    def close(self, fd: int) -> None:
        """Close a descriptor; one that no longer belongs to its file is reported and not closed."""
        try:
            self._check_descriptor(fd)
        except OSError as error:
            self._descriptor_error(fd, error)
            _open_files.pop(fd, None)
        else:
            # Before `os.close`: another thread may get the number as soon as it is free.
            _open_files.pop(fd, None)
            os.close(fd)

    def pwrite(self, fd: int, data: "ReadableBuffer", position: int) -> int:
        """Write some of `data` at `position`; returns the number of bytes written."""
        try:
            return os.pwrite(fd, data, position)
        except OSError as error:
            raise self._descriptor_error(fd, error) from error

    def pread(self, fd: int, count: int, position: int) -> bytes:
        """Read up to `count` bytes; fewer only at the end of the file.

        At an unreadable sector a single system call returns the bytes before it; reading on raises
        the error.

        Raises:
            StartInterrupted: see `interrupt`.
            OSError: the disk.
        """
        if self._is_interrupted:
            raise StartInterrupted
        try:
            data = os.pread(fd, count, position)
            while 0 < len(data) < count:
                rest = os.pread(fd, count - len(data), position + len(data))
                if not rest:
                    break
                data += rest
        except OSError as error:
            raise self._descriptor_error(fd, error) from error
        return data

    def pread_cached(self, fd: int, count: int, position: int) -> bytes | None:
        """Like `pread`, from the page cache only: does not wait for the disk.

        Returns:
            None if some bytes are not cached. A file system without this call may wait anyway.

        Raises:
            OSError: the disk.
        """
        if not hasattr(os, "RWF_NOWAIT"):
            return self.pread(fd, count, position)
        memory, view = unfilled(count)
        filled = 0
        with view:
            while filled < count:
                try:
                    found = os.preadv(fd, (view[filled:],), position + filled, os.RWF_NOWAIT)
                except BlockingIOError:
                    return None
                except OSError as failure:
                    if failure.errno == errno.EOPNOTSUPP:
                        return self.pread(fd, count, position)
                    raise self._descriptor_error(fd, failure) from failure
                if not found:
                    if position + filled < self.size(fd):
                        # Linux 5.9 and 5.10 return 0 for bytes that are not cached.
                        return None
                    break
                filled += found
        data = memory.getvalue()
        return data if filled == count else data[:filled]

    def will_read(self, fd: int, count: int, position: int) -> None:
        """Request that the system loads a range into the page cache."""
        os.posix_fadvise(fd, position, count, os.POSIX_FADV_WILLNEED)

    def size(self, fd: int) -> int:
        """Return the size of an open file in bytes."""
        return os.fstat(fd).st_size

    def map_reading(self, path: Path) -> memoryview:
        """Map a whole file into memory, for as long as a reference exists.

        An unreadable sector then ends the process: only for files that were read before.
        """
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                return memoryview(b"")
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

    def fdatasync(self, fd: int) -> None:
        """Make a file's bytes durable; fails if the descriptor now belongs to another file."""
        try:
            # An acknowledgement depends on it: a sync of another file would succeed.
            self._check_descriptor(fd)
            os.fdatasync(fd)
        except OSError as error:
            raise self._descriptor_error(fd, error) from error

    def drop_clean(self, fd: int) -> None:
        """Request that the next reads of a file come from the disk and not from the page cache.

        Pages that are mapped, dirty or being written stay. See `rewrite`.
        """
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def begin_writing(self, fd: int, start: int, end: int) -> None:
        """Request that the system starts to write [start, end), so that a sync has less to do.

        Written pages may be dropped from the page cache.
        """
        # Linux has a special call, which Python lacks; this one starts the write too.
        os.posix_fadvise(fd, start, end - start, os.POSIX_FADV_DONTNEED)

    def allocate(self, fd: int, count: int) -> None:
        """Reserve blocks for the first `count` bytes, which read as zeros."""
        os.posix_fallocate(fd, 0, count)

    def set_size(self, fd: int, count: int) -> None:
        """Set the size of a file: cut it, or extend it without reserving blocks."""
        os.ftruncate(fd, count)

    def sync_directory(self, path: Path) -> None:
        """Make the entries of a directory durable."""
        fd = _open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def make_directory(self, path: Path) -> list[Path]:
        """Create a directory and its missing parents; returns the directories that changed."""
        missing: list[Path] = []
        ancestor = path
        while not ancestor.is_dir():
            missing.append(ancestor)
            ancestor = ancestor.parent
        for directory in reversed(missing):
            directory.mkdir(0o700)
        return [directory.parent for directory in missing]

    def unlink(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def remove_directory(self, path: Path) -> None:
        """Remove an empty directory."""
        path.rmdir()

    def move_directory(self, source: Path, target: Path) -> None:
        """Rename a directory within the same file system; `target` does not exist."""
        source.rename(target)

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name, which does not exist yet. Raises OSError: the disk; `errno` is
        in LINKS_REFUSED if the file must be copied instead."""
        os.link(source, target)

    def is_same_file(self, path: Path, other: Path) -> bool:
        """Return whether two names are those of one file; False if `other` does not exist."""
        try:
            return path.samefile(other)
        except FileNotFoundError:
            return False

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file, replacing `target` in one step."""
        source.replace(target)

    def facts(self, path: Path) -> FileFacts:
        status = path.stat()
        return FileFacts(status.st_size, status.st_mtime_ns // 1_000_000)

    def usage(self, path: Path) -> DiskUsage:
        """Return the usage of the partition that contains `path`."""
        status = os.statvfs(path)
        used = (status.f_blocks - status.f_bfree) * status.f_frsize
        return DiskUsage(used, status.f_bavail * status.f_frsize)

    def _opened(self, path: Path, flags: int) -> int:
        fd = in_reserved_range(_open(path, flags))
        found = os.fstat(fd)
        _open_files[fd] = OpenFile(path, found.st_dev, found.st_ino)
        return fd

    def _check_descriptor(self, fd: int) -> None:
        """Raise OSError if a descriptor is closed or belongs to another file."""
        found = os.fstat(fd)
        opened = _open_files.get(fd)
        if opened is not None and (found.st_dev, found.st_ino) != (opened.device, opened.inode):
            raise OSError(errno.EBADF, "it belongs to another file")

    def _descriptor_error(self, fd: int, error: OSError) -> OSError:
        """Return the error of a call; calls `on_lost` if the descriptor lost its file."""
        if error.errno not in _NOT_OURS:
            return error
        opened = _open_files.get(fd)
        name = opened.path if opened is not None else "a file of the store"
        reason = f"descriptor {fd} of {name} was closed by other code of this process: {error}"
        self.on_lost(reason)
        return OSError(error.errno, reason)

    # Composed of the calls above, so that injected faults apply to these too.

    def write_all(self, fd: int, data: "ReadableBuffer", position: int) -> None:
        """Write all of `data`. After an OSError any prefix may have been written."""
        written = self.pwrite(fd, data, position)
        # Without a view, which would double the cost.
        if isinstance(data, bytes) and written == len(data):
            return
        view = memoryview(data)
        while written < view.nbytes:
            written += self.pwrite(fd, view.cast("B")[written:], position + written)

    def data_ranges(self, fd: int, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield ranges within [start, end) that may have nonzero bytes, according to the file
        system.

        Reserved and sparse ranges are skipped without reading them. Read-ahead is switched off for
        the descriptor: it would fill these ranges with zeros in the page cache, and cached pages
        count as data from then on.
        """
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        while start < end:
            try:
                first = os.lseek(fd, start, os.SEEK_DATA)
            except OSError:  # ENXIO: only a hole up to the end of the file
                return
            if first >= end:
                return
            start = min(os.lseek(fd, first, os.SEEK_HOLE), end)
            yield first, start

    def nonzero_ranges(self, fd: int, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield chunks of at most 1 MiB within [start, end) that contain a nonzero byte."""
        # All ranges are listed before the first read: read-ahead fills the page cache with zeros,
        # and cached pages count as data.
        for first, last in list(self.data_ranges(fd, start, end)):
            for position in range(first, last, CHUNK_BYTES):
                count = min(CHUNK_BYTES, last - position)
                chunk = self.pread(fd, count, position)
                if chunk.count(0) != len(chunk):
                    yield position, position + len(chunk)

    def is_zero(self, fd: int, start: int, end: int) -> bool:
        """Return whether all bytes in [start, end) are zero."""
        return next(self.nonzero_ranges(fd, start, end), None) is None

    def write_zeros(self, fd: int, start: int, end: int) -> int:
        """Set all bytes in [start, end) to zero; returns the number of bytes written."""
        written = 0
        for first, last in self.nonzero_ranges(fd, start, end):
            self.write_all(fd, bytes(last - first), first)
            written += last - first
        return written

    def rewrite(self, fd: int, start: int, end: int) -> None:
        """Write the bytes in [start, end) again, unchanged, so that the next sync writes them.

        After a failed sync, Linux keeps unwritten pages in memory and marks them as written: reads
        return them, and the next sync skips them. Holes stay.
        """
        # All ranges before the first read, as in `nonzero_ranges`.
        for first, last in list(self.data_ranges(fd, start, end)):
            for position in range(first, last, CHUNK_BYTES):
                data = self.pread(fd, min(CHUNK_BYTES, last - position), position)
                self.write_all(fd, data, position)

    def rewrite_zeros(self, fd: int, start: int, end: int) -> None:
        """Like `rewrite`, for a range that is known to contain only zeros; it is not read."""
        for first, last in list(self.data_ranges(fd, start, end)):
            for position in range(first, last, CHUNK_BYTES):
                self.write_all(fd, bytes(min(CHUNK_BYTES, last - position)), position)

    def replace_file(self, path: Path, content: bytes, *, is_durable: bool = True) -> None:
        """Replace the content of `path`: a reader sees the old or the new, never a mix.

        Args:
            path: the file.
            content: its new content.
            is_durable: sync it. Without a sync, syncs of other files do not wait for this one, but
                after a power cut the file may be empty.
        """
        new = path.with_name(path.name + NEW_SUFFIX)
        # A new file for each try: after a failed sync, pages may be marked as written that are not.
        self.unlink(new)
        fd = self.open(new, create=True)
        try:
            self.write_all(fd, content, 0)
            if is_durable:
                self.fdatasync(fd)
        finally:
            self.close(fd)
        self.rename(new, path)
        if is_durable:
            self.sync_directory(path.parent)


def _open(path: Path, flags: int) -> int:
    try:
        return os.open(path, flags, 0o600)
    except OSError as error:
        if error.errno in _NO_DESCRIPTOR:
            raise Shortage(*error.args, str(path)) from error
        raise


LOCK_FILE = "lock"
LOCK_TEXT = b"lock"
_guard = threading.Lock()
# Guarded by `_guard`: real paths of the roots that this process has locked.
_held: set[Path] = set()


class DirectoryLocked(Exception):
    """Raised if another process, or another object of this process, holds the directory's lock."""


class DirectoryLock:
    """Holds the lock of one store's directory from construction to `release`: one owner at a time,
    Java brokers included.

    RocketMQ holds a POSIX record lock on byte 0 of `lock`. This kind of lock does not exclude its
    own process, which also loses it when it closes *any* descriptor of the file. So a table of
    this process's locked directories is checked first, and the file is opened only once per entry.

    Raises:
        DirectoryLocked: the lock is already held.
        OSError: the lock's file cannot be opened.
    """

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()
        with _guard:
            if self._root in _held:
                raise DirectoryLocked(f"{root} is already open in this process")
            _held.add(self._root)
        try:
            fd = os.open(self._root / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            # Before locking: the lock is lost when any descriptor of the file is closed.
            self._fd = in_reserved_range(fd)
            try:
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
            except OSError:
                os.close(self._fd)
                raise
            # Written like RocketMQ does; it is never read, so a full disk is no error.
            with suppress(OSError):
                os.pwrite(self._fd, LOCK_TEXT, 0)
        except BlockingIOError:
            self._unregister()
            raise DirectoryLocked(f"{root} is in use by another process") from None
        except OSError:
            self._unregister()
            raise

    def release(self) -> None:
        """Release the lock. The file stays, as with RocketMQ."""
        os.close(self._fd)
        self._unregister()

    def _unregister(self) -> None:
        with _guard:
            _held.discard(self._root)
