"""`rockoon offsets`: shows, explains, resets, exports and imports progress of groups.

`why` shows for each queue where a group started, why, and its current offset:

orders@broker-a:0
  began   at 0 (NEW_QUEUE) on 2026-01-31 12:00:00
          the queue was created at revision 57, after the group subscribed at revision 41
  now     1234 committed by host@77@ab on 2026-01-31 12:05:00, epoch 3
  left    66 messages to read before the end, 1300; the oldest has waited 2.1 s

If clients acknowledge message by message:

  now     1234; client host@1@0@ab acknowledged last, on 2026-01-31 12:05:00, epoch 3
"""

import getpass
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rockoon.cli.arguments import OFFSET_MAX, parse_queue
from rockoon.cli.failures import CommandError
from rockoon.cli.lag import lag_json, queue_lag_json, show_lag
from rockoon.cli.output import (
    duration,
    local_time,
    optional_field,
    picked,
    print_json,
    print_table,
    print_wrapped,
    queue_fields,
)
from rockoon.cli.resets import OperatorReset, read_target
from rockoon.cli.session import (
    DEFAULT_NAMESERVERS,
    AsJson,
    Nameservers,
    Work,
    Yes,
    shown,
    with_admin,
    with_cluster,
)

if TYPE_CHECKING:
    from rockoon.admin.descriptions import QueueStory
    from rockoon.cluster import Cluster
    from rockoon_proto.v1.offset_pb2 import (
        ExportFormat,
        ExportReply,
        Progress,
        QueueLag,
        ResetPlan,
        ResetStep,
    )


app = typer.Typer(
    no_args_is_help=True, help="Show, explain and move the offsets of consumer groups."
)

Group = Annotated[str, typer.Argument(metavar="GROUP", help="Name of the consumer group.")]
MaybeTopic = Annotated[
    str, typer.Argument(metavar="[TOPIC]", show_default=False, help="Only this topic.")
]
Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="jsonl|rocketmq",
        help="jsonl: all fields; rocketmq: a broker's consumerOffset.json (default with --broker).",
    ),
]
Broker = Annotated[str, typer.Option(metavar="NAME", help="Broker, for --format rocketmq.")]
ToOffset = Annotated[
    int | None,
    typer.Option(min=0, max=OFFSET_MAX, metavar="OFFSET", help="This offset on every queue."),
]
Shift = Annotated[
    int | None,
    typer.Option(
        min=-OFFSET_MAX,
        max=OFFSET_MAX,
        metavar="N",
        help="N messages forward; back if N is negative.",
    ),
]
FromFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Offsets by queue, in the format of `offsets export`."),
]
ChosenQueues = Annotated[
    list[str] | None,
    typer.Option(metavar="BROKER:QUEUE", help="Only this queue. Repeatable."),
]
Operator = Annotated[
    str, typer.Option(metavar="TEXT", help="Name and reason, for the record (default: login).")
]


@app.command()
def show(
    group: Group,
    topic: MaybeTopic = "",
    as_json: AsJson = False,
    nameservers: Nameservers = DEFAULT_NAMESERVERS,
) -> None:
    """Show a group's committed offset and lag on each queue."""
    reply = with_admin(nameservers, lambda admin: admin.lag(group, topic))
    if as_json:
        print_json({"group": group} | lag_json(reply))
    else:
        show_lag(reply)


@app.command()
def why(
    group: Group,
    topic: MaybeTopic = "",
    as_json: AsJson = False,
    nameservers: Nameservers = DEFAULT_NAMESERVERS,
) -> None:
    """Explain at which offset a group started on each queue, and show its current offset."""
    stories = with_admin(nameservers, lambda admin: admin.why(group, topic))
    if as_json:
        print_json({"group": group, "queues": [story_json(story) for story in stories]})
    else:
        show_stories(group, stories)


