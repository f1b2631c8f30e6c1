"""Consumers read a broker's queues on one stream: its messages, and the reasons of its end."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rockoon.cluster import Cluster
from rockoon.consumer import pull_stream
from rockoon.consumer.delivery import HandlerDelivery
from rockoon.consumer.process_queue import FlowLimits, Limit
from rockoon.consumer.pull import PullLimits
from rockoon.consumer.queue_reader import QueueReader
from rockoon.message import Message
from rockoon_core.message_queue import MessageQueue
from rockoon_proto.v1 import nameserver_pb2 as route_wire
from support.eventually import eventually
from support.fake_cluster import FakeCluster
from support.waiting import DEADLINE_SECONDS

Q0 = MessageQueue("orders", "broker-a", 0)


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


class Seen:
    """A handler that waits on the messages of some queues."""

    def __init__(self, slow: Callable[[Message], bool] = lambda _: False) -> None:
        self.bodies: list[bytes] = []
        self.gate = asyncio.Event()
        self._is_slow = slow

    async def __call__(self, message: Message) -> None:
        if self._is_slow(message):
            await self.gate.wait()
        self.bodies.append(message.body)


def push(cluster: Cluster, seen: Seen, **settings: Any) -> Any:
    return cluster.push_consumer("billing", {"orders": "*"}, seen, consume_from="first", **settings)


async def test_a_thousand_queues_are_one_stream(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create_topic("orders", queues=1000)
    for queue_id in range(1000):
        fake.append("orders", numbered(1, queue_id), queue_id=queue_id)
    seen = Seen()
    async with push(cluster, seen) as consumer:
        await eventually(lambda: len(seen.bodies) == 1000)
        for queue_id in range(0, 1000, 100):
            fake.append("orders", numbered(1, 1000 + queue_id), queue_id=queue_id)
        await eventually(lambda: len(seen.bodies) == 1010)
        assert len(consumer.assignment) == 1000
    assert fake.brokers["broker-a"].streams == 1


async def test_a_queue_with_a_slow_handler_holds_no_other_one_up_and_is_bounded(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create_topic("orders", queues=2)
    fake.append("orders", [b"slow"] * 500)
    fake.append("orders", numbered(500), queue_id=1)
    seen = Seen(lambda message: message.queue == Q0)
    async with push(
        cluster,
        seen,
        concurrency=100,
        flow_limits=FlowLimits(messages_max=30),
        pull_limits=PullLimits(messages_max=20),
    ) as consumer:
        await eventually(lambda: len(seen.bodies) == 500)
        assert set(seen.bodies) == set(numbered(500))
        await eventually(lambda: consumer.queues()[Q0].blocked_by is Limit.COUNT)
        assert consumer.queues()[Q0].unfinished == 40
        seen.gate.set()
        await eventually(lambda: len(seen.bodies) == 1000)
    assert fake.brokers["broker-a"].streams == 1


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return, for each answer offered in the receive callback, whether it was accepted there."""
    taken: list[bool] = []
    accept = QueueReader._accept

    def noted(reader: QueueReader, *given: Any) -> bool:
        taken.append(accept(reader, *given))
        return taken[-1]

    monkeypatch.setattr(QueueReader, "_accept", noted)
    return taken


async def test_a_message_alone_is_taken_in_where_it_comes(
    fake: FakeCluster, cluster: Cluster, taken: list[bool]
) -> None:
    fake.create_topic("orders")
    seen = Seen()
    async with push(cluster, seen, pull_limits=PullLimits(messages_max=2)) as consumer:
        await eventually(lambda: consumer.assignment)
        for body in numbered(20):
            fake.append("orders", [body])
            await eventually(lambda body=body: body in seen.bodies)
        await eventually(lambda: consumer.queues()[Q0].unfinished == 0)
    assert seen.bodies == numbered(20)
    assert sum(taken) >= 19, "the first may come before anybody waits for it"


async def test_a_queue_whose_stream_is_not_known_any_more_goes_on_behind_what_was_taken_in(
    fake: FakeCluster, cluster: Cluster, taken: list[bool]
) -> None:
    fake.create_topic("orders")
    seen = Seen()
    async with push(cluster, seen) as consumer:
        await eventually(lambda: consumer.assignment)
        for body in numbered(5):
            fake.append("orders", [body])
            await eventually(lambda body=body: body in seen.bodies)
        assert any(taken)
        # As of an older version that replaces it.
        fake.brokers["broker-a"].knows_streams = False
        fake.append("orders", numbered(5, 5))
        await eventually(lambda: len(seen.bodies) == 10)
    assert seen.bodies == numbered(10)


