"""Pull loop: pulls of one queue, with pauses, counters and log lines, for all consumers.

A pull uses the broker's pull stream, or a call if the broker has no pull streams. The module pauses
after failures and empty replies, and logs when a queue cannot be pulled and when it can be pulled
again. The reader interprets replies and failures: it calls `pull_once` and then reports the result
(`answered`, `brought_messages`, `brought_nothing` or `failed`).

The prefetcher pulls queues for a pull consumer; each has a task and a bounded number of batches.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Self

from rockoon.consumer.pull import (
    EmptyReplies,
    Pulled,
    PullLimits,
    PullOutOfRange,
    interpret,
    messages_of,
    pull,
    pull_start_ns,
    report_pulled,
    request_of,
)
from rockoon.consumer.pull_stream import NoPullStreams, PullStreams, QueueSubscription
from rockoon.errors import RockoonError
from rockoon.net.connection import Connection
from rockoon.net.large_replies import PullReplyFields, Reply, refusal_of
from rockoon.subscription import Subscription
from rockoon_core.changes import Changes
from rockoon_core.clock import Backoff
from rockoon_core.message_queue import MessageQueue
from rockoon_core.repeated_lines import limited
from rockoon_proto.v1.broker_pb2 import FOUND

log = limited(logging.getLogger(__name__))

# Maximum number of messages of a reply that `accept` gets in the receive callback. `pull_once`
# returns larger replies: a reply that a full reader rejects is decoded twice, and the callback
# blocks the connection.
ACCEPTED_MAX = 32
LENGTH_BYTES = 4


@dataclass(slots=True)
class PullCounts:
    """Counters of a pull loop."""

    pulls: int = 0
    pulls_empty: int = 0
    pulls_failed: int = 0
    """Pulls that failed; they are retried."""


@dataclass(frozen=True, slots=True)
class PullRules:
    """Rules for pulling a queue."""

    limits: PullLimits = field(default_factory=PullLimits)
    check_crcs: bool = True
    """Reject messages whose body does not match its CRC."""
    group: str = ""
    """Consumer group of the reader; empty without a group."""


class PullLoop:
    """The pulls of one queue.

    Args:
        subscription: filter of the messages.
        accept: called in the receive callback with messages that arrive while `pull_once` waits;
            its exceptions are raised by `pull_once`. True: the reader has the messages, and
            `pull_once` waits for later ones. False: `pull_once` returns them.
        on_accepted: called after accepted messages were counted. `pull_once` raises its exceptions.

    Attributes:
        heard_at: loop time of the broker's last reply; initially the time of construction.
    """

    def __init__(
        self,
        cluster: Connection,
        streams: PullStreams,
        queue: MessageQueue,
        subscription: Subscription,
        rules: PullRules,
        counts: PullCounts,
        accept: Callable[[Pulled], bool] | None = None,
        on_accepted: Callable[[], None] = lambda: None,
    ) -> None:
        self._cluster = cluster
        self._streams = streams
        self._queue = queue
        self._subscription = subscription
        self._rules = rules
        self._counts = counts
        # Hooks measure each pull, so with hooks `pull_once` returns all messages.
        self._accept = accept if cluster.hooks is None else None
        self._on_accepted = on_accepted
        self._loop = asyncio.get_running_loop()
        self._backoff = Backoff()
        self._empty = EmptyReplies(rules.limits.wait_ms)
        self._failure: type[RockoonError] | None = None
        self._offset = 0
        self._started_at = 0.0
        self.heard_at = self._loop.time()
        # None before the first pull, and if the broker has no pull streams.
        self._streamed: QueueSubscription | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._streamed is not None:
            self._streamed.end()

    async def pull_once(self, offset: int) -> Pulled | PullOutOfRange:
        """Pull once; for errors see `pull`."""
        self._counts.pulls += 1
        self._offset, self._started_at = offset, self._loop.time()
        start_ns = pull_start_ns(self._cluster)
        rules = self._rules
        try:
            reply = await self._reply(offset)
        except NoPullStreams:
            self._streamed = None
            answer = await pull(
                self._cluster,
                self._queue,
                # Not `offset`: `accept` may have accepted messages during this call.
                self._offset,
                self._subscription,
                rules.limits,
                check_crcs=rules.check_crcs,
                group=rules.group,
            )
            self.heard_at = self._loop.time()
            return answer
        streamed = self._streamed
        assert streamed is not None
        # Not valid until the reply is decoded: after an error the queue is subscribed again.
        streamed.position = -1
        found = self._interpreted(reply)
        if isinstance(found, Pulled):
            streamed.position = found.next_offset
        report_pulled(self._cluster, found, rules.group, start_ns)
        return found

    def _interpreted(self, reply: Reply) -> Pulled | PullOutOfRange:
        check_crcs = self._rules.check_crcs
        return interpret(
            self._queue, self._offset, reply, self._subscription, check_crcs=check_crcs
        )

    def _on_reply(self, reply: Reply) -> bool:
        """Pass messages to `accept`; return False for replies that `pull_once` must return."""
        streamed, accept = self._streamed, self._accept
        if (
            streamed is None
            or accept is None
            or reply.status != FOUND
            or reply.ended
            or len(reply.record_lengths) > ACCEPTED_MAX * LENGTH_BYTES
            or not (isinstance(reply, PullReplyFields) or refusal_of(reply) is None)
        ):
            return False
        try:
            found = messages_of(
                self._queue, self._offset, reply, self._subscription, self._rules.check_crcs
            )
        except Exception:  # noqa: BLE001 - `pull_once` decodes the reply again and raises the error
            return False
        if found.batch is None:
            return False
        try:
            if not accept(found):
                return False
            self._counts.pulls += 1
            self._offset = streamed.position = found.next_offset
            if self._failure is not None:
                self.answered()
            self._on_accepted()
        except Exception as failure:
            log.exception("messages of %s not accepted, the reader gets the error", self._queue)
            # The reply is not left to `pull_once`, because the reader may have stored its messages.
            streamed.fail(failure)
        return True

    async def _reply(self, offset: int) -> Reply:
        """Wait for the next reply on the stream. Raises NoPullStreams if the broker has none."""
        streamed = self._streamed
        if streamed is None or streamed.is_over or streamed.position != offset:
            if streamed is not None:
                streamed.end()
            request = request_of(
                self._cluster,
                self._queue,
                offset,
                self._subscription,
                self._rules.limits,
                self._rules.group,
            )
            streamed = self._streamed = self._streams.subscribe(self._queue.broker, request)
            if streamed is None:
                raise NoPullStreams
            # Streams need no pauses after empty replies.
            self._empty.reset()
            if self._accept is not None:
                streamed.on_reply = self._on_reply
        try:
            return await streamed.answer()
        finally:
            self.heard_at = max(self.heard_at, streamed.heard_at)

    def log_failure(self, error: RockoonError) -> None:
        """Log why the queue cannot be pulled, once per class of error."""
        if self._failure is not type(error):
            log.warning("%s cannot be pulled, retrying: %s", self._queue, error)
        self._failure = type(error)

    async def failed(self, error: RockoonError) -> None:
        """A pull failed with a retriable error: count and log it, then pause, longer each time."""
        self._counts.pulls_failed += 1
        self.log_failure(error)
        await self._cluster.pause_for_broker(self._queue.broker, self._backoff.next_seconds())

    def answered(self) -> None:
        self._backoff.reset()
        if self._failure is not None:
            self._failure = None
            log.info("%s can be pulled again", self._queue)

    def brought_messages(self) -> None:
        self._empty.reset()

    async def brought_nothing(self, next_offset: int) -> None:
        """The reply had no messages: pause if the broker did not hold the pull."""
        self._counts.pulls_empty += 1
        if self._streamed is not None:
            # Streams have no early empty replies.
            return
        waited_seconds = self._loop.time() - self._started_at
        moved = next_offset != self._offset
        await asyncio.sleep(self._empty.pause_seconds(waited_seconds, moved=moved))


@dataclass(slots=True)
class PullConsumerStatistics(PullCounts):
    """Counters of a pull consumer."""

    messages: int = 0
    """Messages returned to the caller."""
    out_of_range: int = 0
    gap_total: int = 0
    """Messages that retention deleted before they were read."""


@dataclass(slots=True, eq=False)
class Assigned:
    """An assigned queue. A seek replaces the object, so late results of the old one are ignored."""

    queue: MessageQueue
    subscription: Subscription
    position: int
    """Offset of the next message that the caller gets. Written by polls only."""
    next_offset: int
    """Offset of the next pull. Written by the task of the queue only."""
    create_revision: int
    """Revision at which the queue was created; 0 if unknown."""
    room: asyncio.Semaphore
    """One permit for each batch that may still be prefetched."""
    task: asyncio.Task[None] | None = None
    failure: RockoonError | None = None
    fenced: bool = False
    """The queue was reset or another reader got it: the next assignment resolves it again."""
    max_offset: int | None = None


@dataclass(slots=True)
class Ready:
    """A batch that waits for the caller; `index` messages were handed out."""

    assigned: Assigned
    pulled: Pulled
    index: int = 0


class Prefetcher:
    """Pulls batches for a pull consumer in advance.

    Args:
        cluster: the connection; its task group has the tasks.
        prefetch_batches: number of batches to prefetch per queue.
        relocate: sets a new `next_offset` for a queue that no longer has the offset to read.
        waits_for: true if a queue is pulled again after an error that is not retriable.

    Attributes:
        ready: batches in the order of arrival.
        arrived: changes when a batch has arrived or a queue has failed.
    """

    def __init__(
        self,
        cluster: Connection,
        rules: PullRules,
        prefetch_batches: int,
        *,
        statistics: PullConsumerStatistics,
        relocate: Callable[[Assigned, PullOutOfRange], Awaitable[None]],
        waits_for: Callable[[MessageQueue, RockoonError], bool],
    ) -> None:
        self.ready: deque[Ready] = deque()
        self.arrived = Changes()
        self._cluster = cluster
        self._streams = PullStreams(cluster)
        self._rules = rules
        self._prefetch_batches = prefetch_batches
        self._statistics = statistics
        self._relocate = relocate
        self._waits_for = waits_for

    def start(
        self, queue: MessageQueue, subscription: Subscription, offset: int, create_revision: int
    ) -> Assigned:
        """Start to prefetch a queue from an offset on."""
        room = asyncio.Semaphore(self._prefetch_batches)
        assigned = Assigned(queue, subscription, offset, offset, create_revision, room)
        assigned.task = self._cluster.tasks.create_task(
            self._fetch(assigned), name=f"rockoon pull {queue}"
        )
        return assigned

    async def end(self, ended: Collection[Assigned]) -> None:
        """Stop prefetching queues, and discard their batches."""
        await end_tasks(assigned.task for assigned in ended)
        self.ready = deque(ready for ready in self.ready if ready.assigned not in ended)

    def has_ready(self, assigned: Assigned) -> bool:
        """True if messages of a queue wait for the caller."""
        return any(ready.assigned is assigned for ready in self.ready)

    def hand_out(self, ready: Ready, count: int) -> None:
        """Record that the caller gets `count` messages of the first ready batch."""
        assert self.ready[0] is ready
        ready.index += count
        self._statistics.messages += count
        assigned, pulled = ready.assigned, ready.pulled
        if ready.index < len(pulled.offsets):
            assigned.position = pulled.offsets[ready.index]
            return
        self.ready.popleft()
        # Not the last offset + 1: messages after it that the filter excludes count as read.
        assigned.position = pulled.next_offset
        assigned.room.release()

    def close(self) -> None:
        """Stop pulling, and wake the caller. `end` must follow."""
        self._streams.close()
        self.arrived.notify()

    async def _fetch(self, assigned: Assigned) -> None:
        queue = assigned.queue
        with PullLoop(
            cluster=self._cluster,
            streams=self._streams,
            queue=queue,
            subscription=assigned.subscription,
            rules=self._rules,
            counts=self._statistics,
        ) as pulls:
            while assigned.failure is None:
                await assigned.room.acquire()
                try:
                    pulled = await self._fetch_one(assigned, pulls)
                    self.ready.append(Ready(assigned, pulled))
                except RockoonError as error:
                    assigned.failure = error
                except Exception as error:  # a bug: `poll` raises it, the connection stays open
                    log.exception("unexpected error while reading %s (bug)", queue)
                    assigned.failure = RockoonError(f"reading {queue} failed (bug): {error!r}")
                self.arrived.notify()

    async def _fetch_one(self, assigned: Assigned, pulls: PullLoop) -> Pulled:
        """Pull until a reply has a message."""
        relocating = Backoff()
        while True:
            try:
                answer = await pulls.pull_once(assigned.next_offset)
                if isinstance(answer, PullOutOfRange):
                    await self._relocate(assigned, answer)
                    await asyncio.sleep(relocating.next_seconds())
                    continue
            except RockoonError as error:
                if not (error.retriable or self._waits_for(assigned.queue, error)):
                    raise
                await pulls.failed(error)
                continue
            pulls.answered()
            assigned.max_offset = answer.max_offset
            assigned.next_offset = answer.next_offset
            if answer.batch is not None:
                pulls.brought_messages()
                return answer
            # Messages that the filter excludes count as read.
            if not self.has_ready(assigned):
                assigned.position = answer.next_offset
            await pulls.brought_nothing(answer.next_offset)


async def end_tasks(tasks: Iterable[asyncio.Task[None] | None]) -> None:
    running = [task for task in tasks if task is not None and not task.done()]
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running)
