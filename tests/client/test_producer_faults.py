"""Brokers refuse, hang, disconnect, restart and move: reactions of the producer."""

import asyncio
import random
from collections import defaultdict
from typing import Any

import pytest

import rockoon
from rockoon.cluster import Cluster
from rockoon.errors import (
    BrokerUnavailable,
    Busy,
    MalformedBatch,
    NoWritableQueue,
    QueueNotFound,
    RockoonError,
    StoreNotWritable,
    TopicNotFound,
    TopicNotWritable,
)
from rockoon_core.message_queue import MessageQueue
from rockoon_proto.v1.broker_pb2 import AppendRequest
from support.eventually import eventually
from support.fake_append_broker import FakeAppendBroker, Fault
from support.names import named
from support.scripted_nameserver import ScriptedNameserver
from support.seeds import seeds
from support.waiting import DEADLINE_SECONDS


class Once:
    """A plan with faults of the first requests, one each."""

    def __init__(self, *faults: Fault | RockoonError) -> None:
        self._faults = list(faults)

    def __call__(self, _: AppendRequest) -> Fault | RockoonError | None:
        return self._faults.pop(0) if self._faults else None


async def test_a_broken_stream_is_opened_again_and_its_batches_are_sent_again(
    cluster: Cluster, broker: FakeAppendBroker
) -> None:
    producer = cluster.producer()
    broker.plan = Once(Fault.BREAK)
    result = await producer.send("orders", b"one")
    assert result.queue_offset == 0
    assert broker.all_bodies("orders") == [b"one"]
    assert broker.streams == 2


async def test_a_lost_answer_makes_a_duplicate_that_has_the_same_message_id(
    cluster: Cluster, broker: FakeAppendBroker
) -> None:
    producer = cluster.producer()
    broker.plan = Once(Fault.BREAK_AFTER)
    queue = MessageQueue("orders", "broker-a", 0)
    result = await producer.send("orders", b"one", queue=queue)
    assert result.queue_offset == 1
    ids = [key for batch in broker.batches("orders") for key in batch.columns.unique_keys]
    assert ids == [result.message_id, result.message_id]


@pytest.mark.parametrize("error", [Busy(reason="x"), StoreNotWritable(reason="x")])
async def test_a_refusal_that_can_pass_is_waited_out(
    cluster: Cluster, broker: FakeAppendBroker, error: RockoonError
) -> None:
    producer = cluster.producer()
    broker.plan = Once(error, error)
    await producer.send("orders", b"one", ordering_key="k")
    assert broker.all_bodies("orders") == [b"one"]
    assert broker.requests == 3


async def test_a_single_awaited_message_is_sent_again_when_its_pause_is_over(
    cluster: Cluster, broker: FakeAppendBroker
) -> None:
    producer = cluster.producer()
    await producer.send("orders", b"before")
    await producer.send("orders", b"awaited")
    broker.plan = Once(StoreNotWritable(reason="x"), StoreNotWritable(reason="x"))
    await producer.send("orders", b"one")
    assert sorted(broker.all_bodies("orders")) == [b"awaited", b"before", b"one"]
    assert broker.requests == 5


async def test_a_refusal_for_good_fails_every_message_of_the_batch_and_no_other(
    cluster: Cluster, broker: FakeAppendBroker
) -> None:
    producer = cluster.producer()
    # Several messages, because the message after a lone one would be sent alone.
    await producer.send_many("orders", [b"before", b"before"])
    broker.plan = Once(MalformedBatch(index=0, reason="x"))
    bad = [producer.send("orders", b"%d" % number) for number in range(3)]
    for receipt in bad:
        with pytest.raises(MalformedBatch):
            await receipt
    await producer.send("orders", b"after")
    assert sorted(broker.all_bodies("orders")) == [b"after", b"before", b"before"]


async def test_messages_without_a_key_go_to_another_broker_when_theirs_fails(
    nameserver: ScriptedNameserver, broker: FakeAppendBroker, other: FakeAppendBroker
) -> None:
    nameserver.put_topic("orders", {"broker-a": 1, "broker-b": 1})
    broker.plan = lambda _: StoreNotWritable(reason="the disk is full")
    async with rockoon.connect(nameserver.address) as cluster:
        producer = cluster.producer()
        for number in range(20):
            result = await producer.send("orders", b"%d" % number)
            assert result.queue.broker == "broker-b"
    assert len(other.all_bodies("orders")) == 20


