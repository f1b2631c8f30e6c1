"""Queue reader: pulls one message queue for a push consumer, with flow control."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from rockoon.consumer.process_queue import Limit, ProcessQueue
from rockoon.consumer.pull import Pulled, PullOutOfRange, pull
from rockoon.consumer.pull_loop import PullCounts, PullLoop, PullRules
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
# If the disk of a broker fails, a reader must not skip all messages of the queue.
_DAMAGED_IN_A_ROW_MAX = 1024


@dataclass(slots=True)
class PullStatistics(PullCounts):
    """Counts over all queues since the consumer was made."""

    flow_control_pauses: int = 0
    """Number of times that a queue reached a flow limit."""
    damaged: int = 0
    """Damaged messages that were skipped."""
    expired: int = 0
    """Number of times that a queue was resolved again because no pull got a reply for too long."""


@dataclass(frozen=True, slots=True)
class ReadRules:
    """Rules for reading a queue."""

    pulls: PullRules = field(default_factory=PullRules)
    skip_damaged: bool = False
    """Skip damaged messages instead of raising StoreCorrupt, at most 1024 in a row."""
    expired_seconds: float = PULL_EXPIRED_SECONDS
    """Time without a reply to pulls after which a queue is resolved again."""


@dataclass(frozen=True, slots=True)
class QueueDamage:
    """An offset of a queue that is to be skipped."""

    offset: int
    error: StoreCorrupt
    is_here: bool = True
    """True: the message at `offset` is damaged. False: the filter excludes that message, and a
    later one is damaged."""


@dataclass(slots=True, eq=False)
class QueueReader:
    """Reads a queue from Resolve until the queue is revoked. Each Resolve creates a new reader, so
    late results of an old one have no effect."""

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
    may_start: Callable[[], bool] = lambda: True
    """Function that returns False if another member may own the queue."""
    task: asyncio.Task[None] | None = None
    failure: RockoonError | None = None
    """Error of the last pull; None if it succeeded."""
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
    ) -> PullOutOfRange | None:
        """Pull until the queue must be resolved again.

        Args:
            on_messages: called when messages can be handed out.
            on_gone: called when the broker replies that the queue does not exist.

        Returns:
            The offset, if the queue no longer has it; None if no pull got a reply for
            `expired_seconds`.

        Raises:
            StoreCorrupt: the next message is damaged, and all messages before it are handled. A
                retry would fail again, and skipping would silently lose the message.
        """
        with PullLoop(
            cluster=cluster,
            streams=streams,
            queue=self.queue,
            subscription=self.subscription,
            rules=rules.pulls,
            counts=statistics,
            accept=self._accept,
            on_accepted=partial(on_messages, self),
        ) as pulls:
            return await self._pull_with(pulls, cluster, rules, statistics, on_messages, on_gone)

    async def _pull_with(
        self,
        pulls: PullLoop,
        cluster: Connection,
        rules: ReadRules,
        statistics: PullStatistics,
        on_messages: Callable[["QueueReader"], None],
        on_gone: Callable[["QueueReader"], None],
    ) -> PullOutOfRange | None:
        loop = asyncio.get_running_loop()
        while True:
            if await self._wait_room(statistics):
                pulls.heard_at = loop.time()
            try:
                answer = await self._pull_once(cluster, pulls, rules)
            except StoreCorrupt as damage:
                self.failure = damage
                pulls.log_failure(damage)
                # First wait for the handling of earlier messages: `raise` ends the consumer.
                await self._wait_handled()
                raise
            except RockoonError as error:
                self.failure = error
                # The reader continues, because the broker may not know the queue yet. The rebalance
                # decides by the routes.
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
            if isinstance(answer, QueueDamage):
                self._skip(answer, statistics)
                continue
            if isinstance(answer, PullOutOfRange):
                return answer
            if answer.batch is not None:
                pulls.brought_messages()
            self._put(answer)
            if answer.batch is None:
                await pulls.brought_nothing(answer.next_offset)
            else:
                on_messages(self)

    def _accept(self, pulled: Pulled) -> bool:
        """Put messages into the process queue on their arrival, if none is damaged and the flow
        limits allow another pull after them."""
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
            self.process_queue.skip_to(pulled.next_offset)
        else:
            self.process_queue.put(
                pulled.batch,
                pulled.offsets,
                next_offset=pulled.next_offset,
                size_bytes=pulled.size_bytes,
            )

    async def _pull_once(
        self, cluster: Connection, pulls: PullLoop, rules: ReadRules
    ) -> Pulled | PullOutOfRange | QueueDamage:
        """Pull once. Raises StoreCorrupt for damage that is not to be skipped."""
        answer: Pulled | PullOutOfRange | None = None
        try:
            answer = await pulls.pull_once(self.process_queue.next_offset)
            return answer if isinstance(answer, PullOutOfRange) else answer.intact()
        except StoreCorrupt as error:
            if not rules.skip_damaged or self._damaged_in_a_row >= _DAMAGED_IN_A_ROW_MAX:
                raise
            if isinstance(answer, Pulled):
                return QueueDamage(answer.offsets[0], error)
            # The broker reports damage of the first message that the subscription may include. The
            # message at `offset` may be excluded and intact.
            offset = self.process_queue.next_offset
            return QueueDamage(
                offset, error, is_here=await self._is_damaged(cluster, rules, offset)
            )

    async def _is_damaged(self, cluster: Connection, rules: ReadRules, offset: int) -> bool:
        everything = Subscription.parse(self.queue.topic, "*")
        one = replace(rules.pulls.limits, messages_max=1, wait_ms=0)
        try:
            answer = await pull(cluster, self.queue, offset, everything, one)
            if isinstance(answer, Pulled):
                # A broker sends a message with damaged tags only to readers without a filter.
                answer.intact()
        except StoreCorrupt:
            return True
        return False

    def _skip(self, damage: QueueDamage, statistics: PullStatistics) -> None:
        self._damaged_in_a_row += 1
        if damage.is_here:
            statistics.damaged += 1
            log.error("message %d of %s skipped: %s", damage.offset, self.queue, damage.error)
        self.process_queue.skip_to(damage.offset + 1)

    async def _wait_handled(self) -> None:
        seen = self.finished.count
        while self.process_queue.unfinished:
            seen = await self.finished.wait(seen)

    async def _wait_room(self, statistics: PullStatistics) -> bool:
        """Wait until the flow limits allow a pull; return True if the queue was blocked."""
        seen = self.finished.count
        self.blocked_by = self.process_queue.blocked_by()
        if self.blocked_by is None:
            return False
        statistics.flow_control_pauses += 1
        if self.blocked_by is Limit.SPAN:
            stuck = self.process_queue.commit_offset
            log.warning(
                "%s not pulled until message %d is finished: it had %d failed deliveries, and %d "
                "messages follow it",
                self.queue,
                stuck,
                self.attempts.get(stuck, 0),
                self.process_queue.span,
            )
        while self.blocked_by is not None:
            seen = await self.finished.wait(seen)
            self.blocked_by = self.process_queue.blocked_by()
        return True
