"""Records that are damaged on disk: each is reported once, and all other records are read."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise, product
from pathlib import Path

import pytest

from rockoon_broker.store.settings import Flush
from rockoon_proto.v1.broker_pb2 import COLUMN_BODY, ReadLogRequest
from rockoon_spark.files import LogFile, list_log
from rockoon_spark.records.selection import EVERYTHING
from rockoon_spark.source.broker_partition import BrokerPartition
from rockoon_spark.source.file_partition import FilePartition
from rockoon_spark.source.log_source import DamagedRange, LogPartition, rows
from rockoon_spark.source.store_directory import StoreDirectory
from support.broker import running_broker
from support.broker_routes import BrokerRoutes
from support.store_directory import Owner, settings

FILE_BYTES = 16_384
RECORDS = 40

# Name of the fault, position in the record (negative: from its end), and the bytes written there.
FAULTS: dict[str, tuple[int, bytes]] = {
    "magic": (4, b"oops"),
    "size that fits the file": (0, b"\0\0\x10\1"),
    "size beyond the file": (0, b"\0\1\0\0"),
    "size zero": (0, b"\0\0\0\0"),
    "place, a higher one": (30, b"\7"),
    "place, a lower one": (28, b"\xff"),
    "body": (100, b"oops"),
    "length of the properties": (-32, b"\7\7"),
    "flag": (16, b"\1"),
    "properties": (-23, b"b"),
    "checksum": (-5, b"x"),
    "end of the checksum": (-1, b"\0"),
    "all of it": (0, b"x" * 700),
}


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[int, int]]]:
    """A store of two files, and the physical offset and size of each record."""
    root = tmp_path_factory.mktemp("stores") / "broker-a"
    owner = Owner(settings(root, commit_log_file_bytes=FILE_BYTES, flush=Flush.ASYNC))
    places = []
    for n in range(RECORDS):
        appended = owner.append("T", 0, [b"%d" % n + bytes(600)])
        start = appended.first_physical_offset
        places.append((start, appended.end_offset - start))
    owner.store.close()
    return root, places


def copy(root: Path, target: Path) -> Path:
    for path in root.rglob("*"):
        if path.is_file() and path.name != "lock":
            copied = target / path.relative_to(root)
            copied.parent.mkdir(parents=True, exist_ok=True)
            copied.write_bytes(path.read_bytes())
    return target


def damage(root: Path, place: tuple[int, int], fault: str) -> None:
    start, size = place
    at, content = FAULTS[fault]
    file = root / "commitlog" / f"{start - start % FILE_BYTES:020d}"
    with file.open("r+b") as log:
        log.seek(start % FILE_BYTES + at % size)
        log.write(content)


def read(
    partitions: Sequence[LogPartition], columns: Sequence[str] = ("body",)
) -> tuple[list[int], list[tuple[int, int]]]:
    """Return the numbers in the bodies, or the queue offsets, and the damage."""
    damages: list[DamagedRange] = []
    found: list[int] = []
    for partition in partitions:
        for batch in rows(partition.read(), EVERYTHING, columns, damages.append):
            column = batch.column(0).to_pylist()
            found += [int(x.rstrip(b"\0")) if isinstance(x, bytes) else x for x in column]
    return found, [(each.start, each.end) for each in damages]


def cut(file: LogFile, cuts: Sequence[int]) -> list[LogPartition]:
    end = file.start + file.bytes
    bounds = [file.start, *(each for each in cuts if file.start < each < end), end]
    return [FilePartition(file=file, start=start, stop=stop) for start, stop in pairwise(bounds)]


def around(place: tuple[int, int]) -> list[list[int]]:
    """Return cuts of a log: none, at a record's start, in it, at its end, on both sides."""
    start, size = place
    end = start + size
    near = [[], [start], [start + 1], [start + 50], [end - 1], [end], [start, end]]
    return near


def victims(places: Sequence[tuple[int, int]]) -> list[int]:
    """Return the indexes of the records that are damaged: first, middle and last of each file."""
    behind = next(n for n, (start, _) in enumerate(places) if start >= FILE_BYTES)
    return [0, 10, behind - 1, behind, RECORDS - 1]


