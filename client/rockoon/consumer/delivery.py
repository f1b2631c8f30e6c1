"""Delivery: calls the handler for messages of the process queues and applies its results.

`Redelivery` decides about a failed message: either it is stored elsewhere, or this consumer
delivers it again after a pause. Until then it blocks the commit offset of its queue; later messages
are delivered up to the flow limits of the queue.

No call starts for a queue that another member may own because this process was stopped.

With `Order`, a queue has one handler call at a time, which includes the pause after a failure, and
no call starts while another member may own the queue for any reason.
"""

import asyncio
import inspect
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat
from types import CoroutineType
from typing import Any, Final, Generic, NoReturn, Protocol, TypeVar

from rockoon.callbacks import is_async, is_being_cancelled
from rockoon.consumer.consume_result import (
    ConsumeResult,
    Delay,
    Order,
    Verdict,
    read_result,
    suspension_seconds,
)
from rockoon.consumer.process_queue import MessageRun, ProcessQueue
from rockoon.consumer.redelivery import HandlerFailure, LocalRedelivery, Redelivery
from rockoon.message import Batch, Message
from rockoon_core.changes import Changes
from rockoon_core.message_queue import MessageQueue
from rockoon_core.repeated_lines import limited
from rockoon_core.valid_text import loggable

Work = TypeVar("Work")


def _raise(error: BaseException) -> NoReturn:
    raise error


class _IdleWorker(asyncio.Future[None]):
    """Future of a waiting worker; done when the worker has work."""

    __slots__ = ("_context", "_step")

    def add_done_callback(
        self, fn: Callable[[Any], object], /, *, context: Context | None = None
    ) -> None:
        # Called once, by the task that awaits this future: `fn` runs the next step of the task.
        self._step, self._context = fn, context

    def cancel(self, msg: Any | None = None) -> bool:
        if not self.done():
            super().add_done_callback(self._step, context=self._context)
        return super().cancel(msg)

    def wake(self) -> None:
        """Run the task in the next iteration of the loop."""
        super().add_done_callback(self._step, context=self._context)
        self.set_result(None)

    def run(self) -> None:
        """Run the task up to its next wait. No task may be running."""
        self.set_result(None)
        assert self._context is not None
        try:
            self._context.run(self._step, self)
        except BaseException as error:  # noqa: BLE001 - only KeyboardInterrupt and SystemExit leave a task
            # These errors must end the loop: raised outside of the transport's callback.
            self.get_loop().call_soon(_raise, error)


class WorkQueue(Generic[Work]):
    """Unbounded FIFO queue, for the thread of the event loop.

    If no task is running, `put` runs a waiting worker: a message is handled in the callback that
    received it, not in a later iteration of the loop. `clock`: monotonic seconds. `ran_at`: time of
    `clock` at which `put` last ran a worker, in a callback that the event loop had just started: no
    handler has blocked the loop between the two.
    """

    __slots__ = ("_clock", "_idle", "_run_from", "_work", "ran_at")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.ran_at = 0.0
        self._work: deque[Work] = deque()
        self._idle: list[_IdleWorker] = []
        # Until this time the loop runs the workers.
        self._run_from = 0.0

    def put(self, work: Work) -> None:
        """Add work, and run or wake a worker."""
        self._work.append(work)
        self._run_worker()

    def _run_worker(self) -> None:
        while self._idle:
            idle = self._idle.pop()
            if idle.done():
                # Its worker was cancelled.
                continue
            began = self._clock()
            if began < self._run_from or asyncio.current_task(idle.get_loop()) is not None:
                idle.wake()
                return
            self.ran_at = began
            idle.run()
            ended = self._clock()
            # Other callbacks of the loop get the same time as handlers that run in `put`.
            self._run_from = ended + (ended - began)
            return

    async def get(self) -> Work:
        """Wait for work, and remove it. Cancelling it is safe."""
        while not self._work:
            idle = _IdleWorker(loop=asyncio.get_running_loop())
            self._idle.append(idle)
            try:
                await idle
            except asyncio.CancelledError:
                if idle in self._idle:
                    self._idle.remove(idle)
                elif self._work:
                    self._run_worker()
                raise
        return self._work.popleft()


