"""States of logs and calls of their replicas, for tests of the nameservers' decisions."""

from collections.abc import Sequence
from typing import Any

from rockoon_core.protocol import LEVEL
from rockoon_nameserver import elections
from rockoon_nameserver.elections import LogDecision
from rockoon_nameserver.log_membership import registered
from rockoon_proto.v1.logs_pb2 import LogState, Rank, ReplicaCall, Report
from rockoon_proto.v1.nameserver_pb2 import BROKER, Node, ReplicaFacts

LOG = "broker-a"


def replica_node(who: str, name: str = "", **fields: Any) -> Node:
    """Return a replica with the id `who`; its name is "broker-a-" and the id, unless it is set."""
    given = {"address": f"{who}:10911", "replica": name or f"{LOG}-{who}", **fields}
    return Node(kind=BROKER, name=LOG, store_id=who, level=LEVEL, **given)


def come(
    state: LogState | None,
    who: str,
    *,
    empty: bool = True,
    copies: int = 3,
    name: str = "",
    name_exists: bool = False,
    **known: int,
) -> LogState:
    """Register a replica; `known` has fields of ReplicaFacts."""
    facts = ReplicaFacts(empty=empty, copies=copies, **known)
    node = replica_node(who, name)
    return registered(state, node, facts, is_new=True, name_exists=name_exists)


def new_log(replicas: Sequence[str] = ("a", "b", "c")) -> LogState:
    """Return a log whose first replicas have registered; its first election runs."""
    state: LogState | None = None
    for who in replicas:
        state = come(state, who, copies=len(replicas))
    assert state is not None
    return state


def led_log(leader: str = "a", replicas: Sequence[str] = ("a", "b", "c")) -> LogState:
    """Return a log whose first leader is elected and confirmed."""
    state = elect(new_log(replicas), **dict.fromkeys(replicas, 0) | {leader: 1})
    assert state.leader == leader
    return elections.confirm(state, call(state, leader)).state


def elect(state: LogState, **ends: int) -> LogState:
    """Replicas report the ends of their logs of the former epoch, in this order, until one
    leads."""
    for who, end in ends.items():
        if not state.leader:
            state = report(state, who, end).state
    return state


def report(
    state: LogState, who: str, end: int, *, epoch: int | None = None, sound: bool = True
) -> LogDecision:
    """Report as a replica; its last record is of the former epoch, unless `epoch` is set."""
    rank = Rank(epoch=state.epoch - 1 if epoch is None else epoch, end=end)
    told = Report(rank=rank, sound=sound, promised=state.epoch)
    return elections.report(state, call(state, who), told)


def call(state: LogState, who: str, epoch: int | None = None) -> ReplicaCall:
    """Return a call of a replica that knows this state."""
    return ReplicaCall(
        kind=state.kind or BROKER,
        log=state.log,
        replica_id=who,
        epoch=state.epoch if epoch is None else epoch,
        version=state.version,
        history=state.history,
    )


def depose(state: LogState) -> LogState:
    """Report, by all followers, that the leader is lost."""
    for who in state.in_sync:
        if state.leader and who != state.leader:
            state = elections.suspect(state, call(state, who)).state
    return state
