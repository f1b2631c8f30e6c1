from rockoon_proto.v1 import errors_pb2 as _errors_pb2
from rockoon_proto.v1 import nameserver_pb2 as _nameserver_pb2
from rockoon_proto.v1 import offset_pb2 as _offset_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class QueueReach(_message.Message):
    __slots__ = ("queue", "min_offset", "end_offset", "candidates_from", "candidates", "create_revision")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FROM_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    CREATE_REVISION_FIELD_NUMBER: _ClassVar[int]
    queue: _offset_pb2.QueueRef
    min_offset: int
    end_offset: int
    candidates_from: int
    candidates: _containers.RepeatedScalarFieldContainer[int]
    create_revision: int
    def __init__(self, queue: _Optional[_Union[_offset_pb2.QueueRef, _Mapping]] = ..., min_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., candidates_from: _Optional[int] = ..., candidates: _Optional[_Iterable[int]] = ..., create_revision: _Optional[int] = ...) -> None: ...

class Wanted(_message.Message):
    __slots__ = ("group", "receiver", "queues", "messages_max", "visible_after_ms", "attempt_id", "policy", "filters", "message_group_max", "held_ms_max", "key_id", "shares", "language", "version")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_MAX_FIELD_NUMBER: _ClassVar[int]
    VISIBLE_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    FILTERS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_GROUP_MAX_FIELD_NUMBER: _ClassVar[int]
    HELD_MS_MAX_FIELD_NUMBER: _ClassVar[int]
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    group: str
    receiver: str
    queues: _containers.RepeatedCompositeFieldContainer[QueueReach]
    messages_max: int
    visible_after_ms: int
    attempt_id: str
    policy: _nameserver_pb2.StartPolicy
    filters: _containers.RepeatedCompositeFieldContainer[_offset_pb2.TopicSubscription]
    message_group_max: int
    held_ms_max: int
    key_id: str
    shares: _containers.RepeatedCompositeFieldContainer[Share]
    language: str
    version: str
    def __init__(self, group: _Optional[str] = ..., receiver: _Optional[str] = ..., queues: _Optional[_Iterable[_Union[QueueReach, _Mapping]]] = ..., messages_max: _Optional[int] = ..., visible_after_ms: _Optional[int] = ..., attempt_id: _Optional[str] = ..., policy: _Optional[_Union[_nameserver_pb2.StartPolicy, _Mapping]] = ..., filters: _Optional[_Iterable[_Union[_offset_pb2.TopicSubscription, _Mapping]]] = ..., message_group_max: _Optional[int] = ..., held_ms_max: _Optional[int] = ..., key_id: _Optional[str] = ..., shares: _Optional[_Iterable[_Union[Share, _Mapping]]] = ..., language: _Optional[str] = ..., version: _Optional[str] = ...) -> None: ...

class Share(_message.Message):
    __slots__ = ("receiver", "key_id", "messages_max")
    RECEIVER_FIELD_NUMBER: _ClassVar[int]
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_MAX_FIELD_NUMBER: _ClassVar[int]
    receiver: str
    key_id: str
    messages_max: int
    def __init__(self, receiver: _Optional[str] = ..., key_id: _Optional[str] = ..., messages_max: _Optional[int] = ...) -> None: ...

class AcquireRequest(_message.Message):
    __slots__ = ("wanted", "route_revision", "call_id", "lost")
    WANTED_FIELD_NUMBER: _ClassVar[int]
    ROUTE_REVISION_FIELD_NUMBER: _ClassVar[int]
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    wanted: _containers.RepeatedCompositeFieldContainer[Wanted]
    route_revision: int
    call_id: str
    lost: _containers.RepeatedCompositeFieldContainer[LostCall]
    def __init__(self, wanted: _Optional[_Iterable[_Union[Wanted, _Mapping]]] = ..., route_revision: _Optional[int] = ..., call_id: _Optional[str] = ..., lost: _Optional[_Iterable[_Union[LostCall, _Mapping]]] = ...) -> None: ...

class LostCall(_message.Message):
    __slots__ = ("call_id", "receiver")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_FIELD_NUMBER: _ClassVar[int]
    call_id: str
    receiver: ClientName
    def __init__(self, call_id: _Optional[str] = ..., receiver: _Optional[_Union[ClientName, _Mapping]] = ...) -> None: ...

