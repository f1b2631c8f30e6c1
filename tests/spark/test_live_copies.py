"""Spark's reads of a log with copies whose leader changes."""

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from spark.test_compact_cluster import Topic

import rockoon.sync
from rockoon.local.cluster import LocalCluster
from rockoon.sync import Cluster
from rockoon_spark.compaction.broker_target import broker_targets
from rockoon_spark.jobs.compact import compact
from rockoon_spark.records.columns import LogRecords, to_batch
from rockoon_spark.records.selection import EVERYTHING
from rockoon_spark.source.live_cluster import LiveCluster
from rockoon_spark.source.log_source import LogPartition
from support.endless_sending import Sending
from support.spark_processes import patiently
from support.waiting import wait_until

LOG = "broker-a"
Row = tuple[int, int, bytes]
# Several splits, although the log is short.
SPLIT_BYTES = 20_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    settings = {"broker": {"commit_log_file_bytes": 1 << 20}}
    with LocalCluster(brokers=1, replicas=3, settings=settings) as running:
        yield running


def leader_of(connection: Cluster) -> str:
    """Return the name of the replica that leads; empty while there is no leader."""
    log = connection.call(connection.asyncio.admin.logs.describe(LOG))
    return log.leader.name if log.leader is not None and log.confirmed else ""


def change_leader(cluster: LocalCluster, connection: Cluster, *, killed: bool) -> str:
    """Make another replica the leader; return the name of the former leader, which is down."""
    former = leader_of(connection)
    (cluster.kill if killed else cluster.stop)(former)
    wait_until(lambda: leader_of(connection) not in ("", former), "another leader")
    return former


def check(rows: Iterable[Row], acknowledged: int, begun: int) -> None:
    """Check that each acknowledged message was read, each position once, and no other message."""
    places = Counter((queue, offset) for queue, offset, _ in rows)
    assert set(places.values()) == {1}
    numbers = {int(body) for _, _, body in rows}
    assert set(range(acknowledged)) <= numbers <= set(range(begun))


@pytest.mark.soak
@pytest.mark.parametrize("killed", [True, False], ids=["killed", "handed over"])
def test_every_message_is_read_once_whoever_leads_by_then(
    spark: SparkSession, cluster: LocalCluster, killed: bool
) -> None:
    endpoint = ",".join(cluster.nameservers)
    with rockoon.sync.connect(cluster.nameservers) as connection:
        topic = "killed" if killed else "handed-over"
        connection.call(connection.asyncio.admin.create_topic(topic, queues_per_broker=2))

        def read() -> list[Row]:
            options = {"endpoint": endpoint, "topics": topic, "splitBytes": SPLIT_BYTES}
            frame = spark.read.format("rockoon").options(**options).load()
            return [(row.queue, row.queue_offset, row.body) for row in frame.collect()]

        with Sending(connection, topic) as sending:
            # The read is planned with one leader; when the tasks run, it is a follower.
            acknowledged = sending.acknowledged
            planned = LiveCluster(endpoint).partitions(EVERYTHING, SPLIT_BYTES)
            begun = sending.begun
            cluster.start(change_leader(cluster, connection, killed=killed))
            check(rows_of(planned, topic), acknowledged, begun)
            assert len(planned) > 1
            acknowledged = sending.acknowledged
            check(read(), acknowledged, sending.begun)
            # The last leader of three.
            former = change_leader(cluster, connection, killed=killed)
            acknowledged = sending.acknowledged
            check(read(), acknowledged, sending.begun)
            cluster.start(former)


@pytest.mark.soak
def test_a_topic_is_compacted_whoever_leads_by_then(
    spark: SparkSession, cluster: LocalCluster
) -> None:
    endpoint, choose = ",".join(cluster.nameservers), random.Random(5)
    with rockoon.sync.connect(cluster.nameservers) as connection:
        topic = Topic(connection)
        for _ in range(3):
            topic.send(choose, 300)
            (place,) = broker_targets(endpoint)
            assert compact(spark, place, split_bytes=SPLIT_BYTES).is_new
            assert topic.read() == topic.newest
            former = change_leader(cluster, connection, killed=True)
            topic.send(choose, 10)
            # The replica may not have the generation yet.
            assert topic.newest.items() <= topic.read(last=True).items()
            cluster.start(former)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_stream_and_a_read_have_exactly_what_was_acknowledged(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    """The leader of the log is killed while the stream runs, and the next leader hands over: no
    message is missing, and none is read twice."""
    endpoint, topic = ",".join(cluster.nameservers), "streamed"
    got: dict[int, list[int]] = {}

    def take(frame: DataFrame, batch: int) -> None:
        rows = sorted(int(row.body) for row in frame.select("body").collect())
        # A batch that failed is repeated with the same messages.
        assert got.setdefault(batch, rows) == rows

    with rockoon.sync.connect(cluster.nameservers, idempotent=True) as connection:
        connection.call(connection.asyncio.admin.create_topic(topic, queues_per_broker=2))
        options = {"endpoint": endpoint, "topics": topic}
        stream = spark.readStream.format("rockoon").options(
            **options, startingOffsets="earliest", maxOffsetsPerTrigger=100, consumerGroup="job"
        )
        writer = stream.load().writeStream.foreachBatch(take)
        writer = writer.option("checkpointLocation", str(tmp_path))

        def begin() -> StreamingQuery:
            query = writer.start()
            while not got:
                query.awaitTermination(0.2)
            return query

        with Sending(connection, topic) as sending:
            query = patiently(begin)
            for killed in (True, False):
                seen, before = len(got), sending.acknowledged
                former = change_leader(cluster, connection, killed=killed)
                wait_until(lambda before=before: sending.acknowledged > before + 50, "a new leader")
                wait_until(lambda seen=seen: len(got) > seen + 1, "batches of the new leader")
                cluster.start(former)
        query.processAllAvailable()
        query.stop()
        sent = list(range(sending.acknowledged))
        assert sorted(number for rows in got.values() for number in rows) == sent
        frame = spark.read.format("rockoon").options(**options, splitBytes=SPLIT_BYTES).load()
        assert sorted(int(row.body) for row in frame.select("body").collect()) == sent
        assert connection.call(connection.admin.lag("job")).total_lag == 0


def rows_of(partitions: Iterable[LogPartition], topic: str) -> list[Row]:
    """Return the messages of a topic that Spark's tasks read."""
    names = ["topic", "queue", "queue_offset", "body"]
    found: list[Row] = []
    for partition in partitions:
        for records in partition.read():
            assert isinstance(records, LogRecords)
            found += [
                (row["queue"], row["queue_offset"], row["body"])
                for row in to_batch(records, names).to_pylist()
                if row["topic"] == topic
            ]
    return found
