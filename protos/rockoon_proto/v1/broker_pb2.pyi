from rockoon_proto.v1 import errors_pb2 as _errors_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Handling(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ORDINARY: _ClassVar[Handling]
    DELAYED: _ClassVar[Handling]
    HALF: _ClassVar[Handling]

class PullStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PULL_STATUS_UNSPECIFIED: _ClassVar[PullStatus]
    FOUND: _ClassVar[PullStatus]
    NO_MATCHED_MESSAGE: _ClassVar[PullStatus]
    MESSAGE_WAS_REMOVING: _ClassVar[PullStatus]
    NO_MESSAGE_IN_QUEUE: _ClassVar[PullStatus]
    OFFSET_TOO_SMALL: _ClassVar[PullStatus]
    OFFSET_OVERFLOW_ONE: _ClassVar[PullStatus]
    OFFSET_OVERFLOW_BADLY: _ClassVar[PullStatus]
    OFFSET_FOUND_NULL: _ClassVar[PullStatus]
    NO_MATCHED_LOGIC_QUEUE: _ClassVar[PullStatus]

class LossCause(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LOSS_CAUSE_UNSPECIFIED: _ClassVar[LossCause]
    LOSS_EXPIRED_AT_HOUR: _ClassVar[LossCause]
    LOSS_EXPIRED: _ClassVar[LossCause]
    LOSS_DISK_FULL: _ClassVar[LossCause]
    LOSS_DISK_FILLS: _ClassVar[LossCause]

class DeletionReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DELETION_REASON_UNSPECIFIED: _ClassVar[DeletionReason]
    DELETED_EXPIRED: _ClassVar[DeletionReason]
    DELETED_DISK_PRESSURE: _ClassVar[DeletionReason]
    DELETED_WAIT_LIMIT: _ClassVar[DeletionReason]

class Boundary(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LOWER: _ClassVar[Boundary]
    UPPER: _ClassVar[Boundary]

class Resolution(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RESOLUTION_UNSPECIFIED: _ClassVar[Resolution]
    COMMIT: _ClassVar[Resolution]
    ROLLBACK: _ClassVar[Resolution]
    UNKNOWN: _ClassVar[Resolution]

class KeyKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    KEY: _ClassVar[KeyKind]
    UNIQUE_ID: _ClassVar[KeyKind]

class LogColumn(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LOG_COLUMN_UNSPECIFIED: _ClassVar[LogColumn]
    COLUMN_PHYSICAL_OFFSET: _ClassVar[LogColumn]
    COLUMN_QUEUE_OFFSET: _ClassVar[LogColumn]
    COLUMN_BORN_TIME: _ClassVar[LogColumn]
    COLUMN_STORE_TIME: _ClassVar[LogColumn]
    COLUMN_PREPARED_OFFSET: _ClassVar[LogColumn]
    COLUMN_QUEUE: _ClassVar[LogColumn]
    COLUMN_FLAG: _ClassVar[LogColumn]
    COLUMN_SYS_FLAG: _ClassVar[LogColumn]
    COLUMN_RECONSUME_TIMES: _ClassVar[LogColumn]
    COLUMN_SIZE: _ClassVar[LogColumn]
    COLUMN_TOPIC: _ClassVar[LogColumn]
    COLUMN_KEYS: _ClassVar[LogColumn]
    COLUMN_TAGS: _ClassVar[LogColumn]
    COLUMN_UNIQUE_KEY: _ClassVar[LogColumn]
    COLUMN_BODY: _ClassVar[LogColumn]
ORDINARY: Handling
DELAYED: Handling
HALF: Handling
PULL_STATUS_UNSPECIFIED: PullStatus
FOUND: PullStatus
NO_MATCHED_MESSAGE: PullStatus
MESSAGE_WAS_REMOVING: PullStatus
NO_MESSAGE_IN_QUEUE: PullStatus
OFFSET_TOO_SMALL: PullStatus
OFFSET_OVERFLOW_ONE: PullStatus
OFFSET_OVERFLOW_BADLY: PullStatus
OFFSET_FOUND_NULL: PullStatus
NO_MATCHED_LOGIC_QUEUE: PullStatus
LOSS_CAUSE_UNSPECIFIED: LossCause
LOSS_EXPIRED_AT_HOUR: LossCause
LOSS_EXPIRED: LossCause
LOSS_DISK_FULL: LossCause
LOSS_DISK_FILLS: LossCause
DELETION_REASON_UNSPECIFIED: DeletionReason
DELETED_EXPIRED: DeletionReason
DELETED_DISK_PRESSURE: DeletionReason
DELETED_WAIT_LIMIT: DeletionReason
LOWER: Boundary
UPPER: Boundary
RESOLUTION_UNSPECIFIED: Resolution
COMMIT: Resolution
ROLLBACK: Resolution
UNKNOWN: Resolution
KEY: KeyKind
UNIQUE_ID: KeyKind
LOG_COLUMN_UNSPECIFIED: LogColumn
COLUMN_PHYSICAL_OFFSET: LogColumn
COLUMN_QUEUE_OFFSET: LogColumn
COLUMN_BORN_TIME: LogColumn
COLUMN_STORE_TIME: LogColumn
COLUMN_PREPARED_OFFSET: LogColumn
COLUMN_QUEUE: LogColumn
COLUMN_FLAG: LogColumn
COLUMN_SYS_FLAG: LogColumn
COLUMN_RECONSUME_TIMES: LogColumn
COLUMN_SIZE: LogColumn
COLUMN_TOPIC: LogColumn
COLUMN_KEYS: LogColumn
COLUMN_TAGS: LogColumn
COLUMN_UNIQUE_KEY: LogColumn
COLUMN_BODY: LogColumn

class AppendRequest(_message.Message):
    __slots__ = ("topic", "queue_id", "frames", "record_lengths", "route_revision", "request_id", "handling", "producer_id", "first_sequence", "first_sent_ms_ago", "traceparent", "more")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    RECORD_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    ROUTE_REVISION_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    HANDLING_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    FIRST_SENT_MS_AGO_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    frames: bytes
    record_lengths: bytes
    route_revision: int
    request_id: int
    handling: Handling
    producer_id: int
    first_sequence: int
    first_sent_ms_ago: int
    traceparent: str
    more: _containers.RepeatedCompositeFieldContainer[AppendRequest]
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., frames: _Optional[bytes] = ..., record_lengths: _Optional[bytes] = ..., route_revision: _Optional[int] = ..., request_id: _Optional[int] = ..., handling: _Optional[_Union[Handling, str]] = ..., producer_id: _Optional[int] = ..., first_sequence: _Optional[int] = ..., first_sent_ms_ago: _Optional[int] = ..., traceparent: _Optional[str] = ..., more: _Optional[_Iterable[_Union[AppendRequest, _Mapping]]] = ...) -> None: ...

class Appended(_message.Message):
    __slots__ = ("first_queue_offset", "first_physical_offset", "messages", "store_timestamp_ms", "store_host", "more")
    FIRST_QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    FIRST_PHYSICAL_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    STORE_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    STORE_HOST_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    first_queue_offset: int
    first_physical_offset: int
    messages: int
    store_timestamp_ms: int
    store_host: bytes
    more: _containers.RepeatedCompositeFieldContainer[Appended]
    def __init__(self, first_queue_offset: _Optional[int] = ..., first_physical_offset: _Optional[int] = ..., messages: _Optional[int] = ..., store_timestamp_ms: _Optional[int] = ..., store_host: _Optional[bytes] = ..., more: _Optional[_Iterable[_Union[Appended, _Mapping]]] = ...) -> None: ...

class AppendReply(_message.Message):
    __slots__ = ("request_id", "appended", "error", "more", "batches_max")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    APPENDED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    BATCHES_MAX_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    appended: Appended
    error: _errors_pb2.Error
    more: _containers.RepeatedCompositeFieldContainer[AppendReply]
    batches_max: int
    def __init__(self, request_id: _Optional[int] = ..., appended: _Optional[_Union[Appended, _Mapping]] = ..., error: _Optional[_Union[_errors_pb2.Error, _Mapping]] = ..., more: _Optional[_Iterable[_Union[AppendReply, _Mapping]]] = ..., batches_max: _Optional[int] = ...) -> None: ...

class PullRequest(_message.Message):
    __slots__ = ("topic", "queue_id", "offset", "max_messages", "max_bytes", "wait_ms", "tag_hashes", "route_revision", "sql_expression", "group", "create_revision", "columns")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    TAG_HASHES_FIELD_NUMBER: _ClassVar[int]
    ROUTE_REVISION_FIELD_NUMBER: _ClassVar[int]
    SQL_EXPRESSION_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    CREATE_REVISION_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    offset: int
    max_messages: int
    max_bytes: int
    wait_ms: int
    tag_hashes: _containers.RepeatedScalarFieldContainer[int]
    route_revision: int
    sql_expression: str
    group: str
    create_revision: int
    columns: _containers.RepeatedScalarFieldContainer[LogColumn]
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., offset: _Optional[int] = ..., max_messages: _Optional[int] = ..., max_bytes: _Optional[int] = ..., wait_ms: _Optional[int] = ..., tag_hashes: _Optional[_Iterable[int]] = ..., route_revision: _Optional[int] = ..., sql_expression: _Optional[str] = ..., group: _Optional[str] = ..., create_revision: _Optional[int] = ..., columns: _Optional[_Iterable[_Union[LogColumn, str]]] = ...) -> None: ...

class PullReply(_message.Message):
    __slots__ = ("status", "next_offset", "min_offset", "max_offset", "frames", "record_lengths", "subscription_id", "ended", "error", "deletion", "columns")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    RECORD_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_ID_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    DELETION_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    frames: bytes
    record_lengths: bytes
    subscription_id: int
    ended: bool
    error: _errors_pb2.Error
    deletion: DeletionReason
    columns: LogColumns
    def __init__(self, status: _Optional[_Union[PullStatus, str]] = ..., next_offset: _Optional[int] = ..., min_offset: _Optional[int] = ..., max_offset: _Optional[int] = ..., frames: _Optional[bytes] = ..., record_lengths: _Optional[bytes] = ..., subscription_id: _Optional[int] = ..., ended: _Optional[bool] = ..., error: _Optional[_Union[_errors_pb2.Error, _Mapping]] = ..., deletion: _Optional[_Union[DeletionReason, str]] = ..., columns: _Optional[_Union[LogColumns, _Mapping]] = ...) -> None: ...

class PullStreamRequest(_message.Message):
    __slots__ = ("subscribe", "credit", "unsubscribe")
    SUBSCRIBE_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    UNSUBSCRIBE_FIELD_NUMBER: _ClassVar[int]
    subscribe: _containers.RepeatedCompositeFieldContainer[PullSubscription]
    credit: _containers.RepeatedCompositeFieldContainer[PullCredit]
    unsubscribe: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, subscribe: _Optional[_Iterable[_Union[PullSubscription, _Mapping]]] = ..., credit: _Optional[_Iterable[_Union[PullCredit, _Mapping]]] = ..., unsubscribe: _Optional[_Iterable[int]] = ...) -> None: ...

class PullSubscription(_message.Message):
    __slots__ = ("id", "pull")
    ID_FIELD_NUMBER: _ClassVar[int]
    PULL_FIELD_NUMBER: _ClassVar[int]
    id: int
    pull: PullRequest
    def __init__(self, id: _Optional[int] = ..., pull: _Optional[_Union[PullRequest, _Mapping]] = ...) -> None: ...

class PullCredit(_message.Message):
    __slots__ = ("id", "messages", "bytes")
    ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    id: int
    messages: int
    bytes: int
    def __init__(self, id: _Optional[int] = ..., messages: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class PullStreamReply(_message.Message):
    __slots__ = ("answers",)
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    answers: _containers.RepeatedCompositeFieldContainer[PullReply]
    def __init__(self, answers: _Optional[_Iterable[_Union[PullReply, _Mapping]]] = ...) -> None: ...

class ReadRequest(_message.Message):
    __slots__ = ("range", "message_id")
    RANGE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    range: QueueRange
    message_id: str
    def __init__(self, range: _Optional[_Union[QueueRange, _Mapping]] = ..., message_id: _Optional[str] = ...) -> None: ...

class QueueRange(_message.Message):
    __slots__ = ("topic", "queue_id", "offset", "messages")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    offset: int
    messages: int
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., offset: _Optional[int] = ..., messages: _Optional[int] = ...) -> None: ...

class ReadReply(_message.Message):
    __slots__ = ("frames", "record_lengths")
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    RECORD_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    frames: bytes
    record_lengths: bytes
    def __init__(self, frames: _Optional[bytes] = ..., record_lengths: _Optional[bytes] = ...) -> None: ...

class SendBackRequest(_message.Message):
    __slots__ = ("group", "messages", "attempts_max", "route_revision")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_MAX_FIELD_NUMBER: _ClassVar[int]
    ROUTE_REVISION_FIELD_NUMBER: _ClassVar[int]
    group: str
    messages: _containers.RepeatedCompositeFieldContainer[FailedMessage]
    attempts_max: int
    route_revision: int
    def __init__(self, group: _Optional[str] = ..., messages: _Optional[_Iterable[_Union[FailedMessage, _Mapping]]] = ..., attempts_max: _Optional[int] = ..., route_revision: _Optional[int] = ...) -> None: ...

class FailedMessage(_message.Message):
    __slots__ = ("topic", "queue_id", "queue_offset", "physical_offset", "record", "delay_level", "delay_ms", "failure", "deliveries")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    PHYSICAL_OFFSET_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    DELAY_LEVEL_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    record: bytes
    delay_level: int
    delay_ms: int
    failure: str
    deliveries: int
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., queue_offset: _Optional[int] = ..., physical_offset: _Optional[int] = ..., record: _Optional[bytes] = ..., delay_level: _Optional[int] = ..., delay_ms: _Optional[int] = ..., failure: _Optional[str] = ..., deliveries: _Optional[int] = ...) -> None: ...

class SentBack(_message.Message):
    __slots__ = ("topic", "dead", "attempts", "origin_message_id", "error")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    DEAD_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    topic: str
    dead: bool
    attempts: int
    origin_message_id: str
    error: _errors_pb2.Error
    def __init__(self, topic: _Optional[str] = ..., dead: _Optional[bool] = ..., attempts: _Optional[int] = ..., origin_message_id: _Optional[str] = ..., error: _Optional[_Union[_errors_pb2.Error, _Mapping]] = ...) -> None: ...

class SendBackReply(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[SentBack]
    def __init__(self, results: _Optional[_Iterable[_Union[SentBack, _Mapping]]] = ...) -> None: ...

class BrokerQueue(_message.Message):
    __slots__ = ("topic", "queue_id")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ...) -> None: ...

class QueueStatusRequest(_message.Message):
    __slots__ = ("queues", "route_revision", "with_residency", "offsets", "offsets_only", "without_times")
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    ROUTE_REVISION_FIELD_NUMBER: _ClassVar[int]
    WITH_RESIDENCY_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_ONLY_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_TIMES_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[BrokerQueue]
    route_revision: int
    with_residency: bool
    offsets: _containers.RepeatedScalarFieldContainer[int]
    offsets_only: bool
    without_times: bool
    def __init__(self, queues: _Optional[_Iterable[_Union[BrokerQueue, _Mapping]]] = ..., route_revision: _Optional[int] = ..., with_residency: _Optional[bool] = ..., offsets: _Optional[_Iterable[int]] = ..., offsets_only: _Optional[bool] = ..., without_times: _Optional[bool] = ...) -> None: ...

class QueueState(_message.Message):
    __slots__ = ("queue", "min_offset", "max_offset", "first_store_timestamp_ms", "last_store_timestamp_ms", "first_in_memory_by_distance", "first_pages_resident", "error", "asked_store_timestamp_ms", "asked_loss_cause", "asked_loss_at_ms", "compacted_to_offset", "compacted_records", "writable", "next_offset", "asked_deletion")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
    FIRST_STORE_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    LAST_STORE_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    FIRST_IN_MEMORY_BY_DISTANCE_FIELD_NUMBER: _ClassVar[int]
    FIRST_PAGES_RESIDENT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ASKED_STORE_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    ASKED_LOSS_CAUSE_FIELD_NUMBER: _ClassVar[int]
    ASKED_LOSS_AT_MS_FIELD_NUMBER: _ClassVar[int]
    COMPACTED_TO_OFFSET_FIELD_NUMBER: _ClassVar[int]
    COMPACTED_RECORDS_FIELD_NUMBER: _ClassVar[int]
    WRITABLE_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    ASKED_DELETION_FIELD_NUMBER: _ClassVar[int]
    queue: BrokerQueue
    min_offset: int
    max_offset: int
    first_store_timestamp_ms: int
    last_store_timestamp_ms: int
    first_in_memory_by_distance: bool
    first_pages_resident: bool
    error: _errors_pb2.Error
    asked_store_timestamp_ms: int
    asked_loss_cause: LossCause
    asked_loss_at_ms: int
    compacted_to_offset: int
    compacted_records: int
    writable: bool
    next_offset: int
    asked_deletion: DeletionReason
    def __init__(self, queue: _Optional[_Union[BrokerQueue, _Mapping]] = ..., min_offset: _Optional[int] = ..., max_offset: _Optional[int] = ..., first_store_timestamp_ms: _Optional[int] = ..., last_store_timestamp_ms: _Optional[int] = ..., first_in_memory_by_distance: _Optional[bool] = ..., first_pages_resident: _Optional[bool] = ..., error: _Optional[_Union[_errors_pb2.Error, _Mapping]] = ..., asked_store_timestamp_ms: _Optional[int] = ..., asked_loss_cause: _Optional[_Union[LossCause, str]] = ..., asked_loss_at_ms: _Optional[int] = ..., compacted_to_offset: _Optional[int] = ..., compacted_records: _Optional[int] = ..., writable: _Optional[bool] = ..., next_offset: _Optional[int] = ..., asked_deletion: _Optional[_Union[DeletionReason, str]] = ...) -> None: ...

class QueueStatusReply(_message.Message):
    __slots__ = ("queues", "as_of_ms", "route_revision", "disk")
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    AS_OF_MS_FIELD_NUMBER: _ClassVar[int]
    ROUTE_REVISION_FIELD_NUMBER: _ClassVar[int]
    DISK_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[QueueState]
    as_of_ms: int
    route_revision: int
    disk: DiskState
    def __init__(self, queues: _Optional[_Iterable[_Union[QueueState, _Mapping]]] = ..., as_of_ms: _Optional[int] = ..., route_revision: _Optional[int] = ..., disk: _Optional[_Union[DiskState, _Mapping]] = ...) -> None: ...

class DiskState(_message.Message):
    __slots__ = ("used_percent", "pressure_at_ms", "deletes_unread", "refusal")
    USED_PERCENT_FIELD_NUMBER: _ClassVar[int]
    PRESSURE_AT_MS_FIELD_NUMBER: _ClassVar[int]
    DELETES_UNREAD_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    used_percent: int
    pressure_at_ms: int
    deletes_unread: bool
    refusal: str
    def __init__(self, used_percent: _Optional[int] = ..., pressure_at_ms: _Optional[int] = ..., deletes_unread: _Optional[bool] = ..., refusal: _Optional[str] = ...) -> None: ...

class SearchOffsetRequest(_message.Message):
    __slots__ = ("queues", "timestamp_ms", "boundary", "route_revision")
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    BOUNDARY_FIELD_NUMBER: _ClassVar[int]
    ROUTE_REVISION_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[BrokerQueue]
    timestamp_ms: int
    boundary: Boundary
    route_revision: int
    def __init__(self, queues: _Optional[_Iterable[_Union[BrokerQueue, _Mapping]]] = ..., timestamp_ms: _Optional[int] = ..., boundary: _Optional[_Union[Boundary, str]] = ..., route_revision: _Optional[int] = ...) -> None: ...

class FoundOffset(_message.Message):
    __slots__ = ("queue", "offset", "error")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    queue: BrokerQueue
    offset: int
    error: _errors_pb2.Error
    def __init__(self, queue: _Optional[_Union[BrokerQueue, _Mapping]] = ..., offset: _Optional[int] = ..., error: _Optional[_Union[_errors_pb2.Error, _Mapping]] = ...) -> None: ...

class SearchOffsetReply(_message.Message):
    __slots__ = ("offsets",)
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    offsets: _containers.RepeatedCompositeFieldContainer[FoundOffset]
    def __init__(self, offsets: _Optional[_Iterable[_Union[FoundOffset, _Mapping]]] = ...) -> None: ...

class EndTransactionRequest(_message.Message):
    __slots__ = ("producer_group", "queue_offset", "physical_offset", "resolution", "from_check")
    PRODUCER_GROUP_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    PHYSICAL_OFFSET_FIELD_NUMBER: _ClassVar[int]
    RESOLUTION_FIELD_NUMBER: _ClassVar[int]
    FROM_CHECK_FIELD_NUMBER: _ClassVar[int]
    producer_group: str
    queue_offset: int
    physical_offset: int
    resolution: Resolution
    from_check: bool
    def __init__(self, producer_group: _Optional[str] = ..., queue_offset: _Optional[int] = ..., physical_offset: _Optional[int] = ..., resolution: _Optional[_Union[Resolution, str]] = ..., from_check: _Optional[bool] = ...) -> None: ...

class EndTransactionReply(_message.Message):
    __slots__ = ("committed",)
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    committed: Appended
    def __init__(self, committed: _Optional[_Union[Appended, _Mapping]] = ...) -> None: ...

class CheckTransactionsRequest(_message.Message):
    __slots__ = ("producer_group", "client_id")
    PRODUCER_GROUP_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    producer_group: str
    client_id: str
    def __init__(self, producer_group: _Optional[str] = ..., client_id: _Optional[str] = ...) -> None: ...

class TransactionCheck(_message.Message):
    __slots__ = ("queue_offset", "physical_offset", "frame", "checks")
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    PHYSICAL_OFFSET_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    queue_offset: int
    physical_offset: int
    frame: bytes
    checks: int
    def __init__(self, queue_offset: _Optional[int] = ..., physical_offset: _Optional[int] = ..., frame: _Optional[bytes] = ..., checks: _Optional[int] = ...) -> None: ...

class ListTransactionsRequest(_message.Message):
    __slots__ = ("max_messages",)
    MAX_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    max_messages: int
    def __init__(self, max_messages: _Optional[int] = ...) -> None: ...

class PendingTransaction(_message.Message):
    __slots__ = ("transaction_id", "topic", "queue_id", "producer_group", "queue_offset", "physical_offset", "store_timestamp_ms", "checks")
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_GROUP_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    PHYSICAL_OFFSET_FIELD_NUMBER: _ClassVar[int]
    STORE_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    transaction_id: str
    topic: str
    queue_id: int
    producer_group: str
    queue_offset: int
    physical_offset: int
    store_timestamp_ms: int
    checks: int
    def __init__(self, transaction_id: _Optional[str] = ..., topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., producer_group: _Optional[str] = ..., queue_offset: _Optional[int] = ..., physical_offset: _Optional[int] = ..., store_timestamp_ms: _Optional[int] = ..., checks: _Optional[int] = ...) -> None: ...

class ListTransactionsReply(_message.Message):
    __slots__ = ("transactions", "pending", "as_of_ms")
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    AS_OF_MS_FIELD_NUMBER: _ClassVar[int]
    transactions: _containers.RepeatedCompositeFieldContainer[PendingTransaction]
    pending: int
    as_of_ms: int
    def __init__(self, transactions: _Optional[_Iterable[_Union[PendingTransaction, _Mapping]]] = ..., pending: _Optional[int] = ..., as_of_ms: _Optional[int] = ...) -> None: ...

class QueryMessagesRequest(_message.Message):
    __slots__ = ("topic", "key", "kind", "begin_ms", "end_ms", "max_messages", "route_revision")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    BEGIN_MS_FIELD_NUMBER: _ClassVar[int]
    END_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    ROUTE_REVISION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    key: str
    kind: KeyKind
    begin_ms: int
    end_ms: int
    max_messages: int
    route_revision: int
    def __init__(self, topic: _Optional[str] = ..., key: _Optional[str] = ..., kind: _Optional[_Union[KeyKind, str]] = ..., begin_ms: _Optional[int] = ..., end_ms: _Optional[int] = ..., max_messages: _Optional[int] = ..., route_revision: _Optional[int] = ...) -> None: ...

class QueryMessagesReply(_message.Message):
    __slots__ = ("frames", "record_lengths", "whole_range_searched", "not_searched_because", "indexed_until_ms")
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    RECORD_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    WHOLE_RANGE_SEARCHED_FIELD_NUMBER: _ClassVar[int]
    NOT_SEARCHED_BECAUSE_FIELD_NUMBER: _ClassVar[int]
    INDEXED_UNTIL_MS_FIELD_NUMBER: _ClassVar[int]
    frames: bytes
    record_lengths: bytes
    whole_range_searched: bool
    not_searched_because: str
    indexed_until_ms: int
    def __init__(self, frames: _Optional[bytes] = ..., record_lengths: _Optional[bytes] = ..., whole_range_searched: _Optional[bool] = ..., not_searched_because: _Optional[str] = ..., indexed_until_ms: _Optional[int] = ...) -> None: ...

class LogQueueRange(_message.Message):
    __slots__ = ("topic", "queue_id", "offset", "end_offset")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    offset: int
    end_offset: int
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., offset: _Optional[int] = ..., end_offset: _Optional[int] = ...) -> None: ...

