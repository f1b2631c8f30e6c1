"""Due entries, compared with a plain list of all entries, under clocks that jump."""

import random

import numpy as np
import pytest

from rockoon_broker.delays.timetable import NEAR_MS, NEVER_MS, Timetable
from rockoon_broker.pending.pending_queue import PendingQueue
from rockoon_format.consume_queue import encode_entries
from support.seeds import seeds

NOW_MS = 1_700_000_000_000
LONGEST_MS = 1_000_000


def test_what_bears_no_time_is_due_at_once() -> None:
    queue = PendingQueue()
    table = Timetable(queue, LONGEST_MS)
    table.add_entries(0, encode_entries([0, 100], [99, 99], [-5, 2**31]), NOW_MS, 0)
    assert table.due(NOW_MS, 0, 9).positions.tolist() == [0, 100]


def test_no_more_than_wanted_come_the_most_overdue_first() -> None:
    queue = PendingQueue()
    table = Timetable(queue, LONGEST_MS)
    times = [NOW_MS + 5, NOW_MS + 1, NOW_MS + 3]
    table.add_entries(0, encode_entries([0, 100, 200], [99] * 3, times), NOW_MS, 0)
    assert table.due(NOW_MS + 9, 9, 2).positions.tolist() == [100, 200]
    queue.complete([100])
    assert table.due(NOW_MS + 9, 9, 2).positions.tolist() == [0]
    assert table.due(NOW_MS + 9, 9, 2).positions.tolist() == [200, 0], "they were not settled"


def test_of_very_many_that_are_due_each_comes_though_few_are_asked_for_at_a_time() -> None:
    queue = PendingQueue()
    table = Timetable(queue, LONGEST_MS)
    positions = np.arange(10_000) * 100
    table.add_entries(0, encode_entries(positions, [99] * 10_000, positions + NOW_MS), NOW_MS, 0)
    came: list[int] = []
    while len(due := table.due(NOW_MS + LONGEST_MS, LONGEST_MS, 64)):
        came += due.positions.tolist()
        queue.complete(due.positions[:-1])
        if len(came) % 7 == 0:
            queue.complete([due.positions[-1]])
        assert len(came) < 20_000
    assert set(came) == set(positions.tolist())


def test_what_is_taken_in_for_later_is_found_when_it_is_near() -> None:
    queue = PendingQueue()
    table = Timetable(queue, LONGEST_MS)
    assert len(table.due(NOW_MS, 0, 9)) == 0
    far = NOW_MS + 10 * NEAR_MS
    table.add_entries(0, encode_entries([0], [99], [far]), NOW_MS, 0)
    for step in range(0, 10 * NEAR_MS, 777):
        assert len(table.due(NOW_MS + step, step, 9)) == 0
    assert table.due(far, 10 * NEAR_MS, 9).positions.tolist() == [0]


@pytest.mark.parametrize("seed", seeds(1))
def test_it_finds_what_a_plain_list_would_under_any_clock(seed: int) -> None:
    choose = random.Random(seed)
    queue = PendingQueue()
    table = Timetable(queue, LONGEST_MS)
    wall_ms, monotonic_ms, position = NOW_MS, 0, 0
    waiting: dict[int, tuple[int, int]] = {}
    for turn in range(2000):
        quiet_ms, known = table.next_due_ms(wall_ms, monotonic_ms), position
        step = choose.choice((1, 50, 50, 50, 5_000, 60_000))
        wall_ms, monotonic_ms = wall_ms + step, monotonic_ms + step
        if choose.random() < 0.06:
            quiet_ms = 0
            wall_ms += choose.randrange(-200_000, 200_000) // choose.choice((1, 20))
        if choose.random() < 0.4:
            count = choose.randrange(1, 5)
            times = [wall_ms + choose.randrange(-50_000, 400_000) for _ in range(count)]
            positions = [position + 100 * index for index in range(count)]
            position += 100 * count
            entries = encode_entries(positions, [99] * count, times)
            table.add_entries(queue.next_offset, entries, wall_ms, monotonic_ms)
            for at, time in zip(positions, times, strict=True):
                waiting[at] = (time, monotonic_ms + time - wall_ms)
        due = sorted(
            at
            for at, (time, deadline) in waiting.items()
            if time <= wall_ms or deadline <= monotonic_ms
        )
        found = table.due(wall_ms, monotonic_ms, 10**6).positions
        assert np.sort(found).tolist() == due, turn
        assert step >= quiet_ms or not any(at < known for at in due), "it would be slept through"
        taken = choose.sample(due, choose.randrange(len(due) + 1))
        queue.complete(taken)
        for at in taken:
            del waiting[at]
        if choose.random() < 0.01:
            # A restart loses the monotonic clock; the remaining entries wait again.
            queue = PendingQueue.from_bytes(queue.to_bytes())
            table = Timetable(queue, LONGEST_MS)
            table.resume(wall_ms, monotonic_ms)
            waiting = {
                at: (time, monotonic_ms + time - wall_ms) for at, (time, _) in waiting.items()
            }


def test_it_says_when_something_is_due_by_either_clock() -> None:
    queue = PendingQueue()
    table = Timetable(queue, LONGEST_MS)
    assert table.next_due_ms(NOW_MS, 0) == NEVER_MS
    times = [NOW_MS + 3000, NOW_MS + NEAR_MS + 5000]
    table.add_entries(0, encode_entries([0, 100], [99] * 2, times), NOW_MS, 0)
    assert len(table.due(NOW_MS, 0, 9)) == 0
    assert table.next_due_ms(NOW_MS + 1000, 1000) == 2000
    assert table.next_due_ms(NOW_MS - 9000, 1000) == 2000, "the clock was set back"
    assert table.next_due_ms(NOW_MS + 2500, 1000) == 500, "the clock was set forward"
    queue.complete(table.due(NOW_MS + 3000, 3000, 9).positions)
    assert table.next_due_ms(NOW_MS + 3000, 3000) <= NEAR_MS


def test_what_came_while_the_clock_was_ahead_for_a_moment_is_not_late() -> None:
    queue = PendingQueue()
    table = Timetable(queue, LONGEST_MS)
    table.add_entries(0, encode_entries([0], [99], [NOW_MS + LONGEST_MS]), NOW_MS, 0)
    assert len(table.due(NOW_MS, 0, 9)) == 0
    ahead = NOW_MS + 8000
    table.add_entries(1, encode_entries([100], [99], [ahead + 5000]), ahead, 0)
    assert table.due(NOW_MS + 5000, 5000, 9).positions.tolist() == [100]
