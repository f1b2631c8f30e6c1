"""`df.write.format("rockoon")`: the rows of a DataFrame become messages of a live cluster.

    df.write.format("rockoon").option("endpoint", "127.0.0.1:9876").option("topic", "orders")
        .mode("append").save()
    stream.writeStream.format("rockoon").option("endpoint", "127.0.0.1:9876")
        .option("topic", "orders").option("checkpointLocation", "/data/checkpoints/orders").start()

Columns: `body` (binary, or text, stored as UTF-8). Optional: `topic` (instead of the option), `key`
(rows with the same key go to the same queue), `keys` and `tags` (text), `properties` (a map of text
to text: the user properties of the message).

A task ends when the brokers have acknowledged all its rows; a row that cannot be sent fails the
task. Then Spark runs the task again from the first row. Rows of one key stay in order within a
task. The tasks of a batch send in parallel, and the next batch of a stream begins when all are
done: rows of one key stay in order from batch to batch, and within a batch if one task has them.

Each row is stored at least once. It is stored once if all attempts of its task have the same rows
in the same order under the same partition id, see `rockoon_spark.repeatable_batches`. Attempts are
those of a batch write, also speculative ones, and those of a batch of a stream, also after a
restart from the checkpoint. These attempts may store a row again:

- an attempt with other rows, or with the same rows in another order, for example after a shuffle;
- an attempt after a restart whose batch has other tasks: a stream of topics with another
  minPartitions or without a queue that was deleted; a stream of files without a fixed
  spark.sql.files.minPartitionNum, because the number of tasks then depends on the registered cores;
- an attempt after queues were added to the target topic or its brokers were drained or removed;
- an attempt after the broker has forgotten the first one (`producer_memory_hours`,
  `producer_sequences_max`);
- a second run of a batch write that failed as a whole, and any write with idempotent = false.

With idempotent = true (the default), rows wait for the broker of their queue, and the task fails
after 30 s without it. With idempotent = false, rows without a key go to other brokers.
"""

import inspect
import logging
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import BinaryType, DataType, MapType, StringType, StructType

from rockoon.cluster import Cluster
from rockoon.errors import NoWritableQueue
from rockoon.producer.queue_selectors import accepting, for_keys
from rockoon.producer.receipt import SentSpans
from rockoon_spark.endpoint import ClusterEndpoint, connect
from rockoon_spark.repeatable_batches import RowDivider, Segment, TopicQueues, message_of, topic_of
from rockoon_spark.source.option_table import OptionError, Use, given_options, one_of
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
        endpoint: endpoint of the cluster.
        topic: topic of every row; empty if rows have a column `topic`.
        idempotent: True to store the rows of a repeated task once; see the module.
    """

    endpoint: ClusterEndpoint
    topic: str
    idempotent: bool

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
        return cls(endpoint, topic, one_of(given, "idempotent", "true", "false") == "true")


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
        # Spark creates one writer for a write, and each attempt of a task has a copy.
        self._id = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        return send(iterator, self._options, f"write {self._id} {_task().partitionId()}")


class MessageStreamWriter(DataSourceStreamArrowWriter):
    """Sends the rows of a stream to a cluster, batch after batch; each task sends its own rows."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        context = _task()
        # Spark's own names. The checkpoint contains both values, so a restart repeats them.
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        if not query or not batch:
            raise RuntimeError("Spark does not state the query and the batch of this task")
        return send(iterator, self._options, f"query {query} {batch} {context.partitionId()}")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        sent = sum(each.messages for each in messages if isinstance(each, TaskResult))
        log.warning(
            "batch %d failed after at least %d of its messages were sent; "
            "if Spark retries the batch, they are sent again%s",
            batchId,
            sent,
            ", and brokers recognise them" if self._options.idempotent else "",
        )


class RowsCut(RuntimeError):
    """The task has failed in Spark, and its last rows will not arrive."""


