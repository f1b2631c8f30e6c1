"""`rockoon topic`: topics are made, shown, grown and deleted."""

import re
import sys
from typing import Any

import pytest


def test_a_topic_from_its_creation_to_its_end(rockoon: Any) -> None:
    assert "topic life has 4 queues: 2 on broker-a, 2 on broker-b" in (
        rockoon("topic", "create", "life", "--queues", "2").out
    )
    assert ["life", "4", "broker-a,", "broker-b", "rw"] in rockoon("topic", "list").words
    shown = rockoon("topic", "describe", "life").words
    assert ["broker-b", "1", "0", "0", "0", "-"] in shown

    grown = rockoon("topic", "expand", "life", "--add", "broker-b=3", "--json").json
    create_revisions = {
        (each["broker"], each["queue_id"]): each["create_revision"] for each in grown["queues"]
    }
    assert len(create_revisions) == 7
    assert create_revisions["broker-b", 4] > create_revisions["broker-b", 1], (
        "new queues are younger"
    )

    rockoon("topic", "delete", "life", "--yes")
    assert not any("life" in words for words in rockoon("topic", "list").words)


def test_placements_permissions_and_attributes_are_kept(rockoon: Any) -> None:
    made = rockoon(
        *("topic", "create", "placed", "--add", "broker-b=1", "--permissions", "r"),
        *("--attribute", "cleanup.policy=COMPACTION", "--json"),
    ).json
    assert [queue["broker"] for queue in made["queues"]] == ["broker-b"]
    described = rockoon("topic", "describe", "placed", "--json").json
    assert described["permissions"] == "r"
    assert described["attributes"] == {"cleanup.policy": "COMPACTION"}
    assert described["queues"][0]["max_offset"] == 0
    assert described["groups"] == []


def test_a_topic_becomes_a_compacted_one_and_an_ordinary_one_again(rockoon: Any) -> None:
    rockoon("topic", "create", "latest", "--add", "broker-a=1")
    set_policy = ("topic", "set", "latest", "--attribute")
    told = rockoon(*set_policy, "cleanup.policy=COMPACTION")
    assert told.out == "topic latest: permissions rw\n  cleanup.policy = COMPACTION\n"
    assert "cleanup.policy is 'NEVER'" in rockoon.fails(*set_policy, "cleanup.policy=NEVER")
    shown = rockoon("topic", "describe", "latest")
    assert ["broker-a", "0", "0", "0", "0", "-", "-", "-"] in shown.words, "nothing is compacted"
    [queue] = rockoon("topic", "describe", "latest", "--json").json["queues"]
    assert (queue["compacted_to_offset"], queue["compacted_records"]) == (None, None)
    assert "has no key" in rockoon("produce", "latest", stdin="no key", status=1).err
    rockoon("produce", "latest", "--key-field", "id", stdin='{"id": "k"}')
    assert "2 of 2 messages" in rockoon("produce", "latest", *("--tombstone", "k") * 2).out
    [newest, _, _] = rockoon("message", "query", "latest", "--key", "k", "--json").json["messages"]
    assert (newest["body"], newest["keys"]) == ("", ["k"])

    again = rockoon(*set_policy, "cleanup.policy=", "--permissions", "r", "--json").json
    assert (again["attributes"], again["permissions"]) == ({}, "r")
    assert "is not compacted" in rockoon.fails("produce", "latest", "--tombstone", "k")
    assert "name a change" in rockoon("topic", "set", "latest", status=2).err


def test_residency_is_shown_when_it_is_asked_for(rockoon: Any) -> None:
    rockoon("topic", "create", "resident", "--add", "broker-a=1", "--add", "broker-b=1")
    rockoon("produce", "resident", stdin="x")
    rows = rockoon("topic", "describe", "resident", "--residency").words
    filled, empty = (next(row for row in rows if row[2:4] == ["0", end]) for end in "10")
    assert filled[-2:] == ["yes", "yes" if sys.platform == "linux" else "-"]
    assert empty[-2:] == ["-", "-"]
    queues = rockoon("topic", "describe", "resident", "--json").json["queues"]
    assert {queue["first_pages_resident"] for queue in queues} == {None}
    assert {queue["first_in_memory_by_distance"] for queue in queues} == {True, None}


def test_lists_are_json_for_programs(rockoon: Any) -> None:
    rockoon("topic", "create", "listed", "--if-absent")
    rockoon("topic", "create", "listed", "--if-absent")
    names = [topic["topic"] for topic in rockoon("topic", "list", "--json").json]
    assert "listed" in names
    assert names == sorted(names)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["create", "TAKEN"], "exists already"),
        (["create", "no spaces"], "'no spaces' is not a topic name"),
        (["create", "x" * 200], "is not a topic name"),
        (["create", "new", "--add", "broker-z=1"], "no live broker is named 'broker-z'"),
        (["describe", "absent"], "topic 'absent' does not exist$"),
        (["describe", ""], "topic '' does not exist$"),
        (["expand", "absent", "--queues", "1"], "topic 'absent' does not exist$"),
        (["delete", "absent", "--yes"], "topic 'absent' does not exist$"),
        (["delete", "", "--yes"], "topic '' does not exist$"),
        (["delete", "TAKEN"], "There is no terminal to ask at: confirm with --yes"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    rockoon: Any, taken: str, arguments: list[str], sentence: str
) -> None:
    words = [taken if each == "TAKEN" else each for each in arguments]
    assert re.search(sentence, rockoon.fails("topic", *words))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["create", "x", "--queues", "0"], "Input should be greater than or equal to 1"),
        (["create", "x", "--permissions", "all"], "'all' is not one of rw, r, w"),
        (["create", "x", "--add", "broker-a"], "'broker-a' is not of the form BROKER=QUEUES"),
        (["create", "x", "--add", "broker-a=many"], "the value must be a number above 0"),
        (["expand", "x"], "set either --queues (per broker) or --add"),
    ],
)
def test_wrong_usage_is_explained(rockoon: Any, arguments: list[str], sentence: str) -> None:
    assert sentence in rockoon.misused("topic", *arguments)
