"""Encodes a batch in the stored form of its records, back to back.

Fields that only the broker knows are zeros; the broker writes them (see `batch`). The properties of
a record of a producer (`encode_messages`):

+---------------------+----------+----------+------+---------------------+-------+------------+
| front properties of | own.head | UNIQ_KEY | 0x02 | other properties of | __SEQ | space for  |
| the message (TAGS)  |          |          |      | the message         |       | a checksum |
+---------------------+----------+----------+------+---------------------+-------+------------+
"""

import struct
import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rockoon_format import kernel
from rockoon_format.frames import PREFIX
from rockoon_format.properties import PROPERTIES_BYTES_MAX, PROPERTY_SEPARATOR
from rockoon_format.record import (
    AT_BODY_V4,
    AT_BORN_HOST,
    AT_BORN_TIMESTAMP,
    AT_STORE_TIMESTAMP_V4,
    CRC_MASK,
    HOST_V4_BYTES,
    HOST_V6_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTY_CRC_ROOM,
    SYS_FLAG_BORN_HOST_V6,
    SYS_FLAG_STORE_HOST_V6,
    TOPIC_V1_BYTES_MAX,
    encode_topic,
)
from rockoon_format.sequences import SECTION_BYTES, encode_sequences, sequence_front

SIZE_MAX = 2**31 - 1

# Zeros: the broker writes these fields.
_BROKERS_OWN = bytes(AT_BODY_V4 - AT_STORE_TIMESTAMP_V4)
_PREFIX = struct.Struct(">iiiiiqqiq")
assert _PREFIX.size == PREFIX.itemsize


def _head_dtype(born_host_bytes: int) -> np.dtype[np.void]:
    return np.dtype(
        [
            *((name, PREFIX[name]) for name in PREFIX.names or ()),
            ("born_host", f"V{born_host_bytes}"),
            ("store_timestamp", ">i8"),
            ("store_host", f"V{HOST_V4_BYTES}"),
            ("reconsume_times", ">i4"),
            ("prepared_transaction_offset", ">i8"),
            ("body_length", ">i4"),
        ]
    )


_HEADS = {size: _head_dtype(size) for size in (HOST_V4_BYTES, HOST_V6_BYTES)}
assert _HEADS[HOST_V4_BYTES].itemsize == 88
assert _HEADS[HOST_V6_BYTES].itemsize == 100


def encode_batch(
    topic: bytes,
    queue_id: int,
    bodies: Sequence[bytes],
    properties: Sequence[bytes],
    born_timestamp_ms: int | NDArray[np.int64],
    born_host: bytes,
    *,
    flags: int | NDArray[np.int32] = 0,
    sys_flags: int | NDArray[np.int32] = 0,
    room: bool = False,
) -> tuple[bytes, NDArray[np.uint32]]:
    """Encode messages of one queue as back-to-back records.

    Args:
        topic: the topic in UTF-8; more than 127 bytes make V2 records.
        queue_id: the message queue.
        bodies: n bodies in stored form, compressed or not.
        properties: n encoded property sections (`properties.encode`), TAGS first if there are any.
        born_timestamp_ms: epoch milliseconds, one for all or int64[n].
        born_host: 8 or 20 bytes (`record.encode_host`); sets the IPv6 bit of the system flags.
        flags: the users' flags, one for all or int32[n].
        sys_flags: compression bits and similar, one for all or int32[n].
        room: reserve space for a checksum after the properties, which are empty or end with 0x02.

    Returns:
        The records, and each record's size, uint32[n].

    Raises:
        ValueError: bodies and properties differ in number, a property section is longer than
            32767 bytes, or the host is not 8 or 20 bytes long.
        RecordError: the topic is longer than 32767 bytes.
    """
    count = len(bodies)
    if len(properties) != count:
        raise ValueError(f"{count} bodies but {len(properties)} properties")
    if len(born_host) not in _HEADS:
        raise ValueError(f"a host of {len(born_host)} bytes, not 8 or 20")
    dtype = _HEADS[len(born_host)]
    magic = MAGIC_V2 if len(topic) > TOPIC_V1_BYTES_MAX else MAGIC_V1
    topic_part = encode_topic(topic, magic)
    ending = PROPERTY_CRC_ROOM if room else b""
    fields = (magic, queue_id, flags, sys_flags, born_timestamp_ms, born_host)
    if made := _encode_by_kernel(fields, topic_part, ending, bodies, properties):
        return made
    property_lengths = [len(section) + len(ending) for section in properties]
    distinct_lengths = set(property_lengths)
    if distinct_lengths and max(distinct_lengths) > PROPERTIES_BYTES_MAX:
        raise ValueError(f"properties of more than {PROPERTIES_BYTES_MAX} bytes")

    body_lengths = np.fromiter(map(len, bodies), np.int64, count)
    fixed_bytes = dtype.itemsize + len(topic_part) + 2
    sizes = body_lengths + np.array(property_lengths, np.int64) + fixed_bytes
    if count and int(sizes.max()) > SIZE_MAX:
        raise ValueError(f"a record of {int(sizes.max())} bytes")

    heads = _heads(dtype, magic, queue_id, bodies, born_timestamp_ms, born_host, flags, sys_flags)
    heads["size"] = sizes
    heads["body_length"] = body_lengths

    # Most batches have few distinct property lengths, so topic and length are packed once for each.
    tails = {length: topic_part + length.to_bytes(2) for length in distinct_lengths}
    pieces: list[bytes] = [ending] * (5 * count)
    # A list of structured items would contain tuples.
    pieces[0::5] = heads.view(f"V{dtype.itemsize}").tolist()
    pieces[1::5] = bodies
    pieces[2::5] = map(tails.__getitem__, property_lengths)
    pieces[3::5] = properties
    return b"".join(pieces), sizes.astype(np.uint32)


