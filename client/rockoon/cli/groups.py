"""`rockoon group`: creates, updates, lists, describes, pauses and deletes consumer groups."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from rockoon.cli.arguments import parse_duration, parse_pairs, parse_start
from rockoon.cli.lag import lag_json, show_lag
from rockoon.cli.output import duration, local_time, picked, print_json, print_rows, print_wrapped
from rockoon.cli.session import (
    DEFAULT_NAMESERVERS,
    AsJson,
    Nameservers,
    Result,
    Work,
    Yes,
    confirm,
    shown,
    with_admin,
    with_parameters,
)
from rockoon_core.group_settings import GROUP_SETTINGS, GroupSetting, Value

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rockoon.admin.admin import Admin
    from rockoon.admin.descriptions import GroupClient, GroupSummary
    from rockoon_proto.v1.nameserver_pb2 import Group, GroupConfig
    from rockoon_proto.v1.offset_pb2 import Member, ReceiverFilter


ATTEMPTS_MAX = 8
RETRY_DELAYS = "retry_delays_ms"
Settings = Mapping[str, Value | list[int]]
"""Values of GroupConfig fields that the command line sets, by field name."""


def with_setting_options(command: Callable[..., Result]) -> Callable[..., Result]:
    """Replace the parameter `settings` of a command by one option for each setting. `command`: its
    parameters from `settings` on are keyword-only."""

    @functools.wraps(command)
    def called(**options: Any) -> Result:
        chosen = [(row, options.pop(row.name)) for row in GROUP_SETTINGS]
        settings: dict[str, Value | list[int]] = {
            row.name: wire(row, value) for row, value in chosen if value is not None
        }
        if (delays := options.pop(RETRY_DELAYS)) is not None:
            settings[RETRY_DELAYS] = parse_delays(delays)
        return command(**options, settings=settings)

    parameters: list[inspect.Parameter] = []
    for own in inspect.signature(command).parameters.values():
        parameters += SETTINGS if own.name == "settings" else [own]
    return with_parameters(called, parameters)


def parameter(row: GroupSetting) -> inspect.Parameter:
    if row.words:
        option = typer.Option(row.option, metavar="|".join(row.words), help=row.help)
        annotation: Any = Annotated[str | None, option]
    else:
        option = typer.Option(row.option, metavar="N", help=row.help, min=0, max=row.maximum)
        annotation = Annotated[int | None, option]
    return inspect.Parameter(
        row.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )


def retry_delays_parameter() -> inspect.Parameter:
    option = typer.Option(
        "--retry-delays",
        metavar="10s,30s,...|default",
        help="Delays before redeliveries to receivers; the last one repeats.",
    )
    return inspect.Parameter(
        RETRY_DELAYS,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[str | None, option],
    )


SETTINGS = (*map(parameter, GROUP_SETTINGS), retry_delays_parameter())


def parse_delays(text: str) -> list[int]:
    """Return the milliseconds of "10s,30s,1m"; empty for "default". Raises typer.BadParameter: a
    part is not a duration."""
    return [] if text == "default" else [parse_duration(each) for each in text.split(",")]


def delays_text(config: "GroupConfig") -> str | None:
    """Return the delays before redeliveries as text; None for RocketMQ's default delays."""
    return " ".join(str(duration(each)) for each in config.retry_delays_ms) or None


def wire(row: GroupSetting, value: Value) -> Value:
    """Return the value of the GroupConfig field for an option's value. Raises typer.BadParameter:
    the value is not one of the setting's words."""
    if not row.words:
        return value
    if value not in row.words:
        raise typer.BadParameter(
            f"{value!r} is not one of {', '.join(row.words)}", param_hint=row.option
        )
    return row.words[str(value)]


def settings_text(config: "GroupConfig") -> str:
    values = [(each.option[2:], each.get(config)) for each in GROUP_SETTINGS]
    values.append(("retry-delays", delays_text(config)))
    return ", ".join(f"{name} {value}" for name, value in values if value is not None)


