"""Allocates memory pages before a measurement that writes.

In a virtual machine, the page cache can allocate pages that the host has reclaimed. On the machine
of docs/measurements/benchmarks.md a MiB of reclaimed pages costs 1,500 to 2,700 microseconds of
system time, of recently freed pages 170 to 230, and the host reclaims freed pages within five
seconds. Without this allocation, a turn that writes would measure the host.
"""

import os
from pathlib import Path

MIB = 1 << 20
# More than any peer here stores per second, including its indexes.
BYTES_A_SECOND = 768 * MIB


def find_pages(folder: Path, seconds: float) -> None:
    """Write to the page cache until the host has provided free pages for some seconds of writing.

    Args:
        folder: a directory on the written file system.
        seconds: duration of the turn, which must follow immediately.

    Raises:
        OSError: the disk has too little space.
    """
    path = folder / "pages"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    # Unlinked before its bytes are on disk, so that a turn with syncs does not wait for them.
    path.unlink()
    chunk = bytes(MIB)
    try:
        for _ in range(round(seconds * BYTES_A_SECOND / MIB)):
            os.write(descriptor, chunk)
    finally:
        os.close(descriptor)
