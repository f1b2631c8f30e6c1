"""After a failed sync and a restart, the broker uses the disk's content, not that of the cache."""

import errno
import random
from contextlib import suppress
from pathlib import Path

import pytest

from rockoon_broker.store.errors import StoreSyncFailed
from rockoon_broker.store.settings import Flush, StoreSettings
from support.page_cache import CachedDisk, PageCache
from support.seeds import seeds
from support.store_directory import FailingDisk, Owner, in_log, recovered, settings
from support.waiting import DEADLINE_SECONDS, wait_until


def configured(root: Path) -> StoreSettings:
    root.mkdir()
    return settings(root, flush=Flush.SYNC, commit_log_file_bytes=16_384)


def fail_a_sync(owner: Owner, disk: FailingDisk, bodies: list[bytes]) -> None:
    """Append bytes that no sync writes; the store ends because of this."""
    disk.fail_sync = lambda path: errno.EIO if in_log(path) else 0
    owner.append(bodies=bodies)
    assert owner.failed.get(timeout=DEADLINE_SECONDS).errno == errno.EIO
    owner.store.close()


@pytest.mark.parametrize("drops_clean", [True, False])
def test_what_a_start_shows_after_a_failed_sync_outlives_a_power_cut(
    tmp_path: Path, drops_clean: bool
) -> None:
    store = configured(tmp_path / "store")
    cache = PageCache(store.root, drops_clean=drops_clean)
    disk = CachedDisk(cache)
    first = Owner(store, disk)
    safe = [b"safe %d" % number + bytes(300) for number in range(3)]
    first.append_durably(bodies=safe)
    fail_a_sync(first, disk, [b"unknown" + bytes(1000)] * 3)
    again = Owner(store, CachedDisk(cache))
    shown = again.bodies()
    assert shown[:3] == safe
    after = recovered(store, cache.cut(tmp_path / "shown"))
    assert after.bodies() == shown
    after.store.close()
    again.append_durably(bodies=[b"behind"])
    shown.append(b"behind")
    after = recovered(store, cache.cut(tmp_path / "behind"))
    assert after.bodies() == shown
    after.store.close()
    again.store.close()
    after = recovered(store, cache.cut(tmp_path / "stopped"))
    assert after.bodies() == shown
    assert after.store.recovery.was_clean
    after.store.close()


@pytest.mark.parametrize("seed", seeds(3))
def test_whatever_sync_fails_nothing_that_was_shown_is_taken_back(
    tmp_path: Path, seed: int
) -> None:
    choose = random.Random(seed)
    store = configured(tmp_path / "store")
    cache = PageCache(store.root, drops_clean=choose.random() < 0.5)
    shown: list[bytes] = []
    for run in range(5):
        disk = CachedDisk(cache)
        try:
            owner = Owner(store, disk)
        except OSError:
            continue
        assert owner.bodies()[: len(shown)] == shown
        shown = owner.bodies()
        left = choose.randrange(1, 30)

        def fails(path: Path) -> int:
            nonlocal left
            left -= 1
            return 0 if left else errno.EIO

        disk.fail_sync = fails
        try:
            for number in range(12):
                body = b"%d of run %d" % (number, run) + bytes(choose.randrange(1200))
                appended = owner.append(bodies=[body])
                if choose.random() < 0.3:
                    owner.write_point()
                if choose.random() < 0.8:
                    confirm_or_fail(owner, appended.end_offset)
                    shown = owner.bodies()
            owner.store.close()
        except StoreSyncFailed:
            with suppress(StoreSyncFailed):
                owner.store.close()
        after = recovered(store, cache.cut(tmp_path / str(run)))
        assert after.bodies()[: len(shown)] == shown, run
        after.store.close()


def confirm_or_fail(owner: Owner, end: int) -> None:
    """Wait for a sync or for its failure, which is raised."""
    wait_until(lambda: owner.store.durable_end >= end or owner.store.failure, "a sync")
    owner.store.confirm(owner.store.durable_end)
