"""Exports of messages to Parquet, one run after another."""

import json
import re
import zlib
from collections import Counter
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from rockoon_spark.export.rows import ROW_SCHEMA, ExportError, TopicChoice
from rockoon_spark.export.target import ExportTarget, ExportTargetError, Gap, manifests
from rockoon_spark.files import list_log
from rockoon_spark.jobs.export import ExportReport, export
from rockoon_spark.jobs.verify_export import verify_export
from rockoon_spark.source.store_directory import StoreDirectory
from support.store_directory import NOW_MS, Owner, settings, unpack_golden

FILE_BYTES = 16_384
DAY_MS = 86_400_000
# This day ends 106 minutes before NOW_MS.
MIDNIGHT_MS = NOW_MS - NOW_MS % DAY_MS + DAY_MS


class Sender:
    """Sends numbered messages, message n at NOW_MS + n minutes."""

    def __init__(self, root: Path) -> None:
        self.owner = Owner(settings(root, commit_log_file_bytes=FILE_BYTES))
        self.sent = 0

    def send(
        self, count: int, topic: str = "T", body: Callable[[int], bytes] | None = None
    ) -> None:
        for n in range(self.sent, self.sent + count):
            self.owner.clock.time_ms = NOW_MS + 60_000 * n
            content = body(n) if body else b"%d" % n + bytes(100)
            self.owner.append(topic, n % 2, [content])
        self.sent += count

    @property
    def sealed(self) -> int:
        """Return the start of the CommitLog file that is written."""
        return (self.owner.store.visible_end - 1) // FILE_BYTES * FILE_BYTES


@pytest.fixture
def sender(tmp_path: Path) -> Sender:
    return Sender(tmp_path / "broker-a")


def place_of(root: Path, name: str = "broker-a") -> StoreDirectory:
    return StoreDirectory(str(root / name), name)


def run(spark: SparkSession, root: Path, **options: Any) -> ExportReport:
    return export(spark, place_of(root), str(root / "out"), **{"sealed_only": False, **options})


def verified(spark: SparkSession, root: Path) -> list[str]:
    return verify_export(spark, str(root / "out"), place_of(root))[1]


def exported(root: Path) -> list[dict[str, Any]]:
    """Return all rows of all Parquet files, without the manifests."""
    table = ds.dataset(root / "out", format="parquet", partitioning="hive").to_table()
    return sorted(table.to_pylist(), key=lambda row: int(row["physical_offset"]))


def numbers(root: Path) -> list[int]:
    return [int(row["body"].rstrip("\0")) for row in exported(root)]


def test_messages_are_rows_that_a_person_can_query(
    spark: SparkSession, sender: Sender, tmp_path: Path
) -> None:
    sender.send(100, body=lambda n: f"grün {n}".encode())
    sender.send(20, body=lambda n: b"\xff%d" % n)
    sender.send(10, "%RETRY%billing")
    sender.send(10, "SCHEDULE_TOPIC_XXXX")
    report = run(spark, tmp_path)
    assert (report.run, report.messages, report.files) == (1, 130, 3)

    frame = spark.read.parquet(str(tmp_path / "out"))
    assert frame.columns == [*ROW_SCHEMA.names, "topic", "date"]
    source = spark.read.format("rockoon").load(str(tmp_path / "broker-a"))
    source = source.where("topic not like 'SCHEDULE%'").withColumn("date", f.to_date("store_time"))
    source = source.withColumn("topic_name", f.col("topic"))
    common = [name for name in frame.columns if name not in ("body", "body_bytes")]
    assert rows(frame.select(common)) == rows(source.select(common))
    assert {row.date for row in frame.collect()} == {date(2023, 11, 14), date(2023, 11, 15)}
    midnight = datetime.fromtimestamp(MIDNIGHT_MS / 1000, UTC)
    assert frame.where("date = '2023-11-15'").agg(f.min("store_time")).first() == (
        midnight.replace(tzinfo=None) + (datetime(1, 1, 1, 0, 0, 20) - datetime(1, 1, 1)),
    )

    texts = frame.where("topic = 'T' and body is not null").orderBy("physical_offset").collect()
    assert [row.body for row in texts] == [f"grün {n}" for n in range(100)]
    assert {row.body_bytes for row in texts} == {None}
    others = frame.where("body is null").orderBy("physical_offset").collect()
    assert [row.body_bytes for row in others] == [b"\xff%d" % n for n in range(100, 120)]
    assert verified(spark, tmp_path) == []


