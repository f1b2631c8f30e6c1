"""Columns that a broker cuts from its records: the same rows as from whole records."""

import asyncio
import random
import zlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rockoon_broker.rpc import log_reads
from rockoon_core import errors
from rockoon_core.message_queue import MessageQueue
from rockoon_format.batch import encode_batch
from rockoon_format.record import SYS_FLAG_COMPRESSED, encode_host
from rockoon_proto.v1 import broker_pb2 as pb
from rockoon_spark.broker_calls import RepeatedCall
from rockoon_spark.records.columns import COLUMNS
from rockoon_spark.records.selection import EVERYTHING, Range, Selection
from rockoon_spark.records.sent_columns import SentColumns, numbers_of
from rockoon_spark.source import queue_partition
from rockoon_spark.source.broker_partition import BrokerPartition
from rockoon_spark.source.live_cluster import LiveCluster
from rockoon_spark.source.log_source import DamagedRange, rows
from rockoon_spark.source.queue_partition import BatchRange, QueuePartition
from rockoon_spark.source.topic_plan import SelectedTopics
from support.broker import NOW_MS, RunningBroker, running_broker
from support.broker_routes import BrokerRoutes
from support.kernels import BOTH, needs_compiled, using
from support.seeds import seeds

FILE_BYTES = 16_384
SMALL = {"commit_log_file_bytes": FILE_BYTES}
CUT = [name for name in COLUMNS if numbers_of([name])]
PLAIN = [
    b"",
    b"TAGS\x01red\x02",
    b"KEYS\x01k1 k2\x02TAGS\x01\xc3\xa4\x02",
    b"UNIQ_KEY\x01u\x02a\x01b\x02",
]
SELECTED = EVERYTHING.among("topic", frozenset({"T"}))


@pytest.fixture
async def nameserver() -> AsyncIterator[BrokerRoutes]:
    async with BrokerRoutes() as running:
        for topic in ("T", "U"):
            await running.create_topic(topic, {"broker-a": 2})
        yield running


async def append(broker: RunningBroker, chance: random.Random, odd_one_in: int) -> None:
    """Append a message; with a probability, one whose reader must have the whole record."""
    body, section = bytes(chance.choice([0, 1, 40, 3000])), chance.choice(PLAIN)
    topic, host, sys_flag = chance.choice("TTU"), "127.0.0.1", 0
    if odd_one_in and chance.randrange(odd_one_in) == 0:
        body, sys_flag = zlib.compress(body), SYS_FLAG_COMPRESSED
    elif odd_one_in and chance.randrange(odd_one_in) == 0:
        section = b"KEYS\x01\xff\x02"
    if chance.randrange(4) == 0:
        host = "::1"
    queue_id, born_ms = chance.randrange(2), NOW_MS - chance.randrange(10_000)
    frames, lengths = encode_batch(
        topic.encode(),
        queue_id,
        [body],
        [section],
        born_ms,
        encode_host(host, 5),
        flags=chance.randrange(9),
        sys_flags=sys_flag,
        room=chance.random() < 0.5,
    )
    packed = np.asarray(lengths, "<u4").tobytes()
    request = pb.AppendRequest(topic=topic, queue_id=queue_id, frames=frames, record_lengths=packed)
    await broker.call("Append", request)


def partitions_of(
    broker: RunningBroker, bounds: Sequence[int], columns: Sequence[str]
) -> list[BrokerPartition]:
    wanted = pb.ReadLogRequest(topics=["T"], columns=numbers_of(columns))
    return [
        BrokerPartition(
            broker="broker-a",
            address=broker.address,
            endpoint="127.0.0.1:1",
            start=start,
            stop=stop,
            at_record=start == 0,
            wanted=wanted,
        )
        for start, stop in pairwise(bounds)
    ]


def read(
    partitions: Sequence[BrokerPartition | QueuePartition], columns: Sequence[str]
) -> tuple[list[dict[str, Any]], int, list[DamagedRange]]:
    """Return the rows, the number of batches that were sent as columns, and the damage."""
    found: list[dict[str, Any]] = []
    damages: list[DamagedRange] = []
    sent = 0
    for partition in partitions:
        parts = list(partition.read())
        sent += sum(isinstance(each, SentColumns) for each in parts)
        for batch in rows(parts, SELECTED, columns, damages.append):
            batch.validate(full=True)
            found += batch.to_pylist()
    return found, sent, damages


