"""Acquirer: acquires messages for waiting receivers, in few calls to the offset service.

An acquire call is due for a receive queue when a receiver is added, when a message queue has grown,
when a message becomes visible, and once per second while a receiver waits: the offset service does
not notify this process of messages that other processes release.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf

from rockoon.errors import (
    ConsumeDisabled,
    GroupNotFound,
    OffsetServiceUnavailable,
    QueueHeld,
    QueueNotFound,
    RockoonError,
    TopicNotFound,
    from_wire,
)
from rockoon.net.connection import Connection
from rockoon.receiving.kept_batches import CANDIDATES_MAX
from rockoon.receiving.offset_reader import OffsetReader
from rockoon.receiving.receive_queue import (
    REPORT_SECONDS,
    FilterConflicts,
    LostCalls,
    ReceiveQueue,
    ReceiverName,
    WaitingReceiver,
    to_report,
)
from rockoon.receiving.tail_reader import TailReader, TrackedQueue, TrackedTopic
from rockoon_core.message_queue import (
    ACQUIRES_PER_CALL_MAX,
    QUEUES_PER_CALL_MAX,
    MessageQueue,
    in_calls,
    queue_from_wire,
)
from rockoon_core.repeated_lines import limited
from rockoon_format.names import retry_topic
from rockoon_proto.v1.in_flight_pb2 import AcquireReply, AcquireRequest, Granted, QueueReach, Wanted

log = limited(logging.getLogger(__name__))

TICK_SECONDS = 1.0
TICK_RASTER_SECONDS = 0.25
VISIBLE_SECONDS_MIN = 0.02
# How long a call waits for the first queue ends of a topic: one broker that does not answer must
# not block the queues of the other brokers.
READY_SECONDS_MAX = 0.5
CALLS_MAX = 4
OWN_CALLS_MAX = 16
# In a FIFO group, each receiver has a separate entry in a call. A call has entries for this many
# receivers: if they get no message, no other receiver would get one.
FIFO_RECEIVERS_MAX = 16
CANDIDATE_ROUNDS_MAX = 3


@dataclass(slots=True, eq=False)
class ReceivingGroup:
    """State of a consumer group that has receivers in this process."""

    name: str
    joined: set[str] = field(default_factory=set)
    """Topics that the group is subscribed to."""
    is_fifo: bool = False
    route_revision: int = 0
    receive_queues: set[ReceiveQueue] = field(default_factory=set)
    acquired_ends: dict[MessageQueue, int] = field(default_factory=dict)
    """One past the largest offset that this process acquired, per message queue."""
    min_candidates: dict[MessageQueue, int] = field(default_factory=dict)
    """In a FIFO group: first offset that the offset service needs candidates of."""
    join_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    refusals_logged: set[tuple[MessageQueue, type[RockoonError]]] = field(default_factory=set)
    """Refusals that were logged: message queue and class of the error."""
    joining_receivers: int = 0
    """Number of receivers that join and are in no receive queue yet."""


@dataclass(slots=True, eq=False)
class PendingAcquire:
    """One entry of an acquire call: messages for receivers of one receive queue."""

    receive_queue: ReceiveQueue
    group: ReceivingGroup
    call_number: int
    messages_max: int
    receiver: WaitingReceiver | None
    """In a FIFO group, the receiver that gets the messages; None: any receiver of `names`."""
    names: Sequence[ReceiverName]
    """Receivers that hold the granted messages, in the order of `Acquired.share`."""
    candidates_moved: bool = False
    """In a FIFO group: the offset service needs candidates from another offset."""
    is_partial: bool = False
    """It names only message queues that are known to have enough messages."""
    stale_hint: bool = False
    """It was partial, and other processes had acquired the known messages."""
    pending_reads: int = 0
    """Number of reads that must end before the entry is complete."""


class Acquirer:
    """Makes the calls of one connection.

    Args:
        tail_reader: known ends of the message queues.
        reader: reads candidates.
        deliver: delivers granted messages to receivers; returns their number.
    """

    def __init__(
        self,
        cluster: Connection,
        tail_reader: TailReader,
        reader: OffsetReader,
        deliver: Callable[[PendingAcquire, Granted], int],
    ) -> None:
        self._cluster = cluster
        self._tail_reader = tail_reader
        self._reader = reader
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._due: dict[ReceiveQueue, ReceivingGroup] = {}
        self._by_topic: dict[str, dict[ReceiveQueue, ReceivingGroup]] = {}
        self._start_is_scheduled = False
        self._filter_conflicts = FilterConflicts()
        self._lost_calls = LostCalls()
        self._releasing: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._own_calls = 0
        self._is_closed = False

    # When a call is due

    def update_tracking(self, receive_queue: ReceiveQueue, group: ReceivingGroup) -> None:
        """Track the topics of a receive queue while it has waiting receivers."""
        if receive_queue.waiting and not receive_queue.topics_used:
            receive_queue.topics_used = [
                self._tail_reader.of(topic) for topic in _topics(receive_queue)
            ]
            for topic in receive_queue.topics_used:
                self._tail_reader.add_users(topic, 1)
                self._by_topic.setdefault(topic.topic, {})[receive_queue] = group
        elif receive_queue.topics_used and not receive_queue.waiting:
            self._track(receive_queue, ())
            for topic in receive_queue.topics_used:
                self._tail_reader.add_users(topic, -1)
                receive_queues = self._by_topic[topic.topic]
                del receive_queues[receive_queue]
                if not receive_queues:
                    del self._by_topic[topic.topic]
            receive_queue.topics_used = []
            self._due.pop(receive_queue, None)
            if receive_queue.timer is not None:
                receive_queue.timer.cancel()
                receive_queue.timer = None

    def receiver_added(
        self, receive_queue: ReceiveQueue, group: ReceivingGroup, wait_seconds: float
    ) -> None:
        """A receiver was added: make a call due, unless a recent one returned too few messages."""
        self.update_tracking(receive_queue, group)
        left_seconds = receive_queue.exhausted_at + TICK_SECONDS - self._loop.time()
        is_exhausted = left_seconds > 0 and receive_queue.exhausted_grown == self._grown(
            receive_queue
        )
        if is_exhausted and wait_seconds >= TICK_SECONDS:
            self._track(receive_queue, receive_queue.topics_used)
            visible_seconds = receive_queue.visible_at - self._loop.time()
            self.make_due_in(receive_queue, group, max(min(left_seconds, visible_seconds), 0.0))
        else:
            self.make_due(receive_queue, group)

    def make_due(self, receive_queue: ReceiveQueue, group: ReceivingGroup) -> None:
        """Include a receive queue in the next call."""
        if receive_queue.is_calling:
            receive_queue.is_due_again = True
        elif receive_queue.waiting and not self._is_closed:
            self._due[receive_queue] = group
            if not self._start_is_scheduled:
                self._start_is_scheduled = True
                # Not now: receive queues that become due in this loop iteration share the call.
                self._loop.call_soon(self._start_due_calls)

    def make_due_in(
        self, receive_queue: ReceiveQueue, group: ReceivingGroup, seconds: float
    ) -> None:
        """Make a receive queue due after a time, unless it becomes due earlier."""
        at = self._loop.time() + seconds
        if receive_queue.timer is not None:
            if receive_queue.timer_at <= at:
                return
            receive_queue.timer.cancel()
        if receive_queue.waiting:
            # In uvloop, the handle of an expired timer has no time, so it is stored here.
            receive_queue.timer = self._loop.call_at(at, self._on_timer, receive_queue, group)
            receive_queue.timer_at = at

    def queue_grown(self, topic: str) -> None:
        """A message queue of a topic has new messages."""
        for receive_queue, group in self._by_topic.get(topic, {}).items():
            self.make_due(receive_queue, group)

    def messages_settled(self, group: ReceivingGroup, visible_after_seconds: float | None) -> None:
        """Messages of a group were acknowledged here (None), or become visible after this time."""
        for receive_queue in group.receive_queues:
            if visible_after_seconds is not None or group.is_fifo:
                receive_queue.exhausted_at = -inf
            if visible_after_seconds is not None and visible_after_seconds > 0:
                self.make_due_in(receive_queue, group, visible_after_seconds)
            elif visible_after_seconds is not None or group.is_fifo:
                receive_queue.full_call_at = -inf
                self.make_due(receive_queue, group)

    async def close(self, seconds_max: float) -> None:
        """Start no more calls; wait for running ones, then report lost calls."""
        self._is_closed = True
        self._due.clear()
        if self._tasks:
            _, left = await asyncio.wait(self._tasks, timeout=seconds_max)
            for task in left:
                task.cancel()
            if left:
                await asyncio.wait(left)
        if self._releasing is not None:
            self._releasing.cancel()
        if self._lost_calls:
            with suppress(RockoonError, TimeoutError):
                async with asyncio.timeout(seconds_max):
                    await self._call(AcquireRequest(), [])

    def _grown(self, receive_queue: ReceiveQueue) -> int:
        return sum(self._tail_reader.of(topic).grown for topic in _topics(receive_queue))

    def _on_timer(self, receive_queue: ReceiveQueue, group: ReceivingGroup) -> None:
        receive_queue.timer = None
        receive_queue.full_call_at = -inf
        self.make_due(receive_queue, group)

    def _track(self, receive_queue: ReceiveQueue, topics: Sequence[TrackedTopic]) -> None:
        if topics is receive_queue.topics_tracked or (
            not topics and not receive_queue.topics_tracked
        ):
            return
        for topic in receive_queue.topics_tracked:
            self._tail_reader.add_trackers(topic, -1)
        for topic in topics:
            self._tail_reader.add_trackers(topic, 1)
        receive_queue.topics_tracked = list(topics)

    # Calls

    def _start_due_calls(self) -> None:
        self._start_is_scheduled = False
        shared: dict[ReceiveQueue, ReceivingGroup] = {}
        for receive_queue, group in list(self._due.items()):
            has_own_call = receive_queue.has_own_call or group.is_fifo
            if not self._is_ready(receive_queue) or (group.is_fifo and receive_queue.pending):
                # Retried when the queue ends are known, or when the wait for them is over.
                del self._due[receive_queue]
                self.make_due_in(receive_queue, group, READY_SECONDS_MAX)
            elif not has_own_call:
                shared[receive_queue] = group
            elif self._own_calls < OWN_CALLS_MAX:
                del self._due[receive_queue]
                self._own_calls += 1
                self._start_call({receive_queue: group}, has_own_call=True)
        for some in in_calls(shared, ACQUIRES_PER_CALL_MAX):
            if len(self._tasks) - self._own_calls >= CALLS_MAX:
                break
            for receive_queue in some:
                del self._due[receive_queue]
            self._start_call(
                {receive_queue: shared[receive_queue] for receive_queue in some},
                has_own_call=False,
            )

    def _is_ready(self, receive_queue: ReceiveQueue) -> bool:
        # The tails are found each time, because the topic may have new queues.
        now = self._loop.time()
        tails = [self._tail_reader.of(topic) for topic in _topics(receive_queue)]
        return all(
            each.is_ready or now - each.queues_added_at >= READY_SECONDS_MAX for each in tails
        )

    def _start_call(
        self, receive_queues: dict[ReceiveQueue, ReceivingGroup], *, has_own_call: bool
    ) -> None:
        for receive_queue in receive_queues:
            receive_queue.is_calling, receive_queue.is_due_again = True, False
            receive_queue.calls_started += 1
            receive_queue.exhausted_at, receive_queue.exhausted_grown = (
                -inf,
                self._grown(receive_queue),
            )
            if receive_queue.timer is not None:
                receive_queue.timer.cancel()
                receive_queue.timer = None
        task = self._cluster.tasks.create_task(
            self._acquire(receive_queues), name="rockoon acquire"
        )
        self._tasks.add(task)

        def done(_: object) -> None:
            self._tasks.discard(task)
            self._own_calls -= has_own_call
            for receive_queue, group in receive_queues.items():
                receive_queue.is_calling = False
                if receive_queue.is_due_again:
                    self.make_due(receive_queue, group)
                else:
                    # Rounded up to a common raster, so that receive queues share calls.
                    delay = -(self._loop.time() + TICK_SECONDS) % TICK_RASTER_SECONDS
                    self.make_due_in(receive_queue, group, TICK_SECONDS + delay)
            if self._due and not self._start_is_scheduled:
                self._start_is_scheduled = True
                self._loop.call_soon(self._start_due_calls)

        task.add_done_callback(done)

    async def _acquire(self, receive_queues: dict[ReceiveQueue, ReceivingGroup]) -> None:
        try:
            acquires, reply = await self._call_with_candidates(receive_queues)
        except RockoonError as error:
            await self._call_failed(receive_queues, error)
            return
        except Exception as error:
            log.exception("unexpected error while acquiring messages (bug)")
            await self._call_failed(
                receive_queues, RockoonError(f"acquiring messages failed (bug): {error!r}")
            )
            return
        # Receive queue → True if more messages may be available.
        more: dict[ReceiveQueue, bool] = {}
        broken: set[ReceiveQueue] = set()
        for acquire, granted in zip(acquires, reply.granted, strict=True):
            if granted.HasField("error"):
                self._acquire_refused(acquire, from_wire(granted.error))
                continue
            try:
                is_more = self._handle_granted(acquire, granted, reply.as_of_ms)
            except Exception as error:
                # Receivers of the other entries still get their messages.
                log.exception(
                    "unexpected error while delivering messages of group %s (bug)",
                    acquire.group.name,
                )
                broken.add(acquire.receive_queue)
                acquire.receive_queue.fail(
                    RockoonError(f"delivering messages failed (bug): {error!r}")
                )
                continue
            more[acquire.receive_queue] = more.get(acquire.receive_queue, False) or is_more
        for receive_queue in broken:
            more.pop(receive_queue, None)
            receive_queue.has_own_call = True
            self.update_tracking(receive_queue, receive_queues[receive_queue])
        for receive_queue, is_more in more.items():
            self._schedule_next(receive_queue, receive_queues[receive_queue], is_more)

    def _handle_granted(self, acquire: PendingAcquire, granted: Granted, as_of_ms: int) -> bool:
        """Deliver the messages of an entry; return True if more may be available."""
        acquire.receive_queue.has_own_call = False
        acquire.receive_queue.backoff.reset()
        found = self._deliver(acquire, granted)
        self._apply_reply(acquire, granted, as_of_ms)
        if acquire.stale_hint:
            acquire.receive_queue.full_until = self._loop.time() + TICK_SECONDS
            return True
        return found >= acquire.messages_max or acquire.candidates_moved

    async def _call_with_candidates(
        self, receive_queues: dict[ReceiveQueue, ReceivingGroup]
    ) -> tuple[list[PendingAcquire], AcquireReply]:
        """Make a call; repeat it if a FIFO group's candidates must start at another offset."""
        for _ in range(CANDIDATE_ROUNDS_MAX):
            request, acquires = AcquireRequest(), []
            for receive_queue, group in receive_queues.items():
                acquires += await self._add_entries(request, receive_queue, group)
            if not acquires:
                return [], AcquireReply()
            reply = await self._call(request, acquires)
            for acquire, granted in zip(acquires, reply.granted, strict=True):
                acquire.candidates_moved = _update_min_candidates(acquire.group, granted)
            candidates_moved = any(acquire.candidates_moved for acquire in acquires)
            if not candidates_moved or any(granted.acquired for granted in reply.granted):
                break
        return acquires, reply

    async def _call(
        self, request: AcquireRequest, acquires: Sequence[PendingAcquire]
    ) -> AcquireReply:
        self._lost_calls.register(request)
        try:
            reply: AcquireReply = await self._cluster.call(
                self._cluster.in_flight_service().Acquire,
                request,
                unavailable=OffsetServiceUnavailable,
            )
        except BaseException:
            # The service may have granted messages, also if this task was cancelled.
            held_by = [
                (acquire.group.name, name)
                for acquire in acquires
                if acquire.receive_queue.key.held_ms_max
                for name in acquire.names
            ]
            self._lost_calls.failed(request, held_by)
            if self._lost_calls and self._releasing is None and not self._is_closed:
                self._releasing = self._cluster.tasks.create_task(
                    self._release(), name="rockoon lost calls"
                )
            raise
        self._lost_calls.answered(request)
        return reply

    async def _release(self) -> None:
        """Report lost calls, also if no receiver waits."""
        try:
            while self._lost_calls:
                await asyncio.sleep(TICK_SECONDS)
                if self._lost_calls:
                    with suppress(RockoonError):
                        await self._call(AcquireRequest(), [])
        finally:
            self._releasing = None

    async def _add_entries(
        self, request: AcquireRequest, receive_queue: ReceiveQueue, group: ReceivingGroup
    ) -> list[PendingAcquire]:
        """Add the entries of a receive queue to a request, and return them."""
        for subscription in receive_queue.key.subscriptions:
            if self._tail_reader.of(subscription.topic).route is None:
                group.joined.discard(subscription.topic)
                receive_queue.fail(TopicNotFound(topic=subscription.topic))
                return []
        tails = self._readable(receive_queue)
        if not tails:
            self._no_queue_readable(receive_queue)
            return []
        number = receive_queue.calls_started
        if group.is_fifo:
            known_ends = [await self._fifo_known_end(tail, group) for tail in tails]
            receivers = list(receive_queue.waiting)[:FIFO_RECEIVERS_MAX]
            acquires = [
                PendingAcquire(receive_queue, group, number, each.messages_max, each, [each.name])
                for each in receivers
            ]
            shares = {}
        else:
            shares = receive_queue.shares()
            wanted = sum(shares.values())
            named = with_backlog(tails, group.acquired_ends, wanted)
            if is_partial := bool(named) and receive_queue.may_be_partial(self._loop.time()):
                tails = named
            known_ends = [known_end_of(tail) for tail in tails]
            names = list(shares)
            acquire = PendingAcquire(
                receive_queue, group, number, wanted, None, names, is_partial=is_partial
            )
            acquires = [acquire] if wanted else []
        filters = []
        if acquires and self._loop.time() >= receive_queue.report_at:
            receive_queue.report_at = self._loop.time() + REPORT_SECONDS
            filters = to_report(receive_queue.key.subscriptions)
        for acquire in acquires:
            wanted_of = Wanted(
                group=group.name,
                receiver=acquire.names[0].receiver,
                key_id=acquire.names[0].key_id,
                queues=known_ends,
                messages_max=acquire.messages_max,
                visible_after_ms=receive_queue.key.visible_after_ms,
                held_ms_max=receive_queue.key.held_ms_max,
                attempt_id=acquire.receiver.attempt_id if acquire.receiver is not None else "",
                message_group_max=acquire.receiver.message_group_max if acquire.receiver else 0,
                policy=receive_queue.key.consume_from.to_wire(),
                filters=filters,
            )
            if filters:
                wanted_of.language = self._cluster.agent.language
                wanted_of.version = self._cluster.agent.version
            if len(shares) > 1:
                for name, count in shares.items():
                    wanted_of.shares.add(
                        receiver=name.receiver, key_id=name.key_id, messages_max=count
                    )
            request.wanted.append(wanted_of)
        request.route_revision = max(request.route_revision, group.route_revision)
        return acquires

    def _readable(self, receive_queue: ReceiveQueue) -> list[TrackedQueue]:
        """Return the readable queues of the topics, in the order of preference.

        The first topic and its first queue rotate from call to call. If the topic has priorities,
        its queues are sorted by priority and only the brokers rotate.
        """
        topics = _topics(receive_queue)
        # `calls_started` does not count the repetitions of a call, which keep its first topic.
        queue_turn, turn = divmod(receive_queue.calls_started, len(topics))
        found: list[TrackedQueue] = []
        for topic in topics[turn:] + topics[:turn]:
            of_topic = self._tail_reader.of(topic)
            tails = list(of_topic.queues.values())
            at = queue_turn % len(tails) if tails else 0
            tails = tails[at:] + tails[:at]
            if of_topic.has_priorities:
                tails.sort(key=lambda each: -each.queue.queue_id)
            found += [each for each in tails if each.is_readable]
        return found[:QUEUES_PER_CALL_MAX]

    async def _fifo_known_end(self, tail: TrackedQueue, group: ReceivingGroup) -> QueueReach:
        known_end = new_known_end(tail)
        start = group.min_candidates.get(tail.queue)
        # A queue that was recreated or truncated is named although it ends below the start: the
        # reply contains the new start of the candidates.
        if start is not None and start < known_end.end_offset:
            end_offset = min(known_end.end_offset, start + CANDIDATES_MAX)
            # Also if retention deleted these offsets: without their candidates, the service grants
            # no later offset.
            known_end.candidates_from = start
            known_end.candidates.extend(await self._reader.message_groups(tail, start, end_offset))
        return known_end

    # Replies

    def _apply_reply(self, acquire: PendingAcquire, granted: Granted, as_of_ms: int) -> None:
        receive_queue, group = acquire.receive_queue, acquire.group
        self._filter_conflicts.log(group.name, granted.filter_conflict, self._loop.time())
        if granted.next_visible_at_ms:
            seconds = (granted.next_visible_at_ms - as_of_ms) / 1000
            # In a FIFO group a visible message may have to wait for an earlier one.
            seconds = min(max(seconds, VISIBLE_SECONDS_MIN), TICK_SECONDS)
            receive_queue.visible_at = self._loop.time() + seconds
            self.make_due_in(receive_queue, group, seconds)
        else:
            receive_queue.visible_at = inf
        for refusal in granted.refused:
            self._log_refusal(group, queue_from_wire(refusal.queue), from_wire(refusal.error))

    def _log_refusal(self, group: ReceivingGroup, queue: MessageQueue, error: RockoonError) -> None:
        key = (queue, type(error))
        if key not in group.refusals_logged and not isinstance(error, QueueNotFound):
            level = logging.INFO if isinstance(error, QueueHeld) else logging.WARNING
            log.log(level, "%s cannot receive from %s: %s", group.name, queue, error)
        group.refusals_logged.add(key)

    def _schedule_next(
        self, receive_queue: ReceiveQueue, group: ReceivingGroup, is_more: bool
    ) -> None:
        self.update_tracking(receive_queue, group)
        if is_more:
            receive_queue.is_due_again = True
            return
        if not receive_queue.is_due_again:
            receive_queue.exhausted_at = self._loop.time()
        if receive_queue.waiting:
            self._track(receive_queue, receive_queue.topics_used)

    def _acquire_refused(self, acquire: PendingAcquire, error: RockoonError) -> None:
        receive_queue, group = acquire.receive_queue, acquire.group
        if isinstance(error, GroupNotFound):
            # The next receiver creates the group again, if it is permitted.
            group.joined.clear()
        if error.retriable or isinstance(error, ConsumeDisabled):
            receive_queue.fail(error, receive_queue.expired)
            self.make_due_in(receive_queue, group, receive_queue.backoff.next_seconds())
        else:
            receive_queue.fail(error)
        self.update_tracking(receive_queue, group)

    def _no_queue_readable(self, receive_queue: ReceiveQueue) -> None:
        failures = [
            tail.failure
            for topic in receive_queue.topics
            for tail in self._tail_reader.of(topic).queues.values()
            if tail.failure is not None
        ]
        if failures:
            may_pass = any(failure.retriable for failure in failures)
            receive_queue.fail(
                failures[0].with_traceback(None), receive_queue.expired if may_pass else None
            )
        else:
            # No queue end is known yet, or the topics have no queues.
            receive_queue.call_done(receive_queue.calls_started)

    async def _call_failed(
        self, receive_queues: dict[ReceiveQueue, ReceivingGroup], error: RockoonError
    ) -> None:
        if not error.retriable and len(receive_queues) > 1:
            # A single entry may have caused the error: repeat each in a separate call.
            for receive_queue in receive_queues:
                receive_queue.has_own_call = receive_queue.is_due_again = True
            return
        pause = 0.0
        for receive_queue, group in receive_queues.items():
            pause = max(pause, receive_queue.backoff.next_seconds())
            receive_queue.fail(error, receive_queue.expired if error.retriable else None)
            self.update_tracking(receive_queue, group)
        if error.retriable:
            log.info("acquire call failed, next try in at most %.1f s: %s", pause, error)
            await self._cluster.pause_for_offset_service(pause)
        for receive_queue in receive_queues:
            receive_queue.is_due_again = True


