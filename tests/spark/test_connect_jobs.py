"""Compaction, export and their verification through Spark Connect, which has no RDDs."""

import json
import random
import subprocess
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.connect.session import SparkSession as ConnectSession
from spark.test_export import Sender, exported, place_of

from rockoon_format.generation import generation_name
from rockoon_spark.jobs.compact import compact, verify_generation
from rockoon_spark.jobs.export import export
from rockoon_spark.jobs.verify_export import verify_export
from support.compacting import RETENTION_MS, Compacting, compare, place
from support.store_directory import crashed_copy


def test_a_compaction_equals_the_one_record_by_record(
    spark: SparkSession, connect: ConnectSession, tmp_path: Path
) -> None:
    owner = Compacting(tmp_path / "store")
    choose = random.Random(11)
    for number in (1, 2):
        owner.send_random(choose, 100)
        owner.clock.time_ms += RETENTION_MS
        now_ms = owner.clock.time_ms
        before = crashed_copy(owner.root, tmp_path / f"before-{number}")
        report = compact(
            connect,  # type: ignore[arg-type]
            place(owner.root, now_ms),
            split_bytes=10_000,
            part_bytes=8_000,
        )
        assert (report.generation, report.parts > 1) == (number, True)
        owner.take_over(number)
        compare(owner.root, before, number, now_ms)
    made = owner.root / "compacted" / generation_name(2)
    assert verify_generation(connect, made)[1] == []  # type: ignore[arg-type]
    owner.store.close()


def test_an_export_and_its_merge_are_verified(
    spark: SparkSession, connect: ConnectSession, tmp_path: Path
) -> None:
    sender, target = Sender(tmp_path / "broker-a"), str(tmp_path / "out")
    for run in (1, 2):
        sender.send(100)
        report = export(
            connect,  # type: ignore[arg-type]
            place_of(tmp_path),
            target,
            sealed_only=False,
            section_bytes=5000,
            merges=run == 2,
        )
        assert report.messages == 100
    assert report.merged > 2
    assert [int(row["body"].rstrip("\0")) for row in exported(tmp_path)] == list(range(200))
    found, problems = verify_export(connect, target, place_of(tmp_path))  # type: ignore[arg-type]
    assert (found.compared, problems) == (200, [])


def test_a_command_runs_on_a_server_of_spark_connect(connect_address: str, tmp_path: Path) -> None:
    owner = Compacting(tmp_path / "broker-a")
    owner.send_random(random.Random(3), 50)
    owner.store.close()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "rockoon_spark", "compact", "--json"),
            *("--store", str(owner.root), "--master", connect_address),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    [report] = [each for each in json.loads(done.stdout).values() if isinstance(each, dict)]
    assert (report["generation"], report["is_new"]) == (1, True)