@app.command()
def reset(
    group: Group,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")],
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="Oldest message.")] = False,
    to_latest: Annotated[
        bool, typer.Option("--to-latest", help="End of the queue: only messages sent later.")
    ] = False,
    to_offset: ToOffset = None,
    to_time: Annotated[
        str | None, typer.Option(metavar="TIME", help="First message stored at or after a time.")
    ] = None,
    shift: Shift = None,
    by_duration: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="First message stored within this time (2h)."),
    ] = None,
    from_file: FromFile = None,
    queue: ChosenQueues = None,
    member: Annotated[
        str,
        typer.Option(metavar="NAME", help="Only this member's own progress (default: all)."),
    ] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the plan.")] = False,
    operator: Operator = "",
    yes: Yes = False,
    as_json: AsJson = False,
    nameservers: Nameservers = DEFAULT_NAMESERVERS,
) -> None:
    """Move a group's offsets on a topic: shows the plan, asks, applies it.

    With --yes there is no plan: the reset starts from the current offsets, also while the group
    reads, and prints the old and the new offset of each queue.
    """
    target = read_target(
        topic,
        to_earliest=to_earliest,
        to_latest=to_latest,
        to_offset=to_offset,
        to_time=to_time,
        shift=shift,
        by_duration=by_duration,
        from_file=from_file,
    )
    named = [parse_queue(each) for each in queue or ()]

    async def work(cluster: "Cluster") -> "ResetPlan":
        from rockoon_core.message_queue import MessageQueue

        queues = [MessageQueue(topic, *each) for each in named]
        who = "" if dry_run else operator or login()
        wanted = OperatorReset(cluster, group, topic, target, queues, member, who)
        show = None if as_json else show_plan
        return await wanted.carry_out(yes=yes, dry_run=dry_run, show=show)

    plan = with_cluster(nameservers, work)
    if as_json:
        print_json(plan_json(plan))
    elif plan.applied:
        show_plan(plan)
        print(f"done; to revert: `rockoon offsets undo {plan.reset_id}`")


def show_plan(plan: "ResetPlan") -> None:
    """Print a reset that is planned, applied or undone."""
    state = "undone" if plan.undone else "applied" if plan.applied else "planned"
    print(f"reset {plan.reset_id} of group {plan.group} on topic {plan.topic}: {state}\n")
    show_steps(plan.steps, empty="No queue has to be moved.")
    again = -sum(step.messages for step in plan.steps if step.messages < 0)
    skipped = sum(step.messages for step in plan.steps if step.messages > 0)
    if not plan.undone:
        # After an undo the counts may be wrong: the group may have read since the reset.
        print(f"{again} messages will be read again, {skipped} will be skipped; ", end="")
    print(f"{plan.live_members} live members {'were' if plan.applied else 'will be'} notified")


def show_steps(steps: "list[ResetStep] | Any", *, empty: str) -> None:
    def row(step: "ResetStep") -> tuple[Any, ...]:
        ref = step.queue
        before = optional_field(step, "from_offset")
        remark = "limited to the queue's range" if step.clamped else ""
        ends: str | None = f"{step.min_offset}..{step.max_offset}"
        if step.creates_queue:
            remark = f"creates the queue {remark}".strip()
            # A dry run does not know the range of a queue that does not exist yet.
            ends = ends if step.max_offset else None
        messages = f"{step.messages:+d}" if before is not None else None
        remark = f"{step.member} {remark}".strip()
        return (ref.topic, ref.broker, ref.queue_id, before, step.to_offset, messages, ends, remark)

    print_table(
        ("TOPIC", "BROKER", "QUEUE", "FROM", "TO", "MESSAGES", "QUEUE HOLDS", ""),
        map(row, steps),
        numbers=("QUEUE", "FROM", "TO", "MESSAGES"),
        empty=empty,
    )


def plan_json(plan: "ResetPlan") -> dict[str, Any]:
    return {
        **picked(plan, "reset_id", "group", "topic", "applied", "undone", "live_members"),
        "as_of_ms": plan.as_of_ms,
        "as_of": local_time(plan.as_of_ms),
        "steps": [step_json(step) for step in plan.steps],
    }


def step_json(step: "ResetStep") -> dict[str, Any]:
    return {
        **queue_fields(step.queue),
        "from_offset": optional_field(step, "from_offset"),
        **picked(step, "to_offset", "min_offset", "max_offset", "messages", "clamped"),
        "member": step.member or None,
        "creates_queue": step.creates_queue,
    }