def rows(frame: Any) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in frame.orderBy("physical_offset").collect()]


def test_topics_that_look_like_numbers_stay_apart(
    spark: SparkSession, sender: Sender, tmp_path: Path
) -> None:
    topics = ["007", "7", "1e3", "NaN", "2026-01-01", "-1"]
    for topic in topics:
        sender.send(2, topic)
    run(spark, tmp_path)
    frame = spark.read.parquet(str(tmp_path / "out"))
    assert frame.where("topic = '007'").count() == 2
    assert sorted(row.topic for row in frame.collect()) == sorted(topics * 2)
    assert sorted(row["topic_name"] for row in exported(tmp_path)) == sorted(topics * 2)
    assert verified(spark, tmp_path) == []

    # Former exports: the directory's name has the topic, without escapes.
    for path in sorted((tmp_path / "out").rglob("*.parquet")):
        table = pq.read_table(path, partitioning=None).drop_columns(["topic_name"])
        topic = path.parent.parent
        plain = topic.with_name(unquote(topic.name)) / path.parent.name / path.name
        plain.parent.mkdir(parents=True)
        replace_file(tmp_path / "out", path, table, plain)
        path.unlink()
    assert verified(spark, tmp_path) == []
    sender.send(2, "007")
    run(spark, tmp_path)
    assert verified(spark, tmp_path) == []
    frame = spark.read.parquet(str(tmp_path / "out"))
    assert frame.where("topic = '007'").count() == 4


def test_what_rocketmq_wrote_is_exported(spark: SparkSession, tmp_path: Path) -> None:
    unpack_golden(tmp_path / "broker-a")
    report = run(spark, tmp_path, topics=TopicChoice(pattern="*"))
    source = spark.read.format("rockoon").load(str(tmp_path / "broker-a")).collect()
    assert report.messages == len(source)
    assert [row["message_id"] for row in exported(tmp_path)] == [row.message_id for row in source]
    bodies = [row["body_bytes"] or (row["body"] or "").encode() for row in exported(tmp_path)]
    assert bodies == [row.body for row in source]
    assert verified(spark, tmp_path) == []


def test_each_run_goes_on_where_the_one_before_ended(
    spark: SparkSession, sender: Sender, tmp_path: Path
) -> None:
    sender.send(200)
    first = run(spark, tmp_path, sealed_only=True, section_bytes=5000)
    (manifest,) = manifests(ExportTarget.of(str(tmp_path / "out")))
    assert manifest.positions["broker-a"].end_offset == first.log_bytes == sender.sealed
    assert 0 < first.messages < 200
    assert numbers(tmp_path) == list(range(first.messages))
    nothing = run(spark, tmp_path, sealed_only=True)
    assert (nothing.messages, nothing.files, nothing.run) == (0, 0, 1)

    # The first run ends at the last message, within a file; the next run writes new files.
    second = run(spark, tmp_path, section_bytes=999)
    assert first.messages + second.messages == 200
    assert run(spark, tmp_path).messages == 0
    assert run(spark, tmp_path, sealed_only=True).messages == 0, "of a file that is read half"
    sender.send(100)
    third = run(spark, tmp_path)
    assert (third.messages, third.files) == (100, 1)
    assert numbers(tmp_path) == list(range(300))
    assert verify_export(spark, str(tmp_path / "out"), place_of(tmp_path))[0].compared == 300
    assert verified(spark, tmp_path) == []