class Acquired(_message.Message):
    __slots__ = ("queue", "acquisition", "first_offset", "offsets", "attempt", "dead", "visible_at_ms", "reason", "share")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    ACQUISITION_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    DEAD_FIELD_NUMBER: _ClassVar[int]
    VISIBLE_AT_MS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    queue: _offset_pb2.QueueRef
    acquisition: int
    first_offset: int
    offsets: bytes
    attempt: int
    dead: bool
    visible_at_ms: int
    reason: str
    share: int
    def __init__(self, queue: _Optional[_Union[_offset_pb2.QueueRef, _Mapping]] = ..., acquisition: _Optional[int] = ..., first_offset: _Optional[int] = ..., offsets: _Optional[bytes] = ..., attempt: _Optional[int] = ..., dead: _Optional[bool] = ..., visible_at_ms: _Optional[int] = ..., reason: _Optional[str] = ..., share: _Optional[int] = ...) -> None: ...

class QueueRefusal(_message.Message):
    __slots__ = ("queue", "error")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    queue: _offset_pb2.QueueRef
    error: _errors_pb2.Error
    def __init__(self, queue: _Optional[_Union[_offset_pb2.QueueRef, _Mapping]] = ..., error: _Optional[_Union[_errors_pb2.Error, _Mapping]] = ...) -> None: ...

class WantedCandidates(_message.Message):
    __slots__ = ("queue", "from_offset")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    FROM_OFFSET_FIELD_NUMBER: _ClassVar[int]
    queue: _offset_pb2.QueueRef
    from_offset: int
    def __init__(self, queue: _Optional[_Union[_offset_pb2.QueueRef, _Mapping]] = ..., from_offset: _Optional[int] = ...) -> None: ...

class Granted(_message.Message):
    __slots__ = ("acquired", "next_visible_at_ms", "refused", "wanted_candidates", "error", "filter_conflict")
    ACQUIRED_FIELD_NUMBER: _ClassVar[int]
    NEXT_VISIBLE_AT_MS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    WANTED_CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    FILTER_CONFLICT_FIELD_NUMBER: _ClassVar[int]
    acquired: _containers.RepeatedCompositeFieldContainer[Acquired]
    next_visible_at_ms: int
    refused: _containers.RepeatedCompositeFieldContainer[QueueRefusal]
    wanted_candidates: _containers.RepeatedCompositeFieldContainer[WantedCandidates]
    error: _errors_pb2.Error
    filter_conflict: str
    def __init__(self, acquired: _Optional[_Iterable[_Union[Acquired, _Mapping]]] = ..., next_visible_at_ms: _Optional[int] = ..., refused: _Optional[_Iterable[_Union[QueueRefusal, _Mapping]]] = ..., wanted_candidates: _Optional[_Iterable[_Union[WantedCandidates, _Mapping]]] = ..., error: _Optional[_Union[_errors_pb2.Error, _Mapping]] = ..., filter_conflict: _Optional[str] = ...) -> None: ...

class AcquireReply(_message.Message):
    __slots__ = ("granted", "as_of_ms")
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    AS_OF_MS_FIELD_NUMBER: _ClassVar[int]
    granted: _containers.RepeatedCompositeFieldContainer[Granted]
    as_of_ms: int
    def __init__(self, granted: _Optional[_Iterable[_Union[Granted, _Mapping]]] = ..., as_of_ms: _Optional[int] = ...) -> None: ...

class Delivered(_message.Message):
    __slots__ = ("queue", "acquisition", "first_offset", "offsets")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    ACQUISITION_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    queue: _offset_pb2.QueueRef
    acquisition: int
    first_offset: int
    offsets: bytes
    def __init__(self, queue: _Optional[_Union[_offset_pb2.QueueRef, _Mapping]] = ..., acquisition: _Optional[int] = ..., first_offset: _Optional[int] = ..., offsets: _Optional[bytes] = ...) -> None: ...

