"""A handler raises an exception without valid text: its message is sent back like any other."""

from typing import Any

import pytest

from rockoon.cluster import Cluster
from rockoon.consumer.consume_result import ConsumeResult
from rockoon.consumer.retry import RetryPolicy
from rockoon.errors import InvalidArgument
from rockoon.message import Message
from rockoon_core.valid_text import text_fault
from support.consumer_settings import grouped
from support.eventually import eventually
from support.fake_cluster import FakeCluster

KINDS: dict[str, dict[str, Any]] = {
    "concurrent": {},
    "batch": {"batch_max": 1000},
    "orderly": {"orderly": True, "attempts_max": 2, "suspend_seconds": 0.01},
}


class Textless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class NoString(Exception):
    def __str__(self) -> str:
        return 7  # type: ignore[return-value]


FAILURES: dict[str, tuple[Exception, str]] = {
    "lone surrogate": (ValueError("cut in \ud83d"), r"ValueError: cut in \ud83d"),
    "text raises": (Textless(), "Textless: (no text: Textless.__str__ raised RuntimeError)"),
    "text is a number": (NoString(), "NoString: (no text: NoString.__str__ raised TypeError)"),
    "long text": (ValueError("\ud83d" + 5000 * "a"), r"ValueError: \ud83d" + 494 * "a"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("failure", FAILURES)
async def test_it_is_a_dead_letter_and_messages_behind_it_are_handled(
    fake: FakeCluster,
    cluster: Cluster,
    caplog: pytest.LogCaptureFixture,
    kind: str,
    failure: str,
) -> None:
    raised, reason = FAILURES[failure]
    fake.create_topic("orders")
    fake.append("orders", [b"bad"])
    handled: list[bytes] = []

    async def handle(argument: Any) -> None:
        messages: list[Message] = argument if isinstance(argument, list) else [argument]
        handled.extend(message.body for message in messages)
        if messages[0].body == b"bad":
            raise raised

    settings = {
        "consume_from": "first",
        "commit_seconds": 0.02,
        "redelivery": RetryPolicy(attempts_max=0),
        **KINDS[kind],
    }
    if kind == "orderly":
        del settings["redelivery"]
    async with cluster.push_consumer("billing", {"orders": "*"}, handle, **grouped(settings)):
        await eventually(lambda: ("%DLQ%billing", 0) in fake.brokers["broker-a"].queues)
        fake.append("orders", [b"good"])
        place = ("orders", "broker-a", 0)
        await eventually(lambda: fake.offset.progress["billing", place].offset == 2)
    [(request, _)] = fake.brokers["broker-a"].sent_back
    assert request.messages[0].failure == reason
    assert handled[-1] == b"good"
    assert type(raised).__name__ in caplog.text
    assert text_fault(caplog.text) is None, "a log file takes it"


@pytest.mark.parametrize(
    "result",
    [
        ConsumeResult.later(seconds=float("inf")),
        ConsumeResult.later(seconds=1e300),
        ConsumeResult.later(level=2**80),
        ConsumeResult.later(level=-(2**80)),
    ],
    ids=["for ever", "very long", "high level", "low level"],
)
async def test_a_handler_asks_for_a_delay_that_no_message_can_hold(
    fake: FakeCluster, cluster: Cluster, result: ConsumeResult
) -> None:
    fake.create_topic("orders")
    fake.append("orders", [b"bad"])

    async def handle(_: Message) -> ConsumeResult:
        return result

    async with cluster.push_consumer("billing", {"orders": "*"}, handle, consume_from="first"):
        await eventually(lambda: bool(fake.brokers["broker-a"].sent_back))


def test_more_attempts_than_a_message_can_count_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="attempts_max is 0 to 2147483647"):
        RetryPolicy(attempts_max=2**31)
