"""config/topics.json: the topics that a broker serves if no nameserver replies."""

import json
from pathlib import Path

import pytest

from rockoon_broker.store.errors import StoreLayoutError
from rockoon_broker.topics import topic_file
from rockoon_broker.topics.topic_file import TopicFile
from rockoon_broker.topics.topics import INCARNATION_UNKNOWN, ServedTopic, TopicTable
from rockoon_core.disk import Disk
from rockoon_format.config_json import TopicConfig, topic_text

NOW_MS = 1_700_000_000_000

ROCKETMQ = """{
\t"dataVersion":{
\t\t"counter":2,
\t\t"stateVersion":0,
\t\t"timestamp":1700000000000
\t},
\t"topicConfigTable":{
\t\t"TopicTest":{
\t\t\t"attributes":{},
\t\t\t"order":true,
\t\t\t"perm":6,
\t\t\t"readQueueNums":4,
\t\t\t"topicFilterType":"SINGLE_TAG",
\t\t\t"topicName":"TopicTest",
\t\t\t"topicSysFlag":0,
\t\t\t"writeQueueNums":4
\t\t}
\t}
}"""


def table(*topics: ServedTopic) -> TopicTable:
    return TopicTable(9, 77, {topic.name: topic for topic in topics})


def test_what_was_written_is_read_by_the_next_process(tmp_path: Path) -> None:
    served = table(ServedTopic("A", 4, 5, 4, {"cleanup.policy": "COMPACTION"}))
    TopicFile(tmp_path / "config", Disk()).write(served, NOW_MS)
    assert TopicFile(tmp_path / "config", Disk()).read() == served


def test_no_file_means_no_topics(tmp_path: Path) -> None:
    assert TopicFile(tmp_path, Disk()).read() == TopicTable()


def test_topics_that_a_rocketmq_broker_left_are_served(tmp_path: Path) -> None:
    (tmp_path / "topics.json").write_text(ROCKETMQ)
    read = TopicFile(tmp_path, Disk()).read()
    assert read.topics == {"TopicTest": ServedTopic("TopicTest", 4, INCARNATION_UNKNOWN, 6, {})}
    assert read.revision == 0


def test_attributes_that_only_rocketmq_goes_by_survive_a_topic_that_has_none(
    tmp_path: Path,
) -> None:
    theirs = '{"queue.type":"BatchCQ","message.type":"NORMAL","cleanup.policy":"DELETE"}'
    text = ROCKETMQ.replace('"attributes":{}', f'"attributes":{theirs}')
    (tmp_path / "topics.json").write_text(text)
    file = TopicFile(tmp_path, Disk())
    file.read()
    for revision in (5, 6):
        file.write(table(ServedTopic("TopicTest", 4, revision, 6, {})), NOW_MS)
    entry = json.loads((tmp_path / "topics.json").read_text())["topicConfigTable"]["TopicTest"]
    assert entry["attributes"] == {"queue.type": "BatchCQ", "message.type": "NORMAL"}


def test_a_topic_that_is_made_among_a_thousand_has_its_own_entry_encoded_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = [ServedTopic(f"T{number}", 1, number + 1) for number in range(1000)]
    file = TopicFile(tmp_path, Disk())
    file.write(TopicTable(1000, 77, {topic.name: topic for topic in topics}), NOW_MS)
    encoded: list[str] = []

    def counted(entry: TopicConfig) -> str:
        encoded.append(entry.topic)
        return topic_text(entry)

    monkeypatch.setattr(topic_file, "topic_text", counted)
    topics[7] = ServedTopic("T7", 2, 8)
    topics.append(ServedTopic("new", 1, 1001))
    served = TopicTable(1001, 77, {topic.name: topic for topic in topics})
    file.write(served, NOW_MS)
    assert encoded == ["T7", "new"]
    assert TopicFile(tmp_path, Disk()).read() == served


@pytest.mark.parametrize(("revision", "history"), [(10, 77), (9, 78), (3, 78)])
def test_how_far_the_routes_were_followed_is_told_also_where_no_topic_has_changed(
    revision: int, history: int, tmp_path: Path
) -> None:
    topics = {name: ServedTopic(name, 1, 5) for name in ("A", "B", "C")}
    file = TopicFile(tmp_path, Disk())
    file.write(TopicTable(9, 77, topics), NOW_MS)
    served = TopicTable(revision, history, topics)
    file.write(served, NOW_MS)
    assert TopicFile(tmp_path, Disk()).read() == served


