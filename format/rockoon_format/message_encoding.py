"""Encodes messages of a producer as records. The properties of a record:

+---------------------+----------+----------+------+---------------------+-------+------------+
| front properties of | own.head | UNIQ_KEY | 0x02 | other properties of | __SEQ | space for  |
| the message (TAGS)  |          |          |      | the message         |       | a checksum |
+---------------------+----------+----------+------+---------------------+-------+------------+
"""

import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rockoon_format import kernel
from rockoon_format.batch_encoding import encode_batch, kernel_fields
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
# Queues whose record heads (all fields in front of the body) are cached.
QUEUES_MAX = 16384

Extras = tuple[bytes, bytes]
"""Encoded properties of a message in front of UNIQ_KEY, and after it."""


class FirstSequence(NamedTuple):
    """An idempotent producer's numbers for a batch."""

    producer_id: int
    first: int
    """Number of its first message."""


class Envelope(NamedTuple):
    """A protobuf message that contains records and their sizes. The kernel encodes the records
    directly into the message."""

    frames_tag: bytes
    """Tag of the field with the records; one byte."""
    sizes_tag: bytes
    """Tag of the field with their sizes; one byte."""
    rest: bytes
    """The other fields, serialised."""

    def around(self, frames: bytes, sizes: bytes) -> bytes:
        """The whole message."""
        lengths = _varint(len(frames)), _varint(len(sizes))
        first = (self.frames_tag, lengths[0], frames)
        return b"".join((*first, self.sizes_tag, lengths[1], sizes, self.rest))


class OwnProperties(NamedTuple):
    """Properties that a producer adds to its messages."""

    head: bytes
    """Name and separator in front of the value of UNIQ_KEY."""
    ids: bytes
    """The values of UNIQ_KEY, back to back, all of one length."""
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
    """Encode messages of one queue as back-to-back records, with space for a checksum.

    Args:
        topic, queue_id: the message queue.
        bodies: n bodies in stored form, compressed or not; at least one.
        extras: properties of messages, by index of the message; a message may have none.
        own: properties of the producer, for every message.
        born_timestamp_ms, born_host, sys_flags: as for `encode_batch`.
        envelope: the protobuf message to encode; None: records only.

    Returns:
        The records, or the message that contains them, and the size of each record, packed
        little-endian u32.

    Raises:
        ValueError: as `encode_batch`, and if a sequence number is out of its bounds.
        RecordError: the topic is too long.
    """
    sequence = b"" if own.sequence is None else sequence_front(*own.sequence, len(bodies))
    given = _given(topic, queue_id, sys_flags, born_timestamp_ms, born_host)
    if given is not None:
        head, topic_part, flags = given
        made: tuple[bytes, bytes] | None = kernel.native.encode_messages(
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
"""Fields in front of the body of every record; length and name of the topic; system flags, if they
differ between records."""


def _given(
    topic: bytes,
    queue_id: int,
    sys_flags: int | NDArray[np.int32],
    born_timestamp_ms: int,
    born_host: bytes,
) -> Given | None:
    """Arguments of the kernel; None if a field is out of its range."""
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


# Cached without the born timestamp, in which the batches of a queue differ.
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
    given = kernel_fields((magic, queue_id, 0, sys_flags, born_timestamp_ms, born_host))
    if given is None:
        return None
    head, (_, flags, _) = given
    return head, encode_topic(topic, magic), flags


def _varint(number: int) -> bytes:
    """Encode a length as a protobuf varint."""
    groups = [number >> shift & 0x7F for shift in range(0, max(number.bit_length(), 1), 7)]
    return bytes([*(group | 0x80 for group in groups[:-1]), groups[-1]])


def _properties(count: int, extras: Mapping[int, Extras], own: OwnProperties) -> list[bytes]:
    """Encode the properties of each message, column by column."""
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
    # A list of structured items would contain tuples.
    properties: list[bytes] = sections.view(f"V{sections.itemsize}").tolist()
    for index, (front, behind) in extras.items():
        section = properties[index]
        if behind:
            section = section[:own_bytes] + behind + section[own_bytes:]
        properties[index] = front + section
    return properties
