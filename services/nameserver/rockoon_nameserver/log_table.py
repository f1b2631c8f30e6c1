"""Logs as read from etcd: states, live replicas, and the node that routes show for each. Pure.

Clients see a log as a node of its name, at the address of its leader. Their routes change only
when the leader, its epoch or the address of a replica changes.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from rockoon_nameserver.keyspace import LogKey
from rockoon_proto.v1.logs_pb2 import Log, LogState
from rockoon_proto.v1.nameserver_pb2 import Node, NodeKind


class LogCounts(NamedTuple):
    """Counts of logs: all, those without a leader, and those that are frozen."""

    all: int
    without_leader: int
    frozen: int


@dataclass(slots=True)
class LogEntry:
    """Entry of one log in the table; `state` is None while only its replicas have been read."""

    state: LogState | None = None
    nodes: dict[str, Node] = field(default_factory=dict)
    changed_at: int = 0


class LogTable:
    """State and live replicas of each log, as read from etcd."""

    def __init__(self) -> None:
        self._records: dict[LogKey, LogEntry] = {}

    def put_state(self, key: LogKey, state: LogState | None, revision: int) -> None:
        """Store the state of a log in the table; None removes it."""
        record = self._record(key, revision)
        record.state = state
        self._drop_empty(key, record)

    def put_node(self, key: LogKey, replica_id: str, node: Node | None, revision: int) -> None:
        """Store a live replica of a log in the table; None removes it."""
        record = self._record(key, revision)
        record.nodes.pop(replica_id, None)
        if node is not None:
            record.nodes[replica_id] = node
        self._drop_empty(key, record)

    def state(self, key: LogKey) -> LogState | None:
        record = self._records.get(key)
        return None if record is None else record.state

    def with_state(self) -> list[LogKey]:
        """Sorted keys of the logs that have a state."""
        return sorted(key for key, record in self._records.items() if record.state is not None)

    def log(self, key: LogKey) -> Log | None:
        """Return the state and live replicas of a log; None if it has no state."""
        record = self._records.get(key)
        if record is None or record.state is None:
            return None
        return Log(state=record.state, nodes=[record.nodes[who] for who in sorted(record.nodes)])

    def changed_since(self, kind: NodeKind, logs: Collection[str], revision: int) -> list[Log]:
        """Return the logs whose state or replicas changed after a revision.

        Args:
            kind: of the nodes that have the logs.
            logs: names of logs; empty: all.
            revision: of etcd; 0: all logs are returned.
        """
        keys = sorted(LogKey(kind, log) for log in logs) if logs else self.with_state()
        found = []
        for key in keys:
            record = self._records.get(key)
            if key.kind == kind and record is not None and record.changed_at > revision:
                log = self.log(key)
                if log is not None:
                    found.append(log)
        return found

    def routed(self, key: LogKey) -> Node | None:
        """Return the node that clients see for a log; None while its leader is not live.

        During an election that is the former leader, which still serves readers: they need not
        reconnect twice.
        """
        record = self._records.get(key)
        if record is None or record.state is None:
            return None
        state = record.state
        leader = record.nodes.get(state.leader or state.former_leader)
        if leader is None:
            return None
        node = Node()
        node.CopyFrom(leader)
        node.epoch = state.epoch if state.leader else state.former_epoch
        for who in sorted(record.nodes):
            each = record.nodes[who]
            node.replicas.add(
                replica_id=who,
                name=each.replica,
                address=each.address,
                external_address=each.external_address,
                ip_address=each.ip_address,
                rack=each.rack,
                in_sync=who in state.in_sync,
            )
        return node

    def counts(self) -> LogCounts:
        states = [each.state for each in self._records.values() if each.state is not None]
        return LogCounts(
            len(states),
            sum(is_without_leader(each) for each in self._records.values()),
            sum(bool(state.frozen) for state in states),
        )

    def _record(self, key: LogKey, revision: int) -> LogEntry:
        record = self._records.setdefault(key, LogEntry())
        record.changed_at = max(record.changed_at, revision)
        return record

    def _drop_empty(self, key: LogKey, record: LogEntry) -> None:
        if record.state is None and not record.nodes:
            del self._records[key]


def is_without_leader(record: LogEntry) -> bool:
    """True if a log has no leader: an election runs, or the leader is not live and too few replicas
    are left to elect another. The only copy of a log counts as a missing node instead.
    """
    state = record.state
    if state is None or (state.leader and len(state.in_sync) == 1):
        return False
    return state.leader not in record.nodes
