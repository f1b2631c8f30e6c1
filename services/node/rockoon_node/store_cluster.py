"""The cluster that a store belongs to: it joins no other one by mistake.

What a store holds means something in one cluster only: topics of the same name elsewhere are
others, and so are the groups whose progress counts its messages.
"""

import logging
import re
from collections.abc import Callable
from pathlib import Path

from rockoon_core.errors import StoreCorrupt
from rockoon_runtime.settings import SettingsError

log = logging.getLogger(__name__)

CLUSTER_ID = re.compile(r"[0-9a-fA-F]{16}")


def cluster_id(setting: str, written: str) -> int:
    """The number that a setting names in 16 hexadecimal digits; 0 for none, or SettingsError."""
    if not written:
        return 0
    if not CLUSTER_ID.fullmatch(written):
        raise SettingsError(f"{setting}: {written!r} is not 16 hexadecimal digits")
    return int(written, 16)


class StoreCluster:
    """Knows whose a store is, by a file in it.

    Args:
        path: the file, in a directory that exists once there is something to write.
        replace_file: durably gives a file its content: all of it, or none.
        accepted: the cluster to which a store of another one may go over; 0 for none.

    Attributes:
        known: identity of the cluster, as nameservers tell it; 0 while it belongs to none.

    Raises:
        StoreCorrupt: the file holds something else.
        OSError: it cannot be read.
    """

    def __init__(
        self, path: Path, replace_file: Callable[[Path, bytes], None], accepted: int = 0
    ) -> None:
        self._path = path
        self._replace_file = replace_file
        self._accepted = accepted
        self.known = self._read()
        # Whether nameservers of its own cluster have answered since the start.
        self._joined = False
        self._complained = 0

    def _read(self) -> int:
        if not self._path.exists():
            return 0
        content = self._path.read_text(errors="replace").strip()
        if not CLUSTER_ID.fullmatch(content):
            raise StoreCorrupt(path=self._path, reason="it does not hold 16 hexadecimal digits")
        return int(content, 16)

    def join(self, told: int) -> str:
        """Whether the store may be used in a cluster. The first one makes it its own.

        Args:
            told: identity of the cluster whose routes a nameserver tells; 0 where it tells none.

        Returns:
            Empty when it may, otherwise why not. A service that runs is not ended because its
            cluster's etcd was set up again under it: that is said once, in the log.

        Raises:
            OSError: it cannot be written down.
        """
        if told in (0, self.known):
            self._joined = self._joined or told != 0
            return ""
        if self.known and told != self._accepted:
            refusal = (
                f"this store belongs to cluster {self.known:016x} (so says {self._path}), and the "
                f"nameservers to cluster {told:016x}: point nameservers at its own, or start with "
                f"accept_cluster_id = {told:016x} to take what it holds into that one"
            )
            if not self._joined:
                return refusal
            if told != self._complained:
                self._complained = told
                log.error("from the next start on this will be refused: %s", refusal)
            return ""
        self.go_over(told)
        return ""

    def is_foreign(self, told: int) -> bool:
        """Whether a service that has just started has come to another cluster than its own."""
        return not self._joined and 0 not in (told, self.known) and told != self.known

    def go_over(self, told: int) -> None:
        """The store belongs to a cluster from now on, whichever it was before.

        Args:
            told: as of `join`.

        Raises:
            OSError: it cannot be written down.
        """
        if told not in (0, self.known):
            if self.known:
                log.warning(
                    "the store of cluster %016x goes over to cluster %016x, as the settings say",
                    self.known,
                    told,
                )
            self._replace_file(self._path, f"{told:016x}\n".encode())
            self.known = told
        self._joined = self._joined or told != 0
