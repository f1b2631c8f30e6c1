"""The transactional producer when brokers reply late, wrongly or not at all.

The broker here is scripted; other tests use a real one.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from grpc import aio

import rockoon
from rockoon import Message, Resolution, errors
from rockoon.transactions.producer import TransactionalProducer
from rockoon_proto.v1 import broker_pb2 as pb
from rockoon_proto.v1.broker_pb2_grpc import BrokerServicer, add_BrokerServicer_to_server
from rockoon_runtime.wire import GrpcServer
from support.drains import AT_ONCE
from support.eventually import eventually
from support.scripted_nameserver import ScriptedNameserver

HOST = bytes([127, 0, 0, 1, 0, 0, 42, 159])

AnswerHalf = Callable[[pb.AppendRequest], Awaitable[None]]
AnswerEnd = Callable[[pb.EndTransactionRequest], Awaitable[None]]


async def fine(_: Any) -> None:
    """No fault."""


class ScriptedBroker(BrokerServicer):
    """Replies to everything, unless `on_half` or `on_end` raise or wait.

    Attributes:
        halves: received half messages, in order.
        ends: received ends.
    """

    def __init__(self) -> None:
        self.on_half: AnswerHalf = fine
        self.on_end: AnswerEnd = fine
        self.halves: list[pb.AppendRequest] = []
        self.ends: list[pb.EndTransactionRequest] = []
        self._checks: asyncio.Queue[int] = asyncio.Queue()

    def ask(self, number: int) -> None:
        """Send the producer a check of one of the half messages."""
        self._checks.put_nowait(number)

    async def told(self, count: int) -> pb.EndTransactionRequest:
        """Return the last end, once this number of ends has arrived."""
        await eventually(lambda: len(self.ends) >= count)
        return self.ends[count - 1]

    async def Append(self, request: Any, _: Any) -> pb.AppendReply:
        assert request.handling == pb.HALF
        number = len(self.halves)
        self.halves.append(request)
        await self.on_half(request)
        appended = pb.Appended(
            first_queue_offset=number, first_physical_offset=1000 * number, messages=1
        )
        return pb.AppendReply(appended=appended)

    async def EndTransaction(self, request: Any, _: Any) -> pb.EndTransactionReply:
        self.ends.append(request)
        await self.on_end(request)
        committed = pb.Appended(first_queue_offset=7, messages=1, store_host=HOST)
        return pb.EndTransactionReply(
            committed=committed if request.resolution == pb.COMMIT else None
        )

    async def CheckTransactions(self, _: Any, __: Any) -> AsyncIterator[pb.TransactionCheck]:
        yield pb.TransactionCheck()
        while True:
            number = await self._checks.get()
            yield pb.TransactionCheck(
                queue_offset=number,
                physical_offset=1000 * number,
                frame=self.halves[number].frames,
            )


def never(message: Message) -> Resolution:
    raise AssertionError(f"nobody should ask about {message}")


@asynccontextmanager
async def started(
    check: Any = never, **settings: Any
) -> AsyncIterator[tuple[ScriptedBroker, TransactionalProducer]]:
    broker = ScriptedBroker()

    def register(server: aio.Server) -> None:
        add_BrokerServicer_to_server(broker, server)

    server = GrpcServer("broker", "rockoon", "127.0.0.1:0", register, [], drain=AT_ONCE)
    async with ScriptedNameserver() as nameserver, server:
        nameserver.put_topic("orders", {"broker-a": 2})
        nameserver.put_node("broker-a", server.address)
        async with (
            rockoon.connect(nameserver.address) as cluster,
            cluster.transactional_producer("payers", check=check, **settings) as producer,
        ):
            yield broker, producer


def failing(*failures: Exception | None) -> Callable[[Any], Awaitable[None]]:
    """Fails this number of times, then no more."""
    left = iter(failures)

    async def fail(_: Any) -> None:
        failure = next(left, None)
        if failure is not None:
            raise failure

    return fail


async def test_a_half_message_whose_answer_was_lost_is_sent_anew_and_the_first_rolled_back() -> (
    None
):
    async with started() as (broker, producer):
        broker.on_half = failing(errors.BrokerUnavailable(broker="broker-a"))
        transaction = await producer.begin("orders", b"paid")
        assert transaction.half.queue_offset == 1
        first, second = (each.frames for each in broker.halves)
        assert transaction.message_id.encode() in second
        assert transaction.message_id.encode() not in first
        broker.ask(0)
        told = await broker.told(1)
        assert (told.queue_offset, told.resolution) == (0, pb.ROLLBACK)
        assert told.from_check
        broker.ask(1)
        assert (await broker.told(2)).resolution == pb.UNKNOWN


@pytest.mark.parametrize(
    "failure",
    [errors.StoreFailed(reason="a sync failed"), errors.Internal(service="x", reason="y")],
    ids=["store failed", "internal"],
)
async def test_a_half_message_that_may_be_stored_although_its_sender_was_told_of_a_failure(
    failure: errors.RockoonError,
) -> None:
    async with started() as (broker, producer):
        broker.on_half = failing(failure)
        with pytest.raises(type(failure)):
            await producer.begin("orders", b"x")
        broker.ask(0)
        assert (await broker.told(1)).resolution == pb.ROLLBACK


async def test_a_refusal_that_can_pass_is_tried_again_and_another_is_raised() -> None:
    async with started() as (broker, producer):
        broker.on_half = failing(
            errors.Busy(reason="x"), errors.NotReady(service="x", reason="y"), None
        )
        await producer.begin("orders", b"x")
        assert len(broker.halves) == 3
        broker.on_half = failing(errors.BodyTooLarge(index=0, limit=1))
        with pytest.raises(errors.BodyTooLarge):
            await producer.begin("orders", b"x")
        assert len(broker.halves) == 4


async def test_trying_ends_with_the_time_given() -> None:
    async with started(delivery_timeout_seconds=1.5) as (broker, producer):
        broker.on_half = failing(*[errors.Busy(reason="x")] * 100)
        # The result of the last attempt: a reply, or its share of the time.
        with pytest.raises((errors.Busy, errors.TimedOut)):
            await producer.begin("orders", b"x")


async def test_a_question_that_comes_before_the_answer_is_not_answered_with_rollback() -> None:
    async with started() as (broker, producer):

        async def ask_first(_: Any) -> None:
            broker.ask(len(broker.halves) - 1)
            await broker.told(1)

        broker.on_half = ask_first
        transaction = await producer.begin("orders", b"paid")
        assert broker.ends[0].resolution == pb.UNKNOWN
        broker.on_half = fine
        await transaction.commit()


async def test_a_sender_that_stops_waiting_for_its_half_message_takes_it_back() -> None:
    async with started() as (broker, producer):
        arrived, never_answered = asyncio.Event(), asyncio.Event()

        async def hold(_: Any) -> None:
            arrived.set()
            await never_answered.wait()

        broker.on_half = hold
        async with asyncio.TaskGroup() as tasks:
            sending = tasks.create_task(producer.begin("orders", b"x"))
            await arrived.wait()
            sending.cancel()
        assert sending.cancelled()
        broker.ask(0)
        assert (await broker.told(1)).resolution == pb.ROLLBACK


async def test_a_commit_whose_answer_was_lost_is_said_again() -> None:
    async with started() as (broker, producer):
        transaction = await producer.begin("orders", b"paid")
        broker.on_end = failing(
            errors.BrokerUnavailable(broker="broker-a"), errors.Busy(reason="x")
        )
        assert (await transaction.commit()).queue_offset == 7
        assert [each.resolution for each in broker.ends] == [pb.COMMIT] * 3
        assert not any(each.from_check for each in broker.ends)


async def test_a_commit_that_nobody_confirmed_is_what_the_check_is_told() -> None:
    async with started(delivery_timeout_seconds=0.5) as (broker, producer):
        transaction = await producer.begin("orders", b"paid")
        broker.on_end = failing(*[errors.Busy(reason="x")] * 100)
        with pytest.raises((errors.Busy, errors.TimedOut)):
            await transaction.commit()
        broker.on_end = fine
        seen = len(broker.ends)
        broker.ask(0)
        told = await broker.told(seen + 1)
        assert (told.resolution, told.from_check) == (pb.COMMIT, True)
        # The sender may also repeat it itself.
        assert (await transaction.commit()).queue_offset == 7


async def test_a_block_that_raises_is_not_hidden_by_a_rollback_that_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR)
    async with started(delivery_timeout_seconds=1.5) as (broker, producer):
        broker.on_end = failing(*[errors.Busy(reason="x")] * 100)
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction("orders", b"x"):
                raise ZeroDivisionError
        broker.on_end = fine
        seen = len(broker.ends)
        broker.ask(0)
        assert (await broker.told(seen + 1)).resolution == pb.ROLLBACK


async def test_checks_wait_while_as_many_run_as_may() -> None:
    running, most = 0, 0
    go_on = asyncio.Event()

    async def check(_: Message) -> Resolution:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await go_on.wait()
        running -= 1
        return Resolution.COMMIT

    async with started(check, checks_max=2) as (broker, producer):
        for number in range(5):
            await producer.send_in_transaction("orders", b"x", lambda _: Resolution.UNKNOWN)
            broker.ask(number)
        await eventually(lambda: running == 2)
        go_on.set()
        await broker.told(5)
        assert most == 2


async def test_a_check_that_takes_too_long_says_that_it_does_not_know(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL)

    async def check(_: Message) -> Resolution:
        await asyncio.Event().wait()
        return Resolution.COMMIT

    async with started(check, check_seconds_max=0.05) as (broker, producer):
        await producer.send_in_transaction("orders", b"x", lambda _: Resolution.UNKNOWN)
        broker.ask(0)
        assert (await broker.told(1)).resolution == pb.UNKNOWN
