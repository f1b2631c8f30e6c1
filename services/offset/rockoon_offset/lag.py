"""How far behind a group is: who is asked for what, in which order.

Committed offsets are taken first, the queues' ends after them, each broker's in one call. What is
not known is said to be unknown.
"""

from collections.abc import Callable

from rockoon_offset.brokers import Brokers
from rockoon_offset.lag_rows import QueueLag, lag_of
from rockoon_offset.membership import Membership
from rockoon_offset.queues import Queue
from rockoon_offset.records import Progress
from rockoon_offset.route_table import RouteTable
from rockoon_offset.store import Store
from rockoon_proto.errors import GroupNotFound, RockoonError, TopicNotFound

EVERYTHING = "*"


class Lags:
    """Looks at lags.

    Args:
        store: progress.
        table: queues and groups.
        brokers: the queues' ends.
        membership: how far members have pulled.
        now_ns: monotonic.
    """

    def __init__(
        self,
        store: Store,
        table: RouteTable,
        brokers: Brokers,
        membership: Membership,
        now_ns: Callable[[], int],
    ) -> None:
        self._store = store
        self._table = table
        self._brokers = brokers
        self._membership = membership
        self._now_ns = now_ns

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
        now_ns = self._now_ns()
        progress = {queue: self._of_this_queue(group, queue) for queue in queues}
        owners = {
            queue: self._membership.live(group, each.owner, now_ns)
            for queue, each in progress.items()
            if each is not None
        }
        filters = {name: self._filter(group, name) for name in topics}
        await self._store.durable()
        states = await self._brokers.queue_states(
            queues, {queue: each.offset for queue, each in progress.items() if each is not None}
        )
        rows = []
        for queue in queues:
            known, state = progress[queue], states[queue]
            row = QueueLag(
                queue, owner="" if known is None else known.owner, filter=filters[queue.topic]
            )
            if isinstance(state, RockoonError):
                rows.append(row._replace(unknown_because=str(state)))
            else:
                rows.append(lag_of(row, known, state, owners.get(queue)))
        return rows

    def _topics_of(self, group: str) -> set[str]:
        subscribed = {topic for name, topic in self._table.subscriptions if name == group}
        return subscribed | {queue.topic for queue in self._store.ledger.progress_of(group)}

    def _of_this_queue(self, group: str, queue: Queue) -> Progress | None:
        """Progress, unless it belongs to a deleted queue of the same name."""
        progress = self._store.ledger.find(group, queue)
        if progress is None or progress.incarnation != self._table.birth_or_none(queue):
            return None
        return progress

    def _filter(self, group: str, topic: str) -> str:
        """What live members read of a topic when that is not everything."""
        expressions = {
            expression
            for lease in self._membership.leases(group)
            for name, expression in lease.member.subscriptions
            if name == topic and expression != EVERYTHING
        }
        return "; ".join(sorted(expressions))
