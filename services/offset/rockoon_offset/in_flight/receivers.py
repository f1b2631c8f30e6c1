"""Receivers: what they ask for is granted, settled and put off; durable when answered."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from rockoon_core.errors import Busy, ConsumeDisabled, GroupNotFound, RockoonError
from rockoon_core.group_settings import RETRY_ATTEMPTS_DEFAULT
from rockoon_core.message_queue import MessageQueue
from rockoon_core.start_position import StartPolicy
from rockoon_offset.groups import Groups
from rockoon_offset.in_flight.deliveries import (
    LEASE_MS,
    Candidates,
    Deliveries,
    Holder,
    VisibilityChange,
)
from rockoon_offset.in_flight.filters import ReaderFilters, TopicFilter
from rockoon_offset.in_flight.holders import ClientName
from rockoon_offset.in_flight.window import Grant, Window
from rockoon_offset.progress.commits import QueueEnds
from rockoon_offset.progress.loop_share import LoopShare
from rockoon_offset.progress.progress_store import ProgressStore
from rockoon_offset.progress.records import Acquired, Record
from rockoon_offset.routes import Routes
from rockoon_offset.start.resolver import Resolver
from rockoon_proto.v1.nameserver_pb2 import GroupConfig

log = logging.getLogger(__name__)

# Of one queue: further from the floor nothing is granted in a FIFO group.
CANDIDATES_MAX = 1024
ENDS_ASKED_MS = 1_000
ENDS_ASKED_MAX = 100_000


class Reach(NamedTuple):
    """How far a queue reaches, as a receiver has read."""

    queue: MessageQueue
    min_offset: int
    end_offset: int
    # In a FIFO group.
    candidates: Candidates
    # Of the queue that was read; 0 when that is not told.
    create_revision: int = 0


class Share(NamedTuple):
    """What one of the receivers of a wish gets at most."""

    receiver: str
    key_id: str
    messages_max: int


class Wish(NamedTuple):
    """What receivers want."""

    group: str
    # In the order of preference.
    reaches: Sequence[Reach]
    messages_max: int
    visible_after_ms: int
    attempt_id: str
    policy: StartPolicy
    # One or more; the first ones get messages first.
    shares: Sequence[Share]
    receiver: str = ""
    # How long they hold messages at most while they are heard; 0: `visible_after_ms` counts.
    held_ms_max: int = 0
    # Those that the receiver reports now.
    filters: Sequence[TopicFilter] = ()
    # In a FIFO group, messages of one message group at most; 0: `messages_max`.
    message_group_max: int = 0
    # Name of its call.
    call_id: str = ""


class LostCall(NamedTuple):
    """A call whose answer did not reach one of its receivers."""

    client: ClientName
    call_id: str


class Delivered(NamedTuple):
    """Messages of an acquisition, as their holder names them."""

    group: str
    queue: MessageQueue
    number: int
    first: int
    # Bit i is offset `first` + i.
    messages: int
    # The receiver that acknowledges them; empty: their holder.
    receiver: str = ""


class PutOff(NamedTuple):
    """A wish to have messages visible at another time."""

    delivered: Delivered
    visible_after_ms: int
    counted: bool
    extend: bool
    # Why the delivery failed, for people.
    reason: str = ""
    # The receiver that they pass to; empty: none.
    to: str = ""
    to_key: str = ""
    held_ms_max: int = 0


class Delivery(NamedTuple):
    """An acquisition, whether its messages are dead, and whose they are of a wish's shares."""

    acquired: Acquired
    is_dead: bool
    share: int = 0


