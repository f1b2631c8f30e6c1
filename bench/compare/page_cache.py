"""Pages for what a turn is about to write, found before it begins.

In a virtual machine, the host may have reclaimed a page that the page cache allocates: on the
machine of docs/measurements/benchmarks.md a MiB of reclaimed pages costs 1,500 to 2,700
microseconds of system time, a MiB of pages just freed 170 to 230. The host reclaims freed pages
within five seconds. A turn that writes would measure the host.
"""

import os
from pathlib import Path

MIB = 1 << 20
# Above what any peer here stores in a second, its indexes included.
BYTES_A_SECOND = 768 * MIB


def find_pages(folder: Path, seconds: float) -> None:
    """Have the host find free pages for some seconds of writing.

    Args:
        folder: on the file system that is to be written.
        seconds: of the turn that follows at once.

    Raises:
        OSError: the disk has no room for as much.
    """
    path = folder / "pages"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    # Deleted before a byte of it is on disk, so a turn that syncs does not wait for it.
    path.unlink()
    chunk = bytes(MIB)
    try:
        for _ in range(round(seconds * BYTES_A_SECOND / MIB)):
            os.write(descriptor, chunk)
    finally:
        os.close(descriptor)
