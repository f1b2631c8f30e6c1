"""A group's retry and dead-letter topics: created when needed, deleted with the group."""

import asyncio
from typing import Any

import pytest

from rockoon_core.errors import GroupNotFound, InvalidArgument, TopicNotFound
from rockoon_proto.v1.nameserver_pb2 import (
    GROUP_DEAD_LETTERS,
    GROUP_RETRY,
    GROUP_TOPIC_UNSPECIFIED,
    CreateGroupRequest,
    DeleteGroupRequest,
    GroupConfig,
    GroupTopic,
    ListTopicsRequest,
    ProvideGroupTopicRequest,
    RegisterNodeRequest,
    SubscribeRequest,
    UpdateGroupRequest,
)
from support.etcd import EtcdServer
from support.nameserver import Nameserver, Watching, broker_node, running_nameserver


async def provide(
    nameserver: Nameserver, topic: GroupTopic = GROUP_RETRY, broker: str = "", group: str = "g"
) -> Any:
    request = ProvideGroupTopicRequest(group=group, topic=topic, broker=broker)
    return await nameserver.call("ProvideGroupTopic", request)


def blocks(reply: Any) -> list[tuple[str, int, int]]:
    return [(each.broker, each.first_queue_id, each.queues) for each in reply.topic.blocks]


async def create_group(nameserver: Nameserver, **config: Any) -> None:
    await nameserver.call("CreateGroup", CreateGroupRequest(config=GroupConfig(name="g", **config)))


async def register(nameserver: Nameserver, *names: str, drained: bool = False) -> None:
    for name in names:
        node = broker_node(name, drained=drained)
        await nameserver.call("RegisterNode", RegisterNodeRequest(node=node))