class ReadLogRequest(_message.Message):
    __slots__ = ("physical_offset", "at_record", "end_offset", "max_bytes", "with_deleted_topics", "topics", "queues", "from_store_timestamp_ms", "until_store_timestamp_ms", "with_queue_ends", "columns")
    PHYSICAL_OFFSET_FIELD_NUMBER: _ClassVar[int]
    AT_RECORD_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    WITH_DELETED_TOPICS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    FROM_STORE_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    UNTIL_STORE_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    WITH_QUEUE_ENDS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    physical_offset: int
    at_record: bool
    end_offset: int
    max_bytes: int
    with_deleted_topics: bool
    topics: _containers.RepeatedScalarFieldContainer[str]
    queues: _containers.RepeatedCompositeFieldContainer[LogQueueRange]
    from_store_timestamp_ms: int
    until_store_timestamp_ms: int
    with_queue_ends: bool
    columns: _containers.RepeatedScalarFieldContainer[LogColumn]
    def __init__(self, physical_offset: _Optional[int] = ..., at_record: _Optional[bool] = ..., end_offset: _Optional[int] = ..., max_bytes: _Optional[int] = ..., with_deleted_topics: _Optional[bool] = ..., topics: _Optional[_Iterable[str]] = ..., queues: _Optional[_Iterable[_Union[LogQueueRange, _Mapping]]] = ..., from_store_timestamp_ms: _Optional[int] = ..., until_store_timestamp_ms: _Optional[int] = ..., with_queue_ends: _Optional[bool] = ..., columns: _Optional[_Iterable[_Union[LogColumn, str]]] = ...) -> None: ...

