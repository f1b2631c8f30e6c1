"""Logs and their copies: `cluster.admin.logs`.

A log is what a broker's name stands for, or the offset service's. Where both have one name, the
broker's is meant. Looking needs `read` on `cluster`, changing `admin`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rockoon.admin.replica_standings import ReplicaStanding, ask_standings
from rockoon.errors import InvalidArgument, LogNotFound
from rockoon.text_checks import refuses_invalid_text
from rockoon_proto.v1.logs_pb2 import (
    AdoptLogRequest,
    DescribeLogRequest,
    ElectLogRequest,
    ListLogsRequest,
    Log,
    LogState,
    Move,
    MoveReplicaRequest,
    SetCopiesRequest,
)
from rockoon_proto.v1.logs_pb2_grpc import LogsStub
from rockoon_proto.v1.nameserver_pb2 import BROKER, OFFSET_SERVICE

if TYPE_CHECKING:
    from rockoon.net.connection import Connection


@dataclass(frozen=True, slots=True)
class ReplicaDescription:
    """One copy of a log.

    Attributes:
        id: of its store: an emptied disk comes back under its name with another id.
        name: of its process, for example "broker-a-0".
        rack: where it runs; empty when it does not say.
        address: "host:port"; None while it is not alive.
        is_leader, in_sync: whether it leads, and whether it counts.
        reported: epoch and end of its log, as it has told in the present election or since its log
            is frozen; None when it has told nothing.
        reported_sound: whether it has all records that it ever acknowledged, as it reported.
        reported_damaged: whether the bytes of some record are proven wrong, as it reported.
        halted: why it is out of service until an operator acts; empty when it participates.
    """

    id: str
    name: str
    rack: str
    address: str | None
    is_leader: bool
    in_sync: bool
    reported: tuple[int, int] | None
    reported_sound: bool = True
    reported_damaged: bool = False
    halted: str = ""


@dataclass(frozen=True, slots=True)
class LogDescription:
    """A log, as the nameservers keep it.

    Attributes:
        name: "broker-a".
        version: grows with each change.
        epoch: a number that no two leaders have; 0 while the log waits for its first replicas.
        confirmed: the leader has committed something in this epoch.
        quorum: how many copies make a message committed.
        copies: how many the log is to have in sync: as an operator wishes, or as its replicas were
            started with.
        stays: of whom, when there are to be fewer, one is this, by its id; empty: the leader.
        replicas: in the order in which they came; the first is the preferred leader.
        moves: replicas that are to leave, each with the one that is to take its place, by ids.
        losses: how often an operator has accepted a loss.
        frozen: why nothing changes until the log is adopted; empty when nothing is wrong.
        held: why the election that is on waits for an operator; empty when it does not.
    """

    name: str
    version: int
    epoch: int
    confirmed: bool
    quorum: int
    copies: int
    stays: str
    replicas: tuple[ReplicaDescription, ...]
    moves: tuple[tuple[str, str], ...]
    losses: int
    frozen: str
    held: str

    @property
    def leader(self) -> ReplicaDescription | None:
        """None while an election is on."""
        return next((each for each in self.replicas if each.is_leader), None)

    @property
    def in_sync(self) -> list[ReplicaDescription]:
        """The replicas that count."""
        return [each for each in self.replicas if each.in_sync]

    @property
    def has_copies(self) -> bool:
        """Whether it is, or is to be, more than one broker's own log."""
        return max(self.copies, len(self.in_sync)) > 1

    @property
    def reached(self) -> list[tuple[str, str]]:
        """Id and address of each replica that is alive."""
        return [(each.id, each.address) for each in self.replicas if each.address]

    def replica(self, text: str) -> ReplicaDescription:
        """The replica of an id or a name; of two with one name, an id says which.

        Raises:
            InvalidArgument: there is none, or more than one.
        """
        found = [each for each in self.replicas if text in (each.id, each.name)]
        if len(found) != 1:
            known = ", ".join(f"{each.name} ({each.id})" for each in found or self.replicas)
            why = "more than one replica of" if found else "no replica of"
            raise InvalidArgument(reason=f"{text!r} is {why} log {self.name!r}: {known}")
        return found[0]

    @classmethod
    def from_wire(cls, log: Log) -> "LogDescription":
        state = log.state
        addresses = {node.store_id: node.address for node in log.nodes}
        return cls(
            state.log,
            state.version,
            state.epoch,
            state.confirmed,
            state.quorum,
            state.copies_wish.copies or state.copies,
            state.copies_wish.stays,
            tuple(
                ReplicaDescription(
                    each.replica_id,
                    each.name,
                    each.rack,
                    addresses.get(each.replica_id),
                    each.replica_id == state.leader,
                    each.replica_id in state.in_sync,
                    reported(state, each.replica_id),
                    each.replica_id not in state.reports or state.reports[each.replica_id].sound,
                    each.replica_id in state.reports and state.reports[each.replica_id].damaged,
                    each.halted,
                )
                for each in state.replicas
            ),
            tuple((each.leaves, each.joins) for each in state.moves),
            state.losses,
            state.frozen,
            state.held,
        )


