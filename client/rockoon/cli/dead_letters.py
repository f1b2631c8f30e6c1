"""`rockoon dlq`: lists, shows and replays the dead letters of consumer groups."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rockoon.cli.arguments import OFFSET_MAX, parse_moment, parse_queue
from rockoon.cli.failures import FAILED, CommandError, complain
from rockoon.cli.output import (
    local_time,
    picked,
    print_json,
    print_json_line,
    print_rows,
    print_table,
)
from rockoon.cli.session import (
    DEFAULT_NAMESERVERS,
    AsJson,
    Nameservers,
    Yes,
    confirm,
    with_admin,
    with_cluster,
)

if TYPE_CHECKING:
    from rockoon.admin.dead_letters import DeadLetter, DeadLetterTopic, ReplayReport
    from rockoon.cluster import Cluster

app = typer.Typer(
    no_args_is_help=True, help="Show dead letters (messages that failed too often) and replay them."
)

Name = Annotated[str, typer.Argument(metavar="GROUP", help="Name of the consumer group.")]
Since = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="TIME|DURATION",
        help="Only dead letters since this time; 2h: 2 hours ago.",
    ),
]

BODY_CHARACTERS_SHOWN = 400
PREVIEW_CHARACTERS = 40
LETTERS_SHOWN = 50


@app.command("list")
def list_topics(
    group: Annotated[
        str, typer.Argument(metavar="[GROUP]", show_default=False, help="Only this group.")
    ] = "",
    as_json: AsJson = False,
    nameservers: Nameservers = DEFAULT_NAMESERVERS,
) -> None:
    """Show how many dead letters each group has."""

    async def work(cluster: "Cluster") -> "list[DeadLetterTopic]":
        found = await cluster.admin.dead_letters.overview(group)
        if group and not found:
            # No dead letters: fail if the group does not exist.
            await cluster.admin.get_group(group)
        return found

    found = with_cluster(nameservers, work)
    if as_json:
        print_json(
            [
                {
                    **picked(each, "group", "messages", "replayed", "last_ms"),
                    "unknown": [str(queue) for queue in each.unknown],
                }
                for each in found
            ]
        )
    else:
        print_table(
            ("GROUP", "DEAD LETTERS", "REPLAYED", "LAST"),
            (
                (each.group, each.messages, each.replayed, local_time(each.last_ms))
                for each in found
            ),
            numbers=("DEAD LETTERS", "REPLAYED"),
            empty="There are no dead letters.",
        )
    unknown = sorted(str(queue) for each in found for queue in each.unknown)
    if unknown:
        raise typer.Exit(complain(f"counts exclude {', '.join(unknown)}: no answer"))


@app.command()
def show(
    group: Name,
    message_id: Annotated[
        str | None,
        typer.Option(
            "--id", metavar="ID", help="Show this message (any of its ids) instead of a list."
        ),
    ] = None,
    queue: Annotated[
        str | None, typer.Option(metavar="BROKER:QUEUE", help="Only this queue.")
    ] = None,
    offset: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=OFFSET_MAX,
            metavar="OFFSET",
            help="With --queue: the one message at this offset.",
        ),
    ] = None,
    since: Since = None,
    limit: Annotated[
        int, typer.Option(min=1, metavar="N", help="Number of dead letters to list.")
    ] = LETTERS_SHOWN,
    as_json: AsJson = False,
    nameservers: Nameservers = DEFAULT_NAMESERVERS,
) -> None:
    """List a group's dead letters, or show one in full."""
    if offset is not None and queue is None:
        raise typer.BadParameter("--offset needs --queue", param_hint="--offset")
    named = None if queue is None else parse_queue(queue)
    is_one = message_id is not None or offset is not None
    since_ms = 0 if since is None else parse_moment(since, "--since")

    async def work(cluster: "Cluster") -> "list[DeadLetter]":
        from rockoon_core.message_queue import MessageQueue
        from rockoon_format.names import dlq_topic

        letters = cluster.admin.dead_letters
        if message_id is not None:
            return [await letters.find(group, message_id)]
        chosen = None if named is None else MessageQueue(dlq_topic(group), *named)
        found: list[DeadLetter] = []
        async for letter in letters.letters(
            group, since_ms=since_ms, queue=chosen, offset=offset or 0
        ):
            found.append(letter)
            if len(found) >= (1 if is_one else limit):
                break
        if offset is not None and [each.message.queue_offset for each in found] != [offset]:
            raise CommandError(f"there is no dead letter at offset {offset} of {queue}")
        return found

    found = with_cluster(nameservers, work)
    if as_json:
        for letter in found:
            print_json_line(letter_json(letter))
    elif is_one:
        show_letter(found[0])
    else:
        show_table(found)


