"""`rockoon message`: stored messages by key and by id, over a cluster of two brokers."""

import json
from typing import Any

import pytest

from rockoon.testing.disposable import DisposableCluster


def send_orders(rockoon: Any, topic: str, *orders: dict[str, Any]) -> None:
    lines = "".join(json.dumps(order) + "\n" for order in orders)
    rockoon("produce", topic, "--key-field", "order", "--tag-field", "region", stdin=lines)


@pytest.fixture
def orders(rockoon: Any, topic: str) -> str:
    """Six messages, three of one key, spread over both brokers."""
    for number in range(6):
        send_orders(
            rockoon, topic, {"order": f"order-{number % 2}", "region": "eu", "number": number}
        )
    return topic


def test_messages_are_found_by_their_key_on_all_brokers(rockoon: Any, orders: str) -> None:
    found = rockoon("message", "query", orders, "--key", "order-1", "--json").json
    assert [json.loads(each["body"])["number"] for each in found["messages"]] == [5, 3, 1]
    assert found["whole"] is True
    assert set(found["indexed_until_ms"]) == {"broker-a", "broker-b"}
    assert {each["broker"] for each in found["messages"]} <= {"broker-a", "broker-b"}
    missing = rockoon("message", "query", orders, "--key", "x").out
    assert "No message was found." in missing
    assert "keys=" in missing


def test_a_message_is_shown_by_either_of_its_ids_with_who_has_read_it(
    rockoon: Any, orders: str
) -> None:
    first = rockoon("message", "query", orders, "--key", "order-1", "--json").json["messages"][0]
    shown = rockoon("message", "get", first["message_id"]).out
    assert f"{orders}@{first['broker']}:{first['queue_id']}" in shown
    assert "keys      order-1" in shown
    assert "tags      eu" in shown
    assert '"number": 5' in shown
    assert "read by   no group reads its queue yet" in shown
    by_place = rockoon("message", "get", first["offset_message_id"]).out
    assert by_place == shown
    narrow = rockoon("message", "get", first["message_id"], "--topic", orders).out
    assert narrow == shown

    rockoon("consume", orders, "--group", f"{orders}-readers", "--from", "first")
    read = rockoon("message", "get", first["message_id"]).out
    assert f"read by   {orders}-readers: consumed, committed offset" in read
    send_orders(rockoon, orders, {"order": "later", "region": "eu"})
    later = rockoon("message", "query", orders, "--key", "later").out
    assert f"{orders}-readers: not yet, committed offset" in later
    readers = rockoon("message", "get", first["message_id"], "--json").json["messages"][0]
    assert [each["consumed"] for each in readers["readers"]] == [True]


def test_times_and_numbers_narrow_a_query(rockoon: Any, orders: str) -> None:
    ask = ("message", "query", orders, "--key", "order-0")
    newest = rockoon(*ask, "--max", "2", "--json", status=1)
    assert [json.loads(each["body"])["number"] for each in newest.json["messages"]] == [4, 2]
    assert newest.json["whole"] is False
    assert "may have more: there are more than 2 messages" in newest.err
    stored = newest.json["messages"][1]["store_timestamp_ms"]
    exact = rockoon(*ask, "--from", str(stored), "--to", str(stored), "--json").json
    assert [json.loads(each["body"])["number"] for each in exact["messages"]] == [2]
    assert len(rockoon(*ask, "--from", "1h", "--json").json["messages"]) == 3
    assert rockoon(*ask, "--to", "1h", "--json").json["messages"] == []


def test_a_body_that_is_no_text_is_shown_in_hex(rockoon: Any, topic: str) -> None:
    rockoon("produce", topic, stdin=b"\xff\x00\x01\n")
    message = json.loads(rockoon("consume", topic, "--json").out.splitlines()[0])
    assert "body      3 B, hex ff0001" in rockoon("message", "get", message["message_id"]).out


def test_a_broker_that_is_away_is_named(
    rockoon: Any, cluster: DisposableCluster, orders: str
) -> None:
    cluster.kill("broker-b")
    try:
        ran = rockoon("message", "query", orders, "--key", "order-0", status=1)
        assert "broker-b may have more: it did not answer" in ran.err
        ran = rockoon("message", "get", "7F00000100002A139A5500000000FFFF", status=1)
        assert "No message was found." in ran.out
        assert "broker-b may have more" in ran.err
    finally:
        cluster.start("broker-b")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["query", "absent", "--key", "k"], "topic 'absent' does not exist"),
        (["query", "TAKEN", "--key", ""], "the key is empty"),
        (["query", "TAKEN", "--key", "two keys"], "has a space, which separates keys"),
        (["query", "TAKEN", "--key", "k", "--from", "1h", "--to", "2h"], "or after its end"),
        (["get", "7F00000100002A139A5500000000FFFF"], "no message is stored at 7F0000"),
        (["get", "nonsense"], "no message is stored at nonsense"),
        (["get", ""], "the key is empty"),
    ],
)
def test_what_cannot_be_found_is_one_sentence(
    rockoon: Any, taken: str, arguments: list[str], sentence: str
) -> None:
    words = [taken if each == "TAKEN" else each for each in arguments]
    assert sentence in rockoon.fails("message", *words)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["query", "t"], "use either --key or --id"),
        (["query", "t", "--key", "a", "--id", "b"], "use either --key or --id"),
        (["query", "t", "--key", "a", "--from", "soon"], "'soon' is neither a time"),
        (["query", "t", "--key", "a", "--max", "5000"], "less than or equal to 1024"),
    ],
)
def test_wrong_usage_is_explained(rockoon: Any, arguments: list[str], sentence: str) -> None:
    assert sentence in rockoon.misused("message", *arguments)


def test_a_message_is_shown_by_its_queue_and_offset(rockoon: Any, filled: str) -> None:
    topic, end = filled, 8
    queue = f"{topic}@broker-a:0"
    shown = rockoon("message", "at", queue, "1")
    assert shown.out.startswith(f"{queue}  offset 1\n")
    assert "read by   no group reads its queue yet" in shown.out
    (message,) = rockoon("message", "at", queue, "1", "--json").json["messages"]
    assert (message["queue_id"], message["offset"]) == (0, 1)
    assert rockoon("message", "get", message["offset_message_id"]).out == shown.out
    # From an offset to the end of the queue.
    some = rockoon("message", "at", queue, "1", "--max", "1024", "--json").json["messages"]
    assert [each["offset"] for each in some] == list(range(1, end))
    missing = rockoon.fails("message", "at", queue, str(end))
    assert missing == f"{queue} has no message at offset {end}; it holds 0..{end}"
    for broker, number in (("broker-a", 99), ("broker-z", 0)):
        refused = rockoon.fails("message", "at", f"{topic}@{broker}:{number}", "0")
        assert refused == f"topic '{topic}' has no queue {number} on broker '{broker}'"
    assert "does not exist" in rockoon.fails("message", "at", "nowhere@broker-a:0", "0")
    for wrong in ("orders", "orders@broker-a", "@broker-a:0", "orders@broker-a:x"):
        said = rockoon.misused("message", "at", wrong, "0")
        assert "is not of the form TOPIC@BROKER:QUEUE" in said
