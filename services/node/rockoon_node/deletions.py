"""Deletions of topics and groups, as far as the nameservers tell. Pure.

What is missing in the routes, or there as another incarnation, was either deleted or lost: an etcd
restored from a backup lacks what came after it, and counts the same revisions once more. Only what
was deleted may be dropped. Nameservers note deletions, the latest ten thousand; so what is missing
without a note, though notes reach back far enough, was lost.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rockoon_proto.v1.nameserver_pb2 import RouteUpdate


@dataclass(frozen=True, slots=True)
class Deletions:
    """The notes of one moment.

    Attributes:
        topics, groups: name → revision of its last deletion.
        since: notes from this revision on are complete; 0: nameservers of a former version, which
            note nothing.
    """

    topics: Mapping[str, int] = field(default_factory=dict)
    groups: Mapping[str, int] = field(default_factory=dict)
    since: int = 0

    def after(self, update: RouteUpdate) -> "Deletions":
        """The notes when an update is in force."""
        if not (update.snapshot or update.deletions or update.deletions_since > self.since):
            return self
        before = Deletions() if update.snapshot else self
        topics = {each.topic: each.revision for each in update.deletions if each.topic}
        groups = {each.group: each.revision for each in update.deletions if each.group}
        since = update.deletions_since or before.since
        return Deletions(
            {n: at for n, at in {**before.topics, **topics}.items() if at >= since},
            {n: at for n, at in {**before.groups, **groups}.items() if at >= since},
            since,
        )

    def topic_is_over(self, topic: str, incarnation: int, seen: int) -> bool:
        """Whether what is of an incarnation that the routes lack is to be dropped.

        Args:
            topic: its name.
            incarnation: etcd revision at which it, or a queue of it, was created.
            seen: the latest revision of the routes that had it.
        """
        return self._is_over(self.topics.get(topic, 0), incarnation, seen)

    def group_is_over(self, group: str, incarnation: int, seen: int) -> bool:
        """As `topic_is_over`, of a group."""
        return self._is_over(self.groups.get(group, 0), incarnation, seen)

    def _is_over(self, deleted: int, incarnation: int, seen: int) -> bool:
        return deleted > incarnation or max(incarnation, seen) < self.since or not self.since
