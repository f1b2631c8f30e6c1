"""Receivers beside members, resets, retention and deletions: no message is lost or hidden."""

import pytest
from offset.cluster import GROUP, TOPIC, Cluster
from offset.receiver import Receiver, committed, refusal

from rockoon_proto.v1 import offset_pb2 as pb


async def heartbeat(cluster: Cluster, member: str = "m1") -> None:
    await cluster.stub.Heartbeat(
        pb.HeartbeatRequest(
            group=GROUP,
            member_id=member,
            instance="i",
            mode=pb.CLUSTERING,
            subscriptions=[pb.TopicSubscription(topic=TOPIC, expression="*")],
        )
    )


async def leave(cluster: Cluster, member: str = "m1") -> None:
    request = pb.LeaveRequest(group=GROUP, member_id=member, instance="i")
    await cluster.stub.Leave(request)


async def test_a_queue_that_a_live_member_pulls_gives_receivers_nothing(
    cluster: Cluster, receiver: Receiver
) -> None:
    await receiver.acquire(messages_max=1)
    await receiver.acknowledge()
    await heartbeat(cluster)
    start = await cluster.start_of()
    assert start.offset == 1
    assert await receiver.acquire() == []
    assert refusal(receiver.granted) == "QUEUE_HELD"
    assert not (await cluster.commit(3, start.epoch)).HasField("error")
    await leave(cluster)
    assert await receiver.acquire(messages_max=2) == [(0, 1, [3, 4])]
    # Messages that it had read come again, but are not reported as done below the others.
    assert (await cluster.commit(9, start.epoch)).error.message
    assert await committed(cluster) == 3


async def test_a_member_begins_at_the_smallest_unsettled_offset_and_receivers_lose_what_they_had(
    cluster: Cluster, receiver: Receiver
) -> None:
    await receiver.acquire()
    await receiver.acknowledge(receiver.delivered(0, 1, 5))
    await heartbeat(cluster)
    start = await cluster.start_of()
    # 5 comes twice; no message between is hidden from it.
    assert (start.offset, start.reason) == (2, pb.COMMITTED)
    assert await receiver.acknowledge(receiver.delivered(3)) == [[3]]
    assert (await receiver.change(receiver.delivered(4), 0)).acquisition == 0
    assert (await cluster.commit(4, start.epoch)).offset == 4
    await leave(cluster)
    assert await receiver.acquire() == [(0, 1, [4, 5, 6, 7, 8, 9])]


async def test_what_a_member_commits_that_lets_go_is_settled(
    cluster: Cluster, receiver: Receiver
) -> None:
    await heartbeat(cluster)
    start = await cluster.start_of(policy=receiver.policy)
    entry = pb.CommitEntry(queue=cluster.ref(), offset=4, epoch=start.epoch)
    release = pb.CommitRequest(
        group=GROUP, member_id="m1", entries=[entry], release=[cluster.ref()]
    )
    await cluster.stub.Commit(release)
    assert await receiver.acquire(messages_max=4) == [(0, 1, [4, 5, 6, 7])]
    # A commit that was sent before counts.
    assert (await cluster.commit(6, start.epoch)).offset == 6
    assert await receiver.acknowledge(receiver.delivered(7)) == [[]]
    assert await receiver.acknowledge(receiver.delivered(6)) == [[]]
    assert await committed(cluster) == 8


@pytest.mark.parametrize("planned", [True, False])
async def test_after_a_reset_receivers_begin_where_it_says(
    cluster: Cluster, receiver: Receiver, planned: bool
) -> None:
    await receiver.acquire()
    await receiver.acknowledge(receiver.delivered(0, 1, 2, 3))
    wanted = pb.PlanResetRequest(group=GROUP, topic=TOPIC, target=pb.ResetTarget(offset=1))
    if planned:
        plan = await cluster.stub.PlanReset(wanted)
        await cluster.stub.ApplyReset(pb.ApplyResetRequest(reset_id=plan.reset_id))
    else:
        await cluster.stub.Reset(pb.ResetRequest(wanted=wanted))
    assert await receiver.acknowledge(receiver.delivered(5)) == [[5]]
    before = receiver.granted
    assert await receiver.acquire(messages_max=2) == [(0, 1, [1, 2])]
    receiver.granted = before
    assert await receiver.acknowledge(receiver.delivered(2, 5)) == [[2, 5]]


