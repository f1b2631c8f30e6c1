"""Owners of descriptors: a peer resets connections, and other code closes files."""

import errno
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rockoon_core.disk import DirectoryLock, Disk
from support.descriptors import no_descriptors
from support.waiting import DEADLINE_SECONDS

TESTS = Path(__file__).resolve().parents[1]
CONNECTIONS = 4000


@pytest.mark.parametrize("side", ["client", "server", "both"])
def test_a_peer_that_resets_connections_makes_a_process_close_no_file_of_its_own(side: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "support.reset_connections", side, str(CONNECTIONS)],
        env=os.environ | {"PYTHONPATH": str(TESTS)},
        capture_output=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    # libuv aborts the process if a number that it watches was closed.
    assert (done.returncode, done.stdout) == (0, b"0\n"), done.stderr[-2000:]


class WatchedDisk(Disk):
    """A Disk that keeps its reports."""

    def __init__(self) -> None:
        self.lost: list[str] = []
        self.on_lost = self.lost.append


@pytest.fixture
def disk() -> WatchedDisk:
    return WatchedDisk()


def number_of(path: Path) -> int:
    """The descriptor of a file that is open in this process."""
    own = Path("/proc/self/fd")
    return next(int(each.name) for each in own.iterdir() if os.path.realpath(each) == str(path))


@contextmanager
def replaced_by(fd: int, other: int) -> Iterator[None]:
    """The number belongs to another file, as after it was closed twice."""
    os.dup2(other, fd)
    os.close(other)
    yield
    os.close(fd)


def test_files_and_lock_of_a_store_have_numbers_that_no_socket_gets(
    tmp_path: Path, disk: WatchedDisk
) -> None:
    fd = disk.open(tmp_path / "file", create=True)
    copy = disk.duplicate(fd)
    lock = DirectoryLock(tmp_path)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as other:
        assert other.fileno() < soft // 2 <= number_of(tmp_path / "lock")
        assert soft // 2 <= fd < copy
    lock.release()
    disk.close(copy)
    disk.close(fd)
    assert disk.lost == []


def test_where_the_range_is_full_a_file_gets_any_number(tmp_path: Path, disk: WatchedDisk) -> None:
    spare = os.open(os.devnull, os.O_RDONLY)
    with no_descriptors():
        os.close(spare)
        fd = disk.open(tmp_path / "file", create=True)
        assert fd == spare
        disk.close(fd)


def test_a_file_that_other_code_closes_is_reported_by_the_next_call(
    tmp_path: Path, disk: WatchedDisk
) -> None:
    path = tmp_path / "file"
    for call in (
        lambda fd: disk.write_all(fd, b"x", 0),
        lambda fd: disk.pread(fd, 1, 0),
        lambda fd: disk.pread_cached(fd, 1, 0),
        lambda fd: disk.duplicate(fd),
        lambda fd: disk.fdatasync(fd),
    ):
        fd = disk.open_or_create(path)
        os.close(fd)
        with pytest.raises(OSError, match="closed by other code"):
            call(fd)
        (reason,) = disk.lost
        assert str(path) in reason
        disk.lost.clear()


def test_a_write_to_a_number_that_a_socket_has_now_is_reported(
    tmp_path: Path, disk: WatchedDisk
) -> None:
    fd = disk.open(tmp_path / "file", create=True)
    ours, theirs = socket.socketpair()
    with replaced_by(fd, ours.detach()), theirs:
        with pytest.raises(OSError, match="closed by other code") as refused:
            disk.write_all(fd, b"x", 0)
        assert refused.value.errno == errno.ESPIPE
    assert len(disk.lost) == 1


def test_a_sync_of_a_number_that_another_file_has_now_fails(
    tmp_path: Path, disk: WatchedDisk
) -> None:
    """The sync would succeed, and records written to the other file would be acknowledged."""
    fd = disk.open(tmp_path / "file", create=True)
    other = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)
    with replaced_by(fd, other), pytest.raises(OSError, match="another file"):
        disk.fdatasync(fd)
    assert len(disk.lost) == 1


def test_a_number_that_another_file_has_now_is_not_closed(
    tmp_path: Path, disk: WatchedDisk
) -> None:
    fd = disk.open(tmp_path / "file", create=True)
    # It fails at its end if the file was closed.
    with replaced_by(fd, os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)):
        disk.close(fd)
    assert len(disk.lost) == 1


def test_a_full_disk_is_no_lost_descriptor(disk: WatchedDisk) -> None:
    fd = disk.open(Path("/dev/full"))
    with pytest.raises(OSError, match="No space left"):
        disk.write_all(fd, b"x", 0)
    disk.close(fd)
    assert disk.lost == []


@pytest.mark.parametrize("reuse", ["duplicate", "open"])
def test_a_number_that_another_thread_gets_while_a_file_is_closed_is_its_own(
    tmp_path: Path, disk: WatchedDisk, monkeypatch: pytest.MonkeyPatch, reuse: str
) -> None:
    """A close releases the interpreter: another thread may get the number before it returns."""
    log, index = tmp_path / "log", tmp_path / "index"
    kept, closing = disk.open_or_create(log), disk.open_or_create(index)
    close, found = os.close, []

    def close_and_reuse(fd: int) -> None:
        close(fd)
        if fd == closing and not found:
            found.append(disk.duplicate(kept) if reuse == "duplicate" else disk.open(log))
            disk.fdatasync(found[0])

    monkeypatch.setattr(os, "close", close_and_reuse)
    disk.close(closing)
    monkeypatch.undo()
    assert found == [closing], "the system gives the lowest free number of the range"
    other = os.open(index, os.O_RDWR)
    with replaced_by(found[0], other), pytest.raises(OSError, match="another file"):
        disk.fdatasync(found[0])
    disk.close(kept)
    assert len(disk.lost) == 1
