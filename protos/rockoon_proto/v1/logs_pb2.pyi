from rockoon_proto.v1 import nameserver_pb2 as _nameserver_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Rank(_message.Message):
    __slots__ = ("epoch", "end")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    end: int
    def __init__(self, epoch: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class Replica(_message.Message):
    __slots__ = ("replica_id", "name", "rack", "starts", "run", "halted")
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    HALTED_FIELD_NUMBER: _ClassVar[int]
    replica_id: str
    name: str
    rack: str
    starts: int
    run: int
    halted: str
    def __init__(self, replica_id: _Optional[str] = ..., name: _Optional[str] = ..., rack: _Optional[str] = ..., starts: _Optional[int] = ..., run: _Optional[int] = ..., halted: _Optional[str] = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("rank", "sound", "promised", "version", "history", "in_sync", "quorum", "damaged")
    RANK_FIELD_NUMBER: _ClassVar[int]
    SOUND_FIELD_NUMBER: _ClassVar[int]
    PROMISED_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    IN_SYNC_FIELD_NUMBER: _ClassVar[int]
    QUORUM_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    rank: Rank
    sound: bool
    promised: int
    version: int
    history: int
    in_sync: _containers.RepeatedScalarFieldContainer[str]
    quorum: int
    damaged: bool
    def __init__(self, rank: _Optional[_Union[Rank, _Mapping]] = ..., sound: _Optional[bool] = ..., promised: _Optional[int] = ..., version: _Optional[int] = ..., history: _Optional[int] = ..., in_sync: _Optional[_Iterable[str]] = ..., quorum: _Optional[int] = ..., damaged: _Optional[bool] = ...) -> None: ...

class Move(_message.Message):
    __slots__ = ("leaves", "joins")
    LEAVES_FIELD_NUMBER: _ClassVar[int]
    JOINS_FIELD_NUMBER: _ClassVar[int]
    leaves: str
    joins: str
    def __init__(self, leaves: _Optional[str] = ..., joins: _Optional[str] = ...) -> None: ...

class CopiesWish(_message.Message):
    __slots__ = ("copies", "stays")
    COPIES_FIELD_NUMBER: _ClassVar[int]
    STAYS_FIELD_NUMBER: _ClassVar[int]
    copies: int
    stays: str
    def __init__(self, copies: _Optional[int] = ..., stays: _Optional[str] = ...) -> None: ...

class LogState(_message.Message):
    __slots__ = ("kind", "log", "version", "history", "epoch", "leader", "at_least", "in_sync", "quorum", "copies", "replicas", "reports", "suspects", "former_leader", "confirmed", "vain_epochs", "moves", "losses", "loss_epoch", "loss_end", "frozen", "former_epoch", "copies_wish", "held")
    class ReportsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Report
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Report, _Mapping]] = ...) -> None: ...
    KIND_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    AT_LEAST_FIELD_NUMBER: _ClassVar[int]
    IN_SYNC_FIELD_NUMBER: _ClassVar[int]
    QUORUM_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    SUSPECTS_FIELD_NUMBER: _ClassVar[int]
    FORMER_LEADER_FIELD_NUMBER: _ClassVar[int]
    CONFIRMED_FIELD_NUMBER: _ClassVar[int]
    VAIN_EPOCHS_FIELD_NUMBER: _ClassVar[int]
    MOVES_FIELD_NUMBER: _ClassVar[int]
    LOSSES_FIELD_NUMBER: _ClassVar[int]
    LOSS_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LOSS_END_FIELD_NUMBER: _ClassVar[int]
    FROZEN_FIELD_NUMBER: _ClassVar[int]
    FORMER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    COPIES_WISH_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    kind: _nameserver_pb2.NodeKind
    log: str
    version: int
    history: int
    epoch: int
    leader: str
    at_least: Rank
    in_sync: _containers.RepeatedScalarFieldContainer[str]
    quorum: int
    copies: int
    replicas: _containers.RepeatedCompositeFieldContainer[Replica]
    reports: _containers.MessageMap[str, Report]
    suspects: _containers.RepeatedScalarFieldContainer[str]
    former_leader: str
    confirmed: bool
    vain_epochs: int
    moves: _containers.RepeatedCompositeFieldContainer[Move]
    losses: int
    loss_epoch: int
    loss_end: int
    frozen: str
    former_epoch: int
    copies_wish: CopiesWish
    held: str
    def __init__(self, kind: _Optional[_Union[_nameserver_pb2.NodeKind, str]] = ..., log: _Optional[str] = ..., version: _Optional[int] = ..., history: _Optional[int] = ..., epoch: _Optional[int] = ..., leader: _Optional[str] = ..., at_least: _Optional[_Union[Rank, _Mapping]] = ..., in_sync: _Optional[_Iterable[str]] = ..., quorum: _Optional[int] = ..., copies: _Optional[int] = ..., replicas: _Optional[_Iterable[_Union[Replica, _Mapping]]] = ..., reports: _Optional[_Mapping[str, Report]] = ..., suspects: _Optional[_Iterable[str]] = ..., former_leader: _Optional[str] = ..., confirmed: _Optional[bool] = ..., vain_epochs: _Optional[int] = ..., moves: _Optional[_Iterable[_Union[Move, _Mapping]]] = ..., losses: _Optional[int] = ..., loss_epoch: _Optional[int] = ..., loss_end: _Optional[int] = ..., frozen: _Optional[str] = ..., former_epoch: _Optional[int] = ..., copies_wish: _Optional[_Union[CopiesWish, _Mapping]] = ..., held: _Optional[str] = ...) -> None: ...

