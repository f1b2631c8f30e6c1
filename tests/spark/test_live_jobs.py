"""Jobs over the logs of a running cluster, while messages are sent."""

import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import SparkSession

import rockoon.sync
from rockoon.local.cluster import LocalCluster
from rockoon.sync import Cluster
from rockoon_format.consume_queue import decode_entries
from rockoon_format.index_file import HEADER_BYTES, UNIT, decode_header, unit_position
from rockoon_spark.compaction.broker_target import broker_targets
from rockoon_spark.files import list_log
from rockoon_spark.index.target import index_paths, manifest_path
from rockoon_spark.jobs.compact import compact
from rockoon_spark.jobs.index import IndexBuildError, build_index, verify_index
from rockoon_spark.jobs.rebuild import rebuild_queues
from rockoon_spark.records.record_run import LogBroken
from rockoon_spark.source.live_cluster import LiveCluster
from rockoon_spark.source.log_source import ContiguousLog, LogSource

FILE_BYTES = 131_072
QUEUE_ENTRIES = 50
SLOTS, UNITS = 100, 256
# Cuts are anywhere in the files.
SPLIT_BYTES = 300_000
# Pause between messages while no test waits for them: without it, a slow job would find a longer
# log, and become slower.
PACE_SECONDS = 0.02


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    small = {
        "commit_log_file_bytes": FILE_BYTES,
        "consume_queue_file_entries": QUEUE_ENTRIES,
    }
    with LocalCluster(brokers=2, settings={"broker": small}) as running:
        yield running


@pytest.fixture(scope="module")
def connection(cluster: LocalCluster) -> Iterator[Cluster]:
    with rockoon.sync.connect(cluster.nameservers) as connected:
        yield connected


def endpoint(cluster: LocalCluster) -> str:
    return ",".join(cluster.nameservers)


@dataclass
class Sending:
    """Sends messages with keys until the block ends; fast only while a test waits for messages."""

    connection: Cluster
    topic: str
    stored: list[tuple[str, int]] = field(default_factory=list)
    """Broker and physical offset of each acknowledged message, in order of acknowledgement."""
    newest: dict[str, int] | None = None
    """If not None: few keys instead of many, and the newest acknowledged number of each key."""
    _is_over: threading.Event = field(default_factory=threading.Event)
    _wanted: int = 0

    def __enter__(self) -> "Sending":
        self._thread = threading.Thread(target=self._send)
        self._thread.start()
        self.wait_for(600)
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def wait_for(self, more: int) -> None:
        """Wait until this many more messages are stored."""
        self._wanted = len(self.stored) + more
        while self._thread.is_alive() and len(self.stored) < self._wanted:
            self._thread.join(0.01)
        assert self._thread.is_alive()

    def acknowledged(self, broker: str) -> set[int]:
        return {offset for name, offset in self.stored[:] if name == broker}

    def _send(self) -> None:
        number = 0
        while not self._is_over.is_set():
            if self.newest is None:
                keys = [f"number-{number}", f"last-digit-{number % 10}"]
                sent = self.connection.send(self.topic, b"%1000d" % number, keys=keys)
            else:
                key = f"k{number % 20}"
                # All messages of a key are in one queue, so on one broker.
                sent = self.connection.send(
                    self.topic, b"%1000d" % number, keys=key, ordering_key=key
                )
                self.newest[key] = number
            self.stored.append((sent.queue.broker, sent.physical_offset))
            number += 1
            if number > self._wanted:
                self._is_over.wait(PACE_SECONDS)


@dataclass(frozen=True)
class Made:
    """Result of a job over one broker's log."""

    files: dict[str, bytes]
    end_offset: int
    records: set[int]
    """Physical offsets of the records that it contains."""


def tree(root: Path) -> dict[str, bytes]:
    files = [path for path in root.rglob("*") if path.is_file()]
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