def settings_json(config: "GroupConfig") -> dict[str, Value | None]:
    """Return effective settings by field; None if the cluster's settings decide."""
    values = [(row, row.get(config)) for row in GROUP_SETTINGS]
    return {row.name: row.default if value is None else value for row, value in values}


app = typer.Typer(no_args_is_help=True, help="Create, inspect, pause and delete consumer groups.")

Name = Annotated[str, typer.Argument(metavar="GROUP", help="Name of the consumer group.")]

Start = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="first|last|TIME|DURATION|tail:N",
        help="Start position on queues older than its subscription; overrides its consumers.",
    ),
]

Attributes = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="Attribute, e.g. lite.bind.topic=chat. Repeatable."),
]


def show_start(group: "Group") -> None:
    print(f"group {group.config.name} starts from {policy_text(group.config)}")


def show_settings(group: "Group") -> None:
    texts = [f"starts from {policy_text(group.config)}", settings_text(group.config)]
    print(f"group {group.config.name}: {', '.join(filter(None, texts))}")


def show_groups(groups: "Iterable[GroupSummary]") -> None:
    print_rows(
        groups,
        {
            "GROUP": lambda each: each.group.config.name,
            "TOPICS": lambda each: ", ".join(sorted(each.topics)) or None,
            "STARTS FROM": lambda each: policy_text(each.group.config),
            "SETTINGS": lambda each: settings_text(each.group.config) or None,
        },
        empty="There are no consumer groups. One appears when a consumer subscribes.",
    )


def groups_json(groups: "Iterable[GroupSummary]") -> list[dict[str, Any]]:
    return [config_json(each.group) | {"topics": dict(each.topics)} for each in groups]


def policy_text(config: "GroupConfig") -> str:
    from rockoon_proto.v1 import nameserver_pb2 as pb

    policy = config.start_policy
    texts = {
        pb.CONSUME_FROM_UNSPECIFIED: "the position its consumers configure",
        pb.CONSUME_FROM_LAST: "last",
        pb.CONSUME_FROM_FIRST: "first",
        pb.CONSUME_FROM_TIMESTAMP: local_time(policy.timestamp_ms) or "time 0",
        pb.CONSUME_FROM_TAIL: f"the last {policy.tail_messages} messages of each queue",
        pb.CONSUME_FROM_DURATION: f"{duration(policy.duration_ms)} ago",
    }
    return texts.get(policy.consume_from, str(policy.consume_from))


def config_json(group: "Group") -> dict[str, Any]:
    from rockoon_proto.v1.nameserver_pb2 import ConsumeFrom

    config = group.config
    policy = config.start_policy
    return {
        "group": config.name,
        "incarnation": group.incarnation,
        "start_policy": {
            "consume_from": ConsumeFrom.Name(policy.consume_from),
            **picked(policy, "timestamp_ms", "tail_messages", "duration_ms"),
        },
        **settings_json(config),
        "retry_delays_ms": list(config.retry_delays_ms),
        "consume_disabled": config.consume_disabled,
        "attributes": dict(config.attributes),
    }


@app.command()
@shown(show_start, config_json)
@with_setting_options
def create(
    name: Name,
    start: Start = None,
    *,
    settings: Settings,
    attribute: Attributes = None,
    if_absent: Annotated[
        bool, typer.Option("--if-absent", help="No error if the group exists; it is not changed.")
    ] = False,
) -> "Work[Group]":
    """Create a consumer group. The first consumer of a group also creates it."""
    config = group_config(name, start, settings)
    config.attributes.update(parse_pairs(attribute or (), "NAME=VALUE"))
    return lambda admin: admin.create_group(config, if_absent=if_absent)


