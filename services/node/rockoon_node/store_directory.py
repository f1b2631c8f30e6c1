"""The store directory of a node: its format, its id, its cluster, and its permissions."""

import logging
import os
import re
import secrets
import stat
from collections.abc import Callable
from pathlib import Path

from rockoon_core.errors import StoreCorrupt
from rockoon_runtime.process import ExitStatus, Fatal
from rockoon_runtime.settings import SettingsError

log = logging.getLogger(__name__)

_OTHERS = stat.S_IRWXG | stat.S_IRWXO
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
STORE_ID_BYTES = 16
STORE_ID = re.compile(rb"[0-9a-f]{%d}" % (2 * STORE_ID_BYTES))
CLUSTER_ID = re.compile(r"[0-9a-fA-F]{16}")
FORMAT_FILE = "format"
STORE_FORMAT = 1
"""Format of all files in a store of a broker or offset service. Increment the number with a change
that former programs would misread or overwrite. A new store gets the number; a program that changes
an existing store must first raise the number in it."""


def keep_private(root: Path) -> None:
    """Remove the permissions of other users from a directory of this process's user.

    Files of former versions in it may be readable by all users, but a closed directory protects
    them, so the files of a large store need no change. The directory of another owner is not
    changed, such as the root of a volume that its group may use.

    Raises:
        OSError: the directory cannot be read or changed.
    """
    status = root.stat()
    if status.st_uid == os.geteuid() and status.st_mode & _OTHERS:
        root.chmod(stat.S_IMODE(status.st_mode) & ~_OTHERS)
        log.info("removed the permissions of other users from %s", root)


def refuse_newer_format(directory: Path) -> None:
    """Refuse the store of a newer program, before this program changes anything in it.

    Args:
        directory: the directory of the store's id. A store without a file of the format has
            format 1.

    Raises:
        Fatal: the format is newer, or cannot be read.
    """
    path = directory / FORMAT_FILE
    try:
        content = path.read_bytes().strip()
    except FileNotFoundError:
        return
    except OSError as failure:
        raise Fatal(ExitStatus.STORE, f"{path} cannot be read: {failure}") from failure
    if not re.fullmatch(rb"[0-9]{1,9}", content):
        raise Fatal(ExitStatus.STORE, f"{path} is damaged: it does not hold a number")
    if int(content) > STORE_FORMAT:
        raise Fatal(
            ExitStatus.STORE,
            f"the store has format {int(content)} (see {path}), and this version reads formats up "
            f"to {STORE_FORMAT}: start the newer version that wrote it. Nothing was changed",
        )


def read_or_make_store_id(path: Path, replace_file: Callable[[Path, bytes], None]) -> str:
    """Read the id of a store, which identifies a restarted service to the nameservers. A new store
    gets its format, and a random id, which never changes.

    Args:
        path: file of the id, in an existing directory.
        replace_file: replaces a file atomically and durably.

    Returns:
        32 hexadecimal digits.

    Raises:
        StoreCorrupt: the file has no store id.
        OSError: the file cannot be read or written.
    """
    if path.exists():
        content = path.read_bytes().strip()
        if not STORE_ID.fullmatch(content):
            raise StoreCorrupt(path=path, reason="it does not hold 32 hexadecimal digits")
        return content.decode()
    replace_file(path.with_name(FORMAT_FILE), b"%d\n" % STORE_FORMAT)
    store_id = secrets.token_hex(STORE_ID_BYTES)
    replace_file(path, store_id.encode() + b"\n")
    return store_id


def store_place(lock_file: Path) -> str:
    """Value of `Node.place`: identifies the directory of a store on a machine.

    Two processes cannot hold the same lock file, so a process with the lock proves that the other
    process with the same value has ended. A copy of the store, on any machine, has another value.

    Args:
        lock_file: lock file of the store, held by this process.

    Raises:
        OSError: the file is missing.
    """
    found = lock_file.stat()
    try:
        # The boot id is the same in all containers of a machine, and changes with each boot.
        kernel = BOOT_ID.read_text().strip()
    except OSError:
        return ""
    return f"{kernel}/{found.st_dev}/{found.st_ino}"


def cluster_id(setting: str, written: str) -> int:
    """Parse a setting with 16 hexadecimal digits; 0 if it is empty. Raises SettingsError."""
    if not written:
        return 0
    if not CLUSTER_ID.fullmatch(written):
        raise SettingsError(f"{setting}: {written!r} is not 16 hexadecimal digits")
    return int(written, 16)


class StoreCluster:
    """Cluster id of a store, in a file of the store.

    A store is valid in one cluster only: topics and groups of the same name in another cluster are
    different ones.

    Args:
        path: the file. Its directory must exist at the first write.
        replace_file: replaces a file atomically and durably.
        accepted: id of a cluster that the store may move to; 0: none.

    Attributes:
        known: id of the store's cluster; 0: none yet.

    Raises:
        StoreCorrupt: the file has no cluster id.
        OSError: the file cannot be read.
    """

    def __init__(
        self, path: Path, replace_file: Callable[[Path, bytes], None], accepted: int = 0
    ) -> None:
        self._path = path
        self._replace_file = replace_file
        self._accepted = accepted
        self.known = self._read()
        # Nameservers of the store's cluster have answered since the start.
        self._joined = False
        # Id of the other cluster that was logged last.
        self._logged = 0

    def _read(self) -> int:
        if not self._path.exists():
            return 0
        content = self._path.read_text(errors="replace").strip()
        if not CLUSTER_ID.fullmatch(content):
            raise StoreCorrupt(path=self._path, reason="it does not hold 16 hexadecimal digits")
        return int(content, 16)

    def join(self, cluster: int) -> str:
        """Check that the store may be used in a cluster. A new store gets the id of the cluster.

        Args:
            cluster: id in the routes of a nameserver; 0: the nameserver does not know it.

        Returns:
            Empty, or the reason why the store must not be used. If the etcd of the cluster was
            replaced while the service runs, the service does not end: the reason is logged once.

        Raises:
            OSError: the file cannot be written.
        """
        if cluster in (0, self.known):
            self._joined = self._joined or cluster != 0
            return ""
        if self.known and cluster != self._accepted:
            refusal = (
                f"this store belongs to cluster {self.known:016x} (see {self._path}), but the "
                f"nameservers belong to cluster {cluster:016x}: point nameservers at the store's "
                f"cluster, or start with accept_cluster_id = {cluster:016x} to move the store to "
                "the other cluster"
            )
            if not self._joined:
                return refusal
            if cluster != self._logged:
                self._logged = cluster
                log.error("the next start will be refused: %s", refusal)
            return ""
        self.move_to(cluster)
        return ""

    def is_foreign(self, cluster: int) -> bool:
        """True if a service that has just started has reached another cluster than its own."""
        return not self._joined and 0 not in (cluster, self.known) and cluster != self.known

    def move_to(self, cluster: int) -> None:
        """Write the id of the cluster that the store belongs to from now on. Raises OSError."""
        if cluster not in (0, self.known):
            if self.known:
                log.warning(
                    "the store moves from cluster %016x to cluster %016x, as the settings require",
                    self.known,
                    cluster,
                )
            self._replace_file(self._path, f"{cluster:016x}\n".encode())
            self.known = cluster
        self._joined = self._joined or cluster != 0
