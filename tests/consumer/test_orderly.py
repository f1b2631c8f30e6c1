"""An orderly consumer: one message of a queue at a time, in order, by one member at a time."""

import asyncio
import threading
from collections import defaultdict
from typing import Any

import pytest

import rockoon
from rockoon.cluster import Cluster
from rockoon.consumer.consume_result import ConsumeResult
from rockoon.consumer.push_consumer import PushConsumer
from rockoon.consumer.redelivery import HandlerFailure
from rockoon.errors import InvalidArgument
from rockoon.message import Message
from rockoon_core.message_queue import MessageQueue
from rockoon_format.record import decode_record
from support.consumer_settings import grouped
from support.eventually import eventually
from support.fake_cluster import FakeCluster

PLACE = ("orders", "broker-a", 0)
Q0 = MessageQueue(*PLACE)


def committed(fake: FakeCluster) -> int | None:
    progress = fake.offset.progress.get(("billing", PLACE))
    return progress.offset if progress else None


def consumer_of(cluster: Cluster, handler: Any, **settings: Any) -> PushConsumer:
    chosen: dict[str, Any] = {
        "consume_from": "first",
        "commit_seconds": 0.02,
        "orderly": True,
        "suspend_seconds": 0.01,
        **settings,
    }
    return cluster.push_consumer("billing", {"orders": "*"}, handler, **grouped(chosen))


