"""Commits and releases of queues: check, apply to the ledger, wait until durable."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from rockoon_core.errors import GroupNotFound, RockoonError
from rockoon_core.message_queue import MessageQueue
from rockoon_core.start_position import QueueState
from rockoon_offset.brokers import Brokers
from rockoon_offset.progress.ledger import OFFSET_MAX, OffsetCommit
from rockoon_offset.progress.progress_store import ProgressStore
from rockoon_offset.progress.readers import group_of
from rockoon_offset.progress.records import Record
from rockoon_offset.route_table import OffsetRoutes

# For this time after a failed call to a broker, commits do not call the broker again.
AWAY_SECONDS = 1.0


class CommitResult(NamedTuple):
    """Result of one commit: the offset that is stored now, and the error if it was refused."""

    offset: int
    error: RockoonError | None


class Release(NamedTuple):
    """A member's request to release a queue."""

    group: str
    queue: MessageQueue
    member_id: str


class QueueEndCache:
    """Cache of queue ends, for the check of commits. An end is read again only if a commit is
    beyond the cached end.

    Concurrent commits on queues of one broker share calls: while a call is in progress, later
    requests wait, and the next call contains all their queues.

    Args:
        brokers: client of the brokers.
        now_seconds: monotonic.
    """

    def __init__(self, brokers: Brokers, now_seconds: Callable[[], float]) -> None:
        self._brokers = brokers
        self._now_seconds = now_seconds
        self._ends: dict[MessageQueue, int] = {}
        self._wanted: dict[str, set[MessageQueue]] = {}
        # Broker name → held during a call to it.
        self._asking: dict[str, asyncio.Lock] = {}
        self._away_until: dict[str, float] = {}
        # Queues whose end could not be read at the last attempt.
        self._unknown: set[MessageQueue] = set()

    def known(self, queue: MessageQueue) -> int:
        """Return the cached end of a queue; the real end may be higher."""
        return self._ends.get(queue, 0)

    def is_unknown(self, queue: MessageQueue) -> bool:
        """True if the last attempt to read the queue's end failed."""
        return queue in self._unknown

    def drop_topics(self, topics: Iterable[str]) -> None:
        names = frozenset(topics)
        self._ends = {queue: end for queue, end in self._ends.items() if queue.topic not in names}
        self._unknown = {queue for queue in self._unknown if queue.topic not in names}

    async def refresh(self, queues: Iterable[MessageQueue]) -> None:
        """Read the ends of queues. A broker that does not answer is skipped for `AWAY_SECONDS`."""
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
                states = await self._brokers.queue_states(wanted, offsets_only=True)
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
    """Applies commits of offsets, and releases of queues, for members and other readers.

    Args:
        release: called with group, queue and member id; removes the member as owner of the queue.
        now_ms: wall clock.
    """

    def __init__(
        self,
        store: ProgressStore,
        table: OffsetRoutes,
        ends: QueueEndCache,
        release: Callable[[str, MessageQueue, str], None],
        now_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._table = table
        self._ends = ends
        self._release = release
        self._now_ms = now_ms
        # Accepted commits, each of one queue, since the start; refused commits by the error's name.
        self.accepted = 0
        self.refused: Counter[str] = Counter()

    async def commit(
        self, commits: Sequence[OffsetCommit], releases: Sequence[Release] = ()
    ) -> list[CommitResult]:
        """Apply or refuse each commit separately, then release queues. The result is durable.

        A queue is released even if its commit is refused, because the member no longer reads it.
        Cancelling is safe: accepted commits stay accepted.

        Raises:
            Busy, StoreFailed, StoreNotWritable: no commit is acknowledged. If the error came while
                the call waited for the disk, accepted commits may be durable, or become so later.
        """
        self._store.require_writable()
        beyond = {commit.queue for commit in commits if self._is_beyond_end(commit)}
        if beyond:
            await self._ends.refresh(beyond)
            self._store.require_writable()
        records: list[Record] = []
        outcomes: list[CommitResult] = []
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
                self.accepted += 1
            progress = self._store.ledger.find(commit.group, commit.queue)
            outcomes.append(CommitResult(0 if progress is None else progress.offset, error))
        self._store.write(records)
        for release in releases:
            self._release(release.group, release.queue, release.member_id)
        await self._store.durable()
        return outcomes

    def _is_beyond_end(self, commit: OffsetCommit) -> bool:
        progress = self._store.ledger.find(commit.group, commit.queue)
        return (
            progress is not None
            and progress.epoch == commit.epoch
            and progress.offset < commit.offset <= OFFSET_MAX
            and commit.offset > self._ends.known(commit.queue)
        )

    def _end(self, commit: OffsetCommit) -> int | None:
        """Return the end of the queue for the check of a commit; None: the broker did not answer.

        With an unknown end the commit is accepted: the reader has read these messages, a refusal
        would only cause redelivery, and the next Resolve compares the offset with the real end.
        """
        known = self._ends.known(commit.queue)
        return None if commit.offset > known and self._ends.is_unknown(commit.queue) else known

    def _explained(self, commit: OffsetCommit, reason: RockoonError) -> RockoonError:
        """Return the error of a refused commit. If the reader has no progress and the topic,
        queue or group does not exist, return the error that says so.
        """
        if self._store.ledger.find(commit.group, commit.queue) is not None:
            return reason
        if not self._table.revision:
            # Without routes it is unknown what exists.
            return reason
        try:
            self._table.create_revision(commit.queue)
        except RockoonError as unknown:
            return unknown
        group = group_of(commit.group)
        return reason if group in self._table.groups else GroupNotFound(group=group)
