"""Follower's streams of strangers, liars and old connections."""

import asyncio
import itertools
import zlib
from collections.abc import AsyncIterator, Coroutine
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from rockoon_core.clock import Backoff
from rockoon_core.errors import BrokerUnavailable, RockoonError
from rockoon_core.failed_call import from_rpc_error
from rockoon_core.replication_rules import Boundary
from rockoon_proto.v1 import replica_pb2 as pb
from rockoon_proto.v1.replica_pb2_grpc import ReplicationStub
from rockoon_replica import following
from rockoon_replica.events import Event, HelloArrived
from rockoon_replica.following import ChecksumMismatch, event_of
from rockoon_replica.leading import Leading
from rockoon_replica.messages import Ack, Hello, RecordChunk, Welcome
from rockoon_replica.wire import ack_to_wire, chunk_to_wire, hello_to_wire
from support.byte_log import ByteLog
from support.eventually import eventually
from support.log_copies import LOG, Copies, Copy, copies
from support.waiting import DEADLINE_SECONDS

OTHER = "b"


def hello(copy: Copy, **changes: Any) -> Hello:
    """Hello of a follower without records."""
    return Hello(copy.replica.epoch, OTHER, (), 0, 0)._replace(**changes)


@asynccontextmanager
async def lone_leader(directory: Path) -> AsyncIterator[tuple[Copies, Copy]]:
    """One of two copies leads; the test plays the other one."""
    async with copies(directory, ("a", OTHER), gated=False) as logs:
        logs.register.change(leader="a")
        a = await logs.start()
        await a.send(b"before")
        await logs.all[OTHER].stop()
        yield logs, a


async def refusal(call: Any, unwanted: bytes = b"nobody says this") -> RockoonError:
    """Return the reason for which a stream ends, after messages without these bytes."""
    said: Any = None
    with pytest.raises(grpc.RpcError) as ended:  # noqa: PT012 - any of the reads
        while said is not aio.EOF:
            said = await call.read()
            assert unwanted not in said.SerializeToString()
    return from_rpc_error(ended.value, BrokerUnavailable, broker="it")


async def test_who_acknowledges_what_was_never_sent_is_refused_and_commits_nothing(
    tmp_path: Path,
) -> None:
    async with lone_leader(tmp_path) as (_, leader), aio.insecure_channel(leader.target) as channel:
        committed = leader.log.committed_end
        leader.log.append(b"on one disk")
        stub = ReplicationStub(channel)
        for ack in (
            Ack(leader.log.end + 1, 0),
            Ack(1 << 62, 0),
            Ack(0, 7),
        ):
            call: Any = stub.Replicate()
            await call.write(hello_to_wire(LOG, hello(leader)))
            assert (await call.read()).WhichOneof("what") == "welcome"
            await call.write(ack_to_wire(ack))
            assert (await refusal(call)).name == "INVALID_ARGUMENT"
        assert leader.log.committed_end == committed


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"replica": "stranger"}, "INVALID_ARGUMENT"),
        ({"replica": ""}, "INVALID_ARGUMENT"),
        ({"epoch": 77}, "NOT_LEADER"),
        ({"epoch": 0}, "INVALID_ARGUMENT"),
        ({"end": 5, "min_offset": 9}, "INVALID_ARGUMENT"),
        ({"boundaries": (Boundary(1, 0, 9),), "end": 5}, "INVALID_ARGUMENT"),
        ({"boundaries": (Boundary(2, 0, 1), Boundary(1, 1, 2)), "end": 5}, "INVALID_ARGUMENT"),
    ],
)
async def test_who_cannot_be_a_follower_is_refused(
    tmp_path: Path, changes: dict[str, Any], name: str
) -> None:
    async with copies(tmp_path, ("a",), gated=False) as logs:
        leader = await logs.start()
        async with aio.insecure_channel(leader.target) as channel:
            call: Any = ReplicationStub(channel).Replicate()
            await call.write(hello_to_wire(LOG, hello(leader, **changes)))
            assert (await refusal(call)).name == name


async def test_another_log_and_another_first_word_are_refused(tmp_path: Path) -> None:
    async with copies(tmp_path, ("a",), gated=False) as logs:
        leader = await logs.start()
        async with aio.insecure_channel(leader.target) as channel:
            for said, name in (
                (hello_to_wire("broker-z", hello(leader)), "NOT_READY"),
                (ack_to_wire(Ack(0, 0)), "INVALID_ARGUMENT"),
                (pb.FollowerSays(), "INVALID_ARGUMENT"),
            ):
                call: Any = ReplicationStub(channel).Replicate()
                await call.write(said)
                assert (await refusal(call)).name == name


async def test_a_new_stream_ends_the_one_before_and_what_that_acknowledges(tmp_path: Path) -> None:
    async with lone_leader(tmp_path) as (_, leader), aio.insecure_channel(leader.target) as channel:
        stub = ReplicationStub(channel)
        calls: list[Any] = []
        for _ in range(2):
            call: Any = stub.Replicate()
            await call.write(hello_to_wire(LOG, hello(leader)))
            await call.read()
            calls.append(call)
        former, call = calls
        assert (await refusal(former)).name == "INVALID_ARGUMENT"
        committed = leader.log.committed_end
        end = leader.log.append(b"after")
        leader.replica.written()
        # All bytes have arrived, and the leader has them on disk: one acknowledgement is missing.
        received = 0
        while received < end:
            received += len((await call.read()).chunk.data)
        await eventually(lambda: leader.log.durable_end == end)
        assert leader.log.committed_end == committed
        await call.write(ack_to_wire(Ack(end, 0)))
        await eventually(lambda: leader.log.committed_end == end)


