"""Messages by key and id while brokers are killed: all acknowledged ones, and no others."""

import asyncio
import random
from pathlib import Path

import pytest

import rockoon
from rockoon.admin.stored_messages import FoundMessages
from rockoon.local import LocalCluster
from rockoon.message import SendResult
from support.seeds import seeds
from support.waiting import DEADLINE_SECONDS

ROUNDS = 3
MESSAGES_PER_ROUND = 400
KEYS = 20


async def asked_until_whole(cluster: rockoon.Cluster, key: str) -> FoundMessages:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            found = await cluster.admin.messages.query("T", key, max_messages=1024)
            if found.whole:
                return found


@pytest.mark.parametrize("seed", seeds(1))
async def test_every_acknowledged_message_is_found_after_kills(tmp_path: Path, seed: int) -> None:
    choose = random.Random(seed)
    # Small files: full files, and keys of a message in two of them, occur.
    settings = {"broker": {"index_slots": "100", "index_units": "300", "flush": "async"}}
    async with (
        LocalCluster(tmp_path, brokers=2, settings=settings) as local,
        rockoon.connect(local.nameservers) as cluster,
    ):
        await cluster.admin.create_topic("T", queues_per_broker=2)
        sent: dict[str, list[SendResult]] = {f"k{number}": [] for number in range(KEYS)}
        async with cluster.producer() as producer:
            for _ in range(ROUNDS):
                for _ in range(MESSAGES_PER_ROUND):
                    keys = choose.sample(sorted(sent), choose.randrange(1, 4))
                    result = await producer.send("T", b"x", keys=keys)
                    for key in keys:
                        sent[key].append(result)
                broker = choose.choice(local.brokers)
                await asyncio.to_thread(local.kill, broker)
                await asyncio.to_thread(local.start, broker)
        for key, results in sent.items():
            found = await asked_until_whole(cluster, key)
            # A send that was retried can be stored twice, with one id.
            assert {each.message_id for each in found.messages} == {
                each.message_id for each in results
            }
            times = [each.store_timestamp_ms for each in found.messages]
            assert times == sorted(times, reverse=True)
        one = sent["k0"][0]
        by_place = await cluster.admin.messages.get(one.offset_message_id)
        by_id = await cluster.admin.messages.get(one.message_id, topic="T")
        assert [each.body for each in by_place.messages] == [b"x"]
        assert one.message_id in {each.message_id for each in by_id.messages}
