"""Acquirer: asks the offset service for what receivers wait for, all that is due in one call.

A line is asked for when a receiver comes, when a queue has grown, when something becomes visible,
and once a second while somebody waits: what other processes give back nobody tells.
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
# A broker that does not say how far its queues reach must not hold up the others.
READY_SECONDS_MAX = 0.5
CALLS_MAX = 4
CALLS_ALONE_MAX = 16
# Of a FIFO group, where each receiver has a wish of its own: when so many get nothing, nobody does.
FIFO_WISHES_MAX = 16
CANDIDATE_ROUNDS_MAX = 3


@dataclass(slots=True, eq=False)
class ReceivingGroup:
    """A consumer group, as its receivers here know it."""

    name: str
    joined: set[str] = field(default_factory=set)
    """Topics that the group is recorded to read."""
    is_fifo: bool = False
    route_revision: int = 0
    lines: set[Line] = field(default_factory=set)
    reached: dict[MessageQueue, int] = field(default_factory=dict)
    """One past the largest offset that was acquired here."""
    floors: dict[MessageQueue, int] = field(default_factory=dict)
    """Of a FIFO group: from where on candidates are wanted."""
    joining: asyncio.Lock = field(default_factory=asyncio.Lock)
    told: set[tuple[MessageQueue, type[RockoonError]]] = field(default_factory=set)
    """Refusals that were logged."""
    entering: int = 0
    """Receivers that come to it and are in no line yet."""


@dataclass(slots=True, eq=False)
class Wish:
    """What is asked for of a line at once."""

    line: Line
    group: ReceivingGroup
    ask: int
    messages_max: int
    receiver: ParkedReceiver | None
    """The only one that it is for; None: any receiver of the names."""
    names: Sequence[ReceiverName]
    """Receivers that hold the granted messages, in the order of `Acquired.share`."""
    is_behind: bool = False
    """Of a FIFO group: its candidates did not begin where they should."""
    is_narrow: bool = False
    """It names only queues of which enough is known to be left."""
    is_missed: bool = False
    """It was narrow, and others had taken what was known."""
    late: int = 0
    """Readings that are to end before it is answered."""


class Acquirer:
    """Makes the calls of one connection.

    Args:
        cluster: the connection.
        tails: how far queues reach.
        reader: reads candidates.
        take: gives out what was granted; returns how many messages that were.
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

    # When to ask

    def look(self, line: Line, group: ReceivingGroup) -> None:
        """Receivers of a line have come or gone."""
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
        """A receiver has come. It is asked for at once, unless that was done just now in vain."""
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
        """Ask for a line, as soon as possible."""
        if line.is_asking:
            line.is_due_again = True
        elif line.parked and not self._is_closed:
            self._due[line] = group
            if not self._launching:
                self._launching = True
                # Not now: what else becomes due in this turn of the loop goes with it.
                self._loop.call_soon(self._launch)

    def make_due_in(self, line: Line, group: ReceivingGroup, seconds: float) -> None:
        """Ask for a line after a time, if nothing makes it due before."""
        at = self._loop.time() + seconds
        if line.timer is not None:
            if line.timer_at <= at:
                return
            line.timer.cancel()
        if line.parked:
            # uvloop's handle of a time that has come does not know it.
            line.timer = self._loop.call_at(at, self._tick, line, group)
            line.timer_at = at

    def note_grown(self, topic: str) -> None:
        """A queue of a topic has more."""
        for line, group in self._by_topic.get(topic, {}).items():
            self.make_due(line, group)

    def note_settled(self, group: ReceivingGroup, visible_after_seconds: float | None) -> None:
        """Messages of a group were acknowledged here (None), or will be visible."""
        for line in group.lines:
            if visible_after_seconds is not None or group.is_fifo:
                line.exhausted_at = -inf
            if visible_after_seconds is not None and visible_after_seconds > 0:
                self.make_due_in(line, group, visible_after_seconds)
            elif visible_after_seconds is not None or group.is_fifo:
                line.looked_at = -inf
                self.make_due(line, group)

    async def close(self, seconds_max: float) -> None:
        """Ask for nothing more; wait a little for what is under way."""
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

    # Asking

    def _launch(self) -> None:
        self._launching = False
        together: dict[Line, ReceivingGroup] = {}
        for line, group in list(self._due.items()):
            is_alone = line.is_alone or group.is_fifo
            if not self._is_ready(line) or (group.is_fifo and line.pending):
                # It is made due again when that is otherwise, or has lasted.
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
        # Looked up again: queues may have been added.
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
                    # On common ticks: what lines ask for then goes together.
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
            log.exception("asking for messages failed in a way no one foresaw")
            await self._failed(lines, RockoonError(f"asking for messages failed: {error!r}"))
            return
        # Whether more may be there.
        more: dict[Line, bool] = {}
        broken: set[Line] = set()
        for wish, granted in zip(wishes, reply.granted, strict=True):
            if granted.HasField("error"):
                self._refused(wish, from_wire(granted.error))
                continue
            try:
                is_more = self._taken(wish, granted, reply.as_of_ms)
            except Exception as error:
                # What the others were granted is theirs all the same.
                log.exception("giving out messages of %s failed", wish.group.name)
                broken.add(wish.line)
                wish.line.fail(RockoonError(f"giving out messages failed: {error!r}"))
                continue
            more[wish.line] = more.get(wish.line, False) or is_more
        for line in broken:
            more.pop(line, None)
            line.is_alone = True
            self.look(line, lines[line])
        for line, is_more in more.items():
            self._plan_next(line, lines[line], is_more)

    def _taken(self, wish: Wish, granted: Granted, as_of_ms: int) -> bool:
        """Give out what a wish got; returns whether more may be there."""
        wish.line.is_alone = False
        wish.line.backoff.reset()
        found = self._take(wish, granted)
        self._note(wish, granted, as_of_ms)
        if wish.is_missed:
            wish.line.narrow_from = self._loop.time() + TICK_SECONDS
            return True
        return found >= wish.messages_max or wish.is_behind

    async def _answer(self, lines: dict[Line, ReceivingGroup]) -> tuple[list[Wish], AcquireReply]:
        """Call, once more where a FIFO group's candidates have to begin elsewhere."""
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
            # The messages may be granted all the same, also if this was cancelled.
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
        """Report lost calls, also if no receiver asks for messages any more."""
        try:
            while self._lost_calls:
                await asyncio.sleep(TICK_SECONDS)
                if self._lost_calls:
                    with suppress(RockoonError):
                        await self._call(AcquireRequest(), [])
        finally:
            self._releasing = None

    async def _add(self, request: AcquireRequest, line: Line, group: ReceivingGroup) -> list[Wish]:
        """Put a line's wishes into a request."""
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
        """Tails to name, in the order of preference: topics take turns, and so do their queues, but
        for those of a topic with priorities, where only the brokers do."""
        topics = _topics(line)
        # By asks, not by calls: those of one ask could bring the same topic to the front each time.
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
        # A queue that was made anew, or has lost its end, must be named although it ends below: the
        # answer says where candidates are wanted now.
        if start is not None and start < reach.end_offset:
            end_offset = min(reach.end_offset, start + CANDIDATES_MAX)
            # Also below what retention has left: above the floor nothing is granted.
            reach.candidates_from = start
            reach.candidates.extend(await self._reader.message_groups(tail, start, end_offset))
        return reach

    # What the answer means

    def _note(self, wish: Wish, granted: Granted, as_of_ms: int) -> None:
        line, group = wish.line, wish.group
        self._filter_conflicts.log(group.name, granted.filter_conflict, self._loop.time())
        if granted.next_visible_at_ms:
            seconds = (granted.next_visible_at_ms - as_of_ms) / 1000
            # In a FIFO group what is visible may wait for what comes before it.
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
            # Whoever comes next makes it again, if it may.
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
            # Nothing is stored yet, or only topics without queues are read.
            line.ask_done(line.asks)

    async def _failed(self, lines: dict[Line, ReceivingGroup], error: RockoonError) -> None:
        """The call has failed."""
        if not error.retriable and len(lines) > 1:
            # It may be about one of them.
            for line in lines:
                line.is_alone = line.is_due_again = True
            return
        pause = 0.0
        for line, group in lines.items():
            pause = max(pause, line.backoff.next_seconds())
            line.fail(error, line.over if error.retriable else None)
            self.look(line, group)
        if error.retriable:
            log.info("the offset service grants nothing: %s", error)
            await self._cluster.pause_for_offset_service(pause)
        for line in lines:
            line.is_due_again = True


def _learn_floors(group: ReceivingGroup, granted: Granted) -> bool:
    """Note from where on candidates are wanted; returns whether that is another place."""
    is_other = False
    for wanted in granted.wanted_candidates:
        group.is_fifo = True
        queue = queue_from_wire(wanted.queue)
        is_other |= group.floors.get(queue) != wanted.from_offset
        group.floors[queue] = wanted.from_offset
    return is_other


def _topics(line: Line) -> list[str]:
    # Each once: a receiver may name its group's own retry topic.
    return list(dict.fromkeys((retry_topic(line.wanting.group), *line.topics)))