def show_undone(plan: "ResetPlan") -> None:
    show_plan(plan)
    print("undone: the offsets in column FROM are restored")


@app.command()
@shown(show_undone, plan_json)
def undo(
    reset_id: Annotated[
        str, typer.Argument(metavar="RESET_ID", help="Id of the reset, printed by `reset`.")
    ],
    operator: Operator = "",
) -> "Work[ResetPlan]":
    """Undo a reset: restore the offsets that it replaced."""
    return lambda admin: admin.undo_reset(reset_id, operator or login())


@app.command("export")
def export_offsets(
    group: Annotated[
        str, typer.Argument(metavar="[GROUP]", show_default=False, help="Only this group.")
    ] = "",
    form: Format = None,
    broker: Broker = "",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="File to write instead of standard output."
        ),
    ] = None,
    nameservers: Nameservers = DEFAULT_NAMESERVERS,
) -> None:
    """Write progress to a file or to standard output."""
    wanted = export_format(form, broker)

    async def work(cluster: "Cluster") -> "ExportReply":
        from rockoon.errors import BrokerNotFound

        reply = await cluster.admin.export_offsets(wanted, group=group, broker=broker)
        if not reply.entries:
            # A removed broker may still have progress, so it need not be in the routes.
            if broker and cluster.routes.broker(broker) is None:
                raise BrokerNotFound(broker=broker)
            if group:
                # No progress: fail if the group does not exist.
                await cluster.admin.get_group(group)
        return reply

    reply = with_cluster(nameservers, work)
    if output is None:
        if sys.stdout is not None:
            sys.stdout.buffer.write(reply.content)
        return
    output.write_bytes(reply.content)
    print(f"{reply.entries} offsets written to {output}")


@app.command("import")
def import_offsets(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="Output of `export`, or a broker's consumerOffset.json; - is standard input.",
        ),
    ],
    form: Format = None,
    broker: Broker = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be imported, change nothing.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Also replace progress that exists already.")
    ] = False,
    operator: Operator = "",
    as_json: AsJson = False,
    nameservers: Nameservers = DEFAULT_NAMESERVERS,
) -> None:
    """Import progress from a file, also from RocketMQ's consumerOffset.json."""
    wanted = export_format(form, broker)
    if str(file) == "-" and sys.stdin is None:
        raise CommandError("standard input is closed")
    content = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()

    reply = with_admin(
        nameservers,
        lambda admin: admin.import_offsets(
            wanted,
            content,
            broker=broker,
            dry_run=dry_run,
            overwrite=overwrite,
            operator=operator or login(),
        ),
    )
    # Offset services without these counts list every entry in their reply.
    imported = max(reply.imported_count, len(reply.imported))
    skipped = max(reply.skipped_count, len(reply.skipped))
    if as_json:
        print_json(
            {
                "dry_run": dry_run,
                "imported_count": imported,
                "imported": [step_json(step) for step in reply.imported],
                "skipped_count": skipped,
                "skipped": list(reply.skipped),
            }
        )
        return
    show_steps(reply.imported, empty="No offset was imported.")
    show_rest(imported - len(reply.imported))
    for sentence in reply.skipped:
        print(f"skipped: {sentence}")
    show_rest(skipped - len(reply.skipped))
    done = "would be imported" if dry_run else "imported"
    print(f"{imported} offsets {done}, {skipped} skipped")


def show_rest(count: int) -> None:
    """Print how many entries of an import the reply does not list."""
    if count > 0:
        print(f"... and {count} more")


def export_format(form: str | None, broker: str) -> "ExportFormat":
    from rockoon_proto.v1 import offset_pb2 as pb

    form = form or ("rocketmq" if broker else "jsonl")
    if form not in ("jsonl", "rocketmq"):
        raise typer.BadParameter(f"{form!r} is neither jsonl nor rocketmq", param_hint="--format")
    if form == "rocketmq" and not broker:
        raise typer.BadParameter("--format rocketmq needs --broker: the file is for one broker")
    return pb.ROCKETMQ if form == "rocketmq" else pb.JSON_LINES


def login() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        raise CommandError("cannot determine your login name: use --operator") from None


