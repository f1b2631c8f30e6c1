"""Memory allocator: keeps freed memory for the next allocation, and returns it on request."""

import ctypes
import gc
import os
import sys

# Parameter numbers in <malloc.h>.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 64 << 20
_OWN_PAGES_BYTES = 32 << 20


def keep_freed_memory() -> None:
    """Let glibc keep up to 64 MiB of free memory; other C libraries are left as they are.

    A batch is copied through several buffers of a megabyte. By default glibc returns each buffer to
    the system when it is freed, and the next one costs a page fault for every 4 KiB: a third of a
    broker's CPU time of a pull. Threads also block each other during page faults.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    mallopt(_MMAP_THRESHOLD, _OWN_PAGES_BYTES)
    mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)


def load_without_collections() -> None:
    """Disable the garbage collector while a program loads its modules; `run_loop` enables it.

    Modules are not garbage, and their traversals are a sixth of the CPU time of a start.
    """
    gc.disable()


def run_with_system_allocator() -> None:
    """Restart this process with Python's objects in memory of the C library.

    Python's own allocator returns memory in arenas of 1 MiB, each only when it contains no object:
    one remaining object of a client keeps the memory of ten thousand objects of disconnected
    clients. `return_freed_memory` returns single pages of the C library's memory. If PYTHONMALLOC
    is set, this function does nothing.
    """
    if "PYTHONMALLOC" not in os.environ and sys.platform == "linux" and sys.executable:
        environment = {**os.environ, "PYTHONMALLOC": "malloc"}
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def return_freed_memory() -> None:
    """Collect garbage, and return free pages to the system, also pages between used ones.

    The collection also frees the memory that Python keeps for new tuples and other small objects.
    After ten thousand calls that is a megabyte, spread over pages of twenty megabytes.
    Takes milliseconds, and more if the process has many objects.
    """
    gc.collect()
    try:
        malloc_trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return
    malloc_trim(0)
