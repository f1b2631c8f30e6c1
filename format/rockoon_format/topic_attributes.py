"""Topic attributes: valid values, and their meaning for compaction.

    cleanup.policy        DELETE (the default) or COMPACTION
    delete.retention.ms   how long a tombstone stays after the creation of the first generation that
                          contains it, milliseconds; a day by default. Rockoon's own attribute.
    message.type          PRIORITY: a message of priority n is in queue n, or in the last queue, and
                          receivers prefer higher queues. Its other values matter to gateways only.
    queue.type            anything but BatchCQ, which only RocketMQ can read
    rockoon.owner         name of the resource files of `rockoon apply`, also on a group. Rockoon's
                          own attribute.

Other attributes of RocketMQ are stored and have no effect. Unknown attributes are refused when a
client sets them, because a misspelt attribute would silently have no effect. Stored unknown
attributes are kept.
Source: TopicAttributes, CleanupPolicy, CQType.
"""

from collections.abc import Mapping
from difflib import get_close_matches

from rockoon_format.names import is_dlq_topic, is_retry_topic

CLEANUP_POLICY = "cleanup.policy"
COMPACTION = "COMPACTION"
CLEANUP_POLICIES = ("DELETE", COMPACTION)
TOMBSTONE_RETENTION = "delete.retention.ms"
TOMBSTONE_RETENTION_MS_DEFAULT = 86_400_000
TOMBSTONE_RETENTION_MS_MAX = (1 << 62) - 1
QUEUE_TYPE = "queue.type"
MESSAGE_TYPE = "message.type"
PRIORITY = "PRIORITY"
BATCH_QUEUES = "BatchCQ"
ROCKETMQ_ATTRIBUTES = frozenset({QUEUE_TYPE, MESSAGE_TYPE, "reserve.time", "lite.topic.expiration"})
"""Attributes that have an effect in RocketMQ, but not in a broker here."""
OWNER = "rockoon.owner"
KNOWN_ATTRIBUTES = (CLEANUP_POLICY, TOMBSTONE_RETENTION, OWNER, *sorted(ROCKETMQ_ATTRIBUTES))


def is_compacted(topic: str, attributes: Mapping[str, str]) -> bool:
    """True if compaction keeps the newest message of each key of a topic, without an age limit.

    Always false for retry and dead-letter topics, because their messages have keys of other topics.
    """
    compacted = attributes.get(CLEANUP_POLICY) == COMPACTION
    return compacted and not (is_retry_topic(topic) or is_dlq_topic(topic))


def has_priorities(attributes: Mapping[str, str]) -> bool:
    """True if receivers read queues with higher ids first."""
    return attributes.get(MESSAGE_TYPE, "").upper() == PRIORITY


def tombstone_retention_ms(attributes: Mapping[str, str]) -> int:
    """Retention of a topic's tombstones; the default if the attribute is missing or not valid."""
    text = attributes.get(TOMBSTONE_RETENTION, "")
    if attribute_fault(TOMBSTONE_RETENTION, text):
        return TOMBSTONE_RETENTION_MS_DEFAULT
    return int(text)


def attribute_fault(name: str, value: str) -> str | None:
    """Return a sentence about an invalid attribute value, None if the value is valid."""
    if name == CLEANUP_POLICY and value not in CLEANUP_POLICIES:
        return f"{CLEANUP_POLICY} is {value!r}, neither {' nor '.join(CLEANUP_POLICIES)}"
    if name == TOMBSTONE_RETENTION and not _is_milliseconds(value):
        return (
            f"{TOMBSTONE_RETENTION} is {value!r}, not a number of milliseconds from 0 to "
            f"{TOMBSTONE_RETENTION_MS_MAX}"
        )
    if name == QUEUE_TYPE and value == BATCH_QUEUES:
        return f"{QUEUE_TYPE} is {value}: only RocketMQ supports queues of batch records"
    return None


def unknown_attribute_fault(name: str) -> str | None:
    """Return a sentence about an unknown attribute, None if it is known."""
    if name in KNOWN_ATTRIBUTES:
        return None
    nearest = get_close_matches(name, KNOWN_ATTRIBUTES, n=1)
    meant = f": did you mean {nearest[0]}?" if nearest else f" (there are {_listed()})"
    return f"there is no attribute {name[:100]!r}{meant}"


def _listed() -> str:
    return ", ".join(KNOWN_ATTRIBUTES)


def _is_milliseconds(text: str) -> bool:
    digits = text.isascii() and text.isdigit() and len(text) <= len(str(TOMBSTONE_RETENTION_MS_MAX))
    return digits and int(text) <= TOMBSTONE_RETENTION_MS_MAX
