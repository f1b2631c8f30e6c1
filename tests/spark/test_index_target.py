"""An index directory while files are published in it."""

import os
import signal
from pathlib import Path

import pytest

from rockoon_format.index_file import IndexHeader
from rockoon_spark.index.linking import IndexKeyRange, divide_keys, next_file_name
from rockoon_spark.index.target import (
    IndexedFile,
    IndexFileShape,
    IndexManifest,
    IndexTargetError,
    index_paths,
    locked,
    manifest_path,
    publish,
    read_manifest,
    recover,
    staged,
    stagings,
)
from support.forks import Forks

SHAPE = IndexFileShape(2, 3)
NAMES = [f"2026010100000000{n}" for n in range(4)]
FORMER = {NAMES[0]: b"full", NAMES[1]: b"half"}
EXTENDED = {NAMES[1]: b"half and more", NAMES[2]: b"new", NAMES[3]: b"newer"}


def manifest_of(files: dict[str, bytes]) -> IndexManifest:
    each = tuple(IndexedFile(name, 0, IndexHeader()) for name in files)
    return IndexManifest(SHAPE, len(files), each)


def publish_files(target: Path, files: dict[str, bytes], kills_at: int = -1) -> None:
    """Publish files; the process is killed before the rename of this number."""
    steps = 0

    def replace(source: Path, place: Path) -> None:
        nonlocal steps
        if steps == kills_at:
            os.kill(os.getpid(), signal.SIGKILL)
        steps += 1
        source.replace(place)

    target.mkdir(exist_ok=True)
    with staged(target) as staging:
        for name, content in files.items():
            (staging / name).write_bytes(content)
        publish(target, staging, manifest_of(FORMER | files), replace=replace)


def extend_killed(target: str, step: int) -> None:
    publish_files(Path(target), EXTENDED, step)


def contents(target: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in index_paths(target)}


@pytest.mark.parametrize("step", range(5))
def test_whenever_it_is_killed_the_index_is_whole_and_whoever_comes_next_ends_it(
    forks: Forks, tmp_path: Path, step: int
) -> None:
    target = tmp_path / "index"
    publish_files(target, FORMER)
    assert forks.call(extend_killed, str(target), step) == -signal.SIGKILL

    # The manifest is renamed aside, then each file into its place, then the manifest.
    in_place = dict(list(EXTENDED.items())[: max(step - 1, 0)])
    assert contents(target) == FORMER | in_place
    assert read_manifest(target) == manifest_of(FORMER)
    assert len(stagings(target)) == 1

    recover(target)
    done = step > 0
    assert contents(target) == (FORMER | EXTENDED if done else FORMER)
    assert read_manifest(target) == manifest_of(FORMER | EXTENDED if done else FORMER)
    assert stagings(target) == []


def test_two_jobs_do_not_build_one_index(tmp_path: Path) -> None:
    second = locked(tmp_path / "index")
    with (
        locked(tmp_path / "index"),
        pytest.raises(IndexTargetError, match="is locked by another job"),
        second,
    ):
        pass
    with locked(tmp_path / "index"):
        pass


@pytest.mark.parametrize("content", ["", "[]", '{"format": 2}', '{"format": 1, "slots": 5}'])
def test_a_manifest_that_cannot_be_read_is_told(tmp_path: Path, content: str) -> None:
    manifest_path(tmp_path / "index").write_text(content)
    with pytest.raises(IndexTargetError, match=r"index\.manifest\.json (is|has)"):
        read_manifest(tmp_path / "index")


def test_names_are_store_times_in_utc_and_ascend() -> None:
    assert next_file_name("", 1_700_000_000_123) == "20231114221320123"
    assert next_file_name("20231114221320123", 1_700_000_000_123) == "20231114221320124"
    assert next_file_name("20231114235959999", 0) == "20231115000000000"
    assert next_file_name("", -5) == "19700101000000000"


def test_keys_are_shared_out_across_splits() -> None:
    assert divide_keys([3, 0, 4], [0, 2, 5, 7]) == [
        (IndexKeyRange(0, 0, 2),),
        (IndexKeyRange(0, 2, 3), IndexKeyRange(2, 0, 2)),
        (IndexKeyRange(2, 2, 4),),
    ]
    assert divide_keys([], [0]) == []
