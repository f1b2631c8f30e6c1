"""Checks of requests, made before a request changes anything."""

from collections.abc import Iterable, Sequence

from rockoon_core.errors import InvalidArgument, InvalidGroupName, InvalidTopicName
from rockoon_core.message_queue import QUEUES_PER_CALL_MAX
from rockoon_format.names import group_fault, topic_fault
from rockoon_offset.progress.readers import member_fault
from rockoon_proto.v1 import offset_pb2 as pb

NAME_BYTES_MAX = 255
OPERATOR_BYTES_MAX = 4096
SUBSCRIPTIONS_MAX = 1024
EXPRESSION_BYTES_MAX = 64 << 10
# Less than LIMITS.message_bytes_max, which clients accept. The rest is for other reply fields.
REPLY_BYTES_MAX = 60 << 20
# Sum over a member's subscriptions: each change writes them to the journal and sends them to every
# other member.
SUBSCRIPTIONS_BYTES_MAX = 256 << 10


def check_group(group: str) -> None:
    """Raise InvalidGroupName if a group's name is invalid."""
    if fault := group_fault(group):
        raise InvalidGroupName(group=group[:NAME_BYTES_MAX], reason=fault)


def check_member(member: str) -> None:
    """Raise InvalidArgument if the id of a member with its own progress is invalid."""
    if fault := member_fault(member):
        raise InvalidArgument(reason=f"member {fault}")


def check_topic(topic: str) -> None:
    """Raise InvalidTopicName if a topic's name is invalid."""
    if fault := topic_fault(topic):
        raise InvalidTopicName(topic=topic[:NAME_BYTES_MAX], reason=fault)


def require(**names: str) -> None:
    """Raise InvalidArgument if a name is empty or too long."""
    for field, value in names.items():
        if not value:
            raise InvalidArgument(reason=f"{field} is empty")
    bounded_names(**names)


def bounded_names(**names: str) -> None:
    """Raise InvalidArgument if a name is too long; an empty name is valid."""
    for field, value in names.items():
        check_bytes(field, value, NAME_BYTES_MAX)


def check_operator(operator: str) -> None:
    """Raise InvalidArgument if the operator's text is too long: it is stored with the reset."""
    check_bytes("operator", operator, OPERATOR_BYTES_MAX)


def check_bytes(field: str, value: str, bytes_max: int) -> None:
    if len(value.encode()) > bytes_max:
        raise InvalidArgument(reason=f"{field} is longer than {bytes_max} bytes")


def bounded(entries: Sequence[object]) -> None:
    """Raise InvalidArgument if a request names too many queues."""
    if len(entries) > QUEUES_PER_CALL_MAX:
        raise InvalidArgument(reason=f"more than {QUEUES_PER_CALL_MAX} queues in one call")


def check_reply_entries(entries: int, entries_max: int, narrower: str) -> None:
    """Raise InvalidArgument if a reply would have too many entries.

    Args:
        entries: number of offsets in the reply.
        entries_max: the bound.
        narrower: parameters that would make the reply smaller; for the error text.
    """
    if entries > entries_max:
        raise InvalidArgument(
            reason=f"there are more than {entries_max} offsets, too many for one reply: "
            f"name {narrower}"
        )


def check_reply_bytes(size: int, narrower: str) -> None:
    """Raise InvalidArgument if a reply is too large for one message."""
    if size > REPLY_BYTES_MAX:
        raise InvalidArgument(
            reason=f"the reply would have {size} bytes, too many for one message: name {narrower}"
        )


def check_heartbeat(request: pb.HeartbeatRequest) -> None:
    """Check a member's heartbeat. Raises InvalidGroupName, InvalidTopicName, InvalidArgument."""
    check_group(request.group)
    require(member_id=request.member_id, instance=request.instance)
    if request.mode not in (pb.CLUSTERING, pb.BROADCASTING):
        raise InvalidArgument(reason=f"mode {request.mode} is neither CLUSTERING nor BROADCASTING")
    bounded(request.positions)
    bounded_names(allocation=request.allocation, language=request.language, version=request.version)
    _check_subscriptions(request.subscriptions)


def _check_subscriptions(subscriptions: Iterable[pb.TopicSubscription]) -> None:
    topics: set[str] = set()
    total = 0
    for entry in subscriptions:
        check_topic(entry.topic)
        if entry.topic in topics:
            raise InvalidArgument(reason=f"topic {entry.topic!r} is subscribed to twice")
        topics.add(entry.topic)
        check_bytes("an expression", entry.expression, EXPRESSION_BYTES_MAX)
        total += len(entry.topic) + len(entry.expression.encode())
    if len(topics) > SUBSCRIPTIONS_MAX:
        raise InvalidArgument(reason=f"a member subscribes to more than {SUBSCRIPTIONS_MAX} topics")
    if total > SUBSCRIPTIONS_BYTES_MAX:
        raise InvalidArgument(reason=f"subscriptions exceed {SUBSCRIPTIONS_BYTES_MAX} bytes")
