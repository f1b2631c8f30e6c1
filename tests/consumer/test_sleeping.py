"""A member whose process slept, and wakes with messages that another member may have by now."""

import asyncio
import threading
import time
from typing import Any

import rockoon
from rockoon.cluster import Cluster
from rockoon.consumer.membership import MembershipLease
from rockoon.consumer.push_consumer import PushConsumer
from rockoon.message import Message
from rockoon_core.message_queue import MessageQueue
from support.consumer_settings import grouped
from support.eventually import eventually
from support.fake_cluster import FakeCluster

PLACE = ("orders", "broker-a", 0)
Q0 = MessageQueue(*PLACE)
LEASE_SECONDS = 1.0


def tenure(
    *, orderly: bool = False, lease: float = 10.0, handover: float = 10.0
) -> MembershipLease:
    """A member whose heartbeat at 100 s got a reply."""
    made = MembershipLease(orderly=orderly)
    made.tick(100.0)
    made.answered(100.0, 100.1)
    made.renew(lease, handover, 3.0)
    return made


def runs(made: MembershipLease, since: float, until: float) -> None:
    """Advance the clock without a jump."""
    now = since
    while now < until:
        assert not made.tick(now)
        now += made.tick_seconds
    made.tick(until)


def test_who_keeps_no_order_goes_on_however_long_the_service_is_silent() -> None:
    plain, orderly = tenure(), tenure(orderly=True)
    for each in (plain, orderly):
        runs(each, 100.0, 1000.0)
    assert plain.valid_since(0, 1000.5)
    assert not orderly.valid_since(0, 1000.5)
    assert plain.answered(1000.0, 1000.1) is not None, "others may have had its lease end"
    assert not plain.valid_since(0, 1000.5)
    assert plain.valid_since(1, 1000.5)


def test_who_slept_trusts_nothing_from_before_and_nothing_at_all_until_it_is_heard() -> None:
    made = tenure()
    assert made.valid_since(0, 104.4)
    assert not made.valid_since(0, 104.6), "the last heartbeat may be three seconds older"
    assert made.tick(200.0)
    assert not made.tick(200.1)
    assert not made.valid_since(0, 200.2), "the clock ticks again, and that is all"
    assert made.answered(100.5, 200.2) is not None
    assert not made.valid_since(1, 200.2), "that answer is to what was sent before the sleep"
    assert made.answered(200.1, 200.3) is not None
    assert made.valid_since(2, 200.3)
    assert not made.valid_since(1, 200.3)
    made.tick(201.0)
    assert made.answered(201.0, 201.1) is None


def test_a_sleep_is_what_is_too_long_for_the_time_to_let_go_too() -> None:
    made = tenure(lease=60.0, handover=8.0)
    assert made.valid_since(0, 102.9)
    assert not made.valid_since(0, 103.1)
    # A pause between heartbeats is no sleep if all work is done at once.
    assert tenure(lease=4.0, handover=0.5).valid_since(0, 100.1)


def consumer_of(cluster: Cluster, handler: Any, **settings: Any) -> PushConsumer:
    chosen: dict[str, Any] = {"consume_from": "first", "commit_seconds": 0.02, **settings}
    return cluster.push_consumer("billing", {"orders": "*"}, handler, **grouped(chosen))


def tell(fake: FakeCluster, count: int) -> None:
    fake.create_topic("orders")
    fake.offset.lease_seconds, fake.offset.heartbeat_seconds = LEASE_SECONDS, 0.05
    fake.append("orders", [b"%d" % number for number in range(count)])


async def test_without_an_offset_service_messages_are_handled_beyond_the_lease(
    fake: FakeCluster, cluster: Cluster
) -> None:
    tell(fake, 3)
    seen: list[int] = []

    async def handle(message: Message) -> None:
        seen.append(message.queue_offset)

    async with consumer_of(cluster, handle) as consumer:
        await eventually(lambda: len(seen) == 3)
        await fake.offset.listener.stop()
        over = time.monotonic() + 1.3 * LEASE_SECONDS
        await eventually(lambda: time.monotonic() > over)
        fake.append("orders", [b"3", b"4"])
        await eventually(lambda: len(seen) == 5)
        assert not consumer.statistics.delivery.unsure
        await fake.offset.listener.start()


async def test_who_wakes_begins_no_call_before_a_heartbeat_is_answered_and_then_goes_on(
    fake: FakeCluster, cluster: Cluster
) -> None:
    tell(fake, 50)
    handled: list[int] = []
    sleeps = asyncio.Event()

    async def handle(message: Message) -> None:
        if message.queue_offset == 10:
            await sleeps.wait()
            # The whole process: no part of it runs in the meantime.
            threading.Event().wait(LEASE_SECONDS)
        handled.append(message.queue_offset)

    async with consumer_of(cluster, handle, concurrency=1, member_id="a") as consumer:
        await eventually(lambda: handled == list(range(10)))
        await fake.offset.listener.stop()
        sleeps.set()
        await eventually(lambda: consumer.statistics.delivery.unsure > 3)
        assert handled == list(range(11)), "only the call that had begun"
        await fake.offset.listener.start()
        await eventually(lambda: handled[-1] == 49)
    assert sorted(set(handled)) == list(range(50))


async def test_who_wakes_in_a_handler_that_waits_for_nothing_begins_no_call_either(
    fake: FakeCluster, cluster: Cluster
) -> None:
    tell(fake, 50)
    handled: list[int] = []

    async def handle(message: Message) -> None:
        if message.queue_offset == 10 and 10 not in handled:
            threading.Event().wait(LEASE_SECONDS)
        handled.append(message.queue_offset)

    async with consumer_of(cluster, handle, concurrency=1, member_id="a") as consumer:
        await eventually(lambda: consumer.statistics.delivery.unsure > 0)
        # Before a heartbeat could get a reply: the loop has not run since.
        assert handled[:11] == list(range(11))
        await eventually(lambda: handled[-1] == 49)
    assert sorted(set(handled)) == list(range(50))


async def test_who_wakes_when_another_has_its_queue_leaves_it_to_that_one(
    fake: FakeCluster, cluster: Cluster
) -> None:
    tell(fake, 50)
    handled: list[tuple[str, int]] = []
    wakes = asyncio.Event()

    async def sleepy(message: Message) -> None:
        if message.queue_offset == 10:
            await wakes.wait()
        handled.append(("a", message.queue_offset))

    async def other(message: Message) -> None:
        handled.append(("b", message.queue_offset))

    async with (
        rockoon.connect(fake.address) as elsewhere,
        consumer_of(elsewhere, sleepy, concurrency=1, member_id="a", drain_seconds=0.1) as old,
    ):
        await eventually(lambda: len(handled) == 10)
        # As a stopped process: its tasks do not run any more.
        for task in old._tasks:
            task.cancel()
        fake.offset.expire("billing", "a")
        async with consumer_of(cluster, other, member_id="b") as consumer:
            await eventually(lambda: handled[-1] == ("b", 49))
            assert consumer.assignment == [Q0]
            await eventually(lambda: not old._membership.valid_since(old._membership.expirations))
            wakes.set()
            await eventually(lambda: old.statistics.delivery.unsure > 3)
            assert [offset for member, offset in handled if member == "a"] == list(range(11))