@refuses_invalid_text
class LogAdmin:
    """See the module.

    Args:
        cluster: an open connection.
    """

    def __init__(self, cluster: "Connection") -> None:
        self._cluster = cluster

    async def list(self) -> Sequence[LogDescription]:
        """All logs, in the order of names."""
        reply = await self._call("ListLogs", ListLogsRequest())
        return [LogDescription.from_wire(log) for log in reply.logs]

    async def describe(self, log: str) -> LogDescription:
        """One log. Raises LogNotFound."""
        return LogDescription.from_wire(await self._find(log))

    async def _find(self, log: str) -> Log:
        try:
            request = DescribeLogRequest(kind=BROKER, log=log)
            reply = await self._call("DescribeLog", request)
        except LogNotFound:
            request = DescribeLogRequest(kind=OFFSET_SERVICE, log=log)
            reply = await self._call("DescribeLog", request)
        found: Log = reply.log
        return found

    async def ask_replicas(self, log: LogDescription) -> Mapping[str, ReplicaStanding]:
        """How the copies of a log are, as they say themselves; by id, those that answer.

        A log of one copy has nothing to say.
        """
        if not log.has_copies:
            return {}
        return await ask_standings(self._cluster, log.name, log.reached)

    async def elect(
        self, log: str, *, accept_loss: bool = False, expected_version: int = 0
    ) -> LogDescription:
        """Begin an election; or end one that cannot end by itself.

        Args:
            log: its name.
            accept_loss: elect the best replica that has reported, however few have: an undamaged
                one if there is one, and among several the one with the highest rank. Records that
                only other replicas have are lost.
            expected_version: refuse when the log has changed since; 0: whatever it is.

        Raises:
            LogNotFound, LogChanged, LogFrozen: as the names say.
            InvalidArgument: the log has a leader (with `accept_loss`), or nobody has reported.
        """
        kind = (await self._find(log)).state.kind
        request = ElectLogRequest(
            kind=kind, log=log, accept_loss=accept_loss, expected_version=expected_version
        )
        await self._call("ElectLog", request)
        return await self.describe(log)

    async def adopt(
        self, log: str, in_sync: Sequence[str] = (), *, accept_loss: bool = False
    ) -> LogDescription:
        """Let a log go on that is frozen because etcd was restored from a backup.

        Args:
            log: its name.
            in_sync: ids of the replicas that count; none means those of the newest state that any
                replica remembers.
            accept_loss: also when not all of them have reported.

        Raises:
            LogNotFound: there is no such log.
            InvalidArgument: it is not frozen, or not everything is known that has to be.
        """
        kind = (await self._find(log)).state.kind
        request = AdoptLogRequest(
            kind=kind, log=log, in_sync=list(in_sync), accept_loss=accept_loss
        )
        await self._call("AdoptLog", request)
        return await self.describe(log)

    async def replace(
        self, log: str, leaves: str, joins: str, *, withdraw: bool = False
    ) -> LogDescription:
        """Ask for one replica instead of another; the leader makes the change when it is safe.

        Args:
            log: its name.
            leaves, joins: their ids.
            withdraw: do not ask for it any more.

        Raises:
            LogNotFound, LogFrozen: as the names say.
            InvalidArgument: one is not in sync, or the other is already, or is none of the log's.
        """
        move = Move(leaves=leaves, joins=joins)
        kind = (await self._find(log)).state.kind
        request = MoveReplicaRequest(kind=kind, log=log, move=move, withdraw=withdraw)
        await self._call("MoveReplica", request)
        return await self.describe(log)

    async def set_copies(self, log: str, copies: int, stays: str = "") -> LogDescription:
        """Ask for more or fewer copies; the leader makes the change when nothing is lost by it.

        Args:
            log: its name.
            copies: 1 to 7.
            stays: id of the one that is to stay when there are fewer; empty for whichever leads.

        Raises:
            LogNotFound, LogFrozen: as the names say.
            InvalidArgument: it can have no such number, or that replica is not in sync.
        """
        kind = (await self._find(log)).state.kind
        request = SetCopiesRequest(kind=kind, log=log, copies=copies, stays=stays)
        await self._call("SetCopies", request)
        return await self.describe(log)

    async def _call(self, method_name: str, request: Any) -> Any:
        return await self._cluster.call_nameserver(method_name, request, service=LogsStub)


def reported(state: LogState, replica_id: str) -> tuple[int, int] | None:
    """Epoch and end of what a replica has told."""
    if replica_id not in state.reports:
        return None
    rank = state.reports[replica_id].rank
    return rank.epoch, rank.end
