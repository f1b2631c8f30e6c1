"""One message of an append stream with batches of many queues: each is stored or refused alone."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from grpc import aio

from rockoon_broker.append import AppendResult
from rockoon_broker.clock import SystemClock
from rockoon_broker.rpc.append_stream import (
    BATCHES_MAX,
    AppendResults,
    AppendStreamCall,
    GroupAppends,
)
from rockoon_broker.rpc.large_requests import LARGE_BYTES, Request
from rockoon_broker.store.log.batch import RoutedBatch
from rockoon_core import errors
from rockoon_proto.v1 import broker_pb2 as pb
from rockoon_proto.v1.errors_pb2 import Error
from rockoon_runtime.error_guard import CallTimes
from support.broker import RunningBroker, running_broker
from support.broker_routes import BrokerRoutes
from support.holding_disk import HoldingDisk
from support.joint_batches import answers_of, batch, joint
from support.kernels import BOTH, using


async def told(broker: RunningBroker, *messages: Any) -> list[list[object]]:
    """Return the replies to each message's batches: first queue offset, or the error."""
    call = broker.stub.AppendStream()
    answers = []
    for message in messages:
        await call.write(message)
        reply = await call.read()
        replies = [reply, *reply.more]
        sent = [message.request_id, *(each.request_id for each in message.more)]
        assert [each.request_id for each in replies] == sent
        answers.append(
            [
                Error.Code.Name(each.error.code)
                if each.HasField("error")
                else each.appended.first_queue_offset
                for each in replies
            ]
        )
    await call.done_writing()
    return answers


@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("choice", BOTH)
async def test_batches_of_one_message_are_stored_each_in_its_queue_and_in_its_order(
    tmp_path: Path, nameserver: BrokerRoutes, flush: str, choice: str
) -> None:
    await nameserver.create_topic("T", {"broker-a": 20})
    await nameserver.create_topic("U", {"broker-a": 1})
    with using(choice):
        async with running_broker(tmp_path, [nameserver.address], flush=flush) as broker:
            queues = [("T", queue_id) for queue_id in range(20)] + [("U", 0)]
            messages = [
                joint(
                    *(
                        batch(*queue, *(b"%d-%d" % (turn, n) for n in range(turn)), request_id=id_)
                        for id_, queue in enumerate(queues, 100 * turn)
                    )
                )
                for turn in range(1, 4)
            ]
            assert await told(broker, *messages) == [[0] * 21, [1] * 21, [3] * 21]
            bodies = [b"%d-%d" % (turn, n) for turn in range(1, 4) for n in range(turn)]
            for queue in queues:
                assert await broker.bodies(*queue) == bodies
    async with running_broker(tmp_path, [nameserver.address], flush=flush) as broker:
        for queue in queues:
            assert await broker.bodies(*queue) == bodies, "after a start"


async def test_a_refused_batch_fails_no_other_of_its_message(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 4})
    await nameserver.create_topic("ReadOnly", {"broker-a": 1}, permissions=4)
    torn = batch("T", 1, b"torn")
    torn.frames = torn.frames[:-30] + b"X" + torn.frames[-29:]
    lengths = batch("T", 1, b"odd lengths")
    lengths.record_lengths += b"1"
    nested = batch("T", 1, b"nested")
    nested.more.add().CopyFrom(batch("T", 2, b"deep"))
    async with running_broker(tmp_path, [nameserver.address], body_bytes_max=100) as broker:
        for turn in range(2):
            answers = await told(
                broker,
                joint(
                    batch("T", 0, b"a", request_id=1),
                    batch("Nowhere", 0, b"x", request_id=2),
                    torn,
                    batch("T", 2, b"b", b"c", request_id=4),
                    batch("T", 3, b"x" * 101, request_id=5),
                    batch("ReadOnly", 0, b"x"),
                    pb.AppendRequest(topic="T", queue_id=3),
                    lengths,
                    batch("T", 9, b"x"),
                ),
            )
            assert answers == [
                [
                    turn,
                    "TOPIC_NOT_FOUND",
                    "MALFORMED_BATCH",
                    2 * turn,
                    "BODY_TOO_LARGE",
                    "TOPIC_NOT_WRITABLE",
                    "MALFORMED_BATCH",
                    "MALFORMED_BATCH",
                    "QUEUE_NOT_FOUND",
                ]
            ]
        assert await broker.bodies("T", 0) == [b"a"] * 2
        assert await broker.bodies("T", 2) == [b"b", b"c"] * 2
        assert await told(broker, joint(batch("T", 0, b"x"), nested)) == [["INVALID_ARGUMENT"] * 2]
        many = joint(*(batch("T", 0, b"x") for _ in range(BATCHES_MAX + 1)))
        with pytest.raises(aio.AioRpcError, match=f"more than {BATCHES_MAX} batches"):
            await told(broker, many)
        assert len(await broker.bodies("T", 0)) == 2
        with pytest.raises(errors.InvalidArgument, match="AppendStream"):
            await broker.call("Append", joint(batch("T", 0, b"x"), batch("T", 1, b"y")))


