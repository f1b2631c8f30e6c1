"""Receives message by message: acknowledged, given back, extended, expired, filtered."""

import asyncio
from time import monotonic
from typing import Any

import pytest
from receiving.orders import Orders, failure_of, numbers_of, receive

import rockoon
from rockoon import sync
from rockoon.consumer.consume_result import Order
from rockoon.errors import (
    Closed,
    GroupNotFound,
    InvalidArgument,
    NotAcquired,
    OffsetServiceUnavailable,
    TopicNotFound,
)
from rockoon.local import LocalCluster
from rockoon.receiving.receive_queue import ReceiveQueue, ReceiverName
from rockoon.receiving.received import ReceiptHandle, ReceivedMessages
from rockoon.subscription import Subscription
from rockoon_core.message_queue import MessageQueue
from rockoon_proto.v1.nameserver_pb2 import GroupConfig
from rockoon_proto.v1.offset_pb2 import ResetTarget
from support.eventually import eventually
from support.waiting import DEADLINE_SECONDS


async def test_what_is_acknowledged_is_done(orders: Orders) -> None:
    await orders.send(range(20))
    async with orders.consumer() as consumer:
        messages = await receive(consumer, 20)
        assert numbers_of(messages) == list(range(20))
        assert {message.attempt for message in messages} == {1}
        assert await consumer.receive(wait=0) == [], "they are invisible"
        await consumer.ack(messages)
        await consumer.ack(messages[0])
    await orders.all_settled()


async def test_a_receiver_that_waits_gets_what_is_sent_then(orders: Orders) -> None:
    async with orders.consumer() as consumer:
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(receive(consumer, 1))
            await asyncio.sleep(0)
            await orders.send([7])
        (message,) = waiting.result()
        assert (message.body, message.topic) == (b"7", orders.topic)
        await consumer.ack(message)
    await orders.all_settled()


async def test_what_failed_comes_again_after_its_delay_and_counts(orders: Orders) -> None:
    await orders.send([1])
    async with orders.consumer() as consumer:
        (message,) = await receive(consumer, 1)
        at = monotonic()
        await consumer.nack(message, delay=0.7)
        (again,) = await receive(consumer, 1)
        assert monotonic() - at >= 0.7
        assert (again.body, again.attempt) == (b"1", 2)
        await consumer.nack(again)
        (third,) = await receive(consumer, 1)
        assert third.attempt == 3
        await consumer.ack(third)
    await orders.all_settled()


async def test_what_is_forgotten_comes_again_and_its_first_receiver_is_told(orders: Orders) -> None:
    await orders.send([1])
    async with orders.consumer(extend_seconds_max=0) as consumer:
        (message,) = await receive(consumer, 1, visible_after=1.0)
        (again,) = await receive(consumer, 1)
        assert again.attempt == 2
        with pytest.raises(NotAcquired, match=f"0 of {message.queue}"):
            await consumer.ack(message)
        with pytest.raises(NotAcquired):
            await consumer.extend(message, 5)
        await consumer.ack(again)


async def test_an_acknowledgement_that_is_late_counts_while_nobody_else_has_it(
    orders: Orders,
) -> None:
    await orders.send([1])
    async with orders.consumer(extend_seconds_max=0) as consumer:
        (message,) = await receive(consumer, 1, visible_after=1.0)

        def look() -> int:
            return message.visible_at_ms

        # No receiver waits: it is visible, and not received.
        rows = await orders.cluster.admin.lag(orders.group)
        while rows.as_of_ms <= look():
            rows = await orders.cluster.admin.lag(orders.group)
        await consumer.ack(message)
        assert await consumer.receive(wait=0) == []


async def test_extended_it_stays_its_receivers(orders: Orders) -> None:
    await orders.send([1])
    async with orders.consumer(extend_seconds_max=0) as consumer:
        (message,) = await receive(consumer, 1, visible_after=1.0)
        await consumer.extend(message, 30.0)
        assert await consumer.receive(wait=1.5) == []
        await consumer.ack(message)
    await orders.all_settled()


async def test_while_a_handler_holds_a_message_it_is_extended_by_itself(orders: Orders) -> None:
    await orders.send([1])
    async with orders.consumer() as consumer:
        (message,) = await receive(consumer, 1, visible_after=1.0)
        received_until = message.visible_at_ms
        assert await consumer.receive(wait=2.0) == []
        assert message.visible_at_ms > received_until
        await consumer.ack(message)
    await orders.all_settled()