class LogColumns(_message.Message):
    __slots__ = ("records", "columns")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    records: int
    columns: _containers.RepeatedCompositeFieldContainer[LogColumnValues]
    def __init__(self, records: _Optional[int] = ..., columns: _Optional[_Iterable[_Union[LogColumnValues, _Mapping]]] = ...) -> None: ...

class LogColumnValues(_message.Message):
    __slots__ = ("values", "bounds", "validity")
    VALUES_FIELD_NUMBER: _ClassVar[int]
    BOUNDS_FIELD_NUMBER: _ClassVar[int]
    VALIDITY_FIELD_NUMBER: _ClassVar[int]
    values: bytes
    bounds: bytes
    validity: bytes
    def __init__(self, values: _Optional[bytes] = ..., bounds: _Optional[bytes] = ..., validity: _Optional[bytes] = ...) -> None: ...

class LogQueueEnds(_message.Message):
    __slots__ = ("topic", "queue_ids", "end_offsets")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_IDS_FIELD_NUMBER: _ClassVar[int]
    END_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_ids: _containers.RepeatedScalarFieldContainer[int]
    end_offsets: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic: _Optional[str] = ..., queue_ids: _Optional[_Iterable[int]] = ..., end_offsets: _Optional[_Iterable[int]] = ...) -> None: ...

