"""Routes for clients: all brokers have the address that the client has called.

So addresses behind a proxy, TLS ports, and names that only the client resolves remain valid for it.
The gateway selects the queues for sends and receives; clients use the listed queues only for
rotation.
"""

from collections.abc import Iterable, Sequence

from rockoon import Cluster
from rockoon.errors import TopicNotFound
from rockoon.net.routes import TopicRoute
from rockoon.producer.queue_selectors import accepting
from rockoon_core.message_queue import MessageQueue
from rockoon_format.topic_attributes import MESSAGE_TYPE
from rockoon_gateway.calls import GatewayCall
from rockoon_gateway.codes import OK, Refusal
from rockoon_gateway.names import checked_topic
from rockoon_proto.apache.rocketmq.v2 import definition_pb2 as pb
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import Code, MessageType, Permission
from rockoon_proto.apache.rocketmq.v2.service_pb2 import QueryRouteRequest, QueryRouteResponse

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


ADDRESSES_MAX = 64
HOST_CHARACTERS_MAX = 255


def checked_endpoints(endpoints: pb.Endpoints) -> pb.Endpoints:
    """Return the endpoints for all queues of the reply; raises Refusal: ILLEGAL_ACCESS_POINT."""
    if endpoints.scheme not in pb.AddressScheme.values():
        text = f"{endpoints.scheme} is not a scheme of addresses"
        raise Refusal(Code.ILLEGAL_ACCESS_POINT, text)
    if not 0 < len(endpoints.addresses) <= ADDRESSES_MAX or any(
        not 0 < len(each.host) <= HOST_CHARACTERS_MAX or not 0 < each.port < 1 << 16
        for each in endpoints.addresses
    ):
        raise Refusal(Code.ILLEGAL_ACCESS_POINT, "the request names no usable endpoints")
    endpoints.DiscardUnknownFields()
    return endpoints


def permission(route: TopicRoute) -> Permission:
    if route.readable and route.writable:
        return Permission.READ_WRITE
    if route.readable:
        return Permission.READ
    return Permission.WRITE if route.writable else Permission.NONE


def read_only(allowed: Permission) -> Permission:
    """Return a permission without the permission to send."""
    return (
        Permission.READ if allowed in (Permission.READ, Permission.READ_WRITE) else Permission.NONE
    )


def live_queues(cluster: Cluster, route: TopicRoute) -> list[MessageQueue]:
    """Return a topic's queues on live brokers; all queues if no broker is live."""
    live = [each for each in route.queues if cluster.routes.broker_address(each.broker)]
    return live or list(route.queues)


def queues_to_send(cluster: Cluster, route: TopicRoute) -> Sequence[MessageQueue]:
    """Return a topic's queues on live brokers that are not drained; `live_queues` if there are
    none."""
    return accepting(live_queues(cluster, route), cluster.routes.drained)


class QueryRoutes:
    """Serves the QueryRoute call: replies with the queues of a topic."""

    def __init__(self, cluster: Cluster, topics: TopicRoutes) -> None:
        self._cluster = cluster
        self._topics = topics

    async def query(self, request: QueryRouteRequest, call: GatewayCall) -> QueryRouteResponse:
        """Serve the QueryRoute call of a client."""
        topic = checked_topic(request.topic, call.namespace)
        call.require_topic("see", topic)
        endpoints = checked_endpoints(request.endpoints)
        route = await self._topics.route(topic)
        return QueryRouteResponse(
            status=OK,
            message_queues=self._queues(
                live_queues(self._cluster, route), request, route, endpoints
            ),
        )

    def _queues(
        self,
        queues: Iterable[MessageQueue],
        request: QueryRouteRequest,
        route: TopicRoute,
        endpoints: pb.Endpoints,
    ) -> Iterable[pb.MessageQueue]:
        accepted = accepted_types(route)
        allowed = permission(route)
        to_send = set(queues_to_send(self._cluster, route))
        for queue in queues:
            yield pb.MessageQueue(
                topic=request.topic,
                id=queue.queue_id,
                permission=allowed if queue in to_send else read_only(allowed),
                broker=pb.Broker(name=queue.broker, id=0, endpoints=endpoints),
                accept_message_types=accepted,
            )
