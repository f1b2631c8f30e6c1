"""Reads of named topics in a store directory: by the entries of ConsumeQueues, or by the log."""

import os
import pickle
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rockoon_broker.store.settings import Flush
from rockoon_spark import files
from rockoon_spark.files import LogFile
from rockoon_spark.records.selection import EVERYTHING, Range, Selection
from rockoon_spark.source import queue_entries
from rockoon_spark.source.file_partition import FilePartition
from rockoon_spark.source.log_source import DamagedRange, LogPartition, rows
from rockoon_spark.source.store_directory import StoreDirectory
from support.seeds import seeds
from support.store_directory import NOW_MS, Owner, batch_of, encode_batch, settings

FILE_BYTES = 1 << 16
Row = tuple[str, int, int, bytes]


def open_owner(root: Path) -> Owner:
    chosen = settings(
        root,
        commit_log_file_bytes=FILE_BYTES,
        consume_queue_file_entries=10,
        flush=Flush.ASYNC,
    )
    return Owner(chosen)


def fill(root: Path, chance: random.Random, count: int, first: int = 0) -> None:
    owner = open_owner(root)
    for n in range(first, first + count):
        topic = chance.choices(["rare", "common"], [1, 12])[0]
        body = b"%d" % n + bytes(chance.choice([0, 30, 3000]))
        frames, lengths = encode_batch(topic.encode(), n % 3, [body], [b""], NOW_MS, b"\0" * 8)
        owner.store.append(batch_of(topic, n % 3, frames, lengths), NOW_MS + n * 10)
    owner.store.close()


def read(partitions: Sequence[LogPartition], selection: Selection) -> tuple[list[Row], list[str]]:
    damages: list[DamagedRange] = []
    found: list[Row] = []
    for partition in pickle.loads(pickle.dumps(partitions)):
        columns = ["topic", "queue", "queue_offset", "body"]
        for batch in rows(partition.read(), selection, columns, damages.append):
            found += zip(*(column.to_pylist() for column in batch.columns), strict=True)
    return sorted(found), [str(each) for each in damages]


def is_listed(partitions: Sequence[LogPartition]) -> bool:
    return any(isinstance(each, FilePartition) and each.listed is not None for each in partitions)


RARE = EVERYTHING.among("topic", frozenset({"rare"}))


def whole(root: Path, selection: Selection) -> tuple[list[Row], list[str]]:
    """The rows of a copy without its ConsumeQueues."""
    copy = root.parent / "copy"
    shutil.copytree(root, copy)
    shutil.rmtree(copy / "consumequeue")
    partitions = StoreDirectory(str(copy), "broker-a").partitions(selection, 1 << 20)
    assert not is_listed(partitions)
    found = read(partitions, selection)
    shutil.rmtree(copy)
    return found


