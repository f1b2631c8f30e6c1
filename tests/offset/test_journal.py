"""The journal: what was acknowledged is there after any crash, or the start is refused."""

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from offset.journals import FaultyDisk, Outcomes, newest, numbered, opened, write

from rockoon_core.disk import Disk
from rockoon_core.errors import Busy, StoreCorrupt, StoreFailed
from rockoon_offset.journal import former_frames as frames
from rockoon_offset.journal.generation_files import (
    Contents,
    read_contents,
)
from rockoon_offset.journal.journal import Journal
from support.waiting import DEADLINE_SECONDS


def test_records_come_back_in_order_after_a_restart(tmp_path: Path) -> None:
    write(tmp_path, [numbered(0, 2), numbered(2, 3)])
    write(tmp_path, [numbered(3, 7)])
    assert read_contents(tmp_path).records == numbered(0, 7)


def test_what_waits_when_the_journal_is_closed_is_written(tmp_path: Path) -> None:
    book, _ = opened(tmp_path)
    for number in range(50):
        book.append(numbered(number, number + 1))
    book.close()
    assert read_contents(tmp_path).records == numbered(0, 50)


def test_many_waiting_batches_share_one_sync(tmp_path: Path) -> None:
    class SlowDisk(Disk):
        syncs = 0
        gate = threading.Event()

        def fdatasync(self, fd: int) -> None:
            self.syncs += 1
            if self.syncs > 2:
                assert self.gate.wait(DEADLINE_SECONDS)
            super().fdatasync(fd)

    disk = SlowDisk()
    outcomes = Outcomes()
    book = Journal(tmp_path, outcomes.on_synced, outcomes.on_failed, disk=disk)
    opening = disk.syncs
    disk.syncs = 2
    book.start()
    for number in range(101):
        book.append(numbered(number, number + 1))
    disk.gate.set()
    outcomes.wait_synced(101)
    assert opening == 1
    # The first may be written alone; all that came while it was synced share the second.
    assert disk.syncs - 2 <= 3
    book.close()
    assert read_contents(tmp_path).records == numbered(0, 101)


def test_a_write_torn_at_any_byte_costs_only_what_was_not_acknowledged(tmp_path: Path) -> None:
    write(tmp_path, [numbered(0, 3), numbered(3, 5)])
    path = newest(tmp_path)
    acknowledged = path.read_bytes()
    torn = frames.frame(5, numbered(5, 8))
    for cut in range(len(torn)):
        path.write_bytes(acknowledged + torn[:cut])
        contents = read_contents(tmp_path)
        assert contents.records == numbered(0, 5), cut
        assert contents.torn_bytes == cut
    path.write_bytes(acknowledged + torn)
    assert read_contents(tmp_path).records == numbered(0, 8)


def test_any_byte_of_an_unfinished_write_may_be_wrong(tmp_path: Path) -> None:
    write(tmp_path, [numbered(0, 3)])
    path = newest(tmp_path)
    acknowledged = path.read_bytes()
    torn = frames.frame(3, numbered(3, 6))
    for position, bit in itertools.product(range(len(torn)), (0x01, 0x80)):
        bad = bytearray(torn)
        bad[position] ^= bit
        path.write_bytes(acknowledged + bytes(bad))
        assert read_contents(tmp_path).records == numbered(0, 3), position


def test_the_torn_end_is_cut_before_anything_is_appended(tmp_path: Path) -> None:
    write(tmp_path, [numbered(0, 3)])
    path = newest(tmp_path)
    acknowledged = path.read_bytes()
    path.write_bytes(acknowledged + frames.frame(3, numbered(3, 60))[:-1])
    write(tmp_path, [numbered(3, 4)])
    # In the mark's place.
    written = acknowledged.removesuffix(frames.mark(3)) + frames.frame(3, numbered(3, 4))
    assert path.read_bytes() == written + frames.mark(4)
    assert read_contents(tmp_path).records == numbered(0, 4)


def test_damage_to_what_was_acknowledged_is_refused_and_names_the_place(tmp_path: Path) -> None:
    write(tmp_path, [numbered(0, 3), numbered(3, 5), numbered(5, 6)])
    path = newest(tmp_path)
    whole = path.read_bytes()
    for position in range(len(whole) - len(frames.mark(6))):
        bad = bytearray(whole)
        bad[position] ^= 0x10
        path.write_bytes(bytes(bad))
        with pytest.raises(StoreCorrupt, match=path.name) as refused:
            read_contents(tmp_path)
        assert "header" in str(refused.value) or "at byte" in str(refused.value) or position < 28
        assert path.read_bytes() == bytes(bad), "a refused store is not touched"


