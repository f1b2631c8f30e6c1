"""Routes: updates of a watch and replies to calls, in any order."""

import pytest

from rockoon.errors import InvalidArgument
from rockoon.net.routes import Routes
from rockoon_core.message_queue import MessageQueue
from rockoon_proto.v1 import nameserver_pb2 as pb


def topic(name: str, queues: int = 1, *, revision: int, permissions: int = 0) -> pb.Topic:
    block = pb.QueueBlock(broker="broker-a", queues=queues, create_revision=revision)
    config = pb.TopicConfig(name=name, permissions=permissions)
    return pb.Topic(config=config, incarnation=revision, modified_revision=revision, blocks=[block])


def node(
    name: str, address: str = "a:1", kind: pb.NodeKind = pb.BROKER, started: int = 0
) -> pb.Node:
    return pb.Node(kind=kind, name=name, address=address, started_at_ms=started)


def test_queues_of_several_blocks_and_brokers_are_sorted_and_know_their_create_revision() -> None:
    wire = pb.Topic(
        config=pb.TopicConfig(name="orders"),
        incarnation=5,
        blocks=[
            pb.QueueBlock(broker="broker-b", first_queue_id=0, queues=1, create_revision=5),
            pb.QueueBlock(broker="broker-a", first_queue_id=0, queues=2, create_revision=5),
            pb.QueueBlock(broker="broker-a", first_queue_id=2, queues=1, create_revision=9),
        ],
    )
    routes = Routes()
    assert routes.apply(pb.RouteUpdate(revision=9, snapshot=True, topics=[wire]))
    route = routes.topic("orders")
    assert route is not None
    assert [str(queue) for queue in route.queues] == [
        "orders@broker-a:0",
        "orders@broker-a:1",
        "orders@broker-a:2",
        "orders@broker-b:0",
    ]
    assert route.create_revisions[MessageQueue("orders", "broker-a", 2)] == 9
    assert route.readable
    assert route.writable


def test_an_update_changes_what_it_lists_and_a_sign_of_life_only_the_revision() -> None:
    routes = Routes()
    routes.apply(pb.RouteUpdate(revision=3, snapshot=True, topics=[topic("a", revision=3)]))
    assert routes.apply(pb.RouteUpdate(revision=4, topics=[topic("b", revision=4)]))
    assert not routes.apply(pb.RouteUpdate(revision=7))
    assert routes.revision == 7
    assert sorted(routes.topics) == ["a", "b"]
    assert routes.apply(pb.RouteUpdate(revision=8, removed_topics=["a"]))
    assert routes.topic("a") is None


def test_services_need_the_revision_of_a_topics_last_change_only() -> None:
    routes = Routes()
    expanded = topic("a", revision=3)
    expanded.blocks.add(broker="broker-b", queues=1, create_revision=5)
    routes.apply(pb.RouteUpdate(revision=9, snapshot=True, topics=[expanded]), ["a", "absent"])
    assert routes.topic_revision("a") == 9
    assert routes.needed_revision("a") == 5
    # A service must have reached the revision at which the topic did not exist.
    assert routes.needed_revision("absent") == 9
    assert routes.apply(pb.RouteUpdate(revision=12, topics=[topic("a", revision=12)]))
    assert routes.needed_revision("a") == 12
    # Another etcd has other revisions: the known one means nothing there.
    routes.apply(pb.RouteUpdate(revision=13, etcd_cluster_id=1))
    routes.apply(pb.RouteUpdate(revision=2, etcd_cluster_id=2))
    assert routes.needed_revision("a") == 0


def test_an_answer_is_not_undone_by_older_updates_of_the_watch() -> None:
    routes = Routes()
    routes.apply(pb.RouteUpdate(revision=3, snapshot=True))
    routes.learn(pb.RouteUpdate(revision=9, topics=[topic("a", 8, revision=9)]), ["a"])
    assert not routes.apply(pb.RouteUpdate(revision=5, topics=[topic("a", 4, revision=5)]))
    assert not routes.apply(pb.RouteUpdate(revision=6, removed_topics=["a"]))
    found = routes.topic("a")
    assert found is not None
    assert len(found.queues) == 8
    assert routes.apply(pb.RouteUpdate(revision=10, removed_topics=["a"]))
    assert routes.topic("a") is None


