"""Replicated logs: `cluster.admin.logs`.

Each broker and the offset service has a log of the same name. If a broker and the offset service
have one name, the broker's log is used. Reading needs `read` on `cluster`, changes need `admin`.
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
        id: id of its store. A replica with a new disk has the same name and another id.
        name: name of its process, for example "broker-a-0".
        rack: location of its process; empty if not set.
        address: "host:port"; None if the replica is not alive.
        is_leader: whether it leads the log.
        in_sync: whether it is in the in-sync set.
        reported: (epoch, end) of its log, reported in the current election or since the log was
            frozen; None if it has not reported.
        reported_sound: its report says that it has all records it ever acknowledged.
        reported_damaged: its report says that a record has wrong bytes.
        halted: why it is out of service until an operator acts; empty if it participates.
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
    """State of a log at the nameservers.

    Attributes:
        name: for example "broker-a".
        version: increases with each change.
        epoch: epoch of the leader, unique per leader; 0 until the first replicas have registered.
        confirmed: the leader has committed a record in this epoch.
        quorum: number of copies that commit a message.
        copies: requested number of copies in sync, set by an operator or at the first start.
        stays: id of the replica to keep when the number falls; empty for the leader.
        replicas: in the order of registration; the first one is the preferred leader.
        moves: requested replacements, as ids of the old and the new replica.
        losses: number of losses that operators have accepted.
        frozen: why the log cannot change until it is adopted; empty if it is not frozen.
        held: why the current election waits for an operator; empty if it does not.
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
        """The leader; None during an election."""
        return next((each for each in self.replicas if each.is_leader), None)

    @property
    def in_sync(self) -> list[ReplicaDescription]:
        """Replicas in the in-sync set."""
        return [each for each in self.replicas if each.in_sync]

    @property
    def has_copies(self) -> bool:
        """Whether the log has or shall have more than one copy."""
        return max(self.copies, len(self.in_sync)) > 1

    @property
    def reached(self) -> list[tuple[str, str]]:
        """Id and address of each live replica."""
        return [(each.id, each.address) for each in self.replicas if each.address]

    def replica(self, text: str) -> ReplicaDescription:
        """Return the replica with an id or a name.

        Raises:
            InvalidArgument: no replica or several replicas match; ids are unique, names are not.
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
    """Administration of logs: `cluster.admin.logs`.

    Args:
        cluster: an open connection.
    """

    def __init__(self, cluster: "Connection") -> None:
        self._cluster = cluster

    async def list(self) -> Sequence[LogDescription]:
        """Return all logs, sorted by name."""
        reply = await self._call("ListLogs", ListLogsRequest())
        return [LogDescription.from_wire(log) for log in reply.logs]

    async def describe(self, log: str) -> LogDescription:
        """Return one log. Raises LogNotFound."""
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
        """Return the status of each copy that answers, by id; empty for a log of one copy."""
        if not log.has_copies:
            return {}
        return await ask_standings(self._cluster, log.name, log.reached)

    async def elect(
        self, log: str, *, accept_loss: bool = False, expected_version: int = 0
    ) -> LogDescription:
        """Start an election; with `accept_loss`, complete one that waits for lost replicas.

        Args:
            log: name of the log.
            accept_loss: elect the best replica that has reported, however few have: an undamaged
                one if there is one, and among several the one with the highest rank. Records that
                only other replicas have are lost.
            expected_version: fail if the log has another version; 0 means any version.

        Raises:
            LogNotFound, LogChanged, LogFrozen.
            InvalidArgument: `accept_loss` is set, and the log has a leader or no replica has
                reported.
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
        """Resume a log that is frozen because etcd was restored from a backup.

        Args:
            log: name of the log.
            in_sync: ids of the replicas in sync; empty for those of the newest state that any
                replica has stored.
            accept_loss: adopt the log although some replicas have not reported.

        Raises:
            LogNotFound: the log does not exist.
            InvalidArgument: the log is not frozen, or required reports are missing.
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
        """Request the replacement of a replica; the leader replaces it once no message is lost.

        Args:
            log: name of the log.
            leaves: id of the old replica.
            joins: id of the new replica.
            withdraw: withdraw an earlier request.

        Raises:
            LogNotFound, LogFrozen.
            InvalidArgument: the old replica is not in sync, the new one is already in sync, or
                one of them does not belong to the log.
        """
        move = Move(leaves=leaves, joins=joins)
        kind = (await self._find(log)).state.kind
        request = MoveReplicaRequest(kind=kind, log=log, move=move, withdraw=withdraw)
        await self._call("MoveReplica", request)
        return await self.describe(log)

    async def set_copies(self, log: str, copies: int, stays: str = "") -> LogDescription:
        """Request a number of copies; the leader changes it once no message is lost.

        Args:
            log: name of the log.
            copies: 1 to 7.
            stays: id of the replica to keep when the number falls; empty for the leader.

        Raises:
            LogNotFound, LogFrozen.
            InvalidArgument: the log cannot have this number of copies, or `stays` is not in sync.
        """
        kind = (await self._find(log)).state.kind
        request = SetCopiesRequest(kind=kind, log=log, copies=copies, stays=stays)
        await self._call("SetCopies", request)
        return await self.describe(log)

    async def _call(self, method_name: str, request: Any) -> Any:
        return await self._cluster.call_nameserver(method_name, request, service=LogsStub)


def reported(state: LogState, replica_id: str) -> tuple[int, int] | None:
    """Return (epoch, end) of a replica's report; None without a report."""
    if replica_id not in state.reports:
        return None
    rank = state.reports[replica_id].rank
    return rank.epoch, rank.end
