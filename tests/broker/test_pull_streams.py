"""One stream for the queues of a reader: credit, ends of one queue, and ends of the stream."""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rockoon_broker.append import Appends
from rockoon_broker.clock import SystemClock
from rockoon_broker.pull import PullResult
from rockoon_broker.rpc import pull_stream
from rockoon_broker.rpc.pull_answers import (
    STATUSES,
    PullAnswer,
    answer_of,
    newest_answer,
    refusal_of,
    stream_reply,
)
from rockoon_broker.rpc.service import BrokerService
from rockoon_broker.store.reading.reader import GetResult, GetStatus, NewestBatch
from rockoon_broker.topics.served_topics import ServedTopics
from rockoon_core import errors
from rockoon_format.hashes import java_hash_code
from rockoon_proto.v1 import broker_pb2 as pb
from rockoon_rpc.server_connection import ServerConnection
from rockoon_runtime.access.callers import Caller, OpenCall
from rockoon_runtime.access.keys import KeyTable
from rockoon_runtime.access.rules import Rule, nothing_more
from rockoon_runtime.error_guard import CallTimes
from support import http2_frames as frames
from support.broker import bodies_of, running_broker
from support.broker_routes import BrokerRoutes
from support.joint_batches import batch
from support.kernels import BOTH, using
from support.pull_stream import PLENTY, reading

TAG_B = java_hash_code("TagB")


async def test_a_subscription_is_answered_at_once_and_then_as_messages_come(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 2})
    async with (
        running_broker(tmp_path, [nameserver.address]) as broker,
        reading(broker.stub) as reader,
    ):
        await broker.append("T", 0, b"0", b"1")
        old, empty = await reader.subscribe("T", 0), await reader.subscribe("T", 1)
        first, nothing = await reader.answer(), await reader.answer()
        assert (first.subscription_id, first.next_offset, first.max_offset) == (old, 2, 2)
        assert bodies_of(first) == [b"0", b"1"]
        assert (nothing.subscription_id, nothing.next_offset, nothing.ended) == (empty, 0, False)
        assert (await broker.describe()).pull_subscriptions == 2
        for serial in range(3):
            await broker.append("T", serial % 2, b"new %d" % serial)
            assert await reader.bodies((old, empty)[serial % 2]) == [b"new %d" % serial]


def writes_of_brokers(monkeypatch: pytest.MonkeyPatch, nameserver: str) -> list[bytes]:
    """Return a list that gets each write of the brokers of this process from now on.

    Args:
        nameserver: address of the nameserver of this process, whose writes are left out.
    """
    writes: list[bytes] = []
    nameserver_port = int(nameserver.rpartition(":")[2])

    class Noting:
        def __init__(self, transport: Any) -> None:
            self._transport = transport

        def __getattr__(self, name: str) -> Any:
            return getattr(self._transport, name)

        def write(self, data: bytes) -> None:
            if self._transport.get_extra_info("sockname")[1] != nameserver_port:
                writes.append(bytes(data))
            self._transport.write(data)

    made = ServerConnection.connection_made
    monkeypatch.setattr(
        ServerConnection,
        "connection_made",
        lambda connection, transport: made(connection, Noting(transport)),
    )
    return writes


@pytest.mark.parametrize("flush", ["async", "sync"])
async def test_an_answer_and_the_message_for_a_reader_of_one_connection_are_one_write(
    tmp_path: Path, nameserver: BrokerRoutes, monkeypatch: pytest.MonkeyPatch, flush: str
) -> None:
    writes = writes_of_brokers(monkeypatch, nameserver.address)
    await nameserver.create_topic("T", {"broker-a": 1})
    async with (
        running_broker(tmp_path, [nameserver.address], flush=flush) as broker,
        reading(broker.stub) as reader,
    ):
        number = await reader.subscribe("T")
        await reader.answer()
        call = broker.stub.AppendStream()
        for serial in range(3):
            # Before the first message no reader waits.
            writes.clear()
            body = b"%d" % serial
            await call.write(batch("T", 0, body, request_id=serial))
            assert (await call.read()).request_id == serial
            assert await reader.bodies(number) == [body]
        kinds = [each[3] for each in writes]
        assert [kind for kind in kinds if kind != frames.PING] == [frames.DATA]
        await call.done_writing()


