"""Queues that move between live members: no message twice, none left out, in order."""

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import rockoon
from rockoon.cluster import Cluster
from rockoon.consumer.push_consumer import PushConsumer
from rockoon.consumer.queue_revocation import LAST_COMMIT_SECONDS_MAX
from rockoon.consumer.redelivery import LocalRedelivery
from rockoon.message import Message
from rockoon_core.message_queue import MessageQueue
from support.consumer_settings import grouped
from support.eventually import eventually
from support.fake_cluster import FakeCluster
from support.own_logs import own_warnings

QUEUES = 8
# Messages sent and not yet handled.
AHEAD_MAX = 400
UNREACHED_SECONDS = 3600.0
PLACE = ("orders", "broker-a", 0)
Q0, Q1 = MessageQueue(*PLACE), MessageQueue("orders", "broker-a", 1)
SOON = LocalRedelivery(first_seconds=0.01, seconds_max=0.02)


class Seen:
    """Messages of all members of a group, by queue."""

    def __init__(self) -> None:
        self.offsets: dict[int, list[int]] = defaultdict(list)
        self.count = 0

    async def __call__(self, message: Message) -> None:
        # So that some calls always run.
        for _ in range(10):
            await asyncio.sleep(0)
        self.offsets[message.queue.queue_id].append(message.queue_offset)
        self.count += 1


def member(cluster: Cluster, handler: Any, **settings: Any) -> PushConsumer:
    """A member that commits only when necessary."""
    chosen: dict[str, Any] = {
        "consume_from": "first",
        "commit_seconds": 60,
        "redelivery": SOON,
        **settings,
    }
    return cluster.push_consumer("billing", {"orders": "*"}, handler, **grouped(chosen))


def offset_of(fake: FakeCluster, queue_id: int = 0) -> int:
    return fake.offset.progress["billing", ("orders", "broker-a", queue_id)].offset


def owner_of(fake: FakeCluster, queue_id: int = 0) -> str:
    return fake.offset.progress["billing", ("orders", "broker-a", queue_id)].owner


@contextlib.asynccontextmanager
async def flowing(fake: FakeCluster, seen: Seen) -> AsyncIterator[list[int]]:
    """Send to all queues until the block ends; yield the number of messages by queue."""
    sent = [0]

    async def send() -> None:
        while True:
            for queue_id in range(QUEUES):
                fake.append("orders", [b"x"], queue_id=queue_id)
            sent[0] += 1
            await eventually(lambda: QUEUES * sent[0] < seen.count + AHEAD_MAX)

    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(send())
        yield sent
        task.cancel()


@pytest.mark.parametrize("concurrency", [1, 8])
async def test_two_members_then_four_then_two_with_nothing_twice_and_nothing_left_out(
    fake: FakeCluster, concurrency: int, caplog: pytest.LogCaptureFixture
) -> None:
    fake.create_topic("orders", queues=QUEUES)
    fake.offset.handover_seconds_max = fake.offset.lease_seconds = UNREACHED_SECONDS
    seen = Seen()
    caplog.set_level(logging.INFO, "rockoon")
    async with contextlib.AsyncExitStack() as stack:

        async def join(name: str) -> PushConsumer:
            connection = await stack.enter_async_context(rockoon.connect(fake.address))
            joined = member(connection, seen, member_id=name, concurrency=concurrency)
            return await stack.enter_async_context(joined)

        async def settled(*members: PushConsumer) -> None:
            share = QUEUES // len(members)
            await eventually(lambda: all(len(each.assignment) == share for each in members))
            count = seen.count
            await eventually(lambda: seen.count > count + 100)

        async with flowing(fake, seen) as sent:
            a, b = await join("a"), await join("b")
            await settled(a, b)
            c, d = await join("c"), await join("d")
            await settled(a, b, c, d)
            async with asyncio.TaskGroup() as leaving:
                leaving.create_task(a.close())
                leaving.create_task(d.close())
            await settled(b, c)
        await eventually(lambda: seen.count >= QUEUES * sent[0])
        fenced = [each.statistics.fenced for each in (a, b, c, d)]
    assert fenced == [0, 0, 0, 0]
    assert not fake.offset.refused
    for offsets in seen.offsets.values():
        assert sorted(offsets) == list(range(sent[0]))
        if concurrency == 1:
            assert offsets == sorted(offsets)
    assert own_warnings(caplog) == []
    assert {each.offset for each in fake.offset.progress.values()} == {sent[0]}


