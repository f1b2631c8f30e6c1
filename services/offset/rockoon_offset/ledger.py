"""Progress of all groups, and the rules it changes by. Pure: no disk, no clock, no wire.

Every operation checks, returns the records that make the change, and has applied them already; who
calls makes them durable before anybody hears of them. Replaying the records of all operations over
an empty ledger gives the same ledger.

Invariants
- An epoch is given out once: numbers come from one counter that survives deletion, so a commit from
  before a deletion can never pass for one of the successor.
- Progress moves back only by `force`, a reset or an import; the two latter take a new epoch.
- Only the bearer of the current epoch commits.
- A queue has at most one owner; only the owner itself releases it.
- Whoever has progress of its own is a known member; both are forgotten together.

A "group" here is any reader (see `readers`), unless members are spoken of beside it.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from rockoon_offset.known_members import KnownMembers
from rockoon_offset.queues import Queue
from rockoon_offset.readers import group_of, in_order, reader_of
from rockoon_offset.records import (
    Committed,
    Counters,
    GroupGone,
    KnownMember,
    MemberForgotten,
    MemberJoined,
    MembersChanged,
    Progress,
    Put,
    QueueGone,
    Record,
    Removed,
    ResetApplied,
    ResetStep,
)
from rockoon_offset.start_position import Decision, StartReason, Stored
from rockoon_proto.errors import (
    CommitBehind,
    Fenced,
    InvalidArgument,
    InvalidOffset,
    OffsetBeyondEnd,
    PlanStale,
    ResetNotFound,
    RouteNotReached,
)

OFFSET_MAX = 1 << 62
METADATA_BYTES_MAX = 4096
# Applied resets kept for undo, and queues in all of them.
RESETS_MAX = 1000
RESET_STEPS_MAX = 100_000
# Queues of deleted topics of which is remembered that a group had read them.
GONE_QUEUES_MAX = 100_000


class Commit(NamedTuple):
    """A reader's wish to move its offset."""

    group: str
    queue: Queue
    offset: int
    epoch: int
    member_id: str
    metadata: str
    force: bool


