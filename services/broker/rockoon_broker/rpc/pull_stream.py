"""PullStream calls: send a reader the batches of the queues that it subscribes to.

A subscription is listed (its queue will be read), parked (its queue has no new message) or without
credit; only a listed one costs CPU. A batch is read right before it is sent. While flow control
stops the stream no batch is read, so that a slow or vanished reader uses no memory.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from rockoon_broker.broker import Broker
from rockoon_broker.clock import Clock
from rockoon_broker.cold_reads import Loads
from rockoon_broker.cooperative import TURN_SECONDS
from rockoon_broker.long_poll import PullProgress, Step
from rockoon_broker.pull import WAIT_MS_MAX, PullResult
from rockoon_broker.rpc.access_rules import pulled as needs_of_pull
from rockoon_broker.rpc.pull_answers import (
    PullAnswer,
    answer_of,
    newest_answer,
    query_of,
    refusal_of,
    stream_reply,
)
from rockoon_broker.store.log.file_reads import ColdRead, mode
from rockoon_broker.store.reading.reader import GetResult, GetStatus
from rockoon_core.errors import Busy, Internal, InvalidArgument, RockoonError
from rockoon_proto.v1 import broker_pb2
from rockoon_rpc.server_call import ServerCall
from rockoon_runtime.access.callers import Caller
from rockoon_runtime.error_guard import SUCCESS, Call, CallTimes

if TYPE_CHECKING:
    from rockoon_broker.rpc.pull_tracing import PullTracing
from dataclasses import dataclass, field

from rockoon_broker.pull import PullQuery
from rockoon_broker.store.queues.consume_queue import QueueKey


@dataclass(slots=True, eq=False)
class PullSubscription:
    """A queue of a stream."""

    number: int
    """Id of the subscription, chosen by the reader."""
    query: PullQuery
    queue: QueueKey = field(init=False)
    bounds: tuple[int, int] = field(init=False)
    """Maximum of messages and bytes of one answer."""
    is_plain: bool = field(init=False)
    """True without a filter."""
    check: Callable[[], None]
    """Raises if the queue may not be read."""
    progress: PullProgress
    """The offset to read next, and the offset that the reader knows."""
    since_seconds: float
    """Monotonic time since which the reader waits for an answer; `since_ns`: in epoch time."""
    since_ns: int
    messages: int = 0
    """Credit, messages. Without it, or without credit in `bytes`, the queue is not read."""
    bytes: int = 0
    is_ready: bool = False
    """The broker has routes at least as new as the reader's."""
    loading: "asyncio.Future[bool] | None" = None
    """Load of pages for the next read; until it is done the subscription is not listed."""
    loads: Loads | None = None
    """Pages that were loaded for the next read."""
    is_over: bool = False
    is_listed: bool = False
    is_answered: bool = False
    """The reader has an answer: the first one, sent immediately, confirms the subscription."""
    is_parked: bool = False
    """The next arrival lists the subscription."""
    is_watching: bool = False
    """`notify` is registered."""
    notify: Callable[[], bool] | None = None
    """Callback for `WaitingPulls`; None until the subscription is parked for the first time."""
    progress_timer: asyncio.TimerHandle | None = None
    """Reports to the reader the offset after messages that its filter did not match."""
    ends: GetResult = field(
        default_factory=lambda: GetResult(GetStatus.NO_MATCHED_MESSAGE, 0, 0, 0)
    )
    """Offsets of the queue's ends at the last read."""

    def __post_init__(self) -> None:
        query = self.query
        self.queue = query.topic, query.queue_id
        self.bounds = query.bounds
        self.is_plain = query.tag_codes is None and query.expression is None


log = logging.getLogger(__name__)

