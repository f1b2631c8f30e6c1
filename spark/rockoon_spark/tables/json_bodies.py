"""Bodies in JSON as values of Iceberg's types.

| type | JSON value |
|---|---|
| boolean | true, false |
| int, long | a whole number in the type's range |
| float, double | a finite number in the type's range |
| decimal | a number, or a text with one, without more digits than the type has |
| string | a text |
| date, time | a text in ISO 8601 |
| timestamp | a text in ISO 8601 without a zone, or epoch milliseconds |
| timestamptz | a text in ISO 8601 (UTC without a zone), or epoch milliseconds |
| uuid | a text |
| binary, fixed | a text in base64 |
| list, struct | an array, an object |
| map | an object; its keys are texts |

A value of another kind is not converted, because readers of the table could not detect the error.
"""

import base64
import binascii
import json
import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, NoReturn

import pyarrow as pa
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
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

_SHOWN_CHARACTERS = 40
_FLOAT_MAX = float.fromhex("0x1.fffffep+127")
# More than the digits of any Iceberg decimal.
_DECIMAL_EXPONENT_MAX = 100
_EPOCH = datetime(1970, 1, 1)

Converter = Callable[[Any], Any]


class Undecodable(ValueError):
    """A body does not fit the table; the text says why."""


class UnsupportedColumn(ValueError):
    """A column of a table has a type for which no JSON value is defined."""


class JsonBodies:
    """Decodes bodies into the values of some columns.

    Args:
        fields: columns of the table; each has the value of the body's field with its name.

    Raises:
        UnsupportedColumn: a column has a type for which no JSON value is defined.
    """

    def __init__(self, fields: Sequence[NestedField]) -> None:
        self._fields = [(each.name, _of_field(each)) for each in fields]
        # A float cannot have all digits of a decimal.
        exact = any(_has_decimal(each.field_type) for each in fields)
        self._decoder = json.JSONDecoder(
            parse_float=Decimal if exact else None, parse_constant=_refuse_constant
        )

    def decode(self, body: bytes) -> list[Any]:
        """Return the values of the columns.

        Raises:
            Undecodable: the body is not a JSON object, or a field does not fit its column.
        """
        if not body:
            raise Undecodable("the body is empty")
        try:
            found = self._decoder.decode(body.decode())
        except RecursionError:
            raise Undecodable("the body is nested too deeply") from None
        except ValueError as error:
            raise Undecodable(f"the body is not JSON: {error}") from None
        try:
            if not isinstance(found, dict):
                raise Undecodable(f"the body is {_shown(found)}, not a JSON object")
            return [convert(found.get(name)) for name, convert in self._fields]
        except RecursionError:
            raise Undecodable("the body is nested too deeply") from None


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def _has_decimal(kind: IcebergType) -> bool:
    if isinstance(kind, StructType):
        return any(_has_decimal(each.field_type) for each in kind.fields)
    if isinstance(kind, ListType):
        return _has_decimal(kind.element_type)
    return isinstance(kind, DecimalType) or (
        isinstance(kind, MapType) and _has_decimal(kind.value_type)
    )


def _of_field(field: NestedField, path: str = "") -> Converter:
    """Return the converter of a column, of a field of a struct, or of an element."""
    name = f"{path}.{field.name}" if path else field.name
    convert = _of_type(field.field_type, name)
    required = field.required

    def checked(value: Any) -> Any:
        if value is None:
            if required:
                raise Undecodable(f"field {name} is missing or null")
            return None
        try:
            return convert(value)
        except Undecodable:
            raise
        except (ArithmeticError, TypeError, ValueError):
            raise Undecodable(f"field {name}: {_shown(value)} is no {field.field_type}") from None

    return checked


