"""What the machine takes by itself for what a broker writes: copies, and syncs.

Where memory is a guest's, a page that the page cache takes for the first time may cost ten times as
much as one that was used before: the host has to find it. And rates after a sync are the disk's.
"""

import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

MIB = 1 << 20
COPIED_MIB = 64
SYNCED_MIB = 16
NEW, AGAIN = "system \N{MICRO SIGN}s of a MiB new to the page cache", "of one that it has"
SYNCED = "MB/s of pwrite and fdatasync, a MiB each"
FACTS = (NEW, AGAIN, SYNCED)


def measure(folder: Path) -> Iterator[tuple[str, float]]:
    """Each fact, on a reserved file in the folder, as a log's is."""
    path = folder / "alone"
    chunk = os.urandom(MIB)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        os.posix_fallocate(descriptor, 0, (COPIED_MIB + SYNCED_MIB) * MIB)
        for name in (NEW, AGAIN):
            before = _system_seconds()
            for number in range(COPIED_MIB):
                os.pwrite(descriptor, chunk, number * MIB)
            yield name, (_system_seconds() - before) / COPIED_MIB * 1e6
        os.fdatasync(descriptor)
        began = time.perf_counter()
        # Behind what was copied: a log's bytes are written once, into what was only reserved.
        for number in range(COPIED_MIB, COPIED_MIB + SYNCED_MIB):
            os.pwrite(descriptor, chunk, number * MIB)
            os.fdatasync(descriptor)
        yield SYNCED, SYNCED_MIB * MIB / (time.perf_counter() - began) / 1e6
    finally:
        os.close(descriptor)
        path.unlink()


def _system_seconds() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_stime