@dataclass(slots=True)
class Granted:
    """What one receiver got."""

    deliveries: list[Delivery] = field(default_factory=list)
    # Epoch milliseconds; None: nothing is in flight.
    next_visible_at_ms: int | None = None
    refused: dict[MessageQueue, RockoonError] = field(default_factory=dict)
    # Queues whose candidates are wanted, from where.
    wanted: dict[MessageQueue, int] = field(default_factory=dict)
    error: RockoonError | None = None
    # A sentence about readers with different filters.
    filter_conflict: str = ""
    # Index of the share that gets the next message; messages of this share, and of all shares.
    share: int = 0
    messages_of_share: int = 0
    messages: int = 0

    def add(self, delivery: Delivery) -> None:
        """Note a delivery to the present share."""
        count = delivery.acquired.messages.bit_count()
        self.deliveries.append(delivery)
        self.messages += count
        self.messages_of_share += count


class Heard(NamedTuple):
    """A client that a gateway has heard, or that said goodbye."""

    client: ClientName
    heard_at_ms: int
    goodbye: bool = False


class Settlement(NamedTuple):
    """What became of messages that were acknowledged or put off."""

    refused: int
    number: int = 0
    visible_at_ms: int = 0
    error: RockoonError | None = None


class Receivers:
    """Serves those who read message by message.

    Args:
        store: progress.
        routes: groups, and the queues' incarnations.
        resolver: where reading of a queue begins.
        groups: who holds the queues.
        ends: the queues' ends.
        filters: readers' filters.
        now_ms: epoch milliseconds; by it messages become visible again. It must not jump.
        route_wait_seconds: how long to wait for routes that receivers have seen.
        lease_ms: how long a client holds messages without being heard.
    """

    def __init__(
        self,
        store: ProgressStore,
        routes: Routes,
        resolver: Resolver,
        groups: Groups,
        ends: QueueEnds,
        filters: ReaderFilters,
        now_ms: Callable[[], int],
        route_wait_seconds: float,
        lease_ms: int = LEASE_MS,
    ) -> None:
        self._store = store
        self._routes = routes
        self._resolver = resolver
        self._groups = groups
        self._filters = filters
        self.now_ms = now_ms
        self._route_wait_seconds = route_wait_seconds
        self._deliveries = Deliveries(store.ledger, lease_ms)
        store.write(self._deliveries.service_started(now_ms()))
        self._ends = ends
        # When the ends of queues were last asked for that a receiver called shorter.
        self._ends_asked_ms: dict[MessageQueue, int] = {}
        # Messages since the start: acquired, and of these redelivered and dead; settled; put_off;
        # refused where they were to be one of these two. Of a settlement that is repeated, too.
        self.messages: Counter[str] = Counter()

    async def acquire(
        self, wishes: Sequence[Wish], route_revision: int, lost: Iterable[LostCall] = ()
    ) -> list[Granted]:
        """Grant each wish for itself; what is returned is durable.

        Args:
            wishes: of receivers.
            route_revision: of the routes that the receivers acted on.
            lost: former calls. Their messages are released before wishes are granted.

        Raises:
            NotReady: there are no routes to go by.
            Busy, StoreNotWritable, StoreFailed: nothing was granted.
            NotLeader, NotEnoughReplicas: of a journal with copies.
        """
        self._routes.require()
        self._store.admit()
        await self._routes.wait_revision(route_revision, self._route_wait_seconds)
        refused = await self._begun(wishes, route_revision)
        self._store.admit()
        # No waiting from here on: what is looked at is what is written.
        now_ms = self.now_ms()
        records: list[Record] = []
        try:
            for each in lost:
                records += self._deliveries.release_lost(each.client, each.call_id, now_ms)
            is_released = bool(records)
            outcomes = [self._granted(wish, refused, now_ms, records) for wish in wishes]
        finally:
            # What was applied must be written, whatever fails behind it.
            self._store.write(records)
        for wish, outcome in zip(wishes, outcomes, strict=True):
            if wish.filters and outcome.error is None:
                outcome.filter_conflict = self._filters.report(
                    wish.group, wish.receiver, wish.filters, wish.visible_after_ms
                )
        if is_released or any(outcome.deliveries for outcome in outcomes):
            await self._store.durable()
        return outcomes

    async def acknowledge(self, entries: Iterable[Delivered]) -> list[Settlement]:
        """Settle messages. Raises as `acquire`, but for routes."""
        self._store.admit()
        now_ms = self.now_ms()
        records: list[Record] = []
        settlements: list[Settlement] = []
        try:
            for each in entries:
                made, refused = self._deliveries.acknowledge(*each[:5], now_ms, each.receiver)
                records += made
                settlements.append(self._settled("settled", each, refused))
        finally:
            self._store.write(records)
        await self._store.durable()
        return settlements

    async def change_visibility(self, changes: Iterable[PutOff]) -> list[Settlement]:
        """Have messages visible at another time. Raises as `acknowledge`."""
        self._store.admit()
        now_ms = self.now_ms()
        records: list[Record] = []
        settlements: list[Settlement] = []
        try:
            for each in changes:
                at_ms, held_until_ms = self._times(each.visible_after_ms, each.held_ms_max, now_ms)
                to = Holder(each.to, each.to_key, held_until_ms) if each.to else None
                change = VisibilityChange(at_ms, each.counted, each.extend, each.reason, to)
                changed = self._deliveries.change_visibility(*each.delivered[:5], change)
                records += changed.records
                settlement = self._settled("put_off", each.delivered, changed.refused)
                if changed.number:
                    settlement = settlement._replace(number=changed.number, visible_at_ms=at_ms)
                settlements.append(settlement)
        finally:
            self._store.write(records)
        await self._store.durable()
        return settlements

    def delivered(self, numbers: Iterable[int]) -> None:
        """See `Deliveries.delivered`."""
        self._deliveries.delivered(numbers)

    async def heard(self, reports: Iterable[Heard]) -> None:
        """Extend the messages of clients that were heard, and make the messages of clients visible
        that said goodbye. A long report blocks no other call. Raises as `acknowledge`."""
        self._store.admit()
        share, is_changed = LoopShare(), False
        for each in reports:
            if each.goodbye:
                records = self._deliveries.release_held(each.client, self.now_ms())
                self._filters.forget(each.client.group, each.client.client_id)
            else:
                records = self._deliveries.extend_held(each.client, each.heard_at_ms)
            if records:
                is_changed = True
                self._store.write(records)
            await share.pause_when_used()
            # Another process may have become the leader.
            self._store.admit()
        if is_changed:
            await self._store.durable()

    async def durable(self) -> None:
        """Wait until what can be seen now is durable."""
        await self._store.durable()

    async def still_decides(self) -> None:
        """As `ProgressStore.still_decides`."""
        await self._store.still_decides()

    @property
    def lease_ms(self) -> int:
        """How long a client holds messages without being heard."""
        return self._deliveries.lease_ms

    def windows(self, group: str, topic: str) -> list[tuple[MessageQueue, Window]]:
        """Queues that a group's receivers have acquired from, sorted.

        Raises:
            GroupNotFound: as the name says.
        """
        self._routes.require()
        if group not in self._routes.table.groups:
            raise GroupNotFound(group=group)
        windows = self._store.ledger.windows.of_group(group)
        return sorted(
            (queue, window)
            for queue, window in windows.items()
            if window.since and topic in ("", queue.topic)
        )

    def _settled(self, what: str, delivered: Delivered, refused: int) -> Settlement:
        self.messages[what] += (delivered.messages & ~refused).bit_count()
        self.messages["refused"] += refused.bit_count()
        if refused and self._routes.table.revision:
            group = delivered.group
            if group not in self._routes.table.groups:
                return Settlement(refused, error=GroupNotFound(group=group))
        return Settlement(refused)

    # Where reading begins.

    async def _begun(
        self, wishes: Sequence[Wish], route_revision: int
    ) -> dict[tuple[str, MessageQueue], RockoonError]:
        """Have progress on every queue that has none to go on by; returns where that failed."""
        refused: dict[tuple[str, MessageQueue], RockoonError] = {}
        await self._lose_tails(wishes)
        asked: dict[tuple[str, StartPolicy], dict[MessageQueue, None]] = {}
        for wish in wishes:
            if wish.group in self._routes.table.groups:
                for reach in wish.reaches:
                    if not self._goes_on(wish.group, reach):
                        asked.setdefault((wish.group, wish.policy), {})[reach.queue] = None
        # At once: a broker that hangs has each of them wait for its time limit.
        async with asyncio.TaskGroup() as tasks:
            for (group, policy), queues in asked.items():
                starting = self._start(group, policy, list(queues), route_revision, refused)
                tasks.create_task(starting, name=f"starts of {group}")
        return refused

    async def _start(
        self,
        group: str,
        policy: StartPolicy,
        queues: list[MessageQueue],
        route_revision: int,
        refused: dict[tuple[str, MessageQueue], RockoonError],
    ) -> None:
        free = []
        for queue in queues:
            try:
                self._require_unheld(group, queue)
            except RockoonError as reason:
                refused[group, queue] = reason
            else:
                free.append(queue)
        try:
            answers = await self._resolver.resolve(group, "", free, policy, route_revision)
        except RockoonError as reason:
            refused |= {(group, queue): reason for queue in free}
            return
        for queue, answer in answers.items():
            if isinstance(answer, RockoonError):
                refused[group, queue] = answer

    async def _lose_tails(self, wishes: Sequence[Wish]) -> None:
        """Begin queues anew whose log is shorter than what was acquired, as after a power cut.

        What is written there next would pass for acquired. A receiver that knows of a shorter queue
        may only lag, so the brokers say what holds; now and then, as it may lag for long.
        """
        now_ms = self.now_ms()
        acquired_to = {
            (wish.group, reach.queue): window.acquired_to
            for wish in wishes
            for reach in wish.reaches
            if reach.end_offset
            and (window := self._store.ledger.windows.find(wish.group, reach.queue)) is not None
            and reach.end_offset < window.acquired_to
            and now_ms - self._ends_asked_ms.get(reach.queue, 0) >= ENDS_ASKED_MS
        }
        if not acquired_to:
            return
        if len(self._ends_asked_ms) > ENDS_ASKED_MAX:
            self._ends_asked_ms.clear()
        self._ends_asked_ms |= dict.fromkeys((queue for _, queue in acquired_to), now_ms)
        await self._ends.refresh({queue for _, queue in acquired_to})
        self._store.admit()
        for (group, queue), reached in acquired_to.items():
            if not self._ends.is_unknown(queue) and self._ends.known(queue) < reached:
                log.warning(
                    "queue %s ends at %d, and receivers of group %s have acquired up to %d: the "
                    "log lost its tail; from the committed offset on, all comes again",
                    queue,
                    self._ends.known(queue),
                    group,
                    reached,
                )
                self._store.write(self._deliveries.begin_anew(group, queue))

    def _goes_on(self, group: str, reach: Reach) -> bool:
        """Whether a queue is open, and still the one that it was."""
        window = self._store.ledger.windows.find(group, reach.queue)
        # What retention deleted before anybody had it is the group's policy's affair.
        return (
            window is not None
            and reach.min_offset <= window.acquired_to
            and self._is_current(group, reach.queue)
        )

    def _is_current(self, group: str, queue: MessageQueue) -> bool:
        """Whether the group's progress is on this queue, and not on another of the name."""
        table, progress = self._routes.table, self._store.ledger.find(group, queue)
        known = table.groups.get(group)
        return (
            progress is not None
            and known is not None
            and progress.group_incarnation == known.incarnation
            and progress.incarnation == table.create_revision_or_none(queue)
        )

    def _require_unheld(self, group: str, queue: MessageQueue) -> None:
        incarnation = self._routes.table.create_revision_or_none(queue)
        self._groups.require_unheld(group, queue, incarnation)

    # What is granted.

    def _granted(
        self,
        wish: Wish,
        refused: dict[tuple[str, MessageQueue], RockoonError],
        now_ms: int,
        records: list[Record],
    ) -> Granted:
        known = self._routes.table.groups.get(wish.group)
        if known is None:
            return Granted(error=GroupNotFound(group=wish.group))
        if known.config.consume_disabled:
            return Granted(error=ConsumeDisabled(group=wish.group))
        outcome = Granted()
        if (
            known.config.fifo
            and wish.attempt_id
            and self._granted_before(wish, now_ms, outcome, records)
        ):
            return outcome
        for reach in wish.reaches:
            if outcome.messages >= wish.messages_max and not known.config.fifo:
                # Who has all asks again for more; of a FIFO group each queue says its candidates.
                break
            try:
                error = refused.get((wish.group, reach.queue))
                if error is not None:
                    raise error
                window = self._open(wish.group, reach, records)
                self._grant(wish, known.config, reach, window, now_ms, outcome, records)
            except RockoonError as reason:
                outcome.refused[reach.queue] = reason
        return outcome

    def _granted_before(
        self, wish: Wish, now_ms: int, outcome: Granted, records: list[Record]
    ) -> bool:
        """Whether a try has messages that are in flight, which then are its answer again.

        They are acquired once more by the same delivery, for the time that the receiver asks for.
        What becomes of the former answer, which its receiver did not get, has no effect on them.
        """
        config = self._routes.table.groups[wish.group].config
        visible_at_ms, held_until_ms = self._times(wish.visible_after_ms, wish.held_ms_max, now_ms)
        (share, *_) = wish.shares
        holder = Holder(share.receiver, share.key_id, held_until_ms, wish.call_id)
        for reach in wish.reaches:
            window = self._store.ledger.windows.find(wish.group, reach.queue)
            for grant in held_by_try(window, wish.attempt_id, holder, now_ms):
                made = self._deliveries.acquire_again(
                    wish.group,
                    reach.queue,
                    grant,
                    wish.messages_max - outcome.messages,
                    now_ms,
                    visible_at_ms,
                    wish.attempt_id,
                    holder,
                )
                records += made
                if outcome.messages < wish.messages_max:
                    outcome.add(Delivery(made[0], is_dead(config, made[0])))
        return bool(outcome.deliveries)

    def _open(self, group: str, reach: Reach, records: list[Record]) -> Window:
        """Raises QueueHeld, Busy."""
        queue = reach.queue
        known = self._routes.table.create_revision_or_none(queue)
        if reach.create_revision and reach.create_revision != known:
            raise Busy(reason=f"queue {queue} was made again under its name")
        window = self._store.ledger.windows.find(group, queue)
        if not self._is_current(group, queue):
            raise Busy(reason=f"progress of queue {queue} keeps moving")
        if window is None:
            self._require_unheld(group, queue)
            records += self._deliveries.open(group, queue)
            window = self._store.ledger.windows.of(group, queue)
        return window

    def _grant(
        self,
        wish: Wish,
        config: GroupConfig,
        reach: Reach,
        window: Window,
        now_ms: int,
        outcome: Granted,
        records: list[Record],
    ) -> None:
        """Raises Busy: there is something, and receivers have too much of the queue."""
        left = wish.messages_max - outcome.messages
        acquired = self._acquire(wish, config, reach, now_ms, outcome, records)
        # In a FIFO group, a visible message may wait for one in flight.
        at_ms = window.next_visible_after(now_ms) if config.fifo else window.next_visible_at_ms()
        next_ms = outcome.next_visible_at_ms
        if at_ms is not None:
            outcome.next_visible_at_ms = at_ms if next_ms is None else min(next_ms, at_ms)
        if left <= 0 or reach.end_offset <= window.floor:
            return
        if config.fifo:
            told_to = reach.candidates.first + len(reach.candidates.groups)
            is_all = reach.candidates.first == window.floor and (
                told_to >= reach.end_offset or len(reach.candidates.groups) == CANDIDATES_MAX
            )
            if not is_all:
                outcome.wanted[reach.queue] = window.floor
        elif not acquired and reach.end_offset > window.acquired_to:
            raise Busy(reason=f"{window.unsettled} messages of queue {reach.queue} are in flight")

    def _acquire(
        self,
        wish: Wish,
        config: GroupConfig,
        reach: Reach,
        now_ms: int,
        outcome: Granted,
        records: list[Record],
    ) -> bool:
        """Acquire messages of one queue for one share of a wish after the other; returns whether
        there were any."""
        where = wish.group, reach.queue
        before = outcome.messages
        visible_at_ms, held_until_ms = self._times(wish.visible_after_ms, wish.held_ms_max, now_ms)
        while outcome.messages < wish.messages_max and outcome.share < len(wish.shares):
            share = wish.shares[outcome.share]
            left = share.messages_max - outcome.messages_of_share
            left = min(left, wish.messages_max - outcome.messages)
            holder = Holder(share.receiver, share.key_id, held_until_ms, wish.call_id)
            made: Sequence[Record]
            if config.fifo:
                made = self._deliveries.acquire_in_order(
                    *where,
                    left,
                    wish.message_group_max or left,
                    reach.candidates,
                    redeliveries_max(config),
                    now_ms,
                    visible_at_ms,
                    wish.attempt_id,
                    holder,
                )
            else:
                made = self._deliveries.acquire(
                    *where, left, reach.end_offset, now_ms, visible_at_ms, holder
                )
            records += made
            for each in made:
                if isinstance(each, Acquired):
                    outcome.add(Delivery(each, is_dead(config, each), outcome.share))
                    self._count(outcome.deliveries[-1])
            if outcome.messages_of_share < share.messages_max:
                # The queue has no more.
                break
            outcome.share += 1
            outcome.messages_of_share = 0
        return outcome.messages > before

    def _times(self, visible_after_ms: int, held_ms_max: int, now_ms: int) -> tuple[int, int]:
        """When messages are visible that a receiver gets now, and until when its reports extend
        them; 0: they do not."""
        if not held_ms_max:
            return now_ms + visible_after_ms, 0
        held_until_ms = now_ms + held_ms_max
        return min(now_ms + self._deliveries.lease_ms, held_until_ms), held_until_ms

    def _count(self, delivery: Delivery) -> None:
        count = delivery.acquired.messages.bit_count()
        self.messages["acquired"] += count
        if delivery.acquired.former:
            self.messages["redelivered"] += count
        if delivery.is_dead:
            self.messages["dead"] += count


def redeliveries_max(config: GroupConfig) -> int:
    """How often a message of a group is delivered again before it is a dead letter."""
    is_said = config.HasField("retry_attempts_max")
    return config.retry_attempts_max if is_said else RETRY_ATTEMPTS_DEFAULT


def is_dead(config: GroupConfig, acquired: Acquired) -> bool:
    """Whether a delivery is one more than the group wants of a message."""
    return acquired.attempt - 1 > redeliveries_max(config)


def held_by_try(window: Window | None, attempt_id: str, holder: Holder, now_ms: int) -> list[Grant]:
    """What a FIFO group's receiver got of a queue when it tried before, if it is in flight."""
    grants = []
    tried = [each for each in window or () if each.attempt_id == attempt_id]
    # By number: that is the order in which they were granted.
    for each in sorted(tried, key=attrgetter("number")):
        # Records of former versions name no holder.
        is_own = (each.holder, each.holder_key) in (("", ""), (holder.name, holder.key_id))
        messages = 0
        for at_ms, part in each.parts.items():
            if at_ms > now_ms:
                messages |= part
        if messages and is_own:
            grants.append(Grant(each.number, each.first, messages, each.attempt, each.reason))
    return grants
