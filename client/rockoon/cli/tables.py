"""`rockoon table`: the messages of a topic in an Iceberg table.

The package rockoon-spark implements the commands. They need neither Java nor a Spark session.
"""

import importlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rockoon.cli.arguments import parse_duration, parse_pairs, parse_time
from rockoon.cli.failures import INTERRUPTED, CommandError, complain
from rockoon.cli.output import (
    counted,
    local_time,
    picked,
    print_json,
    print_json_line,
    print_table,
    queue_fields,
)
from rockoon.cli.session import DEFAULT_NAMESERVERS, AsJson, Nameservers

if TYPE_CHECKING:
    from collections.abc import Iterator

app = typer.Typer(no_args_is_help=True, help="Topics in Iceberg tables, each message once.")

_PACKAGES = frozenset({"rockoon_spark", "pyiceberg", "pyarrow", "sqlalchemy", "pyiceberg_core"})

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")]
CatalogName = Annotated[
    str,
    typer.Option(
        metavar="NAME|URI",
        show_default=False,
        help="Catalogue in PyIceberg's configuration, or its URI (http://..., sqlite:///...).",
    ),
]
CatalogProperties = Annotated[
    list[str] | None,
    typer.Option(
        "--catalog-property",
        metavar="NAME=VALUE",
        help="Property of the catalogue, such as warehouse=s3://bucket/lake. Repeatable.",
    ),
]
TableName = Annotated[
    str, typer.Option(metavar="NAMESPACE.TABLE", show_default=False, help="Iceberg table.")
]
ErrorsTable = Annotated[
    str,
    typer.Option(
        metavar="NAMESPACE.TABLE",
        help="Table for messages whose body does not fit (default: such a message ends the run).",
    ),
]
Form = Annotated[
    str,
    typer.Option(
        "--body",
        metavar="json|raw",
        help="json: each column has the field of the body with its name. raw: columns of the "
        "message, and the body as bytes.",
    ),
]
Creates = Annotated[
    bool, typer.Option("--create", help="Create missing tables of raw bodies and of errors.")
]
Place = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="first|last|TIME",
        help="Start position, if the table has no offsets of the topic.",
    ),
]
Once = Annotated[bool, typer.Option("--once", help="End when the table has the messages of now.")]
Interval = Annotated[
    str, typer.Option(metavar="DURATION", help="Time from one round to the next (30s, 5m).")
]
GroupName = Annotated[
    str,
    typer.Option(metavar="NAME", help="Consumer group that follows the table, for `rockoon lag`."),
]
CommitMessages = Annotated[
    int, typer.Option(min=1, metavar="N", help="Maximum number of messages in a commit.")
]
AllowDataLoss = Annotated[
    bool,
    typer.Option(
        "--allow-data-loss",
        help="Continue without messages that are deleted or damaged; the snapshot names them.",
    ),
]


@app.command()
def sync(
    topic: Topic,
    catalog: CatalogName,
    table: TableName,
    catalog_property: CatalogProperties = None,
    errors_table: ErrorsTable = "",
    form: Form = "json",
    creates: Creates = False,
    place: Place = "first",
    once: Once = False,
    interval: Interval = "60s",
    group: GroupName = "",
    commit_messages: CommitMessages = 1_000_000,
    allow_data_loss: AllowDataLoss = False,
    as_json: AsJson = False,
    nameservers: Nameservers = DEFAULT_NAMESERVERS,
) -> None:
    """Append the messages of a topic to an Iceberg table, each of them exactly once.

    The table's snapshots have the offsets. The command can be ended and started at any time, and
    also twice: the table decides where it continues.
    """
    if form not in ("json", "raw"):
        raise typer.BadParameter(f"{form!r} is not one of json, raw", param_hint="--body")
    if form == "raw" and errors_table:
        raise typer.BadParameter("raw bodies always fit the table", param_hint="--errors-table")
    seconds = parse_duration(interval) / 1000
    stream = {"endpoint": nameservers, **_start_option(place)}
    if group:
        stream["consumerGroup"] = group

    with _implementation() as commands:
        settings = commands.SyncSettings(
            topic=topic,
            stream=stream,
            catalog=catalog,
            properties=parse_pairs(catalog_property or (), "NAME=VALUE"),
            table=table,
            errors_table=errors_table,
            form=form,
            creates=creates,
            commit_messages_max=commit_messages,
            allows_data_loss=allow_data_loss,
        )

        def report(commit: Any) -> None:
            if as_json:
                print_json_line(_commit_json(commit))
            else:
                print(_commit_text(commit, table, errors_table), flush=True)

        try:
            commands.sync(settings, report, interval_seconds=None if once else seconds)
        except commands.Interrupted:
            complain(f"interrupted: the next run continues at the offsets in {table}")
            raise typer.Exit(INTERRUPTED) from None


