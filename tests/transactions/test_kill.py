"""kill -9 in the middle of transactions: of the sender, and of the broker, over real processes.

Rule: each decision is executed exactly once, whichever process dies.
"""

import asyncio
import random
import sys
from collections import Counter
from pathlib import Path

import pytest

import rockoon
from rockoon import Message, Resolution
from rockoon.errors import RockoonError
from rockoon.local import LocalCluster
from rockoon.transactions.producer import TransactionalProducer
from support.seeds import seeds

SENDER = Path(__file__).resolve().parent.parent / "support" / "transaction_process.py"
TOPIC = "paid"
SECONDS_MAX = 60
LOOK_SECONDS = 0.05
TRANSACTIONS = 400
AT_ONCE = 8
KILLS = 3
SETTINGS = {
    "broker": {
        "flush": "sync",
        "commit_log_file_bytes": "4MiB",
        "transaction_timeout_ms": 300,
        "transaction_check_interval_ms": 300,
        "transaction_checks_max": 1000,
    }
}


class Books:
    """The local database: it has every message id whose transaction is decided."""

    def __init__(self) -> None:
        self.decided: dict[str, Resolution] = {}
        self.asked = 0

    def check(self, message: Message) -> Resolution:
        self.asked += 1
        # A missing transaction has never run, or has not ended.
        return self.decided.get(message.message_id, Resolution.ROLLBACK)


async def read_ids(cluster: rockoon.Cluster) -> Counter[str]:
    """Return how often each message id is stored in the topic."""
    ends = {
        each.queue: each.state.max_offset
        for each in (await cluster.admin.describe_topic(TOPIC)).queues
        if each.state is not None
    }
    found: Counter[str] = Counter()
    async with cluster.pull_consumer(consume_from="first") as consumer:
        await consumer.assign(list(ends))
        while found.total() < sum(ends.values()):
            found.update(message.message_id for message in await consumer.poll(timeout=1.0))
    return found


async def pending(cluster: rockoon.Cluster) -> int:
    """Return waiting half messages of the cluster's brokers; only some while one of them is
    away."""
    status = await cluster.admin.status()
    if any(each.broker is None for each in status.brokers) or not status.brokers:
        return 1
    return sum(each.broker.transactions_pending for each in status.brokers if each.broker)


async def until_none_pending(cluster: rockoon.Cluster) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        while await pending(cluster):
            await asyncio.sleep(LOOK_SECONDS)


async def test_a_sender_that_is_killed_is_answered_for_by_another_of_its_group(
    tmp_path: Path,
) -> None:
    books = Books()
    count = 6
    async with (
        LocalCluster(tmp_path / "cluster", settings=SETTINGS) as local,
        rockoon.connect(local.nameservers) as cluster,
    ):
        await cluster.admin.create_topic(TOPIC, queues_per_broker=2)
        sender = await asyncio.create_subprocess_exec(
            sys.executable,
            str(SENDER),
            ",".join(local.nameservers),
            "payers",
            TOPIC,
            str(count),
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            assert sender.stdout is not None
            async with asyncio.timeout(SECONDS_MAX):
                ids = [(await sender.stdout.readline()).decode().strip() for _ in range(count)]
        finally:
            sender.kill()
            await sender.wait()
        assert await pending(cluster) == count
        for number, message_id in enumerate(ids):
            books.decided[message_id] = Resolution.COMMIT if number % 2 else Resolution.ROLLBACK
        async with cluster.transactional_producer("payers", check=books.check):
            await until_none_pending(cluster)
        assert await read_ids(cluster) == Counter(ids[1::2])


async def send(producer: TransactionalProducer, books: Books, chance: random.Random) -> None:
    """Run one sender after another; random decisions, and some transactions without an end."""
    for _ in range(TRANSACTIONS // AT_ONCE):
        try:
            transaction = await producer.begin(TOPIC, b"x", check_after_seconds=0)
        except RockoonError as error:
            assert error.retriable, error
            continue
        resolution = chance.choice((Resolution.COMMIT, Resolution.ROLLBACK))
        books.decided[transaction.message_id] = resolution
        try:
            if chance.random() < 0.1:
                # As if this process had died here: another one replies.
                producer._open.pop(transaction.message_id)
            elif resolution is Resolution.COMMIT:
                await transaction.commit()
            else:
                await transaction.rollback()
        except RockoonError as error:
            assert error.retriable, error


@pytest.mark.parametrize("seed", seeds(1))
async def test_kill_nine_of_the_broker_commits_what_was_decided_and_nothing_twice(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    books = Books()
    async with (
        LocalCluster(tmp_path / "cluster", settings=SETTINGS) as local,
        rockoon.connect(local.nameservers) as cluster,
        cluster.transactional_producer("payers", check=books.check) as producer,
    ):
        await cluster.admin.create_topic(TOPIC, queues_per_broker=2)
        async with asyncio.TaskGroup() as tasks:
            senders = [
                tasks.create_task(send(producer, books, random.Random(chance.random())))
                for _ in range(AT_ONCE)
            ]
            for kill in range(KILLS):
                wanted = (kill + chance.random()) * TRANSACTIONS / (KILLS + 1)
                async with asyncio.timeout(SECONDS_MAX):
                    while len(books.decided) < wanted and not all(each.done() for each in senders):
                        await asyncio.sleep(LOOK_SECONDS / 10)
                await asyncio.to_thread(local.kill, "broker-a")
                await asyncio.to_thread(local.start, "broker-a", wait=False)
                await local.wait_ready("broker-a")
        await until_none_pending(cluster)
        found = await read_ids(cluster)
    committed = {key for key, value in books.decided.items() if value is Resolution.COMMIT}
    assert not committed - found.keys(), "committed, lost"
    assert not found.keys() - committed, "read, never committed"
    assert set(found.values()) == {1}, "committed twice"
    print(f"{len(committed)} of {len(books.decided)} committed; asked {books.asked} times")