# Interval of empty replies: without replies for several intervals a reader assumes that the broker
# is gone.
BEAT_SECONDS = 5.0
# With this many bytes, a reply gets no further batch.
REPLY_BYTES = 1 << 20
LENGTH_BYTES = 4
# Unsent answers; with more, no requests are read.
UNSENT_MAX = 1024
# All streams together; each subscription has about a kibibyte.
SUBSCRIPTIONS_MAX = 100_000
# Counted as calls of `Pull`, which does the same for one batch.
PULLED = Call("pull", SUCCESS, may_wait=True)
# After these statuses the subscription continues.
_CONTINUES = frozenset(
    {
        GetStatus.FOUND,
        GetStatus.NO_MATCHED_MESSAGE,
        GetStatus.MESSAGE_WAS_REMOVING,
        GetStatus.OFFSET_FOUND_NULL,
    }
)


class PullStreamCall:
    """One PullStream call. Used by the event loop's thread only.

    Args:
        broker: open; the stream ends with it.
        caller: the client, whose permissions are checked; None may read all queues.
        tasks: owns the tasks that wait for routes or for other copies of the log.
        calls: records the time of each batch, from the start of the reader's wait.
        clock: measures the time.
        confirm_leader: waits until it is certain that this broker leads its log; None if the log
            has one copy.
        room: returns how many further subscriptions all streams may have.
        tracing: records answers; None without tracing.
        reader: gets answers directly while `answers` waits; None: `answers` yields all of them.
    """

    def __init__(
        self,
        broker: Broker,
        caller: Caller | None,
        tasks: asyncio.TaskGroup,
        calls: CallTimes,
        clock: Clock,
        *,
        confirm_leader: Callable[[], Awaitable[object]] | None,
        room: Callable[[], int],
        tracing: "PullTracing | None",
        reader: ServerCall | None = None,
    ) -> None:
        self._broker = broker
        self._caller = caller
        self._tasks = tasks
        self._calls = calls
        self._clock = clock
        self._confirm_leader = confirm_leader
        self._room = room
        self._tracing = tracing
        self._reader = reader
        self._loop = asyncio.get_running_loop()
        self._subscriptions: dict[int, PullSubscription] = {}
        # Each subscription at most once, so that queues are read in turns.
        self._listed: deque[PullSubscription] = deque()
        # Bounded: one progress report per subscription, and refusals by UNSENT_MAX.
        self._answers: list[PullAnswer] = []
        self._sent = asyncio.Event()
        self._wanted = asyncio.Event()
        # `answers` waits: new answers are sent at the end of the loop iteration, without waking it.
        self._is_waiting = False
        self._is_sending = False
        self._refusal: Exception | None = None
        self._is_over = False
        self._beat_is_due = False
        self._has_sent = False
        self._beat: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._subscriptions)

    async def read(self, requests: AsyncIterator[broker_pb2.PullStreamRequest]) -> None:
        """Handle requests until the reader ends them. Root of a task."""
        try:
            async for request in requests:
                self._on_request(request)
                while len(self._answers) > UNSENT_MAX and not self._is_over:
                    self._sent.clear()
                    await self._sent.wait()
        except Exception as failure:  # noqa: BLE001 - `answers` raises it in the call
            self._refusal = self._refusal or failure
        finally:
            self._is_over = True
            self._wanted.set()

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        async def guarded() -> None:
            try:
                await work
            except Exception as failure:  # noqa: BLE001 - as in `read`; only this stream ends
                self.end(failure)

        self._tasks.create_task(guarded(), name=name)

    def end(self, refusal: Exception) -> None:
        """End the stream with an error for the reader."""
        self._refusal = refusal
        self._is_over = True
        self._wanted.set()

    async def answers(self) -> AsyncIterator[list[PullAnswer]]:
        """Yield answers as soon as there are any, and empty lists as keep-alive.

        Raises:
            RockoonError: the error that ends the stream.
        """
        self._beat = self._loop.call_later(BEAT_SECONDS, self._on_beat)
        try:
            while True:
                while not (self._listed or self._answers or self._beat_is_due or self._is_over):
                    self._wanted.clear()
                    self._is_waiting = True
                    await self._wanted.wait()
                    self._is_waiting = False
                if self._refusal is not None:
                    raise self._refusal
                if self._is_over:
                    return
                found = self._next_answers()
                if found or self._beat_is_due:
                    self._beat_is_due, self._has_sent = False, True
                    yield found
                else:
                    # Filters matched none of the messages read: yield to other tasks.
                    await asyncio.sleep(0)
        finally:
            self._beat.cancel()
            self._is_waiting = False
            for subscription in list(self._subscriptions.values()):
                self._remove(subscription)

    def _on_beat(self) -> None:
        self._beat = self._loop.call_later(BEAT_SECONDS, self._on_beat)
        self._beat_is_due, self._has_sent = not self._has_sent, False
        self._wanted.set()

    # Requests

    def _on_request(self, request: broker_pb2.PullStreamRequest) -> None:
        room = self._room() if request.subscribe else 0
        late: list[tuple[PullSubscription, int]] = []
        revision = self._broker.topics.table.revision
        for wanted in request.subscribe:
            subscription = self._subscribed(wanted, room)
            room -= 1
            if subscription is None:
                continue
            if wanted.pull.route_revision > revision:
                late.append((subscription, wanted.pull.route_revision))
            else:
                subscription.is_ready = True
        for credit in request.credit:
            if credit.messages < 0 or credit.bytes < 0:
                raise InvalidArgument(reason="credit is negative")
            found = self._subscriptions.get(credit.id)
            if found is not None:
                found.messages += credit.messages
                found.bytes += credit.bytes
                # The next arrival lists a parked subscription.
                if not found.is_parked:
                    self._list(found)
        for number in request.unsubscribe:
            found = self._subscriptions.get(number)
            if found is not None:
                self._remove(found)
        if late:
            self._start(self._catch_up(late), "pull-stream-routes")

    def _subscribed(
        self, wanted: broker_pb2.PullSubscription, room: int
    ) -> PullSubscription | None:
        """Return a new subscription; None if it is refused, for which an answer is queued."""
        if wanted.id in self._subscriptions:
            raise InvalidArgument(reason=f"subscription {wanted.id} has not ended")
        pull = wanted.pull
        try:
            if self._caller is not None:
                for action, resource in needs_of_pull(pull):
                    self._caller.require(action, resource)
            query = query_of(pull)
            if room <= 0:
                raise Busy(reason=f"{SUBSCRIPTIONS_MAX} queues are subscribed, the maximum")
        except RockoonError as refusal:
            self._queue_answer(refusal_of(refusal, wanted.id))
            return None
        subscription = PullSubscription(
            wanted.id,
            query,
            self._broker.readable(query, pull.route_revision, pull.create_revision),
            PullProgress(asked_offset=query.offset, offset=query.offset),
            self._clock.monotonic_seconds(),
            0 if self._tracing is None else time.time_ns(),
        )
        self._subscriptions[wanted.id] = subscription
        return subscription

    async def _catch_up(self, late: list[tuple[PullSubscription, int]]) -> None:
        """Wait for routes that the reader has and this broker has not."""
        queues = [(each.query.topic, each.query.queue_id) for each, _ in late]
        await self._broker.topics.catch_up(queues, max(revision for _, revision in late))
        for subscription, _ in late:
            subscription.is_ready = True
            self._list(subscription)

    def _loaded(self, subscription: PullSubscription, _: "asyncio.Future[bool]") -> None:
        subscription.loading = None
        self._list(subscription)

    def _list(self, subscription: PullSubscription) -> None:
        if (
            subscription.is_ready
            and subscription.messages > 0
            and subscription.bytes > 0
            and not (subscription.is_over or subscription.is_listed)
            and subscription.loading is None
        ):
            subscription.is_listed = True
            self._listed.append(subscription)
            self._wake()

    def _queue_answer(self, answer: PullAnswer) -> None:
        self._answers.append(answer)
        self._wake()

    def _wake(self) -> None:
        """Have answers sent, at the end of the loop iteration if `answers` waits."""
        if self._reader is None or not self._is_waiting:
            self._wanted.set()
        elif not self._is_sending:
            self._is_sending = True
            # After the replies to producers: if they share the connection, one write sends both.
            after_confirmed = self._broker.appends.after_confirmed
            if after_confirmed is None:
                self._reader.connection.before_flush(self._send)
            else:
                after_confirmed.append(self._send_and_flush)

    def _send(self) -> None:
        """Send the answers of this loop iteration, or wake `answers` if it must send them."""
        self._is_sending = False
        reader = self._reader
        assert reader is not None
        if not self._is_waiting or self._is_over or not reader.has_room:
            self._wanted.set()
            return
        try:
            if self._caller is not None:
                self._caller.require_open()
            reader.check_may_answer()
        except RockoonError:
            # `answers` gets the same error, and raises it in the call.
            self._wanted.set()
            return
        try:
            if found := self._next_answers():
                self._has_sent = True
                reader.queue_message(stream_reply(found))
        except Exception as failure:  # noqa: BLE001 - as in `read`: else the queues would hang
            self.end(failure)
        if self._listed or self._answers:
            self._wanted.set()

    def _send_and_flush(self) -> None:
        """Send messages in the loop iteration in which they have become durable."""
        self._send()
        if self._reader is not None:
            self._reader.connection.flush()

    def _remove(self, subscription: PullSubscription) -> None:
        subscription.is_over = True
        self._subscriptions.pop(subscription.number, None)
        subscription.is_parked = False
        if subscription.notify is not None:
            self._broker.waiting.unwatch(subscription.queue, subscription.notify)
        if subscription.progress_timer is not None:
            subscription.progress_timer.cancel()
        if subscription.loading is not None:
            subscription.loading.cancel()

    # Answers

    def _next_answers(self) -> list[PullAnswer]:
        """Return the queued answers and batches of listed subscriptions, for one reply."""
        answers: list[PullAnswer] = []
        if self._answers:
            answers, self._answers = self._answers, answers
            self._sent.set()
        size, listed = 0, self._listed
        started = self._clock.monotonic_seconds()
        while listed and size < REPLY_BYTES:
            subscription = listed.popleft()
            subscription.is_listed = False
            if subscription.is_over:
                continue
            answer = self._read(subscription)
            if answer is not None:
                answers.append(answer)
                size += len(answer.frames)
            if listed and self._clock.monotonic_seconds() - started > TURN_SECONDS:
                break
        return answers

    def _read(self, subscription: PullSubscription) -> PullAnswer | None:
        query, progress, loads = subscription.query, subscription.progress, subscription.loads
        try:
            subscription.check()
            mode.cached_only = loads is None or not loads.loop_waits
            newest = self._newest(subscription) if subscription.is_plain else None
            if newest is not None:
                return newest
            found = self._broker.pulls.read(
                query, progress.offset, subscription.messages, subscription.bytes
            )
        except ColdRead as cold:
            # Other queues are read while a thread loads the pages.
            subscription.loads = loads or Loads()
            subscription.loading = subscription.loads.load(cold.disk, cold.missing)
            subscription.loading.add_done_callback(partial(self._loaded, subscription))
            return None
        except RockoonError as refusal:
            return self._refused(subscription, refusal)
        except Exception as failure:
            # A bug that concerns one queue must not end the stream.
            log.exception("unexpected error while reading a queue (bug); its subscription ends")
            return self._refused(subscription, Internal(service="broker", reason=failure))
        finally:
            mode.cached_only = False
        subscription.loads = None
        read_at = progress.offset
        step = progress.step(found)
        if step is Step.ANSWER:
            return self._answer(subscription, found, read_at)
        subscription.ends = found
        if step is Step.CONTINUE:
            self._list(subscription)
        else:
            self._park(subscription)
        if not subscription.is_answered and step is Step.WAIT:
            return self._answer_nothing(subscription, found)
        if progress.offset > progress.asked_offset and subscription.progress_timer is None:
            seconds = min(query.wait_ms, WAIT_MS_MAX) / 1000
            subscription.progress_timer = self._loop.call_later(
                seconds, self._report_progress, subscription
            )
        return None

    def _newest(self, subscription: PullSubscription) -> PullAnswer | None:
        """Return the newest batch if the reader has read all batches before it, else None.

        Raises:
            StoreClosed: the broker is stopping.
            ColdRead: see `file_reads`.
        """
        progress, (messages_max, bytes_max) = subscription.progress, subscription.bounds
        found = self._broker.store.newest(*subscription.queue, progress.offset)
        if found is None or self._tracing is not None:
            return None
        count, size = len(found.lengths) // LENGTH_BYTES, len(found.frames)
        if (
            count > messages_max
            or count > subscription.messages
            or size > bytes_max
            or size > subscription.bytes
        ):
            return None
        next_offset = progress.offset + count
        subscription.loads = None
        self._count(subscription, count, size)
        progress.asked_offset = progress.offset = next_offset
        if next_offset == found.max_offset:
            self._park(subscription)
        else:
            self._list(subscription)
        return newest_answer(found, next_offset, subscription.number)

    def _answer(
        self, subscription: PullSubscription, found: GetResult, read_at: int
    ) -> PullAnswer | None:
        """Return the answer for the result of a read; None: it is sent later."""
        progress = subscription.progress
        status, next_offset = progress.answer(found)
        continues = status in _CONTINUES and next_offset > read_at
        if not continues:
            self._remove(subscription)
        result = PullResult(status, next_offset, found)
        answer = answer_of(result, subscription.number, ended=not continues)
        if self._confirm_leader is not None and read_at > found.max_offset:
            # A deposed leader that has not noticed it knows an older end.
            self._start(self._answer_as_leader(subscription, answer), "pull-stream-end")
            return None
        if self._tracing is not None:
            asked = replace(subscription.query, offset=progress.asked_offset)
            self._tracing.record_pull(asked, result, subscription.since_ns)
            subscription.since_ns = time.time_ns()
        self._count(subscription, found.count, len(found.frames))
        if continues:
            subscription.progress = PullProgress(asked_offset=next_offset, offset=next_offset)
            if next_offset == found.max_offset:
                # No message can have arrived: there was no `await` since the read.
                self._park(subscription)
            else:
                self._list(subscription)
        return answer

    def _count(self, subscription: PullSubscription, messages: int, size_bytes: int) -> None:
        """Count an answer, and deduct its credit."""
        self._broker.pulls.count(subscription.query, messages, size_bytes)
        subscription.messages -= messages
        subscription.bytes -= size_bytes
        now_seconds = self._clock.monotonic_seconds()
        self._calls.record(PULLED, now_seconds - subscription.since_seconds)
        subscription.since_seconds = now_seconds
        subscription.is_answered = True

    def _answer_nothing(self, subscription: PullSubscription, found: GetResult) -> PullAnswer:
        progress = subscription.progress
        status, next_offset = progress.answer(found)
        progress.asked_offset = progress.offset
        subscription.is_answered = True
        return answer_of(PullResult(status, next_offset, found), subscription.number)

    def _report_progress(self, subscription: PullSubscription) -> None:
        subscription.progress_timer = None
        progress = subscription.progress
        if progress.offset > progress.asked_offset:
            nothing = replace(subscription.ends, status=GetStatus.NO_MATCHED_MESSAGE)
            nothing = replace(nothing, next_offset=progress.offset)
            self._queue_answer(self._answer_nothing(subscription, nothing))

    def _refused(self, subscription: PullSubscription, refusal: RockoonError) -> PullAnswer:
        self._remove(subscription)
        seconds = self._clock.monotonic_seconds() - subscription.since_seconds
        self._calls.record(PULLED._replace(answer=refusal.name.lower()), seconds)
        return refusal_of(refusal, subscription.number)

    async def _answer_as_leader(self, subscription: PullSubscription, answer: PullAnswer) -> None:
        assert self._confirm_leader is not None
        try:
            await self._confirm_leader()
        except RockoonError as refusal:
            answer = refusal_of(refusal, subscription.number)
        self._queue_answer(answer)

    def _park(self, subscription: PullSubscription) -> None:
        subscription.is_parked = True
        if not subscription.is_watching:
            subscription.is_watching = True
            if subscription.notify is None:
                subscription.notify = partial(self._arrived, subscription)
            self._broker.waiting.watch(subscription.queue, subscription.notify)

    def _arrived(self, subscription: PullSubscription) -> bool:
        if not subscription.is_parked:
            # The reader has unread messages: arrivals need not notify it.
            subscription.is_watching = False
            return False
        subscription.is_parked = False
        self._list(subscription)
        return True
