"""Rows that Spark sends again: each becomes one message."""

import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from rockoon.errors import InvalidArgument
from rockoon.sync import Cluster
from rockoon.testing.disposable import DisposableCluster
from rockoon_core.message_queue import MessageQueue
from rockoon_spark.endpoint import ClusterEndpoint
from rockoon_spark.repeatable_batches import (
    QUEUE_BYTES_MAX,
    SEGMENT_BYTES_MAX,
    RowDivider,
    Segment,
    TopicQueues,
)
from rockoon_spark.sink import RowsCut, TaskResult, WriteOptions
from rockoon_spark.sink import send as send_task
from support.seeds import seeds
from support.spark_processes import (
    BRIEF_JAVA,
    BRIEF_PYTHON,
    patiently,
    python_workers,
    stopped_daemon,
)
from support.waiting import wait_until
from support.whole_topics import every_message

SCHEMA = pa.schema([("body", pa.binary()), ("key", pa.string())])
TASK = "write w 0"


@pytest.fixture(scope="module")
def connection(cluster: DisposableCluster) -> Iterator[Cluster]:
    with cluster.connect() as connected:
        yield connected


def options(cluster: DisposableCluster, topic: str, *, idempotent: bool = True) -> WriteOptions:
    return WriteOptions(ClusterEndpoint(cluster.nameservers[0]), topic, idempotent)


def send(batches: Iterator[pa.RecordBatch], chosen: WriteOptions, task: str) -> TaskResult:
    return send_task(batches, chosen, task, has_all_rows=lambda: True)


def count(connection: Cluster, topic: str) -> int:
    states = [each.state for each in connection.call(connection.admin.describe_topic(topic)).queues]
    return sum(state.max_offset for state in states if state is not None)


def bodies(connection: Cluster, topic: str) -> Counter[bytes]:
    return Counter(message.body for message in every_message(connection, topic))


def large_rows(chance: random.Random, rows: int) -> list[dict[str, object]]:
    """Rows of several segments, with and without keys."""
    return [
        {
            "body": b"%d " % n + chance.randbytes(chance.randrange(300_000)),
            "key": chance.choice([None, None, *"abc"]),
        }
        for n in range(rows)
    ]


