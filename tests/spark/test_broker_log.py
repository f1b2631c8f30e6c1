"""Reads of the whole log of a broker by calls, without Spark."""

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from rockoon_spark.records.record_run import LogBroken
from rockoon_spark.source.live_cluster import BrokerLog, LiveCluster
from rockoon_spark.source.log_source import ContiguousLog
from rockoon_spark.source.store_directory import Extent, check_complete, contiguous_log
from support.broker import RunningBroker, running_broker
from support.broker_routes import BrokerRoutes
from support.seeds import seeds

FILE_BYTES = 16_384
SMALL = {"commit_log_file_bytes": FILE_BYTES}


@pytest.fixture
async def nameserver() -> AsyncIterator[BrokerRoutes]:
    async with BrokerRoutes() as running:
        for topic in ("T", "GONE"):
            await running.create_topic(topic, {"broker-a": 1})
        yield running


async def look(broker: RunningBroker, nameserver: BrokerRoutes) -> BrokerLog:
    found = await asyncio.to_thread(LiveCluster(nameserver.address).log)
    assert found.address == broker.address
    return found


async def read(log: ContiguousLog, stop: int, split_bytes: int) -> bytes:
    """Return the records up to `stop`, concatenated."""

    def walk() -> bytes:
        frames, extents = [], []
        for partition in log.partitions(log.start, stop, split_bytes):
            extent: Extent = None
            for run in partition.runs():
                frames.append(run.content[: run.stop])
                extent = (extent[0] if extent else run.base, run.base + run.stop)
            extents.append(extent)
        check_complete(log, log.start, stop, extents)
        return b"".join(frames)

    return await asyncio.to_thread(walk)


@pytest.mark.parametrize("seed", seeds(1))
async def test_it_is_what_the_files_hold_wherever_it_is_cut(
    tmp_path: Path, nameserver: BrokerRoutes, seed: int
) -> None:
    chance = random.Random(seed)
    async with running_broker(tmp_path, [nameserver.address], **SMALL) as broker:
        for n in range(40):
            await broker.append("T", 0, b"%d" % n + bytes(chance.choice([0, 40, 3000])))
            await broker.append("GONE", 0, b"gone")
        await nameserver.delete_topic("GONE")
        await broker.until(lambda described: described.topics == 1)
        await broker.append("T", 0, bytes(9000))
        await broker.append("T", 0, bytes(9000))
        served = await look(broker, nameserver)
        files = contiguous_log(str(tmp_path))
        assert served.start == files.start
        assert served.sealed_end == files.sealed_end > FILE_BYTES
        assert served.marks == files.marks
        for stop in (served.sealed_end, served.end):
            expected = await read(files, stop, FILE_BYTES)
            for split_bytes in (1 << 20, *chance.sample(range(500, 20_000), 3)):
                assert await read(served, stop, split_bytes) == expected, (stop, split_bytes)
        assert expected.count(b"gone") == 40


async def test_damage_is_told_wherever_it_is_cut(tmp_path: Path, nameserver: BrokerRoutes) -> None:
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        places = [(await broker.append("T", 0, b"%d" % n)).first_physical_offset for n in range(5)]
        with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as log:
            log.seek(places[3] + 4)
            log.write(b"oops")
        served = await look(broker, nameserver)
        # In the middle of a partition, and at the start of a partition.
        for split_bytes in (1 << 20, places[3], places[2] + 1):
            with pytest.raises(LogBroken, match=f"'broker-a': physical offsets {places[3]} to"):
                await read(served, served.end, split_bytes)
        assert await read(served, places[3], places[1])


async def test_what_retention_or_a_crash_took_is_told(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    async with running_broker(tmp_path, [nameserver.address], **SMALL) as broker:
        for n in range(8):
            await broker.append("T", 0, b"%d" % n + bytes(6000))
        address = broker.address
        served = await look(broker, nameserver)
    (tmp_path / "commitlog" / f"{0:020d}").unlink()
    async with running_broker(tmp_path, [nameserver.address], listen=address, **SMALL) as broker:
        with pytest.raises(LogBroken, match=f"deleted physical offsets 0 to {FILE_BYTES} .* again"):
            await read(served, served.end, 1 << 20)
        assert (await look(broker, nameserver)).start == FILE_BYTES
        longer = replace(served, start=FILE_BYTES, sealed_end=FILE_BYTES, end=served.end + 99)
        sentence = f"lost physical offsets {served.end} to {served.end + 99}"
        with pytest.raises(LogBroken, match=sentence):
            await read(longer, longer.end, 1 << 20)
