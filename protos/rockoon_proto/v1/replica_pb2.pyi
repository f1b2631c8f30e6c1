from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReadCopyRequest(_message.Message):
    __slots__ = ("log", "offset", "bytes_max")
    LOG_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    log: str
    offset: int
    bytes_max: int
    def __init__(self, log: _Optional[str] = ..., offset: _Optional[int] = ..., bytes_max: _Optional[int] = ...) -> None: ...

class ReadCopyReply(_message.Message):
    __slots__ = ("data", "crc", "boundaries", "committed_end")
    DATA_FIELD_NUMBER: _ClassVar[int]
    CRC_FIELD_NUMBER: _ClassVar[int]
    BOUNDARIES_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_END_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    crc: int
    boundaries: _containers.RepeatedCompositeFieldContainer[EpochBoundary]
    committed_end: int
    def __init__(self, data: _Optional[bytes] = ..., crc: _Optional[int] = ..., boundaries: _Optional[_Iterable[_Union[EpochBoundary, _Mapping]]] = ..., committed_end: _Optional[int] = ...) -> None: ...

class CheckCopyRequest(_message.Message):
    __slots__ = ("log", "begin", "end")
    LOG_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    log: str
    begin: int
    end: int
    def __init__(self, log: _Optional[str] = ..., begin: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class CheckCopyReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeReplicaRequest(_message.Message):
    __slots__ = ("log",)
    LOG_FIELD_NUMBER: _ClassVar[int]
    log: str
    def __init__(self, log: _Optional[str] = ...) -> None: ...

class DescribeReplicaReply(_message.Message):
    __slots__ = ("replica_id", "leads", "epoch", "ready", "trouble", "min_offset", "end", "durable_end", "committed_end", "others", "damaged_at", "repaired")
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    LEADS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    DURABLE_END_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_END_FIELD_NUMBER: _ClassVar[int]
    OTHERS_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_AT_FIELD_NUMBER: _ClassVar[int]
    REPAIRED_FIELD_NUMBER: _ClassVar[int]
    replica_id: str
    leads: bool
    epoch: int
    ready: bool
    trouble: str
    min_offset: int
    end: int
    durable_end: int
    committed_end: int
    others: _containers.RepeatedCompositeFieldContainer[ReplicaLag]
    damaged_at: _containers.RepeatedScalarFieldContainer[int]
    repaired: int
    def __init__(self, replica_id: _Optional[str] = ..., leads: _Optional[bool] = ..., epoch: _Optional[int] = ..., ready: _Optional[bool] = ..., trouble: _Optional[str] = ..., min_offset: _Optional[int] = ..., end: _Optional[int] = ..., durable_end: _Optional[int] = ..., committed_end: _Optional[int] = ..., others: _Optional[_Iterable[_Union[ReplicaLag, _Mapping]]] = ..., damaged_at: _Optional[_Iterable[int]] = ..., repaired: _Optional[int] = ...) -> None: ...

class ReplicaLag(_message.Message):
    __slots__ = ("replica_id", "connected", "heard", "behind_bytes", "behind_seconds")
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    HEARD_FIELD_NUMBER: _ClassVar[int]
    BEHIND_BYTES_FIELD_NUMBER: _ClassVar[int]
    BEHIND_SECONDS_FIELD_NUMBER: _ClassVar[int]
    replica_id: str
    connected: bool
    heard: bool
    behind_bytes: int
    behind_seconds: float
    def __init__(self, replica_id: _Optional[str] = ..., connected: _Optional[bool] = ..., heard: _Optional[bool] = ..., behind_bytes: _Optional[int] = ..., behind_seconds: _Optional[float] = ...) -> None: ...

class EpochBoundary(_message.Message):
    __slots__ = ("epoch", "first", "end")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    first: int
    end: int
    def __init__(self, epoch: _Optional[int] = ..., first: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class FollowerSays(_message.Message):
    __slots__ = ("hello", "ack")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    hello: FollowerHello
    ack: FollowerAck
    def __init__(self, hello: _Optional[_Union[FollowerHello, _Mapping]] = ..., ack: _Optional[_Union[FollowerAck, _Mapping]] = ...) -> None: ...

class FollowerHello(_message.Message):
    __slots__ = ("log", "epoch", "replica_id", "boundaries", "end", "min_offset")
    LOG_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    BOUNDARIES_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    log: str
    epoch: int
    replica_id: str
    boundaries: _containers.RepeatedCompositeFieldContainer[EpochBoundary]
    end: int
    min_offset: int
    def __init__(self, log: _Optional[str] = ..., epoch: _Optional[int] = ..., replica_id: _Optional[str] = ..., boundaries: _Optional[_Iterable[_Union[EpochBoundary, _Mapping]]] = ..., end: _Optional[int] = ..., min_offset: _Optional[int] = ...) -> None: ...

class FollowerAck(_message.Message):
    __slots__ = ("durable_end", "round", "lacking", "writes_fail", "damaged")
    DURABLE_END_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    LACKING_FIELD_NUMBER: _ClassVar[int]
    WRITES_FAIL_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    durable_end: int
    round: int
    lacking: bool
    writes_fail: bool
    damaged: bool
    def __init__(self, durable_end: _Optional[int] = ..., round: _Optional[int] = ..., lacking: _Optional[bool] = ..., writes_fail: _Optional[bool] = ..., damaged: _Optional[bool] = ...) -> None: ...

class LeaderSays(_message.Message):
    __slots__ = ("welcome", "chunk")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    welcome: LeaderWelcome
    chunk: LeaderChunk
    def __init__(self, welcome: _Optional[_Union[LeaderWelcome, _Mapping]] = ..., chunk: _Optional[_Union[LeaderChunk, _Mapping]] = ...) -> None: ...

class LeaderWelcome(_message.Message):
    __slots__ = ("leader_id", "epoch", "truncate_to", "remake", "leader_end", "log_min_offset", "tail_crc", "dropped_below", "generation_end")
    class DroppedBelowEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_TO_FIELD_NUMBER: _ClassVar[int]
    REMAKE_FIELD_NUMBER: _ClassVar[int]
    LEADER_END_FIELD_NUMBER: _ClassVar[int]
    LOG_MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    TAIL_CRC_FIELD_NUMBER: _ClassVar[int]
    DROPPED_BELOW_FIELD_NUMBER: _ClassVar[int]
    GENERATION_END_FIELD_NUMBER: _ClassVar[int]
    leader_id: str
    epoch: int
    truncate_to: int
    remake: bool
    leader_end: int
    log_min_offset: int
    tail_crc: int
    dropped_below: _containers.ScalarMap[str, int]
    generation_end: int
    def __init__(self, leader_id: _Optional[str] = ..., epoch: _Optional[int] = ..., truncate_to: _Optional[int] = ..., remake: _Optional[bool] = ..., leader_end: _Optional[int] = ..., log_min_offset: _Optional[int] = ..., tail_crc: _Optional[int] = ..., dropped_below: _Optional[_Mapping[str, int]] = ..., generation_end: _Optional[int] = ...) -> None: ...

class LeaderChunk(_message.Message):
    __slots__ = ("leader_id", "epoch", "offset", "data", "crc", "committed_end", "log_min_offset", "round", "generation")
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    CRC_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_END_FIELD_NUMBER: _ClassVar[int]
    LOG_MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    leader_id: str
    epoch: int
    offset: int
    data: bytes
    crc: int
    committed_end: int
    log_min_offset: int
    round: int
    generation: int
    def __init__(self, leader_id: _Optional[str] = ..., epoch: _Optional[int] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ..., crc: _Optional[int] = ..., committed_end: _Optional[int] = ..., log_min_offset: _Optional[int] = ..., round: _Optional[int] = ..., generation: _Optional[int] = ...) -> None: ...
