"""One message queue being read by a push consumer: pulls, flow control, what is held."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from rockoon.backoff import Backoff
from rockoon.changes import Changes
from rockoon.connection import Cluster
from rockoon.errors import (
    QueueNotFound,
    RockoonError,
    StoreCorrupt,
    TopicNotFound,
    TopicNotReadable,
)
from rockoon.message import Batch, MessageQueue
from rockoon.process_queue import Limit, ProcessQueue
from rockoon.pulling import OutOfRange, PullLimits, pull
from rockoon.start import Start
from rockoon.subscription import Subscription

log = logging.getLogger(__name__)

# An empty answer that did not wait must not be asked for again at once.
_EMPTY_PAUSE_SECONDS = 0.02


@dataclass(slots=True)
class PullStatistics:
    """Counts over all queues since the consumer was made."""

    pulls: int = 0
    pulls_empty: int = 0
    pulls_failed: int = 0
    """Pulls that ended in an error; they are tried again."""
    flow_control_pauses: int = 0
    """Times a queue held as much as it may."""


@dataclass(slots=True, eq=False)
class Reading:
    """A queue from Resolve until it is lost. Every Resolve makes a new one, so whatever a former
    one still does is done to an object that nobody asks any more."""

    queue: MessageQueue
    subscription: Subscription
    start: Start
    birth: int
    """Revision at which the queue was created."""
    process_queue: ProcessQueue[Batch]
    finished: Changes = field(default_factory=Changes)
    attempts: dict[int, int] = field(default_factory=dict)
    listed: bool = False
    running: int = 0
    holds: Callable[[], bool] = lambda: True
    """Whether the membership under which it was resolved has surely not run out since."""
    task: asyncio.Task[None] | None = None
    failure: RockoonError | None = None
    """Why it cannot be pulled at the moment."""
    blocked_by: Limit | None = None
    max_offset: int | None = None
    """End of the queue at the last pull."""

    def is_surely_held(self) -> bool:
        """Whether no other member can have the queue by now."""
        return self.holds()

    async def pull_into(
        self,
        cluster: Cluster,
        limits: PullLimits,
        statistics: PullStatistics,
        *,
        on_messages: Callable[["Reading"], None],
        on_gone: Callable[["Reading"], None],
        check_crcs: bool = True,
    ) -> OutOfRange:
        """Pull for as long as the queue has the place to read.

        Args:
            cluster: where the broker is found.
            limits: size of a pull.
            statistics: counted in.
            on_messages: called when there are messages to hand out.
            on_gone: called when the broker says the queue is not there (any more).
            check_crcs: hand out no message whose body does not have its CRC.

        Returns:
            What the place was, when it has left the queue.

        Raises:
            StoreCorrupt: the next message is damaged, and all before it are handled: asking again
                would bring the same for ever, and going on would lose it in silence.
        """
        backoff = Backoff()
        loop = asyncio.get_running_loop()
        while True:
            await self._wait_room(statistics)
            asked_at = loop.time()
            offset = self.process_queue.next_offset
            statistics.pulls += 1
            try:
                answer = await pull(
                    cluster,
                    self.queue,
                    offset,
                    self.subscription,
                    limits,
                    check_crcs=check_crcs,
                )
                if not isinstance(answer, OutOfRange):
                    answer = answer.intact()
            except StoreCorrupt as damage:
                self._note_failure(damage)
                seen = self.finished.count
                while self.process_queue.unfinished:
                    seen = await self.finished.wait(seen)
                raise
            except RockoonError as error:
                statistics.pulls_failed += 1
                if isinstance(error, TopicNotFound | QueueNotFound | TopicNotReadable):
                    on_gone(self)
                self._note_failure(error)
                await asyncio.sleep(backoff.next_seconds())
                continue
            self._note_success()
            backoff.reset()
            if isinstance(answer, OutOfRange):
                return answer
            self.max_offset = answer.max_offset
            if answer.batch is None:
                statistics.pulls_empty += 1
                self.process_queue.put_nothing(answer.next_offset)
                if answer.next_offset == offset and loop.time() - asked_at < _EMPTY_PAUSE_SECONDS:
                    await asyncio.sleep(_EMPTY_PAUSE_SECONDS)
                continue
            self.process_queue.put(
                answer.batch,
                answer.offsets,
                next_offset=answer.next_offset,
                size_bytes=answer.size_bytes,
            )
            on_messages(self)

    async def _wait_room(self, statistics: PullStatistics) -> None:
        seen = self.finished.count
        self.blocked_by = self.process_queue.blocked_by()
        if self.blocked_by is None:
            return
        statistics.flow_control_pauses += 1
        if self.blocked_by is Limit.SPAN:
            stuck = self.process_queue.commit_offset
            log.warning(
                "%s is not pulled: message %d is unfinished after %d deliveries, and %d messages "
                "lie behind it",
                self.queue,
                stuck,
                self.attempts.get(stuck, 0),
                self.process_queue.span,
            )
        while self.blocked_by is not None:
            seen = await self.finished.wait(seen)
            self.blocked_by = self.process_queue.blocked_by()

    def _note_failure(self, error: RockoonError) -> None:
        if self.failure is None or type(self.failure) is not type(error):
            log.warning("%s cannot be pulled now: %s", self.queue, error)
        self.failure = error

    def _note_success(self) -> None:
        if self.failure is not None:
            log.info("%s can be pulled again", self.queue)
            self.failure = None
