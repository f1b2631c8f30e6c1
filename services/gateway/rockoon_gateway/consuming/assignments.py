"""QueryAssignment: the queues that a push consumer receives from.

All members of a group get the same assignment, because any member may receive from any queue. So
one entry per broker is enough, with the id -1; in a FIFO group it is one per queue, as clients that
poll queues in rotation expect.
Source: RouteActivity#queryAssignment.
"""

from collections.abc import Iterable

from rockoon import Cluster
from rockoon_core.message_queue import MessageQueue
from rockoon_gateway.calls import GatewayCall
from rockoon_gateway.codes import OK, Refusal
from rockoon_gateway.consuming.receive_rules import require_reader
from rockoon_gateway.groups import GroupConfigs
from rockoon_gateway.lite.lite_topics import is_lite
from rockoon_gateway.names import checked_group, checked_topic
from rockoon_gateway.routes import checked_endpoints, live_queues, permission
from rockoon_gateway.topics import TopicRoutes
from rockoon_proto.apache.rocketmq.v2 import definition_pb2 as v2
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import Code
from rockoon_proto.apache.rocketmq.v2.service_pb2 import (
    QueryAssignmentRequest,
    QueryAssignmentResponse,
)

ANY_QUEUE = -1


class Assignments:
    """Serves QueryAssignment.

    Args:
        cluster: the connection.
        topics: their routes.
        groups: their configuration.
    """

    def __init__(self, cluster: Cluster, topics: TopicRoutes, groups: GroupConfigs) -> None:
        self._cluster = cluster
        self._topics = topics
        self._groups = groups

    async def query_assignment(
        self, request: QueryAssignmentRequest, call: GatewayCall
    ) -> QueryAssignmentResponse:
        """See the protocol."""
        group = checked_group(request.group, call.namespace)
        topic = checked_topic(request.topic, call.namespace)
        require_reader(call, group, topic)
        endpoints = checked_endpoints(request.endpoints)
        route = await self._topics.route(topic)
        if not route.readable or not route.queues:
            raise Refusal(Code.FORBIDDEN, f"no readable queue of topic {topic}")
        queues = live_queues(self._cluster, route)
        if is_lite(route):
            # One queue: each receive covers all lite topics of the parent.
            await self._groups.lite(group, topic)
            queues, is_fifo = queues[:1], False
        else:
            is_fifo = (await self._groups.facts(group)).fifo
        return QueryAssignmentResponse(
            status=OK,
            assignments=[
                v2.Assignment(
                    message_queue=v2.MessageQueue(
                        topic=request.topic,
                        id=queue_id,
                        permission=permission(route),
                        broker=v2.Broker(name=broker, id=0, endpoints=endpoints),
                    )
                )
                for broker, queue_id in units(queues, is_fifo=is_fifo)
            ],
        )


def units(queues: Iterable[MessageQueue], *, is_fifo: bool) -> list[tuple[str, int]]:
    """Return broker and queue id of each assignment."""
    if is_fifo:
        return [(queue.broker, queue.queue_id) for queue in queues]
    return [(broker, ANY_QUEUE) for broker in sorted({queue.broker for queue in queues})]
