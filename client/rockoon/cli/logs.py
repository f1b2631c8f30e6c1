"""`rockoon log` and `rockoon replica`: copies of logs, who leads them, what to do in a disaster."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rockoon.cli.output import print_json, print_table
from rockoon.cli.session import (
    DEFAULT_NAMESERVERS,
    AsJson,
    Nameservers,
    Yes,
    confirm,
    with_cluster,
)

if TYPE_CHECKING:
    from rockoon.admin.logs import LogDescription, ReplicaDescription
    from rockoon.cluster import Cluster

app = typer.Typer(no_args_is_help=True, help="Logs and their copies: show, elect, adopt.")
replica_app = typer.Typer(no_args_is_help=True, help="One copy of a log: replace it.")

LogName = Annotated[str, typer.Argument(metavar="LOG", help="Name of the log, as broker-a.")]
REPLICA_HELP = "Name of the replica, as broker-a-0, or its id."
AcceptLoss = Annotated[
    bool,
    typer.Option(
        "--accept-loss", help="Go on without the replicas that are away, and what only they have."
    ),
]


@app.command("list")
def list_logs(as_json: AsJson = False, nameservers: Nameservers = DEFAULT_NAMESERVERS) -> None:
    """List logs: who leads each, and how many of its copies are in sync and alive."""

    async def work(cluster: "Cluster") -> "list[LogDescription]":
        return list(await cluster.admin.logs.list())

    found = with_cluster(nameservers, work)
    if as_json:
        print_json([log_json(each) for each in found])
        return
    print_table(
        ("LOG", "EPOCH", "LEADER", "IN SYNC", "ALIVE", "STATE"),
        (
            (
                each.name,
                each.epoch,
                each.leader.name if each.leader else None,
                f"{len(each.in_sync)} of {each.copies}",
                sum(replica.address is not None for replica in each.in_sync),
                state(each),
            )
            for each in found
        ),
        empty="there are no logs: no broker has registered yet",
        numbers=("EPOCH", "ALIVE"),
    )


@app.command()
def describe(
    log: LogName, as_json: AsJson = False, nameservers: Nameservers = DEFAULT_NAMESERVERS
) -> None:
    """Show a log and each of its copies."""

    async def work(cluster: "Cluster") -> "LogDescription":
        return await cluster.admin.logs.describe(log)

    show(with_cluster(nameservers, work), as_json=as_json)


@app.command()
def elect(
    log: LogName,
    accept_loss: AcceptLoss = False,
    yes: Yes = False,
    as_json: AsJson = False,
    nameservers: Nameservers = DEFAULT_NAMESERVERS,
) -> None:
    """Have the copies elect a leader anew.

    With --accept-loss, end an election that is on and cannot end by itself, because too many copies
    are gone for good: the best of those that are left leads.
    """

    async def work(cluster: "Cluster") -> "LogDescription":
        found = await cluster.admin.logs.describe(log)
        # The loop stands still while somebody thinks; it has nothing else to do.
        confirm(price(found) if accept_loss else f"Begin an election of log {log}?", yes=yes)
        return await cluster.admin.logs.elect(
            log, accept_loss=accept_loss, expected_version=found.version
        )

    show(with_cluster(nameservers, work), as_json=as_json)


@app.command()
def adopt(
    log: LogName,
    in_sync: Annotated[
        str,
        typer.Option(
            metavar="ID,ID,...",
            show_default=False,
            help="The replicas that count, when none of them remembers who they were.",
        ),
    ] = "",
    accept_loss: AcceptLoss = False,
    yes: Yes = False,
    as_json: AsJson = False,
    nameservers: Nameservers = DEFAULT_NAMESERVERS,
) -> None:
    """Let a frozen log go on, after etcd was restored from a backup."""
    chosen = [each.strip() for each in in_sync.split(",") if each.strip()]
    confirm(f"Adopt log {log} as its replicas know it?", yes=yes)

    async def work(cluster: "Cluster") -> "LogDescription":
        return await cluster.admin.logs.adopt(log, chosen, accept_loss=accept_loss)

    show(with_cluster(nameservers, work), as_json=as_json)


@replica_app.command()
def replace(
    log: LogName,
    leaves: Annotated[str, typer.Argument(metavar="OLD", help=REPLICA_HELP)],
    joins: Annotated[str, typer.Argument(metavar="NEW", help=REPLICA_HELP)],
    withdraw: Annotated[
        bool, typer.Option("--withdraw", help="Do not ask for it any more.")
    ] = False,
    as_json: AsJson = False,
    nameservers: Nameservers = DEFAULT_NAMESERVERS,
) -> None:
    """Ask for NEW in the place of OLD; the leader makes the change when nothing is lost by it."""

    async def work(cluster: "Cluster") -> "LogDescription":
        found = await cluster.admin.logs.describe(log)
        old, new = found.replica(leaves).id, found.replica(joins).id
        return await cluster.admin.logs.replace(log, old, new, withdraw=withdraw)

    show(with_cluster(nameservers, work), as_json=as_json)


def price(log: "LogDescription") -> str:
    """What a forced election may cost, and the question whether to pay it."""
    told = [
        f"{each.name} ends at {each.reported[1]} in epoch {each.reported[0]}"
        for each in log.replicas
        if each.reported is not None
    ]
    silent = [each.name for each in log.in_sync if each.reported is None]
    return (
        f"Of log {log.name}, {'; '.join(told) or 'nobody has said what it has'}. What only "
        f"{', '.join(silent) or 'nobody else'} may have is lost, acknowledged messages too. Go on?"
    )


def show(log: "LogDescription", *, as_json: bool) -> None:
    if as_json:
        print_json(log_json(log))
        return
    print(f"log {log.name}: {state(log)}")
    print(f"  epoch {log.epoch}, {log.quorum} of {len(log.in_sync)} copies commit a message")
    if log.losses:
        print(f"  a loss was accepted {log.losses} times")
    for leaves, joins in log.moves:
        print(f"  {joins} is to take the place of {leaves}")
    print_table(
        ("REPLICA", "ID", "IS", "ADDRESS", "RACK", "LOG ENDS AT"),
        (
            (
                each.name,
                each.id,
                role(each),
                each.address or "AWAY",
                each.rack or None,
                f"{each.reported[1]} in epoch {each.reported[0]}" if each.reported else None,
            )
            for each in log.replicas
        ),
        empty="  it has no replicas",
    )


def state(log: "LogDescription") -> str:
    if log.frozen:
        return f"FROZEN: {log.frozen}"
    if not log.epoch:
        return f"waits for {log.copies - len(log.replicas)} more replicas"
    if log.leader is None:
        return "WITHOUT LEADER: an election is on"
    return "led" if log.confirmed else "led, nothing committed in this epoch yet"


def role(replica: "ReplicaDescription") -> str:
    if replica.is_leader:
        return "leader"
    return "in sync" if replica.in_sync else "learner"


def log_json(log: "LogDescription") -> dict[str, Any]:
    return {
        "log": log.name,
        "version": log.version,
        "epoch": log.epoch,
        "leader": log.leader.id if log.leader else None,
        "confirmed": log.confirmed,
        "quorum": log.quorum,
        "copies": log.copies,
        "replicas": [
            {
                "id": each.id,
                "name": each.name,
                "rack": each.rack,
                "address": each.address,
                "in_sync": each.in_sync,
                "reported": list(each.reported) if each.reported else None,
            }
            for each in log.replicas
        ],
        "moves": [{"leaves": leaves, "joins": joins} for leaves, joins in log.moves],
        "losses": log.losses,
        "frozen": log.frozen,
    }
