"""Numbered tasks, run by the executors; only their answers are returned to the driver."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

_ANSWER = "number int, answer string"
_ANSWER_SCHEMA = pa.schema([("number", pa.int32()), ("answer", pa.string())])


def run_tasks(
    spark: SparkSession, tasks: int, task: Callable[[int], dict[str, Any]]
) -> list[dict[str, Any]]:
    """Run a task for each number from 0 to `tasks` - 1; return their answers in order.

    Args:
        task: called with the number; Spark may repeat it, even concurrently. It is pickled, and its
            answer is encoded as JSON, without tuples.
    """
    if tasks == 0:
        return []

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch["number"].to_pylist():
                row = {"number": number, "answer": json.dumps(task(number))}
                yield pa.RecordBatch.from_pylist([row], schema=_ANSWER_SCHEMA)

    numbers = spark.range(0, tasks, 1, tasks).toDF("number")
    rows = sorted(numbers.mapInArrow(run, _ANSWER).collect(), key=lambda row: int(row.number))
    return [json.loads(row.answer) for row in rows]