async def test_a_stream_is_seamless_and_no_more_is_under_way_than_may_be(tmp_path: Path) -> None:
    async with (
        lone_leader(tmp_path) as (_, leader),
        aio.insecure_channel(
            leader.target, [("grpc.max_receive_message_length", 64 << 20)]
        ) as channel,
    ):
        for _ in range(20):
            leader.log.append(b"x" * 700_000)
        call: Any = ReplicationStub(channel).Replicate()
        await call.write(hello_to_wire(LOG, hello(leader)))
        welcome = (await call.read()).welcome
        data, empty = b"", 0
        while empty < 2:
            chunk = (await call.read()).chunk
            assert chunk.offset == welcome.truncate_to + len(data)
            data += chunk.data
            empty += not chunk.data
        assert 8 << 20 <= len(data) < 10 << 20
        assert leader.log.content().startswith(data)
        while len(data) < leader.log.end:
            await call.write(ack_to_wire(Ack(len(data), 0)))
            data += (await call.read()).chunk.data
        assert data == leader.log.content()
        call.cancel()


@pytest.mark.parametrize("still_there", [True, False])
async def test_a_leader_that_is_deposed_while_it_reads_says_so_and_sends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, still_there: bool
) -> None:
    async with (
        lone_leader(tmp_path) as (logs, leader),
        aio.insecure_channel(leader.target) as channel,
    ):
        asked, goes_on = asyncio.Event(), asyncio.Event()

        async def fetch(offset: int, bytes_max: int) -> bytes:
            asked.set()
            await goes_on.wait()
            if not still_there:
                raise ValueError("cut meanwhile")
            return leader.log.read(offset, bytes_max)

        monkeypatch.setattr(leader.log, "fetch", fetch)
        call: Any = ReplicationStub(channel).Replicate()
        await call.write(hello_to_wire(LOG, hello(leader)))
        assert (await call.read()).WhichOneof("what") == "welcome"
        # The bytes before it are in memory.
        leader.log.append(b"not sent")
        async with asyncio.timeout(DEADLINE_SECONDS):
            await asked.wait()
        logs.register.change(leader=OTHER)
        # The stream ends a moment after the replica knows it.
        (session,) = leader.replica._leading._sessions.values()
        await eventually(lambda: session.refusal is not None)
        goes_on.set()
        assert (await refusal(call, b"not sent")).name == "NOT_LEADER"


def test_a_chunk_with_any_bit_flipped_is_no_event() -> None:
    chunk = RecordChunk(3, "a", 100, b"whole records, as they are", 90, 0, 1)
    import zlib

    said = chunk_to_wire(chunk, zlib.crc32(chunk.data))
    assert event_of(7, said) == (7, chunk)
    for bit in range(8 * len(chunk.data)):
        data = bytearray(chunk.data)
        data[bit // 8] ^= 1 << (bit % 8)
        said.chunk.data = bytes(data)
        with pytest.raises(ChecksumMismatch):
            event_of(7, said)


async def test_a_leader_that_refuses_again_and_again_is_asked_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was elected and never leads, as while its log is frozen."""
    pauses: list[float] = []

    class Noted(Backoff):
        """Pauses are recorded, and not made."""

        def next_seconds(self) -> float:
            pauses.append(super().next_seconds())
            return 0.0

    monkeypatch.setattr(following, "Backoff", Noted)
    async with copies(tmp_path, ("a", OTHER), gated=False) as logs:
        a = await logs.start()
        # Neither its resignation nor an election has an effect.
        monkeypatch.setattr(logs.register, "asked", lambda *_: None)
        await a.stop()
        await a.start()
        pauses.clear()
        await eventually(lambda: len(pauses) > 2 * following.QUICK_REFUSALS_MAX)
    quick = sum(each <= following.CHECK_SECONDS for each in pauses)
    assert following.QUICK_REFUSALS_MAX / 2 <= quick <= following.QUICK_REFUSALS_MAX + 2
    assert min(pauses[-5:]) >= following.RECONNECT_SECONDS_MAX / 2


async def test_a_record_that_was_repaired_is_sent_to_a_follower_that_refused_its_bytes() -> None:
    """The buffer for several followers still has the damaged bytes."""
    leader_log = ByteLog()
    leader_log.open_epoch(1)
    leader_log.flips.add(leader_log.end - 1)

    def tell(event: Event) -> "asyncio.Future[None]":
        if isinstance(event, HelloArrived):
            welcome = Welcome(1, "a", 0, 0, leader_log.end, 0)
            leading.say_welcome(event.session, welcome)
        done = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    leading = Leading(
        LOG, "a", leader_log, tell, itertools.count(1), zlib.crc32, lambda _begin, _end: None
    )

    async def silent() -> AsyncIterator[Any]:
        await asyncio.Event().wait()
        yield None

    async def first_chunk() -> bytes:
        """Return the bytes that a new follower receives."""
        first = hello_to_wire(LOG, Hello(1, OTHER, (), 0, 0)).hello
        async with asyncio.TaskGroup() as tasks:

            def spawn(work: Coroutine[Any, Any, None], name: str) -> "asyncio.Task[None]":
                return tasks.create_task(work, name=name)

            stream: Any = leading.replicate(first, silent(), spawn)
            async with aclosing(stream):
                await anext(stream)
                return bytes((await anext(stream)).chunk.data)

    damaged = await first_chunk()
    assert leader_log.damaged_at(0, damaged) == 0
    leader_log.flips.clear()
    intact = await first_chunk()
    assert leader_log.damaged_at(0, intact) is None
    # From here on the other followers receive these bytes, too.
    assert await first_chunk() == intact
