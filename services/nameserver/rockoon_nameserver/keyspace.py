"""Keyspace of the routes in etcd: names of keys, contents of values.

    /rockoon/{cluster}/identity                                 a number that no other etcd has, and
                                                                the cluster's feature level
    /rockoon/{cluster}/nodes/{broker|offset}/{name}             Node, under the node's lease
    /rockoon/{cluster}/replicas/{broker|offset}/{log}/{id}      Node of a replica, under its lease
    /rockoon/{cluster}/logs/{broker|offset}/{log}               LogState
    /rockoon/{cluster}/topics/{topic}                           TopicConfig
    /rockoon/{cluster}/queues/{topic}/{broker}/{first id}       how many queues the block has
    /rockoon/{cluster}/groups/{group}                           GroupConfig
    /rockoon/{cluster}/subscriptions/{topic}/{group}            empty: only its revision matters
    /rockoon/{cluster}/access/{key}                             AccessKeyInfo, without secrets
    /rockoon/{cluster}/settings/{service}/{node}/{name}         LiveSetting; node * is every node
    /rockoon/{cluster}/deleted/{topics|groups}/{name}           empty: only its revision matters
    /rockoon/{cluster}/deleted/since                            empty: deletions are recorded since
    /rockoon/{cluster}@committed/{broker|offset}/{log}          committed end of a log

The last key is outside of the range that nameservers watch: it changes every few seconds, and no
route changes with it.

Values are JSON, readable with `etcdctl get`; fields of a later version are skipped. A value does
not repeat its key. Incarnations and create revisions are etcd's own and are not stored.
"""

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import google.protobuf.message
from google.protobuf import json_format

from rockoon_nameserver.elections import CommittedEnd
from rockoon_nameserver.etcd_data import KeyRange, only, under
from rockoon_proto.v1.access_pb2 import AccessKeyInfo
from rockoon_proto.v1.logs_pb2 import LogState
from rockoon_proto.v1.nameserver_pb2 import (
    BROKER,
    OFFSET_SERVICE,
    GroupConfig,
    Node,
    NodeKind,
    TopicConfig,
)
from rockoon_proto.v1.settings_pb2 import LiveSetting

Message = TypeVar("Message", bound=google.protobuf.message.Message)

KIND_FOLDERS: dict[NodeKind, str] = {BROKER: "broker", OFFSET_SERVICE: "offset"}
FOLDER_KINDS = {folder: kind for kind, folder in KIND_FOLDERS.items()}

# A part of a key between two slashes. Topics and groups have stricter rules of their own.
PATH_PART = re.compile(r"[A-Za-z0-9._%|-]{1,255}")
# Not a node's name.
EVERY_NODE = "*"
# Cache of nodes and logs, which each renewal of a lease reads.
VALUES_PARSED_MAX = 1_000


class UnreadableKey(ValueError):
    """A key or value that this version does not understand; the text says what is wrong."""


@dataclass(frozen=True, slots=True, order=True)
class NodeKey:
    kind: NodeKind
    name: str


@dataclass(frozen=True, slots=True, order=True)
class LogKey:
    kind: NodeKind
    log: str


@dataclass(frozen=True, slots=True, order=True)
class ReplicaKey:
    kind: NodeKind
    log: str
    replica_id: str


@dataclass(frozen=True, slots=True, order=True)
class TopicKey:
    topic: str


@dataclass(frozen=True, slots=True, order=True)
class BlockKey:
    topic: str
    broker: str
    first_queue_id: int


@dataclass(frozen=True, slots=True, order=True)
class GroupKey:
    group: str


@dataclass(frozen=True, slots=True, order=True)
class SubscriptionKey:
    topic: str
    group: str


@dataclass(frozen=True, slots=True, order=True)
class AccessKeyName:
    key_id: str


@dataclass(frozen=True, slots=True, order=True)
class SettingKey:
    """Key of a live setting. An empty node is every node of the service."""

    service: str
    node: str
    name: str


@dataclass(frozen=True, slots=True, order=True)
class DeletionKey:
    """Key that records the deletion of a topic or a group. Without topic and group: the key of the
    revision since which deletions are recorded.
    """

    topic: str = ""
    group: str = ""


RouteKey = (
    NodeKey
    | LogKey
    | ReplicaKey
    | TopicKey
    | BlockKey
    | GroupKey
    | SubscriptionKey
    | AccessKeyName
    | SettingKey
    | DeletionKey
)