class Ledger:
    """Progress per group and queue, applied resets, and the members a restart has to remember."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[Queue, Progress]] = {}
        # Insertion order is age.
        self._gone: dict[tuple[str, Queue], int] = {}
        self._resets: dict[str, ResetApplied] = {}
        self._reset_steps = 0
        self._members: dict[str, MembersChanged] = {}
        self.known = KnownMembers()
        self.counters = Counters(epoch=0, starts=0, route_revision=0)

    # Looking.

    def find(self, group: str, queue: Queue) -> Progress | None:
        return self._groups.get(group, {}).get(queue)

    def stored(self, group: str, queue: Queue) -> Stored | None:
        """Progress, or the memory of progress on a deleted queue of the same name."""
        progress = self.find(group, queue)
        if progress is not None:
            return Stored(progress.offset, progress.incarnation)
        incarnation = self._gone.get((group, queue))
        return None if incarnation is None else Stored(None, incarnation)

    def require_reached(self, group: str, queue: Queue, revision: int) -> None:
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
        # The routes of an etcd that was accepted instead of another count anew.
        if stored and revision < min(stored.incarnation, self.counters.route_revision):
            raise RouteNotReached(wanted=stored.incarnation, revision=revision)

    def progress_of(self, group: str) -> Mapping[Queue, Progress]:
        return self._groups.get(group, {})

    def groups(self) -> Iterable[str]:
        return self._groups.keys()

    def readers(self, group: str) -> list[str]:
        """A group and its members with progress of their own, in order."""
        return [group, *(reader_of(group, name) for name in sorted(self.known.of(group)))]

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
        for name in self.readers(group) if group else sorted(self._groups, key=in_order):
            for queue, progress in sorted(self.progress_of(name).items()):
                if topic in ("", queue.topic) and broker in ("", queue.broker):
                    yield progress

    def reset(self, reset_id: str) -> ResetApplied:
        found = self._resets.get(reset_id)
        if found is None:
            raise ResetNotFound(reset=reset_id)
        return found

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
        queue: Queue,
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
            blank = Progress(
                group=group,
                queue=queue,
                offset=decision.offset,
                epoch=self.counters.epoch + 1,
                incarnation=incarnation,
                group_incarnation=group_incarnation,
                owner=member_id,
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
        """Whether a commit would be taken.

        Args:
            commit: the wish.
            incarnation: birth revision of the queue in the routes now; None when it is unknown.
            end: a recent end of the queue; None when nobody can tell.

        Raises:
            InvalidOffset, InvalidArgument, Fenced, CommitBehind, OffsetBeyondEnd.
        """
        progress = self.find(commit.group, commit.queue)
        queue = str(commit.queue)
        if not 0 <= commit.offset <= OFFSET_MAX:
            raise InvalidOffset(offset=commit.offset)
        if len(commit.metadata.encode()) > METADATA_BYTES_MAX:
            raise InvalidArgument(reason=f"metadata is larger than {METADATA_BYTES_MAX} bytes")
        if progress is None:
            raise Fenced(
                f"group {commit.group!r} has no progress on queue {queue}: resolve it first",
                epoch=commit.epoch,
                current=0,
                queue=queue,
            )
        if commit.epoch != progress.epoch:
            raise Fenced(epoch=commit.epoch, current=progress.epoch, queue=queue)
        if incarnation is not None and incarnation != progress.incarnation:
            raise Fenced(
                f"queue {queue} was deleted and created again since epoch {commit.epoch} began: "
                "resolve it again",
                epoch=commit.epoch,
                current=progress.epoch,
                queue=queue,
            )
        if commit.offset < progress.offset and not commit.force:
            raise CommitBehind(offset=commit.offset, stored=progress.offset, queue=queue)
        if end is not None and commit.offset > max(end, progress.offset):
            raise OffsetBeyondEnd(offset=commit.offset, end=end, queue=queue)

    def commit(
        self, commit: Commit, incarnation: int | None, end: int | None, now_ms: int
    ) -> list[Record]:
        """Move an offset; nothing to write when it is there already. Raises as `check_commit`."""
        self.check_commit(commit, incarnation, end)
        progress = self._groups[commit.group][commit.queue]
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

    def release(self, group: str, queue: Queue, member_id: str) -> list[Record]:
        """Take the owner off a queue; nothing to write when `member_id` is not the owner.

        The epoch stays: a commit that was on its way still counts, as nobody reads yet. Whoever
        resolves the queue next is another owner and gets a new one.
        """
        progress = self.find(group, queue)
        if progress is None or not member_id or progress.owner != member_id:
            return []
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
        done = ResetApplied(reset_id, group, topic, operator, now_ms, tuple(steps), undone=False)
        return self._apply_all([*records, done])

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
            if step.from_offset is None:
                records.append(Removed(reader, step.queue))
                continue
            text = f"reset {reset_id} undone by {operator or 'an operator'}: to {step.from_offset}"
            decision = Decision(step.from_offset, StartReason.RESET, text)
            epoch = self.counters.epoch + 1 + position
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
        queue: Queue,
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
        known_members = self.known.of(group).values()
        members = self._members.get(group, MembersChanged(group, ())).members
        staying = tuple(each for each in members if stays(each.group_incarnation))
        kept: list[Record] = [Put(each) for each in progress if stays(each.group_incarnation)]
        kept += [each for each in known_members if stays(each.group_incarnation)]
        entries = len(progress) + len(known_members) + len(members)
        if entries and entries == len(kept) + len(staying):
            return []
        if staying:
            kept.append(MembersChanged(group, staying))
        known = group in self._groups or group in self._members or group in self.known.groups()
        known = known or any(reset.group == group for reset in self._resets.values())
        known = known or any(group_of(name) == group for name, _ in self._gone)
        return self._apply_all([GroupGone(group), *kept]) if known else []

    def is_later(self, group: str, revision: int) -> bool:
        """Whether a group has read something that shows that it was created after a revision."""
        return any(progress.group_incarnation > revision for progress in self.each_progress(group))

    def forget_topics(self, topics: Iterable[str]) -> list[Record]:
        """Delete progress on topics. What stays is that there was some, by queue.

        A reader of a topic that was deleted and created again must be treated alike whether this
        service saw the deletion or was away: as a reader of another incarnation.
        """
        names = frozenset(topics)
        gone: list[Record] = [
            QueueGone(progress.group, queue, progress.incarnation)
            for queues in self._groups.values()
            for queue, progress in queues.items()
            if queue.topic in names
        ]
        gone += self.known.without_topics(names)
        return self._apply_all(gone)

    def compare_with_routes(
        self, revision: int, topics: frozenset[str], groups: Mapping[str, int]
    ) -> list[Record]:
        """Drop what a snapshot of the routes no longer has, deletions missed included.

        Args:
            revision: etcd revision of the snapshot. Nothing is dropped for a snapshot older than
                one seen before: a lagging nameserver, or an etcd restored from a backup, is no
                reason to lose anybody's place.
            topics: names of all topics.
            groups: name → incarnation of all groups.
        """
        if revision < self.counters.route_revision:
            return []
        records: list[Record] = []
        readers = {
            *self._groups,
            *self._members,
            *self.known.groups(),
            *(name for name, _ in self._gone),
        }
        for group in sorted(set(map(group_of, readers))):
            incarnations = {each.group_incarnation for each in self.each_progress(group)}
            incarnations |= {each.group_incarnation for each in self.known.of(group).values()}
            if group not in groups or incarnations - {groups[group]}:
                records += self.forget_group(group, revision, groups.get(group))
        missing = {queue.topic for queues in self._groups.values() for queue in queues} - topics
        records += self.forget_topics(missing)
        return records + self.routes_seen(revision)

    def routes_seen(self, revision: int) -> list[Record]:
        """Remember that progress agrees with the routes up to a revision."""
        if revision <= self.counters.route_revision:
            return []
        return self._apply_all([self.counters._replace(route_revision=revision)])

    def vouched_for(self, births: Mapping[Queue, int]) -> bool:
        """Whether routes are of the etcd that counted the incarnations here, as far as they show.

        For a ledger that was never told which etcd that is: one queue that both know is proof.
        """
        return not self._groups or any(
            births.get(queue) == progress.incarnation
            for queues in self._groups.values()
            for queue, progress in queues.items()
        )

    def missing_in(self, topics: Collection[str], groups: Collection[str]) -> list[str]:
        """Topics and groups with progress that routes lack, named for people."""
        read = {queue.topic for queues in self._groups.values() for queue in queues}
        return [
            *(f"topic {name}" for name in sorted(read.difference(topics))),
            *(f"group {name}" for name in sorted(set(map(group_of, self._groups)) - set(groups))),
        ]

    def etcd_told(self, etcd_cluster_id: int) -> list[Record]:
        """Remember which etcd counts the incarnations."""
        if not etcd_cluster_id or etcd_cluster_id == self.counters.etcd_cluster_id:
            return []
        return self._apply_all([self.counters._replace(etcd_cluster_id=etcd_cluster_id)])

    def accept_etcd(
        self,
        etcd_cluster_id: int,
        revision: int,
        births: Mapping[Queue, int],
        groups: Mapping[str, int],
    ) -> list[Record]:
        """Take queues and groups of another etcd for those of the same name that were read so far.

        Epochs stay, so readers go on. A queue that is not there keeps its old incarnation.

        Args:
            etcd_cluster_id: its identity.
            revision: its revision; revisions seen before mean nothing any more.
            births: queue → birth revision there.
            groups: name → incarnation there; with every group that has progress.
        """
        records: list[Record] = [
            Put(
                progress._replace(
                    incarnation=births.get(queue, progress.incarnation),
                    group_incarnation=groups[group_of(reader)],
                )
            )
            for reader, queues in self._groups.items()
            for queue, progress in queues.items()
        ]
        records += self.known.in_other_etcd(revision, groups)
        # Last: what a crash cuts off is accepted once more.
        accepted = self.counters._replace(route_revision=revision, etcd_cluster_id=etcd_cluster_id)
        return self._apply_all([*records, accepted])

    def _moved(
        self,
        group: str,
        group_incarnation: int,
        queue: Queue,
        incarnation: int,
        epoch: int,
        decision: Decision,
        now_ms: int,
    ) -> Put:
        before = self.find(group, queue)
        blank = Progress(
            group=group,
            queue=queue,
            offset=decision.offset,
            epoch=epoch,
            incarnation=incarnation,
            group_incarnation=group_incarnation,
            owner="" if before is None else before.owner,
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
        progress = [queues.copy() for queues in self._groups.values()]
        gone, resets = self._gone.copy(), self._resets.copy()
        members, counters = self._members.copy(), self.counters
        known = list(self.known)

        def records() -> Iterator[Record]:
            for queues in progress:
                for entry in queues.values():
                    yield Put(entry)
            for (group, queue), incarnation in gone.items():
                yield QueueGone(group, queue, incarnation)
            yield from resets.values()
            yield from members.values()
            yield from known
            yield counters

        return records()

    def apply(self, record: Record) -> None:
        """Make a record's change; it was checked when it was made."""
        match record:
            case Committed(group, queue, offset, committer, stored_at_ms, metadata):
                queues = self._groups[group]
                queues[queue] = queues[queue]._replace(
                    offset=offset, committer=committer, stored_at_ms=stored_at_ms, metadata=metadata
                )
            case Put(progress):
                self._groups.setdefault(progress.group, {})[progress.queue] = progress
                self._gone.pop((progress.group, progress.queue), None)
                if progress.epoch > self.counters.epoch:
                    self.counters = self.counters._replace(epoch=progress.epoch)
            case Removed(group, queue):
                self._remove(group, queue)
            case QueueGone(group, queue, incarnation):
                self._remove(group, queue)
                self._gone[group, queue] = incarnation
                while len(self._gone) > GONE_QUEUES_MAX:
                    del self._gone[next(iter(self._gone))]
            case KnownMember():
                self.known.apply(record)
            case MemberForgotten(group, member):
                self.known.apply(record)
                reader = reader_of(group, member)
                self._groups.pop(reader, None)
                self._gone = {key: at for key, at in self._gone.items() if key[0] != reader}
            case GroupGone(group):
                self._apply_group_gone(group)
            case ResetApplied():
                self._apply_reset_applied(record)
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

    def _remove(self, group: str, queue: Queue) -> None:
        queues = self._groups.get(group, {})
        queues.pop(queue, None)
        if not queues:
            self._groups.pop(group, None)

    def _apply_group_gone(self, group: str) -> None:
        for reader in self.readers(group):
            self._groups.pop(reader, None)
        self.known.drop_group(group)
        self._members.pop(group, None)
        self._gone = {key: value for key, value in self._gone.items() if group_of(key[0]) != group}
        kept = {name: reset for name, reset in self._resets.items() if reset.group != group}
        self._resets = kept
        self._reset_steps = sum(len(reset.steps) for reset in kept.values())

    def _apply_reset_applied(self, reset: ResetApplied) -> None:
        before = self._resets.get(reset.reset_id)
        self._resets[reset.reset_id] = reset
        self._reset_steps += len(reset.steps) - (len(before.steps) if before else 0)
        while len(self._resets) > 1 and (
            len(self._resets) > RESETS_MAX or self._reset_steps > RESET_STEPS_MAX
        ):
            oldest = self._resets.pop(next(iter(self._resets)))
            self._reset_steps -= len(oldest.steps)


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
