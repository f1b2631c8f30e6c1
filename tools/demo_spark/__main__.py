"""`make demo-spark`: Spark with a log, on the 66,481 records of a real package index.

A cluster of processes and one local Spark session, which share no disk: the records are sent,
compacted, looked up, queried, exported, indexed and streamed. The program ends with a table of
verified claims, and with exit status 1 if a claim did not hold.
"""

import argparse
import asyncio
import json
import logging
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow.dataset as ds
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from rich.console import Console

import rockoon
import rockoon.sync
from rockoon.admin.stored_messages import FoundMessages
from rockoon.errors import RockoonError
from rockoon.local import LocalCluster
from rockoon.local.process import LocalClusterError
from rockoon.message import Message
from rockoon_spark.compaction.broker_target import broker_targets
from rockoon_spark.compaction.sources import CompactionError
from rockoon_spark.java import JavaMissing
from rockoon_spark.jobs.compact import compact
from rockoon_spark.jobs.export import export
from rockoon_spark.jobs.index import build_index, verify_index
from rockoon_spark.session import session
from rockoon_spark.source.live_cluster import LiveCluster
from tools.demo.verified import Verified
from tools.demo_spark.records import SAMPLE, PackageRecord, newest, read_records

TOPIC = "packages"
GROUP = "packages-to-lake"
WITHDRAWN = "cowsay"
REBUILT, REBUILD = "games", "+b9"
ASKED_FOR = ("openssl", "curl", "firefox-esr")
ARRIVAL_SECONDS_MAX = 30.0
# If no message arrives for this time, the reader is at the end.
SILENCE_SECONDS = 1.0
_FIELDS = "package string, version string, section string, suite string, installed_kib long"

console = Console(highlight=False)


