"""An oracle for reads of a cluster: the messages that a producer sent, as Parquet, in DuckDB."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from rockoon.message import SendResult
from rockoon.sync import Cluster
from rockoon_spark.compaction.broker_target import broker_targets
from rockoon_spark.jobs.compact import compact_on
from support.task_exchange import OneProcess

PLAIN = ("orders", "orders-eu", "bills")
COMPACTED = "prices"
TOPICS = (*PLAIN, COMPACTED)
TIMER, HALF = "rmq_sys_wheel_timer", "RMQ_SYS_TRANS_HALF_TOPIC"
BROKERS = ("broker-a", "broker-b")
QUEUES = 2
"""Queues of a topic on each broker."""
_TOGETHER = 25
"""Messages that are sent at the same time, so that store times differ."""

SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("broker", pa.string()),
        ("queue", pa.int32()),
        ("queue_offset", pa.int64()),
        ("physical_offset", pa.int64()),
        ("keys", pa.string()),
        ("tags", pa.string()),
        ("body", pa.binary()),
        ("properties", pa.list_(pa.string())),
        ("store_time", pa.int64()),
        ("unique_key", pa.string()),
        ("message_id", pa.string()),
        ("is_compacted", pa.bool_()),
        ("is_internal", pa.bool_()),
    ]
)

KNOWN = (
    "topic",
    "broker",
    "queue",
    "queue_offset",
    "physical_offset",
    "keys",
    "tags",
    "body",
    "properties",
    "store_time",
    "unique_key",
    "message_id",
)
"""Columns that the producer knows."""
# Columns as the oracle has them: only properties of the producer, and milliseconds.
_SAME = {
    "properties": "transform(filter(array_sort(map_entries(properties)), x -> x.key like 'x-%'),"
    " x -> concat(x.key, '=', x.value)) AS properties",
    "store_time": "unix_millis(store_time) AS store_time",
}

# DuckDB's tables: `log` has all messages of topics that are not internal, `visible` leaves out the
# messages that a compaction has superseded, `internal` has also the messages of internal topics.
_TABLES = f"""
WITH internal AS (FROM read_parquet($file) WHERE broker IN $brokers),
log AS (FROM internal WHERE NOT is_internal),
visible AS (
    FROM log
    QUALIFY topic <> '{COMPACTED}' OR NOT is_compacted OR physical_offset
        = max(physical_offset) FILTER (WHERE is_compacted) OVER (PARTITION BY topic, broker, keys)
)
"""


@dataclass
class Outgoing:
    """A message, before it is sent."""

    topic: str
    body: bytes
    keys: list[str]
    tags: str | None
    properties: dict[str, str]

    def options(self) -> dict[str, Any]:
        given = {"keys": self.keys or None, "tags": self.tags, "properties": self.properties}
        # The versions of a key have an order only in one queue.
        if self.topic == COMPACTED:
            given["ordering_key"] = self.keys[0]
        return given

    def row(self, stored: SendResult) -> dict[str, Any]:
        """Return the row of the message at the position of its acknowledgement."""
        return self.row_of(
            topic=self.topic,
            broker=stored.queue.broker,
            queue=stored.queue.queue_id,
            queue_offset=stored.queue_offset,
            physical_offset=stored.physical_offset,
            store_time=stored.store_timestamp_ms,
            unique_key=stored.message_id,
            message_id=stored.offset_message_id,
        )

    def row_of(self, **position: Any) -> dict[str, Any]:
        return {
            "keys": " ".join(self.keys) or None,
            "tags": self.tags,
            "body": self.body,
            "properties": sorted(f"{name}={value}" for name, value in self.properties.items()),
            "is_internal": False,
            "is_compacted": False,
            **position,
        }


@dataclass
class MessageOracle:
    """Sends random messages of TOPICS, and answers queries over what it has sent.

    Args:
        connection: to the cluster.
        endpoint: its nameservers.
        file: of Parquet, with all messages that were sent.
        chance: decides the messages.
    """

    connection: Cluster
    endpoint: str
    file: Path
    chance: random.Random
    _rows: list[dict[str, Any]] = field(default_factory=list)
    _sent: int = 0

    def create_topics(self) -> None:
        for topic in TOPICS:
            policy = {"cleanup.policy": "COMPACTION"} if topic == COMPACTED else {}
            self.connection.call(
                self.connection.admin.create_topic(
                    topic, queues_per_broker=QUEUES, attributes=policy
                )
            )

    def send(self, count: int) -> None:
        """Send plain messages of all topics."""
        left = [self._random() for _ in range(count)]
        while left:
            some, left = left[:_TOGETHER], left[_TOGETHER:]
            self._rows += [
                message.row(stored)
                for message, stored in zip(some, self._send_together(some), strict=True)
            ]
        self._write()

    def send_delayed(self, due: int, waiting: int) -> None:
        """Send delayed messages: some are stored in their topics before this ends, some later."""
        messages = [self._random(*PLAIN) for _ in range(due + waiting)]
        for number, message in enumerate(messages):
            delay_seconds = 1 if number < due else 3600
            stored = self.connection.send(
                message.topic, message.body, delay_seconds=delay_seconds, **message.options()
            )
            self._add_internal(message, TIMER, stored.queue.broker, stored.message_id)
        self._read_back(messages[:due])
        self._write()

    def _read_back(self, due: Sequence[Outgoing]) -> None:
        """Add the rows of delayed messages, at the positions where a consumer finds them."""
        bodies = {message.body: message for message in due}
        for topic in {message.topic for message in due}:
            own = {body for body, message in bodies.items() if message.topic == topic}
            found = (each for each in self.connection.consume(topic) if each.body in own)
            for each in islice(found, len(own)):
                self._rows.append(
                    bodies[each.body].row_of(
                        topic=topic,
                        broker=each.queue.broker,
                        queue=each.queue.queue_id,
                        queue_offset=each.queue_offset,
                        physical_offset=each.physical_offset,
                        store_time=each.store_timestamp_ms,
                        unique_key=each.message_id,
                        message_id=each.offset_message_id,
                    )
                )

    def send_transactions(self, committed: int, rolled_back: int, opened: int) -> None:
        """Send half messages; some are committed, some rolled back, some stay open."""
        ends = ["commit"] * committed + ["rollback"] * rolled_back + [""] * opened
        with self.connection.transactional_producer("oracle", check=lambda *_: None) as producer:
            for end in ends:
                message = self._random(*PLAIN)
                begun = producer.begin(message.topic, message.body, **message.options())
                broker = begun.transaction.queue.broker
                self._add_internal(message, HALF, broker, begun.message_id)
                if end == "commit":
                    self._rows.append(message.row(begun.commit()))
                elif end:
                    begun.rollback()
        self._write()

    def _add_internal(self, message: Outgoing, topic: str, broker: str, unique_key: str) -> None:
        self._rows.append(
            message.row_of(topic=topic, broker=broker, unique_key=unique_key, is_internal=True)
        )

    def compact(self) -> None:
        """Compact all brokers."""
        for target in broker_targets(self.endpoint):
            assert compact_on(OneProcess(), target).is_new
        self.mark_compacted()

    def mark_compacted(self) -> None:
        """Record that a compaction has included all messages."""
        for row in self._rows:
            row["is_compacted"] = row["topic"] == COMPACTED
        self._write()

    def ask(self, query: str, brokers: Sequence[str] = BROKERS) -> pa.Table:
        """Return the result of a query over `log`, `visible` and `internal` of some brokers."""
        parameters = {"file": str(self.file), "brokers": list(brokers)}
        return duckdb.sql(_TABLES + query, params=parameters).to_arrow_table()

    def _random(self, *topics: str) -> Outgoing:
        chance, number = self.chance, self._sent
        self._sent += 1
        topic = chance.choice(topics or TOPICS)
        size = chance.choice([0, chance.randrange(100), chance.randrange(6000)])
        if topic == COMPACTED:
            keys = [f"key-{chance.randrange(8)}"]
        else:
            keys = chance.choice([[], [f"id-{number}", *chance.sample("abä", chance.randrange(3))]])
        body = b"%d " % number + chance.randbytes(size)
        # An empty body of a compacted topic deletes its key.
        return Outgoing(
            topic=topic,
            body=b"" if topic == COMPACTED and not chance.randrange(6) else body,
            keys=keys,
            tags=chance.choice([None, "new", "paid", "new-eu"]),
            properties={
                f"x-{n}": chance.choice(["1", "ö", "a b"]) for n in range(chance.randrange(3))
            },
        )

    def _send_together(self, messages: Sequence[Outgoing]) -> list[SendResult]:
        async def send() -> list[SendResult]:
            async with self.connection.asyncio.producer() as producer:
                receipts = [
                    producer.send(each.topic, each.body, **each.options()) for each in messages
                ]
                return [await each for each in receipts]

        return self.connection.call(send())

    def _write(self) -> None:
        pq.write_table(pa.Table.from_pylist(self._rows, SCHEMA), self.file)


def expressions(columns: Sequence[str] = KNOWN) -> list[str]:
    """Return Spark's expressions for columns as the oracle has them."""
    return [_SAME.get(name, name) for name in columns]


def difference(found: pa.Table, expected: pa.Table) -> list[tuple[Any, ...]]:
    """Return the rows that only one of two tables has, each as often as it is missing there."""
    assert found.column_names == expected.column_names
    columns = ", ".join(found.column_names)
    return duckdb.sql(f"""
        (SELECT 'unexpected' AS kind, * FROM (FROM found EXCEPT ALL SELECT {columns} FROM expected))
        UNION ALL
        (SELECT 'missing' AS kind, * FROM (FROM expected EXCEPT ALL SELECT {columns} FROM found))
    """).fetchall()
