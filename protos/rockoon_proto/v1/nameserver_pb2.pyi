from rockoon_proto.v1 import errors_pb2 as _errors_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class NodeKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NODE_KIND_UNSPECIFIED: _ClassVar[NodeKind]
    BROKER: _ClassVar[NodeKind]
    OFFSET_SERVICE: _ClassVar[NodeKind]

class ConsumeFrom(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CONSUME_FROM_UNSPECIFIED: _ClassVar[ConsumeFrom]
    CONSUME_FROM_LAST: _ClassVar[ConsumeFrom]
    CONSUME_FROM_FIRST: _ClassVar[ConsumeFrom]
    CONSUME_FROM_TIMESTAMP: _ClassVar[ConsumeFrom]
    CONSUME_FROM_TAIL: _ClassVar[ConsumeFrom]
    CONSUME_FROM_DURATION: _ClassVar[ConsumeFrom]

class NewQueueRule(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NEW_QUEUE_RULE_UNSPECIFIED: _ClassVar[NewQueueRule]
    EXACT: _ClassVar[NewQueueRule]
    CLASSIC: _ClassVar[NewQueueRule]

class OutOfRangePolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OUT_OF_RANGE_UNSPECIFIED: _ClassVar[OutOfRangePolicy]
    OUT_OF_RANGE_FIRST: _ClassVar[OutOfRangePolicy]
    OUT_OF_RANGE_LAST: _ClassVar[OutOfRangePolicy]
    OUT_OF_RANGE_FAIL: _ClassVar[OutOfRangePolicy]

class BroadcastProgress(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BROADCAST_PROGRESS_UNSPECIFIED: _ClassVar[BroadcastProgress]
    BROADCAST_LOCAL: _ClassVar[BroadcastProgress]
    BROADCAST_SERVER: _ClassVar[BroadcastProgress]

class GroupTopic(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GROUP_TOPIC_UNSPECIFIED: _ClassVar[GroupTopic]
    GROUP_RETRY: _ClassVar[GroupTopic]
    GROUP_DEAD_LETTERS: _ClassVar[GroupTopic]
NODE_KIND_UNSPECIFIED: NodeKind
BROKER: NodeKind
OFFSET_SERVICE: NodeKind
CONSUME_FROM_UNSPECIFIED: ConsumeFrom
CONSUME_FROM_LAST: ConsumeFrom
CONSUME_FROM_FIRST: ConsumeFrom
CONSUME_FROM_TIMESTAMP: ConsumeFrom
CONSUME_FROM_TAIL: ConsumeFrom
CONSUME_FROM_DURATION: ConsumeFrom
NEW_QUEUE_RULE_UNSPECIFIED: NewQueueRule
EXACT: NewQueueRule
CLASSIC: NewQueueRule
OUT_OF_RANGE_UNSPECIFIED: OutOfRangePolicy
OUT_OF_RANGE_FIRST: OutOfRangePolicy
OUT_OF_RANGE_LAST: OutOfRangePolicy
OUT_OF_RANGE_FAIL: OutOfRangePolicy
BROADCAST_PROGRESS_UNSPECIFIED: BroadcastProgress
BROADCAST_LOCAL: BroadcastProgress
BROADCAST_SERVER: BroadcastProgress
GROUP_TOPIC_UNSPECIFIED: GroupTopic
GROUP_RETRY: GroupTopic
GROUP_DEAD_LETTERS: GroupTopic

class Node(_message.Message):
    __slots__ = ("kind", "name", "address", "store_id", "started_at_ms", "version", "external_address", "place", "predecessor_lease_id", "shared_settings", "replica", "rack", "epoch", "replicas", "ip_address", "drained", "level")
    class SharedSettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    STORE_ID_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EXTERNAL_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    PREDECESSOR_LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    SHARED_SETTINGS_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    IP_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    DRAINED_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    kind: NodeKind
    name: str
    address: str
    store_id: str
    started_at_ms: int
    version: str
    external_address: str
    place: str
    predecessor_lease_id: int
    shared_settings: _containers.ScalarMap[str, str]
    replica: str
    rack: str
    epoch: int
    replicas: _containers.RepeatedCompositeFieldContainer[ReplicaAddress]
    ip_address: str
    drained: bool
    level: int
    def __init__(self, kind: _Optional[_Union[NodeKind, str]] = ..., name: _Optional[str] = ..., address: _Optional[str] = ..., store_id: _Optional[str] = ..., started_at_ms: _Optional[int] = ..., version: _Optional[str] = ..., external_address: _Optional[str] = ..., place: _Optional[str] = ..., predecessor_lease_id: _Optional[int] = ..., shared_settings: _Optional[_Mapping[str, str]] = ..., replica: _Optional[str] = ..., rack: _Optional[str] = ..., epoch: _Optional[int] = ..., replicas: _Optional[_Iterable[_Union[ReplicaAddress, _Mapping]]] = ..., ip_address: _Optional[str] = ..., drained: _Optional[bool] = ..., level: _Optional[int] = ...) -> None: ...

class ReplicaAddress(_message.Message):
    __slots__ = ("replica_id", "name", "address", "external_address", "rack", "in_sync", "ip_address")
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    EXTERNAL_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    IN_SYNC_FIELD_NUMBER: _ClassVar[int]
    IP_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    replica_id: str
    name: str
    address: str
    external_address: str
    rack: str
    in_sync: bool
    ip_address: str
    def __init__(self, replica_id: _Optional[str] = ..., name: _Optional[str] = ..., address: _Optional[str] = ..., external_address: _Optional[str] = ..., rack: _Optional[str] = ..., in_sync: _Optional[bool] = ..., ip_address: _Optional[str] = ...) -> None: ...

class ReplicaFacts(_message.Message):
    __slots__ = ("empty", "copies", "promised", "version", "history", "starts", "run", "halted")
    EMPTY_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    PROMISED_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    HALTED_FIELD_NUMBER: _ClassVar[int]
    empty: bool
    copies: int
    promised: int
    version: int
    history: int
    starts: int
    run: int
    halted: str
    def __init__(self, empty: _Optional[bool] = ..., copies: _Optional[int] = ..., promised: _Optional[int] = ..., version: _Optional[int] = ..., history: _Optional[int] = ..., starts: _Optional[int] = ..., run: _Optional[int] = ..., halted: _Optional[str] = ...) -> None: ...

class RegisterNodeRequest(_message.Message):
    __slots__ = ("node", "lease_id", "cluster_id", "protocol", "replica")
    NODE_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    node: Node
    lease_id: int
    cluster_id: int
    protocol: int
    replica: ReplicaFacts
    def __init__(self, node: _Optional[_Union[Node, _Mapping]] = ..., lease_id: _Optional[int] = ..., cluster_id: _Optional[int] = ..., protocol: _Optional[int] = ..., replica: _Optional[_Union[ReplicaFacts, _Mapping]] = ...) -> None: ...

class RegisterNodeReply(_message.Message):
    __slots__ = ("lease_id", "ttl_seconds", "renew_seconds", "revision", "predecessor_seconds", "differences")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    TTL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RENEW_SECONDS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    PREDECESSOR_SECONDS_FIELD_NUMBER: _ClassVar[int]
    DIFFERENCES_FIELD_NUMBER: _ClassVar[int]
    lease_id: int
    ttl_seconds: float
    renew_seconds: float
    revision: int
    predecessor_seconds: float
    differences: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, lease_id: _Optional[int] = ..., ttl_seconds: _Optional[float] = ..., renew_seconds: _Optional[float] = ..., revision: _Optional[int] = ..., predecessor_seconds: _Optional[float] = ..., differences: _Optional[_Iterable[str]] = ...) -> None: ...

class UnregisterNodeRequest(_message.Message):
    __slots__ = ("kind", "name", "store_id", "lease_id")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    STORE_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    kind: NodeKind
    name: str
    store_id: str
    lease_id: int
    def __init__(self, kind: _Optional[_Union[NodeKind, str]] = ..., name: _Optional[str] = ..., store_id: _Optional[str] = ..., lease_id: _Optional[int] = ...) -> None: ...

class UnregisterNodeReply(_message.Message):
    __slots__ = ("revision",)
    REVISION_FIELD_NUMBER: _ClassVar[int]
    revision: int
    def __init__(self, revision: _Optional[int] = ...) -> None: ...

class TopicConfig(_message.Message):
    __slots__ = ("name", "permissions", "attributes")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    PERMISSIONS_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    permissions: int
    attributes: _containers.ScalarMap[str, str]
    def __init__(self, name: _Optional[str] = ..., permissions: _Optional[int] = ..., attributes: _Optional[_Mapping[str, str]] = ...) -> None: ...

class QueueBlock(_message.Message):
    __slots__ = ("broker", "first_queue_id", "queues", "create_revision")
    BROKER_FIELD_NUMBER: _ClassVar[int]
    FIRST_QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    CREATE_REVISION_FIELD_NUMBER: _ClassVar[int]
    broker: str
    first_queue_id: int
    queues: int
    create_revision: int
    def __init__(self, broker: _Optional[str] = ..., first_queue_id: _Optional[int] = ..., queues: _Optional[int] = ..., create_revision: _Optional[int] = ...) -> None: ...

class Topic(_message.Message):
    __slots__ = ("config", "incarnation", "modified_revision", "blocks")
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    MODIFIED_REVISION_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    config: TopicConfig
    incarnation: int
    modified_revision: int
    blocks: _containers.RepeatedCompositeFieldContainer[QueueBlock]
    def __init__(self, config: _Optional[_Union[TopicConfig, _Mapping]] = ..., incarnation: _Optional[int] = ..., modified_revision: _Optional[int] = ..., blocks: _Optional[_Iterable[_Union[QueueBlock, _Mapping]]] = ...) -> None: ...

class StartPolicy(_message.Message):
    __slots__ = ("consume_from", "timestamp_ms", "tail_messages", "duration_ms")
    CONSUME_FROM_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    TAIL_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    consume_from: ConsumeFrom
    timestamp_ms: int
    tail_messages: int
    duration_ms: int
    def __init__(self, consume_from: _Optional[_Union[ConsumeFrom, str]] = ..., timestamp_ms: _Optional[int] = ..., tail_messages: _Optional[int] = ..., duration_ms: _Optional[int] = ...) -> None: ...

class GroupConfig(_message.Message):
    __slots__ = ("name", "start_policy", "new_queue_rule", "below_min", "above_max", "other_incarnation", "consume_disabled", "attributes", "retry_attempts_max", "retry_queues", "broadcast_progress", "fifo", "retry_delays_ms")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    START_POLICY_FIELD_NUMBER: _ClassVar[int]
    NEW_QUEUE_RULE_FIELD_NUMBER: _ClassVar[int]
    BELOW_MIN_FIELD_NUMBER: _ClassVar[int]
    ABOVE_MAX_FIELD_NUMBER: _ClassVar[int]
    OTHER_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    CONSUME_DISABLED_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    RETRY_ATTEMPTS_MAX_FIELD_NUMBER: _ClassVar[int]
    RETRY_QUEUES_FIELD_NUMBER: _ClassVar[int]
    BROADCAST_PROGRESS_FIELD_NUMBER: _ClassVar[int]
    FIFO_FIELD_NUMBER: _ClassVar[int]
    RETRY_DELAYS_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    start_policy: StartPolicy
    new_queue_rule: NewQueueRule
    below_min: OutOfRangePolicy
    above_max: OutOfRangePolicy
    other_incarnation: OutOfRangePolicy
    consume_disabled: bool
    attributes: _containers.ScalarMap[str, str]
    retry_attempts_max: int
    retry_queues: int
    broadcast_progress: BroadcastProgress
    fifo: bool
    retry_delays_ms: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., start_policy: _Optional[_Union[StartPolicy, _Mapping]] = ..., new_queue_rule: _Optional[_Union[NewQueueRule, str]] = ..., below_min: _Optional[_Union[OutOfRangePolicy, str]] = ..., above_max: _Optional[_Union[OutOfRangePolicy, str]] = ..., other_incarnation: _Optional[_Union[OutOfRangePolicy, str]] = ..., consume_disabled: _Optional[bool] = ..., attributes: _Optional[_Mapping[str, str]] = ..., retry_attempts_max: _Optional[int] = ..., retry_queues: _Optional[int] = ..., broadcast_progress: _Optional[_Union[BroadcastProgress, str]] = ..., fifo: _Optional[bool] = ..., retry_delays_ms: _Optional[_Iterable[int]] = ...) -> None: ...

class Group(_message.Message):
    __slots__ = ("config", "incarnation", "modified_revision")
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    MODIFIED_REVISION_FIELD_NUMBER: _ClassVar[int]
    config: GroupConfig
    incarnation: int
    modified_revision: int
    def __init__(self, config: _Optional[_Union[GroupConfig, _Mapping]] = ..., incarnation: _Optional[int] = ..., modified_revision: _Optional[int] = ...) -> None: ...

class Subscription(_message.Message):
    __slots__ = ("group", "topic", "revision")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    revision: int
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., revision: _Optional[int] = ...) -> None: ...

class GetRouteRequest(_message.Message):
    __slots__ = ("topics", "min_revision", "include_groups")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    MIN_REVISION_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_GROUPS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    min_revision: int
    include_groups: bool
    def __init__(self, topics: _Optional[_Iterable[str]] = ..., min_revision: _Optional[int] = ..., include_groups: _Optional[bool] = ...) -> None: ...

class WatchRoutesRequest(_message.Message):
    __slots__ = ("topics", "after_revision", "include_groups", "seen_revision", "history")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    AFTER_REVISION_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_GROUPS_FIELD_NUMBER: _ClassVar[int]
    SEEN_REVISION_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    after_revision: int
    include_groups: bool
    seen_revision: int
    history: int
    def __init__(self, topics: _Optional[_Iterable[str]] = ..., after_revision: _Optional[int] = ..., include_groups: _Optional[bool] = ..., seen_revision: _Optional[int] = ..., history: _Optional[int] = ...) -> None: ...

class RouteUpdate(_message.Message):
    __slots__ = ("revision", "snapshot", "nodes", "topics", "groups", "subscriptions", "removed_nodes", "removed_topics", "removed_groups", "removed_subscriptions", "etcd_reachable", "cluster", "etcd_cluster_id", "cluster_id", "deletions", "deletions_since", "etcd_went_back", "history", "level")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    REMOVED_NODES_FIELD_NUMBER: _ClassVar[int]
    REMOVED_TOPICS_FIELD_NUMBER: _ClassVar[int]
    REMOVED_GROUPS_FIELD_NUMBER: _ClassVar[int]
    REMOVED_SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    ETCD_REACHABLE_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    ETCD_CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    DELETIONS_FIELD_NUMBER: _ClassVar[int]
    DELETIONS_SINCE_FIELD_NUMBER: _ClassVar[int]
    ETCD_WENT_BACK_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    revision: int
    snapshot: bool
    nodes: _containers.RepeatedCompositeFieldContainer[Node]
    topics: _containers.RepeatedCompositeFieldContainer[Topic]
    groups: _containers.RepeatedCompositeFieldContainer[Group]
    subscriptions: _containers.RepeatedCompositeFieldContainer[Subscription]
    removed_nodes: _containers.RepeatedCompositeFieldContainer[Node]
    removed_topics: _containers.RepeatedScalarFieldContainer[str]
    removed_groups: _containers.RepeatedScalarFieldContainer[str]
    removed_subscriptions: _containers.RepeatedCompositeFieldContainer[Subscription]
    etcd_reachable: bool
    cluster: str
    etcd_cluster_id: int
    cluster_id: int
    deletions: _containers.RepeatedCompositeFieldContainer[Deletion]
    deletions_since: int
    etcd_went_back: bool
    history: int
    level: int
    def __init__(self, revision: _Optional[int] = ..., snapshot: _Optional[bool] = ..., nodes: _Optional[_Iterable[_Union[Node, _Mapping]]] = ..., topics: _Optional[_Iterable[_Union[Topic, _Mapping]]] = ..., groups: _Optional[_Iterable[_Union[Group, _Mapping]]] = ..., subscriptions: _Optional[_Iterable[_Union[Subscription, _Mapping]]] = ..., removed_nodes: _Optional[_Iterable[_Union[Node, _Mapping]]] = ..., removed_topics: _Optional[_Iterable[str]] = ..., removed_groups: _Optional[_Iterable[str]] = ..., removed_subscriptions: _Optional[_Iterable[_Union[Subscription, _Mapping]]] = ..., etcd_reachable: _Optional[bool] = ..., cluster: _Optional[str] = ..., etcd_cluster_id: _Optional[int] = ..., cluster_id: _Optional[int] = ..., deletions: _Optional[_Iterable[_Union[Deletion, _Mapping]]] = ..., deletions_since: _Optional[int] = ..., etcd_went_back: _Optional[bool] = ..., history: _Optional[int] = ..., level: _Optional[int] = ...) -> None: ...

class Deletion(_message.Message):
    __slots__ = ("topic", "group", "revision")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    group: str
    revision: int
    def __init__(self, topic: _Optional[str] = ..., group: _Optional[str] = ..., revision: _Optional[int] = ...) -> None: ...

class Placement(_message.Message):
    __slots__ = ("broker", "queues")
    BROKER_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    broker: str
    queues: int
    def __init__(self, broker: _Optional[str] = ..., queues: _Optional[int] = ...) -> None: ...

class CreateTopicRequest(_message.Message):
    __slots__ = ("config", "placements", "queues_per_broker", "if_absent")
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    PLACEMENTS_FIELD_NUMBER: _ClassVar[int]
    QUEUES_PER_BROKER_FIELD_NUMBER: _ClassVar[int]
    IF_ABSENT_FIELD_NUMBER: _ClassVar[int]
    config: TopicConfig
    placements: _containers.RepeatedCompositeFieldContainer[Placement]
    queues_per_broker: int
    if_absent: bool
    def __init__(self, config: _Optional[_Union[TopicConfig, _Mapping]] = ..., placements: _Optional[_Iterable[_Union[Placement, _Mapping]]] = ..., queues_per_broker: _Optional[int] = ..., if_absent: _Optional[bool] = ...) -> None: ...

class UpdateTopicRequest(_message.Message):
    __slots__ = ("name", "permissions", "attributes", "add", "expected_modified_revision")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    PERMISSIONS_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    ADD_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_MODIFIED_REVISION_FIELD_NUMBER: _ClassVar[int]
    name: str
    permissions: int
    attributes: _containers.ScalarMap[str, str]
    add: _containers.RepeatedCompositeFieldContainer[Placement]
    expected_modified_revision: int
    def __init__(self, name: _Optional[str] = ..., permissions: _Optional[int] = ..., attributes: _Optional[_Mapping[str, str]] = ..., add: _Optional[_Iterable[_Union[Placement, _Mapping]]] = ..., expected_modified_revision: _Optional[int] = ...) -> None: ...

class TopicReply(_message.Message):
    __slots__ = ("topic", "revision", "created")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    topic: Topic
    revision: int
    created: bool
    def __init__(self, topic: _Optional[_Union[Topic, _Mapping]] = ..., revision: _Optional[int] = ..., created: _Optional[bool] = ...) -> None: ...

class CreateTopicsRequest(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[CreateTopicRequest]
    def __init__(self, topics: _Optional[_Iterable[_Union[CreateTopicRequest, _Mapping]]] = ...) -> None: ...

class CreateTopicsReply(_message.Message):
    __slots__ = ("results", "revision")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[CreateTopicResult]
    revision: int
    def __init__(self, results: _Optional[_Iterable[_Union[CreateTopicResult, _Mapping]]] = ..., revision: _Optional[int] = ...) -> None: ...

class CreateTopicResult(_message.Message):
    __slots__ = ("topic", "created", "error")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    topic: Topic
    created: bool
    error: _errors_pb2.Error
    def __init__(self, topic: _Optional[_Union[Topic, _Mapping]] = ..., created: _Optional[bool] = ..., error: _Optional[_Union[_errors_pb2.Error, _Mapping]] = ...) -> None: ...

class DeleteTopicRequest(_message.Message):
    __slots__ = ("name", "expected_modified_revision")
    NAME_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_MODIFIED_REVISION_FIELD_NUMBER: _ClassVar[int]
    name: str
    expected_modified_revision: int
    def __init__(self, name: _Optional[str] = ..., expected_modified_revision: _Optional[int] = ...) -> None: ...

class DeleteReply(_message.Message):
    __slots__ = ("revision",)
    REVISION_FIELD_NUMBER: _ClassVar[int]
    revision: int
    def __init__(self, revision: _Optional[int] = ...) -> None: ...

class ListTopicsRequest(_message.Message):
    __slots__ = ("include_system",)
    INCLUDE_SYSTEM_FIELD_NUMBER: _ClassVar[int]
    include_system: bool
    def __init__(self, include_system: _Optional[bool] = ...) -> None: ...

class ListTopicsReply(_message.Message):
    __slots__ = ("topics", "revision", "etcd_reachable")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    ETCD_REACHABLE_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[Topic]
    revision: int
    etcd_reachable: bool
    def __init__(self, topics: _Optional[_Iterable[_Union[Topic, _Mapping]]] = ..., revision: _Optional[int] = ..., etcd_reachable: _Optional[bool] = ...) -> None: ...

class CreateGroupRequest(_message.Message):
    __slots__ = ("config", "if_absent")
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    IF_ABSENT_FIELD_NUMBER: _ClassVar[int]
    config: GroupConfig
    if_absent: bool
    def __init__(self, config: _Optional[_Union[GroupConfig, _Mapping]] = ..., if_absent: _Optional[bool] = ...) -> None: ...

class UpdateGroupRequest(_message.Message):
    __slots__ = ("config", "expected_modified_revision")
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_MODIFIED_REVISION_FIELD_NUMBER: _ClassVar[int]
    config: GroupConfig
    expected_modified_revision: int
    def __init__(self, config: _Optional[_Union[GroupConfig, _Mapping]] = ..., expected_modified_revision: _Optional[int] = ...) -> None: ...

class GroupReply(_message.Message):
    __slots__ = ("group", "revision", "created")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    group: Group
    revision: int
    created: bool
    def __init__(self, group: _Optional[_Union[Group, _Mapping]] = ..., revision: _Optional[int] = ..., created: _Optional[bool] = ...) -> None: ...

class DeleteGroupRequest(_message.Message):
    __slots__ = ("name", "expected_modified_revision")
    NAME_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_MODIFIED_REVISION_FIELD_NUMBER: _ClassVar[int]
    name: str
    expected_modified_revision: int
    def __init__(self, name: _Optional[str] = ..., expected_modified_revision: _Optional[int] = ...) -> None: ...

class GetGroupRequest(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    def __init__(self, group: _Optional[str] = ...) -> None: ...

class GetGroupReply(_message.Message):
    __slots__ = ("group", "subscriptions", "revision", "etcd_reachable")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    ETCD_REACHABLE_FIELD_NUMBER: _ClassVar[int]
    group: Group
    subscriptions: _containers.RepeatedCompositeFieldContainer[Subscription]
    revision: int
    etcd_reachable: bool
    def __init__(self, group: _Optional[_Union[Group, _Mapping]] = ..., subscriptions: _Optional[_Iterable[_Union[Subscription, _Mapping]]] = ..., revision: _Optional[int] = ..., etcd_reachable: _Optional[bool] = ...) -> None: ...

class ListGroupsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListGroupsReply(_message.Message):
    __slots__ = ("groups", "subscriptions", "revision", "etcd_reachable")
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    ETCD_REACHABLE_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[Group]
    subscriptions: _containers.RepeatedCompositeFieldContainer[Subscription]
    revision: int
    etcd_reachable: bool
    def __init__(self, groups: _Optional[_Iterable[_Union[Group, _Mapping]]] = ..., subscriptions: _Optional[_Iterable[_Union[Subscription, _Mapping]]] = ..., revision: _Optional[int] = ..., etcd_reachable: _Optional[bool] = ...) -> None: ...

class SubscribeRequest(_message.Message):
    __slots__ = ("group", "topic", "create_group")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    CREATE_GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    create_group: bool
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., create_group: _Optional[bool] = ...) -> None: ...

class SubscribeReply(_message.Message):
    __slots__ = ("subscription", "group", "revision", "created")
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    subscription: Subscription
    group: Group
    revision: int
    created: bool
    def __init__(self, subscription: _Optional[_Union[Subscription, _Mapping]] = ..., group: _Optional[_Union[Group, _Mapping]] = ..., revision: _Optional[int] = ..., created: _Optional[bool] = ...) -> None: ...

class ProvideGroupTopicRequest(_message.Message):
    __slots__ = ("group", "topic", "broker", "queues")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    BROKER_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: GroupTopic
    broker: str
    queues: int
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[_Union[GroupTopic, str]] = ..., broker: _Optional[str] = ..., queues: _Optional[int] = ...) -> None: ...

class DescribeClusterRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeClusterReply(_message.Message):
    __slots__ = ("cluster", "nodes", "topics", "groups", "revision", "etcd_reachable", "etcd_away_seconds", "nameserver", "away_brokers", "routes_in_file", "version", "clock_ms", "level", "level_max", "level_lacking")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    ETCD_REACHABLE_FIELD_NUMBER: _ClassVar[int]
    ETCD_AWAY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    NAMESERVER_FIELD_NUMBER: _ClassVar[int]
    AWAY_BROKERS_FIELD_NUMBER: _ClassVar[int]
    ROUTES_IN_FILE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CLOCK_MS_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    LEVEL_MAX_FIELD_NUMBER: _ClassVar[int]
    LEVEL_LACKING_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    nodes: _containers.RepeatedCompositeFieldContainer[Node]
    topics: int
    groups: int
    revision: int
    etcd_reachable: bool
    etcd_away_seconds: float
    nameserver: str
    away_brokers: _containers.RepeatedScalarFieldContainer[str]
    routes_in_file: bool
    version: str
    clock_ms: int
    level: int
    level_max: int
    level_lacking: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, cluster: _Optional[str] = ..., nodes: _Optional[_Iterable[_Union[Node, _Mapping]]] = ..., topics: _Optional[int] = ..., groups: _Optional[int] = ..., revision: _Optional[int] = ..., etcd_reachable: _Optional[bool] = ..., etcd_away_seconds: _Optional[float] = ..., nameserver: _Optional[str] = ..., away_brokers: _Optional[_Iterable[str]] = ..., routes_in_file: _Optional[bool] = ..., version: _Optional[str] = ..., clock_ms: _Optional[int] = ..., level: _Optional[int] = ..., level_max: _Optional[int] = ..., level_lacking: _Optional[_Iterable[str]] = ...) -> None: ...

class FinishUpgradeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FinishUpgradeReply(_message.Message):
    __slots__ = ("level", "revision")
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    level: int
    revision: int
    def __init__(self, level: _Optional[int] = ..., revision: _Optional[int] = ...) -> None: ...

class ReadRoutesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StoredKey(_message.Message):
    __slots__ = ("key", "value", "create_revision", "modified_revision")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    CREATE_REVISION_FIELD_NUMBER: _ClassVar[int]
    MODIFIED_REVISION_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: bytes
    create_revision: int
    modified_revision: int
    def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ..., create_revision: _Optional[int] = ..., modified_revision: _Optional[int] = ...) -> None: ...

class ReadRoutesReply(_message.Message):
    __slots__ = ("keys", "revision", "cluster", "cluster_id")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedCompositeFieldContainer[StoredKey]
    revision: int
    cluster: str
    cluster_id: int
    def __init__(self, keys: _Optional[_Iterable[_Union[StoredKey, _Mapping]]] = ..., revision: _Optional[int] = ..., cluster: _Optional[str] = ..., cluster_id: _Optional[int] = ...) -> None: ...

class RemoveBrokerRequest(_message.Message):
    __slots__ = ("broker",)
    BROKER_FIELD_NUMBER: _ClassVar[int]
    broker: str
    def __init__(self, broker: _Optional[str] = ...) -> None: ...

class RemoveBrokerReply(_message.Message):
    __slots__ = ("topics", "live", "revision")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    LIVE_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    topics: int
    live: bool
    revision: int
    def __init__(self, topics: _Optional[int] = ..., live: _Optional[bool] = ..., revision: _Optional[int] = ...) -> None: ...
