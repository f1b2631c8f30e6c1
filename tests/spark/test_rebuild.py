"""ConsumeQueues rebuilt from a CommitLog."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rockoon_broker.store.settings import Flush
from rockoon_spark.files import list_log
from rockoon_spark.jobs.rebuild import rebuild_queues
from rockoon_spark.publish import TargetExists
from rockoon_spark.records.record_run import LogBroken
from rockoon_spark.source.store_directory import DirectoryLog, StoreDirectory
from support import golden_store
from support.store_directory import NOW_MS, Owner, settings, unpack_golden


def tree(root: Path) -> dict[str, bytes]:
    files = [path for path in root.rglob("*") if path.is_file()]
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


def test_the_queues_that_rocketmq_wrote_come_out_byte_for_byte(
    spark: SparkSession, tmp_path: Path
) -> None:
    unpack_golden(tmp_path / "store")
    report = rebuild_queues(
        spark,
        str(tmp_path / "store"),
        tmp_path / "rebuilt",
        file_entries=golden_store.QUEUE_FILE_BYTES // 20,
        split_bytes=1000,
    )
    expected = {
        path.removeprefix("consumequeue/"): content
        for path, content in golden_store.files().items()
        if path.startswith("consumequeue/")
    }
    assert tree(tmp_path / "rebuilt") == expected
    assert report.files == len(expected)


def test_the_queues_of_a_store_with_deletions_and_retention_are_the_brokers(
    spark: SparkSession, tmp_path: Path
) -> None:
    def opened(root: Path) -> Owner:
        configured = settings(
            root, commit_log_file_bytes=16_384, consume_queue_file_entries=7, flush=Flush.ASYNC
        )
        return Owner(configured)

    root = tmp_path / "broker-a"
    owner = opened(root)
    for n in range(300):
        owner.clock.time_ms = NOW_MS + n
        owner.append(f"T{n % 3}", n % 2, [b"%d" % n, bytes(n)], tags="" if n % 5 else "TagA")
        if n == 150:
            owner.store.drop_topics("T2")
    owner.store.close()
    before = tree(root / "consumequeue")
    report = rebuild_queues(spark, str(root), tmp_path / "whole", file_entries=7, split_bytes=5000)
    assert tree(tmp_path / "whole") == before
    assert report.queues == 6

    # Now queues begin within a file. The expected files are those of a broker that rebuilt its
    # own after they were lost.
    first, *_ = list_log(str(root))
    Path(first.uri).unlink()
    shutil.rmtree(root / "consumequeue")
    rebuild_queues(spark, str(root), tmp_path / "rest", file_entries=7)
    opened(root).store.close()
    rest = tree(tmp_path / "rest")
    assert rest == tree(root / "consumequeue")
    assert rest.keys() < before.keys()
    assert any(before[path] != content for path, content in rest.items())


def test_a_log_that_lacks_a_message_is_refused_and_nothing_is_left(
    spark: SparkSession, tmp_path: Path
) -> None:
    root = tmp_path / "broker-a"
    owner = Owner(settings(root, commit_log_file_bytes=1 << 20, flush=Flush.ASYNC))
    for n in range(20):
        owner.append("T", 0, [b"%d" % n])
    owner.store.close()
    log = root / "commitlog" / ("0" * 20)
    content = log.read_bytes()
    with log.open("r+b") as file:
        file.seek(content.find(b"TagA", 1000) - 60)
        file.write(b"\xff" * 30)
    with pytest.raises(LogBroken, match="hold no record"):
        rebuild_queues(spark, str(root), tmp_path / "rebuilt")
    assert [path.name for path in tmp_path.iterdir()] == ["broker-a"]


def test_what_is_there_already_is_not_replaced(spark: SparkSession, tmp_path: Path) -> None:
    unpack_golden(tmp_path / "store")
    with pytest.raises(TargetExists, match="exists already"):
        rebuild_queues(spark, str(tmp_path / "store"), tmp_path / "store" / "consumequeue")


@dataclass(frozen=True)
class LosingOldest:
    """A log whose oldest file is deleted after a job has planned its read."""

    store: Path

    def log(self) -> DirectoryLog:
        found = StoreDirectory(str(self.store)).log()
        Path(found.files[0].uri).unlink()
        return found


def test_a_log_file_that_goes_while_it_is_read_ends_the_run_and_the_next_one_works(
    spark: SparkSession, tmp_path: Path
) -> None:
    root = tmp_path / "broker-a"
    owner = Owner(settings(root, commit_log_file_bytes=4096, flush=Flush.ASYNC))
    for n in range(60):
        owner.append("T", 0, [bytes(100 + n)])
    owner.store.close()
    with pytest.raises(LogBroken, match=r"retention deleted .* while it was read: run again"):
        rebuild_queues(spark, LosingOldest(root), tmp_path / "rebuilt")
    assert [path.name for path in tmp_path.iterdir()] == ["broker-a"]
    report = rebuild_queues(spark, str(root), tmp_path / "rebuilt")
    assert 0 < report.entries < 60


def test_a_record_that_is_missing_where_two_tasks_meet_is_told(
    spark: SparkSession, tmp_path: Path
) -> None:
    # The last message of its queue: its loss leaves no gap in the queue's offsets.
    root = tmp_path / "broker-a"
    owner = Owner(settings(root, commit_log_file_bytes=4096, flush=Flush.ASYNC))
    for n in range(10):
        at = owner.append("T", 0, [b"%d" % n]).end_offset
    behind = owner.append("T", 1, [b"lost"]).end_offset
    owner.append("T", 0, [b"10"])
    owner.store.close()
    with (root / "commitlog" / ("0" * 20)).open("r+b") as file:
        file.seek(at)
        file.write(b"\xff" * 40)
    with pytest.raises(LogBroken, match=f"offsets {at} to {behind} hold no record"):
        rebuild_queues(spark, str(root), tmp_path / "rebuilt", split_bytes=at)
