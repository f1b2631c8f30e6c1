"""ReadLog: the log of a broker in ranges that may begin and end anywhere."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rockoon_broker.rpc import log_reads
from rockoon_core import errors
from rockoon_core.message_queue import TOPICS_PER_READ_MAX
from rockoon_format.batch import decode_columns
from rockoon_proto.v1 import broker_pb2 as pb
from support.broker import RunningBroker, bodies_of, running_broker
from support.broker_routes import BrokerRoutes
from support.seeds import seeds

FILE_BYTES = 16_384


async def read(broker: RunningBroker, start: int, end: int = 1 << 40, **more: Any) -> Any:
    request = pb.ReadLogRequest(physical_offset=start, end_offset=end, **more)
    return await broker.call("ReadLog", request)


async def stretch(
    broker: RunningBroker, start: int, end: int, *, at_record: bool = False, max_bytes: int = 0
) -> tuple[list[bytes], list[tuple[int, int]]]:
    """Return bodies of the records that start in a range, and the damaged positions in it."""
    bodies: list[bytes] = []
    damages: list[tuple[int, int]] = []
    damaged_from = None
    while start < end:
        reply = await read(broker, start, end, at_record=at_record, max_bytes=max_bytes)
        assert reply.next_offset > start or reply.next_at_record > at_record
        assert start + reply.skipped_bytes <= reply.first_offset <= reply.next_offset
        if reply.skipped_bytes and at_record:
            damaged_from = start
        if damaged_from is not None and reply.next_at_record:
            damages.append((damaged_from, start + reply.skipped_bytes))
            damaged_from = None
        bodies += bodies_of(reply)
        start, at_record = reply.next_offset, reply.next_at_record
        if start >= reply.visible_end:
            break
    return bodies, damages


@pytest.mark.parametrize("seed", seeds(1))
async def test_every_record_is_in_the_one_stretch_that_it_starts_in(
    tmp_path: Path, nameserver: BrokerRoutes, seed: int
) -> None:
    chance = random.Random(seed)
    await nameserver.create_topic("T", {"broker-a": 1})
    await nameserver.create_topic("U", {"broker-a": 1})
    small = {"commit_log_file_bytes": FILE_BYTES}
    async with running_broker(tmp_path, [nameserver.address], **small) as broker:
        sent = [b"%d" % n + bytes(chance.choice([0, 1, 40, 3000])) for n in range(60)]
        for n, body in enumerate(sent):
            await broker.append("TU"[n % 2], 0, body)
        ends = await read(broker, 0, 0)
        assert (ends.log_min_offset, ends.next_offset, ends.frames) == (0, 0, b"")
        end = ends.visible_end
        assert end > 2 * FILE_BYTES
        assert await stretch(broker, 0, end, at_record=True) == (sent, [])
        for _ in range(10):
            cuts = sorted(chance.sample(range(1, end), 7))
            max_bytes = chance.choice([0, 1, 200, 5000])
            found = []
            for start, stop in zip([0, *cuts], [*cuts, end], strict=True):
                bodies, damages = await stretch(broker, start, stop, max_bytes=max_bytes)
                assert not damages
                found += bodies
            assert found == sent, (cuts, max_bytes)


async def test_a_long_search_is_done_in_pieces(
    tmp_path: Path, nameserver: BrokerRoutes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reads, "PIECE_BYTES", 1000)
    await nameserver.create_topic("T", {"broker-a": 1})
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        await broker.append("T", 0, bytes(100_000))
        second = (await broker.append("T", 0, b"second")).first_physical_offset
        reply = await read(broker, 5)
        assert (reply.next_offset, reply.next_at_record, reply.skipped_bytes) == (1005, False, 1000)
        assert (reply.first_offset, reply.frames) == (1005, b"")
        # Its header begins before the end of the searched range, and ends after it.
        reply = await read(broker, second - 999)
        assert (reply.first_offset, bodies_of(reply)) == (second, [b"second"])
        assert reply.next_offset == reply.visible_end
        bodies, _ = await stretch(broker, 5, reply.visible_end)
        assert bodies == [b"second"]


async def test_messages_of_a_deleted_topic_are_left_out(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    await nameserver.create_topic("GONE", {"broker-a": 1})
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        await broker.append("GONE", 0, b"first")
        for n in range(3):
            await broker.append("T", 0, b"%d" % n)
            await broker.append("GONE", 0, b"gone")
        await nameserver.delete_topic("GONE")
        await broker.until(lambda now: now.topics == 1)
        reply = await read(broker, 0, at_record=True)
        assert bodies_of(reply) == [b"0", b"1", b"2"]
        assert reply.first_offset > 0
        assert reply.next_offset == reply.visible_end


async def test_damage_is_told_with_its_place(tmp_path: Path, nameserver: BrokerRoutes) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        places = [
            (await broker.append("T", 0, b"%d" % n + bytes(500))).first_physical_offset
            for n in range(9)
        ]
        with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as log:
            for at in (places[3], places[4]):
                log.seek(at + 4)
                log.write(b"oops")
        end = (await read(broker, 0, 0)).visible_end
        bodies, damages = await stretch(broker, 0, end, at_record=True)
        assert [int(body.rstrip(b"\0")) for body in bodies] == [0, 1, 2, 5, 6, 7, 8]
        assert damages == [(places[3], places[5])]
        # A reader that begins after it finds the next record.
        bodies, damages = await stretch(broker, places[4] + 1, end)
        assert len(bodies) == 4
        assert not damages


async def test_what_retention_has_deleted_is_refused_with_where_the_log_begins(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    small = {"commit_log_file_bytes": FILE_BYTES}
    async with running_broker(tmp_path, [nameserver.address], **small) as broker:
        for _ in range(8):
            await broker.append("T", 0, bytes(6000))
    (tmp_path / "commitlog" / f"{0:020d}").unlink()
    async with running_broker(tmp_path, [nameserver.address], **small) as broker:
        with pytest.raises(errors.LogTrimmed, match="'broker-a' was deleted by retention"):
            await read(broker, 100)
        assert (await read(broker, 100, 50)).log_min_offset == FILE_BYTES
        assert bodies_of(await read(broker, FILE_BYTES, at_record=True))


@pytest.mark.parametrize(
    ("start", "more", "error"),
    [
        (-1, {}, errors.InvalidOffset),
        (0, {"end": -1}, errors.InvalidOffset),
        (0, {"max_bytes": -1}, errors.InvalidArgument),
        (0, {"max_bytes": (4 << 20) + 1}, errors.InvalidArgument),
        (0, {"topics": ["T"] * (TOPICS_PER_READ_MAX + 1)}, errors.InvalidArgument),
    ],
)
async def test_a_field_out_of_bounds_is_refused(
    tmp_path: Path, nameserver: BrokerRoutes, start: int, more: Any, error: type[Exception]
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        with pytest.raises(error):
            await read(broker, start, **more)


async def test_whoever_asks_gets_deleted_topics_too_and_where_they_end(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    small = {"commit_log_file_bytes": FILE_BYTES}
    await nameserver.create_topic("T", {"broker-a": 1})
    await nameserver.create_topic("GONE", {"broker-a": 1})
    async with running_broker(tmp_path, [nameserver.address], **small) as broker:
        for n in range(10):
            await broker.append("T", 0, b"%d" % n + bytes(2000))
            await broker.append("GONE", 0, b"gone")
        await nameserver.delete_topic("GONE")
        await broker.until(lambda described: described.topics == 1)
        ends = await read(broker, 0, 0)
        assert ends.log_file_bytes == FILE_BYTES
        assert ends.visible_end <= ends.durable_end
        assert [(each.topic, each.dropped_below) for each in ends.dropped] == [
            ("GONE", ends.visible_end)
        ]
        kept = await read(broker, 0, at_record=True)
        assert b"gone" not in bodies_of(kept)
        # Neighbours in the log, so a reply ends at the end of a file.
        every = await read(broker, 0, at_record=True, with_deleted_topics=True)
        assert bodies_of(every)[1::2] == [b"gone"] * (len(bodies_of(every)) // 2)
        assert every.next_offset == FILE_BYTES
        assert len(every.frames) < FILE_BYTES
        log = (tmp_path / "commitlog" / f"{0:020d}").read_bytes()
        assert every.frames == log[: len(every.frames)]
        rest = await read(broker, FILE_BYTES, at_record=True, with_deleted_topics=True)
        assert len(bodies_of(every) + bodies_of(rest)) == 20


def queue_range(topic: str, queue_id: int, offset: int, end_offset: int = 0) -> Any:
    return pb.LogQueueRange(topic=topic, queue_id=queue_id, offset=offset, end_offset=end_offset)


async def test_a_reader_names_topics_offsets_and_times(
    tmp_path: Path, nameserver: BrokerRoutes, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {"commit_log_file_bytes": FILE_BYTES}
    for topic in ("T", "U", "V"):
        await nameserver.create_topic(topic, {"broker-a": 2})
    async with running_broker(tmp_path, [nameserver.address], **small) as broker:
        sent: list[tuple[str, int, int, bytes]] = []
        for n in range(90):
            topic, queue = "TUV"[n % 3], n // 3 % 2
            body = b"%d" % n + bytes(900 if topic == "V" else 100)
            sent.append((topic, queue, n // 6, body))
            await broker.append(topic, queue, body)
        end = (await read(broker, 0, 0)).visible_end
        assert end > 2 * FILE_BYTES
        assert (await read(broker, 0, 0, topics=["T"])).queue_entries == 90

        async def found(**more: Any) -> list[bytes]:
            bodies, at, at_record = [], 0, True
            while at < end:
                reply = await read(broker, at, at_record=at_record, **more)
                bodies += bodies_of(reply)
                assert reply.next_offset > at
                at, at_record = reply.next_offset, reply.next_at_record
            return bodies

        for scanned_bytes in (1 << 20, 5000):
            monkeypatch.setattr(log_reads, "SCANNED_BYTES_MAX", scanned_bytes)
            assert await found(topics=["T"]) == [each[3] for each in sent if each[0] == "T"]
            assert await found(topics=["T", "V"]) == [each[3] for each in sent if each[0] != "U"]
            ranges = [queue_range("T", 0, 3, 7), queue_range("T", 1, 10), queue_range("V", 0, 99)]
            assert await found(topics=["T", "V"], queues=ranges) == [
                body
                for topic, queue, offset, body in sent
                if (topic, queue) == ("V", 1)
                or ((topic, queue) == ("T", 0) and 3 <= offset < 7)
                or ((topic, queue) == ("T", 1) and offset >= 10)
            ]
            assert await found(topics=["T"], until_store_timestamp_ms=1) == []
            assert await found(topics=["W"]) == []
        whole = await read(broker, 0, at_record=True)
        lengths = np.frombuffer(whole.record_lengths, "<u4")
        times = decode_columns(whole.frames, lengths).store_timestamps_ms.tolist()
        bodies = dict(zip(bodies_of(whole), times, strict=True))
        middle = sorted(times)[len(times) // 2]
        late = await read(broker, 0, at_record=True, from_store_timestamp_ms=middle)
        early = await read(broker, 0, at_record=True, until_store_timestamp_ms=middle)
        assert bodies_of(early) == [body for body, ms in bodies.items() if ms < middle]
        later = [body for body, ms in bodies.items() if ms >= middle]
        assert bodies_of(late)[: len(later)] == later
        wrong = [([queue_range("T", 0, -1)], errors.InvalidOffset)]
        wrong.append(([queue_range("T", n, 0) for n in range(4097)], errors.InvalidArgument))
        for queues, refusal in wrong:
            with pytest.raises(refusal):
                await read(broker, 0, topics=["T"], queues=queues)


async def test_the_ends_of_a_topic_do_not_name_other_deleted_topics(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    for topic in ("T", "GONE", "SECRET"):
        await nameserver.create_topic(topic, {"broker-a": 1})
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        for topic in ("T", "GONE", "SECRET"):
            await broker.append(topic, 0, b"1")
        await nameserver.delete_topic("GONE")
        await nameserver.delete_topic("SECRET")
        await broker.until(lambda described: described.topics == 1)
        ends = await read(broker, 0, 0, topics=["T", "GONE"])
        assert [each.topic for each in ends.dropped] == ["GONE"]
