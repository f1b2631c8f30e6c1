"""Reads of store directories as DataFrames."""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from rockoon_broker.store.settings import Flush
from rockoon_format.batch import decode_columns
from rockoon_format.config_json import TopicConfig, TopicConfigs, write_topics
from rockoon_spark.files import StoreReadError
from rockoon_spark.records.columns import COLUMNS
from rockoon_spark.source.data_source import RockoonDataSource
from rockoon_spark.source.log_reader import LogReader
from rockoon_spark.source.option_table import OptionError
from rockoon_spark.source.options import DamagedLog, SourceOptions
from support import golden_store
from support.store_directory import NOW_MS, Owner, settings, unpack_golden


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four files of 16 KiB; message n of topic T0, T1, T2 is stored at NOW_MS + n seconds."""
    root = tmp_path_factory.mktemp("stores") / "broker-a"
    owner = Owner(settings(root, commit_log_file_bytes=16_384, flush=Flush.ASYNC))
    for n in range(60):
        owner.clock.time_ms = NOW_MS + 1000 * n
        tags = "TagA" if n % 2 else "TagB"
        owner.append(f"T{n % 3}", n % 2, [b"%d" % n + bytes(700)], tags=tags)
    owner.append("T9", 0, [b"gone"])
    owner.store.drop_topics("T9")
    owner.append("T9", 0, [b"anew"])
    owner.store.close()
    return root


def read(spark: SparkSession, path: Path, **options: object) -> DataFrame:
    return spark.read.format("rockoon").options(path=str(path), **options).load()


def numbers(frame: DataFrame) -> list[int]:
    rows = frame.where("topic != 'T9'").select(f.col("body").cast("string").alias("b")).collect()
    return sorted(int(row.b.rstrip("\0")) for row in rows)


def test_the_store_that_rocketmq_wrote_is_a_dataframe(spark: SparkSession, tmp_path: Path) -> None:
    unpack_golden(tmp_path)
    frame = read(spark, tmp_path, includeInternalTopics="true")
    assert frame.columns == list(COLUMNS)
    rows = frame.orderBy("physical_offset").collect()
    content = golden_store.files()[f"commitlog/{0:020d}"]
    ends = sorted(row.physical_offset + row.size for row in rows if row.physical_offset < 4096)
    expected = decode_columns(content[: ends[-1]])
    firsts = rows[: len(expected)]
    assert [row.body for row in firsts] == expected.bodies
    assert [row.properties for row in firsts] == expected.properties
    assert [row.tags for row in firsts] == expected.tags
    assert len(rows) > len(expected), "the second file"


def test_every_message_comes_once_however_the_log_is_split(
    spark: SparkSession, store: Path
) -> None:
    for split_bytes in (999, 16_384, 1 << 20):
        frame = read(spark, store, splitBytes=split_bytes, columns="topic,body")
        assert frame.columns == ["topic", "body"]
        assert numbers(frame) == list(range(60))
    assert {row.broker for row in read(spark, store).collect()} == {"broker-a"}


def test_messages_of_a_deleted_topic_are_not_read(spark: SparkSession, store: Path) -> None:
    assert [row.body for row in read(spark, store, topics="T9").collect()] == [b"anew"]


@pytest.fixture(params=["true", "false"])
def pushdown(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[None]:
    """Set whether the session offers conditions to data sources that accept them."""
    setting = "spark.sql.python.filterPushdown.enabled"
    before = spark.conf.get(setting)
    spark.conf.set(setting, request.param)
    yield
    spark.conf.set(setting, before)


@pytest.mark.usefixtures("pushdown")
def test_no_query_takes_rows_from_another_of_the_same_dataframe(
    spark: SparkSession, store: Path
) -> None:
    frame = read(spark, store, columns="topic,queue,queue_offset")
    assert frame.where("topic = 'nope'").count() == 0
    assert frame.count() == 61
    first, second = (frame.where(f"topic = '{topic}'") for topic in ("T1", "T2"))
    assert first.union(second).count() == 40
    assert first.join(second, ["queue", "queue_offset"]).count() == 20
    cached = second.cache()
    with ThreadPoolExecutor(3) as threads:
        counts = threads.map(lambda each: each.count(), [first, frame, cached, second, first])
        assert list(counts) == [20, 61, 20, 20, 20]
    cached.unpersist()
    frame.createOrReplaceTempView("messages")
    topics = "SELECT topic FROM messages WHERE queue = 0 AND queue_offset < 10"
    found = spark.sql(f"{topics} AND topic = 'T1' UNION ALL {topics} AND topic != 'T9'")
    assert sorted(row.topic for row in found.collect()) == [
        *["T0"] * 10,
        *["T1"] * 20,
        *["T2"] * 10,
    ]


def test_conditions_choose_among_what_options_leave(spark: SparkSession, store: Path) -> None:
    frame = read(spark, store, topics="T1,T2", tags="TagA", columns="topic,queue,store_time,body")
    assert numbers(frame) == [n for n in range(60) if n % 3 and n % 2]
    since = f.timestamp_millis(f.lit(NOW_MS + 50_000))
    assert numbers(frame.where((f.col("store_time") >= since) & (f.col("topic") != "T2"))) == [55]


def test_bounds_by_offset_and_time_are_options(spark: SparkSession, store: Path) -> None:
    starts, ends = json.dumps({"T1": {"1": 8}}), json.dumps({"T1": {"0": 1}})
    frame = read(spark, store, topics="T1", startingOffsets=starts, endingOffsets=ends)
    assert numbers(frame) == [4, 49, 55]
    frame = read(
        spark, store, startingTimestamp=NOW_MS + 3000, endingTimestamp="2023-11-14T22:13:26Z"
    )
    assert numbers(frame) == [3, 4, 5]
    assert numbers(read(spark, store, topicPattern="T[12]")) == [n for n in range(60) if n % 3]
    starts, ends = json.dumps({"T1": {"1": -2}}), json.dumps({"T1": {"1": -1}})
    frame = read(spark, store, topics="T1", startingOffsets=starts, endingOffsets=ends)
    assert numbers(frame) == list(range(1, 60, 3))
    frame = read(spark, store, topic="T1", startingOffsets="earliest", endingOffsets="latest")
    assert numbers(frame) == list(range(1, 60, 3))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"columns": "topic,nonsense"}, "nonsense: choose from topic"),
        ({"onDamage": "ignore"}, "neither fail nor skip"),
        ({"startingOffsets": "17"}, "is invalid, expected for example"),
        ({"endingTimestamp": "yesterday"}, "neither epoch milliseconds nor ISO 8601"),
        ({"splitBytes": "0"}, "not an integer of 1 or more"),
        ({"tpoics": "T1"}, "unknown options of batch reads: tpoics; did you mean 'topics'"),
        ({"topics": " , "}, "option topics: names no topic"),
        ({"tags": ""}, "option tags: names no tag"),
        ({"brokers": "broker-a"}, "option brokers cannot be used with a store directory"),
        ({"path": "/nowhere/store"}, "is this a store directory"),
        ({"path": "floppy://a/store"}, "floppy://a/store.* is in no file system"),
        (
            {"startingOffsets": "latest"},
            "latest would exclude all messages of a batch read; earliest sets no bound",
        ),
        (
            {"endingOffsets": '{"T1": {"0": -2}}'},
            "would exclude all messages of a batch read; latest sets no bound",
        ),
        ({"endingOffsets": '{"T1": {"0": -7}}'}, "-7 is not an offset"),
        ({"compacted": "yes"}, "neither true nor false"),
        ({"startingTimestamp": "1700000000"}, "1700000000000 are the milliseconds of these"),
        ({"endingTimestamp": "1700000000"}, "epoch milliseconds, which have 11 to 13 digits"),
        ({"endingTimestamp": "1700000000000000"}, "11 to 13 digits"),
        ({"startingTimestamp": "-5"}, "11 to 13 digits"),
        ({"startingOffsets": '{"T7": {"0": 1}}'}, "startingOffsets: topic 'T7' has no queue '0'"),
        ({"startingOffsets": '{"T1": {"7": -2}}'}, "startingOffsets: topic 'T1' has no queue '7'"),
        ({"endingOffsets": '{"T1": {"7": -1}}'}, "endingOffsets: topic 'T1' has no queue '7'"),
        ({"endingOffsets": '{"T1": {"-1": 5}}'}, "option endingOffsets: .* is invalid"),
        (
            {"topics": "T1", "startingOffsets": '{"T2": {"0": 1}}'},
            "topic 'T2' is not among the topics that are read",
        ),
        (
            {"startingOffsets": '{"T1": {"broker-x:0": 1}}'},
            "broker 'broker-x' is not among the brokers that are read",
        ),
        ({"startingOffsets": '{"T1": {"0": 1.5}}'}, "is invalid, expected for example"),
        ({"startingOffsets": '{"T1": {"0": true}}'}, "is invalid, expected for example"),
    ],
)
def test_an_option_that_cannot_be_used_is_refused_with_a_sentence(
    store: Path, options: dict[str, str], sentence: str
) -> None:
    source = RockoonDataSource({"path": str(store), **options})
    with pytest.raises((OptionError, StoreReadError), match=sentence):
        source.reader(source.schema()).partitions()


def test_a_queue_without_messages_exists_by_the_topic_file_of_the_store(
    store: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "broker-a"
    shutil.copytree(store, copy)
    starts = {"startingOffsets": '{"T1": {"3": 0, "broker-a:0": 1}}'}

    def plan() -> None:
        source = RockoonDataSource({"path": str(copy), **starts})
        source.reader(source.schema()).partitions()

    with pytest.raises(OptionError, match="has no queue '3'"):
        plan()
    (copy / "config").mkdir(exist_ok=True)
    topics = {"T1": TopicConfig(topic="T1", read_queues=4, write_queues=4)}
    (copy / "config" / "topics.json").write_bytes(write_topics(TopicConfigs(topics)))
    plan()
    # A copy of the CommitLog alone does not contain the names of the queues.
    shutil.rmtree(copy / "config")
    shutil.rmtree(copy / "consumequeue")
    plan()


def test_damage_fails_the_read_with_its_place_or_is_skipped(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "damaged"
    (copy / "commitlog").mkdir(parents=True)
    for file in (store / "commitlog").iterdir():
        (copy / "commitlog" / file.name).write_bytes(file.read_bytes())
    place = read(spark, store).where("topic = 'T1'").orderBy("physical_offset").collect()[3]
    at = place.physical_offset
    with (copy / "commitlog" / f"{at - at % 16_384:020d}").open("r+b") as log:
        log.seek(at % 16_384 + 4)
        log.write(b"oops")
    with pytest.raises(PySparkException, match=f"physical offsets {at} to {at + place.size} hold"):
        read(spark, copy).collect()
    left = numbers(read(spark, copy, onDamage="skip"))
    assert left == [n for n in range(60) if n != 10]


def test_a_message_whose_tag_is_damaged_is_told_by_a_read_of_any_tag(
    store: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "damaged"
    shutil.copytree(store / "commitlog", copy / "commitlog")
    file = sorted((copy / "commitlog").iterdir())[0]
    content = file.read_bytes()
    file.write_bytes(content.replace(b"TagA", b"Tagg", 1))

    def read(**options: str) -> int:
        source = RockoonDataSource({"path": str(copy), "columns": "queue_offset", **options})
        reader = source.reader(source.schema())
        return sum(batch.num_rows for each in reader.partitions() for batch in reader.read(each))

    with pytest.raises(DamagedLog, match="checksum"):
        read(tags="TagA")
    assert read(tags="TagA", onDamage="skip") == 31
    # A read of the topic alone reads no other file.
    assert read(tags="TagB", topics="T0") == 10


def test_a_store_at_a_uri_is_read_like_one_at_a_path(spark: SparkSession, store: Path) -> None:
    frame = spark.read.format("rockoon").load(f"file://{store}")
    assert numbers(frame) == list(range(60))
    assert frame.where("topic = 'T9'").collect()[0].body == b"anew"
    assert {row.broker for row in frame.select("broker").distinct().collect()} == {"broker-a"}


def test_options_on_time_and_topic_leave_out_what_cannot_be_wanted(store: Path) -> None:
    def tasks(**options: object) -> int:
        given = {"path": str(store), "splitBytes": "4096", **options}
        source = RockoonDataSource({name: str(value) for name, value in given.items()})
        return len(source.reader(source.schema()).partitions())

    assert tasks(startingTimestamp=NOW_MS + 58_000) < tasks() / 2
    assert tasks(endingTimestamp=NOW_MS - 10_000) == 0
    assert tasks(startingTimestamp=NOW_MS, endingTimestamp=NOW_MS) == 0


def test_a_worker_that_is_killed_while_it_reads_is_replaced(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    marker = tmp_path / "killed"

    # Spark's workers receive these functions by value.
    class DyingReader(LogReader):
        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            for batch in super().read(partition):
                yield batch
                if not marker.exists():
                    marker.touch()
                    os.kill(os.getpid(), signal.SIGKILL)

    class DyingSource(RockoonDataSource):
        @classmethod
        def name(cls) -> str:
            return "dying"

        def reader(self, schema: StructType) -> LogReader:
            del schema
            return DyingReader(SourceOptions.parse(self.options))

    spark.dataSource.register(DyingSource)
    frame = spark.read.format("dying").options(path=str(store), splitBytes=10_000).load()
    assert numbers(frame) == list(range(60))
    assert marker.exists()
