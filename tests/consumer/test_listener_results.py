"""Effects of a handler's result: delays, sends to other topics, calls that exceed their time."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from rockoon.cluster import Cluster
from rockoon.consumer.consume_result import ConsumeResult, Delay, suspension_seconds
from rockoon.consumer.push_consumer import PushConsumer
from rockoon.consumer.redelivery import HandlerFailure, LocalRedelivery
from rockoon.errors import InvalidArgument
from rockoon.message import Message
from support.consumer_settings import grouped
from support.eventually import eventually
from support.fake_cluster import FakeCluster
from support.waiting import DEADLINE_SECONDS

PLACE = ("orders", "broker-a", 0)


class Elsewhere:
    """Accepts failed messages, as a retry topic does; or asks to wait, or fails, as the test
    requests."""

    def __init__(self, answers: Sequence[float | Exception | None] = ()) -> None:
        self.failures: list[HandlerFailure] = []
        self._answers = list(answers)

    async def failed(self, failure: HandlerFailure) -> float | None:
        self.failures.append(failure)
        answer = self._answers.pop(0) if self._answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer


def committed(fake: FakeCluster) -> int | None:
    progress = fake.offset.progress.get(("billing", PLACE))
    return progress.offset if progress else None


def consumer_of(cluster: Cluster, handler: Any, **settings: Any) -> PushConsumer:
    chosen: dict[str, Any] = {"consume_from": "first", "commit_seconds": 0.02, **settings}
    return cluster.push_consumer("billing", {"orders": "*"}, handler, **grouped(chosen))


def one_message(fake: FakeCluster) -> None:
    fake.create_topic("orders")
    fake.append("orders", [b"0"])


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        (ConsumeResult.LATER, None),
        (False, None),
        (ConsumeResult.later(), None),
        (ConsumeResult.later(seconds=7.5), Delay(seconds=7.5)),
        (ConsumeResult.later(level=4), Delay(level=4)),
        (ConsumeResult.later(level=-1), Delay(level=-1)),
    ],
)
async def test_the_wanted_delay_reaches_whoever_sees_to_redelivery(
    fake: FakeCluster, cluster: Cluster, answer: object, wanted: Delay | None
) -> None:
    one_message(fake)
    elsewhere = Elsewhere()

    async def handle(_: Message) -> object:
        return answer

    async with consumer_of(cluster, handle, redelivery=elsewhere):
        await eventually(lambda: committed(fake) == 1)
    (failure,) = elsewhere.failures
    assert (failure.attempt, failure.exception, failure.delay) == (1, None, wanted)
    assert not failure.is_last


async def test_what_was_raised_reaches_whoever_sees_to_redelivery(
    fake: FakeCluster, cluster: Cluster
) -> None:
    one_message(fake)
    elsewhere = Elsewhere([0.0, 0.0])

    async def handle(_: Message) -> None:
        raise ZeroDivisionError

    async with consumer_of(cluster, handle, redelivery=elsewhere):
        await eventually(lambda: len(elsewhere.failures) == 3)
    assert [each.attempt for each in elsewhere.failures] == [1, 2, 3]
    assert all(isinstance(each.exception, ZeroDivisionError) for each in elsewhere.failures)


async def test_a_message_comes_again_here_when_its_handler_said(
    fake: FakeCluster, cluster: Cluster
) -> None:
    one_message(fake)
    answers = [ConsumeResult.later(seconds=0.05), ConsumeResult.SUCCESS]
    at: list[float] = []

    async def handle(_: Message) -> ConsumeResult:
        at.append(asyncio.get_running_loop().time())
        return answers.pop(0)

    slow = LocalRedelivery(first_seconds=3600, seconds_max=3600)
    async with consumer_of(cluster, handle, redelivery=slow):
        await eventually(lambda: not answers)
    assert at[1] - at[0] >= 0.05


async def test_a_suspension_is_a_failure_where_nothing_is_in_order(
    fake: FakeCluster, cluster: Cluster
) -> None:
    one_message(fake)
    elsewhere = Elsewhere()

    async def handle(_: Message) -> ConsumeResult:
        return ConsumeResult.SUSPEND

    async with consumer_of(cluster, handle, redelivery=elsewhere):
        await eventually(lambda: bool(elsewhere.failures))
    assert isinstance(elsewhere.failures[0].exception, TypeError)


def test_a_delay_is_given_one_way_and_not_negative() -> None:
    for wrong in ({"seconds": -1.0}, {"seconds": 1.0, "level": 1}, {"seconds": float("nan")}):
        with pytest.raises(InvalidArgument):
            ConsumeResult.later(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wanted", "seconds"),
    [(None, 1.0), (Delay(0), 0.01), (Delay(5), 5), (Delay(600), 30), (Delay(level=3), 1.0)],
)
def test_a_suspension_lasts_from_ten_milliseconds_to_half_a_minute(
    wanted: Delay | None, seconds: float
) -> None:
    assert suspension_seconds(wanted) == seconds


async def test_a_call_that_takes_too_long_is_sent_back_and_its_late_result_changes_nothing(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create_topic("orders")
    fake.append("orders", [b"slow", b"next"])
    elsewhere, gate, ended = Elsewhere(), asyncio.Event(), asyncio.Event()

    async def handle(message: Message) -> None:
        if message.body == b"slow":
            await gate.wait()
            ended.set()
            raise RuntimeError("too late to be heard")

    async with consumer_of(
        cluster, handle, redelivery=elsewhere, consume_timeout_seconds=0.1
    ) as consumer:
        await eventually(lambda: committed(fake) == 2)
        assert [each.messages[0].body for each in elsewhere.failures] == [b"slow"]
        assert isinstance(elsewhere.failures[0].exception, TimeoutError)
        assert consumer.queues()[next(iter(consumer.queues()))].running == 0
        gate.set()
        await ended.wait()
        await asyncio.sleep(0)
        assert len(elsewhere.failures) == 1
        statistics = consumer.statistics.delivery
        assert (statistics.timeouts, statistics.failures, statistics.messages) == (1, 0, 2)


async def test_a_thread_that_takes_too_long_is_sent_back_as_well(
    fake: FakeCluster, cluster: Cluster
) -> None:
    one_message(fake)
    elsewhere, gate = Elsewhere(), threading.Event()
    try:
        async with consumer_of(
            cluster,
            lambda _: gate.wait(),
            redelivery=elsewhere,
            consume_timeout_seconds=0.1,
            drain_seconds=0.1,
        ):
            await eventually(lambda: committed(fake) == 1)
    finally:
        gate.set()
    assert len(elsewhere.failures) == 1


async def test_a_call_that_cannot_be_sent_back_is_waited_for_and_counts(
    fake: FakeCluster, cluster: Cluster
) -> None:
    one_message(fake)
    elsewhere, gate = Elsewhere([0.0] * 100), asyncio.Event()
    calls = 0

    async def handle(_: Message) -> None:
        nonlocal calls
        calls += 1
        await gate.wait()

    async with consumer_of(
        cluster, handle, redelivery=elsewhere, consume_timeout_seconds=0.05
    ) as consumer:
        await eventually(lambda: len(elsewhere.failures) >= 2)
        assert calls == 1, "never twice at once"
        assert committed(fake) == 0
        gate.set()
        await eventually(lambda: committed(fake) == 1)
        assert consumer.statistics.delivery.messages == 1
    assert calls == 1


async def test_what_is_cancelled_by_the_code_that_a_consumer_calls_ends_it_aloud(
    fake: FakeCluster, cluster: Cluster
) -> None:
    class Cancelled:
        async def failed(self, _: HandlerFailure) -> float | None:
            raise asyncio.CancelledError

    async def fail(_: Message) -> None:
        raise ValueError("no")

    one_message(fake)
    with pytest.raises(RuntimeError, match="cancelled"):
        async with (
            asyncio.timeout(DEADLINE_SECONDS),
            consumer_of(cluster, fail, redelivery=Cancelled(), concurrency=1) as consumer,
        ):
            await consumer.wait()
