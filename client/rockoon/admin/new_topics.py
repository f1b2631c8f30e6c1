"""Creation of many topics in few calls."""

from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING

from rockoon.errors import RockoonError, from_wire
from rockoon.net.routes import TopicRoute
from rockoon_proto.v1.nameserver_pb2 import (
    CreateTopicRequest,
    CreateTopicsReply,
    CreateTopicsRequest,
)

if TYPE_CHECKING:
    from rockoon.net.connection import Connection

TOPICS_PER_CALL_MAX = 1024
CALL_SECONDS_MAX = 60.0


async def create_topics(
    connection: "Connection", names: Iterable[str], alike: CreateTopicRequest
) -> list[TopicRoute]:
    """Create topics; see `Admin.create_topics`.

    Args:
        connection: an open connection.
        names: names of the topics.
        alike: the request for each topic, without its name.
    """
    routes: list[TopicRoute] = []
    refusal: RockoonError | None = None
    rest = iter(names)
    while some := list(islice(rest, TOPICS_PER_CALL_MAX)):
        request = CreateTopicsRequest()
        for name in some:
            asked = request.topics.add()
            asked.CopyFrom(alike)
            asked.config.name = name
        reply: CreateTopicsReply = await connection.call_nameserver(
            "CreateTopics", request, timeout_seconds=CALL_SECONDS_MAX
        )
        for result in reply.results:
            if not result.HasField("error"):
                routes.append(TopicRoute.from_wire(result.topic))
            elif refusal is None:
                refusal = from_wire(result.error)
    if refusal is not None:
        raise refusal
    return routes
