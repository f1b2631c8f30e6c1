"""A log with copies, read by Spark while its leader changes."""

import random
from collections import Counter
from collections.abc import Iterable, Iterator

import pytest
from pyspark.sql import SparkSession
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
from support.waiting import wait_until

LOG = "broker-a"
Row = tuple[int, int, bytes]
# Some pieces of a log that is not long.
SPLIT_BYTES = 20_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    settings = {"broker": {"commit_log_file_bytes": 1 << 20}}
    with LocalCluster(brokers=1, replicas=3, settings=settings) as running:
        yield running


def leader_of(connection: Cluster) -> str:
    """Name of the replica that leads; empty while none does."""
    log = connection.call(connection.asyncio.admin.logs.describe(LOG))
    return log.leader.name if log.leader is not None and log.confirmed else ""


def change_leader(cluster: LocalCluster, connection: Cluster, *, killed: bool) -> str:
    """Have another replica lead; returns the name of the one before, which is down."""
    former = leader_of(connection)
    (cluster.kill if killed else cluster.stop)(former)
    wait_until(lambda: leader_of(connection) not in ("", former), "another leader")
    return former


def check(rows: Iterable[Row], acknowledged: int, begun: int) -> None:
    """All that was acknowledged before is there, each place once, and nothing that was not sent."""
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
            # Planned with one leader; when tasks ask it, it is there and leads no more.
            acknowledged = sending.acknowledged
            planned = LiveCluster(endpoint).partitions(EVERYTHING, SPLIT_BYTES)
            begun = sending.begun
            cluster.start(change_leader(cluster, connection, killed=killed))
            check(rows_of(planned, topic), acknowledged, begun)
            assert len(planned) > 1
            acknowledged = sending.acknowledged
            check(read(), acknowledged, sending.begun)
            # The last of three.
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
            # Whether or not this one has got the generation by now.
            assert topic.newest.items() <= topic.read(last=True).items()
            cluster.start(former)


def rows_of(partitions: Iterable[LogPartition], topic: str) -> list[Row]:
    """What tasks of Spark read, of one topic."""
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
