"""Message ids: the broker's offset id and the producer's unique key.

    offset id   | store host 4 or 16 | port 4 | physical offset 8 |            upper-case hex
    unique key  | client address 4 or 16 | pid 2 | instance 4 | ms 4 | counter 2 |   upper-case hex

Source: MessageDecoder#createMessageId, #decodeMessageId, MessageClientIDSetter#createUniqID.
"""

import struct
from dataclasses import dataclass

from rockoon_format import kernel
from rockoon_format.record import HOST_V4_BYTES, HOST_V6_BYTES

_OFFSET = struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class OffsetMessageId:
    """Position of a message: the broker's 8- or 20-byte host and the CommitLog offset."""

    store_host: bytes
    physical_offset: int


def encode_offset_id(store_host: bytes, physical_offset: int) -> str:
    """Return the 32 or 56 hex digits that identify the record at `physical_offset`. Raises
    ValueError: the host is not 8 or 20 bytes long, or the offset is negative."""
    if len(store_host) not in (HOST_V4_BYTES, HOST_V6_BYTES) or physical_offset < 0:
        raise ValueError(f"no message is at {physical_offset} of {store_host!r}")
    return (store_host + _OFFSET.pack(physical_offset)).hex().upper()


def decode_offset_id(text: str) -> OffsetMessageId:
    """Read an offset id. Raises ValueError: not 32 or 56 hex digits, or the offset is negative."""
    if len(text) not in (32, 56) or not text.isalnum():
        raise ValueError(f"{text!r} is not an offset message id")
    raw = bytes.fromhex(text)
    (offset,) = _OFFSET.unpack(raw[-8:])
    if offset < 0:
        raise ValueError(f"{text!r} is not an offset message id: its offset is negative")
    return OffsetMessageId(raw[:-8], offset)


class UniqueKeys:
    """Generates UNIQ_KEY values that are unique among processes.

    Two keys of one process differ in the counter, or in the millisecond after the counter has
    wrapped: more than 65536 keys within one millisecond would repeat.

    Args:
        address: the client's packed IPv4 or IPv6 address.
        pid: the process id; its low 16 bits are used.
        instance_hash: identifies a producer within the process, 32 bits.
        month_start_ms: the first of the current month at local midnight, epoch milliseconds.
    """

    __slots__ = ("_counter", "_month_start_ms", "_prefix")

    def __init__(self, address: bytes, pid: int, instance_hash: int, month_start_ms: int) -> None:
        if len(address) not in (4, 16):
            raise ValueError(f"an address of {len(address)} bytes, not 4 or 16")
        self._prefix = address + struct.pack(">HI", pid & 0xFFFF, instance_hash & 0xFFFFFFFF)
        self._month_start_ms = month_start_ms
        self._counter = 0

    def begin_month(self, month_start_ms: int) -> None:
        """Count milliseconds from another month's start; the time field wraps after 49 days."""
        self._month_start_ms = month_start_ms

    def take(self, count: int, now_ms: int) -> bytes:
        """Return `count` new keys as one: 32 (IPv4) or 56 (IPv6) ASCII hex digits each."""
        elapsed_ms = (now_ms - self._month_start_ms) & 0xFFFFFFFF
        front = self._prefix + elapsed_ms.to_bytes(4)
        keys: bytes = kernel.native.unique_keys(front, self._counter, count)
        self._counter = (self._counter + count) & 0xFFFF
        return keys
