"""The library records a program's operations on files; the model has the state after a power
cut."""

import errno
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults import library
from faults.disk_model import DiskModel, File, Kind, read_deeds


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    reason = library.why_not()
    if reason:
        pytest.skip(reason)
    return library.build(tmp_path_factory.mktemp("library"))


class Machine:
    """A directory in which small programs run under the library."""

    def __init__(self, built: Path, directory: Path) -> None:
        self.root = directory / "root"
        self.root.mkdir()
        self.journal = directory / "journal"
        self.control = library.Control(directory / "control")
        self._built = built
        self.model = DiskModel(self.root)
        self._directory = directory
        self._done = 0

    def run(self, program: str) -> str:
        """Run Python statements in the directory; return their output."""
        watched = library.environment(self._built, self.root, self.journal, self.control.path)
        ended = subprocess.run(
            [sys.executable, "-S", "-c", f"import os, errno, time\n{program}"],
            cwd=self.root,
            env=os.environ | watched,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout.strip()

    def left(self, chance: random.Random | None = None) -> dict[str, bytes]:
        """Return the files that remain after a power cut now."""
        deeds = list(read_deeds(self.journal.read_bytes()))
        for deed in deeds[self._done :]:
            self.model.apply(deed)
        self._done = len(deeds)
        target = self._directory / f"left-{len(list(self._directory.iterdir()))}"
        self.model.cut(target, chance)
        files = (path for path in target.rglob("*") if path.is_file())
        return {str(path.relative_to(target)): path.read_bytes() for path in files}


@pytest.fixture
def machine(built: Path, tmp_path: Path) -> Iterator[Machine]:
    made = Machine(built, tmp_path)
    yield made
    made.control.close()


NAMES = "fd = os.open('.', os.O_RDONLY); os.fsync(fd); os.close(fd)"
FILE = "fd = os.open('a', os.O_RDWR | os.O_CREAT)"


def test_what_was_synced_is_left_and_nothing_else(machine: Machine) -> None:
    machine.run(f"{FILE}; os.pwrite(fd, b'one', 0); os.fdatasync(fd); os.pwrite(fd, b'two', 3)")
    assert machine.left() == {}
    machine.run(NAMES)
    assert machine.left() == {"a": b"one"}
    machine.run(f"{FILE}; os.fsync(fd)")
    assert machine.left() == {"a": b"onetwo"}


def test_a_file_that_is_renamed_or_deleted_has_its_old_name_until_the_directory_is_synced(
    machine: Machine,
) -> None:
    machine.run(f"{FILE}; os.write(fd, b'old'); os.fsync(fd); {NAMES}")
    machine.run("open('b', 'wb').write(b'new'); fd = os.open('b', os.O_RDWR); os.fsync(fd)")
    machine.run("os.replace('b', 'a')")
    assert machine.left() == {"a": b"old"}
    machine.run(NAMES)
    assert machine.left() == {"a": b"new"}
    machine.run("os.unlink('a')")
    assert machine.left() == {"a": b"new"}
    machine.run(NAMES)
    assert machine.left() == {}


def test_a_directory_that_nobody_synced_goes_with_all_in_it(machine: Machine) -> None:
    inside = "os.chdir('d'); " + FILE + "; os.write(fd, b'x'); os.fsync(fd); " + NAMES
    machine.run(f"os.mkdir('d'); {inside}")
    assert machine.left() == {}
    machine.run(NAMES)
    assert machine.left() == {"d/a": b"x"}
    machine.run(f"os.rename('d', 'e'); {NAMES}")
    assert machine.left() == {"e/a": b"x"}


def test_a_reserved_and_a_truncated_file_have_their_sizes(machine: Machine) -> None:
    machine.run(f"{FILE}; os.posix_fallocate(fd, 0, 8192); os.fsync(fd); {NAMES}")
    assert machine.left() == {"a": bytes(8192)}
    machine.run(f"{FILE}; os.pwrite(fd, b'x' * 5000, 0); os.ftruncate(fd, 10); os.fsync(fd)")
    assert machine.left() == {"a": b"x" * 10}


def test_a_failed_sync_shows_its_pages_to_readers_and_none_to_the_disk(machine: Machine) -> None:
    machine.run(f"{FILE}; os.write(fd, b'a' * 4096 + b'b' * 4096); os.fsync(fd); {NAMES}")
    machine.control.fail_sync("/a", after=1)
    said = machine.run(
        f"{FILE}; os.fsync(fd); os.pwrite(fd, b'c' * 4096, 0)\n"
        "try: os.fdatasync(fd)\nexcept OSError as e: print(errno.errorcode[e.errno])"
    )
    assert said == "EIO"
    assert machine.control.injected == 1
    # The next process reads it, and syncs its own writes.
    assert machine.run(f"{FILE}; print(os.pread(fd, 1, 0).decode())") == "c"
    machine.run(f"{FILE}; os.pwrite(fd, b'd', 4096); os.fsync(fd)")
    assert machine.left() == {"a": b"a" * 4096 + b"d" + b"b" * 4095}
    # A process that writes the page again syncs all of it.
    machine.run(f"{FILE}; os.pwrite(fd, b'e', 0); os.fsync(fd)")
    assert machine.left() == {"a": b"e" + b"c" * 4095 + b"d" + b"b" * 4095}


def test_a_lenient_cut_leaves_sectors_old_or_new(machine: Machine) -> None:
    machine.run(f"{FILE}; os.write(fd, b'a' * 4096); os.fsync(fd); {NAMES}")
    machine.run(f"{FILE}; os.pwrite(fd, b'b' * 4096, 0)")
    seen = set()
    for seed in range(30):
        content = machine.left(random.Random(seed))["a"]
        assert len(content) == 4096
        sectors = [content[at : at + 512] for at in range(0, 4096, 512)]
        assert set(sectors) <= {b"a" * 512, b"b" * 512}
        seen.add(sectors.count(b"b" * 512))
    assert {0, 8} < seen


def test_a_full_disk_refuses_new_blocks_and_takes_reserved_ones(machine: Machine) -> None:
    machine.run(f"{FILE}; os.posix_fallocate(fd, 0, 4096)")
    machine.control.fill_disk(True)
    refused = "\nexcept OSError as e: print(errno.errorcode[e.errno])"
    machine.run(f"{FILE}; os.pwrite(fd, b'x', 0)")
    for what in (
        f"{FILE}; os.pwrite(fd, b'x', 4096)",
        f"{FILE}; os.posix_fallocate(fd, 0, 9000)",
        "open('b', 'wb')",
    ):
        assert machine.run(f"try: {what}{refused}") == "ENOSPC"
    machine.control.fill_disk(False)
    machine.run("open('b', 'wb').write(b'x')")


def test_writes_of_chosen_files_fail_until_it_is_calm(machine: Machine) -> None:
    machine.run(f"{FILE}; os.posix_fallocate(fd, 0, 4096)")
    machine.control.refuse_writes("/a", errno.EBADF)
    refused = "\nexcept OSError as e: print(errno.errorcode[e.errno])"
    for what in ("os.pwrite(fd, b'x', 0)", "os.write(fd, b'x')", "os.posix_fallocate(fd, 0, 9)"):
        assert machine.run(f"{FILE}\ntry: {what}{refused}") == "EBADF"
    assert machine.control.injected == 3
    machine.run("open('b', 'wb').write(b'x')")
    machine.control.calm()
    machine.run(f"{FILE}; os.pwrite(fd, b'x', 0)")


def test_a_shifted_clock_is_the_wall_clock_alone(machine: Machine) -> None:
    both = "print(time.time_ns(), time.monotonic_ns())"
    wall, monotonic = map(int, machine.run(both).split())
    machine.control.shift_clock(-86_400)
    later, after = map(int, machine.run(both).split())
    assert 0 <= later + 86_400 * 10**9 - wall < 60 * 10**9
    assert 0 <= after - monotonic < 60 * 10**9


def test_records_bear_the_time_and_the_bytes(machine: Machine) -> None:
    machine.run(f"{FILE}; os.pwrite(fd, b'xyz', 7)")
    made, written = read_deeds(machine.journal.read_bytes())
    assert (made.kind, made.path) == (Kind.CREATE, str(machine.root / "a"))
    assert (written.kind, written.at, written.data) == (Kind.WRITE, 7, b"xyz")
    assert made.inode == written.inode
    assert made.time_ns <= written.time_ns
    # No operation below another directory is recorded.
    machine.run(f"open({str(machine.root.parent / 'other')!r}, 'wb').write(b'x')")
    assert len(list(read_deeds(machine.journal.read_bytes()))) == 2


def test_a_page_written_during_a_sync_waits_for_the_next_one() -> None:
    file = File()
    file.write(0, b"a" * 10)
    file.begin_sync()
    file.write(0, b"b")
    file.end_sync(failed=False)
    assert file.left(None) == b"a" * 10
    file.begin_sync()
    file.end_sync(failed=False)
    assert file.left(None) == b"b" + b"a" * 9
