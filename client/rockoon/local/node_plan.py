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
    """How many copies each broker's log has; by default as many as there are."""
    copies = Counter(each.log or each.name for each in kept if each.kind is Kind.BROKER)
    kept_max = max(copies.values(), default=1)
    chosen = wanted if wanted is not None else kept_max
    if not 1 <= chosen <= REPLICAS_MAX:
        raise LocalClusterError(f"{chosen} replicas: it must be between 1 and {REPLICAS_MAX}")
    return chosen


def replica_names(log: str, kept: Iterable[NodeRecord], copies: int) -> list[str]:
    """Names of the nodes that hold a log's copies: those that there are, then new ones."""
    names = [record.name for record in kept if log in (record.log, record.name)]
    if copies < len(names):
        raise LocalClusterError(
            f"the directory holds {len(names)} copies of {log}: start them all, "
            "or use another directory"
        )
    if copies == 1:
        return [log]
    fresh = (name for number in range(REPLICAS_MAX) if (name := f"{log}-{number}") not in names)
    return names + [next(fresh) for _ in range(copies - len(names))]


def node_names(kind: Kind) -> Iterable[str]:
    return (f"{kind}-{letter}" for letter in string.ascii_lowercase)
