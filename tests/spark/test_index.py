"""The index by key built from CommitLog files."""

import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rockoon_broker.index.directory import IndexShape
from rockoon_spark.files import list_log
from rockoon_spark.index.target import (
    IndexTargetError,
    index_paths,
    manifest_path,
    read_manifest,
    stagings,
)
from rockoon_spark.jobs.index import IndexBuildError, IndexReport, build_index, verify_index
from rockoon_spark.records.record_run import LogBroken
from support import golden_store
from support.key_index import SHAPE, Indexed, indexed_one_by_one, keyed, small_settings
from support.seeds import seeds
from support.store_directory import unpack_golden

# Several splits per file, if the test needs them: each task takes a while to start.
SPLIT_BYTES = 7000


def contents(target: Path) -> list[bytes]:
    return [path.read_bytes() for path in index_paths(target)]


def build(
    spark: SparkSession,
    root: Path,
    target: Path,
    *,
    sealed_only: bool = True,
    shape: IndexShape = SHAPE,
    split_bytes: int = 1 << 20,
) -> IndexReport:
    return build_index(
        spark,
        str(root),
        target,
        slots=shape.slots,
        units=shape.units,
        sealed_only=sealed_only,
        split_bytes=split_bytes,
    )


def keys_below(owner: Indexed, offset: int) -> list[tuple[str, int, int]]:
    return [key for key in owner.every_key() if key[1] < offset]


def active_file(owner: Indexed) -> int:
    """Return the start of the CommitLog file that is written; the next file may exist already."""
    return (owner.store.visible_end - 1) // 16_384 * 16_384


@pytest.fixture
def owner(tmp_path: Path) -> Indexed:
    return Indexed(small_settings(tmp_path / "broker-a"))


def test_the_index_that_rocketmq_wrote_comes_out_byte_for_byte(
    spark: SparkSession, tmp_path: Path
) -> None:
    unpack_golden(tmp_path / "store")
    shape = IndexShape(golden_store.INDEX_SLOTS, golden_store.INDEX_UNITS)
    target = tmp_path / "index"
    report = build(spark, tmp_path / "store", target, sealed_only=False, shape=shape)
    assert contents(target) == [golden_store.index_file()]
    assert report.files_written == 1
    assert verify_index(spark, str(tmp_path / "store"), target) == []
    again = build(spark, tmp_path / "store", target, sealed_only=False, shape=shape)
    assert (again.keys, again.files_written, again.end_offset) == (0, 0, report.end_offset)


@pytest.mark.parametrize("seed", seeds(1))
def test_runs_that_go_on_leave_what_putting_one_key_after_another_leaves(
    spark: SparkSession, owner: Indexed, tmp_path: Path, seed: int
) -> None:
    root, target = tmp_path / "broker-a", tmp_path / "index"
    choose = random.Random(seed)
    found = []
    for messages in (150, 150):
        owner.send_random(choose, messages)
        report = build(spark, root, target, split_bytes=SPLIT_BYTES)
        assert report.end_offset == active_file(owner)
        found.append(contents(target))
        assert found[-1] == indexed_one_by_one(keys_below(owner, report.end_offset))
    # The first run ended within a file, and both runs wrote several files.
    assert 2 < len(found[0]) < len(found[1])
    assert found[1][len(found[0]) - 1] != found[0][-1]

    # The first run ends at the last message, within a file; the second continues there.
    build(spark, root, target, sealed_only=False)
    assert contents(target) == indexed_one_by_one(owner.every_key())
    owner.send(keyed("ONE", "more"))
    assert build(spark, root, target, sealed_only=False).keys == 2
    assert contents(target) == indexed_one_by_one(owner.every_key())
    assert verify_index(spark, str(root), target, split_bytes=SPLIT_BYTES) == []
    owner.close()


