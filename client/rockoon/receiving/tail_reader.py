"""Tail reader: follows the ends of message queues that receivers wait for.

Each queue is followed on the pull stream of its broker, without a filter and for all groups. New
messages are read from the broker once and kept in memory. A queue is not followed while receivers
are far behind its end, and some time after the last receiver has left.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from rockoon.consumer.pull import PullLimits, PullOutOfRange
from rockoon.consumer.pull_loop import PullCounts, PullLoop, PullRules
from rockoon.consumer.pull_stream import PullStreams
from rockoon.errors import RockoonError
from rockoon.net.connection import Connection
from rockoon.net.routes import TopicRoute
from rockoon.receiving.kept_batches import KeptBatches
from rockoon.subscription import ALL, Subscription
from rockoon_core.changes import Changes
from rockoon_core.message_queue import MessageQueue, queue_to_wire
from rockoon_core.repeated_lines import limited
from rockoon_proto.v1.in_flight_pb2 import QueueReach
from rockoon_proto.v1.offset_pb2 import QueueRef

log = limited(logging.getLogger(__name__))

# Larger than each queue offset: a broker replies with the ends of the queue.
BEYOND_EVERY_END = 1 << 62
# If no receiver waits for new messages, a tail is read at most this far past the acquired offset.
AHEAD_MESSAGES = 2048
LIMITS = PullLimits(messages_max=1024, bytes_max=1 << 20, wait_ms=15_000)


@dataclass(slots=True, eq=False)
class TrackedQueue:
    """One message queue: its known ends, and the state of its reader."""

    queue: MessageQueue
    create_revision: int
    ref: QueueRef
    min_offset: int = 0
    """Offset of the oldest message; 0 if unknown."""
    end_offset: int | None = None
    """One past the newest known message; None before the broker's first reply."""
    position: int = 0
    """Offset of the next pull."""
    acquired_to: int = 0
    """One past the largest offset that this process acquired, for any group."""
    failure: RockoonError | None = None
    """Error of the last pull; None if the queue is readable."""
    task: asyncio.Task[None] | None = None
    known_end: QueueReach | None = None
    """Known ends in the last acquire call."""

    @property
    def is_readable(self) -> bool:
        return self.end_offset is not None and self.failure is None

    @property
    def has_room(self) -> bool:
        """True if the tail may be read further although no receiver waits for new messages."""
        return (
            self.end_offset is None
            or self.failure is not None
            or self.position - self.acquired_to < AHEAD_MESSAGES
        )


@dataclass(slots=True, eq=False)
class TrackedTopic:
    """The message queues of one topic."""

    topic: str
    changed: Changes = field(default_factory=Changes)
    """Wakes the readers of the queues, which then decide whether to pull."""
    queues: dict[MessageQueue, TrackedQueue] = field(default_factory=dict)
    grown: int = 0
    """Number of times that a queue got new messages or became readable."""
    trackers: int = 0
    """Number of receive queues that wait for new messages."""
    users: int = 0
    """Number of receive queues with receivers."""
    unused_since: float = 0.0
    route: TopicRoute | None = None
    queues_added_at: float = 0.0
    """Loop time at which queues were added last."""

    @property
    def has_priorities(self) -> bool:
        """True if queues with a higher id have priority."""
        return self.route is not None and self.route.has_priorities

    @property
    def is_ready(self) -> bool:
        """True if the end of each queue is known, or the queue is known not to be readable."""
        return all(
            each.end_offset is not None or each.failure is not None for each in self.queues.values()
        )


