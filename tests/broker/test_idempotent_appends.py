"""Batches of idempotent producers are stored once, also if requests are repeated."""

import asyncio
import logging
import shutil
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from rockoon_broker.idempotence.memory import decode_snapshot
from rockoon_core.errors import (
    InvalidArgument,
    MalformedBatch,
    SequenceGap,
    SequenceUnknown,
)
from rockoon_format.batch import encode_batch
from rockoon_format.sequences import encode_sequences
from rockoon_proto.v1 import broker_pb2 as pb
from support.broker import BORN_HOST, NOW_MS, RunningBroker, batch, running_broker
from support.broker_routes import BrokerRoutes
from support.holding_disk import HoldingDisk

PRODUCER = 0xFEED
SNAPSHOT = Path("config", "producerSequences")
LOG = Path("commitlog", "00000000000000000000")


def numbered(
    first: int,
    *bodies: bytes,
    topic: str = "T",
    queue_id: int = 0,
    producer: int = PRODUCER,
    ago_ms: int = 0,
) -> pb.AppendRequest:
    """Return a request of an idempotent producer."""
    sections = encode_sequences(producer, first, len(bodies)).tolist()
    properties = [b"TAGS\x01TagA\x02" + section for section in sections]
    frames, lengths = encode_batch(
        topic.encode(), queue_id, list(bodies), properties, NOW_MS, BORN_HOST
    )
    return pb.AppendRequest(
        topic=topic,
        queue_id=queue_id,
        frames=frames,
        record_lengths=lengths.astype("<u4").tobytes(),
        producer_id=producer,
        first_sequence=first,
        first_sent_ms_ago=ago_ms,
    )


async def append(broker: RunningBroker, request: pb.AppendRequest) -> pb.Appended:
    reply: pb.AppendReply = await broker.call("Append", request)
    return reply.appended


@pytest.fixture
async def nameservers(nameserver: BrokerRoutes) -> Sequence[str]:
    await nameserver.create_topic("T", {"broker-a": 2})
    return [nameserver.address]


async def test_a_repeated_batch_is_stored_once_and_told_where_it_is(
    tmp_path: Path, nameservers: Sequence[str]
) -> None:
    async with running_broker(tmp_path, nameservers) as broker:
        first = await append(broker, numbered(0, b"a", b"b"))
        await broker.append("T", 0, b"between")
        second = await append(broker, numbered(2, b"c"))
        assert await append(broker, numbered(0, b"a", b"b", ago_ms=5)) == first
        assert await append(broker, numbered(2, b"c", ago_ms=5)) == second
        assert await broker.bodies("T") == [b"a", b"b", b"between", b"c"]
        await append(broker, numbered(3, b"d"))
        assert (await broker.bodies("T"))[-1] == b"d"


async def test_every_producer_counts_for_every_queue(
    tmp_path: Path, nameservers: Sequence[str]
) -> None:
    async with running_broker(tmp_path, nameservers) as broker:
        for producer in (1, 2):
            for queue_id in (0, 1):
                await append(broker, numbered(0, b"x", queue_id=queue_id, producer=producer))
        assert await broker.bodies("T", 0) == await broker.bodies("T", 1) == [b"x", b"x"]


async def test_what_cannot_be_stored_once_is_refused(
    tmp_path: Path, nameservers: Sequence[str]
) -> None:
    """(request, error, text of the error)"""
    plain = batch("T", 0, b"x", b"y")
    plain.producer_id = PRODUCER
    misnumbered = numbered(0, b"x", b"y")
    misnumbered.first_sequence = 1
    delayed = numbered(0, b"x")
    delayed.handling = pb.DELAYED
    cut = numbered(0, b"x")
    cut.frames = cut.frames[:-1]
    short = numbered(0, b"x")
    short.record_lengths = b"\x01\0\0\0"
    async with running_broker(tmp_path, nameservers) as broker:
        for request, error, text in (
            (plain, MalformedBatch, "record 0: it does not end with sequence 0"),
            (misnumbered, MalformedBatch, "record 0: it does not end with sequence 1"),
            (cut, MalformedBatch, "add up"),
            (short, MalformedBatch, "add up"),
            (delayed, InvalidArgument, "delayed and half messages"),
            (numbered(0, b"x", topic="%RETRY%g"), InvalidArgument, "no sequence numbers"),
            (numbered(5, b"x"), SequenceUnknown, "may have sequence 5 already"),
        ):
            with pytest.raises(error, match=text):
                await append(broker, request)
        await append(broker, numbered(0, b"x"))
        with pytest.raises(SequenceGap, match="number 2 instead of 1"):
            await append(broker, numbered(2, b"x"))
        assert await broker.bodies("T") == [b"x"]


