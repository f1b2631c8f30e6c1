"""Resets of `rockoon offsets reset`: applied directly, or planned and confirmed by the operator."""

import secrets
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from rockoon.cli.failures import CommandError
from rockoon.cli.output import print_table
from rockoon.cli.session import confirm

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rockoon.cluster import Cluster
    from rockoon_core.message_queue import MessageQueue
    from rockoon_proto.v1.offset_pb2 import ResetPlan, ResetStep, ResetTarget

# Questions after the first one. While a group reads, each plan is stale once it is confirmed.
QUESTIONS_MAX = 3


@dataclass(frozen=True)
class WantedReset:
    """A requested reset.

    Attributes:
        group, topic, target, queues, member, operator: as in `Admin.reset_offsets`.
    """

    cluster: "Cluster"
    group: str
    topic: str
    target: "ResetTarget"
    queues: "Sequence[MessageQueue]"
    member: str
    operator: str

    async def carry_out(
        self, *, yes: bool, dry_run: bool, show: "Callable[[ResetPlan], None] | None"
    ) -> "ResetPlan":
        """Reset without a plan if `yes`; else plan, show the plan, and ask unless it is a dry run.

        Args:
            yes: do not ask.
            dry_run: plan only.
            show: prints a plan; None prints only questions, no tables.

        Raises:
            CommandError: as `confirmed`.
        """
        if yes and not dry_run:
            return await self.reset_now()
        plan = await self.plan()
        if show is not None:
            show(plan)
        return plan if dry_run else await self.confirmed(plan, quiet=show is None)

    async def plan(self) -> "ResetPlan":
        return await self.cluster.admin.plan_reset(
            self.group, self.topic, self.target, self.queues, member=self.member
        )

    async def reset_now(self) -> "ResetPlan":
        """Reset from the progress at that moment, without a plan."""
        from asyncio import CancelledError

        from rockoon.errors import OffsetServiceUnavailable, TimedOut

        reset_id = secrets.token_hex(8)
        try:
            return await self.cluster.admin.reset_offsets(
                self.group,
                self.topic,
                self.target,
                self.queues,
                member=self.member,
                operator=self.operator,
                reset_id=reset_id,
            )
        except (OffsetServiceUnavailable, TimedOut, CancelledError):
            print(
                f"no answer to reset {reset_id}: if it was applied, `rockoon offsets undo "
                f"{reset_id}` reverts it",
                file=sys.stderr,
            )
            raise

    async def confirmed(self, plan: "ResetPlan", *, quiet: bool) -> "ResetPlan":
        """Ask whether to apply a plan, and ask again if progress has moved since.

        Args:
            plan: the plan that was shown.
            quiet: print no tables.

        Raises:
            CommandError: the answer is no, there is no terminal, or progress moved during each of
                `QUESTIONS_MAX` questions.
        """
        from rockoon.errors import PlanStale

        # The question blocks the event loop, which has no other work.
        confirm(f"Move {self.group} on {len(plan.steps)} queues of {self.topic}?", yes=False)
        for questions_left in reversed(range(QUESTIONS_MAX + 1)):
            try:
                return await self.cluster.admin.apply_reset(plan.reset_id, self.operator)
            except PlanStale:
                if not questions_left:
                    break
                shown, plan = plan, await self.plan()
            if not quiet:
                show_difference(shown, plan)
            if ask_again(self.group) == "a":
                return await self.reset_now()
        raise CommandError(
            f"nothing was changed: progress moved during {QUESTIONS_MAX + 1} questions; answer a, "
            "or use --yes, to move the group from its offsets at that moment"
        )


def ask_again(group: str) -> str:
    """Return "y" or "a". Raises CommandError: the answer is no."""
    question = (
        f"{group} has read since the plan. Move it? y: from the offsets shown now, "
        "a: from its offsets when the reset is applied, without another question, n: no"
    )
    answer = ""
    while answer not in ("y", "a", "n"):
        answer = str(typer.prompt(question, default="n")).strip().lower()[:1]
    if answer == "n":
        raise CommandError("nothing was changed")
    return answer


def show_difference(shown: "ResetPlan", now: "ResetPlan") -> None:
    """Print the queues whose step differs between two plans."""
    before = {step_key(step): step for step in shown.steps}
    after = {step_key(step): step for step in now.steps}
    print_table(
        ("BROKER", "QUEUE", "FROM", "FROM NOW", "TO", "TO NOW", ""),
        (
            (*where[:2], *cells(before.get(where), after.get(where)), where[2])
            for where in sorted(before.keys() | after.keys())
            if moves(before.get(where)) != moves(after.get(where))
        ),
        numbers=("QUEUE", "FROM", "FROM NOW", "TO", "TO NOW"),
        empty="No queue differs from the plan that was shown.",
    )


def step_key(step: "ResetStep") -> tuple[str, int, str]:
    return step.queue.broker, step.queue.queue_id, step.member


def moves(step: "ResetStep | None") -> tuple[int | None, int | None]:
    """Return old and new offset of a step; None for no progress or no step."""
    if step is None:
        return None, None
    return step.from_offset if step.HasField("from_offset") else None, step.to_offset


def cells(before: "ResetStep | None", now: "ResetStep | None") -> tuple[int | None, ...]:
    (was_from, was_to), (now_from, now_to) = moves(before), moves(now)
    return was_from, now_from, was_to, now_to