async def test_a_hostile_message_ends_its_call_and_nothing_else(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    hostile = pb.AppendRequest(more=[pb.AppendRequest()] * LARGE_BYTES).SerializeToString()
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        with pytest.raises(aio.AioRpcError, match="1024 fields"):
            await broker.channel.unary_unary("/rockoon.v1.Broker/Append")(hostile)
        call: Any = broker.channel.stream_stream("/rockoon.v1.Broker/AppendStream")()
        await call.write(hostile)
        with pytest.raises(aio.AioRpcError, match="1024 fields"):
            await call.read()
        large = b"x" * (2 * LARGE_BYTES)
        assert (await broker.append("T", 0, large)).first_queue_offset == 0
        assert await broker.bodies("T") == [large]


async def test_two_batches_of_one_queue_stay_in_their_order(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 2})
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        message = joint(
            batch("T", 0, b"1"), batch("T", 1, b"x"), batch("T", 0, b"2", b"3"), batch("T", 0, b"4")
        )
        assert await told(broker, message, message) == [[0, 0, 1, 3], [4, 1, 5, 7]]
        assert await broker.bodies("T", 0) == [b"1", b"2", b"3", b"4"] * 2


async def test_a_traced_batch_is_before_others_of_its_queue_that_follow(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 2})
    traced = batch("T", 0, b"1", traceparent=f"00-{1:032x}-{1:016x}-01")
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        message = joint(traced, batch("T", 0, b"2"), batch("T", 1, b"x"))
        assert await told(broker, message, message) == [[0, 1, 0], [2, 3, 1]]
        assert await broker.bodies("T", 0) == [b"1", b"2"] * 2


async def test_idempotent_delayed_and_compacted_batches_go_along(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 4})
    await nameserver.create_topic("C", {"broker-a": 1}, cleanup_policy="COMPACTION")
    delayed = batch("T", 3, b"later", handling=pb.DELAYED)
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        await told(broker, joint(batch("T", 0, b"-"), batch("T", 1, b"-"), batch("T", 2, b"-")))
        message = joint(
            batch("T", 0, b"a", b"b", numbers=(7, 0)),
            batch("T", 1, b"c", numbers=(7, 0)),
            batch("T", 2, b"gap", numbers=(7, 5)),
            delayed,
            batch("C", 0, b"without a key"),
        )
        first, again = await told(broker, message, message)
        assert first[:3] == [1, 1, "SEQUENCE_UNKNOWN"]
        assert again[:2] == [1, 1], "a repeat is where it is already"
        assert first[3] == "INVALID_DELAY"
        assert first[4] == again[4] == "KEY_MISSING"
        further = joint(batch("T", 0, b"d", numbers=(7, 2)), batch("T", 1, b"e", numbers=(7, 3)))
        assert await told(broker, further) == [[3, "SEQUENCE_GAP"]]
        assert await broker.bodies("T", 0) == [b"-", b"a", b"b", b"d"]
        assert await broker.bodies("T", 1) == [b"-", b"c"]


