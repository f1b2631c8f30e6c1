"""File of an embedded route store: an SQLite database, readable with `sqlite3`.

    facts    name, value                    layout, cluster_id, revision (of the last change)
    keys     key, value, create_revision, mod_revision, lease (0: none)
    leases   lease, ttl_seconds             each start of the nameserver renews them

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
# Cluster id of each etcd with one member that `rockoon up` sets up: etcd derives it from the
# member's name and address. Routes move between file and etcd under it, and brokers check it.
CLUSTER_ID = 0xE75700C5E2C7C3EE
NEW = Header(revision=1, cluster_id=CLUSTER_ID)
SCHEMA = (
    "CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE keys (key TEXT PRIMARY KEY, value BLOB NOT NULL, create_revision INTEGER"
    " NOT NULL, mod_revision INTEGER NOT NULL, lease INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE leases (lease INTEGER PRIMARY KEY, ttl_seconds INTEGER NOT NULL)",
)


class DiskFull(OSError):
    """The disk is full: nothing was written, and the write may be retried."""


class RouteFile:
    """An open, locked SQLite file with the routes; created if missing.

    Args:
        path: in an existing directory.
        new: revision and cluster id of a new file.

    Raises:
        StoreLocked: another process has it open.
        StoreCorrupt: it is another kind of file, or damaged.
        OSError: it can be neither read nor created.

    Attributes:
        header: revision of the last change, and the cluster id.
        items: the keys when it was opened.
        leases: the leases when it was opened, id to seconds.
    """

    def __init__(self, path: Path, new: Header = NEW) -> None:
        # SQLite's other files get the mode of this one: it has the verifiers of signatures.
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
        # Sync each transaction: the default in this mode syncs only at checkpoints.
        execute("PRAGMA synchronous = FULL")
        execute("BEGIN EXCLUSIVE")
        if execute("SELECT 1 FROM sqlite_master WHERE name = 'facts'").fetchone() is None:
            for statement in SCHEMA:
                execute(statement)
            for fact in (("layout", LAYOUT), ("cluster_id", str(new.cluster_id))):
                execute("INSERT INTO facts VALUES (?, ?)", fact)
            self._put_revision(new.revision)
        execute("COMMIT")
        # The last process's writes may be in the page cache only: sync them before new ones.
        with contextlib.suppress(DiskFull):
            self.checkpoint()
        sync_directory(path.parent)
        found = dict(execute("SELECT name, value FROM facts"))
        if found["layout"] != LAYOUT:
            reason = (
                f"its layout is {found['layout']}, and this version knows {LAYOUT}: start the "
                "newer version that wrote it"
            )
            raise StoreCorrupt(path=path, reason=reason)
        self.header = Header(int(found["revision"]), int(found["cluster_id"]))
        self.items = [KeyValue(*row) for row in execute("SELECT * FROM keys")]
        self.leases: dict[int, int] = dict(execute("SELECT * FROM leases"))

    def write(
        self,
        revision: int,
        keys: Mapping[str, KeyValue | None],
        leases: Mapping[int, int | None],
    ) -> None:
        """Write changes to disk, all or none.

        Args:
            keys: changed keys; None: deleted.
            leases: changed leases; None: deleted.

        Raises:
            DiskFull: the disk is full.
            OSError: it is unknown whether the changes are on disk.
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

    def checkpoint(self) -> None:
        """Move all writes from the WAL into the database, synced.

        Closing does that too, but reports no failure.

        Raises:
            DiskFull: the disk is full; nothing is lost.
            OSError: another failure of the disk.
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
    """Sync a directory's entries to disk."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
