"""Two copies of a broker's log in one process, and the state that each derives from it."""

import asyncio
import queue
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rockoon_broker.append import AppendLimits, AppendResult, Appends
from rockoon_broker.applying import apply_piece, apply_rest
from rockoon_broker.idempotence.ledger import MemoryLimits
from rockoon_broker.idempotence.memory import SequenceMemory
from rockoon_broker.pending.pending_messages import PendingMessages
from rockoon_broker.settings import BrokerSettings
from rockoon_broker.store.log.batch import AppendBatch, SequencedBatch, SequenceKey
from rockoon_broker.store.queues.consume_queue import QueueKey
from rockoon_broker.store.store import Store
from rockoon_broker.transactions.ends import TransactionEnding
from rockoon_broker.transactions.half_queue import HALF_QUEUE
from rockoon_core.disk import Disk
from rockoon_format.batch import encode_batch
from rockoon_format.columns import decode_columns
from rockoon_format.properties import encode
from rockoon_format.record import Record
from rockoon_format.sequences import encode_sequences
from rockoon_runtime.waking import Bell
from support.aside_desk import HOST, TwoClocks
from support.store_directory import BORN_HOST, FailingDisk
from support.waiting import DEADLINE_SECONDS

GROUP = "payers"
LIMITS = MemoryLimits(sequences_max=1000, memory_ms=10**12)


class Derived:
    """State that is derived from a store, beginning with the snapshots in a directory."""

    def __init__(
        self, store: Store, settings: BrokerSettings, config: Path, clock: TwoClocks, disk: Disk
    ) -> None:
        self.store = store
        self.sequences = SequenceMemory.begin(store, config, disk, clock, LIMITS)
        self.appends = Appends(
            store,
            AppendLimits(1 << 20, 1000, 1 << 20, 32767),
            self.sequences.ledger,
            clock,
            waits_for_sync=True,
            arrived=set[QueueKey]().add,
            store_changed=Bell(),
        )
        self.aside = PendingMessages(
            store,
            self.appends,
            settings,
            config,
            clock,
            disk,
            lambda _topic, _queue: None,
            lambda _topic, _queue: True,
        )
        self.aside.begin()
        self._parts = (self.sequences, self.aside.pending_index)

    def follow(self, bytes_max: int = 1 << 20) -> int:
        """Apply committed records; return the number of records read."""
        records = 0
        while (read := apply_piece(self.store, self._parts, bytes_max)) is not None:
            records += read
        self.aside.follow()
        return records

    def lead(self) -> int:
        """Begin to lead; return the number of records read for it."""
        records = apply_rest(self.store, self._parts)
        self.sequences.lead()
        self.aside.lead()
        return records

    def known(self) -> Mapping[str, object]:
        """Return the whole state, for comparisons."""
        index = self.aside.pending_index
        ledger = self.sequences.ledger.copy()
        found: dict[str, object] = {f"{key}": ledger[key][-1].end for key in ledger}
        for key in (*self.aside.delays.queues, HALF_QUEUE):
            waiting = index.queue(*key)
            pending = waiting.pending()
            columns = (pending.offsets, pending.positions, pending.codes)
            found[f"{key}"] = [column.tolist() for column in columns], waiting.next_offset
        found["outcomes"] = dict(self.aside.transactions.ends._outcomes._known)
        rolled = self.aside.delays._queues.rolled
        found["rolled"] = {now: rolled.first(now) for now in rolled.positions().tolist()}
        return found


