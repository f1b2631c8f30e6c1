"""Being a member of a consumer group: heartbeats, and what the offset service tells its members."""

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
from rockoon_core.backoff import Backoff
from rockoon_core.bulk_calls import QUEUES_PER_CALL_MAX
from rockoon_core.changes import Changes
from rockoon_core.failed_call import clock_corrected, from_rpc_error
from rockoon_core.message_queue import MessageQueue, queue_from_wire
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
# An orderly member calls so often in the time for which its queues are its own.
_BEATS_PER_SURE_TIME = 5


class Membership:
    """One member, as long as its tasks run.

    Args:
        cluster: where to find the offset service.
        group: the group to be in.
        member_id: unique in the group.
        subscriptions: what it reads.
        changes: noted when something changed that allocation depends on.
        on_reset: called with queues whose progress was reset.
        mode: members of another mode share nothing with this one.
        orderly: it matters that `valid_since` is true while all is well.
        allocation: how members share queues. Others are told its name; if it looks at owners, the
            offset service is asked for them.
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
        """Member id to the topics it reads, of every live member; empty before the first answer."""
        self.owners: Mapping[MessageQueue, str] | None = None
        """Who held which queue when the members became these; the same on every member. None when
        nobody wants to know, or there are too many queues to tell."""
        self.is_paused = False
        """Whether nobody is to read in the group at the moment."""
        self.group_incarnation = 0
        """Of the group to be in, so that the deletion of an earlier one is no news; 0: unknown."""
        self.heartbeats_failed = 0
        self.positions: Callable[[], Iterable[PulledPosition]] = tuple
        """How far each queue of the member is pulled; told with every heartbeat."""
        self.handover_seconds_max = 0.0
        """How long this member may keep a queue that has become another one's."""
        self._cluster = cluster
        self._group = group
        self.member_id = member_id
        # A process that took over this one's id after a restart is another instance.
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
        # Set when the next heartbeat is not to wait for its time.
        self._heartbeat_now = asyncio.Event()
        self._heartbeat_seconds = 1.0
        self._lease_seconds = float("inf")
        self._lease = MembershipLease(orderly=orderly)

    @property
    def expirations(self) -> int:
        """How often the membership may have run out because no heartbeat came through."""
        return self._lease.expirations

    def valid_since(self, expirations: int) -> bool:
        """Whether a call may begin for what the offset service granted this member.

        In order: only while it is certainly still its own. Otherwise: unless this process slept
        for so long that others may have it; it learns of that here, before it hears from anybody.

        Args:
            expirations: as they were counted before the grant was asked for.
        """
        if self._mode != CLUSTERING:
            return True
        return self._lease.valid_since(expirations, asyncio.get_running_loop().time())

    async def beat(self) -> None:
        """Send one heartbeat: join the group, or stay in it.

        Raises:
            MemberIdTaken: a live process has the id.
            GroupNotFound: the group was deleted.
            OffsetServiceUnavailable: the service does not answer.
        """
        loop = asyncio.get_running_loop()
        # Before the call: the lease counts from when the service heard of it, or earlier.
        sent_at = loop.time()
        self._lease.ticks(sent_at)
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
                # The group's lag shows no positions beyond these.
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
                "no heartbeat of %s reached the offset service for %.1f s, and others may have its "
                "queues: all are resolved again",
                self.member_id,
                silence,
            )
        self._heartbeat_seconds = reply.heartbeat_seconds or self._heartbeat_seconds
        self._lease_seconds = reply.lease_seconds or self._lease_seconds
        self.handover_seconds_max = reply.handover_seconds_max
        self._lease.renew(self._lease_seconds, self.handover_seconds_max, self._heartbeat_seconds)
        self._take_in_pause(is_paused=reply.consume_disabled)
        # An event may have overtaken this answer, and older members must not replace newer ones.
        if reply.membership_version >= self._version:
            self._take_in_owners(reply)
            self._take_in(reply.membership_version, reply.members)

    async def stay(self) -> None:
        """Send heartbeats for ever.

        Raises:
            MemberIdTaken, GroupNotFound, ...: what no retry can mend.
        """
        backoff = Backoff(first_seconds=0.2)
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pause_seconds()):
                    await self._heartbeat_now.wait()
            # Before the beat: who asks for one during it gets another.
            self._heartbeat_now.clear()
            while True:
                try:
                    await self.beat()
                    backoff.reset()
                    break
                except RockoonError as error:
                    if not error.retriable:
                        raise
                    if not self.heartbeats_failed:
                        log.warning("heartbeats fail: %s", error)
                    self.heartbeats_failed += 1
                    # A service that was restarted counts members and versions again.
                    self._version = -1
                # Never longer than a heartbeat's time: the lease goes on meanwhile.
                pause = min(backoff.next_seconds(), self._heartbeat_seconds)
                await self._cluster.pause_for_offset_service(pause)

    def _pause_seconds(self) -> float:
        if self._orderly:
            granted_seconds = self._lease.granted_seconds
            return min(self._heartbeat_seconds, granted_seconds / _BEATS_PER_SURE_TIME)
        return self._heartbeat_seconds

    async def keep_time(self) -> None:
        """Find out when this process has slept, for ever."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._lease.tick_seconds)
            if self._lease.ticks(loop.time()):
                self._heartbeat_now.set()

    async def watch(self) -> None:
        """Follow the group's events for ever.

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
            # Whatever happened in between was missed; allocation looks at everything again.
            self._changes.note()

    async def leave(self) -> None:
        """Say goodbye, so that others need not wait for the lease; failing to is no harm."""
        try:
            await self._cluster.call(
                self._cluster.offset_service().Leave,
                LeaveRequest(group=self._group, member_id=self.member_id, instance=self._instance),
                unavailable=OffsetServiceUnavailable,
                timeout_seconds=_LEAVE_SECONDS_MAX,
            )
        except RockoonError as error:
            log.info("%s leaves group %s unheard: %s", self.member_id, self._group, error)

    def _on_event(self, event: GroupEvent) -> None:
        if event.deleted:
            raise GroupNotFound(group=self._group)
        if event.reset_queues:
            self._on_reset([queue_from_wire(ref) for ref in event.reset_queues])
        self._take_in_pause(is_paused=event.consume_disabled)
        if not self._wants_owners:
            self._take_in(event.membership_version, event.members)
        elif event.membership_version > self._version:
            # Members and owners have to be of the same version, and an answer brings both.
            self._heartbeat_now.set()
        if event.routes_changed or event.released_queues:
            self._changes.note()

    def _take_in_pause(self, *, is_paused: bool) -> None:
        if is_paused != self.is_paused:
            self.is_paused = is_paused
            log.warning(
                "group %s is %s",
                self._group,
                "paused: queues are let go, and nothing is read" if is_paused else "read again",
            )
            self._changes.note()

    def _take_in_owners(self, reply: HeartbeatReply) -> None:
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

    def _take_in(self, version: int, members: Collection[Member]) -> None:
        # An answer and an event can overtake each other on the way.
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
        said = contradictions(members)
        for text in said:
            if text not in self._contradictions:
                log.error("group %s: %s", self._group, text)
        self._contradictions = said


def _cut(name: str) -> str:
    return valid_text(name).encode()[:NAME_BYTES_MAX].decode(errors="ignore")
