"""Reads at the caller's pace: positions, turns, and faults."""

import asyncio

import pytest

import rockoon
from rockoon.cluster import Cluster
from rockoon.consumer.pull import PullLimits
from rockoon.consumer.pull_consumer import PullConsumer
from rockoon.errors import (
    Closed,
    CommitBehind,
    Fenced,
    InvalidArgument,
    InvalidOffset,
    OffsetBeyondEnd,
    QueueNotFound,
    StoreCorrupt,
    TopicNotFound,
)
from rockoon.offsets.start import ConsumeFrom
from rockoon_core.message_queue import MessageQueue
from support.eventually import answered, eventually
from support.fake_cluster import FakeCluster
from support.waiting import DEADLINE_SECONDS

Q0 = MessageQueue("orders", "broker-a", 0)
Q1 = MessageQueue("orders", "broker-a", 1)


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


async def bodies(consumer: PullConsumer, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        messages = await consumer.poll(timeout=DEADLINE_SECONDS)
        assert messages, f"only {len(found)} of {count} messages came"
        found += [message.body for message in messages]
    return found


async def test_a_reader_without_a_group_gets_everything_in_order(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create_topic("orders")
    fake.append("orders", numbered(2500))
    async with cluster.pull_consumer(limits=PullLimits(messages_max=1000)) as consumer:
        await consumer.assign([Q0])
        assert await bodies(consumer, 2500) == numbered(2500)
        assert consumer.position(Q0) == 2500
        assert await consumer.poll(timeout=0) == []


async def test_polls_of_any_size_and_batches_can_be_mixed(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create_topic("orders")
    fake.append("orders", numbered(20))
    limits = PullLimits(messages_max=8)
    async with cluster.pull_consumer(limits=limits) as consumer:
        await consumer.assign([Q0])
        assert [m.queue_offset for m in await consumer.poll(3, timeout=DEADLINE_SECONDS)] == [
            0,
            1,
            2,
        ]
        assert consumer.position(Q0) == 3
        batch = await consumer.poll_batch(timeout=DEADLINE_SECONDS)
        assert batch is not None
        assert batch.offsets.tolist() == [3, 4, 5, 6, 7]
        assert batch.bodies == numbered(5, first=3)
        assert await bodies(consumer, 12) == numbered(12, first=8)


async def test_queues_take_turns(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create_topic("orders", queues=2)
    for queue_id in (0, 1):
        fake.append("orders", numbered(50), queue_id=queue_id)
    async with cluster.pull_consumer(limits=PullLimits(messages_max=10)) as consumer:
        await consumer.assign_all("orders")
        seen = []
        for _ in range(10):
            batch = await consumer.poll_batch(timeout=DEADLINE_SECONDS)
            assert batch is not None
            seen.append(batch.queue)
        assert seen.count(Q0) == seen.count(Q1) == 5
        assert abs(seen[:4].count(Q0) - 2) <= 1


async def test_a_message_that_arrives_wakes_a_waiting_poll(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create_topic("orders")
    async with cluster.pull_consumer() as consumer, asyncio.TaskGroup() as tasks:
        await consumer.assign([Q0])
        waiting = tasks.create_task(consumer.poll(timeout=DEADLINE_SECONDS))
        await eventually(lambda: fake.brokers["broker-a"].pulls)
        fake.append("orders", [b"now"])
        assert [message.body for message in await waiting] == [b"now"]


async def test_a_reader_can_be_looped_over(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create_topic("orders")
    fake.append("orders", numbered(5))
    async with cluster.pull_consumer() as consumer:
        await consumer.assign([Q0])
        found = []
        async for message in consumer:
            found.append(message.body)
            if len(found) == 4:
                break
        assert found == numbered(4)
        assert consumer.position(Q0) == 4


async def test_who_loops_over_a_reader_may_seek_poll_and_close_meanwhile(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create_topic("orders")
    fake.append("orders", numbered(20))
    async with cluster.pull_consumer() as consumer:
        await consumer.assign([Q0])
        found = []

        async def read() -> None:
            async for message in consumer:
                found.append(int(message.body))
                assert consumer.position(Q0) == found[-1] + 1
                if message.body == b"2":
                    await consumer.seek(Q0, 10)
                elif message.body == b"12":
                    found.extend(int(each.body) for each in await consumer.poll(2))
                elif message.body == b"18":
                    await consumer.close()

        with pytest.raises(Closed):
            await read()
        assert found == [0, 1, 2, 10, 11, 12, 13, 14, 15, 16, 17, 18]


async def test_only_wanted_tags_come_also_when_hashes_collide(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create_topic("orders")
    fake.append("orders", numbered(6), tags=["Aa", "BB", "C", "Aa", "BB", "C"])
    async with cluster.pull_consumer() as consumer:
        await consumer.assign([Q0], "Aa")
        assert await bodies(consumer, 2) == [b"0", b"3"]
        assert consumer.position(Q0) == 6
        await consumer.seek_to_beginning()
        found = []
        async for message in consumer:
            found.append((message.body, consumer.position(Q0)))
            if len(found) == 2:
                break
        # The pull has reached the position after the last message.
        assert found == [(b"0", 3), (b"3", 6)]


async def test_seeks_go_anywhere_and_throw_away_what_was_fetched(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create_topic("orders")
    fake.append("orders", numbered(100))
    async with cluster.pull_consumer() as consumer:
        await consumer.assign([Q0])
        await consumer.poll(5, timeout=DEADLINE_SECONDS)
        await consumer.seek(Q0, 90)
        assert await bodies(consumer, 10) == numbered(10, first=90)
        await consumer.seek_to_beginning()
        assert (await consumer.poll(1, timeout=DEADLINE_SECONDS))[0].body == b"0"
        await consumer.seek_to_time(1000 + 42)
        assert (await consumer.poll(1, timeout=DEADLINE_SECONDS))[0].body == b"42"
        await consumer.seek_to_end(Q0)
        assert consumer.position(Q0) == 100
        assert await consumer.poll(timeout=0) == []


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("first", 10),
        ("last", 100),
        (ConsumeFrom.tail(7), 93),
        (ConsumeFrom.tail(1000), 10),
        (ConsumeFrom.timestamp(1050), 50),
        (ConsumeFrom.ago(10_000 - 1060), 60),
    ],
)
async def test_a_reader_without_a_group_starts_where_it_is_told(
    fake: FakeCluster, cluster: Cluster, start: ConsumeFrom | str, expected: int
) -> None:
    fake.create_topic("orders")
    fake.append("orders", numbered(100))
    fake.brokers["broker-a"].queues["orders", 0].expire(10)
    async with cluster.pull_consumer(consume_from=start) as consumer:
        await consumer.assign([Q0])
        assert consumer.position(Q0) == expected
        assert consumer.starts[Q0].reason == "ASSIGNED"


async def test_a_place_below_the_oldest_message_is_an_error_until_a_seek(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create_topic("orders")
    fake.append("orders", numbered(100))
    fake.brokers["broker-a"].queues["orders", 0].expire(10)
    async with cluster.pull_consumer() as consumer:
        await consumer.assign([Q0])
        await consumer.seek(Q0, 4)
        for _ in range(2):
            with pytest.raises(InvalidOffset, match=r"offset 4 .* below .*\[10, 100\)"):
                await consumer.poll(timeout=DEADLINE_SECONDS)
        await consumer.seek(Q0, 101)
        with pytest.raises(OffsetBeyondEnd, match=r"offset 101 .* beyond"):
            await consumer.poll(timeout=DEADLINE_SECONDS)
        await consumer.seek(Q0, 99)
        assert await bodies(consumer, 1) == [b"99"]


async def test_what_was_fetched_before_a_failure_comes_before_it(
    fake: FakeCluster, cluster: Cluster
) -> None:
    """Otherwise a seek past a damaged message would lose the messages before it."""
    fake.create_topic("orders")
    fake.append("orders", [b"0", b"1", b"2", b"3"])
    fake.brokers["broker-a"].damaged = {("orders", 0, 2)}
    async with cluster.pull_consumer() as consumer:
        await consumer.assign([Q0])
        # Both replies are there: the messages, and the error that the next one is damaged.
        await eventually(lambda: consumer.statistics.pulls == 2)
        await eventually(lambda: consumer._assigned[Q0].failure is not None)
        found = []

        async def read() -> None:
            async for message in consumer:
                assert message.queue == Q0
                found.append(message.body)

        with pytest.raises(StoreCorrupt):
            await read()
        assert found == [b"0", b"1"]
        for _ in range(2):
            with pytest.raises(StoreCorrupt):
                await consumer.poll()
        await consumer.seek(Q0, consumer.position(Q0) + 1)
        assert await bodies(consumer, 1) == [b"3"]


@pytest.mark.parametrize(
    ("policy", "place", "reason", "expected"),
    [("earliest", 4, "BELOW_MIN", 10), ("latest", 4, "BELOW_MIN", 100),
     ("earliest", 500, "ABOVE_MAX", 10), ("latest", 500, "ABOVE_MAX", 100)],
)  # fmt: skip
async def test_a_place_outside_the_queue_is_left_by_policy_and_counted(
    fake: FakeCluster, cluster: Cluster, policy: str, place: int, reason: str, expected: int
) -> None:
    fake.create_topic("orders")
    fake.append("orders", numbered(100))
    fake.brokers["broker-a"].queues["orders", 0].expire(10)

    def at_end(_: list[rockoon.Message]) -> bool:
        return consumer.position(Q0) == 100

    async with cluster.pull_consumer(on_out_of_range=policy) as consumer:
        await consumer.assign([Q0])
        await consumer.seek(Q0, place)
        if expected == 100:
            assert await answered(lambda: consumer.poll(timeout=0), at_end) == []
            fake.append("orders", [b"new"])
        message = (await consumer.poll(1, timeout=DEADLINE_SECONDS))[0]
        assert message.queue_offset == expected
        assert consumer.starts[Q0].reason == reason
        assert consumer.statistics.out_of_range == 1
        assert consumer.statistics.gap_total == (6 if place == 4 else 0)


async def test_a_broker_that_goes_away_is_read_on_when_it_is_back(
    fake: FakeCluster, cluster: Cluster
) -> None:
    broker = fake.brokers["broker-a"]
    fake.create_topic("orders")
    fake.append("orders", numbered(10))
    async with cluster.pull_consumer() as consumer:
        await consumer.assign([Q0])
        assert await bodies(consumer, 10) == numbered(10)
        await broker.listener.stop()
        while not consumer.statistics.pulls_failed:
            assert await consumer.poll(timeout=0.01) == []
        fake.append("orders", numbered(5, first=10))
        await broker.listener.start()
        assert await bodies(consumer, 5) == numbered(5, first=10)


async def test_queues_that_a_topic_gets_later_are_read_from_their_beginning(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create_topic("orders")
    async with cluster.pull_consumer(consume_from="last") as consumer:
        await consumer.assign_all("orders")
        await fake.add_broker("broker-b")
        fake.add_queues("orders", "broker-b", 1)
        fake.append("orders", numbered(3), broker="broker-b")
        assert await bodies(consumer, 3) == numbered(3)
        assert consumer.assignment == [Q0, MessageQueue("orders", "broker-b", 0)]


async def test_a_topic_that_is_deleted_ends_the_reading_with_its_name(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create_topic("orders")
    async with cluster.pull_consumer(missing_topics="end") as consumer:
        await consumer.assign_all("orders")
        fake.delete_topic("orders")
        with pytest.raises((TopicNotFound, QueueNotFound), match="orders"):
            await consumer.poll(timeout=DEADLINE_SECONDS)


async def test_a_topic_that_does_not_exist_cannot_be_assigned(cluster: Cluster) -> None:
    async with cluster.pull_consumer() as consumer:
        with pytest.raises(TopicNotFound):
            await consumer.assign_all("nothing")


# With a group.


async def test_a_group_goes_on_where_it_committed(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create_topic("orders", queues=2)
    for queue_id in (0, 1):
        fake.append("orders", numbered(10), queue_id=queue_id)
    async with cluster.pull_consumer("billing", consume_from="first") as consumer:
        await consumer.assign([Q0, Q1])
        assert consumer.starts[Q0].reason == "FIRST"
        await bodies(consumer, 20)
        await consumer.commit()
        await consumer.seek(Q1, 3)
        await consumer.commit(Q0, 10)
        with pytest.raises(CommitBehind):
            await consumer.commit(Q1, 3)
        assert await consumer.committed(Q1) == 10
    async with cluster.pull_consumer("billing", consume_from="first") as consumer:
        await consumer.assign([Q0, Q1])
        assert consumer.starts[Q0].reason == "COMMITTED"
        assert [consumer.position(queue) for queue in (Q0, Q1)] == [10, 10]


async def test_only_what_was_handed_out_is_committed(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create_topic("orders")
    fake.append("orders", numbered(10))
    async with cluster.pull_consumer("billing", consume_from="first") as consumer:
        await consumer.assign([Q0])
        await consumer.poll(4, timeout=DEADLINE_SECONDS)
        await consumer.commit()
        assert await consumer.committed(Q0) == 4


async def test_retention_that_overtakes_a_group_is_decided_by_the_offset_service(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create_topic("orders")
    fake.append("orders", numbered(100))
    async with cluster.pull_consumer(
        "billing", consume_from="first", limits=PullLimits(messages_max=5)
    ) as consumer:
        await consumer.assign([Q0])
        await bodies(consumer, 5)
        await consumer.commit()
        fake.brokers["broker-a"].queues["orders", 0].expire(50)
        # Some batches may have been fetched before retention deleted messages.
        found: list[bytes] = []
        while b"50" not in found:
            found += await bodies(consumer, 1)
        ahead = found.index(b"50")
        assert found[:ahead] == numbered(ahead, first=5)
        assert found[ahead:] == numbered(len(found) - ahead, first=50)
        assert consumer.starts[Q0].reason == "BELOW_MIN"
        assert consumer.starts[Q0].gap == 45


async def test_a_commit_after_a_reset_is_refused(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create_topic("orders")
    fake.append("orders", numbered(10))
    async with cluster.pull_consumer("billing", consume_from="first") as consumer:
        await consumer.assign([Q0])
        await bodies(consumer, 10)
        fake.offset.reset("billing", ("orders", "broker-a", 0), 2)
        with pytest.raises(Fenced):
            await consumer.commit()
        assert await consumer.committed(Q0) == 2
        await consumer.assign([Q0])
        assert consumer.position(Q0) == 2
        await bodies(consumer, 8)
        await consumer.commit()
        assert await consumer.committed(Q0) == 10


async def test_a_close_that_is_cancelled_leaves_nothing_that_the_connection_waits_for(
    fake: FakeCluster,
) -> None:
    fake.create_topic("orders")
    async with asyncio.timeout(DEADLINE_SECONDS), rockoon.connect(fake.address) as cluster:
        consumer = cluster.pull_consumer()
        await consumer.assign_all("orders")
        async with asyncio.TaskGroup() as tasks:
            closing = tasks.create_task(consumer.close())
            await asyncio.sleep(0)
            closing.cancel()
        assert closing.cancelled()


async def test_a_reader_that_may_fetch_nothing_is_refused(cluster: Cluster) -> None:
    with pytest.raises(InvalidArgument, match="prefetch_batches"):
        cluster.pull_consumer(prefetch_batches=0)


async def test_a_reader_without_a_group_has_nothing_to_commit(cluster: Cluster) -> None:
    async with cluster.pull_consumer() as consumer:
        with pytest.raises(InvalidArgument):
            await consumer.commit()
