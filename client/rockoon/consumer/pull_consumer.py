"""A consumer that is asked for messages: the caller chooses queues, places and the pace."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from rockoon.consumer.missing_topics import MissingTopics, MissingTopicsRule
from rockoon.consumer.prefetcher import (
    Assigned,
    Prefetcher,
    PullConsumerStatistics,
    Ready,
    end_tasks,
)
from rockoon.consumer.pull import OutOfRange, PullLimits
from rockoon.consumer.pull_loop import PullRules
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
from rockoon.net.closed_on_exit import ClosedOnExit
from rockoon.net.connection import Connection
from rockoon.net.forks import closed
from rockoon.net.retried import Answer, retried
from rockoon.offsets.offset_lookup import OffsetLookup
from rockoon.offsets.offset_store import Persisted, RemoteOffsetStore
from rockoon.offsets.start import ConsumeFrom, Start, StartName
from rockoon.subscription import ALL, Subscription
from rockoon.text_checks import check_group_text
from rockoon_core.backoff import Backoff
from rockoon_core.errors import NotEnoughReplicas, NotLeader
from rockoon_core.message_queue import MessageQueue
from rockoon_core.repeated_lines import limited
from rockoon_proto.v1.nameserver_pb2 import SubscribeRequest

log = limited(logging.getLogger(__name__))

OnOutOfRange = Literal["earliest", "latest", "raise"]

# What the offset service, or the way to it, says while it is restarted.
_AWAY = (OffsetServiceUnavailable, NotReady, NotLeader, NotEnoughReplicas)
# Of a pull; an answer of it is received where it will lie (`ClientStream.first_bytes_max`).
PULL_LIMITS = PullLimits(messages_max=8192, bytes_max=2 << 20)


@dataclass(slots=True)
class _Following:
    subscription: Subscription
    task: asyncio.Task[None] | None = field(default=None)


class PullConsumer(ClosedOnExit):
    """Reads queues at the caller's pace, one pull ahead of it on every queue.

    Not for several tasks at once: polls, seeks and commits are the caller's, in its order.

    Args:
        cluster: the connection; it closes the consumer when it is closed itself.
        group: whose progress reading goes on from and is committed to; None keeps no progress.
            Members are not coordinated here: who reads what is the caller's decision.
        consume_from: where to start on a queue without progress: a `ConsumeFrom`, "first", "last",
            or "group" (the group's policy; "first" without a group).
        on_out_of_range: without a group, what to do when the place to read has left the queue:
            go on at its "earliest" or "latest" message, or "raise" from the next poll. With a
            group the offset service decides, by the group's policy.
        limits: size of one pull, and how long the broker may hold it.
        prefetch_batches: batches fetched ahead of the caller, for each queue; 1 or more.
        create_group: make the group when it does not exist.
        check_crcs: bodies are compared with the CRCs they were stored with when they are asked for;
            a damaged one is a StoreCorrupt with queue and offset. `seek` leads past it.
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
        """Where reading of each queue began, and why."""
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
        self._following: dict[str, _Following] = {}
        self._follow_failure: RockoonError | None = None
        self._subscribed: dict[str, int] = {}
        self._closed = False
        self._refused_in_child: str | None = None
        cluster.adopt(self)

    async def close(self) -> None:
        """Stop fetching. Commits nothing: only the caller knows what it has finished."""
        if self._closed:
            return
        self._closed = True
        self._cluster.release(self)
        self._prefetcher.close()
        tasks = [following.task for following in self._following.values()]
        tasks += [assigned.task for assigned in self._assigned.values()]
        self._following.clear()
        # All at once: closing can be cut short while it waits for them.
        await end_tasks(tasks)
        await self._prefetcher.end(self._assigned.values())
        self._assigned.clear()

    # What is read

    @property
    def assignment(self) -> list[MessageQueue]:
        return sorted(self._assigned)

    async def assign(self, queues: Iterable[MessageQueue], expression: str = ALL) -> None:
        """Read exactly these queues; those that were read before go on where they are.

        Args:
            queues: message queues of any topics.
            expression: tags wanted of them, or an `Sql`, as `Subscription.parse` has it.

        Raises:
            TopicNotFound, QueueNotFound: there is no such queue.
            ConsumeDisabled: the group is paused.
            InvalidExpression: the expression says nothing.
            RockoonError: where to start could not be found out within `retry_seconds`.
        """
        for topic in list(self._following):
            following = self._following.pop(topic)
            await end_tasks([following.task])
        await self._replace(list(dict.fromkeys(queues)), expression)

    async def assign_all(self, topic: str, expression: str = ALL) -> None:
        """Read all queues of a topic, also those it gets later (from their beginning). If the topic
        is deleted, `missing_topics` decides.

        Raises:
            TopicNotFound: there is no such topic.
            RockoonError: as `assign`.
        """
        route = await self._cluster.route(topic)
        await self.assign(route.queues, expression)
        following = _Following(Subscription.parse(topic, expression))
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
        # Who was told of a pause asks again, and is refused until the group is resumed.
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
            self._assigned[queue] = self._prefetcher.begin(
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

    # Where it is read

    def position(self, queue: MessageQueue) -> int:
        """Return the offset of the next message that the caller gets from a queue."""
        return self._of(queue).position

    def lag(self, queue: MessageQueue) -> int | None:
        """Return how many messages the queue had beyond `position` at its last pull; None before
        the first one."""
        assigned = self._of(queue)
        if assigned.max_offset is None:
            return None
        return max(assigned.max_offset - assigned.position, 0)

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at an offset; what was fetched ahead is thrown away."""
        if offset < 0:
            raise InvalidArgument(reason=f"{offset} is not an offset")
        old = self._of(queue)
        await self._prefetcher.end([old])
        self._assigned[queue] = self._prefetcher.begin(
            queue, old.subscription, offset, old.create_revision
        )

    async def seek_to_beginning(self, *queues: MessageQueue) -> None:
        """Go on at the oldest message of these queues, or of all."""
        await self._seek_all(queues, ConsumeFrom.FIRST)

    async def seek_to_end(self, *queues: MessageQueue) -> None:
        """Go on behind the newest message of these queues, or of all."""
        await self._seek_all(queues, ConsumeFrom.LAST)

    async def seek_to_time(self, timestamp_ms: int, *queues: MessageQueue) -> None:
        """Go on at the first message stored at or after a time, epoch milliseconds."""
        await self._seek_all(queues, ConsumeFrom.timestamp(timestamp_ms))

    async def _seek_all(self, queues: Iterable[MessageQueue], to: ConsumeFrom) -> None:
        chosen = list(queues) or self.assignment
        for queue in chosen:
            self._of(queue)
        for queue, start in (await self._retried(lambda: self._offsets.choose(chosen, to))).items():
            await self.seek(queue, start.offset)

    def _of(self, queue: MessageQueue) -> Assigned:
        assigned = self._assigned.get(queue)
        if assigned is None:
            raise InvalidArgument(reason=f"{queue} is not assigned to this consumer")
        return assigned

    # Reading

    async def poll_batch(self, timeout: float | None = None) -> Batch | None:
        """Return the next batch of one queue; queues take turns.

        Args:
            timeout: seconds to wait for one, None for ever, 0 not at all.

        Raises:
            InvalidOffset, OffsetBeyondEnd: a queue no longer has the place to read, and
                `on_out_of_range` is "raise"; every poll says so until a seek.
            TopicNotFound, QueueNotFound, TopicNotReadable: a queue cannot be read any more.
            StoreCorrupt: the next message of a queue is damaged; every poll says so until a seek.
            ConsumeDisabled: the last commit was told that the group is paused; assign again.
            Closed: the consumer was closed.

        Returns:
            The batch, None when the time is over. Cancelling it is safe: nothing is taken.
        """
        ready = await self._next_ready(timeout)
        if ready is None:
            return None
        # Nothing waits from here on: cancelled in between, the caller would have lost the batch.
        batch = ready.pulled.rest(ready.index)
        assert batch is not None
        self._prefetcher.hand_out(ready, len(batch))
        return batch

    async def poll(self, max_messages: int = 1024, timeout: float | None = None) -> list[Message]:
        """Return messages that are there, of one queue or several: at least one unless the time is
        over; arguments and errors as `poll_batch`."""
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
        """Every message from here on, one by one, for ever; errors as `poll_batch`, those of a
        queue when the batch at hand is used up."""
        while True:
            ready = await self._next_ready(None)
            assert ready is not None
            assert ready.pulled.batch is not None
            batch, count = ready.pulled.batch, len(ready.pulled.batch)
            # Between two messages the caller may seek, poll, or give the queue back.
            while ready.index < count and self._first_ready() is ready:
                message = Message(batch, ready.index)
                self._prefetcher.hand_out(ready, 1)
                yield message
                self._check_going_on()

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
        """As `Forkable.refuse_in_child`."""
        self._closed, self._refused_in_child = True, reason

    def _check_open(self) -> None:
        if self._closed:
            raise closed(self._refused_in_child, "the consumer")

    def _check_failures(self) -> None:
        self._check_going_on()
        for assigned in self._assigned.values():
            # What was fetched before comes first: a seek past the failure throws it away.
            if assigned.failure is not None and not self._prefetcher.has_ready(assigned):
                raise assigned.failure

    def _check_going_on(self) -> None:
        self._check_open()
        if self._follow_failure is not None:
            raise self._follow_failure
        if self._store is not None and self._store.is_paused:
            raise ConsumeDisabled(group=self.group)

    # Progress

    async def commit(self, queue: MessageQueue | None = None, offset: int | None = None) -> None:
        """Store progress: of all queues up to what was handed out, or of one queue.

        Args:
            queue: the only one to commit.
            offset: its next offset to consume; by default its position.

        Raises:
            InvalidArgument: the consumer has no group, or the queue is not assigned.
            Fenced: another reader or a reset took a queue: assign it again.
            OffsetServiceUnavailable: it was away for `retry_seconds`; it may have stored it.
            RockoonError: it was not stored.
        """
        if self._store is None:
            raise InvalidArgument(reason="a consumer without a group has no progress to commit")
        if queue is not None:
            assigned = self._of(queue)
            chosen = assigned.position if offset is None else offset
            store = self._store
            try:
                await self._retried(lambda: store.commit(queue, chosen), _AWAY)
            except Fenced:
                assigned.fenced = True
                raise
            return
        for assigned in self._assigned.values():
            self._store.update(assigned.queue, assigned.position)
        persisted = await self._retried(self._persist_all, _AWAY)
        for lost in persisted.lost:
            self._of(lost).fenced = True
        for failure in (*persisted.lost.values(), *persisted.kept.values()):
            raise failure

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's stored offset, None when there is none."""
        if self._store is None:
            raise InvalidArgument(reason="a consumer without a group has no progress")
        store = self._store
        return await self._retried(lambda: store.read_store(queue), _AWAY)

    async def _persist_all(self) -> Persisted:
        assert self._store is not None
        persisted = await self._store.persist_all()
        for failure in persisted.kept.values():
            if isinstance(failure, _AWAY):
                raise failure
        return persisted

    # Whatever happens to the queues

    def _waits_for(self, queue: MessageQueue, error: RockoonError) -> bool:
        """Whether a queue that cannot be read is left to `_follow`: its topic was deleted."""
        is_gone = isinstance(error, TopicNotFound | QueueNotFound)
        return is_gone and self._missing.waits and queue.topic in self._following

    async def _relocate(self, assigned: Assigned, found: OutOfRange) -> None:
        """Find another position for a queue that no longer has the one that was read."""
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
        log.warning("%s; reading goes on at %d (%s)", found, start.offset, start.reason)
        self.starts[queue] = start
        assigned.next_offset = assigned.position = start.offset

    async def _follow(self, topic: str, expression: str) -> None:
        """Assign queues as the topic gets them."""
        backoff = Backoff()
        changes = self._cluster.routes_changed
        seen = -1
        while True:
            seen = await changes.wait(seen)
            try:
                await self._catch_up(topic, expression)
                backoff.reset()
            except RockoonError as error:
                is_gone = isinstance(error, TopicNotFound | QueueNotFound) and self._missing.waits
                if not (error.retriable or is_gone):
                    self._follow_failure = error
                    self._prefetcher.arrived.note()
                    return
                log.warning("new queues of %s cannot be read yet: %s", topic, error)
                seen = -1
                await asyncio.sleep(backoff.next_seconds())

    async def _catch_up(self, topic: str, expression: str) -> None:
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
            # With the topic, the record that the group reads it was deleted.
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
            self._assigned[queue] = self._prefetcher.begin(
                queue, subscription, start.offset, route.create_revisions[queue]
            )

    async def _retried(
        self,
        attempt: Callable[[], Awaitable[Answer]],
        passing: type[RockoonError] | tuple[type[RockoonError], ...] = RockoonError,
    ) -> Answer:
        return await retried(attempt, self._cluster.retry_seconds, passing)
