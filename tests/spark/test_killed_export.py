"""Exports whose driver or workers are killed, and whose disk is full."""

import os
import signal
import threading
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from rockoon_spark.export.target import ExportTarget, manifests
from rockoon_spark.jobs.export import ExportReport, export
from rockoon_spark.jobs.verify_export import verify_export
from rockoon_spark.source.store_directory import StoreDirectory
from support.spark_processes import (
    attached,
    failed_tasks,
    kill_workers,
    run_driver,
    workers_with_small_files,
)
from support.store_directory import Owner, settings

MESSAGES = 400


@pytest.fixture
def store(tmp_path: Path) -> Path:
    root = tmp_path / "broker-a"
    owner = Owner(settings(root, commit_log_file_bytes=16_384))
    for n in range(MESSAGES):
        owner.append(f"T{n % 2}", 0, [b"%d" % n])
    owner.store.close()
    return root


def run(spark: SparkSession, store: Path, **options: object) -> ExportReport:
    place = StoreDirectory(str(store), "broker-a")
    target = str(store.parent / "out")
    return export(spark, place, target, sealed_only=False, section_bytes=4000, **options)


def run_killed(store: Path, moves: int) -> None:
    """Run an export in a new process, which is killed after this number of moves."""
    target, done = ExportTarget.of(str(store.parent / "out")), 0

    def move(source: str, place: str) -> None:
        nonlocal done
        if done == moves:
            os.kill(os.getpid(), signal.SIGKILL)
        done += 1
        target.move(source, place)

    run(attached(), store, move=move)


def see_all_once(spark: SparkSession, store: Path) -> None:
    out = store.parent / "out"
    bodies = ds.dataset(out, format="parquet").to_table(columns=["body"])["body"].to_pylist()
    assert sorted(map(int, bodies)) == list(range(MESSAGES))
    assert verify_export(spark, str(out), StoreDirectory(str(store), "broker-a"))[1] == []
    assert ExportTarget.of(str(out)).names("_staging") == []


# Before the first move and before the manifest's move; `test_export_target` covers all moves.
@pytest.mark.parametrize("moves", [0, 5])
def test_a_killed_driver_is_followed_by_a_run_that_has_every_message_once(
    spark: SparkSession, store: Path, moves: int
) -> None:
    script = f"""
        from pathlib import Path
        from spark.test_killed_export import run_killed
        run_killed(Path({str(store)!r}), {moves})
    """
    assert run_driver(spark, script) == -signal.SIGKILL
    out = ExportTarget.of(str(store.parent / "out"))
    assert manifests(out) == []
    assert len(out.parquet_paths()) == max(moves - 1, 0)
    report = run(spark, store)
    # The next run finishes the moves that had begun; if none had begun, it exports again.
    assert report.messages == (0 if moves else MESSAGES)
    assert report.run == 1
    see_all_once(spark, store)


def test_workers_killed_in_the_middle_are_replaced_and_leave_nothing(
    spark: SparkSession, store: Path
) -> None:
    failed = failed_tasks(spark)
    made: list[ExportReport] = []
    exporting = threading.Thread(target=lambda: made.append(run(spark, store)))
    exporting.start()
    kill_workers(
        spark, exporting, lambda: any((store.parent / "out" / "_staging").rglob("*.staged"))
    )
    exporting.join()
    assert failed_tasks(spark) > failed
    assert [report.messages for report in made] == [MESSAGES]
    see_all_once(spark, store)


def test_a_full_disk_is_told_and_nothing_is_published(spark: SparkSession, store: Path) -> None:
    out = store.parent / "out"
    with (
        workers_with_small_files(spark, 1000),
        pytest.raises(PySparkException, match=rf"to {out}: .*File too large"),
    ):
        run(spark, store)
    assert ExportTarget.of(str(out)).names("") == ["_staging"]
    assert ExportTarget.of(str(out)).names("_staging") == []
    assert run(spark, store).messages == MESSAGES
    see_all_once(spark, store)
