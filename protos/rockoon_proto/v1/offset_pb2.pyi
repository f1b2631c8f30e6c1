from rockoon_proto.v1 import broker_pb2 as _broker_pb2
from rockoon_proto.v1 import errors_pb2 as _errors_pb2
from rockoon_proto.v1 import nameserver_pb2 as _nameserver_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ConsumeMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CONSUME_MODE_UNSPECIFIED: _ClassVar[ConsumeMode]
    CLUSTERING: _ClassVar[ConsumeMode]
    BROADCASTING: _ClassVar[ConsumeMode]

class StartReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    START_REASON_UNSPECIFIED: _ClassVar[StartReason]
    COMMITTED: _ClassVar[StartReason]
    NEW_QUEUE: _ClassVar[StartReason]
    FIRST: _ClassVar[StartReason]
    LAST: _ClassVar[StartReason]
    TIMESTAMP: _ClassVar[StartReason]
    TAIL: _ClassVar[StartReason]
    DURATION: _ClassVar[StartReason]
    RETRY_TOPIC: _ClassVar[StartReason]
    BELOW_MIN: _ClassVar[StartReason]
    ABOVE_MAX: _ClassVar[StartReason]
    OTHER_INCARNATION: _ClassVar[StartReason]
    RESET: _ClassVar[StartReason]
    IMPORTED: _ClassVar[StartReason]
    RESTORED: _ClassVar[StartReason]

