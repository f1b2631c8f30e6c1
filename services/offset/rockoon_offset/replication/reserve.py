"""Room on the disk that is taken aside, so that what was taken already can still be written."""

import contextlib
from pathlib import Path

from rockoon_core.disk import Disk
from rockoon_offset.journal.journal import RESERVE_BYTES, RESERVE_FILE, is_shortage


class Reserve:
    """A file of RESERVE_BYTES in a directory.

    Attributes:
        shortage: why there is no room for it; empty while there is.
    """

    def __init__(self, directory: Path, disk: Disk) -> None:
        self._path = directory / RESERVE_FILE
        self._directory = directory
        self._disk = disk
        self.shortage = ""
        self.take()

    def take(self) -> None:
        """Take room aside, as much as is to be had."""
        try:
            fd = self._disk.open_or_create(self._path)
            try:
                self._disk.allocate(fd, RESERVE_BYTES)
            finally:
                self._disk.close(fd)
        except OSError as failure:
            with contextlib.suppress(OSError):
                self._disk.unlink(self._path)
            # Some file systems cannot reserve, which is no reason to refuse anything.
            if is_shortage(failure):
                self.shortage = f"{failure.strerror or failure} on {self._directory}"
                return
        self.shortage = ""

    def check(self, count: int) -> None:
        """After a shortage: have `shortage` say whether there is room beside the reserve.

        Args:
            count: bytes that are to fit.
        """
        if not self._path.exists():
            self.take()
            return
        try:
            fd = self._disk.open_or_create(self._path)
            try:
                self._disk.allocate(fd, RESERVE_BYTES + count)
            finally:
                self._disk.set_size(fd, RESERVE_BYTES)
                self._disk.close(fd)
        except OSError as failure:
            if is_shortage(failure):
                self.note(failure)
                return
        self.shortage = ""

    def note(self, failure: OSError) -> None:
        """A write found no room."""
        self.shortage = f"{failure.strerror or failure} on {self._directory}"

    def give_up(self, failure: OSError) -> bool:
        """After a shortage: whether there is more room now."""
        self.note(failure)
        if not self._path.exists():
            return False
        self._disk.unlink(self._path)
        return True
