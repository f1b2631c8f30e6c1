"""`spark.read.format("rockoon")`: CommitLogs of a store directory or a live cluster as a DataFrame.

    spark.dataSource.register(RockoonDataSource)
    spark.read.format("rockoon").option("path", "/var/lib/rockoon/store").load()
    spark.read.format("rockoon").option("endpoint", "127.0.0.1:9876").load()

A read of a live cluster returns the messages that were acknowledged before the read was planned.
Spark plans the read with the first action on the DataFrame and keeps the plan for later actions.

Options of a store directory:
    path: a store of Rockoon or RocketMQ; a local path, or a URI.
    broker: value of the column broker; by default the directory's name.

Options of a live cluster:
    endpoint: nameservers, "host:port" separated by commas.
    brokers: names separated by commas; by default all.
    onBrokerAway: "fail" (default), or "skip" brokers that do not answer when the read is planned.

Options of both:
    compacted: "true" (default): compacted topics are read as a consumer reads them: the newest
        message of each key up to the last compaction, and all later messages. "false": all messages
        that the log still contains.
    failOnDataLoss: "true" (default), or "false": messages that retention deletes during the read
        are skipped, with a warning. If a generation of compacted topics is replaced during the
        read, the read always fails: read again.
    columns: names separated by commas; by default all. Spark does not pass the columns of a query
        to a Python data source, so only columns excluded by this option save time.
    topics (or topic): names separated by commas; `topicPattern`: with * and ?.
    includeInternalTopics: "false" (default), or "true": internal topics of the brokers as well,
        such as SCHEDULE_TOPIC_XXXX and rmq_sys_wheel_timer with delayed messages that are not due.
    tags: names separated by commas; messages that have one of them.
    startingOffsets: "earliest" (default), or by queue, on every broker or on one:
        {"topic": {"0": 17, "broker-a:1": 5}}; other queues are read from their beginning. -2 means
        earliest. The queues must exist.
    endingOffsets: "latest" (default), or end offsets by queue, exclusive; -1 means latest.
    startingTimestamp, endingTimestamp: store time as epoch milliseconds (11 to 13 digits) or ISO
        8601.
    onDamage: "fail" (default) with the physical offsets, or "skip" with a warning. Damage is bytes
        that belong to no record and, if the read needs bodies, properties or tags, messages with a
        wrong checksum.
    splitBytes: bytes of log that one task reads.

Rows that options exclude are not decoded. Conditions of a query (`where`) do not narrow the read:
Spark evaluates them on the rows
(`docs/adr/0029-narrow-spark-reads-by-options-not-by-conditions.md`).

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
from rockoon_spark.source.input_partition import LogInputPartition
from rockoon_spark.source.log_source import DamagedRange, rows
from rockoon_spark.source.options import OptionError, SourceOptions, columns_of, no_such_queue
from rockoon_spark.stream.reader import QueueStreamReader

log = logging.getLogger(__name__)


class DamagedLog(Exception):
    """The log that is read has damaged bytes."""


class RockoonDataSource(DataSource):
    """The data source that is registered with Spark; see the module."""

    @classmethod
    def name(cls) -> str:
        return "rockoon"

    def schema(self) -> StructType:
        # Batch and stream have other options; Spark does not pass which one is meant here, so the
        # other options are checked later.
        return from_arrow_schema(arrow_schema(columns_of(self.options.get("columns"))))

    def reader(self, schema: StructType) -> "LogReader":
        del schema
        return LogReader(SourceOptions.parse(self.options))

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
    """Plans a read of logs, and reads its partitions in tasks.

    It must not define `pushFilters`: Spark 4.1 to 4.3 reuse the plan of a query with a condition
    for other queries of the DataFrame, which then miss rows. It would also need a setting that is
    off by default in sessions of users.
    """

    def __init__(self, options: SourceOptions) -> None:
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
        # Spark creates a partition of another class if there are no partitions.
        if isinstance(partition, LogInputPartition):
            options = self._options
            yield from rows(
                partition.partition.read(), options.selection, options.columns, self._report
            )

    def _report(self, damage: DamagedRange) -> None:
        if not self._options.skips_damage:
            raise DamagedLog(f"{damage}; option onDamage=skip skips damaged bytes")
        log.warning("%s: skipped", damage)
