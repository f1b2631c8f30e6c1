"""Acquire, acknowledge and change of visibility for receivers. Results are durable."""

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
    Deliveries,
    FifoCandidates,
    Holder,
    VisibilityChange,
)
from rockoon_offset.in_flight.filters import NO_PROGRAM, ReaderFilters, ReceiverProgram, TopicFilter
from rockoon_offset.in_flight.window import ClientName, Grant, Window
from rockoon_offset.progress.commits import QueueEndCache
from rockoon_offset.progress.group_queues import LoopShare
from rockoon_offset.progress.progress_store import ProgressStore
from rockoon_offset.progress.records import Acquired, Record
from rockoon_offset.routes import FollowedRoutes
from rockoon_offset.start.resolver import Resolver
from rockoon_proto.v1.nameserver_pb2 import GroupConfig

log = logging.getLogger(__name__)

# Candidates of one queue. In a FIFO group no message further above the floor is granted.
CANDIDATES_MAX = 1024
ENDS_ASKED_MS = 1_000
ENDS_ASKED_MAX = 100_000


class ReportedQueue(NamedTuple):
    """A queue with the bounds that the receiver knows."""

    queue: MessageQueue
    min_offset: int
    end_offset: int
    # Used in a FIFO group.
    candidates: FifoCandidates
    # Create revision of the queue that the receiver has read; 0: not reported.
    create_revision: int = 0


class ReceiverShare(NamedTuple):
    """Maximum number of messages for one receiver, in a request for several receivers."""

    receiver: str
    key_id: str
    messages_max: int


class AcquireEntry(NamedTuple):
    """One entry of an Acquire call: receivers of one group request messages."""

    group: str
    # In the order of preference.
    queues: Sequence[ReportedQueue]
    messages_max: int
    visible_after_ms: int
    attempt_id: str
    policy: StartPolicy
    # One or more; filled in this order.
    shares: Sequence[ReceiverShare]
    receiver: str = ""
    # Maximum time that reports of the receivers extend the messages; 0: reports do not extend
    # them, and `visible_after_ms` applies.
    held_ms_max: int = 0
    # Filters that the receiver reports with this call.
    filters: Sequence[TopicFilter] = ()
    # In a FIFO group, maximum messages of one message group; 0: `messages_max`.
    message_group_max: int = 0
    # Id of the call.
    call_id: str = ""
    # Program of the receivers, reported with `filters`.
    program: ReceiverProgram = NO_PROGRAM

    @property
    def reporters(self) -> Sequence[str]:
        """Receivers whose filters this call reports: all of a program, but one of a gateway, whose
        clients may be many."""
        if not self.program.sdk.language:
            return (self.receiver,)
        return list(dict.fromkeys(each.receiver for each in self.shares))


class LostCall(NamedTuple):
    """A receiver's call whose reply did not reach it."""

    client: ClientName
    call_id: str


class Delivered(NamedTuple):
    """Messages of an acquisition that a receiver acknowledges or whose visibility it changes."""

    group: str
    queue: MessageQueue
    number: int
    first: int
    # Bit i is offset `first` + i.
    messages: int
    # Receiver that acknowledges the messages; empty: the holder.
    receiver: str = ""


class VisibilityEntry(NamedTuple):
    """One entry of a ChangeVisibility call; see `VisibilityChange`."""

    delivered: Delivered
    visible_after_ms: int
    counted: bool
    extend: bool
    # Why the delivery failed; only for display.
    reason: str = ""
    # Receiver that the messages pass to; empty: none.
    to: str = ""
    to_key: str = ""
    held_ms_max: int = 0


class GrantedMessages(NamedTuple):
    """Messages that were acquired for one receiver; `is_dead`: they are dead letters."""

    acquired: Acquired
    is_dead: bool
    share: int = 0


@dataclass(slots=True)
class Granted:
    """Result of one entry of an Acquire call."""

    deliveries: list[GrantedMessages] = field(default_factory=list)
    # Epoch milliseconds; None: no message is in flight.
    next_visible_at_ms: int | None = None
    refused: dict[MessageQueue, RockoonError] = field(default_factory=dict)
    # Queue → first offset of the candidates that the receiver must send.
    wanted: dict[MessageQueue, int] = field(default_factory=dict)
    error: RockoonError | None = None
    # Warning about readers with different filters.
    filter_conflict: str = ""
    # Index of the share that gets the next message; its messages, and the messages of all shares.
    share: int = 0
    messages_of_share: int = 0
    messages: int = 0

    def add(self, delivery: GrantedMessages) -> None:
        """Add acquired messages to the result, for the present receiver."""
        count = delivery.acquired.messages.bit_count()
        self.deliveries.append(delivery)
        self.messages += count
        self.messages_of_share += count


