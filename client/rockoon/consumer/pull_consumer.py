"""Pull consumer: returns messages on request. The caller chooses queues, offsets and pace."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal, TypedDict

from rockoon.bounds import check_group_text
from rockoon.consumer.pull import PullLimits, PullOutOfRange
from rockoon.consumer.pull_loop import (
    Assigned,
    Prefetcher,
    PullConsumerStatistics,
    PullRules,
    Ready,
    end_tasks,
)
from rockoon.errors import (
    ConsumeDisabled,
    Fenced,
    InvalidArgument,
    NotReady,
    OffsetServiceUnavailable,
    QueueNotFound,
    RockoonError,
    TopicNotFound,
)
from rockoon.message import Batch, Message
from rockoon.net.connection import Connection
from rockoon.net.forks import ClosedOnExit, closed
from rockoon.net.retried import Answer, retried
from rockoon.offsets.offset_lookup import OffsetLookup
from rockoon.offsets.offset_store import Persisted, RemoteOffsetStore
from rockoon.offsets.start import ConsumeFrom, Start, StartName
from rockoon.subscription import ALL, MissingTopics, MissingTopicsRule, Subscription
from rockoon_core.clock import Backoff
from rockoon_core.errors import NotEnoughReplicas, NotLeader
from rockoon_core.message_queue import MessageQueue
from rockoon_core.repeated_lines import limited
from rockoon_proto.v1.nameserver_pb2 import SubscribeRequest

log = limited(logging.getLogger(__name__))

OnOutOfRange = Literal["earliest", "latest", "raise"]

# Errors of a call while the offset service restarts.
_RETRIED_ERRORS = (OffsetServiceUnavailable, NotReady, NotLeader, NotEnoughReplicas)
# Larger than the defaults of `PullLimits`, so that more messages share the cost of a reply.
PULL_LIMITS = PullLimits(messages_max=8192, bytes_max=2 << 20)


class ReadOptions(TypedDict, total=False):
    """Keyword arguments of `Cluster.pull_consumer` without those of group and start position."""

    on_out_of_range: OnOutOfRange
    limits: PullLimits | None
    prefetch_batches: int
    check_crcs: bool
    missing_topics: MissingTopicsRule


@dataclass(slots=True)
class _FollowedTopic:
    subscription: Subscription
    task: asyncio.Task[None] | None = field(default=None)


class PullConsumer(ClosedOnExit):
    """Reads queues at the caller's pace, with a prefetch on each queue.

    Not for several concurrent tasks: one task polls, seeks and commits.

    Args:
        cluster: the connection, which closes the consumer when it is closed.
        group: consumer group whose progress is the start position and is committed; None: without
            progress. Members are not coordinated: the caller decides which process reads a queue.
        consume_from: start position on a queue without progress: a `ConsumeFrom`, "first", "last",
            or "group" (the group's policy; "first" without a group).
        on_out_of_range: without a group, the behaviour if a queue no longer has the offset to read:
            continue at its "earliest" or "latest" message, or "raise" from the next poll. With a
            group, the offset service decides by the group's policy.
        limits: size of one pull, and how long the broker may hold it.
        prefetch_batches: number of batches to prefetch per queue; 1 or more.
        create_group: create the group if it does not exist.
        check_crcs: compare a body with its stored CRC when it is read. A damaged message raises
            StoreCorrupt with queue and offset; `seek` skips it.
        missing_topics: if a topic of `assign_all` is deleted, "wait": polls wait for it, and read
            it as a new topic when it is created again; "end": polls raise TopicNotFound. Queues
            that `assign` named are never waited for.

    Raises:
        InvalidArgument: an argument is out of its bounds.
    """

    def __init__(
        self,
        cluster: Connection,
        group: str | None = None,
        *,
        consume_from: ConsumeFrom | StartName = ConsumeFrom.GROUP,
        on_out_of_range: OnOutOfRange = "raise",
        limits: PullLimits | None = None,
        prefetch_batches: int = 2,
        create_group: bool = True,
        check_crcs: bool = True,
        missing_topics: MissingTopicsRule = "wait",
    ) -> None:
        if on_out_of_range not in ("earliest", "latest", "raise"):
            raise InvalidArgument(reason=f"on_out_of_range is {on_out_of_range!r}")
        if prefetch_batches < 1:
            raise InvalidArgument(reason=f"prefetch_batches is {prefetch_batches}, not 1 or more")
        self.group = None if group is None else check_group_text(group)
        self.starts: dict[MessageQueue, Start] = {}
        """Start position of each queue, with the reason."""
        self.statistics = PullConsumerStatistics()
        self._cluster = cluster
        self._offsets = OffsetLookup(cluster)
        self._store = RemoteOffsetStore(cluster, group) if group else None
        self._consume_from = ConsumeFrom.of(consume_from)
        self._on_out_of_range = on_out_of_range
        self._create_group = create_group
        self._prefetcher = Prefetcher(
            cluster,
            PullRules(limits or PULL_LIMITS, check_crcs, group or ""),
            prefetch_batches,
            statistics=self.statistics,
            relocate=self._relocate,
            waits_for=self._waits_for,
        )
        reader = f"the pull consumer of group {group}" if group else "the pull consumer"
        self._missing = MissingTopics(missing_topics, reader)
        self._assigned: dict[MessageQueue, Assigned] = {}
        self._following: dict[str, _FollowedTopic] = {}
        self._follow_failure: RockoonError | None = None
        self._subscribed: dict[str, int] = {}
        self._closed = False
        self._refused_in_child: str | None = None
        cluster.adopt(self)

    async def close(self) -> None:
        """Stop fetching. Does not commit: only the caller knows which messages it has handled."""
        if self._closed:
            return
        self._closed = True
        self._cluster.release(self)
        self._prefetcher.close()
        tasks = [following.task for following in self._following.values()]
        tasks += [assigned.task for assigned in self._assigned.values()]
        self._following.clear()
        # All in one call, because closing can be cancelled while it waits for them.
        await end_tasks(tasks)
        await self._prefetcher.end(self._assigned.values())
        self._assigned.clear()

    # Assignment

    @property
    def assignment(self) -> list[MessageQueue]:
        return sorted(self._assigned)

    async def assign(self, queues: Iterable[MessageQueue], expression: str = ALL) -> None:
        """Read exactly these queues. Queues that are already assigned keep their position.

        Args:
            queues: message queues of any topics.
            expression: tags, or an `Sql`; see `Subscription.parse`.

        Raises:
            TopicNotFound, QueueNotFound: a queue does not exist.
            ConsumeDisabled: the group is paused.
            InvalidExpression: the expression is not valid.
            RockoonError: the start position was not found within `retry_seconds`.
        """
        for topic in list(self._following):
            following = self._following.pop(topic)
            await end_tasks([following.task])
        await self._replace(list(dict.fromkeys(queues)), expression)

    async def assign_all(self, topic: str, expression: str = ALL) -> None:
        """Read all queues of a topic, and queues that are added later, from their beginning. If the
        topic is deleted, `missing_topics` applies.

        Raises:
            TopicNotFound: the topic does not exist.
            RockoonError: see `assign`.
        """
        route = await self._cluster.route(topic)
        await self.assign(route.queues, expression)
        following = _FollowedTopic(Subscription.parse(topic, expression))
        self._following[topic] = following
        following.task = self._cluster.tasks.create_task(
            self._follow(topic, expression), name=f"rockoon follow {topic}"
        )

    async def _replace(self, queues: list[MessageQueue], expression: str) -> None:
        self._check_open()
        subscriptions = {
            topic: Subscription.parse(topic, expression) for topic in {q.topic for q in queues}
        }
        wanted = set(queues)
        # After a pause all queues are resolved again, which fails until the group is resumed.
        is_paused = self._store is not None and self._store.is_paused
        gone = [
            q for q, held in self._assigned.items() if q not in wanted or held.fenced or is_paused
        ]
        await self._drop(gone)
        added = [queue for queue in queues if queue not in self._assigned]
        create_revisions: dict[MessageQueue, int] = {}
        for topic in {queue.topic for queue in added}:
            create_revisions.update((await self._cluster.route(topic)).create_revisions)
        starts = await self._start(added)
        for queue, start in starts.items():
            self.starts[queue] = start
            self._assigned[queue] = self._prefetcher.start(
                queue, subscriptions[queue.topic], start.offset, create_revisions.get(queue, 0)
            )

    async def _drop(self, queues: Iterable[MessageQueue]) -> None:
        dropped = [a for queue in queues if (a := self._assigned.pop(queue, None))]
        await self._prefetcher.end(dropped)
        for assigned in dropped:
            self.starts.pop(assigned.queue, None)
            if self._store:
                self._store.remove(assigned.queue)

    async def _start(self, queues: list[MessageQueue]) -> dict[MessageQueue, Start]:
        if not queues:
            return {}
        if self._store is None:
            chosen = self._consume_from
            if chosen == ConsumeFrom.GROUP:
                chosen = ConsumeFrom.FIRST
            return await self._retried(lambda: self._offsets.choose(queues, chosen))
        revision = await self._subscribe({queue.topic for queue in queues})
        return await self._retried(lambda: self._resolve(queues, revision))

    async def _subscribe(self, topics: set[str]) -> int:
        for topic in topics - set(self._subscribed):
            reply = await self._cluster.call_nameserver(
                "Subscribe",
                SubscribeRequest(
                    group=self.group or "", topic=topic, create_group=self._create_group
                ),
            )
            self._subscribed[topic] = reply.revision
        seen = [self._cluster.routes.topic_revision(topic) for topic in topics]
        return max(*seen, *self._subscribed.values())

    async def _resolve(
        self, queues: list[MessageQueue], revision: int
    ) -> dict[MessageQueue, Start]:
        assert self._store is not None
        found = await self._store.resolve(queues, self._consume_from, revision)
        for answer in found.values():
            if isinstance(answer, RockoonError):
                raise answer
        return {queue: start for queue, start in found.items() if isinstance(start, Start)}

    # Position

    def position(self, queue: MessageQueue) -> int:
        """Return the offset of the next message of a queue that the caller gets."""
        return self._assigned_of(queue).position

    def lag(self, queue: MessageQueue) -> int | None:
        """Return the number of messages from `position` to the end of the queue at the last pull;
        None before the first pull."""
        assigned = self._assigned_of(queue)
        if assigned.max_offset is None:
            return None
        return max(assigned.max_offset - assigned.position, 0)

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue at an offset; prefetched messages are discarded."""
        if offset < 0:
            raise InvalidArgument(reason=f"{offset} is not an offset")
        old = self._assigned_of(queue)
        await self._prefetcher.end([old])
        self._assigned[queue] = self._prefetcher.start(
            queue, old.subscription, offset, old.create_revision
        )

    async def seek_to_beginning(self, *queues: MessageQueue) -> None:
        """Continue at the oldest message of the given queues; of all queues by default."""
        await self._seek_all(queues, ConsumeFrom.FIRST)

    async def seek_to_end(self, *queues: MessageQueue) -> None:
        """Continue after the newest message of the given queues; of all queues by default."""
        await self._seek_all(queues, ConsumeFrom.LAST)

    async def seek_to_time(self, timestamp_ms: int, *queues: MessageQueue) -> None:
        """Continue at the first message stored at or after a time, in epoch milliseconds."""
        await self._seek_all(queues, ConsumeFrom.timestamp(timestamp_ms))

    async def _seek_all(self, queues: Iterable[MessageQueue], to: ConsumeFrom) -> None:
        chosen = list(queues) or self.assignment
        for queue in chosen:
            self._assigned_of(queue)
        for queue, start in (await self._retried(lambda: self._offsets.choose(chosen, to))).items():
            await self.seek(queue, start.offset)

    def _assigned_of(self, queue: MessageQueue) -> Assigned:
        assigned = self._assigned.get(queue)
        if assigned is None:
            raise InvalidArgument(reason=f"{queue} is not assigned to this consumer")
        return assigned

    # Reading

    async def poll_batch(self, timeout: float | None = None) -> Batch | None:
        """Return the next batch of one queue, in the order of arrival.

        Args:
            timeout: seconds to wait; None: without limit, 0: do not wait.

        Raises:
            InvalidOffset, OffsetBeyondEnd: a queue no longer has the offset to read, and
                `on_out_of_range` is "raise"; each poll raises it until a seek.
            TopicNotFound, QueueNotFound, TopicNotReadable: a queue is no longer readable.
            StoreCorrupt: the next message of a queue is damaged; each poll raises it until a seek.
            ConsumeDisabled: at the last commit the group was paused; assign again.
            Closed: the consumer was closed.

        Returns:
            The batch; None after the timeout. Cancelling it is safe: the batch stays available.
        """
        ready = await self._next_ready(timeout)
        if ready is None:
            return None
        # No await from here on: a cancelled caller would lose the batch.
        batch = ready.pulled.rest(ready.index)
        assert batch is not None
        self._prefetcher.hand_out(ready, len(batch))
        return batch

    async def poll(self, max_messages: int = 1024, timeout: float | None = None) -> list[Message]:
        """Return available messages of one or several queues, at least one unless the timeout has
        passed. For arguments and errors see `poll_batch`."""
        if max_messages < 1:
            raise InvalidArgument(reason=f"max_messages is {max_messages}")
        messages: list[Message] = []
        while len(messages) < max_messages:
            ready = await self._next_ready(timeout) if not messages else self._first_ready()
            if ready is None:
                break
            batch = ready.pulled.batch
            assert batch is not None
            stop = min(len(batch), ready.index + max_messages - len(messages))
            found = batch[ready.index : stop]
            self._prefetcher.hand_out(ready, len(found))
            messages += found
        return messages

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Yield messages without end; for errors see `poll_batch`. An error of a queue is raised
        after the current batch."""
        while True:
            ready = await self._next_ready(None)
            assert ready is not None
            assert ready.pulled.batch is not None
            batch, count = ready.pulled.batch, len(ready.pulled.batch)
            # Between two messages the caller may seek, poll, or assign other queues.
            while ready.index < count and self._first_ready() is ready:
                message = Message(batch, ready.index)
                self._prefetcher.hand_out(ready, 1)
                yield message
                self._check_usable()

    def _first_ready(self) -> Ready | None:
        return self._prefetcher.ready[0] if self._prefetcher.ready else None

    async def _next_ready(self, timeout: float | None) -> Ready | None:
        self._check_failures()
        if self._prefetcher.ready or timeout == 0:
            return self._first_ready()
        try:
            async with asyncio.timeout(timeout):
                while not self._prefetcher.ready:
                    await self._prefetcher.arrived.wait(self._prefetcher.arrived.count)
                    self._check_failures()
        except TimeoutError:
            return None
        return self._first_ready()

    def refuse_in_child(self, reason: str) -> None:
        """Refuse calls in a forked child; see `Forkable.refuse_in_child`."""
        self._closed, self._refused_in_child = True, reason

    def _check_open(self) -> None:
        if self._closed:
            raise closed(self._refused_in_child, "the consumer")

    def _check_failures(self) -> None:
        self._check_usable()
        for assigned in self._assigned.values():
            # Prefetched messages first: a seek past the failure would discard them.
            if assigned.failure is not None and not self._prefetcher.has_ready(assigned):
                raise assigned.failure

    def _check_usable(self) -> None:
        self._check_open()
        if self._follow_failure is not None:
            raise self._follow_failure
        if self._store is not None and self._store.is_paused:
            raise ConsumeDisabled(group=self.group)

    # Progress

    async def commit(self, queue: MessageQueue | None = None, offset: int | None = None) -> None:
        """Store the positions of all queues, or progress of one queue.

        Args:
            queue: the only queue to commit.
            offset: its next offset to consume; its position by default.

        Raises:
            InvalidArgument: the consumer has no group, or the queue is not assigned.
            Fenced: a queue was reset or another reader got it: assign it again.
            OffsetServiceUnavailable: no reply within `retry_seconds`; progress may be stored.
            RockoonError: progress was not stored.
        """
        if self._store is None:
            raise InvalidArgument(reason="a consumer without a group has no progress to commit")
        if queue is not None:
            assigned = self._assigned_of(queue)
            chosen = assigned.position if offset is None else offset
            store = self._store
            try:
                await self._retried(lambda: store.commit(queue, chosen), _RETRIED_ERRORS)
            except Fenced:
                assigned.fenced = True
                raise
            return
        for assigned in self._assigned.values():
            self._store.update(assigned.queue, assigned.position)
        persisted = await self._retried(self._persist_all, _RETRIED_ERRORS)
        for lost in persisted.lost:
            self._assigned_of(lost).fenced = True
        for failure in (*persisted.lost.values(), *persisted.kept.values()):
            raise failure

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the committed offset of the group; None if it has none."""
        if self._store is None:
            raise InvalidArgument(reason="a consumer without a group has no progress")
        store = self._store
        return await self._retried(lambda: store.read_store(queue), _RETRIED_ERRORS)

    async def _persist_all(self) -> Persisted:
        assert self._store is not None
        persisted = await self._store.persist_all()
        for failure in persisted.kept.values():
            if isinstance(failure, _RETRIED_ERRORS):
                raise failure
        return persisted

    # Changes of queues and routes

    def _waits_for(self, queue: MessageQueue, error: RockoonError) -> bool:
        """True if a queue is not readable because its topic was deleted and `_follow` waits for the
        topic."""
        is_gone = isinstance(error, TopicNotFound | QueueNotFound)
        return is_gone and self._missing.waits and queue.topic in self._following

    async def _relocate(self, assigned: Assigned, found: PullOutOfRange) -> None:
        """Find a new position for a queue that no longer has the offset to read."""
        self.statistics.out_of_range += 1
        self.statistics.gap_total += found.gap
        queue = assigned.queue
        route = self._cluster.routes.topic(queue.topic)
        create_revision = route.create_revisions.get(queue) if route is not None else None
        if create_revision != assigned.create_revision and queue.topic in self._following:
            # A queue of the same name in a topic that was created again: `_follow` assigns it.
            raise QueueNotFound(topic=queue.topic, queue=queue.queue_id, broker=queue.broker)
        if self._store is not None:
            revision = await self._subscribe({queue.topic})
            start = (await self._resolve([queue], revision))[queue]
        elif self._on_out_of_range == "raise":
            raise found.to_error()
        else:
            earliest = self._on_out_of_range == "earliest"
            offset = found.min_offset if earliest else found.max_offset
            reason = "BELOW_MIN" if found.below_min else "ABOVE_MAX"
            start = Start(queue, offset, reason, str(found), found.gap)
        log.warning("%s; reading continues at %d (%s)", found, start.offset, start.reason)
        self.starts[queue] = start
        assigned.next_offset = assigned.position = start.offset

    async def _follow(self, topic: str, expression: str) -> None:
        """Assign queues that are added to a topic."""
        backoff = Backoff()
        changes = self._cluster.routes_changed
        seen = -1
        while True:
            seen = await changes.wait(seen)
            try:
                await self._update_queues(topic, expression)
                backoff.reset()
            except RockoonError as error:
                is_gone = isinstance(error, TopicNotFound | QueueNotFound) and self._missing.waits
                if not (error.retriable or is_gone):
                    self._follow_failure = error
                    self._prefetcher.arrived.notify()
                    return
                log.warning("new queues of %s not assigned, retrying: %s", topic, error)
                seen = -1
                await asyncio.sleep(backoff.next_seconds())

    async def _update_queues(self, topic: str, expression: str) -> None:
        route = self._cluster.routes.topic(topic)
        if route is None and topic in self._missing:
            return
        try:
            route = route or await self._cluster.route(topic)
        except TopicNotFound:
            if not self._missing.waits:
                raise
            self._missing.add(topic, self._following)
            self._subscribed.pop(topic, None)
            await self._drop([queue for queue in self._assigned if queue.topic == topic])
            return
        self._missing.discard(topic)
        mine = {queue: a for queue, a in self._assigned.items() if queue.topic == topic}
        recreated = [
            q
            for q, a in mine.items()
            if a.create_revision not in (0, route.create_revisions.get(q))
        ]
        if recreated:
            # The subscription of the group was deleted with the topic.
            self._subscribed.pop(topic, None)
        await self._drop(recreated)
        added = [queue for queue in route.queues if queue not in self._assigned]
        if self._store is None:
            starts = await self._offsets.choose(added, ConsumeFrom.FIRST)
        else:
            starts = await self._start(added)
        subscription = Subscription.parse(topic, expression)
        for queue, start in starts.items():
            self.starts[queue] = start
            self._assigned[queue] = self._prefetcher.start(
                queue, subscription, start.offset, route.create_revisions[queue]
            )

    async def _retried(
        self,
        attempt: Callable[[], Awaitable[Answer]],
        passing: type[RockoonError] | tuple[type[RockoonError], ...] = RockoonError,
    ) -> Answer:
        return await retried(attempt, self._cluster.retry_seconds, passing)
