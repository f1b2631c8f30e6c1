"""Members of a group: their queues, their commits, and faults."""

import asyncio
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

import rockoon
from rockoon.cluster import Cluster
from rockoon.consumer.consume_result import ConsumeResult
from rockoon.consumer.process_queue import FlowLimits, Limit
from rockoon.consumer.pull import PullLimits
from rockoon.consumer.push_consumer import PushConsumer
from rockoon.consumer.redelivery import LocalRedelivery
from rockoon.errors import (
    GroupNotFound,
    InvalidArgument,
    InvalidOffset,
    MemberIdTaken,
    StoreCorrupt,
    TopicNotFound,
)
from rockoon.message import Message
from rockoon_core.message_queue import MessageQueue
from support.consumer_settings import grouped
from support.eventually import eventually
from support.fake_cluster import FakeCluster
from support.waiting import DEADLINE_SECONDS, hold_up

PLACE = ("orders", "broker-a", 0)
Q0 = MessageQueue(*PLACE)
SOON = LocalRedelivery(first_seconds=0.01, seconds_max=0.02)


class Seen:
    """A handler that records its messages, and fails on the chosen ones."""

    def __init__(self, failing: Sequence[bytes] = ()) -> None:
        self.bodies: list[bytes] = []
        self.failing = set(failing)
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, message: Message) -> None:
        await self.gate.wait()
        self.bodies.append(message.body)
        if message.body in self.failing:
            raise RuntimeError(f"told to fail on {message.body!r}")

    async def wait(self, count: int) -> None:
        await eventually(lambda: len(self.bodies) >= count)


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def consumer_of(cluster: Cluster, handler: Any, **settings: Any) -> PushConsumer:
    chosen: dict[str, Any] = {
        "consume_from": "first",
        "commit_seconds": 0.02,
        "redelivery": SOON,
        **settings,
    }
    return cluster.push_consumer("billing", {"orders": "*"}, handler, **grouped(chosen))


