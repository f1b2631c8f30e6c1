"""Checks of requests that change routes, and of nodes that register. Pure; no request to etcd."""

from collections.abc import Iterable, Mapping

from rockoon_core.errors import (
    GroupNotFound,
    InvalidArgument,
    InvalidGroupName,
    InvalidTopicName,
    TopicNotFound,
    WrongCluster,
)
from rockoon_core.group_settings import GROUP_SETTINGS, retry_delays_fault
from rockoon_core.protocol import PROTOCOL
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
    Node,
    Placement,
    RegisterNodeRequest,
    StartPolicy,
    TopicConfig,
    UpdateTopicRequest,
)

QUEUES_PER_BLOCK_MAX = 4_096
# Each is an operation of one transaction, of which etcd allows 128.
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


def refuse_impossible_topic(name: str) -> None:
    """Raises TopicNotFound for an invalid topic name, which must not become part of a key."""
    if topic_fault(name):
        raise TopicNotFound(topic=name)


def refuse_impossible_group(name: str) -> None:
    """Raises GroupNotFound for an invalid group name, which must not become part of a key."""
    if group_fault(name):
        raise GroupNotFound(group=name)


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


# With both in one cluster, one node would accept calls without a key that another node refuses.
# "optional" is the step between them.
APART = {'"off"', '"on"'}


class Fingerprints:
    """Compares the settings of a node that registers with those of the nodes of its cluster.

    Args:
        cluster: its name.
        nameserver: this one's name.
        settings: settings of this nameserver that nodes should share, name to value.
    """

    def __init__(self, cluster: str, nameserver: str, settings: Mapping[str, str]) -> None:
        self._cluster = cluster
        self._nameserver = nameserver
        self._settings = settings

    def check(self, request: RegisterNodeRequest, cluster_id: int, level: int) -> None:
        """Refuse the registration of a node whose cluster, protocol, level or settings differ from
        this cluster's. Nodes that are already registered stay.

        Args:
            request: of the node.
            cluster_id: the cluster's identity; 0 while unknown.
            level: the cluster's feature level.

        Raises:
            WrongCluster: the node has the store of another cluster, speaks a protocol that this
                nameserver does not know, lacks the feature level of the cluster, or differs in a
                setting that must be equal.
        """
        if request.lease_id:
            return
        name = request.node.name
        if 0 not in (request.cluster_id, cluster_id) and request.cluster_id != cluster_id:
            self._refuse(
                f"the store of {name!r} belongs to cluster {request.cluster_id:016x}, this one is "
                f"{cluster_id:016x}"
            )
        if request.protocol > PROTOCOL:
            self._refuse(
                f"{name!r} speaks protocol {request.protocol}, and nameserver "
                f"{self._nameserver!r} only {PROTOCOL}: upgrade the nameservers first"
            )
        if request.node.level < level:
            self._refuse(
                f"{name!r} is of a former version: it supports feature level {request.node.level}, "
                f"and the upgrade of the cluster to level {level} is finished. Start a version "
                f"that supports level {level}"
            )
        here = self._settings.get("access", "")
        there = request.node.shared_settings.get("access", "")
        if {here, there} == APART:
            self._refuse(
                f"{name!r} has access = {there}, and nameserver {self._nameserver!r} {here}: it "
                "has to be the same everywhere"
            )

    def differences(self, node: Node, nodes: Iterable[Node]) -> list[str]:
        """Return a sentence for each setting of a node that should be equal and is not.

        Args:
            node: the node that registers.
            nodes: all of the cluster. It is compared with the first other one of its kind.
        """
        others = [
            each
            for each in nodes
            if each.kind == node.kind and each.name != node.name and each.shared_settings
        ]
        compared: list[tuple[str, Mapping[str, str]]] = [
            (f"nameserver {self._nameserver!r}", self._settings),
            *((repr(each.name), each.shared_settings) for each in others[:1]),
        ]
        return [
            f"{setting} = {value}, and {there[setting]} at {name}"
            for name, there in compared
            for setting, value in sorted(node.shared_settings.items())
            if setting in there and there[setting] != value
        ]

    def _refuse(self, reason: str) -> None:
        raise WrongCluster(reason, cluster=self._cluster, wanted=self._cluster)
