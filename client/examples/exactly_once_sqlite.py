"""Exactly-once processing: progress is stored in the same database as the effects of messages.

    python exactly_once_sqlite.py 127.0.0.1:9876 orders orders.db

Reads every message of a topic and adds up amounts per customer (bodies like "alice 30") in SQLite.
Each message is counted once, however often the program is killed and started again.

How it works. A cluster delivers at least once: after a crash, messages that were handled but not
committed are delivered again. Here *the fact that a message was handled* is a row, written in the
same transaction as the message's effects. So the database has both or neither, and a message that
is delivered again is recognized and skipped.

    handled     one row for each message whose effects are in the database
    progress    per queue, the offset below which everything is handled; rows of `handled` below it
                are not needed any more and are deleted when it moves

`progress` is written every few seconds, in a separate transaction. That is safe, because `handled`
already contains everything that `progress` covers. One row per queue would not be enough: handlers
may finish out of order, and a failed message is delivered again after its successors.

The effects must be in this database: an e-mail sent by the handler can still be sent twice.
"""

import asyncio
import sqlite3
import sys
from collections.abc import Callable, Sequence
from contextlib import closing

import rockoon
from rockoon import CustomOffsetStore, Message, MessageQueue, OffsetSnapshot, Position
from rockoon.consumer.redelivery import LocalRedelivery
from rockoon.errors import StoreLocked

SCHEMA = """
CREATE TABLE IF NOT EXISTS progress (
    topic TEXT, broker TEXT, queue_id INTEGER, next_offset INTEGER, create_revision INTEGER,
    PRIMARY KEY (topic, broker, queue_id)
);
CREATE TABLE IF NOT EXISTS handled (
    topic TEXT, broker TEXT, queue_id INTEGER, queue_offset INTEGER,
    PRIMARY KEY (topic, broker, queue_id, queue_offset)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS since (topic TEXT PRIMARY KEY, revision INTEGER);
CREATE TABLE IF NOT EXISTS totals (customer TEXT PRIMARY KEY, amount INTEGER, orders INTEGER);
"""
THIS_QUEUE = "topic = ? AND broker = ? AND queue_id = ?"


class SqliteBackend:
    """Stores progress and handled messages in a database that no other process uses.

    Used by one event loop; each call is one transaction that never waits for a lock.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._database: sqlite3.Connection | None = None

    @property
    def database(self) -> sqlite3.Connection:
        assert self._database is not None, "call load() first"
        return self._database

    async def load(self) -> OffsetSnapshot:
        self._database = sqlite3.connect(self._path, timeout=0)
        try:
            # Two processes on one database would each rely on being the only one.
            self.database.execute("PRAGMA locking_mode = EXCLUSIVE")
            self.database.execute("PRAGMA synchronous = FULL")
            self.database.executescript(f"BEGIN EXCLUSIVE; {SCHEMA} COMMIT;")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                raise
            raise StoreLocked(path=self._path) from error
        positions = {
            MessageQueue(*queue): Position(next_offset, create_revision)
            for *queue, next_offset, create_revision in self.database.execute(
                "SELECT * FROM progress"
            )
        }
        return OffsetSnapshot(positions, dict(self.database.execute("SELECT * FROM since")))

    async def write(self, changed: OffsetSnapshot) -> None:
        with self.database:
            for queue, position in changed.positions.items():
                self._write_position((queue.topic, queue.broker, queue.queue_id), position)
            self.database.executemany(
                "INSERT OR REPLACE INTO since VALUES (?, ?)", changed.since.items()
            )

    def _write_position(self, queue: tuple[str, str, int], position: Position) -> None:
        former = self.database.execute(
            f"SELECT next_offset, create_revision FROM progress WHERE {THIS_QUEUE}", queue
        ).fetchone()
        self.database.execute(
            "INSERT OR REPLACE INTO progress VALUES (?, ?, ?, ?, ?)",
            (*queue, position.offset, position.create_revision),
        )
        # A lower offset, or a new queue of the same name: the rows would hide other messages.
        is_other = former is not None and (
            position.offset < former[0] or position.create_revision != former[1]
        )
        below = "" if is_other else f" AND queue_offset < {int(position.offset)}"
        self.database.execute(f"DELETE FROM handled WHERE {THIS_QUEUE}{below}", queue)

    async def close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def once(
        self,
        messages: Sequence[Message],
        write: Callable[[sqlite3.Connection, Message], None],
    ) -> int:
        """Call `write` for each message that is not handled yet; all in one transaction.

        Returns:
            Number of messages that were not handled. If `write` raises, nothing is written.
        """
        news = 0
        with self.database:
            for message in messages:
                place = (message.queue.topic, message.queue.broker, message.queue.queue_id)
                if not self._is_handled(place, message.queue_offset):
                    self.database.execute(
                        "INSERT INTO handled VALUES (?, ?, ?, ?)", (*place, message.queue_offset)
                    )
                    write(self.database, message)
                    news += 1
        return news

    def _is_handled(self, queue: tuple[str, str, int], queue_offset: int) -> bool:
        found = self.database.execute(
            f"SELECT 1 FROM progress WHERE {THIS_QUEUE} AND next_offset > ?"
            f" UNION ALL SELECT 1 FROM handled WHERE {THIS_QUEUE} AND queue_offset = ?",
            (*queue, queue_offset, *queue, queue_offset),
        )
        return found.fetchone() is not None


def add_up(database: sqlite3.Connection, message: Message) -> None:
    customer, amount = message.body.decode().split()
    database.execute(
        "INSERT INTO totals VALUES (?, ?, 1) ON CONFLICT (customer) DO UPDATE"
        " SET amount = amount + excluded.amount, orders = orders + 1",
        (customer, int(amount)),
    )


async def consume(
    nameservers: str, topic: str, backend: SqliteBackend, *, commit_seconds: float = 5.0
) -> None:
    """Count the messages of a topic until cancelled."""

    async def handle(messages: list[Message]) -> None:
        backend.once(messages, add_up)

    async with (
        rockoon.connect(nameservers) as cluster,
        cluster.push_consumer(
            "totals",
            {topic: "*"},
            handle,
            mode="broadcasting",
            member_id="counter-1",
            offset_store=CustomOffsetStore(cluster, "totals", backend),
            consume_from="first",
            batch_max=64,
            timing=rockoon.Timing(commit_seconds=commit_seconds),
            # Retried until it succeeds: a discarded message would be missing from the totals.
            redelivery=LocalRedelivery(),
        ) as consumer,
    ):
        await consumer.wait()


def totals(path: str) -> dict[str, tuple[int, int]]:
    """Return amount and number of orders per customer; not while `consume` uses the database."""
    with closing(sqlite3.connect(path)) as database:
        rows = database.execute("SELECT customer, amount, orders FROM totals ORDER BY customer")
        return {customer: (amount, orders) for customer, amount, orders in rows}


if __name__ == "__main__":
    try:
        asyncio.run(consume(sys.argv[1], sys.argv[2], SqliteBackend(sys.argv[3])))
    except KeyboardInterrupt:
        for customer, (amount, orders) in totals(sys.argv[3]).items():
            sys.stdout.write(f"{customer}: {amount} in {orders} orders\n")