async def test_a_message_that_a_program_has_dropped_comes_again(orders: Orders) -> None:
    await orders.send([1, 2])
    async with orders.consumer() as consumer:
        messages = await receive(consumer, 2, visible_after=1.0)
        dropped = messages.pop().body
        (again,) = await receive(consumer, 1)
        assert (again.body, again.attempt) == (dropped, 2)
        await consumer.ack([again, *messages])
    await orders.all_settled()


async def test_after_its_bound_a_message_comes_again_although_it_is_held(orders: Orders) -> None:
    await orders.send([1])
    async with orders.consumer(extend_seconds_max=0.6) as consumer:
        (message,) = await receive(consumer, 1, visible_after=1.0)
        (again,) = await receive(consumer, 1)
        assert (again.body, again.attempt, message.attempt) == (b"1", 2, 1)
        await consumer.ack(again)
    await orders.all_settled()


async def test_an_extension_that_fails_is_tried_again_before_the_message_is_visible(
    orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    await orders.send([1])
    async with orders.consumer() as consumer:
        engine = orders.cluster.receiving
        changed, failures = engine.changed, [OffsetServiceUnavailable(), OffsetServiceUnavailable()]

        async def failing_twice(*args: Any, **options: Any) -> Any:
            if failures:
                raise failures.pop()
            return await changed(*args, **options)

        monkeypatch.setattr(engine, "changed", failing_twice)
        (message,) = await receive(consumer, 1, visible_after=2.0)
        assert await consumer.receive(wait=2.5) == []
        assert not failures
        await consumer.ack(message)
    await orders.all_settled()


async def test_a_message_that_is_held_at_a_reset_is_no_longer_the_receivers(
    orders: Orders, cluster: rockoon.Cluster
) -> None:
    await orders.send(range(1))
    async with orders.consumer() as consumer:
        (held,) = await receive(consumer, 1)
        done = await cluster.admin.reset_offsets(
            orders.group, orders.topic, ResetTarget(earliest=True), operator="a test"
        )
        for refused in (consumer.ack(held), consumer.nack(held), consumer.extend(held, 60)):
            with pytest.raises(NotAcquired):
                await refused
        (again,) = await receive(consumer, 1)
        assert (numbers_of([again]), again.attempt) == ([0], 1)
        await consumer.ack(again)
        await orders.all_settled()
        assert [step.to_offset for step in done.steps] == [0] * len(done.steps)


async def test_receivers_share_and_nobody_gets_what_another_has(
    orders: Orders, local: LocalCluster
) -> None:
    async with rockoon.connect(local.nameservers) as other:
        consumers = [orders.consumer(), orders.consumer(), orders.consumer(cluster=other)]
        await orders.send(range(200))
        seen: list[int] = []

        async def work(consumer: rockoon.SimpleConsumer) -> None:
            while len(seen) < 200:
                messages = await consumer.receive(7, wait=0.2)
                seen.extend(int(message.body) for message in messages)
                await consumer.ack(messages)

        async with asyncio.TaskGroup() as tasks:
            for consumer in consumers:
                for _ in range(3):
                    tasks.create_task(work(consumer))
        assert sorted(seen) == list(range(200))
    await orders.all_settled()


async def test_who_came_first_gets_first(orders: Orders) -> None:
    async with orders.consumer() as consumer:
        order: list[int] = []

        async def one(number: int) -> None:
            (message,) = await receive(consumer, 1)
            order.append(number)
            await consumer.ack(message)

        async with asyncio.TaskGroup() as tasks:
            for number in range(5):
                tasks.create_task(one(number))
                await asyncio.sleep(0)
            await orders.send(range(5))
        assert order == list(range(5))


async def test_who_is_cancelled_in_the_turn_in_which_a_message_comes_gives_it_back(
    orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    await orders.send([1])
    deliver = ReceiveQueue.deliver
    async with orders.consumer() as consumer, asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(consumer.receive(visible_after=1.0, wait=DEADLINE_SECONDS))

        def delivered(
            queue: ReceiveQueue, name: ReceiverName, messages: ReceivedMessages
        ) -> ReceivedMessages:
            left = deliver(queue, name, messages)
            waiting.cancel()
            return left

        with monkeypatch.context() as patch:
            patch.setattr(ReceiveQueue, "deliver", delivered)
            await asyncio.wait([waiting])
        assert waiting.cancelled()
        (message,) = await receive(consumer, 1)
        assert message.attempt == 1
        await consumer.ack(message)
    await orders.all_settled()


async def test_a_receiver_that_is_cancelled_keeps_nothing(orders: Orders) -> None:
    async with orders.consumer() as consumer, asyncio.TaskGroup() as tasks:
        for number in range(10):
            gone = tasks.create_task(consumer.receive(1))
            await asyncio.sleep(0)
            sending = tasks.create_task(orders.send([number]))
            # Anywhere between broker and receiver.
            for _ in range(3 * number):
                await asyncio.sleep(0)
            gone.cancel()
            await asyncio.wait([gone])
            await sending
            if gone.cancelled():
                (message,) = await receive(consumer, 1)
                assert message.attempt == 1, "nobody has had it"
            else:
                (message,) = gone.result()
            assert message.body == b"%d" % number
            await consumer.ack(message)
    await orders.all_settled()


@pytest.mark.parametrize("expression", ["red || blue", rockoon.Sql("TAGS IN ('red', 'blue')")])
async def test_what_a_filter_leaves_out_is_done_for_the_group(
    orders: Orders, expression: str
) -> None:
    for number in range(60):
        await orders.send([number], tags=("red", "green", "blue")[number % 3])
    async with orders.consumer(expression) as consumer:
        messages = await receive(consumer, 40)
        assert {message.tags for message in messages} == {"red", "blue"}
        assert numbers_of(messages) == [each for each in range(60) if each % 3 != 1]
        await consumer.ack(messages)
        assert await consumer.receive(wait=0) == []
    await orders.all_settled()


async def test_few_matches_far_apart_are_found(orders: Orders) -> None:
    async with orders.cluster.producer() as producer:
        for number in (1, 2):
            await producer.send_many(orders.topic, [b"x"] * 3000, tags="noise")
            await producer.send(orders.topic, b"%d" % number, tags="signal")
    async with orders.consumer("signal") as consumer:
        assert numbers_of(await receive(consumer, 2)) == [1, 2]


async def test_attempts_used_up_make_a_dead_letter(orders: Orders) -> None:
    await orders.cluster.admin.create_group(GroupConfig(name=orders.group, retry_attempts_max=1))
    await orders.send([1, 2])
    async with orders.consumer() as consumer:
        messages = await receive(consumer, 2)
        await consumer.ack([each for each in messages if each.body == b"2"])
        await consumer.nack([each for each in messages if each.body == b"1"])
        (again,) = await receive(consumer, 1)
        assert again.attempt == 2
        await consumer.nack(again)
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(consumer.receive(wait=DEADLINE_SECONDS))
            await orders.all_settled()
            waiting.cancel()
        letters = [each async for each in orders.cluster.admin.dead_letters.letters(orders.group)]
        assert [(each.message.body, each.message.topic) for each in letters] == [
            (b"1", orders.topic)
        ]
        assert "never acknowledged" in (letters[0].message.failure or "")


@pytest.mark.parametrize("fifo", [False, True])
async def test_a_dead_letter_has_the_last_reason_and_counts_its_deliveries(
    orders: Orders, fifo: bool
) -> None:
    config = GroupConfig(name=orders.group, retry_attempts_max=3, fifo=fifo)
    await orders.cluster.admin.create_group(config)
    await orders.send([1])
    async with orders.consumer() as consumer:
        for reason in ("", ValueError("cut in \ud83d"), "", ""):
            await consumer.nack(await receive(consumer, 1), reason=reason)
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(consumer.receive(wait=DEADLINE_SECONDS))
            await orders.all_settled()
            waiting.cancel()
    [letter] = [each async for each in orders.cluster.admin.dead_letters.letters(orders.group)]
    assert letter.message.failure == r"Rejected: ValueError: cut in \ud83d"
    assert letter.message.reconsume_times == 4


async def test_an_orderly_consumers_dead_letter_counts_its_deliveries(orders: Orders) -> None:
    await orders.send([1])

    async def fail(_: rockoon.Message) -> None:
        raise ValueError("it is poison")

    async with orders.cluster.push_consumer(
        orders.group,
        {orders.topic: "*"},
        fail,
        orderly=Order(attempts_max=3, suspend_seconds=0.01),
        consume_from="first",
    ) as consumer:
        await eventually(lambda: consumer.statistics.retries.dead == 1)
    [letter] = [each async for each in orders.cluster.admin.dead_letters.letters(orders.group)]
    assert letter.message.failure == "ValueError: it is poison"
    assert letter.message.reconsume_times == 3


async def test_a_receiver_gives_a_message_up(orders: Orders) -> None:
    await orders.send([1])
    engine = orders.cluster.receiving
    async with orders.consumer() as consumer:
        (message,) = await receive(consumer, 1)
        none = ReceiptHandle(message.queue, 1 << 40, message.queue_offset)
        taken = await engine.dead_letter(
            orders.group, [none, message.receipt], reason="it is poison", attempts=5
        )
        assert taken == [False, True]
    await orders.all_settled()
    letters = [each async for each in orders.cluster.admin.dead_letters.letters(orders.group)]
    assert ["it is poison" in (each.message.failure or "") for each in letters] == [True]
    assert [each.message.reconsume_times for each in letters] == [5]


async def test_what_a_classic_consumer_failed_on_comes_by_the_retry_topic(orders: Orders) -> None:
    await orders.send([1])

    async def fail(message: rockoon.Message) -> rockoon.ConsumeResult:
        failed.set()
        return rockoon.ConsumeResult.later(seconds=0.1)

    failed = asyncio.Event()
    async with orders.cluster.push_consumer(
        orders.group, {orders.topic: "*"}, fail, consume_from="first"
    ):
        await failed.wait()
    async with orders.consumer() as consumer:
        (message,) = await receive(consumer, 1)
        assert (message.body, message.topic) == (b"1", orders.topic)
        assert message.attempt >= 2
        await consumer.ack(message)
    await orders.all_settled()


async def test_classic_consumers_take_over_and_hand_back(orders: Orders) -> None:
    await orders.send(range(10))
    async with orders.consumer() as consumer:
        first = await receive(consumer, 10)
        await consumer.ack(first)
        await orders.send(range(10, 20))
        seen: list[int] = []

        async def handle(message: rockoon.Message) -> None:
            seen.append(int(message.body))
            if len(seen) == 10:
                done.set()

        done = asyncio.Event()
        async with orders.cluster.push_consumer(orders.group, {orders.topic: "*"}, handle):
            await done.wait()
        assert sorted(seen) == list(range(10, 20))
        await orders.send(range(20, 30))
        assert numbers_of(await receive(consumer, 10)) == list(range(20, 30))


async def test_several_topics_are_received_by_one_consumer(orders: Orders) -> None:
    other = f"{orders.topic}-more"
    await orders.cluster.admin.create_topic(other)
    async with orders.cluster.simple_consumer(
        orders.group, {orders.topic: "*", other: "*"}, consume_from="first"
    ) as consumer:
        await orders.send([1])
        await Orders(orders.cluster, other).send([2])
        assert numbers_of(await receive(consumer, 2)) == [1, 2]


async def test_queues_that_a_topic_gets_later_are_received_from(orders: Orders) -> None:
    async with orders.consumer() as consumer:
        await orders.send(range(4))
        await consumer.ack(await receive(consumer, 4))
        (broker,) = {queue.broker for queue in (await orders.cluster.route(orders.topic)).queues}
        await orders.cluster.admin.update_topic(orders.topic, add={broker: 2})
        for queue_id in (4, 5):
            await orders.send([queue_id], queue=MessageQueue(orders.topic, broker, queue_id))
        assert numbers_of(await receive(consumer, 2)) == [4, 5]


async def test_a_wait_of_nothing_answers_what_is_there(orders: Orders) -> None:
    async with orders.consumer() as consumer:
        assert await consumer.receive(wait=0) == []
        await orders.send([1])
        assert len(await consumer.receive(wait=0)) == 1


async def test_what_cannot_be_received_is_said(orders: Orders) -> None:
    cluster = orders.cluster
    with pytest.raises(InvalidArgument):
        cluster.simple_consumer(orders.group, {})
    with pytest.raises(TopicNotFound):
        await cluster.simple_consumer(orders.group, {"nothing": "*"}).receive()
    with pytest.raises(GroupNotFound):
        await orders.consumer(create_group=False).receive()
    consumer = orders.consumer()
    for wrong in ({"max_messages": 0}, {"max_messages": 1025}, {"visible_after": 0}):
        with pytest.raises(InvalidArgument):
            await consumer.receive(**wrong)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(failure_of(consumer.receive()))
        await asyncio.sleep(0)
        await consumer.close()
    assert isinstance(waiting.result(), Closed)
    with pytest.raises(Closed):
        await consumer.receive()


async def test_a_group_that_could_not_receive_is_not_remembered(orders: Orders) -> None:
    engine = orders.cluster.receiving
    nowhere = [Subscription.parse("nowhere", "*")]
    with pytest.raises(TopicNotFound):
        await engine.receive(
            "nobodys", nowhere, messages_max=1, visible_after_ms=1000, wait_seconds=0
        )
    assert "nobodys" in engine._groups
    engine.delete_unused()
    assert "nobodys" not in engine._groups


async def test_a_group_that_is_deleted_ends_its_receivers(orders: Orders) -> None:
    async with orders.consumer() as consumer, asyncio.TaskGroup() as tasks:
        assert await consumer.receive(wait=0) == []
        waiting = tasks.create_task(failure_of(consumer.receive(wait=2 * DEADLINE_SECONDS)))
        await orders.cluster.admin.delete_group(orders.group)
    assert isinstance(waiting.result(), GroupNotFound)


async def test_what_is_received_can_be_acknowledged_by_another_process(
    orders: Orders, local: LocalCluster
) -> None:
    await orders.send([1])
    async with orders.consumer() as consumer:
        (message,) = await receive(consumer, 1)
    text = message.receipt.text()
    assert ReceiptHandle.parse(text) == message.receipt
    for wrong in ("", "a/b", "orders@broker-a:1/2", "orders@broker-a:1/2/-3"):
        with pytest.raises(InvalidArgument):
            ReceiptHandle.parse(wrong)
    async with rockoon.connect(local.nameservers) as other:
        receipt = ReceiptHandle.parse(text)
        assert await other.receiving.acknowledge(orders.group, [receipt]) == [True]
    await orders.all_settled()


def test_a_script_receives_without_asyncio(local: LocalCluster) -> None:
    with (
        sync.connect(local.nameservers) as cluster,
        cluster.simple_consumer("scripts", {"for-scripts": "*"}, consume_from="first") as consumer,
    ):
        cluster.call(cluster.admin.create_topic("for-scripts"))
        cluster.send_many("for-scripts", [b"1", b"2"])
        messages: list[rockoon.ReceivedMessage] = []
        while len(messages) < 2:
            messages += consumer.receive()
        assert numbers_of(messages) == [1, 2]
        consumer.extend(messages, 60)
        consumer.ack(messages[0])
        consumer.nack(messages[1])
        (again,) = consumer.receive()
        assert (again.body, again.attempt) == (messages[1].body, 2)
        consumer.ack([again])
        assert consumer.receive(wait=0) == []
    with pytest.raises(Closed):
        consumer.receive()


async def test_after_a_failed_acknowledgement_a_message_is_still_extended(
    orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    await orders.send([1])
    async with orders.consumer() as consumer:
        engine = orders.cluster.receiving
        acknowledge, failures = engine.acknowledge, [OffsetServiceUnavailable()]

        async def failing_once(*args: Any, **named: Any) -> Any:
            if failures:
                raise failures.pop()
            return await acknowledge(*args, **named)

        monkeypatch.setattr(engine, "acknowledge", failing_once)
        (message,) = await receive(consumer, 1, visible_after=1.0)
        with pytest.raises(OffsetServiceUnavailable):
            await consumer.ack(message)
        assert await consumer.receive(wait=2.0) == []
        await consumer.ack(message)
    await orders.all_settled()


async def test_if_one_of_several_messages_is_lost_the_others_are_still_extended(
    orders: Orders,
) -> None:
    await orders.send([1, 2])
    async with orders.consumer() as consumer, orders.consumer() as other:
        lost, kept = await receive(consumer, 2, visible_after=1.0)
        await orders.cluster.receiving.changed(orders.group, [lost.receipt], 0)
        (taken,) = await receive(other, 1)
        with pytest.raises(NotAcquired):
            await consumer.extend([lost, kept], 1.0)
        assert await consumer.receive(wait=2.0) == []
        await consumer.ack(kept)
        await other.ack(taken)
    await orders.all_settled()
