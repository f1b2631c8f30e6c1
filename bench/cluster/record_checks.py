"""Cost per message of the format code of brokers and readers, with and without a checksum.

Run: `.venv/bin/python -m bench.cluster.record_checks`. The best of many passes, in one process.
"""

import time
from collections.abc import Callable

import numpy as np

from rockoon_format.batch import (
    BatchLayout,
    check_batch,
    decode_columns,
    encode_batch,
    patch_batch,
    with_checksums,
)
from rockoon_format.record import encode_host

HOST = encode_host("127.0.0.1", 10911)
COUNT = 1000
PASSES = 200


def best_us(work: Callable[[], object]) -> float:
    """Return microseconds per message in the fastest pass."""
    best = float("inf")
    for _ in range(PASSES):
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
    return best / COUNT * 1e6


def patched(frames: bytes, layout: BatchLayout) -> bytes:
    """Return the batch after the broker has filled in offsets and times."""
    buffer = np.frombuffer(bytearray(frames), np.uint8)
    patch_batch(
        buffer,
        layout,
        first_queue_offset=0,
        first_physical_offset=0,
        store_timestamp_ms=1,
        store_host=HOST,
    )
    return buffer.tobytes()


def main() -> None:
    """Print a row for each body size and kind of batch."""
    print("body bytes  checksum         append us  read us")
    for body_bytes, alike in ((100, True), (100, False), (1024, True)):
        bodies = [b"x" * (body_bytes + (0 if alike else n % 50)) for n in range(COUNT)]
        sections = [b"TAGS\x01tag%d\x02UNIQ_KEY\x01%032d\x02" % (n % 10, n) for n in range(COUNT)]
        for name, room, adds in (
            ("none", False, False),
            ("with room", True, True),
            ("room is made", False, True),
        ):
            frames, lengths = encode_batch(b"orders", 0, bodies, sections, 1, HOST, room=room)

            def append(frames: bytes = frames, adds: bool = adds) -> bytes:
                layout = check_batch(
                    frames,
                    lengths,  # noqa: B023 - called within this turn
                    topic=b"orders",
                    queue_id=0,
                    body_bytes_max=4096,
                    record_bytes_max=8192,
                )
                return patched(*(with_checksums(frames, layout) if adds else (frames, layout)))

            stored = append()

            def read(stored: bytes = stored) -> None:
                assert not len(decode_columns(stored).damaged)

            kind = f"{body_bytes:10}  {name:14}{'' if alike else ' *'}"
            print(f"{kind:29}{best_us(append):9.2f}{best_us(read):9.2f}")
    print("* bodies of different lengths")


if __name__ == "__main__":
    main()
