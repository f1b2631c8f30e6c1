"""Message groups of a FIFO group's messages, as hashes, by which the offset service keeps order.

All receivers of a group must use the same hash: this one is not to be changed. A message's group is
its ordering key (`__SHARDINGKEY`, RocketMQ's message group). A queue's messages without a key are
one message group and have an order too. Messages of a retry topic have no order: each is a separate
message group.
"""

from hashlib import blake2b

from rockoon.message import Batch
from rockoon_format.properties import PROPERTY_SHARDING_KEY, find_value

CANDIDATES_MAX = 1024


def message_group_hash(message_group: str | None) -> int:
    """Return 64 bits: BLAKE2b of the text in UTF-8, little-endian; 0 for None."""
    if message_group is None:
        return 0
    digest = blake2b(message_group.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def hashes(batch: Batch) -> list[int]:
    """Return those of all messages of a batch."""
    groups = [find_value(raw, PROPERTY_SHARDING_KEY) for raw in batch.columns.properties_bytes]
    known = {group: message_group_hash(group) for group in set(groups)}
    return [known[group] for group in groups]


def hash_of_nobody(offset: int) -> int:
    """Return the hash of an offset without order: it has no message, an unreadable one, or one of a
    retry topic. It is a separate message group."""
    return message_group_hash(f"\x00{offset}")
