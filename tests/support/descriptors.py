"""A process without free file descriptors."""

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

LIMIT = 4096


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Within the block, every open in this process fails with EMFILE of the system."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, LIMIT), hard))
    taken: list[int] = []
    try:
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        assert error.errno == errno.EMFILE
        yield
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
