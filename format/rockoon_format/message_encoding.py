"""Messages of a producer as records: their properties are put together here too.

+---------------------+----------+----------+------+---------------------+-------+------------+
| in front, of each   | own.head | UNIQ_KEY | 0x02 | behind it, of each  | __SEQ | room for a |
| message (TAGS, ...) |          |          |      | message             |       | checksum   |
+---------------------+----------+----------+------+---------------------+-------+------------+
"""

import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rockoon_format import kernel
from rockoon_format.batch_encoding import compiled_fields, encode_batch
from rockoon_format.properties import PROPERTY_SEPARATOR
from rockoon_format.record import (
    AT_BORN_HOST,
    AT_BORN_TIMESTAMP,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTY_CRC_ROOM,
    TOPIC_V1_BYTES_MAX,
    encode_topic,
)
from rockoon_format.sequences import SECTION_BYTES, encode_sequences, sequence_front

_BORN_TIMESTAMP = struct.Struct(">q")
assert _BORN_TIMESTAMP.size == AT_BORN_HOST - AT_BORN_TIMESTAMP
# Of which it is kept what precedes the bodies of all their records.
QUEUES_MAX = 16384

Extras = tuple[bytes, bytes]
"""Encoded properties in front of UNIQ_KEY, and behind it."""


class FirstSequence(NamedTuple):
    """An idempotent producer's numbers for a batch."""

    producer_id: int
    first: int
    """Of its first message."""


class Envelope(NamedTuple):
    """A protobuf message around records and their sizes, which are written into it at once."""

    frames_tag: bytes
    """Of the field that has the records; one byte."""
    sizes_tag: bytes
    """Of the field that has their sizes; one byte."""
    rest: bytes
    """The other fields, serialised."""

    def around(self, frames: bytes, sizes: bytes) -> bytes:
        """The whole message."""
        lengths = _varint(len(frames)), _varint(len(sizes))
        first = (self.frames_tag, lengths[0], frames)
        return b"".join((*first, self.sizes_tag, lengths[1], sizes, self.rest))


class OwnProperties(NamedTuple):
    """What a producer adds to its messages' properties."""

    head: bytes
    """What precedes the value of UNIQ_KEY."""
    ids: bytes
    """The values, one after the other, each as long."""
    sequence: FirstSequence | None = None


def encode_messages(
    topic: bytes,
    queue_id: int,
    bodies: list[bytes],
    extras: dict[int, Extras],
    own: OwnProperties,
    born_timestamp_ms: int,
    born_host: bytes,
    sys_flags: int | NDArray[np.int32] = 0,
    envelope: Envelope | None = None,
) -> tuple[bytes, bytes]:
    """Encode messages of one queue as back-to-back records, with room for a checksum.

    Args:
        topic, queue_id: where to.
        bodies: n as they are to be stored, compressed or not; at least one.
        extras: by index, for messages that have properties of their own.
        own: what every message has.
        born_timestamp_ms, born_host, sys_flags: as of `encode_batch`.
        envelope: what is to be made of them.

    Returns:
        The frames, or the message with them, and each record's size, packed little-endian u32.

    Raises:
        ValueError: as `encode_batch`, and when a sequence number is out of its bounds.
        RecordError: the topic is too long.
    """
    if kernel.native is not None:
        sequence = b"" if own.sequence is None else sequence_front(*own.sequence, len(bodies))
        made: tuple[bytes, bytes] | None = None
        given = _given(topic, queue_id, sys_flags, born_timestamp_ms, born_host)
        if given is not None:
            head, topic_part, flags = given
            made = kernel.native.encode_messages(
                head,
                topic_part,
                PROPERTY_CRC_ROOM,
                own.head,
                own.ids,
                sequence,
                bodies,
                extras,
                flags,
                envelope and (envelope.frames_tag[0], envelope.sizes_tag[0], envelope.rest),
            )
        if made is not None:
            return made
    frames, lengths = encode_batch(
        topic,
        queue_id,
        bodies,
        _properties(len(bodies), extras, own),
        born_timestamp_ms,
        born_host,
        sys_flags=sys_flags,
        room=True,
    )
    sizes = lengths.astype("<u4").tobytes()
    return (envelope.around(frames, sizes) if envelope else frames), sizes


Given = tuple[bytes, bytes, bytes | None]
"""What precedes the body of every record, the topic behind its length, system flags that differ."""


def _given(
    topic: bytes,
    queue_id: int,
    sys_flags: int | NDArray[np.int32],
    born_timestamp_ms: int,
    born_host: bytes,
) -> Given | None:
    """What the kernel is given; None where a field does not fit."""
    if isinstance(sys_flags, int):
        alike = _alike(topic, queue_id, sys_flags, born_host)
        try:
            born = _BORN_TIMESTAMP.pack(born_timestamp_ms)
        except struct.error:
            return None
        if alike is None:
            return None
        head, topic_part, _ = alike
        return head[:AT_BORN_TIMESTAMP] + born + head[AT_BORN_HOST:], topic_part, None
    return _of_fields(topic, queue_id, sys_flags, born_timestamp_ms, born_host)


# A queue's batches differ in their time.
@lru_cache(QUEUES_MAX)
def _alike(topic: bytes, queue_id: int, sys_flags: int, born_host: bytes) -> Given | None:
    return _of_fields(topic, queue_id, sys_flags, 0, born_host)


def _of_fields(
    topic: bytes,
    queue_id: int,
    sys_flags: int | NDArray[np.int32],
    born_timestamp_ms: int,
    born_host: bytes,
) -> Given | None:
    magic = MAGIC_V2 if len(topic) > TOPIC_V1_BYTES_MAX else MAGIC_V1
    given = compiled_fields((magic, queue_id, 0, sys_flags, born_timestamp_ms, born_host))
    if given is None:
        return None
    head, (_, flags, _) = given
    return head, encode_topic(topic, magic), flags


def _varint(number: int) -> bytes:
    """A length as protobuf writes it."""
    groups = [number >> shift & 0x7F for shift in range(0, max(number.bit_length(), 1), 7)]
    return bytes([*(group | 0x80 for group in groups[:-1]), groups[-1]])


def _properties(count: int, extras: Mapping[int, Extras], own: OwnProperties) -> list[bytes]:
    """The properties of each message, a column at a time."""
    id_bytes = len(own.ids) // count
    fields = [("head", f"V{len(own.head)}"), ("id", f"V{id_bytes}"), ("end", "V1")]
    own_bytes = len(own.head) + id_bytes + 1
    if own.sequence is not None:
        fields.append(("sequence", f"V{SECTION_BYTES}"))
    sections = np.empty(count, np.dtype(fields))
    if own.sequence is not None:
        sections["sequence"] = encode_sequences(*own.sequence, count)
    sections["head"] = np.void(own.head)
    sections["id"] = np.frombuffer(own.ids, f"V{id_bytes}")
    sections["end"] = np.void(PROPERTY_SEPARATOR)
    # Structured items would leave NumPy as tuples.
    properties: list[bytes] = sections.view(f"V{sections.itemsize}").tolist()
    for index, (front, behind) in extras.items():
        section = properties[index]
        if behind:
            section = section[:own_bytes] + behind + section[own_bytes:]
        properties[index] = front + section
    return properties
