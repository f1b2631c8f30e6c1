"""Ticks of a broker's store: what is due is done, and refusals are told, once each."""

import asyncio
import logging
from collections.abc import Callable

from rockoon_broker.steady_clock import SteadyClock
from rockoon_broker.store.errors import StoreFailed
from rockoon_broker.store.queues.consume_queue import QueueKey
from rockoon_broker.store.store import Store
from rockoon_runtime.waking import Bell

log = logging.getLogger(__name__)

TICK_SECONDS_MAX = 0.1
# Between two ticks of a store that has nothing to do: a clock that is set is noticed after that.
IDLE_SECONDS_MAX = 10.0


class StoreTicks:
    """The loop in which a store does what is due.

    Args:
        store: open.
        clock: what the store is told as the time.
        store_changed: wakes the loop while it has nothing to do; rung when the log has lost its
            oldest files.
        arrived: called for each queue that has new messages for its readers.
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
        # What the disk refuses and was told of.
        self._refused: set[str] = set()
        self._append_refused = False

    async def run(self) -> None:
        """Let the store do what is due, until cancelled or the store has failed.

        While it has something to do, several times a second; else when that changes.
        """
        pause_seconds = min(TICK_SECONDS_MAX, self._store.settings.flush_interval_ms / 1000)
        log_min = self._store.log_min_offset
        while True:
            now_ms = self._clock.now_ms()
            try:
                advanced = self._store.tick(now_ms)
            except StoreFailed:
                # `_failed` ends the broker, with the reason.
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
        """Say once when the disk begins to refuse something, and once when it does it again."""
        for what, refusal in (
            ("old files cannot be deleted", self._store.removal_failure),
            ("no recovery point can be written", self._store.point_failure),
        ):
            if refusal is not None and what not in self._refused:
                self._refused.add(what)
                log.warning("%s, it is tried again and again: %s", what, refusal)
            if refusal is None and what in self._refused:
                self._refused.discard(what)
                log.warning("%s: that is over", what)

    def _report_refused_messages(self) -> None:
        """Say once when messages are refused, whatever percentage comes after, and once when they
        are taken again."""
        reason = self._store.refusal_reason
        if reason and not self._append_refused:
            log.error("messages are refused: %s", reason)
        if not reason and self._append_refused:
            log.info("messages are taken again")
        self._append_refused = bool(reason)