@app.command()
@shown(show_settings, config_json)
@with_setting_options
def update(
    name: Name,
    start: Start = None,
    *,
    settings: Settings,
    attribute: Attributes = None,
) -> "Work[Group]":
    """Change only the named settings of a group. NAME= removes an attribute."""
    changes = group_config(name, start, settings)
    attributes = parse_pairs(attribute or (), "NAME=VALUE")
    if len(changes.ListFields()) == 1 and not settings and not attributes:
        raise typer.BadParameter("name a setting to change")

    def change(config: "GroupConfig") -> None:
        # A policy is replaced as a whole: fields of two policies must not be mixed.
        if changes.HasField("start_policy"):
            config.ClearField("start_policy")
        if RETRY_DELAYS in settings:
            config.ClearField("retry_delays_ms")
        config.MergeFrom(changes)
        for each, value in attributes.items():
            config.attributes.pop(each, None)
            if value:
                config.attributes[each] = value

    return lambda admin: changed(admin, name, change)


@app.command()
def pause(name: Name, nameservers: Nameservers = DEFAULT_NAMESERVERS) -> None:
    """Stop a group from reading (consumeEnable = false); members and progress are kept."""
    set_paused(name, nameservers, paused=True)
    print(f"group {name} is paused; to resume: rockoon group resume {name}")


@app.command()
def resume(name: Name, nameservers: Nameservers = DEFAULT_NAMESERVERS) -> None:
    """Resume a paused group at its progress."""
    set_paused(name, nameservers, paused=False)
    print(f"group {name} reads again")


def set_paused(name: str, nameservers: str, *, paused: bool) -> None:
    def change(config: "GroupConfig") -> None:
        config.consume_disabled = paused

    with_admin(nameservers, lambda admin: changed(admin, name, change))


async def changed(admin: "Admin", name: str, change: "Callable[[GroupConfig], None]") -> "Group":
    """Change a group's configuration; fields that `change` does not set keep their values.

    If another caller changes the group at the same time, neither change is lost. Raises
    GroupChanged: concurrent changes won `ATTEMPTS_MAX` times.
    """
    import asyncio

    from rockoon.errors import GroupChanged
    from rockoon_core.clock import Backoff

    backoff, attempts = Backoff(), 0
    while True:
        group = (await admin.get_group(name)).group
        change(group.config)
        try:
            return await admin.update_group(
                group.config, expected_modified_revision=group.modified_revision
            )
        except GroupChanged:
            attempts += 1
            if attempts == ATTEMPTS_MAX:
                raise
        # The nameserver that was read may not have the other change yet.
        await asyncio.sleep(backoff.next_seconds())


@app.command("list")
@shown(show_groups, groups_json)
def list_groups() -> "Work[list[GroupSummary]]":
    """List consumer groups and the topics they read."""
    return lambda admin: admin.list_groups()


@app.command()
def describe(
    name: Name, as_json: AsJson = False, nameservers: Nameservers = DEFAULT_NAMESERVERS
) -> None:
    """Show a group's topics, live members, clients with their filters, and lag."""
    from rockoon.consumer.membership import contradictions

    description = with_admin(nameservers, lambda admin: admin.describe_group(name))
    conflicts = [*contradictions(description.members), *description.filter_conflicts]
    if as_json:
        print_json(
            config_json(description.group)
            | {
                "topics": dict(description.topics),
                "members": [
                    {
                        "member_id": member.member_id,
                        "mode": mode_text(member),
                        **{name: getattr(member, name) or None for name in SDK_TEXTS},
                        **picked(member, "peer", "joined_at_ms", "heard_at_ms"),
                        "subscriptions": {s.topic: s.expression for s in member.subscriptions},
                    }
                    for member in description.members
                ],
                "clients": clients_json(description.clients),
                "receivers": receivers_json(description.receivers),
                "contradictions": conflicts,
            }
            | lag_json(description.lag)
        )
        return
    config = description.group.config
    print(f"group {name}: starts from {policy_text(config)}")
    if config.consume_disabled:
        print(f"paused; to resume: rockoon group resume {name}")
    for row in GROUP_SETTINGS:
        value = row.get(config)
        default = "the cluster's" if row.default is None else row.default
        print(f"{row.option[2:]}: {f'{default} (default)' if value is None else value}")
    print(f"retry-delays: {delays_text(config) or 'as in RocketMQ (default)'}")
    print(f"reads: {', '.join(sorted(description.topics)) or 'nothing yet'}\n")
    if description.members or not description.clients:
        show_members(description.members)
    if description.members and description.clients:
        print()
    show_clients(description.clients)
    show_conflicts(conflicts)
    print()
    show_lag(description.lag)


