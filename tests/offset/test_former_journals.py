"""Journals of the former format: read once, converted, or refused and left as they are."""

import errno
import logging
from pathlib import Path
from typing import Any

import pytest

from rockoon_core.disk import Disk
from rockoon_core.errors import StoreCorrupt
from rockoon_offset.journal import former_format
from rockoon_offset.journal.former_format import convert_journal, read_records
from rockoon_offset.journal.journal_files import generations
from rockoon_offset.journal.journal_log import JournalLog
from rockoon_offset.journal.store import JournalStore
from rockoon_offset.progress.ledger import Ledger
from rockoon_offset.progress.records import decode
from rockoon_replica.replica_file import AcknowledgedEnd
from support.journal_logs import former, ledger_state, state_of
from support.store_directory import FailingDisk

FIRST, SECOND, THIRD = (f"{number:012}" for number in (1, 2, 3))
FRAME_BYTES = 24


def state_in(directory: Path) -> list[Any]:
    ledger = Ledger()
    for record in read_records(directory):
        ledger.apply(decode(record))
    return ledger_state(ledger)


def content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize("name", ["empty", "first", "later"])
async def test_a_store_that_commit_8e2a733_wrote_is_read_and_converted_once(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    before = former(name, tmp_path / "journal")
    old = sorted(content(tmp_path / "journal"))
    if name == "empty":
        before = []
    store = JournalStore(tmp_path, pytest.fail)
    # A ledger without changes has its counters.
    assert ledger_state(store.ledger) == (before or ledger_state(Ledger()))
    assert sorted(content(tmp_path / "journal")) != old
    assert all(each in caplog.text for each in old), "the log names what is deleted"
    store.write(store.ledger.service_started())
    await store.durable()
    after = ledger_state(store.ledger)
    store.close()
    caplog.clear()
    for _ in range(2):
        store = JournalStore(tmp_path, pytest.fail)
        assert ledger_state(store.ledger) == after
        store.close()
    assert not caplog.records
    assert generations(tmp_path / "journal", "snapshot") == []


@pytest.mark.parametrize("name", ["empty", "later"])
async def test_a_former_journal_beside_a_newer_acknowledged_file_is_refused_before_it_is_converted(
    tmp_path: Path, name: str
) -> None:
    """As after the restore of `journal` alone: the file names records that no journal has."""
    former(name, tmp_path / "journal")
    before = content(tmp_path / "journal")
    newer = AcknowledgedEnd(tmp_path, Disk())
    newer.raise_to(1 << 20)
    newer.close()
    for _ in range(2):
        with pytest.raises(StoreCorrupt, match=r"synced up to 1048576.*restore"):
            JournalStore(tmp_path, pytest.fail)
        assert content(tmp_path / "journal") == before
    (tmp_path / "acknowledged").unlink()
    JournalStore(tmp_path, pytest.fail).close()


def test_a_newest_file_whose_first_write_did_not_finish_is_no_file(tmp_path: Path) -> None:
    for size in (0, 5, 20):
        directory = tmp_path / str(size)
        before = former("later", directory)
        header = (directory / f"{THIRD}.journal").read_bytes()[:size]
        (directory / "000000000004.journal").write_bytes(header)
        convert_journal(directory, "r", Disk())
        assert generations(directory) == [5]
        log = JournalLog(directory, "r", failed=pytest.fail, lost=None)
        log.commit(log.end)
        assert state_of(log) == before
        log.close()


def test_a_write_torn_at_any_byte_costs_only_what_was_not_acknowledged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = former("first", tmp_path)
    path = tmp_path / f"{FIRST}.journal"
    whole = path.read_bytes()
    # The mark follows the last frame directly. A next frame would have the bytes of the last one.
    frame = whole[-3 * FRAME_BYTES :]
    for cut in range(len(frame)):
        path.write_bytes(whole + frame[:cut])
        assert state_in(tmp_path) == before
    assert "its changes were not acknowledged" in caplog.text
    caplog.clear()
    # A power cut may lose the mark.
    path.write_bytes(whole[:-FRAME_BYTES] + frame[:50])
    assert state_in(tmp_path) == before
    assert "or the newest progress, damaged after a power cut" in caplog.text


def test_damage_to_what_was_acknowledged_is_refused_and_nothing_is_touched(tmp_path: Path) -> None:
    former("first", tmp_path)
    path = tmp_path / f"{FIRST}.journal"
    whole = path.read_bytes()
    for position in range(len(whole) - FRAME_BYTES):
        bad = bytearray(whole)
        bad[position] ^= 0x10
        path.write_bytes(bad)
        with pytest.raises(StoreCorrupt, match=path.name):
            read_records(tmp_path)
    before = content(tmp_path)
    with pytest.raises(StoreCorrupt, match="at byte"):
        convert_journal(tmp_path, "r", Disk())
    assert content(tmp_path) == before


def test_a_damaged_snapshot_costs_nothing_while_the_generation_before_is_there(
    tmp_path: Path,
) -> None:
    before = former("later", tmp_path)
    path = tmp_path / f"{THIRD}.snapshot"
    whole = path.read_bytes()
    for position in range(0, len(whole), 7):
        bad = bytearray(whole)
        bad[position] ^= 0x01
        path.write_bytes(bad)
        assert state_in(tmp_path) == before
    path.write_bytes(whole[:-1])
    assert state_in(tmp_path) == before
    (tmp_path / f"{SECOND}.snapshot").write_bytes(b"no snapshot at all")
    with pytest.raises(StoreCorrupt, match="snapshot"):
        read_records(tmp_path)


@pytest.mark.parametrize("generation", [SECOND, THIRD])
def test_a_missing_or_shortened_journal_is_refused(tmp_path: Path, generation: str) -> None:
    former("later", tmp_path)
    (tmp_path / f"{THIRD}.snapshot").write_bytes(b"damaged, so that both are needed")
    path = tmp_path / f"{generation}.journal"
    if generation == SECOND:
        whole = path.read_bytes()
        path.write_bytes(whole[:28])
        with pytest.raises(StoreCorrupt, match="expected"):
            read_records(tmp_path)
        path.write_bytes(whole[:100])
        with pytest.raises(StoreCorrupt, match="at byte"):
            read_records(tmp_path)
    path.unlink()
    with pytest.raises(StoreCorrupt, match="the file is missing"):
        read_records(tmp_path)


def test_a_conversion_uses_the_reserve_of_a_full_disk_or_changes_nothing(tmp_path: Path) -> None:
    former("later", tmp_path)
    reserve = tmp_path / former_format.RESERVE_FILE
    before = content(tmp_path)
    disk = FailingDisk()
    disk.fail_write = lambda *_: errno.ENOSPC
    with pytest.raises(OSError, match="No space left"):
        convert_journal(tmp_path, "r", disk)
    assert {name: data for name, data in content(tmp_path).items() if data} == before
    reserve.write_bytes(b"\0")
    disk.fail_write = lambda *_: errno.ENOSPC if reserve.exists() else 0
    convert_journal(tmp_path, "r", disk)
    assert generations(tmp_path) == [4]
