"""Read calls that `Admin` and its parts share: topics, groups, progress, lag, queues, brokers.

Calls to the offset service that are safe to repeat are retried.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from rockoon.admin.descriptions import GroupSummary, QueueEnds, TopicDescription
from rockoon.errors import (
    BrokerUnavailable,
    GroupNotFound,
    OffsetServiceUnavailable,
    RockoonError,
    TopicNotFound,
    from_wire,
)
from rockoon.net.connection import CALL_SECONDS_MAX, UNLISTED_SECONDS
from rockoon.net.retried import retried
from rockoon.net.routes import TopicRoute
from rockoon_core.message_queue import MessageQueue, in_calls
from rockoon_proto.v1 import nameserver_pb2 as nameserver_pb
from rockoon_proto.v1 import offset_pb2 as offset_pb
from rockoon_proto.v1.broker_pb2 import BrokerQueue, QueueStatusRequest

if TYPE_CHECKING:
    from rockoon.net.connection import Connection


async def ask_queue_ends(
    cluster: "Connection", *routes: TopicRoute, with_residency: bool = False
) -> list[QueueEnds]:
    """Return the state of the queues of some topics; all brokers are asked in parallel. If a broker
    does not answer, its queues have the error. A broker answers once it knows the routes, or after
    a timeout; see `route_revision`.

    Args:
        with_residency: also ask whether each queue's oldest message is in its broker's memory.
    """
    by_broker: dict[str, list[tuple[MessageQueue, TopicRoute]]] = {}
    for route in routes:
        for queue in route.queues:
            by_broker.setdefault(queue.broker, []).append((queue, route))
    async with asyncio.TaskGroup() as tasks:
        asked = [
            tasks.create_task(
                _ends_at(cluster, broker, queues, with_residency), name=f"queues of {broker}"
            )
            for broker, queues in sorted(by_broker.items())
        ]
    return [ends for task in asked for ends in task.result()]


async def _ends_at(
    cluster: "Connection",
    broker: str,
    queues: Sequence[tuple[MessageQueue, TopicRoute]],
    with_residency: bool,
) -> list[QueueEnds]:
    found: list[QueueEnds] = []
    for part in in_calls(queues):
        request = QueueStatusRequest(
            queues=[BrokerQueue(topic=each.topic, queue_id=each.queue_id) for each, _ in part],
            route_revision=max(route.modified_revision for _, route in part),
            with_residency=with_residency,
        )
        try:
            reply = await cluster.call_broker(broker, "QueueStatus", request)
        except RockoonError as error:
            found += [
                QueueEnds(each, route.create_revisions[each], None, error) for each, route in part
            ]
            continue
        found += [
            QueueEnds(
                queue,
                route.create_revisions[queue],
                None if state.HasField("error") else state,
                from_wire(state.error) if state.HasField("error") else None,
                reply.as_of_ms,
                reply.route_revision,
            )
            for (queue, route), state in zip(part, reply.queues, strict=True)
        ]
    return found


# An import may have 100,000 entries, and a nameserver may have to create a group for each one.
IMPORT_SECONDS_MAX = 600.0
# Calls without side effects.
_READ_ONLY = frozenset(
    {"ListLocks", "ListMembers", "ListInFlight", "ListClients", "ListProgress", "Lag", "Export"}
    | {"Query", "ListProducers"}
)
# Each of the added calls names a reset, so repeating it has no further effect.
_REPEATABLE = _READ_ONLY | {"Reset", "ApplyReset", "UndoReset"}


async def ask_offset_service(cluster: "Connection", method_name: str, request: Any) -> Any:
    """Call the offset service, which may be restarting.

    A read-only or repeatable call is retried until `cluster.retry_seconds` have passed. Any other
    call is not retried, because the change may have been made although its reply was lost.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + cluster.retry_seconds

    async def attempt() -> Any:
        left = max(deadline - loop.time(), 0.0)
        # A service that is not in the routes for this long may still answer at its old address.
        stub: Any = await cluster.wait_offset_service(
            min(left, UNLISTED_SECONDS) if method_name in _READ_ONLY else left
        )
        if method_name in ("ListInFlight", "ListClients", "ListProducers"):
            stub = cluster.in_flight_service()
        return await cluster.call(
            getattr(stub, method_name),
            request,
            unavailable=OffsetServiceUnavailable,
            timeout_seconds=IMPORT_SECONDS_MAX if method_name == "Import" else CALL_SECONDS_MAX,
        )

    if method_name not in _REPEATABLE:
        return await attempt()
    return await retried(attempt, cluster.retry_seconds)


async def list_topics(connection: "Connection", *, include_system: bool) -> list[TopicRoute]:
    """Return all topics, sorted by name; see `Admin.list_topics`."""
    request = nameserver_pb.ListTopicsRequest(include_system=include_system)
    reply = await connection.call_nameserver("ListTopics", request)
    return sorted(map(TopicRoute.from_wire, reply.topics), key=lambda route: route.name)


async def get_topic(connection: "Connection", name: str) -> TopicRoute | None:
    """Return a topic from a nameserver, not from this connection's routes; None if it is absent."""
    reply = await connection.call_nameserver(
        "GetRoute", nameserver_pb.GetRouteRequest(topics=[name])
    )
    return TopicRoute.from_wire(reply.topics[0]) if reply.topics else None


