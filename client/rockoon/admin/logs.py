"""Replicated logs: `cluster.admin.logs`.

Each broker and the offset service has a log of the same name. If a broker and the offset service
have one name, the broker's log is used. Reading needs `read` on `cluster`, changes need `admin`.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rockoon.bounds import refuses_invalid_text
from rockoon.errors import (
    BrokerUnavailable,
    InvalidArgument,
    LogNotFound,
    NotPermitted,
    RockoonError,
)
from rockoon_core.channels import Channels
from rockoon_proto.v1 import logs_pb2 as logs_pb
from rockoon_proto.v1.logs_pb2_grpc import LogsStub
from rockoon_proto.v1.nameserver_pb2 import BROKER, OFFSET_SERVICE
from rockoon_proto.v1.replica_pb2 import DescribeReplicaReply, DescribeReplicaRequest
from rockoon_proto.v1.replica_pb2_grpc import ReplicationStub

if TYPE_CHECKING:
    from rockoon.net.connection import Connection
    from rockoon_proto.v1.replica_pb2_grpc import ReplicationAsyncStub


STANDING_SECONDS_MAX = 3.0


@dataclass(frozen=True, slots=True)
class ReplicaLag:
    """Lag of a copy, as its leader reports it.

    Attributes:
        connected: whether the copy is connected to the leader.
        bytes: bytes that the copy lacks; None until this leader has heard the copy.
        seconds: time since the copy last had all bytes; None until this leader has heard it.
    """

    connected: bool
    bytes: int | None
    seconds: float | None


@dataclass(frozen=True, slots=True)
class ReplicaStanding:
    """Status of a copy, as it reports itself.

    Attributes:
        leads: the copy is the leader and has committed a record in its epoch.
        epoch: highest epoch that the copy has promised.
        ready: the copy leads, or has all records of a leader that commits.
        trouble: why the copy is not ready; empty if it is.
        min_offset, end, durable_end, committed_end: physical offsets of its log.
        others: lag of each other copy, by id; empty if this copy is not the leader.
    """

    leads: bool
    epoch: int
    ready: bool
    trouble: str
    min_offset: int
    end: int
    durable_end: int
    committed_end: int
    others: Mapping[str, ReplicaLag]

    @classmethod
    def from_wire(cls, reply: DescribeReplicaReply) -> "ReplicaStanding":
        return cls(
            reply.leads,
            reply.epoch,
            reply.ready,
            reply.trouble,
            reply.min_offset,
            reply.end,
            reply.durable_end,
            reply.committed_end,
            {
                each.replica_id: ReplicaLag(
                    each.connected,
                    each.behind_bytes if each.heard else None,
                    each.behind_seconds if each.heard else None,
                )
                for each in reply.others
            },
        )


async def ask_standings(
    cluster: "Connection", log: str, addresses: Iterable[tuple[str, str]]
) -> Mapping[str, ReplicaStanding]:
    """Ask copies of a log in parallel, for at most three seconds; return the replies by id.

    Args:
        addresses: id and "host:port" of each copy.
    """
    channels = Channels(cluster.tls, cluster.access)

    async def ask(address: str) -> ReplicaStanding | None:
        stub: ReplicationAsyncStub = ReplicationStub(channels.get(address))
        try:
            reply = await cluster.call(
                stub.DescribeReplica,
                DescribeReplicaRequest(log=log),
                unavailable=BrokerUnavailable,
                timeout_seconds=STANDING_SECONDS_MAX,
                broker=address,
            )
        except RockoonError:
            return None
        return ReplicaStanding.from_wire(reply)

    try:
        async with asyncio.TaskGroup() as tasks:
            asked = {
                replica_id: tasks.create_task(ask(address)) for replica_id, address in addresses
            }
    finally:
        await channels.close()
    answers = ((replica_id, task.result()) for replica_id, task in asked.items())
    return {replica_id: standing for replica_id, standing in answers if standing is not None}


@dataclass(frozen=True, slots=True)
class ReplicaDescription:
    """One copy of a log.

    Attributes:
        id: id of its store. A replica with a new disk has the same name and another id.
        name: name of its process, for example "broker-a-0".
        rack: location of its process; empty if not set.
        address: "host:port"; None if the replica is not alive; empty if the client came in by the
            nameservers' external listener and the replica has no external address.
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
        """Id and address of each live replica that has an address for this client."""
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
    def from_wire(cls, log: logs_pb.Log) -> "LogDescription":
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
    """Administration of logs: `cluster.admin.logs`."""

    def __init__(self, cluster: "Connection") -> None:
        self._cluster = cluster

    async def list(self) -> Sequence[LogDescription]:
        """Return all logs, sorted by name."""
        reply = await self._call("ListLogs", logs_pb.ListLogsRequest())
        return [LogDescription.from_wire(log) for log in reply.logs]

    async def describe(self, log: str) -> LogDescription:
        """Return one log. Raises LogNotFound."""
        return LogDescription.from_wire(await self._find(log))

    async def _find(self, log: str) -> logs_pb.Log:
        try:
            request = logs_pb.DescribeLogRequest(kind=BROKER, log=log)
            reply = await self._call("DescribeLog", request)
        except LogNotFound:
            request = logs_pb.DescribeLogRequest(kind=OFFSET_SERVICE, log=log)
            reply = await self._call("DescribeLog", request)
        found: logs_pb.Log = reply.log
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
            accept_loss: elect the best replica that has reported, however few have: an undamaged
                one if there is one, and among several the one with the highest rank. Records that
                only other replicas have are lost.
            expected_version: fail if the log has another version; 0 means any version.

        Raises:
            LogNotFound, LogChanged, LogFrozen.
            InvalidArgument: `accept_loss` is set, and the log has a leader or no replica has
                reported.
        """
        request = logs_pb.ElectLogRequest(
            log=log, accept_loss=accept_loss, expected_version=expected_version
        )
        return await self._change("ElectLog", request)

    async def adopt(
        self, log: str, in_sync: Sequence[str] = (), *, accept_loss: bool = False
    ) -> LogDescription:
        """Resume a log that is frozen because etcd was restored from a backup.

        Args:
            in_sync: ids of the replicas in sync; empty for those of the newest state that any
                replica has stored.
            accept_loss: adopt the log although some replicas have not reported.

        Raises:
            LogNotFound: the log does not exist.
            InvalidArgument: the log is not frozen, or required reports are missing.
        """
        request = logs_pb.AdoptLogRequest(log=log, in_sync=list(in_sync), accept_loss=accept_loss)
        return await self._change("AdoptLog", request)

    async def replace(
        self, log: str, leaves: str, joins: str, *, withdraw: bool = False
    ) -> LogDescription:
        """Request the replacement of a replica; the leader replaces it once no message is lost.

        Args:
            leaves: id of the old replica.
            joins: id of the new replica.
            withdraw: withdraw an earlier request.

        Raises:
            LogNotFound, LogFrozen.
            InvalidArgument: the old replica is not in sync, the new one is already in sync, or
                one of them does not belong to the log.
        """
        move = logs_pb.Move(leaves=leaves, joins=joins)
        request = logs_pb.MoveReplicaRequest(log=log, move=move, withdraw=withdraw)
        return await self._change("MoveReplica", request)

    async def remove(self, log: str, replica: str) -> LogDescription:
        """Remove a replica that is not in sync and not running, for example after its machine was
        replaced by one with another name. Its store is refused from then on.

        Args:
            replica: id of the replica.

        Raises:
            LogNotFound, LogFrozen.
            InvalidArgument: the replica is in sync or runs, or the log has no leader.
        """
        request = logs_pb.RemoveReplicaRequest(log=log, replica_id=replica)
        return await self._change("RemoveReplica", request)

    async def set_copies(self, log: str, copies: int, stays: str = "") -> LogDescription:
        """Request a number of copies; the leader changes it once no message is lost.

        Args:
            copies: 1 to 7.
            stays: id of the replica to keep when the number falls; empty for the leader.

        Raises:
            LogNotFound, LogFrozen.
            InvalidArgument: the log cannot have this number of copies, or `stays` is not in sync.
        """
        request = logs_pb.SetCopiesRequest(log=log, copies=copies, stays=stays)
        return await self._change("SetCopies", request)

    async def _change(self, method_name: str, request: Any) -> LogDescription:
        """Change a log, whose kind is looked up; return its new state."""
        request.kind = (await self._find(request.log)).state.kind
        await self._call(method_name, request)
        return await self.describe(request.log)

    async def _call(self, method_name: str, request: Any) -> Any:
        return await self._cluster.call_nameserver(method_name, request, service=LogsStub)


def reported(state: logs_pb.LogState, replica_id: str) -> tuple[int, int] | None:
    """Return (epoch, end) of a replica's report; None without a report."""
    if replica_id not in state.reports:
        return None
    rank = state.reports[replica_id].rank
    return rank.epoch, rank.end


