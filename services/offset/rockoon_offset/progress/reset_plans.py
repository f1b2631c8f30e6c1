"""Operators' resets: planned with the brokers' figures, kept for a while, applied and undone."""

import secrets
from collections.abc import Callable, Sequence
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
from rockoon_offset.progress.records import ResetApplied, ResetStep
from rockoon_offset.route_table import RouteTable
from rockoon_proto.v1.nameserver_pb2 import BROADCAST_SERVER

Answer = TypeVar("Answer")

PLANS_MAX = 1000
# Queues times members of one plan.
STEPS_MAX = 100_000


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

    async def plan(
        self,
        group: str,
        topic: str,
        queues: Sequence[MessageQueue],
        target: resets.Target,
        member: str = "",
    ) -> Plan:
        """Work out a reset; changes nothing.

        Args:
            group, topic: whose progress, on what.
            queues: only these; none means all of the topic.
            target: where to.
            member: only the progress of this one's own; empty means everybody's.

        Raises:
            GroupNotFound, MemberNotFound, TopicNotFound, QueueNotFound, InvalidArgument: as the
                text says.
            BrokerUnavailable: a queue's ends cannot be had, so nothing can be promised.
            RouteNotReached: progress is on a later queue of the name than the routes know.
        """
        resets.check(target)
        if group not in self._table.groups:
            raise GroupNotFound(group=group)
        if topic not in self._table.topics:
            raise TopicNotFound(topic=topic)
        chosen = self._chosen(topic, queues, target)
        members = self._members(group, topic, member)
        if len(members) * len(chosen) > STEPS_MAX:
            raise InvalidArgument(reason=f"more than {STEPS_MAX} offsets at once: name a member")
        for queue in chosen:
            self._store.ledger.require_reached(group, queue, self._table.revision)
        taken = await self._steps(group, target, members, chosen)
        if not taken:
            raise InvalidArgument(reason=f"group {group!r} has no progress on {topic!r} to shift")
        now_seconds = self._now_seconds()
        plan = Plan(
            reset_id=secrets.token_hex(8),
            group=group,
            topic=topic,
            steps=taken,
            as_of_ms=self._now_ms(),
            kept_until_seconds=now_seconds + self._plan_seconds,
        )
        self._forget_old(now_seconds)
        self._plans[plan.reset_id] = plan
        await self._store.durable()
        return plan

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
            group = self._table.groups.get(plan.group)
            if group is None or any(
                self._table.create_revision_or_none(step.queue) != step.incarnation
                for step in plan.steps
            ):
                raise PlanStale(reset=reset_id)
            self._store.write(
                self._store.ledger.apply_reset(
                    reset_id,
                    plan.group,
                    group.incarnation,
                    plan.topic,
                    plan.steps,
                    operator,
                    self._now_ms(),
                )
            )
            del self._plans[reset_id]
        await self._store.durable()
        applied = self._store.ledger.reset(reset_id)
        if plan is not None:
            self._tell(plan.group, plan.steps)
        return applied

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
        await self._store.durable()
        if records:
            self._tell(applied.group, applied.steps)
        return self._store.ledger.reset(reset_id)

    def _tell(self, group: str, steps: Sequence[ResetStep]) -> None:
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

    def _chosen(
        self, topic: str, queues: Sequence[MessageQueue], target: resets.Target
    ) -> list[MessageQueue]:
        """The queues meant, sorted; all of the topic when none are named."""
        named = set(queues) or set(target.offsets)
        if any(queue.topic != topic for queue in named):
            raise InvalidArgument(reason=f"a queue does not belong to topic {topic!r}")
        for queue in named:
            self._table.create_revision(queue)
        return sorted(named or self._table.topics[topic].create_revisions)

    async def _steps(
        self,
        group: str,
        target: resets.Target,
        members: Sequence[str],
        queues: Sequence[MessageQueue],
    ) -> tuple[ResetStep, ...]:
        """What each member's progress on each queue would become, where it would change."""
        # Before the brokers are asked: progress that moves meanwhile makes the plan stale, and not
        # silently another one than was shown.
        stored = {
            (each, queue): self._store.ledger.find(reader_of(group, each), queue)
            for each in members
            for queue in queues
        }
        create_revisions = {queue: self._table.create_revision(queue) for queue in queues}
        states = {
            queue: raised(state)
            for queue, state in (await self._brokers.queue_states(queues)).items()
        }
        found = await self._offsets_at_time(target, states)
        return tuple(
            step._replace(member=each)
            for (each, queue), progress in stored.items()
            if (
                step := resets.step(
                    queue,
                    target,
                    progress,
                    create_revisions[queue],
                    states[queue],
                    found.get(queue),
                )
            )
        )

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


def raised(answer: Answer | RockoonError) -> Answer:
    if isinstance(answer, RockoonError):
        raise answer
    return answer