@app.command()
def lag(
    topic: Topic,
    catalog: CatalogName,
    table: TableName,
    catalog_property: CatalogProperties = None,
    as_json: AsJson = False,
    nameservers: Nameservers = DEFAULT_NAMESERVERS,
) -> None:
    """Show how many messages of a topic a table does not have yet, by queue."""
    with _implementation() as commands:
        settings = commands.SyncSettings(
            topic=topic,
            stream={"endpoint": nameservers},
            catalog=catalog,
            properties=parse_pairs(catalog_property or (), "NAME=VALUE"),
            table=table,
        )
        queues = commands.lag(settings)
    total = sum(each.lag for each in queues)
    committed_ms = max((each.committed_ms or 0 for each in queues), default=0)
    if as_json:
        names = ("table_offset", "end", "lag", "lost")
        rows = [{**queue_fields(each.queue), **picked(each, *names)} for each in queues]
        print_json({"total_lag": total, "committed_ms": committed_ms or None, "queues": rows})
        return
    print_table(
        ("TOPIC", "BROKER", "QUEUE", "TABLE", "END", "LAG", "LOST"),
        [
            (*each.queue, each.table_offset, each.end, each.lag, each.lost or None)
            for each in queues
        ],
        numbers=("QUEUE", "TABLE", "END", "LAG", "LOST"),
        empty="The topic has no queues.",
    )
    when = f", last commit {local_time(committed_ms)}" if committed_ms else ""
    print(f"total lag: {counted(total, 'message')}{when}")


def _start_option(place: str) -> dict[str, str]:
    """Return the option of the stream for `--from`."""
    names = {"first": "earliest", "last": "latest"}
    if place in names:
        return {"startingOffsets": names[place]}
    return {"startingTimestamp": str(parse_time(place))}


def _commit_json(commit: Any) -> dict[str, Any]:
    return {
        **picked(commit, "messages", "undecoded"),
        "losses": list(commit.losses),
        "offsets": [
            {**queue_fields(queue), "offset": position.offset}
            for queue, position in sorted(commit.offsets.queues.items())
        ],
    }


def _commit_text(commit: Any, table: str, errors_table: str) -> str:
    text = f"{table}: {counted(commit.messages, 'message')}"
    if commit.undecoded:
        text += f"; {errors_table}: {commit.undecoded}"
    return "\n".join([text, *(f"! lost: {each}" for each in commit.losses)])


@contextmanager
def _implementation() -> "Iterator[Any]":
    """Import the implementation; within the block, convert its expected failures. Raises
    CommandError: it is not installed, or an expected failure."""
    try:
        commands = importlib.import_module("rockoon_spark.tables.commands")
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _PACKAGES:
            raise
        raise CommandError(
            f"`rockoon table` needs {package}: pip install 'rockoon-spark[tables]'"
        ) from error
    try:
        yield commands
    except Exception as error:
        text = commands.failure_text(error)
        if text is None or isinstance(error, typer.Exit | CommandError):
            raise
        from rockoon_core.valid_text import redacted

        raise CommandError(redacted(text)) from error