class ReadLogReply(_message.Message):
    __slots__ = ("frames", "record_lengths", "first_offset", "next_offset", "next_at_record", "skipped_bytes", "log_min_offset", "visible_end", "durable_end", "log_file_bytes", "dropped", "time_run_starts", "queue_entries", "queue_ends", "columns")
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    RECORD_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    NEXT_AT_RECORD_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOG_MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    VISIBLE_END_FIELD_NUMBER: _ClassVar[int]
    DURABLE_END_FIELD_NUMBER: _ClassVar[int]
    LOG_FILE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    TIME_RUN_STARTS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ENDS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    frames: bytes
    record_lengths: bytes
    first_offset: int
    next_offset: int
    next_at_record: bool
    skipped_bytes: int
    log_min_offset: int
    visible_end: int
    durable_end: int
    log_file_bytes: int
    dropped: _containers.RepeatedCompositeFieldContainer[DroppedTopic]
    time_run_starts: _containers.RepeatedScalarFieldContainer[int]
    queue_entries: int
    queue_ends: _containers.RepeatedCompositeFieldContainer[LogQueueEnds]
    columns: _containers.RepeatedCompositeFieldContainer[LogColumns]
    def __init__(self, frames: _Optional[bytes] = ..., record_lengths: _Optional[bytes] = ..., first_offset: _Optional[int] = ..., next_offset: _Optional[int] = ..., next_at_record: _Optional[bool] = ..., skipped_bytes: _Optional[int] = ..., log_min_offset: _Optional[int] = ..., visible_end: _Optional[int] = ..., durable_end: _Optional[int] = ..., log_file_bytes: _Optional[int] = ..., dropped: _Optional[_Iterable[_Union[DroppedTopic, _Mapping]]] = ..., time_run_starts: _Optional[_Iterable[int]] = ..., queue_entries: _Optional[int] = ..., queue_ends: _Optional[_Iterable[_Union[LogQueueEnds, _Mapping]]] = ..., columns: _Optional[_Iterable[_Union[LogColumns, _Mapping]]] = ...) -> None: ...

