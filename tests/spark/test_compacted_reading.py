"""Reads of compacted topics: the active generation, then the log."""

import asyncio
import pickle
import random
import secrets
import shutil
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rockoon.testing.disposable import DisposableCluster
from rockoon_broker.store.settings import Flush
from rockoon_format.batch import encode_batch
from rockoon_format.generation import (
    CURRENT_FILE,
    GENERATIONS_DIRECTORY,
    encode_current,
)
from rockoon_spark.compaction.broker_target import broker_targets
from rockoon_spark.files import StoreReadError
from rockoon_spark.generations.broker_generation import BrokerGeneration
from rockoon_spark.generations.parts import GenerationPartition
from rockoon_spark.jobs.compact import compact_on
from rockoon_spark.records.selection import EVERYTHING, Selection
from rockoon_spark.source.broker_partition import BrokerPartition
from rockoon_spark.source.file_partition import FilePartition
from rockoon_spark.source.live_cluster import LiveCluster
from rockoon_spark.source.log_source import (
    DamagedRange,
    DataLost,
    GenerationReplaced,
    LogPartition,
    rows,
)
from rockoon_spark.source.store_directory import StoreDirectory
from support.broker import running_broker
from support.broker_routes import BrokerRoutes
from support.compaction import compact_store
from support.seeds import seeds
from support.store_directory import BORN_HOST, NOW_MS, Owner, batch_of, settings
from support.task_exchange import OneProcess

FILE_BYTES = 8192
COMPACTED = {"prices": 86_400_000, "stocks": 86_400_000}


@dataclass(frozen=True)
class Sent:
    topic: str
    queue: int
    queue_offset: int
    physical_offset: int
    key: str
    body: bytes


@dataclass
class History:
    """A store, and all messages that were sent to it."""

    root: Path
    sent: list[Sent] = field(default_factory=list)
    end: int = 0
    log_start: int = 0
    covered_to: int = 0
    """End offset of the last compaction."""

    def append(self, messages: Sequence[tuple[str, int, str, bytes]]) -> None:
        """Send messages: topic, queue, key, body."""
        owner = Owner(settings(self.root, commit_log_file_bytes=FILE_BYTES, flush=Flush.ASYNC))
        for topic, queue, key, body in messages:
            properties = f"KEYS\x01{key}\x02".encode() if key else b""
            frames, lengths = encode_batch(
                topic.encode(), queue, [body], [properties], NOW_MS, BORN_HOST
            )
            at = owner.store.append(
                batch_of(topic, queue, frames, lengths), NOW_MS + len(self.sent)
            )
            self.sent.append(
                Sent(topic, queue, at.first_queue_offset, at.first_physical_offset, key, body)
            )
            self.end = at.end_offset
        owner.store.close()

    def drop(self, topic: str) -> None:
        owner = Owner(settings(self.root, commit_log_file_bytes=FILE_BYTES, flush=Flush.ASYNC))
        owner.store.drop_topics(topic)
        owner.store.close()
        self.sent = [each for each in self.sent if each.topic != topic]

    def compact(self) -> Path:
        generation = compact_store(self.root, topics=COMPACTED, records_per_part=20, links=True)
        take_into_force(self.root, int(generation.name))
        self.covered_to = self.end
        return generation

    def delete_files(self, below: int) -> None:
        """Delete files as retention does."""
        for file in sorted((self.root / "commitlog").iterdir()):
            if int(file.name) + FILE_BYTES <= below:
                file.unlink()
                self.log_start = int(file.name) + FILE_BYTES

    def in_log(self) -> list[Sent]:
        return [each for each in self.sent if each.physical_offset >= self.log_start]

    def left(self) -> list[Sent]:
        """Return the messages that a consumer receives."""
        newest = {
            (each.topic, each.key): each
            for each in self.sent
            if each.physical_offset < self.covered_to
        }
        return [
            each
            for each in self.sent
            if (each in self.in_log() if each.topic not in COMPACTED else True)
            and (
                each.topic not in COMPACTED
                or each.physical_offset >= self.covered_to
                or not each.key
                or newest[each.topic, each.key] == each
            )
        ]


