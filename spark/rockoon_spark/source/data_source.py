"""`spark.read.format("rockoon")`: CommitLogs as a DataFrame, of a store's files or a live cluster.

    spark.dataSource.register(RockoonDataSource)
    spark.read.format("rockoon").option("path", "/var/lib/rockoon/store").load()
    spark.read.format("rockoon").option("endpoint", "127.0.0.1:9876").load()

A live cluster is read as it is when the read is planned: whatever was acknowledged before is there,
nothing that comes later. Spark plans it with the first action on what `load` returned, and keeps
the plan for every later one.

Options of a store directory:
    path: Rockoon's or RocketMQ's; a path of this machine, or a URI.
    broker: what the column of that name says; by default the directory's name.

Options of a live cluster:
    endpoint: nameservers, "host:port" separated by commas.
    brokers: names separated by commas; by default all.
    onBrokerAway: "fail" (default), or "skip" brokers that do not answer when the read is planned.

Options of both:
    compacted: "true" (default): of topics that were compacted, what a consumer gets: of each key
        the newest message up to the last compaction, and all that came since. "false": the log as
        it is, with every version that is still there.
    failOnDataLoss: "true" (default), or "false": what retention deletes while it is read is left
        out, with a warning. A generation of compacted topics that another replaces while it is read
        always fails the read: read again.
    columns: names separated by commas; by default all. Spark does not tell a Python data source
        which columns a query uses, so naming them saves what the others cost.
    topics (or topic): names separated by commas; `topicPattern`: with * and ?.
    includeInternalTopics: "false" (default), or "true": topics of the brokers' own as well, such as
        SCHEDULE_TOPIC_XXXX and rmq_sys_wheel_timer, which hold delayed messages until they are due.
    tags: names separated by commas; messages that have one of them.
    startingOffsets: "earliest" (default), or by queue, on every broker or on one:
        {"topic": {"0": 17, "broker-a:1": 5}}; other queues are read from their beginning. -2 means
        earliest. The queues have to exist.
    endingOffsets: "latest" (default), or likewise the offsets behind the last; -1 means latest.
    startingTimestamp, endingTimestamp: store time as epoch milliseconds (11 to 13 digits) or ISO
        8601.
    onDamage: "fail" (default) with the place, or "skip" with a warning: bytes that belong to no
        record, and, where bodies or properties are read or tags select, messages that do not
        have their checksum.
    splitBytes: bytes of log that one task reads.

What options leave out is not decoded. Conditions of a query (`where`) are Spark's alone: it reads
rows to check them (`docs/adr/0029-narrow-spark-reads-by-options-not-by-conditions.md`).

Streams are described in `rockoon_spark.stream.reader`, writing in `rockoon_spark.sink`.
"""

import logging
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from rockoon_spark.records.columns import arrow_schema
from rockoon_spark.sink import MessageStreamWriter, MessageWriter, WriteOptions
from rockoon_spark.source.log_source import DamagedRange, LogPartition
from rockoon_spark.source.options import OptionError, ReadOptions, columns_of, no_such_queue
from rockoon_spark.source.rows import rows
from rockoon_spark.stream.reader import QueueStreamReader

log = logging.getLogger(__name__)


class DamagedLog(Exception):
    """Bytes of a log are not what was stored."""


class LogInputPartition(InputPartition):
    """One task's partition of a log."""

    def __init__(self, partition: LogPartition) -> None:
        super().__init__(partition)
        self.partition = partition


class RockoonDataSource(DataSource):
    """Spark's way in; see the module."""

    @classmethod
    def name(cls) -> str:
        return "rockoon"

    def schema(self) -> StructType:
        # Whether it is a stream is not told here; the other options are looked at later.
        return from_arrow_schema(arrow_schema(columns_of(self.options.get("columns"))))

    def reader(self, schema: StructType) -> "LogReader":
        del schema
        return LogReader(ReadOptions.parse(self.options))

    def streamReader(self, schema: StructType) -> QueueStreamReader:
        del schema
        return QueueStreamReader(self.options)

    def writer(self, schema: StructType, overwrite: bool) -> MessageWriter:
        if overwrite:
            raise OptionError('messages are added to a topic, never replaced: use mode("append")')
        return MessageWriter(WriteOptions.parse(self.options, schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> MessageStreamWriter:
        if overwrite:
            raise OptionError(
                'messages are added to a topic, never replaced: use outputMode("append")'
            )
        return MessageStreamWriter(WriteOptions.parse(self.options, schema))


class LogReader(DataSourceReader):
    """Reads logs, wherever they are.

    It must not have `pushFilters`: Spark 4.1 to 4.3 keep the plan of a query with a condition for
    other queries of the DataFrame, which then miss rows. And having it would need a setting that is
    off in sessions of others.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        if options.selection.is_empty:
            return []
        absent = options.source.absent(options.topics)
        if absent:
            raise OptionError(f"option topics: topic {absent[0]!r} does not exist")
        for name, queues in options.bounded.items():
            if unknown := options.source.absent_queues(queues):
                raise no_such_queue(name, unknown[0])
        partitions = options.source.partitions(options.selection, options.split_bytes)
        return [LogInputPartition(partition) for partition in partitions]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark makes a partition of its own where there are none to read.
        if isinstance(partition, LogInputPartition):
            options = self._options
            yield from rows(
                partition.partition.read(), options.selection, options.columns, self._report
            )

    def _report(self, damage: DamagedRange) -> None:
        if not self._options.skips_damage:
            raise DamagedLog(f"{damage}; option onDamage=skip reads on behind them")
        log.warning("%s: skipped", damage)
