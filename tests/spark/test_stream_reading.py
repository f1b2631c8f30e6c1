"""Messages that a stream's tasks pull from a broker, without Spark."""

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rockoon.errors import BrokerUnavailable
from rockoon_core.message_queue import MessageQueue
from rockoon_spark.records.selection import EVERYTHING
from rockoon_spark.records.sent_columns import numbers_of
from rockoon_spark.source import queue_partition
from rockoon_spark.source.log_source import DamagedRange, DataLost, rows
from rockoon_spark.source.queue_partition import BatchRange, QueuePartition, QueuesPartition
from support.broker import RunningBroker, running_broker
from support.broker_routes import BrokerRoutes
from support.compaction import DAY_MS, compact_store
from support.eventually import answered
from support.seeds import seeds

FILE_BYTES = 16_384
SMALL = {"commit_log_file_bytes": FILE_BYTES}
QUEUE = MessageQueue("T", "broker-a", 0)


@pytest.fixture
async def nameserver() -> AsyncIterator[BrokerRoutes]:
    async with BrokerRoutes() as running:
        await running.create_topic("T", {"broker-a": 1})
        yield running


def partition(broker: RunningBroker, start: int, stop: int, **changes: Any) -> QueuePartition:
    chosen = {"route_revision": 0, "fails_on_data_loss": True, **changes}
    return QueuePartition(BatchRange(QUEUE, start, stop), broker.address, **chosen)


async def read(wanted: QueuePartition | QueuesPartition) -> list[bytes]:
    bodies, damages = await read_with_damage(wanted)
    assert not damages
    return bodies


async def read_with_damage(
    wanted: QueuePartition | QueuesPartition,
) -> tuple[list[bytes], list[DamagedRange]]:
    found = await asyncio.to_thread(lambda: list(wanted.read()))
    damages: list[DamagedRange] = []
    batches = rows(found, EVERYTHING, ["body"], damages.append)
    return [body for batch in batches for body in batch.column("body").to_pylist()], damages


@pytest.mark.parametrize("seed", seeds(1))
async def test_ranges_hold_every_message_once_however_many_pulls_they_take(
    tmp_path: Path, nameserver: BrokerRoutes, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        sent = [b"%d" % n + bytes(chance.choice([0, 40, 3000])) for n in range(60)]
        await broker.append("T", 0, *sent)
        for pull_bytes in (1, 2000, 1 << 20):
            monkeypatch.setattr(queue_partition, "_BYTES_PER_PULL", pull_bytes)
            cut = chance.randrange(1, 60)
            found = await read(partition(broker, 0, cut)) + await read(partition(broker, cut, 60))
            assert found == sent


@pytest.mark.parametrize("columns", [[], ["body"]])
async def test_holes_of_a_compacted_queue_are_passed_over(
    tmp_path: Path, nameserver: BrokerRoutes, columns: list[str]
) -> None:
    only = {"columns": numbers_of(columns)}
    await nameserver.set_attribute("T", "cleanup.policy", "COMPACTION")
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        bodies = [b"%d" % n for n in range(50)]
        await broker.append("T", 0, *bodies, keys=[f"k{n % 5}" for n in range(50)])
    compact_store(tmp_path, topics={"T": DAY_MS})
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        await broker.append("T", 0, b"50", b"51", keys=["k0", "k1"])
        found = await answered(
            lambda: read(partition(broker, 0, 52, **only)), lambda bodies: bodies[0] == b"45"
        )
        assert found == [*bodies[45:], b"50", b"51"]
        # A range may end in a hole, or consist of one.
        assert await read(partition(broker, 10, 47, **only)) == bodies[45:47]
        assert await read(partition(broker, 10, 20, **only)) == []


async def test_what_retention_takes_while_it_is_read_fails_the_read_or_is_left_out(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    async with running_broker(tmp_path, [nameserver.address], **SMALL) as broker:
        for n in range(8):
            await broker.append("T", 0, b"%d" % n + bytes(6000))
    (tmp_path / "commitlog" / f"{0:020d}").unlink()
    async with running_broker(tmp_path, [nameserver.address], **SMALL) as broker:
        sentence = "offsets 0 to 2 of queue T@broker-a:0 can no longer be read: retention"
        with pytest.raises(DataLost, match=sentence):
            await read(partition(broker, 0, 8))
        found = await read(partition(broker, 0, 8, fails_on_data_loss=False))
        assert [int(body.rstrip(b"\0")) for body in found] == list(range(2, 8))
        # All planned messages, and no others.
        assert await read(partition(broker, 0, 2, fails_on_data_loss=False)) == []


async def test_a_queue_that_ends_before_it_did_fails_the_read(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        await broker.append("T", 0, b"kept")
        with pytest.raises(DataLost, match=r"offsets 1 to 9 .*: the queue ends at 1"):
            await read(partition(broker, 0, 9))
        assert await read(partition(broker, 0, 9, fails_on_data_loss=False)) == [b"kept"]


async def test_a_topic_that_is_deleted_meanwhile_fails_the_read(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        await broker.append("T", 0, b"kept")
        revision = await nameserver.delete_topic("T")
        with pytest.raises(DataLost, match=r"offsets 0 to 1 .*: the queue was deleted"):
            await read(partition(broker, 0, 1, route_revision=revision))


async def test_a_topic_that_is_created_anew_meanwhile_fails_the_read(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        await broker.append("T", 0, b"old")
        create_revision = nameserver.topics["T"].incarnation
        planned = replace(partition(broker, 0, 1), range=BatchRange(QUEUE, 0, 1, create_revision))
        assert await read(planned) == [b"old"]
        await nameserver.delete_topic("T")
        revision = await nameserver.create_topic("T", {"broker-a": 1})
        await broker.append("T", 0, b"new", route_revision=revision)
        with pytest.raises(DataLost, match=r"offsets 0 to 1 .*: the queue was deleted"):
            await read(planned)
        assert await read(partition(broker, 0, 1)) == [b"new"]


async def test_a_message_that_is_damaged_fails_the_read_or_is_left_out(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        places = [(await broker.append("T", 0, b"%d" % n)).first_physical_offset for n in range(5)]
    # A new process, because the running one has the newest messages in memory.
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as log:
            log.seek(places[2] + 4)
            log.write(b"oops")
        found, damages = await read_with_damage(partition(broker, 0, 5))
        assert found == [b"0", b"1", b"3", b"4"]
        sentence = "offsets 2 to 3 of queue T@broker-a:0 can no longer be read: "
        assert [str(each).startswith(sentence) for each in damages] == [True]


async def test_a_broker_that_is_restarted_meanwhile_is_asked_again(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        await broker.append("T", 0, b"kept")
        address, wanted = broker.address, partition(broker, 0, 1)
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(read(wanted), name="reading")
        async with running_broker(tmp_path, [nameserver.address], listen=address):
            assert await reading == [b"kept"]


async def test_a_broker_that_moved_meanwhile_is_found_again(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        await broker.append("T", 0, b"kept")
        wanted = partition(broker, 0, 1, endpoint=nameserver.address)
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        assert broker.address != wanted.address
        assert await read(wanted) == [b"kept"]


async def test_a_broker_that_stays_away_is_named(
    tmp_path: Path, nameserver: BrokerRoutes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_partition, "READ_RETRY_SECONDS", 0.2)
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        wanted = partition(broker, 0, 1000)
    with pytest.raises(BrokerUnavailable, match="'broker-a' does not answer"):
        await read(wanted)
