"""Exchange: runs the steps of a compaction on Spark and transports messages between them; and the
interface of the store that is compacted.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, Self

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from rockoon_format.generation import Manifest
from rockoon_spark.compaction.plan import CompactionInput, PartWriter
from rockoon_spark.compaction.sources import FormerPart
from rockoon_spark.compaction.steps import KeyedMessage
from rockoon_spark.session import parallel_tasks
from rockoon_spark.source.log_source import ContiguousPartition

Step = Callable[[Iterable[KeyedMessage]], Iterator[KeyedMessage]]

_MESSAGE = "kind int, address int, source int, content binary"
_SCHEMA = pa.schema(
    [
        ("kind", pa.int32()),
        ("address", pa.int32()),
        ("source", pa.int32()),
        ("content", pa.binary()),
    ]
)
_Batches = Iterator[pa.RecordBatch]


class Messages(Protocol):
    """Messages that the tasks of a compaction send to each other; computed when they are used."""

    def then(self, step: Step) -> Self:
        """Apply a step to each partition of the messages."""

    def to_addresses(self, addresses: int, step: Step) -> Self:
        """Send each message to its address (0 to `addresses` - 1), and apply a step to the messages
        of each address.
        """

    def and_those(self, others: Self) -> Self:
        """Return the union of both collections of messages."""

    def kept(self) -> Self:
        """Return the same messages, cached: repeated use does not compute them again."""

    def release(self) -> None:
        """Release the cache of `kept`."""

    def of_kinds(self, *kinds: int) -> Self:
        """Return the messages of the given kinds."""

    def collect(self) -> list[KeyedMessage]:
        """Return all messages to the driver, in no order."""


class Exchange(Protocol):
    """Runs the tasks of a compaction in parallel."""

    @property
    def parallel_tasks(self) -> int:
        """Number of tasks that run at the same time."""

    def start(self, tasks: range, step: Callable[[int], Iterator[KeyedMessage]]) -> Messages:
        """Call `step` with each number of `tasks`; its results are the messages."""


class SparkExchange:
    """`Exchange` with Spark's stages and shuffles. A message is a row."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    @property
    def parallel_tasks(self) -> int:
        return parallel_tasks(self._spark)

    def start(self, tasks: range, step: Callable[[int], Iterator[KeyedMessage]]) -> "SparkMessages":
        def run(batches: _Batches) -> _Batches:
            for batch in batches:
                for number in batch["number"].to_pylist():
                    yield from map(_batch, step(number))

        numbers = self._spark.range(tasks.start, tasks.stop, 1, max(len(tasks), 1)).toDF("number")
        return SparkMessages(numbers.mapInArrow(run, _MESSAGE))


class SparkMessages:
    """`Messages` as rows of a Spark DataFrame."""

    def __init__(self, rows: DataFrame) -> None:
        self._rows = rows

    def then(self, step: Step) -> "SparkMessages":
        def run(batches: _Batches) -> _Batches:
            yield from map(_batch, step(_messages(batches)))

        return SparkMessages(self._rows.mapInArrow(run, _MESSAGE))

    def to_addresses(self, addresses: int, step: Step) -> "SparkMessages":
        # By the number itself, not by its hash: each address gets its own task.
        return SparkMessages(self._rows.repartitionById(addresses, "address")).then(step)

    def and_those(self, others: "SparkMessages") -> "SparkMessages":
        return SparkMessages(self._rows.union(others._rows))

    def kept(self) -> "SparkMessages":
        # Without persist each use would read the log again.
        return SparkMessages(self._rows.persist())

    def release(self) -> None:
        self._rows.unpersist()

    def of_kinds(self, *kinds: int) -> "SparkMessages":
        return SparkMessages(self._rows.where(self._rows.kind.isin(list(kinds))))

    def collect(self) -> list[KeyedMessage]:
        return [
            KeyedMessage(row.kind, row.address, row.source, bytes(row.content))
            for row in self._rows.collect()
        ]


def _messages(batches: _Batches) -> Iterator[KeyedMessage]:
    for batch in batches:
        columns = (batch[name].to_pylist() for name in _SCHEMA.names)
        yield from map(KeyedMessage._make, zip(*columns, strict=True))


def _batch(message: KeyedMessage) -> pa.RecordBatch:
    arrays = [pa.array([value], kind) for value, kind in zip(message, _SCHEMA.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)


class Incoming(Protocol):
    """Interface of a new generation that is being written to a store."""

    @property
    def writer(self) -> PartWriter: ...

    def publish(self, manifest: Manifest) -> None:
        """Publish the complete generation to the broker.

        Raises:
            CompactionError: the broker refused it, or another run has published one.
        """


class CompactionTarget(Protocol):
    """Interface of one broker's store that is compacted. Used only by the driver."""

    @property
    def name(self) -> str:
        """Name of the store for reports and error texts."""

    def inspect(
        self, exchange: Exchange, /, *, min_lag_ms: int, split_bytes: int
    ) -> CompactionInput:
        """Return the current state of the log and the generation.

        Args:
            exchange: runs tasks that read the log, if necessary.
            min_lag_ms: minimum age of the records to compact.
            split_bytes: bytes of log that one task reads.

        Raises:
            CompactionError: the store cannot be read, or is not ready for a compaction.
        """

    def partitions(self, start: int, stop: int, split_bytes: int) -> Sequence[ContiguousPartition]:
        """Divide a range of the log into partitions.

        Args:
            start, stop: physical offsets of record boundaries.
            split_bytes: maximum size of a partition.
        """

    def former_parts(self, manifest: Manifest) -> Sequence[FormerPart]:
        """Return the parts of the current generation."""

    def incoming(self, number: int, /) -> AbstractContextManager[Incoming]:
        """Return a context in which a new generation is written.

        An unpublished generation is removed at the end of the context.

        Raises:
            CompactionError: another run compacts this store.
        """
