"""Reads of some topics of a live cluster: by queue, or by log. Without Spark."""

import asyncio
import pickle
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rockoon.errors import NotPermitted
from rockoon_proto.v1.broker_pb2 import ReadLogRequest
from rockoon_spark.broker_calls import LogClient, RepeatedCall
from rockoon_spark.records.selection import EVERYTHING, Range, Selection
from rockoon_spark.source import topic_plan
from rockoon_spark.source.broker_partition import BrokerPartition
from rockoon_spark.source.live_cluster import LiveCluster
from rockoon_spark.source.log_source import (
    GenerationReplaced,
    LogPartition,
    rows,
)
from rockoon_spark.source.queue_partition import QueuesPartition
from support.broker import running_broker
from support.broker_routes import BrokerRoutes
from support.compaction import DAY_MS, compact_store
from support.seeds import seeds

SMALL: dict[str, Any] = {"commit_log_file_bytes": 1 << 16}
Row = tuple[str, int, int, bytes, int]


@pytest.fixture
async def nameserver() -> AsyncIterator[BrokerRoutes]:
    async with BrokerRoutes() as running:
        for topic in ("rare", "common", "other"):
            await running.create_topic(topic, {"broker-a": 3})
        yield running


@pytest.fixture(autouse=True)
def cheap_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make calls for queues cheap, because the logs of these tests are short."""
    monkeypatch.setattr(topic_plan, "_QUEUE_COST", 0)


COLUMNS = ("topic", "queue", "queue_offset", "body", "store_time")


def read(partitions: Sequence[LogPartition], selection: Selection) -> list[Row]:
    def fail(damage: object) -> None:
        raise AssertionError(damage)

    found: list[Row] = []
    for partition in pickle.loads(pickle.dumps(partitions)):
        for batch in rows(partition.read(), selection, COLUMNS, fail):
            *others, times = (column.to_pylist() for column in batch.columns)
            times_ms = [round(time.timestamp() * 1000) for time in times]
            found += zip(*others, times_ms, strict=True)
    return sorted(found)


async def plan(
    nameserver: BrokerRoutes, selection: Selection, split_bytes: int = 1 << 20, **options: Any
) -> Sequence[LogPartition]:
    live = LiveCluster(nameserver.address, **options)
    return await asyncio.to_thread(live.partitions, selection, split_bytes, None, COLUMNS)


async def rows_of(nameserver: BrokerRoutes, selection: Selection, **options: Any) -> list[Row]:
    partitions = await plan(nameserver, selection, **options)
    return await asyncio.to_thread(read, partitions, selection)


def of_topics(*names: str) -> Selection:
    return EVERYTHING.among("topic", frozenset(names))


def with_bounds(selection: Selection, chance: random.Random) -> Selection:
    """Add offsets of some queues, and times."""
    for bounds in ("starts", "ends"):
        keys = [
            (topic, chance.choice(["", "broker-a"]), chance.randrange(3))
            for topic in selection.one_of.get("topic", ["rare"])
        ]
        chosen = {key: chance.randrange(120) for key in keys if chance.random() < 0.5}
        changes: dict[str, Any] = {bounds: chosen}
        selection = replace(selection, **changes)
    return selection


@pytest.mark.parametrize("seed", seeds(1))
async def test_reads_by_queue_and_by_log_have_the_rows_of_the_whole_log(
    tmp_path: Path, nameserver: BrokerRoutes, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    async with running_broker(tmp_path, [nameserver.address], **SMALL) as broker:
        for n in range(150):
            topic = chance.choices(["rare", "common", "other"], [1, 20, 5])[0]
            body = b"%d" % n + bytes(chance.choice([0, 30, 3000]))
            await broker.append(topic, chance.randrange(3), body)
        every = await rows_of(nameserver, EVERYTHING)
        assert len(every) == 150
        times = [row[4] for row in every]
        kinds = set()
        for _ in range(6):
            selection = chance.choice(
                [
                    of_topics("rare"),
                    of_topics("rare", "other"),
                    of_topics("common"),
                    replace(EVERYTHING, topic_pattern="*r"),
                    replace(EVERYTHING, topic_pattern="*"),
                ]
            )
            selection = with_bounds(selection, chance)
            low, high = sorted(chance.sample(times, 2))
            time_range = Range(low * 1000 - chance.randrange(2), high * 1000 + 1)
            if chance.random() < 0.5:
                selection = selection.ranged("store_time", time_range)
            # The whole log; the reader selects the rows.
            live = LiveCluster(nameserver.address)
            whole = await asyncio.to_thread(
                live.partitions_of, "broker-a", broker.address, selection, 5000
            )
            expected = await asyncio.to_thread(read, whole, selection)
            # Some records are larger than the smallest splits.
            for message_cost, split_bytes_min in ((0, 20_000), (1, 2000), (1 << 40, 20_000)):
                monkeypatch.setattr(topic_plan, "_MESSAGE_COST", message_cost)
                for split_bytes in (split_bytes_min, 1 << 20):
                    partitions = await plan(nameserver, selection, split_bytes)
                    kinds |= {type(each) for each in partitions}
                    found = await asyncio.to_thread(read, partitions, selection)
                    assert found == expected, (selection, message_cost, split_bytes)
        assert kinds == {BrokerPartition, QueuesPartition}


async def test_a_rare_topic_and_the_end_of_a_queue_carry_only_their_messages(
    tmp_path: Path, nameserver: BrokerRoutes, monkeypatch: pytest.MonkeyPatch
) -> None:
    carried = 0
    answer = RepeatedCall.answer

    def counted(call: RepeatedCall[Any, Any]) -> Any:
        nonlocal carried
        reply = answer(call)
        carried += reply.ByteSize()
        return reply

    async with running_broker(tmp_path, [nameserver.address], **SMALL) as broker:
        for n in range(100):
            await broker.append("common", n % 3, *[bytes(1000)] * 20)
            await broker.append("rare", n % 3, *[bytes(200)])
        log_bytes = (await broker.describe()).log_max_offset
        monkeypatch.setattr(RepeatedCall, "answer", counted)
        assert len(await rows_of(nameserver, of_topics("rare"))) == 100
        assert carried < log_bytes * 0.02
        carried = 0
        starts = {("common", "", queue): 600 for queue in range(3)}
        found = await rows_of(nameserver, replace(of_topics("common"), starts=starts))
        assert 0 < len(found) <= 240
        assert carried < len(found) * 1300
        # By log, because the topics are most of it.
        carried = 0
        starts = {("common", "", queue): 200 for queue in range(3)}
        found = await rows_of(nameserver, replace(of_topics("common"), starts=starts))
        assert len(found) == 1400
        assert carried < len(found) * 1300


async def test_a_topic_with_more_queues_than_a_call_may_name_is_read(
    tmp_path: Path, nameserver: BrokerRoutes, monkeypatch: pytest.MonkeyPatch
) -> None:
    await nameserver.create_topic("wide", {"broker-a": 5000})
    async with running_broker(tmp_path, [nameserver.address], **SMALL) as broker:
        await broker.append("common", 0, *[bytes(9)] * 50)
        for queue in (0, 4095, 4096, 4999):
            await broker.append("wide", queue, b"%d" % queue)
        # A call for each queue costs more than reading this log.
        for queue_cost, expected in ((0, QueuesPartition), (20, BrokerPartition)):
            monkeypatch.setattr(topic_plan, "_QUEUE_COST", queue_cost)
            partitions = await plan(nameserver, of_topics("wide"))
            assert [type(each) for each in partitions] == [expected]
            found = await asyncio.to_thread(read, partitions, of_topics("wide"))
            assert [row[1:4] for row in found] == [
                (queue, 0, b"%d" % queue) for queue in (0, 4095, 4096, 4999)
            ]


async def test_a_compaction_after_the_plan_fails_a_read_by_queue(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.set_attribute("rare", "cleanup.policy", "COMPACTION")
    selection = of_topics("rare")
    keys = [f"k{n % 5}" for n in range(50)]
    async with running_broker(tmp_path, [nameserver.address], **SMALL) as broker:
        await broker.append("rare", 0, *[b"%d" % n for n in range(50)], keys=keys)
        await broker.append("common", 0, *[bytes(9)] * 300)
        planned = await plan(nameserver, selection, compacted=True)
        assert [type(each) for each in planned] == [QueuesPartition]
        assert len(await asyncio.to_thread(read, planned, selection)) == 50
    compact_store(tmp_path, topics={"rare": DAY_MS})
    async with running_broker(tmp_path, [nameserver.address], **SMALL) as broker:
        await broker.until(lambda now: now.compaction.generation > 0)
        moved = [
            replace(each, parts=[replace(part, address=broker.address) for part in each.parts])
            for each in planned
            if isinstance(each, QueuesPartition)
        ]
        with pytest.raises(GenerationReplaced, match="queue rare@broker-a:0 was compacted"):
            await asyncio.to_thread(read, moved, selection)
        found = await rows_of(nameserver, selection, compacted=True)
        assert sorted(int(row[3]) for row in found) == list(range(45, 50))
        assert len(await rows_of(nameserver, selection, compacted=False)) == 50


async def test_an_older_broker_that_ignores_the_new_fields_gives_the_right_rows(
    tmp_path: Path, nameserver: BrokerRoutes, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = LogClient.ask

    def of_former_version(client: LogClient, request: ReadLogRequest) -> None:
        times = ("from_store_timestamp_ms", "until_store_timestamp_ms")
        for name in ("topics", "queues", *times, "columns"):
            request.ClearField(name)
        ask(client, request)

    async with running_broker(tmp_path, [nameserver.address], **SMALL) as broker:
        for n in range(60):
            await broker.append(["common", "other"][n % 2], n % 3, b"%d" % n)
        for selection in (of_topics("common"), with_bounds(of_topics("other"), random.Random(1))):
            expected = await rows_of(nameserver, selection)
            assert expected
            with monkeypatch.context() as patch:
                patch.setattr(LogClient, "ask", of_former_version)
                assert await rows_of(nameserver, selection) == expected


async def test_the_missing_permission_of_the_topic_is_named(
    nameserver: BrokerRoutes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_client: LogClient, request: ReadLogRequest) -> None:
        resource = "topic:rare" if request.topics else "cluster"
        raise NotPermitted(key="spark", action="read", resource=resource)

    monkeypatch.setattr(LogClient, "read", refuse)
    topics = topic_plan.SelectedTopics(("rare",), {}, 1)
    with pytest.raises(NotPermitted, match="topic:rare"):
        LiveCluster(nameserver.address).partitions_of(
            "broker-a", "127.0.0.1:1", of_topics("rare"), 1000, topics
        )