class Log(_message.Message):
    __slots__ = ("state", "nodes")
    STATE_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    state: LogState
    nodes: _containers.RepeatedCompositeFieldContainer[_nameserver_pb2.Node]
    def __init__(self, state: _Optional[_Union[LogState, _Mapping]] = ..., nodes: _Optional[_Iterable[_Union[_nameserver_pb2.Node, _Mapping]]] = ...) -> None: ...

class ReplicaCall(_message.Message):
    __slots__ = ("kind", "log", "replica_id", "epoch", "version", "history")
    KIND_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    kind: _nameserver_pb2.NodeKind
    log: str
    replica_id: str
    epoch: int
    version: int
    history: int
    def __init__(self, kind: _Optional[_Union[_nameserver_pb2.NodeKind, str]] = ..., log: _Optional[str] = ..., replica_id: _Optional[str] = ..., epoch: _Optional[int] = ..., version: _Optional[int] = ..., history: _Optional[int] = ...) -> None: ...

class LogReply(_message.Message):
    __slots__ = ("state", "done", "revision")
    STATE_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    state: LogState
    done: bool
    revision: int
    def __init__(self, state: _Optional[_Union[LogState, _Mapping]] = ..., done: _Optional[bool] = ..., revision: _Optional[int] = ...) -> None: ...

class WatchLogsRequest(_message.Message):
    __slots__ = ("kind", "logs")
    KIND_FIELD_NUMBER: _ClassVar[int]
    LOGS_FIELD_NUMBER: _ClassVar[int]
    kind: _nameserver_pb2.NodeKind
    logs: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, kind: _Optional[_Union[_nameserver_pb2.NodeKind, str]] = ..., logs: _Optional[_Iterable[str]] = ...) -> None: ...

class LogUpdate(_message.Message):
    __slots__ = ("logs", "revision", "etcd_reachable")
    LOGS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    ETCD_REACHABLE_FIELD_NUMBER: _ClassVar[int]
    logs: _containers.RepeatedCompositeFieldContainer[Log]
    revision: int
    etcd_reachable: bool
    def __init__(self, logs: _Optional[_Iterable[_Union[Log, _Mapping]]] = ..., revision: _Optional[int] = ..., etcd_reachable: _Optional[bool] = ...) -> None: ...

class SuspectLeaderRequest(_message.Message):
    __slots__ = ("caller", "retract")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    RETRACT_FIELD_NUMBER: _ClassVar[int]
    caller: ReplicaCall
    retract: bool
    def __init__(self, caller: _Optional[_Union[ReplicaCall, _Mapping]] = ..., retract: _Optional[bool] = ...) -> None: ...

class ReportLogRequest(_message.Message):
    __slots__ = ("caller", "report")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    caller: ReplicaCall
    report: Report
    def __init__(self, caller: _Optional[_Union[ReplicaCall, _Mapping]] = ..., report: _Optional[_Union[Report, _Mapping]] = ...) -> None: ...

class ConfirmEpochRequest(_message.Message):
    __slots__ = ("caller",)
    CALLER_FIELD_NUMBER: _ClassVar[int]
    caller: ReplicaCall
    def __init__(self, caller: _Optional[_Union[ReplicaCall, _Mapping]] = ...) -> None: ...

class RecordCommittedEndRequest(_message.Message):
    __slots__ = ("caller", "end")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    caller: ReplicaCall
    end: int
    def __init__(self, caller: _Optional[_Union[ReplicaCall, _Mapping]] = ..., end: _Optional[int] = ...) -> None: ...

class ChangeInSyncRequest(_message.Message):
    __slots__ = ("caller", "in_sync", "quorum")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    IN_SYNC_FIELD_NUMBER: _ClassVar[int]
    QUORUM_FIELD_NUMBER: _ClassVar[int]
    caller: ReplicaCall
    in_sync: _containers.RepeatedScalarFieldContainer[str]
    quorum: int
    def __init__(self, caller: _Optional[_Union[ReplicaCall, _Mapping]] = ..., in_sync: _Optional[_Iterable[str]] = ..., quorum: _Optional[int] = ...) -> None: ...

class HandOverRequest(_message.Message):
    __slots__ = ("caller", "successor", "rank")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    SUCCESSOR_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    caller: ReplicaCall
    successor: str
    rank: Rank
    def __init__(self, caller: _Optional[_Union[ReplicaCall, _Mapping]] = ..., successor: _Optional[str] = ..., rank: _Optional[_Union[Rank, _Mapping]] = ...) -> None: ...

