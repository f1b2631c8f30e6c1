"""Half messages of silent senders: checked producers, times and number of checks, and results."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from rockoon_core import errors
from rockoon_format.record import decode_record
from rockoon_proto.v1 import broker_pb2 as pb
from support.broker import RunningBroker, running_broker
from support.broker_routes import BrokerRoutes
from support.half_messages import GROUP, begin, end, stored
from support.waiting import DEADLINE_SECONDS

GIVEN_UP_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
SOON: dict[str, Any] = {"transaction_timeout_ms": 1, "transaction_check_interval_ms": 1}
NEVER_AGAIN: dict[str, Any] = {**SOON, "transaction_check_interval_ms": 3_600_000}


class Producer:
    """A stream of checks, and replies to them."""

    def __init__(self, broker: RunningBroker, call: Any) -> None:
        self._broker = broker
        self._call = call

    async def asked(self) -> Any:
        """Return the next check."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            return await self._call.read()

    async def answer(self, check: Any, resolution: "pb.Resolution") -> None:
        request = pb.EndTransactionRequest(
            producer_group=GROUP,
            queue_offset=check.queue_offset,
            physical_offset=check.physical_offset,
            resolution=resolution,
            from_check=True,
        )
        await self._broker.call("EndTransaction", request)


@asynccontextmanager
async def producer(
    broker: RunningBroker, client_id: str = "one", group: str = GROUP
) -> AsyncIterator[Producer]:
    """Registered at the broker within the block."""
    request = pb.CheckTransactionsRequest(producer_group=group, client_id=client_id)
    call = broker.stub.CheckTransactions(request)
    try:
        found = Producer(broker, call)
        assert not (await found.asked()).frame
        yield found
    finally:
        call.cancel()


@pytest.mark.parametrize(("resolution", "read"), [(pb.COMMIT, [b"paid"]), (pb.ROLLBACK, [])])
async def test_a_producer_of_the_group_says_what_the_sender_did_not(
    tmp_path: Path, nameserver: BrokerRoutes, resolution: "pb.Resolution", read: list[bytes]
) -> None:
    async with (
        running_broker(tmp_path, [nameserver.address], **NEVER_AGAIN) as broker,
        producer(broker, group="others", client_id="never asked"),
        producer(broker) as payer,
    ):
        place = await begin(broker, b"paid", queue_id=1, KEYS="order-7")
        check = await payer.asked()
        assert check.physical_offset == place.first_physical_offset
        message = decode_record(check.frame)
        assert (message.topic, message.queue_id, message.body) == (b"orders", 1, b"paid")
        assert check.checks == 0
        await payer.answer(check, resolution)
        assert await broker.bodies("orders", 1) == read
        described = await broker.describe()
        assert (described.transactions_pending, described.transaction_checks_sent) == (0, 1)


