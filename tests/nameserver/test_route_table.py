"""The table equals etcd's content, and so does the state of a reader who applies its updates."""

import random

import pytest

from rockoon_nameserver.etcd_data import KeyEvent, KeyValue, WatchBatch
from rockoon_nameserver.keyspace import (
    BlockKey,
    DeletionKey,
    GroupKey,
    Keyspace,
    NodeKey,
    RouteKey,
    SubscriptionKey,
    TopicKey,
    block_value,
    group_value,
    node_value,
    topic_value,
)
from rockoon_nameserver.route_table import DELETIONS_MAX, Interest, RouteTable
from rockoon_proto.v1.nameserver_pb2 import BROKER, GroupConfig, Node, TopicConfig
from support.nameserver import RouteView
from support.seeds import seeds

KEYSPACE = Keyspace("test")
ALL = Interest(groups=True)
VALUES: dict[type, bytes] = {
    NodeKey: node_value(Node(address="h:1", store_id="s")),
    TopicKey: topic_value(TopicConfig(permissions=6)),
    BlockKey: block_value(4),
    GroupKey: group_value(GroupConfig()),
    SubscriptionKey: b"{}",
    DeletionKey: b"{}",
}


class FakeEtcd:
    """Keys with revisions, as etcd stores them."""

    def __init__(self) -> None:
        self.revision = 1
        self.items: dict[str, KeyValue] = {}

    def put(self, *keys: RouteKey) -> WatchBatch:
        self.revision += 1
        events = []
        for each in keys:
            key, value = KEYSPACE.key(each), VALUES[type(each)]
            born = self.items[key].create_revision if key in self.items else self.revision
            self.items[key] = KeyValue(key, value, born, self.revision, 0)
            events.append(KeyEvent(key, value, born, self.revision))
        return WatchBatch(self.revision, events)

    def delete(self, *keys: RouteKey) -> WatchBatch:
        self.revision += 1
        gone = [KEYSPACE.key(key) for key in keys if self.items.pop(KEYSPACE.key(key), None)]
        events = [KeyEvent(key, None, 0, self.revision) for key in gone]
        return WatchBatch(self.revision, events)


@pytest.fixture
def etcd() -> FakeEtcd:
    return FakeEtcd()


def loaded(etcd: FakeEtcd, **bounds: int) -> RouteTable:
    table = RouteTable(KEYSPACE, **bounds)
    assert table.load(etcd.revision, list(etcd.items.values())) == []
    return table


def view_of(table: RouteTable) -> RouteView:
    view = RouteView()
    view.apply(table.snapshot(ALL))
    return view


def test_a_topic_appears_whole_with_its_queues_in_order(etcd: FakeEtcd) -> None:
    table = loaded(etcd)
    born = etcd.put(BlockKey("t", "b", 0), TopicKey("t"), BlockKey("t", "a", 0))
    table.apply(born)
    table.apply(etcd.put(BlockKey("t", "a", 4), TopicKey("t")))
    [topic] = table.snapshot(ALL).topics
    assert topic.incarnation == 2
    assert topic.modified_revision == 3
    assert [(b.broker, b.first_queue_id, b.queues, b.create_revision) for b in topic.blocks] == [
        ("a", 0, 4, 2),
        ("a", 4, 4, 3),
        ("b", 0, 4, 2),
    ]


def test_a_topic_created_again_since_is_listed_only_as_a_topic(etcd: FakeEtcd) -> None:
    table = loaded(etcd)
    table.apply(etcd.put(TopicKey("t"), BlockKey("t", "a", 0)))
    before = table.revision
    table.apply(etcd.delete(TopicKey("t"), BlockKey("t", "a", 0)))
    table.apply(etcd.put(TopicKey("t"), BlockKey("t", "b", 0)))
    update = table.update_after(before, ALL)
    assert not update.snapshot
    assert list(update.removed_topics) == []
    [topic] = update.topics
    assert topic.incarnation == etcd.revision
    assert [block.broker for block in topic.blocks] == ["b"]


def test_a_topic_and_a_group_of_one_name_are_two_things(etcd: FakeEtcd) -> None:
    table = loaded(etcd)
    before = table.revision
    table.apply(etcd.put(TopicKey("x"), GroupKey("x")))
    update = table.update_after(before, ALL)
    assert [topic.config.name for topic in update.topics] == ["x"]
    assert [group.config.name for group in update.groups] == ["x"]


