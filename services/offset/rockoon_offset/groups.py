"""Consumer groups: the effect of changed routes, members or owners on progress and watchers.

A broadcasting member with its own progress is removed when it is absent for too long. Absence is
measured by the wall clock, over restarts. A wrong clock or a long downtime of the service must not
remove members that would return. So a member is removed only after the service has waited for it
for a day of monotonic time, and after the wall clock has shown the absence as too long for ten
minutes.
"""

import logging
from collections.abc import Callable, Mapping
from functools import partial

from rockoon_core.errors import QueueHeld
from rockoon_core.message_queue import MessageQueue
from rockoon_offset.members.handover import Handovers
from rockoon_offset.members.membership import (
    NO_SDK,
    ClientSdk,
    Lock,
    Membership,
    Owners,
    OwnersThen,
    PulledPosition,
)
from rockoon_offset.members.watch import GroupWatch
from rockoon_offset.progress.commits import QueueEndCache
from rockoon_offset.progress.progress_store import ProgressStore
from rockoon_offset.progress.readers import reader_of
from rockoon_offset.progress.reconciliation import Reconciliation, is_of_later_group
from rockoon_offset.progress.records import GroupMember, KnownMember, MemberForgotten, MemberJoined
from rockoon_offset.route_table import AppliedUpdate, OffsetRoutes
from rockoon_runtime.waking import WorkRounds

CHECK_NS = 60 * 10**9


DAY_NS = 86_400 * 10**9


# The wall clock may be wrong for a moment, and a removal cannot be undone.
BELIEVED_AFTER_NS = 600 * 10**9


DAY_MS = 86_400_000


# Minimum age of `seen_at_ms` of a live member before it is written again: each write is a record in
# the journal.
SEEN_MS = 3_600_000


