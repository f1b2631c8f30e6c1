"""`rockoon group`: create, update, list, describe, delete."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rockoon.cli.lag import lag_json, show_lag
from rockoon.cli.output import duration, local_time, print_json, print_table
from rockoon.cli.session import (
    DEFAULT_NAMESERVERS,
    AsJson,
    Nameservers,
    Yes,
    confirm,
    with_cluster,
)
from rockoon.cli.start_place import parse_start

if TYPE_CHECKING:
    from collections.abc import Callable

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
        help="Where it starts on queues older than its subscription; wins over the reader's.",
    ),
]
NewQueueRule = Annotated[
    str | None,
    typer.Option(
        metavar="exact|classic",
        help="When a queue counts as new to the group: exact, or as in RocketMQ.",
    ),
]
RetryAttempts = Annotated[
    int | None,
    typer.Option(
        min=0,
        metavar="N",
        help="How often what failed comes again before it is a dead letter (default: 16).",
    ),
]
RetryQueues = Annotated[
    int | None,
    typer.Option(
        min=0,
        metavar="N",
        help="Retry queues on each broker (default: 1); 0: what fails is a dead letter at once.",
    ),
]
BroadcastProgressOption = Annotated[
    str | None,
    typer.Option(
        "--broadcast-progress",
        metavar="local|server",
        help="Where members that read everything keep their progress: on their machines "
        "(default), or in the offset service, under each member's name.",
    ),
]

BelowMin = Annotated[
    str | None,
    typer.Option(
        metavar="first|last|fail",
        help="Where to go on when retention has overtaken it (default: first); fail: nowhere, "
        "until somebody resets it.",
    ),
]
AboveMax = Annotated[
    str | None,
    typer.Option(
        metavar="first|last|fail",
        help="The same for progress beyond the end of a log that lost its tail (default: last).",
    ),
]
OtherIncarnation = Annotated[
    str | None,
    typer.Option(
        metavar="first|last|fail",
        help="The same for progress on a topic that was deleted and created again "
        "(default: first).",
    ),
]

RETRY_ATTEMPTS_DEFAULT = 16
RULES = {"exact": "EXACT", "classic": "CLASSIC"}
OUT_OF_RANGE = {
    "first": "OUT_OF_RANGE_FIRST",
    "last": "OUT_OF_RANGE_LAST",
    "fail": "OUT_OF_RANGE_FAIL",
}
BROADCAST_PROGRESS = {"local": "BROADCAST_LOCAL", "server": "BROADCAST_SERVER"}


@app.command()
def create(
    name: Name,
    start: Start = None,
    new_queue_rule: NewQueueRule = None,
    retry_attempts_max: RetryAttempts = None,
    retry_queues: RetryQueues = None,
    broadcast_progress: BroadcastProgressOption = None,
    below_min: BelowMin = None,
    above_max: AboveMax = None,
    other_incarnation: OtherIncarnation = None,
    if_absent: Annotated[
        bool, typer.Option("--if-absent", help="Leave a group that exists as it is.")
    ] = False,
    as_json: AsJson = False,
    nameservers: Nameservers = DEFAULT_NAMESERVERS,
) -> None:
    """Create a consumer group. One that does not exist is also created by its first consumer."""
    config = group_config(
        name,
        start,
        new_queue_rule,
        retry_attempts_max,
        retry_queues,
        broadcast_progress,
        out_of_range(below_min, above_max, other_incarnation),
    )

    async def work(cluster: "Cluster") -> "Group":
        return await cluster.admin.create_group(config, if_absent=if_absent)

    group = with_cluster(nameservers, work)
    if as_json:
        print_json(config_json(group))
    else:
        print(f"group {name} starts from {policy_text(group.config)}")


@app.command()
def update(
    name: Name,
    start: Start = None,
    new_queue_rule: NewQueueRule = None,
    retry_attempts_max: RetryAttempts = None,
    retry_queues: RetryQueues = None,
    broadcast_progress: BroadcastProgressOption = None,
    below_min: BelowMin = None,
    above_max: AboveMax = None,
    other_incarnation: OtherIncarnation = None,
    as_json: AsJson = False,
    nameservers: Nameservers = DEFAULT_NAMESERVERS,
) -> None:
    """Change what is said of a group; the rest stays as it is."""
    changes = group_config(
        name,
        start,
        new_queue_rule,
        retry_attempts_max,
        retry_queues,
        broadcast_progress,
        out_of_range(below_min, above_max, other_incarnation),
    )
    if len(changes.ListFields()) == 1:
        raise typer.BadParameter("say what to change")

    def change(config: "GroupConfig") -> None:
        # A policy is replaced as a whole: half of an old one makes no sense.
        if changes.HasField("start_policy"):
            config.ClearField("start_policy")
        config.MergeFrom(changes)

    async def work(cluster: "Cluster") -> "Group":
        return await changed(cluster, name, change)

    group = with_cluster(nameservers, work)
    if as_json:
        print_json(config_json(group))
    else:
        print(
            f"group {name}: {retries_text(group.config)}, starts from {policy_text(group.config)}"
        )


@app.command()
def pause(name: Name, nameservers: Nameservers = DEFAULT_NAMESERVERS) -> None:
    """Keep a group from reading (consumeEnable = false); its members wait, progress stays."""
    set_paused(name, nameservers, paused=True)
    print(f"group {name} is paused: it reads nothing until rockoon group resume {name}")


@app.command()
def resume(name: Name, nameservers: Nameservers = DEFAULT_NAMESERVERS) -> None:
    """Let a paused group go on where it was."""
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
    """Change a group's configuration and leave alone what is not spoken of."""
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
        ("GROUP", "TOPICS", "STARTS FROM", "NEW-QUEUE RULE"),
        (
            (
                each.group.config.name,
                ", ".join(sorted(each.topics)) or None,
                policy_text(each.group.config),
                rule_text(each.group.config),
            )
            for each in groups
        ),
        empty="There are no consumer groups. One appears when a consumer subscribes.",
    )