async def test_messages_with_a_key_wait_for_their_broker(
    nameserver: ScriptedNameserver, broker: FakeAppendBroker, other: FakeAppendBroker
) -> None:
    nameserver.put_topic("orders", {"broker-a": 1, "broker-b": 1})
    async with rockoon.connect(nameserver.address) as cluster:
        producer = cluster.producer(key_hash=int)
        await producer.send("orders", b"a", ordering_key="0")
        await broker.stop()
        waiting = producer.send("orders", b"b", ordering_key="0")
        await producer.send("orders", b"elsewhere", ordering_key="1")
        assert not waiting.done
        await broker.start()
        assert (await waiting).queue.broker == "broker-a"
    assert broker.all_bodies("orders") == [b"a", b"b"]
    assert other.all_bodies("orders") == [b"elsewhere"]


async def test_a_queue_that_only_the_routes_know_is_passed_over_by_round_robin(
    nameserver: ScriptedNameserver, broker: FakeAppendBroker
) -> None:
    nameserver.put_topic("orders", {"broker-a": 2})
    broker.plan = lambda request: (
        QueueNotFound(topic="orders", queue=0, broker="broker-a") if request.queue_id == 0 else None
    )
    async with rockoon.connect(nameserver.address) as cluster:
        producer = cluster.producer(delivery_timeout_seconds=0.5)
        for _ in range(4):
            assert (await producer.send("orders", b"x")).queue.queue_id == 1
        # The last of many attempts may be under way at the deadline, and is then cancelled.
        with pytest.raises((QueueNotFound, BrokerUnavailable)):
            await producer.send("orders", b"x", queue=MessageQueue("orders", "broker-a", 0))


async def test_a_broker_that_has_not_heard_of_a_topic_yet_is_asked_again(
    cluster: Cluster, broker: FakeAppendBroker, nameserver: ScriptedNameserver
) -> None:
    producer = cluster.producer()
    broker.plan = Once(TopicNotFound(topic="orders"), TopicNotFound(topic="orders"))
    await producer.send("orders", b"x", ordering_key="k")
    assert broker.all_bodies("orders") == [b"x"]
    assert broker.route_revisions[0] == nameserver.revision


async def test_a_refusal_of_the_topic_is_told(cluster: Cluster, broker: FakeAppendBroker) -> None:
    producer = cluster.producer()
    broker.plan = Once(TopicNotWritable(topic="orders"))
    with pytest.raises(TopicNotWritable):
        await producer.send("orders", b"x")


async def test_a_restarted_broker_gets_the_rest(cluster: Cluster, broker: FakeAppendBroker) -> None:
    producer = cluster.producer(batch_messages_max=50)
    receipts = [producer.send("orders", b"%d" % number, ordering_key="k") for number in range(1000)]
    await broker.wait_requests(3)
    await broker.stop()
    await broker.start()
    results = [await receipt for receipt in receipts]
    assert len(results) == 1000
    assert _without_repeats(broker.all_bodies("orders")) == [b"%d" % n for n in range(1000)]


async def test_a_broker_that_moved_is_found_at_its_new_address(
    cluster: Cluster, broker: FakeAppendBroker
) -> None:
    producer = cluster.producer()
    await producer.send("orders", b"one", ordering_key="k")
    await broker.stop(unregister=True)
    waiting = producer.send("orders", b"two", ordering_key="k")
    await broker.start(elsewhere=True)
    await waiting
    assert broker.all_bodies("orders") == [b"one", b"two"]


async def test_what_a_broken_stream_hands_back_goes_out_again_oldest_first(
    cluster: Cluster, broker: FakeAppendBroker
) -> None:
    producer = cluster.producer(batch_messages_max=1)
    broker.gate.clear()
    for number in range(4):
        producer.send("orders", b"%d" % number)
    await broker.wait_requests(4)
    broker.plan = Once(Fault.BREAK)
    broker.gate.set()
    await producer.flush()
    stored = sorted(broker.batches("orders"), key=lambda each: each.columns.physical_offsets[0])
    assert [each.columns.bodies for each in stored] == [[b"0"], [b"1"], [b"2"], [b"3"]]


async def test_a_broker_that_moved_without_a_farewell_is_not_waited_for_at_its_old_address(
    cluster: Cluster, broker: FakeAppendBroker, nameserver: ScriptedNameserver
) -> None:
    broker.plan = lambda _: Fault.SILENCE
    producer = cluster.producer(reply_timeout_seconds=60, delivery_timeout_seconds=60)
    waiting = producer.send("orders", b"x", ordering_key="k")
    await broker.wait_requests(1)
    async with asyncio.timeout(DEADLINE_SECONDS), FakeAppendBroker("broker-a", nameserver) as moved:
        await waiting
        assert moved.all_bodies("orders") == [b"x"]