class Keyspace:
    """Names of a cluster's keys in etcd. Raises ValueError for a name that no key can have."""

    def __init__(self, cluster: str) -> None:
        if not PATH_PART.fullmatch(cluster):
            raise ValueError(f"{cluster!r} is not a cluster name: use letters, digits and . _ -")
        self.cluster = cluster
        self._root = f"/rockoon/{cluster}/"

    @property
    def root(self) -> str:
        """Prefix of all keys of the cluster."""
        return self._root

    @property
    def everything(self) -> KeyRange:
        return under(self._root)

    @property
    def identity(self) -> str:
        return f"{self._root}identity"

    def key(self, key: RouteKey) -> str:
        match key:
            case NodeKey(kind, name):
                path = f"nodes/{KIND_FOLDERS[kind]}/{name}"
            case LogKey(kind, log):
                path = f"logs/{KIND_FOLDERS[kind]}/{log}"
            case ReplicaKey(kind, log, replica_id):
                path = f"replicas/{KIND_FOLDERS[kind]}/{log}/{replica_id}"
            case TopicKey(topic):
                path = f"topics/{topic}"
            case BlockKey(topic, broker, first_queue_id):
                # Ten digits, so that the order of keys is the order of ids.
                path = f"queues/{topic}/{broker}/{first_queue_id:010d}"
            case GroupKey(group):
                path = f"groups/{group}"
            case SubscriptionKey(topic, group):
                path = f"subscriptions/{topic}/{group}"
            case AccessKeyName(key_id):
                path = f"access/{key_id}"
            case SettingKey(service, node, name):
                path = f"settings/{service}/{node or EVERY_NODE}/{name}"
            case DeletionKey(topic, group):
                path = "deleted/since"
                if topic or group:
                    path = f"deleted/topics/{topic}" if topic else f"deleted/groups/{group}"
        return self._root + path

    def one(self, key: RouteKey) -> KeyRange:
        return only(self.key(key))

    def committed_end(self, key: LogKey) -> str:
        """Key of a log's committed end. A cluster's name has no "@"."""
        root = self._root.removesuffix("/")
        return f"{root}@committed/{KIND_FOLDERS[key.kind]}/{key.log}"

    def nodes(self, kind: NodeKind) -> KeyRange:
        return under(f"{self._root}nodes/{KIND_FOLDERS[kind]}/")

    def replicas(self, kind: NodeKind, log: str = "") -> KeyRange:
        """Key range of the live replicas of one log, or of all logs."""
        return under(f"{self._root}replicas/{KIND_FOLDERS[kind]}/" + (f"{log}/" if log else ""))

    def blocks(self, topic: str) -> KeyRange:
        return under(f"{self._root}queues/{topic}/")

    def blocks_on(self, topic: str, broker: str) -> KeyRange:
        return under(f"{self._root}queues/{topic}/{broker}/")

    def live_settings(self, service: str, node: str) -> KeyRange:
        return under(f"{self._root}settings/{service}/{node}/")

    def access_keys(self) -> KeyRange:
        return under(f"{self._root}access/")

    def deletions(self) -> KeyRange:
        return under(f"{self._root}deleted/")

    def subscriptions(self) -> KeyRange:
        return under(f"{self._root}subscriptions/")

    def subscriptions_to(self, topic: str) -> KeyRange:
        return under(f"{self._root}subscriptions/{topic}/")

    def parse(self, key: str) -> RouteKey:
        """Parse a key of this cluster. Raises UnreadableKey for an unknown one."""
        try:
            match key.removeprefix(self._root).split("/"):
                case ["nodes", folder, name] if name:
                    return NodeKey(FOLDER_KINDS[folder], name)
                case ["logs", folder, log] if log:
                    return LogKey(FOLDER_KINDS[folder], log)
                case ["replicas", folder, log, replica_id] if log and replica_id:
                    return ReplicaKey(FOLDER_KINDS[folder], log, replica_id)
                case ["topics", topic] if topic:
                    return TopicKey(topic)
                case ["queues", topic, broker, first_queue_id]:
                    return BlockKey(topic, broker, int(first_queue_id))
                case ["groups", group] if group:
                    return GroupKey(group)
                case ["subscriptions", topic, group] if topic and group:
                    return SubscriptionKey(topic, group)
                case ["access", key_id] if key_id:
                    return AccessKeyName(key_id)
                case ["settings", service, node, name] if service and node and name:
                    return SettingKey(service, "" if node == EVERY_NODE else node, name)
                case ["deleted", "topics", topic] if topic:
                    return DeletionKey(topic=topic)
                case ["deleted", "groups", group] if group:
                    return DeletionKey(group=group)
                case ["deleted", "since"]:
                    return DeletionKey()
        except (KeyError, ValueError):
            pass
        raise UnreadableKey(f"{key!r} is not a route")


