"""Read calls for topics, groups and progress, shared by `Admin` and its parts."""

from collections import defaultdict
from typing import TYPE_CHECKING

from rockoon.admin.descriptions import GroupSummary, TopicDescription
from rockoon.admin.offset_calls import ask_offset_service
from rockoon.admin.queue_ends import ask_queue_ends
from rockoon.errors import TopicNotFound
from rockoon.net.routes import TopicRoute
from rockoon_core.message_queue import MessageQueue
from rockoon_proto.v1.nameserver_pb2 import (
    GetGroupReply,
    GetGroupRequest,
    GetRouteRequest,
    ListGroupsReply,
    ListGroupsRequest,
    ListTopicsRequest,
    RouteUpdate,
)
from rockoon_proto.v1.offset_pb2 import ListProgressRequest, Progress, QueueRef

if TYPE_CHECKING:
    from rockoon.net.connection import Connection


async def list_topics(connection: "Connection", *, include_system: bool) -> list[TopicRoute]:
    """Return all topics, sorted by name; see `Admin.list_topics`."""
    request = ListTopicsRequest(include_system=include_system)
    reply = await connection.call_nameserver("ListTopics", request)
    return sorted(map(TopicRoute.from_wire, reply.topics), key=lambda route: route.name)


async def get_topic(connection: "Connection", name: str) -> TopicRoute | None:
    """Return a topic from a nameserver, not from this connection's routes; None if it is absent."""
    reply = await connection.call_nameserver("GetRoute", GetRouteRequest(topics=[name]))
    return TopicRoute.from_wire(reply.topics[0]) if reply.topics else None


async def describe_topic(
    connection: "Connection", name: str, *, with_residency: bool
) -> TopicDescription:
    """Return a topic with its queues and readers; see `Admin.describe_topic`."""
    request = GetRouteRequest(topics=[name], include_groups=True)
    found: RouteUpdate = await connection.call_nameserver("GetRoute", request)
    if not found.topics:
        raise TopicNotFound(topic=name)
    route = TopicRoute.from_wire(found.topics[0])
    return TopicDescription(
        route=route,
        queues=await ask_queue_ends(connection, route, with_residency=with_residency),
        groups=sorted(each.group for each in found.subscriptions),
    )


async def get_group(connection: "Connection", name: str) -> GroupSummary:
    """Return a group with the topics it reads; see `Admin.get_group`."""
    request = GetGroupRequest(group=name)
    reply: GetGroupReply = await connection.call_nameserver("GetGroup", request)
    return GroupSummary(reply.group, {each.topic: each.revision for each in reply.subscriptions})


async def ask_groups(connection: "Connection") -> ListGroupsReply:
    """Return all groups and subscriptions from a nameserver."""
    reply: ListGroupsReply = await connection.call_nameserver("ListGroups", ListGroupsRequest())
    return reply


def group_summaries(reply: ListGroupsReply) -> list[GroupSummary]:
    """Return groups with the topics they read, sorted by name."""
    topics: dict[str, dict[str, int]] = defaultdict(dict)
    for each in reply.subscriptions:
        topics[each.group][each.topic] = each.revision
    return [
        GroupSummary(group, topics[group.config.name])
        for group in sorted(reply.groups, key=lambda group: str(group.config.name))
    ]


async def progress(connection: "Connection", group: str = "", topic: str = "") -> list[Progress]:
    """Return stored progress; see `Admin.progress`."""
    request = ListProgressRequest(group=group, topic=topic)
    reply = await ask_offset_service(connection, "ListProgress", request)
    return sorted(reply.progress, key=lambda each: (each.group, to_queue(each.queue)))


def to_queue(ref: QueueRef) -> MessageQueue:
    """Convert a queue reference to the SDK's message queue."""
    return MessageQueue(ref.topic, ref.broker, ref.queue_id)
