"""Writes config/<broker>/consumerOffset.json, for RocketMQ's tools and for people.

The files are an export: they are never read back. Each is replaced in one step, and the one before
stays as `.bak`, as RocketMQ leaves it.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from rockoon_core.disk import Disk
from rockoon_core.errors import NotEnoughReplicas, NotLeader, StoreNotWritable
from rockoon_offset.progress.progress_files import to_rocketmq
from rockoon_offset.progress.progress_store import ProgressStore
from rockoon_offset.progress.readers import in_order
from rockoon_offset.progress.records import Progress

log = logging.getLogger(__name__)

# Rest after a round, in times of the CPU that it took: much progress is exported less often, as
# the thread that writes keeps the event loop waiting for the interpreter.
REST_RATIO = 20

FILE_NAME = "consumerOffset.json"


class ExportFiles:
    """Exports when something has changed, every few seconds.

    Args:
        store: progress, and the directory to write in.
        interval_seconds: 0 exports nothing.
        now_ms: wall clock.
    """

    def __init__(
        self, store: ProgressStore, interval_seconds: float, now_ms: Callable[[], int]
    ) -> None:
        self._store = store
        self._interval_seconds = interval_seconds
        self._now_ms = now_ms
        self._exported_changes = -1
        # Brokers that a file was written for: one whose progress is all gone gets an empty table.
        # Guarded by `_writing`.
        self._brokers: set[str] = set()
        # Of the last round's thread.
        self._cpu_seconds = 0.0
        # Guards the files too: a round that was cancelled goes on writing in its thread for a
        # moment.
        self._writing = threading.Lock()

    async def run(self) -> None:
        """Export until cancelled."""
        while self._interval_seconds:
            await self.export()
            await asyncio.sleep(max(self._interval_seconds, REST_RATIO * self._cpu_seconds))

    async def export(self) -> None:
        """Export now, unless nothing has changed."""
        changes = self._store.changes
        if changes == self._exported_changes or not self._interval_seconds:
            return
        try:
            await self._store.durable()
        except (StoreNotWritable, NotEnoughReplicas, NotLeader):
            # The disk is full, or copies are away: the next round tries again.
            return
        # A copy; sorted and divided by the thread, as a million entries take seconds.
        progress = self._store.ledger.all_progress()
        try:
            await asyncio.to_thread(
                self._write,
                self._store.root / "config",
                progress,
                changes,
                self._now_ms(),
            )
        except OSError as failure:
            # The journal is what counts; the next round tries again.
            log.warning("%s was not exported: %s", FILE_NAME, failure)
        else:
            self._exported_changes = changes

    def _write(self, config: Path, progress: list[Progress], changes: int, now_ms: int) -> None:
        """Write one file per broker; in a thread of its own. Raises OSError."""
        began = time.thread_time()
        disk = Disk()
        progress.sort(key=lambda entry: (in_order(entry.group), entry.queue))
        by_broker: dict[str, list[Progress]] = {}
        for entry in progress:
            by_broker.setdefault(entry.queue.broker, []).append(entry)
        with self._writing:
            self._brokers |= by_broker.keys()
            for broker in sorted(self._brokers):
                path = config / broker / FILE_NAME
                for made in (config, path.parent):
                    made.mkdir(mode=0o700, exist_ok=True)
                if path.exists():
                    backup = path.with_name(f"{FILE_NAME}.bak")
                    disk.replace_file(backup, path.read_bytes())
                content = to_rocketmq(by_broker.get(broker, []), broker, changes, now_ms)
                disk.replace_file(path, content)
            self._cpu_seconds = time.thread_time() - began