async def test_a_drained_broker_gets_no_queue_unless_it_needs_one(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    async with running_nameserver(etcd=(shared_etcd.endpoint,), cluster=cluster) as nameserver:
        await register(nameserver, "broker-a")
        await register(nameserver, "broker-b", drained=True)
        await create_group(nameserver)
        assert blocks(await provide(nameserver)) == [("broker-a", 0, 1)]
        # A message of the drained broker has failed.
        assert ("broker-b", 0, 1) in blocks(await provide(nameserver, broker="broker-b"))


async def test_the_retry_topic_gets_a_queue_on_every_live_broker_and_once(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    async with running_nameserver(etcd=(shared_etcd.endpoint,), cluster=cluster) as nameserver:
        await register(nameserver, "broker-a", "broker-b")
        await create_group(nameserver)
        first = await provide(nameserver)
        assert first.created
        assert first.topic.config.name == "%RETRY%g"
        assert first.topic.config.permissions == 6
        assert blocks(first) == [("broker-a", 0, 1), ("broker-b", 0, 1)]
        again = await provide(nameserver)
        assert not again.created
        assert again.topic == first.topic
        assert again.revision == first.revision


async def test_a_broker_that_joins_later_gets_its_queue_when_it_needs_it(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    async with running_nameserver(etcd=(shared_etcd.endpoint,), cluster=cluster) as nameserver:
        await create_group(nameserver)
        none = await provide(nameserver)
        assert none.created
        assert blocks(none) == []
        one = await provide(nameserver, broker="broker-b")
        assert blocks(one) == [("broker-b", 0, 1)]
        assert one.topic.incarnation == none.topic.incarnation
        dead = await provide(nameserver, GROUP_DEAD_LETTERS, "broker-b")
        assert dead.topic.config.name == "%DLQ%g"
        assert blocks(dead) == [("broker-b", 0, 1)]


async def test_of_many_that_ask_at_once_nobody_gets_a_queue_twice(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    async with running_nameserver(etcd=(shared_etcd.endpoint,), cluster=cluster) as nameserver:
        await register(nameserver, "broker-a")
        await create_group(nameserver)
        async with asyncio.TaskGroup() as tasks:
            calls = [
                tasks.create_task(provide(nameserver, broker=f"broker-{each % 3}"))
                for each in range(5)
            ]
        assert sum(call.result().created for call in calls) == 1
        assert blocks(await provide(nameserver, broker="broker-0")) == [
            ("broker-0", 0, 1),
            ("broker-1", 0, 1),
            ("broker-2", 0, 1),
        ]


async def test_more_retry_queues_are_added_behind_those_there_are(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    async with running_nameserver(etcd=(shared_etcd.endpoint,), cluster=cluster) as nameserver:
        await create_group(nameserver, retry_queues=2)
        assert blocks(await provide(nameserver, broker="broker-a")) == [("broker-a", 0, 2)]
        for queues in (3, 1):
            config = GroupConfig(name="g", retry_queues=queues)
            await nameserver.call("UpdateGroup", UpdateGroupRequest(config=config))
            reply = await provide(nameserver, broker="broker-a")
            assert blocks(reply) == [("broker-a", 0, 2), ("broker-a", 2, 1)]


async def test_queues_that_progress_from_elsewhere_is_on_are_made_beyond_what_the_group_asks_for(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    async with running_nameserver(etcd=(shared_etcd.endpoint,), cluster=cluster) as nameserver:
        await create_group(nameserver, retry_queues=2)
        request = ProvideGroupTopicRequest(
            group="g", topic=GROUP_RETRY, broker="broker-a", queues=3
        )
        reply = await nameserver.call("ProvideGroupTopic", request)
        assert blocks(reply) == [("broker-a", 0, 3)]
        assert blocks(await provide(nameserver, broker="broker-a")) == [("broker-a", 0, 3)]
        for queues in (-1, 4_097):
            request.queues = queues
            with pytest.raises(InvalidArgument):
                await nameserver.call("ProvideGroupTopic", request)


async def test_a_group_takes_its_topics_along_and_its_next_incarnation_gets_others(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    async with (
        running_nameserver(etcd=(shared_etcd.endpoint,), cluster=cluster) as nameserver,
        Watching(nameserver) as watching,
    ):
        await register(nameserver, "broker-a")
        await create_group(nameserver)
        old = await provide(nameserver)
        await provide(nameserver, GROUP_DEAD_LETTERS)
        request = SubscribeRequest(group="g", topic="%RETRY%g")
        await nameserver.call("Subscribe", request)
        await watching.until(lambda view: len(view.subscriptions) == 1)
        listed = await nameserver.call("ListTopics", ListTopicsRequest())
        assert not listed.topics
        listed = await nameserver.call("ListTopics", ListTopicsRequest(include_system=True))
        assert [topic.config.name for topic in listed.topics] == ["%DLQ%g", "%RETRY%g"]

        await nameserver.call("DeleteGroup", DeleteGroupRequest(name="g"))
        view = await watching.until(lambda view: "g" not in view.groups)
        assert not view.topics
        assert not view.subscriptions
        with pytest.raises(TopicNotFound):
            await nameserver.call("Subscribe", request)
        with pytest.raises(GroupNotFound):
            await provide(nameserver)
        await create_group(nameserver)
        assert (await provide(nameserver)).topic.incarnation > old.topic.incarnation


async def test_what_is_no_topic_of_a_group_no_group_or_no_broker_is_refused(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    async with running_nameserver(etcd=(shared_etcd.endpoint,), cluster=cluster) as nameserver:
        await create_group(nameserver)
        with pytest.raises(InvalidArgument):
            await provide(nameserver, GROUP_TOPIC_UNSPECIFIED)
        with pytest.raises(InvalidArgument):
            await provide(nameserver, broker="a/b")
        with pytest.raises(GroupNotFound):
            await provide(nameserver, group="never")
        with pytest.raises(GroupNotFound):
            await provide(nameserver, group="a/b")


@pytest.mark.parametrize("field", ["retry_attempts_max", "retry_queues"])
async def test_retries_below_none_or_beyond_all_are_refused(
    shared_etcd: EtcdServer, cluster: str, field: str
) -> None:
    async with running_nameserver(etcd=(shared_etcd.endpoint,), cluster=cluster) as nameserver:
        for number in (-1, 2_000_000):
            with pytest.raises(InvalidArgument):
                await create_group(nameserver, **{field: number})
        await create_group(nameserver, **{field: 0})
