"""Exports of a running cluster."""

from collections import Counter
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

from rockoon.consumer.push_consumer import PushConsumer
from rockoon.sync import Cluster
from rockoon.testing.disposable import DisposableCluster
from rockoon_spark.export.rows import ExportError, TopicChoice
from rockoon_spark.export.target import ExportTarget, manifests
from rockoon_spark.jobs.export import ExportReport, export
from rockoon_spark.jobs.verify_export import verify_export
from rockoon_spark.source.live_cluster import LiveCluster
from rockoon_spark.source.log_source import BrokerAway
from rockoon_spark.stream import cluster as stream_cluster
from rockoon_spark.stream.group_progress import GroupInUse
from support.endless_sending import Sending


def run(
    spark: SparkSession, cluster: DisposableCluster, target: Path, pattern: str, **options: object
) -> ExportReport:
    source = LiveCluster(
        ",".join(cluster.nameservers),
        skips_brokers_away=options.pop("skips", False),
        broker=options.pop("broker", None),
    )
    return export(spark, source, str(target), topics=TopicChoice(pattern=pattern), **options)


def bodies(target: Path) -> Counter[int]:
    table = ds.dataset(target, format="parquet").to_table(columns=["body"])
    return Counter(map(int, table["body"].to_pylist()))


def numbers(*bounds: int) -> list[bytes]:
    return [b"%d" % n for n in range(*bounds)]


def differences(spark: SparkSession, cluster: DisposableCluster, target: Path) -> list[str]:
    return verify_export(spark, str(target), LiveCluster(",".join(cluster.nameservers)))[1]


def test_what_was_acknowledged_before_a_run_is_exported_once_while_more_is_sent(
    spark: SparkSession, cluster: DisposableCluster, tmp_path: Path
) -> None:
    topic, target = cluster.new_topic("numbers"), tmp_path / "out"
    with cluster.connect() as connection:
        with Sending(connection, topic) as sending:
            # Small sections, so that cuts are within records.
            for section_bytes in (100_000, None, 30_000):
                acknowledged = sending.acknowledged
                report = run(spark, cluster, target, f"{topic}*", section_bytes=section_bytes)
                begun = sending.begun
                assert report.messages
                numbers = bodies(target)
                assert set(numbers.values()) == {1}
                assert set(range(acknowledged)) <= set(numbers) <= set(range(begun))
        run(spark, cluster, target, f"{topic}*")
        assert bodies(target) == Counter(range(sending.acknowledged))
        brokers = {
            file.broker for run in manifests(ExportTarget.of(str(target))) for file in run.files
        }
        assert brokers == {"broker-a", "broker-b"}
        assert differences(spark, cluster, target) == []

        # Exported messages remain when their topic is deleted.
        connection.call(connection.asyncio.admin.delete_topic(topic))
        run(spark, cluster, target, f"{topic}*")
        assert bodies(target) == Counter(range(sending.acknowledged))
        assert differences(spark, cluster, target) == []


def test_a_named_topic_has_to_exist_in_the_first_run(
    spark: SparkSession, cluster: DisposableCluster, tmp_path: Path
) -> None:
    topic, place = cluster.new_topic("named"), LiveCluster(",".join(cluster.nameservers))

    def run_named(*names: str) -> ExportReport:
        target = str(tmp_path / "out")
        return export(spark, place, target, topics=TopicChoice(names=frozenset(names)))

    with pytest.raises(ExportError, match="topic 'nowhere' does not exist"):
        run_named(topic, "nowhere")
    with cluster.connect() as connection:
        connection.send(topic, b"1")
        assert run_named(topic).messages == 1
        connection.call(connection.asyncio.admin.delete_topic(topic))
    assert run_named(topic).messages == 0


def test_a_broker_that_was_away_is_gone_on_with_when_it_is_back(
    spark: SparkSession,
    cluster: DisposableCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic, target = cluster.new_topic("away", queues_per_broker=1), tmp_path / "out"
    monkeypatch.setattr(stream_cluster, "PLAN_RETRY_SECONDS", 0.1)

    def send(connection: Cluster, first: int) -> None:
        for number, queue in enumerate(connection.queues(topic), first):
            connection.send(topic, b"%d" % number, queue=queue)

    with cluster.connect() as connection:
        send(connection, 0)
        run(spark, cluster, target, topic)
        send(connection, 2)
    cluster.kill("broker-b")
    try:
        with pytest.raises(BrokerAway, match="broker 'broker-b' "):
            run(spark, cluster, target, topic)
        run(spark, cluster, target, topic, skips=True, group=topic)
        assert f"no progress for group {topic}" in caplog.text
        assert bodies(target) == Counter([0, 1, 2])
        run(spark, cluster, target, topic, broker="broker-a")
    finally:
        cluster.start_stopped()
    run(spark, cluster, target, topic, group=topic)
    with cluster.connect() as connection:
        assert connection.call(connection.admin.lag(topic)).total_lag == 0
    assert bodies(target) == Counter(range(4))
    assert differences(spark, cluster, target) == []


def test_the_progress_of_an_export_is_that_of_its_group(
    spark: SparkSession, cluster: DisposableCluster, tmp_path: Path
) -> None:
    topic, other = cluster.new_topic("followed"), cluster.new_topic("other")
    group, target = f"{topic}-export", tmp_path / "out"

    with cluster.connect() as connection:

        def waiting() -> dict[str, int]:
            """Return how many messages of each topic the group has not committed."""
            found: Counter[str] = Counter()
            for row in connection.call(connection.admin.lag(group)).queues:
                found[row.queue.topic] += row.lag
            return dict(found)

        connection.send_many(topic, numbers(30))
        connection.send_many(other, numbers(3))
        assert run(spark, cluster, target, f"{topic}*", group=group).messages == 30
        assert waiting() == {topic: 0}
        connection.send_many(topic, numbers(30, 40))
        assert waiting() == {topic: 10}
        assert run(spark, cluster, target, f"{topic}*", group=group).messages == 10
        assert waiting() == {topic: 0}
        assert bodies(target) == Counter(range(40))

        async def consumer() -> PushConsumer:
            made = connection.asyncio.push_consumer(group, {topic: "*"}, print)
            await made.start()
            return made

        consuming = connection.call(consumer())
        try:
            with pytest.raises(GroupInUse, match=f"read with group '{group}'"):
                run(spark, cluster, target, f"{topic}*", group=group)
        finally:
            connection.call(consuming.close())
