"""Route cache of a client: topics with their queues, and nodes. No I/O.

Invariants:
- A topic is never replaced by an older state. Its state can come from the watch or from a parallel
  request, so each topic has the revision up to which its state is current.
- `revision` belongs to the watch: all changes up to it are included, for all watched topics.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from rockoon_core.message_queue import MessageQueue, queue_create_revisions
from rockoon_format.topic_attributes import has_priorities, is_compacted
from rockoon_proto.v1.nameserver_pb2 import BROKER, OFFSET_SERVICE, Node, RouteUpdate, Topic

PERMISSION_READ = 4
PERMISSION_WRITE = 2


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """State of a topic at some revision of the routes."""

    name: str
    queues: tuple[MessageQueue, ...]
    """Queues of the topic, sorted, including the queues of brokers that are not registered."""
    create_revisions: Mapping[MessageQueue, int] = field(repr=False)
    """etcd revision at which each queue was created."""
    incarnation: int
    """etcd revision at which the topic was created; distinguishes it from a deleted topic of the
    same name."""
    modified_revision: int
    """etcd revision of the last change to the topic's configuration."""
    changed_revision: int
    """etcd revision of the last change to the topic's configuration or queues."""
    permissions: int
    attributes: Mapping[str, str]

    @property
    def compacted(self) -> bool:
        """True if each message needs a key, and compaction keeps only the newest message of a
        key."""
        return is_compacted(self.name, self.attributes)

    @property
    def has_priorities(self) -> bool:
        """True if consumers read queues with higher ids first."""
        return has_priorities(self.attributes)

    @property
    def readable(self) -> bool:
        return bool(self.permissions & PERMISSION_READ)

    @property
    def writable(self) -> bool:
        return bool(self.permissions & PERMISSION_WRITE)

    @classmethod
    def from_wire(cls, topic: Topic) -> "TopicRoute":
        name = topic.config.name
        create_revisions = queue_create_revisions(topic)
        return cls(
            name=name,
            queues=tuple(create_revisions),
            create_revisions=MappingProxyType(create_revisions),
            incarnation=topic.incarnation,
            modified_revision=topic.modified_revision,
            changed_revision=max([topic.modified_revision, *create_revisions.values()]),
            permissions=topic.config.permissions or PERMISSION_READ | PERMISSION_WRITE,
            attributes=MappingProxyType(dict(topic.config.attributes)),
        )


