"""Up to where a replica has acknowledged its log, or counted it as a leader, in a file beside it.

    acknowledged    position u64 | CRC-32 u32, little-endian                             12 bytes

A log that ends below has lost what was promised, though its end may look like a write that never
finished. Written before each acknowledgement and not synced: a process that is killed leaves it as
it was; a power cut may leave an older one, of the last half minute, which is still true.

Invariants:
- It is never beyond what was durable in the log.
- It is lowered, durably, before the log is cut.
"""

import struct
import zlib
from pathlib import Path

from rockoon_core.disk import SHORTAGES, Disk

FILE = "acknowledged"
_POSITION = struct.Struct("<Q")
_CRC = struct.Struct("<I")
FILE_BYTES = _POSITION.size + _CRC.size

assert FILE_BYTES == 12


class AcknowledgedEnd:
    """The file, read when it is first asked for.

    Args:
        directory: the store's `config`.
        disk: the file layer.
    """

    def __init__(self, directory: Path, disk: Disk) -> None:
        self._path = directory / FILE
        self._disk = disk
        self._fd: int | None = None
        self._end: int | None = None

    @property
    def end(self) -> int:
        """A position; 0 while nothing is known. Raises OSError."""
        if self._end is None:
            try:
                self._end = decode(self._path.read_bytes())
            except FileNotFoundError:
                self._end = 0
        return self._end

    def note(self, end: int) -> None:
        """The log is about to be acknowledged up to here, where it is durable.

        Without room on the disk for it less is known.

        Raises:
            OSError: the disk, for another reason.
        """
        if end <= self.end:
            return
        try:
            self._write(end)
        except OSError as failure:
            if failure.errno not in SHORTAGES:
                raise

    def lower(self, end: int) -> None:
        """The log is about to end here; durable on return. Raises OSError."""
        if end < self.end:
            self._disk.fdatasync(self._write(end))

    def close(self) -> None:
        """Let go of the file."""
        if self._fd is not None:
            self._disk.close(self._fd)
            self._fd = None

    def _write(self, end: int) -> int:
        if self._fd is None:
            self._fd = self._disk.open_or_create(self._path)
        self._disk.write_all(self._fd, encode(end), 0)
        self._end = end
        return self._fd


def encode(end: int) -> bytes:
    """The file's content."""
    position = _POSITION.pack(end)
    return position + _CRC.pack(zlib.crc32(position))


def decode(content: bytes) -> int:
    """What `encode` was given; 0 for what it has not made: nothing is known then."""
    position = content[: _POSITION.size]
    if content[_POSITION.size :] != _CRC.pack(zlib.crc32(position)):
        return 0
    end: int = _POSITION.unpack(position)[0]
    return end
