"""Small synced batches are written to blocks that the file system already counts as written."""

import errno
import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rockoon_broker.store.log.commit_log import SMALL_BYTES_MAX, ZERO_AHEAD_BYTES
from rockoon_broker.store.settings import Flush
from support.seeds import seeds
from support.store_directory import FailingDisk, Owner, in_log, recovered, settings

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

FILE_BYTES = 256 << 10


class RecordingDisk(FailingDisk):
    """Records the writes to the log: path, position and size, and whether they are zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[tuple[Path, int, int, bool]] = []

    def pwrite(self, fd: int, data: "ReadableBuffer", position: int) -> int:
        written = super().pwrite(fd, data, position)
        if in_log(path := self.paths[fd]):
            raw = bytes(data)[:written]
            self.writes.append((path, position, written, not any(raw)))
        return written


def opened(root: Path, flush: Flush, disk: FailingDisk) -> Owner:
    return Owner(settings(root, flush=flush, commit_log_file_bytes=FILE_BYTES), disk)


@pytest.mark.parametrize("seed", seeds(1))
def test_few_small_batches_begin_blocks_that_were_never_written(tmp_path: Path, seed: int) -> None:
    choose, disk = random.Random(seed), RecordingDisk()
    owner = opened(tmp_path, Flush.SYNC, disk)
    bodies = [choose.randbytes(choose.randrange(1, 600)) for _ in range(2_000)]
    for body in bodies[:-1]:
        owner.append(bodies=[body])
    owner.append_durably(bodies=bodies[-1:])
    written: dict[Path, int] = {}
    batches = firsts = batch_bytes = 0
    for path, position, size, is_zeros in disk.writes:
        if not is_zeros:
            batches += 1
            batch_bytes += size
            firsts += position + size > written.get(path, 0)
        written[path] = max(written.get(path, 0), position + size)
    assert batches >= len(bodies)
    assert firsts <= batch_bytes // ZERO_AHEAD_BYTES + 2 * len(written)
    assert all(end <= FILE_BYTES for end in written.values())
    assert owner.bodies() == bodies
    owner.store.close()
    again = recovered(owner.store.settings, tmp_path)
    assert again.bodies() == bodies
    again.store.close()


@pytest.mark.parametrize(
    ("flush", "body_bytes"), [(Flush.ASYNC, 100), (Flush.SYNC, SMALL_BYTES_MAX)]
)
def test_batches_that_are_long_or_not_synced_are_not_followed_by_zeros(
    tmp_path: Path, flush: Flush, body_bytes: int
) -> None:
    disk = RecordingDisk()
    owner = opened(tmp_path, flush, disk)
    for _ in range(10):
        owner.append(bodies=[b"b" * body_bytes])
    assert not any(is_zeros for *_, is_zeros in disk.writes)
    owner.store.close()


def test_a_disk_that_refuses_the_zeros_stores_the_batch(tmp_path: Path) -> None:
    disk = RecordingDisk()
    owner = opened(tmp_path, Flush.SYNC, disk)
    count = 0

    def refuse_second(path: Path, _: int) -> int:
        nonlocal count
        count += in_log(path)
        return errno.EIO if in_log(path) and count == 2 else 0

    disk.fail_write = refuse_second
    for number in range(3):
        owner.append_durably(bodies=[b"%d" % number])
    assert owner.bodies() == [b"0", b"1", b"2"]
    owner.store.close()
