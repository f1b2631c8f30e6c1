"""Resets of `rockoon offsets reset`: target options, and plans that the operator confirms."""

import json
import secrets
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rockoon.cli.arguments import parse_duration, parse_time
from rockoon.cli.failures import CommandError
from rockoon.cli.output import optional_field, print_table
from rockoon.cli.session import confirm

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rockoon.cluster import Cluster
    from rockoon_core.message_queue import MessageQueue
    from rockoon_proto.v1.offset_pb2 import QueueOffset, ResetPlan, ResetStep, ResetTarget

# Questions after the first one. While a group reads, each plan is stale once it is confirmed.
QUESTIONS_MAX = 3


@dataclass(frozen=True)
class OperatorReset:
    """A requested reset. `group`, `topic`, `target`, `queues`, `member`, `operator`: as in
    `Admin.reset_offsets`."""

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
        """Ask whether to apply a plan, and ask again if progress has moved since. `quiet`: print no
        tables. Raises CommandError: the answer is no, there is no terminal, or progress moved
        during each of `QUESTIONS_MAX` questions."""
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
    """Return the old and the new offset of a step; None for no progress or no step."""
    if step is None:
        return None, None
    return optional_field(step, "from_offset"), step.to_offset


def cells(before: "ResetStep | None", now: "ResetStep | None") -> tuple[int | None, ...]:
    (was_from, was_to), (now_from, now_to) = moves(before), moves(now)
    return was_from, now_from, was_to, now_to


OPTIONS = (
    "--to-earliest, --to-latest, --to-offset, --to-time, --shift, --by-duration or --from-file"
)


def read_target(
    topic: str,
    *,
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    to_time: str | None,
    shift: int | None,
    by_duration: str | None,
    from_file: Path | None,
) -> "ResetTarget":
    """Return the target of a reset; exactly one option must be set. Raises typer.BadParameter: none
    or several are set, or a value is invalid; CommandError: the file is invalid."""
    from rockoon_proto.v1.offset_pb2 import QueueOffsets, ResetTarget

    # Options that are not set are False or None; 0 is an offset.
    values = (to_offset, to_time, shift, by_duration, from_file)
    if to_earliest + to_latest + sum(value is not None for value in values) != 1:
        raise typer.BadParameter(f"set the target with one of {OPTIONS}")
    if to_earliest:
        return ResetTarget(earliest=True)
    if to_latest:
        return ResetTarget(latest=True)
    if to_offset is not None:
        return ResetTarget(offset=to_offset)
    if to_time is not None:
        return ResetTarget(timestamp_ms=parse_time(to_time))
    if shift is not None:
        return ResetTarget(shift=shift)
    if by_duration is not None:
        return ResetTarget(duration_ms=parse_duration(by_duration))
    assert from_file is not None
    return ResetTarget(offsets=QueueOffsets(offsets=read_offsets(from_file, topic)))


def read_offsets(file: Path, topic: str) -> "list[QueueOffset]":
    """Return the offsets of a topic from a JSON Lines file in the format of `offsets export`.
    Raises CommandError: a line is invalid, or no line is about the topic."""
    from rockoon_proto.v1.offset_pb2 import QueueOffset, QueueRef

    found: list[QueueOffset] = []
    for number, line in enumerate(file.read_bytes().splitlines(), start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            entry_queue = entry.get("queue", entry)
            queue = QueueRef(
                topic=entry_queue["topic"],
                broker=entry_queue["broker"],
                queue_id=whole_number(entry_queue["queue_id"]),
            )
            wanted = QueueOffset(queue=queue, offset=whole_number(entry["offset"]))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise CommandError(
                f'{file}, line {number}: not of the form {{"topic": "{topic}", '
                '"broker": "broker-a", "queue_id": 0, "offset": 42}'
            ) from None
        if queue.topic == topic:
            found.append(wanted)
    if not found:
        raise CommandError(f"{file} has no offset of topic {topic}")
    return found


def whole_number(value: Any) -> int:
    """Return an integer that may be written as text. Raises ValueError: the value has a fraction or
    is not a number."""
    if isinstance(value, bool | float):
        raise ValueError(f"{value!r} is not a whole number")  # noqa: TRY004 - as int() raises
    return int(value)
