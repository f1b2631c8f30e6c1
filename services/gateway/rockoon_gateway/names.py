"""Names and times in requests: checks, and conversion to names in the cluster. Pure.

A client names a resource by a namespace and a name, the cluster by one name:

    namespace   name              in the cluster
    (none)      orders            orders
    shop        orders            shop%orders
    shop        shop%orders       shop%orders
    shop        %RETRY%billing    %RETRY%shop%billing
    shop        %DLQ%billing      %DLQ%shop%billing

Source: RocketMQ's NamespaceUtil for the form of names; its proxy's TopicValidator, with its lists
of system topics and groups, for the checks.
"""

import re

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from rockoon_format.names import (
    DLQ_TOPIC_PREFIX,
    LITE_TOPIC_PREFIX,
    RETRY_TOPIC_PREFIX,
    group_fault,
    is_system_topic,
    topic_fault,
)
from rockoon_gateway.codes import Refusal
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import Code, Resource

_SYSTEM_TOPICS = frozenset({"BenchmarkTest", "CHECKPOINT_TOPIC"})
_SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
NAMESPACE_CHARACTERS_MAX = 118
"""Maximum length of a group's name, with its namespace and the separator: 120 characters."""
NAMESPACE_SEPARATOR = "%"
# The separator is excluded, so that a name belongs to one namespace only.
_NAMESPACE = re.compile(rf"[a-zA-Z0-9_-]{{1,{NAMESPACE_CHARACTERS_MAX}}}")


def checked_topic(topic: Resource, namespace: str) -> str:
    """Check the name of a client's topic and return its name in the cluster.

    Replies repeat the resource: unknown fields are removed from it, and if it has no namespace, the
    caller's is set.

    Raises:
        Refusal: ILLEGAL_TOPIC.
    """
    name = _name_in_cluster(topic, namespace, Code.ILLEGAL_TOPIC)
    if fault := topic_fault(name):
        raise _refused(Code.ILLEGAL_TOPIC, fault, topic)
    if _is_brokers(topic.name) or _is_brokers(name):
        raise Refusal(Code.ILLEGAL_TOPIC, f"topic {name!r} belongs to the brokers")
    return name


def checked_group(group: Resource, namespace: str) -> str:
    """Return a consumer group's name in the cluster. Raises Refusal: ILLEGAL_CONSUMER_GROUP."""
    name = _name_in_cluster(group, namespace, Code.ILLEGAL_CONSUMER_GROUP)
    if fault := group_fault(name):
        raise _refused(Code.ILLEGAL_CONSUMER_GROUP, fault, group)
    if group.name.startswith(_SYSTEM_GROUP_PREFIX) or name.startswith(_SYSTEM_GROUP_PREFIX):
        raise Refusal(Code.ILLEGAL_CONSUMER_GROUP, f"group {name!r} belongs to the brokers")
    return name


def cluster_name(resource: Resource, namespace: str = "") -> str:
    """Return a resource's unchecked name; `namespace` is the caller's, if it has none."""
    namespace = resource.resource_namespace or namespace
    name = resource.name
    if not namespace or not name:
        return name
    prefix, rest = _parts(name)
    start = namespace + NAMESPACE_SEPARATOR
    return name if rest.startswith(start) else f"{prefix}{start}{rest}"


def plain_name(name: str, namespace: str) -> str:
    """Return the name by which clients of a namespace know a name in the cluster: the name itself
    if it belongs to no namespace, or to another one."""
    prefix, rest = _parts(name)
    start = namespace + NAMESPACE_SEPARATOR
    return prefix + rest.removeprefix(start) if namespace else name


def resource_of(name: str, namespace: str) -> Resource:
    """Return the resource by which clients of a namespace know a name in the cluster."""
    plain = plain_name(name, namespace)
    return Resource(resource_namespace=namespace if plain != name else "", name=plain)


def is_in(name: str, namespace: str) -> bool:
    """True if a name in the cluster belongs to a namespace; all names belong to the empty one."""
    return not namespace or plain_name(name, namespace) != name


def _name_in_cluster(resource: Resource, namespace: str, code: Code) -> str:
    # Some replies repeat the resource for each message or queue.
    resource.DiscardUnknownFields()
    if not resource.resource_namespace:
        if not namespace:
            return resource.name
        resource.resource_namespace = namespace
    if not _NAMESPACE.fullmatch(resource.resource_namespace):
        shown = resource.resource_namespace[:NAMESPACE_CHARACTERS_MAX]
        raise Refusal(
            code,
            f"the namespace {shown!r} does not consist of 1 to {NAMESPACE_CHARACTERS_MAX} letters, "
            "digits, - and _",
        )
    return cluster_name(resource)


def _parts(name: str) -> tuple[str, str]:
    """Split a name after its retry or dead letter prefix, which is empty for other names."""
    for prefix in (RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX):
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return "", name


def _is_brokers(topic: str) -> bool:
    return is_system_topic(topic) or topic in _SYSTEM_TOPICS or topic.startswith(LITE_TOPIC_PREFIX)


def _refused(code: Code, fault: str, resource: Resource) -> Refusal:
    namespace = resource.resource_namespace
    return Refusal(code, f"{fault}, with its namespace {namespace!r}" if namespace else fault)


# A time on the wire is two integers, and a caller may send any.
EPOCH_SECONDS_MAX = 253_402_300_799
"""The last second of the year 9999: the protocol's times end there."""
EPOCH_MS_MAX = EPOCH_SECONDS_MAX * 1000 + 999
DURATION_SECONDS_MAX = 315_576_000_000
"""The longest duration of the protocol, in either direction: about 10,000 years."""
_NANOS = 1_000_000_000


def epoch_ms(time: Timestamp, name: str, code: Code = Code.BAD_REQUEST) -> int:
    """Return a time as epoch milliseconds.

    Args:
        name: name of the field, for the text of the refusal.

    Raises:
        Refusal: the time is before 1970 or after the year 9999, or its nanoseconds are not within a
            second.
    """
    seconds, nanos = time.seconds, time.nanos
    if not (0 <= seconds <= EPOCH_SECONDS_MAX and 0 <= nanos < _NANOS):
        raise Refusal(
            code, f"{name} is {seconds} s and {nanos} ns, not a time of the years 1970 to 9999"
        )
    return seconds * 1000 + nanos // 1_000_000


def checked_epoch_ms(time_ms: int, name: str) -> int:
    """Return a time that a request has in epoch milliseconds; raises Refusal: BAD_REQUEST, if
    `epoch_ms` would refuse it."""
    if not 0 <= time_ms <= EPOCH_MS_MAX:
        raise Refusal(
            Code.BAD_REQUEST, f"{name} is {time_ms} ms, not a time of the years 1970 to 9999"
        )
    return time_ms


def duration_ms(duration: Duration, name: str, code: Code = Code.BAD_REQUEST) -> int:
    """Return a duration in milliseconds, rounded towards zero; it may be negative.

    Args:
        name: name of the field, for the text of the refusal.

    Raises:
        Refusal: it is longer than the protocol's longest one, its nanoseconds are not within a
            second, or their sign differs from that of the seconds.
    """
    seconds, nanos = duration.seconds, duration.nanos
    is_in_range = abs(seconds) <= DURATION_SECONDS_MAX and abs(nanos) < _NANOS
    if not is_in_range or (seconds < 0 < nanos) or (nanos < 0 < seconds):
        raise Refusal(code, f"{name} is {seconds} s and {nanos} ns, which is not a duration")
    return seconds * 1000 + (nanos // 1_000_000 if nanos >= 0 else -(-nanos // 1_000_000))
