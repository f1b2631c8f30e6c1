"""An idempotent producer whose replies get lost: every message is stored once."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import rockoon
from rockoon.cluster import Cluster
from rockoon.errors import (
    BrokerUnavailable,
    Closed,
    PropertiesTooLarge,
    RockoonError,
    SequenceGap,
    SequenceUnknown,
    StoreNotWritable,
)
from rockoon_core.message_queue import MessageQueue
from rockoon_format.batch import decode_columns
from rockoon_proto.v1 import broker_pb2 as pb
from support.broker import RunningBroker, running_broker
from support.broker_routes import BrokerRoutes
from support.fake_append_broker import FakeAppendBroker, Fault
from support.lossy_broker import Loss, LossyBroker
from support.scripted_nameserver import ScriptedNameserver
from support.seeds import seeds

QUEUES = 3
MESSAGES = 1500


@dataclass
class Wire:
    """A producer's connection to a real broker, over a proxy that loses replies."""

    cluster: Cluster
    broker: RunningBroker
    lossy: LossyBroker

    async def stored(self) -> list[tuple[str, bytes]]:
        """Return the message id and the body of every message in the queues."""
        found: list[tuple[str, bytes]] = []
        for queue_id in range(QUEUES):
            offset = 0
            while (reply := await self.broker.pull("orders", queue_id, offset)).status == pb.FOUND:
                columns = decode_columns(
                    reply.frames, memoryview(reply.record_lengths).cast("I").tolist()
                )
                found += zip(map(str, columns.unique_keys), columns.bodies, strict=True)
                offset = reply.next_offset
        return found


@asynccontextmanager
async def lossy_wire(
    root: Path, plan: Callable[[pb.AppendRequest], Loss | None]
) -> AsyncIterator[Wire]:
    async with BrokerRoutes() as routes, ScriptedNameserver() as told:
        await routes.create_topic("orders", {"broker-a": QUEUES})
        async with (
            running_broker(root, [routes.address]) as broker,
            LossyBroker(broker.channel, plan) as lossy,
        ):
            told.put_node("broker-a", lossy.address)
            told.put_topic("orders", {"broker-a": QUEUES})
            async with rockoon.connect(told.address) as cluster:
                yield Wire(cluster, broker, lossy)


def now_and_then(chance: random.Random) -> Callable[[pb.AppendRequest], Loss | None]:
    return lambda _: chance.choice(list(Loss)) if chance.random() < 0.25 else None


async def send_all(wire: Wire, chance: random.Random, **settings: Any) -> Counter[bytes]:
    """Send messages with and without a key; each must be acknowledged, with its position."""
    producer = wire.cluster.producer(batch_messages_max=7, **settings)
    receipts = {}
    for number in range(MESSAGES):
        body = b"%d" % number
        key = f"k{number % 5}" if chance.random() < 0.5 else None
        tags = "t" if chance.random() < 0.3 else None
        properties = {"n": str(number)} if chance.random() < 0.3 else None
        receipts[body] = producer.send(
            "orders", body, ordering_key=key, tags=tags, properties=properties
        )
        if number % 100 == 99:
            await producer.flush()
    results = {body: await receipt for body, receipt in receipts.items()}
    await producer.close()
    assert wire.lossy.losses > 10
    for body, result in chance.sample(sorted(results.items()), 50):
        reply = await wire.broker.pull("orders", result.queue.queue_id, result.queue_offset)
        columns = decode_columns(reply.frames, memoryview(reply.record_lengths).cast("I").tolist())
        assert columns.bodies[0] == body
        assert int(columns.physical_offsets[0]) == result.physical_offset
        assert columns.unique_keys[0] == result.message_id
    return Counter(body for _, body in await wire.stored())


