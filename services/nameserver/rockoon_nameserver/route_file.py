"""File of an embedded route store: an SQLite database, which `sqlite3` shows to a person.

    facts    name, value                    layout, cluster_id, revision (of the last change)
    keys     key, value, create_revision, mod_revision, lease (0: none)
    leases   lease, ttl_seconds             their time begins anew with every start

Synchronous; one process has it open.
"""

import contextlib
import os
import sqlite3
from collections.abc import Mapping
from pathlib import Path

from rockoon_core.errors import StoreCorrupt, StoreLocked
from rockoon_nameserver.etcd_data import Header, KeyValue

LAYOUT = "1"
# That of every etcd with one member that `rockoon up` sets up: etcd makes it of the member's name
# and address. Routes are moved there and back under it, and brokers know their cluster by it.
CLUSTER_ID = 0xE75700C5E2C7C3EE
NEW = Header(revision=1, cluster_id=CLUSTER_ID)
SCHEMA = (
    "CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE keys (key TEXT PRIMARY KEY, value BLOB NOT NULL, create_revision INTEGER"
    " NOT NULL, mod_revision INTEGER NOT NULL, lease INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE leases (lease INTEGER PRIMARY KEY, ttl_seconds INTEGER NOT NULL)",
)


class DiskFull(OSError):
    """There is no room: nothing was written, and it may be tried again."""


class RouteFile:
    """An open file, locked; a new one is made where there is none.

    Args:
        path: in a directory that exists.
        new: where a new one begins.

    Raises:
        StoreLocked: another process has it.
        StoreCorrupt: it is no such file, or damaged.
        OSError: it can be neither read nor made.

    Attributes:
        header: revision of the last change, and whose it is.
        items: what it held when it was opened.
        leases: likewise, lease to seconds.
    """

    def __init__(self, path: Path, new: Header = NEW) -> None:
        # SQLite's other files get the mode of this one: it has what signatures are checked with.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        self._database = sqlite3.connect(
            path, timeout=0, isolation_level=None, check_same_thread=False
        )
        try:
            self._open(path, new)
        except sqlite3.DatabaseError as failure:
            self._database.close()
            if failure.sqlite_errorcode == sqlite3.SQLITE_BUSY:
                raise StoreLocked(path=path) from failure
            if isinstance(failure, sqlite3.OperationalError):
                raise OSError(f"{path}: {failure}") from failure
            raise StoreCorrupt(path=path, reason=str(failure)) from failure
        except BaseException:
            self._database.close()
            raise

    def _open(self, path: Path, new: Header) -> None:
        execute = self._database.execute
        execute("PRAGMA locking_mode = EXCLUSIVE")
        execute("PRAGMA journal_mode = WAL")
        # Each transaction is synced: in this mode the default syncs only now and then.
        execute("PRAGMA synchronous = FULL")
        execute("BEGIN EXCLUSIVE")
        if execute("SELECT 1 FROM sqlite_master WHERE name = 'facts'").fetchone() is None:
            for statement in SCHEMA:
                execute(statement)
            for fact in (("layout", LAYOUT), ("cluster_id", str(new.cluster_id))):
                execute("INSERT INTO facts VALUES (?, ?)", fact)
            self._put_revision(new.revision)
        execute("COMMIT")
        # What the last process wrote may be in memory alone: what is built on it has to be as safe.
        with contextlib.suppress(DiskFull):
            self.fold()
        sync_directory(path.parent)
        found = dict(execute("SELECT name, value FROM facts"))
        if found["layout"] != LAYOUT:
            raise StoreCorrupt(path=path, reason=f"nothing is known of layout {found['layout']}")
        self.header = Header(int(found["revision"]), int(found["cluster_id"]))
        self.items = [KeyValue(*row) for row in execute("SELECT * FROM keys")]
        self.leases: dict[int, int] = dict(execute("SELECT * FROM leases"))

    def write(
        self,
        revision: int,
        keys: Mapping[str, KeyValue | None],
        leases: Mapping[int, int | None],
    ) -> None:
        """Put what changed on disk: all of it or nothing.

        Args:
            revision: of the last change.
            keys: those that changed; None where one is gone.
            leases: likewise.

        Raises:
            DiskFull: there is no room.
            OSError: whether it is on disk is not known.
        """
        execute, many = self._database.execute, self._database.executemany
        try:
            execute("BEGIN IMMEDIATE")
            many("DELETE FROM keys WHERE key = ?", [(key,) for key in keys])
            put = [item for item in keys.values() if item is not None]
            many("INSERT INTO keys VALUES (?, ?, ?, ?, ?)", put)
            many("DELETE FROM leases WHERE lease = ?", [(lease,) for lease in leases])
            granted = [(lease, ttl) for lease, ttl in leases.items() if ttl is not None]
            many("INSERT INTO leases VALUES (?, ?)", granted)
            self._put_revision(revision)
            execute("COMMIT")
        except sqlite3.Error as failure:
            with contextlib.suppress(sqlite3.Error):
                execute("ROLLBACK")
            raise _as_os_error(failure) from failure

    def fold(self) -> None:
        """Put all that was written into the database itself, synced; its log is empty then.

        Closing does that too, but says nothing when it fails.

        Raises:
            DiskFull: there is no room; nothing is lost.
            OSError: the disk.
        """
        try:
            busy, *_ = self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except sqlite3.Error as failure:
            raise _as_os_error(failure) from failure
        if busy:
            raise OSError("the database's log could not be folded into it")

    def _put_revision(self, revision: int) -> None:
        self._database.execute(
            "INSERT OR REPLACE INTO facts VALUES ('revision', ?)", (str(revision),)
        )

    def close(self) -> None:
        self._database.close()


def _as_os_error(failure: sqlite3.Error) -> OSError:
    if failure.sqlite_errorcode == sqlite3.SQLITE_FULL:
        return DiskFull(f"there is no room for {failure}")
    return OSError(str(failure))


def sync_directory(directory: Path) -> None:
    """Have the names in a directory on disk."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
