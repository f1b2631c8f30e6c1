"""Commits and releases: checked, taken by the ledger, durable when answered."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from rockoon_core.errors import GroupNotFound, RockoonError
from rockoon_core.message_queue import MessageQueue
from rockoon_core.start_position import QueueState
from rockoon_offset.brokers import Brokers
from rockoon_offset.progress.commit_check import OFFSET_MAX, Commit
from rockoon_offset.progress.progress_store import ProgressStore
from rockoon_offset.progress.readers import group_of
from rockoon_offset.progress.records import Record
from rockoon_offset.route_table import RouteTable

# After a broker failed to answer, commits do not wait for it again for so long.
AWAY_SECONDS = 1.0


class Outcome(NamedTuple):
    """What became of one commit: the offset that is stored now, and why not if it was refused."""

    offset: int
    error: RockoonError | None


class Release(NamedTuple):
    """A member's wish to give up a queue."""

    group: str
    queue: MessageQueue
    member_id: str


class QueueEnds:
    """The last known end of queues; asked for again only when a commit goes beyond it.

    Commits that need the same broker at once share a call: while one is out, the others wait, and
    the next call asks for all their queues together.

    Args:
        brokers: whom to ask.
        now_seconds: monotonic.
    """

    def __init__(self, brokers: Brokers, now_seconds: Callable[[], float]) -> None:
        self._brokers = brokers
        self._now_seconds = now_seconds
        self._ends: dict[MessageQueue, int] = {}
        self._wanted: dict[str, set[MessageQueue]] = {}
        # Guards, per broker, the one call that is out.
        self._asking: dict[str, asyncio.Lock] = {}
        self._away_until: dict[str, float] = {}
        # Queues whose end could not be had when it was last wanted.
        self._unknown: set[MessageQueue] = set()

    def known(self, queue: MessageQueue) -> int:
        """A lower bound of the queue's end."""
        return self._ends.get(queue, 0)

    def is_unknown(self, queue: MessageQueue) -> bool:
        """Whether the queue's broker could not be asked when it was last wanted."""
        return queue in self._unknown

    def forget_topics(self, topics: Iterable[str]) -> None:
        names = frozenset(topics)
        self._ends = {queue: end for queue, end in self._ends.items() if queue.topic not in names}
        self._unknown = {queue for queue in self._unknown if queue.topic not in names}

    async def refresh(self, queues: Iterable[MessageQueue]) -> None:
        """Ask for the ends of some queues; brokers that do not answer are away for a moment."""
        by_broker: dict[str, set[MessageQueue]] = {}
        for queue in queues:
            by_broker.setdefault(queue.broker, set()).add(queue)
        if len(by_broker) == 1:
            ((broker, part),) = by_broker.items()
            await self._refresh_one(broker, part)
            return
        async with asyncio.TaskGroup() as tasks:
            for broker, part in by_broker.items():
                tasks.create_task(self._refresh_one(broker, part), name=f"ends on {broker}")

    async def _refresh_one(self, broker: str, queues: set[MessageQueue]) -> None:
        self._wanted.setdefault(broker, set()).update(queues)
        async with self._asking.setdefault(broker, asyncio.Lock()):
            wanted = self._wanted.pop(broker, set())
            if self._away_until.get(broker, 0.0) > self._now_seconds():
                self._unknown |= wanted
                return
            if not wanted:
                return
            try:
                states = await self._brokers.queue_states(wanted)
            except asyncio.CancelledError:
                self._wanted.setdefault(broker, set()).update(wanted)
                raise
            for queue, state in states.items():
                if isinstance(state, QueueState):
                    self._ends[queue] = state.max_offset
                    self._unknown.discard(queue)
                else:
                    self._unknown.add(queue)
                    self._away_until[broker] = self._now_seconds() + AWAY_SECONDS


class Commits:
    """Takes commits.

    Args:
        store: progress.
        table: the queues' incarnations.
        ends: the queues' ends.
        release: takes a member (last) off a queue of a group.
        now_ms: wall clock.
    """

    def __init__(
        self,
        store: ProgressStore,
        table: RouteTable,
        ends: QueueEnds,
        release: Callable[[str, MessageQueue, str], None],
        now_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._table = table
        self._ends = ends
        self._release = release
        self._now_ms = now_ms
        # Since the start, of one queue each; what was refused by the error's name.
        self.taken = 0
        self.refused: Counter[str] = Counter()

    async def commit(
        self, commits: Sequence[Commit], releases: Sequence[Release] = ()
    ) -> list[Outcome]:
        """Take each commit or refuse it, for itself; then release; what is returned is durable.

        Whatever becomes of its commit, a queue is released: who lets go of it does not read it any
        more. Cancelling it is safe: what was taken stays taken.

        Raises:
            Busy, StoreFailed: none was taken.
        """
        self._store.admit()
        beyond = {commit.queue for commit in commits if self._goes_beyond(commit)}
        if beyond:
            await self._ends.refresh(beyond)
            self._store.admit()
        records: list[Record] = []
        outcomes: list[Outcome] = []
        now_ms = self._now_ms()
        for commit in commits:
            error: RockoonError | None = None
            try:
                records += self._store.ledger.commit(
                    commit,
                    self._table.create_revision_or_none(commit.queue),
                    self._end(commit),
                    now_ms,
                )
            except RockoonError as reason:
                error = self._explained(commit, reason)
                self.refused[error.name] += 1
            else:
                self.taken += 1
            progress = self._store.ledger.find(commit.group, commit.queue)
            outcomes.append(Outcome(0 if progress is None else progress.offset, error))
        self._store.write(records)
        for release in releases:
            self._release(release.group, release.queue, release.member_id)
        await self._store.durable()
        return outcomes

    def _goes_beyond(self, commit: Commit) -> bool:
        progress = self._store.ledger.find(commit.group, commit.queue)
        return (
            progress is not None
            and progress.epoch == commit.epoch
            and progress.offset < commit.offset <= OFFSET_MAX
            and commit.offset > self._ends.known(commit.queue)
        )

    def _end(self, commit: Commit) -> int | None:
        """The end to check against; None when the broker cannot be asked.

        Then the commit is taken: a reader can only have got there by reading, refusing it would
        have messages read twice because of a check, and Resolve compares with the real end anyway.
        """
        known = self._ends.known(commit.queue)
        return None if commit.offset > known and self._ends.is_unknown(commit.queue) else known

    def _explained(self, commit: Commit, reason: RockoonError) -> RockoonError:
        """A name that does not exist at all is a better reason than that nothing is stored."""
        if self._store.ledger.find(commit.group, commit.queue) is not None:
            return reason
        if not self._table.revision:
            # Without routes nothing is known not to exist.
            return reason
        try:
            self._table.create_revision(commit.queue)
        except RockoonError as unknown:
            return unknown
        group = group_of(commit.group)
        return reason if group in self._table.groups else GroupNotFound(group=group)
