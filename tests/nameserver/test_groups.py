"""Consumer groups, and the times of their first reads of a topic."""

import asyncio
from typing import Any

import pytest

from rockoon_core.errors import (
    GroupChanged,
    GroupExists,
    GroupNotFound,
    InvalidArgument,
    InvalidGroupName,
    TopicNotFound,
)
from rockoon_proto.v1.nameserver_pb2 import (
    CONSUME_FROM_FIRST,
    CreateGroupRequest,
    CreateTopicRequest,
    DeleteGroupRequest,
    GetGroupRequest,
    GroupConfig,
    ListGroupsRequest,
    RegisterNodeRequest,
    StartPolicy,
    SubscribeRequest,
    TopicConfig,
    UpdateGroupRequest,
)
from support.etcd import EtcdServer
from support.nameserver import Nameserver, Watching, broker_node, running_nameserver


async def create_topics(nameserver: Nameserver, *names: str) -> None:
    await nameserver.call("RegisterNode", RegisterNodeRequest(node=broker_node()))
    for name in names:
        request = CreateTopicRequest(config=TopicConfig(name=name), queues_per_broker=1)
        await nameserver.call("CreateTopic", request)


async def subscribe(
    nameserver: Nameserver, group: str, topic: str, *, create_group: bool = True
) -> Any:
    request = SubscribeRequest(group=group, topic=topic, create_group=create_group)
    return await nameserver.call("Subscribe", request)