def test_a_reader_older_than_the_log_gets_a_snapshot_and_one_inside_it_does_not(
    etcd: FakeEtcd,
) -> None:
    table = loaded(etcd, log_revisions_max=3)
    for number in range(5):
        table.apply(etcd.put(GroupKey(f"g{number}")))
    # Revisions 2 to 6 changed keys; the log has 4, 5 and 6.
    assert table.oldest_known == 3
    assert table.update_after(2, ALL).snapshot
    assert [group.config.name for group in table.update_after(3, ALL).groups] == ["g2", "g3", "g4"]
    assert table.update_after(0, ALL).snapshot
    assert not table.update_after(6, ALL).groups


def test_a_reload_tells_followers_what_is_gone(etcd: FakeEtcd) -> None:
    table = loaded(etcd)
    table.apply(etcd.put(TopicKey("old"), TopicKey("same"), NodeKey(BROKER, "n")))
    view = view_of(table)
    etcd.delete(TopicKey("old"))
    etcd.delete(NodeKey(BROKER, "n"))
    etcd.put(TopicKey("new"))
    table.load(etcd.revision, list(etcd.items.values()))
    update = table.update_after(view.revision, ALL)
    assert not update.snapshot
    assert list(update.removed_topics) == ["old"]
    assert [topic.config.name for topic in update.topics] == ["new"]
    view.apply(update)
    assert view.contents() == view_of(table).contents()


