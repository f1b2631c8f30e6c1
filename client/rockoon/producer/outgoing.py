"""Outgoing messages: checks of topic, body and properties, and encoding of batches as records.

`send` encodes the properties of a message as two byte strings: those before UNIQ_KEY (TAGS first,
where the broker reads them) and those after it; a message without properties has neither.

A message has at most one of these arguments for a delay, which is encoded as a property:

- `delay_level`: delay by a level from 1: 1s 5s 10s 30s 1m 2m ... 2h;
- `delay_seconds`: delay after the broker has stored the message;
- `deliver_at`: time of delivery, a datetime with a time zone, or epoch seconds.

Delayed messages have no order, and even an idempotent producer can store one twice. The
`offset_message_id` of its result cancels it.
"""

import datetime
import math
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from rockoon.compression import LEVEL_DEFAULT, PACKED_BYTES_MIN, Compression, pack
from rockoon.errors import (
    BodyTooLarge,
    InvalidArgument,
    InvalidDelay,
    InvalidProperty,
    InvalidTopicName,
    KeyMissing,
    PropertiesTooLarge,
)
from rockoon_core.clock import Clock
from rockoon_format.batch_encoding import Envelope, FirstSequence, OwnProperties, encode_messages
from rockoon_format.message_id import UniqueKeys
from rockoon_format.names import is_system_topic, topic_fault
from rockoon_format.properties import (
    KEY_SEPARATOR,
    PROPERTIES_BYTES_MAX,
    PROPERTY_DELAY_TIME_LEVEL,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_UNIQ_KEY,
    RESERVED_NAMES,
    TRANSIENT_PREFIX,
)
from rockoon_format.record import PROPERTY_CRC_BYTES
from rockoon_format.sequences import SECTION_BYTES as SEQUENCE_BYTES

BODY_BYTES_MAX = 4 << 20

_UNIQ_KEY_HEAD = f"{PROPERTY_UNIQ_KEY}\x01".encode()
# The longest UNIQ_KEY has 56 digits (IPv6). The limit must not depend on the host's address.
_UNIQ_KEY_BYTES_MAX = len(_UNIQ_KEY_HEAD) + 56 + 1
OWN_BYTES_MAX = _UNIQ_KEY_BYTES_MAX + PROPERTY_CRC_BYTES
"""Maximum of bytes that a producer adds to the properties of a message."""
SEQUENCED_BYTES_MAX = OWN_BYTES_MAX + SEQUENCE_BYTES
"""Maximum of bytes that an idempotent producer adds to the properties of a message."""

# Longer properties rarely repeat, and the cache would keep them in memory.
REPEATED_CHARS_MAX = 128

Body = bytes | bytearray | memoryview
Extras = tuple[bytes, bytes]
"""Encoded properties before UNIQ_KEY, and after it."""


def check_topic(topic: str) -> None:
    """Check that messages can be sent to a topic of this name. Raises InvalidArgument: it is not a
    str; InvalidTopicName: the name is invalid, or the topic is internal to the broker."""
    if not isinstance(topic, str):
        raise InvalidArgument(reason=f"a topic is a str, not {type(topic).__name__}")
    if fault := topic_fault(topic):
        raise InvalidTopicName(topic=topic, reason=fault)
    if is_system_topic(topic):
        raise InvalidTopicName(topic=topic, reason="it belongs to the broker")


def to_body(body: object) -> bytes:
    """Return a body as `bytes`; a copy, because the caller may modify a bytearray. Raises
    InvalidArgument: it is not bytes-like."""
    if isinstance(body, (bytes, bytearray, memoryview)):
        return bytes(body)
    hint = ": encode it first" if isinstance(body, str) else ""
    raise InvalidArgument(reason=f"a body is bytes, not {type(body).__name__}{hint}")


def body_too_large(size: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"a body of {size} bytes is larger than {BODY_BYTES_MAX} bytes",
        index=0,
        limit=BODY_BYTES_MAX,
    )


def encode_extras(
    keys: str | Sequence[str] | None,
    tags: str | None,
    properties: Mapping[str, str] | None,
    own_bytes: int = OWN_BYTES_MAX,
) -> Extras:
    """Return the encoded properties of a message, without its UNIQ_KEY.

    Args:
        keys, tags, properties: as for `Producer.send`.
        own_bytes: bytes that the producer adds.

    Raises:
        InvalidProperty: the name is reserved, name or value is empty, not a str or contains a
            separator.
        PropertiesTooLarge: they have more than 32767 bytes with the UNIQ_KEY.
    """
    if tags is not None and not isinstance(tags, str):
        raise InvalidProperty(name=PROPERTY_TAGS, reason=f"{tags!r} is not one text")
    if keys is None and tags is not None and not properties:
        extras = _tags_extras(tags)
        # Not checked in `_tags_extras`: a cache is fastest if its only key is a str.
        if len(extras[0]) > PROPERTIES_BYTES_MAX - own_bytes:
            check_extras(extras, own_bytes)
        return extras
    head = b"" if tags is None else _tags_extras(tags)[0]
    if keys is not None:
        if not isinstance(keys, Iterable):
            reason = f"{keys!r} is neither a text nor a sequence of them"
            raise InvalidProperty(name=PROPERTY_KEYS, reason=reason)
        head += _section(PROPERTY_KEYS, keys if isinstance(keys, str) else _join(tuple(keys)))
    tail = b""
    if properties:
        tail = b"".join([_own_section(*each) for each in properties.items()])
    return _bounded(head, tail, own_bytes)