class CancelDelayedRequest(_message.Message):
    __slots__ = ("message_id", "topic")
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    message_id: str
    topic: str
    def __init__(self, message_id: _Optional[str] = ..., topic: _Optional[str] = ...) -> None: ...

class CancelDelayedReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListDelayedRequest(_message.Message):
    __slots__ = ("max_messages",)
    MAX_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    max_messages: int
    def __init__(self, max_messages: _Optional[int] = ...) -> None: ...

class PendingDelayed(_message.Message):
    __slots__ = ("message_id", "topic", "queue_id", "unique_id", "deliver_at_ms", "level", "store_timestamp_ms")
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    UNIQUE_ID_FIELD_NUMBER: _ClassVar[int]
    DELIVER_AT_MS_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    STORE_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    message_id: str
    topic: str
    queue_id: int
    unique_id: str
    deliver_at_ms: int
    level: int
    store_timestamp_ms: int
    def __init__(self, message_id: _Optional[str] = ..., topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., unique_id: _Optional[str] = ..., deliver_at_ms: _Optional[int] = ..., level: _Optional[int] = ..., store_timestamp_ms: _Optional[int] = ...) -> None: ...

class ListDelayedReply(_message.Message):
    __slots__ = ("messages", "counts", "as_of_ms")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    AS_OF_MS_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[PendingDelayed]
    counts: DelayedCounts
    as_of_ms: int
    def __init__(self, messages: _Optional[_Iterable[_Union[PendingDelayed, _Mapping]]] = ..., counts: _Optional[_Union[DelayedCounts, _Mapping]] = ..., as_of_ms: _Optional[int] = ...) -> None: ...

