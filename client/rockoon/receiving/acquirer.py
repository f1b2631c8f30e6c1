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
from rockoon.receiving.line import Line, ParkedReceiver, ReceiverName
from rockoon.receiving.lost_calls import LostCalls
from rockoon.receiving.message_groups import CANDIDATES_MAX
from rockoon.receiving.offset_reader import OffsetReader
from rockoon.receiving.reaches import new_reach, reach_of, with_backlog
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
    lines: set[Line] = field(default_factory=set)
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

    line: Line
    group: ReceivingGroup
    ask: int
    messages_max: int
    receiver: ParkedReceiver | None
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
        self._due: dict[Line, ReceivingGroup] = {}
        self._by_topic: dict[str, dict[Line, ReceivingGroup]] = {}
        self._launching = False
        self._filter_conflicts = FilterConflicts()
        self._lost_calls = LostCalls()
        self._releasing: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._alone = 0
        self._is_closed = False

    # When a call is due

    def look(self, line: Line, group: ReceivingGroup) -> None:
        """Start or stop tracking the topics of a receive queue, if it has receivers or none."""
        if line.parked and not line.used:
            line.used = [self._tails.of(topic) for topic in _topics(line)]
            for topic in line.used:
                self._tails.use(topic, 1)
                self._by_topic.setdefault(topic.topic, {})[line] = group
        elif line.used and not line.parked:
            self._feed(line, ())
            for topic in line.used:
                self._tails.use(topic, -1)
                lines = self._by_topic[topic.topic]
                del lines[line]
                if not lines:
                    del self._by_topic[topic.topic]
            line.used = []
            self._due.pop(line, None)
            if line.timer is not None:
                line.timer.cancel()
                line.timer = None

    def begin(self, line: Line, group: ReceivingGroup, wait_seconds: float) -> None:
        """A receiver was added: make a call due, unless a recent one returned too few messages."""
        self.look(line, group)
        left_seconds = line.exhausted_at + TICK_SECONDS - self._loop.time()
        is_exhausted = left_seconds > 0 and line.exhausted_grown == self._grown(line)
        if is_exhausted and wait_seconds >= TICK_SECONDS:
            self._feed(line, line.used)
            visible_seconds = line.visible_at - self._loop.time()
            self.make_due_in(line, group, max(min(left_seconds, visible_seconds), 0.0))
        else:
            self.make_due(line, group)

    def make_due(self, line: Line, group: ReceivingGroup) -> None:
        """Include a receive queue in the next call."""
        if line.is_asking:
            line.is_due_again = True
        elif line.parked and not self._is_closed:
            self._due[line] = group
            if not self._launching:
                self._launching = True
                # Not now: receive queues that become due in this loop iteration share the call.
                self._loop.call_soon(self._launch)

    def make_due_in(self, line: Line, group: ReceivingGroup, seconds: float) -> None:
        """Make a receive queue due after a time, unless it becomes due earlier."""
        at = self._loop.time() + seconds
        if line.timer is not None:
            if line.timer_at <= at:
                return
            line.timer.cancel()
        if line.parked:
            # In uvloop, the handle of an expired timer has no time, so it is stored here.
            line.timer = self._loop.call_at(at, self._tick, line, group)
            line.timer_at = at

    def note_grown(self, topic: str) -> None:
        """A message queue of a topic has new messages."""
        for line, group in self._by_topic.get(topic, {}).items():
            self.make_due(line, group)

    def note_settled(self, group: ReceivingGroup, visible_after_seconds: float | None) -> None:
        """Messages of a group were acknowledged here (None), or become visible after this time."""
        for line in group.lines:
            if visible_after_seconds is not None or group.is_fifo:
                line.exhausted_at = -inf
            if visible_after_seconds is not None and visible_after_seconds > 0:
                self.make_due_in(line, group, visible_after_seconds)
            elif visible_after_seconds is not None or group.is_fifo:
                line.looked_at = -inf
                self.make_due(line, group)

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

    def _grown(self, line: Line) -> int:
        return sum(self._tails.of(topic).grown for topic in _topics(line))

    def _tick(self, line: Line, group: ReceivingGroup) -> None:
        line.timer = None
        line.looked_at = -inf
        self.make_due(line, group)

    def _feed(self, line: Line, topics: Sequence[TopicTails]) -> None:
        if topics is line.fed or (not topics and not line.fed):
            return
        for topic in line.fed:
            self._tails.feed(topic, -1)
        for topic in topics:
            self._tails.feed(topic, 1)
        line.fed = list(topics)

    # Calls

    def _launch(self) -> None:
        self._launching = False
        together: dict[Line, ReceivingGroup] = {}
        for line, group in list(self._due.items()):
            is_alone = line.is_alone or group.is_fifo
            if not self._is_ready(line) or (group.is_fifo and line.pending):
                # Retried when the queue ends are known, or when the wait for them is over.
                del self._due[line]
                self.make_due_in(line, group, READY_SECONDS_MAX)
            elif not is_alone:
                together[line] = group
            elif self._alone < CALLS_ALONE_MAX:
                del self._due[line]
                self._alone += 1
                self._start({line: group}, is_alone=True)
        for some in in_calls(together, WISHES_PER_CALL_MAX):
            if len(self._tasks) - self._alone >= CALLS_MAX:
                break
            for line in some:
                del self._due[line]
            self._start({line: together[line] for line in some}, is_alone=False)

    def _is_ready(self, line: Line) -> bool:
        # The tails are found each time, because the topic may have new queues.
        now = self._loop.time()
        tails = [self._tails.of(topic) for topic in _topics(line)]
        return all(each.is_ready or now - each.taken_at >= READY_SECONDS_MAX for each in tails)

    def _start(self, lines: dict[Line, ReceivingGroup], *, is_alone: bool) -> None:
        for line in lines:
            line.is_asking, line.is_due_again = True, False
            line.asks += 1
            line.exhausted_at, line.exhausted_grown = -inf, self._grown(line)
            if line.timer is not None:
                line.timer.cancel()
                line.timer = None
        task = self._cluster.tasks.create_task(self._ask(lines), name="rockoon acquire")
        self._tasks.add(task)

        def done(_: object) -> None:
            self._tasks.discard(task)
            self._alone -= is_alone
            for line, group in lines.items():
                line.is_asking = False
                if line.is_due_again:
                    self.make_due(line, group)
                else:
                    # Rounded up to a common raster, so that receive queues share calls.
                    late = -(self._loop.time() + TICK_SECONDS) % TICK_RASTER_SECONDS
                    self.make_due_in(line, group, TICK_SECONDS + late)
            if self._due and not self._launching:
                self._launching = True
                self._loop.call_soon(self._launch)

        task.add_done_callback(done)

    async def _ask(self, lines: dict[Line, ReceivingGroup]) -> None:
        try:
            wishes, reply = await self._answer(lines)
        except RockoonError as error:
            await self._failed(lines, error)
            return
        except Exception as error:
            log.exception("unexpected error while acquiring messages (bug)")
            await self._failed(lines, RockoonError(f"acquiring messages failed (bug): {error!r}"))
            return
        # Receive queue → True if more messages may be available.
        more: dict[Line, bool] = {}
        broken: set[Line] = set()
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
                broken.add(wish.line)
                wish.line.fail(RockoonError(f"delivering messages failed (bug): {error!r}"))
                continue
            more[wish.line] = more.get(wish.line, False) or is_more
        for line in broken:
            more.pop(line, None)
            line.is_alone = True
            self.look(line, lines[line])
        for line, is_more in more.items():
            self._plan_next(line, lines[line], is_more)

    def _taken(self, wish: Wish, granted: Granted, as_of_ms: int) -> bool:
        """Deliver the messages of an entry; return True if more may be available."""
        wish.line.is_alone = False
        wish.line.backoff.reset()
        found = self._take(wish, granted)
        self._note(wish, granted, as_of_ms)
        if wish.is_missed:
            wish.line.narrow_from = self._loop.time() + TICK_SECONDS
            return True
        return found >= wish.messages_max or wish.is_behind

    async def _answer(self, lines: dict[Line, ReceivingGroup]) -> tuple[list[Wish], AcquireReply]:
        """Make a call; repeat it if a FIFO group's candidates must start at another offset."""
        for _ in range(CANDIDATE_ROUNDS_MAX):
            request, wishes = AcquireRequest(), []
            for line, group in lines.items():
                wishes += await self._add(request, line, group)
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
                if wish.line.wanting.held_ms_max
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

    async def _add(self, request: AcquireRequest, line: Line, group: ReceivingGroup) -> list[Wish]:
        """Add the entries of a receive queue to a request, and return them."""
        for subscription in line.wanting.subscriptions:
            if self._tails.of(subscription.topic).route is None:
                group.joined.discard(subscription.topic)
                line.fail(TopicNotFound(topic=subscription.topic))
                return []
        tails = self._readable(line)
        if not tails:
            self._nothing_readable(line)
            return []
        if group.is_fifo:
            reaches = [await self._fifo_reach(tail, group) for tail in tails]
            receivers = list(line.parked)[:FIFO_WISHES_MAX]
            wishes = [
                Wish(line, group, line.asks, each.messages_max, each, [each.name])
                for each in receivers
            ]
            shares = {}
        else:
            shares = line.shares()
            wanted = sum(shares.values())
            named = with_backlog(tails, group.reached, wanted)
            if is_narrow := bool(named) and line.may_be_narrow(self._loop.time()):
                tails = named
            reaches = [reach_of(tail) for tail in tails]
            wish = Wish(line, group, line.asks, wanted, None, list(shares), is_narrow=is_narrow)
            wishes = [wish] if wanted else []
        filters = []
        if wishes and self._loop.time() >= line.report_at:
            line.report_at = self._loop.time() + REPORT_SECONDS
            filters = to_report(line.wanting.subscriptions)
        for wish in wishes:
            wanted_of = Wanted(
                group=group.name,
                receiver=wish.names[0].receiver,
                key_id=wish.names[0].key_id,
                queues=reaches,
                messages_max=wish.messages_max,
                visible_after_ms=line.wanting.visible_after_ms,
                held_ms_max=line.wanting.held_ms_max,
                attempt_id=wish.receiver.attempt_id if wish.receiver is not None else "",
                message_group_max=wish.receiver.message_group_max if wish.receiver else 0,
                policy=line.wanting.consume_from.to_wire(),
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

    def _readable(self, line: Line) -> list[QueueTail]:
        """Return the readable queues of the topics, in the order of preference.

        The first topic and its first queue rotate from call to call. If the topic has priorities,
        its queues are sorted by priority and only the brokers rotate.
        """
        topics = _topics(line)
        # The number of asks, not of rounds: the rounds of one ask could start with the same topic.
        queue_turn, turn = divmod(line.asks, len(topics))
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
        line, group = wish.line, wish.group
        self._filter_conflicts.log(group.name, granted.filter_conflict, self._loop.time())
        if granted.next_visible_at_ms:
            seconds = (granted.next_visible_at_ms - as_of_ms) / 1000
            # In a FIFO group a visible message may have to wait for an earlier one.
            seconds = min(max(seconds, VISIBLE_SECONDS_MIN), TICK_SECONDS)
            line.visible_at = self._loop.time() + seconds
            self.make_due_in(line, group, seconds)
        else:
            line.visible_at = inf
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

    def _plan_next(self, line: Line, group: ReceivingGroup, is_more: bool) -> None:
        self.look(line, group)
        if is_more:
            line.is_due_again = True
            return
        if not line.is_due_again:
            line.exhausted_at = self._loop.time()
        if line.parked:
            self._feed(line, line.used)

    def _refused(self, wish: Wish, error: RockoonError) -> None:
        line, group = wish.line, wish.group
        if isinstance(error, GroupNotFound):
            # The next receiver creates the group again, if it is permitted.
            group.joined.clear()
        if error.retriable or isinstance(error, ConsumeDisabled):
            line.fail(error, line.over)
            self.make_due_in(line, group, line.backoff.next_seconds())
        else:
            line.fail(error)
        self.look(line, group)

    def _nothing_readable(self, line: Line) -> None:
        failures = [
            tail.failure
            for topic in line.topics
            for tail in self._tails.of(topic).queues.values()
            if tail.failure is not None
        ]
        if failures:
            may_pass = any(failure.retriable for failure in failures)
            line.fail(failures[0].with_traceback(None), line.over if may_pass else None)
        else:
            # No queue end is known yet, or the topics have no queues.
            line.ask_done(line.asks)

    async def _failed(self, lines: dict[Line, ReceivingGroup], error: RockoonError) -> None:
        if not error.retriable and len(lines) > 1:
            # One of them may have caused the error: repeat each in a separate call.
            for line in lines:
                line.is_alone = line.is_due_again = True
            return
        pause = 0.0
        for line, group in lines.items():
            pause = max(pause, line.backoff.next_seconds())
            line.fail(error, line.over if error.retriable else None)
            self.look(line, group)
        if error.retriable:
            log.info("acquire call failed, next try in at most %.1f s: %s", pause, error)
            await self._cluster.pause_for_offset_service(pause)
        for line in lines:
            line.is_due_again = True


def _learn_floors(group: ReceivingGroup, granted: Granted) -> bool:
    """Store the start offsets of candidates; return True if one has changed."""
    is_other = False
    for wanted in granted.wanted_candidates:
        group.is_fifo = True
        queue = queue_from_wire(wanted.queue)
        is_other |= group.floors.get(queue) != wanted.from_offset
        group.floors[queue] = wanted.from_offset
    return is_other


def _topics(line: Line) -> list[str]:
    # Without duplicates: a receiver may subscribe to the retry topic of its group.
    return list(dict.fromkeys((retry_topic(line.wanting.group), *line.topics)))
