"""A topic and its tables while writers, brokers and the catalogue are killed.

Two writers (`rockoon table sync`) follow one topic, to which messages are sent all the time; one
body in ten does not fit the table. Processes are killed with SIGKILL at random moments. A catalogue
in a file of SQLite has no process: its file is locked instead. Now and then, a program expires all
snapshots but the current one. In the end, the rows of both tables, read by DuckDB, are compared
with the log, and the offsets in the last snapshot with the ends of the queues.
"""

import json
import logging
import multiprocessing
import random
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Event, Thread

import requests
from pyiceberg.exceptions import CommitFailedException, RESTError
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform
from pyiceberg.types import LongType, NestedField, StringType, TimestamptzType

import rockoon.arrow
from rockoon.errors import RockoonError
from rockoon.local.directory import PortBlock
from rockoon.testing.disposable import DisposableCluster
from rockoon_spark.stream.plan import StreamOffsets
from rockoon_spark.tables.commands import Interrupted, failure_text
from rockoon_spark.tables.commands import sync as run_sync
from rockoon_spark.tables.sync import SyncSettings
from support.lake import Lake
from support.rest_catalog import RestCatalogServer
from support.waiting import hold_up, wait_until

TABLE, ERRORS = "sales.orders", "sales.orders_errors"
SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "_broker", StringType()),
    NestedField(3, "_queue", LongType()),
    NestedField(4, "_queue_offset", LongType()),
    NestedField(5, "_store_time", TimestamptzType()),
)
BY_DATE = PartitionSpec(PartitionField(5, 1000, DayTransform(), "date"))
WRITERS = 2
BETWEEN_SECONDS_MAX = 0.8
AWAY_SECONDS_MAX = 1.0
# Longer than SQLite's own wait for a lock.
LOCK_SECONDS_MAX = 6.0
EXPIRES_EVERY = 25

# New processes are forks of a process that has imported the large packages.
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(
    [
        "duckdb",
        "pytest",
        "pyiceberg.catalog.rest",
        "pyiceberg.catalog.sql",
        "pyiceberg.io.pyarrow",
        "pyiceberg_core.transform",
        "rockoon.testing.disposable",
        "rockoon_spark.scan",
        "rockoon_spark.tables.commands",
    ]
)


@dataclass
class KillReport:
    """Counts of a run."""

    kills: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    """Reasons for which writers ended by themselves; they are started again."""
    messages: int = 0
    undecoded: int = 0
    commits: int = 0

    def __str__(self) -> str:
        kills = ", ".join(f"{number} of {name}" for name, number in sorted(self.kills.items()))
        lines = [
            f"{sum(self.kills.values())} kills ({kills});"
            f" {self.messages} messages in the table and {self.undecoded} in the second one, each"
            f" once, in {self.commits} commits"
        ]
        lines += [f"writer ended {number} x: {why}" for why, number in self.ended.items()]
        return "\n".join(lines)


def write(settings: SyncSettings, log_file: Path) -> None:
    """Run a writer, as `rockoon table sync` does, until it is killed."""
    logging.basicConfig(filename=log_file, level=logging.WARNING)
    try:
        run_sync(settings, lambda _: None, interval_seconds=0.05)
    except Interrupted:
        return
    except Exception as error:
        text = failure_text(error)
        if text is None:
            logging.exception("bug")
            raise
        logging.warning("ended: %s", text)
        sys.exit(1)


def serve(directory: Path, port: int) -> None:
    RestCatalogServer(directory, port).serve()


