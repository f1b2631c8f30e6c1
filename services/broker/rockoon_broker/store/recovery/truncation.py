"""Truncation file: the end to which the next start must cut the log.

A cut needs many writes, and a crash may leave any of them. So the end is first stored in one atomic
write, and a later start cuts the log, repeatedly if it crashes: either no cut was decided, or the
log ends at the decided offset. Format of `config/truncation`:

    offset 8 bytes, CRC-32 of the offset 4 bytes, big-endian
"""

import struct
import zlib
from pathlib import Path

from rockoon_broker.store.errors import StoreDamaged
from rockoon_core.disk import Disk

FILE = "config/truncation"
_OFFSET = struct.Struct(">q")
_CRC = struct.Struct(">I")


class TruncationFile:
    """The truncation file of one store directory."""

    def __init__(self, root: Path, disk: Disk) -> None:
        self._path = root / FILE
        self._disk = disk

    def read(self) -> int | None:
        """Return the physical offset at which the log must end; None if no cut was decided.

        Raises:
            StoreDamaged: the file is damaged. Without the cut the log may differ from its copies.
        """
        if not self._path.exists():
            return None
        content = self._path.read_bytes()
        offset = content[: _OFFSET.size]
        if content != offset + _CRC.pack(zlib.crc32(offset)) or len(offset) < _OFFSET.size:
            raise StoreDamaged(
                self._path,
                0,
                "the file with the decided end of the log is damaged; restore the store",
            )
        (found,) = _OFFSET.unpack(offset)
        return int(found)

    def write(self, offset: int) -> None:
        """Store the offset at which the next start must cut the log; durable on return."""
        packed = _OFFSET.pack(offset)
        for changed in self._disk.make_directory(self._path.parent):
            self._disk.sync_directory(changed)
        self._disk.replace_file(self._path, packed + _CRC.pack(zlib.crc32(packed)))

    def remove(self) -> None:
        """Remove the file, durably, after the log was cut."""
        self._disk.unlink(self._path)
        # Before any append, which another cut at this offset would remove.
        self._disk.sync_directory(self._path.parent)
