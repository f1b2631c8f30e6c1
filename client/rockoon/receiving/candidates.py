"""Candidates of a FIFO group: hashes of message groups, by which the offset service keeps order.

All receivers of a group must use the same hash: this one is not to be changed. A message's group is
its ordering key (`__SHARDINGKEY`, RocketMQ's message group). Those of a queue without one are a
message group of their own, so they come in order too.
"""

from collections.abc import Iterator, Sequence
from hashlib import blake2b

from rockoon.receiving.offset_reader import Reading
from rockoon_format.properties import PROPERTY_SHARDING_KEY, find_value

CANDIDATES_MAX = 1024


def message_group_hash(message_group: str | None) -> int:
    """Return 64 bits: BLAKE2b of the text in UTF-8, little-endian; 0 for None."""
    if message_group is None:
        return 0
    digest = blake2b(message_group.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def candidates(offsets: Sequence[int], reading: Reading) -> list[int]:
    """Return the hashes for consecutive offsets, up to the first that was not read.

    An offset without a message, or with one that nobody can read, is a group of its own.
    """
    return list(_candidates(offsets, reading))


def _candidates(offsets: Sequence[int], reading: Reading) -> Iterator[int]:
    found = {offset: (batch, index) for offset, batch, index in reading.found}
    absent = {*reading.gone, *reading.damaged}
    for offset in offsets:
        at = found.get(offset)
        if at is not None:
            batch, index = at
            raw = batch.columns.properties_bytes[index]
            yield message_group_hash(find_value(raw, PROPERTY_SHARDING_KEY))
        elif offset in absent:
            yield message_group_hash(f"\x00{offset}")
        else:
            return
