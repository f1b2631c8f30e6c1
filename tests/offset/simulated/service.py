"""The offset service of the simulation: its real parts on a simulated disk and clock.

Real: the ledger, the journal's files and their recovery, membership, hand-over, resolver, commits,
reset plans, and the effects of routes on them. Not real: the times of writes and syncs (the
simulation decides them), gRPC, and the calls to brokers and nameservers.
"""

import random
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from offset.simulated.world import (
    ETCD_CLUSTER_ID,
    Pause,
    SimulatedBrokers,
    SimulatedEnds,
    SimulatedNameservers,
    SimulatedRoutes,
    View,
    World,
)

from rockoon_core.disk import Disk
from rockoon_core.message_queue import MessageQueue
from rockoon_core.start_position import NewQueueRule, QueueState
from rockoon_offset.groups import Groups
from rockoon_offset.journal import frames
from rockoon_offset.journal.frames import FrameKind
from rockoon_offset.journal.journal_files import generations, journal_path
from rockoon_offset.journal.journal_log import JournalLog
from rockoon_offset.journal.store import JournalStore
from rockoon_offset.members.handover import Handovers
from rockoon_offset.members.watch import GroupWatch
from rockoon_offset.progress.commits import Commits
from rockoon_offset.progress.ledger import Ledger
from rockoon_offset.progress.reconciliation import Reconciliation
from rockoon_offset.progress.records import Record, encode
from rockoon_offset.progress.reset_plans import ResetPlans
from rockoon_offset.start.resolver import Resolver, Subscriptions

LEASE_SECONDS = 10.0
HEARTBEAT_SECONDS = 3.0
HANDOVER_SECONDS = 10.0
ROUTE_WAIT_SECONDS = 2.0
PLAN_SECONDS = 60.0
FILE_BYTES_MAX = 20_000


class QuietDisk(Disk):
    """Without syncs: the simulation cuts bytes, not the power."""

    def fdatasync(self, fd: int) -> None:
        pass

    def sync_directory(self, path: Path) -> None:
        pass

    def allocate(self, fd: int, count: int) -> None:
        pass


class SimulatedStore(JournalStore):
    """The ledger with its journal; the simulation decides when the journal is written.

    Args:
        directory: recovered; empty at first.
        on_written: called with every change when it is made.
        on_durable: called with the same changes when they become durable.
    """

    def __init__(
        self,
        directory: Path,
        on_written: Callable[[list[Record]], None],
        on_durable: Callable[[list[Record]], None],
    ) -> None:
        self._directory = directory
        self._on_written = on_written
        self._on_durable = on_durable
        self._journal = JournalLog(
            directory,
            "simulated",
            failed=_failed,
            lost=None,
            disk=QuietDisk(),
            bytes_max=FILE_BYTES_MAX,
        )
        self._journal.retain_from = self._journal.end
        self._journal.commit(self._journal.end)
        if not self._journal.boundaries():
            self._journal.open_epoch(0)
            self._journal.commit(self._journal.end)
        self._unsynced: deque[list[Record]] = deque()
        self.changes = self._synced_batches = 0

    def require_writable(self) -> None:
        pass

    def write(self, records: list[Record]) -> None:
        if records:
            self._on_written(records)
            self._unsynced.append(records)
            self.changes += 1

    async def durable(self) -> None:
        wanted = self.changes
        while self._synced_batches < wanted:
            await Pause()

    def sync(self) -> None:
        """Make all written changes durable, in one frame, as the store does."""
        journal = self._journal
        if self._unsynced:
            journal.append(self._encoded(len(self._unsynced)))
            while self._unsynced:
                self._on_durable(self._unsynced.popleft())
            self._synced_batches = self.changes
            if journal.wants_generation:
                journal.start_generation()
        journal.append_state()
        journal.sync_nowait()
        journal.retain_from = journal.end
        journal.commit(journal.end)

    def _encoded(self, batches: int) -> list[bytes]:
        return [encode(record) for batch in list(self._unsynced)[:batches] for record in batch]

    def crash(self, chance: random.Random) -> None:
        """End as by kill -9 or power cut: any part of the running write may be on disk."""
        batches = chance.randint(0, len(self._unsynced))
        end = self._journal.end
        self._journal.close()
        if not batches:
            return
        written = frames.encode(FrameKind.RECORDS, end, end, frames.pack(self._encoded(batches)))
        fate = chance.random()
        if fate < 0.3:
            # Complete, and not acknowledged.
            for _ in range(batches):
                self._on_durable(self._unsynced.popleft())
        elif fate < 0.8:
            written = written[: chance.randrange(len(written))]
        else:
            damaged = bytearray(written)
            damaged[chance.randrange(len(written))] ^= 1 << chance.randrange(8)
            written = bytes(damaged)
        with journal_path(self._directory, generations(self._directory)[-1]).open("ab") as file:
            file.write(written)


