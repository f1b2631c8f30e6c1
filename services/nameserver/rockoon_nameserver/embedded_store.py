"""Embedded route store: a file on the nameserver's own disk instead of etcd, for one nameserver.

Invariants
- A reply or a watch event is sent after its change is on disk, and after all changes that were in
  memory when it was read: a revision that a crash loses is used again for another change.
- Changes that arrive during a write are written together, by one sync.
- After a failed write (unless the disk was full) memory is ahead of a disk of unknown content:
  all requests fail until the process restarts (ADR 26).

Revisions count like etcd's: one for each transaction that changes something, and one for a lease
that ends. So routes can be moved between the two stores with the revisions that brokers and the
offset service know (`route_transfer`).
"""

import asyncio
import logging
import secrets
from bisect import bisect_left, insort
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from rockoon_core.errors import EtcdUnavailable
from rockoon_nameserver.etcd_data import (
    TRANSACTION_OPERATIONS_MAX,
    DeleteKey,
    Header,
    KeyCondition,
    KeyEvent,
    KeyRange,
    KeyValue,
    PutKey,
    RangeRead,
    TransactionResult,
    WatchBatch,
    only,
)
from rockoon_nameserver.route_file import DiskFull, RouteFile
from rockoon_nameserver.route_store import Compacted, LeaseGone
from rockoon_runtime.telemetry.metrics import Times

log = logging.getLogger(__name__)

NEVER_PUT = KeyValue("", b"", 0, 0, 0)


class RouteKeys:
    """All keys of an embedded route store, in memory, with etcd's rules. Pure.

    Source of the rules: etcd's documentation of its API, "Data model" and "Transaction". A
    transaction that changes something is one revision; a condition on several keys holds if it
    holds for each key, and a condition on no key is evaluated for a key that was never put.
    """

    def __init__(self, revision: int, items: Iterable[KeyValue]) -> None:
        self.revision = revision
        self._items = {item.key.encode(): item for item in items}
        self._names = sorted(self._items)

    def range(self, key_range: KeyRange) -> list[KeyValue]:
        """Keys of a range, ordered by name."""
        return [self._items[name] for name in self._names_in(key_range)]

    def holds(self, condition: KeyCondition) -> bool:
        key_range, revision_of, relation, revision = condition

        def is_so(item: KeyValue) -> bool:
            found = item.create_revision if revision_of == "create" else item.mod_revision
            return (found > revision) - (found < revision) == {"<": -1, "=": 0, ">": 1}[relation]

        return all(map(is_so, self.range(key_range) or [NEVER_PUT]))

    def change(self, operations: Sequence[PutKey | DeleteKey]) -> dict[str, KeyValue | None]:
        """Put and delete keys, all at the next revision.

        Returns:
            The new value of each changed key, None if deleted; empty if nothing changed, and then
            the revision stays.
        """
        revision = self.revision + 1
        changed: dict[str, KeyValue | None] = {}
        for operation in operations:
            if isinstance(operation, PutKey):
                name = operation.key.encode()
                before = self._items.get(name, NEVER_PUT)
                item = KeyValue(
                    operation.key,
                    operation.value,
                    before.create_revision or revision,
                    revision,
                    operation.lease_id,
                )
                if before is NEVER_PUT:
                    insort(self._names, name)
                self._items[name] = changed[operation.key] = item
            else:
                for name in self._names_in(operation.key_range):
                    changed[self._items.pop(name).key] = None
                    del self._names[bisect_left(self._names, name)]
        if changed:
            self.revision = revision
        return changed

    def under_lease(self, lease_id: int) -> list[DeleteKey]:
        """Return the operations that delete the keys of a lease."""
        return [
            DeleteKey(only(item.key)) for item in self._items.values() if item.lease_id == lease_id
        ]

    def _names_in(self, key_range: KeyRange) -> list[bytes]:
        first = bisect_left(self._names, key_range.first)
        end = bisect_left(self._names, key_range.end or key_range.first + b"\0")
        return self._names[first:end]


def events(changed: dict[str, KeyValue | None], revision: int) -> Iterator[KeyEvent]:
    """Yield the watch events of a change."""
    for key, item in changed.items():
        if item is None:
            yield KeyEvent(key, None, 0, revision)
        else:
            yield KeyEvent(key, item.value, item.create_revision, revision)


def covers(key_range: KeyRange, key: str) -> bool:
    name = key.encode()
    return key_range.first <= name < (key_range.end or key_range.first + b"\0")


# Kept for watches; a watch that is further behind reads all routes again.
HISTORY_REVISIONS_MAX = 10_000
# Between write attempts while the disk is full.
RETRY_SECONDS = 1.0


@dataclass(slots=True)
class StoredLease:
    """A lease: its length, and the end if it is not renewed, by the loop's clock."""

    ttl_seconds: int
    ends_at: float


@dataclass(slots=True)
class Unwritten:
    """Changes that are not on disk: the new value of each key and lease, None if deleted."""

    keys: dict[str, KeyValue | None] = field(default_factory=dict)
    leases: dict[int, int | None] = field(default_factory=dict)
    events_by_revision: list[tuple[int, list[KeyEvent]]] = field(default_factory=list)
    number: int = 0