def take_into_force(root: Path, number: int) -> None:
    """Activate a generation as the broker does."""
    (root / GENERATIONS_DIRECTORY / CURRENT_FILE).write_bytes(encode_current(number))


def some(chance: random.Random, count: int) -> list[tuple[str, int, str, bytes]]:
    return [
        (
            chance.choice(["prices", "stocks", "plain"]),
            chance.randrange(3),
            chance.choice(["", *(f"k{n}" for n in range(12))]),
            chance.randbytes(chance.choice([0, 10, 400])),
        )
        for _ in range(count)
    ]


def place(history: History, *, compacted: bool = True) -> StoreDirectory:
    return StoreDirectory(str(history.root), "broker-a", compacted)


def read(
    partitions: Sequence[LogPartition], selection: Selection = EVERYTHING
) -> tuple[list[tuple[str, int, int, bytes]], list[DamagedRange]]:
    damages: list[DamagedRange] = []
    found = []
    columns = ["topic", "queue", "queue_offset", "body"]
    for partition in pickle.loads(pickle.dumps(partitions)):
        for batch in rows(partition.read(), selection, columns, damages.append):
            found += [tuple(row.values()) for row in batch.to_pylist()]
    return sorted(found), damages


def as_read(sent: Sequence[Sent]) -> list[tuple[str, int, int, bytes]]:
    return sorted((each.topic, each.queue, each.queue_offset, each.body) for each in sent)


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(tmp_path / "broker-a")


@pytest.mark.parametrize("seed", seeds(1))
def test_a_reader_gets_what_a_consumer_gets_however_it_is_split(
    history: History, seed: int
) -> None:
    chance = random.Random(seed)
    for _ in range(4):
        history.append(some(chance, chance.randrange(1, 120)))
        history.compact()
        history.append(some(chance, chance.randrange(1, 40)))
        for split_bytes in (700, 5000, 1 << 20):
            found = read(place(history).partitions(EVERYTHING, split_bytes))
            assert found == (as_read(history.left()), [])
        history.delete_files(chance.randrange(history.covered_to))
        assert read(place(history).partitions(EVERYTHING, 5000))[0] == as_read(history.left())
        whole = read(place(history, compacted=False).partitions(EVERYTHING, 5000))
        assert whole == (as_read(history.in_log()), [])


def test_a_topic_that_was_deleted_since_is_not_read_from_its_generation(history: History) -> None:
    history.append([("prices", 0, "a", b"old"), ("stocks", 0, "a", b"kept")])
    history.compact()
    history.drop("prices")
    history.append([("prices", 0, "a", b"anew")])
    assert [body for *_, body in read(place(history).partitions(EVERYTHING, 999))[0]] == [
        b"anew",
        b"kept",
    ]


def test_conditions_leave_out_queues_and_the_covered_log(history: History) -> None:
    chance = random.Random(7)
    history.append(some(chance, 300))
    history.compact()
    history.append(some(chance, 20))
    directory = place(history)
    everything = directory.partitions(EVERYTHING, 2000)
    of_first = [
        rows_of([x])
        for x in everything
        if isinstance(x, GenerationPartition) and x.part.number == 0
    ]
    assert sum(of_first) == 20
    assert len(of_first) > 1
    assert set(of_first[:-1]) == {of_first[0]}
    for selection, of_parts in [
        (EVERYTHING.among("topic", frozenset({"prices"})), 1 / 2),
        (Selection(topic_pattern="pri*"), 1 / 2),
    ]:
        partitions = directory.partitions(selection, 2000)
        expected = [each for each in history.left() if selection.wants_topic(each.topic)]
        assert read(partitions, selection) == (as_read(expected), [])
        assert rows_of(partitions) <= rows_of(everything) * of_parts + 10
    # The log below the end of the generation is not read if the generation has all wanted topics.
    only = directory.partitions(EVERYTHING.among("topic", frozenset({"prices", "stocks"})), 2000)
    log = [each for each in only if isinstance(each, FilePartition)]
    assert min(each.stop for each in log) > history.covered_to
    assert directory.partitions(EVERYTHING.among("topic", frozenset({"plain"})), 2000) == [
        each for each in everything if isinstance(each, FilePartition)
    ]