async def test_what_a_former_leader_has_stored_is_not_sent_to_the_next_one(
    cluster: Cluster, broker: FakeAppendBroker, nameserver: ScriptedNameserver
) -> None:
    """A hand-over replies to everything before another broker leads; the routes may arrive
    first."""
    broker.gate.clear()
    producer = cluster.producer()
    waiting = producer.send("orders", b"stored", ordering_key="k")
    await broker.wait_requests(1)
    async with asyncio.timeout(DEADLINE_SECONDS), FakeAppendBroker("broker-a", nameserver) as moved:
        seen = 0
        while cluster.broker_address("broker-a") != f"127.0.0.1:{moved.port}":
            seen = await cluster.routes_changed.wait(seen)
        # A batch of another queue goes to the next leader immediately, so the producer knows it.
        await producer.send("orders", b"next", queue=MessageQueue("orders", "broker-a", 3))
        broker.gate.set()
        await waiting
        assert b"next" in moved.all_bodies("orders")
        assert broker.all_bodies("orders") == [b"stored"]
        assert b"stored" not in moved.all_bodies("orders")


async def test_a_pause_before_a_broker_ends_when_another_process_stands_for_it(
    cluster: Cluster, broker: FakeAppendBroker, nameserver: ScriptedNameserver
) -> None:
    await cluster.route("orders")
    async with asyncio.timeout(DEADLINE_SECONDS), asyncio.TaskGroup() as tasks:
        tasks.create_task(cluster.pause_for_broker("broker-a", 3600))
        await asyncio.sleep(0)
        async with FakeAppendBroker("broker-a", nameserver):
            pass


async def test_a_broker_that_hangs_is_left_after_the_reply_timeout(
    nameserver: ScriptedNameserver, broker: FakeAppendBroker, other: FakeAppendBroker
) -> None:
    nameserver.put_topic("orders", {"broker-a": 1, "broker-b": 1})
    broker.plan = lambda _: Fault.SILENCE
    async with rockoon.connect(nameserver.address) as cluster:
        producer = cluster.producer(reply_timeout_seconds=0.1)
        for _ in range(2):
            assert (await producer.send("orders", b"x")).queue.broker == "broker-b"


async def test_what_is_refused_all_the_time_fails_with_the_last_refusal(
    cluster: Cluster, broker: FakeAppendBroker
) -> None:
    producer = cluster.producer(delivery_timeout_seconds=2)
    broker.plan = lambda _: Busy(reason="always")
    with pytest.raises(Busy, match="always"):
        await producer.send("orders", b"x", ordering_key="k")


async def test_what_a_dead_broker_does_not_take_fails_after_the_delivery_timeout(
    cluster: Cluster, broker: FakeAppendBroker
) -> None:
    await broker.stop()
    producer = cluster.producer(delivery_timeout_seconds=0.3)
    with pytest.raises(BrokerUnavailable):
        await producer.send("orders", b"x", ordering_key="k")
    with pytest.raises(BrokerUnavailable):
        await producer.send("orders", b"behind it, perhaps never tried", ordering_key="k")


async def test_what_is_never_answered_fails_after_the_delivery_timeout(
    cluster: Cluster, broker: FakeAppendBroker
) -> None:
    broker.plan = lambda _: Fault.SILENCE
    producer = cluster.producer(delivery_timeout_seconds=0.3)
    with pytest.raises(BrokerUnavailable):
        await producer.send("orders", b"x", ordering_key="k")


async def test_a_topic_without_brokers_has_no_writable_queue(
    cluster: Cluster, broker: FakeAppendBroker
) -> None:
    await broker.stop(unregister=True)
    # A producer that still knows the broker's address reports that the broker does not answer.
    await eventually(lambda: cluster.routes.broker_address("broker-a") is None)
    producer = cluster.producer(delivery_timeout_seconds=0.3)
    with pytest.raises(NoWritableQueue):
        await producer.send("orders", b"x")


