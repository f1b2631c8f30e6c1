"""Operators' resets: planned with the brokers' figures, kept for a while, applied and undone."""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from rockoon_core.errors import (
    GroupNotFound,
    InvalidArgument,
    MemberNotFound,
    PlanStale,
    ResetNotFound,
    RockoonError,
    TopicNotFound,
)
from rockoon_core.message_queue import MessageQueue
from rockoon_core.start_position import QueueState
from rockoon_offset.brokers import Brokers
from rockoon_offset.members.watch import GroupWatch
from rockoon_offset.progress import resets
from rockoon_offset.progress.progress_store import ProgressStore
from rockoon_offset.progress.readers import reader_of
from rockoon_offset.progress.records import Progress, ResetApplied, ResetStep
from rockoon_offset.route_table import RouteTable
from rockoon_proto.v1.nameserver_pb2 import BROADCAST_SERVER

Answer = TypeVar("Answer")

PLANS_MAX = 1000
# Queues times members of one plan.
STEPS_MAX = 100_000


class WantedReset(NamedTuple):
    """A reset that an operator asks for.

    Attributes:
        group, topic: the progress of this group on this topic.
        queues: only these; none means all of the topic.
        target: where to.
        member: only this member's own progress; empty means that of all members.
    """

    group: str
    topic: str
    queues: Sequence[MessageQueue]
    target: resets.Target
    member: str = ""


class Plan(NamedTuple):
    """What a reset would do."""

    reset_id: str
    group: str
    topic: str
    steps: tuple[ResetStep, ...]
    as_of_ms: int
    # Monotonic.
    kept_until_seconds: float


