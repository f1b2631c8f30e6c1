"""`rockoon status`: every node of the cluster and its state; `rockoon broker`: one broker."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rockoon.cli.logs import log_json, role, state, troubles
from rockoon.cli.output import counted, for_humans, local_time, picked, print_table, print_wrapped
from rockoon.cli.session import Work, shown

if TYPE_CHECKING:
    from rockoon.admin.descriptions import ClusterStatus, NodeStatus
    from rockoon.admin.logs import LogStatus
    from rockoon_proto.v1.broker_pb2 import CompactionState, DescribeBrokerReply


def show_status(status: "ClusterStatus") -> None:
    etcd = "reachable" if status.etcd_reachable else "NOT REACHABLE: nothing can be changed now"
    print(f"cluster {status.cluster}: {'healthy' if status.healthy else 'NOT HEALTHY'}")
    print("routes: in a file of the nameserver" if status.routes_in_file else f"etcd: {etcd}")
    print(f"feature level: {level_text(status)}\n")
    rows: list[tuple[Any, ...]] = [
        ("nameserver", each.name or None, each.address, *nameserver_cells(each))
        for each in status.nameservers
    ]
    rows += [("broker", each.name, each.address, *broker_cells(each)) for each in status.brokers]
    rows += [
        ("broker", name, None, "GONE: its queues wait for it", None) for name in status.away_brokers
    ]
    rows += [
        ("offset", each.name, each.address, *offset_cells(each)) for each in status.offset_services
    ]
    rows += [row for each in status.logs for row in copy_rows(each)]
    print_table(("SERVICE", "NAME", "ADDRESS", "STATE", "FIGURES"), rows, empty="")
    for each in (*status.brokers, *status.offset_services):
        for problem in each.problems:
            print(f"{each.name}: {problem}")
    for each in status.brokers:
        for sentence in compaction_sentences(each.broker) if each.broker is not None else ():
            print(f"{each.name}: {sentence}")
    for log in status.logs:
        if (log_state := state(log.log)) != "led":
            print(f"log {log.log.name}: {log_state}")
        for sentence in troubles(log.log, log.standings):
            print(sentence)
    for each in status.brokers:
        if each.node is not None and each.node.drained:
            print(f"{each.name}: drained; `rockoon broker drain {each.name}` shows its messages")
    if not status.brokers:
        print("There is no broker: nothing can be sent.")
    if not status.offset_services:
        print("There is no offset service: consumers cannot start.")


def level_text(status: "ClusterStatus") -> str:
    """Return the cluster's feature level, and what an upgrade still waits for."""
    most = max((each.cluster.level_max for each in status.nameservers if each.cluster), default=0)
    if status.level >= most:
        return str(status.level)
    lacking = ", ".join(status.level_lacking)
    waits = f"not supported by {lacking}" if lacking else "run `rockoon upgrade finish`"
    return f"{status.level}; {most} after the upgrade: {waits}"


def no_answer(status: "NodeStatus") -> str:
    """Return the error of a node that did not answer: it is down, or has no reachable address."""
    # Imported here: `rockoon status --help` must not load protobuf.
    from rockoon.errors import NoExternalAddress

    known = isinstance(status.error, NoExternalAddress)
    return f"{'NOT REACHED' if known else 'DOWN'}: {status.error}"


def nameserver_cells(status: "NodeStatus") -> tuple[Any, ...]:
    if status.cluster is None:
        return (no_answer(status), None)
    answer = status.cluster
    figures = f"topics {answer.topics}, groups {answer.groups}"
    if answer.etcd_reachable:
        return ("up", figures)
    return (f"up, etcd away for {answer.etcd_away_seconds:.0f} s", figures)


def broker_cells(status: "NodeStatus") -> tuple[Any, ...]:
    if status.broker is None:
        return (no_answer(status), None)
    answer = status.broker
    held = for_humans(answer.log_max_offset - answer.log_min_offset)
    figures = f"in {answer.messages_appended}, out {answer.messages_pulled}, log {held}"
    if answer.kernel:  # former broker versions send none
        # Imported here: the help of commands must not load NumPy.
        from rockoon_format import kernel

        figures += f", kernel {answer.kernel}"
        if answer.kernel == kernel.NUMPY:
            figures += " (HTTP/2: h2 for Python)"
    if answer.lost_bytes:
        figures += f", lost/ {for_humans(answer.lost_bytes)}"
    is_drained = status.node is not None and status.node.drained
    return (f"{up(status)}, DRAINED" if is_drained else up(status), figures)


def offset_cells(status: "NodeStatus") -> tuple[Any, ...]:
    if status.error is not None:
        return (no_answer(status), None)
    return (up(status), f"members {status.members}")


def copy_rows(status: "LogStatus") -> Iterator[tuple[Any, ...]]:
    """Yield table rows of a log's copies. The leader's row is in addition to its broker row."""
    lags = next((each.others for each in status.standings.values() if each.leads), {})
    for each in status.log.replicas:
        standing, lag = status.standings.get(each.id), lags.get(each.id)
        if each.halted:
            copy_state = "HALTED: see below"
        elif each.address is None:
            copy_state = "AWAY"
        elif not each.address:
            copy_state = "NOT REACHED: see below"
        elif standing is None:
            copy_state = "DOWN"
        else:
            copy_state = role(each) if standing.ready else f"{role(each)}, NOT READY: see below"
        figures = None
        if standing is not None:
            behind = lag.bytes if lag is not None else None
            figures = f"log ends at {standing.end}"
            if behind is not None:
                figures += f", {for_humans(behind)} behind" if behind else ", level"
        yield ("copy", each.name, each.address or None, copy_state, figures)


