"""`format("rockoon")` beside Spark's source for Kafka: rows per CPU second of the same queries.

Both clusters run during the whole measure and have the same messages: one session sends them with
the sinks of both. Queries alternate between the two sources, after some runs that are not measured
(Java's JIT compiler). CPU is that of the driver, Java, its Python workers and the servers.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from bench.command import show
from bench.compare.peer import KafkaPeer
from bench.compare.programs import CACHE, maven, run
from bench.spark.jobs import spark_on
from bench.usage import spending
from rockoon.local.directory import PortBlock
from rockoon.testing.disposable import DisposableCluster

POM = Path(__file__).with_name("kafka-source.xml")
# The other jars of the pom are those of PySpark.
_JARS = ("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2")
QUEUES = 8
RARE_ONE_IN = 100
"""Number of messages of the common topic for each message of the rare topic."""
_RARE, _COMMON = "rare", "common"
_WARM_RUNS = 3
_CORES = 2


@dataclass(frozen=True, slots=True)
class BesideFigure:
    """One query with one source; the run with the least CPU."""

    query: str
    source: str
    rows: int
    cpu_seconds: float
    server_cpu_seconds: float
    """The part of the servers."""
    seconds: float

    @property
    def rows_per_cpu_second(self) -> float:
        return self.rows / self.cpu_seconds


@dataclass(frozen=True, slots=True)
class Source:
    """One of the two sources.

    Args:
        name: of its format.
        options: of reads and streams, without topics.
        columns: name of each column, by the name of Kafka's column with the same content.
        servers: process ids of its servers.
    """

    name: str
    options: Mapping[str, str]
    columns: Mapping[str, str]
    servers: Sequence[int]

    def read(self, spark: SparkSession, topic: str, columns: Sequence[str]) -> DataFrame:
        """Return some columns of a topic's messages."""
        reader = spark.read.format(self.name).options(**self.options, subscribe=topic)
        return self._chosen(reader, columns)

    def stream(self, spark: SparkSession, topic: str, columns: Sequence[str]) -> DataFrame:
        """Return some columns of a topic's messages, from the oldest one on, as a stream."""
        reader = spark.readStream.format(self.name).options(**self.options, subscribe=topic)
        return self._chosen(reader.option("startingOffsets", "earliest"), columns)

    def _chosen(self, reader: Any, columns: Sequence[str]) -> DataFrame:
        own = [self.columns[name] for name in columns]
        if self.name == "rockoon":
            reader = reader.option("columns", ",".join(own))
        frame: DataFrame = reader.load()
        return frame.select(own)


_KAFKA_COLUMNS = ("topic", "partition", "offset", "key", "value", "timestamp")
_ROCKOON_COLUMNS = ("topic", "queue", "queue_offset", "keys", "body", "store_time")
_ALL = _KAFKA_COLUMNS

Query = Callable[[Source, SparkSession, Path], None]
"""Type of a function that runs a query, whose rows Spark discards; the directory is empty."""


def _batch(topic: str, columns: Sequence[str]) -> Query:
    def run_batch(source: Source, spark: SparkSession, _scratch: Path) -> None:
        source.read(spark, topic, columns).write.format("noop").mode("overwrite").save()

    return run_batch


def _stream(source: Source, spark: SparkSession, scratch: Path) -> None:
    writer = source.stream(spark, _COMMON, _ALL).writeStream.format("noop")
    query = writer.option("checkpointLocation", str(scratch)).trigger(availableNow=True).start()
    query.awaitTermination()


QUERIES: Mapping[str, tuple[str, Query]] = {
    "stream": (_COMMON, _stream),
    "whole topic": (_COMMON, _batch(_COMMON, _ALL)),
    "key and value": (_COMMON, _batch(_COMMON, ("key", "value"))),
    "offset and timestamp": (_COMMON, _batch(_COMMON, ("offset", "timestamp"))),
    "topic of 1 %": (_RARE, _batch(_RARE, _ALL)),
}
"""Topic and function of each query."""


def measure_beside_kafka(directory: Path, messages: int, rounds: int) -> list[BesideFigure]:
    """Fill both clusters, run all queries with both sources, and print a table.

    Args:
        directory: of the stores.
        messages: number of messages of the common topic.
        rounds: measured runs of each query and source; the one with the least CPU counts.

    Raises:
        NotHere: this machine cannot run Kafka.
    """
    with tempfile.TemporaryDirectory(dir=directory, ignore_cleanup_errors=True) as name:
        folder = Path(name).resolve()
        with (
            _both(folder) as sources,
            spark_on(_CORES, folder, spark__jars=",".join(_jars())) as spark,
        ):
            counts = _fill(spark, sources, messages)
            found = _measured(spark, folder, sources, counts, rounds)
    _print(found)
    return found


def _jars() -> list[str]:
    libraries = maven(POM, CACHE / "spark-kafka")
    return [str(jar) for jar in sorted(libraries.iterdir()) if jar.name.startswith(_JARS)]


