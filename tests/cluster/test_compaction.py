"""Compacted topics on a real cluster: a reader from the beginning gets the newest of each key."""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from grpc import aio

import rockoon
from rockoon.consumer.pull import PullLimits
from rockoon.errors import RockoonError
from rockoon.local import LocalCluster
from rockoon.message import Message
from rockoon.producer.producer import Producer
from rockoon_core.message_queue import MessageQueue
from rockoon_format.generation import Manifest
from rockoon_proto.v1.broker_pb2 import CompactionState, DescribeBrokerReply
from rockoon_runtime.process import Stop
from support.broker import CHANNEL_OPTIONS, RunningBroker
from support.compaction import compact_store
from support.eventually import answered, eventually
from support.generations import made_elsewhere, publish, upload
from support.seeds import seeds
from support.waiting import DEADLINE_SECONDS

TOPIC = "latest"
BROKER = "broker-a"
KEYS = [f"k{number}" for number in range(30)]
QUEUES = 2
# The log is deleted as soon as it may be: later reads can only come from a generation.
HASTY = {
    "commit_log_file_bytes": 64 << 10,
    "reserved_hours": 0,
    "delete_when": ";".join(f"{hour:02d}" for hour in range(24)),
    "disk_check_interval_ms": 50,
    "disk_full_percent": 100,
    "disk_forced_percent": 100,
}


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path / "cluster", brokers=1, settings={"broker": HASTY}) as cluster:
        yield cluster


class Sent:
    """Acknowledged messages: of each key the newest body, empty for a tombstone."""

    def __init__(self, producer: Producer, choose: random.Random) -> None:
        self.newest: dict[str, bytes] = {}
        self._producer = producer
        self._choose = choose
        self._numbers = itertools.count()

    async def send(self, count: int) -> None:
        receipts = []
        for number in range(count):
            # A batch must fit into a file of the log.
            if number % 50 == 0:
                await self._producer.flush()
            key = self._choose.choice(KEYS)
            body = b"" if self._choose.random() < 0.1 else b"%0200d" % next(self._numbers)
            receipts.append(self._producer.send(TOPIC, body, keys=key, ordering_key=key))
            self.newest[key] = body
        for receipt in receipts:
            await receipt


def store_of(local: LocalCluster) -> Path:
    return local.directory / BROKER


async def describe(cluster: rockoon.Cluster) -> DescribeBrokerReply:
    answer = (await cluster.admin.describe_broker(BROKER)).broker
    assert answer is not None
    return answer


async def state_of(cluster: rockoon.Cluster) -> CompactionState:
    return (await describe(cluster)).compaction


async def compact(local: LocalCluster, cluster: rockoon.Cluster) -> Manifest:
    """Compact the store, and wait until the broker uses the generation."""
    directory = await asyncio.to_thread(compact_store, store_of(local))
    made = Manifest.from_json((directory / "manifest.json").read_bytes())
    await answered(lambda: state_of(cluster), lambda state: state.generation >= made.generation)
    return made


async def read_all(cluster: rockoon.Cluster) -> list[Message]:
    """Return all messages from the beginning to the present end, queue by queue."""
    description = await cluster.admin.describe_topic(TOPIC)
    ends = {each.queue: each.state.max_offset for each in description.queues if each.state}
    found: list[Message] = []
    async with cluster.pull_consumer(consume_from="first", limits=SMALL_PULLS) as consumer:
        await consumer.assign_all(TOPIC)
        async with asyncio.timeout(DEADLINE_SECONDS):
            while any(consumer.position(queue) < end for queue, end in ends.items()):
                found += await consumer.poll(timeout=0.1)
    return found


SMALL_PULLS = PullLimits(messages_max=7, wait_ms=100)


def newest_of(messages: list[Message]) -> dict[str, bytes]:
    """Return the last body of each key; messages of each queue must ascend."""
    last: dict[MessageQueue, int] = {}
    newest: dict[str, bytes] = {}
    for message in messages:
        assert message.queue_offset > last.get(message.queue, -1)
        last[message.queue] = message.queue_offset
        [key] = message.keys
        newest[key] = message.body
    return newest


def values(newest: Mapping[str, bytes]) -> dict[str, bytes]:
    """Without tombstones, which may or may not be there."""
    return {key: body for key, body in newest.items() if body}


async def test_the_log_waits_for_compaction_and_goes_and_consumers_read_what_is_left(
    local: LocalCluster,
) -> None:
    choose = random.Random(7)
    async with rockoon.connect(local.nameservers) as cluster:
        attributes = {"cleanup.policy": "COMPACTION"}
        await cluster.admin.create_topic(TOPIC, queues_per_broker=QUEUES, attributes=attributes)
        async with cluster.producer() as producer:
            sent = Sent(producer, choose)
            await sent.send(1000)
            told = await describe(cluster)
            assert told.log_max_offset > 3 * HASTY["commit_log_file_bytes"]
            assert (told.compaction.hold.topic, told.log_min_offset) == (TOPIC, 0)

            made = await compact(local, cluster)
            await answered(lambda: describe(cluster), lambda seen: seen.log_min_offset > 0)
            found = await read_all(cluster)
            assert newest_of(found) == sent.newest
            assert len(found) == made.records == len(sent.newest)

            await handled_by_a_group(cluster, sent, found)
            local.kill(BROKER)
            local.start(BROKER)
            assert newest_of(await read_all(cluster)) == sent.newest
            again = await compact(local, cluster)
            assert newest_of(await read_all(cluster)) == sent.newest
            assert again.replaces == made.generation


