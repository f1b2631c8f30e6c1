"""Speed of the machine without Rockoon: Python, compiled code, memory copies and disk syncs.

In a virtual machine, a page that the page cache allocates for the first time can cost ten times as
much as one that was used before, because the host must provide it. Rates with syncs are those of
the disk.
"""

import os
import resource
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

MIB = 1 << 20
COPIED_MIB = 64
SYNCED_MIB = 16
NEW, AGAIN = "system \N{MICRO SIGN}s of a MiB new to the page cache", "of one that it has"
SYNCED = "MB/s of pwrite and fdatasync, a MiB each"
CALLED = "ns of an object of Python with a field and a call"
SUMMED = "GB/s of zlib's CRC-32"
FACTS = (CALLED, SUMMED, NEW, AGAIN, SYNCED)
OBJECTS = 100_000


class _Object:
    def __init__(self, field: int) -> None:
        self.field = field

    def read(self) -> int:
        return self.field


def measure(folder: Path) -> Iterator[tuple[str, float]]:
    """Measure the speed of Python, compiled code, memory copies and disk syncs; yield each value
    with the name of its goal."""
    began = time.process_time()
    for number in range(OBJECTS):
        _Object(number).read()
    yield CALLED, (time.process_time() - began) / OBJECTS * 1e9
    path = folder / "alone"
    chunk = os.urandom(MIB)
    began = time.process_time()
    for _ in range(COPIED_MIB):
        zlib.crc32(chunk)
    yield SUMMED, COPIED_MIB * MIB / (time.process_time() - began) / 1e9
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
        # After the copied bytes, because a log's bytes are written once into preallocated space.
        for number in range(COPIED_MIB, COPIED_MIB + SYNCED_MIB):
            os.pwrite(descriptor, chunk, number * MIB)
            os.fdatasync(descriptor)
        yield SYNCED, SYNCED_MIB * MIB / (time.perf_counter() - began) / 1e6
    finally:
        os.close(descriptor)
        path.unlink()


def _system_seconds() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_stime
