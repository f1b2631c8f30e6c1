"""Protobuf messages by hand: for large fields, which the library would copy twice on their way in
and three times on their way out.

Only what is length-delimited has a place here; the rest of a message is left to the library, which
takes serialised fields in any order.
"""

from collections.abc import Iterator
from typing import NamedTuple

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_VARINT_BYTES_MAX = 10
_LENGTH_BYTES_MAX = 5


class Field(NamedTuple):
    """A field of a serialised message; positions are those in the bytes that hold it."""

    number: int
    is_bytes: bool
    """Whether it is length-delimited. Of another kind it is not what the message's definition
    says of its number, but an unknown field."""
    begin: int
    """Where its tag is."""
    start: int
    """Where its value begins: behind the length, where it has one."""
    end: int


def varint(number: int) -> bytes:
    """A length, or a tag, as protobuf writes it."""
    if number < 1 << 14:
        # Most: a loop takes twice the steps.
        low = number & 0x7F
        return bytes((low,)) if number == low else bytes((low | 0x80, number >> 7))
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)


def number_tag(number: int) -> bytes:
    """The tag of a field that is a varint."""
    return varint(number << 3 | _VARINT)


def bytes_tag(number: int) -> bytes:
    """The tag of a length-delimited field."""
    return varint(number << 3 | _BYTES)


def fields(source: bytes, start: int, end: int) -> Iterator[Field]:
    """Fields of the message in `source[start:end]`, in their order.

    Raises:
        ValueError: it is none, or has groups: the library knows.
    """
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
            raise ValueError("a field that goes on behind its message")
        yield Field(tag >> 3, kind == _BYTES, begin, at, at + size)
        at += size


def _read_length(source: bytes, at: int) -> tuple[int, int]:
    """A tag or a length, and where it ends."""
    number, end = _read_varint(source, at)
    if end - at > _LENGTH_BYTES_MAX or number >> 32:
        raise ValueError("a tag or a length that is too long")
    return number, end


def _read_varint(source: bytes, at: int) -> tuple[int, int]:
    """A number, and where it ends."""
    # Tags and most lengths: a loop is five times as dear.
    if at < len(source) and (byte := source[at]) < 0x80:
        return byte, at + 1
    number = 0
    for place, byte in enumerate(source[at : at + _VARINT_BYTES_MAX]):
        number |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return number, at + place + 1
    raise ValueError("a number without an end")
