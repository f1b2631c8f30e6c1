"""CPU cost per message of the format code, with NumPy and with the compiled kernel.

Run: `.venv/bin/python -m bench.kernel`; `--checksums` compares batches with and without checksums.
User CPU time, the best of many passes, in one process.
"""

import argparse
import resource
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from rockoon_format import kernel
from rockoon_format.batch import (
    BatchLayout,
    Scan,
    check_batch,
    decode_columns,
    encode_batch,
    scan,
    stamp_batch,
    with_checksums,
)
from rockoon_format.consume_queue import EntryArray
from rockoon_format.index_entries import KeyEntries, index_entries
from rockoon_format.record import encode_host

HOST = encode_host("127.0.0.1", 10911)
PASSES = 30
# Long enough for the clock of user time, which counts in microseconds or in ticks.
PASS_SECONDS = 0.05
# Records of the batches with and without checksums.
CHECKED = 1000

Lengths = NDArray[np.uint32]


def user_seconds() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_utime


def best_ns(work: Callable[[], object], count: int) -> float:
    """Return nanoseconds of user time per message in the best pass."""
    repeats, took = 1, 0.0
    while took < PASS_SECONDS:
        repeats *= 2
        took = timed(work, repeats)
    repeats = max(int(repeats * PASS_SECONDS / took), 1)
    return min(timed(work, repeats) for _ in range(PASSES)) / repeats / count * 1e9


def timed(work: Callable[[], object], repeats: int) -> float:
    """Return the user seconds of `repeats` calls."""
    began = user_seconds()
    for _ in range(repeats):
        work()
    return user_seconds() - began


def properties(count: int) -> list[bytes]:
    return [b"TAGS\x01tag%d\x02UNIQ_KEY\x01%032d\x02" % (n % 10, n) for n in range(count)]


def checked(frames: bytes, lengths: Lengths) -> BatchLayout:
    return check_batch(
        frames,
        lengths,
        topic=b"orders",
        queue_id=0,
        body_bytes_max=1 << 22,
        record_bytes_max=1 << 23,
    )


def stamped(frames: bytes, layout: BatchLayout) -> tuple[NDArray[np.uint8], EntryArray]:
    """Return the batch after the broker has filled in offsets and times, and its entries."""
    return stamp_batch(
        frames,
        layout,
        first_queue_offset=0,
        first_physical_offset=0,
        store_timestamp_ms=1,
        store_host=HOST,
    )


def pieces(body_bytes: int, count: int) -> dict[str, Callable[[], object]]:
    """Return the measured functions by name."""
    bodies, sections = [b"x" * body_bytes] * count, properties(count)

    def encode() -> bytes:
        return encode_batch(b"orders", 0, bodies, sections, 1, HOST, room=True)[0]

    frames, lengths = encode_batch(b"orders", 0, bodies, sections, 1, HOST, room=True)

    def append() -> tuple[NDArray[np.uint8], EntryArray]:
        return stamped(frames, checked(frames, lengths))

    stored = append()[0].tobytes()

    def read() -> int:
        columns = decode_columns(stored, lengths)
        assert not len(columns.damaged)
        return len(columns.bodies) + len(columns.queue_offsets)

    def recover() -> Scan:
        return scan(stored, 0, len(stored))

    scanned = recover()

    def index() -> KeyEntries:
        return index_entries(stored, scanned, 0)

    return {"encode": encode, "append": append, "read": read, "recover": recover, "index": index}


def checksums() -> None:
    """Print a row for each body size and kind of batch."""
    print("ns of user time a message   append    read")
    for body_bytes, alike in ((100, True), (100, False), (1024, True)):
        bodies = [b"x" * (body_bytes + (0 if alike else n % 50)) for n in range(CHECKED)]
        for name, room, adds in (
            ("none", False, False),
            ("with room", True, True),
            ("room is made", False, True),
        ):
            made = encode_batch(b"orders", 0, bodies, properties(CHECKED), 1, HOST, room=room)

            def append(made: tuple[bytes, Lengths] = made, adds: bool = adds) -> bytes:
                frames, layout = made[0], checked(*made)
                if adds:
                    frames, layout = with_checksums(frames, layout)
                return stamped(frames, layout)[0].tobytes()

            stored = append()

            def read(stored: bytes = stored) -> None:
                assert not len(decode_columns(stored).damaged)

            kind = f"{body_bytes:5} B{'' if alike else ' *'}  {name}"
            print(f"{kind:25}{best_ns(append, CHECKED):9.0f}{best_ns(read, CHECKED):8.0f}")
    print("* bodies of different lengths")


def main() -> None:
    options = argparse.ArgumentParser(prog="make bench-kernel", description=__doc__)
    options.add_argument("--checksums", action="store_true", help="with and without checksums")
    if options.parse_args().checksums:
        checksums()
        return
    kernel.use(kernel.AUTO)
    choices = [kernel.NUMPY, *([kernel.COMPILED] if kernel.is_compiled() else [])]
    print("ns of user time a message" + "".join(f"{choice:>12}" for choice in choices))
    for body_bytes, count in ((100, 500), (1024, 500), (100, 1), (100, 16)):
        for name, work in pieces(body_bytes, count).items():
            row = f"{name:10}{body_bytes:6} B x{count:4}"
            for choice in choices:
                kernel.use(choice)
                row += f"{best_ns(work, count):12.0f}"
            print(f"{row}")


if __name__ == "__main__":
    main()