def bodies(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


class Seen:
    """Handled messages, by queue, and whether two calls of a queue ever overlapped."""

    def __init__(self) -> None:
        self.offsets: dict[MessageQueue, list[int]] = defaultdict(list)
        self.running: dict[MessageQueue, int] = defaultdict(int)
        self.together_max = 0
        self.queues_together_max = 0

    async def __call__(self, message: Message) -> None:
        queue = message.queue
        self.running[queue] += 1
        self.together_max = max(self.together_max, self.running[queue])
        self.queues_together_max = max(
            self.queues_together_max, sum(1 for running in self.running.values() if running)
        )
        for _ in range(3):
            await asyncio.sleep(0)
        self.offsets[queue].append(message.queue_offset)
        self.running[queue] -= 1

    @property
    def count(self) -> int:
        return sum(map(len, self.offsets.values()))


async def test_each_queue_goes_in_order_and_queues_go_side_by_side(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create_topic("orders", queues=4)
    for queue_id in range(4):
        fake.append("orders", bodies(200), queue_id=queue_id)
    seen = Seen()
    async with consumer_of(cluster, seen, concurrency=8):
        await eventually(lambda: seen.count == 800)
        await eventually(lambda: all(p.offset == 200 for p in fake.offset.progress.values()))
    assert all(offsets == list(range(200)) for offsets in seen.offsets.values())
    assert seen.together_max == 1
    assert seen.queues_together_max > 1


async def test_plain_functions_are_called_in_order_too(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create_topic("orders")
    fake.append("orders", bodies(100))
    seen: list[bytes] = []

    def handle(message: Message) -> None:
        seen.append(message.body)

    async with consumer_of(cluster, handle, concurrency=8):
        await eventually(lambda: len(seen) == 100)
    assert seen == bodies(100)


async def test_batches_are_handed_out_in_order_and_come_again_whole(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create_topic("orders")
    fake.append("orders", bodies(10))
    seen: list[list[int]] = []

    async def handle(messages: list[Message]) -> bool:
        seen.append([message.queue_offset for message in messages])
        return len(seen) != 2

    async with consumer_of(cluster, handle, batch_max=4):
        await eventually(lambda: committed(fake) == 10)
    assert seen == [[0, 1, 2, 3], [4, 5, 6, 7], [4, 5, 6, 7], [8, 9]]


@pytest.mark.parametrize("how", ["raise", "later", "suspend", "false"])
async def test_a_message_that_fails_comes_again_before_all_behind_it(
    fake: FakeCluster, cluster: Cluster, how: str
) -> None:
    fake.create_topic("orders", queues=2)
    fake.append("orders", bodies(5))
    fake.append("orders", bodies(5), queue_id=1)
    seen: dict[int, list[int]] = defaultdict(list)

    async def handle(message: Message) -> object:
        seen[message.queue.queue_id].append(message.queue_offset)
        if message.queue.queue_id or message.queue_offset != 2 or seen[0].count(2) > 3:
            return None
        if how == "raise":
            raise RuntimeError("not yet")
        return {
            "later": ConsumeResult.LATER,
            "suspend": ConsumeResult.suspend(0.02),
            "false": False,
        }[how]

    async with consumer_of(cluster, handle) as consumer:
        await eventually(lambda: seen[0].count(2) >= 2 and len(seen[1]) == 5)
        assert consumer.queues()[Q0].held_back_by == 2
        await eventually(lambda: committed(fake) == 5)
    assert seen[0] == [0, 1, 2, 2, 2, 2, 3, 4]


async def test_a_message_in_vain_too_often_is_a_dead_letter_and_its_queue_goes_on(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create_topic("orders")
    fake.append("orders", bodies(3))
    dead: list[HandlerFailure] = []
    seen: list[int] = []

    class DeadLetters:
        async def failed(self, failure: HandlerFailure) -> None:
            dead.append(failure)

    async def handle(message: Message) -> bool:
        seen.append(message.queue_offset)
        return message.queue_offset != 1

    async with consumer_of(cluster, handle, attempts_max=3, redelivery=DeadLetters()):
        await eventually(lambda: committed(fake) == 3)
    assert seen == [0, 1, 1, 1, 2]
    assert [(each.messages[0].queue_offset, each.attempt, each.is_last) for each in dead] == [
        (1, 3, True)
    ]


async def test_a_dead_letter_lies_in_the_groups_topic_by_default(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create_topic("orders")
    fake.append("orders", bodies(3))

    async def handle(message: Message) -> ConsumeResult:
        wanted = {0: ConsumeResult.SUCCESS, 1: ConsumeResult.SUSPEND}
        return wanted.get(message.queue_offset, ConsumeResult.later(level=-1))

    async with consumer_of(cluster, handle, attempts_max=2):
        await eventually(lambda: committed(fake) == 3)
    dead = fake.brokers["broker-a"].queues["%DLQ%billing", 0]
    assert [decode_record(frame).body for frame in dead.frames] == [b"1", b"2"]


async def test_no_call_begins_once_the_lease_may_have_ended_and_all_goes_on_when_it_is_renewed(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.offset.lease_seconds = 0.5
    fake.create_topic("orders")
    seen = Seen()
    async with consumer_of(cluster, seen) as consumer:
        await eventually(lambda: consumer.assignment == [Q0])
        await fake.offset.listener.stop()
        delivery = consumer.statistics.delivery
        # Messages still come from the broker; other owners of the queue cannot be known.
        member = consumer._membership
        await eventually(lambda: not member.valid_since(member.expirations))
        fake.append("orders", bodies(5))
        await eventually(lambda: delivery.unsure > 0)
        assert seen.count == 0
        await fake.offset.listener.start()
        await eventually(lambda: seen.count == 5)
        await eventually(lambda: committed(fake) == 5)
        assert not member.valid_since(0), "what was granted before is not sure again"
        # On a busy machine heartbeats are late after that, too.
        await eventually(lambda: member.valid_since(member.expirations))
    assert seen.offsets[Q0] == list(range(5))


async def test_a_member_that_was_cut_off_calls_no_handler_after_another_has_its_queue(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.offset.lease_seconds = 0.5
    fake.create_topic("orders")
    fake.append("orders", bodies(20))
    async with rockoon.connect(fake.address) as elsewhere:
        gate, cut_off = asyncio.Event(), Seen()

        async def slow(message: Message) -> None:
            await gate.wait()
            await cut_off(message)

        async with consumer_of(elsewhere, slow, member_id="a", drain_seconds=0.1) as old:
            await eventually(lambda: Q0 in old.queues() and old.queues()[Q0].running == 1)
            # As a stopped process: its tasks receive nothing, its handler continues.
            for task in old._tasks:
                task.cancel()
            fake.offset.expire("billing", "a")
            seen = Seen()
            async with consumer_of(cluster, seen, member_id="b"):
                await eventually(lambda: seen.count == 20)
                await eventually(
                    lambda: not old._membership.valid_since(old._membership.expirations)
                )
                gate.set()
                await eventually(lambda: old.statistics.delivery.unsure > 0)
                assert cut_off.offsets[Q0] == [0], "only the call that ran already"


async def test_a_call_that_outlasts_the_hand_over_is_ended_before_the_next_member_begins(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create_topic("orders")
    fake.append("orders", bodies(3))
    events: list[str] = []

    async def stuck(_: Message) -> None:
        events.append("a began")
        try:
            await asyncio.Event().wait()
        finally:
            events.append("a ended")

    async def handle(message: Message) -> None:
        events.append(f"b {message.queue_offset}")

    async with consumer_of(cluster, stuck, member_id="z", drain_seconds=0.1):
        await eventually(lambda: events == ["a began"])
        async with consumer_of(cluster, handle, member_id="b"):
            await eventually(lambda: len(events) == 5)
    assert events == ["a began", "a ended", "b 0", "b 1", "b 2"]


async def test_after_a_reset_no_call_begins_while_a_former_one_of_the_queue_runs(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create_topic("orders")
    fake.append("orders", bodies(5))
    gate = threading.Event()
    events: list[str] = []

    def handle(message: Message) -> None:
        events.append(f"{message.queue_offset} began")
        if len(events) == 1:
            gate.wait()
        events.append(f"{message.queue_offset} ended")

    try:
        async with consumer_of(cluster, handle) as consumer:
            await eventually(lambda: events == ["0 began"])
            fake.offset.reset("billing", PLACE, 3)
            await eventually(lambda: consumer.statistics.delivery.unsure > 0)
            assert events == ["0 began"]
            gate.set()
            await eventually(lambda: len(events) == 6)
    finally:
        gate.set()
    assert events == ["0 began", "0 ended", "3 began", "3 ended", "4 began", "4 ended"]


async def test_a_limit_of_deliveries_is_one_or_more(cluster: Cluster) -> None:
    with pytest.raises(InvalidArgument):
        consumer_of(cluster, Seen(), attempts_max=0)