def test_the_newest_revision_is_told_when_the_topic_that_told_it_is_gone(tmp_path: Path) -> None:
    topics = {name: ServedTopic(name, 1, 5) for name in ("A", "B")}
    file = TopicFile(tmp_path, Disk())
    file.write(TopicTable(9, 77, {"A": topics["A"]}), NOW_MS)
    file.write(TopicTable(12, 77, topics), NOW_MS)
    file.write(TopicTable(13, 77, {"A": topics["A"]}), NOW_MS)
    assert TopicFile(tmp_path, Disk()).read() == TopicTable(13, 77, {"A": topics["A"]})


@pytest.mark.parametrize("left", ["missing", "empty"])
def test_a_file_that_rocketmq_was_replacing_when_it_was_killed_is_read_where_it_moved_it(
    left: str, tmp_path: Path
) -> None:
    (tmp_path / "topics.json.bak").write_text(ROCKETMQ)
    if left == "empty":
        (tmp_path / "topics.json").touch()
    assert set(TopicFile(tmp_path, Disk()).read().topics) == {"TopicTest"}


def test_what_only_rocketmq_uses_survives_a_write(tmp_path: Path) -> None:
    (tmp_path / "topics.json").write_text(ROCKETMQ)
    file = TopicFile(tmp_path, Disk())
    file.read()
    file.write(table(ServedTopic("TopicTest", 8, 5)), NOW_MS)
    content = json.loads((tmp_path / "topics.json").read_text())
    entry = content["topicConfigTable"]["TopicTest"]
    assert (entry["order"], entry["writeQueueNums"], entry["incarnation"]) == (True, 8, 5)
    assert content["dataVersion"]["counter"] == 3


def test_topics_of_other_brokers_are_not_written(tmp_path: Path) -> None:
    file = TopicFile(tmp_path, Disk())
    file.write(table(ServedTopic("Elsewhere", 0, 5)), NOW_MS)
    assert TopicFile(tmp_path, Disk()).read().topics == {}


def test_a_file_edited_by_hand_as_java_would_still_read_it_is_read(tmp_path: Path) -> None:
    text = "{'topicConfigTable': {'T': {topicName: 'T', 'perm': 6, 'readQueueNums': 2,}}}"
    (tmp_path / "topics.json").write_text(text)
    assert TopicFile(tmp_path, Disk()).read().topics["T"].permissions == 6


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"topicConfigTable":{"A":7}}',
        '{"topicConfigTable":{"A":{"incarnation":"x"}}}',
    ],
)
def test_a_damaged_file_is_refused_rather_than_taken_for_empty(tmp_path: Path, text: str) -> None:
    (tmp_path / "topics.json").write_text(text)
    with pytest.raises(StoreLayoutError, match=r"topics\.json"):
        TopicFile(tmp_path, Disk()).read()


@pytest.mark.parametrize(
    ("name", "fields", "named"),
    [
        ("", "{}", "topic '': the topic is empty"),
        ("../escape", "{}", r"topic '\.\./escape': .* has a character"),
        ("a b", "{}", "topic 'a b': .* has a character"),
        ("x" * 128, "{}", "topic 'x+': the topic has 128 characters, more than 127"),
        ("T", '{"readQueueNums":-1}', "topic 'T': readQueueNums is -1"),
        ("T", '{"writeQueueNums":-4}', "topic 'T': writeQueueNums is -4"),
        ("T", '{"readQueueNums":2147483648}', "topic 'T': readQueueNums is 2147483648"),
    ],
)
def test_an_entry_that_can_be_no_topic_is_named_with_its_file(
    tmp_path: Path, name: str, fields: str, named: str
) -> None:
    text = f'{{"topicConfigTable":{{"Good":{{}},{json.dumps(name)}:{fields}}}}}'
    (tmp_path / "topics.json").write_text(text)
    with pytest.raises(StoreLayoutError, match=rf"topics\.json cannot be read: {named}"):
        TopicFile(tmp_path, Disk()).read()


def test_the_entry_that_rocketmq_names_after_its_host_is_kept_but_not_served(
    tmp_path: Path,
) -> None:
    text = '{"topicConfigTable":{"host.example":{"perm":7,"readQueueNums":1},"Good":{}}}'
    (tmp_path / "topics.json").write_text(text)
    file = TopicFile(tmp_path, Disk())
    assert list(file.read().topics) == ["Good"]
    for _ in range(2):
        file.write(table(ServedTopic("Good", 16, 5)), NOW_MS)
    content = json.loads((tmp_path / "topics.json").read_text())["topicConfigTable"]
    assert (sorted(content), content["host.example"]["perm"]) == (["Good", "host.example"], 7)
