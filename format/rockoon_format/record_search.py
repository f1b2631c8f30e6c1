"""Search for record starts from any byte of a log.

A record contains its own physical offset, so its start is recognisable without the end of the
previous record: a body can contain a copy of a record, but not with the offset of the copy.
"""

import struct
from collections.abc import Callable, Iterator

from rockoon_format.record import (
    AT_BODY_LENGTH_V4,
    AT_SYS_FLAG,
    HOST_V6_EXTRA_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    SYS_FLAG_BORN_HOST_V6,
    SYS_FLAG_STORE_HOST_V6,
)

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
