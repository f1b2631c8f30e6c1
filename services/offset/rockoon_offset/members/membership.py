"""Membership: live members of each group. Pure: monotonic nanoseconds are an argument.

A member is in while it repeats its heartbeat within the lease; it goes at once when it says so. The
version of a group's membership grows with every change, also when the group was empty in between,
and over a restart of the service: it is drawn from one counter for all groups, whose upper half is
the number of the start.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from rockoon_core.errors import Busy, GroupNotFound, MemberIdTaken
from rockoon_core.message_queue import MessageQueue
from rockoon_offset.progress.records import Member, MembersChanged

# Members of other modes share no queues. As ConsumeMode in offset.proto.
CLUSTERING = 1
BROADCASTING = 2
MEMBERS_PER_GROUP_MAX = 10_000
# Beyond a lease, for a member that lives to find a restarted service: it tries to connect once a
# second, and more may go wrong at that moment.
FIND_AGAIN_NS_MAX = 2 * 10**9
_UNTIL_OPEN = 1 << 63
VERSION_BITS_PER_START = 32


class Position(NamedTuple):
    """How far a member has taken a queue's messages, by its own word."""

    # Queue offset of the next message it will take.
    next_offset: int
    # Of the Resolve that it reads after.
    epoch: int
    # Messages pulled and not finished; None: not reported.
    unfinished: int | None = None


@dataclass(slots=True)
class Lease:
    """A member and when its place ends."""

    member: Member
    # Monotonic.
    ends_ns: int
    # Wall clock, epoch milliseconds; for people.
    heard_at_ms: int
    # As of then.
    positions: Mapping[MessageQueue, Position] = field(default_factory=dict)
    # Since the service has started.
    is_heard: bool = True