def index(spark: SparkSession, log: str | LogSource, target: Path, *, sealed_only: bool) -> Made:
    report = build_index(
        spark,
        log,
        target,
        slots=SLOTS,
        units=UNITS,
        sealed_only=sealed_only,
        split_bytes=SPLIT_BYTES,
    )
    records: set[int] = set()
    for path in index_paths(target):
        content = path.read_bytes()
        count = decode_header(content[:HEADER_BYTES]).next_unit - 1
        units = np.frombuffer(content, UNIT, count, unit_position(SLOTS, 1))
        records.update(units["offset"].tolist())
    return Made(tree(target), report.end_offset, records)


def sealed_index(spark: SparkSession, log: str | LogSource, target: Path) -> Made:
    return index(spark, log, target, sealed_only=True)


def whole_index(spark: SparkSession, log: str | LogSource, target: Path) -> Made:
    return index(spark, log, target, sealed_only=False)


def queues(spark: SparkSession, log: str | LogSource, target: Path) -> Made:
    report = rebuild_queues(spark, log, target, file_entries=QUEUE_ENTRIES, split_bytes=SPLIT_BYTES)
    files = tree(target)
    records: set[int] = set()
    for content in files.values():
        entries = decode_entries(content)
        records.update(entries["offset"][entries["size"] > 0].tolist())
    assert len(files) == report.files
    return Made(files, report.end_offset, records)


def log_below(store: Path, end: int, target: Path) -> Path:
    """Copy a store's log up to `end`, as if nothing had been written after it."""
    (target / "commitlog").mkdir(parents=True)
    for file in list_log(str(store)):
        if file.start < end:
            content = Path(file.uri).read_bytes()[: end - file.start]
            copy = target / "commitlog" / Path(file.uri).name
            copy.write_bytes(content.ljust(file.bytes, b"\0"))
    marks = store / "config" / "droppedTopics.json"
    if marks.exists():
        (target / "config").mkdir()
        shutil.copy(marks, target / "config")
    return target


Job = Callable[[SparkSession, str | LogSource, Path], Made]


@pytest.mark.parametrize(
    ("job", "broker"), [(sealed_index, "broker-a"), (whole_index, "broker-b"), (queues, "broker-b")]
)
def test_what_was_acknowledged_is_in_it_and_it_is_what_the_files_give(
    spark: SparkSession,
    cluster: LocalCluster,
    connection: Cluster,
    tmp_path: Path,
    job: Job,
    broker: str,
) -> None:
    topic, gone = (f"{name}-{job.__name__}" for name in ("numbers", "gone"))
    connection.call(connection.asyncio.admin.create_topic(topic, queues_per_broker=2))
    with Sending(connection, topic) as sending:
        # Messages of the deleted topic remain in the log and in the index, but not in a queue.
        connection.call(connection.asyncio.admin.create_topic(gone, queues_per_broker=1))
        for queue in connection.queues(gone):
            connection.send(gone, b"gone", queue=queue, keys=["gone"])
        connection.call(connection.asyncio.admin.delete_topic(gone))
        sending.wait_for(200)
        acknowledged = sending.acknowledged(broker)
        made = job(spark, LiveCluster(endpoint(cluster), broker=broker), tmp_path / "made")
        # Messages were sent during the job.
        assert len(sending.acknowledged(broker)) > len(acknowledged)

    below = {at for at in acknowledged if at < made.end_offset}
    assert len(below) > 100
    # `sealed_only` leaves out the file that is written.
    assert job is sealed_index or below == acknowledged
    assert below <= made.records
    store = log_below(cluster.directory / broker, made.end_offset, tmp_path / "quiet")
    same_job = whole_index if job is sealed_index else job
    assert same_job(spark, str(store), tmp_path / "again") == made