async def test_a_producer_goes_on_while_no_nameserver_is_there(
    cluster: Cluster, nameserver: ScriptedNameserver, broker: FakeAppendBroker
) -> None:
    producer = cluster.producer()
    await producer.send("orders", b"one", ordering_key="k")
    await nameserver.stop()
    broker.plan = Once(Fault.BREAK)
    await producer.send("orders", b"two", ordering_key="k")
    assert broker.all_bodies("orders") == [b"one", b"two"]


async def test_closing_gives_up_in_time_what_nobody_takes(
    nameserver: ScriptedNameserver, broker: FakeAppendBroker
) -> None:
    nameserver.put_topic("orders", {"broker-a": 1})
    async with rockoon.connect(nameserver.address) as cluster:
        producer = cluster.producer(delivery_timeout_seconds=0.3)
        broker.gate.clear()
        receipt = producer.send("orders", b"x")
        with pytest.raises(BrokerUnavailable):
            await producer.close()
        assert receipt.done
        broker.gate.set()


async def test_no_more_batches_are_in_flight_than_allowed(
    cluster: Cluster, broker: FakeAppendBroker
) -> None:
    producer = cluster.producer(in_flight_max=3, batch_messages_max=1)
    broker.gate.clear()
    for _ in range(20):
        producer.send("orders", b"x")
    await broker.wait_requests(3)
    assert broker.requests == 3
    broker.gate.set()
    await producer.flush()
    assert broker.in_flight_seen <= 3


@pytest.mark.parametrize("seed", seeds(3))
async def test_whatever_fails_every_key_arrives_whole_and_in_order(
    nameserver: ScriptedNameserver,
    broker: FakeAppendBroker,
    other: FakeAppendBroker,
    seed: int,
) -> None:
    """At least once, and no message of a key is stored before an earlier one of the same key."""
    chance = random.Random(seed)
    nameserver.put_topic("orders", {"broker-a": 3, "broker-b": 2})

    def plan(_: AppendRequest) -> Fault | RockoonError | None:
        if chance.random() < 0.92:
            return None
        return chance.choice(
            [Fault.BREAK, Fault.BREAK_AFTER, Busy(reason="x"), StoreNotWritable(reason="x")]
        )

    broker.plan = other.plan = plan
    keys = [f"key-{number}" for number in range(12)]
    async with rockoon.connect(nameserver.address) as cluster:
        producer = cluster.producer(batch_messages_max=chance.choice([1, 5, 40]), in_flight_max=4)
        receipts = []
        for number in range(800):
            key = chance.choice([*keys, None])
            body = f"{key} {number}".encode()
            receipts.append(producer.send("orders", body, ordering_key=key))
            if number % 50 == 0:
                await producer.wait_capacity()
            if number % 200 == 199:
                failing = chance.choice([broker, other])
                await failing.stop(unregister=chance.random() < 0.5)
                await failing.start(elsewhere=chance.random() < 0.5)
        for receipt in receipts:
            await receipt

    stored: dict[str, list[int]] = defaultdict(list)
    for running in (broker, other):
        for body in running.all_bodies("orders"):
            key, _, number = body.decode().partition(" ")
            stored[key].append(int(number))
    assert len({number for numbers in stored.values() for number in numbers}) == 800
    for key in keys:
        assert stored[key], key
        first_seen = _without_repeats(stored[key])
        assert first_seen == sorted(first_seen), key


def _without_repeats(items: list[Any]) -> list[Any]:
    return list(dict.fromkeys(items))


async def test_flush_ends_though_messages_with_a_key_found_their_queues_meanwhile(
    cluster: Cluster, broker: FakeAppendBroker
) -> None:
    producer = cluster.producer()
    producer.send("orders", b"without")
    producer.send("orders", b"with", ordering_key="k")
    async with asyncio.timeout(DEADLINE_SECONDS):
        await producer.flush()
    assert sorted(broker.all_bodies("orders")) == [b"with", b"without"]


async def test_who_sends_with_a_key_finds_a_broker_that_came_back_at_another_address(
    cluster: Cluster, broker: FakeAppendBroker
) -> None:
    with named() as names:
        names["broker-a.test"] = ["127.0.0.2"]
        name = f"broker-a.test:{broker.port}"
        await broker.stop()
        await broker.start(host="127.0.0.2", name=name)
        producer = cluster.producer()
        await producer.send("orders", b"one", ordering_key="a")
        await broker.stop()
        receipt = producer.send("orders", b"two", ordering_key="a")
        names["broker-a.test"] = ["127.0.0.3"]
        await broker.start(host="127.0.0.3", name=name)
        await receipt
        assert broker.all_bodies("orders") == [b"one", b"two"]
