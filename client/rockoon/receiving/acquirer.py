"""Acquirer: acquires messages for waiting receivers, in few calls to the offset service.

An acquire call is due for a receive queue when a receiver is added, when a message queue has grown,
when a message becomes visible, and once per second while a receiver waits: the offset service does
not notify this process of messages that other processes release.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
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
from rockoon.receiving.lost_calls import LostCalls
from rockoon.receiving.message_groups import CANDIDATES_MAX
from rockoon.receiving.offset_reader import OffsetReader
from rockoon.receiving.reaches import new_reach, reach_of, with_backlog
from rockoon.receiving.receive_queue import ReceiveQueue, ReceiverName, WaitingReceiver
from rockoon.receiving.reported_filters import REPORT_SECONDS, FilterConflicts, to_report
from rockoon.receiving.tails import QueueTail, Tails, TopicTails
from rockoon_core.bulk_calls import QUEUES_PER_CALL_MAX, WISHES_PER_CALL_MAX, in_calls
from rockoon_core.message_queue import MessageQueue, queue_from_wire
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
CALLS_ALONE_MAX = 16
# In a FIFO group each receiver has its own request. If this many get nothing, no receiver would.
FIFO_WISHES_MAX = 16
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
    reached: dict[MessageQueue, int] = field(default_factory=dict)
    """One past the largest offset that this process acquired, per message queue."""
    floors: dict[MessageQueue, int] = field(default_factory=dict)
    """In a FIFO group: first offset that the offset service needs candidates of."""
    joining: asyncio.Lock = field(default_factory=asyncio.Lock)
    told: set[tuple[MessageQueue, type[RockoonError]]] = field(default_factory=set)
    """Refusals that were logged: message queue and class of the error."""
    entering: int = 0
    """Number of receivers that join and are in no receive queue yet."""


@dataclass(slots=True, eq=False)
class Wish:
    """One entry of an acquire call: messages for receivers of one receive queue."""

    receive_queue: ReceiveQueue
    group: ReceivingGroup
    ask: int
    messages_max: int
    receiver: WaitingReceiver | None
    """In a FIFO group, the receiver that gets the messages; None: any receiver of `names`."""
    names: Sequence[ReceiverName]
    """Receivers that hold the granted messages, in the order of `Acquired.share`."""
    is_behind: bool = False
    """In a FIFO group: the offset service needs candidates from another offset."""
    is_narrow: bool = False
    """It names only message queues that are known to have enough messages."""
    is_missed: bool = False
    """It was partial, and other processes had acquired the known messages."""
    late: int = 0
    """Number of reads that must end before the entry is complete."""


class Acquirer:
    """Makes the calls of one connection.

    Args:
        cluster: the connection.
        tails: known ends of the message queues.
        reader: reads candidates.
        take: delivers granted messages to receivers; returns their number.
    """

    def __init__(
        self,
        cluster: Connection,
        tails: Tails,
        reader: OffsetReader,
        take: Callable[[Wish, Granted], int],
    ) -> None:
        self._cluster = cluster
        self._tails = tails
        self._reader = reader
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._due: dict[ReceiveQueue, ReceivingGroup] = {}
        self._by_topic: dict[str, dict[ReceiveQueue, ReceivingGroup]] = {}
        self._launching = False
        self._filter_conflicts = FilterConflicts()
        self._lost_calls = LostCalls()
        self._releasing: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._alone = 0
        self._is_closed = False

    # When a call is due

    def look(self, receive_queue: ReceiveQueue, group: ReceivingGroup) -> None:
        """Start or stop tracking the topics of a receive queue, if it has receivers or none."""
        if receive_queue.waiting and not receive_queue.topics_used:
            receive_queue.topics_used = [self._tails.of(topic) for topic in _topics(receive_queue)]
            for topic in receive_queue.topics_used:
                self._tails.use(topic, 1)
                self._by_topic.setdefault(topic.topic, {})[receive_queue] = group
        elif receive_queue.topics_used and not receive_queue.waiting:
            self._feed(receive_queue, ())
            for topic in receive_queue.topics_used:
                self._tails.use(topic, -1)
                receive_queues = self._by_topic[topic.topic]
                del receive_queues[receive_queue]
                if not receive_queues:
                    del self._by_topic[topic.topic]
            receive_queue.topics_used = []
            self._due.pop(receive_queue, None)
            if receive_queue.timer is not None:
                receive_queue.timer.cancel()
                receive_queue.timer = None

    def begin(
        self, receive_queue: ReceiveQueue, group: ReceivingGroup, wait_seconds: float
    ) -> None:
        """A receiver was added: make a call due, unless a recent one returned too few messages."""
        self.look(receive_queue, group)
        left_seconds = receive_queue.exhausted_at + TICK_SECONDS - self._loop.time()
        is_exhausted = left_seconds > 0 and receive_queue.exhausted_grown == self._grown(
            receive_queue
        )
        if is_exhausted and wait_seconds >= TICK_SECONDS:
            self._feed(receive_queue, receive_queue.topics_used)
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
            if not self._launching:
                self._launching = True
                # Not now: receive queues that become due in this loop iteration share the call.
                self._loop.call_soon(self._launch)

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
            receive_queue.timer = self._loop.call_at(at, self._tick, receive_queue, group)
            receive_queue.timer_at = at

    def note_grown(self, topic: str) -> None:
        """A message queue of a topic has new messages."""
        for receive_queue, group in self._by_topic.get(topic, {}).items():
            self.make_due(receive_queue, group)

    def note_settled(self, group: ReceivingGroup, visible_after_seconds: float | None) -> None:
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
        return sum(self._tails.of(topic).grown for topic in _topics(receive_queue))

    def _tick(self, receive_queue: ReceiveQueue, group: ReceivingGroup) -> None:
        receive_queue.timer = None
        receive_queue.full_call_at = -inf
        self.make_due(receive_queue, group)

    def _feed(self, receive_queue: ReceiveQueue, topics: Sequence[TopicTails]) -> None:
        if topics is receive_queue.topics_tracked or (
            not topics and not receive_queue.topics_tracked
        ):
            return
        for topic in receive_queue.topics_tracked:
            self._tails.feed(topic, -1)
        for topic in topics:
            self._tails.feed(topic, 1)
        receive_queue.topics_tracked = list(topics)

    # Calls

    def _launch(self) -> None:
        self._launching = False
        together: dict[ReceiveQueue, ReceivingGroup] = {}
        for receive_queue, group in list(self._due.items()):
            has_own_call = receive_queue.has_own_call or group.is_fifo
            if not self._is_ready(receive_queue) or (group.is_fifo and receive_queue.pending):
                # Retried when the queue ends are known, or when the wait for them is over.
                del self._due[receive_queue]
                self.make_due_in(receive_queue, group, READY_SECONDS_MAX)
            elif not has_own_call:
                together[receive_queue] = group
            elif self._alone < CALLS_ALONE_MAX:
                del self._due[receive_queue]
                self._alone += 1
                self._start({receive_queue: group}, has_own_call=True)
        for some in in_calls(together, WISHES_PER_CALL_MAX):
            if len(self._tasks) - self._alone >= CALLS_MAX:
                break
            for receive_queue in some:
                del self._due[receive_queue]
            self._start(
                {receive_queue: together[receive_queue] for receive_queue in some},
                has_own_call=False,
            )

    def _is_ready(self, receive_queue: ReceiveQueue) -> bool:
        # The tails are found each time, because the topic may have new queues.
        now = self._loop.time()
        tails = [self._tails.of(topic) for topic in _topics(receive_queue)]
        return all(each.is_ready or now - each.taken_at >= READY_SECONDS_MAX for each in tails)

    def _start(
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
        task = self._cluster.tasks.create_task(self._ask(receive_queues), name="rockoon acquire")
        self._tasks.add(task)

        def done(_: object) -> None:
            self._tasks.discard(task)
            self._alone -= has_own_call
            for receive_queue, group in receive_queues.items():
                receive_queue.is_calling = False
                if receive_queue.is_due_again:
                    self.make_due(receive_queue, group)
                else:
                    # Rounded up to a common raster, so that receive queues share calls.
                    late = -(self._loop.time() + TICK_SECONDS) % TICK_RASTER_SECONDS
                    self.make_due_in(receive_queue, group, TICK_SECONDS + late)
            if self._due and not self._launching:
                self._launching = True
                self._loop.call_soon(self._launch)

        task.add_done_callback(done)

    async def _ask(self, receive_queues: dict[ReceiveQueue, ReceivingGroup]) -> None:
        try:
            wishes, reply = await self._answer(receive_queues)
        except RockoonError as error:
            await self._failed(receive_queues, error)
            return
        except Exception as error:
            log.exception("unexpected error while acquiring messages (bug)")
            await self._failed(
                receive_queues, RockoonError(f"acquiring messages failed (bug): {error!r}")
            )
            return
        # Receive queue → True if more messages may be available.
        more: dict[ReceiveQueue, bool] = {}
        broken: set[ReceiveQueue] = set()
        for wish, granted in zip(wishes, reply.granted, strict=True):
            if granted.HasField("error"):
                self._refused(wish, from_wire(granted.error))
                continue
            try:
                is_more = self._taken(wish, granted, reply.as_of_ms)
            except Exception as error:
                # Receivers of the other entries still get their messages.
                log.exception(
                    "unexpected error while delivering messages of group %s (bug)", wish.group.name
                )
                broken.add(wish.receive_queue)
                wish.receive_queue.fail(
                    RockoonError(f"delivering messages failed (bug): {error!r}")
                )
                continue
            more[wish.receive_queue] = more.get(wish.receive_queue, False) or is_more
        for receive_queue in broken:
            more.pop(receive_queue, None)
            receive_queue.has_own_call = True
            self.look(receive_queue, receive_queues[receive_queue])
        for receive_queue, is_more in more.items():
            self._plan_next(receive_queue, receive_queues[receive_queue], is_more)

    def _taken(self, wish: Wish, granted: Granted, as_of_ms: int) -> bool:
        """Deliver the messages of an entry; return True if more may be available."""
        wish.receive_queue.has_own_call = False
        wish.receive_queue.backoff.reset()
        found = self._take(wish, granted)
        self._note(wish, granted, as_of_ms)
        if wish.is_missed:
            wish.receive_queue.full_until = self._loop.time() + TICK_SECONDS
            return True
        return found >= wish.messages_max or wish.is_behind

    async def _answer(
        self, receive_queues: dict[ReceiveQueue, ReceivingGroup]
    ) -> tuple[list[Wish], AcquireReply]:
        """Make a call; repeat it if a FIFO group's candidates must start at another offset."""
        for _ in range(CANDIDATE_ROUNDS_MAX):
            request, wishes = AcquireRequest(), []
            for receive_queue, group in receive_queues.items():
                wishes += await self._add(request, receive_queue, group)
            if not wishes:
                return [], AcquireReply()
            reply = await self._call(request, wishes)
            for wish, granted in zip(wishes, reply.granted, strict=True):
                wish.is_behind = _learn_floors(wish.group, granted)
            is_behind = any(wish.is_behind for wish in wishes)
            if not is_behind or any(granted.acquired for granted in reply.granted):
                break
        return wishes, reply

    async def _call(self, request: AcquireRequest, wishes: Sequence[Wish]) -> AcquireReply:
        self._lost_calls.begin(request)
        try:
            reply: AcquireReply = await self._cluster.call(
                self._cluster.in_flight_service().Acquire,
                request,
                unavailable=OffsetServiceUnavailable,
            )
        except BaseException:
            # The service may have granted messages, also if this task was cancelled.
            held_by = [
                (wish.group.name, name)
                for wish in wishes
                if wish.receive_queue.key.held_ms_max
                for name in wish.names
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

    async def _add(
        self, request: AcquireRequest, receive_queue: ReceiveQueue, group: ReceivingGroup
    ) -> list[Wish]:
        """Add the entries of a receive queue to a request, and return them."""
        for subscription in receive_queue.key.subscriptions:
            if self._tails.of(subscription.topic).route is None:
                group.joined.discard(subscription.topic)
                receive_queue.fail(TopicNotFound(topic=subscription.topic))
                return []
        tails = self._readable(receive_queue)
        if not tails:
            self._nothing_readable(receive_queue)
            return []
        if group.is_fifo:
            reaches = [await self._fifo_reach(tail, group) for tail in tails]
            receivers = list(receive_queue.waiting)[:FIFO_WISHES_MAX]
            wishes = [
                Wish(
                    receive_queue,
                    group,
                    receive_queue.calls_started,
                    each.messages_max,
                    each,
                    [each.name],
                )
                for each in receivers
            ]
            shares = {}
        else:
            shares = receive_queue.shares()
            wanted = sum(shares.values())
            named = with_backlog(tails, group.reached, wanted)
            if is_narrow := bool(named) and receive_queue.may_be_partial(self._loop.time()):
                tails = named
            reaches = [reach_of(tail) for tail in tails]
            wish = Wish(
                receive_queue,
                group,
                receive_queue.calls_started,
                wanted,
                None,
                list(shares),
                is_narrow=is_narrow,
            )
            wishes = [wish] if wanted else []
        filters = []
        if wishes and self._loop.time() >= receive_queue.report_at:
            receive_queue.report_at = self._loop.time() + REPORT_SECONDS
            filters = to_report(receive_queue.key.subscriptions)
        for wish in wishes:
            wanted_of = Wanted(
                group=group.name,
                receiver=wish.names[0].receiver,
                key_id=wish.names[0].key_id,
                queues=reaches,
                messages_max=wish.messages_max,
                visible_after_ms=receive_queue.key.visible_after_ms,
                held_ms_max=receive_queue.key.held_ms_max,
                attempt_id=wish.receiver.attempt_id if wish.receiver is not None else "",
                message_group_max=wish.receiver.message_group_max if wish.receiver else 0,
                policy=receive_queue.key.consume_from.to_wire(),
                filters=filters,
            )
            if len(shares) > 1:
                for name, count in shares.items():
                    wanted_of.shares.add(
                        receiver=name.receiver, key_id=name.key_id, messages_max=count
                    )
            request.wanted.append(wanted_of)
        request.route_revision = max(request.route_revision, group.route_revision)
        return wishes

    def _readable(self, receive_queue: ReceiveQueue) -> list[QueueTail]:
        """Return the readable queues of the topics, in the order of preference.

        The first topic and its first queue rotate from call to call. If the topic has priorities,
        its queues are sorted by priority and only the brokers rotate.
        """
        topics = _topics(receive_queue)
        # `calls_started` does not count the repetitions of a call, which keep its first topic.
        queue_turn, turn = divmod(receive_queue.calls_started, len(topics))
        found: list[QueueTail] = []
        for topic in topics[turn:] + topics[:turn]:
            of_topic = self._tails.of(topic)
            tails = list(of_topic.queues.values())
            at = queue_turn % len(tails) if tails else 0
            tails = tails[at:] + tails[:at]
            if of_topic.has_priorities:
                tails.sort(key=lambda each: -each.queue.queue_id)
            found += [each for each in tails if each.is_readable]
        return found[:QUEUES_PER_CALL_MAX]

    async def _fifo_reach(self, tail: QueueTail, group: ReceivingGroup) -> QueueReach:
        reach = new_reach(tail)
        start = group.floors.get(tail.queue)
        # A queue that was recreated or truncated is named although it ends below the start: the
        # reply contains the new start of the candidates.
        if start is not None and start < reach.end_offset:
            end_offset = min(reach.end_offset, start + CANDIDATES_MAX)
            # Also if retention deleted these offsets: without their candidates, the service grants
            # no later offset.
            reach.candidates_from = start
            reach.candidates.extend(await self._reader.message_groups(tail, start, end_offset))
        return reach

    # Replies

    def _note(self, wish: Wish, granted: Granted, as_of_ms: int) -> None:
        receive_queue, group = wish.receive_queue, wish.group
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
            self._note_refusal(group, queue_from_wire(refusal.queue), from_wire(refusal.error))

    def _note_refusal(
        self, group: ReceivingGroup, queue: MessageQueue, error: RockoonError
    ) -> None:
        key = (queue, type(error))
        if key not in group.told and not isinstance(error, QueueNotFound):
            level = logging.INFO if isinstance(error, QueueHeld) else logging.WARNING
            log.log(level, "%s cannot receive from %s: %s", group.name, queue, error)
        group.told.add(key)

    def _plan_next(self, receive_queue: ReceiveQueue, group: ReceivingGroup, is_more: bool) -> None:
        self.look(receive_queue, group)
        if is_more:
            receive_queue.is_due_again = True
            return
        if not receive_queue.is_due_again:
            receive_queue.exhausted_at = self._loop.time()
        if receive_queue.waiting:
            self._feed(receive_queue, receive_queue.topics_used)

    def _refused(self, wish: Wish, error: RockoonError) -> None:
        receive_queue, group = wish.receive_queue, wish.group
        if isinstance(error, GroupNotFound):
            # The next receiver creates the group again, if it is permitted.
            group.joined.clear()
        if error.retriable or isinstance(error, ConsumeDisabled):
            receive_queue.fail(error, receive_queue.expired)
            self.make_due_in(receive_queue, group, receive_queue.backoff.next_seconds())
        else:
            receive_queue.fail(error)
        self.look(receive_queue, group)

    def _nothing_readable(self, receive_queue: ReceiveQueue) -> None:
        failures = [
            tail.failure
            for topic in receive_queue.topics
            for tail in self._tails.of(topic).queues.values()
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

    async def _failed(
        self, receive_queues: dict[ReceiveQueue, ReceivingGroup], error: RockoonError
    ) -> None:
        if not error.retriable and len(receive_queues) > 1:
            # One of them may have caused the error: repeat each in a separate call.
            for receive_queue in receive_queues:
                receive_queue.has_own_call = receive_queue.is_due_again = True
            return
        pause = 0.0
        for receive_queue, group in receive_queues.items():
            pause = max(pause, receive_queue.backoff.next_seconds())
            receive_queue.fail(error, receive_queue.expired if error.retriable else None)
            self.look(receive_queue, group)
        if error.retriable:
            log.info("acquire call failed, next try in at most %.1f s: %s", pause, error)
            await self._cluster.pause_for_offset_service(pause)
        for receive_queue in receive_queues:
            receive_queue.is_due_again = True


def _learn_floors(group: ReceivingGroup, granted: Granted) -> bool:
    """Store the start offsets of candidates; return True if one has changed."""
    is_other = False
    for wanted in granted.wanted_candidates:
        group.is_fifo = True
        queue = queue_from_wire(wanted.queue)
        is_other |= group.floors.get(queue) != wanted.from_offset
        group.floors[queue] = wanted.from_offset
    return is_other


def _topics(receive_queue: ReceiveQueue) -> list[str]:
    # Without duplicates: a receiver may subscribe to the retry topic of its group.
    return list(dict.fromkeys((retry_topic(receive_queue.key.group), *receive_queue.topics)))
