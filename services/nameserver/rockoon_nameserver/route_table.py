"""The routes of a cluster as read from etcd, and the changes since a revision.

Pure. Invariants:

1. The contents are those of etcd at exactly `revision`. Changes are applied a whole revision at a
   time, so no reader sees half a transaction.
2. `update_after(r)`, applied to the contents at any r from `oldest_known` to `revision`, yields the
   contents at `revision`. The log has the names of changed entities, never values: an update is
   built from the present contents, and many changes of one topic are one entry.
3. The log has at most `log_revisions_max` entries; a reader that is older gets a snapshot.
"""

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import NamedTuple

from rockoon_nameserver.etcd_data import KeyEvent, KeyValue, WatchBatch
from rockoon_nameserver.keyspace import (
    AccessKeyName,
    BlockKey,
    DeletionKey,
    GroupKey,
    Keyspace,
    LogKey,
    NodeKey,
    ReplicaKey,
    RouteKey,
    SettingKey,
    SubscriptionKey,
    TopicKey,
    UnreadableKey,
    read_access_key,
    read_block,
    read_group,
    read_level,
    read_log,
    read_node,
    read_setting,
    read_topic,
)
from rockoon_proto.v1.access_pb2 import AccessKeyInfo
from rockoon_proto.v1.logs_pb2 import Log, LogState
from rockoon_proto.v1.nameserver_pb2 import (
    BROKER,
    Group,
    Node,
    NodeKind,
    QueueBlock,
    RouteUpdate,
    Subscription,
    Topic,
    TopicConfig,
)
from rockoon_proto.v1.settings_pb2 import LiveSetting


class LogCounts(NamedTuple):
    """Counts of logs: all, those without a leader, and those that are frozen."""

    all: int
    without_leader: int
    frozen: int


@dataclass(slots=True)
class LogEntry:
    """Entry of one log in the table; `state` is None while only its replicas have been read."""

    state: LogState | None = None
    nodes: dict[str, Node] = field(default_factory=dict)
    changed_at: int = 0


class LogTable:
    """State and live replicas of each log, as read from etcd.

    Clients see a log as a node of its name, at the address of its leader. Their routes change only
    when the leader, its epoch or the address of a replica changes.
    """

    def __init__(self) -> None:
        self._records: dict[LogKey, LogEntry] = {}

    def put_state(self, key: LogKey, state: LogState | None, revision: int) -> None:
        """Store the state of a log in the table; None removes it."""
        record = self._record(key, revision)
        record.state = state
        self._drop_empty(key, record)

    def put_node(self, key: LogKey, replica_id: str, node: Node | None, revision: int) -> None:
        """Store a live replica of a log in the table; None removes it."""
        record = self._record(key, revision)
        record.nodes.pop(replica_id, None)
        if node is not None:
            record.nodes[replica_id] = node
        self._drop_empty(key, record)

    def state(self, key: LogKey) -> LogState | None:
        record = self._records.get(key)
        return None if record is None else record.state

    def nodes(self) -> Iterable[Node]:
        """Live replicas of all logs."""
        return (node for record in self._records.values() for node in record.nodes.values())

    def with_state(self) -> list[LogKey]:
        """Sorted keys of the logs that have a state."""
        return sorted(key for key, record in self._records.items() if record.state is not None)

    def log(self, key: LogKey) -> Log | None:
        """Return the state and live replicas of a log; None if it has no state."""
        record = self._records.get(key)
        if record is None or record.state is None:
            return None
        return Log(state=record.state, nodes=[record.nodes[who] for who in sorted(record.nodes)])

    def changed_since(self, kind: NodeKind, logs: Collection[str], revision: int) -> list[Log]:
        """Return the logs whose state or replicas changed after a revision.

        Args:
            kind: kind of the nodes that have the logs.
            logs: names of logs; empty: all.
            revision: of etcd; 0: all logs are returned.
        """
        keys = sorted(LogKey(kind, log) for log in logs) if logs else self.with_state()
        found = []
        for key in keys:
            record = self._records.get(key)
            if key.kind == kind and record is not None and record.changed_at > revision:
                log = self.log(key)
                if log is not None:
                    found.append(log)
        return found

    def routed(self, key: LogKey) -> Node | None:
        """Return the node that clients see for a log; None while its leader is not live.

        During an election that is the former leader, which still serves readers: they need not
        reconnect twice.
        """
        record = self._records.get(key)
        if record is None or record.state is None:
            return None
        state = record.state
        leader = record.nodes.get(state.leader or state.former_leader)
        if leader is None:
            return None
        node = Node()
        node.CopyFrom(leader)
        node.epoch = state.epoch if state.leader else state.former_epoch
        for who in sorted(record.nodes):
            each = record.nodes[who]
            node.replicas.add(
                replica_id=who,
                name=each.replica,
                address=each.address,
                external_address=each.external_address,
                ip_address=each.ip_address,
                rack=each.rack,
                in_sync=who in state.in_sync,
            )
        return node

    def counts(self) -> LogCounts:
        states = [each.state for each in self._records.values() if each.state is not None]
        return LogCounts(
            len(states),
            sum(is_without_leader(each) for each in self._records.values()),
            sum(bool(state.frozen) for state in states),
        )

    def _record(self, key: LogKey, revision: int) -> LogEntry:
        record = self._records.setdefault(key, LogEntry())
        record.changed_at = max(record.changed_at, revision)
        return record

    def _drop_empty(self, key: LogKey, record: LogEntry) -> None:
        if record.state is None and not record.nodes:
            del self._records[key]


