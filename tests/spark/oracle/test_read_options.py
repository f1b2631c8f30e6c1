"""Each option of batch reads beside DuckDB: the rows of a DataFrame are those of a SQL query over
the messages that a producer sent.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from string import Template

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from rockoon.testing.disposable import DisposableCluster
from rockoon_spark.records.columns import COLUMNS
from support.message_oracle import (
    BROKERS,
    HALF,
    KNOWN,
    TIMER,
    MessageOracle,
    difference,
    expressions,
)
from support.seeds import seeds


@dataclass(frozen=True)
class Read:
    """Options of a read, and the query whose rows the read has; `$names` are in `History.values`.

    Args:
        options: of the read.
        where: condition of the query.
        table: `visible`, `log` or `internal`, see `MessageOracle`.
        schema: of the read, if it has one.
        columns: of the DataFrame, if not all.
        compared: columns that are compared.
        tasks_min: the read of the cluster has at least as many tasks.
    """

    options: Mapping[str, str]
    where: str = "true"
    table: str = "visible"
    schema: str = ""
    columns: Sequence[str] = ()
    compared: Sequence[str] = KNOWN
    tasks_min: int = 1

    @property
    def query(self) -> str:
        return f"SELECT {', '.join(self.compared)} FROM {self.table} WHERE {self.where}"

    def and_also(self, other: "Read") -> "Read":
        """Return a read with the options and conditions of both."""
        options = {**self.options, **other.options}
        where = f"({self.where}) AND ({other.where})"
        table = min(self.table, other.table)
        return replace(self, options=options, where=where, table=table)


TOPICS = {
    "no option": Read({}),
    "topics": Read({"topics": "orders,prices"}, "topic IN ('orders', 'prices')"),
    "topicPattern": Read({"topicPattern": "*r?*s"}, "topic IN ('orders', 'prices')"),
    "subscribePattern": Read(
        {"subscribePattern": "(ord|pri).*s|bill"}, "topic IN ('orders', 'prices')"
    ),
}
"""Reads of `orders` and `prices`, which the other options can narrow."""
NARROWED = {
    "tags": Read({"tags": "new,paid"}, "tags IN ('new', 'paid')"),
    "startingOffsets": Read(
        {"startingOffsets": '{"orders": {"0": $first, "broker-a:0": $later, "1": -2}}'},
        """queue_offset >= CASE
            WHEN (topic, broker, queue) = ('orders', 'broker-a', 0) THEN $later
            WHEN (topic, queue) = ('orders', 0) THEN $first
            ELSE 0
        END""",
    ),
    "endingOffsets": Read(
        {"endingOffsets": '{"orders": {"0": $later, "1": -1}, "prices": {"broker-a:1": $first}}'},
        """CASE
            WHEN (topic, queue) = ('orders', 0) THEN queue_offset < $later
            WHEN (topic, broker, queue) = ('prices', 'broker-a', 1) THEN queue_offset < $first
            ELSE true
        END""",
    ),
    "startingOffsetsByTimestamp": Read(
        {"startingOffsetsByTimestamp": '{"orders": {"0": $late, "broker-a:0": $early}}'},
        """store_time >= CASE
            WHEN (topic, broker, queue) = ('orders', 'broker-a', 0) THEN $early
            WHEN (topic, queue) = ('orders', 0) THEN $late
            ELSE 0
        END""",
    ),
    "endingOffsetsByTimestamp": Read(
        {"endingOffsetsByTimestamp": '{"prices": {"0": $late, "1": $early}}'},
        "topic <> 'prices' OR store_time < CASE WHEN queue = 0 THEN $late ELSE $early END",
    ),
    "startingTimestamp": Read({"startingTimestamp": "$early"}, "store_time >= $early"),
    "endingTimestamp": Read({"endingTimestamp": "$late_text"}, "store_time < $late"),
    "compacted": Read({"compacted": "false"}, table="log"),
    "splitBytes": Read({"splitBytes": "200000"}, tasks_min=6),
}
"""Options that narrow reads of all topics, or of `orders` and `prices`."""
READS = {
    **TOPICS,
    **NARROWED,
    "topic": Read({"topic": "bills"}, "topic = 'bills'"),
    "subscribe": Read({"subscribe": "orders-eu,bills"}, "topic IN ('orders-eu', 'bills')"),
    "assign": Read(
        {"assign": '{"orders": [1], "prices": [0, 1]}'},
        "topic = 'prices' OR topic = 'orders' AND queue = 1",
    ),
    "assign of a broker": Read(
        {"assign": '{"orders": ["broker-a:0"], "bills": [0]}'},
        "(topic, broker, queue) = ('orders', 'broker-a', 0) OR (topic, queue) = ('bills', 0)",
    ),
    "includeInternalTopics": Read(
        {"topics": f"orders,{TIMER},{HALF}", "includeInternalTopics": "true"},
        f"topic IN ('orders', '{TIMER}', '{HALF}')",
        table="internal",
        compared=("topic", "broker", "keys", "tags", "body", "properties", "unique_key"),
    ),
    "columns": Read(
        {"columns": "body,queue_offset,topic"},
        columns=("body", "queue_offset", "topic"),
        compared=("body", "queue_offset", "topic"),
    ),
    "includeHeaders": Read(
        {"topics": "orders", "columns": "keys", "includeHeaders": "true"},
        "topic = 'orders'",
        columns=("keys", "properties"),
        compared=("keys", "properties"),
    ),
    "no headers": Read(
        {"includeHeaders": "false"},
        columns=[name for name in COLUMNS if name != "properties"],
        compared=[name for name in KNOWN if name != "properties"],
    ),
    "schema": Read(
        {"subscribe": "orders"},
        "topic = 'orders'",
        schema="topic string, body binary",
        columns=("topic", "body"),
        compared=("topic", "body"),
    ),
    "failOnDataLoss": Read({"failOnDataLoss": "false"}),
}
OF_CLUSTER = {
    "brokers": Read({"brokers": "broker-b"}, "broker = 'broker-b'"),
    "onBrokerAway": Read({"onBrokerAway": "skip"}),
}
OF_DIRECTORY = {
    "broker": Read({"broker": "east"}, table="(SELECT * REPLACE ('east' AS broker) FROM visible)")
}


@dataclass
class History:
    """A cluster of two brokers, the messages that it was sent, and values for options."""

    cluster: DisposableCluster
    oracle: MessageOracle
    values: dict[str, str] = field(default_factory=dict)

    def fill(self, count: int) -> None:
        oracle = self.oracle
        oracle.create_topics()
        oracle.send_transactions(committed=5, rolled_back=2, opened=2)
        oracle.send_delayed(due=6, waiting=3)
        oracle.send(count)
        oracle.compact()
        oracle.send(count // 2)
        # Messages of the bounded queues are stored at these times.
        (row,) = oracle.ask("""
            SELECT CAST(early AS VARCHAR) AS early, CAST(late AS VARCHAR) AS late,
                strftime(make_timestamp(late * 1000), '%Y-%m-%dT%H:%M:%S.%g') AS late_text, newest
            FROM (SELECT
                quantile_disc(store_time, 0.3) FILTER (WHERE topic = 'orders') AS early,
                quantile_disc(store_time, 0.7) FILTER (WHERE topic = 'prices') AS late,
                max(queue_offset) AS newest
                FROM visible WHERE broker = 'broker-a' AND queue = 0)
            """).to_pylist()
        first = oracle.chance.randrange(1, row["newest"] // 4)
        row |= {"first": first, "later": oracle.chance.randrange(first, row["newest"] // 2)}
        self.values = {name: str(value) for name, value in row.items()}

    def filled_in(self, read: Read) -> Read:
        """Return a read with values instead of `$names`."""
        options = {
            name: Template(text).substitute(self.values) for name, text in read.options.items()
        }
        return replace(read, options=options, where=Template(read.where).substitute(self.values))


@pytest.fixture(
    scope="module",
    params=[
        *(pytest.param((seed, 300), id=f"{seed}") for seed in seeds(1)),
        *(
            pytest.param((seed, 20_000), id=f"{seed}-many", marks=pytest.mark.soak)
            for seed in (2, 3, 4)
        ),
    ],
)
def history(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[History]:
    seed, count = request.param
    settings = {
        "commit_log_file_bytes": 1 << 20,
        # A check of an open transaction would append its half message again.
        "transaction_timeout_ms": 3_600_000,
    }
    parquet = tmp_path_factory.mktemp("oracle") / "sent.parquet"
    with (
        DisposableCluster(brokers=2, settings={"broker": settings}) as cluster,
        cluster.connect() as connection,
    ):
        endpoint = ",".join(cluster.nameservers)
        oracle = MessageOracle(connection, endpoint, parquet, random.Random(seed))
        filled = History(cluster, oracle)
        filled.fill(count)
        yield filled


def load(spark: SparkSession, read: Read, **place: str) -> DataFrame:
    reader = spark.read.format("rockoon").options(**place, **read.options)
    frame = (reader.schema(read.schema) if read.schema else reader).load()
    if read.columns:
        assert frame.columns == list(read.columns)
    return frame


def rows(frame: DataFrame, columns: Sequence[str] = KNOWN) -> pa.Table:
    return frame.selectExpr(*expressions(columns)).toArrow()


def check_cluster(spark: SparkSession, history: History, read: Read) -> None:
    """Check a read of the cluster.

    Spark plans a read at the first action of a DataFrame; later actions have the same rows, also
    after new messages.
    """
    expected = history.oracle.ask(read.query)
    frame = load(spark, read, endpoint=history.oracle.endpoint)
    assert difference(rows(frame, read.compared), expected) == []
    assert frame.rdd.getNumPartitions() >= read.tasks_min
    history.oracle.send(20)
    assert difference(rows(frame, read.compared), expected) == []


def check_directory(spark: SparkSession, history: History, read: Read) -> None:
    """Check a read of the store directory of a broker.

    If the broker runs, later actions of the DataFrame may have some of the new messages too.
    """
    oracle, broker = history.oracle, BROKERS[0]
    expected = oracle.ask(read.query, [broker])
    frame = load(spark, read, path=str(history.cluster.directory / broker))
    assert difference(rows(frame, read.compared), expected) == []
    oracle.send(20)
    again, later = rows(frame, read.compared), oracle.ask(read.query, [broker])
    assert not [row for row in difference(again, expected) if row[0] == "missing"]
    assert not [row for row in difference(again, later) if row[0] == "unexpected"]


@pytest.mark.parametrize("name", {**READS, **OF_CLUSTER})
def test_a_read_of_a_cluster_has_the_rows_of_the_query(
    spark: SparkSession, history: History, name: str
) -> None:
    read = history.filled_in({**READS, **OF_CLUSTER}[name])
    assert len(history.oracle.ask(read.query))
    check_cluster(spark, history, read)


@pytest.mark.parametrize("name", {**READS, **OF_DIRECTORY})
def test_a_read_of_a_directory_has_the_rows_of_the_query(
    spark: SparkSession, history: History, name: str
) -> None:
    read = history.filled_in({**READS, **OF_DIRECTORY}[name])
    assert len(history.oracle.ask(read.query, BROKERS[:1]))
    check_directory(spark, history, read)


@pytest.mark.parametrize("count", [2, pytest.param(15, marks=pytest.mark.soak)])
def test_options_narrow_a_read_together(spark: SparkSession, history: History, count: int) -> None:
    chance = history.oracle.chance
    for _ in range(count):
        read = TOPICS[chance.choice(list(TOPICS))]
        for name in chance.sample(list(NARROWED), chance.randint(2, 4)):
            read = read.and_also(NARROWED[name])
        for check in (check_cluster, check_directory):
            check(spark, history, history.filled_in(read))


def test_conditions_and_a_limit_have_the_rows_of_the_query_and_the_dataframe_has_all_rows_after(
    spark: SparkSession, history: History
) -> None:
    """Spark evaluates conditions on all rows; the plan of one query is not that of the next."""
    read = history.filled_in(Read({"topics": "orders,bills"}, "topic IN ('orders', 'bills')"))
    frame = load(spark, read, endpoint=history.oracle.endpoint)
    early, late = history.values["early"], history.values["late"]
    times = f"unix_millis(store_time) >= {early} AND unix_millis(store_time) < {late}"
    for condition, where in (
        ("queue = 0 AND tags = 'new'", "queue = 0 AND tags = 'new'"),
        ("topic = 'bills' OR keys IS NULL", "topic = 'bills' OR keys IS NULL"),
        (times, f"store_time >= {early} AND store_time < {late}"),
        ("true", "true"),
    ):
        expected = history.oracle.ask(read.and_also(Read({}, where)).query)
        assert difference(rows(frame.where(condition)), expected) == []
    some = rows(frame.limit(7))
    assert len(some) == 7
    assert not [row for row in difference(some, expected) if row[0] == "unexpected"]


def test_a_broker_that_is_away_fails_the_read_or_its_rows_are_left_out(
    spark: SparkSession, history: History
) -> None:
    read = Read({"topics": "orders"}, "topic = 'orders'")
    history.cluster.kill("broker-b")
    try:
        with pytest.raises(PySparkException, match=r"broker 'broker-b' .* cannot be read"):
            load(spark, read, endpoint=history.oracle.endpoint).collect()
        skipping = replace(read, options={**read.options, "onBrokerAway": "skip"})
        found = rows(load(spark, skipping, endpoint=history.oracle.endpoint))
        assert difference(found, history.oracle.ask(read.query, ["broker-a"])) == []
    finally:
        history.cluster.start_stopped()
    found = rows(load(spark, read, endpoint=history.oracle.endpoint))
    assert difference(found, history.oracle.ask(read.query)) == []
