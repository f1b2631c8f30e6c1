"""Export of progress to config/<broker>/consumerOffset.json, for operators and RocketMQ's tools.

The service never reads the files. Each file is replaced atomically, and the former file is kept as
`.bak`, like in RocketMQ. The files are not synced, because syncs of logs on the same disk would
wait for it; a start writes them again.
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

# Minimum pause after an export, as a multiple of its CPU time. The export thread competes with the
# event loop for the interpreter, so large progress is exported less often.
REST_RATIO = 20

FILE_NAME = "consumerOffset.json"


class ExportFiles:
    """Exports changed progress each `interval_seconds`; 0: never."""

    def __init__(
        self, store: ProgressStore, interval_seconds: float, now_ms: Callable[[], int]
    ) -> None:
        self._store = store
        self._interval_seconds = interval_seconds
        self._now_ms = now_ms
        self._exported_changes = -1
        # Brokers with a file: without progress, a broker gets an empty table. Guarded by
        # `_writing`.
        self._brokers: set[str] = set()
        # CPU time of the last export.
        self._cpu_seconds = 0.0
        # Guards the files too: a cancelled export continues in its thread for a moment.
        self._writing = threading.Lock()

    async def run(self) -> None:
        """Export until cancelled."""
        while self._interval_seconds:
            await self.export()
            await asyncio.sleep(max(self._interval_seconds, REST_RATIO * self._cpu_seconds))

    async def export(self) -> None:
        """Export immediately if progress has changed."""
        changes = self._store.changes
        if changes == self._exported_changes or not self._interval_seconds:
            return
        try:
            await self._store.durable()
        except (StoreNotWritable, NotEnoughReplicas, NotLeader):
            # The disk is full, or replicas are missing: the next round retries.
            return
        # A copy. The thread sorts and groups it, which takes seconds for a million entries.
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
            # Progress is safe in the journal.
            log.warning("could not export %s: %s; retrying in the next round", FILE_NAME, failure)
        else:
            self._exported_changes = changes

    def _write(self, config: Path, progress: list[Progress], changes: int, now_ms: int) -> None:
        """Write one file per broker; runs in a worker thread. Raises OSError."""
        start_seconds = time.thread_time()
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
                    disk.replace_file(backup, path.read_bytes(), is_durable=False)
                content = to_rocketmq(by_broker.get(broker, []), broker, changes, now_ms)
                disk.replace_file(path, content, is_durable=False)
            self._cpu_seconds = time.thread_time() - start_seconds