log = limited(logging.getLogger(__name__))

# Minimum time between two tracebacks in the log, for a handler that fails on all messages.
_TRACEBACK_SECONDS_MIN = 5.0
# Async handlers that never wait must yield to heartbeats and pulls after this time.
_UNINTERRUPTED_SECONDS_MAX = 0.005
# Messages of one queue that a worker handles before it handles the next queue.
_RUN_MESSAGES_MAX = 64
# Pause before the next check of a queue whose calls may not start now.
_DELAY_SECONDS = 0.1
# Maximum time between checks that a call may start. With a longer time, a call could start for a
# queue that another member got while this process was stopped.
_START_CHECK_SECONDS = 0.001
CONSUME_TIMEOUT_SECONDS = 900.0
_OVERDUE_CHECKS_PER_TIMEOUT = 10
_OVERDUE_CHECK_SECONDS_MAX = 60.0

Handler = Callable[[Any], Any]
"""A `MessageHandler` if `batch_max` is 1, else a `BatchHandler`."""
HandlerResult = ConsumeResult | bool | None
MessageHandler = Callable[[Message], HandlerResult | Awaitable[HandlerResult]]
BatchHandler = Callable[[list[Message]], HandlerResult | Awaitable[HandlerResult]]
"""Gets up to `batch_max` messages of one queue; its result applies to each."""


class QueueSource(Protocol):
    """A queue reader, as `HandlerDelivery` uses it."""

    queue: MessageQueue
    process_queue: ProcessQueue[Batch]
    finished: Changes
    """Changes when messages were finished."""
    attempts: dict[int, int]
    """Offset → number of failed deliveries, of messages that are not finished."""
    listed: bool
    """It is in the work queue or, with an order, has a running call. Only `HandlerDelivery` writes
    this and `running`."""
    running: int
    """Number of running handler calls with its messages."""

    @property
    def may_start(self) -> Callable[[], bool]:
        """Function that returns False if another member may own the queue."""
        ...


@dataclass(slots=True)
class DeliveryStatistics:
    """Counts since the consumer was made."""

    messages: int = 0
    """Finished messages."""
    failures: int = 0
    """Handler calls that raised or returned LATER."""
    redeliveries: int = 0
    """Handler calls for messages that had failed before."""
    timeouts: int = 0
    """Handler calls that exceeded their time limit."""
    unsure: int = 0
    """Times that calls of a queue were delayed because another member might own the queue."""


@dataclass(slots=True, eq=False)
class _HandlerCall:
    """Messages of a handler call, and its state. Used again for redeliveries."""

    source: QueueSource
    messages: list[Message]
    offsets: Sequence[int]
    started: Awaitable[Any] | None = None
    """Awaitable of a call that was started by `step_through`."""
    attempt: int = 1
    overdue_from: float = 0.0
    """Loop time at which the running call exceeds its limit."""
    has_returned: bool = False
    """The last call has ended."""
    is_abandoned: bool = False
    """The result of the running call is ignored."""
    interruption: asyncio.Timeout | None = None
    """Ends an orderly call early; None for a call in a thread."""


