"""The small files that say how far a store is good: abort, checkpoint, recovery point.

- `abort` exists from start to clean stop. RocketMQ looks only at its presence; ours also holds the
  lineage (below), so that it can be told from one that another broker wrote, and says from where on
  every record has a checksum: one without was torn.
- `checkpoint` is RocketMQ's: store times up to which log and ConsumeQueues are durable.
- `recoveryPoint` is ours: the physical offset up to which the log *and* every ConsumeQueue are
  durable, so that the next start reads from there and not from the start of a file of 1 GiB.

Invariants of the recovery point:
1. It is written only after the log and every ConsumeQueue are synced up to `log_end`.
2. It is believed only if nobody else wrote the store since: `abort` bears its lineage (or is absent
   after a clean stop), and the checkpoint is one of the two it names. Another broker's start
   replaces `abort` or its appends change the checkpoint; either way the start then looks at
   everything.
3. Two slots are written in turn, so that a torn write leaves the older point, which is still true.
4. It names the checkpoint on disk and the one about to be written, and is written first: whichever
   of the two files a crash leaves behind, they match.
"""

import errno
import logging
import os
import secrets
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

from rockoon_broker.store.log.directory import move_to_lost
from rockoon_core.disk import NEW_SUFFIX, Disk, Shortage
from rockoon_format.checkpoint import (
    CHECKPOINT_BYTES,
    Checkpoint,
    decode_checkpoint,
    encode_checkpoint,
)

log = logging.getLogger(__name__)

ABORT_FILE = "abort"
CHECKPOINT_FILE = "checkpoint"
RECOVERY_POINT_FILE = "recoveryPoint"

# magic, sequence, lineage, log end, queue count, entries, last store time, checkpoint CRCs, clean,
# first offsets; the first version had not the last one
_POINT = struct.Struct(">8sQ16sqqqqIIBq")
_POINT_1 = struct.Struct(">8sQ16sqqqqIIB")
_CRC = struct.Struct(">I")
_POINT_MAGIC = b"ROCKPT01"
SLOT_BYTES = 512
assert _POINT.size + _CRC.size <= SLOT_BYTES


@dataclass(frozen=True)
class RecoveryPoint:
    """A state of the store that was durable as a whole."""

    lineage: bytes
    """16 random bytes, kept from run to run until a start could not rely on a point."""
    log_end: int
    """Log and ConsumeQueues are durable up to this physical offset, exclusive."""
    queue_count: int
    """How many ConsumeQueues there were."""
    entry_count: int
    """Sum of their max offsets: a start counts again, so that a lost queue is noticed."""
    store_timestamp_ms: int
    """Store time of the newest message before `log_end`; later ones must not be older."""
    checkpoint_crcs: tuple[int, int]
    """CRC-32 of the checkpoint that was on disk and of the one written next."""
    clean: bool
    """Written by a clean stop."""
    first_count: int = -1
    """Sum of the offsets at which the queues' first files begin: a start that finds more misses a
    file; with less, one that retention gave up was not deleted yet. -1 if it was not counted."""
    sequence: int = 0
    """Grows with every write; tells the newer slot."""


def new_lineage() -> bytes:
    """A lineage that no earlier point or abort file bears."""
    return secrets.token_bytes(16)


def checkpoint_crc(checkpoint: Checkpoint) -> int:
    """What a recovery point remembers of a checkpoint."""
    return zlib.crc32(encode_checkpoint(checkpoint))


@dataclass(frozen=True, slots=True)
class Abort:
    """What the file says."""

    lineage: bytes = b""
    """Empty for another broker's file."""
    checksums_from: int | None = None
    """Physical offset from which on every record has a checksum if it has room for one; None when
    that is not known of any."""


class AbortFile:
    """The marker of an unclean stop."""

    def __init__(self, root: Path, disk: Disk) -> None:
        self._path = root / ABORT_FILE
        self._disk = disk

    def read(self) -> Abort | None:
        """What the file says; None when there is none."""
        if not self._path.exists():
            return None
        lines = (line.partition(b" ") for line in self._path.read_bytes().splitlines())
        values = {name: value.decode("ascii", "replace") for name, _, value in lines}
        try:
            lineage = bytes.fromhex(values.get(b"lineage", ""))
            since = values.get(b"checksums-from")
            return Abort(lineage, None if since is None or not lineage else int(since))
        except ValueError:
            return Abort()

    def create(self, lineage: bytes, checksums_from: int | None = None) -> None:
        """Write this process's marker durably; the old text, or none, goes to `abort.bak`.

        One that says the same stays as it is: a disk without room would not take another.
        """
        if self.read() == Abort(lineage, checksums_from):
            return
        backup = self._path.with_name(ABORT_FILE + ".bak")
        before = self._path.read_bytes() if self._path.exists() else b""
        # The copy first: once `abort` is replaced, its former text is nowhere else.
        self._disk.replace_file(backup, before)
        text = f"{os.getpid()}\nlineage {lineage.hex()}\n"
        if checksums_from is not None:
            text += f"checksums-from {checksums_from}\n"
        self._disk.replace_file(self._path, text.encode())

    def remove(self) -> None:
        """Say that the stop was clean. Everything else must be durable already."""
        self._disk.unlink(self._path)
        self._disk.sync_directory(self._path.parent)


