"""The SDK's transactional producer against a broker in this process."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import rockoon
from rockoon import Message, Resolution, errors
from rockoon.transactions.producer import TransactionalProducer
from support.broker import RunningBroker, running_broker
from support.broker_routes import BrokerRoutes
from support.eventually import answered, eventually
from support.waiting import DEADLINE_SECONDS

SOON: dict[str, Any] = {
    "transaction_timeout_ms": 1,
    "transaction_check_interval_ms": 20,
    "transaction_checks_max": 10_000,
}


def never(message: Message) -> Resolution:
    raise AssertionError(f"nobody should ask about {message}")


class Books:
    """A local database: the end of each message's transaction."""

    def __init__(self) -> None:
        self.resolutions: dict[bytes, Resolution] = {}
        self.asked: list[bytes] = []

    def check(self, message: Message) -> Resolution:
        self.asked.append(message.body)
        return self.resolutions.get(message.body, Resolution.UNKNOWN)

    async def check_async(self, message: Message) -> Resolution:
        return self.check(message)


@asynccontextmanager
async def started(
    root: Path, nameserver: BrokerRoutes, check: Any = never, **settings: Any
) -> AsyncIterator[tuple[RunningBroker, TransactionalProducer]]:
    async with (
        running_broker(root, [nameserver.address], **settings) as broker,
        rockoon.connect(nameserver.address) as cluster,
        cluster.transactional_producer("payers", check=check) as producer,
    ):
        await eventually(lambda: producer.asked_by == {"broker-a"})
        yield broker, producer


async def all_bodies(broker: RunningBroker) -> list[bytes]:
    return sorted(await broker.bodies("orders", 0) + await broker.bodies("orders", 1))


async def until_read(broker: RunningBroker, bodies: list[bytes]) -> None:
    """A half message stops waiting when its end is appended, and is read once that is durable."""
    await answered(lambda: all_bodies(broker), lambda seen: seen == bodies)


async def test_a_block_that_succeeds_commits(tmp_path: Path, nameserver: BrokerRoutes) -> None:
    async with started(tmp_path, nameserver) as (broker, producer):
        async with producer.transaction(
            "orders", b"paid", ordering_key="k", tags="T"
        ) as transaction:
            assert await all_bodies(broker) == []
            assert transaction.resolution is Resolution.UNKNOWN
        assert await all_bodies(broker) == [b"paid"]
        assert transaction.resolution is Resolution.COMMIT
        result = transaction.result
        assert result is not None
        assert (result.queue, result.queue_offset) == (transaction.queue, 0)
        assert result.message_id == transaction.message_id
        assert await transaction.commit() is result
        with pytest.raises(errors.TransactionEnded):
            await transaction.rollback()
        (read,) = await asyncio.wait_for(
            read_one(nameserver.address, transaction.queue), DEADLINE_SECONDS
        )
        assert (read.message_id, read.tags) == (transaction.message_id, "T")


async def read_one(address: str, queue: rockoon.MessageQueue) -> list[Message]:
    async with (
        rockoon.connect(address) as cluster,
        cluster.pull_consumer(consume_from="first") as consumer,
    ):
        await consumer.assign([queue])
        return list(await consumer.poll(timeout=DEADLINE_SECONDS))


