"""Jobs whose driver or workers are killed, or whose disk is full."""

import os
import random
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from rockoon_spark.index.target import index_paths, manifest_path, read_manifest, stagings
from rockoon_spark.jobs.index import IndexBuildError, IndexReport, build_index, verify_index
from rockoon_spark.jobs.rebuild import QueueDisorder, RebuildReport, rebuild_queues
from rockoon_spark.publish import TargetExists
from support.key_index import SHAPE, Indexed, small_settings
from support.spark_processes import (
    attached,
    failed_tasks,
    kill_workers,
    run_driver,
    workers_with_small_files,
)

SPLIT_BYTES = 4000


def build(spark: SparkSession, store: Path, target: Path, **options: Any) -> IndexReport:
    shape = {"slots": SHAPE.slots, "units": SHAPE.units}
    options = shape | {"split_bytes": SPLIT_BYTES, "sealed_only": False} | options
    return build_index(spark, str(store), target, **options)


def rebuild(spark: SparkSession, store: Path, target: Path, **options: Any) -> RebuildReport:
    return rebuild_queues(
        spark, str(store), target, split_bytes=SPLIT_BYTES, file_entries=10, **options
    )


def tree(root: Path) -> dict[str, bytes]:
    files = [path for path in root.rglob("*") if path.is_file()]
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    root = tmp_path / "broker-a"
    owner = Indexed(small_settings(root))
    owner.send_random(random.Random(31), 80)
    owner.close()
    return root


def killed_before(step: int) -> Callable[[Path, Path], None]:
    """Return a rename that kills the process after this number of renames."""
    done = 0

    def rename(source: Path, place: Path) -> None:
        nonlocal done
        if done == step:
            os.kill(os.getpid(), signal.SIGKILL)
        done += 1
        source.replace(place)

    return rename


def killed_behind(source: Path, place: Path) -> None:
    source.replace(place)
    os.kill(os.getpid(), signal.SIGKILL)


# These functions run in new processes.
def build_killed(store: Path, target: Path, step: int) -> None:
    build(attached(), store, target, rename=killed_before(step))


def rebuild_killed(store: Path, target: Path, *, behind: bool) -> None:
    rebuild(attached(), store, target, rename=killed_behind if behind else killed_before(0))


@pytest.mark.soak
def test_a_driver_killed_at_any_step_of_publishing_leaves_a_whole_index(
    spark: SparkSession, tmp_path: Path, store: Path
) -> None:
    former, target = tmp_path / "former" / "index", tmp_path / "index"
    build(spark, store, former)
    before = [path.read_bytes() for path in index_paths(former)]
    owner = Indexed(small_settings(store))
    owner.send_random(random.Random(32), 25)
    owner.close()
    build(spark, store, target)
    after = [path.read_bytes() for path in index_paths(target)]
    shutil.rmtree(target)
    # The last file of the former index is continued.
    written = len(after) - len(before) + 1
    assert written > 1
    for step in range(written + 2):
        manifest_path(target).unlink(missing_ok=True)
        shutil.copytree(former, target)
        shutil.copy(manifest_path(former), manifest_path(target))
        script = f"""
            from pathlib import Path
            from spark.test_killed_jobs import build_killed
            build_killed(Path({str(store)!r}), Path({str(target)!r}), {step})
        """
        assert run_driver(spark, script) == -signal.SIGKILL
        # The manifest is renamed aside, then each file into its place, then the manifest.
        in_place = max(step - 1, 0)
        found = [path.read_bytes() for path in index_paths(target)]
        kept = len(before) - 1
        assert found == (after[: kept + in_place] if in_place else before), step
        assert read_manifest(target) == read_manifest(former)
        assert len(stagings(target)) == 1
        report = build(spark, store, target)
        # The next run finishes the renames that had begun; if none had begun, it builds again.
        assert (report.keys > 0) == (step == 0)
        assert [path.read_bytes() for path in index_paths(target)] == after
        assert stagings(target) == []
        shutil.rmtree(target)


@pytest.mark.parametrize("behind", [False, True])
def test_a_driver_killed_while_it_publishes_queues_leaves_all_or_none(
    spark: SparkSession, tmp_path: Path, store: Path, *, behind: bool
) -> None:
    target = tmp_path / "made" / "consumequeue"
    script = f"""
        from pathlib import Path
        from spark.test_killed_jobs import rebuild_killed
        rebuild_killed(Path({str(store)!r}), Path({str(target)!r}), behind={behind})
    """
    assert run_driver(spark, script) == -signal.SIGKILL
    expected = tree(store / "consumequeue")
    if behind:
        assert tree(target) == expected
    else:
        assert not target.exists()
        (left,) = target.parent.iterdir()
        assert left.name.startswith(".consumequeue.")
        rebuild(spark, store, target)
        assert tree(target) == expected
    assert list(target.parent.iterdir()) == [target]


def test_python_workers_killed_in_the_middle_are_replaced(
    spark: SparkSession, tmp_path: Path, store: Path
) -> None:
    target = tmp_path / "index"
    failed = failed_tasks(spark)
    made: list[IndexReport] = []
    building = threading.Thread(target=lambda: made.append(build(spark, store, target)))
    building.start()
    kill_workers(
        spark,
        building,
        lambda: any(path.suffix == ".keys" for each in stagings(target) for path in each.iterdir()),
    )
    building.join()
    assert failed_tasks(spark) > failed
    assert made
    assert verify_index(spark, str(store), target) == []


def test_a_full_disk_is_told_and_nothing_is_published(
    spark: SparkSession, tmp_path: Path, store: Path
) -> None:
    index, queues = tmp_path / "index", tmp_path / "consumequeue"
    with workers_with_small_files(spark, 100):
        with pytest.raises(
            IndexBuildError, match=r"keys cannot be written to a scratch file: .*File too large"
        ):
            build(spark, store, index)
        with pytest.raises(QueueDisorder, match=r"cannot be written: .*File too large"):
            rebuild(spark, store, queues)
    # Enough for the keys, too little for an index file.
    with (
        workers_with_small_files(spark, 20_000),
        pytest.raises(IndexBuildError, match=r"cannot be written: .*File too large"),
    ):
        build(spark, store, index, units=2000)
    assert list(index.iterdir()) == []
    assert {path.name for path in tmp_path.iterdir()} == {"broker-a", "index"}
    build(spark, store, index)
    rebuild(spark, store, queues)
    assert tree(queues) == tree(store / "consumequeue")


def test_a_target_that_cannot_be_written_any_more_is_told_and_the_next_run_ends_it(
    spark: SparkSession, tmp_path: Path, store: Path
) -> None:
    target = tmp_path / "index"
    moved = 0

    def refuse(source: Path, place: Path) -> None:
        nonlocal moved
        if moved == 2:
            raise PermissionError(13, "Permission denied", str(place))
        moved += 1
        source.replace(place)

    with pytest.raises(PermissionError):
        build(spark, store, target, rename=refuse)
    assert read_manifest(target) is None
    assert len(index_paths(target)) == 1
    report = build(spark, store, target)
    assert (report.keys, stagings(target)) == (0, [])
    assert verify_index(spark, str(store), target) == []

    def refuse_all(source: Path, place: Path) -> None:
        raise PermissionError(13, "Permission denied", str(place))

    with pytest.raises(TargetExists, match="cannot be renamed to"):
        rebuild(spark, store, tmp_path / "consumequeue", rename=refuse_all)
    assert not any("consumequeue" in path.name for path in tmp_path.iterdir())
