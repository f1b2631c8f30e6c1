"""Who is alive in each group. Pure: monotonic time in nanoseconds comes in as an argument.

A member is in while it repeats its heartbeat within the lease; it goes at once when it says so. The
version of a group's membership grows with every change, also over a restart of the service: its
upper half is the number of the start.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from rockoon_offset.records import Member, MembersChanged
from rockoon_proto.errors import Busy, MemberIdTaken

MEMBERS_PER_GROUP_MAX = 10_000
VERSION_BITS_PER_START = 32


@dataclass(slots=True)
class Lease:
    """A member and when its place ends."""

    member: Member
    # Monotonic.
    ends_ns: int
    # Wall clock, epoch milliseconds; for people.
    heard_at_ms: int


@dataclass(slots=True)
class Group:
    """Members by id, and how often that changed."""

    version: int
    leases: dict[str, Lease]


class Membership:
    """Members of all groups.

    Args:
        lease_ns: how long a silent member stays.
        starts: number of this start of the service, 1 or more.
    """

    def __init__(self, lease_ns: int, starts: int) -> None:
        self._lease_ns = lease_ns
        self._first_version = starts << VERSION_BITS_PER_START
        self._groups: dict[str, Group] = {}

    def restore(self, remembered: Iterable[MembersChanged], now_ns: int, now_ms: int) -> None:
        """Take over the members from before a restart, each with a full lease.

        Otherwise the first member to call would find itself alone and take every queue.
        """
        for group, members in remembered:
            state = self._group(group)
            for member in members:
                state.leases[member.member_id] = Lease(member, now_ns + self._lease_ns, now_ms)

    def heartbeat(self, group: str, member: Member, now_ns: int, now_ms: int) -> bool:
        """Join, or stay. Returns whether the members changed.

        Raises:
            MemberIdTaken: the id belongs to another live process.
            Busy: the group is full.
        """
        state = self._group(group)
        lease = state.leases.get(member.member_id)
        if lease is not None and lease.ends_ns <= now_ns:
            lease = None
        if lease is not None and lease.member.instance != member.instance:
            raise MemberIdTaken(member=member.member_id, group=group)
        if lease is None and len(state.leases) >= MEMBERS_PER_GROUP_MAX:
            raise Busy(reason=f"group {group!r} has {MEMBERS_PER_GROUP_MAX} members")
        joined_at_ms = now_ms if lease is None else lease.member.joined_at_ms
        member = member._replace(joined_at_ms=joined_at_ms)
        changed = lease is None or lease.member != member
        state.leases[member.member_id] = Lease(member, now_ns + self._lease_ns, now_ms)
        if changed:
            state.version += 1
        return changed

    def leave(self, group: str, member_id: str, instance: str) -> bool:
        """Go at once. Returns whether the members changed; somebody else's instance is left in."""
        state = self._groups.get(group)
        lease = None if state is None else state.leases.get(member_id)
        if state is None or lease is None or lease.member.instance != instance:
            return False
        del state.leases[member_id]
        state.version += 1
        return True

    def expire(self, now_ns: int) -> list[str]:
        """Drop members whose lease is over; returns the groups that changed."""
        changed = []
        for name, state in self._groups.items():
            silent = [who for who, lease in state.leases.items() if lease.ends_ns <= now_ns]
            for who in silent:
                del state.leases[who]
            if silent:
                state.version += 1
                changed.append(name)
        return changed

    def forget_group(self, group: str) -> None:
        state = self._groups.get(group)
        if state is not None and state.leases:
            state.leases.clear()
            state.version += 1

    def version(self, group: str) -> int:
        state = self._groups.get(group)
        return self._first_version if state is None else state.version

    def leases(self, group: str) -> list[Lease]:
        """Sorted by member id."""
        state = self._groups.get(group)
        return [] if state is None else [state.leases[who] for who in sorted(state.leases)]

    def groups(self) -> list[str]:
        """Groups that have members, sorted."""
        return sorted(name for name, state in self._groups.items() if state.leases)

    def readers(self, topics: frozenset[str]) -> set[str]:
        """Groups of which a member reads one of some topics."""
        return {
            name
            for name, state in self._groups.items()
            for lease in state.leases.values()
            if any(topic in topics for topic, _ in lease.member.subscriptions)
        }

    def to_remember(self, group: str) -> MembersChanged:
        """What a restart has to know of a group."""
        return MembersChanged(group, tuple(lease.member for lease in self.leases(group)))

    def _group(self, name: str) -> Group:
        return self._groups.setdefault(name, Group(self._first_version, {}))
