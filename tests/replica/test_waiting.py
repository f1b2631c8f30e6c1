"""Calls that wait for a leader's log: one round runs at a time, and an end completes all up to
it."""

import asyncio

import pytest

from rockoon_core.errors import NotLeader
from rockoon_replica.replica import CommitWaits


async def test_who_comes_while_a_round_is_out_shares_the_next_one() -> None:
    asked: list[int] = []
    waiting = CommitWaits(lambda: asked.append(len(asked) + 1))
    first = waiting.round()
    assert asked == [1]
    waiting.round_started(1)
    # Too late for that round: its replies may be older than these questions.
    later = [waiting.round() for _ in range(100)]
    assert asked == [1]
    waiting.agreed(1)
    assert first.done()
    assert not any(each.done() for each in later)
    assert asked == [1, 2]
    waiting.round_started(2)
    waiting.agreed(2)
    assert all(each.done() for each in later)
    # No call waits, so no question is sent.
    assert asked == [1, 2]


async def test_an_answer_to_a_round_of_before_is_none() -> None:
    waiting = CommitWaits(lambda: None)
    asked = waiting.round()
    waiting.round_started(7)
    waiting.agreed(6)
    assert not asked.done()
    waiting.agreed(7)
    assert asked.done()


async def test_an_end_answers_those_before_it_and_the_end_of_a_life_all() -> None:
    waiting = CommitWaits(lambda: None)
    ends = {end: waiting.committed(end) for end in (30, 10, 20)}
    asked = waiting.round()
    waiting.reached(20)
    assert {end for end, each in ends.items() if each.done()} == {10, 20}
    # Cancelled calls are skipped.
    cancelled = waiting.round()
    cancelled.cancel()
    waiting.refuse(NotLeader(replica="a", log="t"))
    for each in (ends[30], asked):
        with pytest.raises(NotLeader):
            await asyncio.wait_for(each, 1)