class Routes:
    """Routes of the topics that a client uses, and all nodes."""

    def __init__(self) -> None:
        self.revision = 0
        self.cluster = ""
        self.etcd_reachable = True
        self.node_changes = 0
        """Number of node changes so far."""
        self.history = 0
        """Identity of the etcd that counts the revisions; a watch can only be resumed within one
        history."""
        self._etcd_cluster_id = 0
        self._nodes: dict[tuple[int, str], Node] = {}
        self._topics: dict[str, TopicRoute] = {}
        self._as_of: dict[str, int] = {}

    def apply(self, update: RouteUpdate, topics: Collection[str] | None = None) -> bool:
        """Apply an update of a watch.

        Args:
            update: the nameserver's message.
            topics: the watched topics; None for all.

        Returns:
            Whether a topic or a node has changed. If `revision` is 0 afterwards, the watch must
            restart with a snapshot.
        """
        changed = False
        if self._is_other_history(update) and not update.snapshot:
            self._reset_revisions()
            return False
        # In another history the cached state is void, however new. A snapshot of an older revision
        # means the same: nameservers send it only after etcd has lost revisions that this client
        # has seen.
        restored = update.snapshot and (
            update.revision < self.revision or self._is_other_history(update)
        )
        if update.snapshot:
            changed |= self._replace_nodes(update.nodes)
            listed = {topic.config.name for topic in update.topics}
            followed = set(self._topics) if topics is None else topics
            for name in followed:
                if name not in listed:
                    changed |= self._remove_topic(name, update.revision, force=restored)
        else:
            changed |= self._put_nodes(update.nodes)
            for node in update.removed_nodes:
                if self._nodes.pop((node.kind, node.name), None) is not None:
                    self.node_changes += 1
                    changed = True
        for topic in update.topics:
            changed |= self._put(topic, update.revision, force=restored)
        for name in update.removed_topics:
            changed |= self._remove_topic(name, update.revision)
        self._record_source(update)
        self.history = update.history or self.history
        self.revision = update.revision if restored else max(self.revision, update.revision)
        return changed

    def learn(self, update: RouteUpdate, topics: Collection[str]) -> bool:
        """Apply the reply to a request for `topics`; topics that it does not list do not exist.
        Returns whether a topic or a node has changed."""
        if self._is_other_history(update):
            self._reset_revisions()
        listed = {topic.config.name for topic in update.topics}
        changed = False
        for topic in update.topics:
            changed |= self._put(topic, update.revision)
        for name in topics:
            if name not in listed:
                changed |= self._remove_topic(name, update.revision)
        if update.revision > self.revision:
            changed |= self._put_nodes(update.nodes)
        self._record_source(update)
        return changed

    def drop(self, name: str) -> None:
        """Remove an absent topic from the cache, as if it had never been requested."""
        if name not in self._topics:
            self._as_of.pop(name, None)

    def topic(self, name: str) -> TopicRoute | None:
        """Return a topic's route; None if it does not exist or was never requested."""
        return self._topics.get(name)

    @property
    def topics(self) -> Mapping[str, TopicRoute]:
        return MappingProxyType(self._topics)

    def topic_revision(self, name: str) -> int:
        """Return up to which revision a topic's state is current; 0 if it was never requested."""
        return max(self._as_of[name], self.revision) if name in self._as_of else 0

    def needed_revision(self, name: str) -> int:
        """Return the revision that a service must have reached to know a topic as this client does.

        It is the revision of the topic's last change. `topic_revision` may be later because of
        changes of other topics or logs; services may receive that revision later than the client.
        """
        route = self._topics.get(name)
        if route is not None and route.changed_revision <= self.revision and name in self._as_of:
            # The common case, without further calls: each request of a producer needs it.
            return route.changed_revision
        revision = self.topic_revision(name)
        # If etcd was replaced, the route may have a higher revision of the former etcd.
        return revision if route is None else min(revision, route.changed_revision)

    @property
    def nodes(self) -> list[Node]:
        """Live nodes, sorted by kind and name."""
        return [node for _, node in sorted(self._nodes.items())]

    def broker(self, name: str) -> Node | None:
        return self._nodes.get((BROKER, name))

    def broker_address(self, name: str) -> str | None:
        """Return "host:port" of a live broker; None if this client cannot reach it."""
        node = self.broker(name)
        return node.address or None if node else None

    @property
    def drained(self) -> frozenset[str]:
        """Names of the live brokers that are drained."""
        return frozenset(
            name for (kind, name), node in self._nodes.items() if kind == BROKER and node.drained
        )

    def offset_service(self) -> Node | None:
        """Return the offset service; None while it is not registered."""
        found = [node for (kind, _), node in self._nodes.items() if kind == OFFSET_SERVICE]
        # During a hand-over two may be listed; the one that started last is active.
        return max(found, key=lambda node: node.started_at_ms) if found else None

    def _is_other_history(self, update: RouteUpdate) -> bool:
        known, received = self._etcd_cluster_id, update.etcd_cluster_id
        return bool(known and received and known != received)

    def _reset_revisions(self) -> None:
        """Reset the revisions, which are no longer valid; topics remain until a snapshot replaces
        them."""
        self.revision = 0
        self._as_of = dict.fromkeys(self._as_of, 0)
        self._etcd_cluster_id = 0

    def _record_source(self, update: RouteUpdate) -> None:
        self._etcd_cluster_id = update.etcd_cluster_id or self._etcd_cluster_id
        self.etcd_reachable = update.etcd_reachable
        self.cluster = update.cluster or self.cluster

    def _put(self, topic: Topic, revision: int, *, force: bool = False) -> bool:
        name = topic.config.name
        if revision < self._as_of.get(name, 0) and not force:
            return False
        self._as_of[name] = revision
        route = TopicRoute.from_wire(topic)
        if self._topics.get(name) == route:
            return False
        self._topics[name] = route
        return True

    def _remove_topic(self, name: str, revision: int, *, force: bool = False) -> bool:
        if revision < self._as_of.get(name, 0) and not force:
            return False
        self._as_of[name] = revision
        return self._topics.pop(name, None) is not None

    def _put_nodes(self, nodes: Collection[Node]) -> bool:
        changed = False
        for node in nodes:
            key = (node.kind, node.name)
            known = self._nodes.get(key)
            # A nameserver that is behind may still send a deposed leader.
            if known is not None and known.epoch > node.epoch:
                continue
            if known != node:
                self._nodes[key] = node
                self.node_changes += 1
                changed = True
        return changed

    def _replace_nodes(self, nodes: Collection[Node]) -> bool:
        before = self._nodes
        self._nodes = {(node.kind, node.name): node for node in nodes}
        changed = before != self._nodes
        self.node_changes += changed
        return changed