def _of_type(kind: IcebergType, path: str) -> Converter:
    if isinstance(kind, StructType):
        fields = [(each.name, _of_field(each, path)) for each in kind.fields]
        return lambda value: {name: convert(_of(dict, value).get(name)) for name, convert in fields}
    if isinstance(kind, ListType):
        element = _of_field(kind.element_field, path)
        return lambda value: [element(each) for each in _of(list, value)]
    if isinstance(kind, MapType) and isinstance(kind.key_type, StringType):
        item = _of_field(kind.value_field, path)
        return lambda value: [(_text(key), item(each)) for key, each in _of(dict, value).items()]
    if isinstance(kind, DecimalType):
        return _decimal_of(pa.decimal128(kind.precision, kind.scale))
    if isinstance(kind, FixedType):
        return _fixed_of(len(kind))
    # Arrow cannot build UUIDs within lists and structs.
    if type(kind) not in _PRIMITIVES or (isinstance(kind, UUIDType) and "." in path):
        raise UnsupportedColumn(f"column {path}: bodies in JSON cannot have values of type {kind}")
    return _PRIMITIVES[type(kind)]


def _of(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise TypeError
    return value


def _text(value: Any) -> str:
    text: str = _of(str, value)
    if not text.isascii():
        # JSON can have half of a surrogate pair, which no encoding has.
        text.encode()
    return text


def _integer_of(bits: int) -> Converter:
    least, most = -(1 << bits - 1), (1 << bits - 1) - 1

    def convert(value: Any) -> int:
        if not least <= _of(int, value) <= most:
            raise OverflowError
        return int(value)

    return convert


def _float_of(most: float) -> Converter:
    def convert(value: Any) -> float:
        if type(value) not in (int, float, Decimal):
            raise TypeError
        number = float(value)
        if not math.isfinite(number) or abs(number) > most:
            raise OverflowError
        return number

    return convert


def _decimal_of(kind: pa.DataType) -> Converter:
    def convert(value: Any) -> Decimal:
        if type(value) not in (str, int, float, Decimal):
            raise TypeError
        try:
            number = Decimal(str(value))
        except InvalidOperation:
            raise ValueError from None
        if not number.is_finite() or abs(number.adjusted()) > _DECIMAL_EXPONENT_MAX:
            raise OverflowError
        # Arrow refuses a number that would be rounded; ArrowInvalid is a ValueError.
        found: Decimal = pa.scalar(number, kind).as_py()
        return found

    return convert


def _bytes(value: Any) -> bytes:
    try:
        return base64.b64decode(_of(str, value), validate=True)
    except binascii.Error:
        raise ValueError from None


def _fixed_of(length: int) -> Converter:
    def convert(value: Any) -> bytes:
        found = _bytes(value)
        if len(found) != length:
            raise ValueError
        return found

    return convert


def _date(value: Any) -> date:
    return date.fromisoformat(_of(str, value))


def _time(value: Any) -> time:
    found = time.fromisoformat(_of(str, value))
    if found.tzinfo is not None:
        raise ValueError
    return found


def _timestamp(value: Any) -> datetime:
    if type(value) is int:
        return _EPOCH + timedelta(milliseconds=value)
    found = datetime.fromisoformat(_of(str, value))
    if found.tzinfo is not None:
        raise ValueError
    return found


def _timestamptz(value: Any) -> datetime:
    if type(value) is int:
        return (_EPOCH + timedelta(milliseconds=value)).replace(tzinfo=UTC)
    found = datetime.fromisoformat(_of(str, value))
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


def _uuid(value: Any) -> bytes:
    return uuid.UUID(_of(str, value)).bytes


_PRIMITIVES: Mapping[type[IcebergType], Converter] = {
    BooleanType: lambda value: _of(bool, value),
    IntegerType: _integer_of(32),
    LongType: _integer_of(64),
    FloatType: _float_of(_FLOAT_MAX),
    DoubleType: _float_of(math.inf),
    StringType: _text,
    DateType: _date,
    TimeType: _time,
    TimestampType: _timestamp,
    TimestamptzType: _timestamptz,
    UUIDType: _uuid,
    BinaryType: _bytes,
}
