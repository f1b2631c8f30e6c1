"""The `recoveryPoint` file: up to where the log and all ConsumeQueues of a store are durable.

The file has two slots of 512 bytes, which are written alternately; each has a CRC-32. When a reader
may rely on a point is stated in `rockoon_broker.store.recovery.checkpoint_files`.
"""

import struct
import zlib
from dataclasses import dataclass

RECOVERY_POINT_FILE = "recoveryPoint"

# magic, sequence, lineage, log end, queue count, entries, last store time, checkpoint CRCs, clean,
# first offsets; version 1 lacked the last field
_POINT = struct.Struct(">8sQ16sqqqqIIBq")
_POINT_1 = struct.Struct(">8sQ16sqqqqIIB")
_CRC = struct.Struct(">I")
_POINT_MAGIC = b"ROCKPT01"
SLOT_BYTES = 512
assert _POINT.size + _CRC.size <= SLOT_BYTES


@dataclass(frozen=True)
class RecoveryPoint:
    """A durable state of the whole store."""

    lineage: bytes
    """Random id (16 bytes) of a series of recovery points; a start that cannot trust the last point
    replaces it."""
    log_end: int
    """Log and ConsumeQueues are durable up to this physical offset, exclusive."""
    queue_count: int
    """Number of ConsumeQueues with entries."""
    entry_count: int
    """Sum of the max offsets of these ConsumeQueues; a start compares it, so that it detects a lost
    queue."""
    store_timestamp_ms: int
    """Store time of the newest message before `log_end`; later records must not be older."""
    checkpoint_crcs: tuple[int, int]
    """CRC-32 of the checkpoint that was on disk and of the one written next."""
    clean: bool
    """True if the point was written by a clean stop."""
    first_count: int = -1
    """Sum of the first offsets of the queues' first files; -1: not counted. If a start finds a
    larger sum, a file is missing; if a smaller one, a file that retention has released was not
    deleted yet."""
    sequence: int = 0
    """Incremented by every write; the larger one is the newer slot."""


def decode_newest_point(content: bytes) -> RecoveryPoint | None:
    """Return the newest intact recovery point of a file's content, or None."""
    points = [_decode(content[at : at + SLOT_BYTES]) for at in (0, SLOT_BYTES)]
    return max((p for p in points if p is not None), key=lambda p: p.sequence, default=None)


def encode_point(point: RecoveryPoint, sequence: int, crcs: tuple[int, int]) -> bytes:
    """Return the bytes of a slot.

    Args:
        sequence: sequence of this write.
        crcs: checksums of the checkpoint on disk and of the one written next.
    """
    fields = _POINT.pack(
        _POINT_MAGIC,
        sequence,
        point.lineage,
        point.log_end,
        point.queue_count,
        point.entry_count,
        point.store_timestamp_ms,
        *crcs,
        point.clean,
        point.first_count,
    )
    return (fields + _CRC.pack(zlib.crc32(fields))).ljust(SLOT_BYTES, b"\0")


def _decode(slot: bytes) -> RecoveryPoint | None:
    if len(slot) < SLOT_BYTES or not slot.startswith(_POINT_MAGIC):
        return None
    for layout in (_POINT, _POINT_1):
        (crc,) = _CRC.unpack_from(slot, layout.size)
        if zlib.crc32(slot[: layout.size]) == crc:
            break
    else:
        return None
    _, sequence, lineage, log_end, queues, entries, store_ms, old, new, clean, *firsts = (
        layout.unpack_from(slot)
    )
    return RecoveryPoint(
        lineage=lineage,
        log_end=log_end,
        queue_count=queues,
        entry_count=entries,
        store_timestamp_ms=store_ms,
        checkpoint_crcs=(old, new),
        clean=bool(clean),
        first_count=firsts[0] if firsts else -1,
        sequence=sequence,
    )
