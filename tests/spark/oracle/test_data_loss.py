"""Reads of messages that retention or the deletion of a topic has removed, with each value of
failOnDataLoss.

The test knows the messages of each acknowledgement, and which of them the remaining CommitLog files
have.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from rockoon.message import SendResult
from rockoon.sync import Cluster
from rockoon.testing.disposable import DisposableCluster
from support.spark_processes import patiently
from support.waiting import wait_until

BROKER = "broker-a"
FILE_BYTES = 64 << 10
SETTINGS = {
    "commit_log_file_bytes": FILE_BYTES,
    "disk_check_interval_ms": 20,
    "delete_when": ";".join(f"{hour:02}" for hour in range(24)),
}
BODY = bytes(1000)
QUEUES = 2
Key = tuple[int, int]
"""Queue id and queue offset of a message."""


@dataclass
class Retained:
    """A cluster whose retention deletes files when a test says so."""

    cluster: DisposableCluster
    connection: Cluster

    def send(self, topic: str, count: int) -> dict[Key, int]:
        """Send messages to the queues in turn, and return the physical offset of each.

        Args:
            count: a multiple of 10.
        """
        stored: list[SendResult] = []
        for _ in range(count // (5 * QUEUES)):
            for queue in self.connection.queues(topic):
                stored += self.connection.send_many(topic, [BODY] * 5, queue=queue)
        return {(each.queue.queue_id, each.queue_offset): each.physical_offset for each in stored}

    def send_files(self, topic: str) -> dict[Key, int]:
        """Send messages of several CommitLog files, the last of which has some of each queue."""
        sent = self.send(topic, 200)
        while (
            len({key[0] for key, offset in sent.items() if _file(offset) == _last(sent)}) < QUEUES
        ):
            sent |= self.send(topic, 10)
        return sent

    def expire(self, topic: str, sent: dict[Key, int]) -> set[Key]:
        """Let retention delete all CommitLog files but the last one; return the messages of a topic
        that remain."""
        settings = self.connection.admin.settings
        self.connection.call(settings.set("broker", "reserved_hours", "0"))
        wait_until(lambda: _file(self._log_start()) == _last(sent), "the deletion of old files")
        # All files expire, so there is nothing left to delete.
        self.connection.call(settings.unset("broker", "reserved_hours"))
        remaining = {key for key, offset in sent.items() if _file(offset) == _last(sent)}
        assert len(remaining) < len(sent)
        wait_until(lambda: self._firsts(topic) == first_of(remaining), "the queues' first offsets")
        return remaining

    def _log_start(self) -> int:
        files = (self.cluster.directory / BROKER / "commitlog").iterdir()
        return min(int(file.name) for file in files if file.name.isdigit())

    def _firsts(self, topic: str) -> dict[int, int]:
        queues = self.connection.call(self.connection.admin.describe_topic(topic)).queues
        return {each.queue.queue_id: each.state.min_offset for each in queues if each.state}


def _file(physical_offset: int) -> int:
    """Return the number of the CommitLog file that has an offset."""
    return physical_offset // FILE_BYTES


def _last(sent: dict[Key, int]) -> int:
    return _file(max(sent.values()))


def first_of(keys: set[Key]) -> dict[int, int]:
    """Return the first of the offsets of each queue."""
    return {queue: min(offset for each, offset in keys if each == queue) for queue in range(QUEUES)}


@pytest.fixture(scope="module")
def retained() -> Iterator[Retained]:
    with (
        DisposableCluster(settings={"broker": SETTINGS}) as cluster,
        cluster.connect() as connection,
    ):
        yield Retained(cluster, connection)


class Sink:
    """Keeps the messages of each batch that does not fail."""

    def __init__(self, checkpoint: Path) -> None:
        self.keys: list[Key] = []
        self.is_failing = False
        self._checkpoint = checkpoint

    def write(self, frame: DataFrame, _: int) -> None:
        found = [(row.queue, row.queue_offset) for row in frame.collect()]
        if self.is_failing:
            raise RuntimeError("the sink fails")
        self.keys += found

    def run(self, frame: DataFrame) -> list[Key]:
        """Run the stream until it has read all messages; return the messages of this run."""
        before = len(self.keys)
        writer = frame.writeStream.foreachBatch(self.write).trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(self._checkpoint))
        patiently(lambda: writer.start().awaitTermination())
        return sorted(self.keys[before:])


@dataclass
class Streams:
    """Runs of one stream over a topic, all with the same checkpoint."""

    spark: SparkSession
    endpoint: str
    topic: str
    sink: Sink

    def run(self, **options: str) -> list[Key]:
        given = {"endpoint": self.endpoint, "topics": self.topic, "startingOffsets": "earliest"}
        stream = self.spark.readStream.format("rockoon").options(**given, **options)
        return self.sink.run(stream.option("columns", "queue,queue_offset").load())

    def check_refused(self, *sentences: str) -> None:
        """Check that the stream ends with these sentences, and reads nothing."""
        before = list(self.sink.keys)
        with pytest.raises(PySparkException) as failure:
            self.run()
        for sentence in (*sentences, "failOnDataLoss=false"):
            assert re.search(sentence, str(failure.value))
        assert self.sink.keys == before


@pytest.fixture
def streams(spark: SparkSession, retained: Retained, tmp_path: Path) -> Streams:
    topic = retained.cluster.new_topic("lost", queues_per_broker=QUEUES)
    return Streams(spark, ",".join(retained.cluster.nameservers), topic, Sink(tmp_path))


def test_a_stream_whose_next_messages_expired_fails_or_continues_with_the_first_that_exists(
    retained: Retained, streams: Streams
) -> None:
    topic = streams.topic
    read = retained.send(topic, 20)
    assert streams.run() == sorted(read)
    unread = retained.send_files(topic)
    remaining = retained.expire(topic, unread)
    sentences = [
        f"offsets 10 to {first} of queue {topic}@{BROKER}:{queue} were deleted before they"
        for queue, first in first_of(remaining).items()
    ]
    streams.check_refused(*sentences)
    # The failure leaves the checkpoint as it was.
    streams.check_refused(*sentences)
    assert streams.run(failOnDataLoss="false") == sorted(remaining)
    later = retained.send(topic, 10)
    assert streams.run() == sorted(later)


def test_a_batch_whose_messages_expired_after_it_was_planned_fails_or_has_the_remaining_ones(
    retained: Retained, streams: Streams
) -> None:
    topic = streams.topic
    sent = retained.send_files(topic)
    streams.sink.is_failing = True
    with pytest.raises(PySparkException, match="the sink fails"):
        streams.run()
    streams.sink.is_failing = False
    remaining = retained.expire(topic, sent)
    streams.check_refused(
        rf"offsets 0 to \d+ of queue {topic}@{BROKER}:\d can no longer be read: retention deleted"
    )
    assert streams.run(failOnDataLoss="false") == sorted(remaining)
    later = retained.send(topic, 10)
    assert streams.run() == sorted(later)


def test_a_stream_of_a_topic_that_was_created_again_fails_or_reads_the_new_topic_once(
    retained: Retained, streams: Streams
) -> None:
    topic, admin = streams.topic, retained.connection.admin
    read = retained.send(topic, 20)
    assert streams.run() == sorted(read)
    retained.send(topic, 20)
    retained.connection.call(admin.delete_topic(topic))
    retained.connection.call(admin.create_topic(topic, queues_per_broker=QUEUES))
    new = retained.send(topic, 60)
    sentences = [
        f"queue {topic}@{BROKER}:{queue} was deleted and created again; the old one was read up to"
        " offset 10"
        for queue in range(QUEUES)
    ]
    streams.check_refused(*sentences)
    streams.check_refused(*sentences)
    assert streams.run(failOnDataLoss="false") == sorted(new)
    later = retained.send(topic, 10)
    assert streams.run() == sorted(later)


def test_a_planned_batch_read_fails_or_has_the_remaining_messages(
    spark: SparkSession, retained: Retained
) -> None:
    topic = retained.cluster.new_topic("lost", queues_per_broker=QUEUES)
    sent = retained.send_files(topic)

    def load(fails: str) -> DataFrame:
        options = {"endpoint": retained.cluster.nameservers[0], "topics": topic}
        reader = spark.read.format("rockoon").options(**options, failOnDataLoss=fails)
        return reader.option("columns", "queue,queue_offset").load()

    failing, skipping = load("true"), load("false")
    assert failing.count() == skipping.count() == len(sent)
    remaining = retained.expire(topic, sent)
    with pytest.raises(PySparkException, match=r"deleted .*failOnDataLoss=false"):
        failing.collect()
    found = [(row.queue, row.queue_offset) for row in skipping.collect()]
    assert sorted(found) == sorted(remaining)
