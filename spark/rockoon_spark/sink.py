"""`df.write.format("rockoon")`: the rows of a DataFrame become messages of a live cluster.

    df.write.format("rockoon").option("endpoint", "127.0.0.1:9876").option("topic", "orders")
        .mode("append").save()
    stream.writeStream.format("rockoon").option("endpoint", "127.0.0.1:9876")
        .option("topic", "orders").option("checkpointLocation", "/data/checkpoints/orders").start()

Columns: `body` (binary, or text, stored as UTF-8). Optional: `topic` (instead of the option), `key`
(rows with the same key go to the same queue), `keys` and `tags` (text), `properties` (a map of text
to text: the user properties of the message).

Every row is sent at least once: a task that fails has sent some of its rows, and Spark runs the
task again from the first row. A task ends when the brokers have acknowledged all its rows; a row
that cannot be sent fails the task. Rows of one key stay in order within a task.

The rows of a stream are sent at least once, too. Spark sends a batch again if the batch failed or
if Spark did not record its end; messages of the first attempt stay in the cluster. Sequence numbers
of an idempotent producer cannot prevent this: Spark may deliver the rows of a batch in another
order the second time, so a number does not identify a row, and brokers would drop new rows as
duplicates. Consumers that must not process a row twice compare its `keys`. The tasks of a batch
send in parallel, and the next batch begins when all are done: rows of one key stay in order from
batch to batch, and within a batch if one task has them.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import BinaryType, DataType, MapType, StringType, StructType

from rockoon.errors import InvalidArgument
from rockoon.producer.producer import Producer
from rockoon_spark.endpoint import ClusterEndpoint, connect
from rockoon_spark.source.option_table import OptionError, Use, given_options
from rockoon_spark.source.options import endpoint_of

log = logging.getLogger(__name__)

# After this many messages or bytes the sink waits until the producer has room for more.
_MESSAGES_PER_DRAIN = 64
_BYTES_PER_DRAIN = 1 << 20

_TEXT = (StringType(),)
_COLUMNS: Mapping[str, tuple[DataType, ...]] = {
    "body": (BinaryType(), StringType()),
    "topic": _TEXT,
    "key": _TEXT,
    "keys": _TEXT,
    "tags": _TEXT,
    "properties": (MapType(StringType(), StringType()),),
}


@dataclass
class TaskResult(WriterCommitMessage):
    """Number of messages that a task has sent, reported to the driver."""

    messages: int


@dataclass(frozen=True)
class WriteOptions:
    """Options of a write: the cluster and the topic to which rows are sent.

    Args:
        endpoint: of the cluster.
        topic: of every row; empty if rows have a column `topic`.
    """

    endpoint: ClusterEndpoint
    topic: str

    @classmethod
    def parse(cls, options: Mapping[str, str], schema: StructType) -> "WriteOptions":
        """Parse Spark's options; names are case-insensitive.

        Raises:
            OptionError: an option is missing, unknown or invalid, or a column is unknown.
        """
        given = given_options(options, Use.WRITE)
        endpoint = endpoint_of(given)
        _check_columns(schema)
        topic = given.get("topic", "")
        if bool(topic) == ("topic" in schema.names):
            raise OptionError("set exactly one of option topic and column topic")
        return cls(endpoint, topic)


def _check_columns(schema: StructType) -> None:
    for field in schema.fields:
        kinds = _COLUMNS.get(field.name)
        if kinds is None:
            raise OptionError(
                f"column {field.name} is unknown: the columns of a message are "
                f"{', '.join(_COLUMNS)}"
            )
        # simpleString, because a map's type says whether values can be null: both are accepted.
        if not any(_same_kind(field.dataType, kind) for kind in kinds):
            wanted = " or ".join(kind.simpleString() for kind in kinds)
            raise OptionError(
                f"column {field.name} is {field.dataType.simpleString()}, not {wanted}: cast it"
            )
    if "body" not in schema.names:
        raise OptionError("column body is missing: each row needs one")


def _same_kind(found: DataType, wanted: DataType) -> bool:
    return found.simpleString() == wanted.simpleString()


class MessageWriter(DataSourceArrowWriter):
    """Sends the rows of a batch DataFrame to a cluster; each task sends its own rows."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        return send(iterator, self._options)


class MessageStreamWriter(DataSourceStreamArrowWriter):
    """Sends the rows of a stream to a cluster, batch after batch; each task sends its own rows."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        return send(iterator, self._options)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        sent = sum(each.messages for each in messages if isinstance(each, TaskResult))
        log.warning(
            "batch %d failed after at least %d of its messages were sent; "
            "if Spark retries the batch, they are sent again",
            batchId,
            sent,
        )


def send(batches: Iterator[pa.RecordBatch], options: WriteOptions) -> TaskResult:
    """Send rows with a producer of the SDK; return when all are acknowledged.

    Raises:
        RockoonError: a row cannot be sent, or was not acknowledged.
    """
    sent = 0
    # The event loop has its own thread: waiting for Spark's next rows does not delay sends.
    with connect(options.endpoint) as cluster:

        async def opened() -> Producer:
            return cluster.asyncio.producer()

        producer = cluster.call(opened())
        for batch in batches:
            cluster.call(_send(producer, batch.to_pylist(), options.topic))
            sent += batch.num_rows
        cluster.call(producer.close())
    return TaskResult(sent)


async def _send(producer: Producer, rows: list[dict[str, Any]], topic: str) -> None:
    messages = size = 0
    for row in rows:
        body = row["body"]
        if body is None:
            raise InvalidArgument(reason="a row has no body")
        content = body.encode() if isinstance(body, str) else body
        producer.send(
            topic or row["topic"],
            content,
            ordering_key=row.get("key"),
            keys=row.get("keys"),
            tags=row.get("tags"),
            properties=dict(row.get("properties") or ()),
        )
        messages += 1
        size += len(content)
        if messages >= _MESSAGES_PER_DRAIN or size >= _BYTES_PER_DRAIN:
            await producer.wait_capacity()
            messages = size = 0