def test_damage_to_the_mark_at_the_end_costs_nothing(tmp_path: Path) -> None:
    write(tmp_path, [numbered(0, 3)])
    path = newest(tmp_path)
    whole = path.read_bytes()
    for position in range(len(whole) - len(frames.mark(3)), len(whole)):
        bad = bytearray(whole)
        bad[position] ^= 0x10
        path.write_bytes(bytes(bad))
        assert read_contents(tmp_path).records == numbered(0, 3)


def test_a_frame_is_marked_before_anybody_is_told_of_it(tmp_path: Path) -> None:
    """So that damage to the newest is known for what it is after a kill too, at any moment."""
    book, outcomes = opened(tmp_path)
    for number in range(3):
        outcomes.wait_synced(book.append(numbered(number, number + 1)))
        assert newest(tmp_path).read_bytes().endswith(frames.mark(number + 1))
    book.close()


def test_a_start_marks_what_it_found(tmp_path: Path) -> None:
    """It has written and synced it all, also what a version wrote that knew no marks."""
    write(tmp_path, [numbered(0, 3)])
    path = newest(tmp_path)
    path.write_bytes(path.read_bytes().removesuffix(frames.mark(3)))
    book, _ = opened(tmp_path)
    assert path.read_bytes().endswith(frames.mark(3))
    book.close()
    assert read_contents(tmp_path) == Contents(1, numbered(0, 3), 3, whole_end(path), 0, True)


def whole_end(path: Path) -> int:
    return len(path.read_bytes()) - len(frames.mark(0))


@pytest.mark.parametrize("marked", [True, False])
def test_a_torn_end_is_beyond_doubt_only_behind_a_mark(tmp_path: Path, marked: bool) -> None:
    """A frame is written over the mark of the one before: where that stands, it never was."""
    write(tmp_path, [numbered(0, 3)])
    path = newest(tmp_path)
    whole = path.read_bytes()
    torn = bytearray(frames.frame(3, numbered(3, 9)))
    torn[-1] ^= 1
    path.write_bytes((whole if marked else whole.removesuffix(frames.mark(3))) + torn)
    contents = read_contents(tmp_path)
    assert contents.records == numbered(0, 3)
    assert (contents.torn_bytes, contents.marked) == (len(torn), marked)


class PowerCut(Disk):
    """Keeps what a power cut would leave when nothing reached a disk that was not synced; what is
    not there yet of a file that has grown is zeros."""

    def __init__(self) -> None:
        self.paths: dict[int, Path] = {}
        self.durable: dict[Path, bytes] = {}

    def open_or_create(self, path: Path) -> int:
        fd = super().open_or_create(path)
        self.paths[fd] = path
        return fd

    def fdatasync(self, fd: int) -> None:
        super().fdatasync(fd)
        self.durable[self.paths[fd]] = self.paths[fd].read_bytes()

    def leave(self, target: Path) -> None:
        for path, data in self.durable.items():
            if path.exists():
                (target / path.name).write_bytes(data.ljust(path.stat().st_size, b"\0"))


def test_a_mark_that_a_power_cut_took_does_no_harm_in_any_generation(tmp_path: Path) -> None:
    disk, cut = PowerCut(), tmp_path / "cut"
    book, outcomes = opened(tmp_path, disk, bytes_max=1)
    for number in range(3):
        outcomes.wait_synced(book.append(numbered(number * 2, number * 2 + 1)))
        wait = threading.Event()

        def snapshot(upto: int = number * 2 + 1, wait: threading.Event = wait) -> Iterator[bytes]:
            assert wait.wait(DEADLINE_SECONDS)
            yield from numbered(0, upto)

        book.rotate(snapshot())
        outcomes.wait_synced(book.append(numbered(number * 2 + 1, number * 2 + 2)))
        # The journals of both generations are needed while there is no snapshot.
        cut.mkdir(exist_ok=True)
        disk.leave(cut)
        assert read_contents(cut).records == numbered(0, number * 2 + 2)
        wait.set()
        thread = book._snapshot_thread
        assert thread is not None
        thread.join()
    book.close()


