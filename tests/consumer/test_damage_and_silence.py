"""Messages that cannot be read, and brokers without replies for a long time."""

from typing import Any

import pytest

from rockoon.cluster import Cluster
from rockoon.consumer.pull import PullLimits
from rockoon.consumer.push_consumer import PushConsumer
from rockoon.errors import InvalidArgument, StoreCorrupt
from rockoon.message import Message
from rockoon_core.message_queue import MessageQueue
from support.consumer_settings import grouped
from support.eventually import eventually, moves_until
from support.fake_cluster import FakeCluster

PLACE = ("orders", "broker-a", 0)
Q0 = MessageQueue(*PLACE)


class Seen:
    def __init__(self) -> None:
        self.offsets: list[int] = []

    async def __call__(self, message: Message) -> None:
        self.offsets.append(message.queue_offset)


def consumer_of(cluster: Cluster, handler: Any, tags: str = "*", **settings: Any) -> PushConsumer:
    chosen: dict[str, Any] = {"consume_from": "first", "commit_seconds": 0.02, **settings}
    return cluster.push_consumer("billing", {"orders": tags}, handler, **grouped(chosen))


def spoil_bodies(fake: FakeCluster, *offsets: int) -> None:
    frames = fake.brokers["broker-a"].queues["orders", 0].frames
    for offset in offsets:
        frames[offset] = frames[offset].replace(b"<body>", b"<bory>")


def committed(fake: FakeCluster) -> int | None:
    progress = fake.offset.progress.get(("billing", PLACE))
    return progress.offset if progress else None


@pytest.mark.parametrize("kind", ["body", "record"])
async def test_damaged_messages_are_skipped_one_by_one_counted_and_named(
    fake: FakeCluster, cluster: Cluster, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    fake.create_topic("orders")
    fake.append("orders", [b"<body>"] * 10)
    damaged = {0, 4, 5, 9}
    if kind == "body":
        spoil_bodies(fake, *damaged)
    else:
        fake.brokers["broker-a"].damaged = {("orders", 0, offset) for offset in damaged}
    seen = Seen()
    async with consumer_of(cluster, seen, on_damaged="skip") as consumer:
        await eventually(lambda: committed(fake) == 10)
        assert seen.offsets == [1, 2, 3, 6, 7, 8]
        assert consumer.statistics.pulls.damaged == 4
    named = [each.getMessage() for each in caplog.records if " skipped: " in each.getMessage()]
    assert [text.split()[1] for text in named] == ["0", "4", "5", "9"]
    assert all(f"of {Q0}" in text for text in named)


@pytest.mark.parametrize("kind", ["body", "record", "tags"])
async def test_only_what_is_damaged_counts_as_such_among_messages_for_others(
    fake: FakeCluster, cluster: Cluster, kind: str
) -> None:
    fake.create_topic("orders")
    fake.append("orders", [b"<body>"] * 10, tags=[*["B"] * 6, "A", *["B"] * 2, "A"])
    if kind != "record":
        spoil_bodies(fake, 6)
    if kind == "tags":
        fake.brokers["broker-a"].damaged_tags = {("orders", 0, 6)}
    if kind == "record":
        fake.brokers["broker-a"].damaged = {("orders", 0, 6)}
    seen = Seen()
    async with consumer_of(cluster, seen, tags="A", on_damaged="skip") as consumer:
        await eventually(lambda: committed(fake) == 10)
        assert seen.offsets == [9]
        assert consumer.statistics.pulls.damaged == 1


async def test_a_disk_that_gives_nothing_any_more_stops_also_a_consumer_that_skips(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create_topic("orders")
    fake.append("orders", [b"<body>"] * 1100)
    spoil_bodies(fake, *range(1100))
    limits = PullLimits(messages_max=2)
    consumer = consumer_of(cluster, Seen(), on_damaged="skip", pull_limits=limits)
    await consumer.start()
    with pytest.raises(StoreCorrupt) as failure:
        await consumer.wait()
    await consumer.close()
    # On a busy machine its lease may expire, and then its counter begins again.
    assert committed(fake) >= 1024
    assert f"message {committed(fake)} of" in str(failure.value)


async def test_damage_here_and_there_is_never_too_much(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create_topic("orders")
    fake.append("orders", [b"<body>"] * 2100)
    spoil_bodies(fake, *range(0, 2100, 2))
    seen = Seen()
    limits = PullLimits(messages_max=2)
    async with consumer_of(cluster, seen, on_damaged="skip", pull_limits=limits) as consumer:
        await moves_until(lambda: committed(fake), lambda at: at == 2100)
        assert consumer.statistics.pulls.damaged == 1050
    assert seen.offsets == list(range(1, 2100, 2))


async def test_a_queue_whose_broker_stays_silent_is_resolved_again_with_its_progress(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create_topic("orders")
    fake.append("orders", [b"x"] * 5)
    seen = Seen()
    async with consumer_of(cluster, seen, commit_seconds=60, pull_expired_seconds=0.3) as consumer:
        await eventually(lambda: len(seen.offsets) == 5)
        await fake.brokers["broker-a"].listener.stop()
        await eventually(lambda: consumer.statistics.pulls.expired > 0)
        await eventually(lambda: committed(fake) == 5)
        await eventually(lambda: consumer.statistics.queues_gained > 1)
        await fake.brokers["broker-a"].listener.start()
        fake.append("orders", [b"x"] * 5)
        await eventually(lambda: len(seen.offsets) >= 10)
    assert seen.offsets == list(range(10))


async def test_what_to_do_with_damage_is_one_of_two_things(cluster: Cluster) -> None:
    with pytest.raises(InvalidArgument):
        consumer_of(cluster, Seen(), on_damaged="ignore")
