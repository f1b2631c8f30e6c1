"""Due times of delayed messages, and their separation from other messages."""

import math
from datetime import UTC, datetime, timedelta, timezone

import pytest

from rockoon.errors import InvalidArgument, InvalidDelay
from rockoon.producer.accumulator import Accumulator, BatchQueue
from rockoon.producer.outgoing import delay_section
from rockoon_core.message_queue import MessageQueue

AT_EIGHT = b"TIMER_DELIVER_MS\x011800000000000\x02"


@pytest.mark.parametrize(
    ("level", "seconds", "at", "section"),
    [
        (3, None, None, b"DELAY\x013\x02"),
        (None, 2.5, None, b"TIMER_DELAY_MS\x012500\x02"),
        (None, 0, None, b"TIMER_DELAY_MS\x010\x02"),
        (None, 0.0001, None, b"TIMER_DELAY_MS\x011\x02"),
        (None, None, 1_800_000_000, AT_EIGHT),
        (None, None, 1_800_000_000.25, b"TIMER_DELIVER_MS\x011800000000250\x02"),
        (None, None, 12, b"TIMER_DELIVER_MS\x0112000\x02"),
        (
            None,
            None,
            datetime(2027, 1, 15, 8, tzinfo=UTC),
            AT_EIGHT,
        ),
        (
            None,
            None,
            datetime(2027, 1, 15, 10, tzinfo=timezone(timedelta(hours=2))),
            AT_EIGHT,
        ),
    ],
)
def test_each_way_to_say_when_becomes_the_property_that_brokers_know(
    level: int | None, seconds: float | None, at: datetime | float | None, section: bytes
) -> None:
    assert delay_section(level, seconds, at) == section


@pytest.mark.parametrize(
    ("level", "seconds", "at"),
    [
        (0, None, None),
        (-1, None, None),
        (True, None, None),
        ("3", None, None),
        (None, -0.1, None),
        (None, math.nan, None),
        (None, math.inf, None),
        (None, "10", None),
        (None, None, "tomorrow"),
        (None, None, datetime(2027, 1, 15)),
        (None, None, 1_800_000_000_000),
        (None, None, math.nan),
        (None, None, -1),
    ],
)
def test_what_is_no_delay_is_refused(level: object, seconds: object, at: object) -> None:
    with pytest.raises(InvalidDelay):
        delay_section(level, seconds, at)  # type: ignore[arg-type]


def test_two_ways_at_once_are_refused() -> None:
    for given in ((1, 2, None), (1, None, 3), (None, 2, 3), (None, None, None)):
        with pytest.raises(InvalidArgument):
            delay_section(*given)


def test_delayed_messages_have_lanes_of_their_own_that_come_and_go_like_others() -> None:
    accumulator = Accumulator(set[BatchQueue]().add)
    queue = MessageQueue("T", "broker-a", 0)
    ordinary = [accumulator.open_round_robin("T"), accumulator.open_by_queue(queue)]
    delayed = [
        accumulator.delayed_batch_queue("T", None),
        accumulator.delayed_batch_queue("T", queue),
    ]
    assert [batch_queue.delayed for batch_queue in (*ordinary, *delayed)] == [
        False,
        False,
        True,
        True,
    ]
    assert accumulator.delayed_batch_queue("T", queue) is delayed[1]
    assert set(accumulator.batch_queues_of("T")) == {*ordinary, *delayed}
    for batch_queue in delayed:
        accumulator.drop(batch_queue)
    assert set(accumulator.batch_queues()) == set(ordinary)
    accumulator.drop_idle(())
    assert accumulator.batch_queues() == []
