"""Membership: live members of each group, and owners of queues. Pure: the time is an argument.

A member stays while it repeats its heartbeat within the lease, or until it leaves. The version of a
group's membership grows with every change, also if the group was empty in between, and over
restarts of the service: one counter gives the versions of all groups, and its upper half is the
number of the start.

All members get the same owners for one membership version, however late they ask. So members that
allocate queues by these owners agree, as they agree on the members. Owners are not stored: after a
restart every group has a new version, and it is unknown since when owners have their queues.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from rockoon_core.errors import Busy, GroupNotFound, MemberIdTaken
from rockoon_core.message_queue import MessageQueue
from rockoon_offset.progress.records import GroupMember, MembersChanged, Progress

# Maximum of owned queues of one group in replies to heartbeats; with more queues, replies have no
# owners.
OWNED_QUEUES_MAX = 4096


# Maximum of stored start times of ownerships of all groups; beyond it, the oldest are dropped.
SINCE_MAX = 200_000


@dataclass(frozen=True, slots=True)
class Lock:
    """A queue that a member owns."""

    queue: MessageQueue
    owner: str
    epoch: int
    # Wall clock, epoch milliseconds; 0: unknown.
    since_ms: int
    # 0: the owner is no longer a member.
    lease_left_ms: int
    # Members that wait for the queue, sorted.
    waiting: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OwnersThen:
    """Owners of a group's queues when a version of its membership was first requested."""

    version: int
    # None: too many.
    owners: Mapping[MessageQueue, str] | None


class Owners:
    """Owners of the queues of all groups."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, MessageQueue], tuple[str, int]] = {}
        self._then: dict[str, OwnersThen] = {}

    def record(self, group: str, queue: MessageQueue, owner: str, now_ms: int) -> None:
        """Record that a member owns a queue from now on, unless it already did."""
        key = (group, queue)
        known = self._since.get(key)
        if known is not None and known[0] == owner:
            return
        while len(self._since) >= SINCE_MAX:
            del self._since[next(iter(self._since))]
        self._since[key] = (owner, now_ms)

    def released(self, group: str, queue: MessageQueue) -> None:
        self._since.pop((group, queue), None)

    def since_ms(self, group: str, queue: MessageQueue, owner: str) -> int:
        """Return when a queue got its owner, epoch milliseconds; 0: unknown."""
        known = self._since.get((group, queue))
        return known[1] if known is not None and known[0] == owner else 0

    def as_of(self, group: str, version: int, progress: Iterable[Progress]) -> OwnersThen:
        """Return the owners of a group's queues for the present version of its membership.

        Args:
            version: current version.
            progress: current progress of the group; only read if the version is new.
        """
        then = self._then.get(group)
        if then is None or then.version != version:
            owners = {each.queue: each.owner for each in progress if each.owner}
            then = OwnersThen(version, owners if len(owners) <= OWNED_QUEUES_MAX else None)
            self._then[group] = then
        return then

    def remove(self, group: str) -> None:
        """Discard the stored owners of a group without members."""
        self._then.pop(group, None)


# Values of ConsumeMode in offset.proto. Only clustering members share queues.
CLUSTERING = 1
BROADCASTING = 2
MEMBERS_PER_GROUP_MAX = 10_000
# After a restart, leases are longer by this time, so that live members find the service: a member
# tries to connect once a second, and a few attempts may fail.
FIND_AGAIN_NS_MAX = 2 * 10**9
_UNTIL_OPEN = 1 << 63
VERSION_BITS_PER_START = 32


class PulledPosition(NamedTuple):
    """Position that a member reports for a queue that it pulls."""

    # Queue offset of the next message to pull.
    next_offset: int
    # Epoch of the Resolve that the member's reading started with.
    epoch: int
    # Messages pulled and not finished; None: not reported.
    unfinished: int | None = None


class ClientSdk(NamedTuple):
    """Language and version of a reader's SDK, for display only; empty: not reported."""

    language: str = ""
    version: str = ""