def free_markers(root: Path, lost: Path, disk: Disk) -> None:
    """Move to `lost` whatever is no file and stands where one of these files belongs."""
    names = (ABORT_FILE, f"{ABORT_FILE}.bak", CHECKPOINT_FILE, RECOVERY_POINT_FILE)
    for path in (root / (name + end) for name in names for end in ("", NEW_SUFFIX)):
        if path.is_dir():
            log.warning("%s is a directory: moved to %s", path, move_to_lost(path, lost, disk))


def read_checkpoint(root: Path) -> Checkpoint:
    """The checkpoint on disk; zeros where there is none, or one cut short."""
    path = root / CHECKPOINT_FILE
    if not path.exists():
        return Checkpoint()
    try:
        return decode_checkpoint(path.read_bytes())
    except ValueError:
        return Checkpoint()


def read_recovery_point(root: Path) -> RecoveryPoint | None:
    """The newest whole recovery point, or None."""
    path = root / RECOVERY_POINT_FILE
    if not path.exists():
        return None
    content = path.read_bytes()
    points = [_decode_point(content[at : at + SLOT_BYTES]) for at in (0, SLOT_BYTES)]
    return max((p for p in points if p is not None), key=lambda p: p.sequence, default=None)


def point_fits(point: RecoveryPoint, abort: Abort | None, checkpoint: Checkpoint) -> bool:
    """Whether nobody else wrote the store since `point` (invariant 2).

    Args:
        point: as read.
        abort: `AbortFile.read()`.
        checkpoint: as read from disk.
    """
    same_hands = point.clean if abort is None else abort.lineage == point.lineage
    return same_hands and checkpoint_crc(checkpoint) in point.checkpoint_crcs


class MarkerFiles:
    """Writes checkpoint and recovery point. Used by the Syncer's thread while the store is open."""

    def __init__(self, root: Path, disk: Disk) -> None:
        self._disk = disk
        self._checkpoint = read_checkpoint(root)
        self._checkpoint_fd = _open_or_create(root / CHECKPOINT_FILE, CHECKPOINT_BYTES, disk)
        self._point_fd = _open_or_create(root / RECOVERY_POINT_FILE, 2 * SLOT_BYTES, disk)
        # What is written next takes the place of one slot and relies on the other, and on the
        # checkpoint: a failed sync may have left them in memory alone.
        for fd, size in (
            (self._point_fd, 2 * SLOT_BYTES),
            (self._checkpoint_fd, CHECKPOINT_BYTES),
        ):
            disk.rewrite(fd, 0, size)
            disk.fdatasync(fd)
        last = read_recovery_point(root)
        self._sequence = 0 if last is None else last.sequence
        # Written by the thread that calls `write`, read by the store's owner.
        self.point_end = 0
        """Physical offset of the last point written."""

    def write(self, point: RecoveryPoint, checkpoint: Checkpoint) -> None:
        """Make a point and the checkpoint that belongs to it durable.

        `point.sequence` and `point.checkpoint_crcs` are filled in here.

        Raises:
            Shortage: there is no room; call it again. The point before is still there.
            OSError: the disk.
        """
        # Until all is done: another try must not take the place of the other slot.
        sequence = self._sequence + 1
        # Both: a crash can come between the two writes below, and either checkpoint is then ours.
        crcs = (checkpoint_crc(self._checkpoint), checkpoint_crc(checkpoint))
        slot = _encode_point(point, sequence, crcs)
        # Into the older of two slots: a write that is torn leaves the newer one whole.
        self._write(self._point_fd, slot, sequence % 2 * SLOT_BYTES)
        if checkpoint != self._checkpoint:
            self._write(self._checkpoint_fd, encode_checkpoint(checkpoint), 0)
            self._checkpoint = checkpoint
        self._sequence = sequence
        self.point_end = point.log_end

    def _write(self, fd: int, content: bytes, position: int) -> None:
        try:
            self._disk.write_all(fd, content, position)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise Shortage(*error.args) from error
            raise
        self._disk.fdatasync(fd)

    def close(self) -> None:
        self._disk.close(self._checkpoint_fd)
        self._disk.close(self._point_fd)


def _open_or_create(path: Path, size: int, disk: Disk) -> int:
    if not path.exists():
        disk.replace_file(path, bytes(size))
    return disk.open(path)


def _encode_point(point: RecoveryPoint, sequence: int, crcs: tuple[int, int]) -> bytes:
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


def _decode_point(slot: bytes) -> RecoveryPoint | None:
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