# Fields of a member that are empty until its first heartbeat after a restart of the offset service.
SDK_TEXTS = ("language", "version")
MEMBER_COLUMNS: "Mapping[str, Callable[[Member], Any]]" = {
    "MEMBER": lambda each: each.member_id,
    "LANGUAGE": lambda each: each.language or None,
    "VERSION": lambda each: each.version or None,
    "ADDRESS": lambda each: each.peer or None,
    "MODE": lambda each: mode_text(each),
}


def show_members(members: "Iterable[Member]") -> None:
    print_rows(
        members,
        {
            **MEMBER_COLUMNS,
            "JOINED": lambda each: local_time(each.joined_at_ms),
            "LAST HEARD": lambda each: local_time(each.heard_at_ms),
        },
        empty="It has no members.",
    )


@app.command()
def delete(name: Name, yes: Yes = False, nameservers: Nameservers = DEFAULT_NAMESERVERS) -> None:
    """Delete a group with its subscriptions, progress, retries and dead letters."""
    confirm(f"Delete group {name}, all its progress and its dead letters?", yes=yes)

    with_admin(nameservers, lambda admin: admin.delete_group(name))
    print(f"group {name} is deleted")


def group_config(name: str, start: str | None, settings: Settings) -> "GroupConfig":
    from rockoon_proto.v1.nameserver_pb2 import GroupConfig

    policy = parse_start(start).to_wire() if start is not None else None
    # Enums are passed by name, for which the typed stubs have no common type.
    return GroupConfig(name=name, start_policy=policy, **cast("Any", settings))


def mode_text(member: "Member") -> str:
    from rockoon_proto.v1.offset_pb2 import BROADCASTING

    return "broadcasting" if member.mode == BROADCASTING else "clustering"


def show_clients(clients: "Sequence[GroupClient]") -> None:
    if not clients:
        return
    print_rows(
        clients,
        {
            "CLIENT": lambda each: each.client_id,
            "LANGUAGE": lambda each: each.language or None,
            "VERSION": lambda each: each.version or None,
            "ADDRESS": lambda each: each.address or None,
            "GATEWAY": lambda each: each.gateway or None,
            "HOLDS": lambda each: each.messages,
            "HEARD AGO": lambda each: duration(each.heard_ms_ago),
            "READS": lambda each: reads_text(each) or None,
        },
        numbers=("HOLDS", "HEARD AGO"),
        empty="",
    )


def reads_text(client: "GroupClient") -> str:
    topics = [f"{topic}: {expression}" for topic, expression in client.subscriptions.items()]
    if client.lite_topics:
        topics.append(f"{client.lite_topics} lite topics of {client.lite_parent}")
    return ", ".join(topics)


def show_conflicts(sentences: Sequence[str]) -> None:
    for sentence in sentences:
        print_wrapped("! ", sentence)


# Fields of a client that are empty if unknown.
CLIENT_TEXTS = ("key_id", "client_type", "language", "version", "address", "hostname", "gateway")


def clients_json(clients: "Sequence[GroupClient]") -> list[dict[str, Any]]:
    return [
        {
            "client_id": each.client_id,
            **{name: getattr(each, name) or None for name in CLIENT_TEXTS},
            "heard_ms_ago": each.heard_ms_ago,
            "subscriptions": dict(each.subscriptions),
            "lite_parent": each.lite_parent or None,
            **picked(each, "lite_topics", "messages", "queues", "attempt_max"),
        }
        for each in clients
    ]


def receivers_json(receivers: "Sequence[ReceiverFilter]") -> list[dict[str, Any]]:
    return [
        {
            "receiver": each.receiver,
            "topic": each.filter.topic,
            "filter": each.filter.expression,
            "heard_at_ms": each.heard_at_ms,
        }
        for each in receivers
    ]