@pytest.mark.parametrize("seed", seeds(1))
async def test_answers_lost_at_random_store_nothing_twice(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    async with lossy_wire(tmp_path, now_and_then(chance)) as wire:
        counts = await send_all(wire, chance, idempotent=True)
        assert counts == Counter(b"%d" % number for number in range(MESSAGES))
        ids = Counter(key for key, _ in await wire.stored())
        assert set(ids.values()) == {1}


async def test_without_idempotence_the_same_losses_make_copies(tmp_path: Path) -> None:
    """The former test would fail without idempotence."""
    chance = random.Random(7)
    async with lossy_wire(tmp_path, now_and_then(chance)) as wire:
        counts = await send_all(wire, chance)
        assert set(counts) == {b"%d" % number for number in range(MESSAGES)}
        assert counts.total() > MESSAGES
        ids = Counter(key for key, _ in await wire.stored())
        assert max(ids.values()) > 1


@pytest.mark.parametrize("seed", seeds(1))
async def test_messages_of_a_key_keep_their_order_through_all_losses(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    async with lossy_wire(tmp_path, now_and_then(chance)) as wire:
        producer = wire.cluster.producer(batch_messages_max=3, idempotent=True, linger_ms=0)
        for number in range(300):
            producer.send("orders", b"%d" % number, ordering_key="one")
            if number % 4 == 0:
                await producer.flush()
        await producer.close()
        assert [int(body) for _, body in await wire.stored()] == list(range(300))


class Once:
    """A plan with faults of the first requests, one each; it records the requests."""

    def __init__(self, *faults: Fault | RockoonError | None) -> None:
        self._faults = list(faults)
        self.requests: list[pb.AppendRequest] = []

    def __call__(self, request: pb.AppendRequest) -> Fault | RockoonError | None:
        self.requests.append(request)
        return self._faults.pop(0) if self._faults else None

    @property
    def sequences(self) -> list[int]:
        return [request.first_sequence for request in self.requests]

    @property
    def queue_ids(self) -> list[int]:
        return [request.queue_id for request in self.requests]


async def test_a_batch_whose_answer_was_lost_goes_to_the_same_queue_again(
    cluster: Cluster, broker: FakeAppendBroker
) -> None:
    plan = broker.plan = Once(None, Fault.BREAK_AFTER, Fault.BREAK)
    producer = cluster.producer(idempotent=True)
    await producer.send("orders", b"a", queue=MessageQueue("orders", "broker-a", 0))
    await producer.send("orders", b"b")
    sent = plan.requests[1:]
    assert len(sent) == 3
    assert len({(each.queue_id, each.producer_id, each.first_sequence) for each in sent}) == 1
    assert [bool(each.first_sent_ms_ago) for each in sent] == [False, True, True]
    assert sent[0].frames == sent[2].frames


async def test_a_batch_that_was_refused_may_go_to_another_broker(
    nameserver: ScriptedNameserver, broker: FakeAppendBroker, other: FakeAppendBroker
) -> None:
    nameserver.put_topic("orders", {"broker-a": 1, "broker-b": 1})
    plan = broker.plan = lambda _: StoreNotWritable(reason="the disk is full")
    assert plan
    async with rockoon.connect(nameserver.address) as cluster:
        producer = cluster.producer(idempotent=True)
        for number in range(10):
            result = await producer.send("orders", b"%d" % number)
            assert result.queue.broker == "broker-b"
    assert len(other.all_bodies("orders")) == 10


async def test_other_messages_do_not_wait_for_the_broker_that_owes_an_answer(
    nameserver: ScriptedNameserver, broker: FakeAppendBroker, other: FakeAppendBroker
) -> None:
    nameserver.put_topic("orders", {"broker-a": 1, "broker-b": 1})
    async with rockoon.connect(nameserver.address) as cluster:
        producer = cluster.producer(idempotent=True)
        broker.gate.clear()
        waiting = producer.send("orders", b"owed", queue=MessageQueue("orders", "broker-a", 0))
        await broker.wait_requests(1)
        await broker.stop()
        for number in range(10):
            assert (await producer.send("orders", b"%d" % number)).queue.broker == "broker-b"
        assert not waiting.done
        broker.gate.set()
        await broker.start()
        assert (await waiting).queue.broker == "broker-a"


async def test_a_message_given_up_after_its_answer_was_lost_may_be_stored_and_says_so(
    cluster: Cluster, broker: FakeAppendBroker
) -> None:
    """And the queue begins again: its expected sequence number is unknown."""
    queue = MessageQueue("orders", "broker-a", 0)
    plan = broker.plan = Once()
    producer = cluster.producer(idempotent=True, delivery_timeout_seconds=2)
    await producer.send("orders", b"before", queue=queue)
    broker.plan = lambda _: Fault.BREAK
    with pytest.raises(BrokerUnavailable, match="whether the messages are stored is not") as told:
        await producer.send("orders", b"lost", queue=queue)
    assert told.value.details["stored"] == "unknown"
    broker.plan = plan
    await producer.send("orders", b"after", queue=queue)
    await producer.send("orders", b"and after", queue=queue)
    assert plan.sequences == [0, 0, 1]
    first, second, third = (request.producer_id for request in plan.requests)
    assert first != second == third


async def test_a_message_without_an_answer_when_the_producer_ends_may_be_stored_and_says_so(
    cluster: Cluster, broker: FakeAppendBroker
) -> None:
    producer = cluster.producer(idempotent=True)
    broker.gate.clear()
    receipt = producer.send("orders", b"x")
    await broker.wait_requests(1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await producer.close()
    with pytest.raises(Closed) as told:
        await receipt
    assert told.value.details["stored"] == "unknown"
    broker.gate.set()


async def test_a_gap_fails_the_message_and_the_queue_begins_anew(
    cluster: Cluster, broker: FakeAppendBroker
) -> None:
    queue = MessageQueue("orders", "broker-a", 0)
    gap = SequenceGap(topic="orders", queue=0, sequence=1, expected=0)
    plan = broker.plan = Once(None, gap)
    producer = cluster.producer(idempotent=True)
    await producer.send("orders", b"before", queue=queue)
    with pytest.raises(SequenceGap):
        await producer.send("orders", b"gap", queue=queue)
    await producer.send("orders", b"after", queue=queue)
    assert plan.sequences == [0, 1, 0]
    assert plan.requests[0].producer_id != plan.requests[2].producer_id


async def test_a_producer_that_was_forgotten_while_it_was_idle_begins_anew_unnoticed(
    cluster: Cluster, broker: FakeAppendBroker
) -> None:
    queue = MessageQueue("orders", "broker-a", 0)
    unknown = SequenceUnknown(topic="orders", queue=0, sequence=1, what="it")
    plan = broker.plan = Once(None, unknown)
    producer = cluster.producer(idempotent=True)
    await producer.send("orders", b"before", queue=queue)
    await producer.send("orders", b"a day later", queue=queue)
    await producer.send("orders", b"after", queue=queue)
    assert plan.sequences == [0, 1, 0, 1]
    assert plan.requests[0].producer_id != plan.requests[2].producer_id
    assert plan.requests[2].first_sent_ms_ago == 0


async def test_what_may_be_stored_at_a_broker_that_has_forgotten_is_not_sent_under_other_numbers(
    cluster: Cluster, broker: FakeAppendBroker
) -> None:
    unknown = SequenceUnknown(topic="orders", queue=0, sequence=0, what="it")
    plan = broker.plan = Once(Fault.BREAK, unknown)
    producer = cluster.producer(idempotent=True)
    with pytest.raises(SequenceUnknown) as told:
        await producer.send("orders", b"x", queue=MessageQueue("orders", "broker-a", 0))
    assert told.value.details["stored"] == "unknown"
    assert plan.sequences == [0, 0]


async def test_a_topic_created_anew_is_numbered_anew(
    nameserver: ScriptedNameserver, cluster: Cluster, broker: FakeAppendBroker
) -> None:
    plan = broker.plan = Once()
    producer = cluster.producer(idempotent=True)
    queue = MessageQueue("orders", "broker-a", 0)
    await producer.send("orders", b"old", queue=queue)
    revision = nameserver.delete_topic("orders")
    revision = nameserver.put_topic("orders", {"broker-a": 4})
    await cluster.route("orders", min_revision=revision)
    await producer.send("orders", b"new", queue=queue)
    assert plan.sequences == [0, 0]
    assert plan.requests[0].producer_id != plan.requests[1].producer_id


async def test_a_producer_that_is_not_idempotent_numbers_nothing(
    cluster: Cluster, broker: FakeAppendBroker
) -> None:
    plan = broker.plan = Once()
    await cluster.producer().send("orders", b"x")
    assert plan.requests[0].producer_id == plan.requests[0].first_sequence == 0
    assert b"__SEQ" not in plan.requests[0].frames


async def test_properties_leave_room_for_the_number(cluster: Cluster) -> None:
    longest = {"a": "x" * (32_767 - 9 - 56 - 1 - 20 - 3)}
    await cluster.producer().send("orders", b"x", properties=longest)
    with pytest.raises(PropertiesTooLarge):
        cluster.producer(idempotent=True).send("orders", b"x", properties=longest)