async def test_a_repeat_on_another_stream_waits_for_the_sync_of_the_first(
    tmp_path: Path, nameservers: Sequence[str]
) -> None:
    disk = HoldingDisk()
    async with (
        running_broker(tmp_path, nameservers, disk=disk) as broker,
        asyncio.TaskGroup() as tasks,
    ):
        disk.hold()
        gone = broker.stub.AppendStream(iter_of(numbered(0, b"a", b"b")))
        reading = tasks.create_task(gone.read())
        await broker.until(lambda seen: seen.messages_appended == 2)
        reading.cancel()
        gone.cancel()
        again = broker.stub.AppendStream(iter_of(numbered(0, b"a", b"b"), numbered(2, b"c")))
        replying = tasks.create_task(again.read())
        described = await broker.until(lambda seen: seen.messages_appended == 3)
        assert described.log_synced_offset == 0
        assert not replying.done()
        disk.release()
        assert (await replying).appended.first_queue_offset == 0
        assert (await again.read()).appended.first_queue_offset == 2
        again.cancel()
        assert await broker.bodies("T") == [b"a", b"b", b"c"]


async def iter_of(*requests: pb.AppendRequest) -> AsyncIterator[pb.AppendRequest]:
    for request in requests:
        yield request
    await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize(
    "left", ["snapshot", "no snapshot", "a damaged snapshot", "a longer log's", "another store's"]
)
async def test_after_a_restart_repeats_are_still_known(
    tmp_path: Path, nameservers: Sequence[str], left: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_broker(tmp_path, nameservers) as broker:
        first = await append(broker, numbered(0, b"a", b"b"))
        await broker.append("T", 0, *[bytes(100_000)] * 30)
        await broker.append("T", 1, *[bytes(100_000)] * 30)
        second = await append(broker, numbered(2, b"c", b"d"))
    path = tmp_path / SNAPSHOT
    assert decode_snapshot(path.read_bytes()).log_end > second.first_physical_offset
    if left == "no snapshot":
        path.unlink()
    elif left == "a damaged snapshot":
        path.write_bytes(path.read_bytes()[:-1])
    elif left == "a longer log's":
        snapshot = decode_snapshot(path.read_bytes())
        path.write_bytes(replace(snapshot, log_end=1 << 40).encode())
    elif left == "another store's":
        snapshot = decode_snapshot(path.read_bytes())
        path.write_bytes(replace(snapshot, lineage=bytes(16), sequences={}).encode())
    async with running_broker(tmp_path, nameservers) as broker:
        assert await append(broker, numbered(2, b"c", b"d", ago_ms=9)) == second
        assert await append(broker, numbered(0, b"a", b"b", ago_ms=9)) == first
        with pytest.raises(SequenceGap):
            await append(broker, numbered(5, b"x"))
        await append(broker, numbered(4, b"e"))
        bodies = await broker.bodies("T")
        assert [body for body in bodies if len(body) == 1] == [b"a", b"b", b"c", b"d", b"e"]
    errors = [each.message for each in caplog.records if each.levelno == logging.ERROR]
    said = {
        "a damaged snapshot": "is damaged",
        "a longer log's": "ends at offset",
    }.get(left)
    assert len(errors) == (said is not None)
    assert said is None or said in errors[0]


async def test_a_store_put_back_does_not_know_what_came_after_even_when_it_has_grown_since(
    tmp_path: Path, nameservers: Sequence[str]
) -> None:
    """The log is an older one, and config/ is not. The next start is killed before it writes
    config/ again."""
    put_back, killed = tmp_path / "put back", tmp_path / "killed"
    async with running_broker(tmp_path / "old", nameservers) as broker:
        await broker.append("T", 0, b"x")
    shutil.copytree(tmp_path / "old", put_back)
    async with running_broker(tmp_path / "old", nameservers) as broker:
        await append(broker, numbered(0, b"lost"))
    shutil.copy(tmp_path / "old" / SNAPSHOT, put_back / SNAPSHOT)
    async with running_broker(put_back, nameservers) as broker:
        await broker.append("T", 0, bytes(10_000))
        shutil.copytree(put_back, killed)
    async with running_broker(killed, nameservers) as broker:
        await append(broker, numbered(0, b"lost", ago_ms=5))
        assert await broker.bodies("T") == [b"x", bytes(10_000), b"lost"]


async def test_of_a_batch_that_a_crash_has_torn_only_the_rest_is_stored(
    tmp_path: Path, nameservers: Sequence[str]
) -> None:
    """A copy of the running store is the state after a kill; its tail is then cut."""
    request = numbered(1, b"b", b"c", b"d", b"e")
    sizes = [int.from_bytes(request.record_lengths[at : at + 4], "little") for at in (0, 4, 8, 12)]
    async with running_broker(tmp_path / "killed", nameservers) as broker:
        await append(broker, numbered(0, b"a"))
        whole = await append(broker, request)
        shutil.copytree(tmp_path / "killed", tmp_path / "left")
    tear(tmp_path / "left" / LOG, whole.first_physical_offset + sizes[0] + sizes[1] + 50)
    for start in ("on what is left", "with everything read again"):
        async with running_broker(tmp_path / "left", nameservers) as broker:
            if start == "on what is left":
                assert await broker.bodies("T") == [b"a", b"b", b"c"]
                await broker.append("T", 0, b"another's")
            appended = await append(broker, request)
            (rest,) = appended.more
            assert (appended.first_queue_offset, appended.messages) == (1, 2)
            assert (rest.first_queue_offset, rest.messages) == (4, 2)
            assert appended.first_physical_offset == whole.first_physical_offset
            assert await broker.bodies("T") == [b"a", b"b", b"c", b"another's", b"d", b"e"]
            for where, body in ((appended, b"b"), (rest, b"d")):
                message_id = where.store_host.hex() + where.first_physical_offset.to_bytes(8).hex()
                found = await broker.call("Read", pb.ReadRequest(message_id=message_id.upper()))
                assert body in found.frames
            with pytest.raises(SequenceGap):
                await append(broker, numbered(6, b"x"))
        (tmp_path / "left" / SNAPSHOT).unlink()


def tear(path: Path, position: int) -> None:
    """Write zeros after a position, as a crash during a write leaves them."""
    with path.open("r+b") as file:
        size = file.seek(0, 2)
        file.truncate(position)
        file.truncate(size)


async def test_a_topic_created_anew_knows_nothing_of_the_old_ones_producers(
    tmp_path: Path, nameserver: BrokerRoutes, nameservers: Sequence[str]
) -> None:
    async with running_broker(tmp_path / "killed", nameservers) as broker:
        await append(broker, numbered(0, b"old", b"older"))
        await append(broker, numbered(0, b"old", queue_id=1, producer=2))
        await nameserver.delete_topic("T")
        revision = await nameserver.create_topic("T", {"broker-a": 2})
        await broker.until(lambda seen: seen.route_revision >= revision)
        with pytest.raises(SequenceUnknown):
            await append(broker, numbered(2, b"x"))
        await append(broker, numbered(0, b"new"))
        shutil.copytree(tmp_path / "killed", tmp_path / "left")
    async with running_broker(tmp_path / "left", nameservers) as broker:
        assert (await append(broker, numbered(0, b"new", ago_ms=9))).messages == 1
        await append(broker, numbered(0, b"new", queue_id=1, producer=2))
        assert await broker.bodies("T", 0) == await broker.bodies("T", 1) == [b"new"]


async def test_a_producer_that_was_forgotten_is_refused_and_never_stored_twice(
    tmp_path: Path, nameservers: Sequence[str]
) -> None:
    async with running_broker(tmp_path, nameservers, producer_sequences_max=1) as broker:
        await append(broker, numbered(0, b"a"))
        await append(broker, numbered(0, b"b", producer=2))
        for request in (numbered(1, b"next"), numbered(0, b"a", ago_ms=1)):
            with pytest.raises(SequenceUnknown):
                await append(broker, request)
    async with running_broker(tmp_path, nameservers, producer_sequences_max=1) as broker:
        with pytest.raises(SequenceUnknown):
            await append(broker, numbered(0, b"a", ago_ms=1))
        assert await broker.bodies("T") == [b"a", b"b"]