def _update_min_candidates(group: ReceivingGroup, granted: Granted) -> bool:
    """Store the start offsets of candidates; return True if one has changed."""
    is_other = False
    for wanted in granted.wanted_candidates:
        group.is_fifo = True
        queue = queue_from_wire(wanted.queue)
        is_other |= group.min_candidates.get(queue) != wanted.from_offset
        group.min_candidates[queue] = wanted.from_offset
    return is_other


def _topics(receive_queue: ReceiveQueue) -> list[str]:
    # Without duplicates: a receiver may subscribe to the retry topic of its group.
    return list(dict.fromkeys((retry_topic(receive_queue.key.group), *receive_queue.topics)))


def new_known_end(tail: TrackedQueue) -> QueueReach:
    """Return a new message with the known ends of a queue."""
    return QueueReach(
        queue=tail.ref,
        min_offset=tail.min_offset,
        end_offset=tail.end_offset or 0,
        create_revision=tail.create_revision,
    )


def known_end_of(tail: TrackedQueue) -> QueueReach:
    """Like `new_known_end`. Unchanged ends return the same object, because most calls name all
    queues."""
    known = tail.known_end
    if (
        known is None
        or known.end_offset != (tail.end_offset or 0)
        or known.min_offset != tail.min_offset
    ):
        known = tail.known_end = new_known_end(tail)
    return known


def with_backlog(
    tails: Sequence[TrackedQueue], acquired_ends: Mapping[MessageQueue, int], wanted: int
) -> list[TrackedQueue]:
    """Return the first queues that have enough messages together; empty if all have too few.

    Args:
        tails: in the order of preference.
        acquired_ends: one past the largest acquired offset per queue. If a queue has no entry, its
            progress is unknown: it is included, and its messages are not counted.
        wanted: number of messages.
    """
    found = []
    for tail in tails:
        if not tail.end_offset:
            continue
        at = acquired_ends.get(tail.queue)
        if at is None:
            found.append(tail)
        elif tail.end_offset > at:
            found.append(tail)
            wanted -= tail.end_offset - at
            if wanted <= 0:
                return found
    return []