async def test_what_fails_where_messages_are_taken_in_ends_the_consumer_as_it_is(
    fake: FakeCluster, cluster: Cluster, taken: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    is_broken = False
    offer = HandlerDelivery.offer

    def may_fail(delivery: HandlerDelivery, source: Any) -> None:
        if is_broken:
            raise ZeroDivisionError
        offer(delivery, source)

    monkeypatch.setattr(HandlerDelivery, "offer", may_fail)
    fake.create_topic("orders")
    seen = Seen()
    async with push(cluster, seen) as consumer:
        await eventually(lambda: consumer.assignment)
        for body in numbered(3):
            fake.append("orders", [body])
            await eventually(lambda body=body: body in seen.bodies)
        assert any(taken)
        is_broken = True
        fake.append("orders", [b"x"])
        with pytest.raises(ZeroDivisionError):
            async with asyncio.timeout(DEADLINE_SECONDS):
                await consumer.wait()


async def test_messages_that_come_one_by_one_are_credited_in_halves(
    fake: FakeCluster, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[int] = []
    give = pull_stream.StreamRequests.give_credit

    def noted(requests: Any, number: int, messages: int, size: int) -> None:
        given.append(messages)
        give(requests, number, messages, size)

    monkeypatch.setattr(pull_stream.StreamRequests, "give_credit", noted)
    fake.create_topic("orders")
    async with cluster.pull_consumer(limits=PullLimits(messages_max=10)) as consumer:
        await consumer.assign([Q0])
        for number in range(20):
            fake.append("orders", numbered(1, number))
            messages = await consumer.poll(timeout=DEADLINE_SECONDS)
            assert [message.body for message in messages] == numbered(1, number)
    assert given[:4] == [10, 5, 5, 5]


async def test_seeks_and_new_queues_go_on_on_the_same_stream(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create_topic("orders")
    fake.append("orders", numbered(10))
    async with cluster.pull_consumer() as consumer:
        await consumer.assign_all("orders")
        for place in (7, 2, 9):
            await consumer.seek(Q0, place)
            message = (await consumer.poll(1, timeout=DEADLINE_SECONDS))[0]
            assert message.body == b"%d" % place
        fake.add_queues("orders", "broker-a", 1)
        fake.append("orders", [b"new"], queue_id=1)
        assert [m.body for m in await consumer.poll(timeout=DEADLINE_SECONDS)] == [b"new"]
    assert fake.brokers["broker-a"].streams == 1


async def test_a_broker_of_an_older_version_is_pulled_call_by_call_until_it_is_another(
    fake: FakeCluster, cluster: Cluster
) -> None:
    broker = fake.brokers["broker-a"]
    broker.knows_streams = False
    fake.create_topic("orders", queues=3)
    for queue_id in range(3):
        fake.append("orders", numbered(10, 10 * queue_id), queue_id=queue_id)
    seen = Seen()
    async with push(cluster, seen):
        await eventually(lambda: len(seen.bodies) == 30)
        assert broker.streams == 0
        await broker.listener.stop()
        broker.knows_streams = True
        await broker.listener.start()
        fake.nameserver.nodes["broker-a"] = route_wire.Node(
            kind=route_wire.BROKER,
            name="broker-a",
            address=broker.listener.address,
            started_at_ms=2,
        )
        fake.nameserver.changed()
        fake.append("orders", numbered(10, 30))
        await eventually(lambda: len(seen.bodies) == 40)
        await eventually(lambda: broker.streams)
    assert sorted(map(int, seen.bodies)) == list(range(40))


async def test_nothing_is_lost_or_doubled_when_the_stream_breaks_in_the_middle(
    fake: FakeCluster, cluster: Cluster
) -> None:
    broker = fake.brokers["broker-a"]
    fake.create_topic("orders", queues=5)
    seen = Seen()
    async with push(cluster, seen, pull_limits=PullLimits(messages_max=7)) as consumer:
        await eventually(lambda: len(consumer.queues()) == 6)
        for turn in range(3):
            for queue_id in range(5):
                fake.append(
                    "orders", numbered(100, 1000 * turn + 100 * queue_id), queue_id=queue_id
                )
            await eventually(lambda: len(seen.bodies) > 500 * turn)  # noqa: B023 - awaited here
            await broker.listener.stop()
            await broker.listener.start()
        await eventually(lambda: len(seen.bodies) == 1500)
        assert consumer.statistics.queues_gained == 6
    assert len(set(seen.bodies)) == 1500
    assert broker.streams > 1


async def test_a_broker_that_says_nothing_at_all_any_more_is_asked_again(
    fake: FakeCluster, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull_stream, "SILENT_SECONDS_MAX", 0.1)
    monkeypatch.setattr(pull_stream, "CHECK_SECONDS", 0.05)
    broker = fake.brokers["broker-a"]
    broker.is_silent = True
    fake.create_topic("orders")
    async with cluster.pull_consumer() as consumer:
        await consumer.assign([Q0])
        await eventually(lambda: broker.streams > 2)
        fake.append("orders", [b"x"])
        assert [m.body for m in await consumer.poll(timeout=DEADLINE_SECONDS)] == [b"x"]


async def test_a_stream_of_which_nobody_wants_anything_ends(
    fake: FakeCluster, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull_stream, "CHECK_SECONDS", 0.05)
    fake.create_topic("orders")
    fake.append("orders", [b"x"])
    async with cluster.pull_consumer() as consumer:
        await consumer.assign([Q0])
        stream = await eventually(lambda: consumer._prefetcher._streams._streams.get("broker-a"))
        await consumer.assign([])
        await eventually(stream.task.done)
        await consumer.assign([Q0])
        assert [m.body for m in await consumer.poll(timeout=DEADLINE_SECONDS)] == [b"x"]
    assert fake.brokers["broker-a"].streams == 2


async def test_huge_messages_come_one_by_one(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create_topic("orders")
    huge = [bytes([number]) * (3 << 20) for number in range(5)]
    fake.append("orders", huge)
    seen = Seen()
    async with push(cluster, seen, pull_limits=PullLimits(messages_max=1, bytes_max=1000)):
        await eventually(lambda: len(seen.bodies) == 5)
    assert seen.bodies == huge
