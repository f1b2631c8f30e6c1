"""Waiting pulls: their queues, and their replies when messages arrive."""

import pytest

from rockoon_broker.long_poll import PullProgress, Step, WaitingPulls
from rockoon_broker.store.reading.reader import GetResult, GetStatus


class Sleeper:
    def __init__(self) -> None:
        self.woken = 0

    def wake(self) -> None:
        self.woken += 1


def found(status: GetStatus, next_offset: int = 0, max_offset: int = 0) -> GetResult:
    return GetResult(status, next_offset, 0, max_offset)


def test_an_arrival_wakes_all_of_its_queue_once_and_nobody_else() -> None:
    waiting, one, two, other = WaitingPulls(10), Sleeper(), Sleeper(), Sleeper()
    assert waiting.add(("T", 0), one.wake)
    assert waiting.add(("T", 0), two.wake)
    assert waiting.add(("T", 1), other.wake)
    waiting.arrived(("T", 0))
    waiting.arrived(("T", 0))
    assert (one.woken, two.woken, other.woken) == (1, 1, 0)
    assert len(waiting) == 1


def test_one_that_went_away_is_not_woken_and_leaves_room() -> None:
    waiting, gone, next_one = WaitingPulls(1), Sleeper(), Sleeper()
    assert waiting.add(("T", 0), gone.wake)
    assert not waiting.add(("T", 0), next_one.wake)
    waiting.remove(("T", 0), gone.wake)
    waiting.remove(("T", 0), gone.wake)
    assert waiting.add(("T", 0), next_one.wake)
    waiting.arrived(("T", 0))
    assert (gone.woken, next_one.woken) == (0, 1)


def test_a_deleted_topic_wakes_all_of_its_queues() -> None:
    waiting, one, two, other = WaitingPulls(10), Sleeper(), Sleeper(), Sleeper()
    waiting.add(("T", 0), one.wake)
    waiting.add(("T", 1), two.wake)
    waiting.add(("U", 0), other.wake)
    waiting.wake_topic("T")
    assert (one.woken, two.woken, other.woken) == (1, 1, 0)


def test_a_release_wakes_everybody_and_nobody_waits_afterwards() -> None:
    waiting, one, late = WaitingPulls(10), Sleeper(), Sleeper()
    waiting.add(("T", 0), one.wake)
    waiting.release()
    assert one.woken == 1
    assert not waiting.add(("T", 0), late.wake)
    assert len(waiting) == 0


@pytest.mark.parametrize(
    ("status", "offset", "step"),
    [
        (GetStatus.FOUND, 3, Step.ANSWER),
        (GetStatus.OFFSET_OVERFLOW_ONE, 3, Step.WAIT),
        (GetStatus.NO_MESSAGE_IN_QUEUE, 0, Step.WAIT),
        (GetStatus.NO_MESSAGE_IN_QUEUE, 3, Step.ANSWER),
        (GetStatus.NO_MATCHED_LOGIC_QUEUE, 0, Step.WAIT),
        (GetStatus.NO_MATCHED_LOGIC_QUEUE, 3, Step.ANSWER),
        (GetStatus.OFFSET_OVERFLOW_BADLY, 3, Step.ANSWER),
        (GetStatus.OFFSET_TOO_SMALL, 3, Step.ANSWER),
        (GetStatus.MESSAGE_WAS_REMOVING, 3, Step.ANSWER),
        (GetStatus.OFFSET_FOUND_NULL, 3, Step.ANSWER),
    ],
)
def test_a_pull_waits_only_at_the_end_of_its_queue(
    status: GetStatus, offset: int, step: Step
) -> None:
    assert PullProgress(offset, offset).step(found(status)) is step


def test_a_pull_whose_tags_match_nothing_looks_on_to_the_end_and_says_how_far_it_got() -> None:
    pull = PullProgress(asked_offset=0, offset=0)
    assert pull.step(found(GetStatus.NO_MATCHED_MESSAGE, 100, 150)) is Step.CONTINUE
    assert pull.offset == 100
    assert pull.step(found(GetStatus.NO_MATCHED_MESSAGE, 150, 150)) is Step.WAIT
    at_end = found(GetStatus.OFFSET_OVERFLOW_ONE, 150, 150)
    assert pull.step(at_end) is Step.WAIT
    assert pull.answer(at_end) == (GetStatus.NO_MATCHED_MESSAGE, 150)


def test_a_pull_that_examined_nothing_says_that_it_is_at_the_end() -> None:
    at_end = found(GetStatus.OFFSET_OVERFLOW_ONE, 150, 150)
    assert PullProgress(150, 150).answer(at_end) == (GetStatus.OFFSET_OVERFLOW_ONE, 150)
