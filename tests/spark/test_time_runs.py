"""Spark's reads of logs whose store times decrease, because a clock was wrong for long."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rockoon_spark.compaction.sources import first_stored_after
from rockoon_spark.jobs.index import build_index, verify_index
from rockoon_spark.records.columns import LogRecords
from rockoon_spark.records.selection import EVERYTHING, Range, Selection
from rockoon_spark.source.live_cluster import LiveCluster
from rockoon_spark.source.log_source import DamagedRange, LogPartition
from rockoon_spark.source.store_directory import StoreDirectory
from support.broker import running_broker
from support.broker_routes import BrokerRoutes
from support.key_index import SHAPE, Indexed, indexed_one_by_one, small_settings
from support.seeds import seeds
from support.store_directory import NOW_MS

YEAR_MS = 365 * 86_400_000


def some_wrong_years(owner: Indexed, choose: random.Random) -> None:
    """Append messages of a day, of a year with a wrong clock, and of the following days."""
    for set_by_ms in (0, YEAR_MS, -YEAR_MS, 0, 2 * YEAR_MS, -2 * YEAR_MS):
        owner.look_at_clock(set_by_ms)
        owner.send_random(choose, 40)


def stored_ms(partitions: Sequence[LogPartition], wanted: Selection) -> list[int]:
    found: list[int] = []
    for partition in partitions:
        for records in partition.read():
            assert isinstance(records, LogRecords), records
            found += records.store_timestamps_ms[wanted.mask(records)].tolist()
    return found


def check_ranges(cut: Callable[[Selection], Sequence[LogPartition]]) -> None:
    """Check that reads by time find all messages, and do not read the whole log."""
    everything = cut(EVERYTHING)
    times = stored_ms(everything, EVERYTHING)
    assert sum(after < before for before, after in pairwise(times)) == 2
    read = 0
    for first, last in ((5, 9), (50, 60), (90, 100), (130, 135), (170, 190), (230, 239), (10, 200)):
        sent = sorted(set(times))
        low, high = sent[first], sent[last]
        for least_ms, most_ms in ((low, high), (low, 1 << 50), (0, high)):
            wanted = EVERYTHING.ranged("store_time", Range(least_ms * 1000, most_ms * 1000))
            partitions = cut(wanted)
            read += len(partitions)
            assert stored_ms(partitions, wanted) == [
                time_ms for time_ms in times if least_ms <= time_ms <= most_ms
            ]
    assert read < 0.9 * 21 * len(everything)


@pytest.mark.parametrize("split_bytes", [3000, 16_384])
def test_a_store_is_read_by_times(tmp_path: Path, split_bytes: int) -> None:
    owner = Indexed(small_settings(tmp_path))
    some_wrong_years(owner, random.Random(1))
    owner.close()
    place = StoreDirectory(str(tmp_path), "broker-a")
    check_ranges(lambda selection: place.partitions(selection, split_bytes))


@pytest.fixture
async def nameserver() -> AsyncIterator[BrokerRoutes]:
    async with BrokerRoutes() as running:
        for topic in "TUV":
            await running.create_topic(topic, {"broker-a": 1})
        yield running


@pytest.mark.parametrize("split_bytes", [3000, 20_000])
async def test_a_broker_is_read_by_times(
    tmp_path: Path, nameserver: BrokerRoutes, split_bytes: int
) -> None:
    owner = Indexed(small_settings(tmp_path))
    some_wrong_years(owner, random.Random(2))
    owner.close()
    sizes = {"commit_log_file_bytes": 16_384, "consume_queue_file_entries": 10}
    async with running_broker(tmp_path, [nameserver.address], **sizes) as broker:
        place = LiveCluster(nameserver.address)

        def cut(selection: Selection) -> Sequence[LogPartition]:
            return place.partitions_of("broker-a", broker.address, selection, split_bytes)

        await asyncio.to_thread(check_ranges, cut)


@pytest.mark.parametrize("seed", seeds(1))
def test_the_index_by_key_is_the_brokers(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    choose = random.Random(seed)
    root, target = tmp_path / "broker-a", tmp_path / "index"
    owner = Indexed(small_settings(root))
    for _ in range(2):
        some_wrong_years(owner, choose)
        shape = {"slots": SHAPE.slots, "units": SHAPE.units}
        build_index(spark, str(root), target, **shape, sealed_only=False, split_bytes=7000)
        found = [path.read_bytes() for path in sorted(target.iterdir())]
        assert found == indexed_one_by_one(owner.every_key())
        owner.look_at_clock(choose.choice([0, YEAR_MS]))
    assert verify_index(spark, str(root), target) == []
    owner.open_index()
    owner.follow()
    owner.close()
    assert owner.files() == found


@pytest.mark.parametrize("seed", seeds(2))
def test_a_wrong_year_does_not_keep_a_compaction_back(tmp_path: Path, seed: int) -> None:
    choose = random.Random(seed)
    owner = Indexed(small_settings(tmp_path))
    some_wrong_years(owner, choose)
    end = owner.store.visible_end
    keys = owner.every_key()
    owner.close()
    partitions = StoreDirectory(str(tmp_path)).log().partitions(0, end, 2000)
    records = [
        (physical, time_ms)
        for partition in partitions
        for found in partition.read()
        if not isinstance(found, DamagedRange)
        for physical, time_ms in zip(
            found.prefix("physical_offset").tolist(),
            found.store_timestamps_ms.tolist(),
            strict=True,
        )
    ]
    today = max(physical for _, physical, time_ms in keys if time_ms > NOW_MS + YEAR_MS)
    for lag_s in (0, 1, 5, 15, 100, 230):
        time_ms = keys[-1][2] - 1000 * lag_s
        place = first_stored_after(partitions, time_ms, end)
        early = [physical for physical, stored in records if stored <= time_ms]
        # Compaction includes old messages after the years with the wrong clock, too.
        assert all(physical <= early[-1] for physical, _ in records if physical < place)
        assert lag_s > 15 or place > today
