"""FIFO groups through the gateway: after testConsumeOrderly of GrpcBaseIT."""

import asyncio
from collections import Counter

import pytest

import rockoon
from gateway.consumers import Consumer, bodies, handle
from gateway.gateways import RunningGateway
from gateway.wire_client import WireClient
from rockoon_proto.apache.rocketmq.v2 import definition_pb2 as d
from rockoon_proto.apache.rocketmq.v2 import service_pb2 as pb
from rockoon_proto.v1.nameserver_pb2 import CLASSIC, GroupConfig
from support.waiting import DEADLINE_SECONDS


async def in_order(
    client: WireClient, cluster: rockoon.Cluster, name: str, groups: str
) -> Consumer:
    """A topic of one queue with a message of each group, by the group's letter; its consumer."""
    await cluster.admin.create_topic(name, queues_per_broker=1)
    await cluster.admin.create_group(GroupConfig(name=name, fifo=True, new_queue_rule=CLASSIC))
    for number, group in enumerate(groups):
        system = d.SystemProperties(
            message_id=f"{name}-{number}", message_type=d.FIFO, message_group=group
        )
        message = d.Message(
            topic=d.Resource(name=name), body=b"%d" % number, system_properties=system
        )
        answer = await client.call("SendMessage", pb.SendMessageRequest(messages=[message]))
        assert answer.status.code == d.OK
    return Consumer(client, name, name)


async def test_a_message_group_goes_on_only_when_what_came_before_is_acknowledged(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    consumer = await in_order(client, cluster, "orderly", "aaa")
    found: list[bytes] = []
    async with asyncio.timeout(DEADLINE_SECONDS):
        while len(found) < 3:
            messages = await consumer.receive_all(1, batch_size=1)
            assert await consumer.receive(batch_size=1, wait=0) == []
            assert messages[0].system_properties.message_group == "a"
            assert messages[0].user_properties["__SHARDINGKEY"] == "a"
            answer = await consumer.acknowledge(*map(handle, messages))
            assert answer.status.code == d.OK
            found += bodies(messages)
    assert found == [b"0", b"1", b"2"]


async def test_a_message_that_is_put_off_holds_its_group_up_and_comes_first(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    consumer = await in_order(client, cluster, "orderly-again", "aa")
    (first,) = await consumer.receive_all(1, batch_size=1)
    changed = await consumer.change(handle(first), 1)
    assert changed.status.code == d.OK
    assert await consumer.receive(batch_size=1, wait=0) == []
    (again,) = await consumer.receive_all(1, batch_size=1)
    assert (again.body, again.system_properties.delivery_attempt) == (b"0", 2)
    assert (await consumer.acknowledge(handle(again))).status.code == d.OK
    (second,) = await consumer.receive_all(1, batch_size=1)
    assert second.body == b"1"


async def test_other_message_groups_go_on_meanwhile(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    consumer = await in_order(client, cluster, "orderly-beside", "aba")
    (first,) = await consumer.receive_all(1, batch_size=1)
    (beside,) = await consumer.receive_all(1, batch_size=1)
    assert bodies([first, beside]) == [b"0", b"1"]
    assert await consumer.receive(batch_size=1, wait=0) == []


async def test_a_receive_returns_the_next_messages_of_a_message_group(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    consumer = await in_order(client, cluster, "orderly-batches", "a" * 5)
    found = await consumer.receive_all(1, batch_size=3)
    assert bodies(found) == [b"0", b"1", b"2"]
    assert await consumer.receive(wait=0) == []
    assert (await consumer.acknowledge(*map(handle, found))).status.code == d.OK
    assert bodies(await consumer.receive_all(1)) == [b"3", b"4"]


@pytest.mark.parametrize(
    ("language", "renewed", "count"),
    [("JAVA", True, 3), ("GO", True, 1), ("HTTP", True, 1), ("GO", False, 3)],
)
async def test_push_consumers_that_do_not_wait_for_a_failed_message_get_one_at_a_time(
    gateway: RunningGateway, cluster: rockoon.Cluster, language: str, renewed: bool, count: int
) -> None:
    name = f"waits-{language}-{renewed}"
    async with WireClient(gateway.address, headers={"x-mq-language": language}) as client:
        consumer = await in_order(client, cluster, name, "aaa")
        found = await consumer.receive_all(1, renewed=renewed)
        assert bodies(found) == [b"0", b"1", b"2"][:count]
        await consumer.acknowledge(*map(handle, found))


@pytest.mark.parametrize("is_same", [True, False])
async def test_a_try_that_is_repeated_gets_the_same_again_and_another_one_nothing(
    client: WireClient, cluster: rockoon.Cluster, is_same: bool
) -> None:
    consumer = await in_order(client, cluster, f"tried-{is_same}", "a")
    (first,) = await consumer.receive_all(1, attempt_id="try-1")
    again = await consumer.receive(attempt_id="try-1" if is_same else "try-2", wait=0)
    assert bodies(again) == ([b"0"] if is_same else [])
    if is_same:
        assert again[0].system_properties.delivery_attempt == 1
        assert (await consumer.acknowledge(handle(again[0]))).status.code == d.OK
    assert (await consumer.acknowledge(handle(first))).status.code == d.OK


async def test_two_consumers_of_a_fifo_group_keep_every_groups_order(
    gateway: RunningGateway, cluster: rockoon.Cluster
) -> None:
    groups = "abcabcabcaabbcc"
    found: list[int] = []
    is_all = asyncio.Event()

    async def work(consumer: Consumer) -> None:
        while True:
            messages = await consumer.receive_all(1, batch_size=4)
            found.extend(int(message.body) for message in messages)
            answer = await consumer.acknowledge(*map(handle, messages))
            assert answer.status.code == d.OK
            if len(found) >= len(groups):
                is_all.set()

    async with WireClient(gateway.address, "a") as one, WireClient(gateway.address, "b") as two:
        first = await in_order(one, cluster, "orderly-shared", groups)
        second = Consumer(two, first.group, first.topic)
        async with asyncio.timeout(DEADLINE_SECONDS), asyncio.TaskGroup() as tasks:
            workers = [tasks.create_task(work(each)) for each in (first, second)]
            await is_all.wait()
            for worker in workers:
                worker.cancel()
    assert sorted(found) == list(range(len(groups)))
    for group in "abc":
        own = [number for number in found if groups[number] == group]
        assert own == sorted(own), group


async def test_a_batch_whose_first_message_fails_comes_again_whole(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    """The steps of testFIFO_simple_receive_multi_nack of Apache's e2e suite."""
    consumer = await in_order(client, cluster, "orderly-multi-nack", "a" * 20)
    deliveries: Counter[bytes] = Counter()
    are_twice = asyncio.Event()

    async def work() -> None:
        while True:
            messages = await consumer.receive_all(1, batch_size=3)
            deliveries.update(bodies(messages))
            if messages[1:]:
                answer = await consumer.acknowledge(*map(handle, messages[1:]))
                assert answer.status.code == d.OK
            # As if its invisible time, at least ten seconds, were over.
            assert (await consumer.change(handle(messages[0]), 0)).status.code == d.OK
            if deliveries.total() > 8:
                are_twice.set()

    async with asyncio.timeout(DEADLINE_SECONDS), asyncio.TaskGroup() as tasks:
        workers = [tasks.create_task(work()) for _ in range(4)]
        await are_twice.wait()
        for worker in workers:
            worker.cancel()
    assert sorted(deliveries) == [b"0", b"1", b"2"]
    assert min(deliveries.values()) > 1