class TailReader:
    """Reads the tails of all message queues that receivers of a connection use.

    Args:
        kept: stores the batches that were read.
        on_grown: called with a topic when one of its queues has new messages or becomes readable.
    """

    def __init__(
        self, cluster: Connection, kept: KeptBatches, on_grown: Callable[[str], None]
    ) -> None:
        self._cluster = cluster
        self._kept = kept
        self._on_grown = on_grown
        self._streams = PullStreams(cluster)
        self._counts = PullCounts()
        self._topics: dict[str, TrackedTopic] = {}

    def of(self, topic: str) -> TrackedTopic:
        """Return the tails of a topic, updated from the current routes."""
        found = self._topics.get(topic)
        if found is None:
            now = asyncio.get_running_loop().time()
            found = self._topics[topic] = TrackedTopic(topic, unused_since=now)
        route = self._cluster.routes.topic(topic)
        if route is not found.route:
            self._update_queues(found, route)
        return found

    def find(self, queue: MessageQueue) -> TrackedQueue | None:
        found = self._topics.get(queue.topic)
        return found.queues.get(queue) if found is not None else None

    @property
    def topics(self) -> Collection[str]:
        """Names of topics with receivers now or recently."""
        return self._topics.keys()

    def add_users(self, topic: TrackedTopic, count: int) -> None:
        """Add to the number of receive queues with receivers; `count` may be negative."""
        topic.users += count
        topic.unused_since = asyncio.get_running_loop().time()

    def add_trackers(self, topic: TrackedTopic, count: int) -> None:
        """Add to the number of receive queues that wait for new messages; may be negative."""
        topic.trackers += count
        if count > 0:
            topic.changed.notify()

    def record_acquired(self, tail: TrackedQueue, end_offset: int) -> None:
        """Messages before `end_offset` were acquired by this process."""
        if end_offset > tail.acquired_to:
            tail.acquired_to = end_offset
            self._topics[tail.queue.topic].changed.notify()

    def record_end(self, tail: TrackedQueue, end_offset: int) -> None:
        """A pull has returned the end of the queue."""
        if tail.end_offset is not None and end_offset > tail.end_offset:
            tail.end_offset = end_offset
            self._notify_grown(self._topics[tail.queue.topic])

    def record_failure(self, tail: TrackedQueue, error: RockoonError) -> None:
        """A pull has failed: no messages of the queue are acquired until a pull succeeds."""
        tail.failure = error
        self._topics[tail.queue.topic].changed.notify()

    def drop_unused(self, unused_before: float) -> None:
        """Stop reading topics that have had no receivers since a loop time."""
        for topic in list(self._topics.values()):
            if not topic.users and topic.unused_since < unused_before:
                del self._topics[topic.topic]
                self._end(topic.queues.values())

    def close(self) -> None:
        for topic in self._topics.values():
            self._end(topic.queues.values())
        self._topics.clear()
        self._streams.close()

    def _update_queues(self, topic: TrackedTopic, route: TopicRoute | None) -> None:
        topic.route = route
        revisions = route.create_revisions if route is not None else {}
        gone = [
            each
            for queue, each in topic.queues.items()
            if revisions.get(queue) != each.create_revision
        ]
        self._end(gone)
        for each in gone:
            del topic.queues[each.queue]
        for queue, revision in revisions.items():
            if queue not in topic.queues:
                topic.queues_added_at = asyncio.get_running_loop().time()
                tail = TrackedQueue(queue, revision, queue_to_wire(queue))
                topic.queues[queue] = tail
                tail.task = self._cluster.tasks.create_task(
                    self._guard(topic, tail), name=f"rockoon tail {queue}"
                )

    def _end(self, tails: Iterable[TrackedQueue]) -> None:
        for tail in tails:
            self._kept.drop_queue(tail.queue)
            if tail.task is not None:
                tail.task.cancel()

    async def _guard(self, topic: TrackedTopic, tail: TrackedQueue) -> None:
        try:
            await self._follow(topic, tail)
        except Exception as error:
            log.exception("unexpected error while reading the tail of %s (bug)", tail.queue)
            tail.failure = RockoonError(f"reading the tail of {tail.queue} failed (bug): {error!r}")
            topic.changed.notify()

    async def _follow(self, topic: TrackedTopic, tail: TrackedQueue) -> None:
        with PullLoop(
            cluster=self._cluster,
            streams=self._streams,
            queue=tail.queue,
            subscription=Subscription.parse(topic.topic, ALL),
            rules=PullRules(LIMITS),
            counts=self._counts,
        ) as pulls:
            while True:
                seen = topic.changed.count
                while not (topic.trackers or tail.has_room):
                    seen = await topic.changed.wait(seen)
                try:
                    if await self._pull(tail, pulls):
                        self._notify_grown(topic)
                except RockoonError as error:
                    # The next reply may come from another broker process with other messages.
                    self._kept.drop_queue(tail.queue)
                    tail.failure = error
                    topic.changed.notify()
                    self._notify_grown(topic)
                    await pulls.failed(error)

    def _notify_grown(self, topic: TrackedTopic) -> None:
        topic.grown += 1
        self._on_grown(topic.topic)

    async def _pull(self, tail: TrackedQueue, pulls: PullLoop) -> bool:
        """Pull once; return True if more messages may be available than before. Raises
        RockoonError: the queue cannot be read."""
        is_new = not tail.is_readable
        position = tail.position = max(tail.position, tail.acquired_to)
        answer = await pulls.pull_once(BEYOND_EVERY_END if tail.end_offset is None else position)
        pulls.answered()
        tail.failure = None
        former_end = tail.end_offset
        if isinstance(answer, PullOutOfRange):
            tail.min_offset, tail.end_offset = answer.min_offset, answer.max_offset
            tail.position = tail.end_offset
            if former_end is not None and not answer.below_min:
                # The log lost its end: these offsets are assigned to other messages.
                tail.acquired_to = min(tail.acquired_to, tail.end_offset)
                self._kept.drop_queue(tail.queue)
        else:
            now = asyncio.get_running_loop().time()
            if answer.batch is not None:
                self._kept.put(tail.queue, position, answer, now)
                pulls.brought_messages()
            tail.position = answer.next_offset
            tail.end_offset = max(answer.max_offset, answer.next_offset)
            if answer.batch is None:
                await pulls.brought_nothing(answer.next_offset)
        return is_new or tail.end_offset != former_end