def test_a_missing_frame_is_refused(tmp_path: Path) -> None:
    write(tmp_path, [numbered(0, 3), numbered(3, 5), numbered(5, 6)])
    path = newest(tmp_path)
    whole = path.read_bytes()
    first, second = frames.FILE_HEADER_BYTES, len(frames.frame(3, numbered(3, 5)))
    behind_first = first + len(frames.frame(0, numbered(0, 3)))
    path.write_bytes(whole[:behind_first] + whole[behind_first + second :])
    with pytest.raises(StoreCorrupt, match="records 3 to 4 are missing"):
        read_contents(tmp_path)


def test_a_journal_whose_first_write_was_torn_holds_nothing(tmp_path: Path) -> None:
    write(tmp_path, [])
    path = newest(tmp_path)
    header = path.read_bytes()
    assert len(header) == frames.FILE_HEADER_BYTES
    for cut in range(len(header)):
        path.write_bytes(header[:cut])
        assert read_contents(tmp_path).records == []
    write(tmp_path, [numbered(0, 2)])
    assert read_contents(tmp_path).records == numbered(0, 2)


# The header comes first; each frame is written, synced and marked.
@pytest.mark.parametrize(("call", "at"), [("fdatasync", 4), ("pwrite", 6)])
def test_nothing_is_acknowledged_after_the_disk_failed_once(
    tmp_path: Path, call: str, at: int
) -> None:
    book, outcomes = opened(tmp_path, FaultyDisk(call, at))
    for number in range(2):
        outcomes.wait_synced(book.append(numbered(number, number + 1)))
    refused = book.append(numbered(2, 3))
    with pytest.raises(StoreFailed, match="Input/output error"):
        outcomes.wait_synced(refused)
    with pytest.raises(StoreFailed):
        book.admit()
    book.append(numbered(99, 100))
    with pytest.raises(StoreFailed):
        book.close()
    assert outcomes.synced == 2
    assert read_contents(tmp_path).records[:2] == numbered(0, 2)


@pytest.mark.parametrize("call", ["fdatasync", "pwrite", "rename"])
@pytest.mark.parametrize("at", range(1, 12))
def test_a_disk_that_fails_at_any_call_loses_nothing_acknowledged(
    tmp_path: Path, call: str, at: int
) -> None:
    outcomes, records, acknowledged = Outcomes(), list[bytes](), 0
    book = None
    try:
        book = Journal(
            tmp_path,
            outcomes.on_synced,
            outcomes.on_failed,
            disk=FaultyDisk(call, at),
            bytes_max=1,
        )
        book.start()
        for number in range(6):
            batch = numbered(number * 2, number * 2 + 2)
            book.admit()
            records += batch
            outcomes.wait_synced(book.append(batch))
            acknowledged = len(records)
            if book.wants_rotation:
                book.rotate(iter(list(records)))
        book.close()
    except (OSError, StoreFailed):
        if book is not None:
            with pytest.raises(StoreFailed):
                book.close()
    found = read_contents(tmp_path).records
    assert found[:acknowledged] == records[:acknowledged]
    assert found == records[: len(found)]


def test_too_much_that_waits_for_the_disk_is_refused(tmp_path: Path) -> None:
    outcomes = Outcomes()
    book = Journal(tmp_path, outcomes.on_synced, outcomes.on_failed, waiting_bytes_max=100)
    book.append([b"x" * 200])
    with pytest.raises(Busy):
        book.admit()
    book.start()
    outcomes.wait_synced(1)
    book.admit()
    book.close()


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    batches=st.lists(
        st.lists(st.binary(max_size=40), min_size=1, max_size=4), min_size=1, max_size=6
    ),
    data=st.data(),
)
def test_whatever_happens_to_the_tail_the_acknowledged_prefix_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory,
    batches: list[list[bytes]],
    data: st.DataObject,
) -> None:
    directory = tmp_path_factory.mktemp("journal")
    write(directory, batches)
    path = newest(directory)
    whole = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(whole) - 1))
    if data.draw(st.booleans()):
        del whole[at:]
    else:
        whole[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(bytes(whole))
    expected = [record for batch in batches for record in batch]
    try:
        found = read_contents(directory).records
    except StoreCorrupt:
        return
    assert found == expected[: len(found)]
    # Everything before the frame that was hit.
    position, intact = frames.FILE_HEADER_BYTES, 0
    for batch in batches:
        position += len(frames.frame(0, batch))
        if position <= at:
            intact += len(batch)
    assert len(found) >= intact
