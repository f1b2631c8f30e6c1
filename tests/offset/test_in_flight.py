"""Receivers of a group, message by message, on a running service."""

import asyncio
from typing import Any

import pytest
from grpc import aio
from offset.cluster import GROUP, TOPIC, Cluster, running
from offset.receiver import FIRST, HOUR_MS, Receiver, committed
from offset.test_store import HoldingDisk

from rockoon_proto.v1 import in_flight_pb2 as pb
from rockoon_proto.v1 import nameserver_pb2 as ns
from rockoon_proto.v1 import offset_pb2
from rockoon_proto.v1.errors_pb2 import Error
from rockoon_runtime.process import Stop


async def test_what_one_receiver_has_no_other_gets(cluster: Cluster, receiver: Receiver) -> None:
    assert await receiver.acquire(messages_max=4) == [(0, 1, [0, 1, 2, 3])]
    other = Receiver(cluster)
    assert await other.acquire() == [(0, 1, [4, 5, 6, 7, 8, 9])]
    assert await other.acquire() == []
    assert other.granted.next_visible_at_ms == receiver.granted.acquired[0].visible_at_ms
    assert not other.granted.refused


async def test_a_receiver_of_several_queues_is_told_when_the_first_message_is_visible(
    cluster: Cluster, receiver: Receiver
) -> None:
    cluster.broker.queue(TOPIC, 1).append(5)
    await receiver.acquire(visible_after_ms=HOUR_MS // 2)
    soon = receiver.granted.acquired[0].visible_at_ms
    await receiver.acquire(receiver.reach(1))
    assert receiver.granted.acquired
    for queue_ids in ((0, 1), (1, 0)):
        assert await receiver.acquire(*map(receiver.reach, queue_ids)) == []
        assert receiver.granted.next_visible_at_ms == soon


async def test_the_committed_offset_is_the_smallest_that_is_not_settled(
    cluster: Cluster, receiver: Receiver
) -> None:
    await receiver.acquire()
    assert await receiver.acknowledge(receiver.delivered(1, 2, 5)) == [[]]
    assert await committed(cluster) == 0
    assert await receiver.acknowledge(receiver.delivered(0)) == [[]]
    assert await committed(cluster) == 3
    listed = await receiver.listed()
    assert (listed.settled_to, listed.acquired_to, listed.settled_above) == (3, 10, 1)
    assert (listed.in_flight, listed.visible_again, listed.attempt_max) == (6, 0, 1)
    # The whole set again: settled messages are not refused.
    assert await receiver.acknowledge() == [[]]
    assert await committed(cluster) == 10


async def test_what_is_given_back_comes_again_with_its_attempt_counted_or_not(
    receiver: Receiver,
) -> None:
    await receiver.acquire()
    changed = await receiver.change(receiver.delivered(2, 3), 0)
    assert changed.acquisition > receiver.granted.acquired[0].acquisition
    assert not changed.refused
    uncounted = await receiver.change(receiver.delivered(7), 0, uncounted=True)
    assert uncounted.acquisition
    # The old number does not hold them any more.
    assert await receiver.acknowledge(receiver.delivered(1, 2)) == [[2]]
    before = receiver.granted
    assert sorted(await receiver.acquire()) == [(0, 1, [7]), (0, 2, [2, 3])]
    receiver.granted = before
    assert (await receiver.change(receiver.delivered(3), 0)).acquisition == 0


async def test_an_acknowledgement_after_its_time_counts_while_nobody_else_has_the_message(
    cluster: Cluster, receiver: Receiver
) -> None:
    await receiver.acquire(messages_max=3, visible_after_ms=1)
    other = Receiver(cluster)
    await cluster.until(lambda: is_visible_again(receiver, 3))
    assert await other.acquire(messages_max=1) == [(0, 2, [0])]
    assert await receiver.acknowledge() == [[0]]
    assert await other.acknowledge() == [[]]
    assert await committed(cluster) == 3


async def is_visible_again(receiver: Receiver, messages: int) -> bool:
    return (await receiver.listed()).visible_again == messages


async def test_a_holder_that_wants_longer_keeps_its_number(
    cluster: Cluster, receiver: Receiver
) -> None:
    await receiver.acquire(messages_max=3, visible_after_ms=1_000)
    number = receiver.granted.acquired[0].acquisition
    for _ in range(2):
        changed = await receiver.change(receiver.delivered(1), HOUR_MS, extend=True)
        assert changed.acquisition == number
    other = Receiver(cluster)
    await cluster.until(lambda: is_visible_again(receiver, 2))
    assert await other.acquire(messages_max=3) == [(0, 2, [0, 2]), (0, 1, [3])]
    assert await receiver.acknowledge() == [[0, 2]]
    assert await other.acknowledge() == [[], []]
    assert await committed(cluster) == 4


async def test_attempts_that_are_used_up_make_a_message_dead(
    cluster: Cluster, receiver: Receiver
) -> None:
    await cluster.set_group(retry_attempts_max=1)
    await cluster.until_revision()
    for attempt in (1, 2, 3):
        assert await receiver.acquire(messages_max=1) == [(0, attempt, [0])]
        assert receiver.granted.acquired[0].dead == (attempt == 3)
        await receiver.change(receiver.delivered(), 0)


async def test_everything_survives_a_restart(cluster: Cluster, receiver: Receiver) -> None:
    await receiver.acquire()
    first = receiver.granted
    await receiver.acknowledge(receiver.delivered(0, 1, 4, 9))
    await receiver.change(receiver.delivered(6), 0)
    await receiver.change(receiver.delivered(3), 2 * HOUR_MS, extend=True)
    before = await receiver.listed()
    await cluster.restart_service()
    assert await receiver.listed() == before
    assert await receiver.acquire() == [(0, 2, [6])]
    number = receiver.granted.acquired[0].acquisition
    assert number > first.acquired[0].acquisition
    receiver.granted = first
    assert await receiver.acknowledge() == [[6]]
    assert await committed(cluster) == 6


async def test_a_reader_starts_by_the_groups_policy_and_the_reason_is_stored(
    cluster: Cluster, receiver: Receiver
) -> None:
    cluster.broker.queue(TOPIC, 1).append(5)
    last = ns.StartPolicy(consume_from=ns.CONSUME_FROM_LAST)
    assert await receiver.acquire(receiver.reach(1), policy=last) == []
    (progress,) = await cluster.progress()
    assert (progress.offset, progress.start_reason) == (5, offset_pb2.LAST)
    cluster.broker.queue(TOPIC, 1).append(1)
    assert await receiver.acquire(receiver.reach(1), policy=last) == [(1, 1, [5])]
    # A queue that is created later is new to the group: no message of it is skipped.
    await cluster.add_queues(1)
    cluster.broker.queue(TOPIC, 2).append(2)
    assert await receiver.acquire(receiver.reach(2), policy=last) == [(2, 1, [0, 1])]


async def test_brokers_are_asked_once_and_not_for_each_acquisition(
    cluster: Cluster, receiver: Receiver
) -> None:
    await receiver.acquire(messages_max=1)
    asked = cluster.broker.status_calls
    for _ in range(5):
        await receiver.acquire(messages_max=1)
        await receiver.acknowledge()
    await receiver.acquire(receiver.reach(end_offset=0))
    assert cluster.broker.status_calls == asked


async def test_wishes_that_share_a_call_are_granted_each_for_itself(
    cluster: Cluster, receiver: Receiver
) -> None:
    def wish(**more: Any) -> pb.Wanted:
        said = {
            "group": GROUP,
            "receiver": "r",
            "queues": [receiver.reach()],
            "messages_max": 3,
            "visible_after_ms": HOUR_MS,
            "policy": FIRST,
        }
        return pb.Wanted(**{**said, **more})

    request = pb.AcquireRequest(
        wanted=[wish(), wish(group="nobody"), wish(messages_max=0), wish(messages_max=2)],
        route_revision=cluster.nameserver.revision,
    )
    reply = await receiver.stub.Acquire(request)
    errors = [Error.Code.Name(each.error.code) for each in reply.granted]
    assert errors == ["UNSPECIFIED", "GROUP_NOT_FOUND", "INVALID_ARGUMENT", "UNSPECIFIED"]
    got = [[(a.first_offset, a.offsets) for a in each.acquired] for each in reply.granted]
    assert got == [[(0, b"\x07")], [], [], [(3, b"\x03")]]


async def test_lag_says_what_receivers_have_and_what_is_ready(
    cluster: Cluster, receiver: Receiver
) -> None:
    queue = cluster.broker.queue(TOPIC)
    queue.times_ms[5:] = [4000] * 5
    assert await receiver.acquire(messages_max=7)
    await receiver.acknowledge(receiver.delivered(1, 2, 6))
    await receiver.change(receiver.delivered(5), 0)

    async def row() -> offset_pb2.QueueLag:
        reply = await cluster.stub.Lag(offset_pb2.LagRequest(group=GROUP, topic=TOPIC))
        return reply.queues[0]  # type: ignore[no-any-return]

    found = await row()
    assert (found.committed_offset, found.lag, found.settled_above) == (0, 10, 3)
    assert (found.in_flight, found.ready) == (3, 4)
    assert await receiver.acquire()
    assert await receiver.acknowledge() == [[], []]
    found = await row()
    assert (found.in_flight, found.ready, found.settled_above) == (3, 0, 7)


async def test_what_retention_deleted_of_a_window_is_lost_unless_somebody_settled_or_has_it(
    cluster: Cluster, receiver: Receiver
) -> None:
    # 0 and 3 are in flight, 1 and 2 settled, 4 is visible again; 5 to 9 were never delivered.
    assert await receiver.acquire(messages_max=5)
    await receiver.acknowledge(receiver.delivered(1, 2))
    await receiver.change(receiver.delivered(4), 0)
    ready = {0: 6, 2: 6, 4: 6, 5: 5, 7: 3, 10: 0}
    for below, expected in ready.items():
        cluster.broker.queue(TOPIC).expire_below(below)
        reply = await cluster.stub.Lag(offset_pb2.LagRequest(group=GROUP, topic=TOPIC))
        found = reply.queues[0]
        assert (found.lag, found.settled_above, found.in_flight) == (10, 2, 2)
        assert (found.lost, found.ready) == (6 - expected, expected)


async def acquires(receiver: Receiver) -> None:
    assert await receiver.acquire()


async def acknowledges(receiver: Receiver) -> None:
    assert await receiver.acknowledge() == [[]]


async def gives_back(receiver: Receiver) -> None:
    assert (await receiver.change(receiver.delivered(), 0)).acquisition


@pytest.mark.parametrize("call", [acquires, acknowledges, gives_back])
async def test_nothing_is_answered_to_a_receiver_before_it_is_on_disk(
    cluster: Cluster, receiver: Receiver, call: Any
) -> None:
    await receiver.acquire(messages_max=4)
    await cluster.stop_service()
    disk = HoldingDisk()
    async with (
        running(cluster.settings(export_seconds=0.0), Stop(), disk) as address,
        aio.insecure_channel(address) as cluster.channel,
        asyncio.TaskGroup() as tasks,
    ):
        await receiver.listed()
        disk.free.clear()
        changing = tasks.create_task(call(receiver))
        await cluster.until(lambda: disk.waiting)
        looking = tasks.create_task(receiver.listed())
        # Refused, so no part of it waits for the disk.
        bad = pb.AcknowledgeRequest(entries=[pb.GroupDelivered(group=GROUP)])
        # Several times: a reply that did not wait for the disk would have arrived by then.
        for _ in range(3):
            (result,) = (await receiver.stub.Acknowledge(bad)).results
            assert result.error.code == Error.INVALID_ARGUMENT
        assert not changing.done()
        assert not looking.done()
        disk.free.set()


async def test_a_paused_group_gets_nothing(cluster: Cluster, receiver: Receiver) -> None:
    await receiver.acquire(messages_max=1)
    await cluster.set_group(consume_disabled=True)
    await cluster.until_revision()
    before = receiver.granted
    assert await receiver.acquire() == []
    assert receiver.granted.error.code == Error.CONSUME_DISABLED
    # Its acquired messages may be finished.
    receiver.granted = before
    assert await receiver.acknowledge() == [[]]


async def test_an_entry_that_cannot_be_is_refused_alone(
    cluster: Cluster, receiver: Receiver
) -> None:
    """Calls of many receivers share writes."""
    await receiver.acquire()
    good, far, wide, none = (receiver.delivered(0) for _ in range(4))
    none.delivered.offsets = b""
    far.delivered.first_offset = (1 << 62) + 1
    wide.delivered.offsets = bytes(128 << 10) + b"1"
    request = pb.AcknowledgeRequest(entries=[far, good, wide, none])
    results = (await receiver.stub.Acknowledge(request)).results
    assert [Error.Code.Name(each.error.code) for each in results] == [
        "INVALID_OFFSET",
        "UNSPECIFIED",
        "INVALID_ARGUMENT",
        "INVALID_ARGUMENT",
    ]
    assert await committed(cluster) == 1
    entries = [far, receiver.delivered(1), wide]
    changes = [
        pb.VisibilityChange(group=GROUP, delivered=each.delivered, visible_after_ms=1)
        for each in entries
    ]
    changes[2].visible_after_ms = -1
    asked = pb.ChangeVisibilityRequest(changes=changes)
    changed = (await receiver.stub.ChangeVisibility(asked)).results
    assert [bool(each.acquisition) for each in changed] == [False, True, False]
