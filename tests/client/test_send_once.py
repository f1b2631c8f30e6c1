"""Batches that several producers send, and a broker stores once."""

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest
from client.test_idempotent_producer import Once, lossy_wire, now_and_then

from rockoon.cluster import Cluster
from rockoon.errors import Closed, InvalidArgument, InvalidProperty, SequenceUnknown
from rockoon.message import Batch
from rockoon.producer.once import MESSAGES_MAX, OnceMessage
from rockoon_core.message_queue import MessageQueue
from support.fake_append_broker import FakeAppendBroker, Fault
from support.seeds import seeds
from support.waiting import DEADLINE_SECONDS

QUEUE = MessageQueue("orders", "broker-a", 0)


def messages(*bodies: bytes) -> list[OnceMessage]:
    return [OnceMessage(body, "k", "t", {"n": body.decode()}) for body in bodies]


@pytest.mark.parametrize("seed", seeds(1))
async def test_batches_of_two_producers_through_lost_answers_are_stored_once(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    async with lossy_wire(tmp_path, now_and_then(chance)) as wire:
        batches = [messages(*(b"%d-%d" % (n, each) for each in range(5))) for n in range(60)]
        for attempt in range(2):
            producer = wire.cluster.producer(idempotent=True)
            sent = [
                await producer.send_once(QUEUE._replace(queue_id=n % 3), batch, b"%d" % n)
                # The first attempt fails in the middle.
                for n, batch in enumerate(batches[: 40 if attempt == 0 else None])
            ]
            for each in sent:
                assert len(await each.results()) == 5
            await producer.close()
        assert wire.lossy.losses > 10
        stored = [body for _, body in await wire.stored()]
        assert Counter(stored) == Counter(each.body for batch in batches for each in batch)
        first = [int(body.split(b"-")[0]) for body in stored if body.endswith(b"-0")]
        for queue_id in range(3):
            of_queue = [n for n in first if n % 3 == queue_id]
            assert of_queue == sorted(of_queue)


async def test_a_repeat_finds_the_stored_messages_by_their_offset_ids(tmp_path: Path) -> None:
    async with lossy_wire(tmp_path, lambda _: None) as wire:
        found = []
        for _ in range(2):
            producer = wire.cluster.producer(idempotent=True)
            sent = await producer.send_once(QUEUE, messages(b"1", b"2"), b"s")
            found.append([*await sent.results()])
            await producer.close()
        reply = await wire.broker.pull(QUEUE.topic, QUEUE.queue_id, 0)
        sizes = memoryview(reply.record_lengths).cast("I").tolist()
        stored = Batch(QUEUE, reply.frames, sizes)
        assert [each.offset_message_id for each in stored] == [
            each.offset_message_id for each in found[1]
        ]
        # The stored messages have the ids of the first producer, which the second does not know.
        assert found[0] == found[1]
        assert {each.message_id for each in found[1]} == {""}


async def test_a_batch_waits_until_the_buffer_has_room(
    cluster: Cluster, broker: FakeAppendBroker
) -> None:
    broker.gate.clear()
    producer = cluster.producer(idempotent=True, drain_bytes=1000)
    body = bytes(1000)
    first = await producer.send_once(QUEUE, [OnceMessage(body)], b"1")
    async with asyncio.timeout(DEADLINE_SECONDS), asyncio.TaskGroup() as tasks:
        second = tasks.create_task(producer.send_once(QUEUE, [OnceMessage(body)], b"2"))
        await broker.wait_requests(1)
        assert not second.done()
        assert producer.buffered_bytes < 2 * len(body)
        broker.gate.set()
    await first.results()
    await second.result().results()
    assert broker.bodies("orders", 0) == [body, body]


async def test_a_batch_that_waits_for_room_is_refused_if_the_producer_is_closed(
    cluster: Cluster, broker: FakeAppendBroker
) -> None:
    broker.gate.clear()
    producer = cluster.producer(idempotent=True, drain_bytes=1)
    await producer.send_once(QUEUE, messages(b"1"), b"s")

    async def is_refused() -> None:
        with pytest.raises(Closed):
            await producer.send_once(QUEUE, messages(b"2"), b"s")

    async with asyncio.timeout(DEADLINE_SECONDS), asyncio.TaskGroup() as tasks:
        tasks.create_task(is_refused())
        await broker.wait_requests(1)
        tasks.create_task(producer.close())
        broker.gate.set()
    assert broker.bodies("orders", 0) == [b"1"]


async def test_other_messages_or_another_scope_are_another_batch(tmp_path: Path) -> None:
    async with lossy_wire(tmp_path, lambda _: None) as wire:
        variants = [
            (messages(b"1", b"2"), b"a"),
            (messages(b"1", b"2"), b"b"),
            (messages(b"2", b"1"), b"a"),
            (messages(b"1"), b"a"),
            ([OnceMessage(b"1", "k", "t"), OnceMessage(b"2", "k", "t")], b"a"),
            ([OnceMessage(b"12", "k", "t", {"n": "1"})], b"a"),
        ]
        for _ in range(2):
            producer = wire.cluster.producer(idempotent=True)
            for batch, scope in variants:
                await (await producer.send_once(QUEUE, batch, scope)).results()
            await producer.close()
        stored = [body for _, body in await wire.stored()]
        assert stored == [each.body for batch, _ in variants for each in batch]


async def test_batches_leave_the_numbers_of_other_messages_unchanged(
    cluster: Cluster, broker: FakeAppendBroker
) -> None:
    plan = broker.plan = Once(None, None, Fault.BREAK_AFTER)
    producer = cluster.producer(idempotent=True)
    await producer.send("orders", b"0", queue=QUEUE)
    await producer.send("orders", b"1", queue=QUEUE)
    await (await producer.send_once(QUEUE, messages(b"x", b"y"), b"s")).results()
    await producer.send("orders", b"2", queue=QUEUE)
    assert plan.sequences == [0, 1, 0, 0, 2]
    ids = [request.producer_id for request in plan.requests]
    assert ids[0] == ids[1] == ids[4] != ids[2] == ids[3]
    assert [bool(each.first_sent_ms_ago) for each in plan.requests[2:4]] == [False, True]


async def test_a_batch_that_may_be_stored_at_a_broker_that_forgot_it_fails(
    cluster: Cluster, broker: FakeAppendBroker
) -> None:
    unknown = SequenceUnknown(topic="orders", queue=0, sequence=0, what="it")
    plan = broker.plan = Once(Fault.BREAK, unknown)
    producer = cluster.producer(idempotent=True)
    sent = await producer.send_once(QUEUE, messages(b"x"), b"s")
    with pytest.raises(SequenceUnknown) as told:
        await sent.results()
    assert told.value.details["stored"] == "unknown"
    # The next call is another attempt, with the same id.
    await (await producer.send_once(QUEUE, messages(b"x"), b"s")).results()
    assert len({request.producer_id for request in plan.requests}) == 1


async def test_what_makes_no_batch_is_refused_before_anything_is_sent(
    cluster: Cluster, broker: FakeAppendBroker
) -> None:
    plan = broker.plan = Once()
    producer = cluster.producer(idempotent=True)
    for batch in ([], messages(b"x") * (MESSAGES_MAX + 1), [OnceMessage(bytes(3 << 20))] * 3):
        with pytest.raises(InvalidArgument, match="a batch has 1 to 65536 messages with 8388608"):
            await producer.send_once(QUEUE, batch, b"s")
    with pytest.raises(InvalidProperty):
        await producer.send_once(QUEUE, [*messages(b"x"), OnceMessage(b"y", tags="")], b"s")
    with pytest.raises(InvalidArgument, match="idempotent=True"):
        await cluster.producer().send_once(QUEUE, messages(b"x"), b"s")
    await producer.close()
    assert plan.requests == []