async def test_a_former_name_is_told_with_the_line_that_has_it(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    async with started(tmp_path, nameserver) as (_, producer):
        with pytest.warns(DeprecationWarning, match="ordering_key") as warned:  # noqa: PT031
            async with producer.transaction("orders", b"x", key="k"):
                pass
            await producer.begin("orders", b"y", key="k")
    assert [each.filename for each in warned] == [__file__] * 2


async def test_a_block_that_raises_rolls_back(tmp_path: Path, nameserver: BrokerRoutes) -> None:
    async with started(tmp_path, nameserver) as (broker, producer):
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction("orders", b"not paid") as transaction:
                raise ZeroDivisionError
        assert transaction.resolution is Resolution.ROLLBACK
        described = await broker.describe()
        assert (described.transactions_pending, described.transactions_rolled_back) == (0, 1)
        assert await all_bodies(broker) == []


async def committing_too_early(producer: TransactionalProducer) -> None:
    async with producer.transaction("orders", b"yes") as transaction:
        await transaction.commit()
        raise ZeroDivisionError


async def test_a_block_may_end_its_transaction_itself(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    async with started(tmp_path, nameserver) as (broker, producer):
        async with producer.transaction("orders", b"no") as transaction:
            await transaction.rollback()
        with pytest.raises(ZeroDivisionError):
            await committing_too_early(producer)
        assert await all_bodies(broker) == [b"yes"]


async def test_what_execute_returns_becomes_of_the_message(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    async with started(tmp_path, nameserver) as (broker, producer):

        async def commit(transaction: rockoon.Transaction) -> Resolution:
            assert await all_bodies(broker) == read
            return Resolution.COMMIT

        read: list[bytes] = []
        for execute in (commit, lambda transaction: commit(transaction)):
            committed = await producer.send_in_transaction("orders", b"yes", execute)
            assert committed.result is not None
            read.append(b"yes")
        await producer.send_in_transaction("orders", b"no", lambda _: Resolution.ROLLBACK)
        assert await all_bodies(broker) == read
        assert (await broker.describe()).transactions_pending == 0

        def broken(_: rockoon.Transaction) -> Resolution:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await producer.send_in_transaction("orders", b"who knows", broken)
        unknown = await producer.send_in_transaction(
            "orders", b"later", lambda _: Resolution.UNKNOWN
        )
        assert unknown.resolution is Resolution.UNKNOWN
        assert (await broker.describe()).transactions_pending == 2
        with pytest.raises(errors.InvalidArgument):
            await producer.send_in_transaction("orders", b"x", lambda _: True)  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize("kind", ["plain", "async", "a lambda around async"])
async def test_the_check_decides_what_the_sender_left_open(
    tmp_path: Path, nameserver: BrokerRoutes, kind: str
) -> None:
    books = Books()
    check: Any = {"plain": books.check, "async": books.check_async}.get(
        kind, lambda message: books.check_async(message)
    )
    async with started(tmp_path, nameserver, check, **SOON) as (broker, producer):
        for body in (b"yes", b"no", b"later"):
            await producer.send_in_transaction("orders", body, lambda _: Resolution.UNKNOWN)
        books.resolutions |= {b"yes": Resolution.COMMIT, b"no": Resolution.ROLLBACK}
        await broker.until(lambda described: described.transactions_pending == 1)
        await until_read(broker, [b"yes"])
        await eventually(lambda: books.asked.count(b"later") > 2)
        books.resolutions[b"later"] = Resolution.COMMIT
        await broker.until(lambda described: described.transactions_pending == 0)
        await until_read(broker, [b"later", b"yes"])


async def test_a_producer_does_not_ask_the_check_about_what_it_has_open(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    async with started(tmp_path, nameserver, **SOON) as (broker, producer):
        async with producer.transaction("orders", b"slow"):
            await broker.until(lambda described: described.transaction_checks_sent > 3)
        assert await all_bodies(broker) == [b"slow"]


async def test_a_check_that_fails_says_that_it_does_not_know(
    tmp_path: Path, nameserver: BrokerRoutes, caplog: pytest.LogCaptureFixture
) -> None:
    own = asyncio.CancelledError()
    answers = iter([ZeroDivisionError(), own, "yes", None, Resolution.COMMIT])

    async def check(_: Message) -> Resolution:
        # On a busy machine a slow producer is checked again in the meantime.
        answer: Any = next(answers, Resolution.COMMIT)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    caplog.set_level(logging.CRITICAL)
    async with started(tmp_path, nameserver, check, **SOON) as (broker, producer):
        await producer.send_in_transaction("orders", b"x", lambda _: Resolution.UNKNOWN)
        await broker.until(lambda described: described.transactions_pending == 0)
        assert (await broker.describe()).transaction_checks_sent >= 5
        await until_read(broker, [b"x"])


async def test_another_producer_of_the_group_answers_for_one_that_is_gone(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    books = Books()
    books.resolutions[b"left"] = Resolution.COMMIT
    async with running_broker(tmp_path, [nameserver.address], **SOON) as broker:
        async with rockoon.connect(nameserver.address) as cluster:
            gone = cluster.transactional_producer("payers", check=never)
            await gone.begin("orders", b"left", check_after_seconds=3600)
            await gone.begin("orders", b"left", check_after_seconds=0)
        with pytest.raises(errors.Closed):
            await gone.begin("orders", b"late")
        async with (
            rockoon.connect(nameserver.address) as cluster,
            cluster.transactional_producer("payers", check=books.check),
        ):
            await broker.until(lambda described: described.transactions_pending == 1)
        await until_read(broker, [b"left"])


async def test_a_broker_that_restarts_between_half_and_commit_makes_no_difference(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    async with rockoon.connect(nameserver.address) as cluster:
        async with running_broker(tmp_path, [nameserver.address]):
            producer = cluster.transactional_producer("payers", check=never)
            transaction = await producer.begin("orders", b"paid")
        async with asyncio.TaskGroup() as tasks:
            commit = tasks.create_task(transaction.commit())
            async with running_broker(tmp_path, [nameserver.address]) as broker:
                result = await commit
                assert result.queue_offset == 0
                assert await all_bodies(broker) == [b"paid"]
                # It registers at the new process as well.
                await eventually(lambda: producer.asked_by == {"broker-a"})


async def test_what_cannot_be_sent_is_refused_before_it_is_stored(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    async with started(tmp_path, nameserver) as (broker, producer):
        queue = rockoon.MessageQueue("orders", "broker-a", 9)
        for refusal, arguments in (
            (errors.TopicNotFound, {"topic": "unknown"}),
            (errors.InvalidTopicName, {"topic": "no topic"}),
            (errors.BodyTooLarge, {"body": bytes((4 << 20) + 1)}),
            (errors.InvalidProperty, {"properties": {"TRAN_MSG": "x"}}),
            (errors.InvalidArgument, {"body": "text"}),
            (errors.InvalidArgument, {"ordering_key": "k", "queue": queue}),
            (errors.InvalidArgument, {"check_after_seconds": -1}),
            (errors.QueueNotFound, {"queue": queue}),
            (errors.PropertiesTooLarge, {"properties": {"x": "y" * 32_690}}),
        ):
            values: dict[str, Any] = {"topic": "orders", "body": b"x", **arguments}
            with pytest.raises(refusal):
                await producer.begin(**values)
        assert (await broker.describe()).log_max_offset == 0


async def test_as_many_transactions_may_be_open_as_was_said(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    async with (
        running_broker(tmp_path, [nameserver.address]),
        rockoon.connect(nameserver.address) as cluster,
        cluster.transactional_producer("payers", check=never, open_max=2) as producer,
    ):
        first = await producer.begin("orders", b"1")
        await producer.begin("orders", b"2")
        with pytest.raises(errors.Busy):
            await producer.begin("orders", b"3")
        await first.rollback()
        await producer.begin("orders", b"3")
        for wrong in ({"group": "no group"}, {"check": None}, {"open_max": 0}):
            values: dict[str, Any] = {"group": "payers", "check": never, **wrong}
            with pytest.raises(errors.InvalidArgument):
                cluster.transactional_producer(**values)


async def test_blocking_code_has_transactions_too(tmp_path: Path, nameserver: BrokerRoutes) -> None:
    books = Books()
    books.resolutions[b"left"] = Resolution.COMMIT
    told = threading.Event()

    def story() -> None:
        with (
            rockoon.sync.connect(nameserver.address) as cluster,
            cluster.transactional_producer("payers", check=books.check) as producer,
        ):
            with producer.transaction("orders", b"yes") as transaction:
                assert transaction.resolution is Resolution.UNKNOWN
            assert transaction.resolution is Resolution.COMMIT
            with pytest.raises(ZeroDivisionError), producer.transaction("orders", b"no"):
                raise ZeroDivisionError
            producer.send_in_transaction("orders", b"executed", lambda _: Resolution.COMMIT)
            open_one = producer.begin("orders", b"by hand")
            assert open_one.commit().message_id == open_one.message_id
            producer.begin("orders", b"dropped").rollback()
            producer.send_in_transaction("orders", b"left", lambda _: Resolution.UNKNOWN)
            assert told.wait(DEADLINE_SECONDS)

    async with running_broker(tmp_path, [nameserver.address], **SOON) as broker:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(asyncio.to_thread(story))
            await broker.until(lambda _: b"left" in books.asked)
            await broker.until(lambda described: described.transactions_pending == 0)
            told.set()
        await until_read(broker, [b"by hand", b"executed", b"left", b"yes"])
