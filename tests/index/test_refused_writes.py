"""The disk refuses units, and the index is searched or closed before it could be abandoned."""

import errno
from pathlib import Path

import pytest

from rockoon_broker.index.directory import IndexDirectory
from rockoon_broker.index.follower import IndexFollower
from rockoon_format.index_file import unit_position
from rockoon_runtime.waking import Bell
from support.aside_desk import TwoClocks
from support.key_index import SHAPE, Indexed, indexed_one_by_one, keyed, small_settings
from support.store_directory import NOW_MS, FailingDisk, healthy


class UnitRefusingDisk(FailingDisk):
    """Refuses units when the test requests it; never slots and headers."""

    def refuse_units(self) -> None:
        units_at = unit_position(SHAPE.slots, 0)
        self.fail_write = lambda _, position: errno.ENOSPC if position >= units_at else 0


def with_keys(root: Path, disk: FailingDisk) -> Indexed:
    """Return a store with ten messages in the index, on disk."""
    owner = Indexed(small_settings(root), index_disk=disk)
    index = owner.open_index()
    for number in range(10):
        owner.send(keyed(keys=f"k{number % 5}"))
    owner.follow()
    index.checkpoint()
    return owner


def take_all(owner: Indexed) -> None:
    """As the follower's thread does it: the whole rest in one piece."""
    assert owner.index is not None
    owner.index.add([owner.store.read_log(owner.index.position)], owner.clock.time_ms)


def test_a_search_between_a_refused_write_and_its_consequence_hears_of_it(tmp_path: Path) -> None:
    disk = UnitRefusingDisk()
    owner = with_keys(tmp_path / "store", disk)
    owner.send(keyed(keys="k3"), keyed(keys="k4 k4"))
    disk.refuse_units()
    with pytest.raises(OSError, match="No space"):
        take_all(owner)
    for key in ("k0", "k3", "k4"):
        found = owner.search(key)
        assert found.offsets == []
        assert "could not be written" in found.unserved
    disk.fail_write = healthy
    assert owner.index is not None
    with pytest.raises(OSError, match="No space"):
        owner.index.checkpoint()
    owner.close()


@pytest.mark.parametrize("more", [7, SHAPE.units - 11, SHAPE.units + 9])
@pytest.mark.parametrize("refused", ["before the stop", "by the stop", "by both"])
async def test_a_stop_with_a_refused_write_leaves_the_index_as_it_was(
    tmp_path: Path, more: int, refused: str
) -> None:
    disk = UnitRefusingDisk()
    owner = with_keys(tmp_path / "store", disk)
    follower = IndexFollower(owner.store, owner.directory, TwoClocks(), Bell())
    follower.index = owner.index
    before = owner.files()
    for number in range(more):
        owner.send(keyed(keys=f"k{number % 5}"))
    disk.refuse_units()
    if refused != "by the stop":
        with pytest.raises(OSError, match="No space"):
            take_all(owner)
    if refused == "before the stop":
        disk.fail_write = healthy
    follower.close()
    owner.index = None
    assert owner.files() == before
    keys = owner.every_key()
    owner.close()
    again = Indexed(small_settings(tmp_path / "store"))
    again.open_index()
    again.follow()
    again.close()
    assert again.removed == []
    assert again.files() == indexed_one_by_one(keys)


def test_a_refused_allocation_leaves_no_unfinished_file(tmp_path: Path) -> None:
    disk = FailingDisk()
    directory = IndexDirectory(tmp_path, SHAPE, disk)
    disk.fail_allocate = lambda _: errno.ENOSPC
    with pytest.raises(OSError, match="No space"):
        directory.create(NOW_MS)
    assert list(directory.path.iterdir()) == []
    assert not disk.paths, "every file is closed"
    disk.fail_unlink = lambda path: errno.EIO if path.exists() else 0
    with pytest.raises(OSError, match="No space"):
        directory.create(NOW_MS)
    disk.fail_allocate = disk.fail_unlink = healthy
    created = directory.create(NOW_MS)
    assert list(directory.path.iterdir()) == [created]


async def test_a_file_that_was_filled_before_a_refusal_has_its_keys_once(tmp_path: Path) -> None:
    """The piece continues in another file, which the disk refuses: it is not read again."""
    disk = UnitRefusingDisk()
    owner = with_keys(tmp_path / "store", disk)
    follower = IndexFollower(owner.store, owner.directory, TwoClocks(), Bell())
    follower.index = owner.index
    (first,) = owner.directory.files()
    for number in range(SHAPE.units):
        owner.send(keyed(keys=f"k{number % 5}"))
    disk.fail_write = lambda path, _: 0 if path == first.path else errno.ENOSPC
    with pytest.raises(OSError, match="No space"):
        take_all(owner)
    disk.fail_write = healthy
    follower.close()
    owner.index = None
    keys = owner.every_key()
    owner.close()
    again = Indexed(small_settings(tmp_path / "store"))
    again.open_index()
    again.follow()
    again.close()
    assert again.files() == indexed_one_by_one(keys)


def test_a_full_disk_leaves_slots_of_all_counted_keys_on_disk(tmp_path: Path) -> None:
    """RocketMQ finds keys only by the slots on disk, and does not compute slots again."""

    class ReservingDisk(FailingDisk):
        reserved = 0

        def allocate(self, fd: int, count: int) -> None:
            super().allocate(fd, count)
            self.reserved = count

    disk = ReservingDisk()
    owner = with_keys(tmp_path / "store", disk)
    keys = owner.every_key()
    owner.send(keyed(keys="k3"))
    disk.fail_write = lambda _, position: 0 if position < disk.reserved else errno.ENOSPC
    for _ in range(2):
        with pytest.raises(OSError, match="No space"):
            take_all(owner)
        # As the follower does before each further attempt.
        assert owner.index is not None
        owner.index.abandon()
        owner.open_index(owner.store.visible_end)
    assert owner.files() == indexed_one_by_one(keys)
    owner.close()


@pytest.mark.parametrize("end", ["abandoned", "closed"])
def test_a_file_whose_sync_failed_is_deleted_and_made_again(tmp_path: Path, end: str) -> None:
    """A later sync would succeed without the pages that this one lost."""
    disk = FailingDisk()
    owner = with_keys(tmp_path / "store", disk)
    assert owner.index is not None
    owner.send(keyed(keys="k3"))
    take_all(owner)
    disk.fail_sync = lambda _: errno.EIO
    with pytest.raises(OSError, match="Input/output"):
        owner.index.checkpoint()
    disk.fail_sync = healthy
    if end == "closed":
        owner.index.close()
    else:
        owner.index.abandon()
    owner.index = None
    assert owner.files() == []
    keys = owner.every_key()
    opened = owner.open_index()
    owner.follow()
    opened.close()
    owner.index = None
    assert owner.files() == indexed_one_by_one(keys)
    owner.close()


def test_a_file_that_cannot_be_written_again_after_a_crash_is_deleted(tmp_path: Path) -> None:
    disk = FailingDisk()
    owner = with_keys(tmp_path / "store", disk)
    owner.close()
    again = Indexed(small_settings(tmp_path / "store"), index_disk=disk)
    disk.fail_sync = lambda _: errno.EIO
    with pytest.raises(OSError, match="Input/output"):
        again.open_index(was_clean=False)
    disk.fail_sync = healthy
    assert again.files() == []
    opened = again.open_index(was_clean=False)
    again.follow()
    keys = again.every_key()
    opened.close()
    again.index = None
    assert again.files() == indexed_one_by_one(keys)
    again.close()
