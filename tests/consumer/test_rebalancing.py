"""Times of allocation: immediately after a change, soon after a failed round, otherwise at times;
and the strategy that decides."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from rockoon.cluster import Cluster
from rockoon.consumer.push_consumer import PushConsumer
from rockoon.errors import BrokerUnavailable
from rockoon.message import Message
from rockoon_core.message_queue import MessageQueue
from support.consumer_settings import grouped
from support.eventually import eventually
from support.fake_cluster import FakeCluster

Q0 = MessageQueue("orders", "broker-a", 0)
NEVER_SECONDS = 3600.0


async def nothing(_: Message) -> None:
    pass


def consumer_of(
    cluster: Cluster, name: str = "a", handler: Any = nothing, **settings: Any
) -> PushConsumer:
    chosen: dict[str, Any] = {
        "consume_from": "first",
        "rebalance_seconds": NEVER_SECONDS,
        "member_id": name,
        **settings,
    }
    return cluster.push_consumer("billing", {"orders": "*"}, handler, **grouped(chosen))


@pytest.fixture
def silent(fake: FakeCluster) -> FakeCluster:
    """A cluster whose heartbeats report no changes: members learn them only by pushes."""
    fake.offset.heartbeat_seconds = fake.offset.lease_seconds = NEVER_SECONDS
    fake.create_topic("orders", queues=2)
    return fake


async def test_after_a_round_that_failed_the_next_comes_soon_and_after_a_good_one_it_waits(
    silent: FakeCluster, cluster: Cluster
) -> None:
    silent.offset.refuse_starts = BrokerUnavailable(broker="broker-a")
    async with consumer_of(cluster) as consumer:
        await eventually(lambda: consumer.statistics.rebalances > 2)
        assert consumer.assignment == []
        silent.offset.refuse_starts = None
        await eventually(lambda: len(consumer.assignment) == 2)
        rounds = consumer.statistics.rebalances
        silent.append("orders", [b"x"] * 10)
        await eventually(lambda: consumer.statistics.delivery.messages == 10)
        assert consumer.statistics.rebalances == rounds


async def test_without_any_change_allocation_is_looked_at_now_and_then(
    silent: FakeCluster, cluster: Cluster
) -> None:
    async with consumer_of(cluster, rebalance_seconds=0.02) as consumer:
        await eventually(lambda: consumer.statistics.rebalances > 5)
        assert (len(consumer.assignment), consumer.statistics.queues_lost) == (2, 0)


async def test_topics_of_others_on_the_connection_are_no_reason_to_look(
    silent: FakeCluster, cluster: Cluster
) -> None:
    async with consumer_of(cluster) as consumer:
        await eventually(lambda: len(consumer.assignment) == 2)
        rounds = consumer.statistics.rebalances
        for number in range(5):
            silent.create_topic(f"other-{number}")
            await cluster.route(f"other-{number}")
        # New changes come after them, in one round.
        silent.add_queues("orders", "broker-a", 1)
        await eventually(lambda: len(consumer.assignment) == 3)
        assert consumer.statistics.rebalances <= rounds + 2


async def test_members_and_queues_that_come_and_go_are_pushed_not_polled(
    silent: FakeCluster, cluster: Cluster
) -> None:
    async with consumer_of(cluster, "a") as first:
        await eventually(lambda: len(first.assignment) == 2)
        async with consumer_of(cluster, "b") as second:
            await eventually(lambda: len(first.assignment) == len(second.assignment) == 1)
            silent.add_queues("orders", "broker-a", 4)
            await eventually(lambda: len(first.assignment) == len(second.assignment) == 3)
        await eventually(lambda: len(first.assignment) == 6)
        silent.offset.expire("billing", "a")
        await eventually(lambda: first.assignment == [])


async def test_a_group_shares_by_a_rule_of_its_own(silent: FakeCluster, cluster: Cluster) -> None:
    def all_to_the_last(
        member: str, members: Sequence[str], queues: Sequence[MessageQueue]
    ) -> Sequence[MessageQueue]:
        return queues if member == members[-1] else ()

    async with (
        consumer_of(cluster, "a", allocation=all_to_the_last) as first,
        consumer_of(cluster, "b", allocation=all_to_the_last) as second,
    ):
        await eventually(lambda: (len(first.queues()), len(second.assignment)) == (0, 2))
        await second.close()
        await eventually(lambda: len(first.assignment) == 2)


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_as_many_handlers_run_at_once_as_were_asked_for(
    silent: FakeCluster, cluster: Cluster, concurrency: int
) -> None:
    silent.append("orders", [b"x"] * 20)
    running, most, gate = 0, 0, asyncio.Event()

    async def handle(_: Message) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await gate.wait()
        running -= 1

    async with consumer_of(cluster, handler=handle, concurrency=concurrency) as consumer:
        await eventually(lambda: running == concurrency)
        await eventually(lambda: consumer.queues()[Q0].unfinished == 20)
        gate.set()
        await eventually(lambda: consumer.statistics.delivery.messages == 20)
    assert most == concurrency


async def test_a_listener_hears_of_queues_before_they_are_read_and_before_others_get_them(
    silent: FakeCluster, cluster: Cluster
) -> None:
    silent.append("orders", [b"x"], queue_id=0)
    silent.append("orders", [b"x"], queue_id=1)
    heard: list[tuple[str, str, tuple[int, ...]]] = []
    begun, gate = asyncio.Event(), asyncio.Event()

    def listener(name: str) -> dict[str, Any]:
        async def on_assigned(queues: Sequence[MessageQueue]) -> None:
            heard.append((name, "gets", tuple(queue.queue_id for queue in queues)))

        def on_revoked(queues: Sequence[MessageQueue]) -> None:
            heard.append((name, "loses", tuple(queue.queue_id for queue in queues)))

        return {"on_assigned": on_assigned, "on_revoked": on_revoked}

    async def handle(message: Message) -> None:
        heard.append(("a", "handles", (message.queue.queue_id,)))
        begun.set()
        await gate.wait()
        heard.append(("a", "has handled", (message.queue.queue_id,)))

    async with consumer_of(cluster, "a", handle, **listener("a")) as first:
        await asyncio.wait_for(begun.wait(), 30)
        assert heard[0] == ("a", "gets", (0, 1))
        async with consumer_of(cluster, "b", **listener("b")) as second:
            await eventually(lambda: len(first.assignment) == 1)
            assert not any(event == "loses" for _, event, _ in heard), "a call still runs"
            gate.set()
            await eventually(lambda: len(second.assignment) == 1)
            (lost,) = [queues for name, event, queues in heard if (name, event) == ("a", "loses")]
            assert heard.index(("a", "has handled", lost)) < heard.index(("a", "loses", lost))
            assert heard.index(("a", "loses", lost)) < heard.index(("b", "gets", lost))
        assert ("b", "loses", lost) in heard
        await eventually(lambda: ("a", "gets", lost) in heard)
    assert heard[-1] == ("a", "loses", (0, 1))


async def test_a_reset_while_a_listener_is_at_work_moves_the_start(
    silent: FakeCluster, cluster: Cluster
) -> None:
    silent.append("orders", [b"%d" % n for n in range(10)], queue_id=0)
    told, gate, seen = asyncio.Event(), asyncio.Event(), []

    async def on_assigned(_: Sequence[MessageQueue]) -> None:
        told.set()
        await gate.wait()

    async def handle(message: Message) -> None:
        seen.append(message.queue_offset)

    async with consumer_of(cluster, handler=handle, on_assigned=on_assigned) as consumer:
        await told.wait()
        silent.offset.reset("billing", ("orders", "broker-a", 0), 7)
        await eventually(lambda: consumer.statistics.resets == 1)
        gate.set()
        await eventually(lambda: len(seen) == 3)
    assert sorted(seen) == [7, 8, 9]


async def test_a_listener_that_fails_holds_no_queue_up(
    silent: FakeCluster, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(queues: Sequence[MessageQueue]) -> None:
        raise RuntimeError("the listener's own")

    async with consumer_of(cluster, on_assigned=fail, on_revoked=fail) as consumer:
        await eventually(lambda: len(consumer.assignment) == 2)
    assert caplog.text.count("a rebalance listener failed") == 2


async def test_a_listener_that_is_cancelled_by_itself_holds_no_queue_up(
    silent: FakeCluster, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """As if it awaited a task of the program that was cancelled."""

    async def fail(queues: Sequence[MessageQueue]) -> None:
        raise asyncio.CancelledError

    async with consumer_of(cluster, on_assigned=fail, on_revoked=fail) as consumer:
        await eventually(lambda: len(consumer.assignment) == 2)
    assert caplog.text.count("a rebalance listener failed") == 2