async def test_a_message_leaves_in_the_iteration_of_the_loop_in_which_it_is_durable(
    tmp_path: Path, nameserver: BrokerRoutes, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = writes_of_brokers(monkeypatch, nameserver.address)
    written: list[list[bytes]] = []
    confirmed = Appends.confirmed

    def noting(appends: Appends, end: int) -> None:
        before = len(writes)
        confirmed(appends, end)
        written.append(writes[before:])

    monkeypatch.setattr(Appends, "confirmed", noting)
    # A thread syncs, as for a slow disk.
    monkeypatch.setattr("rockoon_broker.broker.INLINE_BYTES_MAX", 0)
    await nameserver.create_topic("T", {"broker-a": 1})
    async with (
        running_broker(tmp_path, [nameserver.address], flush="sync") as broker,
        reading(broker.stub) as reader,
    ):
        number = await reader.subscribe("T")
        await reader.answer()
        for serial in range(3):
            body = b"body %d" % serial
            written.clear()
            await broker.append("T", 0, body)
            assert await reader.bodies(number) == [body]
            assert [body in each for each in map(b"".join, written)].count(True) == 1


async def test_credit_bounds_what_comes_of_a_queue_and_holds_no_other_one(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 2})
    async with (
        running_broker(tmp_path, [nameserver.address]) as broker,
        reading(broker.stub) as reader,
    ):
        for queue_id in (0, 1):
            for first in range(0, 100, 10):
                bodies = [b"%d" % number for number in range(first, first + 10)]
                await broker.append("T", queue_id, *bodies)
        slow = await reader.subscribe("T", 0, messages=25, max_messages=10)
        assert [len(await reader.bodies(slow)) for _ in range(3)] == [10, 10, 5]
        quick = await reader.subscribe("T", 1, max_messages=50)
        assert [len(await reader.bodies(quick)) for _ in range(2)] == [50, 50]
        # No answer before there is more credit, and then from the former offset.
        await broker.append("T", 0, b"100")
        await broker.append("T", 1, b"100")
        assert await reader.bodies(quick) == [b"100"]
        await reader.give(slow, 1)
        assert await reader.bodies(slow) == [b"25"]


async def test_credit_in_bytes_lets_the_first_message_pass(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 2})
    async with (
        running_broker(tmp_path, [nameserver.address]) as broker,
        reading(broker.stub) as reader,
    ):
        huge = b"h" * (3 << 20)
        await broker.append("T", 0, huge)
        await broker.append("T", 0, b"small")
        number = await reader.subscribe("T", 0, size=100)
        assert await reader.bodies(number) == [huge]
        await reader.give(number, 0, 100)
        other = await reader.subscribe("T", 1)
        assert (await reader.answer()).subscription_id == other
        # Messages beyond the credit are owed.
        await reader.give(number, 0, len(huge) + 1000)
        assert await reader.bodies(number) == [b"small"]


