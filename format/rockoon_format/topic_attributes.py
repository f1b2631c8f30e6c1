"""Topic attributes: their values, and their meaning for compaction.

    cleanup.policy        DELETE (the default) or COMPACTION
    delete.retention.ms   how long a tombstone stays after the first generation that holds it was
                          made, milliseconds; a day by default. Ours, not RocketMQ's.
    message.type          PRIORITY: a message of priority n is in the queue n, or in the last one,
                          and receivers prefer higher queues. A gateway goes by its other values, a
                          broker by none.
    queue.type            anything but BatchCQ, which RocketMQ alone can read

RocketMQ's others are kept and mean nothing here. What neither knows is refused where attributes are
set, because nobody would notice that a misspelt one has no effect; where they are read, it is kept.
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
"""What RocketMQ goes by and a broker here does not."""
KNOWN_ATTRIBUTES = (CLEANUP_POLICY, TOMBSTONE_RETENTION, *sorted(ROCKETMQ_ATTRIBUTES))


def is_compacted(topic: str, attributes: Mapping[str, str]) -> bool:
    """Whether of a topic the newest message of each key stays, however old it is.

    Never so of retry and dead-letter topics: what was sent there has other people's keys.
    """
    compacted = attributes.get(CLEANUP_POLICY) == COMPACTION
    return compacted and not (is_retry_topic(topic) or is_dlq_topic(topic))


def has_priorities(attributes: Mapping[str, str]) -> bool:
    """Whether of a topic's queues those with higher ids are read first."""
    return attributes.get(MESSAGE_TYPE, "").upper() == PRIORITY


def tombstone_retention_ms(attributes: Mapping[str, str]) -> int:
    """How long a topic's tombstones stay; the default where the attribute is none or no number."""
    text = attributes.get(TOMBSTONE_RETENTION, "")
    if attribute_fault(TOMBSTONE_RETENTION, text):
        return TOMBSTONE_RETENTION_MS_DEFAULT
    return int(text)


def attribute_fault(name: str, value: str) -> str | None:
    """Return a sentence that says what is wrong with an attribute, None if nothing is."""
    if name == CLEANUP_POLICY and value not in CLEANUP_POLICIES:
        return f"{CLEANUP_POLICY} is {value!r}, neither {' nor '.join(CLEANUP_POLICIES)}"
    if name == TOMBSTONE_RETENTION and not _is_milliseconds(value):
        return (
            f"{TOMBSTONE_RETENTION} is {value!r}, not a number of milliseconds from 0 to "
            f"{TOMBSTONE_RETENTION_MS_MAX}"
        )
    if name == QUEUE_TYPE and value == BATCH_QUEUES:
        return f"{QUEUE_TYPE} is {value}: batches as one record are RocketMQ's alone"
    return None


def unknown_attribute_fault(name: str) -> str | None:
    """Return a sentence about an attribute that there is not, None if there is."""
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
