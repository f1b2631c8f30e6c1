"""Delayed messages through real processes: delivered in time, and once."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta

import pytest

import rockoon
from rockoon.cluster import Cluster
from rockoon.errors import BrokerUnavailable, DelayedSettled, DelayTooLong, MessageNotFound
from rockoon.local import LocalCluster
from rockoon.message import Message
from support.seeds import seeds
from support.waiting import DEADLINE_SECONDS

# Allowed lateness on a loaded machine. An early delivery is always a fault.
LATE_SECONDS_MAX = 20.0


@pytest.fixture(scope="module")
def processes() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=2) as running:
        yield running


@pytest.fixture
async def cluster(processes: LocalCluster) -> AsyncIterator[Cluster]:
    async with rockoon.connect(processes.nameservers, cluster="rockoon") as connected:
        yield connected


async def read(cluster: Cluster, topic: str, count: int) -> list[tuple[Message, float]]:
    """Return this many messages, each with the time of its arrival."""
    found: list[tuple[Message, float]] = []
    async with asyncio.timeout(DEADLINE_SECONDS), cluster.pull_consumer() as consumer:
        await consumer.assign((await cluster.route(topic)).queues)
        await consumer.seek_to_beginning()
        while len(found) < count:
            batch = await consumer.poll_batch(timeout=DEADLINE_SECONDS)
            found += [(message, time.time()) for message in batch or ()]  # noqa: TID251
    return found


async def test_messages_come_when_they_are_due_and_bear_what_they_were_sent_with(
    cluster: Cluster,
) -> None:
    await cluster.admin.create_topic("due", queues_per_broker=2)
    producer = cluster.producer()
    began = time.time()  # noqa: TID251
    at = datetime.now(UTC) + timedelta(seconds=1.5)
    sent = [
        producer.send("due", b"level", delay_level=1, tags="t", keys="k"),
        producer.send("due", b"seconds", delay_seconds=0.5, ordering_key="a key"),
        producer.send("due", b"at", deliver_at=at, properties={"mine": "1"}),
        producer.send("due", b"now"),
        producer.send("due", b"past", deliver_at=12.0),
    ]
    results = [await receipt for receipt in sent]
    assert len({result.offset_message_id for result in results}) == 5
    came = {
        message.body: (message, when - began) for message, when in await read(cluster, "due", 5)
    }
    for body, seconds in ((b"level", 1.0), (b"seconds", 0.5), (b"at", 1.4), (b"past", 0.0)):
        assert seconds <= came[body][1] <= seconds + LATE_SECONDS_MAX
    assert came[b"level"][0].tags == "t"
    assert came[b"level"][0].keys == ["k"]
    assert came[b"at"][0].properties["mine"] == "1"
    ids = {message.message_id for message, _ in came.values()}
    assert ids == {result.message_id for result in results}


async def test_many_delayed_messages_of_one_batch_each_have_their_place(cluster: Cluster) -> None:
    await cluster.admin.create_topic("many", queues_per_broker=1)
    producer = cluster.producer()
    receipts = [
        producer.send("many", b"%d" % number, delay_seconds=600 + number % 7)
        for number in range(400)
    ]
    ids = [(await receipt).offset_message_id for receipt in receipts]
    assert len(set(ids)) == 400
    listed = await cluster.admin.delayed.list(300)
    assert listed.pending == 400
    assert len({one.offset_message_id for one in listed.messages} & set(ids)) == 300
    assert [one.deliver_at_ms for one in listed.messages] == sorted(
        one.deliver_at_ms for one in listed.messages
    )
    for offset_id in ids:
        await cluster.admin.delayed.cancel(offset_id)
    assert (await cluster.admin.delayed.list()).pending == 0


async def test_a_cancelled_message_does_not_come_and_a_delivered_one_cannot_be_cancelled(
    cluster: Cluster,
) -> None:
    await cluster.admin.create_topic("cancelled", queues_per_broker=1)
    producer = cluster.producer()
    first = await producer.send("cancelled", b"no", delay_seconds=1)
    second = await producer.send("cancelled", b"yes", delay_seconds=1.2)
    await cluster.admin.delayed.cancel(first.offset_message_id)
    with pytest.raises(DelayedSettled):
        await cluster.admin.delayed.cancel(first.offset_message_id)
    ((message, _),) = await read(cluster, "cancelled", 1)
    assert message.body == b"yes"
    with pytest.raises(DelayedSettled):
        await cluster.admin.delayed.cancel(second.offset_message_id)
    with pytest.raises(MessageNotFound):
        await cluster.admin.delayed.cancel(message.offset_message_id)


async def test_a_time_too_far_ahead_is_refused_with_the_limit(cluster: Cluster) -> None:
    await cluster.admin.create_topic("far", queues_per_broker=1)
    with pytest.raises(DelayTooLong, match="259200"):
        await cluster.producer().send("far", b"x", delay_seconds=10**6)


async def test_an_idempotent_producer_sends_delayed_messages_beside_its_own(
    cluster: Cluster,
) -> None:
    await cluster.admin.create_topic("both", queues_per_broker=1)
    async with cluster.producer(idempotent=True) as producer:
        for number in range(20):
            producer.send("both", b"o%d" % number, ordering_key="k")
            producer.send("both", b"d%d" % number, ordering_key="k", delay_seconds=0.2)
    came = [message.body for message, _ in await read(cluster, "both", 40)]
    assert sorted(came) == sorted(b"%s%d" % (k, n) for k in (b"o", b"d") for n in range(20))
    assert [body for body in came if body[:1] == b"o"] == [b"o%d" % n for n in range(20)]


async def test_a_broker_that_is_away_may_have_the_message_that_nobody_else_has() -> None:
    with LocalCluster(brokers=2) as processes:
        async with rockoon.connect(processes.nameservers, cluster="rockoon") as cluster:
            await cluster.admin.create_topic("away", queues_per_broker=1)
            queue = next(
                each for each in (await cluster.route("away")).queues if each.broker == "broker-b"
            )
            sent = await cluster.producer().send("away", b"x", queue=queue, delay_seconds=600)
            processes.stop("broker-b")
            async with asyncio.timeout(DEADLINE_SECONDS):
                while cluster.routes.broker("broker-b") is not None:
                    await cluster.admin.list_topics()
            with pytest.raises(BrokerUnavailable, match="broker-b"):
                await cluster.admin.delayed.cancel(sent.offset_message_id)
            waiting = await cluster.admin.delayed.list()
            assert waiting.errors.keys() == {"broker-b"}
            found = await cluster.admin.messages.get(sent.offset_message_id)
            assert "broker-b" in found.errors
            assert not found.whole


@pytest.mark.parametrize("seed", seeds(1))
async def test_every_message_comes_once_although_brokers_are_killed_while_they_fall_due(
    seed: int,
) -> None:
    choose = random.Random(seed)
    with LocalCluster(brokers=1) as processes:
        async with rockoon.connect(processes.nameservers, cluster="rockoon") as cluster:
            await cluster.admin.create_topic("once", queues_per_broker=2)
            producer = cluster.producer()
            sent: set[str] = set()
            for _ in range(3):
                receipts = [
                    producer.send("once", b"x", delay_seconds=choose.uniform(0.2, 4))
                    for _ in range(300)
                ]
                receipts += [producer.send("once", b"x", delay_level=1) for _ in range(50)]
                # Acknowledged before the kill: none of these is sent twice.
                sent |= {(await receipt).message_id for receipt in receipts}
                await asyncio.sleep(choose.uniform(0.1, 2.5))
                processes.kill("broker-a")
                processes.start("broker-a")
            came = Counter(
                message.message_id for message, _ in await read(cluster, "once", len(sent))
            )
            assert came.keys() == sent
            waiting = await cluster.admin.delayed.list()
            counts = waiting.counts["broker-a"]
            assert counts.undeliverable == counts.lost == 0
            # Any second copy has arrived by now: no message waits any more.
            assert waiting.pending == 0
            topic = await cluster.admin.describe_topic("once")
            stored = sum(each.state.max_offset for each in topic.queues if each.state)
            assert stored == len(sent)
