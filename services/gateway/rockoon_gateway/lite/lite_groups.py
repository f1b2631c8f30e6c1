"""Groups that read lite topics: bound to one parent, by attributes with RocketMQ's names. Pure.

Source: SubscriptionGroupAttributes.
"""

from dataclasses import dataclass

from rockoon_gateway.codes import Refusal
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import ClientType, Code
from rockoon_proto.v1.nameserver_pb2 import (
    CONSUME_FROM_FIRST,
    EXACT,
    GroupConfig,
    StartPolicy,
)

BIND_TOPIC = "lite.bind.topic"
SUBSCRIPTION_MODEL = "lite.sub.model"
EXCLUSIVE = "exclusive"
CLIENT_QUOTA = "lite.sub.client.quota"
CLIENT_QUOTA_DEFAULT = 2000
# Limit of the field in which clients receive it.
CLIENT_QUOTA_MAX = (1 << 31) - 1

LITE_CLIENTS = frozenset({ClientType.LITE_PUSH_CONSUMER, ClientType.LITE_SIMPLE_CONSUMER})


@dataclass(frozen=True, slots=True)
class LiteGroup:
    """Configuration of a consumer group that reads lite topics.

    Attributes:
        parent: the topic that it is bound to.
        quota: limit of one client's subscriptions.
        is_exclusive: whether a lite topic has one subscriber of the group, the last one.
    """

    parent: str
    quota: int
    is_exclusive: bool


def lite_group(config: GroupConfig) -> LiteGroup | None:
    """Parse a group's lite configuration; None for a group that reads no lite topics."""
    parent = config.attributes.get(BIND_TOPIC, "")
    if not parent:
        return None
    quota = config.attributes.get(CLIENT_QUOTA, "")
    return LiteGroup(
        parent=parent,
        quota=_number(quota),
        is_exclusive=config.attributes.get(SUBSCRIPTION_MODEL, "").lower() == EXCLUSIVE,
    )


def _number(quota: str) -> int:
    if not (quota.isascii() and quota.isdecimal()):
        return CLIENT_QUOTA_DEFAULT
    is_long = len(quota) > len(str(CLIENT_QUOTA_MAX))
    return CLIENT_QUOTA_MAX if is_long else min(int(quota), CLIENT_QUOTA_MAX)


def checked_lite_group(config: GroupConfig, parent: str) -> LiteGroup:
    """Return a group's lite configuration if it may read a parent's lite topics.

    Raises:
        Refusal: ILLEGAL_CONSUMER_GROUP, it is not bound to a parent, or not FIFO; ILLEGAL_TOPIC,
            it is bound to another parent.
    """
    found = lite_group(config)
    if found is None:
        raise Refusal(
            Code.ILLEGAL_CONSUMER_GROUP,
            f"group {config.name!r} reads no lite topics: it has no attribute {BIND_TOPIC}",
        )
    if found.parent != parent:
        raise Refusal(
            Code.ILLEGAL_TOPIC,
            f"group {config.name!r} is bound to {found.parent!r}, not {parent!r}",
        )
    if not config.fifo:
        raise Refusal(
            Code.ILLEGAL_CONSUMER_GROUP,
            f"group {config.name!r} is not FIFO, and lite topics are read in order",
        )
    return found


def check_plain_group(config: GroupConfig) -> None:
    """Raise Refusal, ILLEGAL_CONSUMER_GROUP, for a group that is bound to lite topics."""
    if (found := lite_group(config)) is not None:
        raise Refusal(
            Code.ILLEGAL_CONSUMER_GROUP,
            f"group {config.name!r} reads the lite topics of {found.parent!r} only",
        )


def new_lite_group(name: str, parent: str) -> GroupConfig:
    """Return the configuration of a new group, which reads each lite topic from its beginning."""
    return GroupConfig(
        name=name,
        fifo=True,
        new_queue_rule=EXACT,
        start_policy=StartPolicy(consume_from=CONSUME_FROM_FIRST),
        attributes={BIND_TOPIC: parent},
    )
