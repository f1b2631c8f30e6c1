"""Hashes of the message groups in FIFO groups. The offset service keeps the order per hash.

Do not change the hash function: all receivers of a group must use the same one. The message group
of a message is its ordering key (`__SHARDINGKEY`, RocketMQ's message group). The messages of a
queue without a key are one message group and are ordered. Messages of a retry topic are not
ordered: each is a separate message group.
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
    """Return the hashes of all messages of a batch."""
    groups = [find_value(raw, PROPERTY_SHARDING_KEY) for raw in batch.columns.properties_bytes]
    known = {group: message_group_hash(group) for group in set(groups)}
    return [known[group] for group in groups]


def separate_group_hash(offset: int) -> int:
    """Return the hash of an offset that is a separate message group: it has no message, an
    unreadable message, or a message of a retry topic."""
    return message_group_hash(f"\x00{offset}")
