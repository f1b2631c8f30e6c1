"""Upper limit of the disk's write rate: only fallocate and pwrite."""

import os
import time
from pathlib import Path

FILE_BYTES = 1 << 30
CHUNK_BYTES = 200 << 10


def raw_write_bytes_per_second(folder: Path) -> float:
    """Write a pre-allocated file of 1 GiB in chunks without a sync; return bytes per second."""
    path = folder / "raw"
    chunk = os.urandom(CHUNK_BYTES)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        os.posix_fallocate(descriptor, 0, FILE_BYTES)
        began = time.perf_counter()
        for offset in range(0, FILE_BYTES - CHUNK_BYTES, CHUNK_BYTES):
            os.pwrite(descriptor, chunk, offset)
        return FILE_BYTES / (time.perf_counter() - began)
    finally:
        os.close(descriptor)
        path.unlink()
