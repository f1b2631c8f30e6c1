"""A real ext4 on a disk that can be made to refuse writes, and whose power can be cut.

The disk is a sparse file in a small tmpfs, behind a loop device. When the tmpfs is full, writes to
blocks that were never written fail; the kernel reports it once, and takes the pages for written.
What the file holds is what the disk holds: a copy of it is what a power cut leaves.
"""

import os
import shutil
import subprocess
from pathlib import Path

_MIB = 1 << 20
_JOURNAL_MIB = 4


def why_not() -> str:
    """Why this machine has no such disk; empty if it has."""
    if os.geteuid() != 0:
        return "only root mounts"
    missing = [name for name in ("losetup", "mkfs.ext4", "mount") if shutil.which(name) is None]
    if missing:
        return f"there is no {missing[0]}"
    return "" if Path("/dev/loop-control").exists() else "there are no loop devices"


def _run(*command: object) -> str:
    return subprocess.run(
        [str(part) for part in command], check=True, capture_output=True, text=True
    ).stdout.strip()


class LoopDisk:
    """Mounted at `path` while it is entered.

    Args:
        directory: an empty one.
        room_mib: how much the disk takes before it refuses.
    """

    def __init__(self, directory: Path, room_mib: int) -> None:
        self.path = directory / "mounted"
        self._small = directory / "small"
        self._file = self._small / "disk"
        self._room_mib = room_mib
        self._cuts = 0
        # What to undo, the last first.
        self._undo: list[tuple[object, ...]] = []

    def __enter__(self) -> "LoopDisk":
        self._small.mkdir()
        size = f"size={self._room_mib}m"
        self._do(
            ("umount", "--lazy", self._small),
            "mount",
            "-t",
            "tmpfs",
            "-o",
            size,
            "tmpfs",
            self._small,
        )
        self._file.touch()
        os.truncate(self._file, 256 * _MIB)
        journal = ("-J", f"size={_JOURNAL_MIB}")
        _run("mkfs.ext4", "-q", "-F", "-b", 4096, *journal, "-E", "lazy_itable_init=0", self._file)
        self._mount(self._file, self.path)
        self._write_journal()
        return self

    def __exit__(self, *_: object) -> None:
        while self._undo:
            _run(*self._undo.pop())

    def grow(self) -> None:
        """Let the disk take everything from now on."""
        _run("mount", "-o", "remount,size=1g", "tmpfs", self._small)

    def cut(self) -> Path:
        """What is there after a power cut now, mounted elsewhere."""
        self._cuts += 1
        copy = self._small / f"cut-{self._cuts}"
        shutil.copyfile(self._file, copy)
        target = self.path.parent / copy.name
        self._mount(copy, target)
        return target

    def _mount(self, file: Path, target: Path) -> None:
        target.mkdir()
        device = _run("losetup", "--find", "--show", file)
        self._undo.append(("losetup", "-d", device))
        # One page at a time: the loop driver takes a write that the file took in part for whole.
        Path("/sys/block", Path(device).name, "queue/max_sectors_kb").write_text("4")
        self._do(("umount", "--lazy", target), "mount", device, target)

    def _do(self, undo: tuple[object, ...], *command: object) -> None:
        _run(*command)
        self._undo.append(undo)

    def _write_journal(self) -> None:
        """Have every block of ext4's own journal written: a file system that cannot write there
        becomes read-only, and nothing is tried again on it."""
        fd = os.open(self.path / "scratch", os.O_RDWR | os.O_CREAT)
        for count in range(_JOURNAL_MIB * 400):
            os.ftruncate(fd, count)
            os.fsync(fd)
        os.close(fd)
