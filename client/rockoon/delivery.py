"""From process queues to a handler and back: which message goes out next, what its result means.

A message that failed is delivered again after a pause, by this consumer, until it succeeds or the
queue is lost. Meanwhile it holds the queue's commit offset back; others are delivered as before, up
to the flow limits of the queue.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from rockoon.changes import Changes
from rockoon.message import Batch, Message, MessageQueue
from rockoon.process_queue import ProcessQueue

log = logging.getLogger(__name__)

# A handler that fails on everything must not write a traceback for each message.
_TRACEBACK_SECONDS_MIN = 5.0
# Async handlers that wait for nothing would keep heartbeats and pulls from running.
_UNINTERRUPTED_SECONDS_MAX = 0.005

Handler = Callable[[Any], Any]
"""Gets a Message (a list of them when more than one may come at once); returns or awaits to None,
True, False or a ConsumeResult."""


class ConsumeResult(Enum):
    """What a handler says of its messages."""

    SUCCESS = "success"
    LATER = "later"
    """Deliver again after a while; raising an exception means the same."""


class Redelivery(Protocol):
    """What becomes of messages that a handler failed on."""

    async def failed(
        self, messages: Sequence[Message], attempt: int, failure: BaseException | None
    ) -> float | None:
        """Decide, or see to it.

        Args:
            messages: what the handler got.
            attempt: how often it got them, 1 or more.
            failure: what it raised, None when it returned LATER.

        Returns:
            Seconds until they are delivered again here; None when they are safe elsewhere (in a
            retry topic, say) and count as finished.
        """


@dataclass(frozen=True, slots=True)
class LocalRedelivery:
    """Delivers again here after a pause that doubles; nothing is ever given up."""

    first_seconds: float = 1.0
    seconds_max: float = 60.0

    async def failed(
        self, messages: Sequence[Message], attempt: int, failure: BaseException | None
    ) -> float:
        del messages, failure
        return float(min(self.first_seconds * 2 ** min(attempt - 1, 30), self.seconds_max))


class Source(Protocol):
    """A queue being read, as far as delivery needs to know it."""

    queue: MessageQueue
    process_queue: ProcessQueue[Batch]
    finished: Changes
    """Noted when messages were finished."""
    attempts: dict[int, int]
    """Offset to failed deliveries, of messages that have any and are not finished."""
    listed: bool
    """Whether it waits for its turn. Written by `Delivery` only."""
    running: int
    """Handler calls with its messages that have not ended. Written by `Delivery` only."""


@dataclass(slots=True)
class DeliveryStatistics:
    """Counts since the consumer was made."""

    messages: int = 0
    """Finished."""
    failures: int = 0
    """Handler calls that raised or returned LATER."""
    redeliveries: int = 0
    """Handler calls for messages that had failed before."""


@dataclass(slots=True, eq=False)
class _Parcel:
    """What one handler call gets, and gets again if it fails."""

    source: Source
    messages: list[Message]
    offsets: list[int]
    attempt: int = 1


class Delivery:
    """Calls the handler for the messages of many queues, which take turns.

    Args:
        handler: the user's; a plain function runs in a thread.
        concurrency: calls that may run at once.
        batch_max: messages per call; when 1 the handler gets a Message, not a list.
        redelivery: what to do with failures.
    """

    def __init__(
        self, handler: Handler, *, concurrency: int, batch_max: int, redelivery: Redelivery
    ) -> None:
        self.statistics = DeliveryStatistics()
        self.ended = Changes()
        """Noted when a handler call with messages of a retired queue has ended."""
        self._handler = handler
        self._is_async = _is_async(handler)
        self._concurrency = concurrency
        self._batch_max = batch_max
        self._redelivery = redelivery
        # A source is listed once while it has messages to hand out, so the queue is bounded by
        # the number of sources and of failed parcels, which the flow limits bound.
        self._work: asyncio.Queue[Source | _Parcel | None] = asyncio.Queue()
        self._timers: dict[_Parcel, asyncio.TimerHandle] = {}
        self._workers: list[asyncio.Task[None]] = []
        self._threads: ThreadPoolExecutor | None = None
        self._stopping = False
        self._log_failures_from = 0.0
        self._failures_unlogged = 0
        self._others_ran_at = 0.0

    async def run_worker(self) -> None:
        """Call the handler until stopped; one of `concurrency` tasks."""
        loop = asyncio.get_running_loop()
        while not self._stopping:
            work = await self._work.get()
            if self._stopping or work is None:
                return
            parcel = work if isinstance(work, _Parcel) else self._take(work)
            if parcel is not None and not parcel.source.process_queue.retired:
                await self._deliver_noted(parcel)
            if loop.time() - self._others_ran_at > _UNINTERRUPTED_SECONDS_MAX:
                await asyncio.sleep(0)
                self._others_ran_at = loop.time()

    def start(
        self, start_task: Callable[[Callable[[], Awaitable[None]]], asyncio.Task[None]]
    ) -> None:
        """Start the workers.

        Args:
            start_task: makes an owned task of a worker.
        """
        if not self._is_async:
            self._threads = ThreadPoolExecutor(self._concurrency, "rockoon-handler")
        self._workers = [start_task(self.run_worker) for _ in range(self._concurrency)]

    def offer(self, source: Source) -> None:
        """Say that a source has something to hand out."""
        if not source.listed and source.process_queue.has_waiting:
            source.listed = True
            self._work.put_nowait(source)

    def forget(self, source: Source) -> None:
        """Cancel what was to be delivered again of a source that was retired."""
        for parcel in [parcel for parcel in self._timers if parcel.source is source]:
            self._timers.pop(parcel).cancel()

    def stop(self) -> None:
        """Hand nothing out any more; calls that run go on."""
        self._stopping = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for _ in self._workers:
            self._work.put_nowait(None)

    async def drain(self, seconds_max: float) -> bool:
        """Stop, wait for calls that run, and cancel those that take too long.

        Returns:
            Whether all calls ended in time. A thread cannot be cancelled: its call goes on, but
            its result is no longer heard.
        """
        self.stop()
        late = set(self._workers)
        try:
            if late:
                _, late = await asyncio.wait(late, timeout=seconds_max)
        finally:
            for worker in late:
                worker.cancel()
            if self._threads is not None:
                self._threads.shutdown(wait=False, cancel_futures=True)
        if late:
            await asyncio.wait(late)
        return not late

    def _take(self, source: Source) -> _Parcel | None:
        source.listed = False
        runs = source.process_queue.take(self._batch_max)
        self.offer(source)
        if not runs:
            return None
        messages: list[Message] = []
        offsets: list[int] = []
        for run in runs:
            messages += run.batch[run.start : run.stop]
            offsets += run.offsets
        return _Parcel(source, messages, offsets)

    async def _deliver_noted(self, parcel: _Parcel) -> None:
        source = parcel.source
        source.running += 1
        try:
            await self._deliver(parcel)
        finally:
            source.running -= 1
            if source.process_queue.retired:
                self.ended.note()

    async def _deliver(self, parcel: _Parcel) -> None:
        failure: BaseException | None = None
        try:
            is_done = _means_done(await self._call(parcel))
        except asyncio.CancelledError as cancelled:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            failure, is_done = cancelled, False  # the handler's own affair, not ours
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything
            failure, is_done = error, False
            self._log_failure(parcel, error)
        if is_done:
            self._finish(parcel)
            return
        self.statistics.failures += 1
        pause = await self._pause_after(parcel, failure)
        if pause is None:
            self._finish(parcel)
        elif not (self._stopping or parcel.source.process_queue.retired):
            for offset in parcel.offsets:
                parcel.source.attempts[offset] = parcel.attempt
            parcel.attempt += 1
            self._timers[parcel] = asyncio.get_running_loop().call_later(
                pause, self._deliver_again, parcel
            )

    def _log_failure(self, parcel: _Parcel, error: Exception) -> None:
        now = asyncio.get_running_loop().time()
        if now < self._log_failures_from:
            self._failures_unlogged += 1
            return
        log.warning(
            "the handler failed on %s, delivery %d (%d more failures since the last such line)",
            parcel.messages[0],
            parcel.attempt,
            self._failures_unlogged,
            exc_info=error,
        )
        self._log_failures_from = now + _TRACEBACK_SECONDS_MIN
        self._failures_unlogged = 0

    async def _call(self, parcel: _Parcel) -> Any:
        argument: Any = parcel.messages if self._batch_max > 1 else parcel.messages[0]
        if self._threads is None:
            return await self._handler(argument)
        loop = asyncio.get_running_loop()
        result = await loop.run_in_executor(self._threads, self._handler, argument)
        # A lambda around an async function is not seen to be one before it is called.
        return await result if inspect.isawaitable(result) else result

    async def _pause_after(self, parcel: _Parcel, failure: BaseException | None) -> float | None:
        try:
            return await self._redelivery.failed(parcel.messages, parcel.attempt, failure)
        except Exception:
            log.exception("what to do with %s could not be decided", parcel.messages[0])
            return await LocalRedelivery().failed(parcel.messages, parcel.attempt, failure)

    def _deliver_again(self, parcel: _Parcel) -> None:
        self._timers.pop(parcel, None)
        self.statistics.redeliveries += 1
        self._work.put_nowait(parcel)

    def _finish(self, parcel: _Parcel) -> None:
        source = parcel.source
        if source.process_queue.dropped:
            return
        if parcel.attempt > 1:
            for offset in parcel.offsets:
                source.attempts.pop(offset, None)
        self.statistics.messages += source.process_queue.done(parcel.offsets)
        source.finished.note()


def _means_done(result: Any) -> bool:
    if result is None or result is True or result is ConsumeResult.SUCCESS:
        return True
    if result is False or result is ConsumeResult.LATER:
        return False
    raise TypeError(f"a handler returned {result!r}, not None, True, False or a ConsumeResult")


def _is_async(handler: Handler) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        type(handler).__call__
    )