class ExportFormat(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EXPORT_FORMAT_UNSPECIFIED: _ClassVar[ExportFormat]
    JSON_LINES: _ClassVar[ExportFormat]
    ROCKETMQ: _ClassVar[ExportFormat]
CONSUME_MODE_UNSPECIFIED: ConsumeMode
CLUSTERING: ConsumeMode
BROADCASTING: ConsumeMode
START_REASON_UNSPECIFIED: StartReason
COMMITTED: StartReason
NEW_QUEUE: StartReason
FIRST: StartReason
LAST: StartReason
TIMESTAMP: StartReason
TAIL: StartReason
DURATION: StartReason
RETRY_TOPIC: StartReason
BELOW_MIN: StartReason
ABOVE_MAX: StartReason
OTHER_INCARNATION: StartReason
RESET: StartReason
IMPORTED: StartReason
RESTORED: StartReason
EXPORT_FORMAT_UNSPECIFIED: ExportFormat
JSON_LINES: ExportFormat
ROCKETMQ: ExportFormat

class QueueRef(_message.Message):
    __slots__ = ("topic", "broker", "queue_id")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    BROKER_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    topic: str
    broker: str
    queue_id: int
    def __init__(self, topic: _Optional[str] = ..., broker: _Optional[str] = ..., queue_id: _Optional[int] = ...) -> None: ...

class TopicSubscription(_message.Message):
    __slots__ = ("topic", "expression")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    EXPRESSION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    expression: str
    def __init__(self, topic: _Optional[str] = ..., expression: _Optional[str] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("member_id", "subscriptions", "mode", "peer", "joined_at_ms", "heard_at_ms", "allocation", "language", "version")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    JOINED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    HEARD_AT_MS_FIELD_NUMBER: _ClassVar[int]
    ALLOCATION_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    member_id: str
    subscriptions: _containers.RepeatedCompositeFieldContainer[TopicSubscription]
    mode: ConsumeMode
    peer: str
    joined_at_ms: int
    heard_at_ms: int
    allocation: str
    language: str
    version: str
    def __init__(self, member_id: _Optional[str] = ..., subscriptions: _Optional[_Iterable[_Union[TopicSubscription, _Mapping]]] = ..., mode: _Optional[_Union[ConsumeMode, str]] = ..., peer: _Optional[str] = ..., joined_at_ms: _Optional[int] = ..., heard_at_ms: _Optional[int] = ..., allocation: _Optional[str] = ..., language: _Optional[str] = ..., version: _Optional[str] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("group", "member_id", "instance", "mode", "subscriptions", "positions", "allocation", "wants_owners", "owners_version", "group_incarnation", "language", "version")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    ALLOCATION_FIELD_NUMBER: _ClassVar[int]
    WANTS_OWNERS_FIELD_NUMBER: _ClassVar[int]
    OWNERS_VERSION_FIELD_NUMBER: _ClassVar[int]
    GROUP_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    group: str
    member_id: str
    instance: str
    mode: ConsumeMode
    subscriptions: _containers.RepeatedCompositeFieldContainer[TopicSubscription]
    positions: _containers.RepeatedCompositeFieldContainer[PulledPosition]
    allocation: str
    wants_owners: bool
    owners_version: int
    group_incarnation: int
    language: str
    version: str
    def __init__(self, group: _Optional[str] = ..., member_id: _Optional[str] = ..., instance: _Optional[str] = ..., mode: _Optional[_Union[ConsumeMode, str]] = ..., subscriptions: _Optional[_Iterable[_Union[TopicSubscription, _Mapping]]] = ..., positions: _Optional[_Iterable[_Union[PulledPosition, _Mapping]]] = ..., allocation: _Optional[str] = ..., wants_owners: _Optional[bool] = ..., owners_version: _Optional[int] = ..., group_incarnation: _Optional[int] = ..., language: _Optional[str] = ..., version: _Optional[str] = ...) -> None: ...

class QueueOwner(_message.Message):
    __slots__ = ("queue", "member_id")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    queue: QueueRef
    member_id: str
    def __init__(self, queue: _Optional[_Union[QueueRef, _Mapping]] = ..., member_id: _Optional[str] = ...) -> None: ...

class PulledPosition(_message.Message):
    __slots__ = ("queue", "next_offset", "epoch", "unfinished")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    UNFINISHED_FIELD_NUMBER: _ClassVar[int]
    queue: QueueRef
    next_offset: int
    epoch: int
    unfinished: int
    def __init__(self, queue: _Optional[_Union[QueueRef, _Mapping]] = ..., next_offset: _Optional[int] = ..., epoch: _Optional[int] = ..., unfinished: _Optional[int] = ...) -> None: ...

class HeartbeatReply(_message.Message):
    __slots__ = ("membership_version", "members", "heartbeat_seconds", "lease_seconds", "handover_seconds_max", "owners", "owners_known", "consume_disabled")
    MEMBERSHIP_VERSION_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    HANDOVER_SECONDS_MAX_FIELD_NUMBER: _ClassVar[int]
    OWNERS_FIELD_NUMBER: _ClassVar[int]
    OWNERS_KNOWN_FIELD_NUMBER: _ClassVar[int]
    CONSUME_DISABLED_FIELD_NUMBER: _ClassVar[int]
    membership_version: int
    members: _containers.RepeatedCompositeFieldContainer[Member]
    heartbeat_seconds: float
    lease_seconds: float
    handover_seconds_max: float
    owners: _containers.RepeatedCompositeFieldContainer[QueueOwner]
    owners_known: bool
    consume_disabled: bool
    def __init__(self, membership_version: _Optional[int] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., heartbeat_seconds: _Optional[float] = ..., lease_seconds: _Optional[float] = ..., handover_seconds_max: _Optional[float] = ..., owners: _Optional[_Iterable[_Union[QueueOwner, _Mapping]]] = ..., owners_known: _Optional[bool] = ..., consume_disabled: _Optional[bool] = ...) -> None: ...

class LeaveRequest(_message.Message):
    __slots__ = ("group", "member_id", "instance")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    group: str
    member_id: str
    instance: str
    def __init__(self, group: _Optional[str] = ..., member_id: _Optional[str] = ..., instance: _Optional[str] = ...) -> None: ...

class LeaveReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WatchGroupRequest(_message.Message):
    __slots__ = ("group", "member_id", "group_incarnation")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    group: str
    member_id: str
    group_incarnation: int
    def __init__(self, group: _Optional[str] = ..., member_id: _Optional[str] = ..., group_incarnation: _Optional[int] = ...) -> None: ...

class GroupEvent(_message.Message):
    __slots__ = ("membership_version", "members", "reset_queues", "routes_changed", "deleted", "released_queues", "consume_disabled")
    MEMBERSHIP_VERSION_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    RESET_QUEUES_FIELD_NUMBER: _ClassVar[int]
    ROUTES_CHANGED_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    RELEASED_QUEUES_FIELD_NUMBER: _ClassVar[int]
    CONSUME_DISABLED_FIELD_NUMBER: _ClassVar[int]
    membership_version: int
    members: _containers.RepeatedCompositeFieldContainer[Member]
    reset_queues: _containers.RepeatedCompositeFieldContainer[QueueRef]
    routes_changed: bool
    deleted: bool
    released_queues: _containers.RepeatedCompositeFieldContainer[QueueRef]
    consume_disabled: bool
    def __init__(self, membership_version: _Optional[int] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., reset_queues: _Optional[_Iterable[_Union[QueueRef, _Mapping]]] = ..., routes_changed: _Optional[bool] = ..., deleted: _Optional[bool] = ..., released_queues: _Optional[_Iterable[_Union[QueueRef, _Mapping]]] = ..., consume_disabled: _Optional[bool] = ...) -> None: ...

class QueryRequest(_message.Message):
    __slots__ = ("group", "queue", "member")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    group: str
    queue: QueueRef
    member: str
    def __init__(self, group: _Optional[str] = ..., queue: _Optional[_Union[QueueRef, _Mapping]] = ..., member: _Optional[str] = ...) -> None: ...

class QueryReply(_message.Message):
    __slots__ = ("found", "offset", "reason", "explanation", "rule")
    FOUND_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    EXPLANATION_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    found: bool
    offset: int
    reason: StartReason
    explanation: str
    rule: _nameserver_pb2.NewQueueRule
    def __init__(self, found: _Optional[bool] = ..., offset: _Optional[int] = ..., reason: _Optional[_Union[StartReason, str]] = ..., explanation: _Optional[str] = ..., rule: _Optional[_Union[_nameserver_pb2.NewQueueRule, str]] = ...) -> None: ...

class ResolveRequest(_message.Message):
    __slots__ = ("group", "member_id", "queues", "policy", "route_revision", "mode")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    ROUTE_REVISION_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    group: str
    member_id: str
    queues: _containers.RepeatedCompositeFieldContainer[QueueRef]
    policy: _nameserver_pb2.StartPolicy
    route_revision: int
    mode: ConsumeMode
    def __init__(self, group: _Optional[str] = ..., member_id: _Optional[str] = ..., queues: _Optional[_Iterable[_Union[QueueRef, _Mapping]]] = ..., policy: _Optional[_Union[_nameserver_pb2.StartPolicy, _Mapping]] = ..., route_revision: _Optional[int] = ..., mode: _Optional[_Union[ConsumeMode, str]] = ...) -> None: ...

class Start(_message.Message):
    __slots__ = ("queue", "offset", "reason", "epoch", "explanation", "gap", "error")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    EXPLANATION_FIELD_NUMBER: _ClassVar[int]
    GAP_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    queue: QueueRef
    offset: int
    reason: StartReason
    epoch: int
    explanation: str
    gap: int
    error: _errors_pb2.Error
    def __init__(self, queue: _Optional[_Union[QueueRef, _Mapping]] = ..., offset: _Optional[int] = ..., reason: _Optional[_Union[StartReason, str]] = ..., epoch: _Optional[int] = ..., explanation: _Optional[str] = ..., gap: _Optional[int] = ..., error: _Optional[_Union[_errors_pb2.Error, _Mapping]] = ...) -> None: ...

class ResolveReply(_message.Message):
    __slots__ = ("starts",)
    STARTS_FIELD_NUMBER: _ClassVar[int]
    starts: _containers.RepeatedCompositeFieldContainer[Start]
    def __init__(self, starts: _Optional[_Iterable[_Union[Start, _Mapping]]] = ...) -> None: ...

class CommitEntry(_message.Message):
    __slots__ = ("queue", "offset", "epoch", "metadata")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    queue: QueueRef
    offset: int
    epoch: int
    metadata: str
    def __init__(self, queue: _Optional[_Union[QueueRef, _Mapping]] = ..., offset: _Optional[int] = ..., epoch: _Optional[int] = ..., metadata: _Optional[str] = ...) -> None: ...

class CommitRequest(_message.Message):
    __slots__ = ("group", "member_id", "entries", "force", "release", "mode")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    group: str
    member_id: str
    entries: _containers.RepeatedCompositeFieldContainer[CommitEntry]
    force: bool
    release: _containers.RepeatedCompositeFieldContainer[QueueRef]
    mode: ConsumeMode
    def __init__(self, group: _Optional[str] = ..., member_id: _Optional[str] = ..., entries: _Optional[_Iterable[_Union[CommitEntry, _Mapping]]] = ..., force: _Optional[bool] = ..., release: _Optional[_Iterable[_Union[QueueRef, _Mapping]]] = ..., mode: _Optional[_Union[ConsumeMode, str]] = ...) -> None: ...

class CommitResult(_message.Message):
    __slots__ = ("queue", "offset", "error")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    queue: QueueRef
    offset: int
    error: _errors_pb2.Error
    def __init__(self, queue: _Optional[_Union[QueueRef, _Mapping]] = ..., offset: _Optional[int] = ..., error: _Optional[_Union[_errors_pb2.Error, _Mapping]] = ...) -> None: ...

class CommitReply(_message.Message):
    __slots__ = ("results", "consume_disabled")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    CONSUME_DISABLED_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[CommitResult]
    consume_disabled: bool
    def __init__(self, results: _Optional[_Iterable[_Union[CommitResult, _Mapping]]] = ..., consume_disabled: _Optional[bool] = ...) -> None: ...

class ResetTarget(_message.Message):
    __slots__ = ("earliest", "latest", "offset", "timestamp_ms", "shift", "duration_ms", "offsets", "group")
    EARLIEST_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    SHIFT_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    earliest: bool
    latest: bool
    offset: int
    timestamp_ms: int
    shift: int
    duration_ms: int
    offsets: QueueOffsets
    group: str
    def __init__(self, earliest: _Optional[bool] = ..., latest: _Optional[bool] = ..., offset: _Optional[int] = ..., timestamp_ms: _Optional[int] = ..., shift: _Optional[int] = ..., duration_ms: _Optional[int] = ..., offsets: _Optional[_Union[QueueOffsets, _Mapping]] = ..., group: _Optional[str] = ...) -> None: ...

class QueueOffset(_message.Message):
    __slots__ = ("queue", "offset")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    queue: QueueRef
    offset: int
    def __init__(self, queue: _Optional[_Union[QueueRef, _Mapping]] = ..., offset: _Optional[int] = ...) -> None: ...

class QueueOffsets(_message.Message):
    __slots__ = ("offsets",)
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    offsets: _containers.RepeatedCompositeFieldContainer[QueueOffset]
    def __init__(self, offsets: _Optional[_Iterable[_Union[QueueOffset, _Mapping]]] = ...) -> None: ...

class PlanResetRequest(_message.Message):
    __slots__ = ("group", "topic", "queues", "target", "member")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    queues: _containers.RepeatedCompositeFieldContainer[QueueRef]
    target: ResetTarget
    member: str
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., queues: _Optional[_Iterable[_Union[QueueRef, _Mapping]]] = ..., target: _Optional[_Union[ResetTarget, _Mapping]] = ..., member: _Optional[str] = ...) -> None: ...

class ResetStep(_message.Message):
    __slots__ = ("queue", "from_offset", "to_offset", "min_offset", "max_offset", "messages", "clamped", "member", "creates_queue")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    FROM_OFFSET_FIELD_NUMBER: _ClassVar[int]
    TO_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    CLAMPED_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    CREATES_QUEUE_FIELD_NUMBER: _ClassVar[int]
    queue: QueueRef
    from_offset: int
    to_offset: int
    min_offset: int
    max_offset: int
    messages: int
    clamped: bool
    member: str
    creates_queue: bool
    def __init__(self, queue: _Optional[_Union[QueueRef, _Mapping]] = ..., from_offset: _Optional[int] = ..., to_offset: _Optional[int] = ..., min_offset: _Optional[int] = ..., max_offset: _Optional[int] = ..., messages: _Optional[int] = ..., clamped: _Optional[bool] = ..., member: _Optional[str] = ..., creates_queue: _Optional[bool] = ...) -> None: ...

class ResetPlan(_message.Message):
    __slots__ = ("reset_id", "group", "topic", "steps", "live_members", "applied", "undone", "as_of_ms")
    RESET_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    LIVE_MEMBERS_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    UNDONE_FIELD_NUMBER: _ClassVar[int]
    AS_OF_MS_FIELD_NUMBER: _ClassVar[int]
    reset_id: str
    group: str
    topic: str
    steps: _containers.RepeatedCompositeFieldContainer[ResetStep]
    live_members: int
    applied: bool
    undone: bool
    as_of_ms: int
    def __init__(self, reset_id: _Optional[str] = ..., group: _Optional[str] = ..., topic: _Optional[str] = ..., steps: _Optional[_Iterable[_Union[ResetStep, _Mapping]]] = ..., live_members: _Optional[int] = ..., applied: _Optional[bool] = ..., undone: _Optional[bool] = ..., as_of_ms: _Optional[int] = ...) -> None: ...

class ApplyResetRequest(_message.Message):
    __slots__ = ("reset_id", "operator")
    RESET_ID_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    reset_id: str
    operator: str
    def __init__(self, reset_id: _Optional[str] = ..., operator: _Optional[str] = ...) -> None: ...

class ResetRequest(_message.Message):
    __slots__ = ("wanted", "reset_id", "operator")
    WANTED_FIELD_NUMBER: _ClassVar[int]
    RESET_ID_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    wanted: PlanResetRequest
    reset_id: str
    operator: str
    def __init__(self, wanted: _Optional[_Union[PlanResetRequest, _Mapping]] = ..., reset_id: _Optional[str] = ..., operator: _Optional[str] = ...) -> None: ...

class UndoResetRequest(_message.Message):
    __slots__ = ("reset_id", "operator")
    RESET_ID_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    reset_id: str
    operator: str
    def __init__(self, reset_id: _Optional[str] = ..., operator: _Optional[str] = ...) -> None: ...

class ListProgressRequest(_message.Message):
    __slots__ = ("group", "topic")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("group", "queue", "offset", "epoch", "incarnation", "committer", "owner", "stored_at_ms", "metadata", "start_offset", "start_reason", "start_explanation", "started_at_ms", "gap_total", "member", "acknowledged_by", "acknowledged_at_ms")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    COMMITTER_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    STORED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    START_REASON_FIELD_NUMBER: _ClassVar[int]
    START_EXPLANATION_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    GAP_TOTAL_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_BY_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    group: str
    queue: QueueRef
    offset: int
    epoch: int
    incarnation: int
    committer: str
    owner: str
    stored_at_ms: int
    metadata: str
    start_offset: int
    start_reason: StartReason
    start_explanation: str
    started_at_ms: int
    gap_total: int
    member: str
    acknowledged_by: str
    acknowledged_at_ms: int
    def __init__(self, group: _Optional[str] = ..., queue: _Optional[_Union[QueueRef, _Mapping]] = ..., offset: _Optional[int] = ..., epoch: _Optional[int] = ..., incarnation: _Optional[int] = ..., committer: _Optional[str] = ..., owner: _Optional[str] = ..., stored_at_ms: _Optional[int] = ..., metadata: _Optional[str] = ..., start_offset: _Optional[int] = ..., start_reason: _Optional[_Union[StartReason, str]] = ..., start_explanation: _Optional[str] = ..., started_at_ms: _Optional[int] = ..., gap_total: _Optional[int] = ..., member: _Optional[str] = ..., acknowledged_by: _Optional[str] = ..., acknowledged_at_ms: _Optional[int] = ...) -> None: ...

class ListProgressReply(_message.Message):
    __slots__ = ("progress", "as_of_ms")
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    AS_OF_MS_FIELD_NUMBER: _ClassVar[int]
    progress: _containers.RepeatedCompositeFieldContainer[Progress]
    as_of_ms: int
    def __init__(self, progress: _Optional[_Iterable[_Union[Progress, _Mapping]]] = ..., as_of_ms: _Optional[int] = ...) -> None: ...

class LagRequest(_message.Message):
    __slots__ = ("group", "topic")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ...) -> None: ...

class QueueLag(_message.Message):
    __slots__ = ("queue", "known", "unknown_because", "min_offset", "max_offset", "committed_offset", "lag", "lag_ms", "owner", "in_flight", "ready", "in_flight_as_of_ms", "lost", "loss_ms", "loss_cause", "filter", "as_of_ms", "member", "absent", "settled_above", "filters_differ", "lost_because")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_BECAUSE_FIELD_NUMBER: _ClassVar[int]
    MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    LAG_MS_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_AS_OF_MS_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    LOSS_MS_FIELD_NUMBER: _ClassVar[int]
    LOSS_CAUSE_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    AS_OF_MS_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    ABSENT_FIELD_NUMBER: _ClassVar[int]
    SETTLED_ABOVE_FIELD_NUMBER: _ClassVar[int]
    FILTERS_DIFFER_FIELD_NUMBER: _ClassVar[int]
    LOST_BECAUSE_FIELD_NUMBER: _ClassVar[int]
    queue: QueueRef
    known: bool
    unknown_because: str
    min_offset: int
    max_offset: int
    committed_offset: int
    lag: int
    lag_ms: int
    owner: str
    in_flight: int
    ready: int
    in_flight_as_of_ms: int
    lost: int
    loss_ms: int
    loss_cause: _broker_pb2.LossCause
    filter: str
    as_of_ms: int
    member: str
    absent: bool
    settled_above: int
    filters_differ: bool
    lost_because: _broker_pb2.DeletionReason
    def __init__(self, queue: _Optional[_Union[QueueRef, _Mapping]] = ..., known: _Optional[bool] = ..., unknown_because: _Optional[str] = ..., min_offset: _Optional[int] = ..., max_offset: _Optional[int] = ..., committed_offset: _Optional[int] = ..., lag: _Optional[int] = ..., lag_ms: _Optional[int] = ..., owner: _Optional[str] = ..., in_flight: _Optional[int] = ..., ready: _Optional[int] = ..., in_flight_as_of_ms: _Optional[int] = ..., lost: _Optional[int] = ..., loss_ms: _Optional[int] = ..., loss_cause: _Optional[_Union[_broker_pb2.LossCause, str]] = ..., filter: _Optional[str] = ..., as_of_ms: _Optional[int] = ..., member: _Optional[str] = ..., absent: _Optional[bool] = ..., settled_above: _Optional[int] = ..., filters_differ: _Optional[bool] = ..., lost_because: _Optional[_Union[_broker_pb2.DeletionReason, str]] = ...) -> None: ...

class BrokerDisk(_message.Message):
    __slots__ = ("broker", "disk", "as_of_ms")
    BROKER_FIELD_NUMBER: _ClassVar[int]
    DISK_FIELD_NUMBER: _ClassVar[int]
    AS_OF_MS_FIELD_NUMBER: _ClassVar[int]
    broker: str
    disk: _broker_pb2.DiskState
    as_of_ms: int
    def __init__(self, broker: _Optional[str] = ..., disk: _Optional[_Union[_broker_pb2.DiskState, _Mapping]] = ..., as_of_ms: _Optional[int] = ...) -> None: ...

class LagReply(_message.Message):
    __slots__ = ("queues", "total_lag", "complete", "as_of_ms", "disks")
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_LAG_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    AS_OF_MS_FIELD_NUMBER: _ClassVar[int]
    DISKS_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[QueueLag]
    total_lag: int
    complete: bool
    as_of_ms: int
    disks: _containers.RepeatedCompositeFieldContainer[BrokerDisk]
    def __init__(self, queues: _Optional[_Iterable[_Union[QueueLag, _Mapping]]] = ..., total_lag: _Optional[int] = ..., complete: _Optional[bool] = ..., as_of_ms: _Optional[int] = ..., disks: _Optional[_Iterable[_Union[BrokerDisk, _Mapping]]] = ...) -> None: ...

class QueueSpan(_message.Message):
    __slots__ = ("topic", "queue_id", "begin", "end")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    begin: int
    end: int
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., begin: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class UnreadRequest(_message.Message):
    __slots__ = ("broker", "spans", "waited_groups", "route_revision")
    BROKER_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    WAITED_GROUPS_FIELD_NUMBER: _ClassVar[int]
    ROUTE_REVISION_FIELD_NUMBER: _ClassVar[int]
    broker: str
    spans: _containers.RepeatedCompositeFieldContainer[QueueSpan]
    waited_groups: _containers.RepeatedScalarFieldContainer[str]
    route_revision: int
    def __init__(self, broker: _Optional[str] = ..., spans: _Optional[_Iterable[_Union[QueueSpan, _Mapping]]] = ..., waited_groups: _Optional[_Iterable[str]] = ..., route_revision: _Optional[int] = ...) -> None: ...

class UnreadMessages(_message.Message):
    __slots__ = ("group", "member", "topic", "queue_id", "messages")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    group: str
    member: str
    topic: str
    queue_id: int
    messages: int
    def __init__(self, group: _Optional[str] = ..., member: _Optional[str] = ..., topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., messages: _Optional[int] = ...) -> None: ...

class UnreadReply(_message.Message):
    __slots__ = ("unread", "messages", "is_waited_for")
    UNREAD_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    IS_WAITED_FOR_FIELD_NUMBER: _ClassVar[int]
    unread: _containers.RepeatedCompositeFieldContainer[UnreadMessages]
    messages: int
    is_waited_for: bool
    def __init__(self, unread: _Optional[_Iterable[_Union[UnreadMessages, _Mapping]]] = ..., messages: _Optional[int] = ..., is_waited_for: _Optional[bool] = ...) -> None: ...

class ListMembersRequest(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    def __init__(self, group: _Optional[str] = ...) -> None: ...

class GroupMembers(_message.Message):
    __slots__ = ("group", "membership_version", "members", "receivers", "filter_conflicts", "receiver_count")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBERSHIP_VERSION_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    RECEIVERS_FIELD_NUMBER: _ClassVar[int]
    FILTER_CONFLICTS_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_COUNT_FIELD_NUMBER: _ClassVar[int]
    group: str
    membership_version: int
    members: _containers.RepeatedCompositeFieldContainer[Member]
    receivers: _containers.RepeatedCompositeFieldContainer[ReceiverFilter]
    filter_conflicts: _containers.RepeatedScalarFieldContainer[str]
    receiver_count: int
    def __init__(self, group: _Optional[str] = ..., membership_version: _Optional[int] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., receivers: _Optional[_Iterable[_Union[ReceiverFilter, _Mapping]]] = ..., filter_conflicts: _Optional[_Iterable[str]] = ..., receiver_count: _Optional[int] = ...) -> None: ...

class ReceiverFilter(_message.Message):
    __slots__ = ("receiver", "filter", "heard_at_ms", "address", "language", "version")
    RECEIVER_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    HEARD_AT_MS_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    receiver: str
    filter: TopicSubscription
    heard_at_ms: int
    address: str
    language: str
    version: str
    def __init__(self, receiver: _Optional[str] = ..., filter: _Optional[_Union[TopicSubscription, _Mapping]] = ..., heard_at_ms: _Optional[int] = ..., address: _Optional[str] = ..., language: _Optional[str] = ..., version: _Optional[str] = ...) -> None: ...

class ListLocksRequest(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    def __init__(self, group: _Optional[str] = ...) -> None: ...

class QueueLock(_message.Message):
    __slots__ = ("queue", "owner", "epoch", "since_ms", "lease_left_ms", "waiting")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    LEASE_LEFT_MS_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    queue: QueueRef
    owner: str
    epoch: int
    since_ms: int
    lease_left_ms: int
    waiting: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, queue: _Optional[_Union[QueueRef, _Mapping]] = ..., owner: _Optional[str] = ..., epoch: _Optional[int] = ..., since_ms: _Optional[int] = ..., lease_left_ms: _Optional[int] = ..., waiting: _Optional[_Iterable[str]] = ...) -> None: ...

class ListLocksReply(_message.Message):
    __slots__ = ("locks", "as_of_ms")
    LOCKS_FIELD_NUMBER: _ClassVar[int]
    AS_OF_MS_FIELD_NUMBER: _ClassVar[int]
    locks: _containers.RepeatedCompositeFieldContainer[QueueLock]
    as_of_ms: int
    def __init__(self, locks: _Optional[_Iterable[_Union[QueueLock, _Mapping]]] = ..., as_of_ms: _Optional[int] = ...) -> None: ...

class ListMembersReply(_message.Message):
    __slots__ = ("groups", "problems", "clock_ms")
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    CLOCK_MS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[GroupMembers]
    problems: _containers.RepeatedScalarFieldContainer[str]
    clock_ms: int
    def __init__(self, groups: _Optional[_Iterable[_Union[GroupMembers, _Mapping]]] = ..., problems: _Optional[_Iterable[str]] = ..., clock_ms: _Optional[int] = ...) -> None: ...

class ExportRequest(_message.Message):
    __slots__ = ("format", "group", "broker")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    BROKER_FIELD_NUMBER: _ClassVar[int]
    format: ExportFormat
    group: str
    broker: str
    def __init__(self, format: _Optional[_Union[ExportFormat, str]] = ..., group: _Optional[str] = ..., broker: _Optional[str] = ...) -> None: ...

class ExportReply(_message.Message):
    __slots__ = ("content", "entries")
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    content: bytes
    entries: int
    def __init__(self, content: _Optional[bytes] = ..., entries: _Optional[int] = ...) -> None: ...

class ImportRequest(_message.Message):
    __slots__ = ("format", "content", "broker", "dry_run", "overwrite", "operator")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    BROKER_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    OVERWRITE_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    format: ExportFormat
    content: bytes
    broker: str
    dry_run: bool
    overwrite: bool
    operator: str
    def __init__(self, format: _Optional[_Union[ExportFormat, str]] = ..., content: _Optional[bytes] = ..., broker: _Optional[str] = ..., dry_run: _Optional[bool] = ..., overwrite: _Optional[bool] = ..., operator: _Optional[str] = ...) -> None: ...

class ImportReply(_message.Message):
    __slots__ = ("imported", "skipped", "imported_count", "skipped_count")
    IMPORTED_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    IMPORTED_COUNT_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_COUNT_FIELD_NUMBER: _ClassVar[int]
    imported: _containers.RepeatedCompositeFieldContainer[ResetStep]
    skipped: _containers.RepeatedScalarFieldContainer[str]
    imported_count: int
    skipped_count: int
    def __init__(self, imported: _Optional[_Iterable[_Union[ResetStep, _Mapping]]] = ..., skipped: _Optional[_Iterable[str]] = ..., imported_count: _Optional[int] = ..., skipped_count: _Optional[int] = ...) -> None: ...

class ReadStateRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReadStateReply(_message.Message):
    __slots__ = ("records",)
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    records: bytes
    def __init__(self, records: _Optional[bytes] = ...) -> None: ...
