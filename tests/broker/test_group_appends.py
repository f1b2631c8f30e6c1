"""Messages of several streams in one loop iteration: one write, and a separate result for each."""

import asyncio
import errno
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gateway.metrics_page import metrics_page
from rockoon.local.directory import choose_port
from rockoon_broker.append import AppendResult
from rockoon_broker.broker import INLINE_BYTES_MAX
from rockoon_broker.clock import SystemClock
from rockoon_broker.idempotence.ledger import Run
from rockoon_broker.rpc import service
from rockoon_broker.rpc.append_stream import (
    GROUP_BATCHES_MAX,
    GROUP_BYTES_MAX,
    AppendResults,
    GroupAppends,
    Waiting,
)
from rockoon_broker.store.log.batch import AppendBatch, RoutedBatch
from rockoon_proto.v1 import broker_pb2 as pb
from rockoon_proto.v1.errors_pb2 import Error
from support.broker import RunningBroker, running_broker
from support.broker_routes import BrokerRoutes
from support.holding_disk import HoldingDisk
from support.joint_batches import batch, joint
from support.store_directory import in_log

STORED = AppendResult((Run(0, 1, 0, 0, 0, b""),), None)


class WritesSeen:
    """An `append_group` that records the number of messages of each write."""

    def __init__(self) -> None:
        self.messages: list[int] = []
        self.failure: Exception | None = None

    def __call__(self, messages: Sequence[Sequence[RoutedBatch]]) -> Sequence[AppendResults]:
        self.messages.append(len(messages))
        if self.failure is not None:
            raise self.failure
        return [[STORED] * len(batches) for batches in messages]


def one(count: int = 1) -> list[RoutedBatch]:
    return [RoutedBatch(AppendBatch("T", number, b"x", b"\1\0\0\0"), 0) for number in range(count)]


class Found:
    """The results of a message: immediately, or at the end of the loop iteration."""

    def __init__(self, turn: GroupAppends, batches: Sequence[RoutedBatch], unanswered: int) -> None:
        self.waiting: asyncio.Future[AppendResults] = asyncio.get_running_loop().create_future()
        self.now = turn.append(batches, self.waiting, unanswered=unanswered)

    async def later(self) -> AppendResults:
        return await self.waiting if self.now is None else self.now


async def test_a_message_alone_is_written_at_once_and_company_waits_for_the_end_of_the_turn() -> (
    None
):
    writes = WritesSeen()
    turn = GroupAppends(writes, SystemClock())
    for _ in range(3):
        turn.unanswered = 1
        assert Found(turn, one(), 1).now == [STORED]
    assert writes.messages == [1, 1, 1]
    # Further messages of its own stream start no group; those of another stream do.
    turn.unanswered = 3
    assert Found(turn, one(), 3).now == [STORED]
    found = [Found(turn, one(2), 1) for _ in range(4)]
    assert writes.messages == [1] * 4
    assert [await each.later() for each in found] == [[STORED] * 2] * 4
    assert writes.messages == [1, 1, 1, 1, 4]
    # There was a group a moment ago: the first message waits too; no other message arrives, so the
    # next one does not wait.
    turn.unanswered = 1
    first = Found(turn, one(), 1)
    assert first.now is None
    assert await first.later() == [STORED]
    assert Found(turn, one(), 1).now == [STORED]
    assert writes.messages == [1, 1, 1, 1, 4, 1, 1]


async def test_what_is_gathered_is_bounded_and_a_failure_reaches_all_that_waited() -> None:
    writes = WritesSeen()
    turn = GroupAppends(writes, SystemClock())
    turn.unanswered = 9
    many = [Found(turn, one(), 1) for _ in range(GROUP_BATCHES_MAX + 1)]
    assert writes.messages == [GROUP_BATCHES_MAX]
    Found(turn, one(), 1).waiting.cancel()
    assert [await each.later() for each in many] == [[STORED]] * (GROUP_BATCHES_MAX + 1)
    assert writes.messages == [GROUP_BATCHES_MAX, 1], "nothing is written for who has gone"
    writes.failure = ValueError("wrong")
    told: list[AppendResults | Exception] = []
    assert turn.append(one(), told.append, unanswered=1) is None
    for each in [Found(turn, one(), 1) for _ in range(2)]:
        with pytest.raises(ValueError, match="wrong"):
            await each.later()
    assert told == [writes.failure]
    writes.failure = None
    assert await Found(turn, one(), 1).later() == [STORED]