async def describe_topic(
    connection: "Connection", name: str, *, with_residency: bool
) -> TopicDescription:
    """Return a topic with its queues and readers; see `Admin.describe_topic`."""
    request = nameserver_pb.GetRouteRequest(topics=[name], include_groups=True)
    found: nameserver_pb.RouteUpdate = await connection.call_nameserver("GetRoute", request)
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
    request = nameserver_pb.GetGroupRequest(group=name)
    reply: nameserver_pb.GetGroupReply = await connection.call_nameserver("GetGroup", request)
    return GroupSummary(reply.group, {each.topic: each.revision for each in reply.subscriptions})


async def ask_groups(connection: "Connection") -> nameserver_pb.ListGroupsReply:
    """Return all groups and subscriptions from a nameserver."""
    reply: nameserver_pb.ListGroupsReply = await connection.call_nameserver(
        "ListGroups", nameserver_pb.ListGroupsRequest()
    )
    return reply


def group_summaries(reply: nameserver_pb.ListGroupsReply) -> list[GroupSummary]:
    """Return groups with the topics they read, sorted by name."""
    topics: dict[str, dict[str, int]] = defaultdict(dict)
    for each in reply.subscriptions:
        topics[each.group][each.topic] = each.revision
    return [
        GroupSummary(group, topics[group.config.name])
        for group in sorted(reply.groups, key=lambda group: str(group.config.name))
    ]


async def progress(
    connection: "Connection", group: str = "", topic: str = ""
) -> list[offset_pb.Progress]:
    """Return stored progress; see `Admin.progress`."""
    request = offset_pb.ListProgressRequest(group=group, topic=topic)
    reply = await ask_offset_service(connection, "ListProgress", request)
    return sorted(reply.progress, key=lambda each: (each.group, to_queue(each.queue)))


def to_queue(ref: offset_pb.QueueRef) -> MessageQueue:
    """Convert a queue reference to the SDK's message queue."""
    return MessageQueue(ref.topic, ref.broker, ref.queue_id)


def live_brokers(cluster: "Connection") -> list[str]:
    """Return the names of the brokers in the routes, sorted."""
    return sorted(node.name for node in cluster.routes.nodes if node.kind == nameserver_pb.BROKER)


async def missing_brokers(
    cluster: "Connection", routes: Iterable[TopicRoute] | None = None
) -> dict[str, BrokerUnavailable]:
    """Return the brokers that have queues but are not in the routes, each with its error.

    While a broker is away, a search cannot conclude that a message does not exist. `routes`: all
    topics, also those that Rockoon creates; None to ask a nameserver. Raises RockoonError: no
    nameserver answers.
    """
    if routes is None:
        routes = await list_topics(cluster, include_system=True)
    with_queues = {queue.broker for route in routes for queue in route.queues}
    missing = sorted(with_queues.difference(live_brokers(cluster)))
    return {broker: BrokerUnavailable(broker=broker) for broker in missing}


# Bounded because the offset service asks the brokers for each group.
GROUPS_AT_ONCE_MAX = 16


@dataclass(frozen=True, slots=True)
class GroupLag:
    """A consumer group with its lag and its readers.

    Attributes:
        lag: the lag; None if the offset service refused the call.
        readers: live members, and filters reported by receivers lately.
        error: the refusal, for example too many queues for one reply.
    """

    group: GroupSummary
    lag: offset_pb.LagReply | None
    readers: offset_pb.GroupMembers
    error: RockoonError | None = None

    @property
    def name(self) -> str:
        return str(self.group.group.config.name)


async def all_lags(connection: "Connection") -> AsyncGenerator[GroupLag]:
    """Yield the lag of each group; see `Admin.lags`."""
    groups = group_summaries(await ask_groups(connection))
    async for each in answers(groups, partial(ask_lag, connection)):
        yield each


async def answers(
    groups: Iterable[GroupSummary],
    ask: Callable[[GroupSummary], Coroutine[None, None, GroupLag | None]],
) -> AsyncGenerator[GroupLag]:
    """Call `ask` for a few groups at a time; yield the results that are not None."""
    left = iter(groups)
    while some := list(islice(left, GROUPS_AT_ONCE_MAX)):
        try:
            async with asyncio.TaskGroup() as tasks:
                asked = [tasks.create_task(ask(group)) for group in some]
        except BaseExceptionGroup as failures:
            # The service does not answer: all failures have the same cause.
            raise failures.exceptions[0] from None
        for task in asked:
            if (found := task.result()) is not None:
                yield found


async def ask_lag(connection: "Connection", group: GroupSummary) -> GroupLag | None:
    """Return the lag of a group; None if the group does not exist any more. Raises RockoonError: a
    retriable error of the service, not of the group."""
    name = group.group.config.name
    readers = offset_pb.GroupMembers(group=name)
    try:
        found = await ask_offset_service(
            connection, "ListMembers", offset_pb.ListMembersRequest(group=name)
        )
        readers = next((each for each in found.groups if each.group == name), readers)
        lag = await ask_offset_service(connection, "Lag", offset_pb.LagRequest(group=name))
    except GroupNotFound:
        return None
    except RockoonError as error:
        if error.retriable:
            raise
        return GroupLag(group, None, readers, error)
    return GroupLag(group, lag, readers)
