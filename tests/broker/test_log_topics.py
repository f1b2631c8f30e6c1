"""Topics in a log with copies, and their use by the next leader."""

from rockoon_broker.topics.served_topics import (
    as_log_topics,
    change_of,
    served_before_routes,
    table_in_log,
)
from rockoon_broker.topics.topics import RouteChange, ServedTopic, TopicTable, plan
from rockoon_format.log_marks import LogTopics, TopicChange
from rockoon_node.deletions import Deletions

ETCD, OTHER_ETCD = 77, 78


def topic(name: str, incarnation: int, queues: int = 4) -> ServedTopic:
    return ServedTopic(name, queues, incarnation)


def written(revision: int, *topics: ServedTopic) -> TopicTable:
    return TopicTable(revision, ETCD, {each.name: each for each in topics})


def routes(
    revision: int, *topics: ServedTopic, deleted: dict[str, int] | None = None, etcd: int = ETCD
) -> RouteChange:
    deletions = Deletions(deleted or {}, {}, 1)
    return RouteChange(revision, True, etcd, topics, (), deletions)


def said(known: LogTopics, own: TopicTable, change: RouteChange) -> TopicChange | None:
    """Return the topics of a leader that has seen no routes yet."""
    return change_of(known, plan(table_in_log(own, known), change))


def test_a_new_topic_is_said_once() -> None:
    known = LogTopics(5, ETCD, {})
    change = said(known, written(5), routes(6, topic("A", 6), topic("B", 3, queues=0)))
    assert change == TopicChange(6, ETCD, {"A": 6})
    assert said(known.after(change), written(6), routes(6, topic("A", 6))) is None


def test_a_topic_that_was_deleted_begins_anew_whether_or_not_it_was_created_again() -> None:
    known = LogTopics(5, ETCD, {"A": 3, "B": 4})
    change = said(known, written(1), routes(9, topic("A", 9), deleted={"A": 8, "B": 7}))
    assert change == TopicChange(9, ETCD, {"A": 9, "B": None}, ("A", "B"))


def test_the_log_is_believed_and_not_what_this_copy_wrote_when_it_led_last() -> None:
    known = LogTopics(9, ETCD, {"A": 9})
    own = written(5, topic("A", 3), topic("B", 4))
    now = routes(9, topic("A", 9), deleted={"A": 8, "B": 7})
    assert said(known, own, now) is None
    assert served_before_routes(own, known).topics == {}
    assert table_in_log(own, known).topics == {"A": topic("A", 9)}
    # A copy that never led knows no queues.
    assert table_in_log(TopicTable(), known).topics == {"A": topic("A", 9, queues=0)}


def test_a_deletion_that_no_leader_heard_of_is_said_by_the_next() -> None:
    known = LogTopics(5, ETCD, {"A": 3})
    change = said(known, TopicTable(), routes(9, topic("A", 9), deleted={"A": 8}))
    assert change == TopicChange(9, ETCD, {"A": 9}, ("A",))


def test_what_is_missing_without_a_note_stays_and_its_incarnation_is_unknown() -> None:
    known = LogTopics(5, ETCD, {"A": 3})
    change = said(known, TopicTable(), routes(9))
    assert change == TopicChange(9, ETCD, {"A": 0})
    assert said(known.after(change), TopicTable(), routes(9)) is None


def test_another_etcd_s_deletions_prove_nothing() -> None:
    known = LogTopics(5, ETCD, {"A": 3})
    change = said(known, written(5), routes(90, topic("A", 9), deleted={"A": 8}, etcd=OTHER_ETCD))
    assert change == TopicChange(90, OTHER_ETCD, {"A": 9})


def test_a_topic_whose_queues_are_elsewhere_now_stays_known() -> None:
    """The topic is deleted later, so its messages here must be deleted."""
    known = LogTopics(5, ETCD, {"A": 3})
    assert said(known, written(5, topic("A", 3)), routes(9, topic("A", 3, queues=0))) is None


def test_what_was_written_down_of_one_copy_is_what_its_log_holds() -> None:
    own = written(5, topic("A", 3), topic("B", 4, queues=0), topic("C", 0))
    assert as_log_topics(own) == LogTopics(5, ETCD, {"A": 3, "C": 0})
    assert served_before_routes(own, as_log_topics(own)).topics.keys() == {"A", "C"}
