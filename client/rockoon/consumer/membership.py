"""Membership of a consumer group: heartbeats, and events from the offset service.

The membership lease limits how long a member may rely on its queues, by its own clock. The offset
service grants a queue to another member when the lease of this one has ended, or when it did not
release the queue in time. A process that was stopped (a signal, a suspended machine) does not know
this before its next call. Without a check of the clock, it would handle messages of queues that
another member owns.

Orderly members trust a grant only while the last heartbeat that got a reply is recent enough. Other
members continue if the service does not reply: handling messages twice is better than handling
none. But they stop if their own process was stopped.

Invariant: after a stop of the process, grants from before the stop are never valid again, and no
grant is valid until a heartbeat that was sent after the stop got a reply.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice

from grpc import RpcError

from rockoon.allocation import AVERAGE, AllocationStrategy, OwnerAware
from rockoon.allocation.strategy import name_of
from rockoon.errors import GroupNotFound, OffsetServiceUnavailable, RockoonError
from rockoon.net.connection import Connection
from rockoon.subscription import Subscription
from rockoon_core.changes import Changes
from rockoon_core.clock import Backoff
from rockoon_core.failed_call import from_rpc_error, may_sign_again
from rockoon_core.message_queue import QUEUES_PER_CALL_MAX, MessageQueue, queue_from_wire
from rockoon_core.repeated_lines import limited
from rockoon_core.valid_text import valid_text
from rockoon_format.names import is_retry_topic
from rockoon_proto.v1 import offset_pb2 as offset_pb

# A member without replies to heartbeats uses its queues for this share of the granted time. The
# rest of the time is a margin: for a hand-over that began after the last reply (one heartbeat
# interval), clock drift, and the start of a handler call.
_SAFE_SHARE = 0.75
# If the event loop pauses for at least this share of the granted time, the process counts as
# stopped.
_SLEEP_SHARE_MIN = 0.25
_TICKS_PER_SLEEP = 4
_TICK_SECONDS_MAX = 10.0


class MembershipLease:
    """Decides whether the grants of one member are valid. Times are seconds of a monotonic clock.
    `orderly`: no other member may own a queue while this member trusts its grant."""

    def __init__(self, *, orderly: bool) -> None:
        self.expirations = 0
        """Number of times that all grants may have ended."""
        self.granted_seconds = float("inf")
        """Time for which the member keeps its queues without a heartbeat."""
        self.tick_seconds = 1.0
        """Interval at which `tick` is to be called."""
        self._orderly = orderly
        self._lease_seconds = float("inf")
        self._safe_seconds = float("inf")
        self._sleep_seconds = float("inf")
        # Send time of the last heartbeat that got a reply.
        self._renewed_at = 0.0
        # Time of the last call of `tick`.
        self._ticked_at = 0.0
        # Time at which the end of the last stop was detected.
        self._woke_at = 0.0

    def renew(
        self, lease_seconds: float, handover_seconds_max: float, heartbeat_seconds: float
    ) -> None:
        """Apply the times of the last heartbeat reply."""
        # A member without replies is not notified that another member waits for a queue, and loses
        # the queue after the hand-over time although its lease is valid. If the hand-over time is
        # 0, the service grants the queue to the other member immediately. No limit can prevent
        # that, so the lease is the limit.
        self._lease_seconds = lease_seconds
        self.granted_seconds = granted = min(lease_seconds, handover_seconds_max or float("inf"))
        self._safe_seconds = safe = _SAFE_SHARE * granted
        # When a stop begins, the last heartbeat is up to one interval old.
        self._sleep_seconds = max(safe - heartbeat_seconds, _SLEEP_SHARE_MIN * granted)
        self.tick_seconds = min(self._sleep_seconds / _TICKS_PER_SLEEP, _TICK_SECONDS_MAX)

    def tick(self, now: float) -> bool:
        """Record that the process runs; return True if it was stopped for too long."""
        slept = self._ticked_at > 0 and now - self._ticked_at > self._sleep_seconds
        if slept:
            self._woke_at = now
        self._ticked_at = now
        return slept

    def answered(self, sent_at: float, now: float) -> float | None:
        """Record the reply to a heartbeat.

        Args:
            sent_at: send time, with which `tick` was called.
            now: time of the reply.

        Returns:
            Seconds since the heartbeat before, if grants may have ended since; None otherwise.
        """
        # Upper bound: the service got this heartbeat before `now`, and the last one after its send
        # time.
        silence = now - self._renewed_at
        silence_max = self._safe_seconds if self._orderly else self._lease_seconds
        # Second condition: the process was stopped between two heartbeats, maybe for less than a
        # lease. The decisions of the service during the stop are unknown until this reply.
        lapsed = self._renewed_at > 0 and (
            silence > silence_max or self._renewed_at < self._woke_at
        )
        # The send time, not the time of the reply: the service may measure the lease from then.
        self._renewed_at = sent_at
        if not lapsed:
            return None
        self.expirations += 1
        return silence

    def valid_since(self, expirations: int, now: float) -> bool:
        """Return True if a grant is valid.

        Args:
            expirations: value of `expirations` before the grant was requested.
            now: current time.
        """
        # The grant is older than the last expiration: another member may own the queue.
        if expirations != self.expirations:
            return False
        if self._orderly:
            return now - self._renewed_at < self._safe_seconds
        return self._woke_at <= self._renewed_at and now - self._ticked_at <= self._sleep_seconds


def contradictions(members: Collection[offset_pb.Member]) -> list[str]:
    """Return a text for each setting that must be equal on members that share queues and differs.

    If members use different allocations, some queues have no reader and others have two. If they
    have different topics or expressions, messages that one member excludes count as consumed for
    the group. `members`: all members of a group; broadcasting members are ignored.
    """
    sharing = [each for each in members if each.mode == offset_pb.CLUSTERING]
    texts = _differing(
        "share queues by different rules", ((m.allocation, m.member_id) for m in sharing)
    )
    expressions: dict[str, dict[str, str]] = {}
    for member in sharing:
        for entry in member.subscriptions:
            if not is_retry_topic(entry.topic):
                expressions.setdefault(entry.topic, {})[member.member_id] = entry.expression
    for topic, by_member in sorted(expressions.items()):
        every = ((by_member.get(m.member_id, "nothing"), m.member_id) for m in sharing)
        texts += _differing(f"read different things of topic {topic}", every)
    return texts


def _differing(what: str, said: Iterable[tuple[str, str]]) -> list[str]:
    members_by_word: dict[str, list[str]] = {}
    for word, member in said:
        members_by_word.setdefault(word or "unnamed", []).append(member)
    if len(members_by_word) < 2:
        return []
    parts = "; ".join(
        f"{word}: {_some(members)}" for word, members in sorted(members_by_word.items())
    )
    return [f"members {what}: {parts}"]


def _some(members: list[str], shown_max: int = 3) -> str:
    rest = len(members) - shown_max
    return ", ".join(members[:shown_max]) + (f" and {rest} more" if rest > 0 else "")


log = limited(logging.getLogger(__name__))

_LEAVE_SECONDS_MAX = 2.0
NAME_BYTES_MAX = 255
# Heartbeats of an orderly member during the time for which it owns its queues without a reply.
_HEARTBEATS_PER_SAFE_TIME = 5


class GroupMembership:
    """One member of a group, while its tasks run.

    Args:
        member_id: unique in the group.
        changes: changes when the allocation may have changed.
        on_reset: called with queues whose progress was reset.
        mode: members of another mode do not share queues with this one.
        orderly: heartbeats are frequent enough to keep `valid_since` true.
        allocation: strategy by which members share queues. Heartbeats contain its name; if it uses
            owners, they request the owners.
    """

    def __init__(
        self,
        cluster: Connection,
        group: str,
        member_id: str,
        subscriptions: Sequence[Subscription],
        *,
        changes: Changes,
        on_reset: Callable[[Collection[MessageQueue]], None],
        mode: offset_pb.ConsumeMode = offset_pb.CLUSTERING,
        orderly: bool = False,
        allocation: AllocationStrategy = AVERAGE,
    ) -> None:
        self.topics_of: Mapping[str, frozenset[str]] = {}
        """Member id → topics that it reads, of each live member; empty before the first reply."""
        self.owners: Mapping[MessageQueue, str] | None = None
        """Queue → its owner when the membership last changed; the same on all members. None if the
        allocation does not use owners, or there are too many queues."""
        self.is_paused = False
        """The group is paused: no member may read."""
        self.group_incarnation = 0
        """Incarnation of the group; events of earlier incarnations are ignored; 0: unknown."""
        self.heartbeats_failed = 0
        self.positions: Callable[[], Iterable[offset_pb.PulledPosition]] = tuple
        """Returns the pull position of each queue, for heartbeats."""
        self.handover_seconds_max = 0.0
        """Time for which this member may keep a queue that is allocated to another member."""
        self._cluster = cluster
        self._group = group
        self.member_id = member_id
        # Tells this process from a later process with the same member id.
        self._instance = secrets.token_hex(8)
        self._subscriptions = subscriptions
        self._changes = changes
        self._on_reset = on_reset
        self._mode = mode
        self._orderly = orderly
        self._allocation_name = _cut(name_of(allocation))
        self._wants_owners = mode == offset_pb.CLUSTERING and isinstance(allocation, OwnerAware)
        self._owners_version = 0
        self._contradictions: list[str] = []
        self._version = -1
        # Set to send the next heartbeat immediately.
        self._heartbeat_now = asyncio.Event()
        self._heartbeat_seconds = 1.0
        self._lease_seconds = float("inf")
        self._lease = MembershipLease(orderly=orderly)

    @property
    def expirations(self) -> int:
        """Number of times that the lease may have expired without a heartbeat."""
        return self._lease.expirations

    def valid_since(self, expirations: int) -> bool:
        """Return True if a handler call may start for a queue that was granted to this member.

        An orderly member needs a recent heartbeat. Other members may start calls unless this
        process was stopped for so long that another member may own the queue. `expirations`: value
        of `expirations` before the grant was requested.
        """
        if self._mode != offset_pb.CLUSTERING:
            return True
        return self._lease.valid_since(expirations, asyncio.get_running_loop().time())

    async def send_heartbeat(self) -> None:
        """Send one heartbeat, which joins the group or renews the lease.

        Raises:
            MemberIdTaken: a live process has the id.
            GroupNotFound: the group was deleted.
            OffsetServiceUnavailable: the service did not reply.
        """
        loop = asyncio.get_running_loop()
        # Before the call, because the service measures the lease from the arrival of the heartbeat.
        sent_at = loop.time()
        self._lease.tick(sent_at)
        reply = await self._cluster.call(
            self._cluster.offset_service().Heartbeat,
            offset_pb.HeartbeatRequest(
                group=self._group,
                member_id=self.member_id,
                instance=self._instance,
                mode=self._mode,
                subscriptions=[
                    offset_pb.TopicSubscription(topic=s.topic, expression=s.expression)
                    for s in self._subscriptions
                ],
                # The lag of the group does not show further positions.
                positions=islice(self.positions(), QUEUES_PER_CALL_MAX),
                allocation=self._allocation_name,
                wants_owners=self._wants_owners,
                owners_version=self._owners_version,
                group_incarnation=self.group_incarnation,
                language=self._cluster.agent.language,
                version=self._cluster.agent.version,
            ),
            unavailable=OffsetServiceUnavailable,
            timeout_seconds=max(self._heartbeat_seconds, 1.0),
        )
        silence = self._lease.answered(sent_at, loop.time())
        if silence is not None:
            self._changes.notify()
            log.warning(
                "no heartbeat of %s reached the offset service for %.1f s, so other members may "
                "own its queues: resolving all queues again",
                self.member_id,
                silence,
            )
        self._heartbeat_seconds = reply.heartbeat_seconds or self._heartbeat_seconds
        self._lease_seconds = reply.lease_seconds or self._lease_seconds
        self.handover_seconds_max = reply.handover_seconds_max
        self._lease.renew(self._lease_seconds, self.handover_seconds_max, self._heartbeat_seconds)
        self._apply_pause(is_paused=reply.consume_disabled)
        # An event may have arrived before this reply with a newer list of members.
        if reply.membership_version >= self._version:
            self._apply_owners(reply)
            self._apply_members(reply.membership_version, reply.members)

    async def keep_alive(self) -> None:
        """Send heartbeats without end. Raises MemberIdTaken, GroupNotFound, ...: an error that is
        not retriable."""
        backoff = Backoff(first_seconds=0.2)
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pause_seconds()):
                    await self._heartbeat_now.wait()
            # Before the heartbeat, so that a request during it causes another one.
            self._heartbeat_now.clear()
            while True:
                try:
                    await self.send_heartbeat()
                    backoff.reset()
                    break
                except RockoonError as error:
                    if not error.retriable:
                        raise
                    if not self.heartbeats_failed:
                        log.warning("heartbeat failed, retrying: %s", error)
                    self.heartbeats_failed += 1
                    # A restarted service counts membership versions from the start.
                    self._version = -1
                # At most one heartbeat interval, because the lease may expire during the pause.
                pause = min(backoff.next_seconds(), self._heartbeat_seconds)
                await self._cluster.pause_for_offset_service(pause)

    def _pause_seconds(self) -> float:
        if self._orderly:
            granted_seconds = self._lease.granted_seconds
            return min(self._heartbeat_seconds, granted_seconds / _HEARTBEATS_PER_SAFE_TIME)
        return self._heartbeat_seconds

    async def watch_clock(self) -> None:
        """Detect stops of this process by the clock, without end."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._lease.tick_seconds)
            if self._lease.tick(loop.time()):
                self._heartbeat_now.set()

    async def watch(self) -> None:
        """Follow the events of the group, without end. Raises GroupNotFound: the group was
        deleted."""
        backoff = Backoff()
        while True:
            try:
                stub = self._cluster.offset_service()
                call = stub.WatchGroup(
                    offset_pb.WatchGroupRequest(
                        group=self._group,
                        member_id=self.member_id,
                        group_incarnation=self.group_incarnation,
                    ),
                    metadata=self._cluster.metadata,
                )
                try:
                    async for event in call:
                        backoff.reset()
                        self._on_event(event)
                finally:
                    call.cancel()
            except RpcError as failure:
                error = from_rpc_error(failure, OffsetServiceUnavailable)
                if not error.retriable and not may_sign_again(self._cluster.access, error):
                    raise error from None
                log.debug("the watch on group %s ended: %s", self._group, error)
            except OffsetServiceUnavailable:
                pass
            self._version = -1
            await self._cluster.pause_for_offset_service(backoff.next_seconds())
            # Events during the pause were missed, so the allocation is computed again.
            self._changes.notify()

    async def leave(self) -> None:
        """Leave the group, so that other members need not wait for the end of the lease. Errors are
        logged."""
        try:
            await self._cluster.call(
                self._cluster.offset_service().Leave,
                offset_pb.LeaveRequest(
                    group=self._group, member_id=self.member_id, instance=self._instance
                ),
                unavailable=OffsetServiceUnavailable,
                timeout_seconds=_LEAVE_SECONDS_MAX,
            )
        except RockoonError as error:
            log.info(
                "%s could not leave group %s, its lease will expire: %s",
                self.member_id,
                self._group,
                error,
            )

    def _on_event(self, event: offset_pb.GroupEvent) -> None:
        if event.deleted:
            raise GroupNotFound(group=self._group)
        if event.reset_queues:
            self._on_reset([queue_from_wire(ref) for ref in event.reset_queues])
        self._apply_pause(is_paused=event.consume_disabled)
        if not self._wants_owners:
            self._apply_members(event.membership_version, event.members)
        elif event.membership_version > self._version:
            # Members and owners must have the same version, and a heartbeat reply contains both.
            self._heartbeat_now.set()
        if event.routes_changed or event.released_queues:
            self._changes.notify()

    def _apply_pause(self, *, is_paused: bool) -> None:
        if is_paused != self.is_paused:
            self.is_paused = is_paused
            log.warning(
                "group %s is %s",
                self._group,
                "paused: its queues are released" if is_paused else "resumed",
            )
            self._changes.notify()

    def _apply_owners(self, reply: offset_pb.HeartbeatReply) -> None:
        if not reply.owners_known:
            owners, self._owners_version = None, 0
        elif reply.membership_version == self._owners_version:
            return
        else:
            owners = {queue_from_wire(each.queue): each.member_id for each in reply.owners}
            self._owners_version = reply.membership_version
        if owners != self.owners:
            self.owners = owners
            self._changes.notify()

    def _apply_members(self, version: int, members: Collection[offset_pb.Member]) -> None:
        # Replies and events may arrive out of order.
        if version < self._version:
            return
        self._version = version
        topics_of = {
            member.member_id: frozenset(s.topic for s in member.subscriptions)
            for member in members
            if member.mode == self._mode
        }
        if topics_of != self.topics_of:
            self.topics_of = topics_of
            self._changes.notify()
        texts = contradictions(members)
        for text in texts:
            if text not in self._contradictions:
                log.error("group %s: %s", self._group, text)
        self._contradictions = texts


def _cut(name: str) -> str:
    return valid_text(name).encode()[:NAME_BYTES_MAX].decode(errors="ignore")
