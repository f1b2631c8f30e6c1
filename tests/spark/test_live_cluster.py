"""A cluster that runs, as a DataFrame."""

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from rockoon.sync import Cluster
from rockoon.testing.disposable import DisposableCluster
from rockoon_spark.records.columns import LogRecords
from rockoon_spark.records.selection import EVERYTHING, Range
from rockoon_spark.source.live_cluster import BrokerPartition, LiveCluster
from rockoon_spark.source.log_source import DamagedRange
from support.endless_sending import Sending


@pytest.fixture(scope="module")
def connection(cluster: DisposableCluster) -> Iterator[Cluster]:
    with cluster.connect() as connected:
        yield connected


def read(spark: SparkSession, cluster: DisposableCluster, **options: object) -> DataFrame:
    chosen = {"endpoint": ",".join(cluster.nameservers), **options}
    return spark.read.format("rockoon").options(**chosen).load()


def test_what_was_acknowledged_before_a_read_is_in_it_once_while_more_is_sent(
    spark: SparkSession, cluster: DisposableCluster, connection: Cluster
) -> None:
    topic = cluster.new_topic("numbers")
    other = cluster.new_topic("other")
    connection.send_many(other, [b"%d" % n for n in range(100)])
    with Sending(connection, topic) as sending:
        for split_bytes in (100_000, 64 << 20):
            acknowledged = sending.acknowledged
            rows = read(spark, cluster, topics=topic, splitBytes=split_bytes).collect()
            begun = sending.begun
            numbers = Counter(int(row.body) for row in rows)
            assert set(numbers.values()) == {1}
            assert set(range(acknowledged)) <= set(numbers) <= set(range(begun))
            assert {row.broker for row in rows} == {"broker-a", "broker-b"}
    rows = read(spark, cluster).where(f"topic = '{other}'").collect()
    assert sorted(int(row.body) for row in rows) == list(range(100))
    assert all(row.store_host and row.unique_key for row in rows)


def test_queues_are_bounded_on_one_broker_or_on_all(
    spark: SparkSession, cluster: DisposableCluster, connection: Cluster
) -> None:
    topic = cluster.new_topic("bounds", queues_per_broker=1)
    for queue in connection.queues(topic):
        connection.send_many(topic, [b"%d" % n for n in range(10)], queue=queue)

    def found(**options: Any) -> dict[str, list[int]]:
        by_broker: dict[str, list[int]] = {"broker-a": [], "broker-b": []}
        for row in read(spark, cluster, topics=topic, columns="broker,body", **options).collect():
            by_broker[row.broker].append(int(row.body))
        return by_broker

    starts = json.dumps({topic: {"0": 6, "broker-b:0": 8}})
    ends = json.dumps({topic: {"broker-a:0": 7}})
    assert found(startingOffsets=starts, endingOffsets=ends) == {
        "broker-a": [6],
        "broker-b": [8, 9],
    }


def test_a_broker_that_was_killed_is_named(
    spark: SparkSession, cluster: DisposableCluster, connection: Cluster
) -> None:
    topic = cluster.new_topic("away", queues_per_broker=1)
    for queue in connection.queues(topic):
        connection.send(topic, queue.broker.encode(), queue=queue)
    cluster.kill("broker-b")
    try:
        with pytest.raises(PySparkException, match=r"broker 'broker-b' .* cannot be read: .*=skip"):
            read(spark, cluster, topics=topic).collect()
        rows = read(spark, cluster, topics=topic, onBrokerAway="skip").collect()
        assert [row.body for row in rows] == [b"broker-a"]
        # Nobody asks it for what it cannot have.
        rows = read(spark, cluster, topics=topic, brokers="broker-a").collect()
        assert [row.body for row in rows] == [b"broker-a"]
    finally:
        cluster.start_stopped()
    assert read(spark, cluster, topics=topic).count() == 2


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"path": "/store"}, "set either option path"),
        ({"broker": "broker-a"}, "option broker cannot be used with a live cluster"),
        ({"onBrokerAway": "wait"}, "neither fail nor skip"),
        ({"endpoint": "nowhere"}, "not of the form host:port"),
        ({"topics": "nowhere"}, "option topics: topic 'nowhere' does not exist"),
        ({"brokers": "broker-a,broker-x"}, "has no broker 'broker-x'"),
    ],
)
def test_an_option_that_does_not_fit_a_cluster_is_refused(
    spark: SparkSession, cluster: DisposableCluster, options: dict[str, str], sentence: str
) -> None:
    with pytest.raises(PySparkException, match=sentence):
        read(spark, cluster, **options).collect()


def test_a_dataframe_stays_at_its_first_action_and_a_new_one_sees_what_came_since(
    spark: SparkSession, cluster: DisposableCluster, connection: Cluster
) -> None:
    topic = cluster.new_topic("moments")
    connection.send_many(topic, [b"%d" % n for n in range(5)])
    frame = read(spark, cluster, topics=topic, columns="topic,body")
    assert frame.where("topic = 'nowhere'").count() == 0
    connection.send_many(topic, [b"%d" % n for n in range(5, 10)])
    joined = frame.alias("a").join(frame.alias("b"), "body")
    assert (frame.count(), frame.where(f"topic = '{topic}'").count(), joined.count()) == (5, 5, 5)
    assert read(spark, cluster, topics=topic, columns="topic,body").count() == 10


# Without Spark: what its tasks do.


def records_of(partition: BrokerPartition) -> list[LogRecords]:
    found = []
    for each in partition.read():
        assert not isinstance(each, DamagedRange)
        found.append(each)
    return found


def test_partitions_of_another_time_are_left_out(
    cluster: DisposableCluster, connection: Cluster
) -> None:
    topic = cluster.new_topic("times")
    for n in range(100):
        connection.send(topic, b"%d" % n)
    place = LiveCluster(cluster.nameservers[0])
    partitions = place.partitions(EVERYTHING, 500)
    times = [
        int(ms) * 1000
        for partition in partitions
        for records in records_of(partition)
        for ms in records.store_timestamps_ms
    ]
    middle = sorted(times)[len(times) // 2]
    wanted = EVERYTHING.ranged("store_time", Range(middle - 2000, middle + 2000))
    fewer = place.partitions(wanted, 500)
    assert len(fewer) < len(partitions) / 2
    kept = [
        time_us
        for partition in fewer
        for records in records_of(partition)
        for time_us in (records.store_timestamps_ms * 1000)[wanted.mask(records)].tolist()
    ]
    assert sorted(kept) == sorted(each for each in times if abs(each - middle) <= 2000)
