"""Assignment: the queues of one member, their start positions, and their revocation.

Invariants:
- A queue has at most one reader. Each Resolve creates a new reader.
- A reader whose position is not valid (after a reset, or with another owner) delivers and commits
  nothing as soon as this is known, before the next rebalance.
- A queue is not resolved while it is being revoked: the late release would end the new grant.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from rockoon.allocation import AllocationStrategy, allocate
from rockoon.consumer.delivery import HandlerDelivery
from rockoon.consumer.membership import GroupMembership
from rockoon.consumer.process_queue import FlowLimits, ProcessQueue
from rockoon.consumer.pull_stream import PullStreams
from rockoon.consumer.queue_reader import QueueReader, ReadRules
from rockoon.consumer.queue_revocation import QueueRevocation, RebalanceListener
from rockoon.consumer.statistics import ConsumerStatistics
from rockoon.errors import (
    GroupNotFound,
    InvalidArgument,
    InvalidExpression,
    InvalidGroupName,
    InvalidTopicName,
    MemberIdTaken,
    NotAuthenticated,
    NotPermitted,
    QueueHeld,
    RockoonError,
    StoreCorrupt,
    TopicNotFound,
    WrongCluster,
)
from rockoon.net.connection import Connection
from rockoon.offsets.local_offsets import kept_by_service
from rockoon.offsets.offset_store import OffsetStore
from rockoon.offsets.start import ConsumeFrom, Start
from rockoon.subscription import MissingTopics, Subscription
from rockoon_core.changes import Changes
from rockoon_core.clock import Backoff
from rockoon_core.message_queue import MessageQueue, queue_to_wire
from rockoon_core.repeated_lines import limited
from rockoon_proto.v1.offset_pb2 import BROADCASTING, ConsumeMode, PulledPosition

log = limited(logging.getLogger(__name__))

# Errors that a retry cannot repair: an operator must change the cluster or the consumer's settings.
FATAL = (
    GroupNotFound,
    InvalidArgument,
    InvalidExpression,
    InvalidGroupName,
    InvalidTopicName,
    MemberIdTaken,
    NotAuthenticated,
    NotPermitted,
    StoreCorrupt,
    TopicNotFound,
    WrongCluster,
)
# Share of the hand-over time for running handler calls. The rest is for storing the last progress.
_DRAIN_SHARE = 0.8
TaskStarter = Callable[[Callable[[], Awaitable[None]], str], asyncio.Task[None]]
"""Starts a named task of the consumer, which ends with the error of the task."""


@dataclass(frozen=True, slots=True)
class QueueReaderSettings:
    """Settings of the queue readers; see the arguments of `PushConsumer`."""

    subscriptions: Mapping[str, Subscription]
    mode: ConsumeMode
    consume_from: ConsumeFrom
    allocation: AllocationStrategy
    read_rules: ReadRules
    flow_limits: FlowLimits
    rebalance_seconds: float
    drain_seconds: float
    missing_topics: MissingTopics


class Assignment:
    """The queues of one member.

    Args:
        group: name of the group, for log lines.
        changes: wakes `keep_balanced` when the allocation may have changed.
        start_task: starts tasks for pulls and revocations.
        listener: called before queues are read, and before they are released.
        subscribe: subscribes the group to a topic that was created again.
    """

    def __init__(
        self,
        cluster: Connection,
        group: str,
        settings: QueueReaderSettings,
        *,
        membership: GroupMembership,
        changes: Changes,
        store: OffsetStore,
        delivery: HandlerDelivery,
        statistics: ConsumerStatistics,
        start_task: TaskStarter,
        listener: RebalanceListener,
        subscribe: Callable[[str], Awaitable[None]],
    ) -> None:
        self.readers: dict[MessageQueue, QueueReader] = {}
        """Readers by queue. Written only by `keep_balanced`, which one task runs."""
        self.starts: dict[MessageQueue, Start] = {}
        """Start position of each queue, with the reason."""
        self.route_revision = 0
        """Revision of the subscriptions, which the offset service must know before it resolves."""
        self._cluster = cluster
        self._streams = PullStreams(cluster)
        self._group = group
        self._settings = settings
        self._membership = membership
        self._changes = changes
        self._store = store
        self._delivery = delivery
        self._statistics = statistics
        self._start_task = start_task
        self._listener = listener
        self._subscribe = subscribe
        # Topic → its incarnation at the time of the subscription.
        self._incarnations: dict[str, int] = {}
        self._revocation = QueueRevocation(
            group,
            store,
            delivery,
            listener,
            on_persisted=statistics.count_persisted,
            on_ended=changes.notify,
        )
        # Readers whose position is not valid: to be dropped without a commit and resolved again.
        self._invalid: set[QueueReader] = set()
        # Queues without a reader that the offset service may have granted to this member: the reply
        # of Resolve was lost, or its reader is invalid. Released unless they are resolved.
        self._claims: set[MessageQueue] = set()
        # Claimed queues that were reset during the Resolve call.
        self._reset_during_resolve: set[MessageQueue] = set()
        # Queues that another member still holds (`QueueHeld`).
        self._held_elsewhere: set[MessageQueue] = set()
        self._expirations_seen = 0
        self._was_idle = False
        membership.positions = self._positions

    def _positions(self) -> Iterable[PulledPosition]:
        for queue, reader in self.readers.items():
            # A custom store has no epochs, and the offset service does not know its progress.
            if reader.start.epoch and not reader.process_queue.dropped:
                yield PulledPosition(
                    queue=queue_to_wire(queue),
                    next_offset=reader.process_queue.next_offset,
                    epoch=reader.start.epoch,
                    unfinished=reader.process_queue.unfinished,
                )

    async def keep_balanced(self) -> None:
        """Rebalance after each change and periodically, without end. Raises GroupNotFound,
        TopicNotFound, ...: an error of `FATAL`."""
        backoff = Backoff(first_seconds=0.1)
        while True:
            # Read before the rebalance: a change during it starts the next one immediately.
            seen = self._changes.count
            if await self._rebalance():
                backoff.reset()
                pause = self._settings.rebalance_seconds
            else:
                pause = backoff.next_seconds()
            try:
                async with asyncio.timeout(pause):
                    await self._changes.wait(seen)
            except TimeoutError:
                continue

    async def _rebalance(self) -> bool:
        """Create and revoke readers so that they match the group, the routes and the resets.
        Returns false if a queue could not be resolved yet, or a route is not known."""
        self._statistics.rebalances += 1
        # The set is replaced first, because readers may be added while these are dropped.
        invalid, self._invalid = self._invalid, set()
        # An invalid reader may have been dropped and its queue assigned again.
        current = [r for r in invalid if self.readers.get(r.queue) is r]
        self._claims.update(reader.queue for reader in current)
        await self._drop(current)
        if self._membership.expirations != self._expirations_seen:
            self._expirations_seen = self._membership.expirations
            if self._settings.mode != BROADCASTING:
                # Other members may own the queues. If not, the finished progress is still stored.
                self._revoke(list(self.readers.values()))
        try:
            create_revisions = await self._create_revisions()
        except RockoonError as error:
            if not error.retriable:
                raise
            log.warning("rebalance delayed because routes are unavailable, retrying: %s", error)
            return False
        mine = self._allocated(create_revisions)
        self._log_idle(len(mine), create_revisions)
        self._held_elsewhere &= mine
        lost = [
            reader
            for queue, reader in self.readers.items()
            if queue not in mine or create_revisions[queue] != reader.create_revision
        ]
        if lost:
            log.info("%s loses %s", self._membership.member_id, _names(r.queue for r in lost))
            self._statistics.queues_lost += len(lost)
        claims = self._claims - mine
        self._claims -= claims
        if lost or claims:
            self._revoke(lost, claims)
        # Queues that are being revoked are assigned by the rebalance after their revocation.
        gained = sorted(mine - self.readers.keys() - self._revocation.queues)
        return not gained or await self._assign(gained, create_revisions)

    def _allocated(self, create_revisions: Collection[MessageQueue]) -> set[MessageQueue]:
        if self._membership.is_paused:
            return set()
        if self._settings.mode == BROADCASTING:
            return set(create_revisions)
        return allocate(
            self._settings.allocation,
            self._membership.member_id,
            self._membership.topics_of,
            create_revisions,
            self._membership.owners,
        )

    def _log_idle(self, queues: int, create_revisions: Collection[MessageQueue]) -> None:
        """Log once that this member has no queues."""
        is_idle = not queues and bool(create_revisions) and not self._membership.is_paused
        if is_idle and not self._was_idle:
            log.warning(
                "%s has no queues: group %s has more members (%d) than queues (%d)",
                self._membership.member_id,
                self._group,
                len(self._membership.topics_of),
                len(create_revisions),
            )
        self._was_idle = is_idle

    async def _create_revisions(self) -> dict[MessageQueue, int]:
        """Return the queues of all existing topics, with the revisions of their creation. Raises
        TopicNotFound: a topic does not exist, and `missing_topics` is "end"."""
        create_revisions: dict[MessageQueue, int] = {}
        missing = self._settings.missing_topics
        for topic in self._settings.subscriptions:
            if topic in missing and self._cluster.routes.topic(topic) is None:
                # No nameserver call is needed, because the connection follows the routes.
                continue
            try:
                route = await self._cluster.route(topic)
                if self._incarnations.setdefault(topic, route.incarnation) != route.incarnation:
                    # The subscription of the group was deleted with the topic.
                    await self._subscribe(topic)
                    self._incarnations[topic] = route.incarnation
            except TopicNotFound:
                if not missing.waits:
                    raise
                missing.add(topic, self._settings.subscriptions)
                continue
            missing.discard(topic)
            if route.readable:
                create_revisions.update(route.create_revisions)
        return create_revisions

    async def _assign(
        self, queues: list[MessageQueue], create_revisions: Mapping[MessageQueue, int]
    ) -> bool:
        routes = self._cluster.routes
        revision = max(self.route_revision, *(routes.topic_revision(q.topic) for q in queues))
        # Before the call: if the reply is lost, the service may have granted the queues, and this
        # member must release them.
        self._claims.update(queues)
        self._reset_during_resolve.clear()
        # Read before the call: if the lease expires during it, other members may own the queues,
        # and the grants are not valid.
        expirations = self._membership.expirations
        try:
            found = await self._store.resolve(queues, self._settings.consume_from, revision)
        except RockoonError as error:
            self._raise_final(error)
            log.warning("%s cannot be resolved yet, retrying: %s", _names(queues), error)
            return False
        is_complete = True
        # Before the first pull, because `on_assigned` must precede the first message of a queue.
        await self._listener.assigned(
            queue for queue, start in found.items() if isinstance(start, Start)
        )
        for queue, start in found.items():
            if queue in self._reset_during_resolve:
                is_complete = False
                continue
            self._claims.discard(queue)
            if isinstance(start, RockoonError):
                self._raise_final(start)
                self._log_unresolved(queue, start)
                is_complete = False
                continue
            self._start_reader(queue, start, create_revisions[queue], expirations)
        return is_complete

    def _raise_final(self, error: RockoonError) -> None:
        """Raise an error that no retry can repair."""
        if isinstance(error, TopicNotFound) and self._settings.missing_topics.waits:
            # The next rebalance excludes the topic.
            return
        if isinstance(error, FATAL):
            raise error

    def _log_unresolved(self, queue: MessageQueue, error: RockoonError) -> None:
        if not isinstance(error, QueueHeld):
            log.warning("%s cannot be resolved yet, retrying: %s", queue, error)
        elif queue not in self._held_elsewhere:
            self._held_elsewhere.add(queue)
            log.info("%s waits for a queue: %s", self._membership.member_id, error)

    def _start_reader(
        self, queue: MessageQueue, start: Start, create_revision: int, expirations: int
    ) -> None:
        log.log(
            logging.WARNING if start.gap else logging.INFO,
            "%s reads %s from %d (%s): %s",
            self._membership.member_id,
            queue,
            start.offset,
            start.reason,
            start.explanation,
        )
        reader = QueueReader(
            queue=queue,
            subscription=self._settings.subscriptions[queue.topic],
            start=start,
            create_revision=create_revision,
            process_queue=ProcessQueue(start.offset, self._settings.flow_limits),
            may_start=partial(self._membership.valid_since, expirations),
        )
        self._held_elsewhere.discard(queue)
        self.starts[queue] = start
        self._statistics.starts[start.reason] += 1
        self._statistics.queues_gained += 1
        self._statistics.gap_total += start.gap
        self.readers[queue] = reader
        reader.task = self._start_task(lambda: self._pull(reader), str(queue))

    async def _pull(self, reader: QueueReader) -> None:
        out_of_range = await reader.pull_into(
            self._cluster,
            self._streams,
            self._settings.read_rules,
            self._statistics.pulls,
            on_messages=self._delivery.offer,
            on_gone=lambda _: self._changes.notify(),
        )
        # Messages pulled before are still handled and committed. Then the offset service decides
        # where to continue.
        if out_of_range is not None:
            log.warning("%s", out_of_range)
            reader.failure = out_of_range.to_error()
            self._statistics.out_of_range += 1
            await _wait_finished(reader)
        else:
            log.warning("no reply to pulls of %s: resolving its start again", reader.queue)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.drain_seconds):
                    await _wait_finished(reader)
        # Progress is stored first, because the service decides by it. The queue is not released.
        await self._revocation.store_last([reader], release=False)
        self.resolve_again([reader])

    def on_reset(self, queues: Collection[MessageQueue]) -> None:
        """Resolve the start of queues again after an operator has reset their progress."""
        if self._settings.mode == BROADCASTING and not kept_by_service(self._store):
            log.warning(
                "a reset of group %s has no effect on %s, which stores its progress itself",
                self._group,
                self._membership.member_id,
            )
            return
        readers = [r for queue in queues if (r := self.readers.get(queue))]
        claimed = self._claims.intersection(queues)
        self._reset_during_resolve |= claimed
        self._statistics.resets += len(readers) + len(claimed)
        self.resolve_again(readers)

    def resolve_again(self, readers: Iterable[QueueReader]) -> None:
        """Drop readers without a commit; their queues are resolved at the next rebalance."""
        for reader in readers:
            # Immediately, because its messages must not be delivered or committed any more.
            reader.process_queue.drop()
            self._invalid.add(reader)
        self._changes.notify()

    def _revoke(self, lost: Collection[QueueReader], claims: Collection[MessageQueue] = ()) -> None:
        """Start the revocation of queues without waiting for its end."""
        for reader in lost:
            # If the queue is allocated to this member again, it must wait for the end of the
            # revocation.
            del self.readers[reader.queue]
        self._revocation.start(
            lost,
            claims,
            min(self._settings.drain_seconds, _DRAIN_SHARE * self._membership.handover_seconds_max),
            lambda work: self._start_task(work, "revocation"),
        )

    async def _drop(self, readers: list[QueueReader]) -> None:
        for reader in readers:
            reader.process_queue.drop()
            self._delivery.cancel_redeliveries(reader)
            self._store.remove(reader.queue)
            self.readers.pop(reader.queue, None)
        await cancel([reader.task for reader in readers])
        await self._listener.revoked(reader.queue for reader in readers)

    async def stop_pulls(self) -> None:
        self._streams.close()
        await cancel(reader.task for reader in self.readers.values())

    async def store_last(self) -> None:
        """Store all progress and release all queues, within a time limit."""
        await self._revocation.store_last(self.readers.values(), self._claims)
        await self._revocation.wait()

    def drop(self) -> None:
        self._streams.close()
        for reader in self.readers.values():
            reader.process_queue.drop()
        self.readers.clear()


async def _wait_finished(reader: QueueReader) -> None:
    seen = reader.finished.count
    while reader.process_queue.unfinished:
        seen = await reader.finished.wait(seen)


def _names(queues: Iterable[MessageQueue]) -> str:
    return ", ".join(str(queue) for queue in sorted(queues))


async def cancel(tasks: Iterable[asyncio.Task[None] | None]) -> None:
    """Cancel tasks, except the current one, and wait until they have ended."""
    running = [
        task
        for task in tasks
        if task is not None and not task.done() and task is not asyncio.current_task()
    ]
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running)
