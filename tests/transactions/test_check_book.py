"""Times of checks and of the end of half messages: tables and random histories, no clock."""

import random
from typing import Any

import pytest

from rockoon_broker.transactions.asking import CHECKERS_MAX, QUEUED_MAX, Checkers
from rockoon_broker.transactions.check_book import CheckBook, CheckRules
from rockoon_broker.transactions.ends import (
    REMEMBERED_MAX,
    SNAPSHOT_MAX,
    WAIT_SECONDS_MAX,
    OpBook,
    Outcomes,
    TransactionEnding,
    TransactionOutcome,
)
from rockoon_broker.transactions.half_messages import OP_BODY_BYTES_MAX, op_offsets, op_record
from rockoon_core.errors import Busy
from support.seeds import seeds

RULES = CheckRules(timeout_seconds=6, interval_seconds=30, checks_max=15, age_seconds_max=3600)


def book_with(**more: Any) -> CheckBook:
    book = CheckBook(RULES, lambda: None)
    values: dict[str, Any] = {
        "age_seconds": 0.0,
        "immunity_seconds": None,
        "checks": 0,
        "now": 100.0,
    }
    book.add(5, 0, "G", **(values | more))
    return book


@pytest.mark.parametrize(
    ("facts", "due_at"),
    [
        ({}, 106.0),
        ({"age_seconds": 4.0}, 102.0),
        ({"age_seconds": 60.0}, 100.0),
        # The wall clock was set back behind the store time.
        ({"age_seconds": -9999.0}, 106.0),
        ({"immunity_seconds": 0}, 100.0),
        ({"immunity_seconds": 50}, 150.0),
        ({"immunity_seconds": 50, "age_seconds": 20.0}, 130.0),
        ({"checks": 1}, 100.0),
    ],
)
def test_the_first_question_comes_when_the_half_message_is_old_enough(
    facts: dict[str, Any], due_at: float
) -> None:
    book = book_with(**facts)
    assert not book.pop_due(due_at - 0.001, 10)
    (half,) = book.pop_due(due_at, 10)
    assert half.position == 5
    assert not book.pop_due(1e9, 10), "taken once"


def test_questions_follow_in_the_interval_until_there_were_enough() -> None:
    book = book_with()
    now = 106.0
    for _ in range(RULES.checks_max):
        (half,) = book.pop_due(now, 10)
        assert not book.must_abandon(half, now)
        book.asked(half, now)
        assert not book.pop_due(now + 29.9, 10)
        now += 30
    (half,) = book.pop_due(now, 10)
    assert book.must_abandon(half, now)


def test_age_ends_it_as_well_the_oldest_first() -> None:
    book = CheckBook(RULES, lambda: None)
    for position, age in ((1, 3599.0), (2, 3000.0), (3, 0.0)):
        book.add(position, 0, "G", age_seconds=age, immunity_seconds=None, checks=0, now=0.0)
    assert not book.over_max_age(0.9, 10)
    assert [half.position for half in book.over_max_age(1.0, 10)] == [1]
    assert [half.position for half in book.over_max_age(700.0, 10)] == [1, 2]
    assert [half.position for half in book.over_max_age(700.0, 1)] == [1]
    assert book.next_due_at == 0.0, "the second is old enough to be asked about"
    book.pop_due(0.5, 10)
    assert book.next_due_at == 1.0


def test_what_nobody_can_be_asked_about_waits_for_a_producer_uncounted() -> None:
    book = book_with()
    (half,) = book.pop_due(106.0, 10)
    book.park(half)
    assert not book.pop_due(1e6, 10)
    book.on_producer("others", 200.0)
    assert not book.pop_due(1e6, 10)
    book.on_producer("G", 200.0)
    assert book.pop_due(200.0, 10) == [half]
    assert half.checks == 0


