"""Log files that change while they are read: one is deleted, or a topic is created again."""

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rockoon_format.record import Record, encode_record
from rockoon_spark.files import LogFile
from rockoon_spark.records.columns import LogRecords, to_batch
from rockoon_spark.records.selection import Selection
from rockoon_spark.source import file_partition
from rockoon_spark.source.file_partition import FilePartition
from rockoon_spark.source.store_directory import StoreDirectory
from support.kernels import BOTH, each_kernel
from support.log_bytes import log_bytes

each_kernel = pytest.fixture(scope="module", autouse=True, params=BOTH)(each_kernel)

FILE_BYTES = 32_768


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_partition, "WINDOW_BYTES", 5000)
    monkeypatch.setattr(file_partition, "TABLE_BYTES", 6000)


def test_a_file_that_retention_deletes_is_read_to_its_end(tmp_path: Path) -> None:
    buffer, _ = log_bytes(random.Random(3), 0, records=100)
    path = tmp_path / "log"
    partition = replace(
        FilePartition.of(LogFile(str(path), 0, len(buffer))),
        is_sealed=True,
    )
    path.write_bytes(buffer.tobytes())
    runs = partition.runs()
    first = next(runs)
    path.unlink()
    assert b"".join(run.content[: run.stop] for run in (first, *runs)) == buffer.tobytes()
    path.write_bytes(buffer.tobytes())
    read = partition.read()
    records = [next(read)]
    path.unlink()
    records += read
    assert sum(len(each) for each in records if isinstance(each, LogRecords)) == 100


def records_of_topic(base: int, count: int, body: bytes) -> bytes:
    """Return records of one queue, from queue offset 0 on."""
    frames = b""
    for number in range(count):
        frames += encode_record(
            Record(topic=b"T", body=body, queue_offset=number, physical_offset=base + len(frames))
        )
    return frames


def store_of(root: Path, *contents: bytes) -> StoreDirectory:
    (root / "commitlog").mkdir(parents=True)
    for number, content in enumerate(contents):
        path = root / "commitlog" / f"{number * FILE_BYTES:020d}"
        path.write_bytes(content.ljust(FILE_BYTES, b"\0"))
    return StoreDirectory(str(root))


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_topic_made_anew_between_two_windows_has_no_offset_twice(
    tmp_path: Path, ahead: int
) -> None:
    former = records_of_topic(0, 100, b"former" * 10)
    store = store_of(tmp_path / "store", former, *ahead * [b""])
    partition, *_ = store.partitions(Selection(), FILE_BYTES)

    def read() -> Iterator[int]:
        for found in partition.read():
            assert isinstance(found, LogRecords)
            yield from to_batch(found, ["queue_offset"])["queue_offset"].to_pylist()

    offsets = read()
    seen = [next(offsets)]
    (tmp_path / "store" / "config").mkdir()
    marks = {"marks": {"T": len(former)}}
    (tmp_path / "store" / "config" / "droppedTopics.json").write_text(json.dumps(marks))
    with (tmp_path / "store" / "commitlog" / f"{0:020d}").open("r+b") as log:
        log.seek(len(former))
        log.write(records_of_topic(len(former), 50, b"anew"))
    seen += offsets
    assert seen == [*range(100)]


@pytest.mark.parametrize("ends", ["nothing", "records"])
def test_what_was_rolled_back_behind_the_reader_ends_what_it_reads(
    tmp_path: Path, ends: str
) -> None:
    """A broker truncates its last file, and writes longer records there."""
    former = records_of_topic(0, 160, b"former")
    store = store_of(tmp_path / "store", former)
    (partition,) = store.partitions(Selection(), FILE_BYTES)

    def read() -> Iterator[tuple[int, bytes]]:
        for found in partition.read():
            assert isinstance(found, LogRecords)
            for row in to_batch(found, ["queue_offset", "body"]).to_pylist():
                yield row["queue_offset"], row["body"]

    rows = read()
    seen = [next(rows)]
    with (tmp_path / "store" / "commitlog" / f"{0:020d}").open("r+b") as log:
        begin = len(records_of_topic(0, 20, b"former"))
        anew = records_of_topic(begin, 100 if ends == "records" else 0, b"others" * 9)
        log.seek(begin)
        log.write(anew.ljust(len(former) - begin, b"\0"))
    seen += rows
    assert seen == [(number, b"former") for number in range(len(seen))]
    assert len(seen) >= 20


def test_only_files_that_another_follows_are_sealed(tmp_path: Path) -> None:
    """Files that were allocated in advance are not planned."""
    files = [records_of_topic(number * FILE_BYTES, 3, b"") for number in range(3)]
    for count in range(4):
        for ahead in range(3):
            store = store_of(tmp_path / f"{count}-{ahead}", *files[:count], *ahead * [b""])
            found = store.partitions(Selection(), FILE_BYTES)
            assert [each.is_sealed for each in found if isinstance(each, FilePartition)] == [
                *max(count - 1, 0) * [True],
                *min(count, 1) * [False],
            ]
