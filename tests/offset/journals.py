"""Journals that tests write and open again."""

import threading
from pathlib import Path
from typing import Any

from rockoon_core.disk import Disk
from rockoon_core.errors import StoreFailed
from rockoon_offset.journal.generation_files import (
    generations,
    journal_path,
)
from rockoon_offset.journal.journal import Journal


class Outcomes:
    """What the writer thread reported."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.synced = 0
        self.failure: StoreFailed | None = None

    def on_synced(self, batches: int) -> None:
        with self.changed:
            self.synced = batches
            self.changed.notify_all()

    def on_failed(self, failure: StoreFailed) -> None:
        with self.changed:
            self.failure = failure
            self.changed.notify_all()

    def wait_synced(self, batches: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.synced >= batches or self.failure, 10)
            if self.failure is not None:
                raise self.failure


class FaultyDisk(Disk):
    """Fails at the n-th call of a kind; a failing write leaves a part behind."""

    def __init__(self, call: str, at: int) -> None:
        self._call = call
        self._left = at

    def _maybe_fail(self, call: str) -> None:
        if call == self._call:
            self._left -= 1
            if self._left <= 0:
                raise OSError(5, "Input/output error")

    def fdatasync(self, fd: int) -> None:
        self._maybe_fail("fdatasync")
        super().fdatasync(fd)

    def pwrite(self, fd: int, data: bytes | memoryview, position: int) -> int:
        try:
            self._maybe_fail("pwrite")
        except OSError:
            super().pwrite(fd, memoryview(data)[: len(data) // 2], position)
            raise
        return super().pwrite(fd, data, position)

    def rename(self, source: Path, target: Path) -> None:
        self._maybe_fail("rename")
        super().rename(source, target)


def opened(directory: Path, disk: Disk | None = None, **more: Any) -> tuple[Journal, Outcomes]:
    outcomes = Outcomes()
    book = Journal(directory, outcomes.on_synced, outcomes.on_failed, disk=disk, **more)
    book.start()
    return book, outcomes


def write(directory: Path, batches: list[list[bytes]]) -> None:
    """One frame per batch."""
    book, outcomes = opened(directory)
    for batch in batches:
        outcomes.wait_synced(book.append(batch))
    book.close()


def numbered(first: int, last: int) -> list[bytes]:
    return [b"record %d" % number for number in range(first, last)]


def newest(directory: Path) -> Path:
    return journal_path(directory, generations(directory, "journal")[-1])
