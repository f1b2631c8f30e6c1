"""Marker files that state up to where a store is durable: abort, checkpoint, recovery point.

- `abort` exists from start to clean stop. RocketMQ only checks that it exists. Here it also holds
  the lineage (below), which distinguishes it from another broker's file, and the offset from which
  every record has a checksum: a later record without one is an incomplete write.
- `checkpoint` is RocketMQ's: store times up to which log and ConsumeQueues are durable.
- `recoveryPoint` is Rockoon's: the physical offset up to which the log *and* every ConsumeQueue are
  durable. The next start reads from there instead of from the beginning of a file of 1 GiB.

Invariants of the recovery point:
1. It is written only after the log and every ConsumeQueue are synced up to `log_end`.
2. It is trusted only if no other broker wrote to the store since: `abort` has its lineage (or is
   absent after a clean stop), and the checkpoint is one of the two that it names. Another broker's
   start replaces `abort`, or its appends change the checkpoint; then the start checks
   everything.
3. Two slots are written alternately. A torn write leaves the older point, which is still valid.
4. It names the checkpoint on disk and the next one, and is written first: whichever
   of the two checkpoints a crash leaves, they match.
"""

import errno
import logging
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from rockoon_broker.store.log.directory import move_to_lost
from rockoon_core.disk import NEW_SUFFIX, Disk, Shortage
from rockoon_format.checkpoint import (
    CHECKPOINT_BYTES,
    Checkpoint,
    checkpoint_crc,
    decode_checkpoint,
    encode_checkpoint,
)
from rockoon_format.recovery_point import (
    RECOVERY_POINT_FILE,
    SLOT_BYTES,
    RecoveryPoint,
    decode_newest_point,
    encode_point,
)

log = logging.getLogger(__name__)

ABORT_FILE = "abort"
CHECKPOINT_FILE = "checkpoint"


def new_lineage() -> bytes:
    return secrets.token_bytes(16)


@dataclass(frozen=True, slots=True)
class Abort:
    lineage: bytes = b""
    """Lineage of the store's recovery points; empty if another broker wrote the file."""
    checksums_from: int | None = None
    """Physical offset from which every record that can hold a checksum has one; None if
    unknown."""


class AbortFile:
    """The `abort` file: it exists from the start of a broker to its clean stop."""

    def __init__(self, root: Path, disk: Disk) -> None:
        self._path = root / ABORT_FILE
        self._disk = disk

    def read(self) -> Abort | None:
        """Return the file's content; None if it does not exist."""
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
        """Write this process's marker durably; the old content, if any, goes to `abort.bak`.

        An equal marker is not rewritten, because a full disk would refuse the write.
        """
        if self.read() == Abort(lineage, checksums_from):
            return
        backup = self._path.with_name(ABORT_FILE + ".bak")
        before = self._path.read_bytes() if self._path.exists() else b""
        # The copy first: replacing `abort` destroys its former content.
        self._disk.replace_file(backup, before)
        text = f"{os.getpid()}\nlineage {lineage.hex()}\n"
        if checksums_from is not None:
            text += f"checksums-from {checksums_from}\n"
        self._disk.replace_file(self._path, text.encode())

    def remove(self) -> None:
        """Remove the file, which marks the stop as clean. All other data must already be
        durable."""
        self._disk.unlink(self._path)
        self._disk.sync_directory(self._path.parent)


def free_markers(root: Path, lost: Path, disk: Disk) -> None:
    """Move directories that block the path of a marker file to `lost`."""
    names = (ABORT_FILE, f"{ABORT_FILE}.bak", CHECKPOINT_FILE, RECOVERY_POINT_FILE)
    for path in (root / (name + end) for name in names for end in ("", NEW_SUFFIX)):
        if path.is_dir():
            log.warning("%s is a directory: moved to %s", path, move_to_lost(path, lost, disk))


def read_checkpoint(root: Path) -> Checkpoint:
    """Read the checkpoint file; zeros if it is missing or truncated."""
    path = root / CHECKPOINT_FILE
    if not path.exists():
        return Checkpoint()
    try:
        return decode_checkpoint(path.read_bytes())
    except ValueError:
        return Checkpoint()


def read_recovery_point(root: Path) -> RecoveryPoint | None:
    """Return the newest intact recovery point, or None."""
    path = root / RECOVERY_POINT_FILE
    return decode_newest_point(path.read_bytes()) if path.exists() else None


def point_fits(point: RecoveryPoint, abort: Abort | None, checkpoint: Checkpoint) -> bool:
    """Return whether no other broker wrote to the store since `point` (invariant 2).

    Args:
        abort: `AbortFile.read()`.
    """
    same_hands = point.clean if abort is None else abort.lineage == point.lineage
    return same_hands and checkpoint_crc(checkpoint) in point.checkpoint_crcs


class MarkerFiles:
    """Writes the checkpoint file and the recovery point file. While the store is open, only the
    Syncer's thread uses it."""

    def __init__(self, root: Path, disk: Disk) -> None:
        self._disk = disk
        self._checkpoint = read_checkpoint(root)
        self._checkpoint_fd = _open_or_create(root / CHECKPOINT_FILE, CHECKPOINT_BYTES, disk)
        self._point_fd = _open_or_create(root / RECOVERY_POINT_FILE, 2 * SLOT_BYTES, disk)
        # The next write overwrites one slot and relies on the other slot and on the checkpoint.
        # After a failed sync these may exist only in the page cache, so they are rewritten and
        # synced.
        for fd, size in (
            (self._point_fd, 2 * SLOT_BYTES),
            (self._checkpoint_fd, CHECKPOINT_BYTES),
        ):
            disk.rewrite(fd, 0, size)
            disk.fdatasync(fd)
        last = read_recovery_point(root)
        self._sequence = 0 if last is None else last.sequence
        # Written by the thread that calls `write`, read by the store's owner without a lock.
        self.point_end = 0
        """Physical offset of the last point written."""

    def write(self, point: RecoveryPoint, checkpoint: Checkpoint) -> None:
        """Make a recovery point and its checkpoint durable.

        Sets `point.sequence` and `point.checkpoint_crcs`.

        Raises:
            Shortage: no space; call it again. The former point is still valid.
            OSError: the disk.
        """
        # Assigned only when both writes are done: a retry must use the same slot.
        sequence = self._sequence + 1
        # Both: a crash may happen between the two writes, and either checkpoint is valid then.
        crcs = (checkpoint_crc(self._checkpoint), checkpoint_crc(checkpoint))
        slot = encode_point(point, sequence, crcs)
        # Overwrites the older slot, so that a torn write leaves the newer one.
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
