"""Generations of the journal: a snapshot, and the records behind it."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from offset.journals import newest, numbered, opened, write

from rockoon_core.errors import StoreCorrupt
from rockoon_offset.journal import former_frames as frames
from rockoon_offset.journal.generation_files import (
    generations,
    journal_path,
    read_contents,
    snapshot_path,
)
from support.waiting import DEADLINE_SECONDS


def rotated(directory: Path, rounds: int) -> list[bytes]:
    """A directory that went through some generations; returns all records."""
    book, outcomes = opened(directory, bytes_max=1)
    records: list[bytes] = []
    for number in range(rounds):
        batch = numbered(number * 10, number * 10 + 3)
        records += batch
        outcomes.wait_synced(book.append(batch))
        thread = book._snapshot_thread
        if thread is not None:
            thread.join()
        assert book.wants_rotation
        book.rotate(iter(list(records)))
        outcomes.wait_synced(book.append([b"mark %d" % number]))
        records.append(b"mark %d" % number)
    book.close()
    return records


def test_a_journal_past_its_bound_begins_a_new_generation(tmp_path: Path) -> None:
    records = rotated(tmp_path, 5)
    assert generations(tmp_path, "snapshot") == [5, 6]
    assert generations(tmp_path, "journal") == [5, 6]
    assert read_contents(tmp_path).records == records


def test_a_damaged_snapshot_costs_nothing_while_the_generation_before_is_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    records = rotated(tmp_path, 3)
    path = snapshot_path(tmp_path, 4)
    whole = path.read_bytes()
    for position in range(0, len(whole), 7):
        bad = bytearray(whole)
        bad[position] ^= 0x01
        path.write_bytes(bytes(bad))
        assert read_contents(tmp_path).records == records
    path.write_bytes(whole[:-1])
    assert read_contents(tmp_path).records == records
    assert "reading the former generation instead" in caplog.text


def test_a_damaged_first_snapshot_costs_nothing_either(tmp_path: Path) -> None:
    records = rotated(tmp_path, 1)
    snapshot_path(tmp_path, 2).write_bytes(b"no snapshot at all")
    assert read_contents(tmp_path).records == records


def test_two_damaged_snapshots_are_refused(tmp_path: Path) -> None:
    rotated(tmp_path, 3)
    for generation in (3, 4):
        snapshot_path(tmp_path, generation).write_bytes(b"no snapshot at all")
    with pytest.raises(StoreCorrupt, match="snapshot"):
        read_contents(tmp_path)


@pytest.mark.parametrize("generation", [3, 4])
def test_a_missing_journal_is_refused(tmp_path: Path, generation: int) -> None:
    rotated(tmp_path, 3)
    snapshot_path(tmp_path, 4).write_bytes(b"damaged, so that both are needed")
    journal_path(tmp_path, generation).unlink()
    with pytest.raises(StoreCorrupt):
        read_contents(tmp_path)


def test_an_acknowledged_frame_cut_off_an_older_journal_is_refused(tmp_path: Path) -> None:
    rotated(tmp_path, 3)
    snapshot_path(tmp_path, 4).unlink()
    path = journal_path(tmp_path, 3)
    mark = len(frames.frame(0, [b"mark 1"]))
    whole = path.read_bytes()
    path.write_bytes(whole[: frames.FILE_HEADER_BYTES + mark])
    with pytest.raises(StoreCorrupt, match="expected"):
        read_contents(tmp_path)


def test_a_crash_while_the_snapshot_was_written_loses_nothing(tmp_path: Path) -> None:
    book, outcomes = opened(tmp_path, bytes_max=1)
    outcomes.wait_synced(book.append(numbered(0, 3)))
    wait = threading.Event()

    def snapshot() -> Iterator[bytes]:
        yield from numbered(0, 3)
        assert wait.wait(DEADLINE_SECONDS)

    book.rotate(snapshot())
    outcomes.wait_synced(book.append(numbered(3, 5)))
    # What a killed process would leave at this moment.
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in tmp_path.glob("0*"):
        (copy / path.name).write_bytes(path.read_bytes())
    (copy / "000000000002.snapshot.new").write_bytes(b"half a snap")
    assert not book.wants_rotation
    wait.set()
    book.close()
    assert read_contents(copy).records == numbered(0, 5)
    write(copy, [numbered(5, 6)])
    assert read_contents(copy).records == numbered(0, 6)
    assert not list(copy.glob("*.new"))


def test_the_lock_and_temporary_files_of_others_are_no_generation(tmp_path: Path) -> None:
    write(tmp_path, [numbered(0, 1)])
    (tmp_path / "notes.txt").write_text("x")
    assert generations(tmp_path, "journal") == [1]
    assert os.path.getsize(newest(tmp_path)) > frames.FILE_HEADER_BYTES
