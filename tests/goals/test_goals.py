"""Goals: the table's verdicts about values, and the kept parts of its page."""

from pathlib import Path

import pytest

from bench.goals import FACTS, GOALS, PAGE, SYNCED, Measured, measure_machine, table
from bench.tables import Goal, between, write
from bench.usage import Circumstances

RATE = Goal("sends", 60_000, "messages/s", is_floor=True, origin="Kafka's")
TIME = Goal("p50", 0.25, "ms")


def test_a_floor_holds_what_is_no_less_and_a_bound_what_is_no_more():
    assert RATE.holds(60_000)
    assert not RATE.holds(59_999)
    assert TIME.holds(0.25)
    assert not TIME.holds(0.251)


def test_a_part_that_failed_leaves_its_other_lines_unmeasured():
    lines = table(
        [RATE, TIME], [Measured({"p50": 0.31234}, Circumstances(0.5, 0.25), "Fatal: disk")]
    )
    assert lines.splitlines()[2:] == [
        "| sends | ≥ 60,000 messages/s (Kafka's) | not measured | | |",
        "| p50 | ≤ 0.25 ms | 0.312 ms | **no** | 0.5, 0.2 |",
    ]


def test_each_value_finds_its_own_goal():
    names = [goal.measure for goals in GOALS.values() for goal in goals]
    assert len(set(names)) == len(names)


def test_only_what_stands_between_the_markers_is_replaced(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- begin goals -->\nold\n<!-- end goals -->\nbehind\n")
    write(page, "new\nlines", "goals")
    assert page.read_text() == (
        "before\n<!-- begin goals -->\nnew\nlines\n<!-- end goals -->\nbehind\n"
    )


def test_a_page_without_markers_is_refused(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text("text")
    with pytest.raises(ValueError, match="no markers"):
        write(page, "new", "goals")
    assert page.read_text() == "text"


def test_the_documentation_has_a_place_for_the_table():
    assert between(PAGE, "goals")


def test_what_the_machine_takes_by_itself_is_measured_and_nothing_is_left(tmp_path: Path):
    found = dict(measure_machine(tmp_path))
    assert tuple(found) == FACTS
    assert min(found.values()) >= 0
    assert found[SYNCED] > 0
    assert not list(tmp_path.iterdir())