def test_an_absent_topic_is_known_to_be_absent_as_of_a_revision() -> None:
    routes = Routes()
    assert routes.topic_revision("a") == 0
    routes.learn(pb.RouteUpdate(revision=9), ["a"])
    assert routes.topic("a") is None
    assert routes.topic_revision("a") == 9


def test_a_snapshot_forgets_only_the_topics_that_its_watch_follows() -> None:
    routes = Routes()
    routes.apply(pb.RouteUpdate(revision=3, snapshot=True, topics=[topic("a", revision=3)]), ["a"])
    routes.learn(pb.RouteUpdate(revision=4, topics=[topic("b", revision=4)]), ["b"])
    routes.apply(pb.RouteUpdate(revision=5, snapshot=True), ["a"])
    assert sorted(routes.topics) == ["b"]


def test_a_snapshot_of_the_past_replaces_everything() -> None:
    """etcd was restored from a backup: known revisions never happened."""
    routes = Routes()
    routes.apply(pb.RouteUpdate(revision=90, snapshot=True, topics=[topic("a", revision=80)]))
    routes.apply(pb.RouteUpdate(revision=40, snapshot=True, topics=[topic("b", revision=30)]))
    assert routes.revision == 40
    assert sorted(routes.topics) == ["b"]
    routes.apply(pb.RouteUpdate(revision=41, topics=[topic("a", revision=41)]))
    assert sorted(routes.topics) == ["a", "b"]


def test_changes_counted_by_another_etcd_are_not_applied_to_these_routes() -> None:
    routes = Routes()
    held = pb.RouteUpdate(revision=9, snapshot=True, topics=[topic("a", revision=9)])
    held.etcd_cluster_id = 1
    routes.apply(held)
    routes.apply(pb.RouteUpdate(revision=12, removed_topics=["a"], etcd_cluster_id=2))
    assert routes.revision == 0, "a snapshot has to be asked for"
    assert sorted(routes.topics) == ["a"]
    fresh = pb.RouteUpdate(revision=5, snapshot=True, topics=[topic("b", revision=5)])
    fresh.etcd_cluster_id = 2
    routes.apply(fresh)
    assert sorted(routes.topics) == ["b"]


def test_nodes_come_move_and_go() -> None:
    routes = Routes()
    routes.apply(pb.RouteUpdate(revision=1, snapshot=True, nodes=[node("broker-a"), node("x")]))
    assert routes.broker_address("broker-a") == "a:1"
    assert routes.apply(pb.RouteUpdate(revision=2, nodes=[node("broker-a", "a:2")]))
    assert routes.broker_address("broker-a") == "a:2"
    assert routes.apply(pb.RouteUpdate(revision=3, removed_nodes=[node("broker-a")]))
    assert routes.broker_address("broker-a") is None
    assert routes.offset_service() is None


def test_a_leader_of_an_older_epoch_is_not_believed_but_in_a_snapshot_of_the_past() -> None:
    routes = Routes()
    new, old = node("broker-a", "a:2"), node("broker-a", "a:1")
    new.epoch, old.epoch = 7, 6
    routes.apply(pb.RouteUpdate(revision=10, snapshot=True, nodes=[new]))
    assert not routes.apply(pb.RouteUpdate(revision=11, nodes=[old])), "by one that lags behind"
    assert routes.broker_address("broker-a") == "a:2"
    assert routes.apply(pb.RouteUpdate(revision=5, snapshot=True, nodes=[old]))
    assert routes.broker_address("broker-a") == "a:1"


def test_of_two_offset_services_the_one_that_started_last_is_asked() -> None:
    routes = Routes()
    old = node("one", "one:1", pb.OFFSET_SERVICE, started=100)
    new = node("two", "two:1", pb.OFFSET_SERVICE, started=200)
    routes.apply(pb.RouteUpdate(revision=1, snapshot=True, nodes=[new, old]))
    assert routes.offset_service().address == "two:1"


def test_a_queue_reads_what_it_prints() -> None:
    queue = MessageQueue("%RETRY%g", "broker-a", 12)
    assert MessageQueue.parse(str(queue)) == queue
    for text in ("orders", "orders@a", "orders@a:x", "@a:1", "orders@:1"):
        with pytest.raises(InvalidArgument):
            MessageQueue.parse(text)
