"""Stores of one copy that tests write and open again: change number n begins the group "gn"."""

import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from rockoon_core.disk import Disk
from rockoon_offset.journal import frames
from rockoon_offset.journal.frames import FrameKind
from rockoon_offset.journal.journal_files import generations, journal_path
from rockoon_offset.journal.journal_log import JournalLog
from rockoon_offset.journal.store import JournalStore
from rockoon_offset.progress.ledger import Ledger
from rockoon_offset.progress.records import encode
from rockoon_replica.replica_file import AcknowledgedEnd
from support.journal_logs import change


class FaultyDisk(Disk):
    """Fails at the n-th call of a kind; a failed write leaves a part of its bytes."""

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

    def pwrite(self, fd: int, data: Any, position: int) -> int:
        try:
            self._maybe_fail("pwrite")
        except OSError:
            super().pwrite(fd, memoryview(data)[: len(data) // 2], position)
            raise
        return super().pwrite(fd, data, position)

    def unlink(self, path: Path) -> None:
        self._maybe_fail("unlink")
        super().unlink(path)


def opened(root: Path, disk: Disk | None = None, **more: Any) -> JournalStore:
    return JournalStore(root, pytest.fail, disk=disk, **more)


def put(store: JournalStore, numbers: Iterable[int], size: int = 0) -> None:
    """One change, whose records have `size` bytes more."""
    ledger = store.ledger
    records = [each for number in numbers for each in change(ledger, f"g{number}", number)]
    if size:
        (first,) = change(ledger, f"g{next(iter(numbers))}", 1)
        records += ledger.apply_all([first._replace(metadata="x" * size)])
    store.write(records)


async def write(root: Path, batches: Iterable[Iterable[int]], **more: Any) -> None:
    """One frame per batch."""
    store = opened(root, **more)
    for batch in batches:
        put(store, batch)
        await store.durable()
    store.close()


def numbers(ledger: Ledger) -> list[int]:
    return sorted(int(group[1:]) for group in ledger.table.readers())


def found(root: Path) -> list[int]:
    """Return the state after the next start; the store does not change."""
    with tempfile.TemporaryDirectory() as place:
        directory = shutil.copytree(root / "journal", Path(place) / "journal")
        synced = AcknowledgedEnd(root, Disk()).end
        log = JournalLog(directory, "r", failed=pytest.fail, lost=None, synced=synced)
        log.commit(log.end)
        log.close()
        return numbers(log.ledger)


def newest(root: Path) -> Path:
    return journal_path(root / "journal", generations(root / "journal")[-1])


def frame_after(path: Path, group_numbers: Iterable[int]) -> bytes:
    """Return the next write of a store to this first file, which it has synced."""
    end = path.stat().st_size - frames.FILE_HEADER_BYTES
    ledger = Ledger()
    records = [each for number in group_numbers for each in change(ledger, f"g{number}", number)]
    return frames.encode(FrameKind.RECORDS, end, end, frames.pack(map(encode, records)))
