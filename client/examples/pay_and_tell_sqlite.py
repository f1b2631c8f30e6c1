"""Transactional messages: a payment is stored if and only if its message is sent.

    python pay_and_tell_sqlite.py 127.0.0.1:9876 payments shop.db 7 8 9

Marks the orders 7, 8 and 9 as paid in SQLite and sends a message for each, in a transaction: first
the half message, which no consumer sees; then the database; then the commit. Kill it between any
two of these, and start it or another process of the group: the check finds out from the database.

How it works. The message's id is a row, written in the same local transaction as the payment. The
check looks for this row. If it is missing, the local transaction may still be running in another
process: ROLLBACK would be a guess, and UNKNOWN would repeat the check forever for a dead process.
The check does neither: it writes the id itself, as refused. The id is the table's key, so the first
writer wins: a local transaction that comes later fails.
"""

import asyncio
import sqlite3
import sys
from contextlib import closing

import rockoon
from rockoon import Message, Resolution
from rockoon.transactions.producer import TransactionalProducer

SCHEMA = """
CREATE TABLE IF NOT EXISTS payments (order_id TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS told (message_id TEXT PRIMARY KEY, is_paid INTEGER) WITHOUT ROWID;
"""
GROUP = "payments"


class Shop:
    """The database.

    Args:
        path: its file; created if missing.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        with closing(self._open()) as database:
            database.executescript(SCHEMA)

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path)

    def mark_paid(self, order_id: str, message_id: str) -> None:
        """The local transaction: insert both rows, or neither and raise sqlite3.IntegrityError."""
        with closing(self._open()) as database, database:
            database.execute("INSERT INTO told VALUES (?, 1)", (message_id,))
            database.execute("INSERT INTO payments VALUES (?)", (order_id,))

    def check(self, message: Message) -> Resolution:
        """Return the result of a message's local transaction."""
        with closing(self._open()) as database, database:
            database.execute("INSERT OR IGNORE INTO told VALUES (?, 0)", (message.message_id,))
            found = database.execute(
                "SELECT is_paid FROM told WHERE message_id = ?", (message.message_id,)
            )
            (is_paid,) = found.fetchone()
        return Resolution.COMMIT if is_paid else Resolution.ROLLBACK

    def paid(self) -> list[str]:
        with closing(self._open()) as database:
            rows = database.execute("SELECT order_id FROM payments ORDER BY order_id")
            return [order_id for (order_id,) in rows]


async def pay(producer: TransactionalProducer, topic: str, shop: Shop, order_id: str) -> None:
    """Mark an order as paid, and send a message about it.

    Raises:
        sqlite3.IntegrityError: it is paid already; no message is sent.
    """
    async with producer.transaction(topic, order_id.encode(), ordering_key=order_id) as transaction:
        await asyncio.to_thread(shop.mark_paid, order_id, transaction.message_id)


async def main(nameservers: str, topic: str, path: str, *order_ids: str) -> None:
    shop = Shop(path)
    async with (
        rockoon.connect(nameservers) as cluster,
        cluster.transactional_producer(GROUP, check=shop.check) as producer,
    ):
        for order_id in order_ids:
            await pay(producer, topic, shop, order_id)
            sys.stdout.write(f"order {order_id} is paid\n")


if __name__ == "__main__":
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    asyncio.run(main(*sys.argv[1:]))
