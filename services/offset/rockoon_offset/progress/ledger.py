"""Ledger: progress of all groups, the operations that change it, and the rules of commits. Pure.

Every operation checks its arguments, applies its change and returns the records of the change. The
caller makes the records durable before it replies. Replaying the records of all operations on an
empty ledger gives the same ledger.

Invariants
- No epoch is used twice: all epochs come from one counter that survives deletions. So a commit from
  before a deletion is never accepted for the new queue or group.
- Progress moves back only by a forced commit, a reset or an import; a reset and an import start a
  new epoch.
- Only a commit with the current epoch is accepted.
- A queue has at most one owner; only the owner releases it, never an operator.
- A member with its own progress is a known member; both are removed together.

`reconciliation` has the changes by routes, `ledger_state` has the effect of each record.

An argument `group` is the name of a reader: a group, or `group@member` (see `readers`). A reset is
the exception: its `group` is the group alone, because each step names its member.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rockoon_core.errors import (
    CommitBehind,
    Fenced,
    InvalidArgument,
    InvalidOffset,
    OffsetBeyondEnd,
    PlanStale,
)
from rockoon_core.message_queue import MessageQueue
from rockoon_core.start_position import Decision, StartReason
from rockoon_offset.progress.ledger_state import LedgerState
from rockoon_offset.progress.readers import reader_of
from rockoon_offset.progress.records import (
    KnownMember,
    MemberForgotten,
    MemberJoined,
    MembersChanged,
    OffsetCommitted,
    Progress,
    ProgressPut,
    Record,
    Removed,
    ResetApplied,
    ResetStep,
    Reverted,
)

OFFSET_MAX = 1 << 62
METADATA_BYTES_MAX = 4096


class OffsetCommit(NamedTuple):
    """A reader's request to move its offset."""

    group: str
    queue: MessageQueue
    offset: int
    epoch: int
    member_id: str
    metadata: str
    force: bool


def check_commit(
    commit: OffsetCommit, progress: Progress | None, incarnation: int | None, end: int | None
) -> None:
    """Raise an error if a commit must be refused.

    Args:
        incarnation: create revision of the queue in the current routes; None: unknown.
        end: a recent end of the queue; None: unknown.

    Raises:
        InvalidOffset, InvalidArgument, Fenced, CommitBehind, OffsetBeyondEnd.
    """
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


