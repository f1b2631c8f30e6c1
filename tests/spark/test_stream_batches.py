"""Batches of a stream of a real cluster, planned and read with Spark's calls, without Spark."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from rockoon.consumer.push_consumer import PushConsumer
from rockoon.errors import ConsumeDisabled
from rockoon.sync import Cluster
from rockoon.testing.disposable import DisposableCluster
from rockoon_proto.v1.nameserver_pb2 import CONSUME_FROM_LAST, GroupConfig, StartPolicy
from rockoon_proto.v1.offset_pb2 import ResetTarget
from rockoon_spark.source.log_source import (
    BrokerAway,
    DataLost,
)
from rockoon_spark.source.option_table import OptionError
from rockoon_spark.stream import cluster as stream_cluster
from rockoon_spark.stream.group_progress import GroupFenced, GroupInUse
from rockoon_spark.stream.options import StreamOptions
from rockoon_spark.stream.plan import CheckpointError, StreamOffsets
from rockoon_spark.stream.reader import QueueStreamReader
from support.whole_topics import every_message


@pytest.fixture(scope="module")
def connection(cluster: DisposableCluster) -> Iterator[Cluster]:
    with cluster.connect() as connected:
        yield connected


class Played:
    """Makes the calls of Spark: plans a batch, reads it, and keeps the checkpoint.

    Attributes:
        offset: content of the checkpoint.
        planned: start and end of the last planned batch.
    """

    def __init__(self, cluster: DisposableCluster, offset: Any = None, **options: object) -> None:
        chosen = {"endpoint": ",".join(cluster.nameservers), "columns": "body", **options}
        self.reader = QueueStreamReader({name: str(value) for name, value in chosen.items()})
        self.offset = offset or self.reader.initialOffset()
        self.planned: tuple[Any, Any] | None = None
        self.tasks = 0

    def __enter__(self) -> "Played":
        return self

    def __exit__(self, *_: object) -> None:
        self.reader.stop()

    def plan(self) -> bool:
        """Plan a batch; return whether there is one."""
        limit = self.reader.getDefaultReadLimit()
        end = json.loads(json.dumps(self.reader.latestOffset(self.offset, limit)))
        self.planned = (self.offset, end)
        return bool(end != self.offset)

    def planned_backlog(self) -> int:
        """Return the number of messages that the last plan found."""
        ends = StreamOffsets.parse(self.reader.reportLatestOffset() or {"version": 2, "queues": {}})
        done = StreamOffsets.parse(self.offset).queues
        return sum(each.offset - done[queue].offset for queue, each in ends.queues.items())

    def run(self) -> list[int]:
        """Read the planned batch, which is then finished; return its numbers."""
        assert self.planned is not None
        start, end = self.planned
        partitions = self.reader.partitions(start, end)
        self.tasks = len(partitions)
        found = [
            int(body)
            for each in partitions
            for batch in self.reader.read(each)
            for body in batch.column("body").to_pylist()
        ]
        self.offset = end
        return sorted(found)

    def batch(self) -> list[int] | None:
        """Return the numbers of the next batch; None if there is no batch."""
        return self.run() if self.plan() else None

    def batches(self) -> list[list[int]]:
        """Return the numbers of all batches until there is no batch."""
        return list(iter(self.batch, None))


def numbers(first: int, behind: int) -> list[bytes]:
    return [b"%d" % n for n in range(first, behind)]


def lag(connection: Cluster, group: str) -> int:
    return int(connection.call(connection.admin.lag(group)).total_lag)


def test_a_stream_begins_where_it_is_told(cluster: DisposableCluster, connection: Cluster) -> None:
    topic = cluster.new_topic("begins", queues_per_broker=1)
    for queue in connection.queues(topic):
        connection.send_many(topic, numbers(0, 10), queue=queue)
    early = max(message.store_timestamp_ms for message in every_message(connection, topic))
    connection.send(topic, b"10", queue=connection.queues(topic)[0])

    def first(**options: object) -> list[int] | None:
        with Played(cluster, topics=topic, **options) as stream:
            return stream.batch()

    everything = sorted([*range(11), *range(10)])
    assert first() == first(startingOffsets="latest") == []
    assert first(startingOffsets="earliest") == everything
    by_queue: dict[str, object] = {topic: {"0": 8, "broker-b:0": 9}}
    assert first(startingOffsets=json.dumps(by_queue)) == [8, 9, 9, 10]
    by_queue = {topic: {"broker-a:0": -1, "broker-b:0": -2}}
    assert first(startingOffsets=json.dumps(by_queue)) == list(range(10))
    assert first(startingTimestamp=early + 1) == [10]
    assert first(startingTimestamp="2020-01-01") == everything
    with pytest.raises(DataLost, match="ends at offset 11: offsets from there to 12 are lost"):
        first(startingOffsets=json.dumps({topic: {"broker-a:0": 12}}))
    with pytest.raises(OptionError, match="has no queue '7'"):
        first(startingOffsets=json.dumps({topic: {"7": 0}}))


def test_a_stream_of_assigned_queues_reads_no_other_and_begins_at_their_times(
    cluster: DisposableCluster, connection: Cluster
) -> None:
    topic = cluster.new_topic("assigned", queues_per_broker=2)
    queues = {(queue.broker, queue.queue_id): queue for queue in connection.queues(topic)}
    for queue in queues.values():
        connection.send_many(topic, numbers(0, 3), queue=queue)
    newest = max(message.store_timestamp_ms for message in every_message(connection, topic))
    sent: list[int] = []
    while not sent or sent[-1] == newest:
        receipt = connection.send(topic, b"3", queue=queues["broker-a", 0])
        sent.append(receipt.store_timestamp_ms)
    assign = json.dumps({topic: [0, "broker-b:1"]})
    with Played(cluster, assign=assign, startingOffsets="earliest") as stream:
        assert stream.batch() == sorted([0, 1, 2] * 3 + [3] * len(sent))
        connection.send(topic, b"4", queue=queues["broker-a", 1])
        connection.send(topic, b"5", queue=queues["broker-b", 1])
        assert until_all(stream, 1) == [5]
        offset = stream.offset
    # A queue that is assigned later is new: it is read from its beginning. One that is no longer
    # assigned is no loss.
    with Played(cluster, offset, assign=json.dumps({topic: [1]})) as stream:
        assert stream.batch() == [0, 1, 2, 4]
    times = json.dumps({topic: {"broker-a:0": newest + 1}})
    with Played(cluster, topics=topic, startingOffsetsByTimestamp=times) as stream:
        assert stream.batch() == sorted([3] + [0, 1, 2] * 3 + [4, 5])
    with (
        Played(cluster, assign=json.dumps({topic: [0, 7]})) as stream,
        pytest.raises(
            OptionError, match=r"option assign: .* has no queue '7', .*; its queues: 0, 1"
        ),
    ):
        stream.plan()
    with (
        Played(cluster, subscribe=topic[:-1]) as stream,
        pytest.raises(OptionError, match=f"does not exist; did you mean '{topic}'"),
    ):
        stream.plan()


def test_a_batch_waits_for_enough_messages_but_not_longer_than_the_delay(
    cluster: DisposableCluster, connection: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = cluster.new_topic("patient", queues_per_broker=1)
    connection.send_many(topic, numbers(0, 2))
    options = {"topics": topic, "startingOffsets": "earliest", "minOffsetsPerTrigger": 5}
    with Played(cluster, **options, maxTriggerDelay="1h") as stream:
        # The first batch does not wait.
        assert stream.batch() == [0, 1]
        connection.send_many(topic, numbers(2, 5))
        assert not stream.plan()
        connection.send_many(topic, numbers(5, 7))
        assert until_all(stream, 1) == [2, 3, 4, 5, 6]
        connection.send(topic, b"7")
        while not stream.planned_backlog():
            assert not stream.plan()
        monkeypatch.setattr(stream.reader, "_batch_at", time.monotonic() - 3600)
        assert stream.batch() == [7]
        connection.send(topic, b"8")
        # A trigger that reads all available messages does not wait.
        stream.reader.prepareForTriggerAvailableNow()
        assert stream.batch() == [8]


def test_latest_is_the_moment_of_the_first_plan(
    cluster: DisposableCluster, connection: Cluster
) -> None:
    topic = cluster.new_topic("latest")
    connection.send_many(topic, numbers(0, 10))
    with Played(cluster, topics=topic) as stream:
        assert stream.plan()
        planned = stream.planned
    connection.send_many(topic, numbers(10, 20))
    # The driver died before it ran the batch: the next driver finds it in the checkpoint.
    with Played(cluster, topics=topic) as stream:
        stream.planned = planned
        assert stream.run() == []
        assert stream.batch() == list(range(10, 20))


def test_a_batch_has_no_more_than_it_may_and_is_read_by_as_many_tasks_as_wanted(
    cluster: DisposableCluster, connection: Cluster
) -> None:
    topic = cluster.new_topic("limits", queues_per_broker=2)
    connection.send_many(topic, numbers(0, 1000))
    options = {"topics": topic, "startingOffsets": "earliest"}
    with Played(cluster, **options, maxOffsetsPerTrigger=300, minPartitions=9) as stream:
        found = []
        while (batch := stream.batch()) is not None:
            found.append(batch)
            assert stream.tasks >= 9
        assert [len(batch) for batch in found] == [300, 300, 300, 100]
        assert sorted(number for batch in found for number in batch) == list(range(1000))
    body_bytes = 2000
    connection.send_many(topic, [b"%0*d" % (body_bytes, n) for n in range(200)])
    with Played(cluster, stream.offset, **options, maxBytesPerTrigger=100_000) as stream:
        sizes = [len(batch) * body_bytes for batch in stream.batches()]
        assert sum(sizes) == 200 * body_bytes
        assert max(sizes) <= 100_000
        assert len(sizes) <= 6
    connection.send_many(topic, numbers(0, 3))
    with Played(cluster, stream.offset, **options, maxBytesPerTrigger=1) as stream:
        assert [len(batch) for batch in stream.batches()] == [1, 1, 1]
    # A trigger that reads all available messages reads it.
    connection.send_many(topic, numbers(0, 10))
    with Played(cluster, stream.offset, **options, maxOffsetsPerTrigger=1) as stream:
        stream.planned = (
            stream.offset,
            stream.reader.latestOffset(stream.offset, ReadAllAvailable()),
        )
        assert stream.run() == list(range(10))


def test_a_run_over_what_is_available_ends_with_what_there_was_when_it_began(
    cluster: DisposableCluster, connection: Cluster
) -> None:
    topic = cluster.new_topic("now")
    connection.send_many(topic, numbers(0, 10))
    options = {"topics": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 4}
    with Played(cluster, **options) as stream:
        stream.reader.prepareForTriggerAvailableNow()
        connection.send_many(topic, numbers(10, 20))
        found = stream.batches()
        assert [len(batch) for batch in found] == [4, 4, 2]
        assert sorted(number for batch in found for number in batch) == list(range(10))
    with Played(cluster, stream.offset, **options) as stream:
        assert until_all(stream, 10) == list(range(10, 20))


def test_queues_that_come_while_it_runs_are_read_from_their_beginning(
    cluster: DisposableCluster, connection: Cluster
) -> None:
    topic = cluster.new_topic("grows", queues_per_broker=1)
    other = f"{topic}-too"
    with (
        Played(cluster, topics=topic) as stream,
        Played(cluster, topicPattern=f"{topic}*", maxOffsetsPerTrigger=4) as pattern,
    ):
        assert stream.batches() == pattern.batches() == [[]]
        connection.call(connection.admin.update_topic(topic, add={"broker-b": 1}))
        connection.call(connection.admin.create_topic(other))
        (added,) = [queue for queue in connection.queues(topic) if queue.queue_id == 1]
        assert added.broker == "broker-b"
        connection.send_many(topic, numbers(0, 10), queue=added)
        connection.send_many(other, numbers(10, 20))
        assert until_all(stream, 10) == list(range(10))
        assert until_all(pattern, 20) == list(range(20))


def test_a_topic_that_is_deleted_ends_the_stream_or_is_left_behind(
    cluster: DisposableCluster, connection: Cluster
) -> None:
    topic = cluster.new_topic("goes")
    group = f"{topic}-job"
    connection.send_many(topic, numbers(0, 10))
    options = {"topics": topic, "startingOffsets": "earliest"}
    with (
        Played(cluster, **options) as stream,
        Played(cluster, **options, failOnDataLoss="false", consumerGroup=group) as careless,
    ):
        assert stream.batches() == careless.batches() == [list(range(10))]
        connection.call(connection.admin.delete_topic(topic))
        with pytest.raises(DataLost, match=r"was deleted; it was read up to offset"):
            until_all(stream, 1)
        # It is reported once; then there are no messages to read.
        while careless.offset["queues"]:
            assert not careless.batch()
        connection.call(connection.admin.create_topic(topic))
        connection.send_many(topic, numbers(10, 20))
        with pytest.raises(DataLost, match="deleted and created again"):
            stream.batch()
        assert until_all(careless, 10) == list(range(10, 20))
        assert not careless.plan()
        assert lag(connection, group) == 0


def test_a_batch_whose_topic_was_deleted_before_it_was_read_again_is_told(
    cluster: DisposableCluster, connection: Cluster
) -> None:
    topic = cluster.new_topic("planned")
    connection.send_many(topic, numbers(0, 10))
    options = {"topics": topic, "startingOffsets": "earliest"}
    with Played(cluster, **options) as stream:
        assert stream.plan()
        planned = stream.planned
    connection.call(connection.admin.delete_topic(topic))
    connection.call(connection.admin.create_topic(topic))
    connection.send_many(topic, numbers(10, 20))
    with Played(cluster, **options) as stream:
        stream.planned = planned
        with pytest.raises(DataLost, match=r"was deleted, but offsets 0 to .* planned"):
            stream.run()
    with Played(cluster, **options, failOnDataLoss="false") as stream:
        stream.planned = planned
        assert stream.run() == []
        assert until_all(stream, 10) == list(range(10, 20))


def test_topics_that_are_not_asked_for_any_more_were_not_lost(
    cluster: DisposableCluster, connection: Cluster
) -> None:
    left, right = cluster.new_topic("left"), cluster.new_topic("right")
    connection.send_many(right, numbers(0, 10))
    with Played(cluster, topics=f"{left}, {right}", startingOffsets="earliest") as stream:
        assert stream.batches() == [list(range(10))]
    connection.send_many(right, numbers(10, 20))
    with Played(cluster, stream.offset, topics=right) as stream:
        assert stream.batches() == [list(range(10, 20))]
        assert list(stream.offset["queues"]) == [right]


def test_a_broker_that_is_away_when_a_batch_is_planned_is_named(
    cluster: DisposableCluster, connection: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_cluster, "PLAN_RETRY_SECONDS", 0.5)
    topic = cluster.new_topic("away", queues_per_broker=1)
    with Played(cluster, topics=topic) as stream:
        assert stream.batches() == [[]]
        cluster.kill("broker-b")
        try:
            with pytest.raises(BrokerAway, match="broker 'broker-b'"):
                stream.plan()
        finally:
            cluster.start_stopped()
        monkeypatch.setattr(stream_cluster, "PLAN_RETRY_SECONDS", 20.0)
        connection.send_many(topic, numbers(0, 10))
        assert until_all(stream, 10) == list(range(10))


# Consumer groups.


def test_the_group_follows_what_is_finished(
    cluster: DisposableCluster, connection: Cluster
) -> None:
    topic = cluster.new_topic("followed", queues_per_broker=1)
    connection.send_many(topic, numbers(0, 100))
    options = {"topics": topic, "consumerGroup": f"{topic}-job", "startingOffsets": "earliest"}
    group = options["consumerGroup"]
    with Played(cluster, **options, maxOffsetsPerTrigger=40) as stream:
        assert stream.plan()
        assert lag(connection, group) == 100
        stream.run()
        # The batch is finished, and Spark has not planned another one.
        assert lag(connection, group) == 100
        assert stream.plan()
        assert lag(connection, group) == 60
        planned = stream.planned
    # The driver died before it read this batch: none of it counts.
    with Played(cluster, stream.offset, **options, maxOffsetsPerTrigger=40) as stream:
        stream.planned = planned
        assert len(stream.run()) == 40
        assert lag(connection, group) == 60
        assert [len(batch) for batch in stream.batches()] == [20]
        assert lag(connection, group) == 0


def test_a_group_that_begins_at_the_end_by_its_own_policy_follows_a_stream_that_does_not(
    cluster: DisposableCluster, connection: Cluster
) -> None:
    topic = cluster.new_topic("policy", queues_per_broker=1)
    connection.send_many(topic, numbers(0, 100))
    group = f"{topic}-job"
    config = GroupConfig(name=group, start_policy=StartPolicy(consume_from=CONSUME_FROM_LAST))
    connection.call(connection.admin.create_group(config))
    options = {"topics": topic, "consumerGroup": group, "startingOffsets": "earliest"}
    with Played(cluster, **options, maxOffsetsPerTrigger=40) as stream:
        stream.batch()
        assert stream.plan()
        assert lag(connection, group) == 60


def test_a_stream_takes_over_where_a_group_is(
    cluster: DisposableCluster, connection: Cluster
) -> None:
    topic = cluster.new_topic("takeover", queues_per_broker=1)
    group = f"{topic}-job"
    connection.send_many(topic, numbers(0, 100))
    first = {"topics": topic, "consumerGroup": group, "startingOffsets": "earliest"}
    with Played(cluster, **first, maxOffsetsPerTrigger=70) as stream:
        done = stream.batch()
        assert stream.plan()
    with Played(cluster, topics=topic, consumerGroup=group, startingOffsets="group") as stream:
        rest = stream.batch()
    assert done is not None
    assert rest is not None
    assert sorted(done + rest) == list(range(100))


def test_a_reset_of_the_group_ends_the_stream_and_the_next_goes_on_from_the_checkpoint(
    cluster: DisposableCluster, connection: Cluster
) -> None:
    topic = cluster.new_topic("reset", queues_per_broker=1)
    group = f"{topic}-job"
    connection.send_many(topic, numbers(0, 10))
    options = {"topics": topic, "consumerGroup": group, "startingOffsets": "earliest"}
    with Played(cluster, **options) as stream:
        assert stream.batches() == [list(range(10))]

        async def reset() -> None:
            target = ResetTarget(earliest=True)
            plan = await connection.admin.plan_reset(group, topic, target)
            await connection.admin.apply_reset(plan.reset_id, "a test")

        connection.call(reset())
        assert lag(connection, group) == 10
        connection.send_many(topic, numbers(10, 20))
        assert stream.batch() == list(range(10, 20))
        with pytest.raises(GroupFenced, match="Its progress was reset"):
            stream.plan()
    with Played(cluster, stream.offset, **options) as stream:
        assert not stream.plan()
        assert lag(connection, group) == 0


def test_a_group_that_live_consumers_read_with_is_refused(
    cluster: DisposableCluster, connection: Cluster
) -> None:
    topic = cluster.new_topic("taken", queues_per_broker=1)
    group = f"{topic}-job"
    options = {"topics": topic, "consumerGroup": group, "startingOffsets": "earliest"}
    connection.send_many(topic, numbers(0, 10))

    async def consumer() -> PushConsumer:
        made = connection.asyncio.push_consumer(group, {topic: "*"}, print)
        await made.start()
        return made

    with Played(cluster, **options) as running:
        assert running.batch() == list(range(10))
        connection.send_many(topic, numbers(10, 20))
        assert running.batch() == list(range(10, 20))
        consuming = connection.call(consumer())
        try:
            with (
                Played(cluster, **options) as stream,
                pytest.raises(GroupInUse, match="use another group for the stream"),
            ):
                stream.plan()
            # The running stream commits nothing while the consumer has the group.
            with pytest.raises(GroupInUse):
                running.plan()
        finally:
            connection.call(consuming.close())


def test_while_the_offset_service_is_away_a_stream_goes_on_and_its_group_catches_up(
    cluster: DisposableCluster, connection: Cluster
) -> None:
    topic = cluster.new_topic("behind", queues_per_broker=1)
    group = f"{topic}-job"
    connection.send_many(topic, numbers(0, 100))
    options = {"topics": topic, "consumerGroup": group, "startingOffsets": "earliest"}
    with Played(cluster, **options, maxOffsetsPerTrigger=40) as stream:
        assert len(stream.batch() or []) == 40
        cluster.kill("offset")
        try:
            assert [len(batch) for batch in stream.batches()] == [40, 20]
        finally:
            cluster.start_stopped()
        while lag(connection, group):
            assert not stream.plan()


def test_a_stream_of_a_group_that_is_paused_ends(
    cluster: DisposableCluster, connection: Cluster
) -> None:
    topic = cluster.new_topic("paused", queues_per_broker=1)
    group = f"{topic}-job"
    options = {"topics": topic, "consumerGroup": group, "startingOffsets": "earliest"}
    connection.send_many(topic, numbers(0, 10))
    with Played(cluster, **options) as stream:
        assert stream.batch() == list(range(10))
        config = GroupConfig(name=group, consume_disabled=True)
        connection.call(connection.admin.update_group(config))
        with pytest.raises(ConsumeDisabled):
            until_all(stream, 1)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "exactly one of the options topics, topicPattern, subscribePattern and assign"),
        ({"topics": "T", "topicPattern": "*"}, "exactly one of"),
        (
            {"topics": "T", "endingOffsets": "latest"},
            "option endingOffsets is an option of batch reads, not of streams",
        ),
        ({"topics": "T", "startingOffsets": "group"}, "needs option consumerGroup"),
        ({"topics": "T", "startingOffsets": '{"T": {"0": -3}}'}, "-3 is not an offset"),
        (
            {"topics": "T", "startingOffsets": "latest", "startingTimestamp": "1"},
            "only one of the options startingOffsets, startingTimestamp",
        ),
        ({"topics": "T", "maxOffsetsPerTrigger": "0"}, "not an integer of 1 or more"),
        ({"topics": "T", "endpoint": "nowhere"}, "not of the form host:port"),
        ({"topics": "T", "columns": "text"}, "option columns"),
    ],
)
def test_options_that_say_nothing_are_refused(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        StreamOptions.parse({"endpoint": "127.0.0.1:9876", **options})


def test_a_topic_that_never_was_is_refused_at_once(cluster: DisposableCluster) -> None:
    with Played(cluster, topics="nowhere") as stream:
        with pytest.raises(OptionError, match="topic 'nowhere' does not exist"):
            stream.plan()
        stream.reader.prepareForTriggerAvailableNow()
        with pytest.raises(OptionError, match="topic 'nowhere' does not exist"):
            stream.plan()


def test_a_checkpoint_of_another_source_is_refused(cluster: DisposableCluster) -> None:
    with Played(cluster, {"T": {"0": 1}}, topics="T") as stream, pytest.raises(CheckpointError):
        stream.plan()


def until_all(stream: Played, count: int) -> list[int]:
    """Return the messages of batches until there are this many; the client renews its routes
    meanwhile."""
    found: list[int] = []
    deadline = time.monotonic() + 20.0
    while len(found) < count:
        assert time.monotonic() < deadline, found
        found += stream.batch() or []
    return sorted(found)
