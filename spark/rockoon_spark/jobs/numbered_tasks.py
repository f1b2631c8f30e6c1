"""A piece of work per number, spread over the executors; only answers come back to the driver."""

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
    """Run a task for each number below `tasks`; return what each answers, in order.

    Args:
        task: may be run more than once for a number, also at the same time. It is pickled, and its
            answer goes through JSON: no tuples.
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
