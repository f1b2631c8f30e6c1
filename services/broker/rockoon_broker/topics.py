"""Which topics and queues this broker serves, and what a change of the routes means for its data.

Invariants:
1. Data is dropped only on proof: the routes say that the topic was deleted, or show it with a later
   incarnation than the one the data belongs to. An etcd that lost its contents, or another one in
   its place, is no proof: it has another identity, or its revisions are behind those already seen.
   Such routes make the incarnations unknown, and data of an unknown incarnation is kept.
2. A topic's incarnation only grows, because etcd's revisions do.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from rockoon_format.topic_attributes import is_compacted

INCARNATION_UNKNOWN = 0
"""Of a topic that a RocketMQ broker left, or one that was seen in another etcd's routes."""

PERMISSION_WRITE = 2
PERMISSION_READ = 4
PERMISSIONS_DEFAULT = PERMISSION_READ | PERMISSION_WRITE


@dataclass(frozen=True, slots=True)
class ServedTopic:
    """A topic as this broker serves it."""

    name: str
    queues: int
    """Queues on this broker, numbered from 0; 0 for a topic that lives on other brokers."""
    incarnation: int = INCARNATION_UNKNOWN
    """etcd create revision of the topic."""
    permissions: int = PERMISSIONS_DEFAULT
    attributes: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def compacted(self) -> bool:
        return is_compacted(self.name, self.attributes)

    @property
    def readable(self) -> bool:
        return self.permissions & PERMISSION_READ != 0

    @property
    def writable(self) -> bool:
        return self.permissions & PERMISSION_WRITE != 0


@dataclass(frozen=True, slots=True)
class RouteChange:
    """What a nameserver told, reduced to what concerns this broker."""

    revision: int
    snapshot: bool
    """True: `topics` are all there are."""
    history: int = 0
    """Identity of the etcd that counts the revisions; 0 when it was not told."""
    topics: Sequence[ServedTopic] = ()
    removed: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class TopicTable:
    """The topics of one moment."""

    revision: int = 0
    """Everything up to this etcd revision is in it."""
    history: int = 0
    """Identity of that etcd; 0 while unknown."""
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
    """How to get from one table to the next."""

    table: TopicTable
    drop: Sequence[str]
    """Topics whose stored messages belong to an incarnation that is over."""
    changed: bool
    """Whether a served topic is another than before, so that the table has to be written down."""
    another_history: bool
    """The routes do not continue those already seen: incarnations became unknown."""


def plan(table: TopicTable, change: RouteChange) -> TopicPlan:
    """Work out what a change of the routes means.

    The caller stops serving what is to be dropped, drops it from the store, writes the new table
    down, and only then serves from it: in this order a crash in between repeats the drop and never
    shows old messages in a new topic.
    """
    went_back = change.snapshot and change.revision < table.revision
    another_etcd = change.history != table.history and 0 not in (change.history, table.history)
    another_history = went_back or another_etcd
    topics = dict(table.topics)
    if another_history:
        topics = {n: replace(t, incarnation=INCARNATION_UNKNOWN) for n, t in topics.items()}
    drop: list[str] = []
    for new in change.topics:
        old = topics.get(new.name)
        if old is not None and old.incarnation > new.incarnation:
            continue
        if old is not None and INCARNATION_UNKNOWN != old.incarnation < new.incarnation:
            drop.append(new.name)
        # Without the etcd's identity this may be a nameserver that lags: its word is not final.
        lagging = went_back and not another_etcd
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
        # A nameserver that lags tells again of deletions that came before this data.
        if not unknown:
            drop.append(name)
        del topics[name]
    after = TopicTable(
        revision=change.revision if another_history else max(table.revision, change.revision),
        history=change.history or table.history,
        topics=topics,
    )
    return TopicPlan(
        table=after,
        drop=[name for name in drop if name in table.topics and table.topics[name].queues],
        changed=after.served != table.served or after.history != table.history or went_back,
        another_history=another_history,
    )
