"""Names of topics and consumer groups: allowed names, reserved names, and resources of access keys.

A permission of an access key names a resource:

    topic:orders     a topic, with its lite topics
    group:billing    a consumer or producer group, with its retry and dead-letter topics
    cluster          nodes, whole logs, access keys, and the broker's own topics

Source: TopicValidator, Validators, HookUtils#checkBeforePutMessage, MixAll.
"""

import re
from typing import Literal

TOPIC_BYTES_MAX = 127
# Names of retry and dead-letter topics contain a prefix and a whole group name.
DERIVED_TOPIC_BYTES_MAX = 255
GROUP_BYTES_MAX = 120

RETRY_TOPIC_PREFIX = "%RETRY%"
DLQ_TOPIC_PREFIX = "%DLQ%"
# Rockoon's own: RocketMQ stores lite topics as queues "%LMQ%$PARENT$NAME"; topics have no dollars.
LITE_TOPIC_PREFIX = "%LITE%"
LITE_TOPIC_SEPARATOR = "|"
LITE_TOPIC_BYTES_MAX = 64

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC = "rmq_sys_wheel_timer"
TRANSACTION_HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
TRANSACTION_OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRANSACTION_CHECK_MAX_TIME_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
DEFAULT_TOPIC = "TBW102"
OFFSET_MOVED_TOPIC = "OFFSET_MOVED_EVENT"
SYSTEM_TOPIC_PREFIX = "rmq_sys_"

SYSTEM_TOPICS = frozenset(
    {
        SCHEDULE_TOPIC,
        TRANSACTION_HALF_TOPIC,
        TRANSACTION_OP_TOPIC,
        TRANSACTION_CHECK_MAX_TIME_TOPIC,
        TRACE_TOPIC,
        SELF_TEST_TOPIC,
        DEFAULT_TOPIC,
        OFFSET_MOVED_TOPIC,
    }
)

TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"

_ALLOWED = re.compile(r"[%|a-zA-Z0-9_-]+")
_ALLOWED_LITE = re.compile(rf"[a-zA-Z0-9_-]{{1,{LITE_TOPIC_BYTES_MAX}}}")


def topic_fault(topic: str) -> str | None:
    """Return a sentence with the fault of a topic's name, None if it is valid."""
    derived = is_retry_topic(topic) or is_dlq_topic(topic) or lite_topic_of(topic) is not None
    bytes_max = DERIVED_TOPIC_BYTES_MAX if derived else TOPIC_BYTES_MAX
    return _fault("topic", topic, bytes_max)


def group_fault(group: str) -> str | None:
    """Return a sentence with the fault of a group's name, None if it is valid."""
    return _fault("group", group, GROUP_BYTES_MAX)


def retry_topic(group: str) -> str:
    """Return the topic to which a group's failed messages are sent back."""
    return RETRY_TOPIC_PREFIX + group


def dlq_topic(group: str) -> str:
    """Return the dead-letter topic of a group."""
    return DLQ_TOPIC_PREFIX + group


def lite_topic_fault(lite_topic: str) -> str | None:
    """Return a sentence with the fault of a lite topic's name, None if it is valid."""
    if _ALLOWED_LITE.fullmatch(lite_topic):
        return None
    rule = f"1 to {LITE_TOPIC_BYTES_MAX} letters, digits, - and _"
    return f"the lite topic {lite_topic[: 2 * LITE_TOPIC_BYTES_MAX]!r} is not of {rule}"


def stored_lite_topic(parent: str, lite_topic: str) -> str:
    """Return the topic that stores the messages of a lite topic."""
    return f"{LITE_TOPIC_PREFIX}{parent}{LITE_TOPIC_SEPARATOR}{lite_topic}"


def lite_topic_of(topic: str) -> tuple[str, str] | None:
    """Return parent and lite topic of a `stored_lite_topic`; None for other topics."""
    if not topic.startswith(LITE_TOPIC_PREFIX):
        return None
    # The parent's name may contain a separator, the lite topic's may not.
    parent, _, lite_topic = topic[len(LITE_TOPIC_PREFIX) :].rpartition(LITE_TOPIC_SEPARATOR)
    return (parent, lite_topic) if parent and lite_topic else None


def is_retry_topic(topic: str) -> bool:
    return topic.startswith(RETRY_TOPIC_PREFIX)


def is_dlq_topic(topic: str) -> bool:
    return topic.startswith(DLQ_TOPIC_PREFIX)


def is_system_topic(topic: str) -> bool:
    """Return whether a topic belongs to the broker; clients neither create nor delete it."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX)


def _fault(kind: str, name: str, bytes_max: int) -> str | None:
    if not name:
        return f"the {kind} is empty"
    if not _ALLOWED.fullmatch(name):
        return f"the {kind} {name!r} has a character other than letters, digits and % | _ -"
    if len(name) > bytes_max:
        return f"the {kind} has {len(name)} characters, more than {bytes_max}"
    return None


Action = Literal["read", "write", "admin", "see"]
Need = tuple[Action, str]
CLUSTER = "cluster"


def group_resource(group: str) -> str:
    return f"group:{group}"


def topic_resource(topic: str) -> str:
    """Return the resource of a topic: that of its group, or of its parent if it is a lite topic."""
    if is_retry_topic(topic):
        return group_resource(topic.removeprefix(RETRY_TOPIC_PREFIX))
    if is_dlq_topic(topic):
        return group_resource(topic.removeprefix(DLQ_TOPIC_PREFIX))
    if lite := lite_topic_of(topic):
        return f"topic:{lite[0]}"
    return CLUSTER if is_system_topic(topic) else f"topic:{topic}"


def topic_need(action: Action, topic: str) -> Need:
    """Return the permission for an action on a topic.

    The broker's own topics contain messages of all topics (half messages, delayed messages), so
    every action on them requires the admin permission.
    """
    resource = topic_resource(topic)
    return ("admin", resource) if resource == CLUSTER else (action, resource)
