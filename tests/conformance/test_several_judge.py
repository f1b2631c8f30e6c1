"""The judge of runs with several gateways reports each broken promise, and no other."""

from dataclasses import replace

import pytest

from conformance.several.judge import (
    ATTEMPT_COUNTED,
    DEAD_LETTER,
    HANDLED_AGAIN,
    NOT_ACKNOWLEDGED,
    NOT_HANDLED,
    Delivery,
    Group,
    summary,
    violations,
)

ONCE = Delivery("m1", "id1", 1, "a", 10.0, 11.0)
GOOD = Group("g", {"m1": 9.0}, {"m1": 1}, [ONCE], {}, [], 0)
AGAIN = replace(ONCE, attempt=2, client="b", began=50.0, handled=51.0)


def test_a_message_that_is_handled_once_breaks_nothing() -> None:
    assert list(violations(GOOD)) == []


def test_a_message_may_come_again_when_its_client_was_killed() -> None:
    held = replace(ONCE, handled=None)
    assert list(violations(replace(GOOD, deliveries=[held, AGAIN], killed={"a": 20.0}))) == []


def test_messages_that_a_killed_client_had_only_fetched_may_come_as_a_second_attempt() -> None:
    assert list(violations(replace(GOOD, deliveries=[AGAIN], killed={"a": 20.0}))) == []


def test_a_message_that_is_stored_twice_may_come_twice() -> None:
    twice = [ONCE, replace(ONCE, message_id="id2")]
    assert list(violations(replace(GOOD, deliveries=twice, copies={"m1": 2}))) == []


@pytest.mark.parametrize(
    ("group", "kind"),
    [
        (replace(GOOD, deliveries=[]), NOT_HANDLED),
        (replace(GOOD, deliveries=[replace(ONCE, handled=None)]), NOT_HANDLED),
        (replace(GOOD, deliveries=[ONCE, replace(ONCE, client="b")]), HANDLED_AGAIN),
        # Its client was killed long after the acknowledgement.
        (replace(GOOD, deliveries=[ONCE, AGAIN], killed={"a": 40.0}), HANDLED_AGAIN),
        (replace(GOOD, deliveries=[replace(ONCE, attempt=2)]), ATTEMPT_COUNTED),
        # The kill was before the message was sent, or after it came.
        (replace(GOOD, deliveries=[AGAIN], killed={"a": 5.0}), ATTEMPT_COUNTED),
        (replace(GOOD, deliveries=[AGAIN], killed={"a": 60.0}), ATTEMPT_COUNTED),
        (replace(GOOD, dead_letters=["m1"]), DEAD_LETTER),
        (replace(GOOD, lag=3), NOT_ACKNOWLEDGED),
    ],
)
def test_a_broken_promise_is_reported(group: Group, kind: str) -> None:
    (found,) = violations(group)
    assert found.startswith("g: ")
    assert summary([found]) == {kind: 1}
