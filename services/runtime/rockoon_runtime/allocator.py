"""Memory allocator: what is freed is kept for what comes next."""

import ctypes

# Of <malloc.h>.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 64 << 20
_OWN_PAGES_BYTES = 32 << 20


def keep_freed_memory() -> None:
    """Have the C library keep up to 64 MiB that are free, where it is glibc; others do as they do.

    A batch is copied into some buffers of a megabyte, one after the other. By itself glibc gives
    each back to the system when it is freed, and the next one costs a page fault for every 4 KiB:
    a third of what a broker spent on a pull. Threads also wait for one another meanwhile.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    mallopt(_MMAP_THRESHOLD, _OWN_PAGES_BYTES)
    mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