async def test_what_retention_deleted_before_anybody_had_it_is_skipped_with_a_reason(
    cluster: Cluster, receiver: Receiver
) -> None:
    assert await receiver.acquire(messages_max=2)
    cluster.broker.queue(TOPIC).expire_below(6)
    assert await receiver.acquire() == [(0, 1, [6, 7, 8, 9])]
    (progress,) = await cluster.progress()
    assert (progress.start_reason, progress.start_offset) == (pb.BELOW_MIN, 6)


async def test_what_retention_deleted_while_it_was_in_flight_is_the_holders_to_settle(
    cluster: Cluster, receiver: Receiver
) -> None:
    assert await receiver.acquire(messages_max=8)
    cluster.broker.queue(TOPIC).expire_below(6)
    other = Receiver(cluster)
    assert await other.acquire() == [(0, 1, [8, 9])]
    assert await receiver.acknowledge() == [[]]
    assert await committed(cluster) == 8


async def test_a_log_that_lost_its_tail_hides_nothing_that_is_written_after(
    cluster: Cluster, receiver: Receiver
) -> None:
    await receiver.acquire()
    await receiver.acknowledge(receiver.delivered(0, 1, 2, 8, 9))
    cluster.broker.queue(TOPIC).lose_from(6)
    assert await receiver.acquire() == [(0, 1, [3, 4, 5])]
    cluster.broker.queue(TOPIC).append(3)
    assert await receiver.acquire() == [(0, 1, [6, 7, 8])]


async def test_a_receiver_that_lags_begins_nothing_anew(
    cluster: Cluster, receiver: Receiver
) -> None:
    await receiver.acquire()
    other = Receiver(cluster)
    assert await other.acquire(other.reach(end_offset=4)) == []
    assert await receiver.acknowledge() == [[]]
    assert await committed(cluster) == 10


@pytest.mark.parametrize("what", ["topic", "group"])
async def test_a_successor_of_the_name_has_nothing_of_what_was_deleted(
    cluster: Cluster, receiver: Receiver, what: str
) -> None:
    await receiver.acquire()
    await receiver.acknowledge(receiver.delivered(0, 1, 2))
    if what == "topic":
        await cluster.delete_topic()
        await cluster.create_topic()
        cluster.broker.queue(TOPIC).append(2)
    else:
        await cluster.nameserver.DeleteGroup(cluster.deletion_of_group(), None)
        await cluster.set_group()
        cluster.broker.queue(TOPIC).expire_below(8)
    await cluster.until_revision()
    before = receiver.granted
    first = 0 if what == "topic" else 8
    assert await receiver.acquire() == [(0, 1, [first, first + 1])]
    receiver.granted = before
    assert await receiver.acknowledge(receiver.delivered(0, 1)) == [[0, 1]]


async def test_who_reads_the_predecessor_of_a_queue_is_granted_nothing_of_it(
    cluster: Cluster, receiver: Receiver
) -> None:
    revision = cluster.nameserver.topics[TOPIC].blocks[0].create_revision
    reading = receiver.reach(create_revision=revision)
    assert await receiver.acquire(reading) != []
    await cluster.delete_topic()
    await cluster.create_topic()
    cluster.broker.queue(TOPIC).append(10)
    await cluster.until_revision()
    # It must not settle messages in its memory: other messages have these offsets now.
    assert await receiver.acquire(reading) == []
    assert refusal(receiver.granted) == "BUSY"
    assert await receiver.acquire() != []


async def test_receivers_that_have_too_much_of_a_queue_are_told(
    cluster: Cluster, receiver: Receiver
) -> None:
    cluster.broker.queue(TOPIC).append(1 << 17)
    for _ in range(64):
        await receiver.acquire(messages_max=1024)
    assert await receiver.acquire() == []
    assert refusal(receiver.granted) == "BUSY"
    assert (await receiver.listed()).in_flight == 1 << 16
