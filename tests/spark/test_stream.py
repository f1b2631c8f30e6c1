"""Spark streams from a cluster and to a cluster."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from rockoon.sync import Cluster
from rockoon.testing.disposable import DisposableCluster
from rockoon_spark.records.columns import COLUMNS
from rockoon_spark.stream.listener import BatchEnds
from support.spark_processes import BRIEF_JAVA, BRIEF_PYTHON, patiently
from support.waiting import wait_until
from support.whole_topics import every_message


@pytest.fixture(scope="module")
def connection(cluster: DisposableCluster) -> Iterator[Cluster]:
    with cluster.connect() as connected:
        yield connected


def stream(spark: SparkSession, cluster: DisposableCluster, **options: object) -> DataFrame:
    chosen = {"endpoint": ",".join(cluster.nameservers), "startingOffsets": "earliest", **options}
    return spark.readStream.format("rockoon").options(**chosen).load()


def numbers(first: int, behind: int) -> list[bytes]:
    return [b"%d" % n for n in range(first, behind)]


def lag(connection: Cluster, group: str) -> int:
    return int(connection.call(connection.admin.lag(group)).total_lag)


class Kept:
    """An idempotent sink: it keeps each batch once.

    Attributes:
        batches: numbers of each batch, by batch id.
        failing: id of a batch that fails.
    """

    def __init__(self, checkpoint: Path) -> None:
        self.batches: dict[int, list[int]] = {}
        self.failing: int | None = None
        self._checkpoint = checkpoint

    def take(self, frame: DataFrame, batch: int) -> None:
        rows = sorted(int(row.body) for row in frame.select("body").collect())
        assert self.batches.setdefault(batch, rows) == rows
        if batch == self.failing:
            raise RuntimeError("the sink fails")

    def run(self, frame: DataFrame) -> None:
        """Run the stream over all messages that exist now."""
        writer = frame.writeStream.foreachBatch(self.take).trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(self._checkpoint))
        patiently(lambda: writer.start().awaitTermination())

    @property
    def rows(self) -> list[int]:
        return sorted(number for batch in self.batches.values() for number in batch)


def test_runs_over_what_is_available_go_on_from_one_another_and_the_group_has_no_lag(
    spark: SparkSession, cluster: DisposableCluster, connection: Cluster, tmp_path: Path
) -> None:
    topic = cluster.new_topic("available")
    group = f"{topic}-job"
    connection.send_many(topic, numbers(0, 1000))
    kept = Kept(tmp_path)
    options = {"topics": topic, "consumerGroup": group, "maxOffsetsPerTrigger": 400}
    kept.run(stream(spark, cluster, **options))
    assert [len(batch) for batch in kept.batches.values()] == [400, 400, 200]
    # Also the last batch, for which Spark does not call `commit`.
    assert lag(connection, group) == 0
    connection.send_many(topic, numbers(1000, 1010))
    assert lag(connection, group) == 10
    kept.run(stream(spark, cluster, topics=topic, consumerGroup=group, maxBytesPerTrigger=1100))
    assert kept.rows == list(range(1010))
    assert len(kept.batches) > 4
    assert lag(connection, group) == 0


def test_a_batch_counts_when_it_ends_if_a_listener_is_told(
    spark: SparkSession, cluster: DisposableCluster, connection: Cluster, tmp_path: Path
) -> None:
    topic = cluster.new_topic("listened")
    group = f"{topic}-job"
    connection.send_many(topic, numbers(0, 100))
    listener = BatchEnds(cluster.nameservers[0])
    spark.streams.addListener(listener)
    writer = stream(spark, cluster, topics=topic, consumerGroup=group).writeStream.format("noop")
    writer = writer.option("checkpointLocation", str(tmp_path)).trigger(processingTime="1 hour")

    def first_batch() -> StreamingQuery:
        query = writer.start()
        while not query.lastProgress:
            query.awaitTermination(1)
        return query

    query = patiently(first_batch)
    try:
        # Spark's next trigger is in an hour.
        wait_until(lambda: not lag(connection, group), "the commit of a batch")
    finally:
        query.stop()
        spark.streams.removeListener(listener)
        listener.close()


def test_a_batch_that_failed_comes_again_as_it_was_and_is_not_committed_before(
    spark: SparkSession, cluster: DisposableCluster, connection: Cluster, tmp_path: Path
) -> None:
    topic = cluster.new_topic("fails")
    group = f"{topic}-job"
    connection.send_many(topic, numbers(0, 100))
    kept = Kept(tmp_path)
    kept.failing = 0
    with pytest.raises(PySparkException, match="the sink fails"):
        kept.run(stream(spark, cluster, topics=topic, consumerGroup=group))
    assert lag(connection, group) == 100
    connection.send_many(topic, numbers(100, 150))
    kept.failing = None
    # Other options do not change this.
    kept.run(stream(spark, cluster, topics=topic, consumerGroup=group, startingOffsets="latest"))
    assert kept.batches == {0: list(range(100)), 1: list(range(100, 150))}
    assert lag(connection, group) == 0


def test_a_stream_has_the_rows_of_a_batch_read(
    spark: SparkSession, cluster: DisposableCluster, connection: Cluster, tmp_path: Path
) -> None:
    topic = cluster.new_topic("rows")
    connection.send_many(topic, numbers(0, 50), tags="TagA")
    found = []
    frame = stream(spark, cluster, topics=topic, minPartitions=8)
    assert frame.columns == list(COLUMNS)
    writer = frame.writeStream.foreachBatch(lambda batch, _: found.extend(batch.collect()))
    writer = writer.trigger(availableNow=True).option("checkpointLocation", str(tmp_path))
    patiently(lambda: writer.start().awaitTermination())
    same = spark.read.format("rockoon").options(endpoint=cluster.nameservers[0], topics=topic)
    order = ("broker", "queue", "queue_offset")

    def place(row: object) -> tuple[object, ...]:
        return tuple(getattr(row, name) for name in order)

    assert sorted(found, key=place) == sorted(same.load().collect(), key=place)


def test_what_is_sent_while_a_stream_runs_comes_out_of_its_sink(
    spark: SparkSession, cluster: DisposableCluster, connection: Cluster, tmp_path: Path
) -> None:
    source, target = cluster.new_topic("source"), cluster.new_topic("target")
    rows = stream(spark, cluster, topics=source).selectExpr(
        "body", "cast(body as string) as keys", "upper(tags) as tags"
    )
    writer = (
        rows.writeStream.format("rockoon")
        .options(endpoint=cluster.nameservers[0], topic=target)
        .option("checkpointLocation", str(tmp_path))
    )

    def begin() -> StreamingQuery:
        query = writer.start()
        query.processAllAvailable()
        return query

    query = patiently(begin)
    try:
        for tag, first in (("a", 0), ("b", 50)):
            connection.send_many(source, numbers(first, first + 50), tags=tag)
            query.processAllAvailable()
    finally:
        query.stop()
    messages = every_message(connection, target)
    found = {message.body: (message.keys, message.tags) for message in messages}
    assert len(found) == len(messages) == 100
    assert found[b"7"] == (["7"], "A")
    assert found[b"70"] == (["70"], "B")


def test_a_batch_of_a_sink_that_failed_is_sent_again(
    spark: SparkSession, cluster: DisposableCluster, connection: Cluster, tmp_path: Path
) -> None:
    source, target = cluster.new_topic("source"), cluster.new_topic("target")
    connection.send_many(source, numbers(0, 20))

    def run(topic: str) -> None:
        rows = stream(spark, cluster, topics=source, columns="body").selectExpr(
            "body", f"if(body = '13', '{topic}', '{target}') as topic"
        )
        writer = rows.writeStream.format("rockoon").trigger(availableNow=True)
        writer = writer.options(endpoint=cluster.nameservers[0])
        writer = writer.option("checkpointLocation", str(tmp_path))
        patiently(lambda: writer.start().awaitTermination())

    with pytest.raises(PySparkException, match="topic 'nowhere' does not exist"):
        run("nowhere")
    run(target)
    bodies = [int(message.body) for message in every_message(connection, target)]
    # At least once: the messages before the failure are sent again.
    assert set(bodies) == set(range(20))
    assert bodies.count(13) == 1


def test_a_wrong_option_ends_the_query_with_its_sentence(
    spark: SparkSession, tmp_path: Path
) -> None:
    options = {"endpoint": "127.0.0.1:1", "topics": "T", "startingTimestamp": "1700000000"}
    rows = spark.readStream.format("rockoon").options(**options).load()
    writer = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    with pytest.raises(PySparkException, match="1700000000000 are the milliseconds of these"):
        writer.trigger(availableNow=True).start().awaitTermination()


def test_only_new_rows_can_be_sent(
    spark: SparkSession, cluster: DisposableCluster, tmp_path: Path
) -> None:
    counts = stream(spark, cluster, topics=cluster.new_topic("counted")).groupBy("tags").count()
    rows = counts.selectExpr("cast(count as string) as body")
    writer = rows.writeStream.format("rockoon").outputMode("complete")
    writer = writer.options(endpoint=cluster.nameservers[0], topic="T")
    with pytest.raises(PySparkException, match="use outputMode"):
        writer.option("checkpointLocation", str(tmp_path)).start().awaitTermination()


@pytest.mark.soak
def test_a_driver_that_is_killed_in_a_batch_is_followed_by_one_that_reads_it_again(
    spark: SparkSession, cluster: DisposableCluster, connection: Cluster, tmp_path: Path
) -> None:
    topic = cluster.new_topic("killed")
    group = f"{topic}-job"
    connection.send_many(topic, numbers(0, 350))
    script = Path(__file__).with_name("streaming_driver.py")
    driver = subprocess.Popen(
        [sys.executable, script, cluster.nameservers[0], topic, group, tmp_path, "1"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "JDK_JAVA_OPTIONS": BRIEF_JAVA, "PYTHONPATH": BRIEF_PYTHON},
        start_new_session=True,
    )
    assert driver.stdout is not None
    try:
        said = [driver.stdout.readline() for _ in range(2)]
    finally:
        # The driver is killed with its JVM and all workers.
        os.killpg(driver.pid, signal.SIGKILL)
        driver.communicate()
    assert said == ["batch 0\n", "batch 1\n"]
    assert [path.name for path in tmp_path.glob("*.batch")] == ["0.batch"]
    # The first batch was finished, but not the second.
    assert lag(connection, group) == 250
    connection.send_many(topic, numbers(350, 400))
    kept = Kept(tmp_path / "checkpoint")
    kept.run(stream(spark, cluster, topics=topic, consumerGroup=group))
    assert len(kept.batches[1]) == 100
    written = [int(line) for line in (tmp_path / "0.batch").read_text().split()]
    assert sorted(written + kept.rows) == list(range(400))
    assert lag(connection, group) == 0
