"""The queues of one member: which are its own, where each starts, who gets those it loses.

Invariants:
- A queue has one reader at most, and every Resolve makes a new one.
- A reader whose position is void (a reset, another owner) hands out and commits nothing from the
  moment that is known, not only from the next rebalance on.
- A queue that was let go is not resolved again before it has gone: a late release would take it
  away from its next reader.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from rockoon.allocation import AllocationStrategy, allocate
from rockoon.consumer.delivery import Delivery
from rockoon.consumer.membership import Membership
from rockoon.consumer.missing_topics import MissingTopics
from rockoon.consumer.process_queue import FlowLimits, ProcessQueue
from rockoon.consumer.pull_stream import PullStreams
from rockoon.consumer.queue_reader import QueueReader, ReadRules
from rockoon.consumer.queue_revocation import QueueRevocation
from rockoon.consumer.rebalance_listener import RebalanceListener
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
from rockoon.offsets.broadcasting import kept_by_service
from rockoon.offsets.offset_store import OffsetStore
from rockoon.offsets.start import ConsumeFrom, Start
from rockoon.subscription import Subscription
from rockoon_core.backoff import Backoff
from rockoon_core.changes import Changes
from rockoon_core.message_queue import MessageQueue, queue_to_wire
from rockoon_core.repeated_lines import limited
from rockoon_proto.v1.offset_pb2 import BROADCASTING, ConsumeMode, PulledPosition

log = limited(logging.getLogger(__name__))

# What no retry can mend: somebody has to change the cluster, or this consumer's settings.
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
# Of the time that the offset service lets a member keep a queue that another one wants: the rest is
# for storing the last progress.
_DRAIN_SHARE = 0.8


TaskStarter = Callable[[Callable[[], Awaitable[None]], str], asyncio.Task[None]]
"""Makes an owned task of some work, by a name; the owner hears what the task dies of."""


@dataclass(frozen=True, slots=True)
class QueueReaderSettings:
    """How a member reads; the fields are arguments of `PushConsumer`."""

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
        cluster: where routes and brokers are found.
        group: for people.
        settings: how to read.
        membership: who else is in the group.
        changes: noted when allocation has to be looked at.
        store: where progress is kept.
        delivery: hands messages to the handler.
        statistics: counted in.
        start_task: makes tasks of pulls and revocations.
        listener: told of queues before they are read, and before they are handed over.
        subscribe: records that the group reads a topic that was created again.
    """

    def __init__(
        self,
        cluster: Connection,
        group: str,
        settings: QueueReaderSettings,
        *,
        membership: Membership,
        changes: Changes,
        store: OffsetStore,
        delivery: Delivery,
        statistics: ConsumerStatistics,
        start_task: TaskStarter,
        listener: RebalanceListener,
        subscribe: Callable[[str], Awaitable[None]],
    ) -> None:
        self.readers: dict[MessageQueue, QueueReader] = {}
        """Written here only, by `keep_balanced`, which no two tasks run at once."""
        self.starts: dict[MessageQueue, Start] = {}
        """Where reading of each queue began, and why."""
        self.route_revision = 0
        """Of the subscriptions: what the offset service must know before it decides."""
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
        # The incarnation of each topic that the group is subscribed to.
        self._incarnations: dict[str, int] = {}
        self._revocation = QueueRevocation(
            group,
            store,
            delivery,
            listener,
            on_persisted=statistics.count_persisted,
            on_gone=changes.note,
        )
        # Readers whose position is void: to be dropped without a commit and resolved again.
        self._void: set[QueueReader] = set()
        # Queues without a reader that the offset service may take for this member's: resolved with
        # an unknown outcome, or void. Released unless they are resolved.
        self._claims: set[MessageQueue] = set()
        # Of those, queues that were reset after the offset service had been asked for them.
        self._reset_meanwhile: set[MessageQueue] = set()
        # Queues that other members have been asked for.
        self._awaited: set[MessageQueue] = set()
        self._expirations_seen = 0
        self._was_idle = False
        membership.positions = self._positions

    def _positions(self) -> Iterable[PulledPosition]:
        for queue, reader in self.readers.items():
            # A store of the user's own knows no epochs, and nobody but the user its progress.
            if reader.start.epoch and not reader.process_queue.dropped:
                yield PulledPosition(
                    queue=queue_to_wire(queue),
                    next_offset=reader.process_queue.next_offset,
                    epoch=reader.start.epoch,
                    unfinished=reader.process_queue.unfinished,
                )

    async def keep_balanced(self) -> None:
        """Keep the readers as they should be, for ever.

        Raises:
            GroupNotFound, TopicNotFound, ...: one of `FATAL`.
        """
        backoff = Backoff(first_seconds=0.1)
        while True:
            # Before looking: what changes while this rebalances is seen right after.
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
        """Bring the readers in line with the group, the routes and the resets.

        Returns:
            False when a queue could not be resolved yet, or routes are not known.
        """
        self._statistics.rebalances += 1
        # Taken out first: more may become void while these are given up.
        void, self._void = self._void, set()
        # A reader may have been dropped and the queue assigned again since it became void.
        current = [r for r in void if self.readers.get(r.queue) is r]
        self._claims.update(reader.queue for reader in current)
        await self._drop(current)
        if self._membership.expirations != self._expirations_seen:
            self._expirations_seen = self._membership.expirations
            if self._settings.mode != BROADCASTING:
                # Others may have them by now; if none has, what was finished is stored still.
                self._revoke(list(self.readers.values()))
        try:
            create_revisions = await self._create_revisions()
        except RockoonError as error:
            if not error.retriable:
                raise
            log.warning("allocation has to wait for routes: %s", error)
            return False
        mine = self._share(create_revisions)
        self._tell_idle(len(mine), create_revisions)
        self._awaited &= mine
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
        # What is on its way out has to be gone first; then allocation is looked at again.
        gained = sorted(mine - self.readers.keys() - self._revocation.queues)
        return not gained or await self._assign(gained, create_revisions)

    def _share(self, create_revisions: Collection[MessageQueue]) -> set[MessageQueue]:
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

    def _tell_idle(self, queues: int, create_revisions: Collection[MessageQueue]) -> None:
        """Say once that this member has nothing to do."""
        is_idle = not queues and bool(create_revisions) and not self._membership.is_paused
        if is_idle and not self._was_idle:
            log.warning(
                "%s idles: group %s has more members (%d) than queues to share (%d)",
                self._membership.member_id,
                self._group,
                len(self._membership.topics_of),
                len(create_revisions),
            )
        self._was_idle = is_idle

    async def _create_revisions(self) -> dict[MessageQueue, int]:
        """The queues of all topics that exist, each with the revision of its creation.

        Raises:
            TopicNotFound: a topic does not exist, and the consumer does not wait for it.
        """
        create_revisions: dict[MessageQueue, int] = {}
        missing = self._settings.missing_topics
        for topic in self._settings.subscriptions:
            if topic in missing and self._cluster.routes.topic(topic) is None:
                # The routes are followed: no nameserver has to be asked for it.
                continue
            try:
                route = await self._cluster.route(topic)
                if self._incarnations.setdefault(topic, route.incarnation) != route.incarnation:
                    # With the topic, the record that the group reads it was deleted.
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
        # Before asking: when the answer is lost the service may have granted them, and only a
        # release tells that they are not read here.
        self._claims.update(queues)
        self._reset_meanwhile.clear()
        # Before the call: a lease that ends during it may have given the queues to others, so what
        # was granted then is not sure.
        expirations = self._membership.expirations
        try:
            found = await self._store.resolve(queues, self._settings.consume_from, revision)
        except RockoonError as error:
            self._check_undecided(error)
            log.warning("%s cannot be resolved yet: %s", _names(queues), error)
            return False
        is_complete = True
        # Before any pull: the program's set-up for a queue comes before its first message.
        await self._listener.assigned(
            queue for queue, start in found.items() if isinstance(start, Start)
        )
        for queue, start in found.items():
            if queue in self._reset_meanwhile:
                is_complete = False
                continue
            self._claims.discard(queue)
            if isinstance(start, RockoonError):
                self._check_undecided(start)
                self._log_undecided(queue, start)
                is_complete = False
                continue
            self._read(queue, start, create_revisions[queue], expirations)
        return is_complete

    def _check_undecided(self, error: RockoonError) -> None:
        """Raise an error that no retry can repair."""
        if isinstance(error, TopicNotFound) and self._settings.missing_topics.waits:
            # The next rebalance leaves the topic out.
            return
        if isinstance(error, FATAL):
            raise error

    def _log_undecided(self, queue: MessageQueue, error: RockoonError) -> None:
        if not isinstance(error, QueueHeld):
            log.warning("%s cannot be resolved yet: %s", queue, error)
        elif queue not in self._awaited:
            self._awaited.add(queue)
            log.info("%s waits: %s", self._membership.member_id, error)

    def _read(
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
            may_begin=partial(self._membership.valid_since, expirations),
        )
        self._awaited.discard(queue)
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
            on_gone=lambda _: self._changes.note(),
        )
        # What was pulled before is still handed out and committed; the offset service then decides
        # where to go on.
        if out_of_range is not None:
            log.warning("%s", out_of_range)
            reader.failure = out_of_range.to_error()
            self._statistics.out_of_range += 1
            await _wait_finished(reader)
        else:
            log.warning("%s is resolved again: no pull was answered for too long", reader.queue)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.drain_seconds):
                    await _wait_finished(reader)
        # Progress first, since the service decides by it. Not released: the queue stays here.
        await self._revocation.store_last([reader], release=False)
        self.resolve_again([reader])

    def on_reset(self, queues: Collection[MessageQueue]) -> None:
        """Resolve queues again whose progress an operator has reset."""
        if self._settings.mode == BROADCASTING and not kept_by_service(self._store):
            log.warning(
                "a reset of group %s does not reach %s: it keeps its own progress",
                self._group,
                self._membership.member_id,
            )
            return
        readers = [r for queue in queues if (r := self.readers.get(queue))]
        meanwhile = self._claims.intersection(queues)
        self._reset_meanwhile |= meanwhile
        self._statistics.resets += len(readers) + len(meanwhile)
        self.resolve_again(readers)

    def resolve_again(self, readers: Iterable[QueueReader]) -> None:
        """Drop readers without a commit; their queues are resolved at the next rebalance."""
        for reader in readers:
            # At once: what it holds must neither be handed out nor be committed any more.
            reader.process_queue.drop()
            self._void.add(reader)
        self._changes.note()

    def _revoke(self, lost: Collection[QueueReader], claims: Collection[MessageQueue] = ()) -> None:
        """Hand queues over to whoever gets them next, without waiting for it."""
        for reader in lost:
            # From here on it is being revoked: a queue that comes back to this member has to
            # wait until its last calls have ended and its progress is stored.
            del self.readers[reader.queue]
        self._revocation.begin(
            lost,
            claims,
            min(self._settings.drain_seconds, _DRAIN_SHARE * self._membership.handover_seconds_max),
            lambda work: self._start_task(work, "revocation"),
        )

    async def _drop(self, readers: list[QueueReader]) -> None:
        for reader in readers:
            reader.process_queue.drop()
            self._delivery.forget(reader)
            self._store.remove(reader.queue)
            self.readers.pop(reader.queue, None)
        await cancel([reader.task for reader in readers])
        await self._listener.revoked(reader.queue for reader in readers)

    async def stop_pulls(self) -> None:
        self._streams.close()
        await cancel(reader.task for reader in self.readers.values())

    async def store_last(self) -> None:
        """Store all progress and release every queue, bounded; nothing is pulled any more."""
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
    """Cancel tasks, but not the one that asks, and wait until they have ended."""
    running = [
        task
        for task in tasks
        if task is not None and not task.done() and task is not asyncio.current_task()
    ]
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running)
