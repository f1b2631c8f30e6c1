"""When the owner of a store believes that its next sync is short."""

from rockoon_broker.store.log.sync_pace import (
    IN_A_ROW,
    IN_A_ROW_MAX,
    SHORT_SECONDS_MAX,
    SyncPace,
)

SHORT, LONG = SHORT_SECONDS_MAX, 2 * SHORT_SECONDS_MAX


def short_ones_until_believed(pace: SyncPace) -> int:
    count = 0
    while not pace.is_short:
        pace.note(SHORT, inline=False)
        count += 1
    return count


def test_a_disk_is_believed_after_some_short_syncs_and_not_before() -> None:
    pace = SyncPace()
    assert not pace.is_short
    assert short_ones_until_believed(pace) == IN_A_ROW
    pace.note(SHORT, inline=True)
    assert pace.is_short


def test_a_long_sync_in_the_other_thread_ends_it_and_costs_nobody_more() -> None:
    pace = SyncPace()
    for _ in range(5):
        assert short_ones_until_believed(pace) == IN_A_ROW
        pace.note(LONG, inline=False)
        assert not pace.is_short


def test_each_time_that_the_owner_was_held_up_the_disk_has_to_be_quick_twice_as_often() -> None:
    pace = SyncPace()
    wanted = []
    for _ in range(12):
        wanted.append(short_ones_until_believed(pace))
        pace.note(LONG, inline=True)
    doubling = [min(IN_A_ROW * 2**times, IN_A_ROW_MAX) for times in range(12)]
    # Once it has been quick so often in a row, all is forgotten.
    first_most = doubling.index(IN_A_ROW_MAX)
    assert wanted[: first_most + 1] == doubling[: first_most + 1]
    assert wanted[first_most + 1] == 2 * IN_A_ROW
