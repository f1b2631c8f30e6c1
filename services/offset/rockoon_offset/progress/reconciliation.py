"""Reconciliation of progress with the routes: deletions, and changes of the etcd. Pure.

Routes may be wrong: a nameserver may lag, and etcd may have been restored from a backup. Progress
of a missing topic or group is dropped only if it was deleted; see `rockoon_node.deletions`.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial

from rockoon_core.message_queue import MessageQueue
from rockoon_node.deletions import Deletions
from rockoon_offset.progress.ledger_state import LedgerState
from rockoon_offset.progress.readers import group_of
from rockoon_offset.progress.records import (
    GroupDeleted,
    MembersChanged,
    Progress,
    ProgressPut,
    QueueDeleted,
    Record,
    Removed,
    Reverted,
)

# For nameservers that record no deletions: a missing topic or group counts as deleted.
NOT_RECORDED = Deletions()
# Nothing was deleted: a missing topic or group counts as lost.
NONE_DELETED = Deletions(since=1)


class Reconciliation:
    """Adapts progress to changed routes: each method changes the state, returns its records."""

    def __init__(self, state: LedgerState) -> None:
        self._state = state

    def delete_group(
        self, group: str, revision: int, incarnation: int | None = None
    ) -> list[Record]:
        """Delete progress and members of a group that was deleted at `revision` or before.

        Progress of a later group of the same name stays: its readers may have started before the
        routes arrived here.

        Args:
            revision: revision of the routes with the deletion.
            incarnation: incarnation of the group of this name in those routes; None: no group.
        """
        stays = partial(is_of_later_group, revision, incarnation)
        progress = list(self._state.each_progress(group))
        reverted = list(self._state.table.reverted(group))
        known_members = self._state.known.of(group).values()
        members = self._state.members_of(group)
        staying = tuple(each for each in members if stays(each.group_incarnation))
        kept: list[Record] = [
            ProgressPut(each) for each in progress if stays(each.group_incarnation)
        ]
        kept += [Reverted(each) for each in reverted if stays(each.group_incarnation)]
        kept += [each for each in known_members if stays(each.group_incarnation)]
        entries = len(progress) + len(reverted) + len(known_members) + len(members)
        if entries and entries == len(kept) + len(staying):
            return []
        if staying:
            kept.append(MembersChanged(group, staying))
        known = bool(members) or group in self._state.known.groups()
        known = known or self._state.resets.has_any(group)
        known = known or any(group_of(name) == group for name in self._state.table.known_readers())
        return self._state.apply_all([GroupDeleted(group), *kept]) if known else []

    def group_deleted_at(
        self, group: str, revision: int, incarnation: int | None, deletions: Deletions
    ) -> int | None:
        """Return the revision at which a missing or replaced group was deleted; None: it was not
        deleted.

        Args:
            revision: revision of the routes.
            incarnation: incarnation of the group of this name in the routes; None: no group.
        """
        seen = self._state.counters.route_revision
        former = self._incarnations_of(group) - {incarnation}
        over = [each for each in former or {0} if deletions.group_is_over(group, each, seen)]
        if not over:
            return None
        deleted_at = deletions.groups.get(group, 0)
        return deleted_at if deleted_at > max(over) else revision

    def _incarnations_of(self, group: str) -> set[int]:
        """Return the incarnations of a group for which progress or known members are stored."""
        known = {each.group_incarnation for each in self._state.known.of(group).values()}
        progress = (*self._state.each_progress(group), *self._state.table.reverted(group))
        return known | {each.group_incarnation for each in progress}

    def is_later(self, group: str, revision: int) -> bool:
        """True if progress shows that a group was created after a revision."""
        return any(
            progress.group_incarnation > revision for progress in self._state.each_progress(group)
        )

    def delete_topics(self, topics: Iterable[str]) -> list[Record]:
        """Delete all progress on topics that were deleted. The incarnations of their queues stay
        known.

        If a topic is deleted and created again, its readers must be treated the same whether this
        service was up or down at the deletion: as readers of another incarnation.
        """
        names = frozenset(topics)
        if not names:
            return []
        records: list[Record] = [
            QueueDeleted(progress.group, progress.queue, progress.incarnation)
            for progress in self._state.table
            if progress.queue.topic in names
        ]
        records += [
            Removed(reverted.group, reverted.queue)
            for reverted in self._state.table.reverted()
            if reverted.queue.topic in names
        ]
        records += self._state.known.without_topics(names)
        return self._state.apply_all(records)

    def delete_missing_topics(self, topics: Iterable[str], deletions: Deletions) -> list[Record]:
        """Delete progress on topics missing in the routes, if their deletion is recorded."""
        seen = self._state.counters.route_revision
        read = dict.fromkeys(topics, 0)
        for progress in (*self._state.table, *self._state.table.reverted()):
            if progress.queue.topic in read:
                topic = progress.queue.topic
                read[topic] = max(read[topic], progress.incarnation)
        return self.delete_topics(
            topic for topic, was in read.items() if deletions.topic_is_over(topic, was, seen)
        )

    def compare_with_routes(
        self,
        revision: int,
        topics: frozenset[str],
        groups: Mapping[str, int],
        deletions: Deletions = NOT_RECORDED,
    ) -> list[Record]:
        """Delete progress of topics and groups that are deleted according to a route snapshot.

        Args:
            revision: etcd revision of the snapshot. A snapshot older than a former one, from a
                lagging nameserver, changes nothing.
            topics: names of all topics.
            groups: name → incarnation of all groups.
            deletions: progress of a missing topic or group that was not deleted stays.
        """
        # Topics missing on a nameserver that lags may have been created since.
        if revision < self._state.counters.route_revision:
            return []
        records: list[Record] = []
        readers = {*self._state.table.known_readers(), *self._state.known.groups()}
        readers |= {each.group for each in self._state.members()}
        for group in sorted(set(map(group_of, readers))):
            if group not in groups or self._incarnations_of(group) - {groups[group]}:
                at = self.group_deleted_at(group, revision, groups.get(group), deletions)
                if at is not None:
                    records += self.delete_group(group, at, groups.get(group))
        read = {progress.queue.topic for progress in self._state.table}
        read |= {reverted.queue.topic for reverted in self._state.table.reverted()}
        records += self.delete_missing_topics(read - topics, deletions)
        # Last: if a crash loses the end of these records, the snapshot is compared again.
        return records + self.routes_seen(revision)

    def routes_seen(self, revision: int) -> list[Record]:
        """Store the revision of the routes that progress agrees with."""
        if revision <= self._state.counters.route_revision:
            return []
        return self._state.apply_all([self._state.counters._replace(route_revision=revision)])

    def vouched_for(self, create_revisions: Mapping[MessageQueue, int]) -> bool:
        """True if routes can belong to the etcd that gave the incarnations of progress.

        Used while the ledger does not know the id of its etcd: one queue with the same incarnation
        in both is enough.
        """
        return not self._state.table.readers() or any(
            create_revisions.get(progress.queue) == progress.incarnation
            for progress in self._state.table
        )

    def missing_in(self, topics: Collection[str], groups: Collection[str]) -> list[str]:
        """Return texts about topics and groups that have progress and are not in the routes."""
        read = {progress.queue.topic for progress in self._state.table}
        return [
            *(f"topic {name}" for name in sorted(read.difference(topics))),
            *(
                f"group {name}"
                for name in sorted(set(map(group_of, self._state.table.readers())) - set(groups))
            ),
        ]

    def etcd_seen(self, etcd_cluster_id: int) -> list[Record]:
        """Store the id of the etcd that gives the incarnations."""
        if not etcd_cluster_id or etcd_cluster_id == self._state.counters.etcd_cluster_id:
            return []
        return self._state.apply_all(
            [self._state.counters._replace(etcd_cluster_id=etcd_cluster_id)]
        )

    def is_contradicted(
        self,
        revision: int,
        create_revision: Callable[[MessageQueue], int | None],
        groups: Mapping[str, int],
        deletions: Deletions,
    ) -> bool:
        """True if a queue or group with progress has another incarnation, although no deletion is
        recorded.

        Then etcd was restored from a backup, and its revision has grown past the one stored here.

        Args:
            revision: revision of the routes; they do not know later incarnations.
            create_revision: create revision of a queue in the routes; None: missing.
            groups: name → incarnation in the routes.
        """
        seen = self._state.counters.route_revision

        def is_lost(was: int, now: int | None, is_over: Callable[..., bool], name: str) -> bool:
            return now not in (None, was) and was <= revision and not is_over(name, was, seen)

        for each in self._state.table:
            topic, group = each.queue.topic, group_of(each.group)
            if is_lost(
                each.incarnation, create_revision(each.queue), deletions.topic_is_over, topic
            ):
                return True
            now = groups.get(group)
            if is_lost(each.group_incarnation, now, deletions.group_is_over, group):
                return True
        return False

    def accept_etcd(
        self,
        etcd_cluster_id: int,
        revision: int,
        create_revisions: Mapping[MessageQueue, int],
        groups: Mapping[str, int],
        deletions: Deletions = NONE_DELETED,
        since: int | None = None,
    ) -> list[Record]:
        """Move progress to another etcd: match queues and groups by name.

        An etcd restored from a backup counts as another etcd: changes after the backup are lost,
        and their revisions are used again.

        Epochs stay, so readers continue. A queue that is missing in the new etcd keeps its old
        incarnation.

        Args:
            etcd_cluster_id: cluster id of the new etcd.
            revision: its revision; former revisions become invalid.
            create_revisions: queue → create revision in the new etcd.
            groups: name → incarnation in the new etcd.
            deletions: queues and groups that were deleted since they were read do not match.
            since: queues with a higher create revision are new to members without progress on
                them; None: `revision`.
        """
        seen = self._state.counters.route_revision

        def moved(progress: Progress) -> Progress:
            was, queue = progress.incarnation, progress.queue
            is_over = deletions.topic_is_over(queue.topic, was, seen)
            group, group_was = group_of(progress.group), progress.group_incarnation
            group_is_over = deletions.group_is_over(group, group_was, seen)
            return progress._replace(
                incarnation=was if is_over else create_revisions.get(queue, was),
                group_incarnation=group_was if group_is_over else groups.get(group, group_was),
            )

        records: list[Record] = [ProgressPut(moved(progress)) for progress in self._state.table]
        records += [Reverted(moved(reverted)) for reverted in self._state.table.reverted()]
        records += self._state.known.in_other_etcd(revision if since is None else since, groups)
        # Last: if a crash loses the end of these records, the etcd is accepted again.
        accepted = self._state.counters._replace(
            route_revision=revision, etcd_cluster_id=etcd_cluster_id
        )
        return self._state.apply_all([*records, accepted])


def is_of_later_group(revision: int, current: int | None, incarnation: int) -> bool:
    """True if an incarnation belongs to a later group than the deleted one.

    Args:
        revision: revision of the routes with the deletion.
        current: incarnation of the group of this name in those routes; None: no group.
        incarnation: the incarnation; 0: unknown.
    """
    return incarnation > revision or incarnation == current
