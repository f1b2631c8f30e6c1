"""What groups have not read of a part of a broker's log, asked before it is deleted."""

from typing import Any

import grpc
import pytest
from offset.cluster import GROUP, TOPIC, Cluster

from rockoon_format.names import retry_topic
from rockoon_proto.v1 import nameserver_pb2 as ns
from rockoon_proto.v1 import offset_pb2 as pb

FIRST = ns.StartPolicy(consume_from=ns.CONSUME_FROM_FIRST)
LAST = ns.StartPolicy(consume_from=ns.CONSUME_FROM_LAST)


async def unread(
    cluster: Cluster, begin: int, end: int, topic: str = TOPIC, **more: Any
) -> pb.UnreadReply:
    span = pb.QueueSpan(topic=topic, queue_id=0, begin=begin, end=end)
    request = pb.UnreadRequest(
        broker=cluster.broker.name,
        spans=[span],
        **{"route_revision": cluster.nameserver.revision, **more},
    )
    return await cluster.stub.Unread(request)  # type: ignore[no-any-return]


def named(reply: pb.UnreadReply) -> list[tuple[str, str, int]]:
    return [(each.group, each.member, each.messages) for each in reply.unread]


async def subscribe(cluster: Cluster, group: str, topic: str = TOPIC) -> None:
    await cluster.nameserver.Subscribe(ns.SubscribeRequest(group=group, topic=topic), None)


async def test_a_group_counts_from_its_committed_offset_on(cluster: Cluster) -> None:
    cluster.broker.queue(TOPIC).append(100)
    start = await cluster.start_of(policy=FIRST)
    await cluster.commit(30, start.epoch)
    assert named(await unread(cluster, 0, 30)) == []
    reply = await unread(cluster, 10, 40)
    assert (named(reply), reply.messages) == ([(GROUP, "", 10)], 10)
    assert named(await unread(cluster, 50, 60)) == [(GROUP, "", 10)]
    # A reset puts them among the unread ones again.
    await cluster.commit(0, start.epoch, force=True)
    assert named(await unread(cluster, 0, 30)) == [(GROUP, "", 30)]


async def test_groups_that_are_waited_for_are_told_apart(cluster: Cluster) -> None:
    cluster.broker.queue(TOPIC).append(100)
    await cluster.start_of(policy=FIRST)
    for groups, waited in (([], False), (["other"], False), ([GROUP], True), (["*"], True)):
        assert (await unread(cluster, 0, 10, waited_groups=groups)).is_waited_for is waited
    await cluster.commit(10, (await cluster.start_of()).epoch)
    assert not (await unread(cluster, 0, 10, waited_groups=["*"])).is_waited_for


async def test_a_group_whose_progress_is_kept_elsewhere_is_not_known(cluster: Cluster) -> None:
    cluster.broker.queue(TOPIC).append(100)
    # A broadcasting group, or a group with a custom offset store, subscribes too.
    await cluster.nameserver.CreateGroup(
        ns.CreateGroupRequest(config=ns.GroupConfig(name="elsewhere")), None
    )
    await subscribe(cluster, "elsewhere")
    assert named(await unread(cluster, 0, 10)) == []


async def test_a_group_has_read_nothing_of_a_queue_on_which_it_has_not_begun(
    cluster: Cluster,
) -> None:
    await cluster.start_of(policy=FIRST)
    await cluster.add_queues(1)
    cluster.broker.queue(TOPIC, 1).append(10)
    span = pb.QueueSpan(topic=TOPIC, queue_id=1, begin=0, end=10)
    request = pb.UnreadRequest(
        broker=cluster.broker.name, spans=[span], route_revision=cluster.nameserver.revision
    )
    assert named(await cluster.stub.Unread(request)) == [(GROUP, "", 10)]


async def test_a_group_that_has_subscribed_and_not_begun_has_read_nothing(cluster: Cluster) -> None:
    cluster.broker.queue(TOPIC).append(100)
    await cluster.nameserver.CreateGroup(
        ns.CreateGroupRequest(config=ns.GroupConfig(name="early", start_policy=FIRST)), None
    )
    await subscribe(cluster, "early")
    assert named(await unread(cluster, 0, 10)) == [("early", "", 10)]
    # A group that begins at the end of a queue does not lose earlier messages.
    await cluster.nameserver.CreateGroup(
        ns.CreateGroupRequest(config=ns.GroupConfig(name="late", start_policy=LAST)), None
    )
    await subscribe(cluster, "late")
    assert named(await unread(cluster, 0, 10)) == [("early", "", 10)]
    # Its retry topic is read from the beginning.
    retries = retry_topic("late")
    await cluster.create_topic(retries)
    assert named(await unread(cluster, 0, 10, retries)) == [("late", "", 10)]


async def test_progress_on_a_deleted_queue_of_the_name_counts_for_nothing(cluster: Cluster) -> None:
    cluster.broker.queue(TOPIC).append(100)
    await cluster.commit(100, (await cluster.start_of(policy=FIRST)).epoch)
    await cluster.delete_topic()
    await cluster.create_topic()
    assert named(await unread(cluster, 0, 10)) == []
    await subscribe(cluster, GROUP)
    assert named(await unread(cluster, 0, 10)) == [(GROUP, "", 10)]


async def test_a_deleted_group_loses_nothing(cluster: Cluster) -> None:
    cluster.broker.queue(TOPIC).append(100)
    await cluster.start_of(policy=FIRST)
    await cluster.nameserver.DeleteGroup(cluster.deletion_of_group(), None)
    assert named(await unread(cluster, 0, 10)) == []


async def test_routes_that_have_not_arrived_are_no_answer(cluster: Cluster) -> None:
    with pytest.raises(grpc.RpcError):
        await unread(cluster, 0, 10, route_revision=cluster.nameserver.revision + 100)
