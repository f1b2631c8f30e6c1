"""How far behind a group is, without guessing.

Committed offsets are taken first, the queues' ends after them: an end only grows, so the difference
is never negative. What is not known is said to be unknown.
"""

import asyncio
from typing import NamedTuple

from rockoon_offset.brokers import Brokers
from rockoon_offset.queues import Queue
from rockoon_offset.records import Progress
from rockoon_offset.route_table import RouteTable
from rockoon_offset.start_position import QueueState
from rockoon_offset.store import Store
from rockoon_proto.errors import GroupNotFound, RockoonError, TopicNotFound

# Messages looked at, at once, for the time they were stored.
READS_AT_ONCE_MAX = 16


class QueueLag(NamedTuple):
    """How far behind on one queue; everything but `queue` and `owner` may be unknown."""

    queue: Queue
    owner: str
    unknown_because: str = ""
    min_offset: int = 0
    max_offset: int = 0
    committed: int | None = None
    lag: int | None = None
    lag_ms: int | None = None


class Lags:
    """Looks at lags.

    Args:
        store: progress.
        table: queues and groups.
        brokers: the queues' ends.
    """

    def __init__(self, store: Store, table: RouteTable, brokers: Brokers) -> None:
        self._store = store
        self._table = table
        self._brokers = brokers

    async def lags(self, group: str, topic: str) -> list[QueueLag]:
        """Lags of a group, sorted by queue.

        Args:
            group: its name.
            topic: empty means every topic that the group reads or has progress on.

        Raises:
            GroupNotFound, TopicNotFound: as the text says.
        """
        if group not in self._table.groups:
            raise GroupNotFound(group=group)
        if topic and topic not in self._table.topics:
            raise TopicNotFound(topic=topic)
        topics = {topic} if topic else self._topics_of(group)
        queues = sorted(
            queue
            for name in topics & self._table.topics.keys()
            for queue in self._table.topics[name].births
        )
        progress = {queue: self._of_this_queue(group, queue) for queue in queues}
        await self._store.durable()
        states = await self._brokers.queue_states(queues)
        reads = asyncio.Semaphore(READS_AT_ONCE_MAX)
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(
                    self._lag(queue, progress[queue], states[queue], reads), name=f"lag {queue}"
                )
                for queue in queues
            ]
        return [task.result() for task in running]

    def _topics_of(self, group: str) -> set[str]:
        subscribed = {topic for name, topic in self._table.subscriptions if name == group}
        return subscribed | {queue.topic for queue in self._store.ledger.progress_of(group)}

    def _of_this_queue(self, group: str, queue: Queue) -> Progress | None:
        """Progress, unless it belongs to a deleted queue of the same name."""
        progress = self._store.ledger.find(group, queue)
        if progress is None or progress.incarnation != self._table.birth_or_none(queue):
            return None
        return progress

    async def _lag(
        self,
        queue: Queue,
        progress: Progress | None,
        state: QueueState | RockoonError,
        reads: asyncio.Semaphore,
    ) -> QueueLag:
        owner = "" if progress is None else progress.owner
        if isinstance(state, RockoonError):
            return QueueLag(queue, owner, unknown_because=str(state))
        known = QueueLag(queue, owner, min_offset=state.min_offset, max_offset=state.max_offset)
        if progress is None:
            return known
        # Below zero only when the log has lost its tail: then nothing is left to read.
        lag = max(0, state.max_offset - progress.offset)
        async with reads:
            lag_ms = await self._lag_ms(queue, progress.offset, state)
        return known._replace(committed=progress.offset, lag=lag, lag_ms=lag_ms)

    async def _lag_ms(self, queue: Queue, committed: int, state: QueueState) -> int | None:
        """Age of the oldest unread message that is kept, by the broker's clock."""
        if committed >= state.max_offset or state.min_offset == state.max_offset:
            return 0
        if committed <= state.min_offset:
            stored_ms = state.first_store_ms
        elif committed == state.max_offset - 1:
            stored_ms = state.last_store_ms
        else:
            stored_ms = await self._brokers.store_time_ms(queue, committed)
        return None if stored_ms is None else max(0, state.as_of_ms - stored_ms)