@pytest.mark.parametrize("choice", BOTH)
@pytest.mark.parametrize("odd_one_in", [0, 12])
@pytest.mark.parametrize("seed", seeds(1))
async def test_sent_columns_equal_those_of_whole_records(
    tmp_path: Path,
    nameserver: BrokerRoutes,
    monkeypatch: pytest.MonkeyPatch,
    choice: str,
    odd_one_in: int,
    seed: int,
) -> None:
    chance = random.Random(seed)
    sent_of_all = 0
    with using(choice):
        async with running_broker(tmp_path, [nameserver.address], **SMALL) as broker:
            for _ in range(120):
                await append(broker, chance, odd_one_in)
            end = (await broker.describe()).log_max_offset
            assert end > FILE_BYTES
            whole = partitions_of(broker, [0, end], [])
            expected, none, _ = await asyncio.to_thread(read, whole, list(COLUMNS))
            assert none == 0
            for _ in range(8):
                monkeypatch.setattr(log_reads, "PIECE_BYTES", chance.choice([500, 5000, 1 << 20]))
                columns = chance.sample([*CUT, "broker"], chance.randint(2, 8))
                bounds = [0, *sorted(chance.sample(range(1, end), chance.randrange(4))), end]
                parts = partitions_of(broker, bounds, columns)
                found, sent, damages = await asyncio.to_thread(read, parts, columns)
                assert found == [{name: row[name] for name in columns} for row in expected]
                assert not damages
                sent_of_all += sent
    assert (sent_of_all > 0) == (choice == "compiled")


def ranges_of(
    broker: RunningBroker, ends: Sequence[int], chance: random.Random, columns: Sequence[str]
) -> list[QueuePartition]:
    """Return partitions of the queues of T, cut at random."""
    found = []
    for number, end in enumerate(ends):
        bounds = [0, *sorted(chance.sample(range(1, end), chance.randrange(4))), end]
        for start, stop in pairwise(bounds):
            whole = BatchRange(MessageQueue("T", "broker-a", number), start, stop)
            found.append(QueuePartition(whole, broker.address, 0, True, None, numbers_of(columns)))
    return found


@pytest.mark.parametrize("choice", BOTH)
@pytest.mark.parametrize("odd_one_in", [0, 12])
@pytest.mark.parametrize("seed", seeds(1))
async def test_sent_columns_of_a_queue_equal_those_of_whole_records(
    tmp_path: Path,
    nameserver: BrokerRoutes,
    monkeypatch: pytest.MonkeyPatch,
    choice: str,
    odd_one_in: int,
    seed: int,
) -> None:
    chance = random.Random(seed)
    sent_of_all = 0
    with using(choice):
        async with running_broker(tmp_path, [nameserver.address], **SMALL) as broker:
            for _ in range(120):
                await append(broker, chance, odd_one_in)
            ends = [(await broker.pull("T", number)).max_offset for number in (0, 1)]
            whole = ranges_of(broker, ends, chance, [])
            expected, none, _ = await asyncio.to_thread(read, whole, list(COLUMNS))
            assert (len(expected), none) == (sum(ends), 0)
            for _ in range(8):
                pull_bytes = chance.choice([1, 5000, 1 << 20])
                monkeypatch.setattr(queue_partition, "_BYTES_PER_PULL", pull_bytes)
                columns = chance.sample([*CUT, "broker"], chance.randint(2, 8))
                parts = ranges_of(broker, ends, chance, columns)
                found, sent, damages = await asyncio.to_thread(read, parts, columns)
                assert found == [{name: row[name] for name in columns} for row in expected]
                assert not damages
                sent_of_all += sent
    assert (sent_of_all > 0) == (choice == "compiled")


