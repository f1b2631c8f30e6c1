"""Kernel in Python and NumPy, with the functions of `rockoon_kernel`: used without a compiler.

Arguments and results are those of the compiled kernel (`format/kernel/src`): integer columns are
native int64 in bytes. A function that returns None leaves the case to its caller's general path.
The compiled kernel does this for rare cases, for example for text that is not UTF-8. This kernel
does it for all cases of `general_path`, because the general paths already are NumPy code: they
state the rules of the formats, and name the faults of refused bytes.
"""

import zlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rockoon_format.index_file import SLOT_BYTES, SLOTS_PER_PAGE, link_keys

_HASH_MAX = 2**31 - 1
# For at most this many keys, a loop is faster than column operations.
_FEW_KEYS_MAX = 32
_COUNTERS = 1 << 16


def general_path(*_: Any) -> None:
    """Leave the case to the caller's general path."""


append_batches = append_reply = append_request = appended = check_batch = compare = general_path
crcs = decode = distinct = encode_batch = encode_messages = index_keys = key_hashes = general_path
locate = matching = offset_ids = only_record = pull_answers = pull_front = queue_runs = general_path
records_to_read = rooms = scan = sequence_ends = slices = stamp_batch = tags_codes = general_path
chain = extent = general_path


http2 = None
"""Sessions of HTTP/2: `rockoon_rpc` uses the h2 library for Python."""


def crc32(data: bytes) -> int:
    """Return the CRC-32."""
    return zlib.crc32(data)


def take_bodies(
    source: Iterator[Any], messages_max: int, bytes_max: int
) -> tuple[list[Any], int | None]:
    """Return the next bodies, and their total size; None if the last one is not exactly `bytes`.

    Ends after the body that reaches the limit of messages or bytes, or that is not `bytes`.
    """
    bodies: list[Any] = []
    total = 0
    for body in source:
        bodies.append(body)
        if type(body) is not bytes:
            return bodies, None
        total += len(body)
        if total >= bytes_max or len(bodies) == messages_max:
            break
    return bodies, total


def unique_keys(front: bytes, counter: int, count: int) -> bytes:
    """Return keys in upper-case hex: the same front for each, with consecutive 16-bit counters."""
    counters = range(counter, counter + count)
    if count <= _FEW_KEYS_MAX:
        keys = b"".join([front + (each % _COUNTERS).to_bytes(2) for each in counters])
    else:
        columns = np.empty(count, np.dtype([("front", f"V{len(front)}"), ("counter", ">u2")]))
        columns["front"] = np.void(front)
        columns["counter"] = np.array(counters, np.int64) % _COUNTERS
        keys = columns.tobytes()
    return keys.hex().upper().encode()


class IndexSlots:
    """Slots of an index file, initially empty. `count`: number of slots, at least one."""

    def __init__(self, count: int) -> None:
        self._slots = np.zeros(count, ">i4")
        self._changed = np.zeros(-(-count // SLOTS_PER_PAGE), np.bool_)

    def link(
        self,
        first_unit: int,
        first_seconds: int,
        begin_ms: int,
        hashes: bytes,
        offsets: bytes,
        timestamps_ms: bytes,
    ) -> tuple[bytes, int]:
        """Add keys: returns their units, and how many slots had none. Raises ValueError: a hash is
        not from `hashes.index_key_hash`."""
        columns = [np.frombuffer(each, np.int64) for each in (hashes, offsets, timestamps_ms)]
        if ((columns[0] < 0) | (columns[0] > _HASH_MAX)).any():
            raise ValueError("a hash outside 0 to 2^31 - 1 is not an index hash")
        linked = link_keys(self._slots, first_unit, first_seconds, begin_ms, *columns)
        self._slots[linked.slot_numbers] = linked.slot_values
        self._changed[linked.slot_numbers // SLOTS_PER_PAGE] = True
        return linked.units.tobytes(), linked.slots_used

    def newest(self, slot: int) -> int:
        """Return the newest unit of a slot."""
        return int(self._slots[slot])

    def stored(self, first: int, count: int) -> bytes:
        """Return slots from `first`, in the form of a file."""
        return self._slots[first : first + count].tobytes()

    def load(self, first: int, stored: bytes) -> None:
        """Replace slots by those of a file."""
        self._part(first, stored)[:] = np.frombuffer(stored, ">i4")

    def compare(self, first: int, stored: bytes) -> None:
        """Mark the pages whose slots differ from a file's."""
        differing = np.flatnonzero(np.frombuffer(stored, ">i4") != self._part(first, stored))
        self._changed[(first + differing) // SLOTS_PER_PAGE] = True

    def _part(self, first: int, stored: bytes) -> NDArray[np.int32]:
        return self._slots[first : first + len(stored) // SLOT_BYTES]

    def mark_used(self) -> None:
        """Mark the pages of slots that have units."""
        self._changed[np.flatnonzero(self._slots) // SLOTS_PER_PAGE] = True

    def marks(self) -> bytes:
        """Return a byte for each page, 1 if the page is marked."""
        return self._changed.tobytes()

    def unmark(self) -> None:
        """Remove all marks."""
        self._changed[:] = False


class QueueCutter:
    """Leaves all chunks of a log to `consume_queue.queue_runs`."""

    def __init__(self, *_: Any) -> None:
        pass

    def add(self, *_: Any) -> bool:
        """Return False: no record was added."""
        return False

    def taken(self) -> tuple[list[bytes], tuple[bytes, bytes, bytes]]:
        """Return no topics and no runs."""
        return [], (b"", bytes(4), b"")


Window = SimpleNamespace(at=general_path, following=general_path)
"""Spark's records of a range of a log; `rockoon_spark.records.columns` is the general path."""


class DeliveredAnswers:
    """Leaves all messages to `rockoon_gateway.delivered`."""

    def __init__(self, *_: Any) -> None:
        pass

    def framed(self, _: bytes, starts: bytes, *_rest: Any) -> tuple[bytes, list[int], int]:
        """Return no frames, their ends, and the number of messages that were left out: all."""
        count = len(starts) // 8
        return b"", [0] * count, count
