"""One CommitLog record.

    bytes  field                        bytes   field
    0-3    total size                   56-63   store timestamp, ms       (+12 if born is IPv6)
    4-7    magic: V1, V2 or BLANK       64-71   store host: 4+4 or 16+4   (20 if store is IPv6)
    8-11   CRC-32 of body & 0x7FFFFFFF  72-75   reconsume times
    12-15  queue id                     76-83   prepared transaction offset
    16-19  flag, the user's             84-87   body length
    20-27  queue offset                 88-     body
    28-35  physical offset              then    topic length (V1: 1 byte, V2: 2), topic
    36-39  system flag                  then    properties length (2 bytes), properties
    40-47  born timestamp, ms
    48-55  born host: 4+4 or 16+4

All integers are big-endian and signed. A record never spans two files: the rest of a file (always 8
bytes or more) starts with its size and the BLANK magic.

A record contains its own physical offset, so `record_heads` recognises its start from any byte of a
log: a body can contain a copy of a record, but not with the offset of the copy.
Source: MessageExtEncoder#encode, CommitLog#checkMessageAndReturnSize, MessageSysFlag.
"""

import ipaddress
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from rockoon_format.properties import (
    NAME_VALUE_SEPARATOR,
    PROPERTIES_BYTES_MAX,
    PROPERTY_CRC32,
    PROPERTY_SEPARATOR,
)

MAGIC_V1 = -626843481
MAGIC_V2 = -626843477
MAGIC_BLANK = -875286124
assert MAGIC_V1 & 0xFFFFFFFF == 0xDAA320A7
assert MAGIC_V2 & 0xFFFFFFFF == 0xDAA320AB
assert MAGIC_BLANK & 0xFFFFFFFF == 0xCBD43194

SYS_FLAG_COMPRESSED = 0x1
SYS_FLAG_MULTI_TAGS = 0x2
SYS_FLAG_TRANSACTION = 0xC
TRANSACTION_PREPARED = 0x4
TRANSACTION_COMMIT = 0x8
TRANSACTION_ROLLBACK = 0xC
SYS_FLAG_BORN_HOST_V6 = 0x10
SYS_FLAG_STORE_HOST_V6 = 0x20
SYS_FLAG_INNER_BATCH = 0x80
SYS_FLAGS_UNLISTED = TRANSACTION_PREPARED | SYS_FLAG_INNER_BATCH
SYS_FLAG_COMPRESSION = 0x700
COMPRESSION_LZ4 = 0x100
COMPRESSION_ZSTD = 0x200
COMPRESSION_ZLIB = 0x300

CRC_MASK = 0x7FFFFFFF
HOST_V4_BYTES = 8
HOST_V6_BYTES = 20
HOST_V6_EXTRA_BYTES = HOST_V6_BYTES - HOST_V4_BYTES
TOPIC_V1_BYTES_MAX = 127
TOPIC_V2_BYTES_MAX = 32_767
BLANK_BYTES_MIN = 8
# A V1 record with IPv4 hosts and empty body, topic and properties.
RECORD_BYTES_MIN = 91
PROPERTY_CRC_HEAD = PROPERTY_CRC32.encode() + NAME_VALUE_SEPARATOR
PROPERTY_CRC_DIGITS = 10
PROPERTY_CRC_ROOM = PROPERTY_CRC_HEAD + b"-" * PROPERTY_CRC_DIGITS + PROPERTY_SEPARATOR
"""The space for a record's checksum (`rockoon_format.checksums`) before the digits are written."""
PROPERTY_CRC_BYTES = len(PROPERTY_CRC_ROOM)
assert PROPERTY_CRC_BYTES == 20
# Matching fixed letters, of ten, that make a property a checksum; no other property has as many.
PROPERTY_CRC_ALIKE_MIN = 8
_DIGIT = ord("-")

# Positions that do not depend on any other field.
AT_MAGIC = 4
AT_QUEUE_OFFSET = 20
AT_SYS_FLAG = 36
AT_BORN_TIMESTAMP = 40
AT_BORN_HOST = 48
# Positions in a record with IPv4 hosts; each IPv6 host before the field adds 12.
AT_STORE_TIMESTAMP_V4 = 56
AT_PREPARED_OFFSET_V4 = 76
AT_BODY_LENGTH_V4 = 84
AT_BODY_V4 = 88

