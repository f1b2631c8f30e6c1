from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Error(_message.Message):
    __slots__ = ("code", "message", "retriable", "details")
    class Code(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNSPECIFIED: _ClassVar[Error.Code]
        INVALID_ARGUMENT: _ClassVar[Error.Code]
        INVALID_TOPIC_NAME: _ClassVar[Error.Code]
        INVALID_GROUP_NAME: _ClassVar[Error.Code]
        WRONG_CLUSTER: _ClassVar[Error.Code]
        MALFORMED_BATCH: _ClassVar[Error.Code]
        BODY_TOO_LARGE: _ClassVar[Error.Code]
        PROPERTIES_TOO_LARGE: _ClassVar[Error.Code]
        INVALID_OFFSET: _ClassVar[Error.Code]
        INVALID_PROPERTY: _ClassVar[Error.Code]
        INVALID_EXPRESSION: _ClassVar[Error.Code]
        INVALID_DELAY: _ClassVar[Error.Code]
        DELAY_TOO_LONG: _ClassVar[Error.Code]
        TOPIC_NOT_FOUND: _ClassVar[Error.Code]
        QUEUE_NOT_FOUND: _ClassVar[Error.Code]
        GROUP_NOT_FOUND: _ClassVar[Error.Code]
        MESSAGE_NOT_FOUND: _ClassVar[Error.Code]
        RESET_NOT_FOUND: _ClassVar[Error.Code]
        BROKER_NOT_FOUND: _ClassVar[Error.Code]
        MEMBER_NOT_FOUND: _ClassVar[Error.Code]
        LOG_TRIMMED: _ClassVar[Error.Code]
        TRANSACTION_NOT_FOUND: _ClassVar[Error.Code]
        TOPIC_EXISTS: _ClassVar[Error.Code]
        GROUP_EXISTS: _ClassVar[Error.Code]
        NODE_NAME_TAKEN: _ClassVar[Error.Code]
        MEMBER_ID_TAKEN: _ClassVar[Error.Code]
        FENCED: _ClassVar[Error.Code]
        COMMIT_BEHIND: _ClassVar[Error.Code]
        OFFSET_BEYOND_END: _ClassVar[Error.Code]
        TOPIC_NOT_WRITABLE: _ClassVar[Error.Code]
        TOPIC_NOT_READABLE: _ClassVar[Error.Code]
        GROUP_HAS_MEMBERS: _ClassVar[Error.Code]
        PLAN_STALE: _ClassVar[Error.Code]
        CONSUME_DISABLED: _ClassVar[Error.Code]
        TOPIC_CHANGED: _ClassVar[Error.Code]
        SEQUENCE_GAP: _ClassVar[Error.Code]
        SEQUENCE_UNKNOWN: _ClassVar[Error.Code]
        INDEX_OFF: _ClassVar[Error.Code]
        TRANSACTION_ENDED: _ClassVar[Error.Code]
        DELAYED_SETTLED: _ClassVar[Error.Code]
        ETCD_UNAVAILABLE: _ClassVar[Error.Code]
        NAMESERVER_UNAVAILABLE: _ClassVar[Error.Code]
        BROKER_UNAVAILABLE: _ClassVar[Error.Code]
        OFFSET_SERVICE_UNAVAILABLE: _ClassVar[Error.Code]
        NOT_READY: _ClassVar[Error.Code]
        STORE_NOT_WRITABLE: _ClassVar[Error.Code]
        ROUTE_NOT_REACHED: _ClassVar[Error.Code]
        TIMED_OUT: _ClassVar[Error.Code]
        BUSY: _ClassVar[Error.Code]
        NO_WRITABLE_QUEUE: _ClassVar[Error.Code]
        BUFFER_FULL: _ClassVar[Error.Code]
        CLOSED: _ClassVar[Error.Code]
        QUEUE_HELD: _ClassVar[Error.Code]
        INTERNAL: _ClassVar[Error.Code]
        STORE_FAILED: _ClassVar[Error.Code]
        STORE_CORRUPT: _ClassVar[Error.Code]
        STORE_LOCKED: _ClassVar[Error.Code]
    UNSPECIFIED: Error.Code
    INVALID_ARGUMENT: Error.Code
    INVALID_TOPIC_NAME: Error.Code
    INVALID_GROUP_NAME: Error.Code
    WRONG_CLUSTER: Error.Code
    MALFORMED_BATCH: Error.Code
    BODY_TOO_LARGE: Error.Code
    PROPERTIES_TOO_LARGE: Error.Code
    INVALID_OFFSET: Error.Code
    INVALID_PROPERTY: Error.Code
    INVALID_EXPRESSION: Error.Code
    INVALID_DELAY: Error.Code
    DELAY_TOO_LONG: Error.Code
    TOPIC_NOT_FOUND: Error.Code
    QUEUE_NOT_FOUND: Error.Code
    GROUP_NOT_FOUND: Error.Code
    MESSAGE_NOT_FOUND: Error.Code
    RESET_NOT_FOUND: Error.Code
    BROKER_NOT_FOUND: Error.Code
    MEMBER_NOT_FOUND: Error.Code
    LOG_TRIMMED: Error.Code
    TRANSACTION_NOT_FOUND: Error.Code
    TOPIC_EXISTS: Error.Code
    GROUP_EXISTS: Error.Code
    NODE_NAME_TAKEN: Error.Code
    MEMBER_ID_TAKEN: Error.Code
    FENCED: Error.Code
    COMMIT_BEHIND: Error.Code
    OFFSET_BEYOND_END: Error.Code
    TOPIC_NOT_WRITABLE: Error.Code
    TOPIC_NOT_READABLE: Error.Code
    GROUP_HAS_MEMBERS: Error.Code
    PLAN_STALE: Error.Code
    CONSUME_DISABLED: Error.Code
    TOPIC_CHANGED: Error.Code
    SEQUENCE_GAP: Error.Code
    SEQUENCE_UNKNOWN: Error.Code
    INDEX_OFF: Error.Code
    TRANSACTION_ENDED: Error.Code
    DELAYED_SETTLED: Error.Code
    ETCD_UNAVAILABLE: Error.Code
    NAMESERVER_UNAVAILABLE: Error.Code
    BROKER_UNAVAILABLE: Error.Code
    OFFSET_SERVICE_UNAVAILABLE: Error.Code
    NOT_READY: Error.Code
    STORE_NOT_WRITABLE: Error.Code
    ROUTE_NOT_REACHED: Error.Code
    TIMED_OUT: Error.Code
    BUSY: Error.Code
    NO_WRITABLE_QUEUE: Error.Code
    BUFFER_FULL: Error.Code
    CLOSED: Error.Code
    QUEUE_HELD: Error.Code
    INTERNAL: Error.Code
    STORE_FAILED: Error.Code
    STORE_CORRUPT: Error.Code
    STORE_LOCKED: Error.Code
    class DetailsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRIABLE_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    code: Error.Code
    message: str
    retriable: bool
    details: _containers.ScalarMap[str, str]
    def __init__(self, code: _Optional[_Union[Error.Code, str]] = ..., message: _Optional[str] = ..., retriable: _Optional[bool] = ..., details: _Optional[_Mapping[str, str]] = ...) -> None: ...