def show_stories(group: str, stories: "Sequence[QueueStory]") -> None:
    if not stories:
        print(f"Group {group} reads no queues yet: it starts with its first consumer.")
    for number, story in enumerate(stories):
        if number:
            print()
        whose = f" for member {story.member}" if story.member else ""
        typer.secho(f"{story.queue}{whose}", bold=True)
        for heading, sentence in story_lines(story):
            print_wrapped(f"  {heading:<8}", sentence)


def story_lines(story: "QueueStory") -> Iterator[tuple[str, str]]:
    if story.progress is None:
        yield "began", "not yet: no member of the group has started on this queue"
    else:
        yield from progress_lines(story.progress)
    if story.lag is not None and story.lag.lost:
        yield "lost", lost_text(story.lag)
    if story.lag is None:
        yield "left", "unknown: the topic does not have this queue any more"
    else:
        yield "left", lag_text(story.lag)


def progress_lines(progress: "Progress") -> Iterator[tuple[str, str]]:
    when = local_time(progress.started_at_ms)
    began = f"at {progress.start_offset} ({reason_name(progress)})"
    yield "began", f"{began} on {when}" if when else began
    if progress.start_explanation:
        yield "", progress.start_explanation
    yield "now", f"{progress.offset}{moved_text(progress)}, epoch {progress.epoch}"
    if progress.owner and progress.owner != progress.committer:
        yield "", f"last owner: {progress.owner}"
    if progress.metadata:
        yield "", f"metadata: {progress.metadata}"
    if progress.gap_total:
        yield "lost", f"{progress.gap_total} messages were deleted before they could be read"


def moved_text(progress: "Progress") -> str:
    """Return which client moved the group to its offset, and when."""
    stored = local_time(progress.stored_at_ms)
    if progress.acknowledged_by:
        return f"; client {progress.acknowledged_by} acknowledged last, on {stored}"
    if progress.acknowledged_at_ms:
        return f"; receivers acknowledged, last on {stored}; the last client is not known"
    if progress.committer:
        return f" committed by {progress.committer} on {stored}"
    if progress.offset != progress.start_offset:
        # Acknowledged through a former version, or committed by a reader without a name.
        return f", stored on {stored}; the client is not known"
    return ", the start offset: nothing has been committed since"


def lost_text(lag: "QueueLag") -> str:
    """Return how many messages after the committed offset were deleted, and why."""
    from rockoon_core.start_position import deletion_text

    return (
        f"{lag.lost} messages from {lag.committed_offset} on {deletion_text(lag.lost_because)} "
        "before they were read"
    )


def lag_text(lag: "QueueLag") -> str:
    if not lag.known:
        return f"unknown: {lag.unknown_because}"
    if not lag.HasField("lag"):
        return f"the queue holds {lag.min_offset}..{lag.max_offset}"
    if lag.lag == 0:
        return f"nothing: it has read up to the end, {lag.max_offset}"
    noun = "message" if lag.lag == 1 else "messages"
    left = f"{lag.lag} {noun} to read before the end, {lag.max_offset}"
    if lag.HasField("lag_ms") and lag.lag_ms:
        left += f"; the oldest has waited {duration(lag.lag_ms)}"
    return left


def reason_name(progress: "Progress") -> str:
    from rockoon_proto.v1.offset_pb2 import StartReason

    return str(StartReason.Name(progress.start_reason))


def story_json(story: "QueueStory") -> dict[str, Any]:
    progress = story.progress
    fields: dict[str, Any] = {
        **queue_fields(story.queue),
        "member": story.member or None,
        "progress": None,
        "lag": queue_lag_json(story.lag) if story.lag is not None else None,
    }
    if progress is not None:
        fields["progress"] = {
            "start_offset": progress.start_offset,
            "start_reason": reason_name(progress),
            **picked(progress, "start_explanation", "started_at_ms"),
            "committed_offset": progress.offset,
            "committer": progress.committer,
            "committed_at_ms": progress.stored_at_ms,
            "acknowledged_by": progress.acknowledged_by or None,
            "acknowledged_at_ms": progress.acknowledged_at_ms or None,
            **picked(progress, "owner", "epoch", "incarnation", "metadata", "gap_total"),
        }
    return fields