Fields = tuple[
    int, int, int | NDArray[np.int32], int | NDArray[np.int32], int | NDArray[np.int64], bytes
]
"""Magic, queue id, flags, system flags, born timestamps and born host of a batch."""


def _encode_by_kernel(
    fields: Fields,
    topic_part: bytes,
    ending: bytes,
    bodies: Sequence[bytes],
    properties: Sequence[bytes],
) -> tuple[bytes, NDArray[np.uint32]] | None:
    """`encode_batch` by the kernel; None: use the general path."""
    if (given := kernel_fields(fields)) is None:
        return None
    head, columns = given
    made = kernel.native.encode_batch(
        head, topic_part, ending, list(bodies), list(properties), *columns
    )
    return None if made is None else (made[0], np.frombuffer(made[1], np.uint32))


def kernel_fields(fields: Fields) -> tuple[bytes, list[bytes | None]] | None:
    """Encode the fields in front of the bodies, and columns of flags, system flags and times that
    differ between records.

    Returns None if a field is out of its range.
    """
    magic, queue_id, flags, sys_flags, born_ms, born_host = fields
    # The host bits must match the hosts: a wrong bit would shift every field after the host.
    sys_flags = sys_flags & ~(SYS_FLAG_BORN_HOST_V6 | SYS_FLAG_STORE_HOST_V6)
    if len(born_host) == HOST_V6_BYTES:
        sys_flags = sys_flags | SYS_FLAG_BORN_HOST_V6
    columns: list[bytes | None] = [None, None, None]
    if isinstance(flags, np.ndarray):
        columns[0], flags = flags.astype(np.int32).tobytes(), 0
    if isinstance(sys_flags, np.ndarray):
        columns[1], sys_flags = sys_flags.astype(np.int32).tobytes(), 0
    if isinstance(born_ms, np.ndarray):
        columns[2], born_ms = born_ms.astype(np.int64).tobytes(), 0
    try:
        head = _PREFIX.pack(0, magic, 0, queue_id, flags, 0, 0, sys_flags, born_ms)
    except struct.error:
        return None
    return head + born_host + _BROKERS_OWN, columns


def _heads(
    dtype: np.dtype[np.void],
    magic: int,
    queue_id: int,
    bodies: Sequence[bytes],
    born_timestamp_ms: int | NDArray[np.int64],
    born_host: bytes,
    flags: int | NDArray[np.int32],
    sys_flags: int | NDArray[np.int32],
) -> NDArray[np.void]:
    """Return the fields in front of each body; sizes and body lengths are zero."""
    # Zeros, because the broker fills only its own fields: uninitialised memory of this process
    # would be stored and delivered to consumers.
    heads = np.zeros(len(bodies), dtype)
    heads["magic"] = magic
    # RocketMQ compares the low 31 bits of the CRC (a non-negative Java int).
    heads["body_crc"] = np.fromiter(map(zlib.crc32, bodies), np.int64, len(bodies)) & CRC_MASK
    heads["queue_id"] = queue_id
    heads["flag"] = flags
    # The host bits must match the hosts: a wrong bit would shift every field after the host.
    heads["sys_flag"] = sys_flags & ~(SYS_FLAG_BORN_HOST_V6 | SYS_FLAG_STORE_HOST_V6)
    if len(born_host) == HOST_V6_BYTES:
        heads["sys_flag"] |= SYS_FLAG_BORN_HOST_V6
    heads["born_timestamp"] = born_timestamp_ms
    heads["born_host"] = np.void(born_host)
    return heads


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
        """Return the message around records and their sizes."""
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
    arguments = _kernel_arguments(topic, queue_id, sys_flags, born_timestamp_ms, born_host)
    if arguments is not None:
        head, topic_part, flags = arguments
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


KernelArguments = tuple[bytes, bytes, bytes | None]
"""Arguments of the kernel: the encoded fields in front of the body, equal for all records; length
and name of the topic; the system flags of each record, None if all are equal."""


def _kernel_arguments(
    topic: bytes,
    queue_id: int,
    sys_flags: int | NDArray[np.int32],
    born_timestamp_ms: int,
    born_host: bytes,
) -> KernelArguments | None:
    """Return the arguments of the kernel for a batch; None if a field is out of its range."""
    if isinstance(sys_flags, int):
        try:
            born = _BORN_TIMESTAMP.pack(born_timestamp_ms)
        except struct.error:
            return None
        cached = _cached_arguments(topic, queue_id, sys_flags, born_host)
        if cached is None:
            return None
        front, back, topic_part = cached
        return front + born + back, topic_part, None
    return _arguments_of(topic, queue_id, sys_flags, born_timestamp_ms, born_host)


@lru_cache(QUEUES_MAX)
def _cached_arguments(
    topic: bytes, queue_id: int, sys_flags: int, born_host: bytes
) -> tuple[bytes, bytes, bytes] | None:
    """Return the arguments of the kernel that the batches of a queue share: the fields before and
    after the born timestamp, and length and name of the topic."""
    arguments = _arguments_of(topic, queue_id, sys_flags, 0, born_host)
    if arguments is None:
        return None
    head, topic_part, _ = arguments
    return head[:AT_BORN_TIMESTAMP], head[AT_BORN_HOST:], topic_part


def _arguments_of(
    topic: bytes,
    queue_id: int,
    sys_flags: int | NDArray[np.int32],
    born_timestamp_ms: int,
    born_host: bytes,
) -> KernelArguments | None:
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