@app.command()
def describe(
    name: Name, as_json: AsJson = False, nameservers: Nameservers = DEFAULT_NAMESERVERS
) -> None:
    """Show a group's topics, members that are alive, and lag."""

    async def work(cluster: "Cluster") -> "GroupDescription":
        return await cluster.admin.describe_group(name)

    said = with_cluster(nameservers, work)
    if as_json:
        print_json(
            config_json(said.group)
            | {
                "topics": dict(said.topics),
                "members": [
                    {
                        "member_id": member.member_id,
                        "mode": mode_text(member),
                        "peer": member.peer,
                        "joined_at_ms": member.joined_at_ms,
                        "heard_at_ms": member.heard_at_ms,
                        "subscriptions": {s.topic: s.expression for s in member.subscriptions},
                    }
                    for member in said.members
                ],
            }
            | lag_json(said.lag)
        )
        return
    from rockoon_proto.v1.nameserver_pb2 import BROADCAST_SERVER

    config = said.group.config
    print(f"group {name}: starts from {policy_text(config)}, new-queue rule {rule_text(config)}")
    print(retries_text(config))
    if policies := policies_text(config):
        print(policies)
    if config.consume_disabled:
        print(f"paused: nothing is read until rockoon group resume {name}")
    if config.broadcast_progress == BROADCAST_SERVER:
        print("progress of members that read everything is kept by the offset service")
    print(f"reads: {', '.join(sorted(said.topics)) or 'nothing yet'}\n")
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
            for each in said.members
        ),
        empty="Nobody is reading with it now.",
    )
    print()
    show_lag(said.lag)


@app.command()
def delete(name: Name, yes: Yes = False, nameservers: Nameservers = DEFAULT_NAMESERVERS) -> None:
    """Delete a group with its subscriptions, progress, retries and dead letters."""
    confirm(f"Delete group {name}, all its progress and its dead letters?", yes=yes)

    async def work(cluster: "Cluster") -> None:
        await cluster.admin.delete_group(name)

    with_cluster(nameservers, work)
    print(f"group {name} is deleted")


