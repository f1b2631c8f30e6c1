"""preload.c as a library: compiled when needed; a test selects failing calls while it runs."""

import errno
import mmap
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Self

SOURCE = Path(__file__).with_name("preload.c")
CONTROL_BYTES = 256
_FIELDS = (
    "sync_countdown",
    "sync_errno",
    "injected",
    "disk_full",
    "clock_offset_ns",
    "write_errno",
)
_PATH_AT = 8 * len(_FIELDS)


def why_not() -> str:
    """Return the reason why the library cannot be used here; empty if it can."""
    if sys.platform != "linux":
        return "calls of a process are recorded on Linux only"
    if compiler() is None:
        return "there is no C compiler (gcc or cc)"
    return ""


def compiler() -> str | None:
    return shutil.which("gcc") or shutil.which("cc")


def build(directory: Path) -> Path:
    """Compile the library into a directory; return its path.

    Raises:
        CalledProcessError: it does not compile here.
    """
    made = directory / "preload.so"
    command = [str(compiler()), "-O2", "-Wall", "-Wextra", "-shared", "-fPIC"]
    subprocess.run([*command, "-o", str(made), str(SOURCE), "-ldl", "-lpthread"], check=True)
    return made


class Control:
    """Effects of the library on a running process, which maps the same file.

    Args:
        path: created here.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(bytes(CONTROL_BYTES))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), CONTROL_BYTES)
        self.calm()

    def calm(self) -> None:
        """Let no call fail, and correct the clock."""
        self._set("sync_countdown", -1)
        self._set("disk_full", 0)
        self._set("clock_offset_ns", 0)
        self._set("write_errno", 0)

    def fail_sync(self, path_part: str, after: int = 0, number: int = errno.EIO) -> None:
        """Let one sync fail.

        Args:
            path_part: part of the paths of these files.
            after: number of syncs that succeed before.
            number: the errno.
        """
        self._choose_files(path_part)
        self._set("sync_errno", number)
        # Last: from now on it is in effect.
        self._set("sync_countdown", after)

    def refuse_writes(self, path_part: str, number: int) -> None:
        """Let writes to files whose path has this part fail with an errno from now on."""
        self._choose_files(path_part)
        self._set("write_errno", number)

    def _choose_files(self, path_part: str) -> None:
        raw = path_part.encode()
        self._memory[_PATH_AT:] = raw.ljust(CONTROL_BYTES - _PATH_AT, b"\0")

    def fill_disk(self, is_full: bool) -> None:
        """Refuse writes that need new blocks from now on, or accept them again."""
        self._set("disk_full", int(is_full))

    def shift_clock(self, seconds: float) -> None:
        """Set the process's wall clock ahead (or, negative, behind) by this time."""
        self._set("clock_offset_ns", int(seconds * 1e9))

    @property
    def injected(self) -> int:
        """Return the number of failed calls so far."""
        (count,) = struct.unpack_from("<q", self._memory, 8 * _FIELDS.index("injected"))
        return int(count)

    def _set(self, name: str, value: int) -> None:
        struct.pack_into("<q", self._memory, 8 * _FIELDS.index(name), value)

    def close(self) -> None:
        self._memory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()


def environment(
    library: Path, root: Path, journal: Path | None, control: Path | None
) -> dict[str, str]:
    """Return environment variables of a watched process.

    Args:
        library: see `build`.
        root: directory whose files count.
        journal: file to which records are appended; None: no records.
        control: of a `Control`; None: no call fails.
    """
    made = {"LD_PRELOAD": str(library), "FAULTS_ROOT": str(root)}
    if journal is not None:
        made["FAULTS_JOURNAL"] = str(journal)
    if control is not None:
        made["FAULTS_CONTROL"] = os.fspath(control)
    return made