async def test_a_hand_over_waits_for_no_backoff(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create_topic("orders", queues=2)
    gate, running = asyncio.Event(), asyncio.Event()
    fake.append("orders", [b"slow"], queue_id=1)

    async def slow(message: Message) -> None:
        running.set()
        await gate.wait()

    async with member(cluster, slow, member_id="a"):
        await running.wait()
        async with member(cluster, Seen(), member_id="b") as second:
            await eventually(lambda: bool(fake.offset.waits))
            tries = second.statistics.rebalances
            await eventually(lambda: second.statistics.rebalances > tries + 4)
            assert owner_of(fake, 1) == "a"
            # Pauses are longer than a second by now.
            loop = asyncio.get_running_loop()
            freed_at = loop.time()
            gate.set()
            await eventually(lambda: second.assignment == [Q1])
            assert loop.time() - freed_at < 0.8
            assert offset_of(fake, 1) == 1


async def test_what_runs_is_finished_and_what_was_only_pulled_goes_to_the_next_owner(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create_topic("orders", queues=2)
    fake.append("orders", [b"%d" % number for number in range(10)], queue_id=1)
    gate, here, there = asyncio.Event(), Seen(), Seen()

    async def slow(message: Message) -> None:
        await gate.wait()
        await here(message)

    async with member(cluster, slow, member_id="a", concurrency=3) as first:
        await eventually(lambda: Q1 in first.queues() and first.queues()[Q1].running == 3)
        async with member(cluster, there, member_id="b"):
            await eventually(lambda: first.assignment == [Q0])
            # The remaining queues continue, with the free workers.
            assert owner_of(fake, 1) == "a"
            gate.set()
            await eventually(lambda: there.count == 7)
    assert (here.offsets[1], there.offsets[1]) == ([0, 1, 2], list(range(3, 10)))


async def test_a_message_that_keeps_failing_holds_no_queue_back(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create_topic("orders", queues=2)
    fake.append("orders", [b"bad", b"good"], queue_id=1)
    tries, there = [0], Seen()

    async def fail(message: Message) -> None:
        tries[0] += message.body == b"bad"
        if message.body == b"bad":
            raise RuntimeError("told to")

    async with member(cluster, fail, member_id="a") as first:
        await eventually(lambda: tries[0] > 2)
        async with member(cluster, there, member_id="b"):
            await eventually(lambda: there.count == 2)
            before = tries[0]
            await eventually(lambda: first.assignment == [Q0])
            assert owner_of(fake, 1) == "b"
            assert tries[0] == before


async def test_a_handler_that_takes_too_long_is_not_waited_for(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create_topic("orders", queues=2)
    fake.append("orders", [b"0", b"1"], queue_id=1)
    there = Seen()

    async def stuck(message: Message) -> None:
        if message.queue_offset == 1:
            await asyncio.Event().wait()

    async with member(cluster, stuck, member_id="a", drain_seconds=0.1) as first:
        await eventually(lambda: Q1 in first.queues() and first.queues()[Q1].commit_offset == 1)
        async with member(cluster, there, member_id="b"):
            await eventually(lambda: there.count == 1)
    assert there.offsets[1] == [1]
    assert first.statistics.fenced == 0


async def test_a_member_that_hangs_is_overtaken_after_the_bound_and_its_late_commit_is_fenced(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create_topic("orders", queues=2)
    fake.offset.handover_seconds_max = 0.3
    fake.append("orders", [b"%d" % number for number in range(5)], queue_id=1)
    there = Seen()
    async with rockoon.connect(fake.address) as elsewhere:
        async with member(elsewhere, Seen(), member_id="a") as hung:
            await eventually(lambda: hung.statistics.delivery.messages == 5)
            # As if its process had been stopped.
            for task in hung._tasks:
                task.cancel()
            async with member(cluster, there, member_id="b") as second:
                await eventually(lambda: there.count == 5)
                await second.commit()
                await hung.commit()
                assert hung.statistics.fenced == 1
                assert (owner_of(fake, 1), offset_of(fake, 1)) == ("b", 5)
        # The close released its other queue, and not the queue of the other member.
        assert owner_of(fake, 0) == ""


async def test_a_member_that_was_killed_is_waited_for_no_longer_than_its_lease(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create_topic("orders", queues=2)
    async with (
        rockoon.connect(fake.address) as elsewhere,
        member(elsewhere, Seen(), member_id="a") as killed,
    ):
        await eventually(lambda: len(killed.assignment) == 2)
        # As if its process had been killed.
        for task in killed._tasks:
            task.cancel()
        async with member(cluster, Seen(), member_id="b") as second:
            await eventually(lambda: bool(fake.offset.waits))
            assert second.assignment == []
            fake.offset.expire("billing", "a")
            await eventually(lambda: len(second.assignment) == 2)


async def test_a_queue_that_was_reset_while_it_moved_is_let_go_all_the_same(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create_topic("orders", queues=2)
    fake.offset.handover_seconds_max = UNREACHED_SECONDS
    fake.append("orders", [b"x"] * 5, queue_id=1)
    here, there = Seen(), Seen()
    async with member(cluster, here, member_id="a") as first:
        await eventually(lambda: here.count == 5)
        async with member(cluster, there, member_id="b"):
            # Received at the same time as the new member.
            first._assignment.on_reset([Q1])
            await eventually(lambda: owner_of(fake, 1) == "b")


@pytest.mark.parametrize("how", ["close", "loss"])
async def test_a_last_commit_is_repeated_while_the_offset_service_is_away(
    fake: FakeCluster, cluster: Cluster, how: str
) -> None:
    fake.create_topic("orders")
    fake.append("orders", [b"x"] * 5)
    seen = Seen()
    consumer = member(cluster, seen)
    await consumer.start()
    await eventually(lambda: consumer.statistics.delivery.messages == 5)
    await fake.offset.listener.stop()
    async with asyncio.TaskGroup() as tasks:
        if how == "close":
            tasks.create_task(consumer.close())
        else:
            write_only = 2
            fake.nameserver.topics["orders"].config.permissions = write_only
            fake.nameserver.changed()
        await eventually(lambda: consumer.statistics.commits_failed >= 3)
        assert offset_of(fake) == 0
        await fake.offset.listener.start()
        await eventually(lambda: offset_of(fake) == 5, LAST_COMMIT_SECONDS_MAX)
    await consumer.close()
    assert owner_of(fake) == ""


async def test_a_last_commit_that_is_not_answered_is_sent_again(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create_topic("orders")
    fake.append("orders", [b"x"] * 5)
    consumer = member(cluster, Seen())
    await consumer.start()
    await eventually(lambda: consumer.statistics.delivery.messages == 5)
    answer: Callable[..., Any] = fake.offset.Commit
    calls = 0

    async def hang_once(request: Any, context: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            await asyncio.Event().wait()
        return await answer(request, context)

    await fake.offset.listener.stop()
    fake.offset.Commit = hang_once  # type: ignore[method-assign]
    await fake.offset.listener.start()
    await consumer.close()
    assert calls == 2
    assert offset_of(fake) == 5