class DelayedCounts(_message.Message):
    __slots__ = ("pending_by_level", "pending_timed", "delivered", "cancelled", "undeliverable", "lost", "lag_ms", "rolled")
    class PendingByLevelEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    PENDING_BY_LEVEL_FIELD_NUMBER: _ClassVar[int]
    PENDING_TIMED_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    UNDELIVERABLE_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    LAG_MS_FIELD_NUMBER: _ClassVar[int]
    ROLLED_FIELD_NUMBER: _ClassVar[int]
    pending_by_level: _containers.ScalarMap[int, int]
    pending_timed: int
    delivered: int
    cancelled: int
    undeliverable: int
    lost: int
    lag_ms: int
    rolled: int
    def __init__(self, pending_by_level: _Optional[_Mapping[int, int]] = ..., pending_timed: _Optional[int] = ..., delivered: _Optional[int] = ..., cancelled: _Optional[int] = ..., undeliverable: _Optional[int] = ..., lost: _Optional[int] = ..., lag_ms: _Optional[int] = ..., rolled: _Optional[int] = ...) -> None: ...

class CompactionState(_message.Message):
    __slots__ = ("generation", "created_ms", "records", "files_bytes", "log_end", "topics", "hold", "refusal", "uploads")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    FILES_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOG_END_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    HOLD_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    UPLOADS_FIELD_NUMBER: _ClassVar[int]
    generation: int
    created_ms: int
    records: int
    files_bytes: int
    log_end: int
    topics: int
    hold: CompactionHold
    refusal: GenerationRefusal
    uploads: int
    def __init__(self, generation: _Optional[int] = ..., created_ms: _Optional[int] = ..., records: _Optional[int] = ..., files_bytes: _Optional[int] = ..., log_end: _Optional[int] = ..., topics: _Optional[int] = ..., hold: _Optional[_Union[CompactionHold, _Mapping]] = ..., refusal: _Optional[_Union[GenerationRefusal, _Mapping]] = ..., uploads: _Optional[int] = ...) -> None: ...

class CompactionHold(_message.Message):
    __slots__ = ("physical_offset", "topic")
    PHYSICAL_OFFSET_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    physical_offset: int
    topic: str
    def __init__(self, physical_offset: _Optional[int] = ..., topic: _Optional[str] = ...) -> None: ...

class GenerationRefusal(_message.Message):
    __slots__ = ("generation", "reason", "refused_ms")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REFUSED_MS_FIELD_NUMBER: _ClassVar[int]
    generation: int
    reason: str
    refused_ms: int
    def __init__(self, generation: _Optional[int] = ..., reason: _Optional[str] = ..., refused_ms: _Optional[int] = ...) -> None: ...

class DescribeCompactionRequest(_message.Message):
    __slots__ = ("log_end",)
    LOG_END_FIELD_NUMBER: _ClassVar[int]
    log_end: int
    def __init__(self, log_end: _Optional[int] = ...) -> None: ...

