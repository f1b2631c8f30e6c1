"""Checks of topics, queues and consumer groups. Pure.

Nameservers run them before each change, `rockoon apply` before the first one.
"""

from collections.abc import Iterable, Mapping

from rockoon_core.errors import InvalidArgument, InvalidGroupName, InvalidTopicName
from rockoon_core.group_settings import GROUP_SETTINGS, retry_delays_fault
from rockoon_format.names import (
    group_fault,
    is_dlq_topic,
    is_retry_topic,
    is_system_topic,
    topic_fault,
)
from rockoon_format.topic_attributes import (
    CLEANUP_POLICY,
    COMPACTION,
    attribute_fault,
    unknown_attribute_fault,
)
from rockoon_proto.v1.nameserver_pb2 import (
    ConsumeFrom,
    GroupConfig,
    Placement,
    StartPolicy,
    TopicConfig,
    UpdateTopicRequest,
)

QUEUES_PER_BLOCK_MAX = 4_096
# Each placement is one operation of a transaction; etcd allows 128 operations.
PLACEMENTS_MAX = 100
ATTRIBUTES_MAX = 64
ATTRIBUTE_BYTES_MAX = 4_096
# Epoch seconds from 2001 to 2286; as milliseconds they are in early 1970.
SECONDS_MIN, SECONDS_MAX = 10**9, 10**10 - 1
READ_ONLY, WRITE_ONLY, READ_AND_WRITE = 4, 2, 6


def checked_topic(config: TopicConfig) -> TopicConfig:
    """Return a new topic's configuration with its defaults filled in."""
    if fault := topic_fault(config.name):
        raise InvalidTopicName(topic=config.name, reason=fault)
    if is_system_topic(config.name):
        raise InvalidTopicName(topic=config.name, reason="the name is reserved for the broker")
    check_permissions(config.permissions)
    check_topic_attributes(config.name, config.attributes)
    for name in config.attributes:
        refuse_unknown_attribute(name)
    checked = TopicConfig()
    checked.CopyFrom(config)
    checked.permissions = config.permissions or READ_AND_WRITE
    return checked


def changed_topic(config: TopicConfig, request: UpdateTopicRequest) -> TopicConfig:
    """Return a topic's configuration after an update."""
    check_permissions(request.permissions)
    changed = TopicConfig()
    changed.CopyFrom(config)
    changed.permissions = request.permissions or config.permissions
    for name, value in request.attributes.items():
        if value:
            changed.attributes[name] = value
        else:
            changed.attributes.pop(name, None)
    for name in request.attributes:
        # An unknown attribute that was set before names were checked can be removed.
        if name not in config.attributes:
            refuse_unknown_attribute(name)
    set_now = {name: value for name, value in request.attributes.items() if value}
    check_topic_attributes(config.name, set_now)
    check_attributes(changed.attributes)
    return changed


def checked_group(config: GroupConfig) -> GroupConfig:
    if fault := group_fault(config.name):
        raise InvalidGroupName(group=config.name, reason=fault)
    check_attributes(config.attributes)
    check_start_policy(config.start_policy)
    if fault := retry_delays_fault(config.retry_delays_ms):
        raise InvalidArgument(reason=fault)
    for setting in GROUP_SETTINGS:
        if fault := setting.fault(config):
            raise InvalidArgument(reason=fault)
    return config


def checked_placements(placements: Iterable[Placement]) -> list[Placement]:
    """Return the placements (queues of a topic on each broker) if their brokers are distinct and
    their numbers of queues are valid.
    """
    checked = list(placements)
    if len(checked) > PLACEMENTS_MAX:
        raise InvalidArgument(
            reason=f"queues on {len(checked)} brokers: name at most {PLACEMENTS_MAX}, and add more "
            "by updating the topic"
        )
    if len({placement.broker for placement in checked}) < len(checked):
        raise InvalidArgument(reason="a broker is named twice")
    for placement in checked:
        if not 1 <= placement.queues <= QUEUES_PER_BLOCK_MAX:
            raise InvalidArgument(
                reason=f"{placement.queues} queues on broker {placement.broker!r}: a block has "
                f"1 to {QUEUES_PER_BLOCK_MAX}"
            )
    return checked


def check_permissions(permissions: int) -> None:
    if permissions not in (0, READ_ONLY, WRITE_ONLY, READ_AND_WRITE):
        raise InvalidArgument(
            reason=f"permissions {permissions}: 4 is read only, 2 write only, 6 both"
        )


def check_attributes(attributes: Mapping[str, str]) -> None:
    if len(attributes) > ATTRIBUTES_MAX:
        raise InvalidArgument(reason=f"{len(attributes)} attributes, more than {ATTRIBUTES_MAX}")
    for name, value in attributes.items():
        if not name or len(name.encode()) + len(value.encode()) > ATTRIBUTE_BYTES_MAX:
            raise InvalidArgument(
                reason=f"attribute {name[:40]!r}: a name, and at most {ATTRIBUTE_BYTES_MAX} bytes"
            )


def refuse_unknown_attribute(name: str) -> None:
    """Refuse an attribute of a topic that no broker knows. Raises InvalidArgument, which suggests a
    known name.
    """
    if fault := unknown_attribute_fault(name):
        raise InvalidArgument(reason=fault)


def check_topic_attributes(topic: str, attributes: Mapping[str, str]) -> None:
    """Refuse an attribute of a topic whose value brokers do not support. Raises InvalidArgument."""
    check_attributes(attributes)
    for name, value in attributes.items():
        if fault := attribute_fault(name, value):
            raise InvalidArgument(reason=fault)
    if attributes.get(CLEANUP_POLICY) == COMPACTION and (
        is_retry_topic(topic) or is_dlq_topic(topic)
    ):
        raise InvalidArgument(reason=f"{topic!r} holds failed messages: it cannot be compacted")


def check_start_policy(policy: StartPolicy) -> None:
    if policy.consume_from not in ConsumeFrom.values():
        raise InvalidArgument(reason=f"consume_from {policy.consume_from} is not known")
    if min(policy.timestamp_ms, policy.tail_messages, policy.duration_ms) < 0:
        raise InvalidArgument(reason="a start policy's numbers are 0 or more")
    if SECONDS_MIN <= policy.timestamp_ms <= SECONDS_MAX:
        raise InvalidArgument(
            reason=f"start policy timestamp {policy.timestamp_ms} looks like epoch seconds: give "
            f"epoch milliseconds, {policy.timestamp_ms} * 1000"
        )
