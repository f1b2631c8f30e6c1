"""Checks small batches record by record: for few records a loop is faster than column operations.

Accepts no batch that `batch_checking` would refuse, and may leave any batch to it.
"""

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

from rockoon_format.batch_layout import BatchLayout
from rockoon_format.batch_rules import BatchRules
from rockoon_format.checksums import room_of
from rockoon_format.frames import PREFIX
from rockoon_format.hashes import tags_code
from rockoon_format.properties import PROPERTY_TAGS, find_value
from rockoon_format.record import (
    AT_BODY_V4,
    AT_STORE_TIMESTAMP_V4,
    CRC_MASK,
    HOST_V6_EXTRA_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    SYS_FLAG_BORN_HOST_V6,
    TOPIC_V1_BYTES_MAX,
    TOPIC_V2_BYTES_MAX,
)

_PREFIX = struct.Struct(">iiiiiqqiq")
_PREPARED_AND_BODY_BYTES = struct.Struct(">qi")
_SHORT = struct.Struct(">h")
assert _PREFIX.size == PREFIX.itemsize


def check_small_batch(
    frames: bytes, sizes: NDArray[np.int64], rules: BatchRules
) -> BatchLayout | None:
    """Check records one by one; None in a doubtful case, so that the column check names the reason.

    Args:
        frames: see `check_batch`.
        sizes: size of each record, int64[n].
        rules: requirements; the topic is not a topic of delayed messages.
    """
    topic, queue_id, body_bytes_max, properties_bytes_max, record_bytes_max = rules[:5]
    topic_parts = _topic_parts(topic)
    codes = []
    store_positions = []
    properties_lengths = []
    at = 0
    for size in sizes.tolist():
        if not RECORD_BYTES_MIN <= size <= record_bytes_max or at + size > len(frames):
            return None
        own_size, magic, crc, own_queue_id, _, _, _, sys_flag, _ = _PREFIX.unpack_from(frames, at)
        if own_size != size or own_queue_id != queue_id or sys_flag & ~rules.sys_flags_allowed:
            return None
        topic_part = topic_parts.get(magic)
        if topic_part is None:
            return None
        extra = HOST_V6_EXTRA_BYTES if sys_flag & SYS_FLAG_BORN_HOST_V6 else 0
        body_start = at + AT_BODY_V4 + extra
        end = at + size
        # An IPv6 host raises the minimum size; a shorter record would read fields of the next one.
        if body_start > end:
            return None
        prepared_offset, body_bytes = _PREPARED_AND_BODY_BYTES.unpack_from(
            frames, body_start - _PREPARED_AND_BODY_BYTES.size
        )
        if prepared_offset and not rules.sources_allowed:
            return None
        properties_start = body_start + body_bytes + len(topic_part) + _SHORT.size
        # Checked before the next read: a wrong length may lead out of the frames.
        if not 0 <= body_bytes <= body_bytes_max or properties_start > end:
            return None
        body_end = body_start + body_bytes
        (properties_bytes,) = _SHORT.unpack_from(frames, properties_start - _SHORT.size)
        if (
            # A longer section is valid if the rest is the checksum's space; the columns check that.
            not 0 <= properties_bytes <= properties_bytes_max
            # Bytes after the properties would be stored, and no reader decodes them.
            or properties_start + properties_bytes != end
            or not frames.startswith(topic_part, body_end)
            or zlib.crc32(frames[body_start:body_end]) & CRC_MASK != crc
        ):
            return None
        codes.append(tags_code(find_value(frames[properties_start:end], PROPERTY_TAGS) or ""))
        store_positions.append(at + AT_STORE_TIMESTAMP_V4 + extra)
        properties_lengths.append(properties_bytes)
        at = end
    ends = np.cumsum(sizes)
    lengths_of_properties = np.array(properties_lengths, np.int64)
    has_room, mangled = room_of(frames, ends, lengths_of_properties)
    if at != len(frames) or mangled.any():
        return None
    return BatchLayout(
        starts=ends - sizes,
        lengths=sizes,
        tag_codes=np.array(codes, np.int64),
        store_positions=np.array(store_positions, np.int64),
        properties_lengths=lengths_of_properties,
        has_room=has_room,
        total_bytes=at,
    )


def _topic_parts(topic: bytes) -> dict[int, bytes]:
    """The topic after its length, for each magic whose records can contain it."""
    parts = {}
    if len(topic) <= TOPIC_V1_BYTES_MAX:
        parts[MAGIC_V1] = len(topic).to_bytes() + topic
    if len(topic) <= TOPIC_V2_BYTES_MAX:
        parts[MAGIC_V2] = len(topic).to_bytes(2) + topic
    return parts
