"""Lag of a group: collects committed offsets, members' positions and the brokers' queue ends.

Committed offsets are read before the queues' ends, and each broker is called once. A value that is
not known is reported as unknown.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from rockoon_core.errors import GroupNotFound, InvalidArgument, TopicNotFound
from rockoon_core.message_queue import MessageQueue
from rockoon_offset.brokers import Brokers
from rockoon_offset.in_flight.filters import ReaderFilters
from rockoon_offset.members.membership import BROADCASTING, Membership
from rockoon_offset.progress.lag_rows import QueueLag, ReceivedQueue, filled, pulled_offset
from rockoon_offset.progress.progress_store import ProgressStore
from rockoon_offset.progress.readers import reader_of
from rockoon_offset.progress.records import Progress
from rockoon_offset.route_table import OffsetRoutes
from rockoon_proto.v1.nameserver_pb2 import BROADCAST_SERVER
from rockoon_proto.v1.offset_pb2 import BrokerDisk

EVERYTHING = "*"


class Lags:
    """Computes the lag of groups.

    Args:
        membership: pulled positions of the members.
        now_ns: monotonic.
        rows_max: maximum rows of one reply.
        visibility_ms: clock of visibility times, epoch milliseconds.
    """

    def __init__(
        self,
        store: ProgressStore,
        table: OffsetRoutes,
        brokers: Brokers,
        membership: Membership,
        filters: ReaderFilters,
        now_ns: Callable[[], int],
        rows_max: int,
        visibility_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._table = table
        self._brokers = brokers
        self._membership = membership
        self._filters = filters
        self._now_ns = now_ns
        self._rows_max = rows_max
        self._visibility_ms = visibility_ms

    async def lags(self, group: str, topic: str) -> list[QueueLag]:
        """Return the lags of a group, sorted by queue, then by member.

        Args:
            topic: empty: every topic that the group reads or has progress on.

        Raises:
            GroupNotFound, TopicNotFound: the group or topic is not in the routes.
            InvalidArgument: more than `rows_max` rows.
        """
        if group not in self._table.groups:
            raise GroupNotFound(group=group)
        if topic and topic not in self._table.topics:
            raise TopicNotFound(topic=topic)
        topics = {topic} if topic else self.topics_of(group)
        queues = sorted(
            queue
            for name in topics & self._table.topics.keys()
            for queue in self._table.topics[name].create_revisions
        )
        filters = {name: self._filter(group, name) for name in topics}
        rows = [
            row
            for queue in queues
            for row in self._rows(
                group,
                QueueLag(
                    queue,
                    filter=filters[queue.topic].text,
                    filters_differ=filters[queue.topic].differ,
                ),
            )
        ]
        if len(rows) > self._rows_max:
            raise InvalidArgument(reason=f"more than {self._rows_max} lags at once: name a topic")
        now_ns = self._now_ns()
        progress = [self._of_this_queue(reader_of(group, row.member), row.queue) for row in rows]
        owners = [
            None if known is None else self._membership.live(group, known.owner, now_ns)
            for known in progress
        ]
        asked = [
            (row.queue, None if known is None else known.offset)
            for row, known in zip(rows, progress, strict=True)
        ]
        received = [
            None if known is None or row.member else self._received(group, row.queue)
            for row, known in zip(rows, progress, strict=True)
        ]
        unpulled = [
            (row.queue, pulled_offset(row.queue, known, owner, by_receivers))
            for row, known, owner, by_receivers in zip(
                rows, progress, owners, received, strict=True
            )
        ]
        await self._store.durable()
        wanted = dict.fromkeys([*asked, *(each for each in unpulled if each[1] is not None)])
        states = await self._brokers.states_at_offsets(wanted)
        return [
            filled(row, known, states[item], owner, states.get(beyond), by_receivers)
            for row, known, item, owner, beyond, by_receivers in zip(
                rows, progress, asked, owners, unpulled, received, strict=True
            )
        ]

    def disks(self, lags: Iterable[QueueLag]) -> list[BrokerDisk]:
        """Return the disk states that brokers reported in a result of `lags`."""
        brokers = sorted({lag.queue.broker for lag in lags if not lag.unknown_because})
        known = self._brokers.disks
        return [
            BrokerDisk(broker=broker, disk=known[broker][0], as_of_ms=known[broker][1])
            for broker in brokers
            if broker in known
        ]

    def _received(self, group: str, queue: MessageQueue) -> ReceivedQueue | None:
        """Return the state of a queue that receivers read; None: they acquired nothing."""
        window = self._store.ledger.windows.find(group, queue)
        if window is None or not window.since:
            return None
        now_ms = self._visibility_ms()
        counts = window.counts(now_ms)
        first_ready = window.first_ready(now_ms)
        return ReceivedQueue(
            counts.in_flight, counts.settled_above, first_ready, now_ms, window.copy(now_ms)
        )

    def _rows(self, group: str, shared: QueueLag) -> list[QueueLag]:
        """Return the rows of a queue, without lag: one for the group, and one for each member with
        its own progress.
        """
        queue = shared.queue
        ledger = self._store.ledger
        if self._table.groups[group].config.broadcast_progress != BROADCAST_SERVER:
            return [shared]
        rows = [
            shared._replace(member=name, absent=self._is_absent(group, name))
            for name, known in sorted(ledger.known.of(group).items())
            if queue.topic in dict(known.since)
        ]
        if not rows or ledger.find(group, queue) is not None:
            rows.insert(0, shared)
        return rows

    def _is_absent(self, group: str, member: str) -> bool:
        lease = self._membership.live(group, member, self._now_ns())
        return lease is None or lease.member.mode != BROADCASTING

    def topics_of(self, group: str) -> set[str]:
        """Return the topics that a group reads or has progress on."""
        subscribed = {topic for name, topic in self._table.subscriptions if name == group}
        return subscribed | {each.queue.topic for each in self._store.ledger.each_progress(group)}

    def _of_this_queue(self, reader: str, queue: MessageQueue) -> Progress | None:
        """Return a group's progress on a queue, unless it is of a deleted one of its name."""
        progress = self._store.ledger.find(reader, queue)
        if progress is None or progress.incarnation != self._table.create_revision_or_none(queue):
            return None
        return progress

    def _filter(self, group: str, topic: str) -> "Filter":
        expressions = self._filters.readers_of(group, topic).keys()
        broadcasting = {
            expression
            for lease in self._membership.leases(group)
            for name, expression in lease.member.subscriptions
            if name == topic and lease.member.mode == BROADCASTING
        }
        narrow = (expressions | broadcasting) - {EVERYTHING}
        return Filter("; ".join(sorted(narrow)), len(expressions) > 1)


class Filter(NamedTuple):
    """Filter expressions of a group's readers on a topic, as one text."""

    # Empty: all readers read all messages.
    text: str
    # Readers that share the queues have different filters.
    differ: bool