class AcknowledgeRequest(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[GroupDelivered]
    def __init__(self, entries: _Optional[_Iterable[_Union[GroupDelivered, _Mapping]]] = ...) -> None: ...

class GroupDelivered(_message.Message):
    __slots__ = ("group", "delivered", "receiver")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_FIELD_NUMBER: _ClassVar[int]
    group: str
    delivered: Delivered
    receiver: str
    def __init__(self, group: _Optional[str] = ..., delivered: _Optional[_Union[Delivered, _Mapping]] = ..., receiver: _Optional[str] = ...) -> None: ...

class Acknowledged(_message.Message):
    __slots__ = ("refused", "error")
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    refused: bytes
    error: _errors_pb2.Error
    def __init__(self, refused: _Optional[bytes] = ..., error: _Optional[_Union[_errors_pb2.Error, _Mapping]] = ...) -> None: ...

class AcknowledgeReply(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[Acknowledged]
    def __init__(self, results: _Optional[_Iterable[_Union[Acknowledged, _Mapping]]] = ...) -> None: ...

class VisibilityChange(_message.Message):
    __slots__ = ("group", "delivered", "visible_after_ms", "uncounted", "extend", "reason", "receiver", "key_id", "held_ms_max")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_FIELD_NUMBER: _ClassVar[int]
    VISIBLE_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    UNCOUNTED_FIELD_NUMBER: _ClassVar[int]
    EXTEND_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_FIELD_NUMBER: _ClassVar[int]
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    HELD_MS_MAX_FIELD_NUMBER: _ClassVar[int]
    group: str
    delivered: Delivered
    visible_after_ms: int
    uncounted: bool
    extend: bool
    reason: str
    receiver: str
    key_id: str
    held_ms_max: int
    def __init__(self, group: _Optional[str] = ..., delivered: _Optional[_Union[Delivered, _Mapping]] = ..., visible_after_ms: _Optional[int] = ..., uncounted: _Optional[bool] = ..., extend: _Optional[bool] = ..., reason: _Optional[str] = ..., receiver: _Optional[str] = ..., key_id: _Optional[str] = ..., held_ms_max: _Optional[int] = ...) -> None: ...

class ChangeVisibilityRequest(_message.Message):
    __slots__ = ("changes",)
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    changes: _containers.RepeatedCompositeFieldContainer[VisibilityChange]
    def __init__(self, changes: _Optional[_Iterable[_Union[VisibilityChange, _Mapping]]] = ...) -> None: ...

class ChangedVisibility(_message.Message):
    __slots__ = ("refused", "acquisition", "visible_at_ms", "error")
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    ACQUISITION_FIELD_NUMBER: _ClassVar[int]
    VISIBLE_AT_MS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    refused: bytes
    acquisition: int
    visible_at_ms: int
    error: _errors_pb2.Error
    def __init__(self, refused: _Optional[bytes] = ..., acquisition: _Optional[int] = ..., visible_at_ms: _Optional[int] = ..., error: _Optional[_Union[_errors_pb2.Error, _Mapping]] = ...) -> None: ...

class ChangeVisibilityReply(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[ChangedVisibility]
    def __init__(self, results: _Optional[_Iterable[_Union[ChangedVisibility, _Mapping]]] = ...) -> None: ...

class ListInFlightRequest(_message.Message):
    __slots__ = ("group", "topic")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ...) -> None: ...

class QueueInFlight(_message.Message):
    __slots__ = ("queue", "settled_to", "acquired_to", "settled_above", "in_flight", "visible_again", "attempt_max", "next_visible_at_ms")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    SETTLED_TO_FIELD_NUMBER: _ClassVar[int]
    ACQUIRED_TO_FIELD_NUMBER: _ClassVar[int]
    SETTLED_ABOVE_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    VISIBLE_AGAIN_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_MAX_FIELD_NUMBER: _ClassVar[int]
    NEXT_VISIBLE_AT_MS_FIELD_NUMBER: _ClassVar[int]
    queue: _offset_pb2.QueueRef
    settled_to: int
    acquired_to: int
    settled_above: int
    in_flight: int
    visible_again: int
    attempt_max: int
    next_visible_at_ms: int
    def __init__(self, queue: _Optional[_Union[_offset_pb2.QueueRef, _Mapping]] = ..., settled_to: _Optional[int] = ..., acquired_to: _Optional[int] = ..., settled_above: _Optional[int] = ..., in_flight: _Optional[int] = ..., visible_again: _Optional[int] = ..., attempt_max: _Optional[int] = ..., next_visible_at_ms: _Optional[int] = ...) -> None: ...

class ListInFlightReply(_message.Message):
    __slots__ = ("queues", "as_of_ms")
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    AS_OF_MS_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[QueueInFlight]
    as_of_ms: int
    def __init__(self, queues: _Optional[_Iterable[_Union[QueueInFlight, _Mapping]]] = ..., as_of_ms: _Optional[int] = ...) -> None: ...

class ClientName(_message.Message):
    __slots__ = ("group", "client_id", "key_id")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    group: str
    client_id: str
    key_id: str
    def __init__(self, group: _Optional[str] = ..., client_id: _Optional[str] = ..., key_id: _Optional[str] = ...) -> None: ...

class ClientDetails(_message.Message):
    __slots__ = ("client_type", "language", "version", "address", "hostname", "subscriptions")
    CLIENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    HOSTNAME_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    client_type: str
    language: str
    version: str
    address: str
    hostname: str
    subscriptions: _containers.RepeatedCompositeFieldContainer[_offset_pb2.TopicSubscription]
    def __init__(self, client_type: _Optional[str] = ..., language: _Optional[str] = ..., version: _Optional[str] = ..., address: _Optional[str] = ..., hostname: _Optional[str] = ..., subscriptions: _Optional[_Iterable[_Union[_offset_pb2.TopicSubscription, _Mapping]]] = ...) -> None: ...

class ClientReport(_message.Message):
    __slots__ = ("name", "heard_ms_ago", "goodbye", "details", "lite_version")
    NAME_FIELD_NUMBER: _ClassVar[int]
    HEARD_MS_AGO_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    LITE_VERSION_FIELD_NUMBER: _ClassVar[int]
    name: ClientName
    heard_ms_ago: int
    goodbye: bool
    details: ClientDetails
    lite_version: int
    def __init__(self, name: _Optional[_Union[ClientName, _Mapping]] = ..., heard_ms_ago: _Optional[int] = ..., goodbye: _Optional[bool] = ..., details: _Optional[_Union[ClientDetails, _Mapping]] = ..., lite_version: _Optional[int] = ...) -> None: ...

class ProducerReport(_message.Message):
    __slots__ = ("client_id", "key_id", "heard_ms_ago", "goodbye", "details", "topics")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    HEARD_MS_AGO_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    key_id: str
    heard_ms_ago: int
    goodbye: bool
    details: ClientDetails
    topics: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, client_id: _Optional[str] = ..., key_id: _Optional[str] = ..., heard_ms_ago: _Optional[int] = ..., goodbye: _Optional[bool] = ..., details: _Optional[_Union[ClientDetails, _Mapping]] = ..., topics: _Optional[_Iterable[str]] = ...) -> None: ...

class LiteSubscription(_message.Message):
    __slots__ = ("name", "parent", "lite_topics", "version", "client_version", "lost")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    LITE_TOPICS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CLIENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    name: ClientName
    parent: str
    lite_topics: _containers.RepeatedScalarFieldContainer[str]
    version: int
    client_version: int
    lost: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[_Union[ClientName, _Mapping]] = ..., parent: _Optional[str] = ..., lite_topics: _Optional[_Iterable[str]] = ..., version: _Optional[int] = ..., client_version: _Optional[int] = ..., lost: _Optional[_Iterable[str]] = ...) -> None: ...

