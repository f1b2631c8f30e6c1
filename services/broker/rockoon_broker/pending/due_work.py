"""Due work: runs the due work of pending messages in turns."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from rockoon_broker.store.errors import StorageError, StoreClosed, StoreSyncFailed
from rockoon_core.errors import RockoonError
from rockoon_runtime.waking import WorkRounds

log = logging.getLogger(__name__)

# After a failure. RocketMQ waits ten seconds (ScheduleMessageService).
PAUSE_SECONDS = 1.0


class DueWork:
    """Runs turns one after the other. Used only by the event loop's thread.

    Args:
        name: the work's name in logs: "delayed messages".
        apart_seconds: minimum time between the starts of two turns, so that messages that are due
            close together are handled together.
        step: one turn; returns whether more is already due. If it raises RockoonError,
            StorageError or OSError, unfinished work stays pending.
        pause_seconds: returns the time until something is due; None if nothing will be.
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
        self._turns = WorkRounds(apart_seconds)
        self.failure: Exception | None = None
        """Error for which due work currently waits."""

    def ring(self) -> None:
        """Wake the task for new records or a shorter log."""
        self._turns.ring()

    async def run(self) -> None:
        """Run turns until cancelled or the store has ended."""
        while True:
            self._turns.begin()
            is_more, pause_seconds = False, None
            try:
                is_more = await self._step()
                pause_seconds = self._pause_seconds()
                self.failure = None
            except (StoreSyncFailed, StoreClosed):
                return
            except (RockoonError, StorageError, OSError) as failure:
                if self.failure is None:
                    log.warning("%s are delayed, retrying: %s", self._name, failure)
                self.failure = failure
                await asyncio.sleep(PAUSE_SECONDS)
                # Retry without a ring, because records that this turn did not read ring only once.
                pause_seconds = 0.0
            await (asyncio.sleep(0) if is_more else self._turns.wait_next(pause_seconds))
