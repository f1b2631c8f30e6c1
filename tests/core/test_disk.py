"""The file layer, for details that the system's own calls leave open."""

import ctypes
import errno
import mmap
import sys
from pathlib import Path

import pytest

from rockoon_core.disk import Disk


def test_a_read_that_is_short_at_the_end_of_a_file_gives_what_is_there(tmp_path: Path) -> None:
    path, disk = tmp_path / "file", Disk()
    path.write_bytes(b"12345")
    fd = disk.open_reading(path)
    assert (disk.pread(fd, 9, 0), disk.pread(fd, 9, 3), disk.pread(fd, 9, 5)) == (
        b"12345",
        b"45",
        b"",
    )
    assert disk.size(fd) == 5
    disk.close(fd)


@pytest.mark.skipif(sys.platform != "linux", reason="of Linux's memory file")
def test_a_read_that_is_short_because_the_rest_cannot_be_read_fails() -> None:
    """For a file in memory, a removed page is like a bad sector of a disk: the system returns the
    bytes before it, and fails when the page itself is read."""
    libc, page = ctypes.CDLL(None, use_errno=True), mmap.PAGESIZE
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    start = libc.mmap(None, 2 * page, mmap.PROT_READ, flags, -1, 0)
    assert libc.munmap(start + page, page) == 0
    disk = Disk()
    fd = disk.open_reading(Path("/proc/self/mem"))
    assert disk.pread(fd, page, start) == bytes(page)
    with pytest.raises(OSError) as failed:  # noqa: PT011 - the number says which
        disk.pread(fd, 2 * page, start)
    assert failed.value.errno == errno.EIO
    disk.close(fd)
    libc.munmap(start, page)


@pytest.mark.parametrize("is_durable", [True, False])
def test_a_file_is_replaced_with_or_without_syncs(tmp_path: Path, *, is_durable: bool) -> None:
    class CountingDisk(Disk):
        syncs = 0

        def fdatasync(self, fd: int) -> None:
            self.syncs += 1
            super().fdatasync(fd)

        def sync_directory(self, path: Path) -> None:
            self.syncs += 1
            super().sync_directory(path)

    path, disk = tmp_path / "file", CountingDisk()
    path.write_bytes(b"a longer content")
    disk.replace_file(path, b"new", is_durable=is_durable)
    assert (path.read_bytes(), list(tmp_path.iterdir())) == (b"new", [path])
    assert disk.syncs == (2 if is_durable else 0)
