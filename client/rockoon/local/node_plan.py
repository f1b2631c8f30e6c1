"""Names of the nodes to run: those of the directory, and new ones. No I/O."""

import string
from collections import Counter
from collections.abc import Collection, Iterable

from rockoon.local.directory import NodeRecord
from rockoon.local.process import LocalClusterError, NodeKind

NODES_MAX = 26
REPLICAS_MAX = 7


def chosen_names(kind: NodeKind, kept: Collection[NodeRecord], wanted: int | None) -> list[str]:
    """Return the names of nameservers, or of brokers' logs: existing ones, then new ones."""
    names = list(dict.fromkeys(record.log or record.name for record in kept if record.kind is kind))
    count = wanted if wanted is not None else (len(names) or 1)
    if not 1 <= count <= NODES_MAX:
        raise LocalClusterError(f"{count} {kind}s: it must be between 1 and {NODES_MAX}")
    if kind is NodeKind.BROKER and count < len(names):
        raise LocalClusterError(
            f"the directory has data of {len(names)} brokers: start all of them, "
            "or use another directory"
        )
    new_names = (name for name in node_names(kind) if name not in names)
    while len(names) < count:
        names.append(next(new_names))
    return names[:count]


def choose_copies(kept: Iterable[NodeRecord], wanted: int | None) -> int:
    """Return how many copies of each log to start: all existing ones, or more if requested.

    Only the leader of a log can reduce the number of copies, so it must be started first.
    """
    copies = Counter(
        each.log or each.name for each in kept if each.kind in (NodeKind.BROKER, NodeKind.OFFSET)
    )
    if wanted is not None and (not 1 <= wanted <= REPLICAS_MAX or wanted == 2):
        raise LocalClusterError(
            f"{wanted} replicas: it must be 1, or 3 to {REPLICAS_MAX} (2 copies would both be "
            "needed for each message)"
        )
    return max([*copies.values(), wanted or 1])


def replica_names(log: str, kept: Iterable[NodeRecord], copies: int) -> list[str]:
    """Return the names of the nodes with a log's copies: existing ones, then new ones."""
    names = [record.name for record in kept if log in (record.log, record.name)]
    if copies == 1:
        return names or [log]
    new_names = (name for number in range(REPLICAS_MAX) if (name := f"{log}-{number}") not in names)
    return names + [next(new_names) for _ in range(copies - len(names))]


def node_names(kind: NodeKind) -> Iterable[str]:
    return (f"{kind}-{letter}" for letter in string.ascii_lowercase)


def refuse_several(records: Iterable[NodeRecord]) -> None:
    """Raises LocalClusterError if a single process cannot run these nodes."""
    for kind in (NodeKind.NAMESERVER, NodeKind.BROKER, NodeKind.OFFSET):
        names = [record.name for record in records if record.kind is kind]
        if len(names) > 1:
            raise LocalClusterError(
                f"a single process has one {kind}, but this cluster has {len(names)} "
                f"({', '.join(names)}): start it without --single"
            )
