"""Tests of the judge of histories: it accepts possible histories, and refuses each kind of
impossible one, and every small history that a search through all orders refuses."""

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import permutations

import pytest

from support import log_history
from support.log_history import Append, Read, judge
from support.seeds import seeds

QUEUE = "orders@broker-a:0"


class History:
    """Two streams of one queue: two messages are acknowledged, one failed but is stored, one failed
    and is not stored; then all messages are read twice."""

    def __init__(self) -> None:
        self.appends = [
            Append("a0", 0, 10, QUEUE, 0, "a", 0, is_numbered=True),
            Append("b0", 5, 30, QUEUE, 1, "b", 0),
            Append("a1", 20, None, stream="a", number=1, is_numbered=True),
            Append("b1", 40, None, stream="b", number=1),
        ]
        self.reads = [
            Read(QUEUE, 20, 25, 0, ["a0"], 1),
            Read(QUEUE, 50, 60, 0, ["a0", "b0", "a1"], 3),
            Read(QUEUE, 70, 80, 1, ["b0", "a1"], 3),
            Read(QUEUE, 90, 95, 0, ["a0"], 3),
        ]

    def judged(self) -> list[str]:
        return judge(self.appends, self.reads)


def test_what_failed_may_be_there_or_not_and_reads_may_bring_a_part() -> None:
    assert History().judged() == []
    assert judge([], []) == []


def another_message(history: History) -> None:
    history.reads[2] = replace(history.reads[2], messages=["a0", "a1"])


def acknowledged_elsewhere(history: History) -> None:
    history.appends[1] = replace(history.appends[1], offset=2)


def came_and_went(history: History) -> None:
    history.reads[2] = replace(history.reads[2], messages=["b0"], end=2)


def acknowledged_and_missed(history: History) -> None:
    history.reads[:3] = [Read(QUEUE, 50, 60, 0, ["a0"], 1)]
    history.reads[1] = replace(history.reads[1], messages=["a0", "b0"], end=2)


def acknowledged_and_gone(history: History) -> None:
    history.reads = [Read(QUEUE, 50, 60, 0, ["a0"], 1)]


def invented(history: History) -> None:
    history.reads.append(Read(QUEUE, 100, 101, 3, ["c0"], 4))


def led_past_a_place(history: History) -> None:
    history.reads.append(Read(QUEUE, 100, 101, 2, [None], 3))


def beyond_the_end(history: History) -> None:
    history.reads[3] = replace(history.reads[3], end=0)


def number_twice(history: History) -> None:
    history.reads.append(Read(QUEUE, 100, 101, 3, ["a1"], 4))


def stream_out_of_order(history: History) -> None:
    history.appends.append(Append("b2", 41, None, stream="b", number=2))
    history.reads.append(Read(QUEUE, 100, 101, 3, ["b2", "b1"], 5))


def read_before_it_was_sent(history: History) -> None:
    history.appends[2] = replace(history.appends[2], began_ns=65)


def before_one_that_was_there(history: History) -> None:
    """The send of the message at 0 began after the message at 1 was acknowledged."""
    history.appends[0] = replace(history.appends[0], began_ns=31, ended_ns=35)
    del history.reads[0]


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        (another_message, log_history.CHANGED),
        (acknowledged_elsewhere, log_history.CHANGED),
        (came_and_went, log_history.TAKEN_BACK),
        (acknowledged_and_missed, log_history.NOT_SEEN),
        (acknowledged_and_gone, log_history.UNREAD),
        (acknowledged_and_gone, log_history.NOT_SEEN),
        (invented, log_history.INVENTED),
        (led_past_a_place, log_history.GAP),
        (beyond_the_end, log_history.BEYOND),
        (number_twice, log_history.TWICE),
        (stream_out_of_order, log_history.DISORDER),
        (read_before_it_was_sent, log_history.TOO_EARLY),
        (before_one_that_was_there, log_history.OUT_OF_TURN),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_what_cannot_have_happened_is_refused(wrong: Callable[[History], None], kind: str) -> None:
    history = History()
    wrong(history)
    found = history.judged()
    assert any(each.startswith(kind) for each in found), found


def test_an_ordinary_producer_may_store_a_copy_after_its_answer_too() -> None:
    history = History()
    history.reads.append(Read(QUEUE, 100, 101, 3, ["b0"], 4))
    assert history.judged() == []