@pytest.mark.parametrize("seed", seeds(1))
def test_random_histories_lose_no_half_message_and_ask_about_none_that_has_ended(seed: int) -> None:
    chance = random.Random(seed)
    woken: list[bool] = []
    book = CheckBook(RULES, lambda: woken.append(True))
    waiting: dict[int, str] = {}
    now = 0.0
    sleeps_until: float | None = None
    for position in range(3000):
        group = chance.choice("ABC")
        book.add(position, position, group, age_seconds=0, immunity_seconds=None, checks=0, now=now)
        waiting[position] = group
        now += chance.random()
        due = book.pop_due(now, 5)
        is_awake = woken or (sleeps_until is not None and sleeps_until <= now)
        assert is_awake or not due, "nobody would look"
        for half in due:
            assert half.position in waiting
            step = chance.choice(("asked", "parked", "put off", "not asked after all"))
            if step == "parked":
                book.park(half)
            elif step == "put off":
                book.postpone(half, now + 1)
            else:
                book.asked(half, now)
            if step == "not asked after all":
                book.not_asked(half, now)
        for _ in range(chance.randrange(3)):
            ended = chance.choice(list(waiting)) if waiting else -1
            assert (book.remove(ended) is not None) == (waiting.pop(ended, None) is not None)
        if chance.random() < 0.1:
            book.on_producer(chance.choice("ABC"), now)
        sleeps_until = book.next_due_at
        woken.clear()
        assert len(book._due) <= 2 * len(waiting) + 65, "ended ones do not pile up"
    for group in "ABC":
        book.on_producer(group, now)
    assert {half.position for half in book.pop_due(now + 1e6, 10_000)} == set(waiting)
    assert [half.position for half in book] == sorted(waiting)


def test_producers_have_bounded_queues_and_turns() -> None:
    came: list[str] = []
    checkers = Checkers(came.append)
    one, two = checkers.enter("G", "one"), checkers.enter("G", "two")
    assert came == ["G", "G"]
    asked = []
    for position in range(2 * QUEUED_MAX):
        chosen = checkers.choose("G")
        assert chosen is not None
        chosen.ask(position)
        asked.append(chosen)
    assert asked[:4] == [one, two, one, two]
    assert checkers.choose("G") is None, "both have their hands full"
    assert checkers.choose("others") is None
    assert checkers.leave(one) == list(range(0, 2 * QUEUED_MAX, 2))
    assert checkers.leave(one) == []
    assert checkers.has("G")
    assert len(checkers) == 1
    checkers.leave(two)
    assert not checkers.has("G")


def test_there_is_a_bound_on_producers_and_none_comes_to_a_broker_that_stops() -> None:
    checkers = Checkers(lambda _: None)
    for number in range(CHECKERS_MAX):
        checkers.enter(str(number % 100), str(number))
    with pytest.raises(Busy):
        checkers.enter("G", "one more")
    checkers.end_all()
    assert checkers.choose("0") is None
    with pytest.raises(Busy):
        checkers.enter("other", "late")


def test_ends_are_told_in_records_that_are_full_or_have_waited() -> None:
    ops = OpBook()
    ops.add(7, 10.0)
    assert ops.due(10.0 + WAIT_SECONDS_MAX - 0.1) == []
    assert ops.due(10.0 + WAIT_SECONDS_MAX) == [7]
    assert ops.due(10.1, closing=True) == [7]
    for offset in range(10_000, 12_000):
        ops.add(offset, 11.0)
    first = ops.due(11.0)
    body = op_record(first, bytes(8), 0).body
    assert OP_BODY_BYTES_MAX - 10 < len(body) <= OP_BODY_BYTES_MAX
    assert op_offsets(body) == first == [7, *range(10_000, 10_000 + len(first) - 1)]
    ops.written(len(first), 11.0)
    assert len(ops) == 2001 - len(first)


@pytest.mark.parametrize(
    ("body", "offsets"),
    [(b"", []), (b"5", [5]), (b"5,", [5]), (b"5,x,-1,\xff,6,", [5, 6]), (b" 5,7", [7])],
)
def test_op_bodies_of_others_are_read_with_care(body: bytes, offsets: list[int]) -> None:
    assert op_offsets(body) == offsets


def test_the_newest_endings_are_remembered_and_kept() -> None:
    outcomes = Outcomes()
    for half in range(REMEMBERED_MAX + 10):
        outcomes.add(
            half, TransactionOutcome(TransactionEnding.COMMITTED, half + 1, half + 2, half + 3)
        )
    assert len(outcomes) == REMEMBERED_MAX
    assert outcomes.find(9) is None
    assert outcomes.find(10) == TransactionOutcome(TransactionEnding.COMMITTED, 11, 12, 13)
    kept = Outcomes.from_bytes(outcomes.to_bytes())
    assert len(kept) == SNAPSHOT_MAX
    last = REMEMBERED_MAX + 9
    assert kept.find(last) == outcomes.find(last)
    with pytest.raises(ValueError, match="size"):
        Outcomes.from_bytes(b"x")
