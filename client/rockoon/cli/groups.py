"""`rockoon group`: creates, updates, lists, describes, pauses and deletes consumer groups."""

from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from rockoon.cli.arguments import parse_pairs, parse_start
from rockoon.cli.group_settings import (
    RETRY_DELAYS,
    Settings,
    delays_text,
    settings_json,
    settings_text,
    with_setting_options,
)
from rockoon.cli.lag import lag_json, show_lag
from rockoon.cli.output import duration, local_time, print_json, print_table
from rockoon.cli.receivers import clients_json, receivers_json, show_clients, show_conflicts
from rockoon.cli.session import (
    DEFAULT_NAMESERVERS,
    AsJson,
    Nameservers,
    Yes,
    confirm,
    with_cluster,
)
from rockoon_core.group_settings import GROUP_SETTINGS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rockoon.admin.descriptions import GroupDescription, GroupSummary
    from rockoon.cluster import Cluster
    from rockoon_proto.v1.nameserver_pb2 import Group, GroupConfig
    from rockoon_proto.v1.offset_pb2 import Member

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


@app.command()
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
    as_json: AsJson = False,
    nameservers: Nameservers = DEFAULT_NAMESERVERS,
) -> None:
    """Create a consumer group. The first consumer of a group also creates it."""
    config = group_config(name, start, settings)
    config.attributes.update(parse_pairs(attribute or (), "NAME=VALUE"))

    async def work(cluster: "Cluster") -> "Group":
        return await cluster.admin.create_group(config, if_absent=if_absent)

    group = with_cluster(nameservers, work)
    if as_json:
        print_json(config_json(group))
    else:
        print(f"group {name} starts from {policy_text(group.config)}")


@app.command()
@with_setting_options
def update(
    name: Name,
    start: Start = None,
    *,
    settings: Settings,
    attribute: Attributes = None,
    as_json: AsJson = False,
    nameservers: Nameservers = DEFAULT_NAMESERVERS,
) -> None:
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

    async def work(cluster: "Cluster") -> "Group":
        return await changed(cluster, name, change)

    group = with_cluster(nameservers, work)
    if as_json:
        print_json(config_json(group))
    else:
        texts = [f"starts from {policy_text(group.config)}", settings_text(group.config)]
        print(f"group {name}: {', '.join(filter(None, texts))}")


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

    async def work(cluster: "Cluster") -> None:
        await changed(cluster, name, change)

    with_cluster(nameservers, work)


async def changed(
    cluster: "Cluster", name: str, change: "Callable[[GroupConfig], None]"
) -> "Group":
    """Change a group's configuration; fields that `change` does not set keep their values."""
    config = (await cluster.admin.get_group(name)).group.config
    change(config)
    return await cluster.admin.update_group(config)


@app.command("list")
def list_groups(as_json: AsJson = False, nameservers: Nameservers = DEFAULT_NAMESERVERS) -> None:
    """List consumer groups and the topics they read."""

    async def work(cluster: "Cluster") -> "list[GroupSummary]":
        return await cluster.admin.list_groups()

    groups = with_cluster(nameservers, work)
    if as_json:
        print_json([config_json(each.group) | {"topics": dict(each.topics)} for each in groups])
        return
    print_table(
        ("GROUP", "TOPICS", "STARTS FROM", "SETTINGS"),
        (
            (
                each.group.config.name,
                ", ".join(sorted(each.topics)) or None,
                policy_text(each.group.config),
                settings_text(each.group.config) or None,
            )
            for each in groups
        ),
        empty="There are no consumer groups. One appears when a consumer subscribes.",
    )


@app.command()
def describe(
    name: Name, as_json: AsJson = False, nameservers: Nameservers = DEFAULT_NAMESERVERS
) -> None:
    """Show a group's topics, live members, clients with their filters, and lag."""
    from rockoon.consumer.group_view import contradictions

    async def work(cluster: "Cluster") -> "GroupDescription":
        return await cluster.admin.describe_group(name)

    description = with_cluster(nameservers, work)
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
                        "peer": member.peer,
                        "joined_at_ms": member.joined_at_ms,
                        "heard_at_ms": member.heard_at_ms,
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


def show_members(members: "Iterable[Member]") -> None:
    print_table(
        ("MEMBER", "MODE", "FROM", "JOINED", "LAST HEARD"),
        (
            (
                each.member_id,
                mode_text(each),
                each.peer,
                local_time(each.joined_at_ms),
                local_time(each.heard_at_ms),
            )
            for each in members
        ),
        empty="It has no members.",
    )


@app.command()
def delete(name: Name, yes: Yes = False, nameservers: Nameservers = DEFAULT_NAMESERVERS) -> None:
    """Delete a group with its subscriptions, progress, retries and dead letters."""
    confirm(f"Delete group {name}, all its progress and its dead letters?", yes=yes)

    async def work(cluster: "Cluster") -> None:
        await cluster.admin.delete_group(name)

    with_cluster(nameservers, work)
    print(f"group {name} is deleted")


def group_config(name: str, start: str | None, settings: Settings) -> "GroupConfig":
    from rockoon_proto.v1.nameserver_pb2 import GroupConfig

    policy = parse_start(start).to_wire() if start is not None else None
    # Enums are passed by name, for which the typed stubs have no common type.
    return GroupConfig(name=name, start_policy=policy, **cast("Any", settings))


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


def mode_text(member: "Member") -> str:
    from rockoon_proto.v1.offset_pb2 import BROADCASTING

    return "broadcasting" if member.mode == BROADCASTING else "clustering"


def config_json(group: "Group") -> dict[str, Any]:
    from rockoon_proto.v1.nameserver_pb2 import ConsumeFrom

    config = group.config
    policy = config.start_policy
    return {
        "group": config.name,
        "incarnation": group.incarnation,
        "start_policy": {
            "consume_from": ConsumeFrom.Name(policy.consume_from),
            "timestamp_ms": policy.timestamp_ms,
            "tail_messages": policy.tail_messages,
            "duration_ms": policy.duration_ms,
        },
        **settings_json(config),
        "retry_delays_ms": list(config.retry_delays_ms),
        "consume_disabled": config.consume_disabled,
        "attributes": dict(config.attributes),
    }
