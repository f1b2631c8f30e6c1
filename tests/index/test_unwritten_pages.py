"""A sync of the index fails and the broker ends with it: later no entry is only in memory."""

import errno
from pathlib import Path

import pytest

from support.key_index import SHAPE, Indexed, indexed_one_by_one, keyed, small_settings
from support.page_cache import CachedDisk, PageCache


@pytest.mark.parametrize("keys", [SHAPE.units - 1, SHAPE.units // 2])
@pytest.mark.parametrize("synced", [0, 1], ids=["units", "header"])
def test_what_an_index_shows_after_a_failed_sync_outlives_a_power_cut(
    tmp_path: Path, keys: int, synced: int
) -> None:
    configured = small_settings(tmp_path / "store")
    (configured.root / "index").mkdir(parents=True)
    cache = PageCache(configured.root / "index", drops_clean=False)
    disk = CachedDisk(cache)
    owner = Indexed(configured, index_disk=disk)
    owner.open_index()
    for number in range(keys):
        owner.send(keyed("", f"k{number % 7}"))
    left = synced

    def fails(_: Path) -> int:
        nonlocal left
        left -= 1
        return errno.EIO if left < 0 else 0

    # Only now: the creation of the file must not fail.
    owner.follow(pieces_max=1)
    disk.fail_sync = fails
    with pytest.raises(OSError, match="Input/output"):
        follow_and_checkpoint(owner)
    # The process ended before it could remove the file.
    owner.index = None
    owner.store.close()
    again = Indexed(configured, index_disk=CachedDisk(cache))
    again.open_index(was_clean=False)
    again.follow()
    for _ in range(3):
        again.send(keyed("", "later"))
    again.follow()
    every_key = again.every_key()
    again.close()
    cut = cache.cut(tmp_path / "cut")
    found = [path.read_bytes() for path in sorted(cut.iterdir())]
    assert found == indexed_one_by_one(every_key)


def follow_and_checkpoint(owner: Indexed) -> None:
    assert owner.index is not None
    owner.follow()
    owner.index.checkpoint()
