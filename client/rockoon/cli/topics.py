"""`rockoon topic`: creates, lists, describes, changes, expands and deletes topics."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rockoon.cli.arguments import parse_counts, parse_pairs
from rockoon.cli.output import (
    local_time,
    optional_field,
    picked,
    print_json,
    print_rows,
    print_table,
)
from rockoon.cli.session import (
    DEFAULT_NAMESERVERS,
    AsJson,
    Nameservers,
    Work,
    Yes,
    confirm,
    shown,
    with_admin,
    with_cluster,
)

if TYPE_CHECKING:
    from rockoon.admin.descriptions import QueueEnds
    from rockoon.cluster import Cluster
    from rockoon.net.routes import TopicRoute

app = typer.Typer(no_args_is_help=True, help="Create, show, expand and delete topics.")

Name = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")]
Placements = Annotated[
    list[str] | None,
    typer.Option("--add", metavar="BROKER=QUEUES", help="Queues on this broker. Repeatable."),
]

PERMISSIONS = {"rw": 6, "r": 4, "w": 2}
PERMISSION_NAMES = {value: name for name, value in PERMISSIONS.items()}


def show_route(route: "TopicRoute") -> None:
    count: dict[str, int] = {}
    for queue in route.queues:
        count[queue.broker] = count.get(queue.broker, 0) + 1
    counts = ", ".join(f"{number} on {broker}" for broker, number in count.items())
    print(f"topic {route.name} has {len(route.queues)} queues: {counts or 'none yet'}")


def route_json(route: "TopicRoute") -> dict[str, Any]:
    return {
        "topic": route.name,
        "permissions": PERMISSION_NAMES.get(route.permissions, str(route.permissions)),
        "attributes": dict(route.attributes),
        "incarnation": route.incarnation,
        "modified_revision": route.modified_revision,
        "queues": [
            {
                **picked(queue, "broker", "queue_id"),
                "create_revision": route.create_revisions[queue],
            }
            for queue in route.queues
        ],
    }


def show_routes(routes: "list[TopicRoute]") -> None:
    print_rows(
        routes,
        {
            "TOPIC": lambda route: route.name,
            "QUEUES": lambda route: len(route.queues),
            "BROKERS": lambda route: ", ".join(sorted({q.broker for q in route.queues})) or None,
            "PERMISSIONS": lambda route: PERMISSION_NAMES.get(route.permissions, route.permissions),
        },
        numbers=("QUEUES",),
        empty="There are no topics. To create one: `rockoon topic create NAME`.",
    )


def show_attributes(route: "TopicRoute") -> None:
    print(f"topic {route.name}: permissions {PERMISSION_NAMES.get(route.permissions, '')}")
    for key, value in route.attributes.items():
        print(f"  {key} = {value}")


@app.command()
@shown(show_route, route_json)
def create(
    name: Name,
    queues: Annotated[int, typer.Option(min=1, max=4096, help="Queues on each live broker.")] = 4,
    on: Placements = None,
    permissions: Annotated[
        str, typer.Option(metavar="rw|r|w", help="Whether clients may read, write, or both.")
    ] = "rw",
    attribute: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE", help="Attribute, e.g. cleanup.policy=COMPACTION. Repeatable."
        ),
    ] = None,
    if_absent: Annotated[
        bool, typer.Option("--if-absent", help="No error if the topic exists; it is not changed.")
    ] = False,
) -> "Work[TopicRoute]":
    """Create a topic."""
    permission_bits = bits_of(permissions)
    placements = parse_counts(on or (), "BROKER=QUEUES")
    attributes = parse_pairs(attribute or (), "NAME=VALUE")

    return lambda admin: admin.create_topic(
        name,
        queues_per_broker=queues,
        placements=placements,
        permissions=permission_bits,
        attributes=attributes,
        if_absent=if_absent,
    )


@app.command("list")
@shown(show_routes, lambda routes: [route_json(route) for route in routes])
def list_topics(
    everything: Annotated[
        bool, typer.Option("--all", help="Also %RETRY%..., %DLQ%... and %LITE%... topics.")
    ] = False,
) -> "Work[list[TopicRoute]]":
    """List topics."""
    return lambda admin: admin.list_topics(include_system=everything)


@app.command()
def describe(
    name: Name,
    residency: Annotated[
        bool,
        typer.Option(
            "--residency",
            help="Also show whether each queue's oldest message is in its broker's memory: by its "
            "distance to the log's end (used by the classic start rule), and by its pages.",
        ),
    ] = False,
    as_json: AsJson = False,
    nameservers: Nameservers = DEFAULT_NAMESERVERS,
) -> None:
    """Show a topic's queues, their messages, and the groups that read them."""
    description = with_admin(
        nameservers, lambda admin: admin.describe_topic(name, with_residency=residency)
    )
    if as_json:
        queues = [queue_json(ends) for ends in description.queues]
        print_json(
            route_json(description.route) | {"queues": queues, "groups": list(description.groups)}
        )
        return
    route = description.route
    print(f"topic {route.name}: {len(route.queues)} queues", end="")
    print(f", permissions {PERMISSION_NAMES.get(route.permissions, route.permissions)}")
    for key, value in route.attributes.items():
        print(f"  {key} = {value}")
    print(f"read by: {', '.join(description.groups) or 'no group'}\n")
    compacted = route.compacted or any(has_compacted(ends) for ends in description.queues)
    more: tuple[str, ...] = ("COMPACTED TO", "LEFT") if compacted else ()
    more += ("IN MEMORY BY DISTANCE", "BY PAGES") if residency else ()
    print_table(
        ("BROKER", "QUEUE", "OLDEST", "END", "MESSAGES", "LAST MESSAGE STORED", *more),
        (
            queue_row(ends)
            + (compacted_cells(ends) if compacted else ())
            + (residency_cells(ends) if residency else ())
            for ends in description.queues
        ),
        numbers=("QUEUE", "OLDEST", "END", "MESSAGES", "COMPACTED TO", "LEFT"),
        empty="It has no queues.",
    )