@pytest.mark.parametrize("seed", seeds(1))
def test_entries_and_log_give_equal_rows(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    root = tmp_path / "broker-a"
    fill(root, chance, 300)
    for selection in (
        RARE,
        replace(RARE, starts={("rare", "", 0): 3, ("rare", "broker-a", 1): 2}),
        replace(RARE, starts={("rare", "", 2): 11}, ends={("rare", "", 0): 4}),
        RARE.ranged("store_time", Range((NOW_MS + 1000) * 1000, (NOW_MS + 2000) * 1000)),
    ):
        expected, damages = whole(root, selection)
        assert expected
        assert not damages
        for place in (str(root), f"file://{root}"):
            for split_bytes in (500, 1 << 20):
                partitions = StoreDirectory(place, "broker-a").partitions(selection, split_bytes)
                assert is_listed(partitions)
                assert read(partitions, selection) == (expected, [])


def test_records_after_the_recovery_point_are_found_in_the_log(tmp_path: Path) -> None:
    chance = random.Random(5)
    root, older = tmp_path / "broker-a", tmp_path / "older"
    fill(root, chance, 200)
    shutil.copytree(root, older)
    fill(root, chance, 100, first=200)
    # As a running broker leaves a store: only the log is newer.
    shutil.rmtree(older / "commitlog")
    shutil.copytree(root / "commitlog", older / "commitlog")
    partitions = StoreDirectory(str(older), "broker-a").partitions(RARE, 1 << 20)
    assert is_listed(partitions)
    assert read(partitions, RARE) == whole(root, RARE)


@pytest.mark.parametrize(
    "lost", ["recoveryPoint", "checkpoint", "consumequeue/rare/1", "consumequeue/common/2"]
)
def test_without_a_recovery_point_or_with_missing_queues_the_log_is_read(
    tmp_path: Path, lost: str
) -> None:
    root = tmp_path / "broker-a"
    fill(root, random.Random(6), 200)
    expected = whole(root, RARE)
    path = root / lost
    path.rename(tmp_path / "lost")
    partitions = StoreDirectory(str(root), "broker-a").partitions(RARE, 1 << 20)
    assert not is_listed(partitions)
    assert read(partitions, RARE) == expected


def test_a_copy_without_the_newest_file_of_the_log_gives_the_messages_that_it_has(
    tmp_path: Path,
) -> None:
    root = tmp_path / "broker-a"
    fill(root, random.Random(6), 200)
    log = sorted((root / "commitlog").iterdir())
    written = [path for path in log if any(path.read_bytes()[:8])]
    assert len(written) > 2
    for path in log[log.index(written[-1]) :]:
        path.rename(tmp_path / path.name)
    partitions = StoreDirectory(str(root), "broker-a").partitions(RARE, 1 << 20)
    assert is_listed(partitions)
    assert read(partitions, RARE) == whole(root, RARE)


def entry_file(root: Path, topic: str) -> Path:
    """The file with the first entries of a queue."""
    return sorted((root / "consumequeue" / topic / "1").iterdir())[0]


@pytest.mark.parametrize("follows", [True, False])
def test_an_entry_of_another_record_does_not_hide_the_right_one(
    tmp_path: Path, follows: bool
) -> None:
    root = tmp_path / "broker-a"
    fill(root, random.Random(7), 300)
    expected, _ = whole(root, RARE)
    path = entry_file(root, "rare")
    before, after = (int.from_bytes(path.read_bytes()[at : at + 8]) for at in (0, 40))
    others = entry_file(root, "common").read_bytes()
    entries = [others[at : at + 20] for at in range(0, len(others), 20)]
    wrong = next(each for each in entries if (before < int.from_bytes(each[:8]) < after) == follows)
    with path.open("r+b") as file:
        file.seek(20)
        file.write(wrong)
    partitions = StoreDirectory(str(root), "broker-a").partitions(RARE, 1 << 20)
    found, damages = read(partitions, RARE)
    # Entries out of order make the plan read the log.
    assert is_listed(partitions) == follows == bool(damages)
    if follows:
        assert found == [row for row in expected if row[1:3] != (1, 1)]
        assert "are not the record that a ConsumeQueue lists" in damages[0]
    else:
        assert found == expected


def test_a_damaged_record_is_reported(tmp_path: Path) -> None:
    root = tmp_path / "broker-a"
    fill(root, random.Random(8), 300)
    expected, _ = whole(root, RARE)
    at = int.from_bytes(entry_file(root, "rare").read_bytes()[20:28])
    for place, wrong in ((4, b"oops"), (0, b"\0\0\0\0"), (88, b"\xff\xff")):
        with (root / "commitlog" / f"{at - at % FILE_BYTES:020d}").open("r+b") as log:
            log.seek(at % FILE_BYTES + place)
            log.write(wrong)
        partitions = StoreDirectory(str(root), "broker-a").partitions(RARE, 1 << 20)
        found, damages = read(partitions, RARE)
        assert found == [row for row in expected if row[1:3] != (1, 1)]
        assert len(damages) == 1
        assert f"physical offsets {at} to" in damages[0]


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_rare_topic_and_zeros_are_not_carried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    root = tmp_path / "broker-a"
    file_bytes = 64 << 20
    owner = Owner(settings(root, commit_log_file_bytes=file_bytes, flush=Flush.ASYNC))
    for n in range(200):
        owner.append("common", n % 3, [bytes(range(1, 251)) * 4] * 20)
        owner.append("rare", n % 3, [bytes(range(1, 251))])
    owner.store.close()
    log_bytes = 200 * (20 * 1000 + 250)
    carried = 0
    read_bytes, read_ranges, reading = files.read_bytes, files.read_ranges, files.reading

    def counted(uri: str, start: int, stop: int | None) -> Any:
        nonlocal carried
        found = read_bytes(uri, start, stop)
        # A mapped file is counted where it is used.
        carried += len(found) if stop is not None or "://" in uri else 0
        return found

    def counted_ranges(*given: Any) -> Any:
        nonlocal carried
        found = read_ranges(*given)
        carried += sum(map(len, found))
        return found

    @contextmanager
    def counted_reading(file: LogFile) -> Iterator[Callable[[int, int], bytes]]:
        with reading(file) as read_at:

            def counted_read(size: int, start: int) -> bytes:
                nonlocal carried
                content = read_at(size, start)
                carried += len(content)
                return content

            yield counted_read

    monkeypatch.setattr(files, "read_bytes", counted)
    monkeypatch.setattr(queue_entries, "reading", counted_reading)
    monkeypatch.setattr("rockoon_spark.source.file_partition.read_ranges", counted_ranges)
    store = StoreDirectory(f"{scheme}{root}", "broker-a")
    partitions = store.partitions(RARE, 1 << 20)
    assert len(read(partitions, RARE)[0]) == 200
    assert carried < log_bytes * 0.2
    carried = 0
    partitions = store.partitions(EVERYTHING, 1 << 20)
    assert log_bytes < sum(each.stop - each.start for each in partitions) < log_bytes * 1.3
    assert len(read(partitions, EVERYTHING)[0]) == 4200


@pytest.mark.parametrize("scheme", ["", "file://"])
@pytest.mark.parametrize("zeros", [0, 10, 200_000])
def test_the_end_of_a_log_in_a_file_made_in_advance_is_found(
    tmp_path: Path, scheme: str, zeros: int
) -> None:
    """Also behind a message of zeros."""
    root = tmp_path / "broker-a"
    owner = Owner(settings(root, commit_log_file_bytes=8 << 20, flush=Flush.ASYNC))
    for n in range(6):
        owner.append("T", 0, [b"%d" % n, bytes(zeros)])
    owner.store.close()
    partitions = StoreDirectory(f"{scheme}{root}", "broker-a").partitions(EVERYTHING, 1 << 16)
    found, damages = read(partitions, EVERYTHING)
    assert len(found) == 12
    assert not damages
    assert zeros or partitions[-1].stop <= 64 << 10


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_zeros_within_a_log_do_not_hide_the_messages_after_them(
    tmp_path: Path, scheme: str
) -> None:
    """A damaged disk: a search by bisection finds these zeros, and a whole record before them."""
    root, file_bytes, zeros = tmp_path / "broker-a", 1 << 20, 512 << 10
    owner = Owner(settings(root, commit_log_file_bytes=file_bytes, flush=Flush.ASYNC))
    for n in range(900):
        owner.append("T", 0, [b"%03d" % n + bytes(900)])
    owner.store.close()
    (path,) = (root / "commitlog").iterdir()
    content = bytearray(path.read_bytes())
    size = int.from_bytes(content[:4])
    start = (file_bytes // 4 // size) * size
    content[start : start + zeros] = bytes(zeros)
    path.write_bytes(content)
    partitions = StoreDirectory(f"{scheme}{root}", "broker-a").partitions(EVERYTHING, 1 << 16)
    found, _ = read(partitions, EVERYTHING)
    after = (start + zeros) // size + 1
    assert {body[:3] for *_, body in found} >= {b"%03d" % n for n in range(after, 900)}


def test_zeros_at_the_end_of_a_log_are_not_read_even_if_they_are_no_hole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a copy of a store, or if the page cache has them."""
    root, file_bytes, carried = tmp_path / "broker-a", 32 << 20, 0
    owner = Owner(settings(root, commit_log_file_bytes=file_bytes, flush=Flush.ASYNC))
    owner.append("T", 0, [b"%d" % n for n in range(1000)])
    owner.store.close()
    (path,) = (root / "commitlog").iterdir()
    path.write_bytes(path.read_bytes())
    pread = os.pread

    def counted(descriptor: int, size: int, start: int) -> bytes:
        nonlocal carried
        carried += size
        return pread(descriptor, size, start)

    monkeypatch.setattr(os, "pread", counted)
    partitions = StoreDirectory(str(root), "broker-a").partitions(EVERYTHING, file_bytes)
    assert carried < 1 << 20
    assert len(read(partitions, EVERYTHING)[0]) == 1000