_HEAD = struct.Struct(">iiiiiqqiq")
_STORE_TIMESTAMP = struct.Struct(">q")
_MIDDLE = struct.Struct(">iqi")
_BLANK = struct.Struct(">ii")
_TOPIC_LENGTH_V1 = struct.Struct(">b")
_SHORT = struct.Struct(">h")
assert _HEAD.size == AT_BORN_HOST
assert _HEAD.size + HOST_V4_BYTES == AT_STORE_TIMESTAMP_V4
assert AT_STORE_TIMESTAMP_V4 + _STORE_TIMESTAMP.size + HOST_V4_BYTES + _MIDDLE.size == AT_BODY_V4
assert AT_BODY_V4 + _TOPIC_LENGTH_V1.size + _SHORT.size == RECORD_BYTES_MIN

Buffer = bytes | bytearray | memoryview


class RecordFault(Enum):
    """Why bytes are not a record, or values cannot be encoded as one."""

    TRUNCATED = "truncated"
    BLANK = "blank"
    MAGIC = "magic"
    SIZE = "size"
    BODY_CRC = "body crc"
    PROPERTY_CRC = "property crc"
    TOPIC_LENGTH = "topic length"
    PROPERTIES_LENGTH = "properties length"
    HOST = "host"


class RecordError(ValueError):
    """Bytes that are not a record, or values that no record can hold; `reason` says why."""

    def __init__(self, reason: RecordFault, message: str) -> None:
        super().__init__(message)
        self.reason = reason


