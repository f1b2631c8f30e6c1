"""`spark.read.format("rockoon")`: CommitLogs of a store directory or a live cluster as a DataFrame.

    spark.read.format("rockoon").option("path", "/var/lib/rockoon/store").load()
    spark.read.format("rockoon").option("endpoint", "127.0.0.1:9876").load()
    CREATE TABLE orders USING rockoon OPTIONS (endpoint '127.0.0.1:9876', topics 'orders')

Spark finds the data source by the module `pyspark_rockoon`. If a schema is given, its columns are
read; their names and types are those of the data source.

A read of a live cluster returns the messages that were acknowledged before the read was planned.
Spark plans the read with the first action on the DataFrame and keeps the plan for later actions.

Options of a store directory:
    path: a store of Rockoon or RocketMQ; a local path, or a URI.
    broker: value of the column broker; by default the directory's name.
    s3Endpoint, s3Region, s3AccessKey, s3SecretKey, s3SessionToken, s3Timeout (seconds): settings of
        s3:// and s3a://; see `rockoon_spark.object_stores`.

Options of a live cluster:
    endpoint: nameservers, "host:port" separated by commas.
    brokers: names separated by commas; by default all.
    onBrokerAway: "fail" (default), or "skip" brokers that do not answer when the read is planned.
    tlsCa, tlsCertificate, tlsKey (files), tlsServerName, accessKey, accessSecret or
        accessSecretFile: of connections to the cluster; by default those of the environment.

Options of both:
    compacted: "true" (default): compacted topics are read as a consumer reads them: the newest
        message of each key up to the last compaction, and all later messages. "false": all messages
        that the log still contains.
    failOnDataLoss: "true" (default), or "false": messages that retention deletes during the read
        are skipped, with a warning. If a generation of compacted topics is replaced during the
        read, the read always fails: read again.
    columns: names separated by commas; by default all. Spark does not pass the columns of a query
        to a Python data source, so only columns excluded by this option or by a schema save time.
    includeHeaders: "false" leaves out the column properties, "true" adds it to `columns`.
    topics (or topic, subscribe): names separated by commas; topicPattern: with * and ?;
        subscribePattern: a regular expression.
    assign: queues, on every broker or on one: {"topic": [0, 1, "broker-a:2"]}.
    includeInternalTopics: "false" (default), or "true": internal topics of the brokers as well,
        such as SCHEDULE_TOPIC_XXXX and rmq_sys_wheel_timer with delayed messages that are not due.
    tags: names separated by commas; messages that have one of them.
    startingOffsets: "earliest" (default), or by queue, on every broker or on one:
        {"topic": {"0": 17, "broker-a:1": 5}}; other queues are read from their beginning. -2 means
        earliest. The queues must exist.
    endingOffsets: "latest" (default), or end offsets by queue, exclusive; -1 means latest.
    startingOffsetsByTimestamp, endingOffsetsByTimestamp: store times by queue in the same form,
        epoch milliseconds.
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

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from rockoon_core.valid_text import redacted
from rockoon_spark.source.column_names import columns_of
from rockoon_spark.source.option_table import SECRETS, OptionError, is_of_table, of_table
from rockoon_spark.spark_version import check_spark

if TYPE_CHECKING:
    import pyarrow as pa

    from rockoon_spark.sink import MessageStreamWriter, MessageWriter
    from rockoon_spark.source.log_reader import LogReader
    from rockoon_spark.stream.reader import QueueStreamReader

_INTS = frozenset({"queue", "reconsume_times", "flag", "sys_flag", "size"})
_LONGS = frozenset({"queue_offset", "physical_offset", "prepared_offset"})
_TYPES: Mapping[str, DataType] = {
    **dict.fromkeys(_INTS, IntegerType()),
    **dict.fromkeys(_LONGS, LongType()),
    "born_time": TimestampType(),
    "store_time": TimestampType(),
    "body": BinaryType(),
    "properties": MapType(StringType(), StringType()),
}
"""Types of the columns that are not texts."""


class RockoonDataSource(DataSource):
    """The data source that is registered with Spark; see the module.

    Spark starts a Python process for the schema of each `load()`, and another one for the plan, so
    this module imports little: imports cost more than a read of a small topic.
    """

    def __init__(self, options: dict[str, str]) -> None:
        check_spark()
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return "rockoon"

    def schema(self) -> StructType:
        # Batch and stream have other options; Spark does not pass which one is meant here, so the
        # other options are checked later.
        names = columns_of(of_table(self.options))
        schema = StructType([StructField(name, _TYPES.get(name, StringType())) for name in names])
        return _with_options(schema, self.options) if is_of_table(self.options) else schema

    def reader(self, schema: StructType) -> "LogReader":
        from rockoon_spark.source.log_reader import LogReader
        from rockoon_spark.source.options import SourceOptions

        return LogReader(SourceOptions.parse(_restored(self.options, schema), _arrow(schema)))

    def streamReader(self, schema: StructType) -> "QueueStreamReader":
        from rockoon_spark.stream.reader import QueueStreamReader

        return QueueStreamReader(_restored(self.options, schema), _arrow(schema))

    def writer(self, schema: StructType, overwrite: bool) -> "MessageWriter":
        from rockoon_spark.sink import MessageWriter, WriteOptions

        if overwrite:
            raise OptionError('messages are added to a topic, never replaced: use mode("append")')
        return MessageWriter(WriteOptions.parse(self.options, schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> "MessageStreamWriter":
        from rockoon_spark.sink import MessageStreamWriter, WriteOptions

        if overwrite:
            raise OptionError(
                'messages are added to a topic, never replaced: use outputMode("append")'
            )
        return MessageStreamWriter(WriteOptions.parse(self.options, schema))


_METADATA = "rockoon.options"


def _with_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Return the schema of a new table, with the options in the metadata of its first column.

    Spark stores a table's options, but does not pass them to a Python data source when the table is
    read, only the schema.

    Raises:
        OptionError: an option has a secret, which a catalogue would show.
    """
    own = of_table(options)
    secrets = SECRETS & own.keys()
    if redacted(own.get("path", "")) != own.get("path", ""):
        secrets |= {"path with a secret"}
    if secret := min(secrets, default=None):
        raise OptionError(
            f"option {secret} cannot be stored in a table: use the environment,"
            " accessSecretFile, or a temporary view"
        )
    first, *others = schema.fields
    named = StructField(first.name, first.dataType, first.nullable, {_METADATA: json.dumps(own)})
    return StructType([named, *others])


def _restored(options: Mapping[str, str], schema: StructType) -> dict[str, str]:
    """Return the options of a read, with those of the table that is read.

    Raises:
        OptionError: the table was created with columns, so that its options are unknown.
    """
    stored = (field.metadata.get(_METADATA) for field in schema.fields)
    found: dict[str, str] = next((json.loads(text) for text in stored if text), {})
    found |= of_table(options)
    if not found:
        raise OptionError(
            "Spark does not pass the options of a table that was created with a list of columns:"
            " create it without the list, with option columns, or create a temporary view"
        )
    return found


def _arrow(schema: StructType) -> "pa.Schema":
    """Convert a schema as Spark does when it checks rows."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")