def is_without_leader(record: LogEntry) -> bool:
    """True if a log has no leader: an election runs, or the leader is not live and too few replicas
    are left to elect another. The only copy of a log counts as a missing node instead.
    """
    state = record.state
    if state is None or (state.leader and len(state.in_sync) == 1):
        return False
    return state.leader not in record.nodes


# An entity that an update lists as put or removed; blocks are part of their topic.
Entity = NodeKey | TopicKey | GroupKey | SubscriptionKey | DeletionKey

# Recorded deletions; the next deletion removes older records.
DELETIONS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Interest:
    """Topics and groups that a client watches; it receives all nodes.

    Attributes:
        topics: their names; None means all.
        groups: also groups, and the subscriptions to those topics.
    """

    topics: frozenset[str] | None = None
    groups: bool = False

    def covers(self, entity: Entity) -> bool:
        match entity:
            case NodeKey():
                return True
            case TopicKey(topic):
                return self.topics is None or topic in self.topics
            case GroupKey():
                return self.groups
            case DeletionKey(topic, group):
                return self.groups if group else self.topics is None or topic in self.topics
            case SubscriptionKey(topic, _):
                return self.groups and (self.topics is None or topic in self.topics)


@dataclass(slots=True)
class TopicEntry:
    """Entry of one topic in the table; `config` is None while only its queues have been read."""

    config: TopicConfig | None = None
    incarnation: int = 0
    modified_revision: int = 0
    blocks: dict[tuple[str, int], QueueBlock] = field(default_factory=dict)


class RouteCounts(NamedTuple):
    """Number of nodes, topics, groups and subscriptions in the routes."""

    # By NodeKind.
    nodes: Mapping[int, int]
    topics: int
    groups: int
    subscriptions: int


