"""Recorded deletions of topics and groups. Pure.

A topic or group that is missing in the routes, or has another incarnation, was either deleted or
lost: an etcd restored from a backup lacks later changes, and uses their revisions again. Only data
of deleted topics and groups may be dropped. Nameservers record the latest ten thousand deletions.
So a missing topic or group without a record was lost if the records reach back far enough.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rockoon_proto.v1.nameserver_pb2 import RouteUpdate


@dataclass(frozen=True, slots=True)
class Deletions:
    """Topics and groups that the nameservers have recorded as deleted.

    Attributes:
        topics, groups: name → revision of the last deletion.
        since: records from this revision on are complete; 0: nameservers of a former version, which
            record no deletions.
    """

    topics: Mapping[str, int] = field(default_factory=dict)
    groups: Mapping[str, int] = field(default_factory=dict)
    since: int = 0

    def after(self, update: RouteUpdate) -> "Deletions":
        """Return the recorded deletions after an update of the routes."""
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
        """True if an incarnation that is missing in the routes was deleted, not lost.

        Args:
            incarnation: etcd revision at which the topic or queue was created.
            seen: latest revision of routes with the topic or queue.
        """
        return self._is_over(self.topics.get(topic, 0), incarnation, seen)

    def group_is_over(self, group: str, incarnation: int, seen: int) -> bool:
        """True if a group that is missing in the routes was deleted; like `topic_is_over`."""
        return self._is_over(self.groups.get(group, 0), incarnation, seen)

    def _is_over(self, deleted: int, incarnation: int, seen: int) -> bool:
        return deleted > incarnation or max(incarnation, seen) < self.since or not self.since
