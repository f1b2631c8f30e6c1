"""Files that are missing or damaged: replies to readers, and repairs by the next start."""

import itertools
import os
import random
from pathlib import Path
from typing import Any

import pytest

from rockoon_core.errors import StoreCorrupt
from rockoon_format.hashes import tags_code
from rockoon_proto.v1 import broker_pb2 as pb
from support.broker import bodies_of, running_broker
from support.broker_routes import BrokerRoutes

# Three quarters of the files are more than the 2,048 that a store keeps open, so the oldest file is
# opened again for a read.
QUEUE_FILES = 2800
FILE_ENTRIES = 10
SHORT_FILES = {"consume_queue_file_entries": FILE_ENTRIES}


async def test_a_queue_file_that_is_gone_sends_the_reader_to_the_next(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    entries = 2
    shortest = {"consume_queue_file_entries": entries}
    await nameserver.create_topic("T", {"broker-a": 1})
    async with running_broker(tmp_path, [nameserver.address], **shortest) as broker:
        for _ in range(4):
            await broker.append("T", 0, *[b"x"] * (QUEUE_FILES * entries // 4))
            # The beginning of the queue is known from now on, until the log loses a file.
            assert (await broker.pull("T", 0, QUEUE_FILES)).min_offset == 0
        (tmp_path / "consumequeue/T/0" / f"{0:020d}").unlink()
        reply = await broker.pull("T", 0, 1)
        assert (reply.status, reply.next_offset) == (pb.OFFSET_FOUND_NULL, entries)
        assert (reply.min_offset, reply.max_offset) == (0, QUEUE_FILES * entries)
        reply = await broker.pull("T", 0, reply.next_offset)
        assert (reply.status, len(bodies_of(reply))) == (pb.FOUND, entries)
        rest = await broker.bodies("T", 0, entries)
        assert len(rest) == (QUEUE_FILES - 1) * entries


async def test_offsets_without_records_send_the_reader_on(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    """The log of another broker may skip queue offsets that never had a record."""
    await nameserver.create_topic("T", {"broker-a": 1})
    async with running_broker(tmp_path, [nameserver.address], **SHORT_FILES) as broker:
        await broker.append("T", 0, b"0", b"1")
    log = tmp_path / "commitlog" / f"{0:020d}"
    with log.open("r+b") as file:
        second = int.from_bytes(file.read(4))
        file.seek(second + 20)
        file.write((14).to_bytes(8))
    (tmp_path / "recoveryPoint").unlink()
    async with running_broker(tmp_path, [nameserver.address], **SHORT_FILES) as broker:
        reply = await broker.pull("T", 0, 5)
        assert (reply.status, reply.next_offset) == (pb.MESSAGE_WAS_REMOVING, FILE_ENTRIES)
        assert (reply.min_offset, reply.max_offset) == (0, 15)
        reply = await broker.pull("T", 0, reply.next_offset)
        assert (reply.status, bodies_of(reply), reply.next_offset) == (pb.FOUND, [b"1"], 15)


async def test_a_log_file_that_is_unlinked_in_use_stays_readable(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        await broker.append("T", 0, b"0")
        (tmp_path / "commitlog" / f"{0:020d}").unlink()
        assert await broker.bodies("T") == [b"0"]


def some_bytes(count: int) -> bytes:
    return random.Random(count).randbytes(count)


@pytest.mark.parametrize("count", [0, 1, 39, 512, 1023, 1024, 4096])
@pytest.mark.parametrize("name", ["checkpoint", "recoveryPoint"])
async def test_a_marker_file_of_any_length_of_garbage_is_not_believed(
    tmp_path: Path, nameserver: BrokerRoutes, name: str, count: int
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        await broker.append("T", 0, b"0", b"1")
    marker = tmp_path / name
    whole = len(marker.read_bytes())
    marker.write_bytes(some_bytes(count))
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        assert await broker.bodies("T") == [b"0", b"1"]
        await broker.append("T", 0, b"2")
    assert len(marker.read_bytes()) >= whole
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        assert await broker.bodies("T") == [b"0", b"1", b"2"]
        described = await broker.describe()
        assert (described.recovery_was_clean, described.recovery_records_scanned) == (True, 0)


@pytest.mark.parametrize("name", ["checkpoint", "recoveryPoint"])
async def test_a_marker_file_cut_short_is_not_believed(
    tmp_path: Path, nameserver: BrokerRoutes, name: str
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        await broker.append("T", 0, b"0")
    marker = tmp_path / name
    marker.write_bytes(marker.read_bytes()[:30])
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        assert await broker.bodies("T") == [b"0"]
    assert len(marker.read_bytes()) > 30


@pytest.mark.parametrize("name", ["topics.json", "producerSequences", "settledQueues"])
@pytest.mark.parametrize("end", ["", ".bak", ".new"])
async def test_a_directory_in_the_place_of_a_config_file_gives_way(
    tmp_path: Path,
    nameserver: BrokerRoutes,
    caplog: pytest.LogCaptureFixture,
    name: str,
    end: str,
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        await broker.append("T", 0, b"0")
    file = tmp_path / "config" / name
    place = file.with_name(name + end)
    place.unlink(missing_ok=True)
    place.mkdir()
    (place / "somebody's").write_bytes(b"file")
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        await broker.append("T", 0, b"1")
        assert await broker.bodies("T") == [b"0", b"1"]
    assert file.is_file()
    assert f"{place} is a directory: moved to" in caplog.text
    assert (tmp_path / f"lost/config-{name}{end}/somebody's").read_bytes() == b"file"


# The low byte of each length in a record of topic T whose body has three bytes.
LENGTHS = {"body": 87, "topic": 91, "properties": 94}
FILTERS: list[dict[str, Any]] = [
    {},
    {"tag_hashes": [tags_code("TagA")]},
    {"sql_expression": "TAGS = 'TagA'"},
]


async def test_a_record_with_a_damaged_length_is_told_as_damage_and_can_be_stepped_over(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        await broker.append("T", 0, *[b"123"] * 3)
    log = tmp_path / "commitlog" / f"{0:020d}"
    with log.open("rb") as file:
        size = int.from_bytes(file.read(4))
    # The running broker has these records in memory.
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        for length, wish in itertools.product(LENGTHS.values(), FILTERS):
            flip(log, size + length)
            reply = await broker.pull("T", 0, 0, **wish)
            assert (bodies_of(reply), reply.next_offset) == ([b"123"], 1)
            with pytest.raises(StoreCorrupt, match="message 1 of queue 0 of T is lost"):
                await broker.pull("T", 0, 1, **wish)
            reply = await broker.pull("T", 0, 2, **wish)
            assert (bodies_of(reply), reply.next_offset) == ([b"123"], 3)
            flip(log, size + length)
        assert await broker.bodies("T") == [b"123"] * 3


@pytest.mark.parametrize("wish", FILTERS, ids=["all", "tag", "expression"])
@pytest.mark.parametrize("file_number", [1, -1], ids=["a full file", "the newest file"])
@pytest.mark.parametrize("left_bytes", [0, 150])
async def test_a_log_file_that_is_cut_short_in_use_is_told_as_damage_and_can_be_stepped_over(
    tmp_path: Path,
    nameserver: BrokerRoutes,
    wish: dict[str, Any],
    file_number: int,
    left_bytes: int,
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    small = {"commit_log_file_bytes": 4096}
    async with running_broker(tmp_path, [nameserver.address], **small) as broker:
        for number in range(100):
            await broker.append("T", 0, b"%d" % number)
    async with running_broker(tmp_path, [nameserver.address], **small) as broker:
        file = sorted((tmp_path / "commitlog").iterdir())[file_number]
        os.truncate(file, left_bytes)
        found, lost, offset = [], [], 0
        while offset < 100:
            try:
                reply = await broker.pull("T", 0, offset, **wish)
            except StoreCorrupt as damage:
                assert str(file) in str(damage)
                assert f"message {offset} of queue 0 of T is lost" in str(damage)
                lost.append(offset)
                offset += 1
                continue
            found += bodies_of(reply)
            offset = reply.next_offset
        assert lost == [*range(lost[0], lost[0] + len(lost))]
        assert (lost[-1] == 99) == (file_number == -1)
        assert found == [b"%d" % number for number in range(100) if number not in lost]
        # The next message is stored there.
        await broker.append("T", 0, b"100")
        assert await broker.bodies("T", 0, 100) == [b"100"]


def flip(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        (value,) = file.read(1)
        file.seek(position)
        file.write(bytes([value ^ 1]))