class RouteTable:
    """Routes of a cluster in memory, and the changes since a revision. The follower writes it;
    servicers read it.
    """

    def __init__(self, keyspace: Keyspace, *, log_revisions_max: int = 10_000) -> None:
        self._keyspace = keyspace
        self._log_revisions_max = log_revisions_max
        # 0 until the first load.
        self.revision = 0
        # Changes when etcd's history was replaced: the routes of readers are invalid then.
        self.history = 0
        self.oldest_known = 0
        self._log: deque[tuple[int, frozenset[Entity]]] = deque()
        # Each key of the cluster, readable or not, with the revision of its last change and its
        # value: a restored etcd may have another value under the same revision.
        self._keys: dict[str, tuple[int, bytes]] = {}
        # As in routes: the leader of a log, else the node that registered under the name.
        self._nodes: dict[NodeKey, Node] = {}
        self._registered: dict[NodeKey, Node] = {}
        self.logs = LogTable()
        # Feature level of the cluster.
        self.level = 0
        # Number of queue blocks of all topics, by broker.
        self._block_counts: Counter[str] = Counter()
        self._records: dict[str, TopicEntry] = {}
        self._topics: dict[str, Topic] = {}
        self._groups: dict[str, Group] = {}
        self._subscriptions: dict[SubscriptionKey, Subscription] = {}
        # By group: finds the subscriptions of one group without a scan.
        self._subscribed: dict[str, set[SubscriptionKey]] = {}
        # By deleted entity, ordered by the revision of the deletion.
        self._deletions: dict[DeletionKey, int] = {}
        # Not part of routes: sent to services alone, all keys after each change.
        self._access_keys: dict[str, AccessKeyInfo] = {}
        self.access_changes = 0
        # Likewise.
        self._live_settings: dict[SettingKey, LiveSetting] = {}
        self.settings_changes = 0

    @property
    def loaded(self) -> bool:
        return self.revision > 0

    @property
    def key_count(self) -> int:
        return len(self._keys)

    @property
    def access_keys(self) -> list[AccessKeyInfo]:
        """All access keys, ordered by name."""
        return [self._access_keys[name] for name in sorted(self._access_keys)]

    @property
    def setting_count(self) -> int:
        return len(self._live_settings)

    def live_settings(self, service: str, node: str) -> list[LiveSetting]:
        """Live settings of a node: those of all nodes first, then those of this node."""
        return [
            self._live_settings[key]
            for key in sorted(self._live_settings)
            if key.service == service and key.node in ("", node)
        ]

    @property
    def deletions_since(self) -> int:
        """Revision since which all deletions are recorded; 0: deletions are not recorded."""
        return next(iter(self._deletions.values()), 0)

    def oldest_deletions(self, count: int) -> list[DeletionKey]:
        """Return the oldest records of deletions, to be removed before adding `count`."""
        return list(self._deletions)[: max(0, len(self._deletions) + count - DELETIONS_MAX)]

    def lacking(self, level: int) -> list[str]:
        """Return the names of live nodes, copies included, that support only lower levels."""
        nodes = [*self._registered.values(), *self.logs.nodes()]
        return sorted({each.replica or each.name for each in nodes if each.level < level})

    def counts(self) -> "RouteCounts":
        return RouteCounts(
            nodes=Counter(node.kind for node in self._nodes.values()),
            topics=len(self._topics),
            groups=len(self._groups),
            subscriptions=len(self._subscriptions),
        )

    def nodes(self) -> list[Node]:
        """Live nodes, ordered by kind and name."""
        return [self._nodes[key] for key in sorted(self._nodes)]

    def log(self, key: LogKey) -> Log | None:
        """Return a log with its live replicas; for a broker without replication, its node."""
        log, node = self.logs.log(key), self._registered.get(NodeKey(key.kind, key.log))
        if log is not None and node is not None:
            log.nodes.append(node)
        return log

    @property
    def has_broker(self) -> bool:
        """True if any broker is live."""
        return any(node.kind == BROKER for node in self._nodes.values())

    def has_queues(self, broker: str) -> bool:
        return self._block_counts[broker] > 0

    def topics_on(self, broker: str) -> list[Topic]:
        """Topics that have queues on a broker."""
        return [
            topic
            for topic in self._topics.values()
            if any(block.broker == broker for block in topic.blocks)
        ]

    def group(self, name: str) -> Group | None:
        return self._groups.get(name)

    def subscriptions_of(self, group: str) -> list[Subscription]:
        """Subscriptions of one group, ordered by topic."""
        return [self._subscriptions[key] for key in sorted(self._subscribed.get(group, ()))]

    def away_brokers(self) -> list[str]:
        """Sorted names of the brokers that have queues and are not live."""
        return sorted(
            broker
            for broker, count in self._block_counts.items()
            if count and NodeKey(BROKER, broker) not in self._nodes
        )

    def load(
        self, revision: int, items: Sequence[KeyValue], *, new_history: bool = False
    ) -> list[str]:
        """Replace the contents by those of etcd at a revision.

        Differences are logged like any change, so readers that follow receive them, including
        removals.

        Args:
            revision: at which `items` were read.
            items: all keys of the cluster.
            new_history: this etcd does not continue the former one (its data was lost, or restored
                from a backup), so no earlier revision is valid.

        Returns:
            A sentence for each key that was left out because it is unreadable.
        """
        first = not self.loaded
        assert first or new_history or revision >= self.revision, "etcd does not go back"
        present = {item.key for item in items}
        gone = [KeyEvent(key, None, 0, revision) for key in self._keys if key not in present]
        put = [
            KeyEvent(item.key, item.value, item.create_revision, item.mod_revision)
            for item in items
            if new_history or self._keys.get(item.key) != (item.mod_revision, item.value)
        ]
        complaints = self._apply(revision, [*gone, *put])
        if first or new_history:
            self._log.clear()
            self.oldest_known = revision
            self.history += 1
        return complaints

    def apply(self, batch: WatchBatch) -> list[str]:
        """Apply a batch of events from etcd's watch.

        Events that a load has already applied are skipped.

        Returns:
            A sentence for each key that was left out because it is unreadable.
        """
        new = [event for event in batch.events if event.mod_revision > self.revision]
        return self._apply(max(batch.revision, self.revision), new)

    def advance(self, revision: int) -> None:
        """Advance the table to a revision; no route has changed up to it."""
        self.revision = max(self.revision, revision)

    def snapshot(self, interest: Interest) -> RouteUpdate:
        """Return all routes that a client watches, ordered by name."""
        update = RouteUpdate(
            revision=self.revision, snapshot=True, deletions_since=self.deletions_since
        )
        for key in self._deletions:
            if interest.covers(key):
                self._list(key, update)
        update.nodes.extend(self.nodes())
        if interest.topics is None:
            update.topics.extend(self._topics[name] for name in sorted(self._topics))
        else:
            wanted = sorted(name for name in interest.topics if name in self._topics)
            update.topics.extend(self._topics[name] for name in wanted)
        if interest.groups:
            update.groups.extend(self._groups[name] for name in sorted(self._groups))
            update.subscriptions.extend(
                self._subscriptions[key]
                for key in sorted(self._subscriptions)
                if interest.covers(key)
            )
        return update

    def update_after(self, revision: int, interest: Interest) -> RouteUpdate:
        """Return the changes of routes after a revision; a snapshot if the table no longer has
        these changes.

        Args:
            revision: at most `self.revision`; 0 requests a snapshot.
        """
        assert revision <= self.revision, "a reader from the future must wait"
        if revision == 0 or revision < self.oldest_known:
            return self.snapshot(interest)
        changed: set[Entity] = set()
        for logged, entities in reversed(self._log):
            if logged <= revision:
                break
            changed |= entities
        update = RouteUpdate(revision=self.revision, deletions_since=self.deletions_since)
        for entity in sorted(changed, key=entity_order):
            if interest.covers(entity):
                self._list(entity, update)
        return update

    def _list(self, entity: Entity, update: RouteUpdate) -> None:
        """Add the present state of a topic, group or node to an update; or its removal."""
        match entity:
            case NodeKey(kind, name):
                if entity in self._nodes:
                    update.nodes.append(self._nodes[entity])
                else:
                    update.removed_nodes.add(kind=kind, name=name)
            case TopicKey(topic):
                if topic in self._topics:
                    update.topics.append(self._topics[topic])
                else:
                    update.removed_topics.append(topic)
            case GroupKey(group):
                if group in self._groups:
                    update.groups.append(self._groups[group])
                else:
                    update.removed_groups.append(group)
            case SubscriptionKey(topic, group):
                if entity in self._subscriptions:
                    update.subscriptions.append(self._subscriptions[entity])
                else:
                    update.removed_subscriptions.add(group=group, topic=topic)
            case DeletionKey(topic, group):
                if (topic or group) and entity in self._deletions:
                    update.deletions.add(topic=topic, group=group, revision=self._deletions[entity])

    def _apply(self, revision: int, events: Iterable[KeyEvent]) -> list[str]:
        complaints: list[str] = []
        changed: set[Entity] = set()
        logs: set[LogKey] = set()
        # A watch's events are ordered by revision, those of a load by name.
        for event in sorted(events, key=lambda event: event.mod_revision):
            if event.value is None:
                self._keys.pop(event.key, None)
            else:
                self._keys[event.key] = event.mod_revision, event.value
            try:
                if event.key == self._keyspace.identity:
                    # The follower reads the number.
                    self.level = read_level(event.value or b"")
                    continue
                key = self._keyspace.parse(event.key)
                if isinstance(key, AccessKeyName):
                    self._put_access_key(key, event)
                    continue
                if isinstance(key, SettingKey):
                    self._put_setting(key, event)
                    continue
                if isinstance(key, LogKey | ReplicaKey):
                    logs.add(LogKey(key.kind, key.log))
                    self._put_log(key, event, revision)
                    continue
                changed.add(TopicKey(key.topic) if isinstance(key, BlockKey) else key)
                self._remove(key)
                if event.value is not None:
                    self._put(key, event.value, event.create_revision, event.mod_revision)
            except UnreadableKey as failure:
                complaints.append(f"{event.key}: {failure}")
        changed |= self._route({each for each in changed if isinstance(each, NodeKey)}, logs)
        for entity in changed:
            if isinstance(entity, TopicKey):
                self._assemble(entity.topic)
        self.revision = revision
        if changed:
            self._log.append((revision, frozenset(changed)))
            if len(self._log) > self._log_revisions_max:
                self.oldest_known, _ = self._log.popleft()
        return complaints

    def _put_access_key(self, key: AccessKeyName, event: KeyEvent) -> None:
        """Replace an access key; an unreadable one is removed, so that no caller can use it."""
        self.access_changes += 1
        self._access_keys.pop(key.key_id, None)
        if event.value is not None:
            info = read_access_key(key, event.value, event.mod_revision)
            self._access_keys[key.key_id] = info

    def _put_setting(self, key: SettingKey, event: KeyEvent) -> None:
        """Replace a live setting; an unreadable one is removed."""
        self.settings_changes += 1
        self._live_settings.pop(key, None)
        if event.value is not None:
            self._live_settings[key] = read_setting(key, event.value, event.mod_revision)

    def _put_log(self, key: LogKey | ReplicaKey, event: KeyEvent, revision: int) -> None:
        """Replace an entry of a log; an unreadable one is removed from it."""
        log, value = LogKey(key.kind, key.log), event.value
        if isinstance(key, ReplicaKey):
            self.logs.put_node(log, key.replica_id, None, revision)
            if value is not None:
                self.logs.put_node(log, key.replica_id, read_node(key, value), revision)
        else:
            self.logs.put_state(log, None, revision)
            if value is not None:
                self.logs.put_state(log, read_log(key, value), revision)

    def _route(self, nodes: set[NodeKey], logs: set[LogKey]) -> set[NodeKey]:
        """Update the routed nodes after changes of nodes and logs; returns the changed ones."""
        changed = set()
        for key in nodes | {NodeKey(each.kind, each.log) for each in logs}:
            before = self._nodes.pop(key, None)
            node = self.logs.routed(LogKey(key.kind, key.name)) or self._registered.get(key)
            if node is not None:
                self._nodes[key] = node
            if key in nodes or node != before:
                changed.add(key)
        return changed

    def _remove(self, key: RouteKey) -> None:
        match key:
            case NodeKey():
                self._registered.pop(key, None)
            case TopicKey(topic):
                self._record(topic).config = None
            case BlockKey(topic, broker, first_queue_id):
                if self._record(topic).blocks.pop((broker, first_queue_id), None) is not None:
                    self._block_counts[broker] -= 1
            case GroupKey(group):
                self._groups.pop(group, None)
            case SubscriptionKey(_, group):
                if self._subscriptions.pop(key, None) is not None:
                    self._subscribed[group].discard(key)
                    if not self._subscribed[group]:
                        del self._subscribed[group]
            case DeletionKey():
                self._deletions.pop(key, None)

    def _put(self, key: RouteKey, value: bytes, created: int, modified: int) -> None:
        match key:
            case NodeKey():
                self._registered[key] = read_node(key, value)
            case TopicKey(topic):
                record = self._record(topic)
                record.config = read_topic(key, value)
                record.incarnation = created
                record.modified_revision = modified
            case BlockKey(topic, broker, first_queue_id):
                self._record(topic).blocks[broker, first_queue_id] = QueueBlock(
                    broker=broker,
                    first_queue_id=first_queue_id,
                    queues=read_block(value),
                    create_revision=created,
                )
                self._block_counts[broker] += 1
            case GroupKey(group):
                self._groups[group] = Group(
                    config=read_group(key, value), incarnation=created, modified_revision=modified
                )
            case SubscriptionKey(topic, group):
                self._subscriptions[key] = Subscription(group=group, topic=topic, revision=created)
                self._subscribed.setdefault(group, set()).add(key)
            case DeletionKey():
                self._deletions[key] = modified

    def _record(self, topic: str) -> TopicEntry:
        return self._records.setdefault(topic, TopicEntry())

    def _assemble(self, topic: str) -> None:
        """Build a topic's protobuf from its keys, once per change and not once per reader."""
        record = self._record(topic)
        self._topics.pop(topic, None)
        if record.config is not None:
            self._topics[topic] = assembled(record.config, record)
        elif not record.blocks:
            del self._records[topic]


def assembled(config: TopicConfig, record: TopicEntry) -> Topic:
    return Topic(
        config=config,
        incarnation=record.incarnation,
        modified_revision=record.modified_revision,
        blocks=[record.blocks[key] for key in sorted(record.blocks)],
    )


def entity_order(entity: Entity) -> tuple[str, ...]:
    return (type(entity).__name__, *(str(part) for part in astuple(entity)))