def up(status: "NodeStatus") -> str:
    return "up, NOT WELL: see below" if status.problems else "up"


NAMESERVER_FIGURES = ("etcd_reachable", "etcd_away_seconds", "topics", "groups", "revision")


def status_json(status: "ClusterStatus") -> dict[str, Any]:
    return {
        "cluster": status.cluster,
        **picked(status, "healthy", "etcd_reachable", "routes_in_file", "level", "level_lacking"),
        "nameservers": [
            node_json(each)
            | (picked(each.cluster, *NAMESERVER_FIGURES) if each.cluster is not None else {})
            for each in status.nameservers
        ],
        "brokers": [
            node_json(each) | (broker_json(each.broker) if each.broker is not None else {})
            for each in status.brokers
        ],
        "away_brokers": status.away_brokers,
        "offset_services": [
            node_json(each) | {"members": each.members} for each in status.offset_services
        ],
        "logs": [
            log_json(each.log, each.standings)
            | {"well": each.is_well, "troubles": list(troubles(each.log, each.standings))}
            for each in status.logs
        ],
    }


def node_json(status: "NodeStatus") -> dict[str, Any]:
    fields: dict[str, Any] = {
        "name": status.name,
        "address": status.address,
        "up": status.error is None,
        "error": str(status.error) if status.error is not None else None,
        "problems": list(status.problems),
    }
    if status.node is not None:
        fields |= {
            **picked(status.node, "store_id", "started_at_ms", "version", "drained"),
            "external_address": status.node.external_address or None,
        }
    return fields


def broker_json(answer: "DescribeBrokerReply") -> dict[str, Any]:
    figures = {
        field.name: getattr(answer, field.name)
        for field in answer.DESCRIPTOR.fields
        if isinstance(getattr(answer, field.name), int | float | str | bool)
    }
    return figures | {"compaction": compaction_json(answer.compaction)}


RUN_COMMAND = "rockoon spark compact"


def compaction_sentences(answer: "DescribeBrokerReply") -> Iterable[str]:
    """Yield sentences about a broker's compaction; none if no topic is compacted."""
    state = answer.compaction
    if state.generation:
        yield (
            f"generation {state.generation} of {local_time(state.created_ms)}: "
            f"{counted(state.records, 'message')}, {for_humans(state.files_bytes)}"
        )
    elif state.topics:
        yield f"{counted(state.topics, 'compacted topic')}, no compaction has run yet"
    if state.HasField("hold"):
        held = for_humans(answer.log_max_offset - state.hold.physical_offset)
        yield (
            f"the log is kept from offset {state.hold.physical_offset} ({held}) until "
            f"{state.hold.topic} is compacted further: run `{RUN_COMMAND}`"
        )
    if state.HasField("refusal"):
        refusal = state.refusal
        yield (
            f"generation {refusal.generation} was refused at {local_time(refusal.refused_ms)}: "
            f"{refusal.reason}"
        )


def compaction_json(state: "CompactionState") -> dict[str, Any]:
    return {
        "topics": state.topics,
        "generation": state.generation or None,
        "created_ms": state.created_ms or None,
        "records": state.records,
        "bytes": state.files_bytes,
        "log_end": state.log_end,
        "uploads": state.uploads,
        "hold": (
            picked(state.hold, "physical_offset", "topic") if state.HasField("hold") else None
        ),
        "refusal": (
            picked(state.refusal, "generation", "reason", "refused_ms")
            if state.HasField("refusal")
            else None
        ),
    }


broker_app = typer.Typer(no_args_is_help=True, help="Brokers: details, and live settings.")


def broker_lines(answer: "DescribeBrokerReply") -> list[tuple[str, str]]:
    held = for_humans(answer.log_max_offset - answer.log_min_offset)
    rows = [
        ("topics", f"{answer.topics} with {answer.queues} queues"),
        ("log", f"{answer.log_min_offset} to {answer.log_max_offset} ({held})"),
        ("disk", f"{answer.disk_used_ratio:.0%} used"),
        (
            "state",
            "writable" if answer.writable else f"NOT WRITABLE: {answer.not_writable_reason}",
        ),
        ("served", f"{answer.messages_appended} in, {answer.messages_pulled} out since it started"),
    ]
    rows += [("compaction", sentence) for sentence in compaction_sentences(answer)]
    return rows


def show_broker(found: "NodeStatus") -> None:
    assert found.broker is not None
    print(f"broker {found.name} at {found.address}")
    for heading, sentence in broker_lines(found.broker):
        print_wrapped(f"  {heading:<12}", sentence)


def described_json(found: "NodeStatus") -> dict[str, Any]:
    assert found.broker is not None
    return node_json(found) | broker_json(found.broker)


@broker_app.command("describe")
@shown(show_broker, described_json)
def describe_broker(
    name: Annotated[str, typer.Argument(metavar="BROKER", help="Name of the broker.")],
) -> "Work[NodeStatus]":
    """Show a broker's log, its message counts, and the state of compaction."""
    return lambda admin: admin.describe_broker(name)
