"""A real ext4 on a disk that refuses writes or loses power when a test requests it.

The disk is a sparse file in a small tmpfs, behind a loop device. When the tmpfs is full, writes to
blocks that were never written fail. The kernel reports the failure once, and marks the pages as
written. The content of the file is the content of the disk: a copy of it is the state after a power
cut.
"""

import os
import shutil
import subprocess
from pathlib import Path

_MIB = 1 << 20
_JOURNAL_MIB = 4


def why_not() -> str:
    """Return the reason why this machine cannot create the disk; empty if it can."""
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
    """The disk; mounted at `path` within the block.

    Args:
        directory: an empty directory.
        room_mib: capacity after which the disk refuses writes.
    """

    def __init__(self, directory: Path, room_mib: int) -> None:
        self.path = directory / "mounted"
        self._small = directory / "small"
        self._file = self._small / "disk"
        self._room_mib = room_mib
        self._cuts = 0
        # Commands that undo the setup, in the order of the setup.
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
        """Accept all writes from now on."""
        _run("mount", "-o", "remount,size=1g", "tmpfs", self._small)

    def cut(self) -> Path:
        """Mount the state after a power cut at this moment in another directory; return the
        directory."""
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
        # One page at a time: the loop driver reports a partial write of the file as a whole one.
        Path("/sys/block", Path(device).name, "queue/max_sectors_kb").write_text("4")
        self._do(("umount", "--lazy", target), "mount", device, target)

    def _do(self, undo: tuple[object, ...], *command: object) -> None:
        _run(*command)
        self._undo.append(undo)

    def _write_journal(self) -> None:
        """Write all blocks of ext4's own journal. If ext4 cannot write there, the file system
        becomes read-only, and no write is retried on it."""
        fd = os.open(self.path / "scratch", os.O_RDWR | os.O_CREAT)
        for count in range(_JOURNAL_MIB * 400):
            os.ftruncate(fd, count)
            os.fsync(fd)
        os.close(fd)
