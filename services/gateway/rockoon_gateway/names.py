"""Names that clients give: which are allowed. Pure.

Source: the same rules as RocketMQ's proxy (TopicValidator, its lists of system topics and groups).
"""

from rockoon_format.names import LITE_TOPIC_PREFIX, group_fault, is_system_topic, topic_fault
from rockoon_gateway.codes import Refusal
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import Code, Resource

_SYSTEM_TOPICS = frozenset({"BenchmarkTest", "CHECKPOINT_TOPIC"})
_SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
NAMESPACE_CHARACTERS_MAX = 255


def checked_topic(topic: Resource) -> str:
    """The topic's name; raises Refusal with ILLEGAL_TOPIC.

    Only what the protocol knows is left of the resource, which answers repeat.
    """
    _bound(topic, Code.ILLEGAL_TOPIC)
    name = topic.name
    if fault := topic_fault(name):
        raise Refusal(Code.ILLEGAL_TOPIC, fault)
    if is_system_topic(name) or name in _SYSTEM_TOPICS or name.startswith(LITE_TOPIC_PREFIX):
        raise Refusal(Code.ILLEGAL_TOPIC, f"topic {name!r} belongs to the brokers")
    return name


def checked_group(group: Resource) -> str:
    """The consumer group's name; raises Refusal with ILLEGAL_CONSUMER_GROUP."""
    _bound(group, Code.ILLEGAL_CONSUMER_GROUP)
    name = group.name
    if fault := group_fault(name):
        raise Refusal(Code.ILLEGAL_CONSUMER_GROUP, fault)
    if name.startswith(_SYSTEM_GROUP_PREFIX):
        raise Refusal(Code.ILLEGAL_CONSUMER_GROUP, f"group {name!r} belongs to the brokers")
    return name


def _bound(resource: Resource, code: Code) -> None:
    # Some calls repeat it for each message or queue.
    if len(resource.resource_namespace) > NAMESPACE_CHARACTERS_MAX:
        limit = NAMESPACE_CHARACTERS_MAX
        raise Refusal(code, f"a namespace of more than {limit} characters")
    resource.DiscardUnknownFields()