class HandlerDelivery:
    """Calls the handler for messages of many queues, which are served in a round robin.

    Args:
        handler: function of the program; a plain function runs in a thread.
        concurrency: maximum number of concurrent calls.
        batch_max: messages per call; if 1, the handler gets a Message, not a list.
        redelivery: decides about failed messages.
        order: rules of an orderly consumer; None: messages of a queue are handled concurrently.
        timeout_seconds: time limit of a call, after which it has failed; not with `order`.
    """

    def __init__(
        self,
        handler: Handler,
        *,
        concurrency: int,
        batch_max: int,
        redelivery: Redelivery,
        order: Order | None = None,
        timeout_seconds: float = CONSUME_TIMEOUT_SECONDS,
    ) -> None:
        self.statistics = DeliveryStatistics()
        self.ended = Changes()
        """Changes when a handler call with messages of a retired queue has ended."""
        self._handler = handler
        self._is_async = is_async(handler)
        self._concurrency = concurrency
        self._batch_max = batch_max
        self._redelivery = redelivery
        self._order = order
        self._timeout_seconds = timeout_seconds
        # Running calls, oldest first.
        self._calls: dict[_HandlerCall, None] = {}
        # With an order: queues with a running call, maybe of a reader that was dropped.
        self._busy: set[MessageQueue] = set()
        # A source is listed once while it has messages. So the size is bounded by the number of
        # sources and of failed calls, which the flow limits bound.
        self._work: WorkQueue[QueueSource | _HandlerCall | None] = WorkQueue()
        self._timers: dict[QueueSource | _HandlerCall, asyncio.TimerHandle] = {}
        self._workers: list[asyncio.Task[None]] = []
        self._threads: ThreadPoolExecutor | None = None
        self._stopping = False
        self._log_failures_from = 0.0
        self._log_unsure_from = 0.0
        self._failures_unlogged = 0
        self._loop_ran_at = 0.0

    async def run_worker(self) -> None:
        """Call the handler until `stop`. `concurrency` tasks run this."""
        while not self._stopping:
            work = await self._work.get()
            if self._stopping or work is None:
                return
            if self._work.ran_at > self._loop_ran_at:
                self._loop_ran_at = self._work.ran_at
            source = work.source if isinstance(work, _HandlerCall) else work
            # A revoked queue may still be listed; its next owner handles its messages.
            if not source.process_queue.retired:
                if not self._may_start(source):
                    self._delay(work, source)
                    continue
                handler_call = work if isinstance(work, _HandlerCall) else self._next_call(work)
                if handler_call is not None:
                    await self._run_call(handler_call)
            if time.monotonic() - self._loop_ran_at > _UNINTERRUPTED_SECONDS_MAX:
                # A handler that never waits would block heartbeats and pulls.
                await asyncio.sleep(0)
                self._loop_ran_at = time.monotonic()

    def start(
        self, start_task: Callable[[Callable[[], Awaitable[None]]], asyncio.Task[None]]
    ) -> None:
        """Start the workers. `start_task`: starts a task of the consumer."""
        if not self._is_async:
            self._threads = ThreadPoolExecutor(self._concurrency, "rockoon-handler")
        self._workers = [start_task(self.run_worker) for _ in range(self._concurrency)]

    def offer(self, source: QueueSource) -> None:
        """List a source that has waiting messages for the workers."""
        if not source.listed and source.process_queue.has_waiting:
            # Listed once, so that each queue gets the same number of turns.
            source.listed = True
            self._work.put(source)

    def cancel_redeliveries(self, source: QueueSource) -> None:
        """Cancel scheduled redeliveries of a source that was retired."""
        for work in list(self._timers):
            if work is source or (isinstance(work, _HandlerCall) and work.source is source):
                self._timers.pop(work).cancel()

    def stop(self) -> None:
        """Start no more calls; running calls continue."""
        self._stopping = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for _ in self._workers:
            self._work.put(None)

    async def drain(self, seconds_max: float) -> bool:
        """Stop, wait for running calls, and cancel them after the time limit. Returns true if all
        calls ended in time. A thread cannot be cancelled: its call continues, but its result is
        ignored."""
        self.stop()
        late = set(self._workers)
        try:
            if late:
                _, late = await asyncio.wait(late, timeout=seconds_max)
        finally:
            self.abandon()
        if late:
            await asyncio.wait(late)
        return not late

    def abandon(self) -> None:
        """Stop without waiting for running calls."""
        self.stop()
        for worker in self._workers:
            worker.cancel()
        if self._threads is not None:
            # Without waiting: a thread cannot be stopped, and one handler could block the shutdown.
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _next_call(self, source: QueueSource) -> _HandlerCall | None:
        """Run calls of a queue that end in one step; return the next longer call, or None."""
        # Not in steps: an orderly call can be interrupted, a call in a thread always waits, and a
        # list may have messages of several batches.
        if self._threads is not None or self._order is not None or self._batch_max > 1:
            return self._collect_call(source)
        run = source.process_queue.hand_out_run(_RUN_MESSAGES_MAX)
        handler_call = self._handle_run(source, run) if run is not None else None
        source.listed = False
        if source.process_queue.unfinished:
            self.offer(source)
        return handler_call

    def _handle_run(self, source: QueueSource, run: MessageRun[Batch]) -> _HandlerCall | None:
        count = run.stop - run.start
        if count == 1:
            messages: Iterable[Message] = (Message(run.batch, run.start),)
        else:
            messages = map(Message, repeat(run.batch), range(run.start, run.stop))
        rest_seconds = self._loop_ran_at + _UNINTERRUPTED_SECONDS_MAX - time.monotonic()
        ended, started = step_through(
            self._handler, messages, partial(self._may_continue, source), rest_seconds
        )
        if ended == count:
            self._finish(source, run.offsets)
            return None
        # Before `_finish`, which deletes a batch with its last message.
        source.process_queue.return_run(count - ended - (started is not None))
        if ended:
            self._finish(source, run.offsets[:ended])
        if started is None:
            return None
        message = Message(run.batch, run.start + ended)
        return _HandlerCall(source, [message], run.offsets[ended : ended + 1], started)

    def _may_continue(self, source: QueueSource) -> bool:
        return self._may_start(source) and not (self._stopping or source.process_queue.retired)

    def _collect_call(self, source: QueueSource) -> _HandlerCall | None:
        runs = source.process_queue.hand_out(self._batch_max)
        # Without an order the source is listed again now, so that other workers handle its messages
        # concurrently. With an order it is listed again when this call is finished.
        if self._order is None or not runs:
            source.listed = False
            self.offer(source)
        if not runs:
            return None
        messages: list[Message] = []
        for run in runs:
            messages += run.batch[run.start : run.stop]
        # Offsets without gaps stay a range, which is finished in one step.
        offsets = runs[0].offsets if len(runs) == 1 else list(chain(*(run.offsets for run in runs)))
        return _HandlerCall(source, messages, offsets)

    async def _run_call(self, handler_call: _HandlerCall) -> None:
        source = handler_call.source
        source.running += 1
        handler_call.has_returned = False
        handler_call.overdue_from = asyncio.get_running_loop().time() + self._timeout_seconds
        self._calls[handler_call] = None
        if self._order is not None:
            self._busy.add(source.queue)
        try:
            await self._deliver(handler_call)
        finally:
            # Also if the worker is cancelled, because this member may get the queue again.
            self._busy.discard(source.queue)
            self._end_call(handler_call)

    def _end_call(self, handler_call: _HandlerCall) -> None:
        if handler_call not in self._calls:
            return
        del self._calls[handler_call]
        handler_call.source.running -= 1
        if handler_call.source.process_queue.retired:
            self.ended.notify()

    def _may_start(self, source: QueueSource) -> bool:
        # Without an order `_busy` is empty.
        return not (self._busy and source.queue in self._busy) and source.may_start()

    def _delay(self, work: QueueSource | _HandlerCall, source: QueueSource) -> None:
        loop = asyncio.get_running_loop()
        self.statistics.unsure += 1
        if loop.time() >= self._log_unsure_from:
            self._log_unsure_from = loop.time() + _TRACEBACK_SECONDS_MIN
            log.warning(
                "calls for %s delayed: another member may own it, or an earlier call still runs",
                source.queue,
            )
        self._timers[work] = loop.call_later(_DELAY_SECONDS, self._enqueue, work)

    async def _deliver(self, handler_call: _HandlerCall) -> None:
        result, exception = await self._outcome(handler_call)
        handler_call.has_returned = True
        # The result has no effect: either the call was overdue, and `Redelivery` has stored its
        # messages; or it was an interrupted orderly call, whose messages the queue's next owner
        # handles.
        if handler_call.is_abandoned:
            return
        if result.verdict is Verdict.SUCCESS:
            self._finish_call(handler_call)
            return
        self.statistics.failures += 1
        pause = await self._pause_after(handler_call, exception, result.delay)
        if pause is None:
            self._finish_call(handler_call)
        else:
            self._deliver_later(handler_call, pause)

    async def _outcome(
        self, handler_call: _HandlerCall
    ) -> tuple[ConsumeResult, BaseException | None]:
        try:
            result = await self._call(handler_call)
            return read_result(result, orderly=self._order is not None), None
        except asyncio.CancelledError as cancelled:
            if is_being_cancelled():
                raise
            return ConsumeResult.LATER, cancelled
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything
            if not handler_call.is_abandoned:
                self._log_failure(handler_call, error)
            return ConsumeResult.LATER, error

    def _deliver_later(self, handler_call: _HandlerCall, pause: float) -> None:
        # The messages are not finished and not committed: the next owner pulls them.
        if self._stopping or handler_call.source.process_queue.retired:
            return
        for offset in handler_call.offsets:
            handler_call.source.attempts[offset] = handler_call.attempt
        handler_call.attempt += 1
        self._timers[handler_call] = asyncio.get_running_loop().call_later(
            pause, self._deliver_again, handler_call
        )

    def _log_failure(self, handler_call: _HandlerCall, error: Exception) -> None:
        now = asyncio.get_running_loop().time()
        if now < self._log_failures_from:
            self._failures_unlogged += 1
            return
        log.warning(
            "the handler failed on %s, delivery %d (%d failures not logged since the last line)",
            handler_call.messages[0],
            handler_call.attempt,
            self._failures_unlogged,
            exc_info=loggable(error),
        )
        self._log_failures_from = now + _TRACEBACK_SECONDS_MIN
        self._failures_unlogged = 0

    async def _call(self, handler_call: _HandlerCall) -> Any:
        argument: Any = handler_call.messages if self._batch_max > 1 else handler_call.messages[0]
        if self._threads is None:
            if self._order is None:
                started, handler_call.started = handler_call.started, None
                return await (self._handler(argument) if started is None else started)
            async with asyncio.timeout(None) as handler_call.interruption:
                return await self._handler(argument)
        loop = asyncio.get_running_loop()
        result = await loop.run_in_executor(self._threads, self._handler, argument)
        # A lambda around an async function is detected only by its result.
        return await result if inspect.isawaitable(result) else result

    async def _pause_after(
        self, handler_call: _HandlerCall, exception: BaseException | None, delay: Delay | None
    ) -> float | None:
        is_last = False
        if self._order is not None:
            attempts_max = self._order.attempts_max
            is_last = attempts_max is not None and handler_call.attempt >= attempts_max
            is_last = is_last or (delay is not None and (delay.level or 0) < 0)
            if not is_last:
                return suspension_seconds(delay, self._order.suspend_seconds)
        failure = HandlerFailure(
            handler_call.messages, handler_call.attempt, exception, delay, is_last
        )
        try:
            return await self._redelivery.failed(failure)
        except Exception as error:
            log.exception(
                "redelivery of %s failed, this consumer delivers it again",
                handler_call.messages[0],
                exc_info=loggable(error),
            )
            # A custom `Redelivery` that raises must not lose the message.
            return await LocalRedelivery().failed(failure)

    def _deliver_again(self, handler_call: _HandlerCall) -> None:
        self.statistics.redeliveries += 1
        self._enqueue(handler_call)

    def _enqueue(self, work: QueueSource | _HandlerCall) -> None:
        self._timers.pop(work, None)
        self._work.put(work)

    def _finish_call(self, handler_call: _HandlerCall) -> None:
        source = handler_call.source
        if handler_call.attempt > 1 and not source.process_queue.dropped:
            for offset in handler_call.offsets:
                source.attempts.pop(offset, None)
        self._finish(source, handler_call.offsets)

    def _finish(self, source: QueueSource, offsets: Sequence[int]) -> None:
        # Not `retired`: during a revocation, messages of the last calls are still finished.
        if source.process_queue.dropped:
            return
        self.statistics.messages += source.process_queue.done(offsets)
        source.finished.notify()
        if self._order is not None:
            source.listed = False
            self.offer(source)

    # Overdue calls

    async def watch_overdue(self) -> None:
        """Pass the messages of overdue calls to `Redelivery`, without end.

        If the messages are stored elsewhere, they count as finished and the result of the call is
        ignored. If this consumer is to redeliver them, it waits for the end of the call, so that a
        message has one call at a time. Source: ProcessQueue#cleanExpiredMsg.
        """
        loop = asyncio.get_running_loop()
        pause = self._timeout_seconds / _OVERDUE_CHECKS_PER_TIMEOUT
        while True:
            await asyncio.sleep(min(pause, _OVERDUE_CHECK_SECONDS_MAX))
            now = loop.time()
            for handler_call in list(self._calls):
                if now >= handler_call.overdue_from and not handler_call.has_returned:
                    await self._handle_overdue(handler_call)

    async def _handle_overdue(self, handler_call: _HandlerCall) -> None:
        if handler_call.source.process_queue.retired or handler_call not in self._calls:
            return
        # The call may return during the await below: then only this method may finish it.
        handler_call.is_abandoned = True
        self.statistics.timeouts += 1
        seconds = self._timeout_seconds
        log.error("the handler still runs with %s after %.0f s", handler_call.messages[0], seconds)
        exception = TimeoutError(f"the handler has not returned after {seconds:.0f} s")
        pause = await self._pause_after(handler_call, exception, None)
        if pause is None:
            self._end_call(handler_call)
            self._finish_call(handler_call)
            return
        # This consumer keeps the messages, so the result of the call counts.
        handler_call.is_abandoned = False
        if handler_call.has_returned:
            self._deliver_later(handler_call, pause)
        else:
            handler_call.overdue_from = asyncio.get_running_loop().time() + seconds + pause

    def interrupt(self, source: QueueSource) -> bool:
        """End the orderly calls of a revoked source, because its next owner may handle the same
        messages. A call in a thread continues. Returns true if a call was interrupted."""
        interrupted = False
        for handler_call in [
            handler_call for handler_call in self._calls if handler_call.source is source
        ]:
            if handler_call.interruption is not None and not handler_call.has_returned:
                interrupted = handler_call.is_abandoned = True
                handler_call.interruption.reschedule(asyncio.get_running_loop().time())
        return interrupted


