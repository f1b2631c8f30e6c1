"""A disk that loses power at a given operation."""

import threading
from pathlib import Path
from typing import TYPE_CHECKING

from support.store_directory import PowerCutDisk

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class PowerGone(OSError):
    """Raised when the simulated power is lost."""


class CrashingDisk(PowerCutDisk):
    """Counts the operations on the disk. Operation number `crash_at` is not executed, or only a
    part of it. `cut` then decides the content of the disk.

    Only operations of the thread that created the disk are counted. Those of other threads fail too
    once the power is lost.

    Attributes:
        crash_at: number of the operation, from 0; None: never.
        operations: number of executed operations.
    """

    def __init__(self, root: Path, crash_at: int | None = None) -> None:
        super().__init__(root)
        self.crash_at = crash_at
        self.operations = 0
        self._thread = threading.get_ident()
        self._gone = False

    def _step(self) -> bool:
        """Return whether the power is lost now."""
        if self.crash_at is None:
            self._gone = False
        if threading.get_ident() == self._thread:
            self._gone = self.crash_at is not None and self.operations >= self.crash_at
            self.operations += not self._gone
        return self._gone

    def _may(self) -> None:
        if self._step():
            raise PowerGone

    def open(self, path: Path, *, create: bool = False) -> int:
        self._may()
        return super().open(path, create=create)

    def pwrite(self, fd: int, data: "ReadableBuffer", position: int) -> int:
        if self._step():
            super().pwrite(fd, memoryview(data).cast("B")[: len(memoryview(data)) // 2], position)
            raise PowerGone
        return super().pwrite(fd, data, position)

    def fdatasync(self, fd: int) -> None:
        self._may()
        super().fdatasync(fd)

    def set_size(self, fd: int, count: int) -> None:
        self._may()
        super().set_size(fd, count)

    def rename(self, source: Path, target: Path) -> None:
        self._may()
        super().rename(source, target)

    def move_directory(self, source: Path, target: Path) -> None:
        self._may()
        super().move_directory(source, target)

    def unlink(self, path: Path) -> None:
        self._may()
        super().unlink(path)

    def sync_directory(self, path: Path) -> None:
        self._may()
        super().sync_directory(path)

    def allocate(self, fd: int, count: int) -> None:
        self._may()
        super().allocate(fd, count)
