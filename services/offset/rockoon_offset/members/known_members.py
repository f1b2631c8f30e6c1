"""Known members: members with their own progress, live or absent. Pure.

A member is known from its first Resolve until it is removed for a long absence. For this time its
progress is kept, and queues that were created since its first Resolve are new to it.
"""

from collections.abc import Collection, Iterator, Mapping

from rockoon_core.errors import Busy
from rockoon_offset.progress.records import KnownMember, MemberForgotten

# Per group.
KNOWN_MEMBERS_MAX = 10_000


class KnownMembers:
    """Members with their own progress, of all groups. Methods return the changed entries; only
    `apply` changes.
    """

    def __init__(self) -> None:
        # Group → member id → entry.
        self._groups: dict[str, dict[str, KnownMember]] = {}

    def of(self, group: str) -> Mapping[str, KnownMember]:
        """Return the known members of a group, by member id."""
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
        """Return the changed entry of a member that reads a topic for the first time; empty if it
        read the topic before.

        Args:
            revision: queues with a higher create revision are new to the member.

        Raises:
            Busy: the group has too many known members.
        """
        members = self.of(group)
        known = members.get(member)
        if known is None or known.group_incarnation < group_incarnation:
            if len(members) >= KNOWN_MEMBERS_MAX:
                raise Busy(
                    reason=f"group {group!r} has {KNOWN_MEMBERS_MAX} known members, the maximum"
                )
            known = KnownMember(group, member, group_incarnation, (), now_ms)
        since = dict(known.since)
        if topic in since:
            return []
        since[topic] = revision
        return [known._replace(since=tuple(sorted(since.items())))]

    def without_topics(self, topics: Collection[str]) -> list[KnownMember]:
        """Return the changed entries, without deleted topics.

        A member that reads a new topic of the same name reads it for the first time.
        """
        return [
            known._replace(since=tuple(each for each in known.since if each[0] not in topics))
            for known in self
            if any(topic in topics for topic, _ in known.since)
        ]

    def in_other_etcd(self, revision: int, groups: Mapping[str, int]) -> list[KnownMember]:
        """Return all entries, with the revisions of another etcd.

        All queues that exist at `revision` count as known to the members.

        Args:
            revision: revision of the new etcd; queues created later are new to members.
            groups: name → incarnation in the new etcd.
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
