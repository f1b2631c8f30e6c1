"""Reserved descriptor numbers for files that must not be lost: stores and their locks.

The system gives a new file or socket the lowest free number. If a fault anywhere in the process
closes a number twice, it therefore hits a low number, of a recently opened file or socket. The
system uses numbers of the upper half of the limit only on request.
"""

import contextlib
import fcntl
import os
import resource

# A larger number would cost the system more memory for the process's table of descriptors.
RANGE_START_MAX = 16384


def in_reserved_range(fd: int) -> int:
    """Move a descriptor to a number that sockets do not get; the old one is closed.

    Returns:
        The new number; the old one if no number of the range is free.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    start = RANGE_START_MAX if soft == resource.RLIM_INFINITY else min(soft // 2, RANGE_START_MAX)
    if fd >= start:
        return fd
    with contextlib.suppress(OSError):
        moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, start)
        os.close(fd)
        return moved
    return fd
