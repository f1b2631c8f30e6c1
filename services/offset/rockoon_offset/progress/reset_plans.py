"""Resets by operators: plan with the brokers' queue ends, apply, undo."""

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from rockoon_core.reset_bounds import PLANNED_OFFSETS_MAX, PLANS_MAX
from rockoon_core.start_position import QueueState
from rockoon_offset.brokers import Brokers
from rockoon_offset.members.watch import GroupWatch
from rockoon_offset.progress import resets
from rockoon_offset.progress.progress_store import ProgressStore
from rockoon_offset.progress.readers import reader_of
from rockoon_offset.progress.records import Progress, ResetApplied, ResetStep
from rockoon_offset.route_table import OffsetRoutes
from rockoon_proto.v1.nameserver_pb2 import BROADCAST_SERVER

Answer = TypeVar("Answer")

# Bound on queues times members of one plan.
STEPS_MAX = 100_000


class ResetOrder(NamedTuple):
    """A reset as requested by an operator.

    Attributes:
        group, topic: reset the progress of this group on this topic.
        queues: only these queues; empty: all queues of the topic.
        target: the new position.
        member: only this member's own progress; empty: the progress of all members.
    """

    group: str
    topic: str
    queues: Sequence[MessageQueue]
    target: resets.Target
    member: str = ""


PlannedSteps = Mapping[ResetStep, str]
"""Steps of a reset, each with the reason for its offset; empty: the operator chose it."""


class Plan(NamedTuple):
    """Steps of a reset that is not applied yet."""

    reset_id: str
    group: str
    topic: str
    steps: PlannedSteps
    as_of_ms: int
    # Monotonic.
    kept_until_seconds: float


