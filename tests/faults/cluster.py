"""A local cluster whose stores are recorded, cut, damaged and replaced while a node is stopped."""

import asyncio
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from faults import library
from faults.disk_model import Deed, DiskModel, read_deeds
from faults.scenario import Task

from rockoon.local import LocalCluster
from rockoon.local.directory import NodeRecord
from rockoon.local.node_maker import MODULES
from rockoon.local.process import LocalClusterError, Node, NodeEnded, NodeKind

TESTS = Path(__file__).resolve().parents[1]
BROKER = "broker-a"
OFFSET = "offset"
LOCK = "lock"

# Small files, so that a few seconds fill many of them; otherwise the defaults.
BROKER_SETTINGS: Mapping[str, object] = {
    "flush": "sync",
    "commit_log_file_bytes": "1MiB",
    "consume_queue_file_entries": 200,
    "index_slots": 500,
    "index_units": 2000,
    "disk_full_percent": 100,
    "disk_forced_percent": 100,
    "transaction_timeout_ms": 300,
    "transaction_check_interval_ms": 300,
    "transaction_checks_max": 1000,
    "drain_seconds_max": 2.0,
}
OFFSET_SETTINGS: Mapping[str, object] = {"journal_bytes_max": 16384}


class FaultyCluster(LocalCluster):
    """A cluster with one broker, and functions that cause faults.

    Args:
        task: directory, and the mechanism that is broken on purpose.
        watched: nodes that run with the library.
        recorded: watched nodes with a journal of their disk operations.
        settings: in addition to the small files.
        more: arguments of LocalCluster.
    """

    def __init__(
        self,
        task: Task,
        watched: Sequence[str] = (),
        recorded: Sequence[str] = (),
        settings: Mapping[str, Mapping[str, object]] | None = None,
        **more: object,
    ) -> None:
        self._task = task
        directory = (task.directory / "cluster").resolve()
        self.aside = task.directory / "aside"
        self.aside.mkdir()
        self.controls = {name: library.Control(self.aside / f"{name}.control") for name in watched}
        self._recorded = tuple(recorded)
        paths = os.pathsep.join((str(TESTS), *filter(None, (os.environ.get("PYTHONPATH"),))))
        environment: dict[str, dict[str, str]]
        environment = {name: {"PYTHONPATH": paths, "GRPC_VERBOSITY": "NONE"} for name in MODULES}
        for name in watched:
            assert task.library is not None
            environment[name] = library.environment(
                task.library,
                directory / name,
                self._journal(name) if name in recorded else None,
                self.controls[name].path,
            )
            # The parent directory of a store is not part of it.
            (directory / name).mkdir(parents=True)
        given = settings or {}
        super().__init__(
            directory,
            settings={
                "broker": {**BROKER_SETTINGS, **given.get("broker", {})},
                "offset": {**OFFSET_SETTINGS, **given.get("offset", {})},
                "nameserver": given.get("nameserver", {}),
            },
            environment=environment,
            durable=False,
            **more,  # type: ignore[arg-type]
        )

    def _make(self, record: NodeRecord) -> Node:
        node = super()._make(record)
        if self._task.broken and record.kind is not NodeKind.ETCD:
            module = MODULES[record.kind]
            at = node.command.index(module)
            broken = ("faults.broken_service", self._task.broken, module)
            node.command = (*node.command[:at], *broken, *node.command[at + 1 :])
        return node

    def store(self, name: str) -> Path:
        return self.directory / name

    def _journal(self, name: str) -> Path:
        return self.aside / f"{name}.journal"

    # The node of all following functions must be stopped.

    def begin_record(self, name: str) -> DiskModel:
        """Copy the store for the journal that begins with the node's next start."""
        self._journal(name).unlink(missing_ok=True)
        return DiskModel(self.store(name))

    def take_record(self, name: str) -> list[Deed]:
        """Return the operations since `begin_record`."""
        deeds = list(read_deeds(self._journal(name).read_bytes()))
        self._journal(name).unlink()
        return deeds

    def keep_store(self, name: str) -> Path:
        """Copy a store, for `put_store`."""
        copy = self.aside / f"{name}.kept"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.store(name), copy)
        return copy

    def put_store(self, name: str, source: Path) -> None:
        """Replace a node's store by a copy of `source`.

        The lock file stays: it names the place of a store (Node.place).
        """
        for each in self.store(name).iterdir():
            if each.is_dir():
                shutil.rmtree(each)
            elif each.name != LOCK:
                each.unlink()
        shutil.copytree(
            source, self.store(name), dirs_exist_ok=True, ignore=shutil.ignore_patterns(LOCK)
        )

    async def down(self, name: str) -> None:
        await asyncio.to_thread(self.kill, name)

    async def up(self, name: str) -> str:
        """Start a node; return the reason if it does not serve, empty if it does."""
        try:
            await asyncio.to_thread(self.start, name, wait=False)
            await self.wait_ready(name)
        except LocalClusterError as failure:
            return " ".join(str(failure).split())[-300:]
        return ""

    def unexpected_ends(self) -> list[str]:
        """Return nodes that ended without a request."""
        found = []
        while (ended := self.wait_node_ended(0)) is not None:
            found.append(" ".join(str(ended).split())[-300:])
        return found

    async def ended_by_itself(self, seconds: float) -> NodeEnded | None:
        """Return the next node that ends without a request; None if none ends in time."""
        return await asyncio.to_thread(self.wait_node_ended, seconds)

    def close_controls(self) -> None:
        for control in self.controls.values():
            control.close()
