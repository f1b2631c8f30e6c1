"""Lost or damaged index files are rebuilt from the log with equal content."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from support.file_harms import (
    a_directory,
    emptied,
    garbage,
    halved,
    missing,
    one_byte_longer,
)
from support.key_index import SHAPE, Indexed, indexed_one_by_one, keyed, small_settings
from support.seeds import seeds
from support.store_directory import crashed_copy

Keys = list[tuple[str, int, int]]
SEEDS = seeds(1)
HARMS = [emptied, halved, one_byte_longer, garbage, missing, a_directory]


def indexed_store(root: Path, choose: random.Random, count: int) -> Keys:
    """Create a store with its index; return all keys."""
    owner = Indexed(small_settings(root))
    owner.open_index()
    while len(owner.directory.files()) < count:
        owner.send_random(choose, 10)
        # So that some files begin with a message's second key.
        owner.send(keyed(keys=" ".join(f"many{each}" for each in range(choose.randrange(2, 40)))))
        owner.send(keyed())
        # Each file is named after the time of its creation.
        owner.follow()
    keys = owner.every_key()
    owner.close()
    return keys


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[Path, Keys]]:
    """By seed: a store with seven index files, and its keys."""
    found = {}
    for seed in SEEDS:
        root = tmp_path_factory.mktemp("store")
        found[seed] = root, indexed_store(root, random.Random(seed), 7)
    return found


def reopened(root: Path) -> Indexed:
    owner = Indexed(small_settings(root))
    owner.open_index()
    owner.fill_gap()
    owner.follow()
    owner.close()
    return owner


@pytest.mark.parametrize(
    ("harm", "which"),
    [
        *((harm, which) for harm in HARMS for which in ([0], [3], [1, 2, -1])),
        *((missing, which) for which in ([1], [-1], [0, 1], [0, 4])),
    ],
)
@pytest.mark.parametrize("seed", SEEDS)
def test_files_are_made_again_as_they_were(
    stores: dict[int, tuple[Path, Keys]],
    tmp_path: Path,
    harm: Callable[[Path], None],
    which: list[int],
    seed: int,
) -> None:
    store, keys = stores[seed]
    root = crashed_copy(store, tmp_path / "copy")
    paths = sorted((root / "index").iterdir())
    for number in which:
        harm(paths[number])
    assert reopened(root).files() == indexed_one_by_one(keys)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_sound_index_has_nothing_to_mend(
    stores: dict[int, tuple[Path, Keys]], tmp_path: Path, seed: int
) -> None:
    store, keys = stores[seed]
    root = crashed_copy(store, tmp_path / "copy")
    before = sorted((root / "index").iterdir())
    again = reopened(root)
    assert again.removed == []
    assert sorted((root / "index").iterdir()) == before
    assert again.files() == indexed_one_by_one(keys)


def test_mending_that_was_ended_goes_on_with_the_next_start(tmp_path: Path) -> None:
    keys = indexed_store(tmp_path, random.Random(5), 7)
    for path in sorted((tmp_path / "index").iterdir())[1:4]:
        path.unlink()
    owner = Indexed(small_settings(tmp_path))
    index = owner.open_index()
    files = len(owner.directory.files())
    while len(owner.directory.files()) < files + 2:
        index.fill_gap(owner.store.read_log(index.fill_from, 300))
    owner.close()
    assert reopened(tmp_path).files() == indexed_one_by_one(keys)


def test_a_gap_without_a_name_for_its_file_stays_one(tmp_path: Path) -> None:
    keys = indexed_store(tmp_path, random.Random(7), 4)
    paths = sorted((tmp_path / "index").iterdir())
    paths[1].unlink()
    paths[2].rename(paths[0].with_name(f"{int(paths[0].name) + 1:017d}"))
    owner = Indexed(small_settings(tmp_path))
    index = owner.open_index()
    with pytest.raises(FileExistsError):
        owner.fill_gap()
    (gap, *_) = index.gaps
    assert gap.before is not None
    assert gap.before.path == paths[0]
    index.leave_gap(gap)
    owner.fill_gap()
    assert index.left_gaps == [gap]
    assert len(owner.find("k1")) <= len(keys)
    assert len(owner.directory.files()) == len(paths) - 1
    assert all(each.stat().st_size == SHAPE.file_bytes for each in owner.directory.path.iterdir())
    owner.close()
