"""Start positions by name and by time, in RocketMQ's spelling and in usual spellings."""

import datetime

import pytest

from rockoon.cluster import Cluster
from rockoon.errors import InvalidArgument
from rockoon.message import Message
from rockoon.offsets.start import ConsumeFrom
from rockoon_proto.v1 import nameserver_pb2 as wire
from support.eventually import eventually
from support.fake_cluster import FakeCluster

HALF_AN_HOUR_MS = 30 * 60 * 1000


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        ("first", ConsumeFrom.FIRST),
        ("CONSUME_FROM_FIRST_OFFSET", ConsumeFrom.FIRST),
        ("last", ConsumeFrom.LAST),
        ("CONSUME_FROM_LAST_OFFSET", ConsumeFrom.LAST),
        ("CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST", ConsumeFrom.LAST),
        ("CONSUME_FROM_MIN_OFFSET", ConsumeFrom.LAST),
        ("CONSUME_FROM_MAX_OFFSET", ConsumeFrom.LAST),
        ("CONSUME_FROM_TIMESTAMP", ConsumeFrom.ago(HALF_AN_HOUR_MS)),
        ("group", ConsumeFrom.GROUP),
    ],
)
def test_a_name_means_what_it_means_in_rocketmq(name: str, policy: ConsumeFrom) -> None:
    assert ConsumeFrom.of(name) == policy


@pytest.mark.parametrize("seconds", [10**9, 1_769_860_800, 10**10 - 1])
def test_a_time_in_seconds_is_refused(seconds: int) -> None:
    with pytest.raises(InvalidArgument, match=f"epoch seconds.*{seconds} \\* 1000"):
        ConsumeFrom.timestamp(seconds)
    assert ConsumeFrom.timestamp(seconds * 1000).value == seconds * 1000


@pytest.mark.parametrize("time", [-1, 10**13, 1769860800.5, "1769860800000"])
def test_a_time_that_is_none_is_refused(time: int) -> None:
    with pytest.raises(InvalidArgument, match="epoch milliseconds"):
        ConsumeFrom.timestamp(time)


def test_a_moment_of_early_1970_is_taken() -> None:
    assert ConsumeFrom.at("1970-01-20T00:00:00Z").value == 1_641_600_000


def test_a_timestamp_without_a_time_is_half_an_hour_ago_on_the_wire() -> None:
    sent = ConsumeFrom.of("CONSUME_FROM_TIMESTAMP").to_wire()
    assert (sent.consume_from, sent.duration_ms) == (wire.CONSUME_FROM_DURATION, HALF_AN_HOUR_MS)


NOON = datetime.datetime(2026, 1, 31, 12, 0, 5)
NOON_MS = int(NOON.timestamp() * 1000)


@pytest.mark.parametrize(
    ("moment", "timestamp_ms"),
    [
        ("20260131120005", NOON_MS),
        ("2026-01-31T12:00:05", NOON_MS),
        ("2026-01-31 12:00:05", NOON_MS),
        (NOON, NOON_MS),
        ("2026-01-31T12:00:05Z", 1769860805000),
        ("2026-01-31T13:00:05+01:00", 1769860805000),
        ("1769860805000", 1769860805000),
    ],
)
def test_a_time_is_read_in_any_usual_form(
    moment: str | datetime.datetime, timestamp_ms: int
) -> None:
    policy = ConsumeFrom.at(moment).to_wire()
    assert (policy.consume_from, policy.timestamp_ms) == (
        wire.CONSUME_FROM_TIMESTAMP,
        timestamp_ms,
    )


@pytest.mark.parametrize("text", ["", "noon", "20261331120000", "2026-13-31T12:00", "2026013112"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument):
        ConsumeFrom.at(text)


async def test_a_consumer_takes_rocketmqs_names(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create_topic("orders")
    fake.append("orders", [b"0", b"1"])
    seen: list[bytes] = []

    async def handle(message: Message) -> None:
        seen.append(message.body)

    async with cluster.push_consumer(
        "billing", {"orders": "*"}, handle, consume_from="CONSUME_FROM_FIRST_OFFSET"
    ):
        await eventually(lambda: len(seen) == 2)