def _failed(failure: OSError) -> None:
    raise failure


class SimulatedGroups(Groups):
    """Reports the member that requests a queue, at the moment that counts."""

    on_asked: Callable[[str, MessageQueue, str], None]

    def require_free(
        self, group: str, queue: MessageQueue, incarnation: int, member_id: str
    ) -> None:
        self.on_asked(group, queue, member_id)
        super().require_free(group, queue, incarnation, member_id)


class SimulatedWatch(GroupWatch):
    """Reports groups whose members were removed because their group was deleted.

    Args:
        on_deleted: called with the group's name.
    """

    def __init__(self, on_deleted: Callable[[str], None]) -> None:
        super().__init__(watchers_max=0)
        self._on_deleted = on_deleted

    def group_deleted(self, group: str, stays: Callable[[int], bool]) -> None:  # noqa: ARG002
        self._on_deleted(group)


class Service:
    """One life of the offset service, from a start to a crash.

    Args:
        world: its surroundings.
        directory: of its journal.
        view: the routes that it reads first; may be old.
        on_written: see SimulatedStore.
        on_durable: see SimulatedStore.
        on_told: see SimulatedBrokers.
        on_asked: called with group, queue and member when a member requests a queue.
        on_deleted: called with groups whose members were removed.
        on_recovered: called with the ledger as the journal restored it, before any change.
    """

    def __init__(
        self,
        world: World,
        directory: Path,
        view: View,
        on_written: Callable[[list[Record]], None],
        on_durable: Callable[[list[Record]], None],
        on_told: Callable[[MessageQueue, QueueState], None],
        on_asked: Callable[[str, MessageQueue, str], None],
        on_deleted: Callable[[str], None],
        on_recovered: Callable[[Ledger], None],
    ) -> None:
        def now_ns() -> int:
            return world.now_ns

        def now_ms() -> int:
            return world.wall_ms

        self.store = SimulatedStore(directory, on_written, on_durable)
        on_recovered(self.store.ledger)
        self.routes = SimulatedRoutes(world)
        brokers = SimulatedBrokers(world, on_told)
        table, routes = self.routes.table, cast(Any, self.routes)
        ends: Any = SimulatedEnds(brokers)
        watch = SimulatedWatch(on_deleted)
        self.groups = SimulatedGroups(
            self.store,
            table,
            ends,
            watch,
            Handovers(round(HANDOVER_SECONDS * 1e9)),
            LEASE_SECONDS,
            now_ns,
            now_ms,
        )
        self.groups.on_asked = on_asked
        self.resolver = Resolver(
            self.store,
            routes,
            Subscriptions(table, cast(Any, SimulatedNameservers(world))),
            self.groups,
            cast(Any, brokers),
            NewQueueRule.EXACT,
            ROUTE_WAIT_SECONDS,
            now_ms,
        )
        self.commits = Commits(self.store, table, ends, self.groups.release, now_ms)
        self.plans = ResetPlans(
            self.store,
            table,
            cast(Any, brokers),
            watch,
            PLAN_SECONDS,
            now_ms,
            lambda: world.now_ns / 1e9,
        )
        self.store.write(Reconciliation(self.store.ledger).etcd_seen(ETCD_CLUSTER_ID))
        self.follow(view, from_nothing=True)
        self.groups.open()
        # It registers and serves only after that, late enough for a disk.
        self.store.sync()

    def follow(self, view: View, *, from_nothing: bool = False) -> None:
        """Receive the routes of a later view."""
        self.groups.routes_changed(self.routes.follow(view, from_nothing=from_nothing))
