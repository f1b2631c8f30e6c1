"""`ProgressStore` of the leader of a replicated journal.

Invariants:
- A reply with a change waits until a quorum has the change. A reply without a change waits until a
  quorum has confirmed, after the request arrived, that this replica leads.
- Changes are in the journal in the order in which the ledger made them. While appends are not
  allowed, changes of the service itself wait here, and requests are refused before their change.
- An object exists for one leadership. At its end, changes that are not in the journal are lost
  with the ledger.
"""

import asyncio
import logging
from pathlib import Path

from rockoon_core.errors import (
    NotEnoughReplicas,
    NotLeader,
    RockoonError,
    StoreFailed,
    StoreNotWritable,
)
from rockoon_node.store_directory import StoreCluster
from rockoon_offset.journal.journal_log import JournalLog
from rockoon_offset.progress.ledger import Ledger
from rockoon_offset.progress.progress_store import JournalCounts
from rockoon_offset.progress.records import Record
from rockoon_replica.log import LogFull
from rockoon_replica.member import Role
from rockoon_replica.replica import Replica

log = logging.getLogger(__name__)

# Bound on waiting changes of the service itself. Beyond it this replica resigns.
WAITING_BYTES_MAX = 16 << 20


class LeaderStore:
    """`ProgressStore` of a replica that leads: appends changes to the replicated journal."""

    def __init__(
        self, journal: JournalLog, replica: Replica, root: Path, cluster: StoreCluster, name: str
    ) -> None:
        self.root = root
        self.cluster = cluster
        self._journal = journal
        self._replica = replica
        self._name = name
        self._loop = asyncio.get_running_loop()
        # Changes in order, while appends are not allowed.
        self._waiting: list[list[bytes]] = []
        self._waiting_bytes = 0
        # A change was appended in this loop iteration, and is not sent to followers yet.
        self._has_unsent = False
        # Set while changes wait; set while no change waits.
        self._is_waiting, self._is_written = asyncio.Event(), asyncio.Event()
        self._is_written.set()
        # Set when a new file was started, whose state must be appended.
        self._started_file = asyncio.Event()
        self._refusal: RockoonError | None = None

    @property
    def ledger(self) -> Ledger:
        return self._journal.ledger

    @property
    def is_stalled(self) -> bool:
        return bool(self._waiting)

    @property
    def changes(self) -> int:
        return self._journal.appended_batches

    def raise_level(self, level: int) -> None:
        self._journal.raise_level(level)

    def journal_counts(self) -> JournalCounts:
        return self._journal.counts()

    def require_writable(self) -> None:
        if self._refusal is not None:
            raise self._refusal
        if not self._replica.appends_allowed:
            raise self._not_allowed()
        self._journal.require_writable()

    def write(self, records: list[Record]) -> None:
        if not records or self._refusal is not None:
            return
        encoded = self._journal.encoded(records)
        if self._replica.appends_allowed and not self._waiting:
            self._append(encoded)
            return
        self._waiting.append(encoded)
        self._is_waiting.set()
        self._is_written.clear()
        self._waiting_bytes += sum(map(len, encoded))
        if self._waiting_bytes > WAITING_BYTES_MAX:
            self._resign("too many changes wait for other replicas")

    async def durable(self) -> None:
        if self._refusal is not None:
            raise self._refusal
        if self._waiting:
            raise self._not_allowed()
        end = self._journal.end
        if not self._has_unsent:
            await self._replica.round()
        # If this iteration of the loop has appended a change, no round is needed: the change is
        # sent after this call, so its commit confirms the leadership.
        await self._replica.wait_committed(end)

    async def wait_leadership_confirmed(self) -> None:
        if self._refusal is not None:
            raise self._refusal
        await self._replica.round()

    async def durable_unbounded(self) -> None:
        """Wait until all changes so far are committed, without a time limit or an error. After the
        end of the leadership, wait until cancelled."""
        while True:
            try:
                await self.durable()
            except NotEnoughReplicas:
                await self._is_written.wait()
            except NotLeader:
                await asyncio.Event().wait()
            else:
                return

    def end(self, refusal: RockoonError) -> None:
        """Refuse changes with an error from now on: the leadership has ended."""
        self._refusal = self._refusal or refusal
        self._waiting.clear()

    async def run(self) -> None:
        """Append waiting changes and new files' states once allowed, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._append_waiting(), name="waiting progress")
            tasks.create_task(self._append_states(), name="states of the journal's files")

    async def _append_waiting(self) -> None:
        while True:
            await self._is_waiting.wait()
            await self._replica.may_append.wait()
            while self._waiting and self._replica.appends_allowed:
                self._append(self._waiting.pop(0))
            if not self._waiting:
                self._waiting_bytes = 0
                self._is_waiting.clear()
                self._is_written.set()

    async def _append_states(self) -> None:
        while True:
            await self._started_file.wait()
            self._started_file.clear()
            more = True
            while more:
                await self._replica.may_append.wait()
                more = self._journal.append_state()
                self._replica.written()
                # One part after the other, so that changes of clients come between them.
                try:
                    await self._replica.wait_committed(self._journal.end)
                except NotLeader:
                    # The next leader starts another file; this task is cancelled soon.
                    return

    def _append(self, encoded: list[bytes]) -> None:
        try:
            self._journal.append(encoded)
        except LogFull as failure:
            self._resign(str(failure))
            return
        except OSError as failure:
            # The journal has called `failed`.
            self.end(StoreFailed(reason=str(failure)))
            return
        if not self._has_unsent:
            self._has_unsent = True
            self._loop.call_soon(self._sent)
        self._replica.written()
        if self._journal.wants_generation and not self._waiting:
            # Immediately after the append: the file must start with the current ledger.
            self._journal.start_generation()
            self._started_file.set()

    def _sent(self) -> None:
        self._has_unsent = False

    def _resign(self, reason: str) -> None:
        """End the leadership, because the ledger is ahead of the journal and cannot go back."""
        log.error("log %s: this replica resigns as leader: %s", self._name, reason)
        self.end(StoreNotWritable(f"progress cannot be stored now: {reason}"))
        self._replica.close()

    def _not_allowed(self) -> NotEnoughReplicas | NotLeader:
        state = self._replica.state
        if state is None or self._replica.role is not Role.LEADING:
            return NotLeader(replica=self._replica.member.replica, log=self._name)
        needed = state.config.quorum
        return NotEnoughReplicas(connected="too few", log=self._name, needed=needed)
