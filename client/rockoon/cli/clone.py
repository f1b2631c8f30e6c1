"""`rockoon offsets clone`: starts a group where another group has committed."""

from typing import TYPE_CHECKING, Annotated

import typer

from rockoon.cli.failures import CommandError, complain
from rockoon.cli.offsets import Operator, login, plan_json, show_plan
from rockoon.cli.output import counted, print_json
from rockoon.cli.session import DEFAULT_NAMESERVERS, AsJson, Nameservers, Yes, confirm, with_cluster
from rockoon_core.reset_bounds import RESET_OFFSETS_MAX, RESETS_MAX

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from rockoon.admin.admin import Admin
    from rockoon.cluster import Cluster
    from rockoon_proto.v1.offset_pb2 import ResetPlan


def clone(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="Group to clone.")],
    group: Annotated[
        str, typer.Argument(metavar="GROUP", help="Group that gets the offsets; it must exist.")
    ],
    topic: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only this topic. Repeatable (default: all of SOURCE)."),
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Only show the plan.")] = False,
    operator: Operator = "",
    yes: Yes = False,
    as_json: AsJson = False,
    nameservers: Nameservers = DEFAULT_NAMESERVERS,
) -> None:
    """Move a group to the committed offsets of another group: shows the plan, asks, applies it.

    Each topic is one reset, which `rockoon offsets undo` reverts. Of all applied resets, only the
    newest 1,000 with at most 100,000 offsets in total can be reverted: the command names the topics
    of a larger clone that cannot. An offset that is outside a
    queue becomes the nearest offset that the queue holds. Queues without progress of SOURCE do not
    change. `rockoon offsets why` shows from which group and offset each queue was cloned.
    """

    async def work(cluster: "Cluster") -> "list[ResetPlan]":
        from rockoon_proto.v1.offset_pb2 import ResetTarget

        admin = cluster.admin
        await admin.get_group(group)
        topics = list(dict.fromkeys(topic or await topics_of(admin, source)))
        who = "" if plan else operator or login()
        target = ResetTarget(group=source)
        # Also with --yes: a topic that cannot be cloned is reported before any topic changes.
        plans = [await admin.plan_reset(group, name, target) for name in topics]
        warn_not_revertible(plans)
        if yes and not plan:

            def reset(each: "ResetPlan") -> "Awaitable[ResetPlan]":
                return admin.reset_offsets(group, each.topic, target, operator=who)

            return await carry_out(plans, reset)
        if not as_json:
            show_plans(plans)
        if plan:
            return plans
        queues = sum(len(each.steps) for each in plans)
        of = f"{counted(queues, 'queue')} of {counted(len(topics), 'topic')}"
        confirm(f"Move {group} on {of} to the offsets of {source}?", yes=False)
        return await carry_out(plans, lambda each: admin.apply_reset(each.reset_id, who))

    done = with_cluster(nameservers, work)
    if as_json:
        print_json([plan_json(each) for each in done])
    elif not plan:
        if yes:
            show_plans(done)
        show_done(done)


def show_done(done: "Sequence[ResetPlan]") -> None:
    lost = not_revertible(done)
    for each in done:
        revert = f"to revert: `rockoon offsets undo {each.reset_id}`"
        print(f"{each.topic} done; {'cannot be reverted' if each.topic in lost else revert}")


def warn_not_revertible(plans: "Sequence[ResetPlan]") -> None:
    """Print the topics of a clone that cannot be reverted after it."""
    if lost := not_revertible(plans):
        complain(
            f"{', '.join(lost)} will be moved and cannot be reverted: the offset service keeps the "
            f"newest {RESETS_MAX:,} resets, with at most {RESET_OFFSETS_MAX:,} offsets in total"
        )


def not_revertible(plans: "Sequence[ResetPlan]") -> list[str]:
    """Return the topics whose resets are no longer kept once all these resets are applied."""
    offsets = 0
    lost = []
    for number, each in enumerate(reversed(plans), start=1):
        offsets += len(each.steps)
        # The newest reset is always kept.
        if number > 1 and (number > RESETS_MAX or offsets > RESET_OFFSETS_MAX):
            lost.append(each.topic)
    return lost[::-1]


async def topics_of(admin: "Admin", group: str) -> list[str]:
    """Return the topics on which a group has progress, without its retry and dead-letter topics.
    Raises GroupNotFound: the group does not exist; CommandError: there are none."""
    from rockoon_format.names import is_dlq_topic, is_retry_topic

    await admin.get_group(group)
    topics = {each.queue.topic for each in await admin.progress(group)}
    found = sorted(each for each in topics if not (is_retry_topic(each) or is_dlq_topic(each)))
    if not found:
        raise CommandError(f"group {group} has no progress to clone")
    return found


async def carry_out(
    plans: "Sequence[ResetPlan]", reset: "Callable[[ResetPlan], Awaitable[ResetPlan]]"
) -> "list[ResetPlan]":
    """Reset one topic after the other; return the applied resets. Raises CommandError: a reset
    failed; the text names the topics that were reset before."""
    from rockoon.errors import RockoonError

    done: list[ResetPlan] = []
    for each in plans:
        try:
            done.append(await reset(each))
        except RockoonError as failure:
            before = ", ".join(f"{one.topic} (undo {one.reset_id})" for one in done) or "none"
            raise CommandError(
                f"{each.topic} was not cloned: {failure}; topics cloned before: {before}"
            ) from failure
    return done


def show_plans(plans: "Sequence[ResetPlan]") -> None:
    for number, each in enumerate(plans):
        if number:
            print()
        show_plan(each)
