"""`rockoon log` and `rockoon replica`: replicated logs, their leaders, and disaster recovery."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rockoon.cli.output import for_humans, picked, print_json, print_rows
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

if TYPE_CHECKING:
    from rockoon.admin.admin import Admin
    from rockoon.admin.logs import LogDescription, ReplicaDescription, ReplicaStanding
    from rockoon.cluster import Cluster

app = typer.Typer(no_args_is_help=True, help="Show and repair replicated logs.")
replica_app = typer.Typer(no_args_is_help=True, help="Replace or remove a copy of a log.")

# Shorter lags are normal: records are on their way to the copy.
BEHIND_SECONDS = 1

LogName = Annotated[str, typer.Argument(metavar="LOG", help="Name of the log: broker-a.")]
REPLICA_HELP = "Name of the replica (broker-a-0), or its id."
AcceptLoss = Annotated[
    bool,
    typer.Option(
        "--accept-loss", help="Proceed without unreachable replicas and the records only they have."
    ),
]


def show_logs(logs: "Sequence[LogDescription]") -> None:
    print_rows(
        logs,
        {
            "LOG": lambda each: each.name,
            "EPOCH": lambda each: each.epoch,
            "LEADER": lambda each: each.leader.name if each.leader else None,
            "IN SYNC": lambda each: f"{len(each.in_sync)} of {each.copies}",
            "ALIVE": lambda each: sum(copy.address is not None for copy in each.in_sync),
            "STATE": state,
        },
        empty="there are no logs: no broker has registered yet",
        numbers=("EPOCH", "ALIVE"),
    )


def show(
    log: "LogDescription",
    standings: "Mapping[str, ReplicaStanding] | None" = None,
) -> None:
    """Print a log. `standings`: status reports of its copies; None if the copies were not asked."""
    reports = standings or {}
    print(f"log {log.name}: {state(log)}")
    print(f"  epoch {log.epoch}, {log.quorum} of {len(log.in_sync)} copies commit a message")
    if log.losses:
        print(f"  losses accepted: {log.losses}")
    if 0 < len(log.in_sync) != log.copies:
        kept = f"; {log.stays} is kept" if log.stays else ""
        print(f"  requested number of copies in sync: {log.copies}{kept}")
    for sentence in pending_requests(log):
        print(f"  {sentence}")
    print_rows(
        log.replicas,
        {
            "REPLICA": lambda each: each.name,
            "ID": lambda each: each.id,
            "IS": role,
            "ADDRESS": lambda each: "AWAY" if each.address is None else each.address or None,
            "RACK": lambda each: each.rack or None,
            "LOG ENDS AT": lambda each: ends_at(each, reports.get(each.id)),
        },
        empty="  it has no replicas",
    )
    if standings is not None and log.has_copies:
        for sentence in troubles(log, reports):
            print(sentence)


def log_json(
    log: "LogDescription", standings: "Mapping[str, ReplicaStanding] | None" = None
) -> dict[str, Any]:
    reports = standings or {}
    return {
        "log": log.name,
        **picked(log, "version", "epoch"),
        "leader": log.leader.id if log.leader else None,
        **picked(log, "confirmed", "quorum", "copies"),
        "stays": log.stays or None,
        "replicas": [
            {
                **picked(each, "id", "name", "rack", "address", "in_sync"),
                "reported": list(each.reported) if each.reported else None,
                **picked(each, "reported_damaged", "halted"),
                "standing": asdict(reports[each.id]) if each.id in reports else None,
            }
            for each in log.replicas
        ],
        "moves": [{"leaves": leaves, "joins": joins} for leaves, joins in log.moves],
        **picked(log, "losses", "frozen", "held"),
    }


def show_with_standings(found: "tuple[LogDescription, Mapping[str, ReplicaStanding]]") -> None:
    show(*found)


@app.command("list")
@shown(show_logs, lambda found: [log_json(each) for each in found])
def list_logs() -> "Work[Sequence[LogDescription]]":
    """List logs with their leaders, and how many of their copies are in sync and alive."""
    return lambda admin: admin.logs.list()


@app.command()
@shown(show_with_standings, lambda found: log_json(*found))
def describe(log: LogName) -> "Work[tuple[LogDescription, Mapping[str, ReplicaStanding]]]":
    """Show a log and each of its copies: how far it is behind, and why."""

    async def work(admin: "Admin") -> "tuple[LogDescription, Mapping[str, ReplicaStanding]]":
        found = await admin.logs.describe(log)
        return found, await admin.logs.ask_replicas(found)

    return work


@app.command()
@shown(show, log_json)
def copies(
    log: LogName,
    count: Annotated[int, typer.Argument(metavar="COPIES", min=1, max=7, help="Number of copies.")],
    stays: Annotated[
        str,
        typer.Option(
            "--stays",
            metavar="REPLICA",
            show_default=False,
            help="Replica to keep when the number falls (default: the leader).",
        ),
    ] = "",
) -> "Work[LogDescription]":
    """Change the number of copies; the leader does so once no message is lost by it."""

    async def work(admin: "Admin") -> "LogDescription":
        chosen = (await admin.logs.describe(log)).replica(stays).id if stays else ""
        return await admin.logs.set_copies(log, count, chosen)

    return work


@app.command()
def elect(
    log: LogName,
    accept_loss: AcceptLoss = False,
    yes: Yes = False,
    as_json: AsJson = False,
    nameservers: Nameservers = DEFAULT_NAMESERVERS,
) -> None:
    """Make the copies elect a leader again.

    If too many copies are lost, an election cannot complete: --accept-loss completes it with the
    copies that have reported. It chooses an undamaged copy if there is one, and among several the
    copy with the most records.
    """

    async def work(cluster: "Cluster") -> "tuple[LogDescription, LogDescription]":
        found = await cluster.admin.logs.describe(log)
        # The prompt blocks the event loop, which has no other work.
        confirm(
            loss_question(found) if accept_loss else f"Start an election of log {log}?", yes=yes
        )
        return found, await cluster.admin.logs.elect(
            log, accept_loss=accept_loss, expected_version=found.version
        )

    found, after = with_cluster(nameservers, work)
    if accept_loss and not as_json:
        print(result_of_election(found, after))
    if as_json:
        print_json(log_json(after))
    else:
        show(after)


@app.command()
@shown(show, log_json)
def adopt(
    log: LogName,
    in_sync: Annotated[
        str,
        typer.Option(
            metavar="ID,ID,...",
            show_default=False,
            help="Replicas in sync, if no replica knows its group any more.",
        ),
    ] = "",
    accept_loss: AcceptLoss = False,
    yes: Yes = False,
) -> "Work[LogDescription]":
    """Resume a frozen log after etcd was restored from a backup."""
    chosen = [each.strip() for each in in_sync.split(",") if each.strip()]
    confirm(f"Adopt log {log} as its replicas know it?", yes=yes)
    return lambda admin: admin.logs.adopt(log, chosen, accept_loss=accept_loss)


@replica_app.command()
@shown(show, log_json)
def replace(
    log: LogName,
    leaves: Annotated[str, typer.Argument(metavar="OLD", help=REPLICA_HELP)],
    joins: Annotated[str, typer.Argument(metavar="NEW", help=REPLICA_HELP)],
    withdraw: Annotated[
        bool, typer.Option("--withdraw", help="Withdraw an earlier request.")
    ] = False,
) -> "Work[LogDescription]":
    """Replace OLD by NEW; the leader does so once no message is lost by it."""

    async def work(admin: "Admin") -> "LogDescription":
        found = await admin.logs.describe(log)
        old, new = found.replica(leaves).id, found.replica(joins).id
        return await admin.logs.replace(log, old, new, withdraw=withdraw)

    return work


@replica_app.command()
@shown(show, log_json)
def remove(
    log: LogName,
    replica: Annotated[str, typer.Argument(metavar="REPLICA", help=REPLICA_HELP)],
) -> "Work[LogDescription]":
    """Remove a replica that is not in sync and not running; its store is refused from then on."""

    async def work(admin: "Admin") -> "LogDescription":
        found = await admin.logs.describe(log)
        return await admin.logs.remove(log, found.replica(replica).id)

    return work


def loss_question(log: "LogDescription") -> str:
    """Return the possible losses of a forced election, and the question whether to accept them."""
    reports = [
        f"{each.name} {reported(each)}" for each in log.replicas if each.reported is not None
    ]
    silent = [each.name for each in log.in_sync if each.reported is None]
    lost = (
        f"Records that only {', '.join(silent)} may have are lost, acknowledged messages too."
        if silent
        else "All copies have reported."
    )
    return (
        f"Log {log.name}: {'; '.join(reports) or 'no copy has reported its records'}. An undamaged "
        f"copy is elected if there is one, among several the one with the most records. {lost} "
        "Elect it?"
    )


def reported(replica: "ReplicaDescription") -> str:
    epoch, end = replica.reported or (0, 0)
    damage = ", and is damaged" if replica.reported_damaged else ""
    doubt = "" if replica.reported_sound else ", and may lack records it acknowledged"
    return f"ends at {end} in epoch {epoch}{damage}{doubt}"


def result_of_election(before: "LogDescription", after: "LogDescription") -> str:
    """Return which copy a forced election has chosen, and which records are lost."""
    leader = after.leader
    chosen = next((each for each in before.replicas if leader and each.id == leader.id), None)
    if chosen is None or chosen.reported is None:
        return f"log {after.name}: another election has started since"
    lost = [
        f"records of {each.name}, which {reported(each)}, after {chosen.reported[1]}"
        for each in before.replicas
        if each.reported is not None and each.reported > chosen.reported
    ]
    silent = [each.name for each in before.in_sync if each.reported is None]
    if silent:
        lost.append(f"records that only {', '.join(silent)} may have: not known how many")
    losses = "; ".join(lost) or "nothing that a copy in sync has reported"
    return f"log {after.name}: {chosen.name} leads, its log {reported(chosen)}. Lost: {losses}."


def pending_requests(log: "LogDescription") -> Iterator[str]:
    """Yield requested changes that are not made yet, and the reason for each delay."""
    known = {each.id: each for each in log.replicas}
    for leaves, joins in log.moves:
        new, old = (known[each].name if each in known else each for each in (joins, leaves))
        if new == old:
            new, old = f"{new} ({joins})", f"the former one ({leaves})"
        yield f"{new} is to replace {old}"
        if joins in known and known[joins].address is None:
            yield f"... but {new} is AWAY: start it"
    has_leader = log.leader is not None and log.leader.address is not None
    if (log.moves or len(log.in_sync) != log.copies) and not has_leader:
        yield "... which the leader does, once there is one"


def ends_at(replica: "ReplicaDescription", standing: "ReplicaStanding | None") -> str | None:
    if replica.reported is not None:
        return f"{replica.reported[1]} in epoch {replica.reported[0]}"
    return str(standing.end) if standing is not None else None


def troubles(log: "LogDescription", standings: "Mapping[str, ReplicaStanding]") -> Iterator[str]:
    """Yield the problems of each copy: its lag and the reason, or why it is out of service."""
    others = next((each.others for each in standings.values() if each.leads), {})
    names = {each.id: each.name for each in log.replicas}
    waits = {joins: names.get(leaves, leaves) for leaves, joins in log.moves}
    for each in log.replicas:
        standing, lag, found = standings.get(each.id), others.get(each.id), []
        if each.halted:
            found.append(f"HALTED: {each.halted}; rescue its records, then empty its store")
        elif each.address is None:
            found.append("its process is not running")
        elif not each.address:
            found.append(f"it has no external address: set advertise_external on {each.name}")
        elif standing is None:
            found.append("it does not answer")
        elif standing.trouble:
            found.append(standing.trouble)
        if lag is not None and lag.bytes and (lag.seconds or 0) >= BEHIND_SECONDS:
            found.append(f"{for_humans(lag.bytes)} behind, for {lag.seconds or 0:.0f} s")
        if each.id in waits:
            found.append(f"it is to replace {waits[each.id]} and does not count yet")
        elif not each.in_sync and each.address is None:
            command = f"rockoon replica remove {log.name} {each.id}"
            found.append(f"it does not count: start it, or remove it: {command}")
        elif not each.in_sync:
            found.append("a learner: it does not count")
        if found:
            yield f"{each.name}: {'; '.join(found)}"


def state(log: "LogDescription") -> str:
    if log.frozen:
        return f"FROZEN: {log.frozen}"
    if not log.epoch:
        return f"waits for {log.copies - len(log.replicas)} more replicas"
    if log.held:
        return f"HELD: the election waits for an operator: {log.held}"
    if log.leader is None:
        return "WITHOUT LEADER: an election is in progress"
    if log.leader.address is None:
        others = "" if len(log.in_sync) == 1 else ", and too few other copies to elect a leader"
        return f"WITHOUT LEADER: {log.leader.name} is away{others}"
    return "led" if log.confirmed else "led, nothing committed in this epoch yet"


def role(replica: "ReplicaDescription") -> str:
    if replica.halted:
        return "halted"
    if replica.is_leader:
        return "leader"
    return "in sync" if replica.in_sync else "learner"