class EmbeddedStore:
    """A `RouteStore` in a file; an async context manager.

    Args:
        path: the file; created with its directory if missing.
        failed: called with a sentence when a write has failed.

    Raises:
        StoreLocked, StoreCorrupt, OSError: on entering, like `RouteFile`.
    """

    def __init__(self, path: Path, failed: Callable[[str], None]) -> None:
        self._path = path
        self._failed = failed
        # Empty: there is no server.
        self.request_times: Mapping[tuple[str, bool], Times] = {}
        self._keys = RouteKeys(0, ())
        self._cluster_id = 0
        self._leases: dict[int, StoredLease] = {}
        self._lease_timer: asyncio.TimerHandle | None = None
        # Changes in memory are numbered; those up to `_written` are on disk.
        self._unwritten = Unwritten()
        self._written = 0
        self._trouble = ""
        # Events by revision, ascending; only revisions that are on disk.
        self._history: deque[tuple[int, list[KeyEvent]]] = deque()
        self._oldest_known = self._published = 0
        self._closing = False
        # Set after a change in memory, cleared by the writer; set after a write, and replaced.
        self._unwritten_event, self._written_event = asyncio.Event(), asyncio.Event()
        self._tasks = asyncio.TaskGroup()

    async def __aenter__(self) -> "EmbeddedStore":
        self._path.parent.mkdir(parents=True, exist_ok=True)
        file = await asyncio.to_thread(RouteFile, self._path)
        self._keys = RouteKeys(file.header.revision, file.items)
        self._cluster_id = file.header.cluster_id
        self._oldest_known = self._published = file.header.revision
        now = asyncio.get_running_loop().time()
        self._leases = {each: StoredLease(ttl, now + ttl) for each, ttl in file.leases.items()}
        self._end_expired_leases()
        await self._tasks.__aenter__()
        self._tasks.create_task(self._write_changes(file), name="write routes")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._lease_timer is not None:
            self._lease_timer.cancel()
        self._closing = True
        self._unwritten_event.set()
        # Without the failure: the group would cancel the write in progress, and wrap the failure.
        await self._tasks.__aexit__(None, None, None)

    async def header(self) -> Header:
        header = self._header()
        await self._on_disk()
        return header

    async def versions(self) -> dict[str, str]:
        """Return an empty dictionary: an embedded store has no servers with versions."""
        return {}

    async def read(self, key_range: KeyRange) -> RangeRead:
        found = RangeRead(self._header(), self._keys.range(key_range))
        await self._on_disk()
        return found

    async def count_and_changes(
        self, key_range: KeyRange, after_revision: int
    ) -> tuple[Header, int, int]:
        header, items = await self.read(key_range)
        return header, len(items), sum(item.mod_revision > after_revision for item in items)

    async def read_at_once(self, *key_ranges: KeyRange) -> list[list[KeyValue]]:
        return (await self.read_jointly(*key_ranges))[1]

    async def read_jointly(self, *key_ranges: KeyRange) -> tuple[Header, list[list[KeyValue]]]:
        found = self._header(), [self._keys.range(key_range) for key_range in key_ranges]
        await self._on_disk()
        return found

    async def transaction(
        self,
        conditions: Sequence[KeyCondition],
        operations: Sequence[PutKey | DeleteKey],
        otherwise: Sequence[KeyRange] = (),
    ) -> TransactionResult:
        assert len(operations) <= TRANSACTION_OPERATIONS_MAX, "etcd would refuse so many"
        self._refuse_in_trouble()
        succeeded = all(map(self._keys.holds, conditions))
        found: list[list[KeyValue]] = []
        if succeeded:
            for each in operations:
                if isinstance(each, PutKey) and each.lease_id and each.lease_id not in self._leases:
                    raise LeaseGone(f"there is no lease {each.lease_id}")
            self._change(operations)
        else:
            found = [self._keys.range(key_range) for key_range in otherwise]
        revision = self._keys.revision
        await self._on_disk()
        return TransactionResult(succeeded, revision, found)

    async def grant_lease(self, ttl_seconds: int) -> tuple[int, float]:
        self._refuse_in_trouble()
        lease_id = secrets.randbits(62) | 1
        now = asyncio.get_running_loop().time()
        self._leases[lease_id] = StoredLease(ttl_seconds, now + ttl_seconds)
        self._record_lease(lease_id, ttl_seconds)
        self._end_expired_leases()
        await self._on_disk()
        return lease_id, float(ttl_seconds)

    async def renew_lease(self, lease_id: int) -> float:
        lease = self._leases.get(lease_id)
        if lease is not None:
            lease.ends_at = asyncio.get_running_loop().time() + lease.ttl_seconds
        await self._on_disk()
        return 0.0 if lease is None else float(lease.ttl_seconds)

    async def lease_seconds_left(self, lease_id: int) -> float:
        lease = self._leases.get(lease_id)
        now = asyncio.get_running_loop().time()
        await self._on_disk()
        return 0.0 if lease is None else max(lease.ends_at - now, 0.5)

    async def revoke_lease(self, lease_id: int) -> None:
        self._refuse_in_trouble()
        self._end_lease(lease_id)
        await self._on_disk()

    @asynccontextmanager
    async def watch(
        self, key_range: KeyRange, start_revision: int
    ) -> AsyncIterator[tuple[Header, AsyncIterator[WatchBatch]]]:
        if start_revision <= self._oldest_known:
            raise Compacted(f"nothing is kept before revision {self._oldest_known + 1}")
        header = await self.header()
        yield header, self._batches(key_range, start_revision - 1)

    async def _batches(self, key_range: KeyRange, after_revision: int) -> AsyncIterator[WatchBatch]:
        while True:
            progress = self._written_event
            self._refuse_in_trouble()
            if after_revision < self._oldest_known:
                raise Compacted(f"nothing is kept before revision {self._oldest_known + 1}")
            if after_revision < self._published:
                found: list[KeyEvent] = []
                for revision, changes in reversed(self._history):
                    if revision <= after_revision:
                        break
                    found[:0] = [event for event in changes if covers(key_range, event.key)]
                after_revision = self._published
                yield WatchBatch(after_revision, found)
            else:
                await progress.wait()

    # Changes, in memory first.

    def _header(self) -> Header:
        return Header(self._keys.revision, self._cluster_id)

    def _change(self, operations: Sequence[PutKey | DeleteKey]) -> None:
        changed = self._keys.change(operations)
        if changed:
            revision = self._keys.revision
            self._unwritten.keys.update(changed)
            self._unwritten.events_by_revision.append((revision, list(events(changed, revision))))
            self._mark_unwritten()

    def _record_lease(self, lease_id: int, ttl_seconds: int | None) -> None:
        self._unwritten.leases[lease_id] = ttl_seconds
        self._mark_unwritten()

    def _mark_unwritten(self) -> None:
        self._unwritten.number += 1
        self._unwritten_event.set()

    def _end_lease(self, lease_id: int) -> None:
        if self._leases.pop(lease_id, None) is not None:
            self._change(self._keys.under_lease(lease_id))
            self._record_lease(lease_id, None)

    def _end_expired_leases(self) -> None:
        """End the expired leases; run again when the next one can expire."""
        loop = asyncio.get_running_loop()
        if self._lease_timer is not None:
            self._lease_timer.cancel()
        for each in [each for each, lease in self._leases.items() if lease.ends_at <= loop.time()]:
            self._end_lease(each)
        first = min((lease.ends_at for lease in self._leases.values()), default=None)
        # Renewals do not move the timer: this function finds renewed leases when it runs.
        self._lease_timer = None if first is None else loop.call_at(first, self._end_expired_leases)

    # To the disk.

    def _refuse_in_trouble(self) -> None:
        if self._trouble:
            raise EtcdUnavailable(f"{self._path} cannot be written: {self._trouble}")

    async def _on_disk(self) -> None:
        """Wait until all changes made so far are on disk. Raises EtcdUnavailable."""
        self._refuse_in_trouble()
        number = self._unwritten.number
        while self._written < number:
            progress = self._written_event
            self._refuse_in_trouble()
            await progress.wait()

    async def _write_changes(self, file: RouteFile) -> None:
        """Write changes until the store is closed and all are on disk, or a write fails."""
        try:
            while not self._closing or self._unwritten.number > self._written:
                await self._unwritten_event.wait()
                self._unwritten_event.clear()
                written, self._unwritten = self._unwritten, Unwritten(number=self._unwritten.number)
                if written.number > self._written and not await self._write(file, written):
                    return
        finally:
            self._trouble = self._trouble or "it is closed"
            self._signal_progress()
            await asyncio.to_thread(file.close)

    async def _write(self, file: RouteFile, changes: Unwritten) -> bool:
        """Write the changes, waiting while the disk is full; True if they are on disk."""
        revision = (
            changes.events_by_revision[-1][0] if changes.events_by_revision else self._published
        )
        while True:
            try:
                await asyncio.to_thread(file.write, revision, changes.keys, changes.leases)
                break
            except DiskFull as failure:
                if not self._trouble:
                    log.error(  # noqa: TRY400
                        "could not write %s: %s; retrying every second", self._path, failure
                    )
                self._trouble = str(failure)
                self._signal_progress()
                if self._closing:
                    return False
                await asyncio.sleep(RETRY_SECONDS)
            except OSError as failure:
                self._trouble = str(failure)
                self._failed(f"{self._path} cannot be written: {failure}")
                return False
        self._trouble = ""
        self._written, self._published = changes.number, revision
        self._history.extend(changes.events_by_revision)
        while len(self._history) > HISTORY_REVISIONS_MAX:
            self._oldest_known, _ = self._history.popleft()
        self._signal_progress()
        return True

    def _signal_progress(self) -> None:
        self._written_event.set()
        self._written_event = asyncio.Event()