@dataclass(frozen=True, slots=True)
class LogStatus:
    """Status of one replicated log.

    Attributes:
        log: state of the log at the nameservers.
        standings: status by replica id, for the copies that answered.
    """

    log: LogDescription
    standings: Mapping[str, ReplicaStanding]

    @property
    def is_well(self) -> bool:
        """True if the log has a leader, and enough copies are in sync and ready."""
        log = self.log
        return (
            not log.frozen
            and log.leader is not None
            and log.confirmed
            and len(log.in_sync) >= log.copies
            and all(self._is_ready(each.id) for each in log.in_sync)
        )

    def _is_ready(self, replica_id: str) -> bool:
        standing = self.standings.get(replica_id)
        return standing is not None and standing.ready


async def ask_log_status(cluster: "Connection", seconds_max: float) -> Sequence[LogStatus]:
    """Return the status of all replicated logs, sorted by name; none if no nameserver answers.

    Args:
        seconds_max: timeout of the nameserver call; the calls to the copies have their own.

    Raises:
        NotPermitted: the access key has no permission to ask.
    """
    try:
        reply = await cluster.call_nameserver(
            "ListLogs",
            logs_pb.ListLogsRequest(),
            retry_seconds=0,
            timeout_seconds=seconds_max,
            service=LogsStub,
        )
    except NotPermitted:
        raise
    except RockoonError:
        # The status of the nameservers reports that they do not answer.
        return []
    logs = [LogDescription.from_wire(each) for each in reply.logs]
    async with asyncio.TaskGroup() as tasks:
        asked = [
            (log, tasks.create_task(ask_standings(cluster, log.name, log.reached)))
            for log in logs
            if log.has_copies
        ]
    return [LogStatus(log, task.result()) for log, task in asked]
