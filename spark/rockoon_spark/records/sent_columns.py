"""Columns that a broker cut from its records, so that the bytes of other columns are not sent."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from rockoon_proto.v1 import broker_pb2
from rockoon_proto.v1.broker_pb2 import LogColumns
from rockoon_spark.records.columns import arrow_schema
from rockoon_spark.records.properties import repeated

_NUMBERS: Mapping[str, broker_pb2.LogColumn] = {
    "topic": broker_pb2.COLUMN_TOPIC,
    "queue": broker_pb2.COLUMN_QUEUE,
    "queue_offset": broker_pb2.COLUMN_QUEUE_OFFSET,
    "physical_offset": broker_pb2.COLUMN_PHYSICAL_OFFSET,
    "keys": broker_pb2.COLUMN_KEYS,
    "tags": broker_pb2.COLUMN_TAGS,
    "body": broker_pb2.COLUMN_BODY,
    "born_time": broker_pb2.COLUMN_BORN_TIME,
    "store_time": broker_pb2.COLUMN_STORE_TIME,
    "reconsume_times": broker_pb2.COLUMN_RECONSUME_TIMES,
    "prepared_offset": broker_pb2.COLUMN_PREPARED_OFFSET,
    "flag": broker_pb2.COLUMN_FLAG,
    "sys_flag": broker_pb2.COLUMN_SYS_FLAG,
    "size": broker_pb2.COLUMN_SIZE,
    "unique_key": broker_pb2.COLUMN_UNIQUE_KEY,
}
# The reader knows it.
_BROKER = "broker"


def numbers_of(columns: Sequence[str]) -> list[broker_pb2.LogColumn]:
    """Return the columns that a request to a broker names; empty if rows of these columns need
    whole records.

    Args:
        columns: names of `columns.COLUMNS`.
    """
    asked = [name for name in columns if name != _BROKER]
    return [_NUMBERS[name] for name in asked] if _NUMBERS.keys() >= set(asked) else []


@dataclass(frozen=True, slots=True)
class SentColumns:
    """Columns of some records.

    Args:
        message: as the broker sent it.
        numbers: the columns in it, in order.
        broker: its name.
    """

    message: LogColumns
    numbers: Sequence[int]
    broker: str

    def to_batch(self, columns: Sequence[str]) -> pa.RecordBatch:
        """Return the named columns, in this order.

        Raises:
            ValueError: the message has other columns than `numbers`, or a buffer is too short.
        """
        sent = dict(zip(self.numbers, self.message.columns, strict=True))
        count, schema = self.message.records, arrow_schema(columns)
        arrays = [
            repeated(self.broker, count)
            if field.name == _BROKER
            else _array(field.type, count, sent[_NUMBERS[field.name]])
            for field in schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(kind: pa.DataType, count: int, sent: broker_pb2.LogColumnValues) -> pa.Array:
    validity = sent.validity
    buffers = [pa.py_buffer(validity) if validity else None]
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        buffers.append(pa.py_buffer(sent.bounds))
    return pa.Array.from_buffers(kind, count, [*buffers, pa.py_buffer(sent.values)])