async def test_large_messages_do_not_wait_for_further_ones() -> None:
    writes = WritesSeen()
    turn = GroupAppends(writes, SystemClock())
    turn.unanswered = 9
    large = [RoutedBatch(AppendBatch("T", 0, bytes(GROUP_BYTES_MAX // 2), b"\1\0\0\0"), 0)]
    many = [Found(turn, large, 1) for _ in range(3)]
    assert writes.messages == [2]
    assert [await each.later() for each in many] == [[STORED]] * 3
    assert writes.messages == [2, 1]


def gathering(monkeypatch: pytest.MonkeyPatch, count: int) -> list[GroupAppends]:
    """Make each group consist of this number of messages of any streams; return the groups."""
    made: list[GroupAppends] = []

    class Gathering(GroupAppends):
        def append(
            self, batches: Sequence[RoutedBatch], waiting: Waiting, *, unanswered: int
        ) -> AppendResults | None:
            self._expects_more = True
            found = super().append(batches, waiting, unanswered=unanswered)
            if self._flushing is not None:
                self._flushing.cancel()
            if len(self._collected) == count:
                asyncio.get_running_loop().call_soon(self._flush)
            return found

    def make(*given: Any) -> GroupAppends:
        made.append(Gathering(*given))
        return made[-1]

    monkeypatch.setattr(service, "GroupAppends", make)
    return made


async def each_on_its_stream(broker: RunningBroker, *messages: Any) -> list[list[Any]]:
    """Return first queue offset, or the error, of each message's batches."""

    async def told(message: Any) -> list[Any]:
        call = broker.stub.AppendStream()
        await call.write(message)
        reply = await call.read()
        await call.done_writing()
        return [
            Error.Code.Name(each.error.code)
            if each.HasField("error")
            else each.appended.first_queue_offset
            for each in (reply, *reply.more)
        ]

    async with asyncio.TaskGroup() as tasks:
        told_by = [tasks.create_task(told(message), name="stream") for message in messages]
    return [task.result() for task in told_by]


@pytest.mark.parametrize("flush", ["sync", "async"])
async def test_messages_to_one_queue_follow_one_another_and_a_refused_one_fails_no_other(
    tmp_path: Path, nameserver: BrokerRoutes, flush: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gathering(monkeypatch, 6)
    await nameserver.create_topic("T", {"broker-a": 2})
    async with running_broker(tmp_path, [nameserver.address], flush=flush) as broker:
        for queue_id in range(2):
            await broker.append("T", queue_id, b"-")
        broken = batch("T", 0, b"broken")
        broken.frames = broken.frames[:-1] + b"?"
        of_another_queue = batch("T", 1, b"elsewhere")
        of_another_queue.queue_id = 0
        told = await each_on_its_stream(
            broker,
            batch("T", 0, b"a"),
            broken,
            batch("T", 0, b"b", b"b"),
            of_another_queue,
            joint(batch("T", 0, b"c"), batch("T", 1, b"x")),
            joint(batch("T", 1, b"y"), batch("T", 1, b"z")),
        )
        assert told[1] == told[3] == ["MALFORMED_BATCH"]
        bodies = await broker.bodies("T", 0)
        assert sorted(bodies) == [b"-", b"a", b"b", b"b", b"c"]
        for message, body in ((0, b"a"), (2, b"b"), (4, b"c")):
            assert bodies[told[message][0]] == body
        others = await broker.bodies("T", 1)
        assert sorted(others) == [b"-", b"x", b"y", b"z"]
        assert [others[offset] for offset in (told[4][1], *told[5])] == [b"x", b"y", b"z"]


@pytest.mark.parametrize("length", [10, INLINE_BYTES_MAX], ids=["event loop", "thread"])
async def test_each_batch_of_a_message_is_counted_whoever_syncs_it(
    tmp_path: Path, nameserver: BrokerRoutes, length: int
) -> None:
    await nameserver.create_topic("T", {"broker-a": 4})
    port = choose_port(set())
    async with running_broker(
        tmp_path, [nameserver.address], metrics_listen=f"127.0.0.1:{port}"
    ) as broker:
        call = broker.stub.AppendStream()
        # The first batch of a queue is appended alone.
        for each in range(4):
            await call.write(batch("T", each, b"first"))
            await call.read()
        await call.write(joint(*(batch("T", each, bytes(length)) for each in range(4))))
        await call.done_writing()
        answered = 0
        while isinstance(reply := await call.read(), pb.AppendReply):
            answered += 1 + len(reply.more)
        assert answered == 4
        assert (await metrics_page(port)).total("rockoon_appended_batches_total") == 8


async def test_a_repeat_that_comes_in_the_same_turn_is_stored_once(
    tmp_path: Path, nameserver: BrokerRoutes, monkeypatch: pytest.MonkeyPatch
) -> None:
    gathering(monkeypatch, 3)
    await nameserver.create_topic("T", {"broker-a": 1})
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        await broker.append("T", 0, b"-")
        numbered = batch("T", 0, b"a", b"b", numbers=(7, 0))
        other = batch("T", 0, b"c", numbers=(8, 0))
        told = await each_on_its_stream(broker, numbered, numbered, other)
        assert told[0] == told[1]
        bodies = await broker.bodies("T", 0)
        assert sorted(bodies) == [b"-", b"a", b"b", b"c"]
        assert bodies[told[0][0]] == b"a"
        assert bodies[told[2][0]] == b"c"


async def test_batches_of_one_idempotent_producer_in_one_group_are_stored_in_their_order(
    tmp_path: Path, nameserver: BrokerRoutes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one message and in two: the second batch follows the first, and a repeat is recognised."""
    gathering(monkeypatch, 3)
    await nameserver.create_topic("T", {"broker-a": 2})
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        for queue_id in range(2):
            await broker.append("T", queue_id, b"-")
        told = await each_on_its_stream(
            broker,
            joint(
                batch("T", 0, b"a", b"b", numbers=(7, 0)),
                batch("T", 0, b"c", numbers=(7, 2)),
                batch("T", 0, b"c", numbers=(7, 2)),
                batch("T", 1, b"x", numbers=(7, 0)),
            ),
            batch("T", 1, b"y", numbers=(7, 1)),
            batch("T", 0, b"other", numbers=(9, 0)),
        )
        bodies = await broker.bodies("T", 0)
        assert sorted(bodies) == [b"-", b"a", b"b", b"c", b"other"]
        first, second, again, elsewhere = told[0]
        assert (bodies[first], bodies[first + 1]) == (b"a", b"b")
        assert bodies[second] == b"c"
        assert (second > first + 1, again) == (True, second)
        assert await broker.bodies("T", 1) == [b"-", b"x", b"y"]
        assert (elsewhere, told[1]) == (1, [2])
        assert bodies[told[2][0]] == b"other"


async def test_a_failed_sync_refuses_each_batch_of_its_group(
    tmp_path: Path, nameserver: BrokerRoutes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rockoon_broker.broker.INLINE_BYTES_MAX", 0)
    gathering(monkeypatch, 3)
    await nameserver.create_topic("T", {"broker-a": 2})
    disk = HoldingDisk()
    async with running_broker(tmp_path, [nameserver.address], disk=disk) as broker:
        for queue_id in range(2):
            await broker.append("T", queue_id, b"-")
        disk.hold()
        async with asyncio.TaskGroup() as tasks:
            sent = tasks.create_task(
                each_on_its_stream(
                    broker,
                    batch("T", 0, b"lost"),
                    joint(batch("T", 0, b"lost"), batch("T", 1, b"lost")),
                    batch("T", 1, b"lost", numbers=(7, 0)),
                )
            )
            await broker.until(lambda seen: seen.messages_appended == 6)
            disk.fail_sync = lambda path: errno.EIO if in_log(path) else 0
            disk.release()
        failed = "STORE_FAILED"
        assert sent.result() == [[failed], [failed] * 2, [failed]]
        await broker.stop.wait()


async def test_a_sender_that_goes_away_takes_no_other_one_of_its_turn_along(
    tmp_path: Path, nameserver: BrokerRoutes, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The event loop, which runs short syncs itself, would wait for the disk that the test holds.
    monkeypatch.setattr("rockoon_broker.broker.INLINE_BYTES_MAX", 0)
    turns = gathering(monkeypatch, 2)
    await nameserver.create_topic("T", {"broker-a": 1})
    disk = HoldingDisk()
    async with running_broker(tmp_path, [nameserver.address], disk=disk) as broker:
        await broker.append("T", 0, b"-")
        disk.hold()
        going, staying = broker.stub.AppendStream(), broker.stub.AppendStream()
        await going.write(batch("T", 0, b"gone"))
        await staying.write(batch("T", 0, b"here"))
        await broker.until(lambda seen: seen.messages_appended == 3)
        going.cancel()
        await broker.until(lambda _: turns[0].unanswered == 1)
        disk.release()
        reply: pb.AppendReply = await staying.read()
        assert reply.HasField("appended")
        assert sorted(await broker.bodies("T", 0)) == [b"-", b"gone", b"here"]


@pytest.mark.parametrize("flush", ["sync", "async"])
async def test_what_is_sent_without_waiting_is_placed_and_answered_in_its_order(
    tmp_path: Path, nameserver: BrokerRoutes, flush: str
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    async with running_broker(tmp_path, [nameserver.address], flush=flush) as broker:

        async def told(name: str) -> list[str]:
            """Send without a pause; every third message is refused, because it is appended
            alone."""
            call, replies = broker.stub.AppendStream(), list[Any]()
            for number in range(60):
                message = batch("T", 0 if number % 3 else 9, f"{name}{number}".encode())
                message.request_id = number + 1
                await call.write(message)
                if number % 20 == 19:
                    # When the next message arrives, no message lacks a reply.
                    replies += [await call.read() for _ in range(20)]
            assert [each.request_id for each in replies] == [n + 1 for n in range(60)]
            assert [each.HasField("error") for each in replies] == [n % 3 == 0 for n in range(60)]
            return [f"{name}{n}" for n in range(60) if n % 3]

        async with asyncio.TaskGroup() as tasks:
            sent = [tasks.create_task(told(name), name="stream") for name in "abcd"]
        bodies = [each.decode() for each in await broker.bodies("T", 0)]
        for each in sent:
            assert [body for body in bodies if body[0] == each.result()[0][0]] == each.result()