async def test_one_sync_and_one_write_serve_a_message_of_known_queues(
    tmp_path: Path, nameserver: BrokerRoutes, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The event loop, which runs short syncs itself, would wait for the disk that the test holds.
    monkeypatch.setattr("rockoon_broker.broker.INLINE_BYTES_MAX", 0)
    await nameserver.create_topic("T", {"broker-a": 50})
    disk = HoldingDisk()
    async with running_broker(tmp_path, [nameserver.address], disk=disk) as broker:
        message = joint(*(batch("T", queue_id, b"x") for queue_id in range(50)))
        await told(broker, message)
        disk.hold()
        call = broker.stub.AppendStream()
        await call.write(message)
        await broker.until(lambda seen: seen.messages_appended == 100)
        assert await broker.bodies("T", 7) == [b"x"], "not seen before it is durable"
        disk.release()
        reply = await call.read()
        assert reply.batches_max == BATCHES_MAX
        assert [each.appended.first_queue_offset for each in (reply, *reply.more)] == [1] * 50
        assert await broker.bodies("T", 7) == [b"x"] * 2


async def test_messages_wait_for_room_and_small_files_take_batches_alone(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 8})
    settings = {"unsynced_bytes_max": 4096, "commit_log_file_bytes": 8192}
    async with running_broker(tmp_path, [nameserver.address], **settings) as broker:
        messages = [
            joint(*(batch("T", queue_id, b"%d" % n * 600) for queue_id in range(8)))
            for n in range(10)
        ]
        assert await told(broker, *messages) == [[n] * 8 for n in range(10)]
        for queue_id in range(8):
            assert await broker.bodies("T", queue_id) == [b"%d" % n * 600 for n in range(10)]


async def test_large_batches_are_stored_as_small_ones(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 3})
    long, many = [b"x" * 1000] * 200, [b"%d" % number for number in range(2000)]
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        large = batch("T", 0, *long)
        assert len(large.frames) > 4 * LARGE_BYTES
        message = joint(large, batch("T", 1, b"small"), batch("T", 2, *many))
        # The second time each queue has two, which are appended alone; then one of them is torn.
        twice = joint(large, large, batch("T", 1, b"small"))
        torn = batch("T", 0, *long)
        torn.frames = torn.frames[:-30] + b"X" + torn.frames[-29:]
        assert await told(broker, large, message, twice, torn, large) == [
            [0],
            [200, 0, 0],
            [400, 600, 1],
            ["MALFORMED_BATCH"],
            [800],
        ]
        assert await broker.bodies("T", 0) == long * 5
        assert await broker.bodies("T", 2) == many


async def test_batches_are_as_large_as_the_bounds_and_no_larger_alone_and_with_others(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 2})
    fits, small = batch("T", 0, *[b"x" * 900] * 4), batch("T", 1, b"x")
    many, long = batch("T", 0, *[b"x"] * 5), batch("T", 0, *[b"x" * 900] * 3, b"x" * 901)
    bounds = {"batch_messages_max": 4, "batch_bytes_max": len(fits.frames)}
    async with running_broker(tmp_path, [nameserver.address], **bounds) as broker:
        assert await told(
            broker, fits, many, long, joint(small, fits), joint(small, many), joint(small, long)
        ) == [
            [0],
            ["MALFORMED_BATCH"],
            ["MALFORMED_BATCH"],
            [0, 4],
            [1, "MALFORMED_BATCH"],
            [2, "MALFORMED_BATCH"],
        ]


class FailsBehindWrite:
    """Fails after the whole group is written."""

    def __init__(self) -> None:
        self.alone_count = 0

    def append_group(self, _messages: Sequence[Sequence[RoutedBatch]]) -> Sequence[AppendResults]:
        raise RuntimeError("no one foresaw")

    async def append(self, _request: Request) -> AppendResult:
        self.alone_count += 1
        raise errors.Busy(reason="stored twice")

    def note(self) -> None:
        raise AssertionError("nothing was placed")


async def test_batches_that_failed_together_are_not_placed_again_one_by_one() -> None:
    async def requests() -> AsyncIterator[Request]:
        yield joint(batch("T", 0, b"x"), batch("T", 1, b"y"))

    placing, clock = FailsBehindWrite(), SystemClock()
    turn = GroupAppends(placing.append_group, clock)
    stream = AppendStreamCall(turn, placing.append, placing.note, None, CallTimes(), clock)
    await stream.read(requests())
    (reply,) = [each async for each in answers_of(stream)]
    codes = [each.error.code for each in (reply, *reply.more)]
    assert codes == [Error.INTERNAL] * 2
    assert placing.alone_count == 0