def identity_value(number: int, level: int = 0) -> bytes:
    """Return the value of the identity's key. Level 0 is not written: former versions had none."""
    fields: dict[str, object] = {"number": number}
    return json_value(fields | ({"level": level} if level else {}))


def read_identity(value: bytes) -> int:
    """Return the cluster's identity from `identity_value`'s result. Raises UnreadableKey."""
    try:
        number = json.loads(value)["number"]
        if isinstance(number, int) and 0 <= number < 1 << 63:
            return number
    except (ValueError, KeyError, TypeError):
        pass
    raise UnreadableKey(f"{value!r} is no identity")


def read_level(value: bytes) -> int:
    """Return the cluster's feature level from the value of the identity's key; 0 without one."""
    try:
        level = json.loads(value).get("level", 0)
    except (ValueError, AttributeError):
        return 0
    return level if isinstance(level, int) else 0


def value_of(message: google.protobuf.message.Message, *not_stored: str) -> bytes:
    """Return a message as the value of a key, without some of its fields."""
    fields = json_format.MessageToDict(message, preserving_proto_field_name=True)
    return json_value({name: fields[name] for name in fields.keys() - set(not_stored)})


def node_value(node: Node) -> bytes:
    return value_of(node)


def read_node(key: NodeKey | ReplicaKey, value: bytes) -> Node:
    node = Node.FromString(as_binary(Node, value))
    node.kind, node.name = key.kind, key.name if isinstance(key, NodeKey) else key.log
    return node


def log_value(state: LogState) -> bytes:
    return value_of(state, "kind", "log")


def read_log(key: LogKey, value: bytes) -> LogState:
    state = LogState.FromString(as_binary(LogState, value))
    state.kind, state.log = key.kind, key.log
    return state


def committed_end_value(record: CommittedEnd) -> bytes:
    return json_value(record._asdict())


def read_committed_end(value: bytes) -> CommittedEnd:
    """Return a log's committed end from the value of its key. Raises UnreadableKey if
    `committed_end_value` did not write the value.
    """
    try:
        fields = json.loads(value)
        record = CommittedEnd(*(fields[each] for each in CommittedEnd._fields))
        if all(isinstance(each, int) for each in record):
            return record
    except (ValueError, KeyError, TypeError):
        pass
    raise UnreadableKey(f"{value!r} is no committed end")


def topic_value(config: TopicConfig) -> bytes:
    return value_of(config, "name")


def read_topic(key: TopicKey, value: bytes) -> TopicConfig:
    config = parse_json(value, TopicConfig())
    config.name = key.topic
    return config


def block_value(queues: int) -> bytes:
    return json_value({"queues": queues})


def read_block(value: bytes) -> int:
    """Return a block's number of queues (of a topic on a broker). Raises UnreadableKey."""
    try:
        queues = json.loads(value)["queues"]
        if isinstance(queues, int) and queues >= 1:
            return queues
    except (ValueError, KeyError, TypeError):
        pass
    raise UnreadableKey(f"{value!r} does not describe a block of queues")


def group_value(config: GroupConfig) -> bytes:
    return value_of(config, "name")


def read_group(key: GroupKey, value: bytes) -> GroupConfig:
    config = parse_json(value, GroupConfig())
    config.name = key.group
    return config


def access_key_value(info: AccessKeyInfo) -> bytes:
    return value_of(info, "key_id", "modified_revision")


def read_access_key(key: AccessKeyName, value: bytes, modified_revision: int) -> AccessKeyInfo:
    try:
        info = parse_json(value, AccessKeyInfo())
    except UnreadableKey:
        # Without the value: it has the verifier of signatures, and this text is logged.
        raise UnreadableKey("it does not describe an access key") from None
    info.key_id, info.modified_revision = key.key_id, modified_revision
    return info


def setting_value(setting: LiveSetting) -> bytes:
    return value_of(setting, "service", "node", "name", "modified_revision")


def read_setting(key: SettingKey, value: bytes, revision: int) -> LiveSetting:
    setting = parse_json(value, LiveSetting())
    setting.modified_revision = revision
    setting.service, setting.node, setting.name = key.service, key.node, key.name
    return setting


def json_value(fields: dict[str, object]) -> bytes:
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()


@lru_cache(maxsize=VALUES_PARSED_MAX)
def as_binary(kind: type[Message], value: bytes) -> bytes:
    """Convert JSON to serialized protobuf; cached, because each renewal of a lease reads it."""
    return parse_json(value, kind()).SerializeToString()


def parse_json(value: bytes, message: Message) -> Message:
    try:
        return json_format.Parse(value, message, ignore_unknown_fields=True)
    except (json_format.ParseError, UnicodeDecodeError) as failure:
        raise UnreadableKey(f"{value!r}: {failure}") from failure
