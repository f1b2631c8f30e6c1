"""Conditions under which the owner of a store expects a short sync."""

import random

import pytest

from rockoon_broker.store.log.syncer import (
    COUNTED_SECONDS_MAX,
    IN_A_ROW,
    INLINE_DELAY_SECONDS_MAX,
    REDUCTION_SECONDS,
    SHORT_SECONDS_MAX,
    SyncPace,
)

SHORT, LONG = SHORT_SECONDS_MAX, 2 * SHORT_SECONDS_MAX


def short_ones_until_believed(pace: SyncPace) -> int:
    count = 0
    while not pace.is_short:
        pace.record(SHORT, inline=False)
        count += 1
    return count


def test_a_disk_is_believed_after_some_short_syncs_and_not_before() -> None:
    pace = SyncPace()
    assert not pace.is_short
    assert short_ones_until_believed(pace) == IN_A_ROW
    pace.record(SHORT, inline=True)
    assert pace.is_short


def test_a_long_sync_in_the_other_thread_ends_it_and_costs_nobody_more() -> None:
    pace = SyncPace()
    for _ in range(50):
        assert short_ones_until_believed(pace) == IN_A_ROW
        pace.record(LONG, inline=False)
        assert not pace.is_short


def test_a_disk_that_is_long_now_and_then_stays_believed() -> None:
    pace = SyncPace()
    short_ones_until_believed(pace)
    inline = 0
    for number in range(100_000):
        is_inline = pace.is_short
        inline += is_inline
        pace.record(SHORT if number % 100 else LONG, inline=is_inline)
    assert inline > 90_000


@pytest.mark.parametrize("seed", range(4))
def test_however_long_syncs_take_they_hold_the_owner_up_for_little_on_average(seed: int) -> None:
    chance, pace, held_up, count = random.Random(seed), SyncPace(), 0.0, 20_000
    longest = 0.0
    for _ in range(count):
        is_long = chance.random() < 0.05
        seconds = chance.uniform(LONG, 0.02) if is_long else SHORT
        if pace.is_short and is_long:
            held_up += seconds
            longest = max(longest, seconds)
        pace.record(seconds, inline=pace.is_short)
    assert longest > 0
    assert held_up <= count * REDUCTION_SECONDS + INLINE_DELAY_SECONDS_MAX + longest


def test_a_disk_that_was_gone_for_long_is_believed_again_at_last() -> None:
    pace = SyncPace()
    short_ones_until_believed(pace)
    pace.record(60.0, inline=True)
    expected = (COUNTED_SECONDS_MAX - INLINE_DELAY_SECONDS_MAX) / REDUCTION_SECONDS
    assert short_ones_until_believed(pace) == pytest.approx(expected, abs=2)
