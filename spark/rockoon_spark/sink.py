"""`df.write.format("rockoon")`: the rows of a DataFrame become messages of a live cluster.

    df.write.format("rockoon").option("endpoint", "127.0.0.1:9876").option("topic", "orders")
        .mode("append").save()
    stream.writeStream.format("rockoon").option("endpoint", "127.0.0.1:9876")
        .option("topic", "orders").option("checkpointLocation", "/data/checkpoints/orders").start()

Columns: `body` (binary, or text as UTF-8); and as far as there are any, `topic` (instead of the
option), `key` (rows with the same key are one queue's), `keys` and `tags` (text), `properties` (a
map of text to text, the sender's own).

Every row is sent at least once: a task that fails has sent some of its rows, and Spark runs it
again from its first. A task ends when the brokers have acknowledged its rows; a row that cannot be
sent fails it. Rows of one key stay in order within a task.

A stream's rows are sent at least once, too: a batch that failed, or whose end Spark did not note,
is sent again, and what was sent of it stays. Brokers can tell a repeated message by its number, but
a number says nothing of a row: Spark may bring the rows of a batch in another order the second
time, and rows would be dropped as repeats. Consumers that must not see one twice go by its `keys`.
A batch is sent by its tasks at once, and the next begins when all are done: rows of one key stay in
order from batch to batch, and within a batch where one task has them.
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

import rockoon.sync
from rockoon.errors import InvalidArgument
from rockoon.net.addresses import parse_addresses
from rockoon.producer.producer import Producer
from rockoon_spark.source.options import OptionError

log = logging.getLogger(__name__)

# What is handed to the producer before it is asked whether there is room.
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
class Sent(WriterCommitMessage):
    """What a task did."""

    messages: int


@dataclass(frozen=True)
class WriteOptions:
    """Where rows go.

    Args:
        endpoint: nameservers, as `rockoon.connect` takes them.
        topic: of every row; empty when each row names its own.
    """

    endpoint: str
    topic: str

    @classmethod
    def parse(cls, options: Mapping[str, str], schema: StructType) -> "WriteOptions":
        """Read options as Spark gives them, whose names know no case.

        Raises:
            OptionError: one is missing, unknown or wrong, or a column is none of a message's.
        """
        given = {name.lower(): value for name, value in options.items()}
        # Of a stream, Spark's own options come along.
        if unknown := given.keys() - {"endpoint", "topic", "checkpointlocation"}:
            raise OptionError(f"unknown options for writing: {', '.join(sorted(unknown))}")
        try:
            parse_addresses(given.get("endpoint", ""))
        except InvalidArgument as error:
            raise OptionError(f"option endpoint: {error}") from error
        _check_columns(schema)
        topic = given.get("topic", "")
        if bool(topic) == ("topic" in schema.names):
            raise OptionError("a topic comes from option topic or from column topic: one of them")
        return cls(given["endpoint"], topic)


def _check_columns(schema: StructType) -> None:
    for field in schema.fields:
        kinds = _COLUMNS.get(field.name)
        if kinds is None:
            raise OptionError(
                f"column {field.name} is not written: select from {', '.join(_COLUMNS)}"
            )
        # Whether values can be null is part of a map's type, and of no interest here.
        if not any(_same_kind(field.dataType, kind) for kind in kinds):
            wanted = " or ".join(kind.simpleString() for kind in kinds)
            raise OptionError(
                f"column {field.name} is {field.dataType.simpleString()}, not {wanted}: cast it"
            )
    if "body" not in schema.names:
        raise OptionError("there is no column body")


def _same_kind(found: DataType, wanted: DataType) -> bool:
    return found.simpleString() == wanted.simpleString()


class MessageWriter(DataSourceArrowWriter):
    """Sends rows; each task for itself."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        return send(iterator, self._options)


class MessageStreamWriter(DataSourceStreamArrowWriter):
    """Sends the rows of one batch of a stream after the other; each task for itself."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        return send(iterator, self._options)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        sent = sum(each.messages for each in messages if isinstance(each, Sent))
        log.warning(
            "batch %d failed; %d of its messages, or more, were sent, and come again with it",
            batchId,
            sent,
        )


def send(batches: Iterator[pa.RecordBatch], options: WriteOptions) -> Sent:
    """Send rows through a producer of the SDK; returns when all are acknowledged.

    Raises:
        RockoonError: a row cannot be sent, or was not acknowledged.
    """
    sent = 0
    # The loop has a thread of its own: waiting for Spark's next rows holds up no send.
    with rockoon.sync.connect(options.endpoint) as cluster:

        async def opened() -> Producer:
            return cluster.asyncio.producer()

        producer = cluster.call(opened())
        for batch in batches:
            cluster.call(_send(producer, batch.to_pylist(), options.topic))
            sent += batch.num_rows
        cluster.call(producer.close())
    return Sent(sent)


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