NO_SDK = ClientSdk()


@dataclass(slots=True)
class MemberLease:
    member: GroupMember
    # Monotonic.
    ends_ns: int
    # Last heartbeat by the wall clock, epoch milliseconds; only for display.
    heard_at_ms: int
    # Positions in the last heartbeat.
    positions: Mapping[MessageQueue, PulledPosition] = field(default_factory=dict)
    # The member has sent a heartbeat since the service started.
    is_heard: bool = True
    # By the last heartbeat. Not in the journal: after a restart the next heartbeat has it.
    sdk: ClientSdk = NO_SDK


class Membership:
    """Live members of all groups, with their leases.

    Args:
        lease_ns: time without a heartbeat after which a member is removed.
        starts: number of this start of the service, 1 or more.
    """

    def __init__(self, lease_ns: int, starts: int) -> None:
        self._lease_ns = lease_ns
        # Versions grow over restarts without a write to the journal. Otherwise a member could
        # accept members of this process as an old version of the former process.
        self._last_version = starts << VERSION_BITS_PER_START
        # Without groups that have no members.
        self._groups: dict[str, dict[str, MemberLease]] = {}
        self._versions: dict[str, int] = {}
        # Members of deleted groups that may not know of the deletion: (group, member id, instance)
        # → monotonic time at which each has either called or is silent.
        self._ended: dict[tuple[str, str, str], int] = {}

    def restore(self, stored: Iterable[MembersChanged], now_ms: int) -> None:
        """Restore the members from before a restart of the service; `open` starts their leases.

        Otherwise the first member that calls would be the only member and get every queue.
        """
        for group, members in stored:
            for member in members:
                # Members cannot call before `open`, which may be more than a lease away.
                lease = MemberLease(member, _UNTIL_OPEN, now_ms, is_heard=False)
                self._groups.setdefault(group, {})[member.member_id] = lease
            self._changed(group)

    def open(self, now_ns: int) -> None:
        """Start the leases of restored members: members can call from now on."""
        ends_ns = now_ns + self._lease_ns + FIND_AGAIN_NS_MAX
        for leases in self._groups.values():
            for lease in leases.values():
                lease.ends_ns = min(lease.ends_ns, ends_ns)

    def heartbeat(
        self,
        group: str,
        member: GroupMember,
        now_ns: int,
        now_ms: int,
        positions: Mapping[MessageQueue, PulledPosition] | None = None,
        sdk: ClientSdk = NO_SDK,
    ) -> bool:
        """Add a member or renew its lease. Returns whether the members changed; changed positions
        do not count.

        Raises:
            GroupNotFound: the group was deleted while this instance was its member. A new instance
                joins the new group of the name.
            MemberIdTaken: the id belongs to another live instance.
            Busy: the group is full.
        """
        if self._ended.get((group, member.member_id, member.instance), 0) > now_ns:
            raise GroupNotFound(group=group)
        leases = self._groups.get(group, {})
        lease = leases.get(member.member_id)
        # The lease is over, and `expire` has not run yet: the id is free.
        if lease is not None and lease.ends_ns <= now_ns:
            lease = None
        # Two instances with one id would both act as the owner of the same queues.
        if lease is not None and lease.member.instance != member.instance:
            raise MemberIdTaken(member=member.member_id, group=group)
        if lease is None and len(leases) >= MEMBERS_PER_GROUP_MAX:
            raise Busy(reason=f"group {group!r} has {MEMBERS_PER_GROUP_MAX} members, the maximum")
        joined_at_ms = now_ms if lease is None else lease.member.joined_at_ms
        member = member._replace(joined_at_ms=joined_at_ms)
        # Subscriptions count: the other members allocate queues by the readers of each topic.
        changed = lease is None or lease.member != member
        lease = MemberLease(member, now_ns + self._lease_ns, now_ms, positions or {}, sdk=sdk)
        self._groups.setdefault(group, {})[member.member_id] = lease
        if changed:
            self._changed(group)
        return changed

    def leave(self, group: str, member_id: str, instance: str) -> bool:
        """Remove a member. Returns False if it is no member, or if another instance has the id."""
        lease = self._groups.get(group, {}).get(member_id)
        # An instance that was replaced under its id may leave late.
        if lease is None or lease.member.instance != instance:
            return False
        del self._groups[group][member_id]
        self._changed(group)
        return True

    def reader(self, group: str, member_id: str, topic: str, now_ns: int) -> MemberLease | None:
        """Return the lease of a live clustering member that subscribes to a topic, else None."""
        lease = self.live(group, member_id, now_ns)
        if (
            lease is not None
            and lease.member.mode == CLUSTERING
            and any(topic == subscribed for subscribed, _ in lease.member.subscriptions)
        ):
            return lease
        return None

    def next_end_ns(self) -> int | None:
        """Monotonic time at which the next lease ends; None without leases."""
        ends = [lease.ends_ns for leases in self._groups.values() for lease in leases.values()]
        return min((*ends, *self._ended.values()), default=None)

    def expire(self, now_ns: int) -> list[str]:
        """Remove members whose leases have ended. Returns the changed groups."""
        self._ended = {key: ends for key, ends in self._ended.items() if ends > now_ns}
        changed = []
        for group, leases in list(self._groups.items()):
            silent = [member_id for member_id, each in leases.items() if each.ends_ns <= now_ns]
            for member_id in silent:
                del leases[member_id]
            if silent:
                self._changed(group)
                changed.append(group)
        return changed

    def end_group(self, group: str, stays: Callable[[int], bool], now_ns: int) -> None:
        """Remove the members of a deleted group. Their next heartbeat raises GroupNotFound.

        Args:
            stays: whether an incarnation belongs to a later group of the same name.
            now_ns: monotonic.
        """
        leases = self._groups.get(group, {})
        over = [
            member_id
            for member_id, each in leases.items()
            if not stays(each.member.group_incarnation)
        ]
        for member_id in over:
            lease = leases.pop(member_id)
            # By instance: the same instance must not become a member of a new group of the name,
            # where it would commit offsets of the old group's queues. A member that joins again
            # has a new instance.
            self._ended[group, member_id, lease.member.instance] = now_ns + self._lease_ns
        if over:
            self._changed(group)

    def find(self, group: str, member_id: str) -> GroupMember | None:
        lease = self._groups.get(group, {}).get(member_id)
        return None if lease is None else lease.member

    def version(self, group: str) -> int:
        """Return a group's version; that of a group without members is not used again."""
        return self._versions.get(group, self._last_version)

    def live(self, group: str, member_id: str, now_ns: int) -> MemberLease | None:
        """Return the lease of a live member, else None."""
        lease = self._groups.get(group, {}).get(member_id)
        return None if lease is None or lease.ends_ns <= now_ns else lease

    def leases(self, group: str) -> list[MemberLease]:
        """Return the leases of a group's members, sorted by member id."""
        leases = self._groups.get(group, {})
        return [leases[member_id] for member_id in sorted(leases)]

    def groups(self) -> list[str]:
        """Return the groups with members, sorted."""
        return sorted(self._groups)

    def readers(self, topics: frozenset[str]) -> set[str]:
        """Return the groups with a member that subscribes to one of the topics."""
        if not topics:
            # Most route changes concern groups only. This avoids a search through all members.
            return set()
        return {
            name
            for name, leases in self._groups.items()
            for lease in leases.values()
            if any(topic in topics for topic, _ in lease.member.subscriptions)
        }

    def members_record(self, group: str) -> MembersChanged:
        """Return the record of a group's members, for a restart of the service."""
        return MembersChanged(group, tuple(lease.member for lease in self.leases(group)))

    def _changed(self, group: str) -> None:
        self._last_version += 1
        if self._groups.get(group):
            self._versions[group] = self._last_version
        else:
            self._groups.pop(group, None)
            self._versions.pop(group, None)