def _has_all_rows() -> bool:
    """Return whether Spark has sent all rows of this task; call it after the last row.

    If the task fails while it computes its rows, or its executor dies, PySpark's iterator of rows
    ends as if these were all. Spark sends a mark after the last row. PySpark does not show the mark
    to a writer. It is found in the stream beneath the iterator.
    """
    frame = inspect.currentframe()
    while frame is not None:
        stream = frame.f_locals.get("input_data_stream")
        if stream is not None:
            return bool(stream.peek(1))
        frame = frame.f_back
    raise RuntimeError("this version of PySpark has no input_data_stream: use idempotent = false")


def _task() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "a writer runs in a task"
    return context


def send(
    batches: Iterator[pa.RecordBatch],
    options: WriteOptions,
    scope: str,
    has_all_rows: Callable[[], bool] = _has_all_rows,
) -> TaskResult:
    """Send rows with a producer of the SDK; return when all are acknowledged.

    Args:
        batches: rows of the task.
        options: options of the write.
        scope: identity of the task: of its write or of its stream's batch, and its partition;
            equal in all attempts.
        has_all_rows: called after the last batch; False if the task failed before its last row.

    Raises:
        RowsCut: `has_all_rows` returns False.
        RockoonError: a row cannot be sent, or was not acknowledged.
    """
    sent = 0
    # The event loop has its own thread: waiting for Spark's next rows does not delay sends.
    with connect(options.endpoint) as cluster:

        async def opened() -> _RowSender:
            kind = _OnceSender if options.idempotent else _PlainSender
            return kind(cluster.asyncio, options.topic, scope)

        sender = cluster.call(opened())
        for batch in batches:
            cluster.call(sender.send(batch.to_pylist()))
            sent += batch.num_rows
        # The next attempt would put a part of a segment into another batch, and store it again.
        if options.idempotent and not has_all_rows():
            raise RowsCut("the task failed before its last row")
        cluster.call(sender.close())
    return TaskResult(sent)


class _PlainSender:
    """Sends each row at least once, to any queue if it has no key."""

    def __init__(self, cluster: Cluster, topic: str, _scope: str) -> None:
        self._topic = topic
        self._producer = cluster.producer()

    async def send(self, rows: list[dict[str, Any]]) -> None:
        messages = size = 0
        for row in rows:
            message = message_of(row)
            self._producer.send(
                topic_of(row, self._topic),
                message.body,
                ordering_key=row.get("key"),
                keys=message.keys,
                tags=message.tags,
                properties=message.properties,
            )
            messages += 1
            size += len(message.body)
            if messages >= _MESSAGES_PER_DRAIN or size >= _BYTES_PER_DRAIN:
                await self._producer.wait_capacity()
                messages = size = 0

    async def close(self) -> None:
        await self._producer.close()


class _OnceSender:
    """Sends each row in a batch that a repeated attempt sends again."""

    def __init__(self, cluster: Cluster, topic: str, scope: str) -> None:
        self._cluster = cluster
        self._topic = topic
        # The queues of a topic stay the same during an attempt.
        self._queues: dict[str, TopicQueues] = {}
        self._divider = RowDivider(scope, topic, self._queues)
        self._producer = cluster.producer(idempotent=True)
        # The batches of the last segment. They are sent while the next segment is collected.
        self._sent: list[SentSpans] = []

    async def send(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            topic = topic_of(row, self._topic)
            if topic not in self._queues:
                self._queues[topic] = await self._queues_of(topic)
            segment = self._divider.add(row)
            if segment is not None:
                await self._start(segment)

    async def close(self) -> None:
        await self._start(self._divider.rest())
        await self._wait_sent()
        await self._producer.close()

    async def _queues_of(self, topic: str) -> TopicQueues:
        queues = (await self._cluster.route(topic)).queues
        if not queues:
            raise NoWritableQueue(topic=topic)
        drained = self._cluster.routes.drained
        return TopicQueues(for_keys(queues, drained), accepting(queues, drained))

    async def _start(self, segment: Segment) -> None:
        # At most two segments are in memory.
        await self._wait_sent()
        self._sent = [
            await self._producer.send_once(queue, messages, segment.scope)
            for queue, messages in segment.batches.items()
        ]

    async def _wait_sent(self) -> None:
        for batch in self._sent:
            await batch.results()


_RowSender = _PlainSender | _OnceSender