def test_large_files_are_ended_and_more_partitions_than_files_can_be_open(
    spark: SparkSession, sender: Sender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender.send(300)
    report = run(spark, tmp_path, file_bytes=1, section_bytes=FILE_BYTES)
    assert report.files > 3
    assert numbers(tmp_path) == list(range(300))
    assert verified(spark, tmp_path) == []


def test_only_chosen_topics_are_exported_the_same_in_every_run(
    spark: SparkSession, sender: Sender, tmp_path: Path
) -> None:
    for topic in ("A1", "A2", "B1"):
        sender.send(10, topic)
    chosen = TopicChoice(pattern="A*")
    assert run(spark, tmp_path, topics=chosen).messages == 20
    assert {row["topic"] for row in exported(tmp_path)} == {"A1", "A2"}
    for other in (None, TopicChoice(frozenset({"A1"})), TopicChoice(pattern="*")):
        with pytest.raises(
            ExportError, match=r"has topics like A\*: each run must export the same topics"
        ):
            run(spark, tmp_path, topics=other)
    sender.send(10, "A3")
    assert run(spark, tmp_path, topics=chosen).messages == 10
    assert verified(spark, tmp_path) == []


def test_what_retention_deleted_before_it_was_exported_is_told(
    spark: SparkSession, sender: Sender, tmp_path: Path
) -> None:
    sender.send(10)
    run(spark, tmp_path)
    sender.send(290)
    first, second, *_ = list_log(str(tmp_path / "broker-a"))
    Path(first.uri).unlink()
    end = manifests(ExportTarget.of(str(tmp_path / "out")))[0].positions["broker-a"].end_offset
    lost = f"physical offsets {end} to {second.start} were deleted before they were exported"
    with pytest.raises(ExportError, match=lost):
        run(spark, tmp_path)
    assert numbers(tmp_path) == list(range(10))

    report = run(spark, tmp_path, fails_on_data_loss=False)
    gap = Gap("broker-a", end, second.start, "were deleted before they were exported")
    assert report.gaps == (gap,)
    assert manifests(ExportTarget.of(str(tmp_path / "out")))[1].gaps == (gap,)
    found = numbers(tmp_path)
    assert found == [*range(10), *range(found[10], 300)]
    assert found[10] > 10
    assert verified(spark, tmp_path) == []


def test_damage_is_refused_with_its_place_or_skipped_and_noted(
    spark: SparkSession, sender: Sender, tmp_path: Path
) -> None:
    sender.send(50)
    run(spark, tmp_path)
    before = exported(tmp_path)
    end = manifests(ExportTarget.of(str(tmp_path / "out")))[0].positions["broker-a"].end_offset
    sender.send(50)
    log = Path(list_log(str(tmp_path / "broker-a"))[0].uri)
    whole = log.read_bytes()
    size = (end - 0) // 50
    # At the start of the run, and within a body.
    places = {"hold no record": end + 4, "with a wrong checksum": end + 20 * size - 30}
    for fault, at in places.items():
        content = bytearray(whole)
        content[at] ^= 0xFF
        log.write_bytes(content)
        with pytest.raises(
            Exception, match=rf"physical offsets \d+ to \d+ .*{fault}; --skip-damage"
        ):
            run(spark, tmp_path)
        assert exported(tmp_path) == before
        assert ExportTarget.of(str(tmp_path / "out")).names("_staging") == []
    for at in places.values():
        content[at] = whole[at] ^ 0xFF
    log.write_bytes(content)
    report = run(spark, tmp_path, skips_damage=True)
    assert [gap.start <= at < gap.end for gap, at in zip(report.gaps, places.values(), strict=True)]
    assert report.messages == 48
    assert sorted(set(range(100)) - set(numbers(tmp_path)))[0] == 50
    assert verified(spark, tmp_path) == []


def test_a_target_that_has_another_logs_messages_is_refused(
    spark: SparkSession, sender: Sender, tmp_path: Path
) -> None:
    sender.send(50)
    run(spark, tmp_path)
    sender.owner.store.close()
    (tmp_path / "broker-a").rename(tmp_path / "former")
    other = Sender(tmp_path / "broker-a")
    # A shorter and a longer log.
    for count in (10, 100):
        other.send(count, body=lambda n: b"other %d" % n)
        with pytest.raises(ExportError, match="is not the one that was exported"):
            run(spark, tmp_path)
    assert "differs from the exported log" in verified(spark, tmp_path)[0]
    # A broker with another name has another log.
    place = StoreDirectory(str(tmp_path / "broker-a"), "broker-b")
    export(spark, place, str(tmp_path / "out"), sealed_only=False)
    assert Counter(row["broker"] for row in exported(tmp_path)) == {"broker-a": 50, "broker-b": 110}

    (tmp_path / "mine").mkdir()
    pq.write_table(pa.table({"a": [1]}), tmp_path / "mine" / "a.parquet")
    with pytest.raises(ExportTargetError, match="is not part of an export"):
        export(spark, place, str(tmp_path / "mine"), sealed_only=False)


class Killed(BaseException):
    """Raised where the driver is killed."""


def test_a_driver_that_dies_while_it_publishes_is_followed_by_a_run_that_ends_it(
    spark: SparkSession, sender: Sender, tmp_path: Path
) -> None:
    sender.send(100)
    run(spark, tmp_path, sealed_only=True)
    sender.send(100)
    target = ExportTarget.of(str(tmp_path / "out"))
    moved = []

    def die_in_the_middle(source: str, place: str) -> None:
        # `test_export_target` covers the other moments.
        if len(moved) == 2:
            raise Killed
        moved.append(place)
        target.move(source, place)

    with pytest.raises(Killed):
        run(spark, tmp_path, sealed_only=True, section_bytes=FILE_BYTES, move=die_in_the_middle)
    assert len(manifests(target)) == 1
    expected = run(spark, tmp_path)
    assert expected.run == 3, "the second one was ended first"
    assert numbers(tmp_path) == list(range(200))
    assert verified(spark, tmp_path) == []


def test_what_is_wrong_in_an_export_is_found(
    spark: SparkSession, sender: Sender, tmp_path: Path
) -> None:
    sender.send(100)
    run(spark, tmp_path)
    out = tmp_path / "out"
    (path, *_) = sorted(out.rglob("*.parquet"))
    content = path.read_bytes()

    path.write_bytes(content[:50] + bytes([content[50] ^ 1]) + content[51:])
    (problem,) = verified(spark, tmp_path)
    assert f"{path}: its checksum differs from the manifest" in problem
    path.write_bytes(content + b"!")
    (problem,) = verified(spark, tmp_path)
    assert f"{path} has {len(content) + 1} bytes, expected {len(content)}" in problem
    path.unlink()
    (problem,) = verified(spark, tmp_path)
    assert f"{path} is missing" in problem
    path.write_bytes(content)
    strange = path.parent / "copy.parquet"
    strange.write_bytes(content)
    (problem,) = verified(spark, tmp_path)
    assert f"{strange} is in no manifest" in problem
    strange.unlink()

    # Rows that differ from the log, in files that match their manifest.
    table = pq.read_table(path, partitioning=None)
    at = table.schema.get_field_index("queue_offset")
    changed = table.set_column(at, "queue_offset", pa.array([0, *range(table.num_rows - 1)]))
    for wrong, sentence in (
        (table.slice(0, 30), r"physical offset \d+ is in no file"),
        (pa.concat_tables([table.slice(0, 5), table.slice(6)]), r"physical offset \d+ is in no"),
        (pa.concat_tables([table.slice(0, 5), table.slice(4)]), r"offset \d+ is not in the log"),
        (changed, r"offset \d+ has another queue_offset than in the log"),
    ):
        replace_file(out, path, wrong)
        (problem,) = verified(spark, tmp_path)
        assert problem.startswith(f"{path.parent}: ")
        assert re.search(sentence, problem), problem


def replace_file(out: Path, path: Path, table: pa.Table, now: Path | None = None) -> None:
    """Replace a file, and its entry in the manifest."""
    now = now or path
    pq.write_table(table, now)
    (manifest,) = (out / "_manifest").iterdir()
    content = json.loads(manifest.read_text())
    for file in content["files"]:
        if file["path"] == str(path.relative_to(out)):
            file["path"] = str(now.relative_to(out))
            file["crc32"], file["bytes"] = zlib.crc32(now.read_bytes()), now.stat().st_size
    manifest.write_text(json.dumps(content))


def test_an_export_outlives_the_log_and_the_topics_that_it_is_of(
    spark: SparkSession, sender: Sender, tmp_path: Path
) -> None:
    sender.send(20, "GONE")
    sender.send(180)
    run(spark, tmp_path, section_bytes=5000)
    sender.owner.store.drop_topics("GONE")
    sender.send(10, "GONE")
    assert run(spark, tmp_path).messages == 10
    assert len(exported(tmp_path)) == 210
    report, problems = verify_export(spark, str(tmp_path / "out"), place_of(tmp_path))
    assert (report.messages, report.compared, problems) == (210, 190, [])
    # Only the part of the log that still exists is compared.
    first, *_ = list_log(str(tmp_path / "broker-a"))
    Path(first.uri).unlink()
    report, problems = verify_export(spark, str(tmp_path / "out"), place_of(tmp_path))
    assert problems == []
    assert 10 < report.compared < 190
    (tmp_path / "broker-a").rename(tmp_path / "away")
    assert verify_export(spark, str(tmp_path / "out"))[1] == []
