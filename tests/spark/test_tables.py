"""The data source by options, by a schema and in SQL, in a classic session and in Spark Connect."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.connect.session import SparkSession as ConnectSession

from rockoon.testing.disposable import DisposableCluster
from rockoon_broker.store.settings import Flush
from rockoon_core.signature import new_secret
from support.store_directory import Owner, settings

COLUMNS = "queue_offset,topic,body"
SCHEMA = "queue_offset bigint, topic string, body binary"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tables") / "broker-a"
    owner = Owner(settings(root, commit_log_file_bytes=1 << 20, flush=Flush.ASYNC))
    for n in range(20):
        owner.append("orders" if n % 2 else "bills", 0, [b"%d" % n], tags="new")
    owner.store.close()
    return root


def rows(frame: Any) -> list[dict[str, Any]]:
    return sorted((row.asDict() for row in frame.collect()), key=repr)


def few_ways(spark: Any, store: Path) -> Iterator[Any]:
    """The same rows by options, by a schema and by SQL."""
    options = {"path": str(store), "subscribe": "orders"}
    yield spark.read.format("rockoon").options(**options, columns=COLUMNS).load()
    yield spark.read.format("rockoon").schema(SCHEMA).options(**options).load()
    spark.sql("DROP TABLE IF EXISTS pruned")
    spark.sql(f"CREATE TABLE pruned USING rockoon OPTIONS ({listed(options)}, columns '{COLUMNS}')")
    yield spark.table("pruned")


def more_ways(spark: Any, store: Path) -> Iterator[Any]:
    """The same rows by a table with all columns, and by views."""
    options = listed({"path": str(store), "subscribe": "orders"})
    spark.sql("DROP TABLE IF EXISTS whole")
    spark.sql(f"CREATE TABLE whole USING rockoon OPTIONS ({options})")
    # Options of a query are added to those of the table.
    for text in ("whole", "whole WITH (tags 'new')"):
        yield spark.sql(f"SELECT {COLUMNS} FROM {text}")
    for schema in ("", f"({SCHEMA})"):
        spark.sql(
            f"CREATE OR REPLACE TEMPORARY VIEW seen {schema} USING rockoon OPTIONS ({options})"
        )
        yield spark.table("seen").selectExpr(*COLUMNS.split(","))


def listed(options: dict[str, str]) -> str:
    return ", ".join(f"{name} '{value}'" for name, value in options.items())


@pytest.mark.parametrize("ways", [few_ways, pytest.param(more_ways, marks=pytest.mark.soak)])
def test_options_a_schema_and_sql_have_the_same_rows_in_both_kinds_of_session(
    spark: SparkSession,
    connect: ConnectSession,
    store: Path,
    ways: Callable[[Any, Path], Iterator[Any]],
) -> None:
    expected = [
        {"queue_offset": n, "topic": "orders", "body": b"%d" % (2 * n + 1)} for n in range(10)
    ]
    for each in (spark, connect):
        for found in ways(each, store):
            assert rows(found) == sorted(expected, key=repr)


def shown(spark: SparkSession, frame: DataFrame) -> str:
    """The plan of a DataFrame as `explain` prints it."""
    assert spark._jvm is not None
    return str(spark._jvm.PythonSQLUtils.explainString(frame._jdf.queryExecution(), "extended"))


def test_plans_and_errors_have_no_secret(
    spark: SparkSession, cluster: DisposableCluster, connect: ConnectSession
) -> None:
    secret = new_secret()
    options = {
        "endpoint": cluster.nameservers[0],
        "accessKey": "reader",
        "accessSecret": secret,
        "subscribe": "nowhere",
    }
    frame = spark.read.format("rockoon").options(**options).load()
    assert secret not in shown(spark, frame)
    for each in (spark, connect):
        frame = each.read.format("rockoon").options(**options).load()
        with pytest.raises(
            PySparkException, match="option topics: topic 'nowhere' does not"
        ) as told:
            frame.collect()
        assert secret not in str(told.value)
        with pytest.raises(PySparkException, match="did you mean 'subscribe'") as told:
            each.read.format("rockoon").options(**options, subscibe="x").load().collect()
        assert secret not in str(told.value)
    with pytest.raises(PySparkException, match="accesssecret cannot be stored in a table") as told:
        spark.sql(f"CREATE TABLE secrets USING rockoon OPTIONS ({listed(options)})")
    assert secret not in str(told.value)


def test_a_table_with_a_list_of_columns_is_refused_with_a_sentence(
    spark: SparkSession, store: Path
) -> None:
    spark.sql(f"CREATE TABLE listed ({SCHEMA}) USING rockoon OPTIONS (path '{store}')")
    try:
        with pytest.raises(
            PySparkException, match="create it without the list, with option columns"
        ):
            spark.table("listed").collect()
    finally:
        spark.sql("DROP TABLE listed")
