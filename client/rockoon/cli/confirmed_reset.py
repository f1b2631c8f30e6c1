"""Resets by `rockoon offsets reset`: without a plan, or after a person has confirmed one."""

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

# After the first one. The progress of a group that reads has moved before each answer.
QUESTIONS_MAX = 3


@dataclass(frozen=True)
class WantedReset:
    """A reset as an operator asks for it.

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
        """Reset at once if `yes`, else plan, and ask unless it is a dry run.

        Args:
            show: prints a plan; None means that questions only are printed, and no tables.

        Raises:
            CommandError: as `confirmed`.
        """
        if yes and not dry_run:
            return await self.at_once()
        plan = await self.plan()
        if show is not None:
            show(plan)
        return plan if dry_run else await self.confirmed(plan, quiet=show is None)

    async def plan(self) -> "ResetPlan":
        return await self.cluster.admin.plan_reset(
            self.group, self.topic, self.target, self.queues, member=self.member
        )

    async def at_once(self) -> "ResetPlan":
        """Reset the current progress, without a plan."""
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
                f"no answer to reset {reset_id}: `rockoon offsets undo {reset_id}` puts it back "
                "if it was applied",
                file=sys.stderr,
            )
            raise

    async def confirmed(self, plan: "ResetPlan", *, quiet: bool) -> "ResetPlan":
        """Ask whether to apply a plan that was shown, and again if progress has moved since.

        Args:
            plan: that was shown.
            quiet: print no tables.

        Raises:
            CommandError: the answer is no, no terminal is there, or progress moved during each of
                `QUESTIONS_MAX` questions.
        """
        from rockoon.errors import PlanStale

        # The event loop is blocked while the person thinks; it has nothing else to do.
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
                return await self.at_once()
        raise CommandError(
            f"nothing was changed: progress moved during {QUESTIONS_MAX + 1} questions; answer a, "
            "or use --yes, to move the group from wherever it is"
        )


def ask_again(group: str) -> str:
    """Return "y" or "a". Raises CommandError: the answer is no."""
    question = (
        f"{group} has read since the plan. Move it? y: from where it is now, "
        "a: from wherever it is by then, without another question, n: no"
    )
    answer = ""
    while answer not in ("y", "a", "n"):
        answer = str(typer.prompt(question, default="n")).strip().lower()[:1]
    if answer == "n":
        raise CommandError("nothing was changed")
    return answer


def show_difference(shown: "ResetPlan", now: "ResetPlan") -> None:
    """Print the queues whose step is another one than the one that was shown."""
    before = {place(step): step for step in shown.steps}
    after = {place(step): step for step in now.steps}
    print_table(
        ("BROKER", "QUEUE", "FROM", "FROM NOW", "TO", "TO NOW", ""),
        (
            (*where[:2], *cells(before.get(where), after.get(where)), where[2])
            for where in sorted(before.keys() | after.keys())
            if moves(before.get(where)) != moves(after.get(where))
        ),
        numbers=("QUEUE", "FROM", "FROM NOW", "TO", "TO NOW"),
        empty="Every queue is where the plan showed it again.",
    )


def place(step: "ResetStep") -> tuple[str, int, str]:
    return step.queue.broker, step.queue.queue_id, step.member


def moves(step: "ResetStep | None") -> tuple[int | None, int | None]:
    """From where to where a step moves progress; None for no progress or no step."""
    if step is None:
        return None, None
    return step.from_offset if step.HasField("from_offset") else None, step.to_offset


def cells(before: "ResetStep | None", now: "ResetStep | None") -> tuple[int | None, ...]:
    (was_from, was_to), (now_from, now_to) = moves(before), moves(now)
    return was_from, now_from, was_to, now_to
