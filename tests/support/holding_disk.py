"""A disk whose syncs of the CommitLog wait or fail when a test requests it."""

import threading

from support.store_directory import FailingDisk, in_log


class HoldingDisk(FailingDisk):
    """FailingDisk that can also hold syncs.

    While syncs are held, `fdatasync` of a CommitLog file does not return. After `release` it
    continues, and may still fail because of `fail_sync`.

    Args:
        held: hold syncs from the beginning.
        everything: hold the syncs of all files, also those of a start.
    """

    def __init__(self, *, held: bool = False, everything: bool = False) -> None:
        super().__init__()
        self._everything = everything
        self._free = threading.Event()
        if not held:
            self._free.set()

    def hold(self) -> None:
        self._free.clear()

    def release(self) -> None:
        self._free.set()

    def fdatasync(self, fd: int) -> None:
        if self._everything or in_log(self.paths[fd]):
            assert self._free.wait(60), "the test forgot to release the disk"
        super().fdatasync(fd)
