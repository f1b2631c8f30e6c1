"""An index after a stop, a kill, a power cut: it continues, or is built again."""

import random
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rockoon_core.disk import Disk
from rockoon_format.index_file import HEADER_BYTES, UNIT_BYTES
from support.key_index import SHAPE, Indexed, indexed_one_by_one, keyed, small_settings
from support.seeds import seeds
from support.store_directory import FailingDisk, PowerCutDisk

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class Killed(BaseException):
    """The process has ended."""


class DyingDisk(Disk):
    """Counts changes; the process dies in the middle of change `dies_at`."""

    def __init__(self, dies_at: int) -> None:
        self.left = dies_at

    def _change(self) -> None:
        self.left -= 1
        if self.left <= 0:
            raise Killed

    def pwrite(self, fd: int, data: "ReadableBuffer", position: int) -> int:
        if self.left == 1:
            super().pwrite(fd, memoryview(data).cast("B")[: memoryview(data).nbytes // 2], position)
        self._change()
        return super().pwrite(fd, data, position)

    def fdatasync(self, fd: int) -> None:
        self._change()
        super().fdatasync(fd)

    def set_size(self, fd: int, count: int) -> None:
        self._change()
        super().set_size(fd, count)

    def rename(self, source: Path, target: Path) -> None:
        self._change()
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        self._change()
        super().unlink(path)


@pytest.mark.parametrize("seed", seeds(4))
def test_killed_anywhere_it_ends_as_if_nothing_had_been(tmp_path: Path, seed: int) -> None:
    choose = random.Random(seed)
    configured = small_settings(tmp_path / "store")
    kills = 0
    for _ in range(12):
        owner = Indexed(configured, index_disk=DyingDisk(choose.randrange(1, 40)))
        try:
            index = owner.open_index()
            for _ in range(choose.randrange(1, 6)):
                owner.send_random(choose, choose.randrange(1, 12))
                owner.follow(bytes_max=choose.choice((91, 400, 4000)))
                if choose.random() < 0.5:
                    index.checkpoint()
            owner.close()
        except Killed:
            kills += 1
            # Open files are lost with the process; the log is complete.
            owner.store.close()
    assert kills > 3
    owner = Indexed(configured)
    owner.open_index()
    owner.follow()
    keys = owner.every_key()
    owner.close()
    assert owner.files() == indexed_one_by_one(keys)
    assert not list(owner.directory.path.glob("*.new"))


@pytest.mark.parametrize("seed", seeds(8))
def test_after_a_power_cut_it_is_what_the_log_says(tmp_path: Path, seed: int) -> None:
    choose = random.Random(seed)
    configured = small_settings(tmp_path / "store")
    (configured.root / "index").mkdir(parents=True)
    disk = PowerCutDisk(configured.root / "index")
    owner = Indexed(configured, index_disk=disk)
    index = owner.open_index()
    for _ in range(choose.randrange(1, 6)):
        owner.send_random(choose, choose.randrange(1, 30))
        owner.follow(bytes_max=choose.choice((91, 400, 4000)))
        if choose.random() < 0.5:
            index.checkpoint()
    keys = owner.every_key()
    (tmp_path / "cut").mkdir()
    disk.cut(tmp_path / "cut" / "index", choose)
    owner.close()
    shutil.copytree(
        configured.root,
        tmp_path / "cut",
        dirs_exist_ok=True,
        ignore=shutil.ignore_patterns("index"),
    )
    again = Indexed(small_settings(tmp_path / "cut"))
    again.open_index()
    again.follow()
    again.close()
    assert again.files() == indexed_one_by_one(keys)


def test_a_clean_stop_is_gone_on_from_without_a_message_twice(tmp_path: Path) -> None:
    configured = small_settings(tmp_path / "store")
    for _ in range(5):
        owner = Indexed(configured)
        index = owner.open_index()
        owner.send(keyed("U" * 32, "a b c"), keyed(keys="a"), keyed())
        owner.follow()
        assert index.position == owner.store.visible_end
        owner.close()
        assert owner.removed == []
    owner = Indexed(configured)
    owner.open_index()
    owner.follow()
    assert len(owner.find("a")) == 10
    owner.close()


def test_a_clean_index_is_opened_and_closed_without_a_write(tmp_path: Path) -> None:
    configured = small_settings(tmp_path / "store")
    owner = Indexed(configured)
    owner.open_index()
    owner.send(keyed("U" * 32, "a b c"), keyed(keys="a"))
    owner.follow()
    owner.close()
    disk, written = FailingDisk(), []

    def note(path: Path, position: int) -> int:
        written.append((path, position))
        return 0

    disk.fail_write = note
    again = Indexed(configured, index_disk=disk)
    again.open_index()
    assert len(again.find("a")) == 2
    again.close()
    assert (written, disk.syncs) == ([], [])


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_message_whose_keys_lie_in_two_files_is_indexed_once(tmp_path: Path, cut: int) -> None:
    configured = small_settings(tmp_path / "store")
    owner = Indexed(configured)
    owner.open_index()
    for _ in range(SHAPE.units - 1 - cut):
        owner.send(keyed(keys="one"))
    owner.follow()
    owner.send(keyed(keys=" ".join(f"many{number}" for number in range(12))))
    keys = owner.every_key()
    # It dies when it has sealed the full file, and before it creates the next.
    owner.directory.disk = DyingDisk(1)
    with pytest.raises(Killed):
        owner.follow()
    owner.store.close()
    again = Indexed(configured)
    again.open_index()
    again.follow()
    again.close()
    assert again.files() == indexed_one_by_one(keys)


@pytest.mark.parametrize("seed", seeds(7))
def test_a_torn_last_file_is_noticed_and_made_anew(tmp_path: Path, seed: int) -> None:
    choose = random.Random(seed)
    configured = small_settings(tmp_path / "store")
    owner = Indexed(configured)
    owner.open_index()
    owner.send_random(choose, 60)
    owner.follow()
    if owner.directory.files()[-1].keys == SHAPE.units - 1:
        owner.send(keyed(keys="k"))
        owner.follow()
    keys = owner.every_key()
    owner.close()
    last = owner.directory.files()[-1]
    content = bytearray(last.path.read_bytes())
    units_at = HEADER_BYTES + SHAPE.slots * 4
    low, high = choose.choice(
        (
            (HEADER_BYTES, units_at),
            (units_at + UNIT_BYTES, units_at + (last.keys + 1) * UNIT_BYTES),
            (16, HEADER_BYTES),
        )
    )
    for at in choose.sample(range(low, high), min(20, high - low)):
        # Wrong seconds alone are not checked: they do not change results.
        content[at] ^= 0xFF
    last.path.write_bytes(content)
    again = Indexed(configured)
    again.open_index()
    again.follow()
    again.close()
    assert again.files() == indexed_one_by_one(keys)


def test_an_index_ahead_of_the_log_is_cut_back(tmp_path: Path) -> None:
    configured = small_settings(tmp_path / "store")
    owner = Indexed(configured)
    owner.open_index()
    owner.send(keyed(keys="kept"))
    owner.follow()
    owner.store.close()
    shutil.copytree(configured.root, tmp_path / "before")
    owner = Indexed(configured)
    owner.open_index()
    for _ in range(SHAPE.units):
        owner.send(keyed(keys="lost"))
    owner.follow()
    owner.close()
    # A power cut removed messages that the index had on disk already.
    shutil.copytree(configured.root / "index", tmp_path / "before" / "index", dirs_exist_ok=True)
    cut = Indexed(small_settings(tmp_path / "before"))
    cut.send(keyed(keys="new"))
    cut.open_index()
    cut.follow()
    assert cut.find("lost") == []
    assert (len(cut.find("kept")), len(cut.find("new"))) == (1, 1)
    keys = cut.every_key()
    cut.close()
    assert cut.files() == indexed_one_by_one(keys)


def test_what_retention_took_while_the_index_was_away_is_skipped(tmp_path: Path) -> None:
    configured = small_settings(
        tmp_path / "store",
        reserved_hours=0,
        delete_when=";".join(f"{h:02d}" for h in range(24)),
        disk_check_delay_ms=0,
    )
    owner = Indexed(configured)
    owner.send_random(random.Random(3), 300)
    owner.write_point()
    owner.clock.time_ms += 1 << 40
    owner.store.clean(owner.clock.time_ms)
    assert owner.store.log_min_offset > 0
    index = owner.open_index()
    owner.follow()
    assert index.covered_from == owner.store.log_min_offset
    keys = owner.every_key()
    owner.close()
    assert owner.files() == indexed_one_by_one(keys)
