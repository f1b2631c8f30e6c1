"""A sync failed, the offset service comes back: what memory still shows it writes again first."""

import errno
import random
from pathlib import Path

import pytest
from offset.journals import numbered, opened

from rockoon_core.errors import StoreFailed
from rockoon_offset.journal.generation_files import read_contents
from support.page_cache import CachedDisk, PageCache
from support.seeds import seeds


@pytest.mark.parametrize("drops_clean", [True, False])
def test_what_a_start_reads_after_a_failed_sync_outlives_a_power_cut(
    tmp_path: Path, drops_clean: bool
) -> None:
    directory = tmp_path / "journal"
    directory.mkdir()
    cache = PageCache(directory, drops_clean=drops_clean)
    disk = CachedDisk(cache)
    book, outcomes = opened(directory, disk)
    outcomes.wait_synced(book.append(numbered(0, 20)))
    disk.fail_sync = lambda _: errno.EIO
    refused = book.append(numbered(20, 200))
    with pytest.raises(StoreFailed):
        outcomes.wait_synced(refused)
    with pytest.raises(StoreFailed):
        book.close()
    disk = CachedDisk(cache)
    book, outcomes = opened(directory, disk)
    shown = book.records
    assert shown[:20] == numbered(0, 20)
    assert read_contents(cache.cut(tmp_path / "shown")).records == shown
    outcomes.wait_synced(book.append(numbered(900, 901)))
    assert read_contents(cache.cut(tmp_path / "behind")).records == [*shown, *numbered(900, 901)]
    book.close()


@pytest.mark.parametrize("seed", seeds(3))
def test_whatever_sync_fails_what_was_told_is_there_and_the_next_start_succeeds(
    tmp_path: Path, seed: int
) -> None:
    choose = random.Random(seed)
    directory = tmp_path / "journal"
    directory.mkdir()
    cache = PageCache(directory, drops_clean=choose.random() < 0.5)
    told: list[bytes] = []
    for run in range(12):
        disk = CachedDisk(cache)
        left = choose.randrange(1, 12)

        def fails(_: Path) -> int:
            nonlocal left
            left -= 1
            return 0 if left else errno.EIO

        disk.fail_sync = fails
        try:
            book, outcomes = opened(directory, disk, bytes_max=4000)
        except OSError:
            continue
        records = list(book.records)
        assert records[: len(told)] == told, run
        told = list(records)
        try:
            for number in range(6):
                batch = [b"%d of run %d" % (number, run) + bytes(choose.randrange(900))]
                records += batch
                outcomes.wait_synced(book.append(batch))
                told = list(records)
                if book.wants_rotation:
                    book.rotate(iter(list(records)))
            book.close()
        except StoreFailed:
            with pytest.raises(StoreFailed):
                book.close()
        found = read_contents(cache.cut(tmp_path / str(run))).records
        assert found[: len(told)] == told, run