async def test_who_does_not_know_is_asked_again_until_the_half_message_is_given_up(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    async with (
        running_broker(tmp_path, [nameserver.address], **SOON, transaction_checks_max=3) as broker,
        producer(broker) as payer,
    ):
        place = await begin(broker, b"whatever")
        for checks in range(3):
            check = await payer.asked()
            assert check.checks == checks
            # The last reply may come too late, because the interval is short.
            with contextlib.suppress(errors.TransactionNotFound):
                await payer.answer(check, pb.UNKNOWN)
        described = await broker.until(lambda each: each.transactions_given_up == 1)
        # It is counted when it is appended, and visible when it is durable.
        await broker.pull(GIVEN_UP_TOPIC, wait_ms=30_000)
        # Operators must see the message; no client can write there.
        wanted = pb.QueueRange(topic=GIVEN_UP_TOPIC, queue_id=0, offset=0)
        found = await broker.call("Read", pb.ReadRequest(range=wanted))
        assert decode_record(found.frames).body == b"whatever"
        with pytest.raises(errors.TopicNotWritable):
            await broker.append(GIVEN_UP_TOPIC, 0, b"x")
        assert (described.transactions_pending, described.transaction_checks_sent) == (0, 3)
        for resolution in (pb.COMMIT, pb.ROLLBACK):
            with pytest.raises(errors.TransactionEnded, match="abandoned"):
                await end(broker, place, resolution)
        with pytest.raises(errors.TransactionNotFound):
            await payer.answer(check, pb.UNKNOWN)
    (moved,) = stored(tmp_path, GIVEN_UP_TOPIC)
    assert moved.body == b"whatever"
    assert moved.prepared_transaction_offset == ~place.first_physical_offset


async def test_producers_of_a_group_are_asked_in_turn(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    async with (
        running_broker(tmp_path, [nameserver.address], **NEVER_AGAIN) as broker,
        producer(broker, "one") as one,
        producer(broker, "two") as two,
    ):
        await begin(broker, b"a", b"b", b"c", b"d")
        for payer in (one, one, two, two):
            await payer.answer(await payer.asked(), pb.COMMIT)
        assert sorted(await broker.bodies("orders")) == [b"a", b"b", b"c", b"d"]


async def test_without_a_producer_nothing_counts_and_the_first_that_comes_is_asked_at_once(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    async with running_broker(
        tmp_path, [nameserver.address], **NEVER_AGAIN, transaction_checks_max=1
    ) as broker:
        await begin(broker, b"left behind")
        # The missing producer is noticed within a turn; a few more do not matter.
        for _ in range(3):
            begun = await begin(broker, b"x", group="others", CHECK_IMMUNITY_TIME_IN_SECONDS="0")
            async with producer(broker, group="others") as other:
                check = await other.asked()
                assert check.physical_offset == begun.first_physical_offset
                await end(broker, begun, pb.ROLLBACK, producer_group="others")
        async with producer(broker) as payer:
            await payer.answer(await payer.asked(), pb.COMMIT)
            assert await broker.bodies("orders") == [b"left behind"]


async def test_a_producer_that_goes_away_leaves_its_questions_to_the_next(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    count = 100
    often = {**SOON, "transaction_check_interval_ms": 500, "transaction_checks_max": 1000}
    async with running_broker(tmp_path, [nameserver.address], **often) as broker:
        await begin(broker, *(b"%d" % n for n in range(count)))
        async with producer(broker, "short-lived") as first:
            await first.answer(await first.asked(), pb.ROLLBACK)
        async with producer(broker, "patient") as second:
            while (await broker.describe()).transactions_pending:
                # A message that was checked twice gets two equal replies.
                await second.answer(await second.asked(), pb.COMMIT)
        assert len(await broker.bodies("orders")) == count - 1


async def test_a_sender_may_ask_for_more_time(tmp_path: Path, nameserver: BrokerRoutes) -> None:
    async with (
        running_broker(tmp_path, [nameserver.address], **NEVER_AGAIN) as broker,
        producer(broker) as payer,
    ):
        await begin(broker, b"slow", CHECK_IMMUNITY_TIME_IN_SECONDS="3600")
        await begin(broker, b"fast", first_id=1)
        assert decode_record((await payer.asked()).frame).body == b"fast"
        assert (await broker.describe()).transaction_checks_sent == 1


async def test_how_often_was_asked_is_known_after_a_restart(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    async with (
        running_broker(tmp_path, [nameserver.address], **NEVER_AGAIN) as broker,
        producer(broker) as payer,
    ):
        await begin(broker, b"paid")
        await payer.answer(await payer.asked(), pb.UNKNOWN)
    async with (
        running_broker(tmp_path, [nameserver.address], **NEVER_AGAIN) as broker,
        producer(broker) as payer,
    ):
        check = await payer.asked()
        assert check.checks == 1
        await payer.answer(check, pb.COMMIT)
        assert await broker.bodies("orders") == [b"paid"]


async def test_a_producer_that_comes_again_takes_the_place_of_its_dead_connection(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    async with (
        running_broker(tmp_path, [nameserver.address], **NEVER_AGAIN) as broker,
        producer(broker, "same") as old,
        producer(broker, "same") as new,
    ):
        async with asyncio.timeout(DEADLINE_SECONDS):
            assert not await old._call.read(), "its stream has ended"
        await begin(broker, b"a", b"b")
        for _ in range(2):
            await new.answer(await new.asked(), pb.ROLLBACK)


async def test_a_broker_that_stops_does_not_wait_for_its_producers(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    loop = asyncio.get_running_loop()
    async with running_broker(tmp_path, [nameserver.address], drain_seconds_max=60.0) as broker:
        call = broker.stub.CheckTransactions(
            pb.CheckTransactionsRequest(producer_group=GROUP, client_id="one")
        )
        await call.read()
        began = loop.time()
    assert loop.time() - began < DEADLINE_SECONDS


@pytest.mark.parametrize("resolution", [pb.RESOLUTION_UNSPECIFIED, pb.UNKNOWN, 9])
async def test_only_a_check_may_be_answered_with_unknown(
    tmp_path: Path, nameserver: BrokerRoutes, resolution: Any
) -> None:
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        place = await begin(broker, b"x")
        with pytest.raises(errors.InvalidArgument):
            await end(broker, place, resolution)
        with pytest.raises(errors.InvalidArgument):
            await end(broker, place, pb.COMMIT, producer_group="")


async def test_a_producer_without_a_name_or_with_an_endless_one_is_not_asked(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        for client_id in ("", "c" * 256):
            request = pb.CheckTransactionsRequest(producer_group=GROUP, client_id=client_id)
            with pytest.raises(grpc.RpcError, match="a client id of"):
                await broker.stub.CheckTransactions(request).read()