class Absences:
    """Removes known members of all groups that are absent for too long.

    Args:
        store: ledger with the known members.
        membership: live members.
        days_max: how long an absent member is kept, days; 0: no limit.
        now_ns: monotonic.
        now_ms: wall clock.
    """

    def __init__(
        self,
        store: ProgressStore,
        membership: Membership,
        days_max: float,
        now_ns: Callable[[], int],
        now_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._membership = membership
        self._absent_ms_max = round(days_max * DAY_MS)
        self._now_ns = now_ns
        self._now_ms = now_ms
        self._check_due_ns = 0
        self._patience_ns = min(DAY_NS, round(days_max * DAY_NS))
        # (group, member) → first of the consecutive checks without a live member, monotonic.
        self._missed_since_ns: dict[tuple[str, str], int] = {}
        # (group, member) → first of the consecutive checks with a too long absence, monotonic.
        self._overdue_since_ns: dict[tuple[str, str], int] = {}

    @property
    def next_check_ns(self) -> int | None:
        """Monotonic time of the next check for absent members; None while no member is known."""
        return self._check_due_ns if self._store.ledger.known else None

    def expire_due(self) -> None:
        """Record live members, and remove members absent too long; at most once per `CHECK_NS`."""
        now_ns, now_ms = self._now_ns(), self._now_ms()
        if now_ns < self._check_due_ns:
            return
        self._check_due_ns = now_ns + CHECK_NS
        missed_before, self._missed_since_ns = self._missed_since_ns, {}
        overdue_before, self._overdue_since_ns = self._overdue_since_ns, {}
        for known in list(self._store.ledger.known):
            silent_ms = now_ms - known.seen_at_ms
            name = known.group, known.member
            if self._membership.live(known.group, known.member, now_ns) is not None:
                if not 0 <= silent_ms < SEEN_MS:
                    self._store.write(
                        self._store.ledger.members_changed(known._replace(seen_at_ms=now_ms))
                    )
                continue
            missed_since_ns = missed_before.get(name, now_ns)
            self._missed_since_ns[name] = missed_since_ns
            if not 0 < self._absent_ms_max < silent_ms:
                continue
            overdue_since_ns = self._overdue_since_ns[name] = overdue_before.get(name, now_ns)
            is_sure = now_ns - overdue_since_ns >= min(BELIEVED_AFTER_NS, self._patience_ns)
            if is_sure and now_ns - missed_since_ns >= self._patience_ns:
                del self._missed_since_ns[name], self._overdue_since_ns[name]
                self._remove(known, silent_ms)

    def _remove(self, known: KnownMember, silent_ms: int) -> None:
        ledger = self._store.ledger
        queues = len(ledger.table.of(reader_of(known.group, known.member)))
        log.warning(
            "REMOVED MEMBER %s OF GROUP %s with its progress on %d queues: it was absent for %.1f "
            "days",
            known.member,
            known.group,
            queues,
            silent_ms / DAY_MS,
        )
        self._store.write(ledger.members_changed(MemberForgotten(known.group, known.member)))


log = logging.getLogger(__name__)

EXPIRY_CHECKS_PER_LEASE = 10
EXPIRY_CHECK_SECONDS_MAX = 0.5


class Groups:
    """Applies changes of members, queue owners and routes to progress, membership and watchers.

    Args:
        store: progress, and the members that must survive a restart.
        ends: cache of queue ends; entries of deleted queues are dropped.
        watch: open WatchGroup streams.
        handovers: members that wait for a queue that another member holds.
        lease_seconds: time after which a silent member is removed.
        now_ns: monotonic.
        now_ms: wall clock; only for display.
        member_days_max: how long a member's own progress is kept while it is absent, days; 0: no
            limit.
    """

    def __init__(
        self,
        store: ProgressStore,
        table: OffsetRoutes,
        ends: QueueEndCache,
        watch: GroupWatch,
        handovers: Handovers,
        lease_seconds: float,
        now_ns: Callable[[], int],
        now_ms: Callable[[], int],
        member_days_max: float = 0,
    ) -> None:
        self._store = store
        self._reconciliation = Reconciliation(store.ledger)
        self._table = table
        self._ends = ends
        self._watch = watch
        self._handovers = handovers
        self._now_ns = now_ns
        self._now_ms = now_ms
        store.write(store.ledger.service_started())
        starts = store.ledger.counters.starts
        self.membership = Membership(round(lease_seconds * 1e9), starts)
        self.membership.restore(store.ledger.members(), now_ms())
        # Groups with members from before a restart. They may have been deleted while the service
        # was down; the first routes show it.
        self._restored = set(self.membership.groups())
        self._absences = Absences(store, self.membership, member_days_max, now_ns, now_ms)
        # Groups whose members changed since the last write. A write contains all members of a
        # group, so members that join together share one write.
        self._unwritten_groups: set[str] = set()
        interval_seconds = min(lease_seconds / EXPIRY_CHECKS_PER_LEASE, EXPIRY_CHECK_SECONDS_MAX)
        self._turns = WorkRounds(interval_seconds)
        # True once the service is registered; leases run from then.
        self.is_open = False
        self._owners = Owners()
        # Topics with progress on queues that are not in the routes and were not deleted: the
        # queues may appear again.
        self._lost_topics: set[str] = set()

    def open(self) -> None:
        """Start the leases of members: the service is registered, so members can reach it."""
        self.is_open = True
        self.membership.open(self._now_ns())
        self._turns.ring()

    def heartbeat(
        self,
        group: str,
        member: GroupMember,
        positions: Mapping[MessageQueue, PulledPosition] | None = None,
        sdk: ClientSdk = NO_SDK,
    ) -> bool:
        """Add a member, update it, or renew its lease.

        Returns True if the member is new or changed. The caller must then wait until the change
        is durable before it replies. Otherwise a crash loses the member, and its queues are
        granted to the first other member that asks.

        Raises:
            GroupNotFound, MemberIdTaken, Busy: see Membership.
            StoreNotWritable: the journal has no room for a new member.
        """
        if self.membership.find(group, member.member_id) is None:
            self._store.require_writable()
        now_ns, now_ms = self._now_ns(), self._now_ms()
        if not self.membership.heartbeat(group, member, now_ns, now_ms, positions, sdk):
            return False
        joined = self.membership.find(group, member.member_id)
        assert joined is not None, "the heartbeat was accepted above"
        self._store.write(self._store.ledger.members_changed(MemberJoined(group, joined)))
        self._members_changed(group)
        return True

    def leave(self, group: str, member_id: str, instance: str) -> None:
        if self.membership.leave(group, member_id, instance):
            self._members_changed(group)

    def require_free(
        self, group: str, queue: MessageQueue, incarnation: int, member_id: str
    ) -> None:
        """Raise QueueHeld if a member must wait for a queue that another live member owns.

        Args:
            group: the group, or `group@member`.
            queue: the queue that the member wants to read.
            incarnation: create revision of the queue in the current routes.
            member_id: the member; empty for a reader without membership, which never becomes the
                owner.
        """
        progress = self._store.ledger.table.owning_progress(group, queue)
        if progress is None or not member_id or progress.owner in ("", member_id):
            return
        now_ns = self._now_ns()
        owner = self.membership.reader(group, progress.owner, queue.topic, now_ns)
        if (
            # The owner of a deleted queue of the same name has nothing left to commit.
            progress.incarnation == incarnation
            and owner is not None
            and self._handovers.must_wait(progress, member_id, now_ns, is_heard=owner.is_heard)
        ):
            raise QueueHeld(queue=queue, owner=progress.owner)

    def require_no_live_owner(
        self, group: str, queue: MessageQueue, incarnation: int | None
    ) -> None:
        """Raise QueueHeld if a live member pulls the queue: receivers may not acquire from it.

        The member is not asked to release the queue for receivers.

        Args:
            queue: the queue that the receiver wants to acquire from.
            incarnation: create revision of the queue in the current routes; None: not in them.
        """
        progress = self._store.ledger.table.owning_progress(group, queue)
        if progress is None or not progress.owner or progress.incarnation != incarnation:
            return
        owner = progress.owner
        if self.membership.reader(group, owner, queue.topic, self._now_ns()) is not None:
            text = f"queue {queue} is read by member {owner}, which pulls it"
            raise QueueHeld(text, queue=queue, owner=owner)

    def owner_changed(self, group: str, queue: MessageQueue) -> None:
        """Drop the waits for a queue with a new owner: members must request it from that owner."""
        self._handovers.released(group, queue)

    def record_owner(self, group: str, queue: MessageQueue, owner: str) -> None:
        """Record that a member owns a queue from now on. An empty `owner` is a reader without
        membership and changes nothing.
        """
        if owner:
            self._owners.record(group, queue, owner, self._now_ms())

    def owners(self, group: str) -> OwnersThen:
        """Return the owner of each queue at the last change of the group's members."""
        version = self.membership.version(group)
        return self._owners.as_of(
            group, version, self._store.ledger.table.all_owning_progress(group).values()
        )

    def locks(self, group: str) -> list[Lock]:
        """Return the queues of a group that have an owner, sorted."""
        leases = {lease.member.member_id: lease for lease in self.membership.leases(group)}
        now_ns = self._now_ns()
        locks = []
        for queue, progress in sorted(self._store.ledger.table.all_owning_progress(group).items()):
            if progress.owner:
                lease = leases.get(progress.owner)
                left_ns = 0 if lease is None else max(lease.ends_ns - now_ns, 0)
                locks.append(
                    Lock(
                        queue,
                        progress.owner,
                        progress.epoch,
                        self._owners.since_ms(group, queue, progress.owner),
                        left_ns // 1_000_000,
                        self._handovers.waiting(group, queue),
                    )
                )
        return locks

    def release(self, group: str, queue: MessageQueue, member_id: str) -> None:
        """Remove a member as owner of its queue, and notify the members that wait for the queue.

        They are notified before the release is durable. That is safe, because the reply to their
        Resolve waits until it is.
        """
        records = self._store.ledger.release(group, queue, member_id)
        if records:
            self._store.write(records)
            self._owners.released(group, queue)
            waiting = self._handovers.released(group, queue)
            self._watch.queue_released(group, queue, waiting)

    async def run(self) -> None:
        """Remove members whose leases end and write changed members, until cancelled."""
        try:
            while True:
                self._turns.begin()
                self.expire_due()
                await self._turns.wait_next(self._seconds_until_due())
        finally:
            self.write_members()

    def _seconds_until_due(self) -> float | None:
        """Seconds until the next lease of a member ends; None: no lease ends until members change.

        Waits for queues need no timer of their own: each waiting member has a lease.
        """
        due_ns = (self.membership.next_end_ns(), self._absences.next_check_ns)
        first_ns = min((each for each in due_ns if each is not None), default=None)
        return None if first_ns is None else max(first_ns - self._now_ns(), 0) / 1e9

    def expire_due(self) -> None:
        """Remove members whose leases have ended, their waits for queues, and progress of members
        absent for too long.
        """
        for group in self.membership.expire(self._now_ns()):
            log.info("group %s: removed a member that sent no heartbeat", group)
            self._members_changed(group)
        self._handovers.expire_silent(self._now_ns())
        self._absences.expire_due()
        self.write_members()

    def routes_changed(self, change: AppliedUpdate) -> None:
        """Drop the progress of deleted topics and groups, and notify the affected groups."""
        ledger, revision = self._store.ledger, self._table.revision
        self._ends.drop_topics(change.topics | change.removed_topics)
        if revision < ledger.counters.route_revision and not change.went_back:
            # Probably a nameserver that lags. If etcd was restored to an older state, the
            # nameserver sets `went_back`.
            log.error(
                "routes are at revision %d, but progress was stored with revision %d; no progress "
                "is dropped until the routes reach it",
                revision,
                ledger.counters.route_revision,
            )
        else:
            if change.went_back or self._is_contradicted(change, revision):
                self._keep_all(revision)
            self._drop_deleted(change, revision)
        members = self.membership.readers(change.topics | change.removed_topics)
        self._watch.routes_changed(change.readers | members | change.groups)

    def _is_contradicted(self, change: AppliedUpdate, revision: int) -> bool:
        """True if the new routes cannot follow from the former ones: etcd was restored or replaced.

        Only changes that can show a contradiction are checked.
        """
        can_contradict = change.snapshot or change.recreated or change.topics & self._lost_topics
        if not can_contradict and not any(map(self._is_another, change.groups)):
            return False
        table = self._table
        return self._reconciliation.is_contradicted(
            revision, table.create_revision_or_none, table.group_incarnations(), table.deletions
        )

    def _keep_all(self, revision: int) -> None:
        """After a restore of etcd: keep all progress, and match topics and groups by name."""
        ledger, table = self._store.ledger, self._table
        log.error(
            "etcd was restored from a backup: routes of revision %d do not continue the routes "
            "that progress was stored with. All progress is kept, and groups resume at their "
            "offsets, also in topics that are created again",
            revision,
        )
        create_revisions = {
            queue: create_revision
            for topic in table.topics.values()
            for queue, create_revision in topic.create_revisions.items()
        }
        etcd, groups = ledger.counters.etcd_cluster_id, table.group_incarnations()
        # A queue on which a member has no progress may have been created at any revision. With
        # `since=0` the member reads it from the beginning.
        self._store.write(
            self._reconciliation.accept_etcd(
                etcd, revision, create_revisions, groups, table.deletions, since=0
            )
        )

    def _drop_deleted(self, change: AppliedUpdate, revision: int) -> None:
        ledger, deletions = self._store.ledger, self._table.deletions
        # Computed first: it compares with the stored progress that is dropped below.
        replaced = {name for name in change.groups if self._is_another(name)}
        if change.snapshot:
            groups = self._table.group_incarnations()
            topics = frozenset(self._table.topics)
            self._store.write(
                self._reconciliation.compare_with_routes(revision, topics, groups, deletions)
            )
        if change.removed_topics:
            self._store.write(
                self._reconciliation.delete_missing_topics(change.removed_topics, deletions)
            )
        # A group that was created after these routes is not deleted.
        deleted_before_start = {
            name
            for name in self._restored - self._table.groups.keys()
            if not self._reconciliation.is_later(name, revision)
        }
        self._restored.clear()
        for group in sorted(change.removed_groups | replaced | deleted_before_start):
            known = self._table.groups.get(group)
            incarnation = None if known is None else known.incarnation
            at = self._reconciliation.group_deleted_at(group, revision, incarnation, deletions)
            if at is None:
                continue
            stays = partial(is_of_later_group, at, incarnation)
            self._store.write(self._reconciliation.delete_group(group, at, incarnation))
            self.membership.end_group(group, stays, self._now_ns())
            self._watch.group_deleted(group, stays)
        if change.snapshot or change.recreated or change.removed_topics:
            read = {each.queue for each in ledger.all_progress()}
            self._lost_topics = {
                queue.topic for queue in read if self._table.create_revision_or_none(queue) is None
            }
        if change.topics or change.removed_topics or change.groups or change.removed_groups:
            self._store.write(self._reconciliation.routes_seen(revision))

    def _is_another(self, group: str) -> bool:
        """True if a group was deleted and created again since it last stored progress."""
        incarnation, ledger = self._table.groups[group].incarnation, self._store.ledger
        return any(
            progress.group_incarnation < incarnation for progress in ledger.each_progress(group)
        ) or any(known.group_incarnation < incarnation for known in ledger.known.of(group).values())

    def _members_changed(self, group: str) -> None:
        self._unwritten_groups.add(group)
        self._turns.ring()
        alive = {lease.member.member_id for lease in self.membership.leases(group)}
        self._handovers.members_changed(group, alive)
        if not alive:
            self._owners.remove(group)
        self._watch.members_changed(group)

    def write_members(self) -> None:
        """Write the members of changed groups to the journal.

        No caller waits until this is durable: after a crash, members that left just before it may
        be listed again until their leases end.
        """
        for group in sorted(self._unwritten_groups):
            members = self.membership.members_record(group)
            self._store.write(self._store.ledger.members_changed(members))
        self._unwritten_groups.clear()
