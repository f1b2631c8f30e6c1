"""Compaction of running brokers, with only the network in common."""

import itertools
import random
from collections.abc import Iterator, Sequence
from functools import partial

import pytest
from pyspark.sql import SparkSession

import rockoon.sync
from rockoon.local.cluster import LocalCluster
from rockoon.sync import Cluster
from rockoon_format.generation import Manifest
from rockoon_spark.compaction.broker_target import BrokerTarget, broker_targets
from rockoon_spark.compaction.directory_target import DirectoryTarget
from rockoon_spark.compaction.sources import CompactionError, FormerPart
from rockoon_spark.jobs.compact import CompactReport, compact, compact_on
from support.task_exchange import OneProcess
from support.waiting import wait_until

SETTINGS = {"commit_log_file_bytes": 64 << 10, "consume_queue_file_entries": 100}
KEYS = [f"k{number}" for number in range(40)]
BROKERS = ("broker-a", "broker-b")
SPLIT_BYTES = 20_000
PART_BYTES = 10_000
names = itertools.count()


@pytest.fixture(scope="module")
def local() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=2, settings={"broker": SETTINGS}) as running:
        yield running


@pytest.fixture(scope="module")
def connection(local: LocalCluster) -> Iterator[Cluster]:
    with rockoon.sync.connect(local.nameservers) as connected:
        yield connected


def endpoint(local: LocalCluster) -> str:
    return ",".join(local.nameservers)


def run(place: BrokerTarget, min_lag_ms: int = 0) -> CompactReport:
    return compact_on(
        OneProcess(), place, min_lag_ms, split_bytes=SPLIT_BYTES, part_bytes=PART_BYTES
    )


class Topic:
    """A compacted topic, and the last body of each key."""

    def __init__(self, connection: Cluster, name: str = "", **attributes: str) -> None:
        self.name = name or f"compacted-{next(names)}"
        self.newest: dict[str, bytes] = {}
        self._connection = connection
        self._numbers = itertools.count(1)
        connection.call(
            connection.admin.create_topic(
                self.name,
                queues_per_broker=2,
                attributes={"cleanup.policy": "COMPACTION", **attributes},
            )
        )

    def send(self, choose: random.Random, count: int) -> None:
        """Send messages; all messages of a key are in one queue, so on one broker."""

        async def send() -> None:
            async with self._connection.asyncio.producer() as producer:
                receipts = []
                for _ in range(count):
                    key = choose.choice(KEYS)
                    body = b"" if choose.random() < 0.2 else b"%200d" % next(self._numbers)
                    receipts.append(producer.send(self.name, body, keys=key, ordering_key=key))
                    self.newest[key] = body
                for receipt in receipts:
                    await receipt

        self._connection.call(send())

    def read(self, *, last: bool = False) -> dict[str, bytes]:
        """Read all messages up to the present end.

        Args:
            last: True to keep the last message of each key; False to check that each key occurs
                once.
        """

        async def read() -> dict[str, bytes]:
            cluster = self._connection.asyncio
            description = await cluster.admin.describe_topic(self.name)
            ends = {each.queue: each.state.max_offset for each in description.queues if each.state}
            found: dict[str, bytes] = {}
            async with cluster.pull_consumer(consume_from="first") as consumer:
                await consumer.assign_all(self.name)
                while any(consumer.position(queue) < end for queue, end in ends.items()):
                    for message in await consumer.poll(timeout=0.1):
                        [key] = message.keys
                        assert last or key not in found
                        found[key] = message.body
            return found

        return self._connection.call(read())


def test_both_brokers_are_compacted_again_and_again_and_consumers_read_the_newest(
    spark: SparkSession, local: LocalCluster, connection: Cluster
) -> None:
    choose = random.Random(3)
    topic = Topic(connection)
    for number in (1, 2):
        topic.send(choose, 300)
        places = broker_targets(endpoint(local))
        assert [place.broker for place in places] == list(BROKERS)
        for place in places:
            # One run by Spark is enough: each takes seconds.
            by_spark = (place.broker, number) == ("broker-a", 2)
            report = compact(spark, place, split_bytes=100_000) if by_spark else run(place)
            assert (report.generation, report.is_new) == (number, True)
        assert topic.read() == topic.newest


def serves(place: BrokerTarget, generation: int) -> bool:
    return manifest_of(place).generation == generation