def check_keys(topic: str, keys: str | Sequence[str] | None) -> None:
    """Raise KeyMissing if a message for a compacted topic has no key."""
    blank = not keys.strip(KEY_SEPARATOR) if isinstance(keys, str) else not keys
    if blank:
        raise KeyMissing(f"a message for compacted topic {topic!r} needs keys=", topic=topic)


def with_section(extras: Extras | None, section: bytes) -> Extras:
    """Return a message's properties with one more encoded property; raises PropertiesTooLarge."""
    head, tail = extras or (b"", b"")
    return _bounded(head, tail + section)


def _bounded(head: bytes, tail: bytes, own_bytes: int = OWN_BYTES_MAX) -> Extras:
    check_extras((head, tail), own_bytes)
    return head, tail


def check_extras(extras: Extras, own_bytes: int = OWN_BYTES_MAX) -> None:
    """Check the size of properties.

    Args:
        extras: from `encode_extras`.
        own_bytes: bytes that the producer adds.

    Raises:
        PropertiesTooLarge: they have more than 32767 bytes together.
    """
    size = len(extras[0]) + len(extras[1]) + own_bytes
    if size > PROPERTIES_BYTES_MAX:
        raise PropertiesTooLarge(
            f"properties of {size} bytes are larger than {PROPERTIES_BYTES_MAX} bytes",
            index=0,
            limit=PROPERTIES_BYTES_MAX,
        )


def _reserved_reason(name: str) -> str:
    if name in (PROPERTY_KEYS, PROPERTY_TAGS):
        return f"pass {name.lower()}= to send"
    return "the name is reserved"


def _join(keys: Sequence[str]) -> str:
    for key in keys:
        if not isinstance(key, str) or not key or KEY_SEPARATOR in key:
            reason = f"{key!r} is no key: a key is a str, not empty and without spaces"
            raise InvalidProperty(name=PROPERTY_KEYS, reason=reason)
    return KEY_SEPARATOR.join(keys)


# A topic has few different tags, and most messages have no other properties.
@lru_cache(maxsize=1024)
def _tags_extras(tags: str) -> Extras:
    return _section(PROPERTY_TAGS, tags), b""


def _own_section(name: str, value: str) -> bytes:
    """Return a property of the program, encoded; from a cache if it is short."""
    if type(name) is str and type(value) is str and len(name) + len(value) <= REPEATED_CHARS_MAX:
        return _repeated_section(name, value)
    return _repeated_section.__wrapped__(name, value)


@lru_cache(maxsize=4096)
def _repeated_section(name: str, value: str) -> bytes:
    if isinstance(name, str) and (name in RESERVED_NAMES or name.startswith(TRANSIENT_PREFIX)):
        raise InvalidProperty(name=name, reason=_reserved_reason(name))
    return _section(name, value)


def _section(name: str, value: str) -> bytes:
    if not isinstance(name, str) or not isinstance(value, str):
        raise InvalidProperty(name=name, reason="names and values are str")
    if not name or not value:
        raise InvalidProperty(name=name, reason="the name or the value is empty")
    if "\x01" in value or "\x02" in value or "\x01" in name or "\x02" in name:
        separator = "\x01" if "\x01" in name + value else "\x02"
        raise InvalidProperty(
            name=name, reason=f"the name or the value contains the separator {separator!r}"
        )
    try:
        return f"{name}\x01{value}\x02".encode()
    except UnicodeEncodeError:
        raise InvalidProperty(
            name=name, reason="the name or the value is not valid Unicode"
        ) from None


@dataclass(frozen=True, slots=True)
class Packing:
    """Compression of bodies; see `ProducerSettings`."""

    compression: Compression = Compression.NONE
    bytes_min: int = PACKED_BYTES_MIN
    level: int = LEVEL_DEFAULT

    def packed(self, bodies: list[bytes]) -> tuple[list[bytes], int | NDArray[np.int32]]:
        """Return the bodies to store, and the system flags of their records."""
        if self.compression is Compression.NONE or max(map(len, bodies)) < self.bytes_min:
            return bodies, 0
        stored = list(bodies)
        flags = np.zeros(len(bodies), np.int32)
        for index, body in enumerate(bodies):
            if len(body) >= self.bytes_min:
                stored[index], flags[index] = pack(body, self.compression, self.level)
        return stored, flags


NOT_PACKED = Packing()