async def test_a_reader_that_gives_no_credit_gets_nothing_and_costs_nothing(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    async with (
        running_broker(tmp_path, [nameserver.address]) as broker,
        reading(broker.stub) as poor,
        reading(broker.stub) as rich,
    ):
        await broker.append("T", 0, b"0")
        number = await poor.subscribe("T", messages=0)
        await broker.until(lambda seen: seen.pull_subscriptions == 1)
        assert await rich.bodies(await rich.subscribe("T")) == [b"0"]
        assert (await broker.describe()).messages_pulled == 1
        await poor.give(number, 1, 1)
        assert await poor.bodies(number) == [b"0"]


async def test_queues_that_are_ready_together_come_in_few_replies(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    queues = 250
    await nameserver.create_topic("T", {"broker-a": queues})
    async with (
        running_broker(tmp_path, [nameserver.address]) as broker,
        reading(broker.stub) as reader,
    ):
        for queue_id in range(queues):
            await broker.append("T", queue_id, b"%d" % queue_id)
        wanted = [
            pb.PullSubscription(id=1 + number, pull=pb.PullRequest(topic="T", queue_id=number))
            for number in range(queues)
        ]
        credit = [pb.PullCredit(id=each.id, messages=10, bytes=PLENTY) for each in wanted]
        await reader.write(subscribe=wanted, credit=credit)
        found = [await reader.answer() for _ in range(queues)]
        assert {each.subscription_id for each in found} == set(range(1, queues + 1))
        assert all(bodies_of(each) == [b"%d" % (each.subscription_id - 1)] for each in found)
        assert reader.replies < queues / 4
        assert (await broker.describe()).pull_subscriptions == queues


async def test_a_queue_is_read_elsewhere_on_the_same_stream(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    async with (
        running_broker(tmp_path, [nameserver.address]) as broker,
        reading(broker.stub) as reader,
    ):
        await broker.append("T", 0, b"0", b"1", b"2")
        first = await reader.subscribe("T")
        assert len(await reader.bodies(first)) == 3
        await reader.write(unsubscribe=[first, 77])
        again = await reader.subscribe("T", 0, 1)
        assert await reader.bodies(again) == [b"1", b"2"]
        await broker.append("T", 0, b"3")
        assert await reader.bodies(again) == [b"3"]
        assert (await broker.describe()).pull_subscriptions == 1


async def test_what_cannot_be_read_ends_its_subscription_alone(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    await nameserver.create_topic("WriteOnly", {"broker-a": 1}, permissions=2)
    cases: list[tuple[dict[str, Any], type[errors.RockoonError]]] = [
        ({"topic": "Nowhere"}, errors.TopicNotFound),
        ({"topic": "T", "queue_id": 1}, errors.QueueNotFound),
        ({"topic": "WriteOnly"}, errors.TopicNotReadable),
        ({"topic": "T", "offset": -1}, errors.InvalidOffset),
        ({"topic": "T", "tag_hashes": [1] * 5000}, errors.InvalidArgument),
        ({"topic": "T", "sql_expression": "price >"}, errors.InvalidExpression),
        ({"topic": "T", "route_revision": 1 << 40, "queue_id": 1}, errors.RouteNotReached),
    ]
    async with (
        running_broker(tmp_path, [nameserver.address]) as broker,
        reading(broker.stub) as reader,
    ):
        await broker.append("T", 0, b"0", b"1")
        good = await reader.subscribe("T")
        assert len(await reader.bodies(good)) == 2
        for fields, error in cases:
            refusal = await reader.refusal(await reader.subscribe(**fields))
            assert isinstance(refusal, error), fields
        for offset in (3, 9):
            beyond = await reader.subscribe("T", 0, offset)
            answer = await reader.answer()
            assert (answer.subscription_id, answer.ended) == (beyond, True)
            assert (answer.status, answer.max_offset) == (pb.OFFSET_OVERFLOW_BADLY, 2)
        await broker.append("T", 0, b"2")
        assert await reader.bodies(good) == [b"2"]
        assert (await broker.describe()).pull_subscriptions == 1


async def test_a_topic_that_is_deleted_ends_its_subscriptions(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    await nameserver.create_topic("Other", {"broker-a": 1})
    async with (
        running_broker(tmp_path, [nameserver.address]) as broker,
        reading(broker.stub) as reader,
    ):
        number, other = await reader.subscribe("T"), await reader.subscribe("Other")
        assert {(await reader.answer()).subscription_id for _ in range(2)} == {number, other}
        await nameserver.delete_topic("T")
        assert isinstance(await reader.refusal(number), errors.TopicNotFound)
        await broker.append("Other", 0, b"x")
        assert await reader.bodies(other) == [b"x"]


async def test_a_filter_skips_what_others_want_and_says_how_far(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 2})
    async with (
        running_broker(tmp_path, [nameserver.address]) as broker,
        reading(broker.stub) as reader,
    ):
        await broker.append("T", 0, b"0", b"1", tags="TagA")
        number = await reader.subscribe("T", tag_hashes=[TAG_B], wait_ms=10)
        answer = await reader.answer()
        assert (answer.status, answer.next_offset) == (pb.NO_MATCHED_MESSAGE, 2)
        await broker.append("T", 0, b"2", tags="TagA")
        answer = await reader.answer()
        assert (answer.subscription_id, answer.status) == (number, pb.NO_MATCHED_MESSAGE)
        assert (answer.next_offset, answer.max_offset, answer.ended) == (3, 3, False)
        await broker.append("T", 0, b"3", b"4", tags=["TagA", "TagB"])
        answer = await reader.answer()
        assert (bodies_of(answer), answer.next_offset) == ([b"4"], 5)
        selects = await reader.subscribe("T", sql_expression="TAGS = 'TagB'")
        answer = await reader.answer()
        assert (answer.subscription_id, bodies_of(answer)) == (selects, [b"4"])


async def test_a_reader_that_vanishes_leaves_nothing_behind(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 2})
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        async with reading(broker.stub) as reader:
            await broker.append("T", 0, *[b"x" * 1000] * 1000)
            for queue_id in (0, 1):
                # No reader reads the answers of the first stream.
                await reader.subscribe("T", queue_id)
            await broker.until(lambda seen: seen.pull_subscriptions == 2)
        await broker.until(lambda seen: seen.pull_subscriptions == 0)
        await broker.append("T", 1, b"x")


async def test_a_broker_that_stops_ends_the_stream_and_says_why(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    async with (
        running_broker(tmp_path, [nameserver.address]) as broker,
        reading(broker.stub) as reader,
    ):
        await reader.subscribe("T")
        await reader.answer()
        broker.stop.request("the test wants it")
        with pytest.raises(errors.NotReady, match="stopping"):
            await reader.answer()


async def test_a_request_that_makes_no_sense_ends_the_stream(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    twice = [pb.PullSubscription(id=1, pull=pb.PullRequest(topic="T"))] * 2
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        for fields in (
            {"subscribe": twice},
            {"subscribe": twice[:1], "credit": [pb.PullCredit(id=1, messages=-1)]},
        ):
            async with reading(broker.stub) as reader:
                await reader.write(**fields)
                with pytest.raises(errors.InvalidArgument):
                    await reader.answer()


async def test_a_leader_that_was_deposed_sends_nobody_back(
    tmp_path: Path, nameserver: BrokerRoutes, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asyncio.Event()
    serve = BrokerService.serve

    async def confirmed() -> None:
        asked.set()
        raise errors.NotLeader(replica="broker-a-0", log="broker-a")

    monkeypatch.setattr(
        BrokerService, "serve", lambda service, broker: serve(service, broker, confirmed)
    )
    await nameserver.create_topic("T", {"broker-a": 1})
    async with (
        running_broker(tmp_path, [nameserver.address]) as broker,
        reading(broker.stub) as reader,
    ):
        await broker.append("T", 0, b"0")
        number = await reader.subscribe("T")
        assert await reader.bodies(number) == [b"0"]
        assert not asked.is_set()
        # Its end may be older than the messages that this reader has read from the next leader.
        refusal = await reader.refusal(await reader.subscribe("T", 0, 2))
        assert isinstance(refusal, errors.NotLeader)
        await broker.append("T", 0, b"1")
        assert await reader.bodies(number) == [b"1"]


async def test_a_bug_met_by_one_stream_ends_that_one(
    tmp_path: Path, nameserver: BrokerRoutes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise ZeroDivisionError

    await nameserver.create_topic("T", {"broker-a": 1})
    async with (
        running_broker(tmp_path, [nameserver.address]) as broker,
        reading(broker.stub) as reader,
        reading(broker.stub) as other,
    ):
        number = await other.subscribe("T")
        await other.answer()
        monkeypatch.setattr(ServedTopics, "catch_up", broken)
        await reader.subscribe("T", route_revision=1 << 40)
        with pytest.raises(errors.Internal, match="ZeroDivisionError"):
            await reader.answer()
        monkeypatch.undo()
        await broker.append("T", 0, b"x")
        assert await other.bodies(number) == [b"x"]


async def test_a_bug_met_where_what_came_is_sent_ends_the_stream_and_is_told(
    tmp_path: Path, nameserver: BrokerRoutes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its queues would get no answer, and the stream would still look alive."""

    def broken(_: object) -> bytes:
        raise ZeroDivisionError

    await nameserver.create_topic("T", {"broker-a": 1})
    async with (
        running_broker(tmp_path, [nameserver.address]) as broker,
        reading(broker.stub) as reader,
    ):
        await reader.subscribe("T")
        await reader.answer()
        monkeypatch.setattr(pull_stream, "stream_reply", broken)
        await broker.append("T", 0, b"x")
        with pytest.raises(errors.Internal, match="ZeroDivisionError"):
            await reader.answer()


class Sent:
    """A reader that reads and records all answers."""

    has_room = True

    def __init__(self) -> None:
        self.replies: list[bytes] = []
        self.connection = SimpleNamespace(before_flush=asyncio.get_running_loop().call_soon)

    def check_may_answer(self) -> None:
        pass

    def queue_message(self, message: bytes) -> None:
        self.replies.append(message)


@pytest.mark.parametrize("ends", [False, True])
async def test_whose_call_has_to_end_is_sent_nothing_that_was_about_to_be_sent(ends: bool) -> None:
    nothing: Any = SimpleNamespace(
        topics=SimpleNamespace(table=SimpleNamespace(revision=0)),
        appends=SimpleNamespace(after_confirmed=None),
    )
    sent: Any = Sent()
    open_call = OpenCall(Rule(nothing_more), None, b"")

    async def requests() -> AsyncIterator[pb.PullStreamRequest]:
        # Refused because the key does not exist; the refusal is sent at the end of the turn.
        yield pb.PullStreamRequest(subscribe=[pb.PullSubscription(id=1)])
        if ends:
            open_call.refusal = errors.NotAuthenticated("no more")
        await asyncio.Event().wait()

    async def answer(stream: pull_stream.PullStreamCall) -> None:
        async for _ in stream.answers():
            pass

    async with asyncio.TaskGroup() as tasks:
        stream = pull_stream.PullStreamCall(
            nothing,
            Caller(KeyTable(tuple), "shop", open_call),
            tasks,
            CallTimes(),
            SystemClock(),
            confirm_leader=None,
            room=lambda: 1,
            tracing=None,
            reader=sent,
        )
        answering = tasks.create_task(answer(stream), name="answers")
        reading_on = tasks.create_task(stream.read(requests()), name="requests")
        for _ in range(3):
            await asyncio.sleep(0)
        assert len(sent.replies) == (0 if ends else 1)
        reading_on.cancel()
        answering.cancel()


async def test_a_subscription_too_many_is_told_to_come_again(
    tmp_path: Path, nameserver: BrokerRoutes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rockoon_broker.rpc.service.SUBSCRIPTIONS_MAX", 1)
    await nameserver.create_topic("T", {"broker-a": 1})
    async with (
        running_broker(tmp_path, [nameserver.address]) as broker,
        reading(broker.stub) as reader,
    ):
        first = await reader.subscribe("T")
        await reader.answer()
        refusal = await reader.refusal(await reader.subscribe("T"))
        assert isinstance(refusal, errors.Busy)
        assert refusal.retriable
        await reader.write(unsubscribe=[first])
        await reader.subscribe("T")
        assert not (await reader.answer()).ended


async def test_a_stream_with_nothing_to_say_gives_signs_of_life(
    tmp_path: Path, nameserver: BrokerRoutes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull_stream, "BEAT_SECONDS", 0.05)
    await nameserver.create_topic("T", {"broker-a": 1})
    async with (
        running_broker(tmp_path, [nameserver.address]) as broker,
        reading(broker.stub) as reader,
        asyncio.timeout(55.0),
    ):
        for _ in range(3):
            assert list((await reader.call.read()).answers) == []


def parsed_answer(answer: PullAnswer) -> pb.PullStreamReply:
    return pb.PullStreamReply.FromString(b"".join(stream_reply([answer])))


@pytest.mark.parametrize("choice", BOTH)
async def test_readers_of_any_credit_and_filter_get_all_that_they_want_in_order(
    tmp_path: Path, nameserver: BrokerRoutes, choice: str
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    await nameserver.create_topic("T", {"broker-a": 2})
    wanted: dict[int, list[bytes]] = {}
    got: dict[int, list[bytes]] = {}
    queue_of: dict[int, int] = {}
    with using(choice):
        async with (
            running_broker(tmp_path, [nameserver.address]) as broker,
            reading(broker.stub) as reader,
        ):
            for queue_id in (0, 1):
                for more in ({}, {"max_messages": 2}, {"tag_hashes": [TAG_B]}):
                    number = await reader.subscribe("T", queue_id, messages=1, **more)
                    wanted[number], got[number], queue_of[number] = [], [], queue_id
            next_offsets = dict.fromkeys(wanted, 0)
            for serial in range(40):
                queue_id, tag = rng.randrange(2), rng.choice(["TagA", "TagB"])
                bodies = [b"%d.%d" % (serial, n) for n in range(rng.choice([1, 1, 1, 2, 5]))]
                await broker.append("T", queue_id, *bodies, tags=tag)
                for number, messages in wanted.items():
                    if queue_of[number] == queue_id and (number % 3 or tag == "TagB"):
                        messages += bodies
                # All streams except one may be late.
                for number in wanted:
                    if number == 1 or rng.random() < 0.3:
                        await reader.give(number, rng.randrange(1, 4))
            for number in wanted:
                await reader.give(number, PLENTY // 2)
            while got != wanted:
                answer = await reader.answer()
                number = answer.subscription_id
                assert not answer.ended
                assert answer.min_offset == 0
                assert next_offsets[number] <= answer.next_offset <= answer.max_offset
                next_offsets[number] = answer.next_offset
                got[number] += bodies_of(answer)
                assert got[number] == wanted[number][: len(got[number])]


@pytest.mark.parametrize("choice", BOTH)
@pytest.mark.parametrize("count", [0, 1, 127, 16_384, 3_000_000])
def test_answers_that_go_out_uncopied_are_the_same_message(count: int, choice: str) -> None:
    rng = random.Random(count)
    answers, whole = [], []
    for size in (count, 0, 3):
        # Zeros are left out of a message.
        next_offset, least, most, number = (rng.choice([0, 127, 128, 1 << 62]) for _ in range(4))
        found = GetResult(
            GetStatus.FOUND,
            next_offset,
            least,
            most,
            rng.randbytes(size),
            np.arange(size % 70, dtype=np.uint32),
        )
        status, ended = rng.choice(list(GetStatus)), rng.random() < 0.5
        with using(choice):
            answers.append(answer_of(PullResult(status, next_offset, found), number, ended=ended))
            lengths = found.lengths.astype("<u4").tobytes()
            newest = newest_answer(
                NewestBatch(lengths, found.frames, least, most), next_offset, number
            )
            same = answer_of(PullResult(GetStatus.FOUND, next_offset, found), number)
            assert parsed_answer(newest) == parsed_answer(same)
            alone = b"".join(stream_reply([answer_of(PullResult(status, next_offset, found))]))
        own = pb.PullReply(
            status=STATUSES[status],
            next_offset=next_offset,
            min_offset=least,
            max_offset=most,
            frames=found.frames,
            record_lengths=found.lengths.astype("<u4").tobytes(),
        )
        assert pb.PullReply.FromString(alone) == own
        own.subscription_id, own.ended = number, ended
        whole.append(own)
    answers.append(refusal_of(errors.QueueNotFound(topic="T", queue=0, broker="b"), 5))
    message = b"".join(stream_reply(answers))
    *first, refused = pb.PullStreamReply.FromString(message).answers
    assert first == whole
    assert (refused.subscription_id, refused.ended, refused.HasField("error")) == (5, True, True)
