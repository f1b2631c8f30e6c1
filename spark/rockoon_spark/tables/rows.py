"""Messages as rows of an Iceberg table.

In a table of *raw* bodies, a column has the message column with its name. In a table of bodies in
*JSON*, a column has the field of the body with its name. If its name is "_" and the name of a
message column (`_queue_offset`, `_store_time`), the column has this message column instead.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform
from pyiceberg.types import (
    BinaryType,
    IcebergType,
    IntegerType,
    LongType,
    MapType,
    NestedField,
    StringType,
    TimestamptzType,
)

from rockoon_spark.records.columns import COLUMNS
from rockoon_spark.tables.json_bodies import JsonBodies, Undecodable

RAW, JSON = "raw", "json"

MESSAGE_COLUMNS: Mapping[str, IcebergType] = {
    "topic": StringType(),
    "broker": StringType(),
    "queue": IntegerType(),
    "queue_offset": LongType(),
    "keys": StringType(),
    "tags": StringType(),
    "body": BinaryType(),
    "properties": MapType(100, StringType(), 101, StringType(), value_required=False),
    "born_time": TimestamptzType(),
    "store_time": TimestamptzType(),
    "unique_key": StringType(),
}
"""Columns of a new table of raw bodies."""

ERROR = "error"
"""Column of a table of undecodable messages: the reason."""

_NULLABLE = frozenset({"keys", "tags", "unique_key"})


class UnusableTable(ValueError):
    """A table cannot have the messages: its columns do not fit."""


def raw_schema(*, with_error: bool) -> Schema:
    """Return the schema of a new table of raw bodies.

    Args:
        with_error: True for a table of undecodable messages.
    """
    kinds = {**MESSAGE_COLUMNS, ERROR: StringType()} if with_error else MESSAGE_COLUMNS
    fields = [
        NestedField(number, name, kind, required=False)
        for number, (name, kind) in enumerate(kinds.items(), 1)
    ]
    return Schema(*fields)


def by_store_date(schema: Schema) -> PartitionSpec:
    """Return the partitions of a new table of raw bodies: the dates of the store times, in UTC."""
    source = schema.find_field("store_time").field_id
    return PartitionSpec(PartitionField(source, 1000, DayTransform(), "store_date"))


@dataclass(frozen=True, slots=True)
class Undecoded:
    """A message whose body does not fit the table: its position in a batch, and the reason."""

    index: int
    reason: str


def _holds(wanted: pa.DataType, source: pa.DataType) -> bool:
    """True if a column can have all values of a message column."""
    types = pa.types
    if types.is_integer(source):
        return bool(types.is_integer(wanted) and wanted.bit_width >= source.bit_width)
    kinds = (types.is_large_string, types.is_large_binary, types.is_timestamp, types.is_map)
    sources = (types.is_string, types.is_binary, types.is_timestamp, types.is_map)
    return any(of(wanted) and like(source) for of, like in zip(kinds, sources, strict=True))


class TableRows:
    """Converts batches of messages to rows of one table.

    Args:
        schema: schema of the table.
        form: RAW or JSON.

    Raises:
        UnusableTable, UnsupportedColumn: the columns of the table do not fit.
    """

    def __init__(self, schema: Schema, form: str) -> None:
        self._arrow: pa.Schema = schema.as_arrow()
        prefix = "_" if form == JSON else ""
        self._sources = {
            field.name: field.name.removeprefix(prefix)
            for field in schema.fields
            if field.name.startswith(prefix) and field.name.removeprefix(prefix) in COLUMNS
        }
        own = [field for field in schema.fields if field.name not in self._sources]
        for field in schema.fields:
            if field.name in self._sources:
                self._check(field)
            elif form == RAW and field.required:
                raise UnusableTable(
                    f"column {field.name} is required, but a message has no such column:"
                    f" {', '.join(COLUMNS)}"
                )
        if form == RAW and not self._sources:
            raise UnusableTable(f"no column is one of a message: {', '.join(COLUMNS)}")
        self._own = [field.name for field in own] if form == JSON else []
        self._bodies = JsonBodies(own) if form == JSON else None

    def _check(self, field: NestedField) -> None:
        source = self._sources[field.name]
        wanted = self._arrow.field(field.name).type
        if not _holds(wanted, COLUMNS[source].type):
            raise UnusableTable(
                f"column {field.name} has type {field.field_type}, which cannot have the message"
                f" column {source} ({COLUMNS[source].type})"
            )
        if field.required and source in _NULLABLE:
            raise UnusableTable(f"column {field.name} is required, but a message may have none")

    @property
    def columns(self) -> Collection[str]:
        """Names of the message columns that the conversion needs."""
        return {*self._sources.values()} | ({"body"} if self._bodies else set())

    @property
    def empty(self) -> pa.Table:
        """A table without rows."""
        return self._arrow.empty_table()

    def of(self, messages: pa.RecordBatch) -> tuple[pa.Table, list[Undecoded]]:
        """Return the rows of the messages with a decodable body, and the other messages.

        Args:
            messages: a batch with `columns`; it may have more.
        """
        undecoded: list[Undecoded] = []
        values: Sequence[Sequence[Any]] = ()
        if self._bodies is not None:
            decoded, chosen = [], []
            for index, body in enumerate(messages.column("body").to_pylist()):
                try:
                    decoded.append(self._bodies.decode(body))
                except Undecodable as error:
                    undecoded.append(Undecoded(index, str(error)))
                else:
                    chosen.append(index)
            if undecoded:
                messages = messages.take(pa.array(chosen, pa.int64()))
            values = list(zip(*decoded, strict=True))
        own = dict(zip(self._own, values, strict=False))
        arrays = [
            messages.column(self._sources[field.name]).cast(field.type)
            if field.name in self._sources
            else pa.array(own.get(field.name, [None] * messages.num_rows), field.type)
            for field in self._arrow
        ]
        return pa.Table.from_arrays(arrays, schema=self._arrow), undecoded
