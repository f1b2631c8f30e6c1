"""A key with `read` on one topic reads the rows of this topic, or a read is refused."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from rockoon.admin.access_keys import Permission
from rockoon.arrow import scan
from rockoon.errors import NotAuthenticated, RockoonError
from rockoon.net.access import AccessKey
from rockoon.testing.disposable import DisposableCluster
from rockoon_spark.endpoint import ClusterEndpoint
from rockoon_spark.export.rows import TopicChoice
from rockoon_spark.jobs.export import export
from rockoon_spark.source.live_cluster import LiveCluster
from support.spark_processes import patiently
from support.waiting import wait_until

AWAY = ("fail", "skip")
ORDERS, OTHER, KEY = "orders", "other", "reader"
ON_CLUSTER = "no admin permission on cluster"
# The nameserver hides topics from a key without a permission on them.
HIDDEN = f"topic '{OTHER}' does not exist"
REFUSED = [([OTHER], HIDDEN), ([ORDERS, OTHER], HIDDEN), ([], ON_CLUSTER)]


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[str, AccessKey]]:
    """Nameservers of a cluster with two topics, and a key with `read` on the first topic."""
    with DisposableCluster(access=True) as cluster, cluster.connect() as root:
        for topic in (ORDERS, OTHER):
            root.call(root.admin.create_topic(topic, queues_per_broker=2))
            root.send_many(topic, [f"{topic} {n}".encode() for n in range(20)])
        allowed = [Permission.parse(f"topic:{ORDERS}=read")]
        key = root.call(root.admin.access_keys.create(KEY, allowed))

        def in_force() -> bool:
            try:
                with cluster.connect(key) as own:
                    own.call(own.admin.describe_broker("broker-a"))
            except NotAuthenticated:
                return False
            except RockoonError:
                pass
            return True

        wait_until(in_force, "the key is in force")
        yield ",".join(cluster.nameservers), key


@pytest.fixture
def options(running: tuple[str, AccessKey]) -> dict[str, str]:
    endpoint, key = running
    return {"endpoint": endpoint, "accessKey": key.id, "accessSecret": key.secret}


def check(rows: Callable[..., list[bytes]]) -> None:
    assert sorted(rows(ORDERS)) == sorted(f"{ORDERS} {n}".encode() for n in range(20))
    for topics, sentence in REFUSED:
        with pytest.raises(Exception, match=sentence):
            rows(*topics)


@pytest.mark.parametrize("away", AWAY)
def test_a_batch_has_the_rows_of_the_topic_or_is_refused(
    spark: SparkSession, options: dict[str, str], away: str
) -> None:
    def rows(*topics: str) -> list[bytes]:
        chosen = {**options, "onBrokerAway": away}
        if topics:
            chosen["topics"] = ",".join(topics)
        found = spark.read.format("rockoon").options(**chosen).load().select("body").collect()
        return [bytes(row.body) for row in found]

    check(rows)


@pytest.mark.parametrize("away", AWAY)
def test_a_scan_has_the_rows_of_the_topic_or_is_refused(options: dict[str, str], away: str) -> None:
    chosen = {**options, "onBrokerAway": away}
    endpoint = chosen.pop("endpoint")

    def rows(*topics: str) -> list[bytes]:
        with scan(endpoint, list(topics) or None, columns=["body"], options=chosen) as reader:
            return list(reader.read_all().column("body").to_pylist())

    check(rows)


def test_a_stream_has_the_rows_of_the_topic_or_is_refused(
    spark: SparkSession, options: dict[str, str], tmp_path: Path
) -> None:
    """Streams have no option `onBrokerAway`."""

    def rows(*topics: str) -> list[bytes]:
        chosen = {**options, "topics": ",".join(topics), "startingOffsets": "earliest"}
        found = spark.readStream.format("rockoon").options(**chosen).load().select("body")
        name = "_".join(("rows", *topics))
        writer = found.writeStream.format("memory").queryName(name)
        query = writer.option("checkpointLocation", str(tmp_path / name))
        patiently(lambda: query.trigger(availableNow=True).start().awaitTermination())
        return [bytes(row.body) for row in spark.table(name).collect()]

    assert sorted(rows(ORDERS)) == sorted(f"{ORDERS} {n}".encode() for n in range(20))
    for topics in ([OTHER], [ORDERS, OTHER]):
        sentence = f"no read, write or admin permission on topic:{OTHER}"
        with pytest.raises(PySparkException, match=sentence):
            rows(*topics)


@pytest.mark.parametrize("away", AWAY)
def test_an_export_needs_admin_on_the_cluster(
    spark: SparkSession, running: tuple[str, AccessKey], tmp_path: Path, away: str
) -> None:
    """An export records the end of each log, so permission to read a topic is not sufficient."""
    endpoint, key = running
    source = LiveCluster(ClusterEndpoint(endpoint, access=key), skips_brokers_away=away == "skip")
    for topics, sentence in (([ORDERS], ON_CLUSTER), *REFUSED):
        with pytest.raises(Exception, match=sentence):
            export(spark, source, str(tmp_path), topics=TopicChoice(names=frozenset(topics)))
        assert not list(tmp_path.rglob("*.parquet"))
