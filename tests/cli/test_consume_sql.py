"""`rockoon consume --sql`."""

import time
from typing import Any

import pytest


def test_only_the_messages_that_the_expression_selects_are_printed(
    rockoon: Any, topic: str
) -> None:
    # Duration of a command here.
    began = time.monotonic()
    lines = '{"id": "a1", "kind": "odd"}\n{"id": "a2", "kind": "even"}\n'
    rockoon("produce", topic, "--key-field", "id", "--tag-field", "kind", stdin=lines)
    selected = rockoon("consume", topic, "--sql", "TAGS = 'even' OR KEYS IS NULL").out
    assert selected == '{"id": "a2", "kind": "even"}\n'
    usual_seconds = time.monotonic() - began
    # The end is also noticed if the last messages do not match, and by a group.
    began = time.monotonic()
    assert rockoon("consume", topic, "--sql", "price > 9").out == ""
    in_group = ("--group", f"of-{topic}", "--from", "first")
    assert rockoon("consume", topic, "--sql", "TAGS = 'odd'", *in_group).out == (
        '{"id": "a1", "kind": "odd"}\n'
    )
    held_seconds = time.monotonic() - began - usual_seconds
    assert held_seconds < 12.0, "shorter than a broker holds a pull"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--sql", "price >> 9"], "    price >> 9\n           ^\n"),
        (["--sql", "TRUE", "--tags", "odd"], "cannot be combined with --tags"),
        (["--sql", "a = '\udced\udca0\udcbd'"], "lone surrogate U+DCED"),
    ],
)
def test_a_mistake_is_shown_before_anything_is_read(
    rockoon: Any, arguments: list[str], said: str
) -> None:
    ran = rockoon("consume", "orders", *arguments, status=2)
    assert said in ran.err
    assert ran.out == ""