def in_batches(
    chance: random.Random, rows: list[dict[str, object]], end: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Arrow batches of any sizes."""
    left = rows[:end]
    while left:
        size = chance.randint(1, 20)
        yield pa.RecordBatch.from_pylist(left[:size], SCHEMA)
        left = left[size:]


@pytest.mark.parametrize("seed", seeds(1))
def test_the_rows_of_a_task_that_failed_in_the_middle_are_stored_once(
    cluster: DisposableCluster, connection: Cluster, seed: int
) -> None:
    chance = random.Random(seed)
    topic = cluster.new_topic("repeated")
    rows = large_rows(chance, 120)
    chosen = options(cluster, topic)

    def failing() -> Iterator[pa.RecordBatch]:
        yield from in_batches(chance, rows, 100)
        wait_until(lambda: count(connection, topic) > 20, "the first rows")
        raise OSError("the task fails")

    with pytest.raises(OSError, match="the task fails"):
        send(failing(), chosen, TASK)
    assert 20 < count(connection, topic) < 120
    with pytest.raises(RowsCut):
        # PySpark ends the rows of a task that fails as if these were all.
        send_task(in_batches(chance, rows, 110), chosen, TASK, has_all_rows=lambda: False)
    # And a speculative attempt at the same time.
    with ThreadPoolExecutor(2) as attempts:
        random_sizes = [random.Random(seed + n) for n in range(2)]
        for each in [
            attempts.submit(send, in_batches(c, rows), chosen, TASK) for c in random_sizes
        ]:
            assert each.result().messages == 120
    stored = every_message(connection, topic)
    assert Counter(each.body for each in stored) == Counter(row["body"] for row in rows)
    for key in "abc":
        in_order = [row["body"] for row in rows if row["key"] == key]
        (queue,) = {each.queue for each in stored if each.body in in_order}
        of_queue = [each for each in stored if each.queue == queue and each.body in in_order]
        assert [each.body for each in sorted(of_queue, key=lambda m: m.queue_offset)] == in_order


def test_without_idempotence_the_same_attempts_store_rows_twice(
    cluster: DisposableCluster, connection: Cluster
) -> None:
    topic = cluster.new_topic("repeated")
    rows = large_rows(random.Random(1), 10)
    for _ in range(2):
        batches = in_batches(random.Random(2), rows)
        send(batches, options(cluster, topic, idempotent=False), TASK)
    assert set(bodies(connection, topic).values()) == {2}


def test_an_attempt_with_other_rows_loses_none(
    cluster: DisposableCluster, connection: Cluster
) -> None:
    topic = cluster.new_topic("other")
    chance = random.Random(1)
    rows = large_rows(chance, 40)
    send(in_batches(chance, rows), options(cluster, topic), TASK)
    other = [*rows[3:], {"body": b"new", "key": "a"}, rows[0]]
    send(in_batches(chance, other), options(cluster, topic), TASK)
    stored = bodies(connection, topic)
    assert set(stored) == {row["body"] for row in (*rows, *other)}
    assert set(stored.values()) <= {1, 2}


def test_equal_rows_of_a_task_and_of_other_tasks_are_stored_each(
    cluster: DisposableCluster, connection: Cluster
) -> None:
    topic = cluster.new_topic("equal")
    rows = [{"body": b"same", "key": "k"}] * 20_000
    for task in ("write w 0", "write w 1", "write v 0"):
        send(in_batches(random.Random(1), rows[:50]), options(cluster, topic), task)
    table = pa.Table.from_pylist(rows, SCHEMA)
    send(iter(table.to_batches()), options(cluster, topic), "write u 0")
    assert count(connection, topic) == 20_150


def test_a_row_without_a_body_fails_the_task(cluster: DisposableCluster) -> None:
    row = pa.RecordBatch.from_pylist([{"body": None, "key": None}], SCHEMA)
    with pytest.raises(InvalidArgument, match="a row has no body"):
        send(iter([row]), options(cluster, cluster.new_topic("none")), TASK)


@pytest.mark.parametrize("idempotent", [False, True])
@pytest.mark.parametrize("topic", [None, ""])
def test_a_row_without_a_topic_fails_the_task(
    cluster: DisposableCluster, topic: str | None, idempotent: bool
) -> None:
    schema = pa.schema([("body", pa.binary()), ("topic", pa.string())])
    row = pa.RecordBatch.from_pylist([{"body": b"b", "topic": topic}], schema)
    with pytest.raises(InvalidArgument, match="a row has no topic"):
        send(iter([row]), options(cluster, "", idempotent=idempotent), TASK)


QUEUES = [MessageQueue("t", f"broker-{n // 4}", n % 4) for n in range(8)]


def divided(rows: list[dict[str, object]], queues: list[MessageQueue]) -> list[Segment]:
    divider = RowDivider(TASK, "t", {"t": TopicQueues(queues, queues)})
    segments = [segment for row in rows if (segment := divider.add(row)) is not None]
    return [*segments, divider.rest()]


def test_segments_have_every_row_in_order_within_their_bounds() -> None:
    rows = large_rows(random.Random(3), 1000)
    for row in rows[::2]:
        row["key"] = f"k{random.Random(str(row['body'])).randrange(50)}"
    segments = divided(rows, QUEUES)
    sizes = [
        [sum(len(message.body) for message in batch) for batch in each.batches.values()]
        for each in segments
    ]
    assert max(map(max, sizes)) <= QUEUE_BYTES_MAX
    assert max(map(sum, sizes)) <= SEGMENT_BYTES_MAX
    assert len({segment.scope for segment in segments}) == len(segments)
    place = {row["body"]: n for n, row in enumerate(rows)}
    seen = []
    for segment in segments:
        batches = [[place[message.body] for message in each] for each in segment.batches.values()]
        assert all(batch == sorted(batch) for batch in batches)
        seen += sorted(n for batch in batches for n in batch)
    assert seen == list(range(1000))


def test_a_queue_that_is_added_moves_few_rows_without_a_key() -> None:
    rows: list[dict[str, object]] = [{"body": bytes(QUEUE_BYTES_MAX - 200)} for _ in range(400)]
    before, after = (
        [next(iter(each.batches)) for each in divided(rows, queues)]
        for queues in (QUEUES[:7], QUEUES)
    )
    moved = [new for old, new in zip(before, after, strict=True) if old != new]
    assert set(moved) == {QUEUES[7]}
    assert 20 < len(moved) < 90
    assert min(Counter(after).values()) > 20


def test_a_task_of_a_batch_write_that_spark_repeats_stores_its_rows_once(
    spark: SparkSession, cluster: DisposableCluster, connection: Cluster, tmp_path: Path
) -> None:
    topic = cluster.new_topic("task")
    gate = tmp_path / "gate"
    os.mkfifo(gate)

    def failing_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        for batch in batches:
            (number,) = batch.column(0).to_pylist()
            # A segment has five rows. The last one has one to three: Spark may discard two rows.
            if number == 18 and context.attemptNumber() == 0:
                gate.read_text()
                raise OSError("the first attempt fails")
            yield pa.RecordBatch.from_pydict({"body": [b"%d" % number + bytes(700 << 10)]})

    def fail_attempt() -> None:
        try:
            wait_until(lambda: count(connection, topic) == 15, "three segments")
        finally:
            # Otherwise the daemon often kills the sink before it has sent its last rows.
            with stopped_daemon(spark):
                rest = len(python_workers(spark)) - 2
                gate.write_text("")
                wait_until(lambda: len(python_workers(spark)) <= rest, "the end of the attempt")

    # Its workers start before the wait for rows begins.
    spark.range(1).mapInArrow(lambda batches: batches, "id long").collect()
    failing = threading.Thread(target=fail_attempt)
    failing.start()
    limit = "spark.sql.execution.arrow.maxRecordsPerBatch"
    former = spark.conf.get(limit)
    spark.conf.set(limit, "1")
    try:
        frame = spark.range(0, 20, 1, 1).mapInArrow(failing_once, "body binary")
        write = frame.write.format("rockoon").mode("append")
        write.options(endpoint=cluster.nameservers[0], topic=topic).save()
    finally:
        spark.conf.set(limit, former)
    failing.join()
    stored = bodies(connection, topic)
    assert Counter(int(body.rstrip(b"\0")) for body in stored.elements()) == Counter(range(20))


def copying(
    spark: SparkSession, cluster: DisposableCluster, source: str, target: str, checkpoint: Path
) -> None:
    """Run a stream from one topic to another over all messages that exist now."""
    rows: DataFrame = (
        spark.readStream.format("rockoon")
        .options(endpoint=cluster.nameservers[0], topics=source, startingOffsets="earliest")
        .options(maxOffsetsPerTrigger=100, columns="body")
        .load()
    )
    writer = rows.writeStream.format("rockoon").trigger(availableNow=True)
    writer = writer.options(endpoint=cluster.nameservers[0], topic=target)
    writer = writer.option("checkpointLocation", str(checkpoint))
    patiently(lambda: writer.start().awaitTermination())


def numbers(first: int, behind: int) -> list[bytes]:
    return [b"%d" % n for n in range(first, behind)]


def test_a_batch_of_a_stream_whose_end_was_not_recorded_stores_its_rows_once(
    spark: SparkSession, cluster: DisposableCluster, connection: Cluster, tmp_path: Path
) -> None:
    source, target = cluster.new_topic("source"), cluster.new_topic("target")
    connection.send_many(source, numbers(0, 150))
    copying(spark, cluster, source, target, tmp_path)
    assert count(connection, target) == 150
    # The state after a driver that died when the brokers had acknowledged the batch.
    for path in (tmp_path / "commits").glob("*1*"):
        path.unlink()
    connection.send_many(source, numbers(150, 170))
    copying(spark, cluster, source, target, tmp_path)
    assert bodies(connection, target) == Counter(numbers(0, 170))


def test_another_query_with_the_same_rows_stores_them_too(
    spark: SparkSession, cluster: DisposableCluster, connection: Cluster, tmp_path: Path
) -> None:
    source, target = cluster.new_topic("source"), cluster.new_topic("target")
    connection.send_many(source, numbers(0, 20))
    for name in ("a", "b"):
        copying(spark, cluster, source, target, tmp_path / name)
    assert bodies(connection, target) == Counter(numbers(0, 20) * 2)


@pytest.mark.soak
def test_a_driver_killed_between_the_append_and_the_commit_log_stores_rows_once(
    spark: SparkSession, cluster: DisposableCluster, connection: Cluster, tmp_path: Path
) -> None:
    source, target = cluster.new_topic("source"), cluster.new_topic("target")
    connection.send_many(source, numbers(0, 250))
    appended = tmp_path / "appended"
    os.mkfifo(appended)
    script = Path(__file__).with_name("sinking_driver.py")
    checkpoint = tmp_path / "checkpoint"
    driver = subprocess.Popen(
        [sys.executable, script, cluster.nameservers[0], source, target, checkpoint, appended],
        env={**os.environ, "JDK_JAVA_OPTIONS": BRIEF_JAVA, "PYTHONPATH": BRIEF_PYTHON},
        start_new_session=True,
    )
    try:
        assert appended.read_text() == "1"
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    assert count(connection, target) == 200
    assert not (checkpoint / "commits" / "1").exists()
    copying(spark, cluster, source, target, checkpoint)
    assert bodies(connection, target) == Counter(numbers(0, 250))


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_an_executor_killed_in_the_middle_of_a_task_stores_rows_once(
    cluster: DisposableCluster, connection: Cluster, tmp_path: Path
) -> None:
    topic = cluster.new_topic("executor")
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    job = subprocess.Popen(
        [sys.executable, "-m", "spark.sink_kill", cluster.nameservers[0], topic, gate],
        cwd=Path(__file__).parent.parent,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([BRIEF_PYTHON, *filter(None, sys.path)])},
        start_new_session=True,
    )
    try:
        with gate.open("w"):
            wait_until(lambda: count(connection, topic) == 15, "three segments")
        assert job.wait(300) == 0
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()
    stored = bodies(connection, topic)
    assert Counter(int(body.rstrip(b"\0")) for body in stored.elements()) == Counter(range(20))