async def test_every_message_is_handled_and_progress_is_stored(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create_topic("orders", queues=3)
    for queue_id in range(3):
        fake.append("orders", numbered(500, 500 * queue_id), queue_id=queue_id)
    seen = Seen()
    async with consumer_of(cluster, seen) as consumer:
        await seen.wait(1500)
        assert sorted(map(int, seen.bodies)) == list(range(1500))
        await eventually(
            lambda: [p.offset for p in fake.offset.progress.values()] == [500, 500, 500]
        )
        assert {start.reason for start in consumer.starts.values()} == {"FIRST"}
        assert consumer.statistics.delivery.messages == 1500


async def test_closing_finishes_what_runs_commits_and_leaves(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create_topic("orders")
    fake.append("orders", numbered(3))
    seen = Seen()
    seen.gate.clear()
    async with asyncio.TaskGroup() as tasks:
        consumer = consumer_of(cluster, seen, commit_seconds=60)
        await consumer.start()
        await eventually(lambda: bool(consumer.queues()) and consumer.queues()[Q0].unfinished == 3)
        closing = tasks.create_task(consumer.close())
        await asyncio.sleep(0)
        assert not closing.done()
        seen.gate.set()
        await closing
    assert fake.offset.progress["billing", PLACE].offset == 3
    assert fake.offset.members["billing"] == {}


async def test_handlers_that_do_not_end_are_cancelled_and_their_messages_not_committed(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create_topic("orders")
    fake.append("orders", numbered(3))
    started = asyncio.Event()

    async def stuck(message: Message) -> None:
        if message.queue_offset == 1:
            started.set()
            await asyncio.Event().wait()

    async with consumer_of(cluster, stuck, drain_seconds=0.05):
        await started.wait()
    assert fake.offset.progress["billing", PLACE].offset == 1


async def test_a_plain_function_runs_in_threads_beside_the_loop(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create_topic("orders")
    fake.append("orders", numbered(50))
    names: Counter[str] = Counter()

    def handle(message: Message) -> bool:
        names[threading.current_thread().name] += 1
        return True

    async with consumer_of(cluster, handle, concurrency=4) as consumer:
        await eventually(lambda: consumer.statistics.delivery.messages == 50)
    assert threading.current_thread().name not in names


async def test_batches_go_to_a_handler_that_wants_them(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create_topic("orders")
    fake.append("orders", numbered(10))
    sizes: list[int] = []

    async def handle(messages: list[Message]) -> ConsumeResult:
        sizes.append(len(messages))
        return ConsumeResult.SUCCESS

    async with consumer_of(cluster, handle, batch_max=4, concurrency=1) as consumer:
        await eventually(lambda: consumer.statistics.delivery.messages == 10)
    assert sizes == [4, 4, 2]


async def test_a_failing_message_comes_again_and_holds_progress_back_but_not_the_others(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create_topic("orders")
    fake.append("orders", numbered(10))
    seen = Seen(failing=[b"4"])
    async with consumer_of(cluster, seen) as consumer:
        await eventually(lambda: seen.bodies.count(b"4") >= 3)
        assert set(seen.bodies) == set(numbered(10))
        await eventually(lambda: fake.offset.progress["billing", PLACE].offset == 4)
        view = consumer.queues()[Q0]
        assert (view.commit_offset, view.held_back_by, view.unfinished) == (4, 4, 1)
        assert view.attempts >= 2
        seen.failing.clear()
        await eventually(lambda: fake.offset.progress["billing", PLACE].offset == 10)
        assert consumer.queues()[Q0].held_back_by is None
    assert all(seen.bodies.count(body) == 1 for body in numbered(10) if body != b"4")


@pytest.mark.parametrize("result", [ConsumeResult.LATER, False, "what is this", 0])
async def test_only_a_clear_yes_is_a_success(
    fake: FakeCluster, cluster: Cluster, result: object
) -> None:
    fake.create_topic("orders")
    fake.append("orders", [b"0"])
    answers = [result, None]

    async def handle(message: Message) -> object:
        return answers.pop(0)

    async with consumer_of(cluster, handle) as consumer:
        await eventually(lambda: not answers)
        await eventually(lambda: consumer.statistics.delivery.messages == 1)
        assert consumer.statistics.delivery.failures == 1


async def test_a_message_that_never_succeeds_stops_its_queue_at_the_span_limit(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create_topic("orders")
    fake.append("orders", numbered(1000))
    seen = Seen(failing=[b"0"])
    async with consumer_of(
        cluster,
        seen,
        flow_limits=FlowLimits(messages_max=50, span_max=100),
        pull_limits=PullLimits(messages_max=10),
    ) as consumer:
        await eventually(
            lambda: Q0 in consumer.queues() and consumer.queues()[Q0].blocked_by is Limit.SPAN
        )
        assert 100 <= len(set(seen.bodies)) <= 120
        seen.failing.clear()
        await eventually(lambda: len(set(seen.bodies)) == 1000)


async def test_a_slow_handler_bounds_what_is_held(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create_topic("orders")
    fake.append("orders", numbered(1000))
    seen = Seen()
    seen.gate.clear()
    async with consumer_of(
        cluster,
        seen,
        flow_limits=FlowLimits(messages_max=50),
        pull_limits=PullLimits(messages_max=20),
    ) as consumer:
        await eventually(
            lambda: Q0 in consumer.queues() and consumer.queues()[Q0].blocked_by is Limit.COUNT
        )
        assert consumer.queues()[Q0].unfinished == 60
        seen.gate.set()
        await seen.wait(1000)


async def test_two_members_share_the_queues_and_one_takes_over_when_the_other_leaves(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create_topic("orders", queues=4)
    async with consumer_of(cluster, Seen(), member_id="a") as first:
        await eventually(lambda: len(first.assignment) == 4)
        async with consumer_of(cluster, Seen(), member_id="b") as second:
            await eventually(lambda: len(first.assignment) == len(second.assignment) == 2)
            assert not set(first.assignment) & set(second.assignment)
            assert first.members == ["a", "b"]
        await eventually(lambda: len(first.assignment) == 4)
        assert first.statistics.queues_lost == 2


async def test_nothing_is_lost_while_members_come_and_go(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create_topic("orders", queues=4)
    seen = Seen()
    async with consumer_of(cluster, seen, member_id="a") as first:
        for turn in range(3):
            async with consumer_of(cluster, seen, member_id=f"b{turn}") as second:
                await eventually(lambda: len(first.assignment) == 2 == len(second.assignment))
                for queue_id in range(4):
                    fake.append(
                        "orders", numbered(100, 1000 * turn + 100 * queue_id), queue_id=queue_id
                    )
            await eventually(lambda: len(first.assignment) == 4)
        await eventually(lambda: len(set(seen.bodies)) == 1200)
        await eventually(lambda: all(p.offset == 300 for p in fake.offset.progress.values()))
    committed: dict[tuple[str, str, int], int] = {}
    for _, place, offset in fake.offset.commits:
        assert offset >= committed.get(place, 0), "progress went back"
        committed[place] = offset


async def test_a_handler_that_never_waits_does_not_stop_the_rest_of_the_process(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create_topic("orders")
    fake.append("orders", numbered(1000))
    turns = 0
    turns_at: list[int] = []

    async def busy(message: Message) -> None:
        hold_up(0.001)
        turns_at.append(turns)

    async with consumer_of(cluster, busy, concurrency=1) as consumer:
        # Not a wait: the rest of the process, as busy as possible.
        while consumer.statistics.delivery.messages < 1000:
            await asyncio.sleep(0)
            turns += 1
    longest = max(Counter(turns_at).values())
    assert longest <= 20, f"{longest} messages were handled in one turn"


async def test_a_member_that_vanished_loses_its_queues_and_cannot_commit_them(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create_topic("orders", queues=2)
    fake.append("orders", numbered(4), queue_id=0)
    async with rockoon.connect(fake.address) as elsewhere:
        paused = Seen()
        paused.gate.clear()
        async with consumer_of(elsewhere, paused, member_id="a", commit_seconds=60) as old:
            await eventually(lambda: Q0 in old.queues() and old.queues()[Q0].unfinished == 4)
            # It receives none of the following, as if its process had been stopped.
            for task in old._tasks:
                task.cancel()
            fake.offset.expire("billing", "a")
            seen = Seen()
            async with consumer_of(cluster, seen, member_id="b") as new:
                await eventually(lambda: len(new.assignment) == 2)
                await seen.wait(4)
                await eventually(lambda: fake.offset.progress["billing", PLACE].offset == 4)
                paused.gate.set()
                await paused.wait(4)
                await old.commit()
                assert old.statistics.fenced == 1
        assert fake.offset.progress["billing", PLACE].offset == 4


async def test_queues_added_while_running_are_read_from_their_first_message(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create_topic("orders")
    fake.append("orders", numbered(5))
    seen = Seen()
    async with consumer_of(cluster, seen, consume_from="last") as consumer:
        await eventually(lambda: len(consumer.assignment) == 1)
        fake.add_queues("orders", "broker-a", 1)
        fake.append("orders", [b"new"], queue_id=1)
        await seen.wait(1)
        assert seen.bodies == [b"new"]
        assert consumer.starts[MessageQueue("orders", "broker-a", 1)].reason == "NEW_QUEUE"


async def test_a_topic_created_again_is_read_from_its_beginning(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create_topic("orders")
    fake.append("orders", numbered(5))
    seen = Seen()
    async with consumer_of(cluster, seen, commit_seconds=60):
        await seen.wait(5)
        fake.offset.progress.clear()
        # In one step, as a watcher that was away would see it.
        old = fake.nameserver.topics.pop("orders")
        assert old
        del fake.brokers["broker-a"].queues["orders", 0]
        fake.create_topic("orders")
        fake.append("orders", numbered(10, first=100))
        # Its later messages may come twice: the read of the old queue continues in the new one
        # until the route arrives.
        await eventually(lambda: set(seen.bodies[5:]) == set(numbered(10, first=100)))


async def test_a_broker_away_does_not_hold_up_the_queues_of_others() -> None:
    async with (
        FakeCluster(["broker-a", "broker-b"]) as fake,
        rockoon.connect(fake.address) as cluster,
    ):
        fake.create_topic("orders")
        seen = Seen()
        async with consumer_of(cluster, seen) as consumer:
            await eventually(lambda: len(consumer.assignment) == 2)
            away = fake.brokers["broker-b"]
            await away.listener.stop()
            fake.nameserver.remove_node("broker-b")
            fake.append("orders", [b"a"])
            fake.append("orders", [b"b"], broker="broker-b")
            await seen.wait(1)
            view = consumer.queues()[MessageQueue("orders", "broker-b", 0)]
            await eventually(lambda: consumer.statistics.pulls.pulls_failed > 1)
            assert view is not None
            assert len(consumer.assignment) == 2
            await away.listener.start()
            fake.nameserver.put_node(1, "broker-b", away.listener.address)
            await seen.wait(2)
            assert seen.bodies == [b"a", b"b"]


async def test_consuming_goes_on_without_the_offset_service_and_progress_is_stored_later(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create_topic("orders")
    seen = Seen()
    # A stall of a fraction of it counts as sleep; after it no message is handled without a check.
    fake.offset.lease_seconds = 1.0
    async with consumer_of(cluster, seen) as consumer:
        await eventually(lambda: len(consumer.assignment) == 1)
        await fake.offset.listener.stop()
        fake.append("orders", numbered(5))
        await seen.wait(5)
        await eventually(lambda: consumer.statistics.commits_failed > 0)
        # Longer than the lease: others may have got the queue in the meantime.
        away_since = asyncio.get_running_loop().time()
        await eventually(lambda: asyncio.get_running_loop().time() - away_since > 1.1)
        await fake.offset.listener.start()
        await eventually(lambda: consumer.statistics.queues_gained >= 2)
        await eventually(lambda: fake.offset.progress["billing", PLACE].offset == 5)
        fake.append("orders", [b"more"])
        await eventually(lambda: b"more" in seen.bodies)


async def test_a_reset_while_running_moves_the_reader_and_no_old_commit_undoes_it(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create_topic("orders")
    fake.append("orders", numbered(10))
    seen = Seen()
    async with consumer_of(cluster, seen) as consumer:
        await seen.wait(10)
        await eventually(lambda: fake.offset.progress["billing", PLACE].offset == 10)
        fake.offset.reset("billing", PLACE, 7)
        await seen.wait(13)
        assert seen.bodies[10:] == numbered(3, first=7)
        await eventually(lambda: fake.offset.progress["billing", PLACE].offset == 10)
        assert consumer.statistics.resets == 1


async def test_a_reset_that_was_not_heard_of_is_noticed_at_the_next_commit(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create_topic("orders")
    fake.append("orders", numbered(10))
    seen = Seen()
    async with consumer_of(cluster, seen) as consumer:
        await seen.wait(10)
        await eventually(lambda: fake.offset.progress["billing", PLACE].offset == 10)
        held = fake.offset.progress["billing", PLACE]
        held.epoch += 1
        held.offset = 4
        fake.append("orders", [b"10"])
        await seen.wait(11 + 7)
        assert consumer.statistics.fenced == 1
        assert sorted(seen.bodies[10:]) == sorted([b"10", *numbered(7, first=4)])


async def test_retention_that_overtakes_a_reader_is_counted_and_nothing_held_is_dropped(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create_topic("orders")
    fake.append("orders", numbered(100))
    seen = Seen()
    slow = asyncio.Event()

    async def handle(message: Message) -> None:
        if message.body == b"9":
            await slow.wait()
        await seen(message)

    seen.gate.clear()
    async with consumer_of(
        cluster,
        handle,
        flow_limits=FlowLimits(messages_max=10),
        pull_limits=PullLimits(messages_max=10),
    ) as consumer:
        await eventually(
            lambda: Q0 in consumer.queues() and consumer.queues()[Q0].blocked_by is Limit.COUNT
        )
        fake.brokers["broker-a"].queues["orders", 0].expire(50)
        seen.gate.set()
        await eventually(lambda: consumer.statistics.out_of_range == 1)
        assert isinstance(consumer.queues()[Q0].failure, InvalidOffset)
        slow.set()
        await seen.wait(60)
        assert sorted(map(int, seen.bodies)) == [*range(10), *range(50, 100)]
        assert consumer.starts[Q0].reason == "BELOW_MIN"
        assert consumer.statistics.gap_total == 40


async def test_progress_is_stored_before_queues_are_given_up(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create_topic("orders", queues=2)
    fake.append("orders", numbered(5))
    seen = Seen()
    async with consumer_of(cluster, seen, commit_seconds=60) as consumer:
        await seen.wait(5)
        await eventually(lambda: consumer.statistics.delivery.messages == 5)
        write_only = 2
        fake.nameserver.topics["orders"].config.permissions = write_only
        fake.nameserver.changed()
        await eventually(lambda: not consumer.assignment)
        # The hand-over follows the assignment; no other commit happens for a minute.
        await eventually(lambda: fake.offset.progress["billing", PLACE].offset == 5)
        assert consumer.statistics.queues_lost == 2


async def test_a_dropped_queue_commits_nothing_more(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create_topic("orders")
    fake.append("orders", numbered(10))
    seen = Seen()
    seen.gate.clear()
    async with consumer_of(cluster, seen, commit_seconds=60) as consumer:
        await eventually(lambda: bool(consumer.queues()) and consumer.queues()[Q0].running == 10)
        # No message is unfinished any more, as if all had been handled.
        consumer._assignment.readers[Q0].process_queue.drop()
        await consumer.commit()
        seen.gate.set()
        await eventually(lambda: len(seen.bodies) == 10)
        await consumer.commit()
        assert fake.offset.commits == []
    assert fake.offset.progress["billing", PLACE].offset == 0


async def test_what_a_reset_made_void_is_not_handed_out(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create_topic("orders")
    fake.append("orders", numbered(10))
    seen = Seen()
    seen.gate.clear()
    async with consumer_of(cluster, seen, concurrency=1) as consumer:
        await eventually(lambda: Q0 in consumer.queues() and consumer.queues()[Q0].unfinished == 10)
        fake.offset.reset("billing", PLACE, 7)
        await eventually(lambda: consumer.statistics.queues_gained == 2)
        seen.gate.set()
        await eventually(lambda: fake.offset.progress["billing", PLACE].offset == 10)
    assert seen.bodies == [b"0", b"7", b"8", b"9"]


async def test_what_no_retry_can_mend_reaches_the_owner(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create_topic("orders")
    seen = Seen()
    async with consumer_of(cluster, seen) as consumer:
        await eventually(lambda: len(consumer.assignment) == 1)
        fake.delete_group("billing")
        with pytest.raises(GroupNotFound):
            await asyncio.wait_for(consumer.wait(), DEADLINE_SECONDS)

    async with consumer_of(cluster, seen, missing_topics="end") as consumer:
        await eventually(lambda: len(consumer.assignment) == 1)
        fake.delete_topic("orders")
        with pytest.raises(TopicNotFound):
            await asyncio.wait_for(consumer.wait(), DEADLINE_SECONDS)


async def test_a_failure_that_nobody_waited_for_is_raised_on_leaving(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create_topic("orders")

    async def until_it_fails() -> None:
        async with consumer_of(cluster, Seen()) as consumer:
            await eventually(lambda: len(consumer.assignment) == 1)
            fake.delete_group("billing")
            await eventually(lambda: consumer._failure is not None)

    with pytest.raises(GroupNotFound):
        await until_it_fails()


async def test_two_live_members_cannot_have_one_id(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create_topic("orders")
    async with consumer_of(cluster, Seen(), member_id="same"):
        with pytest.raises(MemberIdTaken):
            await consumer_of(cluster, Seen(), member_id="same").start()


async def test_settings_without_sense_are_refused(fake: FakeCluster, cluster: Cluster) -> None:
    with pytest.raises(InvalidArgument):
        cluster.push_consumer("billing", {}, Seen())
    with pytest.raises(InvalidArgument, match="such as"):
        cluster.push_consumer("billing", "orders", Seen())
    with pytest.raises(InvalidArgument, match="not a function"):
        cluster.push_consumer("billing", {"orders": "*"}, None)
    with pytest.raises(RuntimeError, match="was not started"):
        await consumer_of(cluster, Seen()).wait()
    with pytest.raises(InvalidArgument):
        consumer_of(cluster, Seen(), concurrency=0)
    with pytest.raises(InvalidArgument, match="not a RetryPolicy or Redelivery"):
        cluster.push_consumer("billing", {"orders": "*"}, Seen(), redelivery=3)
    with pytest.raises(InvalidArgument):
        consumer_of(cluster, Seen(), consume_from="somewhere")
    with pytest.raises(TopicNotFound):
        await consumer_of(cluster, Seen()).start()


async def test_a_damaged_message_ends_the_consumer_when_those_before_it_are_handled(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create_topic("orders")
    fake.append("orders", numbered(5, 10))
    frames = fake.brokers["broker-a"].queues["orders", 0].frames
    frames[3] = frames[3].replace(b"13", b"1X")
    seen = Seen()
    consumer = consumer_of(cluster, seen)
    await consumer.start()
    with pytest.raises(StoreCorrupt, match="message 3 of orders@broker-a:0"):
        await consumer.wait()
    await consumer.close()
    assert seen.bodies == numbered(3, 10)
    assert fake.offset.progress["billing", PLACE].offset == 3


@pytest.mark.parametrize("turns", [0, 1, 5])
async def test_a_close_that_is_cancelled_leaves_nothing_that_the_connection_waits_for(
    fake: FakeCluster, turns: int
) -> None:
    fake.create_topic("orders")
    fake.append("orders", [b"x"])
    begun = asyncio.Event()

    async def handle(_: Message) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with asyncio.timeout(DEADLINE_SECONDS), rockoon.connect(fake.address) as cluster:
        consumer = consumer_of(cluster, handle, drain_seconds=60)
        await consumer.start()
        await begun.wait()
        async with asyncio.TaskGroup() as tasks:
            closing = tasks.create_task(consumer.close())
            for _ in range(1 + turns):
                await asyncio.sleep(0)
            closing.cancel()
        assert closing.cancelled()
