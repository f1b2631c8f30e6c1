"""Progress on a journal with copies, as its leader keeps it: a `ProgressStore`.

Invariants:
- What was written is told to nobody before a quorum has it; nor is anything that was only looked
  at before a quorum has said, after the question came, that this replica leads.
- The order of the journal is the order in which the ledger changed. While appends are barred,
  changes wait here; who asks for one is refused before it is made.
- It lives as long as the leadership. What the ledger has beyond the journal goes with it.
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
from rockoon_node.store_cluster import StoreCluster
from rockoon_offset.journal.journal import JournalCounts
from rockoon_offset.progress.ledger import Ledger
from rockoon_offset.progress.records import Record, encode
from rockoon_offset.replication.journal_log import JournalLog
from rockoon_replica.log import LogFull
from rockoon_replica.member import Role
from rockoon_replica.replica import Replica

log = logging.getLogger(__name__)

# Changes that nobody asked for may wait so long; then this replica leads no more.
WAITING_BYTES_MAX = 16 << 20


class LedStore:
    """See the module.

    Args:
        journal: open, of a replica that leads.
        replica: it.
        root: the store's directory.
        cluster: whose it is.
        name: the log's.
    """

    def __init__(
        self, journal: JournalLog, replica: Replica, root: Path, cluster: StoreCluster, name: str
    ) -> None:
        self.root = root
        self.cluster = cluster
        self._journal = journal
        self._replica = replica
        self._name = name
        self._loop = asyncio.get_running_loop()
        # In their order, while appends are barred.
        self._waiting: list[list[bytes]] = []
        self._waiting_bytes = 0
        # Whether something was appended in this turn of the loop, and so sent to nobody yet.
        self._has_unsent = False
        # Set while something waits, and while nothing does.
        self._is_waiting, self._is_written = asyncio.Event(), asyncio.Event()
        self._is_written.set()
        # Rung when a new file is begun, whose state has to be carried on.
        self._begun = asyncio.Event()
        self._refusal: RockoonError | None = None

    @property
    def ledger(self) -> Ledger:
        return self._journal.ledger

    @property
    def is_held(self) -> bool:
        return bool(self._waiting)

    @property
    def changes(self) -> int:
        return self._journal.appended_batches

    def journal_counts(self) -> JournalCounts:
        journal = self._journal
        return JournalCounts(
            journal.end - journal.min_offset, journal.syncs, journal.sync_seconds, journal.shortage
        )

    def admit(self) -> None:
        if self._refusal is not None:
            raise self._refusal
        if not self._replica.appends_allowed:
            raise self._barred()
        self._journal.admit()

    def write(self, records: list[Record]) -> None:
        if not records or self._refusal is not None:
            return
        encoded = [encode(record) for record in records]
        if self._replica.appends_allowed and not self._waiting:
            self._append(encoded)
            return
        self._waiting.append(encoded)
        self._is_waiting.set()
        self._is_written.clear()
        self._waiting_bytes += sum(map(len, encoded))
        if self._waiting_bytes > WAITING_BYTES_MAX:
            self._give_up("too much of it waits for other copies")

    async def durable(self) -> None:
        if self._refusal is not None:
            raise self._refusal
        if self._waiting:
            raise self._barred()
        end = self._journal.end
        if not self._has_unsent:
            await self._replica.round()
        # What was sent to nobody before the question came proves that too, once a quorum has it.
        await self._replica.wait_committed(end)

    async def still_decides(self) -> None:
        if self._refusal is not None:
            raise self._refusal
        await self._replica.round()

    async def written_down(self) -> None:
        """Wait, for as long as it takes, until all that was written so far is committed; until
        cancelled when this replica leads no more."""
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
        """Refuse from now on: this replica leads no more."""
        self._refusal = self._refusal or refusal
        self._waiting.clear()

    async def run(self) -> None:
        """Write what waits once it may be, and the state that new files begin with; until
        cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._write_waiting(), name="progress that waits")
            tasks.create_task(self._carry_states(), name="states of the journal's files")

    async def _write_waiting(self) -> None:
        while True:
            await self._is_waiting.wait()
            await self._replica.may_append.wait()
            while self._waiting and self._replica.appends_allowed:
                self._append(self._waiting.pop(0))
            if not self._waiting:
                self._waiting_bytes = 0
                self._is_waiting.clear()
                self._is_written.set()

    async def _carry_states(self) -> None:
        while True:
            await self._begun.wait()
            self._begun.clear()
            more = True
            while more:
                await self._replica.may_append.wait()
                more = self._journal.carry_state()
                self._replica.written()
                # At the pace of the copies, between changes that people wait for.
                try:
                    await self._replica.wait_committed(self._journal.end)
                except NotLeader:
                    # The next leader begins another file; this is about to be cancelled.
                    return

    def _append(self, encoded: list[bytes]) -> None:
        try:
            self._journal.append(encoded)
        except LogFull as failure:
            self._give_up(str(failure))
            return
        except OSError as failure:
            # Who opened the journal was told.
            self.end(StoreFailed(reason=str(failure)))
            return
        if not self._has_unsent:
            self._has_unsent = True
            self._loop.call_soon(self._sent)
        self._replica.written()
        if self._journal.wants_generation and not self._waiting:
            # In the step that appends: what the ledger is now is the state that the file begins
            # with.
            self._journal.begin_generation()
            self._begun.set()

    def _sent(self) -> None:
        self._has_unsent = False

    def _give_up(self, reason: str) -> None:
        """The ledger is ahead of the journal for good: another replica leads, or this one anew."""
        log.error("log %s: leadership is given up: %s", self._name, reason)
        self.end(StoreNotWritable(f"progress is not stored now: {reason}"))
        self._replica.close()

    def _barred(self) -> NotEnoughReplicas | NotLeader:
        state = self._replica.state
        if state is None or self._replica.role is not Role.LEADING:
            return NotLeader(replica=self._replica.member.replica, log=self._name)
        needed = state.config.quorum
        return NotEnoughReplicas(connected="too few", log=self._name, needed=needed)
