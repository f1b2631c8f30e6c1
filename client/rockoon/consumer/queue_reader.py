"""One message queue being read by a push consumer: pulls, flow control, what is held."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from rockoon.consumer.process_queue import Limit, ProcessQueue
from rockoon.consumer.pull import OutOfRange, Pulled, pull
from rockoon.consumer.pull_loop import PullLoop, PullRules
from rockoon.consumer.pull_stream import PullStreams
from rockoon.errors import (
    QueueNotFound,
    RockoonError,
    StoreCorrupt,
    TopicNotFound,
    TopicNotReadable,
)
from rockoon.message import Batch
from rockoon.net.connection import Connection
from rockoon.offsets.start import Start
from rockoon.subscription import Subscription
from rockoon_core.changes import Changes
from rockoon_core.message_queue import MessageQueue
from rockoon_core.repeated_lines import limited

log = limited(logging.getLogger(__name__))

PULL_EXPIRED_SECONDS = 120.0
# A disk that answers nothing any more must not let a reader run through all that it holds.
_DAMAGED_IN_A_ROW_MAX = 1024


@dataclass(slots=True)
class PullStatistics:
    """Counts over all queues since the consumer was made."""

    pulls: int = 0
    pulls_empty: int = 0
    pulls_failed: int = 0
    """Pulls that ended in an error; they are tried again."""
    flow_control_pauses: int = 0
    """Times a queue held as much as it may."""
    damaged: int = 0
    """Messages skipped because they are damaged."""
    expired: int = 0
    """Queues looked up again because no pull was answered for too long."""


@dataclass(frozen=True, slots=True)
class ReadRules:
    """How a queue is read."""

    pulls: PullRules = field(default_factory=PullRules)
    skip_damaged: bool = False
    """Go on behind a damaged message instead of raising; for so many in a row at most as no single
    fault of a disk damages."""
    expired_seconds: float = PULL_EXPIRED_SECONDS
    """How long a queue may go without an answer before it is looked up again."""


@dataclass(frozen=True, slots=True)
class Damage:
    """A place of a queue that cannot be read and is to be stepped over."""

    offset: int
    error: StoreCorrupt
    is_here: bool = True
    """False when it is another message, further on, that is damaged."""


@dataclass(slots=True, eq=False)
class QueueReader:
    """A queue from Resolve until it is lost. Every Resolve makes a new one, so whatever a former
    one still does is done to an object that nobody asks any more."""

    queue: MessageQueue
    subscription: Subscription
    start: Start
    create_revision: int
    """Revision at which the queue was created."""
    process_queue: ProcessQueue[Batch]
    finished: Changes = field(default_factory=Changes)
    attempts: dict[int, int] = field(default_factory=dict)
    listed: bool = False
    running: int = 0
    may_begin: Callable[[], bool] = lambda: True
    """Whether a call with its messages may begin, as far as other members go."""
    task: asyncio.Task[None] | None = None
    failure: RockoonError | None = None
    """Why it cannot be pulled at the moment."""
    blocked_by: Limit | None = None
    max_offset: int | None = None
    """End of the queue at the last pull."""
    _damaged_in_a_row: int = 0

    async def pull_into(
        self,
        cluster: Connection,
        streams: PullStreams,
        rules: ReadRules,
        statistics: PullStatistics,
        *,
        on_messages: Callable[["QueueReader"], None],
        on_gone: Callable[["QueueReader"], None],
    ) -> OutOfRange | None:
        """Pull for as long as the queue has the place to read.

        Args:
            cluster: where the broker is found.
            streams: the consumer's.
            rules: how to read.
            statistics: counted in.
            on_messages: called when there are messages to hand out.
            on_gone: called when the broker says the queue is not there (any more).

        Returns:
            What the place was, when it has left the queue; None when no pull was answered for so
            long that the queue should be looked up again.

        Raises:
            StoreCorrupt: the next message is damaged, and all before it are handled: asking again
                would bring the same for ever, and going on would lose it in silence.
        """
        where = (cluster, streams, self.queue, self.subscription)
        on_taken = partial(on_messages, self)
        with PullLoop(*where, rules.pulls, statistics, self._take, on_taken) as pulls:
            return await self._pull_with(pulls, cluster, rules, statistics, on_messages, on_gone)

    async def _pull_with(
        self,
        pulls: PullLoop,
        cluster: Connection,
        rules: ReadRules,
        statistics: PullStatistics,
        on_messages: Callable[["QueueReader"], None],
        on_gone: Callable[["QueueReader"], None],
    ) -> OutOfRange | None:
        loop = asyncio.get_running_loop()
        while True:
            if await self._wait_room(statistics):
                pulls.heard_at = loop.time()
            try:
                answer = await self._ask(cluster, pulls, rules)
            except StoreCorrupt as damage:
                self.failure = damage
                pulls.note_failure(damage)
                # First what came before the damage: `raise` ends the consumer, and those were
                # pulled already.
                await self._wait_handled()
                raise
            except RockoonError as error:
                self.failure = error
                # Told, not ended: the broker may only not have heard of the queue yet. Routes
                # decide.
                if isinstance(error, TopicNotFound | QueueNotFound | TopicNotReadable):
                    on_gone(self)
                if loop.time() - pulls.heard_at >= rules.expired_seconds:
                    statistics.pulls_failed += 1
                    statistics.expired += 1
                    return None
                await pulls.failed(error)
                continue
            self.failure = None
            pulls.answered()
            if isinstance(answer, Damage):
                self._step_over(answer, statistics)
                continue
            if isinstance(answer, OutOfRange):
                return answer
            if answer.batch is not None:
                pulls.brought_messages()
            self._put(answer)
            if answer.batch is None:
                await pulls.brought_nothing(answer.next_offset)
            else:
                on_messages(self)

    def _take(self, pulled: Pulled) -> bool:
        """Put messages into the process queue on their arrival, if none is damaged and another pull
        has room behind them."""
        batch, offsets, size_bytes = pulled.batch, pulled.offsets, pulled.size_bytes
        if batch is None or not self.process_queue.has_room_behind(offsets, size_bytes):
            return False
        only = batch.only
        if batch.first_damaged is not None if only is None else only.is_damaged:
            return False
        self.failure = None
        self._damaged_in_a_row = 0
        self.max_offset = pulled.max_offset
        next_offset = pulled.next_offset
        self.process_queue.put(batch, offsets, next_offset=next_offset, size_bytes=size_bytes)
        return True

    def _put(self, pulled: Pulled) -> None:
        self._damaged_in_a_row = 0
        self.max_offset = pulled.max_offset
        if pulled.batch is None:
            self.process_queue.put_nothing(pulled.next_offset)
        else:
            self.process_queue.put(
                pulled.batch,
                pulled.offsets,
                next_offset=pulled.next_offset,
                size_bytes=pulled.size_bytes,
            )

    async def _ask(
        self, cluster: Connection, pulls: PullLoop, rules: ReadRules
    ) -> Pulled | OutOfRange | Damage:
        """Pull once. Raises StoreCorrupt for damage that is not to be stepped over."""
        answer: Pulled | OutOfRange | None = None
        try:
            answer = await pulls.ask(self.process_queue.next_offset)
            return answer if isinstance(answer, OutOfRange) else answer.intact()
        except StoreCorrupt as error:
            if not rules.skip_damaged or self._damaged_in_a_row >= _DAMAGED_IN_A_ROW_MAX:
                raise
            if isinstance(answer, Pulled):
                return Damage(answer.offsets[0], error)
            # The broker means the first message that the subscription selects, or might. Those
            # before it are not selected, and one of them is no damage.
            offset = self.process_queue.next_offset
            return Damage(offset, error, is_here=await self._is_damaged(cluster, rules, offset))

    async def _is_damaged(self, cluster: Connection, rules: ReadRules, offset: int) -> bool:
        everything = Subscription.parse(self.queue.topic, "*")
        one = replace(rules.pulls.limits, messages_max=1, wait_ms=0)
        try:
            answer = await pull(cluster, self.queue, offset, everything, one)
            if isinstance(answer, Pulled):
                # A broker gives a message with damaged tags to who wants all, and to nobody else.
                answer.intact()
        except StoreCorrupt:
            return True
        return False

    def _step_over(self, damage: Damage, statistics: PullStatistics) -> None:
        self._damaged_in_a_row += 1
        if damage.is_here:
            statistics.damaged += 1
            log.error("message %d of %s is skipped: %s", damage.offset, self.queue, damage.error)
        self.process_queue.put_nothing(damage.offset + 1)

    async def _wait_handled(self) -> None:
        seen = self.finished.count
        while self.process_queue.unfinished:
            seen = await self.finished.wait(seen)

    async def _wait_room(self, statistics: PullStatistics) -> bool:
        """Wait until the queue may hold more; returns whether it had to."""
        seen = self.finished.count
        self.blocked_by = self.process_queue.blocked_by()
        if self.blocked_by is None:
            return False
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
        return True
