"""Protobuf encoding by hand for large fields, because the library copies them twice to parse and
three times to serialize.

Only length-delimited fields are written here; the library handles the other fields of a message,
and accepts serialized fields in any order.
"""

from collections.abc import Iterator
from typing import NamedTuple

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_VARINT_BYTES_MAX = 10
_LENGTH_BYTES_MAX = 5


class Field(NamedTuple):
    """A field of a serialized message; positions refer to the whole bytes object."""

    number: int
    is_bytes: bool
    """True for a length-delimited field. Otherwise it is an unknown field, even if the message's
    definition has a field with this number."""
    begin: int
    """Position of the field's tag."""
    start: int
    """Position of the field's value, after its length if it has one."""
    end: int


def varint(number: int) -> bytes:
    """Encode a length or a tag."""
    if number < 1 << 14:
        # The common case without a loop, which is twice as slow.
        low = number & 0x7F
        return bytes((low,)) if number == low else bytes((low | 0x80, number >> 7))
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)


def number_tag(number: int) -> bytes:
    """Return the encoded tag of a varint field."""
    return varint(number << 3 | _VARINT)


def bytes_tag(number: int) -> bytes:
    """Return the encoded tag of a length-delimited field."""
    return varint(number << 3 | _BYTES)


def fields(source: bytes, start: int, end: int) -> Iterator[Field]:
    """Yield the fields of the message in `source[start:end]`, in order. Raises ValueError: the
    bytes are not a message, or contain groups, which only protobuf's own parser supports."""
    at = start
    while at < end:
        begin = at
        tag, at = _read_length(source, at)
        kind = tag & 7
        if kind == _BYTES:
            size, at = _read_length(source, at)
        elif kind == _VARINT:
            size = _read_varint(source, at)[1] - at
        elif kind in (_FIXED32, _FIXED64):
            size = 4 if kind == _FIXED32 else 8
        else:
            raise ValueError(f"a field of kind {kind}")
        if at + size > end:
            raise ValueError("a field that extends beyond its message")
        yield Field(tag >> 3, kind == _BYTES, begin, at, at + size)
        at += size


def _read_length(source: bytes, at: int) -> tuple[int, int]:
    """Decode a tag or a length; return it and the position after it."""
    number, end = _read_varint(source, at)
    if end - at > _LENGTH_BYTES_MAX or number >> 32:
        raise ValueError("a tag or a length that is too long")
    return number, end


def _read_varint(source: bytes, at: int) -> tuple[int, int]:
    """Decode a varint; return it and the position after it."""
    # Tags and most lengths are one byte: a loop is five times as slow.
    if at < len(source) and (byte := source[at]) < 0x80:
        return byte, at + 1
    number = 0
    for place, byte in enumerate(source[at : at + _VARINT_BYTES_MAX]):
        number |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return number, at + place + 1
    raise ValueError("a number without an end")