class BatchEncoder:
    """Encoder of records and message ids.

    Args:
        born_host: address of this process in the format of a record, 8 or 20 bytes.
        instance_hash: distinguishes the producers of a process, 32 bits.
        clock: epoch milliseconds.
        packing: compression of the bodies.
    """

    def __init__(
        self, born_host: bytes, instance_hash: int, clock: Clock, packing: Packing = NOT_PACKED
    ) -> None:
        self.born_host = born_host
        self._packing = packing
        self._clock = clock
        self._month_end_ms = 0
        address = born_host[:-4]
        month_start_ms = self._find_month(clock())
        self._unique_keys = UniqueKeys(address, os.getpid(), instance_hash, month_start_ms)

    def next_ids(self, count: int) -> bytes:
        """Return `count` new UNIQ_KEYs, concatenated."""
        now_ms = self._clock()
        if now_ms >= self._month_end_ms:
            self._unique_keys.begin_month(self._find_month(now_ms))
        return self._unique_keys.take(count, now_ms)

    def encode(
        self,
        topic: bytes,
        queue_id: int,
        bodies: list[bytes],
        extras: dict[int, Extras],
        ids: bytes,
        born_timestamp_ms: int,
        sequence: tuple[int, int] | None = None,
        envelope: Envelope | None = None,
    ) -> tuple[bytes, bytes]:
        """Return the records of a batch, and their sizes packed as little-endian u32.

        Args:
            topic: the topic in UTF-8.
            queue_id: the queue on its broker.
            bodies: n bodies.
            extras: by index, for messages with more properties than UNIQ_KEY.
            ids: n UNIQ_KEYs from `next_ids`.
            born_timestamp_ms: epoch milliseconds, for all messages.
            sequence: producer id and first number of an idempotent producer.
            envelope: if given, a serialised request with the records is returned instead of them.
        """
        stored: list[bytes] = bodies
        flags: int | NDArray[np.int32] = 0
        if self._packing.compression is not Compression.NONE:
            stored, flags = self._packing.packed(bodies)
        first = sequence and FirstSequence(*sequence)
        # `OwnProperties(...)` would be another Python call.
        own = tuple.__new__(OwnProperties, (_UNIQ_KEY_HEAD, ids, first))
        return encode_messages(
            topic,
            queue_id,
            stored,
            extras,
            own,
            born_timestamp_ms,
            self.born_host,
            flags,
            envelope,
        )

    def _find_month(self, now_ms: int) -> int:
        now = time.localtime(now_ms / 1000)
        start = time.mktime((now.tm_year, now.tm_mon, 1, 0, 0, 0, 0, 0, -1))
        end = time.mktime((now.tm_year, now.tm_mon + 1, 1, 0, 0, 0, 0, 0, -1))
        self._month_end_ms = int(end) * 1000
        return int(start) * 1000


DELAY_SECONDS_MAX = 10**9
DELAY_LEVEL_MAX = 10**6


def delay_section(
    delay_level: int | None,
    delay_seconds: float | None,
    deliver_at: datetime.datetime | float | None,
) -> bytes:
    """Return the encoded property of a delay.

    Args:
        delay_level: from 1; index in the broker's `delay_levels`, a higher one means the last.
        delay_seconds: seconds after the broker has stored it, rounded up to milliseconds.
        deliver_at: a datetime with a time zone, or epoch seconds.

    Raises:
        InvalidArgument: none or more than one of the three is given.
        InvalidDelay: the value has a wrong type or is out of its bounds.
    """
    given = [delay_level is not None, delay_seconds is not None, deliver_at is not None]
    if sum(given) != 1:
        raise InvalidArgument(reason="give one of delay_level, delay_seconds and deliver_at")
    if delay_level is not None:
        if type(delay_level) is not int or not 1 <= delay_level <= DELAY_LEVEL_MAX:
            raise _invalid_delay(f"a delay level is a number from 1, not {delay_level!r}")
        return _delay_property(PROPERTY_DELAY_TIME_LEVEL, delay_level)
    if delay_seconds is not None:
        return _delay_property(
            PROPERTY_TIMER_DELAY_MS, _milliseconds(delay_seconds, "delay_seconds")
        )
    if isinstance(deliver_at, datetime.datetime):
        if deliver_at.tzinfo is None:
            raise _invalid_delay(f"deliver_at {deliver_at} has no time zone")
        deliver_at = deliver_at.timestamp()
    if (
        deliver_at is not None
        and isinstance(deliver_at, int | float)
        and deliver_at > DELAY_SECONDS_MAX
    ):
        if deliver_at > 100 * DELAY_SECONDS_MAX:
            raise _invalid_delay(f"deliver_at is {deliver_at!r}: it must be epoch seconds")
        return _delay_property(PROPERTY_TIMER_DELIVER_MS, math.ceil(deliver_at * 1000))
    return _delay_property(PROPERTY_TIMER_DELIVER_MS, _milliseconds(deliver_at, "deliver_at"))


def _milliseconds(seconds: object, name: str) -> int:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise _invalid_delay(f"{name} is a number of seconds, not {seconds!r}")
    if not 0 <= seconds <= DELAY_SECONDS_MAX:
        raise _invalid_delay(f"{name} is {seconds!r}, not a number of seconds from 0")
    return math.ceil(seconds * 1000)


def _delay_property(name: str, value: int) -> bytes:
    return f"{name}\x01{value}\x02".encode()


def _invalid_delay(reason: str) -> InvalidDelay:
    return InvalidDelay(index=0, reason=reason)