class ResignRequest(_message.Message):
    __slots__ = ("caller",)
    CALLER_FIELD_NUMBER: _ClassVar[int]
    caller: ReplicaCall
    def __init__(self, caller: _Optional[_Union[ReplicaCall, _Mapping]] = ...) -> None: ...

class GoOnAloneRequest(_message.Message):
    __slots__ = ("caller",)
    CALLER_FIELD_NUMBER: _ClassVar[int]
    caller: ReplicaCall
    def __init__(self, caller: _Optional[_Union[ReplicaCall, _Mapping]] = ...) -> None: ...

class ListLogsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListLogsReply(_message.Message):
    __slots__ = ("logs", "revision", "etcd_reachable")
    LOGS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    ETCD_REACHABLE_FIELD_NUMBER: _ClassVar[int]
    logs: _containers.RepeatedCompositeFieldContainer[Log]
    revision: int
    etcd_reachable: bool
    def __init__(self, logs: _Optional[_Iterable[_Union[Log, _Mapping]]] = ..., revision: _Optional[int] = ..., etcd_reachable: _Optional[bool] = ...) -> None: ...

class DescribeLogRequest(_message.Message):
    __slots__ = ("kind", "log")
    KIND_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    kind: _nameserver_pb2.NodeKind
    log: str
    def __init__(self, kind: _Optional[_Union[_nameserver_pb2.NodeKind, str]] = ..., log: _Optional[str] = ...) -> None: ...

class DescribeLogReply(_message.Message):
    __slots__ = ("log", "revision", "etcd_reachable")
    LOG_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    ETCD_REACHABLE_FIELD_NUMBER: _ClassVar[int]
    log: Log
    revision: int
    etcd_reachable: bool
    def __init__(self, log: _Optional[_Union[Log, _Mapping]] = ..., revision: _Optional[int] = ..., etcd_reachable: _Optional[bool] = ...) -> None: ...

class MoveReplicaRequest(_message.Message):
    __slots__ = ("kind", "log", "move", "withdraw")
    KIND_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    MOVE_FIELD_NUMBER: _ClassVar[int]
    WITHDRAW_FIELD_NUMBER: _ClassVar[int]
    kind: _nameserver_pb2.NodeKind
    log: str
    move: Move
    withdraw: bool
    def __init__(self, kind: _Optional[_Union[_nameserver_pb2.NodeKind, str]] = ..., log: _Optional[str] = ..., move: _Optional[_Union[Move, _Mapping]] = ..., withdraw: _Optional[bool] = ...) -> None: ...

class RemoveReplicaRequest(_message.Message):
    __slots__ = ("kind", "log", "replica_id")
    KIND_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    kind: _nameserver_pb2.NodeKind
    log: str
    replica_id: str
    def __init__(self, kind: _Optional[_Union[_nameserver_pb2.NodeKind, str]] = ..., log: _Optional[str] = ..., replica_id: _Optional[str] = ...) -> None: ...

class SetCopiesRequest(_message.Message):
    __slots__ = ("kind", "log", "copies", "stays")
    KIND_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    STAYS_FIELD_NUMBER: _ClassVar[int]
    kind: _nameserver_pb2.NodeKind
    log: str
    copies: int
    stays: str
    def __init__(self, kind: _Optional[_Union[_nameserver_pb2.NodeKind, str]] = ..., log: _Optional[str] = ..., copies: _Optional[int] = ..., stays: _Optional[str] = ...) -> None: ...

class ElectLogRequest(_message.Message):
    __slots__ = ("kind", "log", "expected_version", "accept_loss")
    KIND_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_VERSION_FIELD_NUMBER: _ClassVar[int]
    ACCEPT_LOSS_FIELD_NUMBER: _ClassVar[int]
    kind: _nameserver_pb2.NodeKind
    log: str
    expected_version: int
    accept_loss: bool
    def __init__(self, kind: _Optional[_Union[_nameserver_pb2.NodeKind, str]] = ..., log: _Optional[str] = ..., expected_version: _Optional[int] = ..., accept_loss: _Optional[bool] = ...) -> None: ...

class AdoptLogRequest(_message.Message):
    __slots__ = ("kind", "log", "in_sync", "accept_loss")
    KIND_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    IN_SYNC_FIELD_NUMBER: _ClassVar[int]
    ACCEPT_LOSS_FIELD_NUMBER: _ClassVar[int]
    kind: _nameserver_pb2.NodeKind
    log: str
    in_sync: _containers.RepeatedScalarFieldContainer[str]
    accept_loss: bool
    def __init__(self, kind: _Optional[_Union[_nameserver_pb2.NodeKind, str]] = ..., log: _Optional[str] = ..., in_sync: _Optional[_Iterable[str]] = ..., accept_loss: _Optional[bool] = ...) -> None: ...