@needs_compiled
async def test_a_damaged_body_is_found_only_if_the_columns_need_it(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        places = [
            (await broker.append("T", 0, b"%d" % n + bytes(50))).first_physical_offset
            for n in range(6)
        ]
        with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as log:
            log.seek(places[2] + 95)
            log.write(b"oops")
        end = (await broker.describe()).log_max_offset
        for columns, lost in ((["queue_offset"], []), (["queue_offset", "body"], [2])):
            parts = partitions_of(broker, [0, end], columns)
            found, sent, damages = await asyncio.to_thread(read, parts, columns)
            assert [row["queue_offset"] for row in found] == [n for n in range(6) if n not in lost]
            assert [each.start for each in damages] == [places[n] for n in lost]
            assert bool(sent) == (not lost)
    # A new process, because the running one has the newest messages in memory.
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        for columns, lost in ((["queue_offset"], []), (["queue_offset", "body"], [2])):
            parts = ranges_of(broker, [6], random.Random(0), columns)
            found, sent, damages = await asyncio.to_thread(read, parts, columns)
            assert [row["queue_offset"] for row in found] == [n for n in range(6) if n not in lost]
            assert len(damages) == len(lost)
            assert sent


async def test_a_column_of_a_newer_client_is_answered_with_records(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        await broker.append("T", 0, b"body")
        # An enum of an older version keeps numbers that it does not know.
        request = pb.ReadLogRequest.FromString(
            pb.ReadLogRequest(at_record=True, end_offset=1, topics=["T"]).SerializeToString()
            + b"\x5a\x01\x63"
        )
        assert list(request.columns) == [99]
        reply = await broker.call("ReadLog", request)
        assert (bool(reply.frames), list(reply.columns)) == (True, [])
        request = pb.ReadLogRequest(at_record=True, end_offset=1, columns=[pb.COLUMN_QUEUE] * 2)
        with pytest.raises(errors.InvalidArgument, match="named twice"):
            await broker.call("ReadLog", request)
        request = pb.ReadLogRequest(at_record=True, end_offset=1, columns=[pb.COLUMN_QUEUE] * 257)
        with pytest.raises(errors.InvalidArgument, match="257 columns, more than 256"):
            await broker.call("ReadLog", request)
        with pytest.raises(errors.InvalidArgument, match="named twice"):
            await broker.pull("T", columns=[pb.COLUMN_QUEUE] * 2)


BY_QUEUE = {("T", "", 0): 3}
SELECTIONS: dict[str, tuple[Selection, bool]] = {
    "topics": (SELECTED, True),
    "pattern": (replace(EVERYTHING, topic_pattern="T*"), True),
    "whole milliseconds": (SELECTED.ranged("store_time", Range(5000, 9999)), True),
    "half a millisecond": (SELECTED.ranged("store_time", Range(5500, 9999)), False),
    "tags": (SELECTED.among("tags", frozenset({"red"})), False),
    "first offsets": (replace(SELECTED, starts=BY_QUEUE), False),
    "end offsets": (replace(SELECTED, ends=BY_QUEUE), False),
    "assigned queues": (replace(SELECTED, assigned=frozenset(BY_QUEUE)), False),
}


@pytest.mark.parametrize("name", SELECTIONS)
def test_columns_are_asked_for_only_if_the_broker_selects_exactly(name: str) -> None:
    selection, is_exact = SELECTIONS[name]
    topics = SelectedTopics(("T",), {}, 0)
    request = topics.log_request(selection, "broker-a", ["body", "broker", "keys"])
    asked = [pb.COLUMN_BODY, pb.COLUMN_KEYS] if is_exact else []
    assert list(request.columns) == asked
    # Properties and hosts need whole records.
    assert not topics.log_request(selection, "broker-a", ["body", "properties"]).columns


@needs_compiled
async def test_a_read_of_two_columns_carries_only_these_in_a_batch_for_each_mib_of_the_log(
    tmp_path: Path, nameserver: BrokerRoutes, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0
    answer = RepeatedCall.answer

    def counted(call: RepeatedCall[Any, Any]) -> Any:
        nonlocal calls
        calls += 1
        return answer(call)

    async with running_broker(tmp_path, [nameserver.address]) as broker:
        for _ in range(60):
            await broker.append("T", 0, *[bytes(1000)] * 50)
        log_bytes = (await broker.describe()).log_max_offset
        live = LiveCluster(nameserver.address)
        columns = ["queue_offset", "store_time"]
        plan = live.partitions
        [partition] = await asyncio.to_thread(plan, SELECTED, 1 << 26, None, columns)
        monkeypatch.setattr(RepeatedCall, "answer", counted)
        parts = await asyncio.to_thread(lambda: list(partition.read()))
        sizes = [each.message.ByteSize() for each in parts if isinstance(each, SentColumns)]
        # A piece of the log ends with its last whole record.
        assert len(sizes) == len(parts) <= -(-log_bytes // ((1 << 20) - 2000))
        # One call reads up to 16 MiB of the log; the last call finds the end.
        assert calls <= 2
        assert 48_000 <= sum(sizes) < 50_000
        tables = [each.to_batch(columns) for each in parts if isinstance(each, SentColumns)]
        offsets = pa.Table.from_batches(tables).column("queue_offset").to_pylist()
        assert offsets == list(range(3000))
