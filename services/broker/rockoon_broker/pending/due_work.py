"""Due work: turns in which what is due of pending records is done, while the broker runs."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from rockoon_broker.store.errors import StoreClosed, StoreError, StoreFailed
from rockoon_core.errors import RockoonError
from rockoon_runtime.waking import Turns

log = logging.getLogger(__name__)

# After a failure; RocketMQ waits ten seconds (ScheduleMessageService).
PAUSE_SECONDS = 1.0


class DueWork:
    """One turn after the other. Used by the event loop's thread alone.

    Args:
        name: of what is worked on, for people: "delayed messages".
        apart_seconds: from the beginning of a turn to the next one's at least: what comes due close
            together is done together.
        step: a turn; returns whether more is due already. What it could not do when it raises
            RockoonError, StoreError or OSError is still pending.
        pause_seconds: how long nothing is due if nothing happens; None when nothing ever is.
    """

    def __init__(
        self,
        name: str,
        apart_seconds: float,
        step: Callable[[], Awaitable[bool]],
        pause_seconds: Callable[[], float | None],
    ) -> None:
        self._name = name
        self._step = step
        self._pause_seconds = pause_seconds
        self._turns = Turns(apart_seconds)
        self.failure: Exception | None = None
        """Why what is due waits."""

    def ring(self) -> None:
        """There is news for the next turn: new records, or a shorter log."""
        self._turns.ring()

    async def run(self) -> None:
        """Do what is due, until cancelled or the store has ended."""
        while True:
            self._turns.begin()
            is_more, pause_seconds = False, None
            try:
                is_more = await self._step()
                pause_seconds = self._pause_seconds()
                self.failure = None
            except (StoreFailed, StoreClosed):
                return
            except (RockoonError, StoreError, OSError) as failure:
                if self.failure is None:
                    log.warning("%s wait, it is tried again: %s", self._name, failure)
                self.failure = failure
                await asyncio.sleep(PAUSE_SECONDS)
                # At once: nobody rings again for what this turn has not taken in.
                pause_seconds = 0.0
            await (asyncio.sleep(0) if is_more else self._turns.wait_next(pause_seconds))
