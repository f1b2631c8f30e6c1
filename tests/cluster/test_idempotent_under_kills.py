"""kill -9 of a broker under an idempotent producer: every message is stored once, none is lost."""

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest

import rockoon
from rockoon.local import LocalCluster
from rockoon.producer.producer import Producer
from support.seeds import seeds

TOPIC = "once"
BROKER = "broker-a"
QUEUES = 4
KILLS = 3
SECONDS_MAX = 60
LOOK_SECONDS = 0.005
# Enough that the broker always writes, so that a kill hits batches at every stage.
BUFFERED_MAX = 4000
BODY_BYTES = 500


class Load:
    """Send numbered messages, every third with a key; each must be acknowledged in the end."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self.sent = 0
        self.acknowledged = 0
        self.stopping = False

    async def run(self) -> None:
        waiting: asyncio.Queue[rockoon.Receipt | None] = asyncio.Queue()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._take(waiting), name="take")
            while not self.stopping:
                while self.sent - self.acknowledged < BUFFERED_MAX:
                    body = (b"%d " % self.sent).ljust(BODY_BYTES, b"x")
                    key = str(self.sent % 7) if self.sent % 3 == 0 else None
                    waiting.put_nowait(self._producer.send(TOPIC, body, ordering_key=key))
                    self.sent += 1
                await asyncio.sleep(LOOK_SECONDS)
            waiting.put_nowait(None)

    async def _take(self, waiting: "asyncio.Queue[rockoon.Receipt | None]") -> None:
        while (receipt := await waiting.get()) is not None:
            await receipt
            self.acknowledged += 1


async def until_acknowledged(load: Load, count: int) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        while load.acknowledged < count:
            await asyncio.sleep(LOOK_SECONDS)


async def read_everything(cluster: rockoon.Cluster) -> tuple[Counter[str], Counter[int]]:
    """Return how often each message id, and each number, is stored."""
    ids: Counter[str] = Counter()
    numbers: Counter[int] = Counter()
    described = await cluster.admin.describe_topic(TOPIC)
    missing = sum(each.state.max_offset for each in described.queues if each.state is not None)
    async with cluster.pull_consumer() as consumer:
        await consumer.assign_all(TOPIC)
        await consumer.seek_to_beginning()
        while missing:
            batch = await consumer.poll_batch(timeout=SECONDS_MAX)
            assert batch is not None, f"{missing} messages are not there"
            ids.update(message.message_id for message in batch)
            numbers.update(int(message.body.partition(b" ")[0]) for message in batch)
            missing -= len(batch)
    return ids, numbers


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", seeds(1))
async def test_kill_nine_of_the_broker_stores_every_message_of_an_idempotent_producer_once(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    settings = {"broker": {"flush": "sync", "commit_log_file_bytes": "8MiB"}}
    async with (
        LocalCluster(tmp_path / "cluster", brokers=1, settings=settings) as local,
        rockoon.connect(local.nameservers) as cluster,
    ):
        await cluster.admin.create_topic(TOPIC, queues_per_broker=QUEUES)
        async with (
            cluster.producer(
                idempotent=True, delivery_timeout_seconds=SECONDS_MAX, batch_messages_max=50
            ) as producer,
            asyncio.TaskGroup() as tasks,
        ):
            load = Load(producer)
            tasks.create_task(load.run(), name="load")
            for _ in range(KILLS):
                await until_acknowledged(load, load.acknowledged + chance.randrange(500, 8000))
                await asyncio.to_thread(local.kill, BROKER)
                await asyncio.to_thread(local.start, BROKER, wait=False)
                await local.wait_ready(BROKER)
            await until_acknowledged(load, load.acknowledged + 500)
            load.stopping = True
        ids, numbers = await read_everything(cluster)
    assert load.acknowledged == load.sent
    assert numbers.keys() == set(range(load.sent))
    copies = sum(count - 1 for count in numbers.values())
    assert set(ids.values()) == set(numbers.values()) == {1}, f"{copies} copies"
    print(f"{KILLS} kills, {load.sent} messages, each stored once")
