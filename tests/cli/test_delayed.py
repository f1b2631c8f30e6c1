"""`rockoon delayed` and `rockoon produce --delay`: messages that wait, in a table and in JSON."""

from typing import Any


def test_delayed_lines_wait_are_listed_and_can_be_cancelled(
    rockoon: Any, cluster: Any, topic: str
) -> None:
    assert rockoon("delayed", "list").out == "There are no delayed messages.\n"
    rockoon("produce", topic, "--delay", "1h30m", stdin="later\n")
    rockoon("produce", topic, "--delay", "level:18", stdin="level\n")
    rockoon("produce", topic, "--at", "2001-01-01T00:00", stdin="at once\n")
    said = rockoon("delayed", "list", "--json").json
    assert said["pending"] == 2
    assert [(each["level"], each["topic"]) for each in said["messages"]] == [
        (None, topic),
        (18, topic),
    ]
    first, second = (each["offset_id"] for each in said["messages"])
    rows = rockoon("delayed", "list", "--max", "1").words
    assert rows[-2][-1] == first
    assert rows[-1] == ["2", "are", "pending", "in", "total."]
    assert rockoon("delayed", "cancel", first).out == f"{first} will not be delivered.\n"
    assert rockoon("delayed", "cancel", second, "--json").json == {"cancelled": second}
    assert "was delivered or cancelled before" in rockoon.fails("delayed", "cancel", first)
    assert "no message is stored" in rockoon.fails("delayed", "cancel", "0" * 32)
    consumed = rockoon("consume", topic, "--from", "first", "--max-messages", "1")
    assert "at once" in consumed.out


def test_a_delay_that_is_none_is_misuse(rockoon: Any, taken: str) -> None:
    for given in (("--delay", "soon"), ("--delay", "level:0"), ("--at", "soon")):
        rockoon.misused("produce", taken, *given)
    assert "either" in rockoon.misused(
        "produce", taken, "--delay", "1s", "--at", "2031-01-01T00:00"
    )
