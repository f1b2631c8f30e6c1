"""Rebalance listener: a program's functions that are told which queues its consumer gets and loses.

Invariants: for each queue the calls alternate, `on_assigned` first; no message of a queue is handed
out before its `on_assigned` has returned; `on_revoked` is called when the queue's handler calls
have ended, or may take no longer, and before another member can get the queue.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeAlias

from rockoon.callbacks import is_being_cancelled
from rockoon_core.message_queue import MessageQueue
from rockoon_core.repeated_lines import limited
from rockoon_core.valid_text import loggable

log = limited(logging.getLogger(__name__))

# What a rebalance waits for a listener. Longer than a flush takes, shorter than most leases: the
# offset service gives a queue away when the time for handing it over is up, whoever still works.
LISTENER_SECONDS_MAX = 5.0

QueuesFunction: TypeAlias = Callable[[Sequence[MessageQueue]], Awaitable[None] | None]
"""Gets queues, sorted; async, or plain and quick: it runs on the event loop."""


class RebalanceListener:
    """The functions of one consumer.

    Args:
        on_assigned: called with queues that are this member's now, before they are read.
        on_revoked: called with queues that this member loses, before that is told to others.
        hidden_topic: whose queues are not told: the group's retry topic.
    """

    def __init__(
        self,
        on_assigned: QueuesFunction | None,
        on_revoked: QueuesFunction | None,
        hidden_topic: str | None,
    ) -> None:
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._hidden_topic = hidden_topic
        self._told: set[MessageQueue] = set()

    async def assigned(self, queues: Iterable[MessageQueue]) -> None:
        """Tell of queues that are about to be read."""
        new = sorted(q for q in queues if q.topic != self._hidden_topic and q not in self._told)
        self._told.update(new)
        await self._call(self._on_assigned, new)

    async def revoked(self, queues: Iterable[MessageQueue]) -> None:
        """Tell of queues that are about to be handed over; of each once."""
        gone = sorted(self._told.intersection(queues))
        self._told.difference_update(gone)
        await self._call(self._on_revoked, gone)

    async def _call(self, function: QueuesFunction | None, queues: list[MessageQueue]) -> None:
        if function is None or not queues:
            return
        try:
            async with asyncio.timeout(LISTENER_SECONDS_MAX):
                answer = function(queues)
                if inspect.isawaitable(answer):
                    await answer
        except (Exception, asyncio.CancelledError) as failure:
            if is_being_cancelled():
                raise
            # The root of the program's code. The queues move whether or not it likes that.
            log.exception(
                "a rebalance listener failed for %s",
                ", ".join(map(str, queues)),
                exc_info=loggable(failure),
            )
