"""Queues pulled ahead of a caller that polls: one task and a bounded number of batches for each."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass

from rockoon.consumer.pull import OutOfRange, Pulled
from rockoon.consumer.pull_loop import PullLoop, PullRules
from rockoon.consumer.pull_stream import PullStreams
from rockoon.errors import RockoonError
from rockoon.net.connection import Connection
from rockoon.subscription import Subscription
from rockoon_core.backoff import Backoff
from rockoon_core.changes import Changes
from rockoon_core.message_queue import MessageQueue
from rockoon_core.repeated_lines import limited

log = limited(logging.getLogger(__name__))


@dataclass(slots=True)
class PullConsumerStatistics:
    """Counts since the consumer was made."""

    messages: int = 0
    """Handed to the caller."""
    pulls: int = 0
    pulls_empty: int = 0
    pulls_failed: int = 0
    """Pulls that met an error that can pass."""
    out_of_range: int = 0
    gap_total: int = 0
    """Messages that retention deleted before they were read."""


@dataclass(slots=True, eq=False)
class Assigned:
    """A queue being read. A seek replaces it, so what the former reading still brings is void."""

    queue: MessageQueue
    subscription: Subscription
    position: int
    """Offset of the next message the caller gets. Written by polls only."""
    next_offset: int
    """Where the next pull starts. Written by the queue's task only."""
    create_revision: int
    """Revision at which the queue was created; 0 when not known."""
    room: asyncio.Semaphore
    """One permit for each batch that may still be fetched ahead."""
    task: asyncio.Task[None] | None = None
    failure: RockoonError | None = None
    fenced: bool = False
    """Somebody else took it or it was reset: the next assignment resolves it again."""
    max_offset: int | None = None


@dataclass(slots=True)
class Ready:
    """A batch that waits for the caller, and how much of it was handed out by `poll`."""

    assigned: Assigned
    pulled: Pulled
    index: int = 0


class Prefetcher:
    """The fetching half of a pull consumer.

    Args:
        cluster: the connection, whose task group the tasks are in.
        rules: how to pull.
        prefetch_batches: batches fetched ahead of the caller, for each queue.
        statistics: counted in.
        relocate: finds another place for a queue that no longer has its own; sets `next_offset`.
        waits_for: whether a queue is asked for again after an error that is not retriable.

    Attributes:
        ready: batches in order of arrival: a queue comes round again only after it was fetched
            again.
        arrived: noted when there is one more, or a queue has failed.
    """

    def __init__(
        self,
        cluster: Connection,
        rules: PullRules,
        prefetch_batches: int,
        *,
        statistics: PullConsumerStatistics,
        relocate: Callable[[Assigned, OutOfRange], Awaitable[None]],
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

    def begin(
        self, queue: MessageQueue, subscription: Subscription, offset: int, create_revision: int
    ) -> Assigned:
        """Fetch a queue from an offset on."""
        room = asyncio.Semaphore(self._prefetch_batches)
        assigned = Assigned(queue, subscription, offset, offset, create_revision, room)
        assigned.task = self._cluster.tasks.create_task(
            self._fetch(assigned), name=f"rockoon pull {queue}"
        )
        return assigned

    async def end(self, ended: Collection[Assigned]) -> None:
        """Fetch these no more, and throw away what was fetched ahead of them."""
        await end_tasks(assigned.task for assigned in ended)
        self.ready = deque(ready for ready in self.ready if ready.assigned not in ended)

    def has_ready(self, assigned: Assigned) -> bool:
        """Whether messages of a queue wait for the caller."""
        return any(ready.assigned is assigned for ready in self.ready)

    def hand_out(self, ready: Ready, count: int) -> None:
        """The caller is given so many messages of a batch, which is the first that is ready."""
        assert self.ready[0] is ready
        ready.index += count
        self._statistics.messages += count
        assigned, pulled = ready.assigned, ready.pulled
        if ready.index < len(pulled.offsets):
            assigned.position = pulled.offsets[ready.index]
            return
        self.ready.popleft()
        # Not the last offset + 1: what a filter left out behind it is read as well.
        assigned.position = pulled.next_offset
        assigned.room.release()

    def close(self) -> None:
        """Fetch nothing more, and wake who waits; before the last queues are ended."""
        self._streams.close()
        self.arrived.note()

    async def _fetch(self, assigned: Assigned) -> None:
        where = (self._cluster, self._streams, assigned.queue, assigned.subscription)
        with PullLoop(*where, self._rules, self._statistics) as pulls:
            await self._fetch_with(pulls, assigned)

    async def _fetch_with(self, pulls: PullLoop, assigned: Assigned) -> None:
        while True:
            await assigned.room.acquire()
            try:
                pulled = await self._fetch_one(assigned, pulls)
            except RockoonError as error:
                assigned.failure = error
                self.arrived.note()
                return
            except Exception as error:  # a bug: reported by poll, not by the cluster's end
                log.exception("reading %s failed", assigned.queue)
                assigned.failure = RockoonError(f"reading {assigned.queue} failed: {error!r}")
                self.arrived.note()
                return
            self.ready.append(Ready(assigned, pulled))
            self.arrived.note()

    async def _fetch_one(self, assigned: Assigned, pulls: PullLoop) -> Pulled:
        """Pull until there is a message."""
        relocating = Backoff()
        while True:
            try:
                answer = await pulls.ask(assigned.next_offset)
                if isinstance(answer, OutOfRange):
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
            # What a filter left out need not be asked for again.
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
