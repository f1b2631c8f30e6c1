"""Reads of a live cluster that are refused when they are planned, without Spark."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from rockoon.errors import (
    BrokerUnavailable,
    Busy,
    InvalidArgument,
    NotPermitted,
    RockoonError,
    StoreFailed,
    TimedOut,
    TlsFailed,
)
from rockoon_core.failed_call import ENDED_AT_ONCE, NOT_TAKEN, from_rpc_error
from rockoon_proto.v1.broker_pb2 import ReadLogReply
from rockoon_spark.broker_calls import is_unreachable
from rockoon_spark.records.selection import EVERYTHING
from rockoon_spark.source.data_source import RockoonDataSource
from rockoon_spark.source.live_cluster import LiveCluster, LogUnreadable
from rockoon_spark.source.log_source import BrokerAway
from rockoon_spark.source.option_table import OptionError
from support.fake_cluster import FakeCluster
from support.fakes.broker import FakeBroker

NO_PERMISSION = NotPermitted(key="reader", action="admin", resource="the cluster")


class LogBroker(FakeBroker):
    """A broker that answers ReadLog with an error, or with a log of 100 bytes."""

    refusal: RockoonError | None = None

    async def ReadLog(self, _request: Any, _context: Any) -> ReadLogReply:
        if self.refusal is not None:
            raise self.refusal
        return ReadLogReply(
            log_min_offset=0, visible_end=100, durable_end=100, log_file_bytes=1 << 20
        )


@asynccontextmanager
async def two_brokers() -> AsyncIterator[tuple[FakeCluster, dict[str, LogBroker]]]:
    cluster = FakeCluster()
    brokers = {name: LogBroker(name) for name in ("broker-a", "broker-b")}
    cluster.brokers.clear()
    cluster.brokers.update(brokers)
    async with cluster:
        cluster.create_topic("orders")
        yield cluster, brokers


async def planned_brokers(cluster: FakeCluster, *, skips: bool) -> list[str]:
    """Names of the brokers whose logs a read and an export would have."""
    source = LiveCluster(cluster.address, skips_brokers_away=skips)
    partitions = await asyncio.to_thread(source.partitions, EVERYTHING, 1000)
    logs = await asyncio.to_thread(source.logs)
    found = [each.broker for each in logs]
    assert [getattr(each, "broker", "") for each in partitions] == found
    return found


@pytest.mark.parametrize("skips", [False, True])
@pytest.mark.parametrize(
    "refusal",
    [
        NO_PERMISSION,
        StoreFailed(reason="Input/output error"),
        InvalidArgument(reason="end_offset is negative"),
    ],
    ids=lambda each: each.name,
)
async def test_a_broker_that_refuses_fails_the_read_although_absent_brokers_are_skipped(
    refusal: RockoonError, skips: bool
) -> None:
    async with two_brokers() as (cluster, brokers):
        brokers["broker-b"].refusal = refusal
        source = LiveCluster(cluster.address, skips_brokers_away=skips)
        for read in (lambda: source.partitions(EVERYTHING, 1000), source.logs):
            with pytest.raises(
                LogUnreadable, match=r"broker 'broker-b' .* cannot be read: "
            ) as told:
                await asyncio.to_thread(read)
            assert str(refusal) in str(told.value)
            assert "onBrokerAway" not in str(told.value)


async def test_a_broker_that_left_the_routes_is_skipped_where_the_option_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with two_brokers() as (cluster, _):
        cluster.nameserver.remove_node("broker-b")
        with pytest.raises(BrokerAway, match=r"broker 'broker-b' .*onBrokerAway=skip"):
            await planned_brokers(cluster, skips=False)
        with caplog.at_level(logging.WARNING):
            assert await planned_brokers(cluster, skips=True) == ["broker-a"]
        assert "broker 'broker-b'" in caplog.text


async def test_a_read_of_brokers_that_are_all_away_fails_although_they_may_be_skipped() -> None:
    async with two_brokers() as (cluster, _):
        cluster.nameserver.remove_node("broker-a")
        cluster.nameserver.remove_node("broker-b")
        with pytest.raises(BrokerAway, match=r"no broker .* broker-a, broker-b; nothing was read"):
            await planned_brokers(cluster, skips=True)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (BrokerUnavailable(broker="broker-a"), True),
        (TimedOut(what="ReadLog", seconds=30), True),
        (BrokerUnavailable(broker="broker-a", trouble=ENDED_AT_ONCE), True),
        (BrokerUnavailable(broker="broker-a", trouble=NOT_TAKEN), False),
        (TlsFailed(address="127.0.0.1:1", reason="certificate has expired"), False),
        (NO_PERMISSION, False),
        (Busy(reason="has reached its limit of concurrent calls"), False),
    ],
)
def test_only_a_broker_without_an_answer_is_unreachable(
    error: RockoonError, expected: bool
) -> None:
    assert is_unreachable(error) is expected


@pytest.mark.parametrize(
    ("details", "expected"),
    [
        ("failed to connect to all addresses; Connection refused", True),
        ("Ssl handshake failed: SSL_ERROR_SSL: CERTIFICATE_VERIFY_FAILED", False),
    ],
)
def test_a_rejected_certificate_is_no_absent_broker(details: str, expected: bool) -> None:
    metadata = grpc.aio.Metadata()
    failure = grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, metadata, metadata, details)
    error = from_rpc_error(failure, BrokerUnavailable, broker="broker-a")
    assert is_unreachable(error) is expected


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"startingOffsets": '{"order": {"0": 3}}'},
            "topic 'order' has no queue '0', or the topic",
        ),
        ({"startingOffsets": '{"orders": {"9": -2}}'}, "topic 'orders' has no queue '9'"),
        ({"endingOffsets": '{"orders": {"broker-c:0": 3}}'}, "has no queue 'broker-c:0'"),
        (
            {"brokers": "broker-a", "endingOffsets": '{"orders": {"broker-b:0": 3}}'},
            "broker 'broker-b' is not among the brokers that are read",
        ),
        ({"topics": "orders", "startingOffsets": '{"bills": {"0": 3}}'}, "'bills' is not among"),
        ({"startingTimestamp": "1700000000"}, "1700000000000 are the milliseconds"),
    ],
)
async def test_offsets_of_a_queue_that_does_not_exist_are_refused(
    options: dict[str, str], sentence: str
) -> None:
    async with two_brokers() as (cluster, _):
        source = RockoonDataSource({"endpoint": cluster.address, "compacted": "false", **options})
        with pytest.raises(OptionError, match=sentence):
            await asyncio.to_thread(lambda: source.reader(source.schema()).partitions())


async def test_offsets_of_queues_that_exist_are_planned() -> None:
    options = {
        "topics": "orders,bills",
        "startingOffsets": '{"orders": {"0": 1, "broker-b:0": -2}}',
        "endingOffsets": '{"bills": {"broker-a:1": -1, "1": 7}}',
    }
    async with two_brokers() as (cluster, _):
        cluster.create_topic("bills", 2)
        source = RockoonDataSource({"endpoint": cluster.address, "compacted": "false", **options})
        found = await asyncio.to_thread(lambda: source.reader(source.schema()).partitions())
        assert len(found) == 2


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"maxOffsetsPerTrigger": "0"}, "option maxOffsetsPerTrigger"),
        ({"startingTimestamp": "1700000000"}, "1700000000000 are the milliseconds"),
    ],
)
def test_a_wrong_option_of_a_stream_is_raised_by_its_methods_whose_errors_pyspark_shows(
    options: dict[str, str], sentence: str
) -> None:
    source = RockoonDataSource({"endpoint": "127.0.0.1:1", "topics": "orders", **options})
    reader = source.streamReader(source.schema())
    for method in (reader.getDefaultReadLimit, reader.prepareForTriggerAvailableNow):
        with pytest.raises(OptionError, match=sentence):
            method()
    reader.stop()
