"""A store with delayed messages. The test sets its clocks and runs its delivery turns."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rockoon_broker.append import AppendLimits, AppendResult, Appends
from rockoon_broker.idempotence.ledger import MemoryLimits, SequenceLedger
from rockoon_broker.pending.pending_messages import PendingMessages
from rockoon_broker.settings import BrokerSettings
from rockoon_broker.store.log.batch import AppendBatch
from rockoon_broker.store.queues.consume_queue import QueueKey
from rockoon_broker.store.store import Store
from rockoon_core.disk import Disk
from rockoon_core.errors import NotReady, TopicNotFound
from rockoon_format.batch import encode_batch
from rockoon_format.columns import decode_columns
from rockoon_format.message_id import encode_offset_id
from rockoon_format.properties import encode
from rockoon_format.record import Record, encode_host
from rockoon_runtime.waking import Bell
from support.store_directory import FailingDisk, crashed_copy

# Earlier than the modification time of every file that a test writes, so that none looks old.
NOW_MS = 1_700_000_000_000
HOST = ("127.0.0.1", 10911)


class TwoClocks:
    """A wall clock that a test can set, and a monotonic clock."""

    def __init__(self) -> None:
        self.wall_ms = NOW_MS
        self.monotonic_ms = 5_000_000

    def pass_ms(self, ms: int) -> None:
        self.wall_ms += ms
        self.monotonic_ms += ms

    def now_ms(self) -> int:
        return self.wall_ms

    def monotonic_seconds(self) -> float:
        return self.monotonic_ms / 1000

    def local_hour(self, at_ms: int) -> int:
        assert at_ms
        return 12


class AsideDesk:
    """Owner of a store with delayed messages. `flush = async`, so that no append waits for a
    sync."""

    def __init__(
        self, root: Path, clock: TwoClocks | None = None, disk: Disk | None = None, **changes: Any
    ) -> None:
        self.clock = clock or TwoClocks()
        self.settings = BrokerSettings(
            **{
                "store_path": root,
                "flush": "async",
                "flush_interval_ms": 1,
                "commit_log_file_bytes": 1 << 16,
                "consume_queue_file_entries": 100,
                **changes,
            }
        )
        self.topics = {("T", 0), ("T", 1), ("U", 0)}
        self.has_routes = True
        if disk is None:
            disk = FailingDisk()
            disk.usage_percent = 10
        self.store = Store.open(self.settings.for_store(HOST), disk=disk, clock=self.clock)
        self.appends = Appends(
            self.store,
            AppendLimits(1 << 20, 1000, self.settings.body_bytes_max, 32767),
            SequenceLedger(MemoryLimits(10, 1000)),
            self.clock,
            waits_for_sync=False,
            arrived=set[QueueKey]().add,
            store_changed=Bell(),
        )
        self.aside = PendingMessages(
            self.store,
            self.appends,
            self.settings,
            root / "config",
            self.clock,
            disk,
            self._check,
            self._knows,
        )
        self.delays = self.aside.delays
        self.aside.load()

    def _knows(self, topic: str, queue_id: int) -> bool:
        if not self.has_routes:
            raise NotReady(service="the broker", reason="it has seen no routes since it leads")
        return (topic, queue_id) in self.topics

    def _check(self, topic: str, queue_id: int) -> None:
        if (topic, queue_id) not in self.topics:
            raise TopicNotFound(topic=topic)

    async def send(
        self,
        *each: dict[str, object],
        topic: str = "T",
        queue_id: int = 0,
        bodies: Sequence[bytes] = (),
    ) -> list[str]:
        """Send delayed messages with these properties; return their ids."""
        placed = await self.place(*each, topic=topic, queue_id=queue_id, bodies=bodies)
        return [encode_offset_id(run.store_host, run.first_physical_offset) for run in placed.runs]

    async def place(
        self,
        *each: dict[str, object],
        topic: str = "T",
        queue_id: int = 0,
        bodies: Sequence[bytes] = (),
    ) -> AppendResult:
        sections = [
            encode({name: str(value) for name, value in properties.items()}) for properties in each
        ]
        frames, lengths = encode_batch(
            topic.encode(),
            queue_id,
            list(bodies or [b"%d" % index for index in range(len(each))]),
            sections,
            self.clock.wall_ms - 1,
            encode_host("10.0.0.7", 4321),
            flags=77,
            room=True,
        )
        packed = np.asarray(lengths).astype("<u4").tobytes()
        batch = AppendBatch(topic, queue_id, frames, packed)
        self.appends.check_limits(batch)  # as the broker does
        return await self.delays.append(batch, lambda: self._check(topic, queue_id))

    async def turns(self) -> None:
        """Deliver all messages that are due."""
        self.store.tick(self.clock.wall_ms)
        has_more = True
        while has_more:
            has_more = await self.delays.delivery.step()

    def read(self, topic: str = "T", queue_id: int = 0) -> list[Record]:
        """Return all messages of a queue."""
        records: list[Record] = []
        offset = self.store.min_offset(topic, queue_id)
        while offset < self.store.max_offset(topic, queue_id):
            found = self.store.get(topic, queue_id, offset)
            if found.frames:
                columns = decode_columns(found.frames, found.lengths)
                records += [columns.record(index) for index in range(len(columns))]
            offset = max(found.next_offset, offset + 1)
        return records

    def bodies(self, topic: str = "T", queue_id: int = 0) -> list[bytes]:
        return [record.body for record in self.read(topic, queue_id)]

    def write_snapshot(self) -> None:
        """Write the snapshot that a broker writes every ten seconds."""
        self.sync()
        captured = self.aside.pending_index.capture()
        assert captured.snapshot.covered_end <= self.store.durable_end
        self.aside.pending_index.write(captured)

    def sync(self) -> None:
        """Wait until the whole log is durable."""
        end = self.store.appended_end
        while self.store.durable_end < end:
            self.store.tick(self.clock.wall_ms)
            self.clock.pass_ms(1)

    def killed(self, target: Path, **changes: Any) -> "AsideDesk":
        """Return the owner after kill -9 and a restart; the clocks continue. This owner is
        closed."""
        copy = crashed_copy(self.settings.store_path, target)
        self.store.close()
        return AsideDesk(copy, self.clock, **changes)

    def restarted(self, **changes: Any) -> "AsideDesk":
        """Return the owner after a clean stop and a restart."""
        captured = self.aside.pending_index.capture()
        self.store.close()
        self.aside.write_last(captured)
        return AsideDesk(self.settings.store_path, self.clock, **changes)

    def forget_snapshot(self) -> None:
        shutil.rmtree(self.settings.store_path / "config", ignore_errors=True)