def test_a_reload_tells_what_a_restored_etcd_holds_under_the_same_revision(
    etcd: FakeEtcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was restored, the topic was created again, and changes of other keys exceeded the known
    revision."""
    restored = FakeEtcd()
    table = loaded(etcd)
    table.apply(etcd.put(TopicKey("t"), BlockKey("t", "n", 0)))
    view = view_of(table)
    monkeypatch.setitem(VALUES, BlockKey, block_value(8))
    restored.put(TopicKey("t"), BlockKey("t", "n", 0))
    table.load(restored.revision + 10, list(restored.items.values()))
    view.apply(table.update_after(view.revision, ALL))
    assert [block.queues for block in table.snapshot(ALL).topics[0].blocks] == [8]
    assert view.contents() == view_of(table).contents()


def test_another_history_makes_every_earlier_revision_worthless(etcd: FakeEtcd) -> None:
    table = loaded(etcd)
    for _ in range(10):
        table.apply(etcd.put(TopicKey("t")))
    history, restored = table.history, FakeEtcd()
    restored.put(TopicKey("other"))
    table.load(restored.revision, list(restored.items.values()), new_history=True)
    assert table.history != history
    assert table.revision == restored.revision
    assert [topic.config.name for topic in table.snapshot(ALL).topics] == ["other"]
    assert table.update_after(1, ALL).snapshot


def test_events_that_the_load_has_brought_are_not_applied_again(etcd: FakeEtcd) -> None:
    early = etcd.put(TopicKey("t"))
    etcd.delete(TopicKey("t"))
    table = loaded(etcd)
    table.apply(early)
    assert table.revision == etcd.revision
    assert not table.snapshot(ALL).topics


def test_a_reader_hears_only_of_its_topics_and_always_of_nodes(etcd: FakeEtcd) -> None:
    table = loaded(etcd)
    table.apply(
        etcd.put(
            TopicKey("mine"),
            TopicKey("other"),
            GroupKey("g"),
            SubscriptionKey("mine", "g"),
            SubscriptionKey("other", "g"),
            NodeKey(BROKER, "n"),
        ),
    )
    for update in (
        table.snapshot(Interest(frozenset({"mine", "absent"}))),
        table.update_after(1, Interest(frozenset({"mine", "absent"}))),
    ):
        assert [topic.config.name for topic in update.topics] == ["mine"]
        assert len(update.nodes) == 1
        assert not update.groups
        assert not update.subscriptions
    followed = table.snapshot(Interest(frozenset({"mine"}), groups=True))
    assert [each.topic for each in followed.subscriptions] == ["mine"]
    assert len(followed.groups) == 1


def test_what_cannot_be_read_is_left_out_and_named(etcd: FakeEtcd) -> None:
    table = loaded(etcd)
    broken = [
        ("/rockoon/test/topics/t", b"not json"),
        ("/rockoon/test/queues/t/a/0", b'{"queues": 0}'),
        ("/rockoon/test/nodes/gateway/g", b"{}"),
        ("/rockoon/test/later/thing", b"{}"),
    ]
    complaints = table.apply(WatchBatch(2, [KeyEvent(key, value, 2, 2) for key, value in broken]))
    assert len(complaints) == len(broken)
    for (key, _), complaint in zip(broken, complaints, strict=True):
        assert key in complaint
    assert table.revision == 2
    assert not table.snapshot(ALL).topics
    assert table.key_count == len(broken)


def test_a_value_written_by_a_later_version_is_read_without_what_is_new(etcd: FakeEtcd) -> None:
    table = loaded(etcd)
    value = b'{"permissions": 4, "colour": "green"}'
    assert table.apply(WatchBatch(2, [KeyEvent("/rockoon/test/topics/t", value, 2, 2)])) == []
    [topic] = table.snapshot(ALL).topics
    assert topic.config.permissions == 4


@pytest.mark.parametrize("seed", seeds(20))
def test_updates_applied_to_any_earlier_view_give_the_present_one(seed: int) -> None:
    chance = random.Random(seed)
    etcd = FakeEtcd()
    table = loaded(etcd, log_revisions_max=chance.choice([1, 5, 50]))
    views = [view_of(table)]
    pool: list[RouteKey] = [
        *(NodeKey(BROKER, name) for name in "ab"),
        *(TopicKey(name) for name in "st"),
        *(BlockKey(topic, broker, first) for topic in "st" for broker in "ab" for first in (0, 4)),
        *(GroupKey(name) for name in "gs"),
        *(SubscriptionKey(topic, group) for topic in "st" for group in "gs"),
    ]
    behind: list[KeyEvent] = []
    for _ in range(120):
        keys = chance.sample(pool, chance.randint(1, 4))
        happened = etcd.put(*keys) if chance.random() < 0.6 else etcd.delete(*keys)
        behind += happened.events
        if chance.random() < 0.5:
            if chance.random() < 0.1:
                table.load(etcd.revision, list(etcd.items.values()))
            else:
                table.apply(WatchBatch(etcd.revision, behind))
            behind = []
            views.append(view_of(table))
        now = view_of(table)
        if not behind:
            assert table.key_count == len(etcd.items)
            held = [KEYSPACE.parse(key) for key in etcd.items]
            live = {key.name for key in held if isinstance(key, NodeKey)}
            owners = {key.broker for key in held if isinstance(key, BlockKey)}
            assert table.away_brokers() == sorted(owners - live)
            for group in "gs":
                told = [each.topic for each in table.subscriptions_of(group)]
                assert told == sorted(
                    key.topic
                    for key in held
                    if isinstance(key, SubscriptionKey) and key.group == group
                )
        # Readers stay at a random revision and return at random.
        reader = chance.choice(views)
        reader.apply(table.update_after(reader.revision, ALL))
        assert reader.contents() == now.contents()


def test_the_oldest_of_too_many_deletions_are_forgotten_next() -> None:
    etcd, table = FakeEtcd(), RouteTable(KEYSPACE)
    etcd.put(DeletionKey())
    etcd.put(TopicKey("t"))
    table.load(etcd.revision, list(etcd.items.values()))
    since = table.deletions_since
    assert since == 2
    for number in range(DELETIONS_MAX - 1):
        table.apply(etcd.put(DeletionKey(topic=f"t{number}")))
    assert table.oldest_deletions(2) == [DeletionKey(), DeletionKey(topic="t0")]
    assert table.deletions_since == since
    table.apply(etcd.put(DeletionKey(topic="t0")))
    assert table.oldest_deletions(2) == [DeletionKey(), DeletionKey(topic="t1")]
    # As in a nameserver that has just started; it uses those of its cluster.
    started = RouteTable(KEYSPACE)
    started.load(etcd.revision, sorted(etcd.items.values()))
    assert started.oldest_deletions(2) == table.oldest_deletions(2)
    told = {each.topic: each.revision for each in started.snapshot(ALL).deletions}
    assert told["t0"] == etcd.revision
    assert len(told) == DELETIONS_MAX - 1
