"""Index writes go to the disk in small parts, because syncs of the log wait for syncs of the
index."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from rockoon_broker.index.active_file import WRITTEN_BYTES_MAX, ActiveFile
from rockoon_broker.index.directory import IndexDirectory, IndexShape
from rockoon_format.index_entries import KeyEntries
from rockoon_format.index_file import HEADER_BYTES, SLOT_BYTES, UNIT_BYTES
from support.seeds import seeds
from support.store_directory import FailingDisk

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

# Slots of 4 MiB, and units of 4 MiB.
SHAPE = IndexShape(1 << 20, 4 * WRITTEN_BYTES_MAX // UNIT_BYTES)
SLOTS_END = HEADER_BYTES + SHAPE.slots * SLOT_BYTES


class CountingDisk(FailingDisk):
    """Counts unsynced bytes: slots, and units whose write the index has not started."""

    def __init__(self) -> None:
        super().__init__()
        self.slots = self.most_slots = self.units = self.most_units = 0

    def write_all(self, fd: int, data: "ReadableBuffer", position: int) -> None:
        super().write_all(fd, data, position)
        size = memoryview(data).nbytes
        if HEADER_BYTES <= position < SLOTS_END:
            self.slots += size
        elif position >= SLOTS_END:
            self.units += size

    def begin_writing(self, fd: int, start: int, end: int) -> None:
        super().begin_writing(fd, start, end)
        assert end - start == self.units, "all of them, and none twice"
        self.most_units, self.units = max(self.most_units, self.units), 0

    def fdatasync(self, fd: int) -> None:
        super().fdatasync(fd)
        self.most_slots, self.slots = max(self.most_slots, self.slots), 0


@pytest.mark.parametrize("seed", seeds(1))
def test_a_table_of_slots_and_its_units_go_to_the_disk_in_small_parts(
    tmp_path: Path, seed: int
) -> None:
    random = np.random.default_rng(seed)
    disk = CountingDisk()
    file = ActiveFile.create(IndexDirectory(tmp_path, SHAPE, disk), 1, None)
    at = 0
    while file.remaining > 5000:
        count = int(random.integers(1, 5000))
        hashes = random.integers(0, 1 << 31, count, np.int64)
        offsets = np.arange(at, at + count, dtype=np.int64)
        file.add(KeyEntries(hashes, offsets, np.full(count, 10, np.int64)))
        at += count
        assert disk.units < WRITTEN_BYTES_MAX
    file.checkpoint()
    # They would be nearly the whole table, every few seconds.
    assert (disk.slots, disk.most_slots) == (0, 0)
    file.complete()
    assert WRITTEN_BYTES_MAX <= disk.most_units < WRITTEN_BYTES_MAX + 5000 * UNIT_BYTES
    assert disk.most_slots == WRITTEN_BYTES_MAX
    stored = np.frombuffer(file.path.read_bytes(), "<i4", SHAPE.slots, HEADER_BYTES)
    assert np.count_nonzero(stored) > SHAPE.slots // 10
    syncs = len(disk.syncs)
    file.complete()
    assert len(disk.syncs) == syncs, "all of it is on disk"
    file.close()
