"""After a failed sync and a restart, the offset service first writes the cached bytes again."""

import errno
import random
from pathlib import Path

import pytest
from offset.journals import found, numbers, opened, put

from rockoon_core.errors import StoreFailed
from rockoon_offset.journal.store import JournalStore
from support.page_cache import CachedDisk, PageCache
from support.seeds import seeds


@pytest.mark.parametrize("drops_clean", [True, False])
async def test_what_a_start_reads_after_a_failed_sync_outlives_a_power_cut(
    tmp_path: Path, drops_clean: bool
) -> None:
    root = tmp_path / "store"
    root.mkdir()
    cache = PageCache(root, drops_clean=drops_clean)
    disk = CachedDisk(cache)
    store = JournalStore(root, lambda _: None, disk=disk)
    put(store, range(20))
    await store.durable()
    disk.fail_sync = lambda _: errno.EIO
    put(store, range(20, 200))
    with pytest.raises(StoreFailed):
        await store.durable()
    with pytest.raises(StoreFailed):
        store.close()
    store = opened(root, CachedDisk(cache))
    shown = numbers(store.ledger)
    assert shown[:20] == list(range(20))
    assert found(cache.cut(tmp_path / "shown")) == shown
    put(store, [900])
    await store.durable()
    assert found(cache.cut(tmp_path / "behind")) == [*shown, 900]
    store.close()


@pytest.mark.parametrize("seed", seeds(3))
async def test_whatever_sync_fails_what_was_told_is_there_and_the_next_start_succeeds(
    tmp_path: Path, seed: int
) -> None:
    choose = random.Random(seed)
    root = tmp_path / "store"
    root.mkdir()
    cache = PageCache(root, drops_clean=choose.random() < 0.5)
    told: list[int] = []
    for run in range(12):
        disk = CachedDisk(cache)
        left = choose.randrange(1, 12)

        def fails(_: Path) -> int:
            nonlocal left
            left -= 1
            return 0 if left else errno.EIO

        disk.fail_sync = fails
        try:
            store = JournalStore(root, lambda _: None, disk=disk, journal_bytes_max=4000)
        except OSError:
            continue
        records = numbers(store.ledger)
        assert records[: len(told)] == told, run
        told = list(records)
        try:
            for _ in range(6):
                records.append(len(records))
                put(store, records[-1:], choose.randrange(900))
                await store.durable()
                told = list(records)
            store.close()
        except StoreFailed:
            with pytest.raises(StoreFailed):
                store.close()
        present = found(cache.cut(tmp_path / str(run)))
        assert present[: len(told)] == told, run
