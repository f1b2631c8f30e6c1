"""Topics: cached routes of the cluster, and accepted message types."""

from rockoon import Cluster
from rockoon.errors import TopicNotFound
from rockoon.net.routes import TopicRoute
from rockoon_format.topic_attributes import MESSAGE_TYPE
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import MessageType

ALL_TYPES = (
    MessageType.NORMAL,
    MessageType.FIFO,
    MessageType.DELAY,
    MessageType.TRANSACTION,
)
_BY_NAME = {
    MessageType.Name(each): (each,) for each in (*ALL_TYPES, MessageType.LITE, MessageType.PRIORITY)
}


def accepted_types(route: TopicRoute) -> tuple[MessageType, ...]:
    """Message types that a topic accepts: four if its attribute is missing or MIXED."""
    return _BY_NAME.get(route.attributes.get(MESSAGE_TYPE, "").upper(), ALL_TYPES)


class TopicRoutes:
    """Finds the routes of topics, mostly from a cache.

    Args:
        cluster: the connection.
        create: whether missing topics are created.
    """

    def __init__(self, cluster: Cluster, *, create: bool) -> None:
        self._cluster = cluster
        self._create = create

    async def route(self, name: str) -> TopicRoute:
        """Return a topic's route, mostly from the cache.

        Raises:
            TopicNotFound: it does not exist, and is not to be created.
            RockoonError: no nameserver replied.
        """
        known = self._cluster.routes.topic(name)
        if known is not None:
            return known
        try:
            return await self._cluster.route(name)
        except TopicNotFound:
            if not self._create:
                raise
            return await self._cluster.admin.create_topic(name, if_absent=True)