def rows_of(partitions: Sequence[LogPartition]) -> int:
    """Return how many records of a generation are read."""
    return sum(
        rows.stop - rows.start
        for each in partitions
        if isinstance(each, GenerationPartition)
        for rows in each.rows
    )


@pytest.mark.parametrize("at", [4, 0, 30, -9, 100])
def test_a_damaged_record_of_a_generation_is_told_and_the_others_are_read(
    history: History, at: int
) -> None:
    history.append([("prices", 0, f"k{n}", b"%d" % n + bytes(300)) for n in range(30)])
    generation = history.compact()
    sizes = history.sent[8].physical_offset - history.sent[7].physical_offset
    with (generation / "00000.records").open("r+b") as records:
        records.seek(7 * sizes + at % sizes)
        records.write(b"")
    for split_bytes in (sizes, 1 << 20):
        found, damages = read(place(history).partitions(EVERYTHING, split_bytes))
        assert found == as_read([*history.sent[:7], *history.sent[8:]])
        assert [(each.start, each.end) for each in damages] == [
            (history.sent[7].physical_offset, history.sent[8].physical_offset)
        ]


def test_a_generation_that_is_replaced_while_it_is_read_says_so(history: History) -> None:
    history.append([("prices", 0, "a", b"old")])
    former = history.compact()
    partitions = place(history).partitions(EVERYTHING, 999)
    history.append([("prices", 0, "a", b"new")])
    history.compact()
    shutil.rmtree(former)
    with pytest.raises(GenerationReplaced, match="read again"):
        read(partitions)
    assert [body for *_, body in read(place(history).partitions(EVERYTHING, 999))[0]] == [b"new"]


def test_a_generation_that_nobody_took_into_force_is_not_read(history: History) -> None:
    history.append([("prices", 0, "a", b"1"), ("prices", 0, "a", b"2")])
    compact_store(history.root, topics=COMPACTED)
    assert len(read(place(history).partitions(EVERYTHING, 999))[0]) == 2


def test_a_damaged_manifest_is_an_error_and_not_an_empty_topic(history: History) -> None:
    history.append([("prices", 0, "a", b"1")])
    manifest = history.compact() / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"generation": 1', b'"generation": 2'))
    with pytest.raises(StoreReadError, match="option compacted=false reads the log"):
        place(history).partitions(EVERYTHING, 999)
    assert len(read(place(history, compacted=False).partitions(EVERYTHING, 999))[0]) == 1


def test_a_file_that_retention_takes_before_it_is_read_is_a_loss(history: History) -> None:
    history.append([("plain", 0, "", b"%d" % n + bytes(3000)) for n in range(6)])
    partitions = place(history).partitions(EVERYTHING, 1 << 20)
    history.delete_files(FILE_BYTES)
    with pytest.raises(DataLost, match=r"0{20} was deleted.*failOnDataLoss=false"):
        read(partitions)
    partitions = [
        replace(each, fails_on_data_loss=False)
        for each in partitions
        if isinstance(each, FilePartition)
    ]
    assert read(partitions) == (as_read(history.in_log()), [])