async def test_a_subscription_keeps_the_revision_of_the_first_time(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    async with (
        running_nameserver(etcd=(shared_etcd.endpoint,), cluster=cluster) as one,
        running_nameserver(etcd=(shared_etcd.endpoint,), cluster=cluster) as two,
    ):
        await create_topics(one, "t")
        first = await subscribe(one, "g", "t")
        assert first.created
        assert first.group.incarnation == first.subscription.revision == first.revision
        again = await subscribe(two, "g", "t", create_group=False)
        assert not again.created
        assert again.subscription == first.subscription
        assert again.group == first.group


async def test_of_many_members_that_subscribe_at_once_one_makes_the_record(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    async with running_nameserver(etcd=(shared_etcd.endpoint,), cluster=cluster) as nameserver:
        await create_topics(nameserver, "t")
        async with asyncio.TaskGroup() as tasks:
            calls = [tasks.create_task(subscribe(nameserver, "g", "t")) for _ in range(20)]
        replies = [call.result() for call in calls]
        assert sum(reply.created for reply in replies) == 1
        assert len({reply.subscription.revision for reply in replies}) == 1


async def test_subscribing_to_nothing_or_as_nobody_is_refused(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    async with running_nameserver(etcd=(shared_etcd.endpoint,), cluster=cluster) as nameserver:
        await create_topics(nameserver, "t")
        with pytest.raises(TopicNotFound):
            await subscribe(nameserver, "g", "never")
        with pytest.raises(GroupNotFound):
            await subscribe(nameserver, "g", "t", create_group=False)
        with pytest.raises(InvalidGroupName):
            await subscribe(nameserver, "a/b", "t")
        listed = await nameserver.call("ListGroups", ListGroupsRequest())
        assert not listed.groups
        assert not listed.subscriptions


async def test_one_group_is_told_with_what_it_reads_and_nothing_of_others(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    async with running_nameserver(etcd=(shared_etcd.endpoint,), cluster=cluster) as nameserver:
        await create_topics(nameserver, "t1", "t2")
        subscribed = [await subscribe(nameserver, "g", topic) for topic in ("t2", "t1")]
        last = await subscribe(nameserver, "other", "t1")
        found = await nameserver.call("GetGroup", GetGroupRequest(group="g"))
        assert found.group == subscribed[0].group
        assert list(found.subscriptions) == [each.subscription for each in reversed(subscribed)]
        assert found.revision >= last.revision
        assert found.etcd_reachable
        await nameserver.call("DeleteGroup", DeleteGroupRequest(name="g"))
        for gone in ("g", "never", ""):
            with pytest.raises(GroupNotFound):
                await nameserver.call("GetGroup", GetGroupRequest(group=gone))


async def test_a_deleted_group_takes_its_subscriptions_along_however_many(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    topics = [f"t{number}" for number in range(150)]
    async with (
        running_nameserver(etcd=(shared_etcd.endpoint,), cluster=cluster) as nameserver,
        Watching(nameserver) as watching,
    ):
        await create_topics(nameserver, *topics)
        for topic in topics:
            await subscribe(nameserver, "g", topic)
        await subscribe(nameserver, "x-g", "t0")
        await watching.until(lambda view: len(view.subscriptions) == 151)
        await nameserver.call("DeleteGroup", DeleteGroupRequest(name="g"))
        view = await watching.until(lambda view: "g" not in view.groups)
        assert list(view.subscriptions) == [("t0", "x-g")]
        again = await subscribe(nameserver, "g", "t0")
        assert again.created
        with pytest.raises(GroupNotFound):
            await nameserver.call("DeleteGroup", DeleteGroupRequest(name="never"))


async def test_a_group_deleted_while_others_subscribe_leaves_no_subscription_behind(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    async with (
        running_nameserver(etcd=(shared_etcd.endpoint,), cluster=cluster) as nameserver,
        Watching(nameserver) as watching,
    ):
        topics = [f"t{number}" for number in range(10)]
        await create_topics(nameserver, *topics)
        deletion = DeleteGroupRequest(name="g")
        for place in range(10):
            await subscribe(nameserver, "g", "t0")
            async with asyncio.TaskGroup() as tasks:
                # Deleting reads, then writes, as subscribing does: first or last, in turns, it has
                # reads or writes of other callers in between.
                for topic in topics[1 : place + 1]:
                    tasks.create_task(subscribe_if_it_exists(nameserver, "g", topic))
                tasks.create_task(nameserver.call("DeleteGroup", deletion))
                for topic in topics[place + 1 :]:
                    tasks.create_task(subscribe_if_it_exists(nameserver, "g", topic))
            # A later change, to know when the watch has shown the former ones.
            last = await nameserver.call("CreateGroup", create_request(f"marker-{place}"))
            while watching.view.revision < last.revision:
                await watching.next()
            assert watching.view.subscriptions == {}


async def subscribe_if_it_exists(nameserver: Nameserver, group: str, topic: str) -> None:
    try:
        await subscribe(nameserver, group, topic, create_group=False)
    except GroupNotFound:
        return


def create_request(name: str, **fields: Any) -> CreateGroupRequest:
    return CreateGroupRequest(config=GroupConfig(name=name), **fields)


async def test_a_group_is_created_once_and_its_configuration_replaced(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    async with running_nameserver(etcd=(shared_etcd.endpoint,), cluster=cluster) as nameserver:
        first = await nameserver.call("CreateGroup", create_request("g"))
        assert first.created
        with pytest.raises(GroupExists):
            await nameserver.call("CreateGroup", create_request("g"))
        again = await nameserver.call("CreateGroup", create_request("g", if_absent=True))
        assert again.group == first.group
        config = GroupConfig(
            name="g",
            start_policy=StartPolicy(consume_from=CONSUME_FROM_FIRST),
            consume_disabled=True,
            attributes={"team": "billing"},
        )
        changed = await nameserver.call("UpdateGroup", UpdateGroupRequest(config=config))
        assert changed.group.config == config
        assert changed.group.incarnation == first.group.incarnation
        assert changed.group.modified_revision == changed.revision > first.revision
        async with Watching(nameserver, after_revision=changed.revision - 1) as watching:
            view = await watching.until(lambda view: view.groups)
        assert view.groups["g"] == changed.group
        outdated = UpdateGroupRequest(
            config=GroupConfig(name="g"), expected_modified_revision=first.group.modified_revision
        )
        with pytest.raises(GroupChanged):
            await nameserver.call("UpdateGroup", outdated)
        outdated.expected_modified_revision = changed.group.modified_revision
        assert (await nameserver.call("UpdateGroup", outdated)).group.config == outdated.config
        with pytest.raises(GroupNotFound):
            await nameserver.call(
                "UpdateGroup", UpdateGroupRequest(config=GroupConfig(name="never"))
            )


async def test_a_group_that_was_changed_is_not_deleted_as_it_was_seen(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    async with running_nameserver(etcd=(shared_etcd.endpoint,), cluster=cluster) as nameserver:
        config = GroupConfig(name="g")
        seen = await nameserver.call("CreateGroup", CreateGroupRequest(config=config))
        config.attributes["rockoon.owner"] = "bank"
        changed = await nameserver.call("UpdateGroup", UpdateGroupRequest(config=config))
        outdated = DeleteGroupRequest(
            name="g", expected_modified_revision=seen.group.modified_revision
        )
        with pytest.raises(GroupChanged):
            await nameserver.call("DeleteGroup", outdated)
        newest = DeleteGroupRequest(
            name="g", expected_modified_revision=changed.group.modified_revision
        )
        await nameserver.call("DeleteGroup", newest)
        with pytest.raises(GroupNotFound):
            await nameserver.call("DeleteGroup", newest)


@pytest.mark.parametrize(
    ("config", "failure"),
    [
        (GroupConfig(name=""), InvalidGroupName),
        (GroupConfig(name="g" * 121), InvalidGroupName),
        (GroupConfig(name="g", attributes={str(n): "" for n in range(65)}), InvalidArgument),
        (GroupConfig(name="g", start_policy=StartPolicy(tail_messages=-1)), InvalidArgument),
        (
            GroupConfig(name="g", start_policy=StartPolicy(timestamp_ms=1_769_860_800)),
            InvalidArgument,
        ),
    ],
)
async def test_a_group_that_cannot_be_is_refused(
    shared_etcd: EtcdServer, cluster: str, config: GroupConfig, failure: type
) -> None:
    async with running_nameserver(etcd=(shared_etcd.endpoint,), cluster=cluster) as nameserver:
        with pytest.raises(failure):
            await nameserver.call("CreateGroup", CreateGroupRequest(config=config))
