"""Disks whose power can be cut: all that replicas do to their files is recorded (`faults.preload`).

A cut leaves of a store what was synced, and nothing else.
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
        directory: where stores are, each in a directory of its host's name; they are made here.
        aside: where records go.
        hosts: whose.
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
        """For the process that has the store."""
        return library.environment(
            self._library, self._directory / host, self._journal(host), control=None
        )

    def begin(self, host: str) -> None:
        """From now on the disk is as the store is now; its process is down."""
        store = self._directory / host
        store.mkdir(parents=True, exist_ok=True)
        self._journal(host).unlink(missing_ok=True)
        self._models[host] = DiskModel(store)

    def cut(self, host: str) -> None:
        """Leave of a store what was synced; its process is down."""
        model, store, left = self._models[host], self._directory / host, self._aside / host
        for deed in read_deeds(self._journal(host).read_bytes()):
            model.apply(deed)
        model.cut(left, None)
        for each in store.iterdir():
            if each.is_dir():
                shutil.rmtree(each)
            elif each.name != LOCK:
                each.unlink()
        # The lock says where a store is, so it stays the file that it is.
        shutil.copytree(left, store, dirs_exist_ok=True, ignore=shutil.ignore_patterns(LOCK))
        shutil.rmtree(left)
        self.begin(host)

    def _journal(self, host: str) -> Path:
        return self._aside / f"{host}.journal"
