"""Resources of access keys: names of topics and groups in permissions.

topic:orders     a topic, with its lite topics
group:billing    a consumer or producer group, with its retry and dead-letter topics
cluster          nodes, whole logs, access keys, and the broker's own topics
"""

from typing import Literal

from rockoon_format.names import (
    DLQ_TOPIC_PREFIX,
    RETRY_TOPIC_PREFIX,
    is_dlq_topic,
    is_retry_topic,
    is_system_topic,
    lite_topic_of,
)

Action = Literal["read", "write", "admin", "see"]
Need = tuple[Action, str]

CLUSTER = "cluster"


def group_resource(group: str) -> str:
    return f"group:{group}"


def topic_resource(topic: str) -> str:
    """The resource of a topic: that of its group, or of its parent if it is a lite topic."""
    if is_retry_topic(topic):
        return group_resource(topic.removeprefix(RETRY_TOPIC_PREFIX))
    if is_dlq_topic(topic):
        return group_resource(topic.removeprefix(DLQ_TOPIC_PREFIX))
    if lite := lite_topic_of(topic):
        return f"topic:{lite[0]}"
    return CLUSTER if is_system_topic(topic) else f"topic:{topic}"


def topic_need(action: Action, topic: str) -> Need:
    """The permission for an action on a topic.

    The broker's own topics contain messages of all topics (half messages, delayed messages), so
    every action on them requires the admin permission.
    """
    resource = topic_resource(topic)
    return ("admin", resource) if resource == CLUSTER else (action, resource)