class Membership:
    """Members of all groups.

    Args:
        lease_ns: how long a silent member stays.
        starts: number of this start of the service, 1 or more.
    """

    def __init__(self, lease_ns: int, starts: int) -> None:
        self._lease_ns = lease_ns
        # Versions go on rising over restarts without being written down: a member that compares
        # must never take a list of members of this process for one of the process before.
        self._last_version = starts << VERSION_BITS_PER_START
        # Groups without members are not in it.
        self._groups: dict[str, dict[str, Lease]] = {}
        self._versions: dict[str, int] = {}
        # Members of deleted groups that may not have heard yet: (group, member id, instance) →
        # monotonic time at which they have either called or fallen silent.
        self._ended: dict[tuple[str, str, str], int] = {}

    def restore(self, remembered: Iterable[MembersChanged], now_ms: int) -> None:
        """Take over the members from before a restart; their leases begin with `open`.

        Otherwise the first member to call would find itself alone and take every queue.
        """
        for group, members in remembered:
            for member in members:
                # Nobody can call before `open`, which may be more than a lease away.
                lease = Lease(member, _UNTIL_OPEN, now_ms, is_heard=False)
                self._groups.setdefault(group, {})[member.member_id] = lease
            self._changed(group)

    def open(self, now_ns: int) -> None:
        """Members can call from now on: those from before a restart that do not are gone."""
        ends_ns = now_ns + self._lease_ns + FIND_AGAIN_NS_MAX
        for leases in self._groups.values():
            for lease in leases.values():
                lease.ends_ns = min(lease.ends_ns, ends_ns)

    def heartbeat(
        self,
        group: str,
        member: Member,
        now_ns: int,
        now_ms: int,
        positions: Mapping[MessageQueue, Position] | None = None,
    ) -> bool:
        """Join, or stay. Returns whether the members changed, which positions do not count for.

        Raises:
            GroupNotFound: the group that this process was a member of was deleted. Another process,
                or the same one joining again, is a member of the group that has the name now.
            MemberIdTaken: the id belongs to another live process.
            Busy: the group is full.
        """
        if self._ended.get((group, member.member_id, member.instance), 0) > now_ns:
            raise GroupNotFound(group=group)
        leases = self._groups.get(group, {})
        lease = leases.get(member.member_id)
        # Its time is over, though `expire` has not come by yet: its name is free.
        if lease is not None and lease.ends_ns <= now_ns:
            lease = None
        # Two processes with one id would each believe that they own what the other reads.
        if lease is not None and lease.member.instance != member.instance:
            raise MemberIdTaken(member=member.member_id, group=group)
        if lease is None and len(leases) >= MEMBERS_PER_GROUP_MAX:
            raise Busy(reason=f"group {group!r} has {MEMBERS_PER_GROUP_MAX} members")
        joined_at_ms = now_ms if lease is None else lease.member.joined_at_ms
        member = member._replace(joined_at_ms=joined_at_ms)
        # The subscriptions are part of it: others allocate by who reads which topic.
        changed = lease is None or lease.member != member
        lease = Lease(member, now_ns + self._lease_ns, now_ms, positions or {})
        self._groups.setdefault(group, {})[member.member_id] = lease
        if changed:
            self._changed(group)
        return changed

    def leave(self, group: str, member_id: str, instance: str) -> bool:
        """Go at once. Returns whether the members changed; somebody else's instance is left in."""
        lease = self._groups.get(group, {}).get(member_id)
        # A process that was replaced under its id may say good-bye late.
        if lease is None or lease.member.instance != instance:
            return False
        del self._groups[group][member_id]
        self._changed(group)
        return True

    def reader(self, group: str, member_id: str, topic: str, now_ns: int) -> Lease | None:
        """A member's lease, if it runs and the member takes part in sharing a topic's queues."""
        lease = self.live(group, member_id, now_ns)
        if (
            lease is not None
            and lease.member.mode == CLUSTERING
            and any(topic == subscribed for subscribed, _ in lease.member.subscriptions)
        ):
            return lease
        return None

    def next_end_ns(self) -> int | None:
        """When somebody falls silent who is not heard before, monotonic; None while nobody can."""
        ends = [lease.ends_ns for leases in self._groups.values() for lease in leases.values()]
        return min((*ends, *self._ended.values()), default=None)

    def expire(self, now_ns: int) -> list[str]:
        """Drop members whose lease is over; returns the groups that changed."""
        self._ended = {who: ends for who, ends in self._ended.items() if ends > now_ns}
        changed = []
        for group, leases in list(self._groups.items()):
            silent = [who for who, lease in leases.items() if lease.ends_ns <= now_ns]
            for who in silent:
                del leases[who]
            if silent:
                self._changed(group)
                changed.append(group)
        return changed

    def end_group(self, group: str, stays: Callable[[int], bool], now_ns: int) -> None:
        """The group was deleted: its members are out, and hear of it when they next call.

        Args:
            group: its name.
            stays: says of an incarnation whether it is that of a later group of the name.
            now_ns: monotonic.
        """
        leases = self._groups.get(group, {})
        over = [who for who, each in leases.items() if not stays(each.member.group_incarnation)]
        for who in over:
            lease = leases.pop(who)
            # By instance: the same process may not slip into a new group of the name, in which it
            # would commit offsets of the old one's queues. One that joins again has another
            # instance.
            self._ended[group, who, lease.member.instance] = now_ns + self._lease_ns
        if over:
            self._changed(group)

    def find(self, group: str, member_id: str) -> Member | None:
        lease = self._groups.get(group, {}).get(member_id)
        return None if lease is None else lease.member

    def version(self, group: str) -> int:
        """For a group without members, one that no later change will have."""
        return self._versions.get(group, self._last_version)

    def live(self, group: str, member_id: str, now_ns: int) -> Lease | None:
        """A member's lease, unless it is over."""
        lease = self._groups.get(group, {}).get(member_id)
        return None if lease is None or lease.ends_ns <= now_ns else lease

    def leases(self, group: str) -> list[Lease]:
        """Sorted by member id."""
        leases = self._groups.get(group, {})
        return [leases[who] for who in sorted(leases)]

    def groups(self) -> list[str]:
        """Groups that have members, sorted."""
        return sorted(self._groups)

    def readers(self, topics: frozenset[str]) -> set[str]:
        """Groups of which a member reads one of some topics."""
        if not topics:
            # Most changes of the routes are of groups; all members need not be looked at for those.
            return set()
        return {
            name
            for name, leases in self._groups.items()
            for lease in leases.values()
            if any(topic in topics for topic, _ in lease.member.subscriptions)
        }

    def members_record(self, group: str) -> MembersChanged:
        """What a restart has to know of a group."""
        return MembersChanged(group, tuple(lease.member for lease in self.leases(group)))

    def _changed(self, group: str) -> None:
        self._last_version += 1
        if self._groups.get(group):
            self._versions[group] = self._last_version
        else:
            self._groups.pop(group, None)
            self._versions.pop(group, None)