class WarmCopy:
    """A copy of a log. It follows another copy, or leads after `lead`."""

    def __init__(self, root: Path, clock: TwoClocks) -> None:
        self.root = root
        self.clock = clock
        self.settings = BrokerSettings(
            store_path=root,
            commit_log_file_bytes=1 << 14,
            consume_queue_file_entries=100,
            reserved_hours=1,
        )
        self.disk = FailingDisk()
        self.disk.usage_percent = 10
        self.open()

    def open(self) -> None:
        """Open the log as a process does at its start."""
        configured = self.settings.for_store(HOST)
        self._synced: queue.Queue[int] = queue.Queue()
        self.store = Store.open(
            configured,
            disk=self.disk,
            clock=self.clock,
            on_synced=self._synced.put,
            by_quorum=True,
        )
        # Its leader sends the committed end before any state is derived.
        self.store.confirm(self.store.appended_end)
        self.derived = self._derived(self.root / "config")

    def _derived(self, config: Path) -> Derived:
        return Derived(self.store, self.settings, config, self.clock, self.disk)

    def rebuilt(self) -> Mapping[str, object]:
        """Return the state of all committed records, derived from the log alone."""
        made = self._derived(self.root / "nothing")
        made.follow(bytes_max=8 << 20)
        return made.known()

    def copy_from(self, leader: "WarmCopy", bytes_max: int) -> None:
        """Copy the leader's next bytes."""
        at = self.store.appended_end
        if data := leader.store.read_raw(at, bytes_max):
            self.store.write_raw(at, data)

    def commit(self, end: int) -> None:
        self.store.confirm(end)
        self.derived.follow()

    def cut(self) -> None:
        """Remove uncommitted bytes, which the new leader does not have."""
        self.store.close_to_truncate(self.store.committed_end)
        self.open()

    def write_snapshots(self) -> None:
        """Write the snapshots, as a broker does every ten seconds, after its log is durable."""
        while self.store.durable_end < self.store.committed_end:
            self._synced.get(timeout=DEADLINE_SECONDS)
        index = self.derived.aside.pending_index
        captured, sequences = index.capture(), self.derived.sequences.snapshot()
        assert captured.snapshot.covered_end <= self.store.committed_end
        assert sequences.log_end <= self.store.committed_end
        index.write(captured)
        self.derived.sequences.write(sequences)

    # Calls of a leader.

    async def send(self, producer: int, first: int, *bodies: bytes) -> AppendResult:
        """Append a batch of an idempotent producer."""
        sections = encode_sequences(producer, first, len(bodies)).tolist()
        frames, lengths = encode_batch(b"T", 0, list(bodies), sections, 0, BORN_HOST)
        packed = np.asarray(lengths).astype("<u4").tobytes()
        key = SequenceKey(producer, "T", 0)
        batch = AppendBatch("T", 0, frames, packed, SequencedBatch(key, first, 0))
        return await self.derived.appends.append(batch, _anywhere)

    async def delay(self, body: bytes, seconds: int) -> int:
        """Append a delayed message; return its physical offset."""
        batch = batch_of(body, TIMER_DELAY_SEC=str(seconds))
        return (
            await self.derived.aside.delays.append(batch, _anywhere)
        ).first.first_physical_offset

    async def begin(self, body: bytes) -> tuple[int, int]:
        """Append a half message; return its physical offset and its queue offset."""
        batch = batch_of(body, PGROUP=GROUP, UNIQ_KEY=body.decode())
        placed = (await self.derived.aside.transactions.append(batch, _anywhere)).first
        return placed.first_physical_offset, placed.first_queue_offset

    async def end(self, half: tuple[int, int], ending: TransactionEnding) -> Any:
        """End a half message; the appended records are committed immediately."""
        ends = self.derived.aside.transactions.ends
        async with asyncio.TaskGroup() as tasks:
            ended = tasks.create_task(ends.end(*half, GROUP, ending))
            await asyncio.sleep(0)
            self.commit_all()
        return ended.result()

    async def deliver(self) -> None:
        """Deliver all messages that are due."""
        delivery = self.derived.aside.delays.delivery
        while await delivery.step():
            self.commit_all()
        self.commit_all()

    def commit_all(self) -> None:
        self.derived.appends.confirmed(self.store.appended_end)

    def bodies(self) -> list[bytes]:
        """Return all messages that readers of T see."""
        records: list[Record] = []
        offset = 0
        while offset < self.store.max_offset("T", 0):
            found = self.store.get("T", 0, offset)
            columns = decode_columns(found.frames, found.lengths)
            records += [columns.record(index) for index in range(len(columns))]
            offset = found.next_offset
        return [record.body for record in records]


def batch_of(body: bytes, **properties: str) -> AppendBatch:
    frames, lengths = encode_batch(b"T", 0, [body], [encode(properties)], 0, BORN_HOST, room=True)
    return AppendBatch("T", 0, frames, np.asarray(lengths).astype("<u4").tobytes())


def _anywhere() -> None:
    """Accept every topic."""
