"""Names of the nodes to run: those that a directory remembers, and new ones. Pure."""

import string
from collections import Counter
from collections.abc import Collection, Iterable

from rockoon.local.directory import NodeRecord
from rockoon.local.process import Kind, LocalClusterError

NODES_MAX = 26
REPLICAS_MAX = 7


def chosen_names(kind: Kind, kept: Collection[NodeRecord], wanted: int | None) -> list[str]:
    """Names of the nameservers, or of the brokers' logs: those that there are, then new ones."""
    names = list(dict.fromkeys(record.log or record.name for record in kept if record.kind is kind))
    count = wanted if wanted is not None else (len(names) or 1)
    if not 1 <= count <= NODES_MAX:
        raise LocalClusterError(f"{count} {kind}s: it must be between 1 and {NODES_MAX}")
    if kind is Kind.BROKER and count < len(names):
        raise LocalClusterError(
            f"the directory holds the data of {len(names)} brokers: start them all, "
            "or use another directory"
        )
    fresh = (name for name in node_names(kind) if name not in names)
    while len(names) < count:
        names.append(next(fresh))
    return names[:count]


def choose_copies(kept: Iterable[NodeRecord], wanted: int | None) -> int:
    """How many copies each log is started with: all that there are, and more where they are wanted.

    Fewer are a thing for the leader of each log, who has to be started for it.
    """
    copies = Counter(
        each.log or each.name for each in kept if each.kind in (Kind.BROKER, Kind.OFFSET)
    )
    if wanted is not None and (not 1 <= wanted <= REPLICAS_MAX or wanted == 2):
        raise LocalClusterError(
            f"{wanted} replicas: it must be 1, or 3 to {REPLICAS_MAX} (of 2 copies both would be "
            "needed for each message)"
        )
    return max([*copies.values(), wanted or 1])


def replica_names(log: str, kept: Iterable[NodeRecord], copies: int) -> list[str]:
    """Names of the nodes that hold a log's copies: those that there are, then new ones."""
    names = [record.name for record in kept if log in (record.log, record.name)]
    if copies == 1:
        return names or [log]
    fresh = (name for number in range(REPLICAS_MAX) if (name := f"{log}-{number}") not in names)
    return names + [next(fresh) for _ in range(copies - len(names))]


def node_names(kind: Kind) -> Iterable[str]:
    return (f"{kind}-{letter}" for letter in string.ascii_lowercase)


def refuse_several(records: Iterable[NodeRecord]) -> None:
    """Raises LocalClusterError for nodes that are more than one process of all services has."""
    for kind in (Kind.NAMESERVER, Kind.BROKER, Kind.OFFSET):
        names = [record.name for record in records if record.kind is kind]
        if len(names) > 1:
            raise LocalClusterError(
                f"a single process has one {kind}, and this cluster {len(names)} "
                f"({', '.join(names)}): start it without --single"
            )