class ResetPlans:
    """Plans resets and carries them out.

    Args:
        store: progress.
        table: queues and groups.
        brokers: the queues' ends.
        watch: who is told that progress was reset.
        plan_seconds: how long a plan is kept.
        now_ms: wall clock.
        now_seconds: monotonic.
    """

    def __init__(
        self,
        store: ProgressStore,
        table: RouteTable,
        brokers: Brokers,
        watch: GroupWatch,
        plan_seconds: float,
        now_ms: Callable[[], int],
        now_seconds: Callable[[], float],
    ) -> None:
        self._store = store
        self._table = table
        self._brokers = brokers
        self._watch = watch
        self._plan_seconds = plan_seconds
        self._now_ms = now_ms
        self._now_seconds = now_seconds
        # Insertion order is age.
        self._plans: dict[str, Plan] = {}

    async def plan(self, wanted: WantedReset) -> Plan:
        """Work out a reset; changes nothing. Raises as `_steps`."""
        steps = await self._steps(wanted)
        now_seconds = self._now_seconds()
        plan = Plan(
            reset_id=secrets.token_hex(8),
            group=wanted.group,
            topic=wanted.topic,
            steps=steps,
            as_of_ms=self._now_ms(),
            kept_until_seconds=now_seconds + self._plan_seconds,
        )
        self._forget_old(now_seconds)
        self._plans[plan.reset_id] = plan
        await self._store.durable()
        return plan

    async def reset(self, wanted: WantedReset, reset_id: str, operator: str) -> ResetApplied:
        """Reset the current progress without a plan; doing it twice is doing it once.

        Args:
            wanted: which progress, and where to.
            reset_id: of the reset; empty means a new one.
            operator: person and reason, for the record.

        Raises:
            InvalidArgument: `reset_id` names a plan or another reset.
            PlanStale: its queues were deleted or created again during the call.
            Busy, StoreNotWritable, StoreFailed, NotLeader, NotEnoughReplicas: as the names say.
            Further as `_steps`.
        """
        self._store.admit()
        reset_id = reset_id or secrets.token_hex(8)
        if not self._was_applied(reset_id, wanted):
            steps = await self._steps(wanted)
            # The brokers were asked: the store may refuse changes by now, and the same call of an
            # impatient caller may have applied the reset.
            self._store.admit()
            if not self._was_applied(reset_id, wanted):
                # Nothing may be awaited since `_steps`: progress would move.
                self._write(reset_id, wanted.group, wanted.topic, steps, operator)
        await self._store.durable()
        return self._store.ledger.reset(reset_id)

    def _was_applied(self, reset_id: str, wanted: WantedReset) -> bool:
        """Raises InvalidArgument: the id names a plan, or a reset of another group or topic."""
        applied = self._store.ledger.resets.get(reset_id)
        if reset_id in self._plans or (
            applied and (applied.group, applied.topic) != (wanted.group, wanted.topic)
        ):
            raise InvalidArgument(reason=f"reset id {reset_id!r} is in use: choose another one")
        return applied is not None

    def group_of(self, reset_id: str) -> str:
        """Whose progress a plan or a reset moves. Raises ResetNotFound."""
        plan = self._plans.get(reset_id)
        return self._store.ledger.reset(reset_id).group if plan is None else plan.group

    async def apply(self, reset_id: str, operator: str) -> ResetApplied:
        """Do what a plan says; doing it twice is doing it once.

        Raises:
            ResetNotFound: no such plan, or it is too old.
            PlanStale: progress or queues are not what the plan saw.
        """
        self._store.admit()
        self._forget_old(self._now_seconds())
        plan = self._plans.get(reset_id)
        if plan is not None:
            self._write(reset_id, plan.group, plan.topic, plan.steps, operator)
            del self._plans[reset_id]
        await self._store.durable()
        return self._store.ledger.reset(reset_id)

    def _write(
        self, reset_id: str, group: str, topic: str, steps: Sequence[ResetStep], operator: str
    ) -> None:
        """Apply steps to progress that is as they saw it. Raises PlanStale: it is not."""
        of_group = self._table.groups.get(group)
        for step in steps:
            if self._table.create_revision_or_none(step.queue) != step.incarnation:
                raise PlanStale(
                    f"queue {step.queue} was deleted or created again since reset {reset_id!r} "
                    "was worked out: plan it again, or repeat a reset without a plan",
                    reset=reset_id,
                )
        if of_group is None:
            raise GroupNotFound(group=group)
        self._store.write(
            self._store.ledger.apply_reset(
                reset_id, group, of_group.incarnation, topic, steps, operator, self._now_ms()
            )
        )
        self._notify(group, steps)

    async def undo(self, reset_id: str, operator: str) -> ResetApplied:
        """Put back what a reset replaced; undoing it twice is undoing it once.

        Raises:
            ResetNotFound: it was not applied, or too long ago.
            PlanStale: its queues were deleted or created again since.
        """
        self._store.admit()
        if reset_id in self._plans:
            raise ResetNotFound(f"reset {reset_id!r} was not applied", reset=reset_id)
        applied = self._store.ledger.reset(reset_id)
        group = self._table.groups.get(applied.group)
        if group is None:
            raise GroupNotFound(group=applied.group)
        records = self._store.ledger.undo_reset(
            reset_id, group.incarnation, operator, self._now_ms()
        )
        self._store.write(records)
        if records:
            self._notify(applied.group, applied.steps)
        await self._store.durable()
        return self._store.ledger.reset(reset_id)

    def _notify(self, group: str, steps: Sequence[ResetStep]) -> None:
        queues: dict[str, list[MessageQueue]] = {}
        for step in steps:
            queues.setdefault(step.member, []).append(step.queue)
        for member, reset in queues.items():
            self._watch.progress_reset(group, reset, member)

    def _members(self, group: str, topic: str, member: str) -> list[str]:
        """Whose progress is meant; the group's own is that of no member, ""."""
        ledger = self._store.ledger
        known = ledger.known.of(group)
        if member:
            if member not in known:
                raise MemberNotFound(member=member, group=group)
            return [member]
        if self._table.groups[group].config.broadcast_progress != BROADCAST_SERVER:
            return [""]
        has_shared = any(queue.topic == topic for queue in ledger.progress_of(group))
        readers = [name for name in sorted(known) if topic in dict(known[name].since)]
        if not has_shared and not readers:
            raise InvalidArgument(reason=f"no member of group {group!r} reads {topic!r} yet")
        return [*([""] if has_shared else []), *readers]

    def _queues(
        self, topic: str, queues: Sequence[MessageQueue], target: resets.Target
    ) -> list[MessageQueue]:
        """The queues meant, sorted; all of the topic when none are named."""
        named = set(queues) or set(target.offsets)
        if any(queue.topic != topic for queue in named):
            raise InvalidArgument(reason=f"a queue does not belong to topic {topic!r}")
        for queue in named:
            self._table.create_revision(queue)
        return sorted(named or self._table.topics[topic].create_revisions)

    async def _steps(self, wanted: WantedReset) -> tuple[ResetStep, ...]:
        """Changes of the progress that is stored when this returns, at least one.

        Raises:
            GroupNotFound, MemberNotFound, TopicNotFound, QueueNotFound, InvalidArgument: as the
                names say.
            BrokerUnavailable: the ends of a queue are not known.
            RouteNotReached: progress is on a later queue of the name than the routes know.
        """
        resets.check(wanted.target)
        members, queues = self._chosen(wanted)
        before = self._progress(wanted.group, members, queues)
        create_revisions = {queue: self._table.create_revision(queue) for queue in queues}
        states = {
            queue: raised(state)
            for queue, state in (await self._brokers.queue_states(queues)).items()
        }
        found = await self._offsets_at_time(wanted.target, states)
        # While the brokers were asked, progress may have moved and members may have changed.
        members, _ = self._chosen(wanted)
        stored = self._progress(wanted.group, members, queues)
        steps = tuple(
            step._replace(member=member)
            for (member, queue), progress in stored.items()
            if (
                step := resets.step(
                    queue,
                    wanted.target,
                    progress,
                    create_revisions[queue],
                    end_of(states[queue], before.get((member, queue)), progress),
                    found.get(queue),
                )
            )
        )
        if not steps:
            raise InvalidArgument(
                reason=f"group {wanted.group!r} has no progress on {wanted.topic!r} to shift"
            )
        return steps

    def _chosen(self, wanted: WantedReset) -> tuple[list[str], list[MessageQueue]]:
        """Members and queues, both sorted. Raises as `_steps`."""
        if wanted.group not in self._table.groups:
            raise GroupNotFound(group=wanted.group)
        if wanted.topic not in self._table.topics:
            raise TopicNotFound(topic=wanted.topic)
        queues = self._queues(wanted.topic, wanted.queues, wanted.target)
        members = self._members(wanted.group, wanted.topic, wanted.member)
        if len(members) * len(queues) > STEPS_MAX:
            raise InvalidArgument(reason=f"more than {STEPS_MAX} offsets at once: name a member")
        for queue in queues:
            self._store.ledger.require_reached(wanted.group, queue, self._table.revision)
        return members, queues

    def _progress(
        self, group: str, members: Sequence[str], queues: Sequence[MessageQueue]
    ) -> dict[tuple[str, MessageQueue], Progress | None]:
        return {
            (member, queue): self._store.ledger.find(reader_of(group, member), queue)
            for member in members
            for queue in queues
        }

    async def _offsets_at_time(
        self, target: resets.Target, states: dict[MessageQueue, QueueState]
    ) -> dict[MessageQueue, int]:
        times = {
            queue: resets.search_timestamp_ms(target, state.as_of_ms)
            for queue, state in states.items()
        }
        found = await self._brokers.search(
            {queue: time for queue, time in times.items() if time is not None}
        )
        return {queue: raised(offset) for queue, offset in found.items()}

    def _forget_old(self, now_seconds: float) -> None:
        for reset_id, plan in list(self._plans.items()):
            if plan.kept_until_seconds <= now_seconds or len(self._plans) >= PLANS_MAX:
                del self._plans[reset_id]


def end_of(state: QueueState, before: Progress | None, now: Progress | None) -> QueueState:
    """Ends of a queue, with the progress that was committed since the broker was asked.

    Such progress proves a later end. Progress that was beyond the end before does not, as the log
    may have lost messages.
    """
    moved = now is not None and now != before and now.offset > state.max_offset
    return replace(state, max_offset=now.offset) if now and moved else state


def raised(answer: Answer | RockoonError) -> Answer:
    if isinstance(answer, RockoonError):
        raise answer
    return answer