class Heard(NamedTuple):
    """Time of a client's last call to a gateway, or time at which it closed."""

    client: ClientName
    heard_at_ms: int
    goodbye: bool = False


class Settlement(NamedTuple):
    """Result of an acknowledgement or a change of visibility."""

    refused: int
    number: int = 0
    visible_at_ms: int = 0
    error: RockoonError | None = None


class Receivers:
    """Serves receivers (consumers that acquire and acknowledge single messages). Results are
    durable.

    Args:
        routes: groups, and the queues' incarnations.
        resolver: decides the start position of a queue.
        now_ms: clock of visibility times, epoch milliseconds. It must not jump.
        route_wait_seconds: how long to wait for the route revision of the receivers.
        lease_ms: how long a client holds messages after its last call to a gateway.
    """

    def __init__(
        self,
        store: ProgressStore,
        routes: FollowedRoutes,
        resolver: Resolver,
        groups: Groups,
        ends: QueueEndCache,
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
        # Queue → when its end was last read because a receiver reported a lower end.
        self._ends_asked_ms: dict[MessageQueue, int] = {}
        # Messages since the start. "acquired" includes "redelivered" and "dead". "settled" and
        # "visibility_changed" include repeated calls; "refused" counts refusals of both.
        self.messages: Counter[str] = Counter()

    async def acquire(
        self, entries: Sequence[AcquireEntry], route_revision: int, lost: Iterable[LostCall] = ()
    ) -> list[Granted]:
        """Acquire messages for each entry of a call separately. The result is durable.

        Args:
            route_revision: revision of the routes that the receivers use.
            lost: former calls. Their messages are released first.

        Raises:
            NotReady: there are no valid routes.
            Busy, StoreNotWritable, StoreFailed: nothing was granted.
            NotLeader, NotEnoughReplicas: of a journal with copies.
        """
        self._routes.require()
        self._store.require_writable()
        removals = self._filters.removals
        await self._routes.wait_revision(route_revision, self._route_wait_seconds)
        refused = await self._start_queues(entries, route_revision)
        self._store.require_writable()
        # No await from here on: state cannot change between the decisions and the write.
        now_ms = self.now_ms()
        records: list[Record] = []
        try:
            for each in lost:
                records += self._deliveries.release_lost(each.client, each.call_id, now_ms)
            is_released = bool(records)
            outcomes = [self._granted(entry, refused, now_ms, records) for entry in entries]
        finally:
            # Applied changes must be written even if a later entry fails.
            self._store.write(records)
        share = LoopShare()
        for entry, outcome in zip(entries, outcomes, strict=True):
            if entry.filters and outcome.error is None:
                for warning in self._filters.report(
                    entry.group,
                    entry.reporters,
                    entry.filters,
                    entry.visible_after_ms,
                    removals,
                    entry.program,
                ):
                    outcome.filter_conflict = warning
                    await share.pause_when_used()
        if is_released or any(outcome.deliveries for outcome in outcomes):
            await self._store.durable()
        return outcomes

    async def acknowledge(self, entries: Iterable[Delivered]) -> list[Settlement]:
        """Settle acknowledged messages. Raises the errors of `acquire` except NotReady."""
        self._store.require_writable()
        now_ms = self.now_ms()
        records: list[Record] = []
        settlements: list[Settlement] = []
        try:
            for each in entries:
                made, refused = self._deliveries.acknowledge(*each[:5], now_ms, each.receiver)
                records += made
                settlements.append(self._settlement("settled", each, refused))
        finally:
            self._store.write(records)
        await self._store.durable()
        return settlements

    async def change_visibility(self, changes: Iterable[VisibilityEntry]) -> list[Settlement]:
        """Change when acquired messages become visible. Raises the errors of `acknowledge`."""
        self._store.require_writable()
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
                settlement = self._settlement("visibility_changed", each.delivered, changed.refused)
                if changed.number:
                    settlement = settlement._replace(number=changed.number, visible_at_ms=at_ms)
                settlements.append(settlement)
        finally:
            self._store.write(records)
        await self._store.durable()
        return settlements

    def delivered(self, numbers: Iterable[int]) -> None:
        """Record that receivers have the messages of acquisitions; see `Deliveries.delivered`."""
        self._deliveries.delivered(numbers)

    async def heard(self, reports: Iterable[Heard]) -> None:
        """Extend the messages of reported clients; make the messages of closed clients visible.
        Yields to other calls during a long report. Raises the errors of `acknowledge`.
        """
        self._store.require_writable()
        share, is_changed = LoopShare(), False
        for each in reports:
            if each.goodbye:
                records = self._deliveries.release_held(each.client, self.now_ms())
                self._filters.remove(each.client.group, each.client.client_id)
            else:
                records = self._deliveries.extend_held(each.client, each.heard_at_ms)
            if records:
                is_changed = True
                self._store.write(records)
            await share.pause_when_used()
            # During the pause another process may have become the leader.
            self._store.require_writable()
        if is_changed:
            await self._store.durable()

    async def durable(self) -> None:
        """Wait until all changes made so far are durable."""
        await self._store.durable()

    async def wait_leadership_confirmed(self) -> None:
        """Wait until the leadership of this process is confirmed; see `ProgressStore`."""
        await self._store.wait_leadership_confirmed()

    @property
    def lease_ms(self) -> int:
        """Milliseconds for which a client holds messages after its last call to a gateway."""
        return self._deliveries.lease_ms

    def windows(self, group: str, topic: str) -> list[tuple[MessageQueue, Window]]:
        """Return the queues that a group's receivers acquired from. Raises GroupNotFound."""
        self._routes.require()
        if group not in self._routes.table.groups:
            raise GroupNotFound(group=group)
        windows = self._store.ledger.windows.of_group(group)
        return sorted(
            (queue, window)
            for queue, window in windows.items()
            if window.since and topic in ("", queue.topic)
        )

    def _settlement(self, counter: str, delivered: Delivered, refused: int) -> Settlement:
        self.messages[counter] += (delivered.messages & ~refused).bit_count()
        self.messages["refused"] += refused.bit_count()
        if refused and self._routes.table.revision:
            group = delivered.group
            if group not in self._routes.table.groups:
                return Settlement(refused, error=GroupNotFound(group=group))
        return Settlement(refused)

    # Start positions.

    async def _start_queues(
        self, entries: Sequence[AcquireEntry], route_revision: int
    ) -> dict[tuple[str, MessageQueue], RockoonError]:
        """Resolve the start of each queue without a valid window; return errors by queue."""
        refused: dict[tuple[str, MessageQueue], RockoonError] = {}
        await self._restart_truncated(entries)
        asked: dict[tuple[str, StartPolicy], dict[MessageQueue, None]] = {}
        for entry in entries:
            if entry.group in self._routes.table.groups:
                for reported in entry.queues:
                    if not self._has_window(entry.group, reported):
                        asked.setdefault((entry.group, entry.policy), {})[reported.queue] = None
        # Concurrently: a broker that hangs costs each group the time limit of a call.
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
                self._require_no_live_owner(group, queue)
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

    async def _restart_truncated(self, entries: Sequence[AcquireEntry]) -> None:
        """Restart windows of queues whose log ends below `acquired_to`, as after a power cut.

        Otherwise the next messages at these offsets would count as acquired. A receiver that
        reports a lower end may only lag, so the brokers are asked for the end, at most once per
        `ENDS_ASKED_MS` and queue.
        """
        now_ms = self.now_ms()
        acquired_to = {
            (entry.group, each.queue): window.acquired_to
            for entry in entries
            for each in entry.queues
            if each.end_offset
            and (window := self._store.ledger.windows.find(entry.group, each.queue)) is not None
            and each.end_offset < window.acquired_to
            and now_ms - self._ends_asked_ms.get(each.queue, 0) >= ENDS_ASKED_MS
        }
        if not acquired_to:
            return
        if len(self._ends_asked_ms) > ENDS_ASKED_MAX:
            self._ends_asked_ms.clear()
        self._ends_asked_ms |= dict.fromkeys((queue for _, queue in acquired_to), now_ms)
        await self._ends.refresh({queue for _, queue in acquired_to})
        self._store.require_writable()
        for (group, queue), end in acquired_to.items():
            if not self._ends.is_unknown(queue) and self._ends.known(queue) < end:
                log.warning(
                    "queue %s ends at %d, but receivers of group %s have acquired up to %d: the "
                    "broker lost the end of its log; all messages from the committed offset on are "
                    "delivered again",
                    queue,
                    self._ends.known(queue),
                    group,
                    end,
                )
                self._store.write(self._deliveries.restart(group, queue))

    def _has_window(self, group: str, reported: ReportedQueue) -> bool:
        """True if the queue has a window, which is not of a deleted queue of the same name."""
        window = self._store.ledger.windows.find(group, reported.queue)
        # If retention deleted messages above `acquired_to`, Resolve applies the group's policy.
        return (
            window is not None
            and reported.min_offset <= window.acquired_to
            and self._is_current(group, reported.queue)
        )

    def _is_current(self, group: str, queue: MessageQueue) -> bool:
        """True if the group's progress is on this queue, not on a deleted one of its name."""
        table, progress = self._routes.table, self._store.ledger.find(group, queue)
        known = table.groups.get(group)
        return (
            progress is not None
            and known is not None
            and progress.group_incarnation == known.incarnation
            and progress.incarnation == table.create_revision_or_none(queue)
        )

    def _require_no_live_owner(self, group: str, queue: MessageQueue) -> None:
        incarnation = self._routes.table.create_revision_or_none(queue)
        self._groups.require_no_live_owner(group, queue, incarnation)

    # Grants.

    def _granted(
        self,
        entry: AcquireEntry,
        refused: dict[tuple[str, MessageQueue], RockoonError],
        now_ms: int,
        records: list[Record],
    ) -> Granted:
        known = self._routes.table.groups.get(entry.group)
        if known is None:
            return Granted(error=GroupNotFound(group=entry.group))
        if known.config.consume_disabled:
            return Granted(error=ConsumeDisabled(group=entry.group))
        outcome = Granted()
        if (
            known.config.fifo
            and entry.attempt_id
            and self._grant_again(entry, now_ms, outcome, records)
        ):
            return outcome
        for reported in entry.queues:
            if outcome.messages >= entry.messages_max and not known.config.fifo:
                # In a FIFO group the other queues still report which candidates they need.
                break
            try:
                error = refused.get((entry.group, reported.queue))
                if error is not None:
                    raise error
                window = self._open(entry.group, reported, records)
                self._grant(entry, known.config, reported, window, now_ms, outcome, records)
            except RockoonError as reason:
                outcome.refused[reported.queue] = reason
        return outcome

    def _grant_again(
        self, entry: AcquireEntry, now_ms: int, outcome: Granted, records: list[Record]
    ) -> bool:
        """Return the messages that a former call with the same attempt id acquired, if they are in
        flight.

        They are acquired again as the same delivery, for the requested time. Acknowledgements by
        the former reply, which did not reach the receiver, have no effect. Returns whether messages
        were granted.
        """
        config = self._routes.table.groups[entry.group].config
        visible_at_ms, held_until_ms = self._times(
            entry.visible_after_ms, entry.held_ms_max, now_ms
        )
        (share, *_) = entry.shares
        holder = Holder(share.receiver, share.key_id, held_until_ms, entry.call_id)
        for reported in entry.queues:
            window = self._store.ledger.windows.find(entry.group, reported.queue)
            for grant in held_by_attempt(window, entry.attempt_id, holder, now_ms):
                made = self._deliveries.acquire_again(
                    entry.group,
                    reported.queue,
                    grant,
                    entry.messages_max - outcome.messages,
                    now_ms,
                    visible_at_ms,
                    entry.attempt_id,
                    holder,
                )
                records += made
                if outcome.messages < entry.messages_max:
                    outcome.add(GrantedMessages(made[0], is_dead(config, made[0])))
        return bool(outcome.deliveries)

    def _open(self, group: str, reported: ReportedQueue, records: list[Record]) -> Window:
        """Return a queue's window, created if needed, to acquire from. Raises QueueHeld, Busy."""
        queue = reported.queue
        known = self._routes.table.create_revision_or_none(queue)
        if reported.create_revision and reported.create_revision != known:
            raise Busy(reason=f"queue {queue} was deleted and created again")
        window = self._store.ledger.windows.find(group, queue)
        if not self._is_current(group, queue):
            raise Busy(reason=f"progress of queue {queue} changed during the call")
        if window is None:
            self._require_no_live_owner(group, queue)
            records += self._deliveries.open(group, queue)
            window = self._store.ledger.windows.of(group, queue)
        return window

    def _grant(
        self,
        entry: AcquireEntry,
        config: GroupConfig,
        reported: ReportedQueue,
        window: Window,
        now_ms: int,
        outcome: Granted,
        records: list[Record],
    ) -> None:
        """Raise Busy if the queue has new messages, but too many of its messages are in flight."""
        left = entry.messages_max - outcome.messages
        acquired = self._acquire(entry, config, reported, now_ms, outcome, records)
        # In a FIFO group, a visible message may wait for one in flight.
        at_ms = window.next_visible_after(now_ms) if config.fifo else window.next_visible_at_ms()
        next_ms = outcome.next_visible_at_ms
        if at_ms is not None:
            outcome.next_visible_at_ms = at_ms if next_ms is None else min(next_ms, at_ms)
        if left <= 0 or reported.end_offset <= window.floor:
            return
        candidates = reported.candidates
        if config.fifo:
            candidates_end = candidates.first + len(candidates.groups)
            is_complete = candidates.first == window.floor and (
                candidates_end >= reported.end_offset or len(candidates.groups) == CANDIDATES_MAX
            )
            if not is_complete:
                outcome.wanted[reported.queue] = window.floor
        elif not acquired and reported.end_offset > window.acquired_to:
            raise Busy(
                reason=f"{window.unsettled} messages of queue {reported.queue} are in flight"
            )

    def _acquire(
        self,
        entry: AcquireEntry,
        config: GroupConfig,
        reported: ReportedQueue,
        now_ms: int,
        outcome: Granted,
        records: list[Record],
    ) -> bool:
        """Acquire messages of a queue, one receiver after the other; return whether any were."""
        where = entry.group, reported.queue
        before = outcome.messages
        visible_at_ms, held_until_ms = self._times(
            entry.visible_after_ms, entry.held_ms_max, now_ms
        )
        while outcome.messages < entry.messages_max and outcome.share < len(entry.shares):
            share = entry.shares[outcome.share]
            left = share.messages_max - outcome.messages_of_share
            left = min(left, entry.messages_max - outcome.messages)
            holder = Holder(share.receiver, share.key_id, held_until_ms, entry.call_id)
            made: Sequence[Record]
            if config.fifo:
                made = self._deliveries.acquire_in_order(
                    *where,
                    left,
                    entry.message_group_max or left,
                    reported.candidates,
                    redeliveries_max(config),
                    now_ms,
                    visible_at_ms,
                    entry.attempt_id,
                    holder,
                )
            else:
                made = self._deliveries.acquire(
                    *where, left, reported.end_offset, now_ms, visible_at_ms, holder
                )
            records += made
            for each in made:
                if isinstance(each, Acquired):
                    outcome.add(GrantedMessages(each, is_dead(config, each), outcome.share))
                    self._count(outcome.deliveries[-1])
            if outcome.messages_of_share < share.messages_max:
                # The queue has no further message to grant.
                break
            outcome.share += 1
            outcome.messages_of_share = 0
        return outcome.messages > before

    def _times(self, visible_after_ms: int, held_ms_max: int, now_ms: int) -> tuple[int, int]:
        """Return the visibility time of messages acquired now, and the latest time to which reports
        extend it (0: reports do not extend it).
        """
        if not held_ms_max:
            return now_ms + visible_after_ms, 0
        held_until_ms = now_ms + held_ms_max
        return min(now_ms + self._deliveries.lease_ms, held_until_ms), held_until_ms

    def _count(self, delivery: GrantedMessages) -> None:
        count = delivery.acquired.messages.bit_count()
        self.messages["acquired"] += count
        if delivery.acquired.former:
            self.messages["redelivered"] += count
        if delivery.is_dead:
            self.messages["dead"] += count


def redeliveries_max(config: GroupConfig) -> int:
    """Return the number of redeliveries of a group's message before it becomes a dead letter."""
    is_set = config.HasField("retry_attempts_max")
    return config.retry_attempts_max if is_set else RETRY_ATTEMPTS_DEFAULT


def is_dead(config: GroupConfig, acquired: Acquired) -> bool:
    """True if a delivery exceeds the group's maximum of attempts: its messages are dead letters."""
    return acquired.attempt - 1 > redeliveries_max(config)


def held_by_attempt(
    window: Window | None, attempt_id: str, holder: Holder, now_ms: int
) -> list[Grant]:
    """Return the messages in flight that a FIFO receiver acquired with the same attempt id."""
    grants = []
    tried = [each for each in window or () if each.attempt_id == attempt_id]
    # Acquisition numbers are in the order of the grants.
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