class DescribeCompactionReply(_message.Message):
    __slots__ = ("name", "state", "manifest", "topics", "dropped", "log_min_offset", "log_end", "log_tail", "as_of_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    LOG_MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOG_END_FIELD_NUMBER: _ClassVar[int]
    LOG_TAIL_FIELD_NUMBER: _ClassVar[int]
    AS_OF_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    state: CompactionState
    manifest: bytes
    topics: _containers.RepeatedCompositeFieldContainer[CompactedTopic]
    dropped: _containers.RepeatedCompositeFieldContainer[DroppedTopic]
    log_min_offset: int
    log_end: int
    log_tail: LogTail
    as_of_ms: int
    def __init__(self, name: _Optional[str] = ..., state: _Optional[_Union[CompactionState, _Mapping]] = ..., manifest: _Optional[bytes] = ..., topics: _Optional[_Iterable[_Union[CompactedTopic, _Mapping]]] = ..., dropped: _Optional[_Iterable[_Union[DroppedTopic, _Mapping]]] = ..., log_min_offset: _Optional[int] = ..., log_end: _Optional[int] = ..., log_tail: _Optional[_Union[LogTail, _Mapping]] = ..., as_of_ms: _Optional[int] = ...) -> None: ...

class CompactedTopic(_message.Message):
    __slots__ = ("name", "queues", "tombstone_retention_ms", "attributes")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    TOMBSTONE_RETENTION_MS_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    queues: int
    tombstone_retention_ms: int
    attributes: _containers.ScalarMap[str, str]
    def __init__(self, name: _Optional[str] = ..., queues: _Optional[int] = ..., tombstone_retention_ms: _Optional[int] = ..., attributes: _Optional[_Mapping[str, str]] = ...) -> None: ...

class DroppedTopic(_message.Message):
    __slots__ = ("topic", "dropped_below")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    DROPPED_BELOW_FIELD_NUMBER: _ClassVar[int]
    topic: str
    dropped_below: int
    def __init__(self, topic: _Optional[str] = ..., dropped_below: _Optional[int] = ...) -> None: ...

class LogTail(_message.Message):
    __slots__ = ("start", "tail_bytes", "crc32")
    START_FIELD_NUMBER: _ClassVar[int]
    TAIL_BYTES_FIELD_NUMBER: _ClassVar[int]
    CRC32_FIELD_NUMBER: _ClassVar[int]
    start: int
    tail_bytes: int
    crc32: int
    def __init__(self, start: _Optional[int] = ..., tail_bytes: _Optional[int] = ..., crc32: _Optional[int] = ...) -> None: ...

class ReadGenerationRequest(_message.Message):
    __slots__ = ("generation", "file_name", "offset", "max_bytes")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    FILE_NAME_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    generation: int
    file_name: str
    offset: int
    max_bytes: int
    def __init__(self, generation: _Optional[int] = ..., file_name: _Optional[str] = ..., offset: _Optional[int] = ..., max_bytes: _Optional[int] = ...) -> None: ...

class ReadGenerationReply(_message.Message):
    __slots__ = ("data", "file_bytes")
    DATA_FIELD_NUMBER: _ClassVar[int]
    FILE_BYTES_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    file_bytes: int
    def __init__(self, data: _Optional[bytes] = ..., file_bytes: _Optional[int] = ...) -> None: ...

class PutGenerationFileRequest(_message.Message):
    __slots__ = ("upload_id", "file_name", "data")
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    FILE_NAME_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    upload_id: str
    file_name: str
    data: bytes
    def __init__(self, upload_id: _Optional[str] = ..., file_name: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...

class PutGenerationFileReply(_message.Message):
    __slots__ = ("file_bytes", "sha256")
    FILE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    file_bytes: int
    sha256: bytes
    def __init__(self, file_bytes: _Optional[int] = ..., sha256: _Optional[bytes] = ...) -> None: ...

class PublishGenerationRequest(_message.Message):
    __slots__ = ("upload_id", "manifest")
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    upload_id: str
    manifest: bytes
    def __init__(self, upload_id: _Optional[str] = ..., manifest: _Optional[bytes] = ...) -> None: ...

class PublishGenerationReply(_message.Message):
    __slots__ = ("state",)
    STATE_FIELD_NUMBER: _ClassVar[int]
    state: CompactionState
    def __init__(self, state: _Optional[_Union[CompactionState, _Mapping]] = ...) -> None: ...

class DiscardGenerationRequest(_message.Message):
    __slots__ = ("upload_id",)
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    upload_id: str
    def __init__(self, upload_id: _Optional[str] = ...) -> None: ...

class DiscardGenerationReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Agent(_message.Message):
    __slots__ = ("client_id", "language", "version", "gateway")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    GATEWAY_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    language: str
    version: str
    gateway: str
    def __init__(self, client_id: _Optional[str] = ..., language: _Optional[str] = ..., version: _Optional[str] = ..., gateway: _Optional[str] = ...) -> None: ...

class ListAppendStreamsRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class AppendStreamState(_message.Message):
    __slots__ = ("agent", "address", "key_id", "opened_ms_ago", "sent_ms_ago", "topics")
    AGENT_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    OPENED_MS_AGO_FIELD_NUMBER: _ClassVar[int]
    SENT_MS_AGO_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    agent: Agent
    address: str
    key_id: str
    opened_ms_ago: int
    sent_ms_ago: int
    topics: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, agent: _Optional[_Union[Agent, _Mapping]] = ..., address: _Optional[str] = ..., key_id: _Optional[str] = ..., opened_ms_ago: _Optional[int] = ..., sent_ms_ago: _Optional[int] = ..., topics: _Optional[_Iterable[str]] = ...) -> None: ...

class ListAppendStreamsReply(_message.Message):
    __slots__ = ("streams", "streams_count")
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    STREAMS_COUNT_FIELD_NUMBER: _ClassVar[int]
    streams: _containers.RepeatedCompositeFieldContainer[AppendStreamState]
    streams_count: int
    def __init__(self, streams: _Optional[_Iterable[_Union[AppendStreamState, _Mapping]]] = ..., streams_count: _Optional[int] = ...) -> None: ...

class DescribeBrokerRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeBrokerReply(_message.Message):
    __slots__ = ("name", "cluster", "log_min_offset", "log_max_offset", "log_synced_offset", "flush", "writable", "not_writable_reason", "disk_used_ratio", "topics", "queues", "recovery_records_scanned", "recovery_bytes_scanned", "recovery_seconds", "recovery_was_clean", "route_revision", "messages_appended", "messages_pulled", "bytes_appended", "bytes_pulled", "waiting_pulls", "pull_subscriptions", "messages_sent_back", "messages_dead", "delayed", "transactions_pending", "transactions_committed", "transactions_rolled_back", "transactions_given_up", "transaction_checks_sent", "transactions_lost", "index_end_offset", "compaction", "problems", "kernel", "lost_bytes", "clock_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    LOG_MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOG_MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOG_SYNCED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    FLUSH_FIELD_NUMBER: _ClassVar[int]
    WRITABLE_FIELD_NUMBER: _ClassVar[int]
    NOT_WRITABLE_REASON_FIELD_NUMBER: _ClassVar[int]
    DISK_USED_RATIO_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    RECOVERY_RECORDS_SCANNED_FIELD_NUMBER: _ClassVar[int]
    RECOVERY_BYTES_SCANNED_FIELD_NUMBER: _ClassVar[int]
    RECOVERY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RECOVERY_WAS_CLEAN_FIELD_NUMBER: _ClassVar[int]
    ROUTE_REVISION_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_APPENDED_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_PULLED_FIELD_NUMBER: _ClassVar[int]
    BYTES_APPENDED_FIELD_NUMBER: _ClassVar[int]
    BYTES_PULLED_FIELD_NUMBER: _ClassVar[int]
    WAITING_PULLS_FIELD_NUMBER: _ClassVar[int]
    PULL_SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_SENT_BACK_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_DEAD_FIELD_NUMBER: _ClassVar[int]
    DELAYED_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONS_PENDING_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONS_COMMITTED_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONS_ROLLED_BACK_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONS_GIVEN_UP_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_CHECKS_SENT_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONS_LOST_FIELD_NUMBER: _ClassVar[int]
    INDEX_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    COMPACTION_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    KERNEL_FIELD_NUMBER: _ClassVar[int]
    LOST_BYTES_FIELD_NUMBER: _ClassVar[int]
    CLOCK_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    cluster: str
    log_min_offset: int
    log_max_offset: int
    log_synced_offset: int
    flush: str
    writable: bool
    not_writable_reason: str
    disk_used_ratio: float
    topics: int
    queues: int
    recovery_records_scanned: int
    recovery_bytes_scanned: int
    recovery_seconds: float
    recovery_was_clean: bool
    route_revision: int
    messages_appended: int
    messages_pulled: int
    bytes_appended: int
    bytes_pulled: int
    waiting_pulls: int
    pull_subscriptions: int
    messages_sent_back: int
    messages_dead: int
    delayed: DelayedCounts
    transactions_pending: int
    transactions_committed: int
    transactions_rolled_back: int
    transactions_given_up: int
    transaction_checks_sent: int
    transactions_lost: int
    index_end_offset: int
    compaction: CompactionState
    problems: _containers.RepeatedScalarFieldContainer[str]
    kernel: str
    lost_bytes: int
    clock_ms: int
    def __init__(self, name: _Optional[str] = ..., cluster: _Optional[str] = ..., log_min_offset: _Optional[int] = ..., log_max_offset: _Optional[int] = ..., log_synced_offset: _Optional[int] = ..., flush: _Optional[str] = ..., writable: _Optional[bool] = ..., not_writable_reason: _Optional[str] = ..., disk_used_ratio: _Optional[float] = ..., topics: _Optional[int] = ..., queues: _Optional[int] = ..., recovery_records_scanned: _Optional[int] = ..., recovery_bytes_scanned: _Optional[int] = ..., recovery_seconds: _Optional[float] = ..., recovery_was_clean: _Optional[bool] = ..., route_revision: _Optional[int] = ..., messages_appended: _Optional[int] = ..., messages_pulled: _Optional[int] = ..., bytes_appended: _Optional[int] = ..., bytes_pulled: _Optional[int] = ..., waiting_pulls: _Optional[int] = ..., pull_subscriptions: _Optional[int] = ..., messages_sent_back: _Optional[int] = ..., messages_dead: _Optional[int] = ..., delayed: _Optional[_Union[DelayedCounts, _Mapping]] = ..., transactions_pending: _Optional[int] = ..., transactions_committed: _Optional[int] = ..., transactions_rolled_back: _Optional[int] = ..., transactions_given_up: _Optional[int] = ..., transaction_checks_sent: _Optional[int] = ..., transactions_lost: _Optional[int] = ..., index_end_offset: _Optional[int] = ..., compaction: _Optional[_Union[CompactionState, _Mapping]] = ..., problems: _Optional[_Iterable[str]] = ..., kernel: _Optional[str] = ..., lost_bytes: _Optional[int] = ..., clock_ms: _Optional[int] = ...) -> None: ...

class DescribeDrainRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeDrainReply(_message.Message):
    __slots__ = ("drained", "closed", "settled", "unread_messages", "unread", "unknown_because", "delayed", "transactions", "topics")
    DRAINED_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    UNREAD_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    UNREAD_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_BECAUSE_FIELD_NUMBER: _ClassVar[int]
    DELAYED_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    drained: bool
    closed: bool
    settled: bool
    unread_messages: int
    unread: _containers.RepeatedCompositeFieldContainer[UnreadByReader]
    unknown_because: str
    delayed: int
    transactions: int
    topics: _containers.RepeatedCompositeFieldContainer[StoredMessages]
    def __init__(self, drained: _Optional[bool] = ..., closed: _Optional[bool] = ..., settled: _Optional[bool] = ..., unread_messages: _Optional[int] = ..., unread: _Optional[_Iterable[_Union[UnreadByReader, _Mapping]]] = ..., unknown_because: _Optional[str] = ..., delayed: _Optional[int] = ..., transactions: _Optional[int] = ..., topics: _Optional[_Iterable[_Union[StoredMessages, _Mapping]]] = ...) -> None: ...

class UnreadByReader(_message.Message):
    __slots__ = ("reader", "queue", "messages")
    READER_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    reader: str
    queue: str
    messages: int
    def __init__(self, reader: _Optional[str] = ..., queue: _Optional[str] = ..., messages: _Optional[int] = ...) -> None: ...

class StoredMessages(_message.Message):
    __slots__ = ("topic", "messages", "compacted")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    COMPACTED_FIELD_NUMBER: _ClassVar[int]
    topic: str
    messages: int
    compacted: bool
    def __init__(self, topic: _Optional[str] = ..., messages: _Optional[int] = ..., compacted: _Optional[bool] = ...) -> None: ...
