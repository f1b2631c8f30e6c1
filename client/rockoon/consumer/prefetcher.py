"""Prefetcher: pulls queues for a pull consumer; a task and a bounded number of batches each."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass

from rockoon.consumer.pull import Pulled, PullOutOfRange
from rockoon.consumer.pull_loop import PullLoop, PullRules
from rockoon.consumer.pull_stream import PullStreams
from rockoon.errors import RockoonError
from rockoon.net.connection import Connection
from rockoon.subscription import Subscription
from rockoon_core.changes import Changes
from rockoon_core.clock import Backoff
from rockoon_core.message_queue import MessageQueue
from rockoon_core.repeated_lines import limited

log = limited(logging.getLogger(__name__))


@dataclass(slots=True)
class PullConsumerStatistics:
    """Counters of a pull consumer."""

    messages: int = 0
    """Messages returned to the caller."""
    pulls: int = 0
    pulls_empty: int = 0
    pulls_failed: int = 0
    """Pulls that failed; they are retried."""
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
        rules: rules for pulling.
        prefetch_batches: number of batches to prefetch per queue.
        statistics: counters.
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
        self.arrived.note()

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
                self.arrived.note()

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
    """Cancel tasks and wait until they have ended."""
    running = [task for task in tasks if task is not None and not task.done()]
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running)
