"""Members with progress of their own, as the ledger remembers them. Pure.

A member is known from its first question on, whether it is alive or not, until it is forgotten: for
so long its progress stays, and queues born meanwhile are new to it.
"""

from collections.abc import Collection, Iterator, Mapping

from rockoon_core.errors import Busy
from rockoon_offset.progress.records import KnownMember, MemberForgotten

# Per group.
KNOWN_MEMBERS_MAX = 10_000


class KnownMembers:
    """Of all groups. Its methods say what would change; `apply` makes it so."""

    def __init__(self) -> None:
        # Group, then member.
        self._groups: dict[str, dict[str, KnownMember]] = {}

    def of(self, group: str) -> Mapping[str, KnownMember]:
        """By name."""
        return self._groups.get(group, {})

    def groups(self) -> Collection[str]:
        return self._groups.keys()

    def __iter__(self) -> Iterator[KnownMember]:
        for members in self._groups.values():
            yield from members.values()

    def reads(
        self,
        group: str,
        group_incarnation: int,
        member: str,
        topic: str,
        revision: int,
        now_ms: int,
    ) -> list[KnownMember]:
        """A member asks for a topic; only the first time counts.

        Args:
            group, group_incarnation: whose member.
            member: its name.
            topic: what it asks for.
            revision: queues born later are new to it.
            now_ms: for `KnownMember.seen_at_ms`.

        Raises:
            Busy: the group knows too many.
        """
        members = self.of(group)
        known = members.get(member)
        if known is None or known.group_incarnation < group_incarnation:
            if len(members) >= KNOWN_MEMBERS_MAX:
                raise Busy(reason=f"group {group!r} knows {KNOWN_MEMBERS_MAX} members")
            known = KnownMember(group, member, group_incarnation, (), now_ms)
        since = dict(known.since)
        if topic in since:
            return []
        since[topic] = revision
        return [known._replace(since=tuple(sorted(since.items())))]

    def without_topics(self, topics: Collection[str]) -> list[KnownMember]:
        """Topics were deleted: who asks for one of their names again asks for the first time."""
        return [
            known._replace(since=tuple(each for each in known.since if each[0] not in topics))
            for known in self
            if any(topic in topics for topic, _ in known.since)
        ]

    def in_other_etcd(self, revision: int, groups: Mapping[str, int]) -> list[KnownMember]:
        """Another etcd counts now: what it has at `revision` was there before, as far as is known.

        Args:
            revision: of it; what is born later is new to members.
            groups: name → incarnation there.
        """
        return [
            known._replace(
                group_incarnation=groups.get(known.group, known.group_incarnation),
                since=tuple((topic, revision) for topic, _ in known.since),
            )
            for known in self
        ]

    def apply(self, record: KnownMember | MemberForgotten) -> None:
        members = self._groups.setdefault(record.group, {})
        if isinstance(record, KnownMember):
            members[record.member] = record
        else:
            members.pop(record.member, None)
        if not members:
            del self._groups[record.group]

    def drop_group(self, group: str) -> None:
        self._groups.pop(group, None)
