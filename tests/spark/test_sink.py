"""Rows of a DataFrame that are sent as messages to a cluster."""

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from rockoon.testing.disposable import DisposableCluster
from support.whole_topics import every_message


def write(frame: DataFrame, cluster: DisposableCluster, **options: str) -> None:
    chosen = {"endpoint": cluster.nameservers[0], **options}
    frame.write.format("rockoon").options(**chosen).mode("append").save()


def test_every_row_becomes_a_message(spark: SparkSession, cluster: DisposableCluster) -> None:
    topic = cluster.new_topic("rows")
    frame = spark.range(500).selectExpr(
        "cast(id as string) as body",
        "cast(id % 7 as string) as key",
        "concat('order-', id) as keys",
        "if(id % 2 = 0, 'even', null) as tags",
        "map('n', cast(id as string)) as properties",
    )
    write(frame, cluster, topic=topic)
    with cluster.connect() as connection:
        found = {}
        for message in every_message(connection, topic):
            assert message.body not in found
            found[message.body] = message
    assert sorted(map(int, found)) == list(range(500))
    last = found[b"498"]
    assert (last.keys, last.tags, last.properties["n"]) == (["order-498"], "even", "498")
    assert found[b"499"].tags is None
    assert len({message.queue for body, message in found.items() if int(body) % 7 == 3}) == 1


def test_rows_can_name_their_topics(spark: SparkSession, cluster: DisposableCluster) -> None:
    topics = [cluster.new_topic("left"), cluster.new_topic("right")]
    rows = [(topics[n % 2], b"%d" % n) for n in range(10)]
    write(spark.createDataFrame(rows, "topic string, body binary"), cluster)
    with cluster.connect() as connection:
        bodies = [{message.body for message in every_message(connection, t)} for t in topics]
    assert bodies == [{b"%d" % n for n in range(k, 10, 2)} for k in (0, 1)]


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ("body string, size int", "column size is unknown: the columns of a message are body"),
        ("body int", "column body is int, not binary or string: cast it"),
        ("tags string", "column body is missing"),
        ("body string, topic string", "exactly one of option topic and column topic"),
    ],
)
def test_columns_that_make_no_message_are_refused(
    spark: SparkSession, cluster: DisposableCluster, columns: str, sentence: str
) -> None:
    with pytest.raises(PySparkException, match=sentence):
        write(spark.createDataFrame([], columns), cluster, topic="T")


def test_a_row_that_cannot_be_sent_fails_the_write(
    spark: SparkSession, cluster: DisposableCluster
) -> None:
    frame = spark.createDataFrame([(b"body",)], "body binary")
    with pytest.raises(PySparkException, match="topic 'nowhere' does not exist"):
        write(frame, cluster, topic="nowhere")
    with pytest.raises(PySparkException, match="use mode"):
        frame.write.format("rockoon").option("endpoint", "127.0.0.1:1").mode("overwrite").save()
