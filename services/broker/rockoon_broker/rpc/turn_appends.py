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


class TurnAppends:
    """What the streams of one broker place together. Used by the event loop's thread alone.

    Args:
        append_joint: puts messages' batches into the log by one write, as far as it can; raises for
            all of them.
        append_alone: likewise of one batch.
        clock: says what came a moment ago.
    """

    def __init__(
        self,
        append_joint: Callable[[Sequence[Sequence[RoutedBatch]]], Sequence[Placed]],
        append_alone: Callable[[RoutedBatch], AppendResult | None],
        clock: Clock,
    ) -> None:
        self._append_joint = append_joint
        self._append_alone = append_alone
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._gathered: list[tuple[Sequence[RoutedBatch], asyncio.Future[Placed]]] = []
        self._batches = self._bytes = 0
        self._flushing: asyncio.Handle | None = None
        # Whether the last write was for several streams.
        self._had_company = False
        # Messages of all streams that are placed, or about to be, and not answered.
        self.unanswered = 0
        # Whose message came last, and when.
        self._last_sender: object = None
        self._last_seconds = 0.0

    def came(self, sender: object) -> None:
        """A message has come, which is unanswered now; `sender`: on whose stream."""
        self.unanswered += 1
        now = self._clock.monotonic_seconds()
        if sender is not self._last_sender:
            self._last_sender = sender
            self._had_company |= now - self._last_seconds < MOMENT_SECONDS
        self._last_seconds = now

    def place(
        self, batches: Sequence[RoutedBatch], *, unanswered: int
    ) -> "Placed | asyncio.Future[Placed]":
        """Place a message's batches, now or with what else has come.

        Args:
            batches: as of `Broker.append_joint`.
            unanswered: messages that the stream itself has not answered, this one included.

        Raises:
            Exception: what `append_joint` raises, of a message that is placed at once.
        """
        if not (self._had_company or self._gathered or self.unanswered > unanswered):
            if len(batches) == 1:
                return [self._append_alone(batches[0])]
            return self._append_joint((batches,))[0]
        placed: asyncio.Future[Placed] = self._loop.create_future()
        self._gathered.append((batches, placed))
        self._batches += len(batches)
        self._bytes += sum([each.batch.frames_bytes for each in batches])
        if self._batches >= BATCHES_MAX or self._bytes >= BYTES_MAX:
            self._flush()
        elif self._flushing is None:
            self._flushing = self._loop.call_soon(self._flush)
        return placed

    def _flush(self) -> None:
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        # Without those whose sender has gone meanwhile.
        gathered = [each for each in self._gathered if not each[1].done()]
        self._gathered, self._batches, self._bytes = [], 0, 0
        self._had_company = len(gathered) > 1
        try:
            placed = self._append_joint([batches for batches, _ in gathered]) if gathered else ()
        except Exception as failure:  # noqa: BLE001 - whoever waits raises it
            for _, waiting in gathered:
                waiting.set_exception(failure)
            return
        for (_, waiting), found in zip(gathered, placed, strict=True):
            waiting.set_result(found)
