"""Exports to a local S3 server: two at once, merges, and readers of the bucket."""

import itertools
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pytest
from moto.server import ThreadedMotoServer
from pyspark.sql import SparkSession
from spark.test_export import Sender, place_of

from rockoon_spark.export.lease import CLAIMS
from rockoon_spark.export.target import (
    ExportTarget,
    ExportTargetError,
    exported_files,
    manifests,
)
from rockoon_spark.jobs.export import ExportReport, export
from rockoon_spark.jobs.verify_export import verify_export
from rockoon_spark.object_stores import with_s3_settings

buckets = map("bucket-{}".format, itertools.count())
RUNS = 3
# A job that exports until it has published its runs, while another job does the same.
RUN = """
import os, sys
sys.path.insert(0, os.path.dirname(os.getcwd()))
from test_export_target import stage
from rockoon_spark.export.target import (
    ExportTarget, ExportTargetError, locked, newest_manifest, publish, recover
)

target, left = ExportTarget.of(sys.argv[1]), int(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
while left:
    try:
        with locked(target, 15.0) as check:
            recover(target, check=check)
            former = newest_manifest(target)
            run = former.run + 1 if former else 1
            publish(target, stage(target, run, f"{os.getpid()}-"), check=check)
        left -= 1
    except ExportTargetError as error:
        # On a busy machine a job can lose its lease.
        expected = "another job works", "at the same time", "removed the claim"
        if not any(each in str(error) for each in expected):
            raise
"""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    running = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    yield f"http://{host}:{port}"
    running.stop()


@pytest.fixture
def place(server: str) -> str:
    """Return the address of a directory in a new bucket."""
    bucket = next(buckets)
    pafs.S3FileSystem(
        access_key="a", secret_key="s", endpoint_override=server, allow_bucket_creation=True
    ).create_dir(bucket)
    options = {"s3Endpoint": server, "s3AccessKey": "a", "s3SecretKey": "s"}
    return with_s3_settings(f"s3a://{bucket}/lake", options)


def test_two_exports_at_once_take_turns(place: str) -> None:
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", RUN, place, str(RUNS)],
                    cwd=Path(__file__).parent,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for _ in range(2)
        ]
        for process in processes:
            stack.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        # Both begin before one has published its runs.
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        assert [process.wait(timeout=120) for process in processes] == [0, 0]
    target = ExportTarget.of(place)
    runs = manifests(target)
    assert [run.run for run in runs] == list(range(1, len(runs) + 1))
    # A job that lost its lease repeats its run; the other job may have finished it.
    assert len(runs) >= 2 * RUNS
    assert [run.positions["broker-a"].end_offset for run in runs] == [
        1000 * run.run for run in runs
    ]
    assert target.parquet_paths() == sorted(file.path for file in exported_files(runs))
    assert target.names("_staging") == target.names(CLAIMS) == []


def test_two_jobs_export_and_merge_each_message_once(
    spark: SparkSession, place: str, tmp_path: Path
) -> None:
    sender = Sender(tmp_path / "broker-a")
    done: list[ExportReport] = []
    refused: list[ExportTargetError] = []

    def work() -> None:
        try:
            done.append(
                export(
                    spark,
                    place_of(tmp_path),
                    place,
                    sealed_only=False,
                    section_bytes=9000,
                    merges=True,
                )
            )
        except ExportTargetError as error:
            refused.append(error)

    sent = 0
    for _ in range(2):
        sender.send(100)
        sent += 100
        jobs = [threading.Thread(target=work) for _ in range(2)]
        for job in jobs:
            job.start()
        for job in jobs:
            job.join()
    assert len(done) + len(refused) == 4
    assert all("another job works in this directory" in str(error) for error in refused)
    assert sum(report.messages for report in done) == sent
    target = ExportTarget.of(place)
    table = ds.dataset(
        target.root, filesystem=target.files, format="parquet", partitioning="hive"
    ).to_table(columns=["body", "topic", "date"])
    assert sorted(int(body.rstrip("\0")) for body in table["body"].to_pylist()) == list(range(sent))
    directories = [path.rpartition("/")[0] for path in target.parquet_paths()]
    assert len(directories) == len(set(directories))
    assert target.names("_staging") == target.names(CLAIMS) == []
    assert verify_export(spark, place, place_of(tmp_path))[1] == []
