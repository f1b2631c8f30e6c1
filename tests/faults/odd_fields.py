"""Valid requests in which one or a few fields have odd values."""

import gzip
import random
import zlib
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from functools import cache
from typing import Any

from faults.calls import DEPTH_MAX, Maker
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

STRINGS: Sequence[str] = (
    *("", " ", "x", "\0", "a\n b", "\x7f", "\x85", "a|b", "*", "||", "a||b", "a b", "é", "𝄞 "),
    *("x" * size for size in (64, 128, 255, 256, 300, 1025, 4097, 16_385, 40_000, 70_000)),
    *("é" * size for size in (64, 130, 700, 9_000)),
    *("%RETRY%fuzz", "%DLQ%fuzz", "%LITE%lite|one", "SCHEDULE_TOPIC_XXXX", "rmq_sys_x", "TBW102"),
    *("CID_RMQ_SYS_x", "SQL92: a >", "a = 1", "a BETWEEN 1 AND", "not" * 1000, "(" * 1000),
    *("0", "-1", "1e999", "9" * 40, "9" * 5000, "../../x", "a/b/c/d/e", "broker-a", "nowhere"),
    *("7fffffffffffffff@broker-a", "ffffffffffffffff@broker-a", "0000000000000001@nowhere"),
    *("0000000000000001@" + "x" * 3000, "0000000000000000@broker-a"),
    *("fuzz@broker-a:0/1/0/0", "fuzz@broker-a:0/1/9999999999999999999/0", "fuzz@b:-1/-1/-1/0"),
    *("fuzz@nowhere:0/1/0/0", f"fuzz@broker-a:0/{'9' * 30}/0/0", "fuzz@broker-a:99/1/0/0"),
    *(
        urlsafe_b64encode(f"v1 fuzz {text} 01".encode()).decode()
        for text in (
            *(
                "broker-a 0 A",
                "broker-a x A",
                f"nowhere {'9' * 30} 0A0000010000000100000000000000FF",
            ),
            *("broker-a -1 7F00000100002A9F7FFFFFFFFFFFFFFF", f"broker-a 0 {'F' * 32}", "a 0 \0"),
        )
    ),
)
# Seconds and nanoseconds.
TIMES: Sequence[tuple[int, int]] = (
    *((253_402_300_799, 999_999_999), (253_402_300_800, 0), (-62_135_596_800, 0)),
    *((-62_135_596_801, 0), (1 << 62, 0), ((1 << 63) - 1, (1 << 31) - 1), (-(1 << 63), 0)),
    *((0, -1), (0, 10**9), (0, (1 << 31) - 1), (0, -(1 << 31)), (1, -1), (-1, 0), (-1, 1)),
    *((315_576_000_000, 0), (315_576_000_001, 0), (-315_576_000_000, -999_999_999), (10**10, 0)),
    *((0, 0), (0, 1), (221_845_392_000, 0), (9_223_372_036_854_775, 0), (86_399, 0), (43_200, 1)),
)
ENUMS = (-(1 << 31), -1, 0, 7, 99, (1 << 31) - 1)
BODIES: Sequence[bytes] = (
    *(b"", b"\0", b"x" * 70_000, gzip.compress(b"packed"), gzip.compress(b"packed")[:-4]),
    *(zlib.compress(b"\0" * (5 << 20)), zlib.compress(b"packed")[:-3]),
)
MANY = (0, 2, 65, 1_500)
WHOLE_SECONDS = frozenset({"google.protobuf.Timestamp", "google.protobuf.Duration"})
# Replacement of a string that is not UTF-8: the same number of bytes.
_MARK = "\x01odd\x01"
_NO_UTF8 = b"\xff\xfe\xed\xa0\x80"