def group_config(
    name: str,
    start: str | None,
    new_queue_rule: str | None,
    retry_attempts_max: int | None,
    retry_queues: int | None,
    broadcast_progress: str | None,
    out_of_range: dict[str, Any],
) -> "GroupConfig":
    from rockoon_proto.v1.nameserver_pb2 import GroupConfig

    progress = chosen("--broadcast-progress", broadcast_progress, BROADCAST_PROGRESS)
    return GroupConfig(
        name=name,
        start_policy=parse_start(start).to_wire() if start is not None else None,
        new_queue_rule=chosen("--new-queue-rule", new_queue_rule, RULES),
        retry_attempts_max=retry_attempts_max,
        retry_queues=retry_queues,
        broadcast_progress=progress,
        **out_of_range,
    )


def out_of_range(
    below_min: str | None, above_max: str | None, other_incarnation: str | None
) -> dict[str, Any]:
    """The policies for progress that does not fit its queue, as fields of a GroupConfig."""
    return {
        "below_min": chosen("--below-min", below_min, OUT_OF_RANGE),
        "above_max": chosen("--above-max", above_max, OUT_OF_RANGE),
        "other_incarnation": chosen("--other-incarnation", other_incarnation, OUT_OF_RANGE),
    }


def chosen(option: str, text: str | None, names: dict[str, str]) -> str | None:
    """The name on the wire of what was chosen, if anything.

    Raises:
        typer.BadParameter: it is none of the names.
    """
    if text is None:
        return None
    if text not in names:
        raise typer.BadParameter(f"{text!r} is none of {', '.join(names)}", param_hint=option)
    return names[text]


def policies_text(config: "GroupConfig") -> str:
    """What is set for progress that does not fit, empty when nothing is."""
    names = {wire: name for name, wire in OUT_OF_RANGE.items()}
    said = [
        f"{field.replace('_', ' ')}: {names[each]}"
        for field, each in policy_names(config).items()
        if each in names
    ]
    return f"progress that does not fit: {', '.join(said)}" if said else ""


def policy_names(config: "GroupConfig") -> dict[str, str]:
    from rockoon_proto.v1.nameserver_pb2 import OutOfRangePolicy

    return {
        "below_min": OutOfRangePolicy.Name(config.below_min),
        "above_max": OutOfRangePolicy.Name(config.above_max),
        "other_incarnation": OutOfRangePolicy.Name(config.other_incarnation),
    }


def policy_text(config: "GroupConfig") -> str:
    from rockoon_proto.v1 import nameserver_pb2 as pb

    policy = config.start_policy
    texts = {
        pb.CONSUME_FROM_UNSPECIFIED: "where its readers say",
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


def retries_text(config: "GroupConfig") -> str:
    attempts = attempts_of(config)
    if config.HasField("retry_queues") and config.retry_queues == 0:
        attempts = 0
    if attempts == 0:
        return "what fails is a dead letter at once"
    return f"what fails comes again {attempts} times"


def attempts_of(config: "GroupConfig") -> int:
    return (
        config.retry_attempts_max
        if config.HasField("retry_attempts_max")
        else RETRY_ATTEMPTS_DEFAULT
    )


def rule_text(config: "GroupConfig") -> str:
    names = {rule: name for name, rule in RULES.items()}
    return names.get(rule_name(config), "the cluster's")


def rule_name(config: "GroupConfig") -> str:
    from rockoon_proto.v1.nameserver_pb2 import NewQueueRule

    return str(NewQueueRule.Name(config.new_queue_rule))


def config_json(group: "Group") -> dict[str, Any]:
    from rockoon_proto.v1.nameserver_pb2 import BROADCAST_SERVER, ConsumeFrom

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
        "new_queue_rule": rule_name(config),
        "out_of_range": policy_names(config),
        "consume_disabled": config.consume_disabled,
        "broadcast_progress": (
            "server" if config.broadcast_progress == BROADCAST_SERVER else "local"
        ),
        "retry_attempts_max": attempts_of(config),
        "retry_queues": config.retry_queues if config.HasField("retry_queues") else 1,
        "attributes": dict(config.attributes),
    }
