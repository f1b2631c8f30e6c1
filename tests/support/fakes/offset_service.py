"""The offset service of a fake cluster."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rockoon_core import errors
from rockoon_core.changes import Changes
from rockoon_proto.v1 import nameserver_pb2 as route_wire
from rockoon_proto.v1 import offset_pb2 as offset_wire
from rockoon_proto.v1.in_flight_pb2_grpc import add_InFlightServiceServicer_to_server
from rockoon_proto.v1.offset_pb2_grpc import (
    OffsetServiceServicer,
    add_OffsetServiceServicer_to_server,
)
from support.fakes.bulk_calls import check_bulk
from support.fakes.in_flight import FakeInFlight
from support.fakes.listener import Listener
from support.fakes.places import Place, place_of, ref_of

if TYPE_CHECKING:
    from support.fake_cluster import FakeCluster


@dataclass
class FakeProgress:
    offset: int
    epoch: int
    owner: str


class FakeOffsetService(OffsetServiceServicer):
    """Members and progress in memory; a member stays until it leaves or `expire` ends it."""

    def __init__(self, cluster: "FakeCluster") -> None:
        self.in_flight = FakeInFlight()
        self.listener = Listener(self._register, self)
        self.cluster = cluster
        self.heartbeat_seconds = 0.2
        self.lease_seconds = 30.0
        self.handover_seconds_max = 10.0
        self.waits: dict[tuple[str, Place], dict[str, float]] = {}
        """Since when members wait for queues of others."""
        self.owners_then: dict[str, tuple[int, list[offset_wire.QueueOwner]]] = {}
        """Of the latest version that somebody wanted them for."""
        self.releases: list[tuple[str, Place, frozenset[str]]] = []
        """Group, queue, and who waited for it."""
        self.refuse_starts: errors.RockoonError | None = None
        self.tells_of_pauses = True
        self.changes = Changes()
        self.version = 0
        self.members: dict[str, dict[str, offset_wire.Member]] = {}
        self.instances: dict[tuple[str, str], str] = {}
        self.resets: list[tuple[str, Place]] = []
        self.progress: dict[tuple[str, Place], FakeProgress] = {}
        self.commits: list[tuple[str, Place, int]] = []
        """Accepted: committer, queue, offset."""
        self.refused: list[tuple[str, Place, int]] = []

    def _register(self, servicer: "FakeOffsetService", server: Any) -> None:
        add_OffsetServiceServicer_to_server(servicer, server)
        add_InFlightServiceServicer_to_server(self.in_flight, server)

    def changed(self) -> None:
        self.version += 1
        self.changes.notify()

    def expire(self, group: str, member_id: str) -> None:
        """A member has been silent for too long."""
        del self.members[group][member_id]
        self.changed()

    def reset(self, group: str, place: Place, offset: int) -> None:
        """An operator's reset."""
        held = self.progress[group, place]
        self.progress[group, place] = FakeProgress(offset, held.epoch + 1, "")
        self.resets.append((group, place))
        self.changes.notify()

    def _check_group(self, group: str) -> None:
        if group not in self.cluster.nameserver.groups:
            raise errors.GroupNotFound(group=group)

    async def Heartbeat(self, request: Any, _: Any) -> offset_wire.HeartbeatReply:
        self._check_group(request.group)
        members = self.members.setdefault(request.group, {})
        key = (request.group, request.member_id)
        if request.member_id in members and self.instances[key] != request.instance:
            raise errors.MemberIdTaken(member=request.member_id, group=request.group)
        if request.member_id not in members:
            members[request.member_id] = offset_wire.Member(
                member_id=request.member_id,
                subscriptions=request.subscriptions,
                mode=request.mode,
                allocation=request.allocation,
            )
            self.instances[key] = request.instance
            self.changed()
        reply = offset_wire.HeartbeatReply(
            membership_version=self.version,
            members=self._members(request.group),
            heartbeat_seconds=self.heartbeat_seconds,
            lease_seconds=self.lease_seconds,
            handover_seconds_max=self.handover_seconds_max,
            owners_known=request.wants_owners,
            consume_disabled=self.tells_of_pauses and self._is_paused(request.group),
        )
        if request.wants_owners and request.owners_version != self.version:
            reply.owners.extend(self._owners(request.group))
        return reply

    def _owners(self, group: str) -> list[offset_wire.QueueOwner]:
        """Owners when the members became these."""
        version, owners = self.owners_then.get(group, (0, []))
        if version != self.version:
            owners = [
                offset_wire.QueueOwner(queue=ref_of(place), member_id=held.owner)
                for (name, place), held in sorted(self.progress.items())
                if name == group and held.owner
            ]
            self.owners_then[group] = self.version, owners
        return owners

    async def ListLocks(self, request: Any, _: Any) -> offset_wire.ListLocksReply:
        reply = offset_wire.ListLocksReply()
        for (group, place), held in sorted(self.progress.items()):
            if group == request.group and held.owner:
                reply.locks.add(
                    queue=ref_of(place),
                    owner=held.owner,
                    epoch=held.epoch,
                    since_ms=1,
                    lease_left_ms=int(self.lease_seconds * 1000),
                    waiting=sorted(self.waits.get((group, place), ())),
                )
        return reply

    async def ListMembers(self, request: Any, _: Any) -> offset_wire.ListMembersReply:
        reply = offset_wire.ListMembersReply()
        reply.groups.add(group=request.group, members=self._members(request.group))
        return reply

    def pause(self, group: str, *, paused: bool = True) -> None:
        config = route_wire.GroupConfig(name=group, consume_disabled=paused)
        self.cluster.nameserver.group_configs[group] = config
        self.changed()

    def _is_paused(self, group: str) -> bool:
        config = self.cluster.nameserver.group_configs.get(group)
        return config is not None and config.consume_disabled

    def _members(self, group: str) -> list[offset_wire.Member]:
        return [member for _, member in sorted(self.members.get(group, {}).items())]

    async def Leave(self, request: Any, _: Any) -> offset_wire.LeaveReply:
        if self.members.get(request.group, {}).pop(request.member_id, None):
            self.changed()
        return offset_wire.LeaveReply()

    async def WatchGroup(self, request: Any, _: Any) -> AsyncIterator[offset_wire.GroupEvent]:
        self._check_group(request.group)
        told, told_releases = len(self.resets), len(self.releases)
        while True:
            seen = self.changes.count
            resets, told = self.resets[told:], len(self.resets)
            releases, told_releases = self.releases[told_releases:], len(self.releases)
            yield offset_wire.GroupEvent(
                membership_version=self.version,
                members=self._members(request.group),
                reset_queues=[ref_of(place) for group, place in resets if group == request.group],
                released_queues=[
                    ref_of(place)
                    for group, place, waiting in releases
                    if group == request.group
                    and (not request.member_id or request.member_id in waiting)
                ],
                deleted=request.group not in self.cluster.nameserver.groups,
                consume_disabled=self.tells_of_pauses and self._is_paused(request.group),
            )
            await self.changes.wait(seen)

    async def Query(self, request: Any, _: Any) -> offset_wire.QueryReply:
        held = self.progress.get((request.group, place_of(request.queue)))
        return offset_wire.QueryReply(
            found=held is not None, offset=held.offset if held else 0, rule=1
        )

    async def Resolve(self, request: Any, _: Any) -> offset_wire.ResolveReply:
        self._check_group(request.group)
        if self._is_paused(request.group):
            raise errors.ConsumeDisabled(group=request.group)
        check_bulk(request.queues)
        reply = offset_wire.ResolveReply()
        for ref in request.queues:
            try:
                if self.refuse_starts is not None:
                    raise self.refuse_starts
                reply.starts.append(self._resolve(request, ref))
            except errors.RockoonError as error:
                reply.starts.add(queue=ref, error=error.to_wire())
        return reply

    def _holder(self, group: str, member_id: str, place: Place) -> str:
        """Another live member that may keep a queue for now; "" when the asker may have it."""
        held = self.progress.get((group, place))
        owner = self.members.get(group, {}).get(held.owner) if held else None
        if not member_id or owner is None or owner.member_id == member_id:
            return ""
        if place[0] not in {each.topic for each in owner.subscriptions}:
            return ""
        if owner.mode != offset_wire.CLUSTERING:
            return ""
        now = asyncio.get_running_loop().time()
        since = self.waits.setdefault((group, place), {}).setdefault(member_id, now)
        return owner.member_id if now - since < self.handover_seconds_max else ""

    def _resolve(self, request: Any, ref: offset_wire.QueueRef) -> offset_wire.Start:
        place = place_of(ref)
        create_revision = self.cluster.nameserver.create_revision(place)
        if create_revision is None:
            raise errors.QueueNotFound(topic=ref.topic, queue=ref.queue_id, broker=ref.broker)
        holder = self._holder(request.group, request.member_id, place)
        if holder:
            raise errors.QueueHeld(queue="/".join(map(str, place)), owner=holder)
        queue = self.cluster.brokers[ref.broker].queues[ref.topic, ref.queue_id]
        low, high = queue.min_offset, queue.max_offset
        held = self.progress.get((request.group, place))
        subscribed = self.cluster.nameserver.subscriptions[request.group, ref.topic]
        gap = 0
        if held is not None and low <= held.offset <= high:
            offset, reason = held.offset, offset_wire.COMMITTED
        elif held is not None:
            reason = offset_wire.BELOW_MIN if held.offset < low else offset_wire.ABOVE_MAX
            offset = low if held.offset < low else high
            gap = max(low - held.offset, 0)
        elif create_revision > subscribed:
            offset, reason = low, offset_wire.NEW_QUEUE
        elif request.policy.consume_from == route_wire.CONSUME_FROM_FIRST:
            offset, reason = low, offset_wire.FIRST
        else:
            offset, reason = high, offset_wire.LAST
        epoch = held.epoch if held else 1
        if held and request.member_id not in ("", held.owner):
            epoch += 1
            self.waits.pop((request.group, place), None)
        owner = request.member_id or (held.owner if held else "")
        self.progress[request.group, place] = FakeProgress(offset, epoch, owner)
        return offset_wire.Start(
            queue=ref, offset=offset, reason=reason, epoch=epoch, explanation="as told", gap=gap
        )

    async def Commit(self, request: Any, _: Any) -> offset_wire.CommitReply:
        self._check_group(request.group)
        check_bulk(request.entries, request.release)
        reply = offset_wire.CommitReply(consume_disabled=self._is_paused(request.group))
        for entry in request.entries:
            place = place_of(entry.queue)
            held = self.progress.get((request.group, place))
            taken = (request.member_id, place, entry.offset)
            refusal: errors.RockoonError | None = None
            if held is None or held.epoch != entry.epoch:
                current = held.epoch if held else 0
                refusal = errors.Fenced(epoch=entry.epoch, queue=place, current=current)
            elif entry.offset < held.offset and not request.force:
                refusal = errors.CommitBehind(offset=entry.offset, stored=held.offset, queue=place)
            else:
                held.offset = entry.offset
            (self.refused if refusal else self.commits).append(taken)
            reply.results.add(
                queue=entry.queue,
                offset=held.offset if held else 0,
                error=refusal.to_wire() if refusal else None,
            )
        for ref in request.release:
            place = place_of(ref)
            held = self.progress.get((request.group, place))
            if held is not None and request.member_id and held.owner == request.member_id:
                held.owner = ""
                waiting = frozenset(self.waits.pop((request.group, place), {}))
                self.releases.append((request.group, place, waiting))
                self.changes.notify()
        return reply
