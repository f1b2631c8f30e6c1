"""`rockoon status`: every node of the cluster and how it is."""

from typing import TYPE_CHECKING, Any

from rockoon.cli.compaction import compaction_json, compaction_sentences
from rockoon.cli.output import for_humans, print_table

if TYPE_CHECKING:
    from rockoon.admin.descriptions import ClusterStatus, NodeStatus
    from rockoon_proto.v1.broker_pb2 import DescribeBrokerReply


def show_status(status: "ClusterStatus") -> None:
    etcd = "in reach" if status.etcd_reachable else "OUT OF REACH: nothing can be changed now"
    print(f"cluster {status.cluster}: {'healthy' if status.healthy else 'NOT HEALTHY'}")
    print(f"etcd: {etcd}\n")
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
    print_table(("SERVICE", "NAME", "ADDRESS", "STATE", "FIGURES"), rows, empty="")
    for each in (*status.brokers, *status.offset_services):
        for problem in each.problems:
            print(f"{each.name}: {problem}")
    for each in status.brokers:
        for sentence in compaction_sentences(each.broker) if each.broker is not None else ():
            print(f"{each.name}: {sentence}")
    if not status.brokers:
        print("There is no broker: nothing can be sent.")
    if not status.offset_services:
        print("There is no offset service: consumers cannot start.")


def no_answer(status: "NodeStatus") -> str:
    """Why a node has not answered: it is down, or it may well be up and cannot be asked."""
    # Here: the command's help must not load protobuf.
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
    return (up(status), figures)


def offset_cells(status: "NodeStatus") -> tuple[Any, ...]:
    if status.error is not None:
        return (no_answer(status), None)
    return (up(status), f"members {status.members}")


def up(status: "NodeStatus") -> str:
    return "up, NOT WELL: see below" if status.problems else "up"


def status_json(status: "ClusterStatus") -> dict[str, Any]:
    return {
        "cluster": status.cluster,
        "healthy": status.healthy,
        "etcd_reachable": status.etcd_reachable,
        "nameservers": [
            node_json(each)
            | (
                {
                    "etcd_reachable": each.cluster.etcd_reachable,
                    "etcd_away_seconds": each.cluster.etcd_away_seconds,
                    "topics": each.cluster.topics,
                    "groups": each.cluster.groups,
                    "revision": each.cluster.revision,
                }
                if each.cluster is not None
                else {}
            )
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
    }


def node_json(status: "NodeStatus") -> dict[str, Any]:
    said: dict[str, Any] = {
        "name": status.name,
        "address": status.address,
        "up": status.error is None,
        "error": str(status.error) if status.error is not None else None,
        "problems": list(status.problems),
    }
    if status.node is not None:
        said |= {
            "store_id": status.node.store_id,
            "started_at_ms": status.node.started_at_ms,
            "version": status.node.version,
            "external_address": status.node.external_address or None,
        }
    return said


def broker_json(answer: "DescribeBrokerReply") -> dict[str, Any]:
    figures = {
        field.name: getattr(answer, field.name)
        for field in answer.DESCRIPTOR.fields
        if isinstance(getattr(answer, field.name), int | float | str | bool)
    }
    return figures | {"compaction": compaction_json(answer.compaction)}
