"""Bodies in JSON as values of Iceberg's types, and bodies that are refused."""

import uuid
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from rockoon_spark.tables.json_bodies import JsonBodies, Undecodable, UnsupportedColumn
from rockoon_spark.tables.rows import JSON, RAW, TableRows, UnusableTable

TEXTS = ListType(50, StringType(), element_required=False)
NAMES = MapType(60, StringType(), 61, LongType(), value_required=False)
POINT = StructType(
    NestedField(70, "x", DoubleType(), required=True), NestedField(71, "y", DecimalType(9, 2))
)


def decoded(kind: IcebergType, text: str, *, required: bool = False) -> Any:
    """The value in the Arrow column of a body {"v": text}."""
    schema = Schema(NestedField(1, "v", kind, required=required))
    body = f'{{"v": {text}, "other": 1}}'.encode()
    batch = pa.RecordBatch.from_pydict({"body": pa.array([body], pa.binary())})
    rows, failed = TableRows(schema, JSON).of(batch)
    if failed:
        raise Undecodable(failed[0].reason)
    return rows.column("v").to_pylist()[0]


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (BooleanType(), "true", True),
        (IntegerType(), "-2147483648", -2147483648),
        (LongType(), "9223372036854775807", 9223372036854775807),
        (LongType(), "null", None),
        (FloatType(), "0.5", 0.5),
        (DoubleType(), "3", 3.0),
        (DoubleType(), "1e300", 1e300),
        (DecimalType(38, 2), "123456789012345678901234567890123456.78", None),
        (DecimalType(9, 2), '"1.50"', Decimal("1.50")),
        (DecimalType(9, 2), "7", Decimal("7.00")),
        (StringType(), '"\\u00fc\\ud83d\\ude00"', "ü😀"),
        (DateType(), '"2026-02-28"', date(2026, 2, 28)),
        (TimeType(), '"12:30:00.5"', time(12, 30, 0, 500_000)),
        (TimestampType(), '"2026-01-01T00:00:00.000001"', datetime(2026, 1, 1, 0, 0, 0, 1)),
        (TimestampType(), "1000", datetime(1970, 1, 1, 0, 0, 1)),
        (TimestamptzType(), '"2026-01-01T02:00+02:00"', datetime(2026, 1, 1, tzinfo=UTC)),
        (TimestamptzType(), '"2026-01-01"', datetime(2026, 1, 1, tzinfo=UTC)),
        (TimestamptzType(), "-1", datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)),
        (UUIDType(), '"00000000-0000-0000-0000-0000000000ff"', uuid.UUID(int=255)),
        (BinaryType(), '"AAH/"', b"\0\1\xff"),
        (FixedType(3), '"AAH/"', b"\0\1\xff"),
        (TEXTS, '["a", null]', ["a", None]),
        (NAMES, '{"a": 1, "b": null}', [("a", 1), ("b", None)]),
        (POINT, '{"x": 1, "y": 2.25, "z": 3}', {"x": 1.0, "y": Decimal("2.25")}),
    ],
    ids=str,
)
def test_a_value_of_the_column_s_type_is_in_the_row(
    kind: IcebergType, text: str, value: Any
) -> None:
    if isinstance(kind, DecimalType) and kind.precision == 38:
        value = Decimal(text)
    assert decoded(kind, text) == value


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        (BooleanType(), "1", "field v: 1 is no boolean"),
        (IntegerType(), "2147483648", "field v: 2147483648 is no int"),
        (LongType(), "true", "field v: true is no long"),
        (LongType(), "1.0", "field v: 1.0 is no long"),
        (LongType(), '"1"', 'field v: "1" is no long'),
        (FloatType(), "1e39", "is no float"),
        (DoubleType(), "1e999", "is no double"),
        (DoubleType(), "NaN", "the body is not JSON: NaN is not a JSON number"),
        (DecimalType(9, 2), "1.234", "is no decimal"),
        (DecimalType(9, 2), "12345678.90", "is no decimal"),
        (DecimalType(9, 2), '"Infinity"', "is no decimal"),
        (DecimalType(9, 2), '"1e1000000"', "is no decimal"),
        (StringType(), "5", "field v: 5 is no string"),
        (StringType(), '"\\ud800"', "is no string"),
        (DateType(), '"2026-02-30"', "is no date"),
        (TimeType(), '"12:00Z"', "is no time"),
        (TimestampType(), '"2026-01-01T00:00Z"', "is no timestamp"),
        (TimestampType(), "99999999999999999", "is no timestamp"),
        (TimestamptzType(), "1.5", "is no timestamptz"),
        (UUIDType(), '"x"', "is no uuid"),
        (BinaryType(), '"a"', "is no binary"),
        (FixedType(4), '"AAH/"', "is no fixed"),
        (TEXTS, '["a", 1]', "field v.element: 1 is no string"),
        (NAMES, '[["a", 1]]', "is no map"),
        (POINT, '{"y": 1}', "field v.x is missing or null"),
        (POINT, "7", "field v: 7 is no struct"),
        (LongType(), "[" * 100_000, "the body is nested too deeply"),
        (LongType(), "9" * 10_000, "the body is not JSON"),
    ],
    ids=lambda each: str(each)[:40],
)
def test_a_value_that_does_not_fit_is_refused_with_its_field(
    kind: IcebergType, text: str, reason: str
) -> None:
    with pytest.raises(Undecodable) as told:
        decoded(kind, text)
    assert reason in str(told.value)
    assert len(str(told.value)) < 200


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "the body is empty"),
        (b"[1]", "the body is [1], not a JSON object"),
        (b'{"v": 1', "the body is not JSON"),
        (b"\xff", "the body is not JSON"),
        (b"{}", "field v is missing or null"),
    ],
)
def test_a_body_that_is_no_object_is_refused(body: bytes, reason: str) -> None:
    with pytest.raises(Undecodable, match="^" + reason.replace("[", r"\[")):
        JsonBodies([NestedField(1, "v", LongType(), required=True)]).decode(body)


def test_a_table_that_cannot_have_the_messages_is_refused_at_the_start() -> None:
    for kind in (
        TimestampNanoType(),
        ListType(2, UUIDType()),
        MapType(3, LongType(), 4, LongType()),
    ):
        with pytest.raises(UnsupportedColumn, match="column v"):
            TableRows(Schema(NestedField(1, "v", kind)), JSON)
    with pytest.raises(UnusableTable, match="column queue_offset has type boolean"):
        TableRows(Schema(NestedField(1, "queue_offset", BooleanType())), RAW)
    with pytest.raises(UnusableTable, match="column price is required"):
        TableRows(Schema(NestedField(1, "price", LongType(), required=True)), RAW)
    with pytest.raises(UnusableTable, match="column _keys is required"):
        TableRows(Schema(NestedField(1, "_keys", StringType(), required=True)), JSON)
    with pytest.raises(UnusableTable, match="no column is one of a message"):
        TableRows(Schema(NestedField(1, "price", LongType())), RAW)


def test_a_body_of_any_depth_is_decoded_or_undecodable() -> None:
    """The description of a value needs more stack than its decoder."""
    bodies = JsonBodies([NestedField(1, "id", LongType())])
    for depth in range(1, 1100):
        with pytest.raises(Undecodable):
            bodies.decode(b"[" * depth + b"]" * depth)
