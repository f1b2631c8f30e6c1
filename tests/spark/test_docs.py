"""Runs the examples of docs/use/spark.md and docs/use/spark-filter-pushdown.md."""

import re
import shlex
import sys
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
from pyspark.sql import SparkSession

from rockoon.cli.app import run_command_line
from rockoon.testing.disposable import DisposableCluster
from support.spark_processes import patiently

DOCS = Path(__file__).parent.parent.parent / "docs" / "use"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(name: str) -> list[tuple[str, str]]:
    """Language and text of each block of code."""
    return FENCE.findall((DOCS / name).read_text())


def test_every_example_runs(
    spark: SparkSession,
    cluster: DisposableCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    endpoint = ",".join(cluster.nameservers)
    with cluster.connect() as connection:
        for topic in ("orders", "orders-checked"):
            connection.call(connection.admin.create_topic(topic))
        connection.send_many("orders", [b'{"currency": "EUR"}'] * 7)

    def here(text: str) -> str:
        return text.replace("127.0.0.1:9876", endpoint).replace("/data/", f"{tmp_path}/")

    names: dict[str, Any] = {"__name__": "example"}
    ran = []

    def run(code: CodeType) -> None:
        exec(code, names)
        for query in spark.streams.active:
            query.processAllAvailable()
            query.stop()

    for language, text in blocks("spark.md"):
        if language == "python":
            if ".writeStream" in text and "rows.selectExpr" in text:
                # The example needs a stream, any one.
                names["rows"] = names["orders"].selectExpr("string(queue_offset) as order_id")
            patiently(partial(run, compile(here(text), "spark.md", "exec")))
        elif language == "sql":
            *before, query = filter(str.strip, here(text).split(";"))
            for statement in before:
                spark.sql(statement)
            assert spark.sql(query).collect()[0][1] == 7
        elif text.startswith("rockoon spark") and "[" not in text:
            monkeypatch.setattr(sys, "argv", shlex.split(here(text)))
            assert run_command_line() == 0
        else:
            continue
        ran.append(language)
    for table in ("orders", "bodies"):
        spark.sql(f"DROP TABLE {table}")
    assert ran == ["python", "sql", "python", "python", "", "", "sql", "python"]
    assert spark.read.parquet(str(tmp_path / "lake/orders")).count() == 7
    assert names["messages"].where("topic = 'orders'").count() == 7
    options = {"endpoint": endpoint, "topics": "orders-checked", "columns": "body"}
    sent = spark.read.format("rockoon").options(**options).load().collect()
    assert sorted(row.body for row in sent) == [b'{"order_id":"%d"}' % n for n in range(7)]


def test_spark_still_takes_the_rows_of_one_query_for_another(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    ((_, text),) = blocks("spark-filter-pushdown.md")
    setting = "spark.sql.python.filterPushdown.enabled"
    before = spark.conf.get(setting)
    try:
        exec(compile(text, "spark-filter-pushdown.md", "exec"), {"__name__": "example"})
    finally:
        spark.conf.set(setting, before)
    said = capsys.readouterr().out.splitlines()
    # If this fails, Spark is repaired: see ADR 29.
    assert said == ["6 of 6", "3 of 3", "3 of 6", "6 of 5", "9 of 6"]
