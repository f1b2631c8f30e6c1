"""Consumer groups: the effect of changed routes, members or owners on progress and watchers."""

import logging
from collections.abc import Callable, Mapping
from functools import partial

from rockoon_core.errors import QueueHeld
from rockoon_core.message_queue import MessageQueue
from rockoon_offset.members.expiry import Absences
from rockoon_offset.members.handover import Handovers
from rockoon_offset.members.membership import Membership, Position
from rockoon_offset.members.ownership import Lock, Owners, OwnersThen
from rockoon_offset.members.watch import GroupWatch
from rockoon_offset.progress.commits import QueueEnds
from rockoon_offset.progress.progress_store import ProgressStore
from rockoon_offset.progress.reconciliation import Reconciliation, is_of_later_group
from rockoon_offset.progress.records import Member, MemberJoined
from rockoon_offset.route_table import Change, RouteTable
from rockoon_runtime.waking import Turns

log = logging.getLogger(__name__)

EXPIRY_CHECKS_PER_LEASE = 10
EXPIRY_CHECK_SECONDS_MAX = 0.5


class Groups:
    """Applies changes to store, membership and watchers.

    Args:
        store: progress, and the members that a restart has to know.
        table: the routes.
        ends: forgets ends of queues that are gone.
        watch: who is told.
        handovers: members that wait for queues of others.
        lease_seconds: how long a silent member stays.
        now_ns: monotonic.
        now_ms: wall clock; for people.
        member_days_max: how long progress of an absent member's own is kept; 0: for ever.
    """

    def __init__(
        self,
        store: ProgressStore,
        table: RouteTable,
        ends: QueueEnds,
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
        # Groups with members from before a restart: what became of them meanwhile is not known.
        self._restored = set(self.membership.groups())
        self._absences = Absences(store, self.membership, member_days_max, now_ns, now_ms)
        # Groups whose members have changed since they were last written down. Each write holds all
        # members of a group, so many that join together share one.
        self._to_remember: set[str] = set()
        interval_seconds = min(lease_seconds / EXPIRY_CHECKS_PER_LEASE, EXPIRY_CHECK_SECONDS_MAX)
        self._turns = Turns(interval_seconds)
        # Whether it is: since when leases count.
        self.is_open = False
        self._owners = Owners()
        # Topics with progress on queues that are missing and were not deleted: they may come again.
        self._lost_topics: set[str] = set()

    def open(self) -> None:
        """The service is where members look for it."""
        self.is_open = True
        self.membership.open(self._now_ns())
        self._turns.ring()

    def heartbeat(
        self, group: str, member: Member, positions: Mapping[MessageQueue, Position] | None = None
    ) -> bool:
        """A member joins, changes or stays.

        Returns whether there is something new to be remembered; then it must be durable before
        the member hears of it. Otherwise a crash would forget that it is alive, and its queues go
        to whoever asks first.

        Raises:
            GroupNotFound, MemberIdTaken, Busy: as Membership says.
            StoreNotWritable: there is no room to remember another member.
        """
        if self.membership.find(group, member.member_id) is None:
            self._store.admit()
        if not self.membership.heartbeat(group, member, self._now_ns(), self._now_ms(), positions):
            return False
        joined = self.membership.find(group, member.member_id)
        assert joined is not None, "it has just been heard"
        self._store.write(self._store.ledger.members_changed(MemberJoined(group, joined)))
        self._members_changed(group)
        return True

    def leave(self, group: str, member_id: str, instance: str) -> None:
        if self.membership.leave(group, member_id, instance):
            self._members_changed(group)

    def require_free(
        self, group: str, queue: MessageQueue, incarnation: int, member_id: str
    ) -> None:
        """Whether a member may have a queue now.

        Args:
            group: whose progress.
            queue: what it wants to read.
            incarnation: create revision of the queue in the routes now.
            member_id: who asks; empty for a reader outside membership, which takes nothing over.

        Raises:
            QueueHeld: another live member reads it, and may keep it for a while longer.
        """
        progress = self._store.ledger.holder(group, queue)
        if progress is None or not member_id or progress.owner in ("", member_id):
            return
        now_ns = self._now_ns()
        owner = self.membership.reader(group, progress.owner, queue.topic, now_ns)
        if (
            # An owner of a deleted queue of this name has nothing left to commit.
            progress.incarnation == incarnation
            and owner is not None
            and self._handovers.must_wait(progress, member_id, now_ns, is_heard=owner.is_heard)
        ):
            raise QueueHeld(queue=queue, owner=progress.owner)

    def require_unheld(self, group: str, queue: MessageQueue, incarnation: int | None) -> None:
        """Whether receivers may have messages of a queue now.

        Args:
            group: whose progress.
            queue: of which.
            incarnation: create revision of the queue in the routes now; None: not known there.

        Raises:
            QueueHeld: a live member reads it, and is not asked to let go for receivers.
        """
        progress = self._store.ledger.holder(group, queue)
        if progress is None or not progress.owner or progress.incarnation != incarnation:
            return
        owner = progress.owner
        if self.membership.reader(group, owner, queue.topic, self._now_ns()) is not None:
            text = f"queue {queue} is read by member {owner}, which pulls it"
            raise QueueHeld(text, queue=queue, owner=owner)

    def taken(self, group: str, queue: MessageQueue) -> None:
        """A queue has a new owner: whoever still wants it has to ask that one."""
        self._handovers.released(group, queue)

    def held_by(self, group: str, queue: MessageQueue, owner: str) -> None:
        """A queue was resolved by its owner of now; "" when that was no member."""
        if owner:
            self._owners.held_by(group, queue, owner, self._now_ms())

    def owners(self, group: str) -> OwnersThen:
        """Who held what when the group's members last changed."""
        version = self.membership.version(group)
        return self._owners.as_of(group, version, self._store.ledger.holders(group).values())

    def locks(self, group: str) -> list[Lock]:
        """Queues of a group that have an owner, sorted."""
        leases = {lease.member.member_id: lease for lease in self.membership.leases(group)}
        now_ns = self._now_ns()
        locks = []
        for queue, progress in sorted(self._store.ledger.holders(group).items()):
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
        """Take a member off its queue, and tell those who wait for it.

        They are told before it is on disk: where they then start is not answered before that.
        """
        records = self._store.ledger.release(group, queue, member_id)
        if records:
            self._store.write(records)
            self._owners.released(group, queue)
            waiting = self._handovers.released(group, queue)
            self._watch.queue_released(group, queue, waiting)

    async def run(self) -> None:
        """Let silent members expire, and write members down, until cancelled."""
        try:
            while True:
                self._turns.begin()
                self.pass_time()
                await self._turns.wait_next(self._seconds_until_due())
        finally:
            self.remember()

    def _seconds_until_due(self) -> float | None:
        """How long nothing is to be done unless members change; None for ever.

        Who waits for a queue has a lease, so time for waits passes when it does for leases.
        """
        due_ns = (self.membership.next_end_ns(), self._absences.next_check_ns)
        first_ns = min((each for each in due_ns if each is not None), default=None)
        return None if first_ns is None else max(first_ns - self._now_ns(), 0) / 1e9

    def pass_time(self) -> None:
        """Do what is due by now."""
        for group in self.membership.expire(self._now_ns()):
            log.info("a member of group %s fell silent", group)
            self._members_changed(group)
        self._handovers.forget_silent(self._now_ns())
        self._absences.pass_time()
        self.remember()

    def routes_changed(self, change: Change) -> None:
        """Drop what was deleted, and tell the groups that read what changed."""
        ledger, revision = self._store.ledger, self._table.revision
        self._ends.forget_topics(change.topics | change.removed_topics)
        if revision < ledger.counters.route_revision and not change.went_back:
            # A nameserver that lags, for all that is known yet: it says so when etcd went back.
            log.error(
                "routes are at revision %d, progress has seen %d: nothing of it is dropped",
                revision,
                ledger.counters.route_revision,
            )
        else:
            if change.went_back or self._is_contradicted(change, revision):
                self._keep_all(revision)
            self._drop_deleted(change, revision)
        members = self.membership.readers(change.topics | change.removed_topics)
        self._watch.routes_changed(change.readers | members | change.groups)

    def _is_contradicted(self, change: Change, revision: int) -> bool:
        """Whether the routes cannot follow from those before; looked for where it can show."""
        is_telling = change.snapshot or change.recreated or change.topics & self._lost_topics
        if not is_telling and not any(map(self._is_another, change.groups)):
            return False
        table = self._table
        return self._reconciliation.is_contradicted(
            revision, table.create_revision_or_none, table.group_incarnations(), table.deletions
        )

    def _keep_all(self, revision: int) -> None:
        """etcd was restored from a backup: what has the name of what was read is the same."""
        ledger, table = self._store.ledger, self._table
        log.error(
            "etcd was restored from a backup: routes of revision %d do not continue those that "
            "progress belongs to. All of it is kept, and groups go on where they were, also in "
            "topics that are created again",
            revision,
        )
        create_revisions = {
            queue: create_revision
            for topic in table.topics.values()
            for queue, create_revision in topic.create_revisions.items()
        }
        etcd, groups = ledger.counters.etcd_cluster_id, table.group_incarnations()
        # A queue on which a member has no progress may have been born at any revision: nothing of
        # it is skipped.
        self._store.write(
            self._reconciliation.accept_etcd(
                etcd, revision, create_revisions, groups, table.deletions, since=0
            )
        )

    def _drop_deleted(self, change: Change, revision: int) -> None:
        ledger, deletions = self._store.ledger, self._table.deletions
        # By what they have stored, which is dropped next.
        replaced = {name for name in change.groups if self._is_another(name)}
        if change.snapshot:
            groups = self._table.group_incarnations()
            topics = frozenset(self._table.topics)
            self._store.write(
                self._reconciliation.compare_with_routes(revision, topics, groups, deletions)
            )
        if change.removed_topics:
            self._store.write(self._reconciliation.forget_deleted(change.removed_topics, deletions))
        # Not one that was created so recently that these routes do not know it yet.
        deleted_meanwhile = {
            name
            for name in self._restored - self._table.groups.keys()
            if not self._reconciliation.is_later(name, revision)
        }
        self._restored.clear()
        for group in sorted(change.removed_groups | replaced | deleted_meanwhile):
            known = self._table.groups.get(group)
            incarnation = None if known is None else known.incarnation
            at = self._reconciliation.group_deleted_at(group, revision, incarnation, deletions)
            if at is None:
                continue
            stays = partial(is_of_later_group, at, incarnation)
            self._store.write(self._reconciliation.forget_group(group, at, incarnation))
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
        """Whether a group was deleted and created again since it last stored progress."""
        incarnation, ledger = self._table.groups[group].incarnation, self._store.ledger
        return any(
            progress.group_incarnation < incarnation for progress in ledger.each_progress(group)
        ) or any(known.group_incarnation < incarnation for known in ledger.known.of(group).values())

    def _members_changed(self, group: str) -> None:
        self._to_remember.add(group)
        self._turns.ring()
        alive = {lease.member.member_id for lease in self.membership.leases(group)}
        self._handovers.members_changed(group, alive)
        if not alive:
            self._owners.forget(group)
        self._watch.members_changed(group)

    def remember(self) -> None:
        """Write down who has come and gone. Nobody waits for it: a crash may bring those back who
        left in the last moment."""
        for group in sorted(self._to_remember):
            members = self.membership.to_remember(group)
            self._store.write(self._store.ledger.members_changed(members))
        self._to_remember.clear()
