"""Route table: topics, queues, groups, subscriptions and brokers, with their revisions. Pure."""

from dataclasses import dataclass, field
from typing import NamedTuple

from rockoon_core.errors import QueueNotFound, TopicNotFound
from rockoon_core.message_queue import MessageQueue, queue_create_revisions
from rockoon_node.deletions import Deletions
from rockoon_proto.v1.nameserver_pb2 import BROKER, Group, Node, RouteUpdate
from rockoon_proto.v1.nameserver_pb2 import Topic as WireTopic


class AppliedUpdate(NamedTuple):
    """Effect of a route update: topics and groups that it changed or deleted."""

    snapshot: bool
    # New or changed topics, and deleted topics.
    topics: frozenset[str]
    removed_topics: frozenset[str]
    # New or changed groups, and deleted groups.
    groups: frozenset[str]
    removed_groups: frozenset[str]
    # Groups that read one of those topics before or after the update.
    readers: frozenset[str]
    # etcd was restored from a backup: the routes do not continue the former routes.
    went_back: bool = False
    # Topics that lost a queue, or with a queue that was created again.
    recreated: frozenset[str] = frozenset()


@dataclass(slots=True)
class Topic:
    """A topic with the create revision of each of its queues."""

    modified_revision: int
    # Sorted by queue.
    create_revisions: dict[MessageQueue, int]


def topic_from_wire(topic: WireTopic) -> Topic:
    return Topic(topic.modified_revision, queue_create_revisions(topic))


def create_revisions_in(update: RouteUpdate) -> dict[MessageQueue, int]:
    """Return the create revision of every queue in a route update."""
    return {
        queue: create_revision
        for topic in update.topics
        for queue, create_revision in queue_create_revisions(topic).items()
    }


@dataclass(slots=True)
class OffsetRoutes:
    """The routes that the offset service knows, at `revision`. Only `apply` changes them."""

    revision: int = 0
    topics: dict[str, Topic] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    # (group, topic) → revision at which the group subscribed.
    subscriptions: dict[tuple[str, str], int] = field(default_factory=dict)
    # Live brokers by name.
    brokers: dict[str, Node] = field(default_factory=dict)
    # topic → groups that read it: the inverse of `subscriptions`.
    readers: dict[str, set[str]] = field(default_factory=dict)
    deletions: Deletions = field(default_factory=Deletions)

    def apply(self, update: RouteUpdate) -> AppliedUpdate:
        """Apply a route update and return its effect."""
        topics = {topic.config.name: topic_from_wire(topic) for topic in update.topics}
        groups = {group.config.name: group for group in update.groups}
        if update.snapshot:
            removed_topics = self.topics.keys() - topics.keys()
            removed_groups = self.groups.keys() - groups.keys()
        else:
            removed_topics = set(update.removed_topics)
            removed_groups = set(update.removed_groups)
        changed_topics = {name for name, topic in topics.items() if self.topics.get(name) != topic}
        changed_groups = {name for name, group in groups.items() if self.groups.get(name) != group}
        recreated = {name for name in changed_topics if self._is_recreated(name, topics[name])}
        touched = changed_topics | removed_topics
        # Before the update: it removes the subscriptions of deleted topics.
        readers = self._readers_of(touched)
        if update.snapshot:
            self.subscriptions, self.readers, self.brokers = {}, {}, {}
        self.topics.update(topics)
        self.groups.update(groups)
        self._apply_nodes(update)
        self._apply_subscriptions(update)
        self.deletions = self.deletions.after(update)
        for name in removed_topics:
            self.topics.pop(name, None)
        for name in removed_groups:
            self.groups.pop(name, None)
        self.revision = update.revision
        return AppliedUpdate(
            snapshot=update.snapshot,
            topics=frozenset(changed_topics),
            removed_topics=frozenset(removed_topics),
            groups=frozenset(changed_groups),
            removed_groups=frozenset(removed_groups),
            readers=readers | self._readers_of(touched),
            went_back=update.etcd_went_back,
            recreated=frozenset(recreated),
        )

    def create_revision(self, queue: MessageQueue) -> int:
        """Return a queue's create revision. Raises TopicNotFound, QueueNotFound."""
        topic = self.topics.get(queue.topic)
        if topic is None:
            raise TopicNotFound(topic=queue.topic)
        create_revision = topic.create_revisions.get(queue)
        if create_revision is None:
            raise QueueNotFound(topic=queue.topic, queue=queue.queue_id, broker=queue.broker)
        return create_revision

    def create_revision_or_none(self, queue: MessageQueue) -> int | None:
        topic = self.topics.get(queue.topic)
        return None if topic is None else topic.create_revisions.get(queue)

    def is_paused(self, group: str) -> bool:
        known = self.groups.get(group)
        return known is not None and known.config.consume_disabled

    def is_over(self, group: str, incarnation: int) -> bool:
        """True if a group's incarnation was deleted; False if the table is older than it."""
        known = self.groups.get(group)
        exists = known is not None and known.incarnation == incarnation
        return not exists and self.revision >= incarnation

    def group_incarnations(self) -> dict[str, int]:
        return {name: group.incarnation for name, group in self.groups.items()}

    def _is_recreated(self, name: str, topic: Topic) -> bool:
        create_revisions = self.topics[name].create_revisions if name in self.topics else {}
        return any(
            topic.create_revisions.get(queue) != create_revision
            for queue, create_revision in create_revisions.items()
        )

    def _readers_of(self, topics: set[str]) -> frozenset[str]:
        return frozenset().union(*(self.readers.get(topic, ()) for topic in topics))

    def _apply_nodes(self, update: RouteUpdate) -> None:
        for node in update.nodes:
            if node.kind == BROKER:
                self.brokers[node.name] = node
        for node in update.removed_nodes:
            if node.kind == BROKER:
                self.brokers.pop(node.name, None)

    def _apply_subscriptions(self, update: RouteUpdate) -> None:
        for entry in update.subscriptions:
            self.subscriptions[entry.group, entry.topic] = entry.revision
            self.readers.setdefault(entry.topic, set()).add(entry.group)
        for entry in update.removed_subscriptions:
            self.subscriptions.pop((entry.group, entry.topic), None)
            self.readers.get(entry.topic, set()).discard(entry.group)
