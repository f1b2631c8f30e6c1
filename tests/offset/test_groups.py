"""Members of groups, and watchers of the members."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from offset.cluster import GROUP, TOPIC, Cluster

from rockoon_core.errors import (
    ERROR_METADATA_KEY,
    GroupNotFound,
    MemberIdTaken,
    RockoonError,
)
from rockoon_core.failed_call import from_rpc_error
from rockoon_offset.members.membership import FIND_AGAIN_NS_MAX, Membership
from rockoon_offset.progress.records import GroupMember, MembersChanged
from rockoon_proto.v1 import nameserver_pb2 as ns
from rockoon_proto.v1 import offset_pb2 as pb
from rockoon_proto.v1.errors_pb2 import Error

SECOND = 1_000_000_000


def member(name: str, instance: str = "i1", topics: str = "t") -> GroupMember:
    return GroupMember(name, instance, 1, tuple((topic, "*") for topic in topics), "peer", 0)


def names(membership: Membership) -> list[str]:
    return [lease.member.member_id for lease in membership.leases("g")]


def test_a_silent_member_is_out_after_its_lease_and_not_before() -> None:
    members = Membership(10 * SECOND, starts=1)
    assert members.next_end_ns() is None
    members.heartbeat("g", member("a"), 0, 0)
    members.heartbeat("g", member("b"), 4 * SECOND, 0)
    assert members.next_end_ns() == 10 * SECOND
    assert members.expire(10 * SECOND - 1) == []
    assert members.expire(10 * SECOND) == ["g"]
    assert names(members) == ["b"]
    assert members.next_end_ns() == 14 * SECOND


def test_the_version_grows_with_every_change_and_only_then() -> None:
    members = Membership(10 * SECOND, starts=1)
    versions = [members.version("g")]
    for change in (
        lambda: members.heartbeat("g", member("a"), 0, 0),
        lambda: members.heartbeat("g", member("b"), 0, 0),
        lambda: members.heartbeat("g", member("b", topics="tu"), 0, 0),
        lambda: members.leave("g", "a", "i1"),
        lambda: members.expire(99 * SECOND),
    ):
        assert change()
        versions.append(members.version("g"))
    assert versions == sorted(set(versions))
    assert not members.leave("g", "a", "i1")
    assert members.version("g") == versions[-1]
    assert Membership(10 * SECOND, starts=2).version("g") > versions[-1]


def test_a_second_process_with_the_same_id_is_refused_while_the_first_lives() -> None:
    members = Membership(10 * SECOND, starts=1)
    members.heartbeat("g", member("a", "i1"), 0, 0)
    with pytest.raises(MemberIdTaken):
        members.heartbeat("g", member("a", "i2"), 5 * SECOND, 0)
    assert not members.leave("g", "a", "i2")
    assert names(members) == ["a"]
    # Its lease has expired, but it is not removed yet.
    assert members.heartbeat("g", member("a", "i2"), 10 * SECOND, 0)


def test_leases_from_before_a_restart_begin_when_members_can_find_the_service_again() -> None:
    members = Membership(10 * SECOND, starts=2)
    members.restore([MembersChanged("g", (member("a"), member("b")))], 0)
    # It waits until it is in the routes.
    assert members.expire(1000 * SECOND) == []
    members.heartbeat("g", member("b"), 1000 * SECOND, 0)
    members.open(1001 * SECOND)
    assert members.expire(1010 * SECOND) == ["g"], "b called once"
    found = members.reader("g", "a", "t", 1011 * SECOND)
    assert found is not None
    assert not found.is_heard
    members.heartbeat("g", member("a"), 1012 * SECOND, 0)
    found = members.reader("g", "a", "t", 1012 * SECOND)
    assert found is not None
    assert found.is_heard
    members.restore([MembersChanged("h", (member("a"),))], 0)
    members.open(2000 * SECOND)
    assert members.expire(2010 * SECOND + FIND_AGAIN_NS_MAX) == ["g", "h"]


def test_a_wall_clock_that_jumps_decides_nothing() -> None:
    members = Membership(10 * SECOND, starts=1)
    members.heartbeat("g", member("a"), 0, 1_700_000_000_000)
    members.heartbeat("g", member("a"), SECOND, 0)
    assert members.expire(10 * SECOND) == []


async def heartbeat(
    cluster: Cluster, name: str, instance: str = "i1", incarnation: int = 0
) -> pb.HeartbeatReply:
    return await cluster.stub.Heartbeat(  # type: ignore[no-any-return]
        pb.HeartbeatRequest(
            group=GROUP,
            member_id=name,
            instance=instance,
            mode=pb.CLUSTERING,
            subscriptions=[pb.TopicSubscription(topic=TOPIC, expression="*")],
            group_incarnation=incarnation,
        )
    )


def watch(
    cluster: Cluster, member_id: str = "", incarnation: int = 0
) -> AsyncIterator[pb.GroupEvent]:
    request = pb.WatchGroupRequest(group=GROUP, member_id=member_id, group_incarnation=incarnation)
    call: Any = cluster.stub.WatchGroup(request)
    return call.__aiter__()  # type: ignore[no-any-return]


async def event_with(events: AsyncIterator[pb.GroupEvent], condition: Any) -> pb.GroupEvent:
    async with asyncio.timeout(60):
        while True:
            event = await anext(events)
            if condition(event):
                return event


def ids(event: pb.GroupEvent | pb.HeartbeatReply) -> list[str]:
    return [entry.member_id for entry in event.members]


async def test_a_heartbeat_tells_who_is_in_and_how_often_to_come_back(cluster: Cluster) -> None:
    await heartbeat(cluster, "b")
    reply = await heartbeat(cluster, "a")
    assert ids(reply) == ["a", "b"]
    assert (reply.heartbeat_seconds, reply.lease_seconds) == (3.0, 10.0)
    assert reply.members[0].subscriptions[0].topic == TOPIC
    assert reply.members[0].peer
    again = await heartbeat(cluster, "a")
    assert again.membership_version == reply.membership_version


async def test_a_second_process_with_a_member_s_id_is_told(cluster: Cluster) -> None:
    await heartbeat(cluster, "a", "i1")
    with pytest.raises(Exception, match="in use by a live process") as refused:
        await heartbeat(cluster, "a", "i2")
    metadata: Any = refused.value
    (raw,) = [v for k, v in metadata.trailing_metadata() if k == ERROR_METADATA_KEY]
    assert Error.FromString(raw).code == Error.MEMBER_ID_TAKEN


async def test_watchers_see_members_come_and_go(cluster: Cluster) -> None:
    events = watch(cluster)
    first = await anext(events)
    assert ids(first) == []
    await heartbeat(cluster, "a")
    joined = await event_with(events, lambda event: ids(event) == ["a"])
    assert joined.membership_version > first.membership_version
    await cluster.stub.Leave(pb.LeaveRequest(group=GROUP, member_id="a", instance="i1"))
    left = await event_with(events, lambda event: ids(event) == [])
    assert left.membership_version > joined.membership_version


async def test_watchers_see_a_member_fall_silent(cluster: Cluster) -> None:
    cluster.more_settings |= {"heartbeat_seconds": 0.05, "lease_seconds": 0.2}
    await cluster.restart_service()
    events = watch(cluster)

    async def be_there() -> None:
        while True:
            await heartbeat(cluster, "a")

    # Until a watcher has seen it: on a busy machine the lease may expire before any other call.
    async with asyncio.TaskGroup() as tasks:
        beating = tasks.create_task(be_there())
        await event_with(events, lambda event: ids(event) == ["a"])
        beating.cancel()
    await event_with(events, lambda event: ids(event) == [])


async def test_a_restart_of_the_service_is_no_change_of_members(cluster: Cluster) -> None:
    await heartbeat(cluster, "a")
    before = await heartbeat(cluster, "b")
    await cluster.restart_service()
    # The first to call again does not find itself alone.
    after = await heartbeat(cluster, "a")
    assert ids(after) == ["a", "b"]
    assert after.membership_version > before.membership_version


async def test_a_watcher_that_reads_slowly_gets_one_event_for_many_changes(
    cluster: Cluster,
) -> None:
    # The first is still there when the last comes, however long that takes.
    cluster.more_settings |= {"lease_seconds": 600.0}
    await cluster.restart_service()
    events = watch(cluster)
    await anext(events)
    for number in range(200):
        await heartbeat(cluster, f"m{number:03}")
    seen = 0
    async with asyncio.timeout(60):
        async for event in events:
            seen += 1
            if len(event.members) == 200:
                break
    assert seen <= 200


async def test_watchers_are_told_of_routes_and_of_the_group_s_end(cluster: Cluster) -> None:
    await cluster.start_of()
    await cluster.until_revision()
    events = watch(cluster)
    await anext(events)
    await cluster.add_queues(1)
    await event_with(events, lambda event: event.routes_changed)
    await cluster.delete_topic()
    await event_with(events, lambda event: event.routes_changed)
    await cluster.nameserver.DeleteGroup(ns.DeleteGroupRequest(name=GROUP), None)
    await event_with(events, lambda event: event.deleted)
    with pytest.raises(StopAsyncIteration):
        await anext(events)


async def test_members_are_told_at_once_when_their_group_is_paused_and_resumed(
    cluster: Cluster,
) -> None:
    await cluster.start_of()
    await cluster.until_revision()
    events = watch(cluster)
    assert not (await anext(events)).consume_disabled
    await cluster.set_group(consume_disabled=True)
    await event_with(events, lambda event: event.consume_disabled)
    assert (await heartbeat(cluster, "a")).consume_disabled
    # A reader without membership is notified too, and stores its progress.
    committed = await cluster.stub.Commit(pb.CommitRequest(group=GROUP))
    assert committed.consume_disabled
    await cluster.set_group()
    await event_with(events, lambda event: not event.consume_disabled)
    assert not (await heartbeat(cluster, "a")).consume_disabled


@pytest.mark.parametrize("deletion", ["seen", "missed"])
async def test_deleting_a_group_ends_its_members(cluster: Cluster, deletion: str) -> None:
    for name in ("a", "b"):
        await heartbeat(cluster, name)
    if deletion == "missed":
        await cluster.stop_service()
    await cluster.nameserver.DeleteGroup(ns.DeleteGroupRequest(name=GROUP), None)
    if deletion == "missed":
        await cluster.start_service()
    await cluster.until(lambda: has_no_members(cluster))
    # Both still run, with a broken watch: their next heartbeats report it, at the interval of each
    # member, also if the group was created again in the meantime.
    await cluster.set_group()
    await cluster.until_revision()
    for name in ("a", "a", "b"):
        with pytest.raises(grpc.RpcError) as failure:
            await heartbeat(cluster, name)
        reason = from_rpc_error(failure.value, RockoonError)
        assert isinstance(reason, GroupNotFound)
    # A process that starts now is in the new group, even with the same name.
    assert ids(await heartbeat(cluster, "a", "i2")) == ["a"]


async def test_late_word_of_a_deletion_ends_nobody_in_the_group_that_has_the_name_now(
    cluster: Cluster,
) -> None:
    await cluster.set_group()
    old = cluster.nameserver.groups[GROUP].incarnation
    await heartbeat(cluster, "a", incarnation=old)
    await cluster.start_of(member="a")
    old_events = watch(cluster, "a", old)
    await anext(old_events)
    cluster.nameserver.telling.clear()
    await cluster.nameserver.DeleteGroup(ns.DeleteGroupRequest(name=GROUP), None)
    await cluster.set_group()
    new = cluster.nameserver.groups[GROUP].incarnation
    await heartbeat(cluster, "b", incarnation=new)
    new_events = watch(cluster, "b", new)
    await anext(new_events)
    cluster.nameserver.telling.set()
    await event_with(old_events, lambda event: event.deleted)
    with pytest.raises(grpc.RpcError) as failure:
        await heartbeat(cluster, "a", incarnation=old)
    assert isinstance(from_rpc_error(failure.value, RockoonError), GroupNotFound)
    assert ids(await heartbeat(cluster, "b", incarnation=new)) == ["b"]
    await cluster.start_of(member="b")
    event = await event_with(new_events, lambda event: ids(event) == ["b"])
    assert not event.deleted
    await cluster.restart_service()
    reply = await cluster.stub.ListMembers(pb.ListMembersRequest(group=GROUP))
    assert ids(reply.groups[0]) == ["b"]


async def has_no_members(cluster: Cluster) -> bool:
    return not (await cluster.stub.ListMembers(pb.ListMembersRequest())).groups


def test_members_of_deleted_groups_are_remembered_no_longer_than_they_may_call() -> None:
    members = Membership(10 * SECOND, starts=1)
    members.heartbeat("g", member("a"), 0, 0)
    members.end_group("g", lambda _: False, 5 * SECOND)
    with pytest.raises(GroupNotFound):
        members.heartbeat("g", member("a"), 15 * SECOND - 1, 0)
    members.expire(15 * SECOND)
    assert members.heartbeat("g", member("a"), 15 * SECOND, 0)


async def test_members_are_listed_per_group(cluster: Cluster) -> None:
    await heartbeat(cluster, "a")
    reply = await cluster.stub.ListMembers(pb.ListMembersRequest())
    assert [(entry.group, len(entry.members)) for entry in reply.groups] == [(GROUP, 1)]


async def test_too_many_watchers_are_refused(cluster: Cluster) -> None:
    cluster.more_settings["watchers_max"] = 2
    await cluster.restart_service()
    kept = [watch(cluster), watch(cluster)]
    for events in kept:
        await anext(events)
    with pytest.raises(Exception, match="too much at once"):
        await anext(watch(cluster))
