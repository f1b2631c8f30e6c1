"""Topics and queues that this broker serves, and the effect of route changes on their data.

Invariants:
1. Data is dropped only on proof: nameservers report that the topic was deleted after its
   incarnation was created (see rockoon_node.deletions). Routes without the topic, or with another
   incarnation, are no proof: etcd may have been restored, emptied, or replaced. Such routes make
   incarnations unknown, and data of an unknown incarnation is kept.
2. A topic's incarnation only increases, like etcd's revisions, unless etcd is restored.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from rockoon_format.topic_attributes import is_compacted
from rockoon_node.deletions import Deletions

INCARNATION_UNKNOWN = 0
"""Incarnation of a topic that a RocketMQ broker left, or that is in the routes of another etcd."""

PERMISSION_WRITE = 2
PERMISSION_READ = 4
PERMISSIONS_DEFAULT = PERMISSION_READ | PERMISSION_WRITE


@dataclass(frozen=True, slots=True)
class ServedTopic:
    """A topic served by this broker."""

    name: str
    queues: int
    """Number of queues on this broker, numbered from 0; 0 if the topic is only on other brokers."""
    incarnation: int = INCARNATION_UNKNOWN
    """etcd create revision of the topic, which distinguishes it from a deleted topic of the same
    name."""
    permissions: int = PERMISSIONS_DEFAULT
    attributes: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    compacted: bool = field(init=False)
    is_plain: bool = field(init=False)
    """True if the topic accepts every message, with or without a key. Read for each batch."""

    def __post_init__(self) -> None:
        compacted = is_compacted(self.name, self.attributes)
        object.__setattr__(self, "compacted", compacted)
        object.__setattr__(self, "is_plain", self.writable and not compacted)

    @property
    def readable(self) -> bool:
        return self.permissions & PERMISSION_READ != 0

    @property
    def writable(self) -> bool:
        return self.permissions & PERMISSION_WRITE != 0


@dataclass(frozen=True, slots=True)
class RouteChange:
    """The part of a nameserver's route update that concerns this broker."""

    revision: int
    snapshot: bool
    """True if `topics` is complete, False if it contains only changed topics."""
    history: int = 0
    """Identity of the etcd that counts the revisions; 0 if not sent."""
    topics: Sequence[ServedTopic] = ()
    removed: Sequence[str] = ()
    deletions: Deletions = field(default_factory=Deletions)
    went_back: bool = False
    """True if the nameserver has verified that etcd was restored from a backup."""


@dataclass(frozen=True, slots=True)
class TopicTable:
    """The topics of this broker at one route revision."""

    revision: int = 0
    """etcd revision up to which the table includes all changes."""
    history: int = 0
    """Identity of the etcd whose revisions the table uses; 0 while unknown."""
    topics: Mapping[str, ServedTopic] = field(default_factory=lambda: MappingProxyType({}))

    def without(self, names: Sequence[str]) -> "TopicTable":
        gone = set(names)
        return replace(self, topics={n: t for n, t in self.topics.items() if n not in gone})

    @property
    def served(self) -> list[ServedTopic]:
        """Topics with queues on this broker."""
        return [topic for topic in self.topics.values() if topic.queues]

    @property
    def compacted(self) -> list[ServedTopic]:
        """Compacted topics with queues on this broker, by name."""
        found = [topic for topic in self.served if topic.compacted]
        return sorted(found, key=lambda topic: topic.name)


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """Steps from one topic table to the next."""

    table: TopicTable
    drop: Sequence[str]
    """Topics whose stored messages belong to a deleted incarnation and must be dropped."""
    over: Sequence[str]
    """The topics in `drop`, and deleted topics without known queues on this broker."""
    changed: bool
    """True if the served topics differ, so that the table must be written."""
    another_history: bool
    """True if the routes come from another etcd than before, so that incarnations became
    unknown."""


def plan(table: TopicTable, change: RouteChange) -> TopicPlan:
    """Compute the steps that a change of the routes requires.

    The caller stops serving the topics to drop, drops them from the store, writes the new table,
    and only then serves from it. In this order, a crash in between repeats the drop and never
    shows old messages in a new topic.
    """
    went_back = change.went_back or (change.snapshot and change.revision < table.revision)
    another_etcd = change.history != table.history and 0 not in (change.history, table.history)
    another_history = went_back or another_etcd

    def is_over(topic: ServedTopic) -> bool:
        return change.deletions.topic_is_over(topic.name, topic.incarnation, table.revision)

    topics = dict(table.topics)
    if another_history:
        topics = {n: replace(t, incarnation=INCARNATION_UNKNOWN) for n, t in topics.items()}
    drop: list[str] = []
    for new in change.topics:
        old = topics.get(new.name)
        if old is not None and old.incarnation > new.incarnation:
            if old.incarnation > change.revision or not change.deletions.since:
                continue
            # Routes of that revision would contain it.
            another_history = True
        if old is not None and INCARNATION_UNKNOWN != old.incarnation < new.incarnation:
            if is_over(old):
                drop.append(new.name)
            else:
                another_history = True
        # The nameserver may lag, so its answer is not final.
        lagging = went_back and not another_etcd and not change.went_back
        topics[new.name] = replace(new, incarnation=INCARNATION_UNKNOWN) if lagging else new
    listed = {topic.name for topic in change.topics}
    removed = topics.keys() - listed if change.snapshot else set(change.removed) - listed
    for name in sorted(removed):
        old = topics.get(name)
        if old is None:
            continue
        unknown = old.incarnation == INCARNATION_UNKNOWN
        if unknown and change.snapshot:
            continue
        if not unknown and not is_over(old):
            another_history = True
            topics[name] = replace(old, incarnation=INCARNATION_UNKNOWN)
            continue
        # A lagging nameserver repeats deletions from before this data.
        if not unknown:
            drop.append(name)
        del topics[name]
    after = TopicTable(
        revision=change.revision
        if went_back or another_etcd
        else max(table.revision, change.revision),
        history=change.history or table.history,
        topics=topics,
    )
    return TopicPlan(
        table=after,
        drop=[name for name in drop if name in table.topics and table.topics[name].queues],
        over=drop,
        changed=after.served != table.served or after.history != table.history or went_back,
        another_history=another_history,
    )
