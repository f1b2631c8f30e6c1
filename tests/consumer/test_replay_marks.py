"""Marks of replayed dead letters: an offset and ranges above it."""

import random

import pytest

from rockoon.admin.dead_letters import MarksFull, ReplayMarks
from support.seeds import seeds


def test_ranges_join_as_gaps_close_and_what_lies_at_the_low_end_melts_into_it() -> None:
    marks = ReplayMarks(5)
    for offset in (9, 7, 12, 10):
        marks.add(offset)
    assert (marks.low, marks.text()) == (5, "7,9-10,12")
    marks.add(8)
    assert (marks.low, marks.text()) == (5, "7-10,12")
    marks.add(3)
    marks.add(6)
    assert (marks.low, marks.text()) == (5, "6-10,12")
    marks.add(5)
    assert (marks.low, marks.text()) == (11, "12")
    marks.add(11)
    assert (marks.low, marks.text()) == (13, "")


def test_they_are_read_again_and_of_two_texts_both_count() -> None:
    marks = ReplayMarks.parse(6, "7,9-10", "10-12,3-4", "")
    assert (marks.low, marks.text()) == (6, "7,9-12")
    assert [offset in marks for offset in (0, 5, 6, 7, 8, 9, 12, 13)] == [
        *(True, True, False, True, False, True, True, False)
    ]
    assert (marks.count(0, 100), marks.count(4, 11), marks.count(8, 8)) == (11, 5, 0)
    with pytest.raises(ValueError, match="not a range"):
        ReplayMarks.parse(0, "7,x")


def test_too_many_scattered_ones_are_refused_and_not_forgotten() -> None:
    marks = ReplayMarks(0)
    for offset in range(1, 4000, 2):
        marks.add(offset)
    with pytest.raises(MarksFull):
        marks.text()


@pytest.mark.parametrize("seed", seeds(1))
def test_random_marks_are_those_of_a_set(seed: int) -> None:
    chance = random.Random(seed)
    low = chance.randrange(20)
    marks, wanted = ReplayMarks(low), set(range(low))
    for _ in range(300):
        offset = chance.randrange(120)
        marks.add(offset)
        wanted.add(offset)
        assert {each for each in range(130) if each in marks} == wanted
        again = ReplayMarks.parse(marks.low, marks.text())
        assert (again.low, again.text()) == (marks.low, marks.text())
        first = chance.randrange(120)
        assert marks.count(first, 120) == len(wanted & set(range(first, 120)))