@app.command()
def replay(
    group: Name,
    ids: Annotated[
        list[str] | None,
        typer.Option("--id", metavar="ID", help="This message, by any of its ids; repeatable."),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All dead letters that were not replayed before.")
    ] = False,
    since: Since = None,
    to: Annotated[
        str,
        typer.Option(metavar="TOPIC", help="Send them to this topic, not their original ones."),
    ] = "",
    to_group: Annotated[
        bool,
        typer.Option("--to-group", help="Send them to this group only; other groups get nothing."),
    ] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Include dead letters that were replayed before.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be replayed.")
    ] = False,
    yes: Yes = False,
    as_json: AsJson = False,
    nameservers: Nameservers = DEFAULT_NAMESERVERS,
) -> None:
    """Send dead letters to their original topics. Each is replayed once, except with --again."""
    if not (ids or everything or since):
        raise typer.BadParameter("name the dead letters with --id, --since or --all")
    if to and to_group:
        raise typer.BadParameter("use either --to or --to-group")
    since_ms = 0 if since is None else parse_moment(since, "--since")
    if not (ids or dry_run):
        where = to or (f"group {group}" if to_group else "their original topics")
        confirm(f"Replay the dead letters of {group} to {where}?", yes=yes)

    ids_replayed: list[str] = []
    first_ones: list[DeadLetter] = []

    def collect(letter: "DeadLetter") -> None:
        if as_json:
            ids_replayed.append(letter.dead_letter_id)
        elif dry_run and len(first_ones) < LETTERS_SHOWN:
            first_ones.append(letter)

    report = with_admin(
        nameservers,
        lambda admin: admin.dead_letters.replay(
            group,
            ids=ids or (),
            since_ms=since_ms,
            to=to,
            only_group=to_group,
            again=again,
            dry_run=dry_run,
            on_letter=collect,
        ),
    )
    if as_json:
        print_json(report_json(report, ids_replayed, dry_run=dry_run))
    else:
        show_report(report, first_ones, dry_run=dry_run)
    if report.not_found:
        raise typer.Exit(complain(f"no dead letter has the id {', '.join(report.not_found)}"))
    raise typer.Exit(0 if report.replayed or everything or since or report.left_out else FAILED)


def report_json(report: "ReplayReport", replayed: list[str], *, dry_run: bool) -> dict[str, Any]:
    return {
        "dry_run": dry_run,
        "replayed": replayed,
        "left_out": report.left_out,
        "not_found": report.not_found,
    }


def show_report(report: "ReplayReport", first_ones: "list[DeadLetter]", *, dry_run: bool) -> None:
    if dry_run:
        show_table(first_ones)
    done = "would be replayed" if dry_run else "replayed"
    before = f", {report.left_out} were before" if report.left_out else ""
    print(f"{report.replayed} {done}{before}")


def show_table(letters: "list[DeadLetter]") -> None:
    print_rows(
        letters,
        {
            "QUEUE": lambda each: f"{each.message.queue.broker}:{each.message.queue.queue_id}",
            "OFFSET": lambda each: each.message.queue_offset,
            "GIVEN UP": lambda each: local_time(each.message.store_timestamp_ms),
            "TOPIC": lambda each: each.message.topic,
            "FAILED": lambda each: each.message.reconsume_times,
            "REPLAYED": lambda each: each.replayed,
            "BODY": lambda each: preview(each, PREVIEW_CHARACTERS),
            "FAILURE": lambda each: (each.message.failure or "")[:PREVIEW_CHARACTERS] or None,
        },
        numbers=("OFFSET", "FAILED"),
        empty="There are none.",
    )


def show_letter(letter: "DeadLetter") -> None:
    message = letter.message
    rows = {
        "dead letter": f"{letter.dead_letter_id}, offset {message.queue_offset} of {message.queue}",
        "message id": message.message_id,
        "first stored as": message.origin_message_id or "-",
        "topic": message.topic,
        "sent": local_time(message.born_timestamp_ms) or "-",
        "given up": local_time(message.store_timestamp_ms) or "-",
        "failed": f"{message.reconsume_times} times, last: {message.failure or 'no reason given'}",
        "replayed": "yes" if letter.replayed else "no",
    }
    for heading, text in rows.items():
        print(f"{heading:<16}{text}")
    for name, value in sorted(message.properties.items()):
        print(f"{'property':<16}{name} = {value}")
    print(f"{'body':<16}{len(body_of(letter))} bytes")
    print(preview(letter, BODY_CHARACTERS_SHOWN))


def body_of(letter: "DeadLetter") -> bytes:
    """Return the body, or the stored record if it cannot be decompressed."""
    from rockoon.errors import InvalidArgument

    try:
        return letter.message.body
    except InvalidArgument:
        return letter.message.record


def preview(letter: "DeadLetter", characters_max: int) -> str:
    text = body_of(letter)[: 4 * characters_max].decode(errors="replace")
    shown = "".join(each if each.isprintable() else "·" for each in text[:characters_max])
    return shown + ("…" if len(text) > characters_max else "")


def letter_json(letter: "DeadLetter") -> dict[str, Any]:
    message = letter.message
    fields: dict[str, Any] = {
        "dead_letter_id": letter.dead_letter_id,
        **picked(message, "message_id", "origin_message_id", "topic"),
        **picked(message.queue, "broker", "queue_id"),
        "queue_offset": message.queue_offset,
        "born_ms": message.born_timestamp_ms,
        "given_up_ms": message.store_timestamp_ms,
        "failed": message.reconsume_times,
        "failure": message.failure,
        "replayed": letter.replayed,
        "properties": message.properties,
    }
    body = body_of(letter)
    try:
        return fields | {"body": body.decode()}
    except UnicodeDecodeError:
        return fields | {"body_hex": body.hex()}