class ResetPlans:
    """Plans, applies and undoes resets.

    Args:
        watch: notified of resets.
        plan_seconds: how long a plan can be applied.
        now_ms: wall clock.
        now_seconds: monotonic.
    """

    def __init__(
        self,
        store: ProgressStore,
        table: OffsetRoutes,
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
        # The oldest first.
        self._plans: dict[str, Plan] = {}

    async def plan(self, wanted: ResetOrder) -> Plan:
        """Compute the steps of a reset without a change. Raises the errors of `_steps`."""
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
        self._remove_expired(now_seconds)
        self._plans[plan.reset_id] = plan
        self._remove_oldest()
        await self._store.durable()
        return plan

    async def reset(self, wanted: ResetOrder, reset_id: str, operator: str) -> ResetApplied:
        """Reset the current progress without a plan. A call with an applied id has no effect.

        Args:
            wanted: the progress and its new position.
            reset_id: id of the reset; empty: a new id.
            operator: person and reason; stored with the reset.

        Raises:
            InvalidArgument: `reset_id` names a plan or another reset.
            PlanStale: a queue was deleted or created again during the call.
            Busy, StoreNotWritable, StoreFailed, NotLeader, NotEnoughReplicas: see `ProgressStore`.
            The errors of `_steps`.
        """
        self._store.require_writable()
        reset_id = reset_id or secrets.token_hex(8)
        if not self._was_applied(reset_id, wanted):
            steps = await self._steps(wanted)
            # Again after the broker calls: the store may refuse changes now, or a repeated call
            # with the same id may have applied the reset.
            self._store.require_writable()
            if not self._was_applied(reset_id, wanted):
                # No await between `_steps` and this write: progress could change.
                self._write(reset_id, wanted.group, wanted.topic, steps, operator)
        await self._store.durable()
        return self._store.ledger.resets.find(reset_id)

    def _was_applied(self, reset_id: str, wanted: ResetOrder) -> bool:
        """True if a reset of this id was applied. Raises InvalidArgument if the id names a plan, or
        a reset of another group or topic.
        """
        applied = self._store.ledger.resets.get(reset_id)
        if reset_id in self._plans or (
            applied and (applied.group, applied.topic) != (wanted.group, wanted.topic)
        ):
            raise InvalidArgument(reason=f"reset id {reset_id!r} is in use: choose another one")
        return applied is not None

    def group_of(self, reset_id: str) -> str:
        """Return the group of a plan or an applied reset. Raises ResetNotFound."""
        plan = self._plans.get(reset_id)
        return self._store.ledger.resets.find(reset_id).group if plan is None else plan.group

    async def apply(self, reset_id: str, operator: str) -> ResetApplied:
        """Apply a plan. A repeated call has no effect.

        Raises:
            ResetNotFound: the plan does not exist, or is too old.
            PlanStale: progress or queues have changed since the plan.
        """
        self._store.require_writable()
        self._remove_expired(self._now_seconds())
        plan = self._plans.get(reset_id)
        if plan is not None:
            self._write(reset_id, plan.group, plan.topic, plan.steps, operator)
            del self._plans[reset_id]
        await self._store.durable()
        return self._store.ledger.resets.find(reset_id)

    def _write(
        self, reset_id: str, group: str, topic: str, steps: PlannedSteps, operator: str
    ) -> None:
        """Apply steps. Raises PlanStale if progress or queues have changed since the plan."""
        of_group = self._table.groups.get(group)
        for step in steps:
            if self._table.create_revision_or_none(step.queue) != step.incarnation:
                raise PlanStale(
                    f"queue {step.queue} was deleted or created again since reset {reset_id!r} "
                    "was planned: plan the reset again, or repeat it without a plan",
                    reset=reset_id,
                )
        if of_group is None:
            raise GroupNotFound(group=group)
        self._store.write(
            self._store.ledger.apply_reset(
                reset_id,
                group,
                of_group.incarnation,
                topic,
                list(steps),
                operator,
                self._now_ms(),
                origins=steps,
            )
        )
        self._notify(group, steps)

    async def undo(self, reset_id: str, operator: str) -> ResetApplied:
        """Restore the progress that a reset replaced. A repeated call has no effect.

        Raises:
            ResetNotFound: the reset was not applied, or is too old.
            PlanStale: a queue was deleted or created again since the reset.
        """
        self._store.require_writable()
        if reset_id in self._plans:
            raise ResetNotFound(f"reset {reset_id!r} was not applied", reset=reset_id)
        applied = self._store.ledger.resets.find(reset_id)
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
        return self._store.ledger.resets.find(reset_id)

    def _notify(self, group: str, steps: Iterable[ResetStep]) -> None:
        queues: dict[str, list[MessageQueue]] = {}
        for step in steps:
            queues.setdefault(step.member, []).append(step.queue)
        for member, reset in queues.items():
            self._watch.progress_reset(group, reset, member)

    def _members(self, group: str, topic: str, member: str) -> list[str]:
        """Return the members whose own progress is reset; "" is the group's progress."""
        ledger = self._store.ledger
        known = ledger.known.of(group)
        if member:
            if member not in known:
                raise MemberNotFound(member=member, group=group)
            return [member]
        if self._table.groups[group].config.broadcast_progress != BROADCAST_SERVER:
            return [""]
        has_shared = any(queue.topic == topic for queue in ledger.table.of(group))
        readers = [name for name in sorted(known) if topic in dict(known[name].since)]
        if not has_shared and not readers:
            raise InvalidArgument(reason=f"no member of group {group!r} reads {topic!r} yet")
        return [*([""] if has_shared else []), *readers]

    def _queues(
        self, topic: str, queues: Sequence[MessageQueue], target: resets.Target
    ) -> list[MessageQueue]:
        """Return the queues of a reset, sorted; all queues of the topic if none are named."""
        named = set(queues) or set(target.offsets)
        if any(queue.topic != topic for queue in named):
            raise InvalidArgument(reason=f"a queue does not belong to topic {topic!r}")
        for queue in named:
            self._table.create_revision(queue)
        return sorted(named or self._table.topics[topic].create_revisions)

    async def _steps(self, wanted: ResetOrder) -> PlannedSteps:
        """Compute the steps of a reset, at least one, from the progress that is stored when this
        returns.

        Raises:
            GroupNotFound, MemberNotFound, TopicNotFound, QueueNotFound: not in the routes.
            InvalidArgument: an invalid target, too many steps, or no step.
            BrokerUnavailable: a broker did not report the ends of a queue.
            RouteNotReached: progress is on a newer queue of the name than the routes know.
        """
        target = wanted.target
        resets.check(target, wanted.group)
        members, queues = self._chosen(wanted)
        before = self._progress(wanted.group, members, queues)
        source_before = self._source(target, members, queues)
        create_revisions = {queue: self._table.create_revision(queue) for queue in queues}
        states = {
            queue: raised(state)
            for queue, state in (await self._brokers.queue_states(queues)).items()
        }
        found = await self._offsets_at_time(target, states)
        # During the broker calls, progress and members may have changed.
        members, _ = self._chosen(wanted)
        stored = self._progress(wanted.group, members, queues)
        sources = self._source(target, members, queues)
        steps: dict[ResetStep, str] = {}
        for (member, queue), progress in stored.items():
            source = sources.get((member, queue))
            state = end_of(states[queue], before.get((member, queue)), progress)
            state = end_of(state, source_before.get((member, queue)), source)
            step = resets.step(
                queue, target, progress, create_revisions[queue], state, found.get(queue), source
            )
            if step is not None:
                step = step._replace(member=member)
                steps[step] = resets.origin(target, step, source)
        if not steps:
            source_group = target.group or wanted.group
            use = "clone" if target.group else "shift"
            reason = f"group {source_group!r} has no progress on {wanted.topic!r} to {use}"
            raise InvalidArgument(reason=reason)
        return steps

    def _chosen(self, wanted: ResetOrder) -> tuple[list[str], list[MessageQueue]]:
        """Return the members and queues of a reset, both sorted. Raises the errors of `_steps`."""
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

    def _source(
        self, target: resets.Target, members: Sequence[str], queues: Sequence[MessageQueue]
    ) -> dict[tuple[str, MessageQueue], Progress | None]:
        """Return the progress that a reset clones, or nothing. Raises like `_steps`."""
        if not target.group:
            return {}
        if target.group not in self._table.groups:
            raise GroupNotFound(group=target.group)
        for queue in queues:
            self._store.ledger.require_reached(target.group, queue, self._table.revision)
        return self._progress(target.group, members, queues)

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

    def _remove_expired(self, now_seconds: float) -> None:
        for reset_id, plan in list(self._plans.items()):
            if plan.kept_until_seconds <= now_seconds:
                del self._plans[reset_id]

    def _remove_oldest(self) -> None:
        """Remove the oldest plans while a bound is exceeded, but never the newest plan."""
        steps = sum(len(each.steps) for each in self._plans.values())
        while len(self._plans) > 1 and (
            len(self._plans) > PLANS_MAX or steps > PLANNED_OFFSETS_MAX
        ):
            steps -= len(self._plans.pop(next(iter(self._plans))).steps)


def end_of(state: QueueState, before: Progress | None, now: Progress | None) -> QueueState:
    """Return the state of a queue with its end raised to an offset that was committed during the
    broker call.

    This commit proves a later end. An offset that was beyond the end before the call does not,
    because the broker may have lost the end of its log; nor does a change of its owner or metadata.
    """
    if now is None or now.offset <= state.max_offset:
        return state
    if before is not None and now.offset <= before.offset:
        return state
    return replace(state, max_offset=now.offset)


def raised(answer: Answer | RockoonError) -> Answer:
    if isinstance(answer, RockoonError):
        raise answer
    return answer