def test_who_may_not_know_of_others_misses_what_they_saw_and_nothing_that_it_saw() -> None:
    history = History()
    late = Read(QUEUE, 100, 101, 0, ["a0", "b0"], 2, reader="one", may_be_old=True)
    history.reads.append(late)
    assert history.judged() == []
    history.reads.append(replace(late, began_ns=80, ended_ns=90, messages=["a0"], end=3))
    found = history.judged()
    assert [each.partition(" (")[0] for each in found] == [log_history.TAKEN_BACK], found
    history.reads[-1] = replace(late, messages=["a0", "b0", "a1", "b1"], end=4)
    history.appends[3] = replace(history.appends[3], began_ns=102)
    assert any(each.startswith(log_history.TOO_EARLY) for each in history.judged())


def test_a_number_in_two_queues_is_there_twice() -> None:
    history = History()
    history.reads.append(Read("orders@broker-b:0", 100, 101, 0, ["a0"], 1))
    assert [each.partition(" (")[0] for each in history.judged()] == [log_history.TWICE]


@pytest.mark.parametrize("seed", seeds(5))
def test_what_a_log_answers_to_many_at_once_is_accepted(seed: int) -> None:
    chance = random.Random(seed)
    appends, reads = answered_by_a_log(chance, calls=600)
    assert judge(appends, reads) == []
    # The judge does not accept everything: some of these reads cannot be moved by one step.
    one_less = [
        replace(each, messages=each.messages[: max(0, each.end - 1 - each.first)], end=each.end - 1)
        for each in reads
        if each.end > 0
    ]
    assert judge(appends, one_less)


def answered_by_a_log(chance: random.Random, calls: int) -> tuple[list[Append], list[Read]]:
    """Return calls that each take effect at one moment, and their replies at that moment."""
    log: list[str] = []
    appends, reads = [], []
    for number in range(calls):
        moment = 100 * number
        began_ns = moment - chance.randrange(2000)
        ended_ns = moment + chance.randrange(2000)
        if chance.random() < 0.5:
            first = chance.randrange(len(log) + 1)
            count = chance.randrange(len(log) - first + 1)
            seen = log[first : first + count]
            reads.append(Read(QUEUE, began_ns, ended_ns, first, seen, len(log)))
            continue
        message, fate = f"m{number}", chance.random()
        if fate < 0.8:
            appends.append(Append(message, began_ns, ended_ns, QUEUE, len(log)))
        else:
            appends.append(Append(message, began_ns))
        if fate < 0.9:
            log.append(message)
    after_all = 100 * calls + 2000
    reads.append(Read(QUEUE, after_all, after_all + 1, 0, log, len(log)))
    return appends, reads


@pytest.mark.parametrize("seed", seeds(3))
def test_a_search_through_all_orders_says_the_same(seed: int) -> None:
    chance = random.Random(seed)
    said = []
    for _ in range(150):
        appends, reads = anything(chance)
        accepted = not judge(appends, reads)
        assert accepted == any_order_explains(appends, reads), (appends, reads)
        said.append(accepted)
    assert 0.1 < sum(said) / len(said) < 0.9, "all are of one kind"


def anything(chance: random.Random) -> tuple[list[Append], list[Read]]:
    """Return three appends, and reads with possible or impossible messages; the last read returns
    all messages."""
    order = chance.sample(["a", "b", "c"], 3)
    stored = order[: chance.choice((2, 3, 3))]
    appends = []
    for message in order:
        began_ns = chance.randrange(20)
        if message in stored and chance.random() < 0.8:
            offset, ended_ns = stored.index(message), began_ns + chance.randrange(1, 30)
            appends.append(Append(message, began_ns, ended_ns, QUEUE, offset))
        else:
            appends.append(Append(message, began_ns))
    reads = []
    for _ in range(2):
        began_ns, end = chance.randrange(40), chance.randrange(len(stored) + 1)
        ended_ns = began_ns + chance.randrange(1, 20)
        reads.append(Read(QUEUE, began_ns, ended_ns, 0, stored[:end], end))
    reads.append(Read(QUEUE, 100, 101, 0, stored, len(stored)))
    return appends, reads


def any_order_explains(appends: list[Append], reads: list[Read]) -> bool:
    """Apply the definition: return whether some order of all calls keeps their times, and a log
    that executes them one after another returns their replies."""
    there = set(reads[-1].messages)
    calls = [each for each in appends if each.message in there] + reads
    if any(each.ended_ns is not None and each.message not in there for each in appends):
        return False
    return any(explains(order) for order in permutations(calls))


def explains(order: tuple[Append | Read, ...]) -> bool:
    log: list[object] = []
    for at, call in enumerate(order):
        if any(
            later.ended_ns is not None and later.ended_ns < call.began_ns
            for later in order[at + 1 :]
        ):
            return False
        if isinstance(call, Append):
            if call.ended_ns is not None and call.offset != len(log):
                return False
            log.append(call.message)
        elif (list(call.messages), call.end) != (log, len(log)):
            return False
    return True