class LiteChange(_message.Message):
    __slots__ = ("subscription", "is_known", "is_exclusive", "claimed")
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    IS_KNOWN_FIELD_NUMBER: _ClassVar[int]
    IS_EXCLUSIVE_FIELD_NUMBER: _ClassVar[int]
    CLAIMED_FIELD_NUMBER: _ClassVar[int]
    subscription: LiteSubscription
    is_known: bool
    is_exclusive: bool
    claimed: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, subscription: _Optional[_Union[LiteSubscription, _Mapping]] = ..., is_known: _Optional[bool] = ..., is_exclusive: _Optional[bool] = ..., claimed: _Optional[_Iterable[str]] = ...) -> None: ...

class ReportClientsRequest(_message.Message):
    __slots__ = ("gateway", "gateway_id", "clients", "lite_changes", "lite_since", "delivered", "producers")
    GATEWAY_FIELD_NUMBER: _ClassVar[int]
    GATEWAY_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    LITE_CHANGES_FIELD_NUMBER: _ClassVar[int]
    LITE_SINCE_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_FIELD_NUMBER: _ClassVar[int]
    PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    gateway: str
    gateway_id: str
    clients: _containers.RepeatedCompositeFieldContainer[ClientReport]
    lite_changes: _containers.RepeatedCompositeFieldContainer[LiteChange]
    lite_since: int
    delivered: _containers.RepeatedScalarFieldContainer[int]
    producers: _containers.RepeatedCompositeFieldContainer[ProducerReport]
    def __init__(self, gateway: _Optional[str] = ..., gateway_id: _Optional[str] = ..., clients: _Optional[_Iterable[_Union[ClientReport, _Mapping]]] = ..., lite_changes: _Optional[_Iterable[_Union[LiteChange, _Mapping]]] = ..., lite_since: _Optional[int] = ..., delivered: _Optional[_Iterable[int]] = ..., producers: _Optional[_Iterable[_Union[ProducerReport, _Mapping]]] = ...) -> None: ...

