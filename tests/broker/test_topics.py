"""Effects of changed routes on the topics that a broker serves, and on their data."""

from collections.abc import Mapping

from rockoon_broker.topics.topics import (
    INCARNATION_UNKNOWN,
    RouteChange,
    ServedTopic,
    TopicPlan,
    TopicTable,
    plan,
)
from rockoon_node.deletions import Deletions

ETCD, OTHER_ETCD = 77, 78


def topic(name: str, incarnation: int, queues: int = 4, permissions: int = 6) -> ServedTopic:
    return ServedTopic(name, queues, incarnation, permissions)


def table(revision: int, *topics: ServedTopic) -> TopicTable:
    return TopicTable(revision, ETCD, {each.name: each for each in topics})


def snapshot(
    revision: int,
    *topics: ServedTopic,
    etcd: int = ETCD,
    deleted: Mapping[str, int] | None = None,
    since: int = 1,
    went_back: bool = False,
) -> RouteChange:
    """`deleted` None: as a nameserver of a former version, which records no deletions."""
    noted = Deletions() if deleted is None else Deletions(deleted, {}, since)
    return RouteChange(revision, True, etcd, topics, (), noted, went_back)


def update(revision: int, *topics: ServedTopic, removed: tuple[str, ...] = ()) -> RouteChange:
    return RouteChange(revision, False, ETCD, topics, removed)


def shown(planned: TopicPlan) -> tuple[dict[str, int], list[str]]:
    incarnations = {name: each.incarnation for name, each in planned.table.topics.items()}
    return incarnations, list(planned.drop)


def test_a_new_topic_is_served_and_written_down() -> None:
    planned = plan(table(5), update(6, topic("A", 6)))
    assert shown(planned) == ({"A": 6}, [])
    assert planned.changed
    assert planned.table.revision == 6


def test_a_sign_of_life_moves_the_revision_and_nothing_else() -> None:
    planned = plan(table(5, topic("A", 5)), update(9))
    assert planned.table.revision == 9
    assert not planned.changed


def test_a_topic_of_other_brokers_is_known_but_not_written_down() -> None:
    planned = plan(table(5), update(6, topic("A", 6, queues=0)))
    assert "A" in planned.table.topics
    assert planned.table.served == []
    assert not planned.changed


def test_a_deleted_topic_is_dropped() -> None:
    planned = plan(table(6, topic("A", 5), topic("B", 6)), update(7, removed=("A",)))
    assert shown(planned) == ({"B": 6}, ["A"])


def test_a_deleted_topic_of_other_brokers_needs_no_dropping() -> None:
    planned = plan(table(6, topic("A", 5, queues=0)), update(7, removed=("A",)))
    assert shown(planned) == ({}, [])


def test_a_topic_deleted_while_we_were_away_is_missing_from_the_snapshot_and_dropped() -> None:
    planned = plan(table(6, topic("A", 5), topic("B", 6)), snapshot(9, topic("B", 6)))
    assert shown(planned) == ({"B": 6}, ["A"])


def test_a_re_created_topic_is_another_one_in_an_update_as_in_a_snapshot() -> None:
    before = table(6, topic("A", 5))
    assert shown(plan(before, update(8, topic("A", 8)))) == ({"A": 8}, ["A"])
    assert shown(plan(before, snapshot(8, topic("A", 8)))) == ({"A": 8}, ["A"])


def test_more_queues_and_other_permissions_drop_nothing() -> None:
    planned = plan(table(6, topic("A", 5)), update(8, topic("A", 5, queues=8, permissions=4)))
    assert shown(planned) == ({"A": 5}, [])
    assert planned.table.topics["A"].queues == 8
    assert planned.changed


def test_topics_that_rocketmq_left_are_kept_until_the_cluster_knows_them() -> None:
    before = TopicTable(0, 0, {"A": topic("A", INCARNATION_UNKNOWN)})
    planned = plan(before, snapshot(9, topic("B", 6)))
    assert shown(planned) == ({"A": INCARNATION_UNKNOWN, "B": 6}, [])

    planned = plan(planned.table, update(10, topic("A", 10)))
    assert shown(planned) == ({"A": 10, "B": 6}, [])

    planned = plan(planned.table, update(11, removed=("A",)))
    assert shown(planned) == ({"B": 6}, ["A"])


