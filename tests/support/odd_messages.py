"""Valid protobuf messages with arbitrary content, made from their descriptors."""

import random
from collections.abc import Sequence
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message_factory import GetMessageClass

DEPTH_MAX = 4
ITEMS_MAX = 3
NUMBERS = (0, 1, 2, 3, -1, 7, 100, 4096, 1 << 31, (1 << 31) - 1, (1 << 62) + 1, (1 << 63) - 1)
TEXTS = (
    "", "a", "T", "g", "m1", "broker-a", " ", "a/b", "\0", "%RETRY%g", "%DLQ%", "é" * 40, "x" * 300,
    "x" * 20_000, "*", "a || b", "a > 1 AND", "7F0000010000", "F" * 32, "١٢", "-1", "../x",
    "[" * 2000,
)  # fmt: skip
BYTES = (b"", b"\0", b"a", b"\xff" * 8, b"{" * 3000, b"[" * 50_000, b"\x7f\0\0\x01\0\0*\x9f")

_WIDTHS = {
    FieldDescriptor.CPPTYPE_INT32: (-(1 << 31), (1 << 31) - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, (1 << 32) - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(1 << 63), (1 << 63) - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, (1 << 64) - 1),
}


def unary_methods(service: Any) -> Sequence[Any]:
    """Return the methods of a service's descriptor with one request and one reply."""
    return [
        method
        for method in service.methods
        if not method.client_streaming and not method.server_streaming
    ]


def odd_message(descriptor: Any, randomness: random.Random, depth: int = 0) -> Any:
    """Return a message of a type. Each field is unset, or has an unusual value of its type."""
    message = GetMessageClass(descriptor)()
    for field in descriptor.fields:
        if randomness.random() < 0.3:
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            key, value = field.message_type.fields
            if value.message_type is None:
                for _ in range(randomness.randrange(ITEMS_MAX)):
                    getattr(message, field.name)[_plain(key, randomness)] = _plain(
                        value, randomness
                    )
        elif field.message_type is not None:
            if depth < DEPTH_MAX:
                for _ in range(randomness.randrange(ITEMS_MAX) if field.is_repeated else 1):
                    part = odd_message(field.message_type, randomness, depth + 1)
                    place = getattr(message, field.name)
                    (place.add() if field.is_repeated else place).CopyFrom(part)
        elif field.is_repeated:
            items = [_plain(field, randomness) for _ in range(randomness.randrange(ITEMS_MAX))]
            getattr(message, field.name).extend(items)
        else:
            setattr(message, field.name, _plain(field, randomness))
    return message


def _plain(field: Any, randomness: random.Random) -> Any:
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_STRING:
        return randomness.choice(BYTES if field.type == FieldDescriptor.TYPE_BYTES else TEXTS)
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return randomness.random() < 0.5
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return randomness.choice([0, 1, 2, 3, 99, -1])
    if kind in _WIDTHS:
        least, most = _WIDTHS[kind]
        return min(max(randomness.choice(NUMBERS), least), most)
    return randomness.choice([0.0, -1.0, 1e308, float("inf"), float("nan")])