class OddFields:
    """Replaces fields.

    Args:
        chance: source of all random choices.
    """

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._maker = Maker(chance, {})

    def odd(self, request: Message) -> bytes:
        """Return a request with one to three odd fields, as bytes."""
        changed = type(request)()
        changed.CopyFrom(request)
        for _ in range(self._chance.choice((1, 1, 1, 2, 3))):
            self._change(changed)
        raw = changed.SerializeToString()
        return raw.replace(_MARK.encode(), _NO_UTF8)

    def _change(self, message: Message) -> None:
        """Change one field of a message or of a message in it, whether it is set or not."""
        descriptor = message.DESCRIPTOR
        if descriptor.full_name in WHOLE_SECONDS:
            self._change_time(message)
            return
        fields: list[Any] = list(descriptor.fields)
        if not fields:
            return
        # Messages with many fields more often, so that each field is changed.
        weights = [leaves(each) for each in fields]
        (field,) = self._chance.choices(fields, weights)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            self._change_map(message, field)
        elif field.is_repeated:
            self._change_repeated(message, field)
        elif field.message_type is not None:
            self._change_nested(message, field)
        elif self._chance.random() < 0.1:
            message.ClearField(field.name)
        else:
            setattr(message, field.name, self._value(field))

    def _change_time(self, time: Any) -> None:
        time.seconds, time.nanos = self._chance.choice(TIMES)

    def _change_nested(self, message: Message, field: FieldDescriptor) -> None:
        what = self._chance.random()
        nested = getattr(message, field.name)
        if what < 0.1:
            message.ClearField(field.name)
        elif what < 0.15:
            nested.Clear()
            nested.SetInParent()
        elif what < 0.25:
            nested.CopyFrom(self._maker.message(_nested(field)))
        else:
            self._change(nested)

    def _change_repeated(self, message: Message, field: FieldDescriptor) -> None:
        into = getattr(message, field.name)
        if field.message_type is not None and into and self._chance.random() < 0.6:
            self._change(self._chance.choice(into))
            return
        count = self._chance.choice(MANY)
        copies: list[Any]
        if field.message_type is not None:
            of = GetMessageClass(field.message_type)
            one = into[0] if into else self._maker.message(_nested(field))
            copies = [of.FromString(one.SerializeToString()) for _ in range(count)]
        else:
            longest = 300 if count > 65 else 1 << 20
            value = self._value(field)
            if isinstance(value, str):
                value = value[:longest]
            copies = [value] * count
            if isinstance(value, str) and self._chance.random() < 0.5:
                copies = [f"{number}-{value}" for number in range(count)]
        del into[:]
        into.extend(copies)

    def _change_map(self, message: Message, field: FieldDescriptor) -> None:
        into = getattr(message, field.name)
        entry = _nested(field)
        value = entry.fields_by_name["value"]
        if value.message_type is not None:
            into.clear()
            return
        if self._chance.random() < 0.3:
            for number in range(self._chance.choice(MANY)):
                into[f"key-{number}"] = "value"
        else:
            into[self._value(entry.fields_by_name["key"])] = self._value(value)

    def _value(self, field: FieldDescriptor) -> Any:
        chance = self._chance
        if field.enum_type is not None:
            numbers = [each.number for each in field.enum_type.values]
            return chance.choice([*ENUMS, *numbers])
        if field.type == FieldDescriptor.TYPE_STRING:
            return _MARK if chance.random() < 0.05 else chance.choice(STRINGS)
        if field.type == FieldDescriptor.TYPE_BYTES:
            return chance.choice(BODIES)
        return self._maker.value(field)


@cache
def leaves(field: FieldDescriptor, depth: int = 0) -> int:
    """Return the number of leaf fields in a field; a time counts as three."""
    nested = field.message_type
    if nested is None or nested.GetOptions().map_entry or depth > DEPTH_MAX:
        return 1
    if nested.full_name in WHOLE_SECONDS:
        return 3
    return max(1, sum(leaves(each, depth + 1) for each in nested.fields))


def _nested(field: FieldDescriptor) -> Descriptor:
    nested = field.message_type
    assert nested is not None
    return nested
