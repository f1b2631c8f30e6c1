"""Rebalance listener: calls a program's functions when its consumer gets or loses queues.

Invariants: for each queue the calls alternate, `on_assigned` first. No message of a queue is
delivered before its `on_assigned` has returned. `on_revoked` is called when the queue's handler
calls have ended or their time is over, and before another member can get the queue.
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

# Maximum time of a listener function: long enough for a flush, shorter than most leases. The offset
# service grants a queue to its next owner when the hand-over time is over.
LISTENER_SECONDS_MAX = 5.0

QueuesFunction: TypeAlias = Callable[[Sequence[MessageQueue]], Awaitable[None] | None]
"""Called with sorted queues; async, or plain and quick, because it runs on the event loop."""


class RebalanceListener:
    """The listener functions of one consumer.

    Args:
        on_assigned: called with queues that this member gets, before they are read.
        on_revoked: called with queues that this member loses, before they are released.
        hidden_topic: topic whose queues are not reported: the group's retry topic.
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
        self._reported: set[MessageQueue] = set()

    async def assigned(self, queues: Iterable[MessageQueue]) -> None:
        """Report queues before they are read."""
        new = sorted(q for q in queues if q.topic != self._hidden_topic and q not in self._reported)
        self._reported.update(new)
        await self._call(self._on_assigned, new)

    async def revoked(self, queues: Iterable[MessageQueue]) -> None:
        """Report queues before they are released, each once."""
        gone = sorted(self._reported.intersection(queues))
        self._reported.difference_update(gone)
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
            # Errors of the program's function do not stop the rebalance.
            log.exception(
                "a rebalance listener failed for %s, the rebalance continues",
                ", ".join(map(str, queues)),
                exc_info=loggable(failure),
            )
