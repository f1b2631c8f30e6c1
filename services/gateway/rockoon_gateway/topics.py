"""Topics: routes as the cluster has them, and what may be sent to one."""

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
    """What may be sent to a topic: any of four when it does not say, or says MIXED."""
    return _BY_NAME.get(route.attributes.get(MESSAGE_TYPE, "").upper(), ALL_TYPES)


class Topics:
    """Looks topics up.

    Args:
        cluster: the connection.
        create: whether those that are not there are created.
    """

    def __init__(self, cluster: Cluster, *, create: bool) -> None:
        self._cluster = cluster
        self._create = create

    async def route(self, name: str) -> TopicRoute:
        """A topic's route, mostly from memory.

        Raises:
            TopicNotFound: there is none, and none is to be created.
            RockoonError: nobody can tell.
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