def test_the_newest_of_each_key_is_left_while_newer_ones_are_sent(
    spark: SparkSession, cluster: LocalCluster, connection: Cluster
) -> None:
    topic = "compacted"
    attributes = {"cleanup.policy": "COMPACTION"}
    connection.call(
        connection.asyncio.admin.create_topic(topic, queues_per_broker=1, attributes=attributes)
    )
    newest: dict[str, int] = {}
    with Sending(connection, topic, newest=newest) as sending:
        before = dict(newest)
        reports = [
            compact(spark, place, split_bytes=SPLIT_BYTES)
            for place in broker_targets(endpoint(cluster))
        ]
        sending.wait_for(1)
        reading = spark.read.format("rockoon").options(endpoint=endpoint(cluster), topics=topic)
        rows = reading.load().collect()
    found: dict[str, int] = {}
    for row in rows:
        found[row.keys] = max(int(row.body), found.get(row.keys, -1))
    assert all(found[key] >= number for key, number in before.items())
    for report in reports:
        assert report.is_new
        assert report.records > 100
        own = [row for row in rows if row.broker in report.name]
        kept = [row.keys for row in own if row.physical_offset < report.log_end]
        assert 0 < len(kept) == len(set(kept)) == report.records_left


def test_a_live_index_goes_on_from_run_to_run_and_is_verified_over_the_wire(
    spark: SparkSession, cluster: LocalCluster, connection: Cluster, tmp_path: Path
) -> None:
    connection.call(connection.asyncio.admin.create_topic("runs", queues_per_broker=1))
    log, target = LiveCluster(endpoint(cluster), broker="broker-a"), tmp_path / "index"
    with Sending(connection, "runs") as sending:
        first = sealed_index(spark, log, target)
        sending.wait_for(300)
        second = sealed_index(spark, log, target)
        assert second.end_offset > first.end_offset
        assert second.end_offset % FILE_BYTES == 0
        assert verify_index(spark, log, target) == []
        # The job may read the files while the broker writes.
        from_files = sealed_index(spark, str(cluster.directory / "broker-a"), tmp_path / "files")
        assert from_files.end_offset >= second.end_offset
    store = log_below(cluster.directory / "broker-a", second.end_offset, tmp_path / "quiet")
    assert whole_index(spark, str(store), tmp_path / "again") == second
    # The job over the network continues the result of the job over the files.
    whole = whole_index(spark, log, tmp_path / "again")
    assert whole.end_offset > second.end_offset
    assert whole == whole_index(spark, log, tmp_path / "anew")

    # Another broker's log may be longer, but the index is not of this log.
    before = tree(target), manifest_path(target).read_bytes()
    with pytest.raises(IndexBuildError, match="index of another store"):
        sealed_index(spark, LiveCluster(endpoint(cluster), broker="broker-b"), target)
    assert (tree(target), manifest_path(target).read_bytes()) == before


@dataclass(frozen=True)
class LosingOldest:
    """A log whose oldest file is deleted after a job has planned its read."""

    source: LogSource
    delete: Callable[[], None]

    def log(self) -> ContiguousLog:
        found = self.source.log()
        self.delete()
        return found


def test_retention_at_work_while_a_job_reads_ends_the_run_and_the_next_one_works(
    spark: SparkSession, cluster: LocalCluster, connection: Cluster, tmp_path: Path
) -> None:
    connection.call(connection.asyncio.admin.create_topic("expiring", queues_per_broker=1))
    with Sending(connection, "expiring"):
        pass
    store, target = cluster.directory / "broker-b", tmp_path / "index"

    def delete_oldest() -> None:
        # The state of a broker that was away while its log expired.
        cluster.stop("broker-b")
        Path(list_log(str(store))[0].uri).unlink()
        cluster.start("broker-b")

    log = LiveCluster(endpoint(cluster), broker="broker-b")
    with pytest.raises(LogBroken, match=r"retention deleted physical offsets 0 to .* run again"):
        sealed_index(spark, LosingOldest(log, delete_oldest), target)
    assert tree(tmp_path) == {}
    start = log.log().start
    assert min(sealed_index(spark, log, target).records) >= start > 0


@pytest.mark.parametrize(
    ("broker", "sentence"),
    [
        (None, "has several brokers, name one of them: broker-a, broker-b"),
        ("broker-z", "'broker-z' is not in the routes .*: broker-a, broker-b"),
    ],
)
def test_a_broker_has_to_be_named_where_there_are_several(
    cluster: LocalCluster, broker: str | None, sentence: str
) -> None:
    with pytest.raises(LogBroken, match=sentence):
        LiveCluster(endpoint(cluster), broker=broker).log()
