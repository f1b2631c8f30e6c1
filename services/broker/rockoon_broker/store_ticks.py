"""Periodic work of a broker's store; also logs each refusal once."""

import asyncio
import logging
from collections.abc import Callable

from rockoon_broker.steady_clock import SteadyClock
from rockoon_broker.store.errors import StoreSyncFailed
from rockoon_broker.store.queues.consume_queue import QueueKey
from rockoon_broker.store.store import Store
from rockoon_runtime.waking import Bell

log = logging.getLogger(__name__)

TICK_SECONDS_MAX = 0.1
# Pause between two ticks of an idle store; a change of the clock is noticed after it.
IDLE_SECONDS_MAX = 10.0


class StoreTicks:
    """The loop that runs the store's periodic work.

    Args:
        store: open.
        clock: provides the time for the store.
        store_changed: wakes the idle loop; rung here when the log has lost its
            oldest files.
        arrived: called for each queue with new visible messages.
        shortened: called when the log has lost its oldest files.
        ticked: called after each tick.
    """

    def __init__(
        self,
        store: Store,
        clock: SteadyClock,
        store_changed: Bell,
        *,
        arrived: Callable[[QueueKey], None],
        shortened: Callable[[], None],
        ticked: Callable[[], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._store_changed = store_changed
        self._arrived = arrived
        self._shortened = shortened
        self._ticked = ticked
        # Refusals by the disk that have been logged.
        self._refused: set[str] = set()
        self._append_refused = False

    async def run(self) -> None:
        """Run the store's work until cancelled or the store has failed.

        Several times a second while there is work; otherwise when it is woken.

        """
        pause_seconds = min(TICK_SECONDS_MAX, self._store.settings.flush_interval_ms / 1000)
        log_min = self._store.log_min_offset
        while True:
            now_ms = self._clock.now_ms()
            try:
                advanced = self._store.tick(now_ms)
            except StoreSyncFailed:
                # `Broker._failed` ends the process with the reason.
                return
            for queue in advanced:
                self._arrived(queue)
            if self._store.log_min_offset != log_min:
                log_min = self._store.log_min_offset
                self._store_changed.ring()
                self._shortened()
            self._ticked()
            self._report_refused_messages()
            self._report_refusals()
            idle_seconds = self._store.idle_ms(now_ms) / 1000
            if idle_seconds > pause_seconds:
                await self._store_changed.wait(min(idle_seconds, IDLE_SECONDS_MAX) - pause_seconds)
            await asyncio.sleep(pause_seconds)

    def _report_refusals(self) -> None:
        """Log once when the disk begins to refuse something, and once when it no longer does."""
        for what, refusal in (
            ("old files cannot be deleted", self._store.removal_failure),
            ("no recovery point can be written", self._store.point_failure),
        ):
            if refusal is not None and what not in self._refused:
                self._refused.add(what)
                log.warning("%s, retrying: %s", what, refusal)
            if refusal is None and what in self._refused:
                self._refused.discard(what)
                log.warning("%s: resolved", what)

    def _report_refused_messages(self) -> None:
        """Log once when messages are refused, whatever the reason changes to, and once when they
        are accepted again."""
        reason = self._store.refusal_reason
        if reason and not self._append_refused:
            log.error("messages are refused: %s", reason)
        if not reason and self._append_refused:
            log.info("messages are accepted again")
        self._append_refused = bool(reason)
