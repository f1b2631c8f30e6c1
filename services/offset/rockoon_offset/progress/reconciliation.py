"""Reconciliation of progress with the routes: deletions, and an etcd that is another one. Pure.

Routes are hearsay: a nameserver may lag, and etcd may have been restored from a backup. What they
lack is dropped only where it was deleted; see `rockoon_node.deletions`.
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
    Put,
    QueueDeleted,
    Record,
    Removed,
    Reverted,
)

# Of nameservers that note no deletions: what is missing was deleted.
NOT_NOTED = Deletions()
# None: what is missing was lost.
NONE_DELETED = Deletions(since=1)


class Reconciliation:
    """Changes that routes ask for; as of the ledger's operations, each returns its records.

    Args:
        state: of the ledger, which it changes.
    """

    def __init__(self, state: LedgerState) -> None:
        self._state = state

    def forget_group(
        self, group: str, revision: int, incarnation: int | None = None
    ) -> list[Record]:
        """Delete all that a group had when it was deleted, at `revision` or before.

        What a later group of the same name has stays: its readers may have been quicker than the
        routes.

        Args:
            group: its name.
            revision: of the routes that tell of the deletion.
            incarnation: of the group that has the name in those routes; None for none.
        """
        stays = partial(is_of_later_group, revision, incarnation)
        progress = list(self._state.each_progress(group))
        reverted = list(self._state.table.reverted(group))
        known_members = self._state.known.of(group).values()
        members = self._state.members_of(group)
        staying = tuple(each for each in members if stays(each.group_incarnation))
        kept: list[Record] = [Put(each) for each in progress if stays(each.group_incarnation)]
        kept += [Reverted(each) for each in reverted if stays(each.group_incarnation)]
        kept += [each for each in known_members if stays(each.group_incarnation)]
        entries = len(progress) + len(reverted) + len(known_members) + len(members)
        if entries and entries == len(kept) + len(staying):
            return []
        if staying:
            kept.append(MembersChanged(group, staying))
        known = bool(members) or group in self._state.known.groups()
        known = known or self._state.resets.has_any(group)
        known = known or any(group_of(name) == group for name in self._state.table.remembered())
        return self._state.apply_all([GroupDeleted(group), *kept]) if known else []

    def group_deleted_at(
        self, group: str, revision: int, incarnation: int | None, deletions: Deletions
    ) -> int | None:
        """When a group that routes lack, or have as another one, was deleted; None: it was lost.

        Args:
            group: its name.
            revision: of the routes.
            incarnation: of the group that has the name in them; None for none.
            deletions: as those routes tell.
        """
        seen = self._state.counters.route_revision
        former = self._incarnations_of(group) - {incarnation}
        over = [each for each in former or {0} if deletions.group_is_over(group, each, seen)]
        if not over:
            return None
        noted = deletions.groups.get(group, 0)
        return noted if noted > max(over) else revision

    def _incarnations_of(self, group: str) -> set[int]:
        """Those of a group in which anything was read."""
        known = {each.group_incarnation for each in self._state.known.of(group).values()}
        places = (*self._state.each_progress(group), *self._state.table.reverted(group))
        return known | {each.group_incarnation for each in places}

    def is_later(self, group: str, revision: int) -> bool:
        """Whether a group has read something that shows that it was created after a revision."""
        return any(
            progress.group_incarnation > revision for progress in self._state.each_progress(group)
        )

    def forget_topics(self, topics: Iterable[str]) -> list[Record]:
        """Delete progress on topics. What stays is that there was some, by queue.

        A reader of a topic that was deleted and created again must be treated alike whether this
        service saw the deletion or was away: as a reader of another incarnation.
        """
        names = frozenset(topics)
        if not names:
            return []
        gone: list[Record] = [
            QueueDeleted(progress.group, progress.queue, progress.incarnation)
            for progress in self._state.table
            if progress.queue.topic in names
        ]
        gone += [
            Removed(reverted.group, reverted.queue)
            for reverted in self._state.table.reverted()
            if reverted.queue.topic in names
        ]
        gone += self._state.known.without_topics(names)
        return self._state.apply_all(gone)

    def forget_deleted(self, topics: Iterable[str], deletions: Deletions) -> list[Record]:
        """As `forget_topics`, of those among topics that routes lack that were deleted."""
        seen = self._state.counters.route_revision
        read = dict.fromkeys(topics, 0)
        for progress in (*self._state.table, *self._state.table.reverted()):
            if progress.queue.topic in read:
                topic = progress.queue.topic
                read[topic] = max(read[topic], progress.incarnation)
        return self.forget_topics(
            topic for topic, was in read.items() if deletions.topic_is_over(topic, was, seen)
        )

    def compare_with_routes(
        self,
        revision: int,
        topics: frozenset[str],
        groups: Mapping[str, int],
        deletions: Deletions = NOT_NOTED,
    ) -> list[Record]:
        """Drop what was deleted by the word of a snapshot of the routes, whoever missed it.

        Args:
            revision: etcd revision of the snapshot. Nothing is dropped for a snapshot older than
                one seen before, which a lagging nameserver tells.
            topics: names of all topics.
            groups: name → incarnation of all groups.
            deletions: what is missing without having been deleted stays.
        """
        # What a nameserver that lags does not have may have been created since.
        if revision < self._state.counters.route_revision:
            return []
        records: list[Record] = []
        readers = {*self._state.table.remembered(), *self._state.known.groups()}
        readers |= {each.group for each in self._state.members()}
        for group in sorted(set(map(group_of, readers))):
            if group not in groups or self._incarnations_of(group) - {groups[group]}:
                at = self.group_deleted_at(group, revision, groups.get(group), deletions)
                if at is not None:
                    records += self.forget_group(group, at, groups.get(group))
        read = {progress.queue.topic for progress in self._state.table}
        read |= {reverted.queue.topic for reverted in self._state.table.reverted()}
        records += self.forget_deleted(read - topics, deletions)
        # Last: a crash that cuts off the end of these records has the snapshot compared once more.
        return records + self.routes_seen(revision)

    def routes_seen(self, revision: int) -> list[Record]:
        """Remember that progress agrees with the routes up to a revision."""
        if revision <= self._state.counters.route_revision:
            return []
        return self._state.apply_all([self._state.counters._replace(route_revision=revision)])

    def vouched_for(self, create_revisions: Mapping[MessageQueue, int]) -> bool:
        """Whether routes are of the etcd that counted the incarnations here, as far as they show.

        For a ledger that was never told which etcd that is: one queue that both know is proof.
        """
        return not self._state.groups() or any(
            create_revisions.get(progress.queue) == progress.incarnation
            for progress in self._state.table
        )

    def missing_in(self, topics: Collection[str], groups: Collection[str]) -> list[str]:
        """Topics and groups with progress that routes lack, named for people."""
        read = {progress.queue.topic for progress in self._state.table}
        return [
            *(f"topic {name}" for name in sorted(read.difference(topics))),
            *(
                f"group {name}"
                for name in sorted(set(map(group_of, self._state.groups())) - set(groups))
            ),
        ]

    def etcd_seen(self, etcd_cluster_id: int) -> list[Record]:
        """Remember which etcd counts the incarnations."""
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
        """Whether routes have what was read as another incarnation, though nothing was deleted.

        Then etcd was restored from a backup, and has counted past what was seen here.

        Args:
            revision: of the routes; what is later is not known to them.
            create_revision: of a queue in them; None when it is not there.
            groups: name → incarnation in them.
            deletions: as they tell.
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
        """Take queues and groups of another etcd for those of the same name that were read so far.

        Another one is also one that was restored from a backup: what came after the backup is gone,
        and its revisions are counted once more.

        Epochs stay, so readers go on. A queue that is not there keeps its old incarnation.

        Args:
            etcd_cluster_id: its identity.
            revision: its revision; revisions seen before mean nothing any more.
            create_revisions: queue → create revision there.
            groups: name → incarnation there.
            deletions: what was deleted since it was read is another one.
            since: queues born later are new to members that have no progress on them; None: those
                later than `revision`.
        """
        seen = self._state.counters.route_revision

        def there(progress: Progress) -> Progress:
            was, queue = progress.incarnation, progress.queue
            is_over = deletions.topic_is_over(queue.topic, was, seen)
            group, group_was = group_of(progress.group), progress.group_incarnation
            group_is_over = deletions.group_is_over(group, group_was, seen)
            return progress._replace(
                incarnation=was if is_over else create_revisions.get(queue, was),
                group_incarnation=group_was if group_is_over else groups.get(group, group_was),
            )

        records: list[Record] = [Put(there(progress)) for progress in self._state.table]
        records += [Reverted(there(reverted)) for reverted in self._state.table.reverted()]
        records += self._state.known.in_other_etcd(revision if since is None else since, groups)
        # Last: what a crash cuts off is accepted once more.
        accepted = self._state.counters._replace(
            route_revision=revision, etcd_cluster_id=etcd_cluster_id
        )
        return self._state.apply_all([*records, accepted])


def is_of_later_group(revision: int, current: int | None, incarnation: int) -> bool:
    """Whether what is of one incarnation of a group outlives the deletion of an earlier one.

    Args:
        revision: of the routes that tell of the deletion.
        current: incarnation of the group that has the name in those routes; None for none.
        incarnation: in question; 0: not known.
    """
    return incarnation > revision or incarnation == current