class SparkStory:
    """The demo's cluster, data and findings; each method is a chapter."""

    def __init__(
        self, local: LocalCluster, spark: SparkSession, records: list[PackageRecord], folder: Path
    ) -> None:
        self.endpoint = ",".join(local.nameservers)
        self.brokers = local.brokers
        self.spark = spark
        self.records = records
        self.newest = newest(records)
        self.folder = folder
        self.verified = Verified()

    def connect(self) -> rockoon.Cluster:
        return rockoon.connect(self.endpoint)

    async def send(self) -> None:
        """Chapter 1: all records, with the package as key; then one package is withdrawn."""
        chapter("1. A package index is sent, key by key")
        async with self.connect() as cluster:
            made = await cluster.admin.create_topic(
                TOPIC,
                queues_per_broker=4,
                attributes={"cleanup.policy": "COMPACTION", "delete.retention.ms": "0"},
            )
            await cluster.route(TOPIC, min_revision=made.modified_revision)
            async with cluster.producer() as producer:
                for record in self.records:
                    await producer.wait_capacity()
                    producer.send(
                        TOPIC,
                        record.line,
                        ordering_key=record.package,
                        keys=record.package,
                        tags=record.section,
                    )
                await producer.flush()
                # An empty body deletes a key.
                await producer.send(TOPIC, b"", ordering_key=WITHDRAWN, keys=WITHDRAWN)
        again = len(self.records) - len(self.newest)
        console.print(
            f"{len(self.records):,} records of {len(self.newest):,} packages;"
            f" {again:,} come with another suite. Then an empty message takes {WITHDRAWN} away"
        )

    def compact(self) -> None:
        """Chapter 2: compaction of each broker's records over the network."""
        chapter("2. Compaction, over the wire")
        records = left = shuffled = 0
        for place in broker_targets(self.endpoint):
            report = compact(self.spark, place)
            console.print(
                f"{report.name}: {report.records:,} records, {report.records_left:,} of them"
                f" newest, {report.bytes_written / 1e6:.1f} MB handed back as generation"
                f" {report.generation}"
            )
            records += report.records
            left += report.records_left
            shuffled += report.shuffle_bytes
        self.verified.check(
            "of each package one record is left",
            (records, left) == (len(self.records) + 1, len(self.newest)),
            f"{records:,} records, {left:,} left; {shuffled / 1e6:.1f} MB went from task to task",
        )

    async def consume(self) -> None:
        """Chapter 3: a consumer from the beginning, and three queries by key."""
        chapter("3. What consumers get of it")
        async with self.connect() as cluster:
            async with cluster.pull_consumer() as consumer:
                await consumer.assign_all(TOPIC)
                await consumer.seek_to_beginning()
                received: list[Message] = []
                while found := await consumer.poll(timeout=SILENCE_SECONDS):
                    received += found
            await self._check_received(received)
            await self._look_up(cluster)

    async def _check_received(self, received: list[Message]) -> None:
        counts = Counter(message.keys[0] for message in received)
        bodies = {message.keys[0]: message.body for message in received}
        wanted = {name: each.line for name, each in self.newest.items()} | {WITHDRAWN: b""}
        wrong = sum(bodies.get(name) != line for name, line in wanted.items())
        offsets: defaultdict[object, list[int]] = defaultdict(list)
        for message in received:
            offsets[message.queue].append(message.queue_offset)
        behind = sum(found[-1] + 1 for found in offsets.values())
        console.print(f"from the first message on: {len(received):,} messages")
        self.verified.check(
            "a consumer from the beginning gets one message of each package, its newest version",
            not wrong and counts.total() == len(counts) == len(wanted),
            f"{len(received):,} messages, {len(counts):,} packages, {wrong} with another version",
        )
        self.verified.check(
            "messages keep their offsets",
            all(found == sorted(set(found)) for found in offsets.values())
            and behind > len(received),
            f"{behind - len(received):,} offsets are passed over in {len(offsets)} queues",
        )

    async def _look_up(self, cluster: rockoon.Cluster) -> None:
        right = 0
        for package in ASKED_FOR:
            found = await self._find(cluster, package)
            version = json.loads(found.messages[0].body)["version"] if found.messages else "nothing"
            right += version == self.newest[package].version
            console.print(f"key {package}: {version}")
        self.verified.check(
            "a key is answered with its newest version",
            right == len(ASKED_FOR),
            f"{right} of {len(ASKED_FOR)}",
        )

    async def _find(self, cluster: rockoon.Cluster, package: str) -> FoundMessages:
        deadline = time.monotonic() + ARRIVAL_SECONDS_MAX
        while True:
            found = await cluster.admin.messages.query(TOPIC, package)
            if found.whole or time.monotonic() > deadline:
                return found
            await asyncio.sleep(0.1)

    def query(self) -> None:
        """Chapter 4: queries on the topic as a table."""
        chapter("4. The topic as a table")
        now = self.table(compacted=True).where("package is not null").cache()
        largest = now.orderBy(f.desc("installed_kib")).limit(3).collect()
        sections = now.groupBy("section").agg(
            f.count("*").alias("packages"), f.sum("installed_kib").alias("kib")
        )
        rows = sections.orderBy(f.desc("packages")).collect()
        now.unpersist()
        console.print("packages by section:", end=" ")
        console.print(", ".join(f"{row.section} {row.packages:,}" for row in rows[:5]))
        console.print("largest:", end=" ")
        console.print(
            ", ".join(f"{row.package} {row.installed_kib / 2**20:.1f} GiB" for row in largest)
        )
        present = [each for name, each in self.newest.items() if name != WITHDRAWN]
        expected = Counter(each.section for each in present)
        self.verified.check(
            "Spark counts what is there: the newest of each package, without what was withdrawn",
            {row.section: row.packages for row in rows} == expected,
            f"{sum(row.packages for row in rows):,} packages in {len(rows)} sections",
        )
        history = self.table(compacted=False).where("package is not null")
        versions = history.groupBy("package").agg(
            f.countDistinct("version").alias("versions"),
            f.min_by("version", "queue_offset").alias("first"),
            f.max_by("version", "queue_offset").alias("last"),
        )
        changed = versions.where("versions > 1").collect()
        for row in sorted(changed, key=lambda each: (-each.versions, each.package))[:3]:
            console.print(f"{row.package}: {row.versions} versions, {row.first} to {row.last}")
        known: defaultdict[str, set[str]] = defaultdict(set)
        for record in self.records:
            known[record.package].add(record.version)
        several = {name for name, found in known.items() if len(found) > 1}
        self.verified.check(
            "the log still has every version: which packages changed between suites",
            {row.package for row in changed} == several
            and all(row.last == self.newest[row.package].version for row in changed),
            f"{len(changed):,} packages have more than one version",
        )

    def table(self, *, compacted: bool) -> DataFrame:
        """The topic's messages with the fields of their bodies as columns."""
        frame = (
            self.spark.read.format("rockoon")
            .option("endpoint", self.endpoint)
            .option("topics", TOPIC)
            .option("columns", "queue_offset,body")
            .option("compacted", str(compacted).lower())
            .load()
        )
        parsed = f.from_json(f.col("body").cast("string"), _FIELDS)
        return frame.select("queue_offset", parsed.alias("fields")).select(
            "queue_offset", "fields.*"
        )

    def export(self) -> None:
        """Chapter 5: Parquet files, and an index that Spark builds instead of a broker."""
        chapter("5. Parquet files, and an index")
        target = self.folder / "lake"
        place = LiveCluster(self.endpoint)
        report = export(self.spark, place, str(target))
        again = export(self.spark, place, str(target))
        table = ds.dataset(
            target, partitioning="hive", exclude_invalid_files=False, format="parquet"
        ).to_table(columns=["keys"])
        console.print(
            f"{report.messages:,} messages in {report.files} Parquet files,"
            f" {report.bytes / 1e6:.1f} MB; the next run finds {again.messages}"
        )
        sent = len(self.records) + 1
        self.verified.check(
            "an export has every message once, and the next run nothing more",
            (report.messages, table.num_rows, again.messages) == (sent, sent, 0),
            f"{table.num_rows:,} rows in the files",
        )
        broker = self.brokers[0]
        log, index = LiveCluster(self.endpoint, broker=broker), self.folder / "index"
        built = build_index(self.spark, log, index, sealed_only=False)
        differences = verify_index(self.spark, log, index)
        console.print(f"{broker}: an index of {built.keys:,} keys in {built.files} file")
        self.verified.check(
            "an index made over the wire is the log's, key by key",
            built.keys > 0 and not differences,
            f"{built.keys:,} keys, {len(differences)} differences",
        )

    def stream(self) -> None:
        """Chapter 6: a stream reads all records, and its group has no lag."""
        chapter("6. A stream with a consumer group")
        frame = (
            self.spark.readStream.format("rockoon")
            .option("endpoint", self.endpoint)
            .option("topics", TOPIC)
            .option("startingOffsets", "earliest")
            .option("consumerGroup", GROUP)
            .option("columns", "keys,body")
            .load()
        )
        counted: list[int] = []
        query = (
            frame.writeStream.foreachBatch(lambda batch, _: counted.append(batch.count()))
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        with rockoon.sync.connect(self.endpoint) as cluster:
            lag = cluster.call(cluster.admin.lag(GROUP)).total_lag
        console.print(f"{sum(counted):,} rows; `rockoon lag {GROUP}`: {lag}")
        self.verified.check(
            "a stream reads one row of each package, and its group has no lag",
            sum(counted) == len(self.newest) and lag == 0,
            f"{sum(counted):,} rows, lag {lag}",
        )

    def compact_again(self) -> None:
        """Chapter 7: Spark sends new versions, and the next compaction continues from the first."""
        chapter("7. Spark sends, and compaction goes on")
        rebuilt = self.table(compacted=True).where(f.col("section") == REBUILT)
        fields = [f.col(name) for name in ("package", "section", "suite", "installed_kib")]
        version = f.concat("version", f.lit(REBUILD)).alias("version")
        rows = rebuilt.select(
            f.col("package").alias("key"),
            f.col("package").alias("keys"),
            f.to_json(f.struct(version, *fields)).alias("body"),
        )
        writer = rows.write.format("rockoon").option("endpoint", self.endpoint)
        writer.option("topic", TOPIC).mode("append").save()
        reports = [compact(self.spark, place) for place in broker_targets(self.endpoint)]
        former, read = (
            sum(getattr(report, name) for report in reports) / 1e6
            for name in ("former_bytes", "log_bytes")
        )
        console.print(
            f"every package of section {REBUILT} gets a new version; compaction reads"
            f" {read:.1f} MB of the logs and {former:.1f} MB of the generations before"
        )
        now = self.table(compacted=True).select("package", "version").collect()
        versions = {row.package: row.version for row in now}
        expected = {
            name: each.version + (REBUILD if each.section == REBUILT else "")
            for name, each in self.newest.items()
            if name != WITHDRAWN
        }
        self.verified.check(
            f"after another run everything is the newest, and {WITHDRAWN} is gone",
            versions == expected and len(now) == len(expected),
            f"{len(now):,} messages, {sum(row.version.endswith(REBUILD) for row in now):,} of them"
            f" new; {sum(report.tombstones_dropped for report in reports)} tombstone dropped",
        )

    def run(self) -> None:
        """All chapters, in order."""
        # Each chapter has its own event loop, because Spark jobs run the SDK in loops as well.
        chapters: Sequence[Callable[[], None]] = (
            lambda: asyncio.run(self.send()),
            self.compact,
            lambda: asyncio.run(self.consume()),
            self.query,
            self.export,
            self.stream,
            self.compact_again,
        )
        for run in chapters:
            began = time.perf_counter()
            run()
            console.print(f"{time.perf_counter() - began:.1f} s", style="dim")


def chapter(title: str) -> None:
    console.print(f"\n[bold]{title}[/bold]")


def run_demo(records: list[PackageRecord]) -> bool:
    """Start cluster and Spark, run all chapters, and return whether all claims held."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, LocalCluster(brokers=2) as local:
        console.print(f"etcd, nameserver, 2 brokers, offset service: {since(began)}")
        spark = session(
            "local[2]",
            spark__ui__enabled="false",
            spark__ui__showConsoleProgress="false",
            spark__log__level="OFF",
            spark__driver__bindAddress="127.0.0.1",
            spark__driver__host="127.0.0.1",
            spark__driver__memory="1g",
            spark__sql__shuffle__partitions=2,
            spark__local__dir=folder,
        )
        try:
            console.print(f"a Spark session of this machine: {since(began)}")
            story = SparkStory(local, spark, records, Path(folder))
            story.verified.check(
                "the index is the real one",
                (len(story.records), len(story.newest)) == (66_481, 63_666),
                f"{len(story.records):,} records, {len(story.newest):,} packages",
            )
            try:
                story.run()
            except (RockoonError, CompactionError, PySparkException) as failure:
                story.verified.check("every step works", False, str(failure).partition("\n")[0])
        finally:
            spark.stop()
    chapter("What was verified")
    story.verified.print(console)
    console.print(f"\n{time.perf_counter() - began:.1f} s in all; nothing is left behind")
    return story.verified.all_hold


def since(began: float) -> str:
    return f"ready after {time.perf_counter() - began:.1f} s"


def main() -> int:
    parser = argparse.ArgumentParser(prog="make demo-spark", description=__doc__)
    parser.parse_args()
    logging.getLogger("rockoon_spark").setLevel(logging.ERROR)
    try:
        return 0 if run_demo(read_records(SAMPLE)) else 1
    except KeyboardInterrupt:
        console.print("\nstopped; nothing is left behind")
        return 130
    except (JavaMissing, LocalClusterError) as failure:
        console.print(str(failure), markup=False)
        return 1


if __name__ == "__main__":
    sys.exit(main())
