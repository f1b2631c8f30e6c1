"""Acknowledged end: position up to which a replica acknowledged its log, in a file beside the log.

    acknowledged    position u64 | CRC-32 u32, little-endian                             12 bytes

A leader also counts its own log as acknowledged. A log that ends below the position has lost
acknowledged records, even if its end looks like an incomplete write. The file is written before
each acknowledgement and not synced: it survives a killed process, and after a power cut it may have
an older position (up to half a minute), which is still valid.

Invariants:
- The position is never beyond the durable end of the log.
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
    """The file; read on first use.

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
        """Position; 0 if the file is missing or damaged. Raises OSError."""
        if self._end is None:
            try:
                self._end = decode(self._path.read_bytes())
            except FileNotFoundError:
                self._end = 0
        return self._end

    def raise_to(self, end: int) -> None:
        """Record the position, before the log is acknowledged up to it; the log is durable there.

        If the disk is full, the file keeps an older position.

        Raises:
            OSError: another failure of the disk.
        """
        if end <= self.end:
            return
        try:
            self._write(end)
        except OSError as failure:
            if failure.errno not in SHORTAGES:
                raise

    def lower(self, end: int) -> None:
        """Lower the position, durably, before the log is cut there. Raises OSError."""
        if end < self.end:
            self._disk.fdatasync(self._write(end))

    def close(self) -> None:
        """Close the file."""
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
    """Return the position of a file's content; 0 if it is damaged."""
    position = content[: _POSITION.size]
    if content[_POSITION.size :] != _CRC.pack(zlib.crc32(position)):
        return 0
    end: int = _POSITION.unpack(position)[0]
    return end