class Ledger(LedgerState):
    """Operations of readers, members and operators: each changes the state, returns records."""

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
        """Store the start position of a reader, and its owner.

        A member that is not the owner becomes the owner with a new epoch; the owner keeps its
        epoch. A reader without a member id does not change the owner.
        """
        before = self.find(group, queue)
        if before is None:
            owning = self.table.owning_progress(group, queue)
            blank = Progress(
                group=group,
                queue=queue,
                offset=decision.offset,
                # The counter of all queues: the queue's last epoch was removed with its progress,
                # so a counter per queue would repeat it.
                epoch=self.counters.epoch + 1,
                incarnation=incarnation,
                group_incarnation=group_incarnation,
                owner=member_id or ("" if owning is None else owning.owner),
                committer="",
                stored_at_ms=now_ms,
                metadata="",
                start_offset=0,
                start_reason=decision.reason,
                start_explanation="",
                started_at_ms=0,
                gap_total=0,
            )
            return self.apply_all([ProgressPut(_with_start(blank, decision, now_ms))])
        after = before
        if member_id and member_id != before.owner:
            after = after._replace(owner=member_id, epoch=self.counters.epoch + 1)
        if decision.reason is not StartReason.COMMITTED:
            # A reader with the old epoch must not commit after this change.
            epoch = self.counters.epoch + 1
            after = _with_start(after, decision, now_ms)._replace(
                epoch=epoch, incarnation=incarnation, group_incarnation=group_incarnation
            )
        return [] if after == before else self.apply_all([ProgressPut(after)])

    def commit(
        self, commit: OffsetCommit, incarnation: int | None, end: int | None, now_ms: int
    ) -> list[Record]:
        """Move a reader's offset, if it changes. For arguments and errors see `check_commit`."""
        check_commit(commit, self.find(commit.group, commit.queue), incarnation, end)
        progress = self.table.of(commit.group)[commit.queue]
        # A client may commit the same offset every few seconds. The journal must not grow.
        if commit.offset == progress.offset and commit.metadata == progress.metadata:
            return []
        return self.apply_all(
            [
                OffsetCommitted(
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
        """Remove a member as the owner of a queue. If it is not the owner, there are no records.

        The epoch stays, so a commit that arrives after the release is still accepted: no other
        member reads yet. The next member that resolves the queue gets a new epoch.
        """
        progress = self.table.owning_progress(group, queue)
        if progress is None or not member_id or progress.owner != member_id:
            return []
        if self.find(group, queue) is None:
            return self.apply_all([Removed(group, queue)])
        return self.apply_all([ProgressPut(progress._replace(owner=""))])

    def apply_reset(
        self,
        reset_id: str,
        group: str,
        group_incarnation: int,
        topic: str,
        steps: Sequence[ResetStep],
        operator: str,
        now_ms: int,
        origins: Mapping[ResetStep, str] = {},
    ) -> list[Record]:
        """Apply all steps of a planned reset, or none.

        Args:
            origins: why a step has its offset; without an entry, the operator chose it.

        Raises:
            PlanStale: an offset or epoch has changed since the plan.
        """
        # All checks come before the first change, so that no step must be undone.
        for step in steps:
            progress = self.find(reader_of(group, step.member), step.queue)
            # The epoch too: the offset may be the same although the owner has changed.
            seen = (step.from_offset, step.epoch)
            now = (None, 0) if progress is None else (progress.offset, progress.epoch)
            if seen != now:
                raise PlanStale(reset=reset_id)
        records: list[Record] = []
        for position, step in enumerate(steps):
            text = f"reset {reset_id} by {operator or 'an operator'}: to {step.to_offset}"
            if origin := origins.get(step):
                text = f"{text}, {origin}"
            decision = Decision(step.to_offset, StartReason.RESET, text)
            # The counter only grows when the records are applied below. Two steps with the same
            # epoch would let the owner of one queue commit on the other queue.
            epoch = self.counters.epoch + 1 + position
            reader = reader_of(group, step.member)
            records.append(
                self._moved(
                    reader, group_incarnation, step.queue, step.incarnation, epoch, decision, now_ms
                )
            )
        # Before the records are applied: they overwrite the former offsets.
        undoable = tuple(self._undoable(group, step) for step in steps)
        done = ResetApplied(reset_id, group, topic, operator, now_ms, undoable, undone=False)
        return self.apply_all([*records, done])

    def _undoable(self, group: str, step: ResetStep) -> ResetStep:
        """Return a step of a reset, with the offset that an undo restores.

        If the former offset belongs to a deleted queue of the same name, an undo goes to the start
        of the current queue.
        """
        stored = self.stored(reader_of(group, step.member), step.queue)
        is_other = stored is not None and stored.incarnation != step.incarnation
        return step._replace(from_offset=step.min_offset) if is_other else step

    def undo_reset(
        self, reset_id: str, group_incarnation: int, operator: str, now_ms: int
    ) -> list[Record]:
        """Restore the progress that a reset replaced. If it was undone before, there are no
        records.

        Raises:
            ResetNotFound: the reset was never applied, or is too old.
            PlanStale: a queue of the reset was deleted or created again.
        """
        reset = self.resets.find(reset_id)
        if reset.undone:
            return []
        records: list[Record] = []
        for position, step in enumerate(reset.steps):
            reader = reader_of(reset.group, step.member)
            progress = self.find(reader, step.queue)
            if progress is None and step.member and step.member not in self.known.of(reset.group):
                # The member was removed with its progress.
                continue
            if progress is None or progress.incarnation != step.incarnation:
                raise PlanStale(
                    f"reset {reset_id!r} cannot be undone: queue {step.queue} was deleted or "
                    "created again, so its former offsets are not valid; reset the group to the "
                    "offsets that it needs",
                    reset=reset_id,
                )
            epoch = self.counters.epoch + 1 + position
            if step.from_offset is None:
                # The owner stays, and reads until it is notified or its next commit is refused.
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
        """Store an imported offset with a new epoch."""
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
    ) -> ProgressPut:
        before, owning = self.find(group, queue), self.table.owning_progress(group, queue)
        blank = Progress(
            group=group,
            queue=queue,
            offset=decision.offset,
            epoch=epoch,
            incarnation=incarnation,
            group_incarnation=group_incarnation,
            owner="" if owning is None else owning.owner,
            committer="" if before is None else before.committer,
            stored_at_ms=now_ms,
            metadata="",
            start_offset=0,
            start_reason=decision.reason,
            start_explanation="",
            started_at_ms=0,
            gap_total=0 if before is None else before.gap_total,
        )
        return ProgressPut(_with_start(blank, decision, now_ms))


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