@contextmanager
def _both(folder: Path) -> Iterator[list[Source]]:
    """Start both clusters with empty topics."""
    with ExitStack() as stack:
        ports = PortBlock()
        stack.callback(ports.close)
        kafka = KafkaPeer(ports)
        libraries = kafka.fetch()
        stack.callback(kafka.stop)
        (folder / "kafka").mkdir()
        address = kafka.start(folder / "kafka", sync=False)
        # A full disk must not stop a measure of reads.
        broker = {"disk_full_percent": 100, "disk_forced_percent": 100}
        broker["commit_log_file_bytes"] = 1 << 28
        cluster = stack.enter_context(DisposableCluster(settings={"broker": broker}))
        connection = stack.enter_context(cluster.connect())
        for topic in (_COMMON, _RARE):
            connection.call(connection.admin.create_topic(topic, queues_per_broker=QUEUES))
            command = ["java", "-cp", f"{libraries}/*", "org.apache.kafka.tools.TopicCommand"]
            command += ["--bootstrap-server", address, "--create", "--topic", topic]
            run([*command, "--partitions", str(QUEUES)])
        nodes = [node.pid for node in cluster.nodes if node.pid is not None]
        names = dict(zip(_KAFKA_COLUMNS, _ROCKOON_COLUMNS, strict=True))
        yield [
            Source("rockoon", {"endpoint": cluster.nameservers[0]}, names, nodes),
            Source(
                "kafka",
                {"kafka.bootstrap.servers": address},
                dict(zip(_KAFKA_COLUMNS, _KAFKA_COLUMNS, strict=True)),
                kafka.pids(),
            ),
        ]


def _fill(spark: SparkSession, sources: Sequence[Source], messages: int) -> dict[str, int]:
    """Send the same messages to both clusters; return their number by topic."""
    number = f.col("id").cast("string")
    rows = spark.range(messages + messages // RARE_ONE_IN).select(
        f.when(f.col("id") % (RARE_ONE_IN + 1) == 0, _RARE).otherwise(_COMMON).alias("topic"),
        f.concat(f.lit("order-"), number).alias("key"),
        # 192 characters that do not repeat.
        f.concat(*(f.md5(f.concat(number, f.lit(each))) for each in "abcdef")).alias("value"),
    )
    kafka = next(each for each in sources if each.name == "kafka")
    rockoon = next(each for each in sources if each.name == "rockoon")
    rows.write.format("kafka").options(**kafka.options).save()
    own = rows.selectExpr("topic", "key", "key AS keys", "value AS body")
    own.write.format("rockoon").options(**rockoon.options).mode("append").save()
    counts = {}
    for topic in (_COMMON, _RARE):
        found = {each.name: each.read(spark, topic, ("offset",)).count() for each in sources}
        assert len(set(found.values())) == 1, f"topic {topic} differs: {found}"
        counts[topic] = found["kafka"]
    return counts


def _measured(
    spark: SparkSession,
    folder: Path,
    sources: Sequence[Source],
    counts: Mapping[str, int],
    rounds: int,
) -> list[BesideFigure]:
    best: dict[tuple[str, str], BesideFigure] = {}
    for number in range(_WARM_RUNS + rounds):
        for name, (topic, query) in QUERIES.items():
            # Alternately, each source is the first one.
            for source in sources if number % 2 else reversed(sources):
                with tempfile.TemporaryDirectory(dir=folder) as scratch:
                    others = [pid for each in sources if each is not source for pid in each.servers]
                    with spending(without=others, apart=source.servers) as spent:
                        query(source, spark, Path(scratch))
                figure = BesideFigure(
                    name,
                    source.name,
                    counts[topic],
                    round(spent.cpu_seconds, 3),
                    round(spent.apart_cpu_seconds, 3),
                    round(spent.seconds, 3),
                )
                key = name, source.name
                if number >= _WARM_RUNS:
                    best[key] = min(best.get(key, figure), figure, key=lambda it: it.cpu_seconds)
    return list(best.values())


def _print(figures: Sequence[BesideFigure]) -> None:
    columns = ("query", "source", "rows", "CPU s", "of it servers", "s", "thousand rows per CPU s")
    rows = []
    kafka = {each.query: each for each in figures if each.source == "kafka"}
    for each in sorted(figures, key=lambda it: (list(QUERIES).index(it.query), it.source)):
        ratio = each.rows_per_cpu_second / kafka[each.query].rows_per_cpu_second
        times = (each.cpu_seconds, each.server_cpu_seconds, each.seconds)
        rows.append(
            (
                *(each.query, each.source, f"{each.rows:,}"),
                *(f"{seconds:.2f}" for seconds in times),
                f"{each.rows_per_cpu_second / 1000:,.0f}",
                f"{ratio:.2f}" if each.source == "rockoon" else "",
            )
        )
    show("beside Kafka", (*columns, "Rockoon / Kafka"), rows)