def test_an_etcd_that_lost_its_data_drops_no_messages() -> None:
    before = table(100, topic("A", 50), topic("B", 60))
    planned = plan(before, snapshot(3))
    assert planned.another_history
    assert shown(planned) == ({"A": INCARNATION_UNKNOWN, "B": INCARNATION_UNKNOWN}, [])
    assert planned.table.revision == 3

    # Its revisions exceed those seen of the other etcd, and still prove nothing.
    planned = plan(planned.table, snapshot(200, topic("A", 150)))
    assert shown(planned) == ({"A": 150, "B": INCARNATION_UNKNOWN}, [])


def test_another_etcd_with_larger_revisions_drops_no_messages() -> None:
    before = table(8, topic("A", 5), topic("B", 6))
    planned = plan(before, snapshot(20, topic("A", 15), etcd=OTHER_ETCD))
    assert planned.another_history
    assert shown(planned) == ({"A": 15, "B": INCARNATION_UNKNOWN}, [])
    assert planned.table.history == OTHER_ETCD


def test_a_nameserver_that_lags_cannot_make_a_topic_older_and_then_new_again() -> None:
    before = table(100, topic("A", 90))
    lagging = plan(before, snapshot(50, topic("A", 40)))
    assert lagging.drop == []
    planned = plan(lagging.table, snapshot(100, topic("A", 90)))
    assert shown(planned) == ({"A": 90}, [])


def test_an_update_from_the_past_changes_nothing() -> None:
    planned = plan(table(100, topic("A", 90)), update(100, topic("A", 40)))
    assert shown(planned) == ({"A": 90}, [])


def test_a_nameserver_that_lags_and_catches_up_costs_no_messages() -> None:
    """It reports a deletion again that was complete before the messages were stored."""
    before = table(100, topic("A", 97))
    planned = plan(before, snapshot(94, topic("A", 50)))
    assert planned.drop == []
    planned = plan(planned.table, update(95, removed=("A",)))
    assert shown(planned) == ({}, [])
    planned = plan(planned.table, update(97, topic("A", 97)))
    assert shown(planned) == ({"A": 97}, [])


def test_what_a_restored_etcd_lacks_or_made_anew_keeps_its_messages() -> None:
    before = table(100, topic("A", 90), topic("B", 80), topic("C", 5))
    # A is lost, B was created again, C was in the backup.
    for restored in (
        snapshot(150, topic("B", 140), topic("C", 5), deleted={}),
        snapshot(103, topic("B", 75), topic("C", 5), deleted={"A": 60}),
        snapshot(70, topic("B", 65), topic("C", 5), deleted={"A": 60}, went_back=True),
    ):
        planned = plan(before, restored)
        create_revisions = {each.name: each.incarnation for each in restored.topics}
        assert shown(planned) == ({"A": INCARNATION_UNKNOWN, **create_revisions}, [])
        assert planned.another_history
        assert planned.changed
        # A, created again later, counts as the same topic; after a deletion it does not.
        again = plan(planned.table, snapshot(160, topic("A", 155), deleted={"B": 159, "C": 158}))
        assert shown(again) == ({"A": 155}, ["B", "C"])


def test_a_topic_that_was_deleted_while_we_were_away_is_dropped_on_the_note_of_it() -> None:
    before = table(100, topic("A", 90), topic("B", 80))
    planned = plan(before, snapshot(150, topic("B", 140), deleted={"A": 120, "B": 130}))
    assert shown(planned) == ({"B": 140}, ["B", "A"])
    # Deletions that may not reach back far enough do not prove that the topic was lost.
    planned = plan(before, snapshot(150, topic("B", 140), deleted={}, since=101))
    assert shown(planned) == ({"B": 140}, ["B", "A"])
