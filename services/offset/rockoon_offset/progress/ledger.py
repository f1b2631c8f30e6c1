"""Progress of all groups, and the rules it changes by. Pure: no disk, no clock, no wire.

Every operation checks, returns the records that make the change, and has applied them already; who
calls makes them durable before anybody hears of them. Replaying the records of all operations over
an empty ledger gives the same ledger.

Invariants
- An epoch is given out once: numbers come from one counter that survives deletion, so a commit from
  before a deletion can never pass for one of the successor.
- Progress moves back only by `force`, a reset or an import; the two latter take a new epoch.
- Only the bearer of the current epoch commits.
- A queue has at most one owner; only the owner itself releases it, and no operator takes it away.
- Whoever has progress of its own is a known member; both are forgotten together.

A "group" here is any reader (see `readers`), unless members are spoken of beside it.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial

from rockoon_core.errors import (
    PlanStale,
    RouteNotReached,
)
from rockoon_core.message_queue import MessageQueue
from rockoon_core.start_position import Decision, StartReason, Stored
from rockoon_node.deletions import Deletions
from rockoon_offset.members.known_members import KnownMembers
from rockoon_offset.progress.applied_resets import AppliedResets
from rockoon_offset.progress.commit_check import Commit, check_commit
from rockoon_offset.progress.progress_table import ProgressTable
from rockoon_offset.progress.readers import group_of, in_order, reader_of
from rockoon_offset.progress.records import (
    Committed,
    Counters,
    GroupDeleted,
    KnownMember,
    MemberForgotten,
    MemberJoined,
    MembersChanged,
    Progress,
    Put,
    QueueDeleted,
    Record,
    Removed,
    ResetApplied,
    ResetStep,
    Reverted,
)

# Of nameservers that note no deletions: what is missing was deleted.
NOT_NOTED = Deletions()
# None: what is missing was lost.
NONE_DELETED = Deletions(since=1)


class Ledger:
    """Progress per group and queue, applied resets, and the members a restart has to remember."""

    def __init__(self) -> None:
        self._places = ProgressTable()
        self._resets = AppliedResets()
        self._members: dict[str, MembersChanged] = {}
        self.known = KnownMembers()
        self.counters = Counters(epoch=0, starts=0, route_revision=0)

    # Looking.

    def find(self, group: str, queue: MessageQueue) -> Progress | None:
        return self._places.find(group, queue)

    def holder(self, group: str, queue: MessageQueue) -> Progress | None:
        """Whose owner holds a queue: progress, or what it was before it was taken back."""
        return self._places.holder(group, queue)

    def holders(self, group: str) -> Mapping[MessageQueue, Progress]:
        """As `holder`, of all queues."""
        return self._places.holders(group)

    def stored(self, group: str, queue: MessageQueue) -> Stored | None:
        """Progress, or the memory of progress on a deleted queue of the same name."""
        progress = self.find(group, queue)
        if progress is not None:
            return Stored(progress.offset, progress.incarnation)
        incarnation = self._places.gone(group, queue)
        return None if incarnation is None else Stored(None, incarnation)

    def require_reached(self, group: str, queue: MessageQueue, revision: int) -> None:
        """Whether routes are recent enough to say what became of a queue that a group has read.

        A nameserver that lags may be the first to answer after a restart: its routes then still
        have the predecessor of a queue that was deleted and created again.

        Args:
            group: whose progress.
            queue: which.
            revision: of the routes.

        Raises:
            RouteNotReached: progress is on a later queue of the name than the routes can know.
        """
        stored = self.stored(group, queue)
        # The routes of an etcd that was accepted instead of another count again.
        if stored and revision < min(stored.incarnation, self.counters.route_revision):
            raise RouteNotReached(wanted=stored.incarnation, revision=revision)

    def progress_of(self, group: str) -> Mapping[MessageQueue, Progress]:
        return self._places.of(group)

    def groups(self) -> Iterable[str]:
        return self._places.readers()

    def readers(self, group: str) -> list[str]:
        """A group and its members with progress of their own, in order."""
        return [group, *(reader_of(group, name) for name in sorted(self.known.of(group)))]

    def all_progress(self) -> list[Progress]:
        """Progress of all groups and members, in no order: a copy that costs little."""
        return list(self._places)

    def list_progress(self, group: str = "", topic: str = "", broker: str = "") -> list[Progress]:
        """Progress of one group or all; sorted by group and queue. See `each_progress`."""
        return list(self.each_progress(group, topic, broker))

    def each_progress(
        self, group: str = "", topic: str = "", broker: str = ""
    ) -> Iterator[Progress]:
        """Progress in the order of groups, members and queues; to be gone through before anything
        changes.

        Args:
            group: with its members; empty means all.
            topic: empty means all.
            broker: empty means all.
        """
        for name in self.readers(group) if group else sorted(self.groups(), key=in_order):
            for queue, progress in sorted(self.progress_of(name).items()):
                if topic in ("", queue.topic) and broker in ("", queue.broker):
                    yield progress

    def reset(self, reset_id: str) -> ResetApplied:
        """Raises ResetNotFound."""
        return self._resets.find(reset_id)

    def members(self) -> Iterable[MembersChanged]:
        return self._members.values()

    # Changing.

    def service_started(self) -> list[Record]:
        return self._apply_all([self.counters._replace(starts=self.counters.starts + 1)])

    def members_changed(
        self, *changes: MembersChanged | MemberJoined | KnownMember | MemberForgotten
    ) -> list[Record]:
        return self._apply_all(list(changes))

    def start(
        self,
        group: str,
        group_incarnation: int,
        queue: MessageQueue,
        incarnation: int,
        decision: Decision,
        member_id: str,
        now_ms: int,
    ) -> list[Record]:
        """Write down where a reader starts, and who reads.

        A member that is not the owner becomes it and gets a new epoch; the owner keeps its epoch. A
        reader without a member id changes no owner.
        """
        before = self.find(group, queue)
        if before is None:
            held = self.holder(group, queue)
            blank = Progress(
                group=group,
                queue=queue,
                offset=decision.offset,
                # From one counter for all: the queue's last epoch went with its progress, and would
                # come again.
                epoch=self.counters.epoch + 1,
                incarnation=incarnation,
                group_incarnation=group_incarnation,
                owner=member_id or ("" if held is None else held.owner),
                committer="",
                stored_at_ms=now_ms,
                metadata="",
                start_offset=0,
                start_reason=decision.reason,
                start_explanation="",
                started_at_ms=0,
                gap_total=0,
            )
            return self._apply_all([Put(_with_start(blank, decision, now_ms))])
        after = before
        if member_id and member_id != before.owner:
            after = after._replace(owner=member_id, epoch=self.counters.epoch + 1)
        if decision.reason is not StartReason.COMMITTED:
            # Whoever read by the old number must not commit on top of the new one.
            epoch = self.counters.epoch + 1
            after = _with_start(after, decision, now_ms)._replace(
                epoch=epoch, incarnation=incarnation, group_incarnation=group_incarnation
            )
        return [] if after == before else self._apply_all([Put(after)])

    def check_commit(self, commit: Commit, incarnation: int | None, end: int | None) -> None:
        """Whether a commit would be taken. Arguments and errors as of `commit_check`."""
        check_commit(commit, self.find(commit.group, commit.queue), incarnation, end)

    def commit(
        self, commit: Commit, incarnation: int | None, end: int | None, now_ms: int
    ) -> list[Record]:
        """Move an offset; nothing to write when it is there already. Raises as `check_commit`."""
        self.check_commit(commit, incarnation, end)
        progress = self._places.of(commit.group)[commit.queue]
        # Members commit every few seconds, read or not: the journal must not grow by that.
        if commit.offset == progress.offset and commit.metadata == progress.metadata:
            return []
        return self._apply_all(
            [
                Committed(
                    commit.group,
                    commit.queue,
                    commit.offset,
                    commit.member_id,
                    now_ms,
                    commit.metadata,
                )
            ]
        )

    def release(self, group: str, queue: MessageQueue, member_id: str) -> list[Record]:
        """Take the owner off a queue; nothing to write when `member_id` is not the owner.

        The epoch stays: a commit that was on its way still counts, as nobody reads yet. Whoever
        resolves the queue next is another owner and gets a new one.
        """
        progress = self.holder(group, queue)
        if progress is None or not member_id or progress.owner != member_id:
            return []
        if self.find(group, queue) is None:
            return self._apply_all([Removed(group, queue)])
        return self._apply_all([Put(progress._replace(owner=""))])

    def apply_reset(
        self,
        reset_id: str,
        group: str,
        group_incarnation: int,
        topic: str,
        steps: Sequence[ResetStep],
        operator: str,
        now_ms: int,
    ) -> list[Record]:
        """Do a planned reset, all steps or none.

        Raises:
            PlanStale: an offset or epoch is not what the plan saw.
        """
        for step in steps:
            progress = self.find(reader_of(group, step.member), step.queue)
            # The epoch too: at the same offset another owner may be reading on.
            seen = (step.from_offset, step.epoch)
            now = (None, 0) if progress is None else (progress.offset, progress.epoch)
            if seen != now:
                raise PlanStale(reset=reset_id)
        records: list[Record] = []
        for position, step in enumerate(steps):
            text = f"reset {reset_id} by {operator or 'an operator'}: to {step.to_offset}"
            decision = Decision(step.to_offset, StartReason.RESET, text)
            epoch = self.counters.epoch + 1 + position
            reader = reader_of(group, step.member)
            records.append(
                self._moved(
                    reader, group_incarnation, step.queue, step.incarnation, epoch, decision, now_ms
                )
            )
        undoable = tuple(self._undoable(group, step) for step in steps)
        done = ResetApplied(reset_id, group, topic, operator, now_ms, undoable, undone=False)
        return self._apply_all([*records, done])

    def _undoable(self, group: str, step: ResetStep) -> ResetStep:
        """What undoing goes back to: not an offset of a deleted queue of the name, but where its
        reader would have begun on this one."""
        stored = self.stored(reader_of(group, step.member), step.queue)
        is_other = stored is not None and stored.incarnation != step.incarnation
        return step._replace(from_offset=step.min_offset) if is_other else step

    def undo_reset(
        self, reset_id: str, group_incarnation: int, operator: str, now_ms: int
    ) -> list[Record]:
        """Put back what a reset replaced; nothing to write when it was undone already.

        Raises:
            ResetNotFound: no such reset was applied, or it is too long ago.
            PlanStale: a queue of it was deleted, or is another one by now.
        """
        reset = self.reset(reset_id)
        if reset.undone:
            return []
        records: list[Record] = []
        for position, step in enumerate(reset.steps):
            reader = reader_of(reset.group, step.member)
            progress = self.find(reader, step.queue)
            if progress is None or progress.incarnation != step.incarnation:
                raise PlanStale(
                    f"queue {step.queue} was deleted or created again since reset {reset_id}",
                    reset=reset_id,
                )
            epoch = self.counters.epoch + 1 + position
            if step.from_offset is None:
                # Its owner reads until it hears of this, or wants to commit.
                records.append(Reverted(progress._replace(epoch=epoch)))
                continue
            text = f"reset {reset_id} undone by {operator or 'an operator'}: to {step.from_offset}"
            decision = Decision(step.from_offset, StartReason.RESET, text)
            records.append(
                self._moved(
                    reader,
                    group_incarnation,
                    step.queue,
                    step.incarnation,
                    epoch,
                    decision,
                    now_ms,
                )
            )
        return self._apply_all([*records, reset._replace(undone=True)])

    def import_offset(
        self,
        group: str,
        group_incarnation: int,
        queue: MessageQueue,
        incarnation: int,
        decision: Decision,
        now_ms: int,
    ) -> list[Record]:
        """Store an offset that came from elsewhere, under a new epoch."""
        epoch = self.counters.epoch + 1
        return self._apply_all(
            [self._moved(group, group_incarnation, queue, incarnation, epoch, decision, now_ms)]
        )

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
        progress = list(self.each_progress(group))
        reverted = list(self._places.reverted(group))
        known_members = self.known.of(group).values()
        members = self._members.get(group, MembersChanged(group, ())).members
        staying = tuple(each for each in members if stays(each.group_incarnation))
        kept: list[Record] = [Put(each) for each in progress if stays(each.group_incarnation)]
        kept += [Reverted(each) for each in reverted if stays(each.group_incarnation)]
        kept += [each for each in known_members if stays(each.group_incarnation)]
        entries = len(progress) + len(reverted) + len(known_members) + len(members)
        if entries and entries == len(kept) + len(staying):
            return []
        if staying:
            kept.append(MembersChanged(group, staying))
        known = group in self._members or group in self.known.groups()
        known = known or self._resets.has_any(group)
        known = known or any(group_of(name) == group for name in self._places.remembered())
        return self._apply_all([GroupDeleted(group), *kept]) if known else []

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
        seen = self.counters.route_revision
        former = self._incarnations_of(group) - {incarnation}
        over = [each for each in former or {0} if deletions.group_is_over(group, each, seen)]
        if not over:
            return None
        noted = deletions.groups.get(group, 0)
        return noted if noted > max(over) else revision

    def _incarnations_of(self, group: str) -> set[int]:
        """Those of a group in which anything was read."""
        known = {each.group_incarnation for each in self.known.of(group).values()}
        places = (*self.each_progress(group), *self._places.reverted(group))
        return known | {each.group_incarnation for each in places}

    def is_later(self, group: str, revision: int) -> bool:
        """Whether a group has read something that shows that it was created after a revision."""
        return any(progress.group_incarnation > revision for progress in self.each_progress(group))

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
            for progress in self._places
            if progress.queue.topic in names
        ]
        gone += [
            Removed(reverted.group, reverted.queue)
            for reverted in self._places.reverted()
            if reverted.queue.topic in names
        ]
        gone += self.known.without_topics(names)
        return self._apply_all(gone)

    def forget_deleted(self, topics: Iterable[str], deletions: Deletions) -> list[Record]:
        """As `forget_topics`, of those among topics that routes lack that were deleted."""
        seen = self.counters.route_revision
        read = dict.fromkeys(topics, 0)
        for progress in (*self._places, *self._places.reverted()):
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
        if revision < self.counters.route_revision:
            return []
        records: list[Record] = []
        readers = {*self._places.remembered(), *self._members, *self.known.groups()}
        for group in sorted(set(map(group_of, readers))):
            if group not in groups or self._incarnations_of(group) - {groups[group]}:
                at = self.group_deleted_at(group, revision, groups.get(group), deletions)
                if at is not None:
                    records += self.forget_group(group, at, groups.get(group))
        read = {progress.queue.topic for progress in self._places}
        read |= {reverted.queue.topic for reverted in self._places.reverted()}
        records += self.forget_deleted(read - topics, deletions)
        return records + self.routes_seen(revision)

    def routes_seen(self, revision: int) -> list[Record]:
        """Remember that progress agrees with the routes up to a revision."""
        if revision <= self.counters.route_revision:
            return []
        return self._apply_all([self.counters._replace(route_revision=revision)])

    def vouched_for(self, create_revisions: Mapping[MessageQueue, int]) -> bool:
        """Whether routes are of the etcd that counted the incarnations here, as far as they show.

        For a ledger that was never told which etcd that is: one queue that both know is proof.
        """
        return not self.groups() or any(
            create_revisions.get(progress.queue) == progress.incarnation
            for progress in self._places
        )

    def missing_in(self, topics: Collection[str], groups: Collection[str]) -> list[str]:
        """Topics and groups with progress that routes lack, named for people."""
        read = {progress.queue.topic for progress in self._places}
        return [
            *(f"topic {name}" for name in sorted(read.difference(topics))),
            *(f"group {name}" for name in sorted(set(map(group_of, self.groups())) - set(groups))),
        ]

    def etcd_told(self, etcd_cluster_id: int) -> list[Record]:
        """Remember which etcd counts the incarnations."""
        if not etcd_cluster_id or etcd_cluster_id == self.counters.etcd_cluster_id:
            return []
        return self._apply_all([self.counters._replace(etcd_cluster_id=etcd_cluster_id)])

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
            create revision: of a queue in them; None when it is not there.
            groups: name → incarnation in them.
            deletions: as they tell.
        """
        seen = self.counters.route_revision

        def is_lost(was: int, now: int | None, is_over: Callable[..., bool], name: str) -> bool:
            return now not in (None, was) and was <= revision and not is_over(name, was, seen)

        for each in self._places:
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
            create revisions: queue → create revision there.
            groups: name → incarnation there.
            deletions: what was deleted since it was read is another one.
            since: queues born later are new to members that have no progress on them; None: those
                later than `revision`.
        """
        seen = self.counters.route_revision

        def there(progress: Progress) -> Progress:
            was, queue = progress.incarnation, progress.queue
            is_over = deletions.topic_is_over(queue.topic, was, seen)
            group, group_was = group_of(progress.group), progress.group_incarnation
            group_is_over = deletions.group_is_over(group, group_was, seen)
            return progress._replace(
                incarnation=was if is_over else create_revisions.get(queue, was),
                group_incarnation=group_was if group_is_over else groups.get(group, group_was),
            )

        records: list[Record] = [Put(there(progress)) for progress in self._places]
        records += [Reverted(there(reverted)) for reverted in self._places.reverted()]
        records += self.known.in_other_etcd(revision if since is None else since, groups)
        # Last: what a crash cuts off is accepted once more.
        accepted = self.counters._replace(route_revision=revision, etcd_cluster_id=etcd_cluster_id)
        return self._apply_all([*records, accepted])

    def _moved(
        self,
        group: str,
        group_incarnation: int,
        queue: MessageQueue,
        incarnation: int,
        epoch: int,
        decision: Decision,
        now_ms: int,
    ) -> Put:
        before, held = self.find(group, queue), self.holder(group, queue)
        blank = Progress(
            group=group,
            queue=queue,
            offset=decision.offset,
            epoch=epoch,
            incarnation=incarnation,
            group_incarnation=group_incarnation,
            owner="" if held is None else held.owner,
            committer="" if before is None else before.committer,
            stored_at_ms=now_ms,
            metadata="",
            start_offset=0,
            start_reason=decision.reason,
            start_explanation="",
            started_at_ms=0,
            gap_total=0 if before is None else before.gap_total,
        )
        return Put(_with_start(blank, decision, now_ms))

    # Records.

    def snapshot(self) -> Iterator[Record]:
        """Records that make this ledger out of an empty one, from one moment.

        The copy is taken when the method is called; going through it may happen later and in
        another thread, as what it holds never changes.
        """
        places, resets = self._places.snapshot(), tuple(self._resets)
        members, counters = self._members.copy(), self.counters
        known = list(self.known)

        def records() -> Iterator[Record]:
            yield from places
            yield from resets
            yield from members.values()
            yield from known
            yield counters

        return records()

    def apply(self, record: Record) -> None:
        """Make a record's change; it was checked when it was made."""
        match record:
            case Committed():
                self._places.commit(*record)
            case Put(progress):
                self._places.put(progress)
                self._epoch_given(progress.epoch)
            case Removed(group, queue):
                self._places.remove(group, queue)
            case Reverted(progress):
                self._places.vacate(progress)
                self._epoch_given(progress.epoch)
            case QueueDeleted(group, queue, incarnation):
                self._places.queue_gone(group, queue, incarnation)
            case KnownMember():
                self.known.apply(record)
            case MemberForgotten(group, member):
                self.known.apply(record)
                self._places.forget({reader_of(group, member)})
            case GroupDeleted(group):
                remembered = self._places.remembered()
                self._places.forget({name for name in remembered if group_of(name) == group})
                self.known.drop_group(group)
                self._members.pop(group, None)
                self._resets.drop_group(group)
            case ResetApplied():
                self._resets.apply(record)
            case MembersChanged(group, members):
                if members:
                    self._members[group] = record
                else:
                    self._members.pop(group, None)
            case MemberJoined(group, member):
                known = self._members.get(group, MembersChanged(group, ())).members
                others = tuple(each for each in known if each.member_id != member.member_id)
                self._members[group] = MembersChanged(group, (*others, member))
            case Counters():
                self.counters = record

    def _apply_all(self, records: list[Record]) -> list[Record]:
        for record in records:
            self.apply(record)
        return records

    def _epoch_given(self, epoch: int) -> None:
        if epoch > self.counters.epoch:
            self.counters = self.counters._replace(epoch=epoch)


def is_of_later_group(revision: int, current: int | None, incarnation: int) -> bool:
    """Whether what is of one incarnation of a group outlives the deletion of an earlier one.

    Args:
        revision: of the routes that tell of the deletion.
        current: incarnation of the group that has the name in those routes; None for none.
        incarnation: in question; 0: not known.
    """
    return incarnation > revision or incarnation == current


def _with_start(progress: Progress, decision: Decision, now_ms: int) -> Progress:
    return progress._replace(
        offset=decision.offset,
        stored_at_ms=now_ms,
        metadata="",
        start_offset=decision.offset,
        start_reason=decision.reason,
        start_explanation=decision.explanation,
        started_at_ms=now_ms,
        gap_total=progress.gap_total + decision.gap,
    )