NO_HOST = bytes(HOST_V4_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A record's fields. Times are epoch milliseconds; hosts are 8 or 20 bytes (`encode_host`).

    The host bits of `sys_flag` are set from the hosts' lengths, and `magic` becomes V2 for a topic
    of more than 127 bytes.
    """

    topic: bytes
    body: bytes = b""
    properties: bytes = b""
    queue_id: int = 0
    flag: int = 0
    queue_offset: int = 0
    physical_offset: int = 0
    sys_flag: int = 0
    born_timestamp_ms: int = 0
    born_host: bytes = NO_HOST
    store_timestamp_ms: int = 0
    store_host: bytes = NO_HOST
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    magic: int = MAGIC_V1

    def __post_init__(self) -> None:
        flag = self.sys_flag & ~(SYS_FLAG_BORN_HOST_V6 | SYS_FLAG_STORE_HOST_V6)
        if len(self.born_host) == HOST_V6_BYTES:
            flag |= SYS_FLAG_BORN_HOST_V6
        if len(self.store_host) == HOST_V6_BYTES:
            flag |= SYS_FLAG_STORE_HOST_V6
        object.__setattr__(self, "sys_flag", flag)
        if len(self.topic) > TOPIC_V1_BYTES_MAX:
            object.__setattr__(self, "magic", MAGIC_V2)

    @property
    def has_queue_entry(self) -> bool:
        """True if a ConsumeQueue lists the record: see `has_queue_entry`."""
        return has_queue_entry(self.sys_flag)


def has_queue_entry(sys_flag: int) -> bool:
    """Return whether a ConsumeQueue lists a record with this system flag.

    Not listed: prepared and rolled-back records, and inner batches, whose BatchConsumeQueue was
    deleted with its topic.
    """
    return sys_flag & SYS_FLAGS_UNLISTED == 0


def body_crc(body: Buffer) -> int:
    """Return the body's CRC as a record stores it; 0 for an empty body."""
    return zlib.crc32(body) & CRC_MASK


# Consecutive batches usually have the same topic.
@lru_cache(maxsize=64)
def encode_topic(topic: bytes, magic: int) -> bytes:
    """Return the topic with its length in front, as in a record with the given magic. Raises
    RecordError: TOPIC_LENGTH if the topic is too long for the magic."""
    bytes_max = TOPIC_V2_BYTES_MAX if magic == MAGIC_V2 else TOPIC_V1_BYTES_MAX
    if len(topic) > bytes_max:
        raise RecordError(
            RecordFault.TOPIC_LENGTH, f"a topic of {len(topic)} bytes, more than {bytes_max}"
        )
    length = _SHORT if magic == MAGIC_V2 else _TOPIC_LENGTH_V1
    return length.pack(len(topic)) + topic


def encode_record(record: Record, *, property_crc: bool = False, room: bool = False) -> bytes:
    """Return a record's bytes, body CRC included.

    Args:
        record: the fields.
        property_crc: append the `__CRC32#` property over the whole record.
        room: reserve space for this property, which the broker's store writes (`with_room`).

    Raises:
        RecordError: HOST, MAGIC, TOPIC_LENGTH or PROPERTIES_LENGTH if no record can hold a value.
    """
    for host in (record.born_host, record.store_host):
        if len(host) not in (HOST_V4_BYTES, HOST_V6_BYTES):
            raise RecordError(RecordFault.HOST, f"a host of {len(host)} bytes, not 8 or 20")
    if record.magic not in (MAGIC_V1, MAGIC_V2):
        raise RecordError(RecordFault.MAGIC, f"magic {record.magic:#x} is neither V1 nor V2")
    properties = with_room(record.properties) if room else record.properties
    if property_crc:
        if properties and not properties.endswith(PROPERTY_SEPARATOR):
            properties += PROPERTY_SEPARATOR
        properties += bytes(PROPERTY_CRC_BYTES)
    if len(properties) > PROPERTIES_BYTES_MAX:
        raise RecordError(
            RecordFault.PROPERTIES_LENGTH,
            f"properties of {len(properties)} bytes, more than {PROPERTIES_BYTES_MAX}",
        )
    topic = encode_topic(record.topic, record.magic)
    size = (
        _HEAD.size
        + len(record.born_host)
        + _STORE_TIMESTAMP.size
        + len(record.store_host)
        + _MIDDLE.size
        + len(record.body)
        + len(topic)
        + _SHORT.size
        + len(properties)
    )
    frame = b"".join(
        (
            _HEAD.pack(
                size,
                record.magic,
                body_crc(record.body),
                record.queue_id,
                record.flag,
                record.queue_offset,
                record.physical_offset,
                record.sys_flag,
                record.born_timestamp_ms,
            ),
            record.born_host,
            _STORE_TIMESTAMP.pack(record.store_timestamp_ms),
            record.store_host,
            _MIDDLE.pack(
                record.reconsume_times, record.prepared_transaction_offset, len(record.body)
            ),
            record.body,
            topic,
            _SHORT.pack(len(properties)),
            properties,
        )
    )
    if property_crc:
        checked = frame[:-PROPERTY_CRC_BYTES]
        frame = checked + encode_property_crc(zlib.crc32(checked))
    return frame


def with_room(properties: bytes) -> bytes:
    """Return properties that end with space for a checksum, if it fits.

    A checksum at their end, possibly of another record, is replaced.
    """
    properties = without_checksum(properties)
    if properties and not properties.endswith(PROPERTY_SEPARATOR):
        properties += PROPERTY_SEPARATOR
    longer = properties + PROPERTY_CRC_ROOM
    return longer if len(longer) <= PROPERTIES_BYTES_MAX else properties


def without_checksum(properties: bytes) -> bytes:
    """Return properties without a checksum, or the space for one, at their end."""
    before, tail = properties[:-PROPERTY_CRC_BYTES], properties[-PROPERTY_CRC_BYTES:]
    is_room = tail.startswith(PROPERTY_CRC_HEAD) and tail.endswith(PROPERTY_SEPARATOR)
    is_room &= len(tail) == PROPERTY_CRC_BYTES
    return before if is_room and (not before or before.endswith(PROPERTY_SEPARATOR)) else properties


def decode_record(buffer: Buffer, position: int = 0, *, check_crc: bool = True) -> Record:
    """Read the record that starts at `position`; its size is `record_size(buffer, position)`.

    Negative body and properties lengths read as empty, as a broker reads them. Raises RecordError:
    TRUNCATED (fewer bytes than the record says), BLANK (the end of a file), MAGIC, SIZE (the parts
    do not add up to the size), PROPERTY_CRC or BODY_CRC.
    """
    view = memoryview(buffer)[position:]
    size = record_size(view)
    view = view[:size]
    try:
        record = _decode(view, check_crc)
    except (struct.error, IndexError):
        raise RecordError(
            RecordFault.SIZE, f"the record at {position} is too small for its parts"
        ) from None
    return record


def _decode(view: memoryview, check_crc: bool) -> Record:
    size, magic, crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_ms = (
        _HEAD.unpack_from(view)
    )
    at = AT_STORE_TIMESTAMP_V4
    if sys_flag & SYS_FLAG_BORN_HOST_V6:
        at += HOST_V6_EXTRA_BYTES
    born_host = bytes(view[AT_BORN_HOST:at])
    (store_ms,) = _STORE_TIMESTAMP.unpack_from(view, at)
    at += _STORE_TIMESTAMP.size
    host_bytes = HOST_V6_BYTES if sys_flag & SYS_FLAG_STORE_HOST_V6 else HOST_V4_BYTES
    store_host = bytes(view[at : at + host_bytes])
    at += host_bytes
    reconsume_times, prepared_offset, body_length = _MIDDLE.unpack_from(view, at)
    at += _MIDDLE.size
    body_end = at + max(body_length, 0)
    body = bytes(view[at:body_end])
    topic_length_field = _SHORT if magic == MAGIC_V2 else _TOPIC_LENGTH_V1
    (topic_length,) = topic_length_field.unpack_from(view, body_end)
    topic_start = body_end + topic_length_field.size
    if topic_length < 0:
        raise RecordError(RecordFault.SIZE, f"a topic length of {topic_length}")
    topic_end = topic_start + topic_length
    (properties_length,) = _SHORT.unpack_from(view, topic_end)
    properties_start = topic_end + _SHORT.size
    computed = properties_start + max(properties_length, 0)
    if computed != size:
        raise RecordError(RecordFault.SIZE, f"a size of {size}, but the parts take {computed}")
    properties = bytes(view[properties_start:computed])
    if check_crc:
        checked = _is_checksum_right(view, len(properties))
        if checked is False:
            raise RecordError(RecordFault.PROPERTY_CRC, "the record does not have its checksum")
        if checked is None and body and body_crc(body) != crc:
            raise RecordError(RecordFault.BODY_CRC, "the body does not have the CRC of its record")
    return Record(
        topic=bytes(view[topic_start:topic_end]),
        body=body,
        properties=properties,
        queue_id=queue_id,
        flag=flag,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        sys_flag=sys_flag,
        born_timestamp_ms=born_ms,
        born_host=born_host,
        store_timestamp_ms=store_ms,
        store_host=store_host,
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared_offset,
        magic=magic,
    )


def _is_checksum_right(view: memoryview, properties_bytes: int) -> bool | None:
    """True if a whole record's `__CRC32#` property is right, None if it has none.

    The rules are those of `checksums.checks_of`.
    """
    tail = bytes(view[-PROPERTY_CRC_BYTES:])
    pairs = zip(tail, PROPERTY_CRC_ROOM, strict=True)
    alike = sum(letter == right for letter, right in pairs if right != _DIGIT)
    if alike < PROPERTY_CRC_ALIKE_MIN or properties_bytes < PROPERTY_CRC_BYTES:
        return None
    before = view[-PROPERTY_CRC_BYTES - 1]
    begins = properties_bytes == PROPERTY_CRC_BYTES or before == PROPERTY_SEPARATOR[0]
    if begins and tail == PROPERTY_CRC_ROOM:
        return None
    return begins and tail == encode_property_crc(zlib.crc32(view[:-PROPERTY_CRC_BYTES]))


def record_size(buffer: Buffer, position: int = 0) -> int:
    """Return the size in the head of the record at `position`. Raises RecordError: TRUNCATED, BLANK
    or MAGIC; SIZE if it is below the smallest record's."""
    view = memoryview(buffer)
    if position < 0 or position + _BLANK.size > len(view):
        raise RecordError(RecordFault.TRUNCATED, f"no record's head fits at {position}")
    size, magic = _BLANK.unpack_from(view, position)
    if size > len(view) - position:
        raise RecordError(
            RecordFault.TRUNCATED, f"the record at {position} says {size} bytes, more than are left"
        )
    if magic == MAGIC_BLANK:
        raise RecordError(RecordFault.BLANK, f"the file's records end at {position}")
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise RecordError(RecordFault.MAGIC, f"magic {magic & 0xFFFFFFFF:#010x} at {position}")
    if size < RECORD_BYTES_MIN:
        raise RecordError(RecordFault.SIZE, f"the record at {position} says {size} bytes")
    return int(size)


def encode_blank(remaining_bytes: int) -> bytes:
    """Return the 8 bytes that close a file with `remaining_bytes` left, these 8 included. Raises
    ValueError: fewer than 8 bytes are left, which an append must prevent."""
    if remaining_bytes < BLANK_BYTES_MIN:
        raise ValueError(f"a blank needs 8 bytes, {remaining_bytes} are left")
    return _BLANK.pack(remaining_bytes, MAGIC_BLANK)


def fits(batch_bytes: int, remaining_bytes: int) -> bool:
    """Return whether a batch may start in a file with `remaining_bytes` left.

    Eight bytes are reserved for the blank (CommitLog.DefaultAppendMessageCallback).
    """
    return batch_bytes + BLANK_BYTES_MIN <= remaining_bytes


def encode_property_crc(crc: int) -> bytes:
    """Return the 20-byte `__CRC32#` property: ten digits, least significant first.

    Source: MessageDecoder#createCrc32.
    """
    digits = str(crc & CRC_MASK)[::-1].ljust(10, "0")
    return f"{PROPERTY_CRC32}\x01{digits}\x02".encode()


def encode_host(address: str, port: int) -> bytes:
    """Return an address in the form of records: 4 or 16 bytes, then the port in 4. Raises
    ValueError: not a literal IPv4 or IPv6 address, or the port is outside 0 to 65535."""
    if not 0 <= port <= 0xFFFF:
        raise ValueError(f"port {port} is outside 0 to 65535")
    return ipaddress.ip_address(address).packed + struct.pack(">i", port)


def decode_host(host: bytes) -> tuple[str, int]:
    """Return the address and port of a record's 8- or 20-byte host. Raises RecordError: HOST if the
    length is neither."""
    if len(host) not in (HOST_V4_BYTES, HOST_V6_BYTES):
        raise RecordError(RecordFault.HOST, f"a host of {len(host)} bytes, not 8 or 20")
    (port,) = struct.unpack(">i", host[-4:])
    return str(ipaddress.ip_address(host[:-4])), port


_MAGICS = tuple(magic.to_bytes(4, signed=True) for magic in (MAGIC_V1, MAGIC_V2))
_AT_MAGIC = 4
_AT_PHYSICAL_OFFSET = 28
# Bytes of a record that must be in a window to recognise its head.
HEAD_BYTES = _AT_PHYSICAL_OFFSET + 8
_SIZE_AND_MAGIC = struct.Struct(">ii")
_INT = struct.Struct(">i")
_PROPERTIES_LENGTH_BYTES = 2
_FIXED_BYTES_MAX = AT_BODY_LENGTH_V4 + 2 * HOST_V6_EXTRA_BYTES + _INT.size


def record_heads(window: bytes, base: int) -> Iterator[int]:
    """Physical offsets of record heads that contain this same offset, ascending.

    Only the head is checked; the caller checks whether the record is whole.

    Args:
        window: bytes of a log.
        base: physical offset of the first byte.
    """
    behind = len(window)
    following = [window.find(magic, _AT_MAGIC) for magic in _MAGICS]
    while True:
        at = min((at for at in following if at >= 0), default=behind)
        if at == behind:
            return
        head = at - _AT_MAGIC
        stated = window[head + _AT_PHYSICAL_OFFSET : head + HEAD_BYTES]
        if len(stated) == 8 and int.from_bytes(stated, signed=True) == base + head:
            yield base + head
        which = following.index(at)
        following[which] = window.find(_MAGICS[which], at + 1)


def whole_record_bytes(read: Callable[[int, int], bytes], remaining: int) -> int:
    """Size of the record at a position; 0 if its parts do not add up to its size field.

    The rules are those of `scan`. Reads only the lengths of the parts, not the body: a damaged size
    field of a gigabyte causes no read of a gigabyte.

    Args:
        read: returns a number of bytes from a position in the record; fewer at the end of the log.
        remaining: bytes from the record's start to the end of its file, or of the log.
    """
    head = read(0, min(_FIXED_BYTES_MAX, remaining))
    if len(head) < RECORD_BYTES_MIN:
        return 0
    size, magic = _SIZE_AND_MAGIC.unpack_from(head)
    if magic not in (MAGIC_V1, MAGIC_V2) or not RECORD_BYTES_MIN <= size <= remaining:
        return 0
    (flags,) = _INT.unpack_from(head, AT_SYS_FLAG)
    hosts_v6 = bool(flags & SYS_FLAG_BORN_HOST_V6) + bool(flags & SYS_FLAG_STORE_HOST_V6)
    at = AT_BODY_LENGTH_V4 + hosts_v6 * HOST_V6_EXTRA_BYTES
    if at + _INT.size > len(head):
        return 0
    (body_bytes,) = _INT.unpack_from(head, at)
    topic_length_bytes = 1 if magic == MAGIC_V1 else 2
    at += _INT.size + max(body_bytes, 0)
    if at + topic_length_bytes > size:
        return 0
    topic_bytes = int.from_bytes(read(at, topic_length_bytes), signed=True)
    at += topic_length_bytes + topic_bytes
    if topic_bytes < 0 or at + _PROPERTIES_LENGTH_BYTES > size:
        return 0
    properties_bytes = int.from_bytes(read(at, _PROPERTIES_LENGTH_BYTES), signed=True)
    at += _PROPERTIES_LENGTH_BYTES + max(properties_bytes, 0)
    return int(size) if at == size else 0