def manifest_of(place: BrokerTarget) -> Manifest:
    former = place.inspect(OneProcess(), min_lag_ms=0, split_bytes=SPLIT_BYTES).former
    assert former is not None
    return former


def test_of_two_runs_at_once_the_later_one_is_refused_and_the_next_works(
    local: LocalCluster, connection: Cluster
) -> None:
    choose = random.Random(4)
    topic = Topic(connection)
    topic.send(choose, 100)
    place, *_ = broker_targets(endpoint(local), "broker-a")
    number = run(place).generation

    class Overtaken(BrokerTarget):
        """A run that publishes after another run has published."""

        def former_parts(self, manifest: Manifest) -> Sequence[FormerPart]:
            topic.send(choose, 50)
            assert run(place).generation == number + 1
            return super().former_parts(manifest)

    topic.send(choose, 50)
    with pytest.raises(CompactionError, match=f"generation {number + 1} is active"):
        run(Overtaken(place.endpoint, place.broker, place.address))
    run(place)
    other, *_ = broker_targets(endpoint(local), "broker-b")
    run(other)
    assert topic.read() == topic.newest


def test_messages_too_young_wait_for_the_next_run(local: LocalCluster, connection: Cluster) -> None:
    choose = random.Random(5)
    topic = Topic(connection)
    topic.send(choose, 100)
    for place in broker_targets(endpoint(local)):
        former = place.inspect(OneProcess(), min_lag_ms=0, split_bytes=SPLIT_BYTES).former
        report = run(place, min_lag_ms=3_600_000)
        assert report.log_end == (former.log_end if former else 0)
        run(place)
    assert topic.read() == topic.newest


def test_tombstones_whose_time_is_over_go_with_the_next_run(
    local: LocalCluster, connection: Cluster
) -> None:
    choose = random.Random(6)
    topic = Topic(connection, **{"delete.retention.ms": "0"})
    topic.send(choose, 200)
    places = broker_targets(endpoint(local))
    for place in places:
        run(place)
    # A new consumer sees each deletion once.
    assert topic.read() == topic.newest
    gone = {key for key, body in topic.newest.items() if not body}
    assert gone
    dropped = sum(run(place).tombstones_dropped for place in places)
    assert dropped == len(gone)
    assert set(topic.read()) == set(topic.newest) - gone


def test_a_topic_that_was_deleted_and_made_anew_has_nothing_from_before(
    local: LocalCluster, connection: Cluster
) -> None:
    choose = random.Random(7)
    topic = Topic(connection)
    topic.send(choose, 100)
    places = broker_targets(endpoint(local))
    for place in places:
        run(place)
    connection.call(connection.admin.delete_topic(topic.name))
    again = Topic(connection, name=topic.name)
    again.send(choose, 10)
    for place in places:
        report = run(place)
        assert manifest_of(place).generation == report.generation
    assert again.read() == again.newest
    # The call and the directory have the same identity of the log.
    for place in places:
        store = DirectoryTarget(local.directory / place.broker)
        seen = store.inspect(OneProcess(), min_lag_ms=0, split_bytes=SPLIT_BYTES)
        told = place.inspect(OneProcess(), min_lag_ms=0, split_bytes=SPLIT_BYTES)
        assert (seen.log_end, seen.log_tail) == (told.log_end, told.log_tail)
        assert seen.retention_ms == told.retention_ms


def test_a_store_is_compacted_while_its_broker_runs_which_takes_it_over(
    local: LocalCluster, connection: Cluster
) -> None:
    choose = random.Random(8)
    topic = Topic(connection)
    topic.send(choose, 100)
    for place in broker_targets(endpoint(local)):
        report = compact_on(OneProcess(), DirectoryTarget(local.directory / place.broker))
        wait_until(partial(serves, place, report.generation), "the broker takes it over")
    assert topic.read() == topic.newest


def test_files_that_a_broker_has_are_not_sent_to_it_again(
    local: LocalCluster, connection: Cluster
) -> None:
    choose = random.Random(9)
    topic = Topic(connection)
    topic.send(choose, 300)
    places = broker_targets(endpoint(local))
    for place in places:
        run(place)
    for number in range(3):
        topic.send(choose, 3)
        reports = [run(place) for place in places]
        assert sum(report.bytes_written for report in reports) < sum(
            report.bytes_linked for report in reports
        ), number
        for place, report in zip(places, reports, strict=True):
            assert manifest_of(place).generation == report.generation
        assert topic.read() == topic.newest