@dataclass
class Killing:
    """A run.

    Args:
        cluster: with two brokers.
        directory: of the catalogue and of logs.
        seed: of all choices.
        kind: rest or sqlite.
    """

    cluster: DisposableCluster
    directory: Path
    seed: int
    kind: str
    report: KillReport = field(default_factory=KillReport)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.topic = self.cluster.new_topic("orders", queues_per_broker=2)
        self.catalogue: BaseProcess | None = None
        self.file = self.directory / "catalog.db"
        # Not a port that the kernel gives to a client while no catalogue listens.
        self.ports = PortBlock()
        self.port = self.ports.choose()
        if self.kind == "rest":
            self.lake = Lake(f"http://127.0.0.1:{self.port}", {})
            self.start_catalogue()
        else:
            warehouse = (self.directory / "warehouse").as_uri()
            self.lake = Lake(f"sqlite:///{self.file}", {"warehouse": warehouse})
        self.settings = SyncSettings(
            topic=self.topic,
            stream={
                "endpoint": ",".join(self.cluster.nameservers),
                "startingOffsets": "earliest",
                "consumerGroup": self.topic,
            },
            catalog=self.lake.uri,
            properties=self.lake.properties,
            table=TABLE,
            errors_table=ERRORS,
            form="json",
            creates=True,
            commit_messages_max=50,
        )
        catalog = self.lake.open()
        catalog.create_namespace("sales")
        # Thousands of commits: manifests are merged.
        merged = {"commit.manifest-merge.enabled": "true"}
        catalog.create_table(TABLE, SCHEMA, partition_spec=BY_DATE, properties=merged)

    def start_catalogue(self) -> None:
        self.catalogue = processes.Process(
            target=serve, args=(self.directory, self.port), daemon=True
        )
        self.catalogue.start()

        def answers() -> bool:
            with suppress(requests.ConnectionError):
                return requests.get(f"{self.lake.uri}/v1/config", timeout=5).ok
            return False

        wait_until(answers, "the catalogue")

    def start_writer(self, number: int) -> BaseProcess:
        log_file = self.directory / f"writer-{number}.log"
        writer = processes.Process(target=write, args=(self.settings, log_file), daemon=True)
        writer.start()
        return writer

    def run(self, kills: int) -> KillReport:
        writers = [self.start_writer(number) for number in range(WRITERS)]
        with self.sending():
            for done in range(1, kills + 1):
                hold_up(self.chance.uniform(0, BETWEEN_SECONDS_MAX))
                for number, writer in enumerate(writers):
                    if not writer.is_alive():
                        self.report.ended[self.last_words(number)] += 1
                        writers[number] = self.start_writer(number)
                self.kill(writers)
                if done % EXPIRES_EVERY == 0:
                    self.expire()
        for writer in writers:
            writer.kill()
            writer.join()
        self.settle()
        if self.catalogue is not None:
            self.catalogue.kill()
            self.catalogue.join()
        self.ports.close()
        return self.report

    def last_words(self, number: int) -> str:
        lines = (self.directory / f"writer-{number}.log").read_text().splitlines()
        return lines[-1] if lines else "nothing logged"

    def kill(self, writers: list[BaseProcess]) -> None:
        target = self.chance.choices(["writer", "catalogue", "broker"], [12, 5, 3])[0]
        self.report.kills[target] += 1
        if target == "writer":
            number = self.chance.randrange(WRITERS)
            writers[number].kill()
            writers[number].join()
            writers[number] = self.start_writer(number)
        elif target == "broker":
            broker = self.chance.choice(self.cluster.brokers)
            self.cluster.kill(broker)
            hold_up(self.chance.uniform(0, AWAY_SECONDS_MAX))
            self.cluster.start(broker)
        elif self.catalogue is not None:
            self.catalogue.kill()
            self.catalogue.join()
            hold_up(self.chance.uniform(0, AWAY_SECONDS_MAX))
            self.start_catalogue()
        else:
            with sqlite3.connect(self.file, timeout=60) as connection:
                connection.execute("BEGIN EXCLUSIVE")
                hold_up(self.chance.uniform(0, LOCK_SECONDS_MAX))
                connection.rollback()
            connection.close()

    def expire(self) -> None:
        """Expire all snapshots but the current one, as maintenance does."""
        with suppress(CommitFailedException, RESTError, requests.RequestException):
            table = self.lake.open().load_table(TABLE)
            table.append(SCHEMA.as_arrow().empty_table())
            soon = datetime.now() + timedelta(hours=1)
            table.maintenance.expire_snapshots().older_than(soon).commit()
            self.report.kills["snapshots"] += 0

    @contextmanager
    def sending(self) -> Iterator[None]:
        over = Event()
        sender = Thread(target=self.send, args=(over.is_set,), daemon=True)
        sender.start()
        try:
            yield
        finally:
            over.set()
            sender.join()

    def send(self, is_over: Callable[[], bool]) -> None:
        number = 0
        # Batches that are sent again.
        logging.getLogger("rockoon").setLevel(logging.ERROR)
        with self.cluster.connect() as connection:
            while not is_over():
                number += 1
                body = json.dumps({"id": number}).encode()
                # A message that was not acknowledged may be in the log; the log decides.
                with suppress(RockoonError):
                    connection.send(
                        self.topic, b"no JSON %d" % number if number % 10 == 0 else body
                    )
                hold_up(0.002)

    def settle(self) -> None:
        """Let a last writer append the rest, and compare the tables with the log."""
        with self.cluster.connect() as connection:
            connection.send(self.topic, b'{"id": 0}')
        run_sync(self.settings, lambda _: None, interval_seconds=None)
        log = rockoon.arrow.scan(
            ",".join(self.cluster.nameservers),
            self.topic,
            columns=["broker", "queue", "queue_offset", "body"],
        ).read_all()
        names = ("broker", "queue", "queue_offset", "body")
        messages = list(zip(*(log.column(name).to_pylist() for name in names), strict=True))
        columns = "_broker, _queue, _queue_offset, id"
        good = self.lake.query(TABLE, f"SELECT {columns} FROM rows")
        bad = self.lake.query(ERRORS, "SELECT broker, queue, queue_offset, body FROM rows")
        fitting = [each for each in messages if each[3].startswith(b"{")]
        expected = [(*each[:3], json.loads(each[3])["id"]) for each in fitting]
        assert sorted(good) == sorted(expected), "the table differs from the log"
        assert sorted(bad) == sorted({*messages} - {*fitting})
        table = self.lake.open().load_table(TABLE)
        snapshot = table.current_snapshot()
        assert snapshot is not None
        assert snapshot.summary is not None
        text = snapshot.summary[f"rockoon.offsets.{self.topic}"]
        assert text is not None, "the last snapshot does not state the offsets"
        stated = StreamOffsets.parse(json.loads(text)).queues
        ends = Counter((broker, queue) for broker, queue, *_ in messages)
        offsets = {(each.broker, each.queue_id): at.offset for each, at in stated.items()}
        assert {queue: ends[queue] for queue in offsets} == offsets
        self.report.messages, self.report.undecoded = len(good), len(bad)
        self.report.commits = snapshot.sequence_number or 0