class ReportClientsReply(_message.Message):
    __slots__ = ("lease_ms", "service_id", "lite", "lite_to", "lite_versions", "lite_wanted")
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    SERVICE_ID_FIELD_NUMBER: _ClassVar[int]
    LITE_FIELD_NUMBER: _ClassVar[int]
    LITE_TO_FIELD_NUMBER: _ClassVar[int]
    LITE_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    LITE_WANTED_FIELD_NUMBER: _ClassVar[int]
    lease_ms: int
    service_id: str
    lite: _containers.RepeatedCompositeFieldContainer[LiteSubscription]
    lite_to: int
    lite_versions: _containers.RepeatedScalarFieldContainer[int]
    lite_wanted: _containers.RepeatedCompositeFieldContainer[ClientName]
    def __init__(self, lease_ms: _Optional[int] = ..., service_id: _Optional[str] = ..., lite: _Optional[_Iterable[_Union[LiteSubscription, _Mapping]]] = ..., lite_to: _Optional[int] = ..., lite_versions: _Optional[_Iterable[int]] = ..., lite_wanted: _Optional[_Iterable[_Union[ClientName, _Mapping]]] = ...) -> None: ...

class ListClientsRequest(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    def __init__(self, group: _Optional[str] = ...) -> None: ...

class Client(_message.Message):
    __slots__ = ("client_id", "key_id", "details", "gateway", "heard_ms_ago", "lite_parent", "lite_topics")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    GATEWAY_FIELD_NUMBER: _ClassVar[int]
    HEARD_MS_AGO_FIELD_NUMBER: _ClassVar[int]
    LITE_PARENT_FIELD_NUMBER: _ClassVar[int]
    LITE_TOPICS_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    key_id: str
    details: ClientDetails
    gateway: str
    heard_ms_ago: int
    lite_parent: str
    lite_topics: int
    def __init__(self, client_id: _Optional[str] = ..., key_id: _Optional[str] = ..., details: _Optional[_Union[ClientDetails, _Mapping]] = ..., gateway: _Optional[str] = ..., heard_ms_ago: _Optional[int] = ..., lite_parent: _Optional[str] = ..., lite_topics: _Optional[int] = ...) -> None: ...

class Holding(_message.Message):
    __slots__ = ("receiver", "messages", "queues", "attempt_max", "next_visible_at_ms", "key_id")
    RECEIVER_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_MAX_FIELD_NUMBER: _ClassVar[int]
    NEXT_VISIBLE_AT_MS_FIELD_NUMBER: _ClassVar[int]
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    receiver: str
    messages: int
    queues: int
    attempt_max: int
    next_visible_at_ms: int
    key_id: str
    def __init__(self, receiver: _Optional[str] = ..., messages: _Optional[int] = ..., queues: _Optional[int] = ..., attempt_max: _Optional[int] = ..., next_visible_at_ms: _Optional[int] = ..., key_id: _Optional[str] = ...) -> None: ...

class ListClientsReply(_message.Message):
    __slots__ = ("clients", "holdings", "as_of_ms")
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    HOLDINGS_FIELD_NUMBER: _ClassVar[int]
    AS_OF_MS_FIELD_NUMBER: _ClassVar[int]
    clients: _containers.RepeatedCompositeFieldContainer[Client]
    holdings: _containers.RepeatedCompositeFieldContainer[Holding]
    as_of_ms: int
    def __init__(self, clients: _Optional[_Iterable[_Union[Client, _Mapping]]] = ..., holdings: _Optional[_Iterable[_Union[Holding, _Mapping]]] = ..., as_of_ms: _Optional[int] = ...) -> None: ...

class ListProducersRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class Producer(_message.Message):
    __slots__ = ("client_id", "key_id", "details", "gateway", "heard_ms_ago", "topics")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    GATEWAY_FIELD_NUMBER: _ClassVar[int]
    HEARD_MS_AGO_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    key_id: str
    details: ClientDetails
    gateway: str
    heard_ms_ago: int
    topics: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, client_id: _Optional[str] = ..., key_id: _Optional[str] = ..., details: _Optional[_Union[ClientDetails, _Mapping]] = ..., gateway: _Optional[str] = ..., heard_ms_ago: _Optional[int] = ..., topics: _Optional[_Iterable[str]] = ...) -> None: ...

class ListProducersReply(_message.Message):
    __slots__ = ("producers", "producers_count")
    PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    PRODUCERS_COUNT_FIELD_NUMBER: _ClassVar[int]
    producers: _containers.RepeatedCompositeFieldContainer[Producer]
    producers_count: int
    def __init__(self, producers: _Optional[_Iterable[_Union[Producer, _Mapping]]] = ..., producers_count: _Optional[int] = ...) -> None: ...
