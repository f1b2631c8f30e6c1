"""Defaults are the numbers that users of RocketMQ know; invalid ones are refused."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from rockoon.allocation import AVERAGE
from rockoon.consumer.consume_result import SUSPEND_SECONDS, Order
from rockoon.consumer.process_queue import FlowLimits, Limit, ProcessQueue
from rockoon.consumer.pull import PullLimits
from rockoon.consumer.push_consumer import PushConsumer, Timing
from rockoon.consumer.retry import RetryPolicy
from rockoon.errors import InvalidArgument
from rockoon.offsets.start import ConsumeFrom
from rockoon_format.delay_levels import DELAY_LEVELS, DELAY_LEVELS_MS


def usual(name: str) -> Any:
    return inspect.signature(PushConsumer).parameters[name].default


def test_a_push_consumer_behaves_as_rocketmqs_where_nothing_is_said() -> None:
    assert usual("mode") == "clustering"
    assert Timing().consume_timeout_seconds == 15 * 60
    assert Timing().pull_expired_seconds == 120
    assert Timing().rebalance_seconds == 20
    assert Timing().commit_seconds == 5
    assert usual("batch_max") == 1
    assert usual("allocation") is AVERAGE
    assert Order().suspend_seconds == SUSPEND_SECONDS == 1
    # The group's policy, and the end of the queue if it has none.
    assert usual("consume_from") is ConsumeFrom.GROUP


def test_a_queue_holds_a_thousand_messages_a_hundred_mebibytes_or_a_span_of_two_thousand() -> None:
    assert FlowLimits() == FlowLimits(messages_max=1000, bytes_max=100 * 2**20, span_max=2000)

    def blocked_with(offsets: range | list[int], size_bytes: int) -> Limit | None:
        queue: ProcessQueue[str] = ProcessQueue(0)
        queue.put("batch", offsets, next_offset=offsets[-1] + 1, size_bytes=size_bytes)
        return queue.blocked_by()

    assert blocked_with(range(999), 1) is None
    assert blocked_with(range(1000), 1) is Limit.COUNT
    assert blocked_with([0], 100 * 2**20 - 1) is None
    assert blocked_with([0], 100 * 2**20) is Limit.BYTES
    assert blocked_with([0, 1999], 1) is None
    assert blocked_with([0, 2000], 1) is Limit.SPAN


def test_there_are_eighteen_delay_levels_from_a_second_to_two_hours() -> None:
    assert DELAY_LEVELS == "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    assert len(DELAY_LEVELS_MS) == 18
    assert (DELAY_LEVELS_MS[2], DELAY_LEVELS_MS[-1]) == (10_000, 7_200_000)


@pytest.mark.parametrize(
    ("make", "option", "value"),
    [
        (PullLimits, "messages_max", 0),
        (PullLimits, "bytes_max", -1),
        (PullLimits, "bytes_max", (16 << 20) + 1),
        (PullLimits, "wait_ms", -1),
        (PullLimits, "wait_ms", 30_001),
        (FlowLimits, "span_max", 0),
        (RetryPolicy, "attempts_max", -1),
        (Timing, "consume_timeout_seconds", 0),
        (Timing, "commit_seconds", 0),
        (Timing, "rebalance_seconds", -1),
        (Timing, "pull_expired_seconds", float("nan")),
        (Timing, "drain_seconds", -1),
    ],
)
def test_what_no_consumer_can_do_is_refused_where_it_is_said(
    make: Callable[..., object], option: str, value: float
) -> None:
    with pytest.raises(InvalidArgument, match=option):
        make(**{option: value})