class StartedCall:
    """Awaitable for the rest of a handler call whose first step has run. To be awaited once.

    Args:
        coroutine: the handler's coroutine after one step.
        waits_for: object that the coroutine yielded to the event loop in that step.
    """

    __slots__ = ("_coroutine", "_waits_for")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], waits_for: Any) -> None:
        self._coroutine: Final = coroutine
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, Any]:
        waits_for = self._waits_for
        try:
            while True:
                try:
                    sent = yield waits_for
                except GeneratorExit:
                    self._coroutine.close()
                    raise
                except BaseException as error:  # noqa: BLE001 - cancellation, above all, is the handler's
                    waits_for = self._coroutine.throw(error)
                else:
                    waits_for = self._coroutine.send(sent)
        except StopIteration as end:
            return end.value


async def _ended_call(value: object, error: BaseException | None) -> object:
    if error is not None:
        raise error
    return value


def step_through(
    handler: Callable[[Any], Any],
    arguments: Iterable[Any],
    may_start: Callable[[], bool],
    seconds_max: float,
) -> tuple[int, Awaitable[Any] | None]:
    """Call an async handler for one argument after the other while calls succeed without waiting.

    Args:
        handler: called in the running task.
        arguments: one for each call.
        may_start: true if a call may start; the caller has checked it for the first call.
        seconds_max: no call starts later than this.

    Returns:
        The number of calls that ended with None or True, and an awaitable of the next call, which
        waits, raised or returned another value. None if all calls succeeded or were not started.
    """
    clock = time.monotonic
    now = clock()
    until, checked_until = now + seconds_max, now + _START_CHECK_SECONDS
    ended = 0
    for argument in arguments:
        now = clock()
        if now >= checked_until:
            if now >= until or not may_start():
                break
            checked_until = now + _START_CHECK_SECONDS
        try:
            call = handler(argument)
            if type(call) is not CoroutineType:
                return ended, call
            waits_for = call.send(None)
        except StopIteration as end:
            value = end.value
            if value is None or value is True:
                ended += 1
                continue
            return ended, _ended_call(value, None)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the user's code
            return ended, _ended_call(None, error)
        return ended, StartedCall(call, waits_for)
    return ended, None
