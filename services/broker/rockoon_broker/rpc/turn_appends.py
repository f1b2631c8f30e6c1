"""Appends of one turn of the loop: what comes on several streams goes into the log by one write.

A message alone is placed at once. Only while another stream's message is unanswered, came a moment
ago, or the last write served several, is it worth to look what else has come: that takes the loop
another turn.
"""

import asyncio
from collections.abc import Callable, Sequence

from rockoon_broker.append import AppendResult
from rockoon_broker.clock import Clock
from rockoon_broker.store.log.batch import RoutedBatch

# Gathered beyond that, a message waits longer for others than it would have for its own write.
BATCHES_MAX = 256
BYTES_MAX = 1 << 20
# A message that is answered where it comes is never seen unanswered by the next one of its turn.
MOMENT_SECONDS = 200e-6

Placed = Sequence[AppendResult | None]
"""Of each batch of a message; None for what is to be placed alone."""


Waiting = asyncio.Future[Placed] | Callable[[Placed | Exception], None]
"""What gets the results of a gathered message, or the exception that the write raised: a future
that a cancelled sender cancels, or a callback, which must not raise."""


class TurnAppends:
    """What the streams of one broker place together. Used by the event loop's thread alone.

    Args:
        append_group: puts messages' batches into the log by one write, as far as it can; raises for
            all of them.
        clock: says what came a moment ago.
    """

    def __init__(
        self,
        append_group: Callable[[Sequence[Sequence[RoutedBatch]]], Sequence[Placed]],
        clock: Clock,
    ) -> None:
        self._append_group = append_group
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._gathered: list[tuple[Sequence[RoutedBatch], Waiting]] = []
        self._batches = self._bytes = 0
        self._flushing: asyncio.Handle | None = None
        # Whether the last write was for several streams.
        self._had_company = False
        # Messages of all streams that are placed, or about to be, and not answered.
        self.unanswered = 0
        # Whose message came last, and when.
        self._last_sender: object = None
        self._last_seconds = 0.0

    def came(self, sender: object) -> float:
        """A message has come, which is unanswered now; `sender`: on whose stream. Returns when, in
        monotonic seconds."""
        self.unanswered += 1
        now = self._clock.monotonic_seconds()
        if sender is not self._last_sender:
            self._last_sender = sender
            self._had_company |= now - self._last_seconds < MOMENT_SECONDS
        self._last_seconds = now
        return now

    def place(
        self, batches: Sequence[RoutedBatch], waiting: Waiting, *, unanswered: int
    ) -> Placed | None:
        """Place a message's batches, now or with what else has come.

        Args:
            batches: see `Broker.append_group`.
            waiting: gets the results after this has returned None.
            unanswered: messages that the stream itself has not answered, this one included.

        Returns:
            The results; None if they come at the end of this iteration of the loop.

        Raises:
            Exception: `append_group` has raised it for a message that is appended now.
        """
        if not (self._had_company or self._gathered or self.unanswered > unanswered):
            return self._append_group((batches,))[0]
        count, size = len(batches), 0
        for each in batches:
            size += each.batch.frames_bytes
        # Before this message is gathered: nothing may call `waiting` within this call.
        if self._batches + count > BATCHES_MAX or self._bytes + size > BYTES_MAX:
            self._flush()
        self._gathered.append((batches, waiting))
        self._batches += count
        self._bytes += size
        if self._flushing is None:
            self._flushing = self._loop.call_soon(self._flush)
        return None

    def _flush(self) -> None:
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        # Without those whose sender has gone meanwhile.
        gathered = [
            each
            for each in self._gathered
            if not (isinstance(each[1], asyncio.Future) and each[1].done())
        ]
        self._gathered, self._batches, self._bytes = [], 0, 0
        self._had_company = len(gathered) > 1
        placed: Sequence[Placed | Exception] = ()
        if gathered:
            try:
                placed = self._append_group([batches for batches, _ in gathered])
            except Exception as failure:  # noqa: BLE001 - each waiting sender gets it
                placed = [failure] * len(gathered)
        for (_, waiting), found in zip(gathered, placed, strict=True):
            if not isinstance(waiting, asyncio.Future):
                waiting(found)
            elif isinstance(found, Exception):
                waiting.set_exception(found)
            else:
                waiting.set_result(found)
