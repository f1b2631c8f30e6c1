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

What routes ask for beside that is in `reconciliation`, what records make in `ledger_state`.

A "group" here is any reader (see `readers`), unless members are spoken of beside it.
"""

from collections.abc import Sequence

from rockoon_core.errors import PlanStale
from rockoon_core.message_queue import MessageQueue
from rockoon_core.start_position import Decision, StartReason
from rockoon_offset.progress.commit_check import Commit, check_commit
from rockoon_offset.progress.ledger_state import LedgerState
from rockoon_offset.progress.readers import reader_of
from rockoon_offset.progress.records import (
    Committed,
    KnownMember,
    MemberForgotten,
    MemberJoined,
    MembersChanged,
    Progress,
    Put,
    Record,
    Removed,
    ResetApplied,
    ResetStep,
    Reverted,
)


class Ledger(LedgerState):
    """The operations of readers, members and operators on progress."""

    def service_started(self) -> list[Record]:
        return self.apply_all([self.counters._replace(starts=self.counters.starts + 1)])

    def members_changed(
        self, *changes: MembersChanged | MemberJoined | KnownMember | MemberForgotten
    ) -> list[Record]:
        return self.apply_all(list(changes))

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
            return self.apply_all([Put(_with_start(blank, decision, now_ms))])
        after = before
        if member_id and member_id != before.owner:
            after = after._replace(owner=member_id, epoch=self.counters.epoch + 1)
        if decision.reason is not StartReason.COMMITTED:
            # Whoever read by the old number must not commit on top of the new one.
            epoch = self.counters.epoch + 1
            after = _with_start(after, decision, now_ms)._replace(
                epoch=epoch, incarnation=incarnation, group_incarnation=group_incarnation
            )
        return [] if after == before else self.apply_all([Put(after)])

    def check_commit(self, commit: Commit, incarnation: int | None, end: int | None) -> None:
        """Whether a commit would be taken. Arguments and errors as of `commit_check`."""
        check_commit(commit, self.find(commit.group, commit.queue), incarnation, end)

    def commit(
        self, commit: Commit, incarnation: int | None, end: int | None, now_ms: int
    ) -> list[Record]:
        """Move an offset; nothing to write when it is there already. Raises as `check_commit`."""
        self.check_commit(commit, incarnation, end)
        progress = self.table.of(commit.group)[commit.queue]
        # Members commit every few seconds, read or not: the journal must not grow by that.
        if commit.offset == progress.offset and commit.metadata == progress.metadata:
            return []
        return self.apply_all(
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
            return self.apply_all([Removed(group, queue)])
        return self.apply_all([Put(progress._replace(owner=""))])

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
        # All before the first change: what was applied for one step would have to be taken back.
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
            # The counter moves when records are applied, all of them below: two steps that shared
            # a number would let the owner of one queue commit on the other.
            epoch = self.counters.epoch + 1 + position
            reader = reader_of(group, step.member)
            records.append(
                self._moved(
                    reader, group_incarnation, step.queue, step.incarnation, epoch, decision, now_ms
                )
            )
        # Before the records are applied, after which the offsets to go back to are gone.
        undoable = tuple(self._undoable(group, step) for step in steps)
        done = ResetApplied(reset_id, group, topic, operator, now_ms, undoable, undone=False)
        return self.apply_all([*records, done])

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
            if progress is None and step.member and step.member not in self.known.of(reset.group):
                # The member was forgotten with its progress.
                continue
            if progress is None or progress.incarnation != step.incarnation:
                raise PlanStale(
                    f"reset {reset_id!r} cannot be undone: queue {step.queue} was deleted or "
                    "created again since, and the former offsets are not its own; reset the group "
                    "to where it has to be",
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
        return self.apply_all([*records, reset._replace(undone=True)])

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
        return self.apply_all(
            [self._moved(group, group_incarnation, queue, incarnation, epoch, decision, now_ms)]
        )

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


def _with_start(progress: Progress, decision: Decision, now_ms: int) -> Progress:
    return progress._replace(
        offset=decision.offset,
        stored_at_ms=now_ms,
        metadata="",
        acknowledged_by="",
        acknowledged_at_ms=0,
        start_offset=decision.offset,
        start_reason=decision.reason,
        start_explanation=decision.explanation,
        started_at_ms=now_ms,
        gap_total=progress.gap_total + decision.gap,
    )
