"""A broker that replies to pulls immediately and without messages is called less and less often."""

import pytest

from rockoon.consumer.pull import EMPTY_PAUSE_SECONDS, EMPTY_PAUSE_SECONDS_MAX, EmptyReplies

WAITS_MS = 15_000
AT_ONCE = 0.001


def pauses(empty: EmptyReplies, count: int) -> list[float]:
    return [empty.pause_seconds(AT_ONCE, moved=False) for _ in range(count)]


def test_pauses_grow_to_a_second() -> None:
    found = pauses(EmptyReplies(WAITS_MS), 20)
    bounds = [min(EMPTY_PAUSE_SECONDS * 2**number, EMPTY_PAUSE_SECONDS_MAX) for number in range(20)]
    for pause, bound in zip(found, bounds, strict=True):
        assert bound / 2 <= pause <= bound


@pytest.mark.parametrize("ends", ["messages", "waited", "moved"])
def test_an_answer_that_is_worth_it_ends_the_growth(ends: str) -> None:
    empty = EmptyReplies(WAITS_MS)
    pauses(empty, 10)
    if ends == "messages":
        empty.reset()
    elif ends == "waited":
        assert empty.pause_seconds(5.0, moved=False) == 0
    else:
        assert empty.pause_seconds(AT_ONCE, moved=True) == 0
    assert pauses(empty, 1)[0] <= EMPTY_PAUSE_SECONDS


def test_pulls_that_are_not_to_wait_are_repeated_quickly() -> None:
    assert max(pauses(EmptyReplies(0), 20)) <= EMPTY_PAUSE_SECONDS
