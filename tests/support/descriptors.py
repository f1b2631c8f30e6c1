"""A process that has no descriptors left."""

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

LIMIT = 4096


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Nothing can be opened in this process meanwhile: EMFILE, from the system itself."""
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
