"""Truncation that was decided on: the end that the next start gives the log, whatever it holds.

Cutting takes many writes, of which a crash leaves any. So the end is written down first, in one
step, and the log is cut by the start that follows, or by the one after a crash of that: either
nothing was decided, or the log ends where it was to end. `config/truncation`:

    offset 8 bytes, CRC-32 of it 4 bytes, big-endian
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
    """The file of one store directory."""

    def __init__(self, root: Path, disk: Disk) -> None:
        self._path = root / FILE
        self._disk = disk

    def read(self) -> int | None:
        """The physical offset at which the log is to end; None if nothing was decided.

        Raises:
            StoreDamaged: it cannot be told. Without the cut the log is not what others take it for.
        """
        if not self._path.exists():
            return None
        content = self._path.read_bytes()
        offset = content[: _OFFSET.size]
        if content != offset + _CRC.pack(zlib.crc32(offset)) or len(offset) < _OFFSET.size:
            raise StoreDamaged(self._path, 0, "where the log is to end cannot be told")
        (found,) = _OFFSET.unpack(offset)
        return int(found)

    def write(self, offset: int) -> None:
        """Decide, durably on return."""
        packed = _OFFSET.pack(offset)
        for changed in self._disk.make_directory(self._path.parent):
            self._disk.sync_directory(changed)
        self._disk.replace_file(self._path, packed + _CRC.pack(zlib.crc32(packed)))

    def remove(self) -> None:
        """The log ends there, durably."""
        self._disk.unlink(self._path)
        # Before anything is appended, which another cut at this offset would take away.
        self._disk.sync_directory(self._path.parent)
