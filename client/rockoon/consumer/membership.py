"""Membership of a consumer group: heartbeats, and events from the offset service."""

import asyncio
import logging
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice

from grpc import RpcError

from rockoon.allocation import AVERAGE, AllocationStrategy, OwnerAware
from rockoon.allocation.strategy import name_of
from rockoon.consumer.group_view import contradictions
from rockoon.consumer.membership_lease import MembershipLease
from rockoon.errors import (
    GroupNotFound,
    OffsetServiceUnavailable,
    RockoonError,
)
from rockoon.net.connection import Connection
from rockoon.subscription import Subscription
from rockoon_core.changes import Changes
from rockoon_core.clock import Backoff
from rockoon_core.failed_call import clock_corrected, from_rpc_error
from rockoon_core.message_queue import QUEUES_PER_CALL_MAX, MessageQueue, queue_from_wire
from rockoon_core.repeated_lines import limited
from rockoon_core.valid_text import valid_text
from rockoon_proto.v1.offset_pb2 import (
    CLUSTERING,
    ConsumeMode,
    GroupEvent,
    HeartbeatReply,
    HeartbeatRequest,
    LeaveRequest,
    Member,
    PulledPosition,
    TopicSubscription,
    WatchGroupRequest,
)

log = limited(logging.getLogger(__name__))

_LEAVE_SECONDS_MAX = 2.0
NAME_BYTES_MAX = 255
# Heartbeats of an orderly member during the time for which it owns its queues without a reply.
_HEARTBEATS_PER_SAFE_TIME = 5


class GroupMembership:
    """One member of a group, while its tasks run.

    Args:
        cluster: the connection.
        group: name of the group.
        member_id: unique in the group.
        subscriptions: subscriptions of the member.
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
        mode: ConsumeMode = CLUSTERING,
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
        self.positions: Callable[[], Iterable[PulledPosition]] = tuple
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
        self._wants_owners = mode == CLUSTERING and isinstance(allocation, OwnerAware)
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
        process was stopped for so long that another member may own the queue.

        Args:
            expirations: value of `expirations` before the grant was requested.
        """
        if self._mode != CLUSTERING:
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
            HeartbeatRequest(
                group=self._group,
                member_id=self.member_id,
                instance=self._instance,
                mode=self._mode,
                subscriptions=[
                    TopicSubscription(topic=s.topic, expression=s.expression)
                    for s in self._subscriptions
                ],
                # The lag of the group does not show further positions.
                positions=islice(self.positions(), QUEUES_PER_CALL_MAX),
                allocation=self._allocation_name,
                wants_owners=self._wants_owners,
                owners_version=self._owners_version,
                group_incarnation=self.group_incarnation,
            ),
            unavailable=OffsetServiceUnavailable,
            timeout_seconds=max(self._heartbeat_seconds, 1.0),
        )
        silence = self._lease.answered(sent_at, loop.time())
        if silence is not None:
            self._changes.note()
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
        """Send heartbeats without end.

        Raises:
            MemberIdTaken, GroupNotFound, ...: an error that is not retriable.
        """
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
        """Follow the events of the group, without end.

        Raises:
            GroupNotFound: the group was deleted.
        """
        backoff = Backoff()
        while True:
            try:
                stub = self._cluster.offset_service()
                call = stub.WatchGroup(
                    WatchGroupRequest(
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
                if not error.retriable and not clock_corrected(self._cluster.access, error):
                    raise error from None
                log.debug("the watch on group %s ended: %s", self._group, error)
            except OffsetServiceUnavailable:
                pass
            self._version = -1
            await self._cluster.pause_for_offset_service(backoff.next_seconds())
            # Events during the pause were missed, so the allocation is computed again.
            self._changes.note()

    async def leave(self) -> None:
        """Leave the group, so that other members need not wait for the end of the lease. Errors are
        logged."""
        try:
            await self._cluster.call(
                self._cluster.offset_service().Leave,
                LeaveRequest(group=self._group, member_id=self.member_id, instance=self._instance),
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

    def _on_event(self, event: GroupEvent) -> None:
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
            self._changes.note()

    def _apply_pause(self, *, is_paused: bool) -> None:
        if is_paused != self.is_paused:
            self.is_paused = is_paused
            log.warning(
                "group %s is %s",
                self._group,
                "paused: its queues are released" if is_paused else "resumed",
            )
            self._changes.note()

    def _apply_owners(self, reply: HeartbeatReply) -> None:
        if not reply.owners_known:
            owners, self._owners_version = None, 0
        elif reply.membership_version == self._owners_version:
            return
        else:
            owners = {queue_from_wire(each.queue): each.member_id for each in reply.owners}
            self._owners_version = reply.membership_version
        if owners != self.owners:
            self.owners = owners
            self._changes.note()

    def _apply_members(self, version: int, members: Collection[Member]) -> None:
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
            self._changes.note()
        texts = contradictions(members)
        for text in texts:
            if text not in self._contradictions:
                log.error("group %s: %s", self._group, text)
        self._contradictions = texts


def _cut(name: str) -> str:
    return valid_text(name).encode()[:NAME_BYTES_MAX].decode(errors="ignore")
