"""Pull loop: what lies between two pulls of one queue, the same for push and pull consumers.

Here are the pauses, after a failure and after an answer with nothing, what is counted, and what is
logged when a queue cannot be pulled and when it can be again. What an answer or a failure means for
the reader is the reader's: it asks, and then says which of the three it was.
"""

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Protocol

from rockoon.consumer.pull import EmptyAnswers, OutOfRange, Pulled, PullLimits, pull
from rockoon.errors import RockoonError
from rockoon.net.connection import Connection
from rockoon.subscription import Subscription
from rockoon_core.backoff import Backoff
from rockoon_core.message_queue import MessageQueue

log = logging.getLogger(__name__)


class PullCounts(Protocol):
    """What is counted."""

    pulls: int
    pulls_empty: int
    pulls_failed: int


@dataclass(frozen=True, slots=True)
class PullRules:
    """How a queue is pulled."""

    limits: PullLimits = field(default_factory=PullLimits)
    check_crcs: bool = True
    """Hand out no message whose body does not have its CRC."""
    group: str = ""
    """Whose readers these are."""


class PullLoop:
    """The pulls of one queue.

    Args:
        cluster: where the broker is found.
        queue: which.
        subscription: what is wanted of it.
        rules: how to pull.
        counts: counted in.
    """

    def __init__(
        self,
        cluster: Connection,
        queue: MessageQueue,
        subscription: Subscription,
        rules: PullRules,
        counts: PullCounts,
    ) -> None:
        self._cluster = cluster
        self._queue = queue
        self._subscription = subscription
        self._rules = rules
        self._counts = counts
        self._loop = asyncio.get_running_loop()
        self._backoff = Backoff()
        self._empty = EmptyAnswers(rules.limits.wait_ms)
        self._failure: type[RockoonError] | None = None
        self._offset = 0
        self._asked_at = 0.0

    async def ask(self, offset: int) -> Pulled | OutOfRange:
        """Pull once; errors as of `pull`."""
        self._counts.pulls += 1
        self._offset, self._asked_at = offset, self._loop.time()
        return await pull(
            self._cluster,
            self._queue,
            offset,
            self._subscription,
            self._rules.limits,
            check_crcs=self._rules.check_crcs,
            group=self._rules.group,
        )

    def note_failure(self, error: RockoonError) -> None:
        """Log why the queue cannot be pulled, once for each kind of reason."""
        if self._failure is not type(error):
            log.warning("%s cannot be pulled now: %s", self._queue, error)
        self._failure = type(error)

    async def failed(self, error: RockoonError) -> None:
        """The broker did not answer, or with an error that can pass: pause, longer each time."""
        self._counts.pulls_failed += 1
        self.note_failure(error)
        await self._cluster.pause_for_broker(self._queue.broker, self._backoff.next_seconds())

    def answered(self) -> None:
        """The broker answered."""
        self._backoff.reset()
        if self._failure is not None:
            self._failure = None
            log.info("%s can be pulled again", self._queue)

    def brought_messages(self) -> None:
        """The answer had messages."""
        self._empty.reset()

    async def brought_nothing(self, next_offset: int) -> None:
        """The answer had none: pause if it came too soon."""
        self._counts.pulls_empty += 1
        waited_seconds = self._loop.time() - self._asked_at
        moved = next_offset != self._offset
        await asyncio.sleep(self._empty.pause_seconds(waited_seconds, moved=moved))
