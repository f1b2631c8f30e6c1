"""Disks whose power can be cut: all file operations of replicas are recorded (`faults.preload`).

After a cut a store has exactly its synced bytes.
"""

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from faults import library
from faults.disk_model import DiskModel, read_deeds

LOCK = "lock"


class Disks:
    """Stores of some hosts.

    Args:
        directory: parent of the stores, each in a directory with its host's name; created here.
        aside: directory of the records.
        hosts: their hosts.
    """

    def __init__(self, directory: Path, aside: Path, hosts: Iterable[str]) -> None:
        self._directory = directory.resolve()
        self._aside = aside.resolve()
        self.hosts = tuple(hosts)
        self._models: dict[str, DiskModel] = {}
        aside.mkdir(parents=True, exist_ok=True)
        self._library = library.build(self._aside)
        for host in self.hosts:
            self.begin(host)

    def environment(self, host: str) -> Mapping[str, str]:
        """Return variables for the process with the store."""
        return library.environment(
            self._library, self._directory / host, self._journal(host), control=None
        )

    def begin(self, host: str) -> None:
        """Start a record with the store's present content; its process is stopped."""
        store = self._directory / host
        store.mkdir(parents=True, exist_ok=True)
        self._journal(host).unlink(missing_ok=True)
        self._models[host] = DiskModel(store)

    def cut(self, host: str) -> None:
        """Reduce a store to its synced bytes; its process is stopped."""
        model, store, left = self._models[host], self._directory / host, self._aside / host
        for deed in read_deeds(self._journal(host).read_bytes()):
            model.apply(deed)
        model.cut(left, None)
        for each in store.iterdir():
            if each.is_dir():
                shutil.rmtree(each)
            elif each.name != LOCK:
                each.unlink()
        # The lock file names the place of a store, so it stays.
        shutil.copytree(left, store, dirs_exist_ok=True, ignore=shutil.ignore_patterns(LOCK))
        shutil.rmtree(left)
        self.begin(host)

    def _journal(self, host: str) -> Path:
        return self._aside / f"{host}.journal"
