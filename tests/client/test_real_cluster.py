"""The producer and the route cache against real processes: etcd, nameserver, brokers."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

import rockoon
from rockoon.cluster import Cluster
from rockoon.errors import Closed, InvalidArgument, TopicNotFound
from rockoon.local import LocalCluster
from rockoon.message import Batch
from rockoon_core.message_queue import MessageQueue
from rockoon_proto.v1 import nameserver_pb2 as pb
from rockoon_proto.v1.broker_pb2 import FOUND, PullRequest
from support.waiting import DEADLINE_SECONDS


@pytest.fixture(scope="module")
def processes() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=2) as running:
        yield running


@pytest.fixture
async def cluster(processes: LocalCluster) -> AsyncIterator[Cluster]:
    async with rockoon.connect(processes.nameservers, cluster="rockoon") as connected:
        yield connected


async def create(cluster: Cluster, topic: str, queues: int = 2) -> None:
    request = pb.CreateTopicRequest(config=pb.TopicConfig(name=topic), queues_per_broker=queues)
    reply = await cluster.call_nameserver("CreateTopic", request)
    await cluster.route(topic, min_revision=reply.revision)


async def read(cluster: Cluster, queue: MessageQueue) -> list[Batch]:
    """Return all messages of a queue."""
    stub = await cluster.wait_broker(queue.broker, 20)
    found: list[Batch] = []
    offset = 0
    while True:
        request = PullRequest(topic=queue.topic, queue_id=queue.queue_id, offset=offset)
        reply = await stub.Pull(request, metadata=cluster.metadata, wait_for_ready=True)
        if reply.status != FOUND:
            return found
        found.append(Batch(queue, reply.frames, reply.record_lengths))
        offset = reply.next_offset


async def test_what_is_sent_is_stored_where_the_result_says(cluster: Cluster) -> None:
    await create(cluster, "placed")
    producer = cluster.producer()
    sent = {}
    for number in range(300):
        receipt = producer.send(
            "placed", b"%d" % number, tags="t", keys=f"k{number}", properties={"n": str(number)}
        )
        sent[number] = receipt
        if number % 30 == 0:
            await receipt
    results = {number: await receipt for number, receipt in sent.items()}
    stored = {}
    for queue in (await cluster.route("placed")).queues:
        for batch in await read(cluster, queue):
            stored |= {(queue, message.queue_offset): message for message in batch}
    assert len(stored) == 300
    for number, result in results.items():
        message = stored[result.queue, result.queue_offset]
        assert message.body == b"%d" % number
        assert message.message_id == result.message_id
        assert message.offset_message_id == result.offset_message_id
        assert message.store_timestamp_ms == result.store_timestamp_ms
        assert (message.tags, message.keys) == ("t", [f"k{number}"])
        assert message.properties["n"] == str(number)


async def test_a_broker_killed_under_load_loses_nothing_and_keeps_keys_in_order(
    processes: LocalCluster, cluster: Cluster
) -> None:
    await create(cluster, "killed")
    keys = [f"key-{number}" for number in range(8)]
    producer = cluster.producer(delivery_timeout_seconds=60)
    receipts = []
    acknowledged_first = asyncio.Event()

    async def load() -> None:
        for number in range(6000):
            body = f"{keys[number % 8]} {number}".encode()
            receipts.append(producer.send("killed", body, ordering_key=keys[number % 8]))
            if number % 20 == 0:
                await producer.wait_capacity()
            if number % 1000 == 0:
                await receipts[-1]
                acknowledged_first.set()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(load())
        await acknowledged_first.wait()
        await asyncio.to_thread(processes.kill, "broker-a")
        await asyncio.to_thread(processes.start, "broker-a")
    results = [await receipt for receipt in receipts]
    assert len(results) == 6000

    seen: set[int] = set()
    for queue in (await cluster.route("killed")).queues:
        last: dict[str, int] = {}
        for batch in await read(cluster, queue):
            for body in batch.bodies:
                key, _, text = body.decode().partition(" ")
                number = int(text)
                if number not in seen:
                    assert number > last.get(key, -1), f"{key} out of order in {queue}"
                    last[key] = number
                seen.add(number)
    assert seen == set(range(6000))


async def test_topics_come_and_go(cluster: Cluster) -> None:
    producer = cluster.producer()
    with pytest.raises(TopicNotFound):
        await producer.send("passing", b"x")
    await create(cluster, "passing")
    await producer.send("passing", b"x")
    await cluster.call_nameserver("DeleteTopic", pb.DeleteTopicRequest(name="passing"))
    async with asyncio.timeout(DEADLINE_SECONDS):
        while cluster.routes.topic("passing") is not None:
            await cluster.routes_changed.wait(cluster.routes_changed.count)
    with pytest.raises(TopicNotFound):
        await producer.send("passing", b"x")


async def test_a_body_as_large_as_allowed_passes_and_a_larger_one_fails_alone(
    cluster: Cluster,
) -> None:
    await create(cluster, "large", queues=1)
    producer = cluster.producer()
    await producer.send("large", bytes(4 << 20))
    await producer.send_many("large", [bytes(1 << 20)] * 5)


def test_a_script_without_asyncio_sends_and_is_told_what_went_wrong(
    processes: LocalCluster,
) -> None:
    with rockoon.sync.connect(processes.nameservers) as cluster:
        request = pb.CreateTopicRequest(config=pb.TopicConfig(name="plain"))
        cluster.call(cluster.asyncio.call_nameserver("CreateTopic", request))
        result = cluster.send("plain", b"one", tags="t")
        assert result.queue in cluster.queues("plain")
        assert len(cluster.send_many("plain", (b"%d" % n for n in range(100)))) == 100
        with pytest.raises(TopicNotFound):
            cluster.send("no-such-topic", b"x")
        with pytest.raises(InvalidArgument):
            cluster.send("plain", "text")  # type: ignore[arg-type]


def test_a_script_without_asyncio_reads_until_it_is_quiet_or_until_it_has_enough(
    processes: LocalCluster,
) -> None:
    with rockoon.sync.connect(processes.nameservers) as cluster:
        cluster.call(cluster.admin.create_topic("scripted-reads", queues_per_broker=2))
        bodies = [b"%d" % number for number in range(3000)]
        cluster.send_many("scripted-reads", bodies)
        read = [message.body for message in cluster.consume("scripted-reads", timeout=3.0)]
        assert sorted(read) == sorted(bodies)

        endless = cluster.consume("scripted-reads")
        assert next(endless).queue_offset == 0
        endless.close()
        assert list(cluster.consume("scripted-reads", consume_from="last", timeout=0)) == []
        with pytest.raises(TopicNotFound):
            next(cluster.consume("nowhere", timeout=1))
        left_open = cluster.consume("scripted-reads")
        next(left_open)
    with pytest.raises(Closed):
        list(left_open)