@pytest.mark.parametrize("fault", FAULTS)
def test_in_a_directory_damage_is_told_once_wherever_the_log_is_cut(
    pristine: tuple[Path, list[tuple[int, int]]], tmp_path: Path, fault: str
) -> None:
    root, places = pristine
    for victim in victims(places):
        store = copy(root, tmp_path / str(victim))
        damage(store, places[victim], fault)
        start, size = places[victim]
        # A cut elsewhere is one of an intact log: see `test_partition_scan`.
        near = list(range(max(start - 1500, 100), start + 1500, 100))
        for cuts in (*around(places[victim]), near):
            files = list_log(str(store))
            found, damages = read([each for f in files for each in cut(f, cuts)])
            if fault == "size zero" and victim == RECORDS - 1:
                # The unwritten end of a file has the same bytes.
                damages = [(start, start + size)]
            assert found == [n for n in range(RECORDS) if n != victim], (victim, cuts)
            assert [told for told, _ in damages] == [start], (victim, cuts)


def test_who_does_not_read_bodies_gets_the_other_columns_of_a_damaged_one(
    pristine: tuple[Path, list[tuple[int, int]]], tmp_path: Path
) -> None:
    root, places = pristine
    store = copy(root, tmp_path / "store")
    damage(store, places[10], "body")
    partitions = StoreDirectory(str(store), "b").partitions(EVERYTHING, 1000)
    assert read(partitions, ["queue_offset"]) == (list(range(RECORDS)), [])
    start, size = places[10]
    assert read(partitions)[1] == [(start, start + size)]


def test_a_record_that_is_being_written_is_no_damage(
    pristine: tuple[Path, list[tuple[int, int]]], tmp_path: Path
) -> None:
    root, places = pristine
    store = copy(root, tmp_path / "store")
    start, size = places[-1]
    newest = store / "commitlog" / f"{start - start % FILE_BYTES:020d}"
    whole = newest.read_bytes()
    middle = start % FILE_BYTES + size // 2
    newest.write_bytes(whole[:middle] + bytes(len(whole) - middle))
    [file] = [each for each in list_log(str(store)) if each.start == start - start % FILE_BYTES]
    partition = FilePartition.of(file)
    waits: list[float] = []

    def is_written(seconds: float) -> None:
        waits.append(seconds)
        newest.write_bytes(whole)

    _, found = partition.scan(waits.append)
    assert [each.start for each in found.damages] == [start]
    before, waits[:] = len(found.starts), []
    _, found = partition.scan(is_written)
    assert not found.damages
    assert len(found.starts) == before + 1
    assert len(waits) == 1


@pytest.fixture
async def nameserver() -> AsyncIterator[BrokerRoutes]:
    async with BrokerRoutes() as running:
        await running.create_topic("T", {"broker-a": 1})
        yield running


# The test above damages each of five records with each fault, this one two records.
@pytest.mark.parametrize("damaged", [2, pytest.param(5, marks=pytest.mark.soak)])
@pytest.mark.parametrize("fault", FAULTS)
async def test_in_a_live_log_damage_is_told_once_wherever_it_is_cut(
    pristine: tuple[Path, list[tuple[int, int]]],
    tmp_path: Path,
    nameserver: BrokerRoutes,
    fault: str,
    damaged: int,
) -> None:
    root, places = pristine
    first_victim = list(FAULTS).index(fault)
    small = {"commit_log_file_bytes": FILE_BYTES}
    store = tmp_path / "store"
    copy(root / "commitlog", store / "commitlog")
    end = sum(places[-1])
    async with running_broker(store, [nameserver.address], **small) as broker:
        for number in range(first_victim, first_victim + damaged):
            victim = victims(places)[number % 5]
            kept = {path: path.read_bytes() for path in (store / "commitlog").iterdir()}
            damage(store, places[victim], fault)
            start, _ = places[victim]
            # Reads of whole records, and of one column.
            columns = ReadLogRequest(topics=["T"], columns=[COLUMN_BODY])
            for cuts, wanted in product(around(places[victim]), (ReadLogRequest(), columns)):
                bounds = [0, *(each for each in cuts if 0 < each < end), end]
                partitions = [
                    BrokerPartition(
                        broker="broker-a",
                        address=broker.address,
                        endpoint=nameserver.address,
                        start=first,
                        stop=behind,
                        at_record=first == 0,
                        wanted=wanted,
                    )
                    for first, behind in pairwise(bounds)
                ]
                found, damages = await asyncio.to_thread(read, partitions)
                assert found == [n for n in range(RECORDS) if n != victim], (victim, cuts)
                assert [told for told, _ in damages] == [start], (victim, cuts)
            for path, content in kept.items():
                with path.open("r+b") as file:
                    file.write(content)