@app.command("set")
@shown(show_attributes, route_json)
def set_attributes(
    name: Name,
    attribute: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Attribute to set; NAME= removes it. Repeatable."),
    ] = None,
    permissions: Annotated[
        str | None, typer.Option(metavar="rw|r|w", help="Whether clients may read, write, or both.")
    ] = None,
) -> "Work[TopicRoute]":
    """Change a topic's attributes or permissions.

    With cleanup.policy=COMPACTION, new messages need a key, and the newest message of each key is
    kept. With DELETE, messages are deleted by age again, and compacted messages are deleted by the
    next run of `rockoon spark compact`.
    """
    permission_bits = 0 if permissions is None else bits_of(permissions)
    attributes = parse_pairs(attribute or (), "NAME=VALUE")
    if not attributes and permissions is None:
        raise typer.BadParameter("name a change: --attribute or --permissions")
    return lambda admin: admin.update_topic(
        name, permissions=permission_bits, attributes=attributes
    )


@app.command()
def expand(
    name: Name,
    queues: Annotated[
        int | None,
        typer.Option(min=1, max=4096, help="Queues to add on every live broker."),
    ] = None,
    on: Placements = None,
    as_json: AsJson = False,
    nameservers: Nameservers = DEFAULT_NAMESERVERS,
) -> None:
    """Add queues to a topic, on brokers that have queues of it or on new ones."""
    placements = parse_counts(on or (), "BROKER=QUEUES")
    if (queues is None) == (not placements):
        raise typer.BadParameter("set either --queues (per broker) or --add BROKER=QUEUES")

    async def work(cluster: "Cluster") -> "TopicRoute":
        from rockoon_proto.v1.nameserver_pb2 import BROKER

        brokers = [node.name for node in cluster.routes.nodes if node.kind == BROKER]
        add = placements or dict.fromkeys(brokers, queues or 0)
        return await cluster.admin.update_topic(name, add=add)

    route = with_cluster(nameservers, work)
    if as_json:
        print_json(route_json(route))
    else:
        show_route(route)


@app.command()
def delete(name: Name, yes: Yes = False, nameservers: Nameservers = DEFAULT_NAMESERVERS) -> None:
    """Delete a topic with its messages and all progress on it."""
    confirm(f"Delete topic {name} with its messages and the progress of all groups?", yes=yes)

    with_admin(nameservers, lambda admin: admin.delete_topic(name))
    print(f"topic {name} is deleted")


def bits_of(permissions: str) -> int:
    if permissions not in PERMISSIONS:
        raise typer.BadParameter(
            f"{permissions!r} is not one of rw, r, w", param_hint="--permissions"
        )
    return PERMISSIONS[permissions]


def queue_json(ends: "QueueEnds") -> Mapping[str, Any]:
    fields: dict[str, Any] = {
        **picked(ends.queue, "broker", "queue_id"),
        "create_revision": ends.create_revision,
    }
    sentence = why_unknown(ends)
    if ends.state is None or sentence:
        return fields | {"error": sentence}
    state = ends.state
    return fields | {
        **picked(state, "min_offset", "max_offset"),
        "first_store_timestamp_ms": optional_field(state, "first_store_timestamp_ms"),
        "last_store_timestamp_ms": optional_field(state, "last_store_timestamp_ms"),
        "compacted_to_offset": compacted_cells(ends)[0],
        "compacted_records": compacted_cells(ends)[1],
        "first_in_memory_by_distance": residency_of(ends)[0],
        "first_pages_resident": residency_of(ends)[1],
    }


def queue_row(ends: "QueueEnds") -> tuple[Any, ...]:
    broker, queue_id, state = ends.queue.broker, ends.queue.queue_id, ends.state
    sentence = why_unknown(ends)
    if state is None or sentence:
        return (broker, queue_id, None, None, None, sentence)
    messages = state.max_offset - state.min_offset
    last = local_time(state.last_store_timestamp_ms)
    return (broker, queue_id, state.min_offset, state.max_offset, messages, last)


def has_compacted(ends: "QueueEnds") -> bool:
    return ends.state is not None and ends.state.HasField("compacted_to_offset")


def compacted_cells(ends: "QueueEnds") -> tuple[int | None, int | None]:
    """Return the offset up to which a queue is compacted, and how many messages remain there."""
    if ends.state is None or not has_compacted(ends):
        return None, None
    return ends.state.compacted_to_offset, ends.state.compacted_records


def residency_of(ends: "QueueEnds") -> tuple[bool | None, bool | None]:
    """Return whether a queue's oldest message is in the broker's memory: estimated by its distance
    from the log's end, and measured by its pages. None: unknown, not requested, or the queue is
    empty."""
    if ends.state is None:
        return None, None
    return (
        optional_field(ends.state, "first_in_memory_by_distance"),
        optional_field(ends.state, "first_pages_resident"),
    )


def residency_cells(ends: "QueueEnds") -> tuple[str | None, ...]:
    words = {True: "yes", False: "no", None: None}
    return tuple(words[each] for each in residency_of(ends))


def why_unknown(ends: "QueueEnds") -> str:
    return str(ends.error) if ends.state is None else ""
