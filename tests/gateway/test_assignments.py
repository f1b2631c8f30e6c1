"""Assignments of push consumers; after GrpcBaseIT (testQuery[Fifo]Assignment)."""

import rockoon
from gateway.wire_client import WireClient
from rockoon_proto.apache.rocketmq.v2 import definition_pb2 as d
from rockoon_proto.apache.rocketmq.v2 import service_pb2 as pb
from rockoon_proto.v1.nameserver_pb2 import GroupConfig


async def assigned(client: WireClient, topic: str, group: str) -> pb.QueryAssignmentResponse:
    request = pb.QueryAssignmentRequest(
        topic=d.Resource(name=topic), group=d.Resource(name=group), endpoints=client.endpoints
    )
    answer: pb.QueryAssignmentResponse = await client.call("QueryAssignment", request)
    return answer


async def test_a_group_is_assigned_each_broker_once(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    route = await cluster.admin.create_topic("assigned", queues_per_broker=4)
    answer = await assigned(client, "assigned", "sharing")
    assert answer.status.code == d.OK
    (one,) = answer.assignments
    assert (one.message_queue.id, one.message_queue.permission) == (-1, d.READ_WRITE)
    assert one.message_queue.broker.name == route.queues[0].broker
    assert one.message_queue.broker.endpoints == client.endpoints
    assert one.message_queue.topic.name == "assigned"
    assert not one.message_queue.accept_message_types


async def test_a_fifo_group_is_assigned_every_queue(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    await cluster.admin.create_topic("assigned-fifo", queues_per_broker=3)
    await cluster.admin.create_group(GroupConfig(name="in-order", fifo=True))
    answer = await assigned(client, "assigned-fifo", "in-order")
    assert [each.message_queue.id for each in answer.assignments] == [0, 1, 2]


async def test_what_cannot_be_read_is_forbidden(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    await cluster.admin.create_topic("write-only", permissions=2)
    answer = await assigned(client, "write-only", "sharing")
    assert answer.status.code == d.FORBIDDEN
    assert answer.status.message.startswith("FORBIDDEN: no readable queue")


async def test_topics_and_endpoints_that_are_none(client: WireClient) -> None:
    assert (await assigned(client, "no-such-topic", "g")).status.code == d.TOPIC_NOT_FOUND
    assert (await assigned(client, "TBW102", "g")).status.code == d.ILLEGAL_TOPIC
    assert (await assigned(client, "t", "a b")).status.code == d.ILLEGAL_CONSUMER_GROUP
    request = pb.QueryAssignmentRequest(topic=d.Resource(name="t"), group=d.Resource(name="g"))
    answer = await client.call("QueryAssignment", request)
    assert answer.status.code == d.ILLEGAL_ACCESS_POINT
