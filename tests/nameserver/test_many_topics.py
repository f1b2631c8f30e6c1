"""Many topics created by one call."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

import rockoon
from rockoon.errors import InvalidTopicName
from rockoon_nameserver.topics import TOPICS_AT_ONCE_MAX
from rockoon_proto.v1 import nameserver_pb2 as pb
from support.etcd import EtcdServer
from support.nameserver import Nameserver, broker_node, running_nameserver


@pytest.fixture
async def nameserver(shared_etcd: EtcdServer, cluster: str) -> AsyncIterator[Nameserver]:
    async with running_nameserver(etcd=(shared_etcd.endpoint,), cluster=cluster) as running:
        for name in ("a", "b"):
            request = pb.RegisterNodeRequest(node=broker_node(name))
            await running.call("RegisterNode", request)
        yield running


def topic(name: str, **request: Any) -> pb.CreateTopicRequest:
    return pb.CreateTopicRequest(config=pb.TopicConfig(name=name), **request)


async def create(nameserver: Nameserver, *topics: pb.CreateTopicRequest) -> list[Any]:
    reply = await nameserver.call("CreateTopics", pb.CreateTopicsRequest(topics=topics))
    revisions = [each.topic.modified_revision for each in reply.results if each.created]
    assert reply.revision == max(revisions, default=reply.revision)
    return list(reply.results)


async def test_as_many_as_etcd_takes_are_born_at_one_revision_and_served_at_once(
    nameserver: Nameserver,
) -> None:
    results = await create(nameserver, *(topic(f"t-{number:03}") for number in range(100)))
    assert all(each.created for each in results)
    # Three keys each, of 128.
    revisions = [each.topic.incarnation for each in results]
    assert [revisions.count(each) for each in sorted(set(revisions))] == [42, 42, 16]
    listed = await nameserver.call("ListTopics", pb.ListTopicsRequest())
    assert list(listed.topics) == [each.topic for each in results]


async def test_one_that_is_refused_keeps_none_of_the_others_from_being_made(
    nameserver: Nameserver,
) -> None:
    before = await create(nameserver, topic("there"))
    results = await create(
        nameserver,
        topic("first"),
        topic("no name!"),
        topic("there"),
        topic("there", if_absent=True),
        topic("elsewhere", placements=[pb.Placement(broker="gone", queues=1)]),
        topic("last", queues_per_broker=1),
        topic("last"),
    )
    told = [rockoon.errors.from_wire(each.error).name for each in results if each.error.message]
    assert told == ["INVALID_TOPIC_NAME", "TOPIC_EXISTS", "BROKER_NOT_FOUND", "TOPIC_EXISTS"]
    made = [each.topic.config.name for each in results if each.created]
    assert made == ["first", "last"]
    assert results[3].topic == before[0].topic
    assert [block.queues for block in results[5].topic.blocks] == [1, 1]


async def test_asked_again_those_that_are_there_are_told_and_those_that_lack_are_made(
    nameserver: Nameserver,
) -> None:
    def asked(count: int) -> list[pb.CreateTopicRequest]:
        return [topic(f"t-{number:03}", if_absent=True) for number in range(count)]

    first = await create(nameserver, *asked(60))
    again = await create(nameserver, *asked(60))
    assert not any(each.created for each in again)
    assert [each.topic for each in again] == [each.topic for each in first]
    more = await create(nameserver, *asked(70))
    assert [each.created for each in more] == [False] * 60 + [True] * 10
    assert [each.topic for each in more[:60]] == [each.topic for each in first]


async def test_none_is_asked_for_and_too_many_are(nameserver: Nameserver) -> None:
    assert await create(nameserver) == []
    with pytest.raises(rockoon.errors.InvalidArgument, match="name at most 4096"):
        await create(nameserver, *(topic(f"t-{each}") for each in range(TOPICS_AT_ONCE_MAX + 1)))


async def test_the_sdk_makes_them_in_order_and_raises_the_first_refusal(
    nameserver: Nameserver, cluster: str
) -> None:
    async with rockoon.connect(nameserver.address, cluster=cluster) as connection:
        admin = connection.admin
        routes = await admin.create_topics(["x", "y"], queues_per_broker=2)
        assert [(route.name, len(route.queues)) for route in routes] == [("x", 4), ("y", 4)]
        with pytest.raises(InvalidTopicName):
            await admin.create_topics(["z", "no name!", "y"], if_absent=True)
        assert [route.name for route in await admin.list_topics()] == ["x", "y", "z"]
        again = await admin.create_topics(["x", "y"], if_absent=True)
        assert again == routes