async def handled_by_a_group(
    cluster: rockoon.Cluster, sent: Sent, compacted: list[Message]
) -> None:
    """A group starts at the first offset, continues from a hole, and no loss is reported."""
    handled: list[Message] = []

    async def handle(message: Message) -> None:
        handled.append(message)

    async with cluster.push_consumer("g", {TOPIC: "*"}, handle, consume_from="first"):
        await eventually(lambda: len(handled) >= len(compacted))
    by_place = {(each.queue, each.queue_offset): each.body for each in handled}
    assert by_place == {(each.queue, each.queue_offset): each.body for each in compacted}

    first = compacted[0]
    hole = next(
        offset
        for offset in itertools.count(1)
        if (first.queue, offset) not in by_place and offset < first.queue_offset
    )
    async with cluster.pull_consumer("in-a-hole", consume_from="first") as member:
        await member.assign([first.queue])
        assert member.starts[first.queue].offset == 0, "where the queue began"
        await member.commit(first.queue, hole)
        lag = await cluster.admin.lag("in-a-hole", TOPIC)
        [of_queue] = [each for each in lag.queues if each.queue.queue_id == first.queue.queue_id]
        assert of_queue.known
        assert (of_queue.committed_offset, of_queue.lost) == (hole, 0)
        assert of_queue.lag == of_queue.max_offset - hole, "offsets are counted, holes among them"
        assert not of_queue.HasField("loss_ms"), "what is compacted does not go by age"
    async with cluster.pull_consumer("in-a-hole") as member:
        await member.assign([first.queue])
        start = member.starts[first.queue]
        assert (start.reason, start.offset, start.gap) == ("COMMITTED", hole, 0)
        [message] = await member.poll(1)
        assert message.queue_offset == first.queue_offset


@pytest.mark.parametrize("seed", seeds(1))
async def test_while_generations_are_swapped_a_reader_misses_nothing_newer(
    local: LocalCluster, seed: int
) -> None:
    choose = random.Random(seed)
    async with rockoon.connect(local.nameservers) as cluster:
        attributes = {"cleanup.policy": "COMPACTION"}
        await cluster.admin.create_topic(TOPIC, queues_per_broker=QUEUES, attributes=attributes)
        async with cluster.producer() as producer:
            sent = Sent(producer, choose)
            await sent.send(300)
            seen: list[Message] = []
            stopping = asyncio.Event()
            async with asyncio.TaskGroup() as tasks:
                reader = tasks.create_task(read_on(cluster, seen, stopping))
                for _ in range(4):
                    await sent.send(200)
                    await compact(local, cluster)
                stopping.set()
            assert reader.done()
        assert values(newest_of(seen)) == values(sent.newest)
        assert newest_of(seen).keys() >= sent.newest.keys()
        assert values(newest_of(await read_all(cluster))) == values(sent.newest)


async def read_on(cluster: rockoon.Cluster, seen: list[Message], stopping: asyncio.Event) -> None:
    """Read from the beginning, a few at a time, until all is read after the stop is requested."""
    async with cluster.pull_consumer(consume_from="first", limits=SMALL_PULLS) as consumer:
        await consumer.assign_all(TOPIC)
        while True:
            last_round = stopping.is_set()
            messages = await consumer.poll(7, timeout=0.2)
            seen += messages
            if last_round and not messages:
                return


@asynccontextmanager
async def calls_to(local: LocalCluster) -> AsyncIterator[RunningBroker]:
    address = local.node(BROKER).address
    async with aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        yield RunningBroker(address, channel, Stop())


@pytest.mark.parametrize("seed", seeds(1))
async def test_killed_while_a_generation_is_published_the_broker_has_one_or_the_other(
    local: LocalCluster, tmp_path: Path, seed: int
) -> None:
    choose = random.Random(seed)
    async with rockoon.connect(local.nameservers) as cluster:
        attributes = {"cleanup.policy": "COMPACTION"}
        await cluster.admin.create_topic(TOPIC, queues_per_broker=QUEUES, attributes=attributes)
        async with cluster.producer() as producer:
            sent = Sent(producer, choose)
            for number in range(1, 5):
                await sent.send(150)
                directory = await asyncio.to_thread(
                    made_elsewhere, store_of(local), tmp_path / f"copy-{number}"
                )
                async with calls_to(local) as broker:
                    manifest = await upload(broker, directory, f"job-{number}")
                    async with asyncio.TaskGroup() as tasks:
                        tasks.create_task(answered_or_not(broker, f"job-{number}", manifest))
                        await asyncio.sleep(choose.random() * 0.4)
                        await asyncio.to_thread(local.kill, BROKER)
                await asyncio.to_thread(local.start, BROKER)
                assert values(newest_of(await read_all(cluster))) == values(sent.newest)
                await publish_in_the_end(local, directory, f"again-{number}", manifest)
                assert (await state_of(cluster)).generation == number
                assert values(newest_of(await read_all(cluster))) == values(sent.newest)


async def answered_or_not(broker: RunningBroker, upload_id: str, manifest: bytes) -> None:
    with suppress(RockoonError):
        await publish(broker, upload_id, manifest)


async def publish_in_the_end(
    local: LocalCluster, directory: Path, upload_id: str, manifest: bytes
) -> None:
    """Repeat a call as a job does after a lost reply: ask again, and if necessary upload again."""
    async with calls_to(local) as broker:
        with suppress(RockoonError):
            await publish(broker, "nothing-uploaded", manifest)
            return
        await upload(broker, directory, upload_id)
        await publish(broker, upload_id, manifest)
