"""A consumer that calls a listener: the members of a group share the queues of its topics, or each
reads all of them (`broadcasting`).

    async with cluster.push_consumer("billing", {"orders": "*"}, handle) as consumer:
        await consumer.wait()

A message counts as consumed when the handler has returned. Progress of a queue is the smallest
offset that is not consumed, so after a crash some messages come again, and none is left out.

How it hangs together: `Membership` says who is in the group; `_rebalance` works out which queues
are this member's, resolves where they start and makes a `Reading` of each; a reading pulls into its
process queue; the `Delivery` hands messages to the handler; `commit` stores progress; `Departures`
hand over what has become another member's.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from rockoon.allocation import AVERAGE, AllocationStrategy, allocate
from rockoon.backoff import Backoff
from rockoon.broadcasting import join_seconds_max, member_id_of, mode_named, store_of
from rockoon.changes import Changes
from rockoon.connection import RETRY_SECONDS, Cluster
from rockoon.delivery import (
    ConsumeResult,
    Delivery,
    DeliveryStatistics,
    Handler,
    LocalRedelivery,
    Redelivery,
)
from rockoon.departures import Departures
from rockoon.errors import (
    Closed,
    ConsumeDisabled,
    GroupNotFound,
    InvalidArgument,
    InvalidExpression,
    InvalidGroupName,
    InvalidTopicName,
    MemberIdTaken,
    QueueHeld,
    RockoonError,
    StoreCorrupt,
    TopicNotFound,
    WrongCluster,
)
from rockoon.membership import Membership
from rockoon.message import MessageQueue
from rockoon.offset_store import OffsetStore, Persisted
from rockoon.process_queue import FlowLimits, Limit, ProcessQueue
from rockoon.pulling import PullLimits
from rockoon.reading import PullStatistics, Reading
from rockoon.start import ConsumeFrom, Start
from rockoon.subscription import Subscription
from rockoon_proto.v1.nameserver_pb2 import SubscribeRequest
from rockoon_proto.v1.offset_pb2 import BROADCASTING

__all__ = ["ConsumeResult", "ConsumerStatistics", "PushConsumer", "QueueView"]

log = logging.getLogger(__name__)

# What no retry can mend: somebody has to change the cluster, or this consumer's settings.
_FATAL = (
    ConsumeDisabled,
    GroupNotFound,
    InvalidArgument,
    InvalidExpression,
    InvalidGroupName,
    InvalidTopicName,
    MemberIdTaken,
    StoreCorrupt,
    TopicNotFound,
    WrongCluster,
)
# Of the time that the offset service lets a member keep a queue that another one wants: the rest is
# for storing the last progress.
_DRAIN_SHARE = 0.8


@dataclass(slots=True)
class ConsumerStatistics:
    """Counts since the consumer was made."""

    pulls: PullStatistics
    delivery: DeliveryStatistics
    rebalances: int = 0
    """Times the allocation was worked out."""
    queues_gained: int = 0
    queues_lost: int = 0
    """To other members, or because the queue went away."""
    commits: int = 0
    """Offsets stored."""
    commits_failed: int = 0
    """Tries to store that failed in a way that can pass."""
    fenced: int = 0
    """Queues that another member or a reset had taken when progress was to be stored."""
    resets: int = 0
    """Queues resolved again because an operator reset their progress."""
    out_of_range: int = 0
    """Queues resolved again because they no longer had the place to read."""
    gap_total: int = 0
    """Messages that could not be read any more, as Resolve reported them."""
    starts: Counter[str] = field(default_factory=Counter)
    """Queues that reading was begun on, by StartReason."""


@dataclass(frozen=True, slots=True)
class QueueView:
    """One queue of a running consumer, for people and tools."""

    start: Start
    next_offset: int
    """Where the next pull starts."""
    commit_offset: int
    """Smallest offset that is not consumed."""
    max_offset: int | None
    """End of the queue at the last pull, None before it."""
    unfinished: int
    blocked_by: Limit | None
    """Why it is not pulled: flow control."""
    held_back_by: int | None
    """Offset of a message that failed and keeps the commit offset where it is."""
    attempts: int
    """How often that message has failed."""
    failure: RockoonError | None
    """Why the broker cannot be read at the moment."""


class PushConsumer:
    """A member of a consumer group that calls `handler` for every message of its queues.

    A message whose handler raises, or returns `ConsumeResult.LATER` or False, is delivered again
    here after a pause. Until it succeeds the committed offset of its queue stays at it; messages
    behind it go on up to the flow limits, then the queue stops. `queues()` shows which one it is.

    Args:
        cluster: the connection; it closes the consumer when it is closed itself.
        group: the consumer group.
        subscriptions: topic to expression: "*", or tags as in "TagA || TagB". All members of a
            group should have the same.
        handler: async, or plain (then run in a thread); gets a Message.
        mode: "clustering": the members share the queues; "broadcasting": every member reads all,
            and keeps its own progress under its `member_id` (by default the client id), which has
            to be the same at every start.
        offset_store: where progress is kept instead of in the offset service (clustering) or in
            `~/.rockoon_offsets` (broadcasting), for example a `KeptOffsetStore`. With a store of
            your own, clustering members are not kept from reading a queue twice at a hand-over.
        consume_from: where to start on a queue without progress when the group has no policy.
        concurrency: handler calls that may run at once.
        batch_max: when more than 1 the handler gets a list of up to so many messages of one
            queue, and its result is for all of them.
        allocation: how members share the queues; must be the same on all members.
        member_id: unique in the group; by default made of the cluster object's client id.
        redelivery: what becomes of messages that failed.
        pull_limits: size of one pull, and how long a broker may hold it.
        flow_limits: how much one queue may hold.
        commit_seconds: time between commits.
        rebalance_seconds: allocation is looked at so often even when nothing seems to change.
        drain_seconds: how long closing waits for handler calls that run; giving a queue up as well,
            but no longer than the offset service lets it.
        create_group: make the group when it does not exist.
        check_crcs: bodies are compared with the CRCs they were stored with. A damaged message ends
            the consumer with StoreCorrupt once all before it are handled: a reset leads past it.
    """

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        subscriptions: Mapping[str, str],
        handler: Handler,
        *,
        mode: str = "clustering",
        offset_store: OffsetStore | None = None,
        consume_from: ConsumeFrom | str = ConsumeFrom.GROUP,
        concurrency: int = 16,
        batch_max: int = 1,
        allocation: AllocationStrategy = AVERAGE,
        member_id: str | None = None,
        redelivery: Redelivery | None = None,
        pull_limits: PullLimits | None = None,
        flow_limits: FlowLimits | None = None,
        commit_seconds: float = 5.0,
        rebalance_seconds: float = 20.0,
        drain_seconds: float = 10.0,
        create_group: bool = True,
        check_crcs: bool = True,
    ) -> None:
        if not subscriptions:
            raise InvalidArgument(reason="a consumer needs at least one subscription")
        if concurrency < 1 or batch_max < 1:
            raise InvalidArgument(reason="concurrency and batch_max must be 1 or more")
        self.group = group
        self._mode = mode_named(mode)
        self.member_id = member_id_of(cluster, group, self._mode, member_id)
        self.starts: dict[MessageQueue, Start] = {}
        """Where reading of each queue of this member began, and why."""
        self._cluster = cluster
        self._subscriptions = {
            topic: Subscription.parse(topic, subscriptions[topic])
            for topic in sorted(subscriptions)
        }
        self._consume_from = ConsumeFrom.of(consume_from)
        self._allocation = allocation
        self._pull_limits = pull_limits or PullLimits()
        self._flow_limits = flow_limits or FlowLimits()
        self._commit_seconds = commit_seconds
        self._rebalance_seconds = rebalance_seconds
        self._drain_seconds = drain_seconds
        self._create_group = create_group
        self._check_crcs = check_crcs
        self._changes = Changes()
        self._membership = Membership(
            cluster,
            group,
            self.member_id,
            list(self._subscriptions.values()),
            changes=self._changes,
            on_reset=self._on_reset,
            mode=self._mode,
        )
        self._store = offset_store or store_of(cluster, group, self._mode, self.member_id)
        self._delivery = Delivery(
            handler,
            concurrency=concurrency,
            batch_max=batch_max,
            redelivery=redelivery or LocalRedelivery(),
        )
        self.statistics = ConsumerStatistics(PullStatistics(), self._delivery.statistics)
        self._departures = Departures(
            group,
            self._store,
            self._delivery,
            on_persisted=self._count_persisted,
            on_gone=self._changes.note,
        )
        # Written by _rebalance only, which no two tasks run at once.
        self._readings: dict[MessageQueue, Reading] = {}
        # Readings whose place is void: to be dropped without a commit and resolved again.
        self._void: set[Reading] = set()
        # Queues without a reading that the offset service may take for this member's: resolved with
        # an unknown outcome, or void. Released unless they are resolved.
        self._claims: set[MessageQueue] = set()
        # Queues that other members have been asked for.
        self._awaited: set[MessageQueue] = set()
        self._lapses_seen = 0
        self._route_revision = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._ended = asyncio.Event()
        self._failure: BaseException | None = None
        self._failure_was_raised = False
        self._state = "new"

    # Life

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
        if failure is None and self._failure is not None and not self._failure_was_raised:
            raise self._failure

    async def start(self) -> None:
        """Join the group and begin to consume.

        Raises:
            TopicNotFound: a topic of the subscriptions does not exist.
            GroupNotFound: the group does not, and `create_group` is false.
            MemberIdTaken: a live process has the member id.
            StoreLocked, StoreCorrupt, StoreNotWritable: progress cannot be kept where it should be.
            RockoonError: the cluster did not answer for ten seconds.
        """
        if self._state != "new":
            raise Closed(what="a consumer that was started before")
        self._state = "running"
        self._cluster.adopt(self)
        try:
            for topic in self._subscriptions:
                await self._cluster.route(topic)
                reply = await self._cluster.call_nameserver(
                    "Subscribe",
                    SubscribeRequest(
                        group=self.group, topic=topic, create_group=self._create_group
                    ),
                )
                self._route_revision = max(self._route_revision, reply.revision)
            await self._store.load()
            await self._join()
        except BaseException:
            self._state = "closed"
            self._cluster.release(self)
            await self._store.close()
            raise
        tasks = self._cluster.tasks
        self._delivery.start(
            lambda work: tasks.create_task(self._guard(work), name=f"rockoon {self.group} worker")
        )
        for name, work in {
            "heartbeats": self._membership.stay,
            "group": self._membership.watch,
            "routes": self._follow_routes,
            "rebalance": self._keep_balanced,
            "commits": self._keep_committed,
        }.items():
            task = tasks.create_task(self._guard(work), name=f"rockoon {self.group} {name}")
            self._tasks.append(task)

    async def _join(self) -> None:
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        backoff = Backoff()
        while True:
            try:
                await self._membership.beat()
            except RockoonError as error:
                pause = backoff.next_seconds()
                seconds_max = join_seconds_max(error, self._mode, RETRY_SECONDS)
                if loop.time() + pause > began_at + seconds_max:
                    raise
            else:
                return
            await asyncio.sleep(pause)

    async def wait(self) -> None:
        """Wait until the consumer is closed. Cancelling it is safe.

        Raises:
            ConsumeDisabled: the group was paused.
            GroupNotFound, TopicNotFound: somebody deleted what it reads.
            MemberIdTaken: another process joined under the member id.
            Exception: what a bug in the consumer raised.
        """
        await self._ended.wait()
        if self._failure is not None:
            self._failure_was_raised = True
            raise self._failure

    async def close(self) -> None:
        """Stop pulling, finish the handler calls that run, store progress, leave the group.

        Takes at most `drain_seconds` and, when the offset service does not answer, some ten seconds
        for the last commit.
        """
        if self._state != "running":
            return
        self._state = "closed"
        self._cluster.release(self)
        try:
            await _cancel([*self._tasks, *(r.task for r in self._readings.values())])
            if not await self._delivery.drain(self._drain_seconds):
                log.warning(
                    "handlers of group %s still ran after %.1f s: their messages come again",
                    self.group,
                    self._drain_seconds,
                )
            await self._departures.store_last(self._readings.values(), self._claims)
            await self._departures.wait()
            await self._membership.leave()
        finally:
            for reading in self._readings.values():
                reading.process_queue.drop()
            self._readings.clear()
            self._ended.set()
            await self._store.close()

    async def _guard(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run a task of the consumer; what it dies of is told to the consumer's owner."""
        try:
            await work()
        except Exception as failure:
            if not isinstance(failure, _FATAL):
                log.exception("a consumer of group %s fails in a way no one foresaw", self.group)
            self._fail(failure)

    def _fail(self, failure: BaseException) -> None:
        if self._failure is None:
            log.error("the consumer of group %s stops: %s", self.group, failure)
            self._failure = failure
        self._delivery.stop()
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
        for reading in self._readings.values():
            if reading.task is not None and reading.task is not asyncio.current_task():
                reading.task.cancel()
        self._ended.set()

    # What it is doing

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that are this member's now."""
        return sorted(self._readings)

    def queues(self) -> dict[MessageQueue, QueueView]:
        """Return how each queue of this member stands."""
        return {queue: _view(reading) for queue, reading in sorted(self._readings.items())}

    @property
    def members(self) -> list[str]:
        """Ids of the group's members, as last heard."""
        return sorted(self._membership.topics_of)

    # Which queues

    async def _follow_routes(self) -> None:
        changes = self._cluster.routes_changed
        seen = changes.count
        while True:
            seen = await changes.wait(seen)
            self._changes.note()

    async def _keep_balanced(self) -> None:
        backoff = Backoff(first_seconds=0.1)
        while True:
            seen = self._changes.count
            if await self._rebalance():
                backoff.reset()
                pause = self._rebalance_seconds
            else:
                pause = backoff.next_seconds()
            try:
                async with asyncio.timeout(pause):
                    await self._changes.wait(seen)
            except TimeoutError:
                continue

    async def _rebalance(self) -> bool:
        """Bring the readings in line with the group, the routes and the resets.

        Returns:
            False when a queue could not be resolved yet, or routes are not known.
        """
        self.statistics.rebalances += 1
        void, self._void = self._void, set()
        current = [r for r in void if self._readings.get(r.queue) is r]
        self._claims.update(reading.queue for reading in current)
        await self._give_up(current)
        if self._membership.lapses != self._lapses_seen:
            self._lapses_seen = self._membership.lapses
            if self._mode != BROADCASTING:
                # Others may have them by now; if none has, what was finished is stored still.
                self._let_go(list(self._readings.values()))
        try:
            births = await self._births()
        except RockoonError as error:
            if not error.retriable:
                raise
            log.warning("allocation has to wait for routes: %s", error)
            return False
        mine = self._share(births)
        self._awaited &= mine
        lost = [
            reading
            for queue, reading in self._readings.items()
            if queue not in mine or births[queue] != reading.birth
        ]
        if lost:
            log.info("%s gives up %s", self.member_id, _names(r.queue for r in lost))
            self.statistics.queues_lost += len(lost)
        claims = self._claims - mine
        self._claims -= claims
        if lost or claims:
            self._let_go(lost, claims)
        # What is on its way out has to be gone first; then allocation is looked at again.
        gained = sorted(mine - self._readings.keys() - self._departures.queues)
        return not gained or await self._take_up(gained, births)

    def _share(self, births: Collection[MessageQueue]) -> set[MessageQueue]:
        if self._mode == BROADCASTING:
            return set(births)
        return allocate(self._allocation, self.member_id, self._membership.topics_of, births)

    async def _births(self) -> dict[MessageQueue, int]:
        births: dict[MessageQueue, int] = {}
        for topic in self._subscriptions:
            route = await self._cluster.route(topic)
            if route.readable:
                births.update(route.births)
        return births

    async def _take_up(
        self, queues: list[MessageQueue], births: Mapping[MessageQueue, int]
    ) -> bool:
        routes = self._cluster.routes
        revision = max(self._route_revision, *(routes.topic_revision(q.topic) for q in queues))
        self._claims.update(queues)
        try:
            found = await self._store.resolve(queues, self._consume_from, revision)
        except RockoonError as error:
            self._check_undecided(error)
            log.warning("%s cannot be resolved yet: %s", _names(queues), error)
            return False
        is_complete = True
        for queue, start in found.items():
            self._claims.discard(queue)
            if isinstance(start, RockoonError):
                self._check_undecided(start)
                self._log_undecided(queue, start)
                is_complete = False
                continue
            self._read(queue, start, births[queue])
        return is_complete

    def _check_undecided(self, error: RockoonError) -> None:
        """Raise what no retry can mend."""
        if isinstance(error, _FATAL):
            raise error

    def _log_undecided(self, queue: MessageQueue, error: RockoonError) -> None:
        if not isinstance(error, QueueHeld):
            log.warning("%s cannot be resolved yet: %s", queue, error)
        elif queue not in self._awaited:
            self._awaited.add(queue)
            log.info("%s waits: %s", self.member_id, error)

    def _read(self, queue: MessageQueue, start: Start, birth: int) -> None:
        log.log(
            logging.WARNING if start.gap else logging.INFO,
            "%s reads %s from %d (%s): %s",
            self.member_id,
            queue,
            start.offset,
            start.reason,
            start.explanation,
        )
        reading = Reading(
            queue=queue,
            subscription=self._subscriptions[queue.topic],
            start=start,
            birth=birth,
            process_queue=ProcessQueue(start.offset, self._flow_limits),
        )
        self._awaited.discard(queue)
        self.starts[queue] = start
        self.statistics.starts[start.reason] += 1
        self.statistics.queues_gained += 1
        self.statistics.gap_total += start.gap
        self._readings[queue] = reading
        reading.task = self._cluster.tasks.create_task(
            self._guard(lambda: self._pull(reading)), name=f"rockoon {self.group} {queue}"
        )

    async def _pull(self, reading: Reading) -> None:
        lost_place = await reading.pull_into(
            self._cluster,
            self._pull_limits,
            self.statistics.pulls,
            on_messages=self._delivery.offer,
            on_gone=lambda _: self._changes.note(),
            check_crcs=self._check_crcs,
        )
        # What was pulled before is still handed out and committed; the offset service then decides
        # where to go on.
        log.warning("%s", lost_place)
        reading.failure = lost_place.to_error()
        self.statistics.out_of_range += 1
        seen = reading.finished.count
        while reading.process_queue.unfinished:
            seen = await reading.finished.wait(seen)
        await self._departures.store_last([reading], release=False)
        self._resolve_again([reading])

    def _on_reset(self, queues: Collection[MessageQueue]) -> None:
        if self._mode == BROADCASTING:
            log.warning(
                "a reset of group %s does not reach %s: it keeps its own progress",
                self.group,
                self.member_id,
            )
            return
        readings = [r for queue in queues if (r := self._readings.get(queue))]
        self.statistics.resets += len(readings)
        self._resolve_again(readings)

    def _resolve_again(self, readings: Iterable[Reading]) -> None:
        for reading in readings:
            # At once: what it holds must neither be handed out nor be committed any more.
            reading.process_queue.drop()
            self._void.add(reading)
        self._changes.note()

    def _let_go(self, lost: Collection[Reading], claims: Collection[MessageQueue] = ()) -> None:
        """Hand queues over to whoever gets them next, without waiting for it."""
        for reading in lost:
            del self._readings[reading.queue]
        tasks = self._cluster.tasks
        self._departures.begin(
            lost,
            claims,
            min(self._drain_seconds, _DRAIN_SHARE * self._membership.handover_seconds_max),
            lambda work: tasks.create_task(
                self._guard(work), name=f"rockoon {self.group} lets queues go"
            ),
        )

    async def _give_up(self, readings: list[Reading]) -> None:
        for reading in readings:
            reading.process_queue.drop()
            self._delivery.forget(reading)
            self._store.remove(reading.queue)
            self._readings.pop(reading.queue, None)
        await _cancel([reading.task for reading in readings])

    # Progress

    async def _keep_committed(self) -> None:
        while True:
            await asyncio.sleep(self._commit_seconds)
            await self.commit()

    async def commit(self) -> None:
        """Store the progress of all queues now; done every few seconds anyway.

        What cannot be stored now is stored by a later call.
        """
        for reading in self._readings.values():
            self._update(reading)
        self._note_persisted(await self._store.persist_all())

    def _update(self, reading: Reading) -> None:
        if not reading.process_queue.dropped:
            self._store.update(reading.queue, reading.process_queue.commit_offset)

    def _count_persisted(self, persisted: Persisted) -> None:
        self.statistics.commits += len(persisted.stored)
        self.statistics.commits_failed += len(persisted.kept)
        self.statistics.fenced += len(persisted.lost)

    def _note_persisted(self, persisted: Persisted) -> None:
        self._count_persisted(persisted)
        if persisted.kept:
            queue, error = next(iter(persisted.kept.items()))
            log.warning(
                "progress of %d queues is not stored yet, of %s because: %s",
                len(persisted.kept),
                queue,
                error,
            )
        if persisted.lost:
            for queue, error in persisted.lost.items():
                log.warning("%s is resolved again: %s", queue, error)
            self._resolve_again(r for q in persisted.lost if (r := self._readings.get(q)))


def _view(reading: Reading) -> QueueView:
    held = reading.process_queue
    commit_offset = held.commit_offset
    attempts = reading.attempts.get(commit_offset, 0)
    return QueueView(
        start=reading.start,
        next_offset=held.next_offset,
        commit_offset=commit_offset,
        max_offset=reading.max_offset,
        unfinished=held.unfinished,
        blocked_by=reading.blocked_by,
        held_back_by=commit_offset if attempts else None,
        attempts=attempts,
        failure=reading.failure,
    )


def _names(queues: Iterable[MessageQueue]) -> str:
    return ", ".join(str(queue) for queue in sorted(queues))


async def _cancel(tasks: Iterable[asyncio.Task[None] | None]) -> None:
    running = [
        task
        for task in tasks
        if task is not None and not task.done() and task is not asyncio.current_task()
    ]
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running)