def test_a_log_that_grows_while_it_is_read_gives_what_was_there(history: History) -> None:
    history.append([("plain", 0, "", b"%d" % n + bytes(1500)) for n in range(12)])
    before = list(history.sent)
    partitions = place(history).partitions(EVERYTHING, 3000)
    # The last file becomes full, and a new one begins.
    history.append([("plain", 0, "", b"%d" % n + bytes(1500)) for n in range(12)])
    found, damages = read(partitions)
    assert not damages
    assert set(as_read(before)) <= set(found) < set(as_read(history.sent))


# A running broker.


@pytest.fixture
async def nameserver() -> AsyncIterator[BrokerRoutes]:
    async with BrokerRoutes() as running:
        for topic in ("prices", "stocks"):
            await running.create_topic(topic, {"broker-a": 3}, cleanup_policy="COMPACTION")
        await running.create_topic("plain", {"broker-a": 3})
        yield running


@pytest.mark.parametrize("seed", seeds(1))
async def test_a_live_broker_is_read_alike(
    history: History, nameserver: BrokerRoutes, seed: int
) -> None:
    chance = random.Random(seed)
    history.append(some(chance, 150))
    history.compact()
    history.append(some(chance, 40))
    history.delete_files(history.covered_to // 2)
    small = {"commit_log_file_bytes": FILE_BYTES, "consume_queue_file_entries": 10}
    async with running_broker(history.root, [nameserver.address], **small) as broker:

        async def cut(
            compacted: bool, selection: Selection, split_bytes: int
        ) -> Sequence[LogPartition]:
            live = LiveCluster(nameserver.address, compacted=compacted)
            place = ("broker-a", broker.address)
            return await asyncio.to_thread(live.partitions_of, *place, selection, split_bytes)

        for compacted, expected in [(True, history.left()), (False, history.in_log())]:
            for split_bytes in (700, 1 << 20):
                partitions = await cut(compacted, EVERYTHING, split_bytes)
                assert await asyncio.to_thread(read, partitions) == (as_read(expected), [])
        only = EVERYTHING.among("topic", frozenset({"prices"}))
        partitions = await cut(True, only, 700)
        assert (
            min(x.start for x in partitions if isinstance(x, BrokerPartition)) == history.covered_to
        )
        expected = [each for each in history.left() if each.topic == "prices"]
        assert await asyncio.to_thread(read, partitions, only) == (as_read(expected), [])
        part = next(each for each in partitions if isinstance(each, GenerationPartition))
        assert isinstance(part.files, BrokerGeneration)
        gone = replace(part, files=replace(part.files, number=99))
        with pytest.raises(
            GenerationReplaced, match="generation 99 of broker 'broker-a' was replaced"
        ):
            await asyncio.to_thread(read, [gone])


def test_a_cluster_that_was_compacted_is_a_dataframe_of_the_newest_versions(
    spark: SparkSession, cluster: DisposableCluster
) -> None:
    topic = f"packages-{secrets.token_hex(4)}"
    with cluster.connect() as connection:
        attributes = {"cleanup.policy": "COMPACTION"}
        connection.call(connection.admin.create_topic(topic, attributes=attributes))

        def send(version: int, packages: Iterable[int]) -> None:
            for number in packages:
                name = f"package-{number}"
                connection.send(topic, b"%d" % version, keys=name, ordering_key=name)

        send(1, range(20))
        send(2, range(0, 20, 2))
        endpoint = ",".join(cluster.nameservers)
        for broker in broker_targets(endpoint):
            compact_on(OneProcess(), broker)
        send(3, range(0, 20, 5))

    def versions(compacted: str) -> list[tuple[str, int]]:
        options = {"endpoint": endpoint, "topics": topic, "compacted": compacted}
        frame = spark.read.format("rockoon").options(**options, columns="keys,body").load()
        return sorted((row.keys, int(row.body)) for row in frame.collect())

    newest = {f"package-{n}": 2 - n % 2 for n in range(20)}
    later = [(f"package-{n}", 3) for n in range(0, 20, 5)]
    assert versions("true") == sorted([*newest.items(), *later])
    assert len(versions("false")) == 20 + 10 + 4
