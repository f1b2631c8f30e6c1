"""The `checkpoint` file: the position up to which each part of a store is on disk.

    0        8        16       24                  32                40           4096
    +--------+--------+--------+-------------------+-----------------+--- zeros ---+
    | log ms | cq ms  |index ms| master flushed at | confirm offset  |             |
    +--------+--------+--------+-------------------+-----------------+-------------+

Source: StoreCheckpoint. A missing file means all zeros.
"""

import struct
import zlib
from dataclasses import dataclass

CHECKPOINT_BYTES = 4096
# Different threads write the two timestamps; readers subtract this margin.
SAFETY_MARGIN_MS = 3000

_FIELDS = struct.Struct(">qqqqq")
assert _FIELDS.size == 40


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Store times are epoch milliseconds, offsets are positions in the CommitLog."""

    log_timestamp_ms: int = 0
    """Store time of the last CommitLog record that was flushed."""
    queues_timestamp_ms: int = 0
    """Store time of the last record with a flushed ConsumeQueue entry."""
    index_timestamp_ms: int = 0
    """Last store time in the last index file that became full."""
    master_flushed_offset: int = 0
    confirm_offset: int = 0

    def dispatched_timestamp_ms(self) -> int:
        """Return a store time before which every record has its queue entry on disk."""
        return max(0, min(self.log_timestamp_ms, self.queues_timestamp_ms) - SAFETY_MARGIN_MS)


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """Return the whole 4096-byte file."""
    fields = _FIELDS.pack(
        checkpoint.log_timestamp_ms,
        checkpoint.queues_timestamp_ms,
        checkpoint.index_timestamp_ms,
        checkpoint.master_flushed_offset,
        checkpoint.confirm_offset,
    )
    return fields.ljust(CHECKPOINT_BYTES, b"\0")


def decode_checkpoint(page: bytes) -> Checkpoint:
    """Read a checkpoint file's content. Raises ValueError: the content is shorter than the five
    fields."""
    if len(page) < _FIELDS.size:
        raise ValueError(f"a checkpoint of {len(page)} bytes is cut short")
    return Checkpoint(*_FIELDS.unpack_from(page))


def checkpoint_crc(checkpoint: Checkpoint) -> int:
    """Return the checksum by which a recovery point identifies a checkpoint."""
    return zlib.crc32(encode_checkpoint(checkpoint))
