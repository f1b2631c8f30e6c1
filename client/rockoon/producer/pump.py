"""Pump: when a producer's batches are handed out, and how many in one turn of the loop."""

import asyncio
import contextvars
from collections.abc import Callable, Iterator

from rockoon.producer.accumulator import BatchQueue, ProducerBatch
from rockoon.producer.batch_scheduler import BatchScheduler

# After so much the loop has its turn: encoding it takes a millisecond, and streams have to write.
TURN_BYTES = 512 << 10


class Pump:
    """Hands out batches at the end of a turn of the loop, with all that the turn has brought.

    Args:
        scheduler: says which.
        pack: takes each.
        ship: sends what is packed.
        send_alone: sends a batch.

    Attributes:
        failed: gets what handing out failed with: nothing is handed out after that.
        last_count: messages that were handed out last.
        rest: batches that are left of a turn that ended in the middle of the work.
    """

    def __init__(
        self,
        scheduler: BatchScheduler,
        pack: Callable[[ProducerBatch], None],
        ship: Callable[[], None],
        send_alone: Callable[[ProducerBatch], None],
    ) -> None:
        self._scheduler = scheduler
        self._pack = pack
        self._ship = ship
        self._send_alone = send_alone
        self._loop = asyncio.get_running_loop()
        # Of no sender's: what is told of batches is not told within anybody's trace.
        self._context = contextvars.copy_context()
        self.failed: asyncio.Future[None] = self._loop.create_future()
        self.last_count = 0
        self._is_open = False
        self._next: asyncio.Handle | None = None
        self.rest: Iterator[ProducerBatch] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    def open(self) -> None:
        """Begin: before that nothing is handed out."""
        self._is_open = True
        self.run_soon()

    def close(self) -> None:
        """Hand out nothing more."""
        self._is_open = False
        for handle in (self._timer, self._next):
            if handle is not None:
                handle.cancel()

    @property
    def is_waiting(self) -> bool:
        """Whether it only wants the loop's turn."""
        return self._next is not None

    def run_soon(self) -> None:
        """Hand out at the end of this turn."""
        if self._next is None:
            self._next = self._loop.call_soon(self.run, context=self._context)

    def run(self, alone: BatchQueue | None = None) -> None:
        """Hand out what can go now, where no other batch queue than `alone` has anything that is
        not out in fewer steps."""
        if self._next is not None:
            self._next.cancel()
            self._next = None
        if self._is_open and not self.failed.done():
            try:
                if alone is None:
                    self._hand_out()
                    return
                batch = self._scheduler.assigned_alone(alone, self._loop.time())
                if batch is None:
                    self._set_timer(self._scheduler.next_alarm())
                else:
                    self.last_count = len(batch.bodies)
                    self._send_alone(batch)
            except Exception as failure:  # noqa: BLE001 - raised by the task that waits for it
                self.failed.set_exception(failure)

    def _hand_out(self) -> None:
        turn_bytes = turn_count = 0
        assignments = self.rest or self._scheduler.assignments(self._loop.time())
        self.rest = None
        for batch in assignments:
            self._pack(batch)
            turn_bytes += batch.bytes
            turn_count += len(batch.bodies)
            if turn_bytes >= TURN_BYTES:
                self.rest = assignments
                self.run_soon()
                break
        self._ship()
        if turn_count:
            self.last_count = turn_count
        if self.rest is None:
            self._set_timer(self._scheduler.next_alarm())

    def _set_timer(self, when: float | None) -> None:
        if self._timer is not None:
            if when == self._timer_at:
                return
            self._timer.cancel()
            self._timer = None
        if when is not None:
            self._timer_at = when
            self._timer = self._loop.call_at(when, self._on_timer, context=self._context)

    def _on_timer(self) -> None:
        self._timer = None
        self.run()