def test_a_broker_finds_messages_through_files_built_here_and_goes_on_with_them(
    spark: SparkSession, owner: Indexed, tmp_path: Path
) -> None:
    root = tmp_path / "broker-a"
    for n in range(200):
        owner.send(keyed(f"U{n}", f"even{n % 2}"))
    build(spark, root, root / "index")
    end = active_file(owner)
    owner.close()

    owner = Indexed(small_settings(root))
    owner.open_index()
    assert owner.removed == []
    wanted = keys_below(owner, end)
    unique = {key: offset for key, offset, _ in wanted if key.startswith("T#U")}
    assert all(owner.find(key.removeprefix("T#")) == [offset] for key, offset in unique.items())
    owner.follow()
    every = owner.every_key()
    owner.close()
    assert owner.files() == indexed_one_by_one(every)

    with pytest.raises(IndexTargetError, match="not built by this job"):
        build(spark, root, root / "index")


def overwrite(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def flip(path: Path, position: int) -> None:
    overwrite(path, position, bytes([path.read_bytes()[position] ^ 1]))


def test_one_wrong_byte_is_found_wherever_it_is(
    spark: SparkSession, owner: Indexed, tmp_path: Path
) -> None:
    root, target = tmp_path / "broker-a", tmp_path / "index"
    owner.send_random(random.Random(12), 100)
    owner.close()
    build(spark, root, target, sealed_only=False)
    path = index_paths(target)[1]
    first_unit = 40 + 4 * SHAPE.slots
    used_slot = next(n for n in range(40, first_unit) if path.read_bytes()[n])
    for position, sentence in (
        (3, "its header differs from the manifest"),
        (used_slot, "slot .* has unit"),
        (first_unit + 20 * 5 + 7, r"unit 5 \(byte .*the log has"),
        (first_unit + 2, "its checksum differs from the manifest"),
    ):
        flip(path, position)
        (problem,) = verify_index(spark, str(root), target)
        assert str(path) in problem
        assert re.search(sentence, problem), problem
        flip(path, position)
    path.unlink()
    (problem,) = verify_index(spark, str(root), target)
    assert f"{path} is missing, although its messages are in the log" in problem


def test_an_index_whose_first_messages_are_gone_is_checked_and_goes_on(
    spark: SparkSession, owner: Indexed, tmp_path: Path
) -> None:
    root, target = tmp_path / "broker-a", tmp_path / "index"
    choose = random.Random(13)
    owner.send_random(choose, 200)
    build(spark, root, target)
    expected_keys = owner.every_key()
    owner.send_random(choose, 100)
    expected_keys += [key for key in owner.every_key() if key[1] > expected_keys[-1][1]]
    owner.close()
    first, second, *_ = list_log(str(root))
    Path(first.uri).unlink()
    # A broker deletes an index file when all its messages are deleted.
    manifest = read_manifest(target)
    assert manifest is not None
    (target / manifest.files[0].name).unlink()
    assert manifest.files[0].header.end_offset < second.start
    assert verify_index(spark, str(root), target) == []

    report = build(spark, root, target)
    below = [key for key in expected_keys if key[1] < report.end_offset]
    assert contents(target) == indexed_one_by_one(below)[1:]
    straddling = next(
        file.name
        for file in manifest.files
        if file.header.begin_offset < second.start <= file.header.end_offset
    )
    assert verify_index(spark, str(root), target) == []
    # An entry of a deleted message, with a changed place in its chain.
    flip(target / straddling, 40 + 4 * SHAPE.slots + 20 + 19)
    (problem,) = verify_index(spark, str(root), target)
    assert "unit 1 " in problem


def test_a_damaged_log_is_refused_with_the_place_and_the_index_stays(
    spark: SparkSession, owner: Indexed, tmp_path: Path
) -> None:
    root, target = tmp_path / "broker-a", tmp_path / "index"
    owner.send_random(random.Random(14), 150)
    build(spark, root, target)
    before = contents(target), manifest_path(target).read_bytes()
    owner.send_random(random.Random(15), 150)
    owner.close()
    manifest = read_manifest(target)
    assert manifest is not None
    broken = next(file for file in list_log(str(root)) if file.start == manifest.end_offset)
    positions = record_positions(Path(broken.uri))
    # At the start of a split, within one, at the start of a file, and at the end of the chain of
    # records.
    for position in (positions[20], positions[25], 0, positions[-1]):
        content = Path(broken.uri).read_bytes()
        overwrite(Path(broken.uri), position, b"\xff" * 40)
        with pytest.raises(LogBroken, match=rf"offsets {broken.start + position} to \d+ hold"):
            build(spark, root, target, split_bytes=positions[20])
        assert (contents(target), manifest_path(target).read_bytes()) == before
        assert stagings(target) == []
        Path(broken.uri).write_bytes(content)
    assert build(spark, root, target).keys > 0


def record_positions(path: Path) -> list[int]:
    """Return the positions of the records of a CommitLog file, and of the blank at its end."""
    content = path.read_bytes()
    positions = [0]
    while content[positions[-1] + 4 : positions[-1] + 8] == content[4:8]:
        at = positions[-1]
        positions.append(at + int.from_bytes(content[at : at + 4]))
    return positions


def test_a_log_file_that_goes_while_it_is_read_ends_the_run_and_nothing_is_published(
    spark: SparkSession, owner: Indexed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, target = tmp_path / "broker-a", tmp_path / "index"
    owner.send_random(random.Random(16), 100)
    owner.close()

    def list_then_expire(path: str) -> object:
        files = list_log(path)
        Path(files[0].uri).unlink(missing_ok=True)
        return files

    monkeypatch.setattr("rockoon_spark.source.store_directory.list_log", list_then_expire)
    with pytest.raises(LogBroken, match=r"retention deleted .* while it was read: run again"):
        build(spark, root, target)
    assert contents(target) == []
    assert not manifest_path(target).exists()
    assert stagings(target) == []


class Killed(BaseException):
    """Raised where the driver is killed."""


def killed_at(step: int) -> Callable[[Path, Path], None]:
    done = 0

    def rename(source: Path, target: Path) -> None:
        nonlocal done
        if done == step:
            raise Killed
        done += 1
        source.rename(target)

    return rename


def test_a_driver_that_dies_while_it_publishes_leaves_a_whole_index_and_the_next_run_ends_it(
    spark: SparkSession, owner: Indexed, tmp_path: Path
) -> None:
    root, target = tmp_path / "broker-a", tmp_path / "index"
    owner.send_random(random.Random(17), 100)
    build(spark, root, target)
    former = contents(target)
    owner.send_random(random.Random(18), 60)
    every = indexed_one_by_one(keys_below(owner, active_file(owner)))
    owner.close()
    # One file has been moved, others not: `test_index_target` covers the other moments.
    published = manifest_path(target).read_bytes()
    with pytest.raises(Killed):
        build_index(
            spark, str(root), target, slots=SHAPE.slots, units=SHAPE.units, rename=killed_at(2)
        )
    assert manifest_path(target).read_bytes() == published
    assert len(every) > len(contents(target)) == len(former)
    assert contents(target) == every[: len(former)]
    assert build(spark, root, target).keys == 0
    assert contents(target) == every
    assert stagings(target) == []
    assert verify_index(spark, str(root), target) == []


def test_a_directory_that_holds_something_else_is_left_alone(
    spark: SparkSession, owner: Indexed, tmp_path: Path
) -> None:
    root, target = tmp_path / "broker-a", tmp_path / "index"
    owner.send_random(random.Random(19), 100)
    build(spark, root, target)
    with pytest.raises(IndexBuildError, match="of 50 slots and 64 units, expected 50 and 65"):
        build(spark, root, target, shape=IndexShape(50, 65))
    owner.send_random(random.Random(20), 60)
    owner.close()
    last = index_paths(target)[-1]
    flip(last, last.stat().st_size - 1)
    with pytest.raises(IndexTargetError, match="was changed after it was published"):
        build(spark, root, target)
